"""Health of the reaper: see services/tarn/health.py for how it is run.

The reaper touches a file whenever it uses the store; one that hangs, or that no longer gets any answer, does
not. Its passes are the real use already.
"""

from __future__ import annotations

import time
from pathlib import Path

ALIVE_PATH = Path("/tmp/reaper-alive")  # noqa: S108 - the container's own tmpfs
ALIVE_AGE_S_MAX = 150.0


def shallow() -> None:
    """The store was used not long ago.

    Raises:
        RuntimeError: it was not; the text says since when.
    """
    check_alive(ALIVE_PATH, now_s=time.time())


def deep() -> None:
    """The same."""
    shallow()


def check_alive(path: Path, *, now_s: float) -> None:
    """Looks at the file.

    Raises:
        RuntimeError: it is not there, or older than `ALIVE_AGE_S_MAX` seconds.
    """
    try:
        age_s = now_s - path.stat().st_mtime
    except OSError:
        raise RuntimeError("has not used the store yet") from None
    if age_s > ALIVE_AGE_S_MAX:
        raise RuntimeError(f"has not used the store for {age_s:.0f} s (limit {ALIVE_AGE_S_MAX:.0f} s)")
