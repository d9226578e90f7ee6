"""Turns of threads and lines of requests: in order of arrival, bounded, and nobody goes on without a turn."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import ClientDisconnect

from tarn.core.errors import UnavailableError
from tarn_catalog.rest.lines import Lines, Place
from tarn_catalog.state.turns import Turns

WAIT_S_MAX = 30.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def waiting(turns: Turns, key: str) -> int:
    return len(turns._lines.get(key, ()))


def test_turns_come_in_order_of_arrival_and_one_at_a_time() -> None:
    turns = Turns()
    came: list[int] = []
    inside = 0

    def work(number: int) -> None:
        nonlocal inside
        with turns.hold("k"):
            inside += 1
            assert inside == 1
            came.append(number)
            inside -= 1

    with turns.hold("k"):
        threads = []
        for number in range(20):
            threads.append(threading.Thread(target=work, args=(number,)))
            threads[-1].start()
            until(lambda number=number: waiting(turns, "k") == number + 1)
        with turns.hold("another"):
            assert turns.held == {"k", "another"}
    for thread in threads:
        thread.join(WAIT_S_MAX)
    assert came == list(range(20))
    assert turns.held == frozenset()


def test_who_finds_too_many_waiting_or_waits_too_long_is_refused_and_does_not_go_on() -> None:
    patient, turns = Turns(waiting_max=1, wait_s_max=WAIT_S_MAX), Turns(waiting_max=1, wait_s_max=0.05)
    refused: list[str] = []

    def late(turns: Turns) -> None:
        try:
            with turns.hold("k"):
                raise AssertionError("went on without a turn")
        except UnavailableError as e:
            refused.append(e.message)

    def waits() -> None:
        with patient.hold("k"):
            pass

    with patient.hold("k"):
        first = threading.Thread(target=waits)
        first.start()
        until(lambda: waiting(patient, "k") == 1)
        late(patient)
    first.join(WAIT_S_MAX)
    with turns.hold("k"):
        second = threading.Thread(target=late, args=(turns,))
        second.start()
        second.join(WAIT_S_MAX)
        assert waiting(turns, "k") == 0
    assert refused == [
        "1 changes of k wait already, and no more may; nothing was changed, try again",
        "The changes of k before this one did not end within 0.05 s; nothing was changed, try again",
    ]
    with turns.hold("k"), patient.hold("k"):
        pass
    assert turns.held == patient.held == frozenset()


def test_a_turn_that_ends_in_an_error_goes_to_the_next() -> None:
    turns = Turns()
    with pytest.raises(KeyError), turns.hold("k"):
        raise KeyError
    with turns.hold("k"):
        pass


TABLE = Place(what="ns.t")


async def never() -> None:
    await asyncio.Event().wait()


def play(script: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S_MAX):
            await script()

    asyncio.run(bounded())


@pytest.mark.parametrize("width", [1, 2])
def test_a_line_serves_so_many_at_one_time_in_order_of_arrival(width: int) -> None:
    lines, came, inside = Lines(), [], 0
    place = Place(what="ns.t", width=width)

    async def work(number: int) -> None:
        nonlocal inside
        async with lines.hold(place, 1, never):
            inside += 1
            assert inside <= width
            came.append(number)
            await asyncio.sleep(0)
            inside -= 1

    async def script() -> None:
        tasks = [asyncio.create_task(work(number)) for number in range(20)]
        await asyncio.sleep(0)
        assert lines.waiting("ns.t") == 20 - width
        async with lines.hold(Place(what="ns.u"), 1, never):
            assert lines.waiting("ns.u") == 0
        await asyncio.gather(*tasks)

    play(script)
    assert came == list(range(20))
    assert not lines._lines, "a line that nobody is in takes no memory"


def test_a_full_line_refuses_by_number_and_by_bytes_and_serves_the_others() -> None:
    async def script() -> None:
        lines = Lines(waiting_max=2, waiting_bytes_max=100)
        served = []

        async def work(size: int) -> None:
            async with lines.hold(TABLE, size, never):
                served.append(size)

        async with lines.hold(TABLE, 1, never):
            first = asyncio.create_task(work(1_000))
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError, match=r"1 changes of ns\.t wait already"):
                await work(1)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            tasks = [asyncio.create_task(work(size)) for size in (40, 60)]
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError, match=r"2 changes of ns\.t wait already"):
                await work(0)
        await asyncio.gather(*tasks)
        assert served == [40, 60]
        assert not lines._lines

    play(script)


def test_a_client_that_is_gone_leaves_the_line_and_one_that_waits_too_long_is_refused() -> None:
    async def script() -> None:
        lines, hasty = Lines(), Lines(wait_s_max=0.05)
        gone = asyncio.Event()

        async def left() -> None:
            await gone.wait()

        async def work(lines: Lines, how: Callable[[], Awaitable[None]]) -> None:
            async with lines.hold(TABLE, 1, how):
                raise AssertionError("went on without a turn")

        async with lines.hold(TABLE, 1, never), hasty.hold(TABLE, 1, never):
            leaver = asyncio.create_task(work(lines, left))
            await asyncio.sleep(0)
            assert lines.waiting("ns.t") == 1
            gone.set()
            with pytest.raises(ClientDisconnect):
                await leaver
            assert lines.waiting("ns.t") == 0
            with pytest.raises(UnavailableError, match=r"did not end within 0\.05 s"):
                await work(hasty, never)
            assert hasty.waiting("ns.t") == 0
        assert not lines._lines
        assert not hasty._lines

    play(script)


def test_a_turn_that_comes_to_a_cancelled_request_goes_to_the_next() -> None:
    async def script() -> None:
        lines = Lines()
        served = []

        async def work(number: int) -> None:
            async with lines.hold(TABLE, 1, never):
                served.append(number)

        async with lines.hold(TABLE, 1, never):
            tasks = [asyncio.create_task(work(number)) for number in range(3)]
            await asyncio.sleep(0)
        tasks[0].cancel()  # its turn has come, and it has not run since
        await asyncio.gather(*tasks, return_exceptions=True)
        assert served == [1, 2]
        assert not lines._lines

    play(script)
