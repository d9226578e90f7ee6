"""Decoding many records at once: good and bad ones among each other."""

from __future__ import annotations

import json
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.core.batch import BatchBuilder, RawBatch, RawRecords
from tarn.core.decode import Decoded, joined
from tests.unit.ingest import test_decode as flat
from tests.unit.ingest import test_decode_nested as nested
from tests.unit.ingest.test_decode import batch, decoder, same


@pytest.mark.long
def test_many_records_good_and_bad_decode_like_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several pieces of the parser, with every way in which a record is set apart."""
    monkeypatch.setattr("tarn.core.json_parser.TYPED_RECORDS", 50)
    kinds: list[bytes | None] = [
        None,
        b"junk",
        b'{"s":"a"',
        b'{"s":"\xff"}',
        '{"s":"\u00e9","i":1}'.encode(),
        b'{"s":"a","i":7.0}',
        b'{"i":3}',
        b'{"s":"a","i":99999999999}',
        b'{"s":"' + b"x" * 300 + b'"}',
        b'{"s":"a","zz":1e400}',
    ]
    values: list[bytes | None] = [b'{"s":"row","i":%d}' % n for n in range(600)]
    random = Random(11)
    for at in random.sample(range(600), 120):
        values[at] = random.choice(kinds)
    one = decoder(size=200)
    whole = one.decode(batch(values))
    alone = [one.decode(batch([value], first=100 + i)) for i, value in enumerate(values)]
    assert whole.bad == {i: found.bad[0] for i, found in enumerate(alone) if found.bad}
    assert list(whole.index) == [i for i, found in enumerate(alone) if not found.bad]
    rows = [row for found in alone for row in found.rows.to_pylist()]
    found = whole.rows.to_pylist()
    for i, row, expected in zip(whole.index, found, rows, strict=True):
        assert row["_tarn"].pop("time").timestamp() == 1_700_000_000 + i / 1_000
        expected["_tarn"].pop("time")
        assert same(row, expected), i
    assert 40 < len(whole.bad) < 120


FIELDS = (*flat.FIELDS, *(field for field in nested.FIELDS if field.name != "id"))
"""Every type, alone and nested."""
both = st.builds(lambda a, b: json.dumps(a | json.loads(b)).encode(), flat.typed, nested.typed)
RECORDS = st.lists(flat.mutated | both, max_size=24)


def polled(values: list[bytes | None], cuts: list[int]) -> RawBatch:
    """The records as a batch of polls, each from the other one of two partitions."""
    builder = BatchBuilder(records_max=1_000, bytes_max=1_000_000, latency_s_max=1.0)
    ends = [0, 0]
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(values)], strict=True)):
        partition, count = number % 2, end - start
        offsets = list(range(ends[partition], ends[partition] + count))
        builder.add(
            RawRecords(
                partition=partition,
                offsets=offsets,
                times_ms=[1_700_000_000_000 + n for n in offsets],
                keys=[None] * count,
                values=values[start:end],
                start=ends[partition],
                end=ends[partition] + count,
            ),
            now_s=0.0,
        )
        ends[partition] += count
    return builder.take()


def by_place(raw: RawBatch, found: Decoded) -> dict[tuple[int, int], str]:
    """Partition and offset of every record to its row, or the reason why it has none."""
    found.rows.validate(full=True)
    rows = found.rows.to_pylist()
    assert list(found.index) == sorted(found.index)
    assert len(rows) == len(found.index)
    assert len(rows) + len(found.bad) == len(raw)
    what = {(row["_tarn"]["partition"], row["_tarn"]["offset"]): repr(row) for row in rows}
    assert list(what) == [(raw.partitions[i], raw.offsets[i]) for i in found.index]
    return what | {(raw.partitions[i], raw.offsets[i]): reason for i, reason in found.bad.items()}


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(data=st.data(), values=RECORDS, piece=st.integers(1, 9))
def test_a_record_gives_the_same_wherever_a_batch_is_cut_and_joined(
    data: st.DataObject, values: list[bytes | None], piece: int
) -> None:
    """Polls, parts that are decoded before the batch is closed, and the parser's own pieces."""
    places = st.lists(st.integers(0, len(values)), max_size=4).map(sorted)
    raw = polled(values, data.draw(places))
    one = decoder(FIELDS, size=100)
    alone: dict[tuple[int, int], str] = {}
    for at in range(len(raw)):
        part = raw.part(at, at + 1)
        alone |= by_place(part, one.decode(part))
    with patch("tarn.core.json_parser.TYPED_RECORDS", piece):
        assert by_place(raw, one.decode(raw)) == alone
        cuts = data.draw(places)
        parts = [raw.part(*ends) for ends in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        starts = [0, *cuts]
        apart = joined([(at, one.decode(part)) for at, part in zip(starts, parts, strict=True)])
        assert by_place(raw, apart) == alone
        again = RawBatch.joined(parts)
        assert by_place(again, one.decode(again)) == alone
