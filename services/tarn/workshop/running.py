"""A line below each cell that takes longer than two seconds and shows nothing of its own meanwhile."""

from __future__ import annotations

import contextvars
import html
import threading
import time
from typing import Any

from tarn.workshop import progress

QUIET_S = 2.0
EVERY_S = 1.0
ENDS_S = 5.0
_MARK = "_tarn_running"


class Running:
    """Shows that a cell is running, while neither a bar nor a plot that grows does; see `watch_cells`.

    Args:
        quiet_s: how long a cell shows nothing before the line appears.
        every_s: seconds between two changes of the line.
    """

    def __init__(self, *, quiet_s: float = QUIET_S, every_s: float = EVERY_S) -> None:
        self._quiet_s, self._every_s = quiet_s, every_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begins(self, *_: object) -> None:
        """A cell begins."""
        self.ends()
        self._over = threading.Event()
        # The kernel keeps in the context which cell an output belongs to.
        run = contextvars.copy_context().run
        self._thread = threading.Thread(
            target=run, args=(self._show, self._over, time.monotonic()), name="running", daemon=True
        )
        self._thread.start()

    def ends(self, *_: object) -> None:
        """It has ended; the line is not changed after that."""
        if self._thread is not None:
            self._over.set()
            self._thread.join(ENDS_S)
            self._thread = None

    def _show(self, over: threading.Event, begun: float) -> None:
        handle: Any = None
        while not over.wait(self._every_s if handle is not None else self._quiet_s / 4):
            now = time.monotonic()
            if handle is None and now - max(begun, progress.shown_last_s()) < self._quiet_s:
                continue
            handle = _put(handle, f"<progress></progress> running: {now - begun:.0f} s")
        if handle is not None:
            _put(handle, html.escape(f"took {time.monotonic() - begun:.1f} s"))


def _put(handle: Any, text: str) -> Any:
    from IPython.display import HTML, display

    shown: Any = HTML(f"<div>{text}</div>")  # type: ignore[no-untyped-call]
    if handle is None:
        return display(shown, display_id=True)  # type: ignore[no-untyped-call]
    handle.update(shown)
    return handle


def watch_cells() -> None:
    """Have the notebook say below a cell that it still runs; nothing outside of a notebook, once in each."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None or hasattr(shell, _MARK):
        return
    running = Running()
    setattr(shell, _MARK, running)
    shell.events.register("pre_run_cell", running.begins)
    shell.events.register("post_run_cell", running.ends)
