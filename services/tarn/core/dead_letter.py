"""Bad records as rows (invariant I12): nothing of a record is lost, and nothing of it can block.

A dead-letter file is written under the dead-letter table's location and named in the snapshot summary of the
ingested table, together with the batch it came from: that commit is the fact. Each commit carries forward
the files that are not known to be registered yet; registering is repeated until the dead-letter table's own
marker covers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import orjson
import pyarrow as pa

from tarn.core.batch import RawBatch
from tarn.core.errors import CorruptStateError
from tarn.core.spec import FieldSpec
from tarn.core.years import log_times

PENDING_PREFIX = "tarn.dead-letters."
MARKER_KEY = "tarn.dead-letters-registered"
MARKER_TAG = "tarn-dead-letters"
PENDING_FILES_MAX = 200
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
    """A dead-letter file named by a commit and not yet known to be in the dead-letter table.

    Attributes:
        path: the file's location.
        records, bytes: what it holds.
        sequence: the sequence number of the first snapshot that named it: what the marker counts.
    """

    path: str
    records: int
    bytes: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterWatermark:
    """How far one stream's files are registered: everything up to this sequence number of that very table."""

    table_uuid: str
    sequence: int


def rows(batch: RawBatch, bad: Mapping[int, str], *, ingestor: str, source: str, at: datetime) -> pa.Table:
    """The bad records of a batch as rows of the dead-letter table.

    Args:
        batch: what was polled.
        bad: index in the batch to reason.
        ingestor: whose batch.
        source: from which topic.
        at: when it was decoded, with a time zone.
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
    """The form in the ingested table's summary."""
    return orjson.dumps([[f.path, f.records, f.bytes, f.sequence] for f in files]).decode()


def pending_from_json(text: str) -> tuple[PendingFile, ...]:
    """Reads the form of `pending_to_json`.

    Raises:
        CorruptStateError: it is not such a form.
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


def markers_to_json(markers: Mapping[str, DeadLetterWatermark]) -> str:
    """The form in the dead-letter table's summary: every stream's marker, carried forward by each commit."""
    return orjson.dumps({s: [m.table_uuid, m.sequence] for s, m in sorted(markers.items())}).decode()


def markers_from_json(text: str) -> dict[str, DeadLetterWatermark]:
    """Reads the form of `markers_to_json`.

    Raises:
        CorruptStateError: it is not such a form.
    """
    try:
        return {
            stream: DeadLetterWatermark(table_uuid=str(u), sequence=int(s))
            for stream, (u, s) in orjson.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError) as e:
        raise CorruptStateError(
            f"the dead-letter marker in the snapshot summary cannot be read: {text[:200]!r}", value=text[:200]
        ) from e


def unregistered(
    pending: tuple[PendingFile, ...], marker: DeadLetterWatermark | None, *, table_uuid: str
) -> tuple[PendingFile, ...]:
    """The files that the marker does not cover; a marker of another table covers nothing."""
    if marker is None or marker.table_uuid != table_uuid:
        return pending
    return tuple(f for f in pending if f.sequence > marker.sequence)
