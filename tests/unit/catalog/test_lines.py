"""Lines of waiting requests are bounded each, and together."""

from __future__ import annotations

import asyncio

import pytest

from tarn.core.errors import UnavailableError
from tarn_catalog.rest.lines import Lines, Place


async def _never() -> None:
    await asyncio.Event().wait()


def test_bodies_that_wait_in_all_lines_are_bounded_together() -> None:
    async def play() -> None:
        lines = Lines(all_waiting_bytes_max=100)
        done = asyncio.Event()

        async def serve(name: str, body_bytes: int) -> None:
            async with lines.hold(Place(what=name), body_bytes, _never):
                await done.wait()

        served = [asyncio.create_task(serve(name, 0)) for name in ("a", "b", "c")]
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(serve(name, 50)) for name in ("a", "b")]
        await asyncio.sleep(0)
        assert (lines.waiting("a"), lines.waiting("b")) == (1, 1)
        with pytest.raises(UnavailableError):
            await serve("c", 1)
        done.set()
        await asyncio.gather(*served, *waiting)
        async with lines.hold(Place(what="c"), 100, _never):
            pass

    asyncio.run(play())
