"""The canary: one row through Kafka and ingest into a table, read by every engine and compared exactly.

It also audits all rows that canaries ever sent: by their offsets, none is missing and none duplicated.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from tarn.cli.deadline import within
from tarn.cli.ports import Clock, Lake, MessageLog, Placed, Reader, Tell, Traced
from tarn.core.errors import DataError, TarnError, UnavailableError

TOPIC = "tarn.canary"
TABLE = "ops.canary"
STREAM = "canary"
ON_THE_WAY = ("kafka", "ingest")
"""Services that the row passes through; the catalog and the store are there before them."""
SHOWN_MAX = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRow:
    """The row to send.

    Attributes:
        id: unique id.
        sent_at: UTC time, in whole microseconds.
        note: any text.
    """

    id: str
    sent_at: datetime
    note: str

    def message(self) -> bytes:
        """Return the row as the JSON message that ingest reads."""
        stamp = self.sent_at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return json.dumps({"id": self.id, "sent_at": stamp, "note": self.note}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of the stages and of the whole run (`total_s`), in seconds."""

    total_s: float = 90.0
    log_s: float = 20.0
    commit_s: float = 40.0
    read_s: float = 60.0
    audit_s: float = 30.0
    poll_s: float = 0.2
    retry_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Result of one stage.

    Attributes:
        name: `kafka`, `ingest`, an engine, or `audit`.
        ok: whether the stage passed.
        rows: number of rows seen; None if a fault prevented it.
        seconds: duration.
        detail: what was found, or what went wrong and what to do.
    """

    name: str
    ok: bool
    rows: int | None
    seconds: float
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of the whole run."""

    row: CanaryRow
    stages: tuple[Stage, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every stage passed."""
        return all(stage.ok for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Dependencies of a canary run.

    Attributes:
        log: Kafka, which the row is sent to.
        lake: tables, in which it must arrive.
        readers: engines that must read it.
        limits: time limits.
        clock: time.
        tell: called with progress messages.
        wait_for: waits until the named service is ready; the wait counts against no limit.
    """

    log: MessageLog
    lake: Lake
    readers: Sequence[Reader]
    limits: Limits
    clock: Clock
    tell: Tell
    wait_for: Callable[[str], None] = lambda service: None


def fly(flight: Flight, row: CanaryRow) -> Report:
    """Send the row, follow it through every stage, and report; stop at a failed stage that the next needs."""
    for service in ON_THE_WAY:
        flight.wait_for(service)
    start_s = began_s = flight.clock.now_s()
    stages: list[Stage] = []
    flight.tell(f"kafka: sending one row to {TOPIC}")
    sent, placed = _stage(flight, "kafka", lambda: _send(flight, row, start_s), start_s)
    stages.append(sent)
    if placed is not None:
        flight.tell(f"ingest: waiting for offset {placed.offset} to be committed to {TABLE}")
        landed, _ = _stage(flight, "ingest", lambda: _await_commit(flight, placed, start_s), start_s)
        stages.append(landed)
        if landed.ok:
            flight.tell(f"reading back with {', '.join(reader.name for reader in flight.readers)}")
            before_s = flight.clock.now_s()
            read, waited_s = _read_all(flight, row, start_s)
            stages += read
            start_s += min(waited_s, flight.clock.now_s() - before_s)
            audited, _ = _stage(flight, "audit", lambda: _audit(flight, start_s), start_s)
            stages.append(audited)
    return Report(row=row, stages=tuple(stages), seconds=flight.clock.now_s() - began_s)


def differences(row: CanaryRow, found: Sequence[tuple[object, ...]]) -> list[str]:
    """Return the differences between an engine's rows and the one row sent; empty if they are equal."""
    if len(found) != 1:
        return [f"expected 1 row with id {row.id}, found {len(found)}"]
    expected = {"id": row.id, "sent_at": row.sent_at, "note": row.note}
    if len(found[0]) != len(expected):
        return [f"expected columns {', '.join(expected)}, found {len(found[0])} values"]
    return [
        f"{name}: sent {value!r}, found {got!r}"
        for (name, value), got in zip(expected.items(), found[0], strict=True)
        if not _same(value, got)
    ]


def audit(traced: Traced) -> list[str]:
    """Return what is wrong with the rows of all canaries so far; empty if every offset is there exactly once.

    Per partition, the offsets of rows and dead letters must be exactly those from the first one seen to the
    end in the offset map.
    """
    wrong: list[str] = []
    seen: dict[int, Counter[int]] = {partition: Counter() for partition in traced.next}
    for partition, offset in (*traced.rows, *traced.dead):
        seen.setdefault(partition, Counter())[offset] += 1
    for partition, offsets in sorted(seen.items()):
        end = traced.next.get(partition, 0)
        first = min(offsets, default=end)
        missing = [offset for offset in range(first, end) if offset not in offsets]
        doubled = sorted(offset for offset, count in offsets.items() if count > 1)
        beyond = sorted(offset for offset in offsets if offset >= end)
        for what, which in (("missing", missing), ("doubled", doubled), ("beyond the map", beyond)):
            if which:
                wrong.append(f"partition {partition}: {len(which)} {what} ({_some(which)})")
        if end and not offsets:
            wrong.append(f"partition {partition}: the map ends at {end} and there is no row")
    return wrong


def _send(flight: Flight, row: CanaryRow, start_s: float) -> tuple[Placed, int, str]:
    timeout_s = min(flight.limits.log_s, _left(flight, start_s))
    placed = flight.log.send(TOPIC, row.message(), timeout_s=timeout_s)
    return placed, 1, f"partition {placed.partition}, offset {placed.offset}"


def _await_commit(flight: Flight, placed: Placed, start_s: float) -> tuple[None, int, str]:
    allowed_s = min(flight.limits.commit_s, _left(flight, start_s))
    end_s = flight.clock.now_s() + allowed_s
    seen: Mapping[int, int] | None = None
    trouble: TarnError | None = None
    while flight.clock.now_s() < end_s:
        try:
            left_s = end_s - flight.clock.now_s()
            seen = within(left_s, "catalog", lambda: flight.lake.committed(TABLE, STREAM))
            trouble = None
        except UnavailableError as error:
            trouble = error
        if seen is not None and seen.get(placed.partition, 0) > placed.offset:
            return None, 1, f"committed to {TABLE} up to offset {seen[placed.partition]}"
        flight.clock.wait(flight.limits.poll_s)
    if trouble is not None:
        raise trouble
    state = "the table has no offset map yet" if seen is None else f"the table ends at {dict(seen)}"
    raise UnavailableError(
        f"offset {placed.offset} of {TOPIC} was not committed within {allowed_s:.0f} s; "
        f"{state}; see scripts/tarn status and docker compose logs ingest catalog"
    )


def _read_all(flight: Flight, row: CanaryRow, start_s: float) -> tuple[list[Stage], float]:
    """Let all engines read concurrently, each when it is ready.

    Returns:
        The stages in the order of the engines, and the longest wait for one to become ready, in seconds.
    """
    found: dict[str, Stage] = {}
    waited_s: list[float] = [0.0]

    def read(reader: Reader) -> None:
        before_s = flight.clock.now_s()
        flight.wait_for(reader.name)
        waited_s.append(flight.clock.now_s() - before_s)
        own_s = start_s + waited_s[-1]
        stage, _ = _stage(flight, reader.name, lambda: _read(flight, reader, row, own_s), own_s)
        found[reader.name] = stage
        flight.tell(f"{reader.name}: {'ok' if stage.ok else 'failed'} after {stage.seconds:.1f} s")

    threads = [threading.Thread(target=read, args=(reader,), daemon=True) for reader in flight.readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[reader.name] for reader in flight.readers], max(waited_s)


def _read(flight: Flight, reader: Reader, row: CanaryRow, start_s: float) -> tuple[None, int, str]:
    end_s = flight.clock.now_s() + min(flight.limits.read_s, _left(flight, start_s))
    while True:
        left_s = end_s - flight.clock.now_s()
        try:
            found = within(
                left_s,
                reader.name,
                lambda: reader.find(TABLE, row.id, timeout_s=max(end_s - flight.clock.now_s(), 0.1)),
            )
            break
        except UnavailableError:
            if end_s - flight.clock.now_s() <= flight.limits.retry_s:
                raise
            flight.clock.wait(flight.limits.retry_s)
    wrong = differences(row, found)
    if wrong:
        raise DataError(
            f"{reader.name} read something else than was sent: {'; '.join(wrong)}; "
            f"look at the row {row.id} of {TABLE} with scripts/tarn sql",
            engine=reader.name,
        )
    return None, 1, "the same values"


def _audit(flight: Flight, start_s: float) -> tuple[None, int, str]:
    left_s = min(flight.limits.audit_s, _left(flight, start_s))
    end_s = flight.clock.now_s() + left_s
    while True:
        traced = within(end_s - flight.clock.now_s(), "catalog", lambda: flight.lake.traced(TABLE, STREAM))
        wrong = audit(traced)
        if not wrong:
            break
        # Dead letters are registered a moment after the commit that lists them.
        if flight.clock.now_s() + flight.limits.retry_s >= end_s:
            raise DataError(
                f"the rows of {TABLE} and its offset map disagree: {'; '.join(wrong)}; "
                "keep the table as it is and report this: it is a defect or a hand-made change",
                wrong=wrong,
            )
        flight.clock.wait(flight.limits.retry_s)
    dead = f" and {len(traced.dead)} dead letters" if traced.dead else ""
    return None, len(traced.rows), f"all {len(traced.rows)} rows{dead} of all canaries, each offset once"


def _stage(
    flight: Flight, name: str, work: Callable[[], tuple[T, int, str]], start_s: float
) -> tuple[Stage, T | None]:
    began_s = flight.clock.now_s()
    try:
        if _left(flight, start_s) <= 0:
            raise UnavailableError(f"no time left of {flight.limits.total_s:.0f} s; try again")
        value, rows, detail = work()
    except TarnError as error:
        took_s = flight.clock.now_s() - began_s
        return Stage(name=name, ok=False, rows=None, seconds=took_s, detail=error.message), None
    took_s = flight.clock.now_s() - began_s
    return Stage(name=name, ok=True, rows=rows, seconds=took_s, detail=detail), value


def _left(flight: Flight, start_s: float) -> float:
    return start_s + flight.limits.total_s - flight.clock.now_s()


def _same(sent: object, got: object) -> bool:
    if isinstance(sent, datetime):
        return isinstance(got, datetime) and got.tzinfo is not None and got == sent
    return type(got) is type(sent) and got == sent


def _some(values: Iterable[int]) -> str:
    listed = list(values)
    shown = ", ".join(str(value) for value in listed[:SHOWN_MAX])
    return shown + (", …" if len(listed) > SHOWN_MAX else "")
