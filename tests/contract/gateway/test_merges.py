"""Small files of the gateway become one, and nothing is lost by it: neither rows nor keys nor producers."""

from __future__ import annotations

import pytest

from tarn.core import small_files
from tarn.gateway import tables
from tarn.gateway.merges import Merges
from tests.support.gateway import NAME, Gateway, World, row
from tests.support.stack import eventually

WRITES = 9


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "EVERY_S", 0.0)
    monkeypatch.setattr(tables, "MERGE_LOOK_S", 0.05)


def files(world: World) -> int:
    return len(world.lake.files())


def merges_of(gateway: Gateway) -> Merges:
    found = gateway.tables.inbox(NAME).merges
    assert found is not None
    return found


def fill(world: World, gateway: Gateway) -> None:
    for number in range(WRITES):
        answer = world.post(gateway, [row(number)], key=f"k-{number}")
        assert answer.status_code == 200, answer.text


def merged(world: World, writes: int = WRITES) -> None:
    eventually(lambda: files(world) < writes, timeout_s=60, what="a merge", pause_s=0.05)


def test_files_are_merged_and_the_rows_are_the_same(world: World) -> None:
    fill(world, world.gateway())
    merged(world)
    assert world.ids() == list(range(WRITES))


def test_keys_and_producers_are_known_to_another_gateway_after_a_merge(world: World) -> None:
    gateway = world.gateway()
    for number in range(WRITES):
        sent = world.post(gateway, [row(100 + number)], producer="p", sequence=number)
        assert sent.status_code == 200, sent.text
    fill(world, gateway)
    merged(world, 2 * WRITES)
    gateway.stop()
    other = world.gateway()
    for number in range(WRITES):
        for answer in (
            world.post(other, [row(number)], key=f"k-{number}"),
            world.post(other, [row(100 + number)], producer="p", sequence=number),
        ):
            assert (answer.status_code, answer.json()["repeated"]) == (200, True)
    assert world.ids() == [*range(WRITES), *range(100, 100 + WRITES)]


def test_files_that_somebody_else_merged_are_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MERGE_LOOK_S", 3_600.0)
    gateway = world.gateway()
    fill(world, gateway)
    first = merges_of(gateway)
    assert first._writer is not None
    assert first._state is not None
    late = Merges(NAME, first._context, first._commits)
    late.add([file for held in first._small._held.values() for file in held], first._writer, first._state)
    assert first.run_once()
    assert files(world) == 1
    assert not late.run_once()
    assert not late.run_once(), "they are forgotten"
    assert world.post(gateway, [row(WRITES)]).status_code == 200
    assert world.ids() == list(range(WRITES + 1))
    assert files(world) == 2


def test_a_table_of_format_version_3_is_left_as_it_is(world: World) -> None:
    update = {"action": "upgrade-format-version", "format-version": 3}
    world.admin("POST", "/v1/namespaces/bronze/tables/orders", {"requirements": [], "updates": [update]})
    gateway = world.gateway()
    fill(world, gateway)
    eventually(lambda: merges_of(gateway)._small._count < WRITES, timeout_s=60, what="a look", pause_s=0.05)
    assert files(world) == WRITES
    assert world.ids() == list(range(WRITES))
