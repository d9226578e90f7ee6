"""`tarn.client.async_writer` over sockets: the same promises as `writer`, for tasks beside each other."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import threading
from contextlib import suppress

import pytest

from tarn.adapters.gateway_client import BODY_BYTES_MAX
from tarn.client import AsyncRowWriter, NotTakenError, RejectedRowsError, RepeatTooLateError, async_writer
from tarn.client.async_writing import REQUESTS_MAX, ThreadedClient
from tarn.client.repeats import REPEAT_S_MAX
from tarn.client.writing import Receipt, WriteLimits
from tarn.core.errors import (
    ForbiddenError,
    InvalidError,
    InvalidSettingError,
    OutcomeUnknownError,
    TarnError,
    UnavailableError,
)
from tests.support.gateway import TABLE, Gateway, World, row
from tests.support.planned_client import AWAY, LOST, Planned


def made(world: World, gateway: Gateway, who: str = "admin") -> AsyncRowWriter:
    return async_writer(
        TABLE,
        gateway=gateway.url,
        catalog=world.catalog_url,
        credential=world.credentials[who],
        rows_max=3,
    )


def planned(
    world: World, *plan: TarnError | None, timeout_s: float = 60, rows_max: int = 3
) -> tuple[AsyncRowWriter, Planned, list[float]]:
    """A writer whose requests fail as planned, its client, and how long it waited."""
    whole = made(world, world.gateway()).client
    assert isinstance(whole, ThreadedClient)
    client, waits, now = Planned(whole._client, *plan), list[float](), itertools.count()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    rows = AsyncRowWriter(
        table=TABLE,
        client=ThreadedClient(client),
        limits=WriteLimits(rows_max=rows_max, timeout_s=timeout_s),
        clock=lambda: float(next(now)),
        sleep=sleep,
        chance=lambda: 0.5,
    )
    return rows, client, waits


def test_a_process_that_was_forked_starts_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def __init__(self) -> None:
            self.threads: list[threading.Thread] = []

        def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
            del table, body, kind, key
            self.threads.append(threading.current_thread())
            return Receipt(accepted=0)

        def close(self) -> None:
            """Nothing is open."""

    async def play() -> None:
        await threaded.post(TABLE, b"", kind="", key="")

    client = Client()
    threaded = ThreadedClient(client, requests_max=1)
    asyncio.run(play())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    asyncio.run(play())
    asyncio.run(play())
    threaded.close()
    first, *later = client.threads
    assert first not in later, "the parent's are not there: a request that waits for one waits without end"
    assert len(set(later)) == 1


def test_batches_are_sent_when_they_are_full_and_at_the_end(world: World) -> None:
    async def play() -> None:
        async with made(world, world.gateway()) as rows:
            for number in range(2):
                await rows.write(row(number))
            assert world.ids() == []
            await rows.write(row(2))
            assert world.ids() == [0, 1, 2]
            await rows.write(row(3))

    asyncio.run(play())
    assert world.ids() == [0, 1, 2, 3]


def test_a_block_that_fails_sends_nothing_more(world: World) -> None:
    async def play() -> None:
        async with made(world, world.gateway()) as rows:
            await rows.write(row(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(play())
    assert world.ids() == []


@pytest.mark.parametrize("plan", [[LOST], [LOST, LOST, AWAY, LOST], [AWAY, AWAY]])
def test_a_request_is_repeated_under_one_key_until_its_rows_are_in_once(
    world: World, plan: list[TarnError]
) -> None:
    rows, client, waits = planned(world, *plan)
    receipt = asyncio.run(rows.send([row(1), row(2)]))
    assert (receipt.accepted, receipt.repeated) == (2, LOST in plan)
    assert len(client.keys) == len(plan) + 1
    assert len(set(client.keys)) == 1
    assert [wait == 7.0 for wait in waits] == [error is AWAY for error in plan]
    assert world.ids() == [1, 2]


def test_what_is_given_up_is_kept_and_goes_first_as_it_was(world: World) -> None:
    rows, client, _ = planned(world, LOST, AWAY, AWAY, timeout_s=9)

    async def play() -> Receipt | None:
        await rows.write(row(1))
        with pytest.raises(OutcomeUnknownError, match="may have written"):
            await rows.flush()
        await rows.write(row(2))
        return await rows.flush()

    receipt = asyncio.run(play())
    assert receipt is not None
    assert receipt.accepted == 1
    assert client.bodies[0] == client.bodies[-2] != client.bodies[-1]
    assert client.keys[0] == client.keys[-2] != client.keys[-1]
    assert world.ids() == [1, 2]


def test_what_was_never_written_is_kept_too(world: World) -> None:
    rows, _, _ = planned(world, AWAY, AWAY, AWAY, timeout_s=9)

    async def play() -> Receipt | None:
        await rows.write(row(1))
        with pytest.raises(UnavailableError):
            await rows.flush()
        assert world.ids() == []
        return await rows.flush()

    assert asyncio.run(play()) is not None
    assert world.ids() == [1]


def test_tasks_that_share_a_writer_lose_and_double_nothing(world: World) -> None:
    rows, client, _ = planned(world, LOST, None, AWAY, LOST, None, None, LOST, rows_max=7)

    async def task(number: int) -> None:
        for at in range(10):
            await rows.write(row(10 * number + at))

    async def play() -> None:
        async with rows:
            await asyncio.gather(*(task(number) for number in range(12)))

    asyncio.run(play())
    assert world.ids() == list(range(120))
    sent = dict(zip(client.keys, client.bodies, strict=True))
    assert sorted(len(body.splitlines()) for body in sent.values()) == [1, *[7] * 17]


def test_requests_go_side_by_side_and_the_loop_runs_on_meanwhile(world: World) -> None:
    rows, client, _ = planned(world)

    async def play() -> int:
        client.gate.clear()
        sending = [asyncio.create_task(rows.send([row(number)])) for number in range(REQUESTS_MAX)]
        turns = 0
        async with asyncio.timeout(60):
            for _ in sending:
                while not client.arrived.acquire(blocking=False):
                    turns += 1
                    await asyncio.sleep(0.001)
        client.gate.set()
        await asyncio.gather(*sending)
        return turns

    assert asyncio.run(play()) > 0
    assert world.ids() == list(range(REQUESTS_MAX))


def test_a_cancelled_flush_leaves_its_batch_for_the_next_under_the_same_key(world: World) -> None:
    rows, client, _ = planned(world)

    async def play() -> Receipt | None:
        client.gate.clear()
        await rows.write(row(1))
        sending = asyncio.create_task(rows.flush())
        await asyncio.to_thread(client.arrived.acquire)
        with pytest.raises(RuntimeError, match="being sent"):
            rows.discard()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        client.gate.set()
        await rows.write(row(2))
        return await rows.flush()

    receipt = asyncio.run(play())
    assert receipt is not None
    assert receipt.accepted == 1
    first, again, other = client.keys
    assert first == again != other
    assert world.ids() == [1, 2]


def test_rows_that_the_table_does_not_take_are_named(world: World) -> None:
    bad = {"id": "x", "at": "2026-11-23T08:00:00Z"}

    async def play() -> None:
        rows = made(world, world.gateway())
        await rows.write(row(1))
        await rows.write(bad)
        with pytest.raises(RejectedRowsError, match="1 of 2 rows") as caught:
            await rows.flush()
        assert [found for found, _ in caught.value.rows] == [bad]
        assert await rows.flush() is None
        assert (await rows.send([bad])).rejected.keys() == {0}
        await rows.write(row(2))
        rows.discard()
        await rows.close()

    asyncio.run(play())
    assert world.ids() == [1]


async def cancelled_flush(rows: AsyncRowWriter, client: Planned) -> None:
    """Send the batch, and cancel that when its request has arrived; then requests go on."""
    sending = asyncio.create_task(rows.flush())
    await asyncio.to_thread(client.arrived.acquire)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    client.gate.set()


def test_a_row_is_taken_whose_write_brings_what_was_rejected_of_another_tasks_batch(world: World) -> None:
    rows, client, _ = planned(world)
    bad = {"id": "x", "at": "2026-11-23T08:00:00Z"}

    async def play() -> None:
        client.gate.clear()
        await rows.write(row(1))
        await rows.write(bad)
        await cancelled_flush(rows, client)
        with pytest.raises(RejectedRowsError) as caught:
            await rows.write(row(2))
        assert [found for found, _ in caught.value.rows] == [bad]
        await rows.close()

    asyncio.run(play())
    assert world.ids() == [1, 2]


def test_a_row_is_the_callers_while_the_batch_before_is_not_in(world: World) -> None:
    rows, client, _ = planned(world, LOST, *[AWAY] * 99, timeout_s=3)

    async def play() -> None:
        await rows.write(row(1))
        with pytest.raises(OutcomeUnknownError):
            await rows.flush()
        with pytest.raises(NotTakenError) as caught:
            await rows.write(row(2))
        assert caught.value.row == row(2)
        client.plan.clear()
        await rows.write(row(2))
        await rows.close()

    asyncio.run(play())
    assert world.ids() == [1, 2]


def test_what_does_not_help_is_not_repeated_and_not_kept(world: World) -> None:
    world.principal("reader", "READ")

    async def play() -> None:
        rows = made(world, world.gateway(), "reader")
        await rows.write(row(1))
        with pytest.raises(ForbiddenError):
            await rows.flush()
        assert await rows.flush() is None

    asyncio.run(play())
    assert world.ids() == []


def test_an_error_that_drops_a_batch_has_its_rows(world: World) -> None:
    world.principal("reader", "READ")

    async def play() -> None:
        rows = made(world, world.gateway(), "reader")
        await rows.write(row(1))
        await rows.write(row(2))
        with pytest.raises(ForbiddenError) as caught:
            await rows.write(row(3))
        assert list(caught.value.rows) == [row(1), row(2), row(3)]
        await rows.write(row(4))
        with pytest.raises(ForbiddenError) as last:
            await rows.close()
        assert list(last.value.rows) == [row(4)]

    asyncio.run(play())


def test_a_row_that_fits_into_no_request_takes_none_along(world: World) -> None:
    async def play() -> None:
        rows = made(world, world.gateway())
        await rows.write(row(1))
        await rows.write(row(2))
        with pytest.raises(InvalidError, match="does not fit into a request"):
            await rows.write({**row(99), "note": "x" * BODY_BYTES_MAX})
        assert world.ids() == []
        with pytest.raises(RejectedRowsError) as caught:
            await rows.write({**row(99), "note": "x" * (BODY_BYTES_MAX - 60)})
        assert world.ids() == [1, 2], "they do not fit into one request with the row"
        assert [one["id"] for one, _ in caught.value.rows] == [99]

    asyncio.run(play())


@pytest.mark.parametrize("seed", range(2))
def test_tasks_that_give_up_waiting_lose_and_double_no_row(world: World, seed: int) -> None:
    chance = random.Random(seed)
    rows, _, _ = planned(world, *chance.choices([LOST, AWAY, None], k=30), rows_max=4)

    async def task(number: int) -> None:
        for at in range(10):
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.choice([0, 0.001, 0.01, 1])):
                    await rows.write(row(10 * number + at))

    async def play() -> None:
        async with rows:
            await asyncio.gather(*(task(number) for number in range(6)))

    asyncio.run(play())
    assert world.ids() == list(range(60))


def test_requests_that_wait_for_a_thread_end_with_an_error_when_the_writer_is_closed(world: World) -> None:
    rows, client, _ = planned(world)

    async def play() -> list[Receipt | BaseException]:
        client.gate.clear()
        sending = [asyncio.create_task(rows.send([row(number)])) for number in range(REQUESTS_MAX + 2)]
        for _ in range(REQUESTS_MAX):
            await asyncio.to_thread(client.arrived.acquire)
        sending[-1].cancel()
        await rows.close()
        client.gate.set()
        found = await asyncio.gather(*sending, return_exceptions=True)
        with pytest.raises(UnavailableError, match="was closed"):
            await rows.send([row(99)])
        return found

    *sent, waited, cancelled = asyncio.run(play())
    assert [one.accepted for one in sent if isinstance(one, Receipt)] == [1] * REQUESTS_MAX
    assert isinstance(waited, UnavailableError)
    assert "was closed" in str(waited)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert world.ids() == list(range(REQUESTS_MAX))


def test_arguments_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TARN_GATEWAY_URI", "TARN_CATALOG_URI", "TARN_CATALOG_CREDENTIAL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidSettingError, match="TARN_GATEWAY_URI, TARN_CATALOG_URI"):
        async_writer("a.b")
    with pytest.raises(InvalidError, match="Invalid table 'b'"):
        async_writer("b")
    for wrong in ({"rows_max": 0}, {"requests_max": 0}, {"requests_max": 257}, {"timeout_s": 601}):
        with pytest.raises(InvalidError, match=f"Invalid {next(iter(wrong))}"):
            async_writer("a.b", **wrong)


def test_a_cancelled_batch_whose_key_may_be_forgotten_is_not_sent_a_second_time(world: World) -> None:
    rows, client, _ = planned(world)
    now_s = [0.0]
    rows.wall = lambda: now_s[0]

    async def play() -> None:
        client.gate.clear()
        await rows.write(row(1))
        await cancelled_flush(rows, client)
        now_s[0] = REPEAT_S_MAX + 1
        with pytest.raises(RepeatTooLateError) as caught:
            await rows.flush()
        assert caught.value.rows == (row(1),)
        rows.discard()
        await rows.close()

    asyncio.run(play())
    assert len(client.keys) == 1
