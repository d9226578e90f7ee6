"""A batch decoded in parts while it is read is the batch decoded as a whole."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tarn.core.batch import RECORD_BYTES, BatchBuilder, RawRecords
from tarn.core.decode import Decoded, Decoder
from tarn.core.offsets import OffsetRange
from tarn.core.spec import FieldSpec
from tarn.ingest.batch_memory import Account, BatchMemory
from tarn.ingest.open_batch import DecodedBatch, OpenBatch

FIELDS = (FieldSpec(name="n", type="long", required=True), FieldSpec(name="s", type="string"))


def account() -> Account:
    return Account(BatchMemory(48 << 20))


def value(chance: random.Random, partition: int, offset: int) -> bytes | None:
    good = b'{"n":%d,"s":"%d"}' % (offset, partition)
    return chance.choice([good] * 8 + [b"junk", b'{"s":"no n"}', None, b'{"n":%d.0}' % offset])


def polls(seed: int) -> list[RawRecords]:
    """Polls of three partitions, with holes, without records, and of any length."""
    chance, at = random.Random(seed), [0, 0, 0]
    found = []
    for _ in range(30):
        p = chance.randrange(3)
        start, end = at[p], at[p] + chance.choice([1, 1, 3, 20])
        offsets = [o for o in range(start, end) if chance.random() < 0.8]
        found.append(
            RawRecords(
                partition=p,
                offsets=offsets,
                times_ms=offsets,
                keys=[None for _ in offsets],
                values=[value(random.Random(f"{seed} {p} {o}"), p, o) for o in offsets],
                start=start,
                end=end,
            )
        )
        at[p] = end
    return found


def read(polled: list[RawRecords], decode_records: int) -> DecodedBatch:
    builder = BatchBuilder(records_max=10_000, bytes_max=10_000_000, latency_s_max=1.0)
    decoder = Decoder(FIELDS, source="t", trace=True, record_bytes_max=1_000)
    batch = OpenBatch(builder, decoder, memory=account(), decode_records=decode_records, clock=lambda: 0.0)
    for one in polled:
        batch.add(one)
    return batch.close()


def rows_of(batch: DecodedBatch) -> dict[tuple[int, int], dict[str, Any]]:
    rows = batch.decoded.rows.to_pylist()
    assert len(rows) == len(batch.decoded.index)
    for row, i in zip(rows, batch.decoded.index, strict=True):
        traced = (row["_tarn"]["partition"], row["_tarn"]["offset"])
        assert traced == (batch.records.partitions[i], batch.records.offsets[i])
    return {(row["_tarn"]["partition"], row["_tarn"]["offset"]): row for row in rows}


def bad_of(batch: DecodedBatch) -> dict[tuple[int, int], str]:
    records, bad = batch.records, batch.decoded.bad
    assert list(bad) == sorted(bad)
    return {(records.partitions[i], records.offsets[i]): reason for i, reason in bad.items()}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("decode_records", [1, 7, 100])
def test_parts_are_the_whole(seed: int, decode_records: int) -> None:
    polled = polls(seed)
    whole, parts = read(polled, 1_000_000), read(polled, decode_records)
    assert rows_of(parts) == rows_of(whole)
    assert bad_of(parts) == bad_of(whole)
    assert parts.records.ranges == whole.records.ranges
    for partition in range(3):
        offsets = [
            o for p, o in zip(parts.records.partitions, parts.records.offsets, strict=True) if p == partition
        ]
        assert offsets == sorted(offsets)
    assert (
        len(rows_of(parts)) + len(bad_of(parts)) == len(parts.records) == sum(len(p.offsets) for p in polled)
    )


def test_it_decodes_while_reading_only_what_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    plain = Decoder.decode

    def counting(self: Decoder, batch: Any) -> Decoded:
        decoded.append(len(batch))
        return plain(self, batch)

    monkeypatch.setattr(Decoder, "decode", counting)
    builder = BatchBuilder(records_max=10_000, bytes_max=10_000_000, latency_s_max=1.0)
    decoder = Decoder(FIELDS, source="t", trace=True, record_bytes_max=1_000)
    batch = OpenBatch(builder, decoder, memory=account(), decode_records=3, clock=lambda: 0.0)

    def poll(start: int, end: int) -> None:
        offsets = range(start, end)
        columns = {"times_ms": offsets, "keys": [None] * len(offsets), "values": [b'{"n":1}'] * len(offsets)}
        batch.add(RawRecords(partition=0, offsets=offsets, start=start, end=end, **columns))  # type: ignore[arg-type]

    poll(0, 2)
    assert decoded == []
    poll(2, 3)
    assert decoded == [3]
    poll(3, 5)
    assert batch.close().records.ranges == (OffsetRange(partition=0, start=0, end=5),)
    assert decoded == [3, 2]


def test_short_records_count_with_what_holds_them() -> None:
    memory = account()
    builder = BatchBuilder(records_max=10_000, bytes_max=10_000_000, latency_s_max=1.0)
    decoder = Decoder(FIELDS, source="t", trace=True, record_bytes_max=1_000)
    batch = OpenBatch(builder, decoder, memory=memory, decode_records=7, clock=lambda: 0.0)
    assert batch.borrow()
    offsets = range(100)
    columns = {"times_ms": offsets, "keys": [None] * 100, "values": [b'{"n":1}'] * 100}
    batch.add(RawRecords(partition=0, offsets=offsets, start=0, end=100, **columns))  # type: ignore[arg-type]
    batch.settle()
    assert (memory.held_open, memory.record_bytes) == (100 * (7 + RECORD_BYTES), 7 + RECORD_BYTES)


def test_positions_that_moved_without_records_are_in_the_ranges() -> None:
    moved = RawRecords(partition=1, offsets=[], times_ms=[], keys=[], values=[], start=0, end=9)
    for more in ([], polls(1)[:1]):
        found = read([*more, moved] if not more or more[0].partition != 1 else [moved], 1)
        assert OffsetRange(partition=1, start=0, end=9) in found.records.ranges


@pytest.mark.parametrize("seed", range(8))
def test_the_halves_of_a_batch_are_the_batch_once_with_offsets_that_follow(seed: int) -> None:
    whole = read(polls(seed), 7)
    first, rest = whole.halves()
    assert (len(first.records), len(rest.records)) == (
        len(whole.records) // 2,
        len(whole.records) - len(whole.records) // 2,
    )
    ends = {r.partition: r.end for r in first.records.ranges}
    for r in whole.records.ranges:
        own = [one for half in (first, rest) for one in half.records.ranges if one.partition == r.partition]
        assert (own[0].start, own[-1].end) == (r.start, r.end)
        assert [one.start for one in own[1:]] == [one.end for one in own[:-1]]
        counts = [half.records.partitions.count(r.partition) for half in (first, rest)]
        assert abs(counts[0] - counts[1]) <= 1
    for half in (first, rest):
        found = {r.partition: r for r in half.records.ranges}
        for p, o in zip(half.records.partitions, half.records.offsets, strict=True):
            assert found[p].start <= o < found[p].end
            assert (o < ends.get(p, 0)) is (half is first)
        records = half.records
        assert sorted([*half.decoded.index, *half.decoded.bad]) == list(range(len(records)))
        assert half.decoded.rows["n"].to_pylist() == [records.offsets[i] for i in half.decoded.index]
    bad = [
        (h.records.partitions[i], h.records.offsets[i], why)
        for h in (first, rest)
        for i, why in h.decoded.bad.items()
    ]
    assert sorted(bad) == sorted(
        (whole.records.partitions[i], whole.records.offsets[i], why) for i, why in whole.decoded.bad.items()
    )


def test_two_records_are_one_in_each_half_and_a_range_without_records_is_in_the_first() -> None:
    def one(partition: int, offsets: list[int], end: int) -> RawRecords:
        return RawRecords(
            partition=partition,
            offsets=offsets,
            times_ms=offsets,
            keys=[None] * len(offsets),
            values=[b'{"n":1}'] * len(offsets),
            start=0,
            end=end,
        )

    first, rest = read([one(0, [2], 5), one(1, [3], 4), one(2, [], 9)], 1).halves()
    assert [(r.partition, r.start, r.end) for r in first.records.ranges] == [(0, 0, 2), (1, 0, 4), (2, 0, 9)]
    assert [(r.partition, r.start, r.end) for r in rest.records.ranges] == [(0, 2, 5)]
    assert (first.records.offsets, rest.records.offsets) == ([3], [2])
