"""Lines of waiting requests: in order, bounded, left by who is gone; turns reserved for who was overtaken."""

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
        token: str | None = None,
    ) -> asyncio.Task[None]:
        """Send a request; it has joined its line when this returns."""
        self.go[name] = asyncio.Event()

        async def serve() -> None:
            async with self.lines.hold(place, body_bytes, gone, token=token):
                self.served.append(name)
                await self.go[name].wait()

        task = asyncio.create_task(serve())
        await settle()
        return task

    async def overtaken(
        self, *, place: Place = A, gone: Callable[[], Awaitable[None]] = _never
    ) -> asyncio.Task[str | None]:
        """A request was refused, and its writer asks for a turn; it waits for one when this returns."""
        task = asyncio.create_task(self.lines.reserve(place, gone))
        await settle()
        return task

    async def done(self, *names: str) -> None:
        """Let these requests end, one after the other."""
        for name in names:
            self.go[name].set()
            await settle()

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


def test_a_reserved_turn_is_kept_for_the_request_that_brings_its_token() -> None:
    async def play() -> None:
        line = Play(reserved_s=60)
        token = await (await line.overtaken())
        assert token
        tasks = [await line.ask("faster"), await line.ask("guesses", token="other")]
        leaves = await line.overtaken()
        leaves.cancel()
        await settle()
        second, kept = await line.overtaken(), line.lines._lines["a"].until
        assert line.served == [], "nobody is served before it"
        tasks.append(await line.ask("overtaken", token=token))
        assert line.served == ["overtaken"]
        assert kept is not None
        assert kept.cancelled(), "or it would end the next one's turn"
        tasks.append(await line.ask("again", token=token))
        await line.done("overtaken")
        assert line.served == ["overtaken", "faster"]
        await line.done("faster", "guesses")
        assert line.served[-1] == "again", "a token is good for one turn"
        await line.done("again")
        tasks.append(await line.ask("second", token=await second))
        await line.end(*tasks)

    run(play())


def test_a_turn_is_reserved_once_nobody_is_served() -> None:
    async def play() -> None:
        line = Play(reserved_s=60)
        tasks = [await line.ask("served")]
        waits = await line.overtaken()
        assert not waits.done()
        await line.done("served")
        token = await waits
        tasks.append(await line.ask("overtaken", token=token))
        assert line.served == ["served", "overtaken"]
        await line.end(*tasks)

    run(play())


def test_between_two_reserved_turns_those_are_served_who_had_come_before() -> None:
    async def play() -> None:
        line = Play(reserved_s=60)
        tasks = [await line.ask("served"), await line.ask("waits")]
        first, second = await line.overtaken(), await line.overtaken()
        await line.done("served")
        assert (line.served[-1], first.done()) == ("waits", False), "it waits longer than they do"
        tasks.append(await line.ask("new"))
        await line.done("waits")
        assert first.done(), "who came later does not go before it"
        tasks.append(await line.ask("first", token=await first))
        tasks.append(await line.ask("newer"))
        assert line.served[-1] == "first"
        assert not second.done()
        await line.done("first")
        assert (line.served[-1], second.done()) == ("new", False)
        tasks.append(await line.ask("newest"))
        await line.done("new", "newer")
        tasks.append(await line.ask("second", token=await second))
        assert line.served == ["served", "waits", "first", "new", "newer", "second"]
        await line.end(*tasks)
        assert line.served[-1] == "newest"

    run(play())


def test_a_reserved_turn_that_nobody_takes_ends() -> None:
    async def play() -> None:
        line = Play(reserved_s=60)
        token = await (await line.overtaken())
        second, other = await line.overtaken(), await line.overtaken(place=Place(what="b"))
        late = await line.ask("waits")
        line.lines._expire(line.lines._lines["a"], A)
        await settle()
        assert line.served == ["waits"]
        assert await second is None, "who waits is slower than a turn takes, or gone as that one is"
        tasks = [late, await line.ask("too late", token=token)]
        assert await (await line.overtaken()) is None
        tasks.append(await line.ask("elsewhere", place=Place(what="b"), token=await other))
        assert line.served == ["waits", "elsewhere"]
        await line.end(*tasks)
        line.lines._none_until["a"] = 0.0
        tasks = [await line.ask("much later", token=await (await line.overtaken()))]
        assert line.served[-1] == "much later"
        await line.end(*tasks)

    run(play())


def test_a_turn_ends_by_itself() -> None:
    async def play() -> None:
        line = Play(reserved_s=0.02)
        assert await (await line.overtaken())
        waits = await line.ask("waits")
        while not line.served:
            await asyncio.sleep(0.01)
        await line.end(waits)

    run(play())


def test_who_waits_for_a_turn_of_its_own_is_counted_and_leaves_when_it_is_gone() -> None:
    async def play() -> None:
        line, left = Play(waiting_max=2), asyncio.Event()

        async def gone() -> None:
            await left.wait()

        tasks = [await line.ask("served")]
        goes, stays = await line.overtaken(gone=gone), await line.overtaken()
        await line.refused("one more")
        assert await (await line.overtaken()) is None, "no turn is reserved beyond the bound"
        left.set()
        with pytest.raises(ClientDisconnect):
            await goes
        tasks.append(await line.ask("one more"))
        await line.done("served")
        tasks.append(await line.ask("stays", token=await stays))
        await line.done("stays")
        assert line.served == ["served", "stays", "one more"]
        await line.end(*tasks)

    run(play())


def test_a_refusal_is_held_back_for_no_longer_than_the_bound() -> None:
    async def play() -> None:
        line = Play(reserve_wait_s_max=0.02)
        served = await line.ask("served")
        assert await asyncio.wait_for(await line.overtaken(), 5) is None
        await line.end(served)

    run(play())


@pytest.mark.parametrize("given", [False, True])
def test_a_writer_that_is_cancelled_while_it_waits_for_a_turn_holds_up_nobody(given: bool) -> None:
    async def play() -> None:
        line = Play(reserved_s=60)
        first = await line.ask("first")
        overtaken = await line.overtaken()
        if given:
            # The turn is reserved in the very step in which the request is cancelled.
            line.go["first"].set()
            await asyncio.sleep(0)
        overtaken.cancel()
        with pytest.raises(asyncio.CancelledError):
            await overtaken
        line.go["first"].set()
        next_ = await line.ask("next")
        if given:
            line.lines._expire(line.lines._lines["a"], A)
            await settle()
        assert line.served == ["first", "next"]
        await line.end(first, next_)

    run(play())


def test_a_line_that_serves_several_at_a_time_reserves_no_turn() -> None:
    async def play() -> None:
        line = Play()
        assert await (await line.overtaken(place=Place(what="a", width=3))) is None
        await line.end()

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
