"""Rows of writes as records of a table's log: JSON as it was sent, and Arrow as JSON that reads the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.json_rows import json_rows
from tarn.core.row_parser import ARROW_START
from tarn.core.spec import FieldSpec
from tarn.gateway.writes import Write
from tarn.ingest.batch_commit import decode

BYTES_MAX = 16 << 20
"""Size of the JSON that rows of Arrow become, of one write."""
TIMES_MAX = 8
"""Size of that JSON for each byte of the rows as they were sent, which is what memory is shared by.

Numbers and times take two to five. Lists of truth values take more, or of one long text again and again.
"""
BYTES_FREE = 64 << 10
"""Size of that JSON that a small write may have, whatever its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogColumns:
    """How the rows of a table are judged.

    Attributes:
        fields: its columns.
        decoder: decoder of its rows.
        row_bytes_max: a longer record is a bad row.
    """

    fields: Sequence[FieldSpec]
    decoder: Decoder
    row_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The rows of one write.

    Attributes:
        records: index of each accepted row to its record, in their order.
        bad: index of each other row to the reason.
    """

    records: dict[int, bytes]
    bad: dict[int, str]


def judged(columns: LogColumns, writes: Sequence[Write]) -> list[Judged]:
    """What becomes of the rows of each write."""
    decoded = decode(columns.decoder, _raw(writes))
    good = dict(zip(decoded.index, range(len(decoded.index)), strict=True))
    found: list[Judged] = []
    at = 0
    for write in writes:
        own = range(at, at + len(write.values))
        at += len(write.values)
        bad = {i - own.start: decoded.bad[i] for i in own if i in decoded.bad}
        records = {i - own.start: write.values[i - own.start] for i in own if i in good}
        typed = [i for i, value in records.items() if value.startswith(ARROW_START)]
        if typed:
            rows = decoded.rows.take(pa.array([good[own.start + i] for i in typed], pa.int64()))
            most = min(BYTES_MAX, max(BYTES_FREE, TIMES_MAX * write.bytes))
            made = json_rows(columns.fields, rows, row_bytes_max=columns.row_bytes_max, bytes_max=most)
            for row, i in enumerate(typed):
                if row in made.texts:
                    records[i] = made.texts[row]
                else:
                    del records[i]
                    bad[i] = made.bad[row]
        found.append(Judged(records=records, bad=dict(sorted(bad.items()))))
    return found


def _raw(writes: Sequence[Write]) -> RawBatch:
    """Rows as records, to be decoded; their offsets are their positions."""
    values: list[bytes | None] = [value for write in writes for value in write.values]
    return RawBatch(
        partitions=[0] * len(values),
        offsets=list(range(len(values))),
        times_ms=[write.at_ms for write in writes for _ in write.values],
        keys=[None] * len(values),
        values=values,
        ranges=(),
    )
