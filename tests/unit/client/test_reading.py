"""A reader's position and windows: what is read next, in bounded pieces, and nothing twice (I13)."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.core.errors import CorruptStateError, InvalidError
from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn.core.reading import (
    FileSpans,
    Place,
    Range,
    ReaderPosition,
    Seen,
    Window,
    advanced,
    check_group,
    ends_in,
    is_reader_key,
    next_window,
)
from tarn.core.table_state import TableState

TOPIC = TopicIdentity(cluster="c-1", topic="t", topic_id="id-1")
P0, P1 = ("t", 0), ("t", 1)


def file(name: str, records: int, **spans: tuple[int, int]) -> FileSpans:
    """A file with spans by partition, such as `p0=(3, 9)`."""
    return FileSpans(
        path=name, records=records, spans={("t", int(key[1:])): span for key, span in spans.items()}
    )


def at(offsets: Mapping[int, int], seen: Seen | None = None) -> ReaderPosition:
    return ReaderPosition(table="u", topics={"t": OffsetMap(source=TOPIC, next=offsets)}, seen=seen)


# -- the position ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [None, Seen(snapshot_id=2**62, sequence=17)])
def test_a_position_survives_json(seen: Seen | None) -> None:
    position = at({1: 5, 0: 3}, seen)
    assert ReaderPosition.from_json(position.to_json()) == position
    assert json.loads(position.to_json()) == {
        "v": 1,
        "table": "u",
        "seen": None if seen is None else [2**62, 17],
        "topics": [{"v": 1, "cluster": "c-1", "topic": "t", "topic-id": "id-1", "next": {"0": 3, "1": 5}}],
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"v":2,"table":"u","seen":1,"topics":[]}', '{"v":1,"table":"u","seen":[1],"topics":[]}',
     '{"v":1,"table":"u","seen":1,"topics":[{"v":1}]}'],
)  # fmt: skip
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(CorruptStateError, match="this is not the position of a reader"):
        ReaderPosition.from_json(text)


def test_it_advances_to_the_end_of_the_ranges_and_keeps_the_rest() -> None:
    ends = {"t": OffsetMap(source=TOPIC, next={0: 9, 1: 9})}
    old, new = (Seen(snapshot_id=number, sequence=number) for number in (7, 12))
    after = advanced(at({0: 3, 1: 4}, old), {P0: (3, 6)}, ends, seen=None)
    assert (after.next, after.seen) == ({P0: 6, P1: 4}, old)
    assert advanced(after, {P1: (4, 9)}, ends, seen=new).seen == new


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "9", "x" * 100])
def test_names_of_groups(name: str) -> None:
    assert check_group(name) == name


@pytest.mark.parametrize("name", ["", ".a", "a/b", "a b", "x" * 101, "ä", "a\n", "-x", "../x"])
def test_names_that_cannot_be_keys_are_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="Invalid group"):
        check_group(name)


def test_keys_of_positions_are_distinguished_from_files_of_tables() -> None:
    assert is_reader_key("warehouse/bronze/orders-1/readers/g.json")
    assert is_reader_key("warehouse/eu/sales/orders-1/readers/g.json"), "a location that was asked for"
    assert not is_reader_key("warehouse/bronze/orders-1/data/readers/g.json")
    assert not is_reader_key("warehouse/bronze/orders-1/metadata/readers/g.json")
    assert not is_reader_key("warehouse/bronze/orders-1/readers/g.parquet")
    assert not is_reader_key("warehouse/readers/g.json")


# -- windows -----------------------------------------------------------------------------------------------


def test_whole_files_are_read_as_far_as_the_limits_go() -> None:
    files = [file("a", 10, p0=(0, 9)), file("b", 10, p0=(10, 19)), file("c", 10, p0=(20, 29))]
    open_ = {P0: (0, 30)}
    assert next_window(open_, files, rows_max=25, files_max=9).ranges == {P0: (0, 20)}
    assert next_window(open_, files, rows_max=25, files_max=1).ranges == {P0: (0, 10)}
    assert next_window(open_, files, rows_max=30, files_max=9).ranges == {P0: (0, 30)}


def test_a_file_that_is_too_large_is_read_in_pieces() -> None:
    files = [file("a", 100, p0=(7, 106))]
    assert next_window({P0: (0, 200)}, files, rows_max=10, files_max=9).ranges == {P0: (0, 17)}
    assert next_window({P0: (17, 200)}, files, rows_max=10, files_max=9).ranges == {P0: (17, 27)}


def test_files_with_the_same_offsets_are_read_together() -> None:
    files = [file(name, 4, p0=(0, 11)) for name in "abc"]
    window = next_window({P0: (0, 12)}, files, rows_max=100, files_max=1)
    assert (window.ranges, len(window.files)) == ({P0: (0, 12)}, 3)


def test_offsets_without_files_are_passed_over() -> None:
    assert next_window({P0: (4, 9)}, [], rows_max=1, files_max=1) == Window(ranges={P0: (4, 9)})
    old = file("a", 4, p0=(0, 3))
    assert next_window({P0: (4, 9)}, [old], rows_max=1, files_max=1).files == ()


def test_a_partition_that_is_far_ahead_does_not_hold_up_another() -> None:
    files = [file("a", 2, p0=(1_000, 1_001)), file("b", 2, p0=(1_002, 1_002), p1=(0, 0))]
    window = next_window({P0: (1_000, 1_003), P1: (0, 1)}, files, rows_max=2, files_max=9)
    assert window.ranges == {P0: (1_000, 1_002)}
    assert [one.path for one in window.files] == ["a"]


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[Place, Range], dict[str, set[tuple[Place, int]]]]:
    """Open ranges, and files as sets of rows; each row is in one file."""
    ends = {("t", p): draw(st.integers(1, 40)) for p in range(draw(st.integers(1, 3)))}
    starts = {place: draw(st.integers(0, end)) for place, end in ends.items()}
    rows = [(place, offset) for place, end in ends.items() for offset in range(end) if draw(st.booleans())]
    files: dict[str, set[tuple[Place, int]]] = {}
    for row in rows:
        # Files of several commits that overlap, as after merges of some and in partitioned tables.
        number = row[1] // draw(st.sampled_from([3, 5, 11])) * 3 + draw(st.integers(0, 2))
        files.setdefault(f"f{number}", set()).add(row)
    return {p: (starts[p], end) for p, end in ends.items() if starts[p] < end}, files


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(tables(), st.integers(1, 12), st.integers(1, 6))
def test_windows_cover_every_row_once_and_stay_small(
    table: tuple[dict[Place, Range], dict[str, set[tuple[Place, int]]]], rows_max: int, files_max: int
) -> None:
    open_, files = table
    spans = []
    for name, rows in files.items():
        held: dict[Place, tuple[int, int]] = {}
        for place, offset in rows:
            low, high = held.get(place, (offset, offset))
            held[place] = (min(low, offset), max(high, offset))
        spans.append(FileSpans(path=name, records=len(rows), spans=held))
    wanted = {(p, o) for rows in files.values() for p, o in rows if p in open_ and o >= open_[p][0]}
    read: list[tuple[Place, int]] = []
    left = dict(open_)
    for _ in range(500):
        if not left:
            break
        window = next_window(left, spans, rows_max=rows_max, files_max=files_max)
        inside = {(p, o) for p, (a, b) in window.ranges.items() for o in range(a, b)}
        assert inside, "each window is a step"
        named = {one.path for one in window.files}
        found = [row for name in named for row in files[name] if row in inside]
        assert not [row for name in files.keys() - named for row in files[name] if row in inside]
        assert len(found) <= max(rows_max, len(open_))
        read += found
        for place, (start, end) in window.ranges.items():
            assert left[place][0] == start
            left[place] = (end, left[place][1])
        left = {place: part for place, part in left.items() if part[0] < part[1]}
    assert left == {}
    assert len(read) == len(set(read))
    assert set(read) == wanted


# -- the ends of a table -----------------------------------------------------------------------------------


def table(**streams: OffsetMap) -> TableState:
    """A table whose snapshots are commits of these streams, in order."""
    snapshots = [
        {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": number,
            "summary": {f"tarn.offsets.{name}": offsets.to_json()},
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
        }
        for number, (name, offsets) in enumerate(streams.items(), start=1)
    ]
    return TableState(
        {
            "table-uuid": "u",
            "snapshots": snapshots,
            "refs": {"main": {"snapshot-id": len(snapshots), "type": "branch"}},
            "properties": {f"tarn.offsets.{name}.since": "1" for name in streams},
        }
    )


def test_two_streams_of_one_topic_are_one_map() -> None:
    first = OffsetMap(source=TOPIC, next={0: 100, 1: 7})
    second = OffsetMap(source=TOPIC, next={0: 150, 2: 3})
    for one, other in ((first, second), (second, first)):
        found = ends_in(table(one=one, other=other), table="t")
        assert found == {"t": OffsetMap(source=TOPIC, next={0: 150, 1: 7, 2: 3})}


def test_streams_of_several_topics_are_several_maps() -> None:
    other = TopicIdentity(cluster="c-1", topic="other", topic_id="id-2")
    maps = {"a": OffsetMap(source=TOPIC, next={0: 1}), "b": OffsetMap(source=other, next={0: 2})}
    assert ends_in(table(**maps), table="t") == {"t": maps["a"], "other": maps["b"]}
    with pytest.raises(InvalidError, match="no ingestor has written table t"):
        ends_in(table(), table="t")
    again = TopicIdentity(cluster="c-1", topic="t", topic_id="id-9")
    with pytest.raises(InvalidError, match="two topics named t"):
        ends_in(table(a=maps["a"], b=OffsetMap(source=again, next={0: 2})), table="t")
    emptied = table(a=maps["a"], b=OffsetMap(source=again, next={}))
    assert ends_in(emptied, table="t") == {"t": maps["a"]}, "the table was replaced: it has no rows of it"
