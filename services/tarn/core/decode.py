"""Decoding of records to typed columns, some thousand at a time: what all formats have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import pyarrow as pa

from tarn.core.arrow_parser import ArrowParser
from tarn.core.avro_parser import AvroParser
from tarn.core.batch import RawBatch
from tarn.core.json_parser import JsonParser
from tarn.core.parsing import Parser, mask_without
from tarn.core.spec import TRACE_COLUMN, FieldSpec, MessageFormat
from tarn.core.years import LOG_TIME, log_times

REASON_CHARS_MAX = 300
TRACE_TYPE = pa.struct(
    [
        pa.field("source", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("time", LOG_TIME),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Result of decoding a batch; rows and bad records together are all of its records.

    Attributes:
        rows: good records in order, one column per field, and the trace column if requested.
        index: row index to index in the batch, ascending.
        bad: index in the batch to the reason of rejection, ascending.
    """

    rows: pa.Table
    index: Sequence[int]
    bad: dict[int, str]

    def picked(self, records: Sequence[int]) -> Decoded:
        """The rows and bad records among these records: indexes in the batch, ascending."""
        place = {record: at for at, record in enumerate(records)}
        rows = [row for row, record in enumerate(self.index) if record in place]
        return Decoded(
            rows=self.rows.take(pa.array(rows, pa.int64())),
            index=[place[self.index[row]] for row in rows],
            bad={place[record]: reason for record, reason in self.bad.items() if record in place},
        )


def joined(parts: Sequence[tuple[int, Decoded]]) -> Decoded:
    """The result of decoding a batch from those of its parts; at least one.

    Args:
        parts: (index of the part's first record in the batch, result), ascending.
    """
    if len(parts) == 1 and parts[0][0] == 0:
        return parts[0][1]
    return Decoded(
        rows=pa.concat_tables([part.rows for _, part in parts]),
        index=[first + i for first, part in parts for i in part.index],
        bad={first + i: reason for first, part in parts for i, reason in part.bad.items()},
    )


def parser_of(fields: Sequence[FieldSpec], messages: MessageFormat) -> Parser:
    """The parser of messages of a format into these columns."""
    if messages.avro is not None:
        return AvroParser(fields, messages.avro)
    return ArrowParser(fields) if messages.format == "arrow" else JsonParser(fields)


class Decoder:
    """Decodes the batches of one ingestor.

    Args:
        fields: columns of the spec.
        source: name shown in the trace column.
        trace: whether to add the trace column.
        record_bytes_max: a value longer than this many bytes is a bad record.
        messages: format of the messages; by default JSON.
        parser: parser of the messages, if not the usual one of their format.
        limit_name: what `record_bytes_max` is called, for reasons.
    """

    def __init__(
        self,
        fields: Sequence[FieldSpec],
        *,
        source: str,
        trace: bool,
        record_bytes_max: int,
        messages: MessageFormat | None = None,
        parser: Parser | None = None,
        limit_name: str = "deadLetters.maxRecordBytes",
    ) -> None:
        self._names = [field.name for field in fields]
        self._source = source
        self._trace = trace
        self._record_bytes_max = record_bytes_max
        self._limit_name = limit_name
        self._parser = parser or parser_of(fields, messages or MessageFormat())

    def decode(self, batch: RawBatch) -> Decoded:
        """Decode every record of the batch, to a row or to a bad record with its reason."""
        bad = self._unusable(batch.values)
        index: Sequence[int]
        if bad:
            index = list(compress(range(len(batch)), mask_without(len(batch), bad)))
            parsed = self._parser.parse([batch.values[i] for i in index])  # type: ignore[misc]
            bad.update({index[i]: reason for i, reason in parsed.bad.items()})
            index = [index[i] for i in parsed.index]
        else:
            parsed = self._parser.parse(batch.values)  # type: ignore[arg-type]
            bad, index = dict(parsed.bad), parsed.index
        columns, names = parsed.columns, self._names
        if self._trace:
            columns, names = [*columns, self._trace_column(batch, index)], [*names, TRACE_COLUMN]
        rows = pa.Table.from_arrays(columns, names=names)
        bad = {i: bad[i][:REASON_CHARS_MAX] for i in sorted(bad)}
        return Decoded(rows=rows, index=index, bad=bad)

    def _unusable(self, values: Sequence[bytes | None]) -> dict[int, str]:
        """Values that are rejected without parsing, as {index: reason}."""
        try:
            if max(map(len, values), default=0) <= self._record_bytes_max:  # type: ignore[arg-type]
                return {}
        except TypeError:  # a value is None
            pass
        bad = {}
        for i, value in enumerate(values):
            if value is None:
                bad[i] = "no value (a tombstone); this table takes none"
            elif len(value) > self._record_bytes_max:
                bad[i] = f"{len(value)} bytes, more than {self._limit_name} = {self._record_bytes_max}"
        return bad

    def _trace_column(self, batch: RawBatch, index: Sequence[int]) -> pa.Array:
        partitions = pa.array(batch.partitions, pa.int32())
        offsets = pa.array(batch.offsets, pa.int64())
        times = log_times(batch.times_ms)
        if len(index) < len(batch):
            rows = pa.array(index, pa.int64())
            partitions, offsets, times = partitions.take(rows), offsets.take(rows), times.take(rows)
        return pa.StructArray.from_arrays(
            [pa.repeat(pa.scalar(self._source, pa.string()), len(index)), partitions, offsets, times],
            fields=list(TRACE_TYPE),
        )
