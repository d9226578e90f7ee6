"""Side effects of a service that needs no adapter: new names and ids, and a sleep that a stop ends."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from threading import Event

from tarn.ingest.context import StoppedError


def uuid7() -> str:
    """A time-ordered UUID (RFC 9562, version 7): 48 bits of milliseconds, then random bits."""
    value = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=value))


def new_snapshot_id() -> int:
    """A random positive integer of 63 bits."""
    return secrets.randbits(63) or 1


def new_id() -> str:
    """A random UUID."""
    return str(uuid.uuid4())


def stoppable_sleep(stop: Event) -> Callable[[float], None]:
    """A sleep function that raises StoppedError as soon as the process is asked to stop.

    Args:
        stop: set when the process is asked to stop.

    Returns:
        A function that waits for a number of seconds.
    """

    def sleep(seconds: float) -> None:
        if stop.wait(seconds):
            raise StoppedError

    return sleep
