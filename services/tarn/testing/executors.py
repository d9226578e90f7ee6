"""Executors without threads: what they are given runs at a moment that the test decides."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class SteppedExecutor(Executor):
    """Runs work in the caller's thread: at once, or later, each time that somebody looks for the result.

    Args:
        now: whether the work runs at this look; it runs at the latest when its result is waited for, or when
            the executor is shut down, as a thread would have ended then.
    """

    def __init__(self, now: Callable[[], bool] = lambda: True) -> None:
        self._now = now
        self._last: _Stepped[Any] | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """See `Executor.submit`."""
        if self._last is not None and not self._last.ran:
            raise AssertionError("work was given while other work is under way")
        made = _Stepped(partial(fn, *args, **kwargs), self._now)
        self._last = made
        made.done()
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor.shutdown`."""
        if self._last is not None:
            self._last.run()


class _Stepped(Future[T]):
    def __init__(self, work: Callable[[], T], now: Callable[[], bool]) -> None:
        super().__init__()
        self._work = work
        self._now = now

    @property
    def ran(self) -> bool:
        """Whether the work ran."""
        return super().done()

    def run(self) -> None:
        """Run the work, unless it ran already."""
        if self.ran:
            return
        try:
            self.set_result(self._work())
        except BaseException as e:  # noqa: BLE001 - raised again to whoever asks for the result
            self.set_exception(e)

    def done(self) -> bool:
        if not self.ran and self._now():
            self.run()
        return self.ran

    def result(self, timeout: float | None = None) -> T:
        self.run()
        return super().result(timeout)
