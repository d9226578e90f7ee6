"""A time limit for blocking work."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from tarn.core.errors import UnavailableError

T = TypeVar("T")


def within(seconds: float, what: str, work: Callable[[], T]) -> T:
    """Run blocking work in a thread and return its result, or stop waiting after `seconds`.

    Args:
        seconds: limit in seconds.
        what: name of the service, for the error message.
        work: the blocking call; its exceptions are raised here.

    Raises:
        UnavailableError: no result in time; the thread is abandoned.
    """
    results: queue.Queue[tuple[bool, T | BaseException]] = queue.Queue(maxsize=1)

    def call() -> None:
        try:
            results.put((True, work()))
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            results.put((False, error))

    threading.Thread(target=call, name=what, daemon=True).start()
    try:
        ok, value = results.get(timeout=max(seconds, 0.0))
    except queue.Empty:
        raise UnavailableError(
            f"{what} did not answer within {seconds:.0f} s; see docker compose logs {what}", what=what
        ) from None
    if ok:
        return value  # type: ignore[return-value]
    assert isinstance(value, BaseException)
    raise value
