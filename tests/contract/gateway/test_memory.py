"""What requests hold together: bounded, fair among principals, not held by slow bodies, also while nothing is
committed."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

from tarn.core.errors import UnavailableError
from tarn.core.table_catalog import CommitOutcome, TableCatalog, TableName
from tarn.core.table_state import CommitRequest
from tarn.core.write_keys import KeyedWrite
from tarn.gateway import memory as module
from tarn.gateway.app import AppLimits
from tarn.gateway.bodies import BodyLimits
from tarn.gateway.memory import Memory, SlowBodyError
from tarn.gateway.takes import InboxLimits
from tarn.gateway.writes import Write
from tests.contract.gateway.test_edge import head, received
from tests.contract.gateway.test_inbox import inbox, lake_with_table, settle
from tests.contract.gateway.test_inbox import row as line
from tests.support.gateway import Gateway, World, row
from tests.support.stack import eventually

MIB = 1 << 20
SMALL = AppLimits(body=BodyLimits(bytes_max=MIB), body_s_max=110)
WITHIN_S = 60.0


def test_who_holds_least_is_next_and_nobody_has_more_than_two_thirds() -> None:
    order: list[str] = []

    async def take(memory: Memory, who: str, size: int, go: asyncio.Event) -> None:
        async with memory.hold(size, who=who):
            order.append(who)
            await go.wait()

    async def play() -> None:
        memory, first, rest = Memory(9, wait_s_max=60), asyncio.Event(), asyncio.Event()
        rest.set()
        tasks = [asyncio.ensure_future(take(memory, who, 3, first)) for who in ("a", "a", "a", "b")]
        await asyncio.sleep(0.01)
        assert order == ["a", "a", "b"], "the third of a would be more than two thirds"
        tasks += [asyncio.ensure_future(take(memory, who, 3, rest)) for who in ("a", "b", "c", "c")]
        await asyncio.sleep(0.01)
        assert (len(order), memory.held) == (3, 9)
        first.set()
        await asyncio.gather(*tasks)
        assert memory.held == 0

    asyncio.run(play())
    assert order[3] == "c"
    assert sorted(order) == ["a"] * 4 + ["b"] * 2 + ["c"] * 2


def test_answers_that_one_principal_does_not_read_keep_out_nobody_else() -> None:
    async def play() -> None:
        memory = Memory(9, wait_s_max=60)
        answers = [memory.keep(5, who="a") for _ in range(4)]
        assert memory.held == 20
        assert memory.grab(1, who="a") is None, "it has more than its share"
        grabbed = memory.grab(1, who="b")
        assert grabbed is not None
        async with memory.hold(2, who="b"):
            assert memory.grab(1, who="c") is None, "two thirds are of a, one of b"
        grabbed.end()
        for answer in answers[:3]:
            answer.end()
        assert (memory.held, memory.grab(2, who="a")) == (5, None)
        async with memory.hold(4, who="c"):
            assert memory.held == 9
        answers[3].end()
        assert memory.held == 0
        async with memory.hold(6, who="a"), memory.hold(3, who="b"):
            assert memory.held == 9, "all of it is free again"

    asyncio.run(play())


def test_who_waits_too_long_hears_who_holds_it_and_leaves_nothing_behind() -> None:
    async def play() -> None:
        memory = Memory(9, wait_s_max=0.05)
        async with memory.hold(6, who="a"):
            for who in ("a", "b"):
                with pytest.raises(
                    UnavailableError, match=r"holds 6 bytes of writes.*at most 9 fit, 6 of one"
                ):
                    async with memory.hold(4, who=who):
                        pass
            async with memory.hold(3, who="b"):
                assert memory.held == 9
        assert memory.held == 0

    asyncio.run(play())


def test_bytes_are_held_until_the_rows_have_landed_not_until_the_request_ends() -> None:
    async def play() -> None:
        memory, answer = Memory(9, wait_s_max=0.05), Future[None]()
        async with memory.hold(6, who="a") as held:
            held.stays_until(answer)
        assert (memory.held, memory.late) == (6, 1)
        with pytest.raises(UnavailableError, match="1 of them on their way to tables that do not confirm"):
            async with memory.hold(6, who="b"):
                pass
        await asyncio.to_thread(answer.set_result, None)
        await asyncio.sleep(0.05)
        assert (memory.held, memory.late) == (0, 0)

    asyncio.run(play())


def test_a_slow_body_gives_way_to_those_who_wait_and_a_fast_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.1)
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    ended: list[str] = []

    async def body(memory: Memory, who: str, bytes_a_turn: int) -> None:
        try:
            async with memory.hold(3, who=who) as held, held.arriving(60):
                for _ in range(40):
                    await asyncio.sleep(0.02)
                    held.came(bytes_a_turn)
        except SlowBodyError as e:
            ended.append(who if "while others waited" in e.message else e.message)

    async def play() -> None:
        memory = Memory(6, wait_s_max=60)
        tasks = [
            asyncio.ensure_future(body(memory, who, size)) for who, size in (("slow", 10), ("fast", MIB))
        ]
        await asyncio.sleep(0.3)
        assert ended == [], "there is room for all"
        async with memory.hold(3, who="other"):
            assert ended == ["slow"]
        await asyncio.gather(*tasks)
        assert (ended, memory.held) == (["slow"], 0)

    asyncio.run(play())


def test_a_body_that_takes_too_long_is_ended_also_if_nobody_waits() -> None:
    async def play() -> None:
        memory = Memory(6, wait_s_max=60)
        with pytest.raises(SlowBodyError, match=r"did not come within 0\.05 s"):
            async with memory.hold(3, who="a") as held, held.arriving(0.05):
                await asyncio.sleep(5)
        assert memory.held == 0

    asyncio.run(play())


def test_slow_bodies_of_one_principal_keep_no_other_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 1_000.0)  # none of them gives way
    world.principal("bob", "WRITE")
    gateway = world.gateway(app=SMALL, memory=Memory(6 * MIB, wait_s_max=15))
    slow = [gateway.connect() for _ in range(4)]
    for connection in slow:
        connection.sendall(head(gateway, world.tokens["bob"], f"content-length: {MIB}") + b"[")
    eventually(
        lambda: gateway.memory.held == 4 * MIB, timeout_s=WITHIN_S, what="two of them hold it", pause_s=0.02
    )
    assert world.post(gateway, row(1)).status_code == 200
    for connection in slow:
        connection.close()


def test_slow_bodies_of_all_give_way_within_seconds(world: World) -> None:
    for who in ("bob", "eve"):
        world.principal(who, "WRITE")
    gateway = world.gateway(app=SMALL, memory=Memory(6 * MIB, wait_s_max=50))
    slow = [gateway.connect() for _ in range(3)]
    for connection, who in zip(slow, ("bob", "bob", "eve"), strict=True):
        connection.sendall(head(gateway, world.tokens[who], f"content-length: {MIB}") + b"[")
    eventually(lambda: gateway.memory.held == 6 * MIB, timeout_s=WITHIN_S, what="all is held", pause_s=0.02)
    assert world.post(gateway, row(1)).status_code == 200, "long before the time of a body has passed"
    assert b" 408 " in received(slow[0])
    for connection in slow:
        connection.close()


class Stuck:
    """A catalog whose commits hang until `go`, and that is asked for one at `asked`."""

    def __init__(self) -> None:
        self.go, self.asked = threading.Event(), threading.Event()

    def __call__(self, catalog: TableCatalog) -> TableCatalog:
        self._inner = catalog
        return self  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        self.asked.set()
        self.go.wait(110)
        return self._inner.commit(table, request, key=key)


def unconfirmed(world: World, gateway: Gateway, stuck: Stuck, body: Any, **more: Any) -> None:
    """Write what the catalog does not confirm; a busy machine may not get so far before the answer is due."""
    until = time.monotonic() + WITHIN_S
    while not stuck.asked.is_set():
        assert time.monotonic() < until, "no write has come as far as to the catalog"
        answer = world.post(gateway, body, **more)
        assert answer.status_code in (503, 504), answer.text
    eventually(
        lambda: gateway.memory.late == 1, timeout_s=WITHIN_S, what="its rows are on their way", pause_s=0.01
    )


def test_a_long_outage_fills_no_memory_and_says_so(world: World) -> None:
    """What was taken and not confirmed counts on, so a new write is refused instead of piling up."""
    stuck = Stuck()
    gateway = world.gateway(
        catalog=stuck,
        app=AppLimits(body=BodyLimits(bytes_max=1_000), answer_s_max=0.3),
        memory=Memory(6_000, wait_s_max=0.2),
        limits=InboxLimits(bytes_max=500, wait_s_max=60),
    )
    big = {**row(1), "at": "x" * 900}
    world.principal("p0", "WRITE")
    unconfirmed(world, gateway, stuck, [big], who="p0", producer="p")
    refused = 0
    for number in range(1, 12):
        world.principal(f"p{number}", "WRITE")
        answer = world.post(gateway, [big], who=f"p{number}", producer="p")
        assert answer.status_code in (503, 504), answer.text
        refused += answer.status_code == 503
        assert gateway.memory.held <= 6_000
    assert refused >= 6, "there is room for so many only"
    assert 0 < gateway.memory.late <= 6
    held = gateway.memory.held
    assert held >= 900 * gateway.memory.late
    stuck.go.set()
    eventually(lambda: gateway.memory.held == 0, timeout_s=WITHIN_S, what="all given back", pause_s=0.02)
    assert gateway.memory.late == 0
    # A busy machine may need more than the 0.3 s of one answer.
    eventually(
        lambda: world.post(gateway, row(7)).status_code == 200,
        timeout_s=WITHIN_S,
        what="rows are taken again",
    )


def test_memory_that_unconfirmed_writes_fill_is_503_with_the_reason(world: World) -> None:
    stuck = Stuck()
    gateway = world.gateway(
        catalog=stuck,
        app=AppLimits(body=BodyLimits(bytes_max=1_500), answer_s_max=0.3),
        memory=Memory(4_500, wait_s_max=0.2),
    )
    rows = [row(n) for n in range(30)]
    unconfirmed(world, gateway, stuck, rows, producer="p")
    refused = world.post(gateway, rows, producer="q")
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], refused.headers["retry-after"]) == (503, "Unavailable", "1")
    assert "1 of them on their way to tables that do not confirm" in error["message"]
    stuck.go.set()
    eventually(lambda: gateway.memory.held == 0, timeout_s=WITHIN_S, what="given back", pause_s=0.02)
    assert world.ids() == list(range(30))


def test_repeats_of_a_write_that_is_taken_back_hear_of_it() -> None:
    lake = lake_with_table()
    box = inbox(lake)
    write = Write(values=[line(1)], at_ms=0, keyed=KeyedWrite.of("c", "k", b"1"))
    first = box.submit(write)
    prepared = box.prepare()
    assert prepared is not None
    again = box.submit(write)
    assert box.prepare() is None
    box.put_back(prepared)
    assert box.withdraw(first)
    with pytest.raises(UnavailableError, match="nothing was written"):
        again.result(0)
    settle(box)
    assert box.waiting == (0, 0)


class Rows(list[bytes]):
    """Rows that can be watched."""


def test_repeats_of_a_write_on_its_way_keep_nothing_once_nobody_waits_for_them() -> None:
    lake = lake_with_table()
    box = inbox(lake)

    def keyed() -> Write:
        return Write(values=Rows([line(1)]), at_ms=0, keyed=KeyedWrite.of("c", "k", b"1"))

    first = box.submit(keyed())
    prepared = box.prepare()
    assert prepared is not None
    watched = []
    for _ in range(20):
        write = keyed()
        watched.append(weakref.ref(write.values))
        answer = box.submit(write)
        del write
        assert box.prepare() is None
        assert not box.withdraw(answer)
        assert box.leave(answer)
    assert not box.leave(first), "its rows are on their way"
    stays = box.submit(keyed())
    assert box.prepare() is None
    gc.collect()
    assert [one() for one in watched if one() is not None] == []
    ((waiting, _),) = prepared.parts
    assert waiting.followers == [stays]
    box.commit(prepared)
    settle(box)
    assert stays.result(0).repeated
    assert not answer.done()
