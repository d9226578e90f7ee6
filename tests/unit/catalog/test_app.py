"""What of a request is held in memory while it waits: nothing of it, or a share of a budget."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tarn.adapters.budget import Budget
from tarn_catalog.rest import app
from tarn_catalog.rest.app import Limits, make_app
from tarn_catalog.rest.auth import Principal
from tarn_catalog.rest.bodies import weight
from tarn_catalog.rest.lines import Place
from tarn_catalog.rest.request import ClientConfig, RestRequest
from tarn_catalog.rest.response import RestResponse
from tarn_catalog.rest.routes import Admitted

BODY = b'"' + b"a" * 998 + b'"'
SIDE = ClientConfig(name="published", s3_endpoint="", region="", warehouse="tarn")
BOB = Principal(client_id="bob-1", name="bob", mark="", stored=True)
WAIT_S_MAX = 20


class Everybody:
    """Refuses nobody."""

    @staticmethod
    def refusal(*_: Any) -> None:
        return None


class Play:
    """The application with routes that answer when they are let go; the path names the line, `/` none.

    Attributes:
        limits: what all requests share.
        may_wait: is set once it is known who may wait.
        go_on: is set once requests are answered.
        read: how many bodies have been read.
    """

    def __init__(self) -> None:
        self.limits = Limits()
        self.may = threading.Event()
        self.may.set()
        self.go_on = threading.Event()
        self.read = 0
        self.answered = 0
        self.app = make_app(self, SIDE, self.limits, Everybody())  # type: ignore[arg-type]

    def admit(self, _method: str, path: str, _authorization: str | None) -> Admitted:
        place = Place(what=path) if path != "/" else None
        none: frozenset[Any] = frozenset()
        return Admitted(
            public=False,
            waits=True,
            function=lambda *_: RestResponse(),
            arguments=[],
            asks=none,
            principal=BOB,
            place=place,
        )

    def may_wait(self, _: Admitted) -> bool:
        assert self.may.wait(WAIT_S_MAX)
        return True

    def run(self, _call: RestRequest, _: Admitted) -> RestResponse:
        self.answered += 1
        assert self.go_on.wait(WAIT_S_MAX)
        return RestResponse()

    def send(self, path: str, *, chunked: bool = False) -> asyncio.Task[int]:
        """Send a request; the task returns the status of its answer."""
        status = 0
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.Event().wait()
            sent = True
            self.read += 1
            return {"type": "http.request", "body": BODY, "more_body": False}

        async def heard(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        async def ask() -> int:
            length = (b"content-length", str(len(BODY)).encode())
            scope = {
                **{"type": "http", "method": "POST", "path": path, "raw_path": path.encode()},
                **{
                    "query_string": b"",
                    "headers": [(b"transfer-encoding", b"chunked") if chunked else length],
                },
            }
            await asyncio.wait_for(self.app(scope, receive, heard), WAIT_S_MAX)
            return status

        return asyncio.create_task(ask())


@pytest.fixture
def play() -> Iterator[Play]:
    play = Play()
    yield play
    play.may.set()
    play.go_on.set()


async def until_quiet(play: Play) -> None:
    """Wait until no request goes on any more: a thread may get no processor for one of several looks."""
    seen: list[tuple[int, int, int]] = []
    while len(seen) < 4 or len(set(seen[-4:])) > 1:
        await asyncio.sleep(0.05)
        seen.append((play.read, play.answered, play.limits.reading._held))


def room(play: Play, *, reading: int, working: int) -> None:
    """Leave room for so many bodies."""
    play.limits.reading = Budget(reading * len(BODY), wait_s_max=WAIT_S_MAX, who="The catalog")
    play.limits.working = Budget(working * weight(BODY), wait_s_max=WAIT_S_MAX, who="The catalog")


def test_no_body_is_read_while_the_store_is_asked_who_may_wait(play: Play) -> None:
    async def run() -> None:
        play.may.clear()
        asked = [play.send("/a") for _ in range(5)]
        await until_quiet(play)
        assert play.read == 0
        play.may.set()
        play.go_on.set()
        assert await asyncio.gather(*asked) == [200] * 5

    asyncio.run(run())


@pytest.mark.long
def test_bodies_that_wait_for_room_keep_their_share(play: Play) -> None:
    async def run() -> None:
        room(play, reading=4, working=2)
        asked = [play.send("/") for _ in range(20)]
        await until_quiet(play)
        assert (play.answered, play.read) == (2, 2 + 4)
        play.go_on.set()
        assert await asyncio.gather(*asked) == [200] * 20

    asyncio.run(run())


@pytest.mark.long
def test_a_body_of_unknown_length_keeps_a_share_of_its_own_length(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        monkeypatch.setattr(app, "BODY_BYTES_MAX", 4 * len(BODY))
        room(play, reading=4, working=1)
        asked = [play.send("/", chunked=True) for _ in range(3)]
        await until_quiet(play)
        # The second is read and waits for room; three more of its length would fit, not one unknown.
        assert (play.answered, play.read) == (1, 2)
        asked += [play.send("/") for _ in range(3)]
        assert play.limits.reading._held == len(BODY)
        play.go_on.set()
        assert await asyncio.gather(*asked) == [200] * 6

    asyncio.run(run())


@pytest.mark.long
def test_bodies_whose_turn_came_count_until_there_is_room(play: Play) -> None:
    """They hold no share in their lines; after it, others are read later."""

    async def run() -> None:
        room(play, reading=4, working=10)
        asked = [play.send(f"/{line}") for line in range(10) for _ in range(2)]
        await until_quiet(play)
        assert (play.answered, play.read) == (10, 20)
        assert play.limits.reading._held == 0

        async def hog() -> None:
            async with play.limits.working.hold(play.limits.working.bytes_max):
                play.go_on.set()
                await until_quiet(play)
                late.append(play.send("/"))
                await until_quiet(play)
                assert (play.answered, play.read) == (10, 20)

        late: list[asyncio.Task[int]] = []
        first = asyncio.create_task(hog())
        await asyncio.sleep(0)
        play.go_on.set()
        await first
        assert await asyncio.gather(*asked, *late) == [200] * 21
        assert play.limits.reading._held == 0

    asyncio.run(run())
