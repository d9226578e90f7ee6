"""Lines of waiting requests: in order, bounded each and together, and left by who is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from tarn.core.errors import UnavailableError
from tarn_catalog.rest.lines import Lines, Place
from tarn_catalog.rest.routes import _match


async def _never() -> None:
    await asyncio.Event().wait()


A = Place(what="a")


class Play:
    """Requests in lines; each is served until it is let go.

    Attributes:
        served: names of the requests that had their turn, in its order.
    """

    def __init__(self, **bounds: Any) -> None:
        self.lines = Lines(**bounds)
        self.served: list[str] = []
        self.go: dict[str, asyncio.Event] = {}

    async def ask(
        self,
        name: str,
        *,
        place: Place = A,
        body_bytes: int = 0,
        gone: Callable[[], Awaitable[None]] = _never,
    ) -> asyncio.Task[None]:
        """Send a request; it has joined its line when this returns."""
        self.go[name] = asyncio.Event()

        async def serve() -> None:
            async with self.lines.hold(place, body_bytes, gone):
                self.served.append(name)
                await self.go[name].wait()

        task = asyncio.create_task(serve())
        await settle()
        return task

    async def refused(self, name: str, **more: Any) -> None:
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(await self.ask(name, **more), 5)

    async def end(self, *tasks: asyncio.Task[None]) -> None:
        """Let all requests end; nothing of them is left."""
        for event in self.go.values():
            event.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 5)
        await settle()
        assert (self.lines._lines, self.lines._waiting_bytes) == ({}, 0)
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(play: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await play

    asyncio.run(bounded())


def test_first_come_first_served_and_lines_do_not_hinder_each_other() -> None:
    async def play() -> None:
        line = Play()
        tasks = [await line.ask(name) for name in ("first", "second", "third")]
        tasks.append(await line.ask("other", place=Place(what="b")))
        assert line.served == ["first", "other"]
        assert (line.lines.waiting("a"), line.lines.waiting("b")) == (2, 0)
        for name, now in (("first", "second"), ("second", "third")):
            line.go[name].set()
            await settle()
            assert line.served[-1] == now
        await line.end(*tasks)

    run(play())


def test_a_wide_line_serves_so_many_at_one_time() -> None:
    async def play() -> None:
        line, wide = Play(), Place(what="a", width=3)
        tasks = [await line.ask(str(number), place=wide) for number in range(5)]
        assert (line.served, line.lines.waiting("a")) == (["0", "1", "2"], 2)
        line.go["1"].set()
        await settle()
        assert line.served[-1] == "3"
        await line.end(*tasks)

    run(play())


def test_how_many_wait_in_a_line_is_bounded() -> None:
    async def play() -> None:
        line = Play(waiting_max=2)
        tasks = [await line.ask(str(number)) for number in range(3)]
        await line.refused("one more")
        tasks.append(await line.ask("elsewhere", place=Place(what="b")))
        assert line.served == ["0", "elsewhere"], "the others wait, and the one more is not among them"
        await line.end(*tasks)
        assert sorted(line.served) == ["0", "1", "2", "elsewhere"]

    run(play())


def test_bodies_that_wait_in_one_line_are_bounded_and_one_may_always_wait() -> None:
    async def play() -> None:
        line = Play(waiting_bytes_max=100)
        first = await line.ask("served", body_bytes=1_000)
        tasks = [first, await line.ask("long", body_bytes=101)]
        await line.refused("nothing more", body_bytes=1)
        line.go["served"].set()
        await settle()
        assert line.served[-1] == "long"
        tasks += [await line.ask("half", body_bytes=50), await line.ask("rest", body_bytes=50)]
        await line.refused("too much", body_bytes=1)
        await line.end(*tasks)

    run(play())


def test_bodies_that_wait_in_all_lines_are_bounded_together() -> None:
    async def play() -> None:
        line = Play(all_waiting_bytes_max=100)
        places = {name: Place(what=name) for name in ("a", "b", "c")}
        tasks = [await line.ask(f"{name}0", place=place) for name, place in places.items()]
        tasks += [await line.ask(f"{name}1", place=places[name], body_bytes=50) for name in ("a", "b")]
        await line.refused("c1", place=places["c"], body_bytes=1)
        line.go["a0"].set()
        await settle()
        tasks.append(await line.ask("c2", place=places["c"], body_bytes=50))
        await line.refused("c3", place=places["c"], body_bytes=1)
        await line.end(*tasks)
        assert sorted(line.served) == ["a0", "a1", "b0", "b1", "c0", "c2"]

    run(play())


def test_who_is_gone_leaves_the_line_and_the_others_move_up() -> None:
    async def play() -> None:
        line, left = Play(waiting_max=2), asyncio.Event()

        async def gone() -> None:
            await left.wait()

        tasks = [await line.ask("first")]
        goes = await line.ask("goes", body_bytes=10, gone=gone)
        tasks.append(await line.ask("last"))
        left.set()
        with pytest.raises(ClientDisconnect):
            await goes
        assert line.lines.waiting("a") == 1
        tasks.append(await line.ask("new"))
        line.go["first"].set()
        await settle()
        assert line.served == ["first", "last"]
        await line.end(*tasks)

    run(play())


def test_nobody_waits_for_longer_than_the_bound() -> None:
    async def play() -> None:
        line = Play(wait_s_max=0.02)
        first = await line.ask("first")
        late = await line.ask("late", body_bytes=10)
        with pytest.raises(UnavailableError, match=r"did not end within 0\.02 s"):
            await asyncio.wait_for(late, 5)
        assert line.lines.waiting("a") == 0
        await line.end(first)

    run(play())


@pytest.mark.parametrize("its_turn", [False, True])
def test_a_request_that_is_cancelled_hands_its_turn_on(its_turn: bool) -> None:
    async def play() -> None:
        line = Play()
        first, second = await line.ask("first"), await line.ask("second", body_bytes=10)
        third = await line.ask("third")
        if its_turn:
            # The turn is given in the very step in which the request is cancelled.
            line.go["first"].set()
            await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        line.go["first"].set()
        await settle()
        assert line.served == ["first", "third"]
        await line.end(first, third)

    run(play())


def test_tables_whose_dotted_names_are_equal_have_lines_of_their_own() -> None:
    names = [("a", "b.c"), ("a.b", "c"), ("a\x1fb", "c"), ("a", '"b.c"'), ('"a', 'b"'), ("ns", "t")]
    lines = []
    for namespace, table in names:
        route, arguments = _match("POST", ["v1", "namespaces", namespace, "tables", table])
        place = route.place(arguments)
        assert place is not None
        lines.append(place.what)
    assert len(set(lines)) == len(names)
    assert lines[-1] == "ns.t"
