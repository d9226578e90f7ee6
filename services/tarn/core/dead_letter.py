"""Bad records as rows (invariant I12): every record is kept in full, and none can block ingestion.

A dead-letter file is written below the dead-letter table's location and listed in the snapshot summary of the
ingested table, together with its batch: that commit makes it durable. Each commit carries forward the files
not yet known to be registered; registration is repeated until the dead-letter table's watermark covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import orjson
import pyarrow as pa

from tarn.core.batch import RawBatch
from tarn.core.errors import CorruptStateError
from tarn.core.spec import FieldSpec
from tarn.core.years import log_times

PENDING_PREFIX = "tarn.dead-letters."
MARKER_KEY = "tarn.dead-letters-registered"
MARKER_TAG = "tarn-dead-letters"
COUNT_KEY = "tarn.dead-letters-records"
FORMER_KEY = "tarn.dead-letters-registered-before"
REPLAYED_PREFIX = "tarn.dead-letters-replayed."
PENDING_FILES_MAX = 200
COUNT_DIGITS_MAX = 18
"""Whoever may write the table may write its count; more digits are no count, and too many for 64 bits."""
FORMER_MAX = 8
"""Tables of a stream whose watermarks are kept, beside that of the table which it registered for last."""
FIELDS: tuple[FieldSpec, ...] = (
    FieldSpec(name="ingestor", type="string", required=True),
    FieldSpec(name="source", type="string", required=True),
    FieldSpec(name="partition", type="int", required=True),
    FieldSpec(name="offset", type="long", required=True),
    FieldSpec(name="time", type="timestamptz"),
    FieldSpec(name="key", type="binary"),
    FieldSpec(name="value", type="binary"),
    FieldSpec(name="reason", type="string", required=True),
    FieldSpec(name="decoded_at", type="timestamptz", required=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingFile:
    """A dead-letter file listed by a commit and not yet known to be in the dead-letter table.

    Attributes:
        path: location of the file.
        records: number of records.
        bytes: file size in bytes.
        sequence: sequence number of the first snapshot that listed it, which the watermark is compared with.
    """

    path: str
    records: int
    bytes: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterWatermark:
    """Registration progress of a stream: all files up to this sequence number of this ingested table."""

    table_uuid: str
    sequence: int


def rows(batch: RawBatch, bad: Mapping[int, str], *, ingestor: str, source: str, at: datetime) -> pa.Table:
    """The bad records of a batch as rows of the dead-letter table.

    Args:
        batch: the raw records.
        bad: index in the batch to the reason of rejection.
        ingestor: name of the stream.
        source: name of the topic.
        at: decode time, with time zone.
    """
    index = sorted(bad)
    stamp = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "ingestor": pa.array([ingestor] * len(index), pa.string()),
            "source": pa.array([source] * len(index), pa.string()),
            "partition": pa.array([batch.partitions[i] for i in index], pa.int32()),
            "offset": pa.array([batch.offsets[i] for i in index], pa.int64()),
            "time": log_times([batch.times_ms[i] for i in index]),
            "key": pa.array([batch.keys[i] for i in index], pa.binary()),
            "value": pa.array([batch.values[i] for i in index], pa.binary()),
            "reason": pa.array([bad[i] for i in index], pa.string()),
            "decoded_at": pa.array([at] * len(index), stamp),
        }
    )


def pending_to_json(files: tuple[PendingFile, ...]) -> str:
    """JSON of the ingested table's summary property: [[path, records, bytes, sequence], ...]."""
    return orjson.dumps([[f.path, f.records, f.bytes, f.sequence] for f in files]).decode()


def pending_from_json(text: str) -> tuple[PendingFile, ...]:
    """Parse the result of `pending_to_json`.

    Raises:
        CorruptStateError: the text is not of this form.
    """
    try:
        return tuple(
            PendingFile(path=str(p), records=int(r), bytes=int(b), sequence=int(s))
            for p, r, b, s in orjson.loads(text)
        )
    except (ValueError, TypeError) as e:
        raise CorruptStateError(
            f"the list of dead-letter files in the snapshot summary cannot be read: {text[:200]!r}",
            value=text[:200],
        ) from e


Watermarks: TypeAlias = tuple[DeadLetterWatermark, ...]
"""Watermarks of a stream, one per ingested table: that of the last registration first."""


def watermark_of(marks: Watermarks, table_uuid: str) -> DeadLetterWatermark | None:
    """The watermark of an ingested table; None if there is none."""
    return next((mark for mark in marks if mark.table_uuid == table_uuid), None)


def advanced(marks: Watermarks, to: DeadLetterWatermark) -> Watermarks:
    """The watermarks after a registration; those of the tables before are kept, as far as there is room.

    A stream whose spec names a former table again would register that table's last files twice.
    """
    return (to, *(mark for mark in marks if mark.table_uuid != to.table_uuid))[: FORMER_MAX + 1]


def markers_to_json(markers: Mapping[str, Watermarks]) -> dict[str, str]:
    """The dead-letter table's summary properties, of all streams.

    `MARKER_KEY` is {stream: [table UUID, sequence]} of the last registrations, `FORMER_KEY`, if there are any
    before, {stream: [[table UUID, sequence], ...]}.
    """
    plain = {s: [[m.table_uuid, m.sequence] for m in marks] for s, marks in sorted(markers.items()) if marks}
    former = {stream: marks[1:] for stream, marks in plain.items() if marks[1:]}
    found = {MARKER_KEY: orjson.dumps({stream: marks[0] for stream, marks in plain.items()}).decode()}
    return found | ({FORMER_KEY: orjson.dumps(former).decode()} if former else {})


def markers_from_json(summary: Mapping[str, str]) -> dict[str, Watermarks]:
    """Parse the result of `markers_to_json` in a snapshot summary.

    Raises:
        CorruptStateError: the properties are not of this form.
    """
    text, former = str(summary[MARKER_KEY]), str(summary.get(FORMER_KEY, "{}"))
    try:
        before = dict(orjson.loads(former))
        return {
            stream: tuple(
                DeadLetterWatermark(table_uuid=str(u), sequence=int(s))
                for u, s in (last, *before.get(stream, ()))
            )
            for stream, last in orjson.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError) as e:
        raise CorruptStateError(
            f"the dead-letter marker in the snapshot summary cannot be read: {text[:200]!r}", value=text[:200]
        ) from e


def unregistered(
    pending: tuple[PendingFile, ...], marker: DeadLetterWatermark | None, *, table_uuid: str
) -> tuple[PendingFile, ...]:
    """Files that the watermark does not cover.

    Args:
        pending: files that the ingested table lists.
        marker: watermark of the stream; one of another table covers no file.
        table_uuid: UUID of the ingested table.
    """
    if marker is None or marker.table_uuid != table_uuid:
        return pending
    return tuple(f for f in pending if f.sequence > marker.sequence)


def rows_expected(summaries: Iterable[Mapping[str, str]]) -> int | None:
    """Number of rows that the dead-letter table must have: those that were registered.

    0 if others deleted rows since the last count, None if they were never counted.

    Args:
        summaries: summaries of its current snapshot and of the ancestors, newest first.
    """
    deleted = False
    for summary in summaries:
        text = str(summary.get(COUNT_KEY, ""))
        if text.isdecimal() and len(text) <= COUNT_DIGITS_MAX:
            return 0 if deleted else int(text)
        deleted = deleted or summary.get("operation") in ("delete", "overwrite")
    return None
