"""`durability=log` over a long time: what is full becomes free again, and nothing waits for ever."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tarn.core import log_claims
from tarn.core.errors import UnavailableError
from tarn.core.log_claims import KEY_MS, PRODUCER_MS, topic_of
from tarn.gateway import group_wait, log_inbox, log_judge
from tarn.gateway.app import AppLimits
from tarn.gateway.log_judge import LogLimits
from tarn.gateway.writes import Receipt, Write
from tarn.testing.memory_log import MemoryLog
from tests.support.gateway import NAME, LogWorld, row
from tests.support.stack import eventually

LOG = "?durability=log"
WITHIN_S = 60.0
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


def test_a_claim_that_is_not_understood_stops_the_log_and_is_not_passed_over(world: LogWorld) -> None:
    assert world.post(world.gateway(), [row(1)], key="k", query=LOG).status_code == 200
    held = world.logs.held(topic_of(world.uuid))
    at = next(at for at, (key, _) in enumerate(held.claims) if key.startswith(b"k/"))
    written = held.claims[at]
    held.claims[at] = (written[0], b'{"v": 99}')
    gateway = world.gateway()
    answers = [world.post(gateway, [row(1)], key="k", query=LOG) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [answers[0].status_code] * 2
    assert "format 99" in answers[1].text
    held.claims[at] = written
    assert world.post(gateway, [row(1)], key="k", query=LOG).json()["repeated"]


def test_lost_claims_are_named_and_leave_alone_who_goes_on(world: LogWorld) -> None:
    first, second = world.gateway(), world.gateway()
    assert world.post(first, [row(1)], key="k", query=LOG).status_code == 200
    world.logs.recreate_claims(topic_of(world.uuid))
    assert world.post(second, [row(2)], query=LOG).status_code == 200
    epoch = world.logs.held(topic_of(world.uuid)).epoch
    for _ in range(2):
        answer = world.post(first, [row(3)], query=LOG)
        assert (answer.status_code, answer.json()["error"]["type"]) == (409, "TableTakesNoRows")
        assert "log of table bronze.orders" in answer.text
        assert "restart the gateway" in answer.text
    assert world.logs.held(topic_of(world.uuid)).epoch == epoch
    assert world.post(second, [row(4)], query=LOG).status_code == 200
    assert world.post(world.gateway(), [row(5)], query=LOG).status_code == 200
    world.land()
    assert world.ids() == [1, 2, 4, 5]


def test_lost_claims_are_noticed_when_they_are_read_again_too(world: LogWorld) -> None:
    gateway = world.gateway(log=LogLimits(gap_s_max=0.05))
    assert world.post(gateway, [row(1)], producer="p", query=LOG).status_code == 200
    world.logs.recreate_claims(topic_of(world.uuid))
    answer = world.post(gateway, [row(2)], producer="p", sequence=5, query=LOG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "TableTakesNoRows")
    assert "log of table bronze.orders" in answer.text


class Away:
    """A broker that commits one transaction without an answer, and lets one log wait for its opening."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._left = 1
        self.waits = True
        self.asked = 0

    def __call__(self, step: str) -> None:
        if threading.current_thread().name != f"log-{self._table}":
            return
        if step == "committed" and self._left:
            self._left = 0
            raise UnavailableError("gone")
        if step == "open" and not self._left and self.waits:
            self.asked += 1
            raise UnavailableError("away")

    def wait(self) -> None:
        until_s = time.monotonic() + WITHIN_S
        while not self.asked:
            assert time.monotonic() < until_s
            time.sleep(0.01)


def rename(world: LogWorld, was: str, to: str) -> None:
    body = {
        "source": {"namespace": ["bronze"], "name": was},
        "destination": {"namespace": ["bronze"], "name": to},
    }
    world.admin("POST", "/v1/tables/rename", body)


