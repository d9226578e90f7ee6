"""What fsck found last, read now and then by a thread, so that no request has to wait for the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from tarn.core.errors import TarnError
from tarn.ingest.context import StoppedError
from tarn.keeper.fsck_record import FsckRecord

log = structlog.get_logger()

EVERY_S = 5.0
"""Pause between two looks, in seconds; each reads two small objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckSeen:
    """What was read last.

    Attributes:
        record: what the store said.
        looked_ms: when it was read, in milliseconds since the epoch; None before the first time.
        fault: why it could not be read the last time; empty if it could.
    """

    record: FsckRecord = field(default_factory=FsckRecord)
    looked_ms: int | None = None
    fault: str = ""


class FsckLook:
    """Reads the records of fsck again and again; one thread reads, any number of them see what it read.

    Args:
        read: reads them; raises TarnError if the store does not respond or refuses.
        now_ms: wall-clock time in milliseconds since the epoch.
        sleep: waits; raises StoppedError when the process is asked to stop.
    """

    def __init__(
        self,
        read: Callable[[], FsckRecord],
        *,
        now_ms: Callable[[], int],
        sleep: Callable[[float], None],
    ) -> None:
        self._read = read
        self._now_ms = now_ms
        self._sleep = sleep
        self._last = FsckSeen()

    def seen(self) -> FsckSeen:
        """What was read last; waits for nothing."""
        return self._last

    def run(self) -> None:
        """Read until the process stops."""
        try:
            while True:
                self.look()
                self._sleep(EVERY_S)
        except StoppedError:
            return

    def look(self) -> None:
        """Read once; without an answer, what was read before stays.

        Raises:
            StoppedError: the process was asked to stop.
        """
        before = self._last
        try:
            record = self._read()
        except StoppedError:
            raise
        except TarnError as e:
            self._last = replace(before, fault=e.message)
        except Exception as e:
            self._last = replace(before, fault=f"{type(e).__name__}: {e}; a defect of Tarn")
            if self._last.fault != before.fault:
                log.exception("the record of fsck could not be read")
        else:
            self._last = FsckSeen(record=record, looked_ms=self._now_ms())
            wrong = [fault for fault in record.faults if fault not in before.record.faults]
            for fault in wrong:
                log.warning("a record of fsck cannot be used", why=fault)
