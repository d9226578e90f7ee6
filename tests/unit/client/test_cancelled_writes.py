"""Writes of `AsyncRowWriter` that are cancelled: each has taken its row, which keeps its place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from tarn.client.async_writing import LEFT_BYTES_MAX, LEFT_ROWS_MAX, AsyncRowWriter
from tarn.client.batches import NotTakenError, RejectedRowsError, WriteLimits
from tarn.client.repeats import REPEAT_S_MAX, RepeatTooLateError
from tarn.client.writing import Receipt
from tarn.core.errors import InvalidError, OutcomeUnknownError, TarnError, UnavailableError

LOST = OutcomeUnknownError("the answer is lost")
AWAY = UnavailableError("busy")


class Gateway:
    """Takes each key once, at its gate.

    Attributes:
        table: ids of the rows that it has, in the order of the requests.
        gate: requests wait for it.
        plan: how the next requests end; None for an answer.
        bad: ids that it rejects.
        chance: if given, each request waits for some turns of the loop, and may fail.
    """

    def __init__(self) -> None:
        self.table: list[Any] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.plan: list[TarnError | None] = []
        self.bad: list[Any] = []
        self.chance: random.Random | None = None
        self._answers: dict[str, Receipt] = {}

    async def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        del table, kind
        error = self.plan.pop(0) if self.plan else None
        await self.gate.wait()
        if self.chance is not None:
            error = self.chance.choice([LOST, AWAY, None, None])
            for _ in range(self.chance.randrange(6)):
                await asyncio.sleep(0)
        if isinstance(error, UnavailableError):
            raise error
        if key not in self._answers:
            ids = [orjson.loads(line)["id"] for line in body.splitlines()]
            rejected = {at: "bad" for at, one in enumerate(ids) if one in self.bad}
            self._answers[key] = Receipt(accepted=len(ids) - len(rejected), rejected=rejected)
            self.table += [one for one in ids if one not in self.bad]
        if error is not None:
            raise error
        return self._answers[key]

    def close(self) -> None:
        """Nothing is open."""


def played(play: Callable[[AsyncRowWriter, Gateway], Awaitable[None]], rows_max: int = 2) -> list[Any]:
    """Play with a writer that repeats nothing by itself; return what the table has then."""

    async def run() -> list[Any]:
        gateway = Gateway()
        limits = WriteLimits(rows_max=rows_max, timeout_s=0)
        await play(AsyncRowWriter(table="a.b", client=gateway, limits=limits), gateway)
        return gateway.table

    return asyncio.run(run())


async def begun(wait: Awaitable[Any]) -> asyncio.Task[Any]:
    """A task that waits."""
    task = asyncio.ensure_future(wait)
    assert isinstance(task, asyncio.Task)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def cancelled(wait: Awaitable[Any]) -> None:
    """Begin to wait, and be cancelled."""
    task = await begun(wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def unknown(rows: AsyncRowWriter, gateway: Gateway, *ids: Any) -> None:
    """A batch of these rows whose answer is lost."""
    for one in ids:
        gateway.plan = [LOST]
        try:
            await rows.write({"id": one})
        except OutcomeUnknownError:
            return
    with pytest.raises(OutcomeUnknownError):
        await rows.flush()


def test_rows_that_wait_are_the_parents_after_a_fork() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        await unknown(rows, gateway, 0, 1)
        gateway.gate.clear()
        await cancelled(rows.write({"id": 2}))
        gateway.gate.set()
        own = rows.process
        rows.process = lambda: -1
        for use in (lambda: rows.write({"id": 3}), rows.flush, rows.close):
            with pytest.raises(InvalidError, match=r"3 rows for a\.b were gathered before"):
                await use()
        rows.process = own
        await rows.close()

    assert played(play) == [0, 1, 2]


def test_cancelled_while_its_own_batch_is_sent() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        await rows.write({"id": 0})
        gateway.gate.clear()
        await cancelled(rows.write({"id": 1}))
        gateway.gate.set()
        await rows.write({"id": 2})
        await rows.flush()

    assert played(play) == [0, 1, 2]


def test_cancelled_while_the_batch_before_is_repeated() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        await unknown(rows, gateway, 0, 1)
        gateway.gate.clear()
        await cancelled(rows.write({"id": 2}))
        gateway.gate.set()
        receipt = await rows.flush()
        assert receipt is not None
        assert receipt.accepted == 1, "the last batch's"

    assert played(play) == [0, 1, 2]


def test_cancelled_while_it_waits_for_its_turn() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        await rows.write({"id": 0})
        gateway.gate.clear()
        sending = await begun(rows.write({"id": 1}))
        before = await begun(rows.write({"id": 2}))
        between = await begun(rows.write({"id": 3}))
        behind = await begun(rows.write({"id": 4}))
        between.cancel()
        gateway.gate.set()
        await asyncio.gather(sending, before, behind)
        assert gateway.table == [0, 1, 2, 3]
        assert between.cancelled()
        await rows.close()

    assert played(play) == [0, 1, 2, 3, 4]


def test_a_batch_that_fails_again_leaves_its_row_to_the_one_write_that_heard_it() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        await unknown(rows, gateway, 0, 1)
        gateway.gate.clear()
        await cancelled(rows.write({"id": 2}))
        gateway.gate.set()
        gateway.plan = [AWAY]
        with pytest.raises(NotTakenError) as caught:
            await rows.write({"id": 3})
        assert caught.value.row == {"id": 3}
        await rows.write({"id": 3})
        await rows.close()

    assert played(play) == [0, 1, 2, 3]


def test_rows_behind_a_batch_with_rejected_rows_are_taken() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        gateway.bad = [1, 2]
        await unknown(rows, gateway, 0, 1)
        gateway.gate.clear()
        for one in (2, 3, 4):
            await cancelled(rows.write({"id": one}))
        gateway.gate.set()
        for bad, own in ((1, 5), (2, 6)):
            with pytest.raises(RejectedRowsError) as caught:
                await rows.write({"id": own})
            assert caught.value.rows == (({"id": bad}, "bad"),)
        await rows.close()

    assert played(play) == [0, 3, 4, 5, 6]


def test_the_end_sends_what_waits_behind_rejected_rows() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        gateway.bad = [1]
        await unknown(rows, gateway, 0, 1)
        gateway.gate.clear()
        for one in range(2, 7):
            await cancelled(rows.write({"id": one}))
        gateway.gate.set()
        with pytest.raises(RejectedRowsError) as caught:
            await rows.close()
        assert caught.value.rows == (({"id": 1}, "bad"),)

    assert played(play) == [0, 2, 3, 4, 5, 6]


def test_the_end_raises_the_error_of_each_batch() -> None:
    most = LEFT_ROWS_MAX - 1

    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        gateway.bad = list(range(most))
        await unknown(rows, gateway, 0)
        gateway.gate.clear()
        for one in range(1, most):
            task = asyncio.create_task(rows.write({"id": one}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        gateway.gate.set()
        with pytest.raises(RejectedRowsError) as caught:
            await rows.close()
        found: BaseException | None = caught.value
        for one in reversed(range(most)):
            assert isinstance(found, RejectedRowsError)
            assert found.rows == (({"id": one}, "bad"),)
            found = found.__context__
        assert found is None

    assert played(play, rows_max=1) == []


def test_the_end_says_which_rows_are_left() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        await unknown(rows, gateway, 0, 1)
        gateway.gate.clear()
        await cancelled(rows.write({"id": 2}))
        gateway.gate.set()
        gateway.plan = [AWAY]
        with pytest.raises(OutcomeUnknownError) as caught:
            await rows.close()
        assert list(caught.value.rows) == [{"id": 0}, {"id": 1}, {"id": 2}]

    assert played(play) == [0, 1]


@pytest.mark.parametrize(
    ("size", "rows_most"), [(1, LEFT_ROWS_MAX), (LEFT_BYTES_MAX // 4, 4), (LEFT_BYTES_MAX // 2 + 1, 2)]
)
def test_rows_of_cancelled_writes_are_bounded(size: int, rows_most: int) -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        await unknown(rows, gateway, -1)
        gateway.gate.clear()
        note = "x" * size
        for one in range(rows_most):
            task = asyncio.create_task(rows.write({"id": one, "note": note}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        refused: dict[str, Any] = {"id": rows_most, "note": note}
        with pytest.raises(NotTakenError, match=rf"flush\(\).*: {rows_most} rows of cancelled") as caught:
            await asyncio.wait_for(rows.write(refused), 5)
        assert caught.value.row is refused
        gateway.gate.set()
        await rows.flush()
        assert len(gateway.table) == rows_most + 1
        await rows.write(refused)
        await rows.flush()

    assert played(play, rows_max=1_000) == list(range(-1, rows_most + 1))


def test_writes_that_wait_are_not_counted_as_cancelled() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        gateway.gate.clear()
        waiting = [await begun(rows.write({"id": 0}))]
        waiting += [asyncio.create_task(rows.write({"id": one})) for one in range(1, LEFT_ROWS_MAX + 9)]
        await asyncio.sleep(0)
        gateway.gate.set()
        await asyncio.gather(*waiting)

    assert played(play, rows_max=1) == list(range(LEFT_ROWS_MAX + 9))


def test_a_batch_that_is_dropped_takes_no_row_along_that_waits_behind_it() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        now_s = [0.0]
        rows.wall = lambda: now_s[0]
        await unknown(rows, gateway, 0, 1)
        gateway.gate.clear()
        await cancelled(rows.write({"id": 2}))
        gateway.gate.set()
        now_s[0] = REPEAT_S_MAX + 1
        with pytest.raises(RepeatTooLateError) as caught:
            await rows.write({"id": 3})
        assert caught.value.rows == ({"id": 0}, {"id": 1}), "the row of the write is not taken"
        rows.discard()
        await rows.flush()

    assert played(play) == [0, 1, 2]


def test_rows_that_are_dropped_before_they_are_sent_are_all_dropped() -> None:
    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        gateway.gate.clear()
        sending = await begun(rows.write({"id": 0}))
        for one in range(1, LEFT_ROWS_MAX):
            task = asyncio.create_task(rows.write({"id": one}))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        gateway.gate.set()
        await sending
        rows.discard()
        await rows.write({"id": "next"})
        await rows.close()

    assert played(play, rows_max=1) == [0, "next"]


@pytest.mark.parametrize("seed", range(30))
def test_tasks_that_go_by_the_rule_lose_and_double_no_row_and_keep_their_order(seed: int) -> None:
    chance = random.Random(seed)

    async def task(rows: AsyncRowWriter, number: int) -> None:
        for at in range(20):
            taken = False
            while not taken:
                writing = asyncio.create_task(rows.write({"id": [number, at]}))
                await asyncio.sleep(0)
                for _ in range(chance.randrange(9)):
                    await asyncio.sleep(0)
                if chance.random() < 0.5:
                    writing.cancel()
                try:
                    await writing
                except NotTakenError:
                    continue
                except (OutcomeUnknownError, UnavailableError, asyncio.CancelledError):
                    pass
                taken = True

    async def play(rows: AsyncRowWriter, gateway: Gateway) -> None:
        gateway.chance = chance
        await asyncio.gather(*(task(rows, number) for number in range(4)))
        gateway.chance = None
        await rows.close()

    found = played(play, rows_max=3)
    assert sorted(found) == [[number, at] for number in range(4) for at in range(20)]
    for number in range(4):
        assert [at for one, at in found if one == number] == list(range(20))
