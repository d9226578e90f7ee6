"""`durability=log` over a long time: what is full becomes free again, and nothing waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tarn.core import log_claims
from tarn.core.log_claims import KEY_MS, PRODUCER_MS
from tarn.gateway import log_judge
from tarn.gateway.log_judge import LogLimits
from tests.support.gateway import LogWorld, row

LOG = "?durability=log"
NOW_MS = 1_800_000_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LogWorld]:
    with LogWorld.opened(tmp_path) as made:
        yield made


def test_keys_that_are_forgotten_make_room_for_others(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_claims, "FORGET_MAX", 2)
    now_ms = [NOW_MS]
    gateway = world.gateway(log=LogLimits(keys_max=3), now_ms=lambda: now_ms[0])

    def answers(*numbers: int) -> list[int]:
        return [world.post(gateway, [row(n)], key=f"k{n}", query=LOG).status_code for n in numbers]

    assert answers(1, 2, 3, 4) == [200, 200, 200, 429]
    now_ms[0] += KEY_MS + 1
    assert answers(4, 5, 6, 7) == [200, 200, 200, 429]


def test_producers_that_are_forgotten_make_room_for_others(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_judge, "PRODUCERS_MAX", 2)
    now_ms = [NOW_MS]
    gateway = world.gateway(now_ms=lambda: now_ms[0])

    def answers(*numbers: int) -> list[int]:
        return [
            world.post(gateway, [row(n)], producer=f"p{n}", sequence=0, query=LOG).status_code
            for n in numbers
        ]

    assert answers(1, 2, 3) == [200, 200, 429]
    now_ms[0] += PRODUCER_MS + 1
    assert answers(3, 4, 5) == [200, 200, 429]
