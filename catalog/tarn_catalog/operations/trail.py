"""What the catalog did, kept as lines in the store: the audit trail, and the metrics reports of clients.

A request only puts an event into a buffer. A thread writes the buffer every ten seconds as one object, so
a process that is killed loses the rows of its last ten seconds; the audit trail's lines in the container's
log stay. See `tarn.core.trail` for the objects.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
import structlog

from tarn.core.errors import CorruptStateError, TarnError, UnavailableError
from tarn.core.object_store import ObjectStore, StoreRefusedError
from tarn.core.trail import AUDIT, LINES_MAX, LOGS, METRICS, TrailLog

log = structlog.get_logger()

WRITE_EVERY_S = 10.0
WAITING_BYTES_MAX = 2 * 1024 * 1024
"""Of events that the store did not take yet, for each log."""
LINE_BYTES_MAX = 16 * 1024
TEXT_CHARS_MAX = 2_000
REPORTS_MAX = 1_000
"""Metrics reports of one interval; more are dropped and counted."""
KEPT_MS = 7 * 86_400_000
SEGMENTS_MAX = 10_000
TRIM_EVERY_S = 600.0
ATTEMPTS_MAX = 16


@dataclass(slots=True)
class _Waiting:
    """Events of one log that are not written yet.

    Attributes:
        lines: as they are written.
        size: their bytes.
        dropped: events that found no room, and were not counted in the log yet.
        pending: a segment whose write had no answer: its number and its content.
        next: number of the next segment; None before the first look.
        trimmed_s: when old segments were removed last, by the monotonic clock.
        failing_s: since when the store takes nothing, by the monotonic clock; None while it does.
    """

    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    dropped: int = 0
    pending: tuple[int, bytes] | None = None
    next: int | None = None
    trimmed_s: float | None = None
    failing_s: float | None = None


class Trail:
    """Keeps events, and writes them to the store in the background.

    Args:
        store: the lake's store.
        now_ms: wall clock, milliseconds since the epoch.
        clock: monotonic clock, seconds.
        new_id: returns a new event id.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting = {one: _Waiting() for one in LOGS}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    # -- events

    def audit(self, event: Mapping[str, Any]) -> None:
        """Keep one event of the audit trail; the fields of the log line."""
        columns = ("principal", "client_id", "action", "object", "outcome", "error")
        details = {name: _short(value) for name, value in event.items() if name not in columns}
        self._add(AUDIT, {**{name: _short(event.get(name)) for name in columns}, "details": details or None})

    def report(self, principal: str, table: str, report: Mapping[str, Any]) -> None:
        """Keep one metrics report, without its text if that is long, and without a type that is no text."""
        report_type, snapshot_id = report.get("report-type"), report.get("snapshot-id")
        try:
            text = orjson.dumps({"report": {"report": report}})
        except orjson.JSONEncodeError:  # Nested more deeply than can be written.
            self._drop(METRICS)
            return
        fits = len(text) <= LINE_BYTES_MAX // 2
        if len(self._waiting[METRICS].lines) >= REPORTS_MAX:
            self._drop(METRICS)
            return
        self._add(
            METRICS,
            {
                "principal": principal,
                "table_name": _short(table),
                "report_type": _short(report_type) if isinstance(report_type, str) else None,
                "snapshot_id": snapshot_id if _is_long(snapshot_id) else None,
                "report_bytes": len(text) - len(b'{"report":{"report":}}'),
                "report": report if fits else None,
            },
        )

    def _add(self, one: TrailLog, event: Mapping[str, Any]) -> None:
        at = datetime.fromtimestamp(self._now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
        line = orjson.dumps({"event_id": self._new_id(), "at": at, **event})
        with self._lock:
            waiting = self._waiting[one]
            fits = len(line) <= LINE_BYTES_MAX and waiting.size + len(line) <= WAITING_BYTES_MAX
            if fits:
                waiting.lines.append(line)
                waiting.size += len(line)
        if not fits:
            self._drop(one)

    def _drop(self, one: TrailLog) -> None:
        with self._lock:
            self._waiting[one].dropped += 1

    # -- writing

    def start(self) -> None:
        """Write in the background from now on."""

        def run() -> None:
            while not self._stop.wait(WRITE_EVERY_S):
                try:
                    self.write()
                except Exception:
                    log.exception("trail not written; it is tried again")

        self._thread = threading.Thread(target=run, name="trail", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what is left and end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.write()
        for one, waiting in self._waiting.items():
            lost = len(waiting.lines) + waiting.dropped
            if lost:
                log.warning("trail events lost at the stop", log=one.name, events=lost)

    def write(self) -> None:
        """Write the events of each log as one segment; what the store does not take waits."""
        with self._writing:
            for one in LOGS:
                waiting = self._waiting[one]
                try:
                    while self._write(one):
                        pass
                    self._trim(one)
                except TarnError as e:
                    # Once for each outage: its length and what it cost are known at its end.
                    if waiting.failing_s is None:
                        waiting.failing_s = self._clock()
                        log.warning("trail not written; events wait", log=one.name, reason=e.message)
                    continue
                if waiting.failing_s is not None:
                    seconds = round(self._clock() - waiting.failing_s, 1)
                    log.info("trail written again", log=one.name, seconds=seconds)
                    waiting.failing_s = None
                self._count_dropped(one)

    def _count_dropped(self, one: TrailLog) -> None:
        with self._lock:
            dropped, self._waiting[one].dropped = self._waiting[one].dropped, 0
        if dropped:
            log.warning("trail events dropped", log=one.name, events=dropped)

    def _write(self, one: TrailLog) -> bool:
        """Write one segment, if there are events; return whether there are more."""
        waiting = self._waiting[one]
        with self._lock:
            lines = waiting.lines[:LINES_MAX]
        if waiting.pending is None:
            if not lines:
                return False
            content = b"\n".join((*lines, b""))
        else:
            content = waiting.pending[1]
        number = self._put(one, waiting, content)
        written = content.count(b"\n")
        with self._lock:
            waiting.size -= sum(len(line) for line in waiting.lines[:written])
            del waiting.lines[:written]
            more = bool(waiting.lines)
        waiting.pending, waiting.next = None, number + 1
        return more

    def _put(self, one: TrailLog, waiting: _Waiting, content: bytes) -> int:
        """Write a segment after the last one; return its number.

        Raises:
            TarnError: it may not be written; the same content is tried again at the same number first.
        """
        number = waiting.pending[0] if waiting.pending else self._next(one, waiting)
        for _ in range(ATTEMPTS_MAX):
            # Before the write: it may land without an answer, and then this number is ours.
            waiting.pending = (number, content)
            try:
                self._store.put(one.key(number), content, if_absent=True)
                return number
            except StoreRefusedError:
                found = self._store.get(one.key(number))
                if found is not None and found.data == content:
                    return number  # an earlier try of this process
                if found is not None:
                    number = max(self._numbers(one, after=one.key(number)), default=number) + 1
        raise UnavailableError(f"other replicas took {ATTEMPTS_MAX} segments of {one.name} meanwhile")

    def _next(self, one: TrailLog, waiting: _Waiting) -> int:
        """Return the number after the last segment, which other replicas may have written."""
        if waiting.next is not None:
            return waiting.next
        numbers = self._numbers(one)
        if numbers:
            return max(numbers) + 1
        # A log never begins where an earlier one was, so that a table that outlived it goes on.
        with suppress(StoreRefusedError):
            self._store.put(one.start_key, str(self._now_ms()).encode(), if_absent=True)
        found = self._store.get(one.start_key)
        if found is None or not found.data.isdigit():
            raise CorruptStateError(f"{one.start_key} is no number: remove it, a new one is made")
        return int(found.data)

    def _numbers(self, one: TrailLog, *, after: str | None = None) -> list[int]:
        found = (one.segment_of(listed.key) for listed in self._store.list(one.prefix, after=after))
        return [number for number in found if number is not None]

    def _trim(self, one: TrailLog) -> None:
        """Remove segments that are old or too many, never the last one."""
        waiting = self._waiting[one]
        now_s = self._clock()
        if waiting.trimmed_s is not None and now_s - waiting.trimmed_s < TRIM_EVERY_S:
            return
        waiting.trimmed_s = now_s
        listed = sorted(self._store.list(one.prefix), key=lambda found: found.key)
        numbers = [number for found in listed if (number := one.segment_of(found.key)) is not None]
        if numbers:
            # A number that others wrote and trimmed is free again, and ingest is past it.
            waiting.next = max(numbers) + 1
        oldest_ms = self._now_ms() - KEPT_MS
        for position, found in enumerate(listed[:-1]):
            if found.modified_ms >= oldest_ms and len(listed) - position <= SEGMENTS_MAX:
                break
            self._store.delete(found.key)


def _short(value: Any) -> Any:
    """Return a value as it is kept: texts at most `TEXT_CHARS_MAX` characters."""
    return value[:TEXT_CHARS_MAX] if isinstance(value, str) else value


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
