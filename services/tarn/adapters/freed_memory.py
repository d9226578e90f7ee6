"""Memory that was freed goes back to the kernel, now and then instead of at once.

glibc gives a large buffer back as soon as it is freed, and the kernel clears the pages of the next one: while
ingest reads a backlog, that took a fifth of its processor time. So the compose file lets it keep up to 16 MiB
(`MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`), and what is kept without need goes back here.
"""

from __future__ import annotations

import ctypes
import threading

EVERY_S = 30.0


def give_back_until(stop: threading.Event, *, every_s: float = EVERY_S) -> None:
    """Give free memory back again and again until the event is set, and then return.

    Arrow's own `release_unused` does not (26.0.1). Without glibc nothing is done.
    """
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while not stop.wait(every_s):
        if give_back is not None:
            give_back(0)
