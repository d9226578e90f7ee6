"""Tasks are woken by answers of other threads: each of them, and all at one time by one signal."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import pytest

from tarn.gateway.bell import Bell


def test_many_answers_at_one_time_are_one_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> tuple[list[bool], int]:
        loop = asyncio.get_running_loop()
        bell = Bell(loop)
        answers: list[Future[int]] = [Future() for _ in range(100)]
        waits = [asyncio.ensure_future(bell.wait(one, 30)) for one in answers]
        await asyncio.sleep(0)
        signals: list[Any] = []
        real = loop.call_soon_threadsafe
        monkeypatch.setattr(
            loop, "call_soon_threadsafe", lambda *words: (signals.append(words), real(*words))[1]
        )
        for one in answers:  # the loop does not run meanwhile
            one.set_result(1)
        found = await asyncio.gather(*waits)
        return found, len(signals)

    assert asyncio.run(play()) == ([True] * 100, 1)


def test_no_answer_is_missed_whenever_it_comes() -> None:
    """Four threads answer while the loop wakes others: without a signal a task would sleep on."""

    async def play() -> list[bool]:
        bell = Bell(asyncio.get_running_loop())
        answers: list[Future[int]] = [Future() for _ in range(4_000)]
        waits = [asyncio.ensure_future(bell.wait(one, 60)) for one in answers]

        def answer(part: int) -> None:
            chance = random.Random(part)
            for one in answers[part::4]:
                one.set_result(1)
                if chance.random() < 0.1:
                    time.sleep(0)

        threads = [threading.Thread(target=answer, args=(part,)) for part in range(4)]
        for thread in threads:
            thread.start()
        found = await asyncio.gather(*waits)
        for thread in threads:
            thread.join()
        return found

    began_s = time.monotonic()
    assert all(asyncio.run(play()))
    assert time.monotonic() - began_s < 60, "a task slept until its own end"


def test_an_answer_that_comes_as_the_list_was_found_empty_is_seen() -> None:
    late: Future[int] = Future()

    class Ended(deque[Any]):
        def __len__(self) -> int:
            found = super().__len__()
            if not found and not late.done():
                late.set_result(1)  # as another thread does between two steps of the look
            return found

    async def play() -> list[bool]:
        bell = Bell(asyncio.get_running_loop())
        bell._ended = Ended()
        first: Future[int] = Future()
        waits = [asyncio.ensure_future(bell.wait(one, 60)) for one in (first, late)]
        await asyncio.sleep(0)
        began_s = time.monotonic()
        first.set_result(1)
        found = await asyncio.gather(*waits)
        assert time.monotonic() - began_s < 50, "it was not woken"
        return found

    assert asyncio.run(play()) == [True, True]


def test_an_answer_that_is_there_or_late_or_an_error() -> None:
    async def play() -> list[bool]:
        bell = Bell(asyncio.get_running_loop())
        there: Future[int] = Future()
        there.set_result(1)
        failed: Future[int] = Future()
        failed.set_exception(ValueError("no"))
        late: Future[int] = Future()
        found = [await bell.wait(one, 0.05) for one in (there, failed, late)]
        late.set_result(1)  # nobody waits any more
        await asyncio.sleep(0)
        return found

    assert asyncio.run(play()) == [True, True, False]


def test_an_answer_after_the_loop_has_ended_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    answer: Future[int] = Future()

    async def play() -> None:
        waiting = asyncio.ensure_future(Bell(asyncio.get_running_loop()).wait(answer, 30))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(play())
    answer.set_result(1)
    assert answer.result(0) == 1
    assert not caplog.records, "a callback that fails is only logged"