def test_an_outcome_is_asked_for_by_what_this_name_of_the_table_wrote(world: LogWorld) -> None:
    gateway = world.gateway(log=LogLimits(look_s=0.0))
    away = world.logs.at = Away("bronze.orders")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(world.post, gateway, [row(1)], query=LOG)
        away.wait()
        rename(world, "orders", "renamed")
        assert world.post(gateway, [row(2)], table="bronze.renamed", query=LOG).status_code == 200
        rename(world, "renamed", "orders")
        away.waits = False
        assert first.result().status_code == 200
    world.land()
    assert world.ids() == [1, 2]


def test_an_outcome_that_nobody_knows_is_not_asked_for_for_ever(world: LogWorld) -> None:
    gateway = world.gateway(log=LogLimits(settle_s_max=0.2), app=AppLimits(answer_s_max=50))
    world.logs.at = Away("bronze.orders")
    began_s = time.monotonic()
    answer = world.post(gateway, [row(1)], query=LOG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (504, "OutcomeUnknown")
    assert time.monotonic() - began_s < 45, "it is the time for this question that ends it"
    assert gateway.logs.inbox(NAME).waiting == (0, 0)
    eventually(lambda: gateway.memory.held == 0, timeout_s=WITHIN_S, what="nothing is held", pause_s=0.01)


def test_rows_that_may_be_in_one_table_are_not_written_to_another_of_its_name(world: LogWorld) -> None:
    gateway = world.gateway(log=LogLimits(look_s=0.0), app=AppLimits(answer_s_max=50))
    away = world.logs.at = Away("bronze.orders")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(world.post, gateway, [row(1)], query=LOG)
        away.wait()
        rename(world, "orders", "renamed")
        world.other_table()
        rename(world, "others", "orders")
        away.waits, began_s = False, time.monotonic()
        answer = first.result()
    assert (answer.status_code, answer.json()["error"]["type"]) == (504, "OutcomeUnknown")
    assert time.monotonic() - began_s < 30
    assert "another table has its name now" in answer.text


def test_a_log_is_attended_to_while_nothing_is_written(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested = threading.Event()
    monkeypatch.setattr(log_inbox, "REST_S", 0.05)
    monkeypatch.setattr(MemoryLog, "rest", lambda log: rested.set())
    gateway = world.gateway()
    assert world.post(gateway, [row(1)], query=LOG).status_code == 200
    assert rested.wait(WITHIN_S)
    assert world.post(gateway, [row(2)], query=LOG).status_code == 200


def test_the_writers_of_one_transaction_are_waited_for_at_the_next(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was answered and who came meanwhile are expected together, as long as the transaction took."""
    monkeypatch.setattr(group_wait, "WAIT_S_MAX", 30.0)
    monkeypatch.setattr(group_wait, "SHARE", 1e6)
    sizes: list[int] = []
    begun, go = threading.Event(), threading.Event()
    append = MemoryLog.append

    def slow(log: MemoryLog, rows: Any, claims: Any) -> None:
        sizes.append(len(rows))
        begun.set()
        assert go.wait(timeout=30)
        append(log, rows, claims)

    monkeypatch.setattr(MemoryLog, "append", slow)
    gateway = world.gateway()
    inbox = gateway.logs.inbox(NAME)

    def write(number: int) -> Future[Receipt]:
        return inbox.submit(Write(values=[json.dumps(row(number)).encode()], at_ms=0))

    first = write(1)
    assert begun.wait(timeout=30)
    pair = write(2), write(3)
    go.set()
    assert first.result(30).accepted == 1
    for turn, sizes_now in enumerate(([1], [1, 3])):
        done = pair if turn == 0 else (write(4), write(5))
        with pytest.raises(TimeoutError):
            done[0].result(0.3)
        assert sizes == sizes_now, "one of three is not back"
        began_s = time.monotonic()
        last = write(sum(sizes) * 10)
        assert [one.result(30).accepted for one in (*done, last)] == [1, 1, 1]
        assert time.monotonic() - began_s < 20, "the last one that is waited for ends the wait"
    assert sizes == [1, 3, 3]
