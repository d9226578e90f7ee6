"""Health of the reaper: see services/tarn/probe/runner.py for how it is run.

The reaper touches one file before it uses the store and another after a response. Its passes are a real use
already.
"""

from __future__ import annotations

import time
from pathlib import Path

from tarn.probe.runner import main_process, stat_of

SERVICE = "reaper"
TRIED_PATH = Path("/tmp/reaper-tried")  # noqa: S108 - the container's own tmpfs
ALIVE_PATH = Path("/tmp/reaper-alive")  # noqa: S108
TRIED_AGE_S_MAX = 600.0
ALIVE_AGE_S_MAX = 150.0
STOPPED = "T"


def alive() -> None:
    """Require that the process is not stopped, and tried to use the store in the last ten minutes.

    Raises:
        RuntimeError: the process hangs.
    """
    check_runs()
    check_age(TRIED_PATH, TRIED_AGE_S_MAX, now_s=time.time())


def shallow() -> None:
    """Require that the store responded to the reaper recently.

    Raises:
        RuntimeError: it did not; the message says for how long.
    """
    check_runs()
    check_age(ALIVE_PATH, ALIVE_AGE_S_MAX, now_s=time.time())


def deep() -> None:
    """Like `shallow`."""
    shallow()


def check_runs() -> None:
    """Require that no signal stopped the process.

    Raises:
        RuntimeError: the process is stopped.
    """
    process = main_process()
    if process is not None and stat_of(process)[0] == STOPPED:
        raise RuntimeError(f"process {process} is stopped")


def check_age(path: Path, age_s_max: float, *, now_s: float) -> None:
    """Require that a file was touched recently.

    Args:
        path: the file.
        age_s_max: maximum age in seconds.
        now_s: current time in seconds since the epoch.

    Raises:
        RuntimeError: the file is missing or older.
    """
    try:
        age_s = now_s - path.stat().st_mtime
    except OSError:
        raise RuntimeError(f"{path.name}: the store was not used yet") from None
    if age_s > age_s_max:
        raise RuntimeError(f"{path.name}: nothing for {age_s:.0f} s (limit {age_s_max:.0f} s)")
