"""Splits a batch into encoded files and bad records: every record ends in exactly one of the two (I12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from tarn.adapters.files import EncodedFile, encode_rows
from tarn.adapters.partitions import unfit
from tarn.adapters.write_schema import WriteSchema
from tarn.core.batch import RawBatch
from tarn.core.decode import Decoded, Decoder
from tarn.core.isolate import isolate


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Result of encoding a batch; rows and bad records together are all of its records.

    Attributes:
        files: encoded data files of the good records, not yet in the store.
        rows: number of good records.
        bad: index in the batch to the reason of rejection.
    """

    files: tuple[EncodedFile, ...]
    rows: int
    bad: dict[int, str]


def decode(decoder: Decoder, batch: RawBatch) -> Decoded:
    """Decode like `Decoder.decode`, but treat a record that makes the decoder fail as a bad record.

    Raises:
        Exception: decoding fails even without records, which is a defect.
    """
    found = isolate(len(batch), lambda start, end: decoder.decode(batch.part(start, end)), doing="decode")
    if len(found.parts) == 1 and not found.bad:
        return found.parts[0][1]
    bad = dict(found.bad)
    index: list[int] = []
    for first, part in found.parts:
        bad.update({first + i: reason for i, reason in part.bad.items()})
        index += [first + i for i in part.index]
    parts = [part.rows for _, part in found.parts] or [decoder.decode(batch.part(0, 0)).rows]
    rows = pa.concat_tables(parts)
    return Decoded(rows=rows, index=index, bad=dict(sorted(bad.items())), joined=False)


def encode(decoded: Decoded, layout: WriteSchema, root: str, *, new_name: Callable[[], str]) -> Made:
    """Encode the rows of a batch as files below `root`; a row that cannot be encoded is a bad record.

    Args:
        decoded: rows and bad records of the batch.
        layout: schema and partition spec to write with.
        root: location of the table.
        new_name: generates a unique file name.

    Raises:
        TarnError: the table cannot take rows at all.
        Exception: encoding fails even without rows, which is a defect.
    """
    bad = dict(decoded.bad)
    rows, index = decoded.rows, decoded.index

    def drop(reasons: dict[int, str]) -> None:
        nonlocal rows, index
        if reasons:
            bad.update({index[row]: reason for row, reason in reasons.items()})
            keep = [row for row in range(rows.num_rows) if row not in reasons]
            rows, index = rows.take(pa.array(keep, pa.int64())), [index[row] for row in keep]

    def attempt(start: int, end: int) -> tuple[EncodedFile, ...]:
        return encode_rows(layout, root, rows.slice(start, end - start), new_name=new_name)

    drop(unfit(rows, layout))
    tried = isolate(rows.num_rows, attempt, doing="write")
    drop(tried.bad)
    if len(tried.parts) > 1:
        # One file for all remaining rows, not one per run between two bad records.
        tried = isolate(rows.num_rows, attempt, doing="write")
        drop(tried.bad)
    files = tuple(file for _, part in tried.parts for file in part)
    return Made(files=files, rows=rows.num_rows, bad=dict(sorted(bad.items())))
