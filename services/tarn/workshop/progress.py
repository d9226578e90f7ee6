"""Progress that a reader sees: a bar for loops, a line while waiting."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TypeVar

from tarn.core.errors import TarnError

T = TypeVar("T")

PAUSE_S = 0.25
SHOWN_EVERY_S = 0.2
QUIET_S = 1.0
"""How long a wait says nothing: most are over by then."""


_last_s = -1.0


def note_shown() -> None:
    """Note that a reader sees something move now."""
    global _last_s
    _last_s = time.monotonic()


def shown_last_s() -> float:
    """When a reader saw something move for the last time, in seconds of the monotonic clock."""
    return _last_s


class Line(Protocol):
    """One place in the output of a cell whose content changes."""

    def show(self, text: str, share: float | None) -> None:
        """Replace the content: a text, and how much is done, from 0 to 1; None if that is not known."""


class CellLine:
    """A `Line` in a notebook; nothing is shown before the first `show`, and nothing outside of a notebook."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, share: float | None) -> None:
        """See `Line.show`."""
        from IPython.core.getipython import get_ipython
        from IPython.display import HTML, display

        if get_ipython() is None:
            return
        note_shown()
        value = "" if share is None else f'<progress value="{share:.3f}" max="1"></progress> '
        shown: Any = HTML(  # type: ignore[no-untyped-call]
            f"<div>{value}{html.escape(text)}</div>"
        )
        if self._handle is None:
            self._handle = display(shown, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown)


def progress(
    items: Iterable[T],
    what: str,
    *,
    line: Line | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """Yield the items, with a bar that says how many of them are done.

    Args:
        items: what is gone through.
        what: what they are, as in "commits".
        line: where the bar is shown.
        clock: monotonic time in seconds.
    """
    line = line or CellLine()
    total = len(items) if isinstance(items, Sized) else None
    begun = shown = clock()
    done = 0
    for item in items:
        yield item
        done += 1
        if clock() - shown >= SHOWN_EVERY_S:
            shown = clock()
            of = "" if total is None else f" of {total:,}"
            line.show(f"{done:,}{of} {what}", None if total is None else done / total)
    line.show(f"{done:,} {what} in {clock() - begun:.1f} s", 1.0)


def until(
    condition: Callable[[], T],
    what: str,
    *,
    seconds: float = 60.0,
    line: Line | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Call a condition until its result is true, and return that.

    What it raises counts as "not yet": a table that is to come is not there at first.

    Args:
        condition: called again and again.
        what: what is waited for, as in "100 rows in the table".
        seconds: the longest wait.
        line: where progress is shown.
        clock: monotonic time in seconds.
        sleep: waits for a number of seconds.

    Raises:
        TimeoutError: the time is over; says what is missing, and what the condition said last.
    """
    line = line or CellLine()
    begun = shown = clock()
    while True:
        found: T | None
        try:
            found = condition()
            last = f"the last answer was {found!r}"
        except Exception as error:  # noqa: BLE001 - whatever it is, the message at the end has it
            found, last = None, _words(error)
        now = clock()
        if found:
            if shown != begun:
                line.show(f"{what}: after {now - begun:.1f} s", 1.0)
            return found
        if now - begun >= seconds:
            raise TimeoutError(f"waited {seconds:g} s for {what}, and it did not come: {last}")
        if now - begun >= QUIET_S and now - shown >= SHOWN_EVERY_S:
            shown = now
            line.show(f"waiting for {what}: {now - begun:.0f} s", min(1.0, (now - begun) / seconds))
        sleep(PAUSE_S)


def _words(error: Exception) -> str:
    text = error.message if isinstance(error, TarnError) else str(error)
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
