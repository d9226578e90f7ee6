"""Project lock: one script at a time changes a project; released when the process that holds it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tarn_host.console import StopError, is_full
from tarn_host.stack import project
from tarn_host.stack.project import Project

GLANCE_S = 1.0
"""How long, in seconds, a mere check of the lock (scripts/doctor) may delay another script."""
POLL_S = 0.05


def path_of(here: Project) -> Path:
    """The lock's file. It is never removed; only the lock on it counts, so a killed holder leaves nothing."""
    return project.STATE_DIR / f"{here.name}.lock"


@contextlib.contextmanager
def only_one(here: Project, *, needs_room: bool = True) -> Iterator[None]:
    """Hold the project's lock for a block. A full disk leaves the lock without words about its holder.

    Args:
        here: the project.
        needs_room: False: a full disk that has no room for the lock's file is no hindrance. Then no other
            script can hold the lock either.

    Raises:
        StopError: another script holds it; the message names its process.
        OSError: its file cannot be opened.
    """
    handle = None
    try:
        project.STATE_DIR.mkdir(exist_ok=True)
        handle = path_of(here).open("a+", encoding="utf-8")
    except OSError as error:
        if needs_room or not is_full(error):
            raise
    if handle is None:
        yield
        return
    with handle:
        until = time.monotonic() + GLANCE_S
        while not _locked(handle):
            if time.monotonic() > until:
                raise StopError(
                    f"{holder(handle) or 'another script'} is at work on {here.name}; nothing was changed",
                    "wait until it has ended, or end it with Ctrl-C in its terminal, then run this again",
                )
            time.sleep(POLL_S)
        _sign(handle)
        yield


def is_busy(here: Project) -> bool:
    """Whether a script is changing this project; checked without leaving a lock file."""
    path = path_of(here)
    try:
        with path.open("r", encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (FileNotFoundError, PermissionError):
        return False
    except OSError:
        return path.exists()
    return False


def _sign(handle: IO[str]) -> None:
    """Write who holds the lock, unless the disk is full; without a buffer, which closing writes again."""
    words = " ".join([sys.argv[0] or "a script", *sys.argv[1:]])
    said = json.dumps({"pid": os.getpid(), "command": words, "since_unix": int(time.time())})
    try:
        os.ftruncate(handle.fileno(), 0)
        os.write(handle.fileno(), said.encode())
    except OSError as error:
        if not is_full(error):
            raise


def holder(handle: IO[str]) -> str:
    """The lock's holder, such as `scripts/up --small (pid 4711, for 12 s)`; empty if unknown."""
    handle.seek(0)
    try:
        said = json.loads(handle.read())
        since_s = max(0, int(time.time()) - int(said["since_unix"]))
        return f"{said['command']} (pid {int(said['pid'])}, for {since_s} s)"
    except (ValueError, KeyError, TypeError):
        return ""


def _locked(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StopError(
            f"{handle.name} cannot be locked: {error.strerror}",
            "its file system has no locks (NFS with nolock, SMB): clone the repository on a local disk",
        ) from None
    return True
