"""Positions in the stream (I13): ranges, ancestors, and what must stop the pipeline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.core import position as everyones
from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn_jobs.pipeline import is_remade
from tarn_jobs.position import (
    Position,
    PositionError,
    Snapshot,
    descends,
    is_changed,
    is_followed,
    newest,
    next_range,
)

SOURCE = (("cluster", "c"), ("table", "s3://tarn/x"), ("topic", "flight-events"), ("topic-id", "t"))
offsets = st.dictionaries(st.integers(0, 7), st.integers(0, 10**12), max_size=8)


def _at(**next_: int) -> Position:
    return Position(source=SOURCE, next=tuple(sorted((int(p[1:]), o) for p, o in next_.items())))


def _of(next_: dict[int, int]) -> Position:
    return Position(source=SOURCE, next=tuple(sorted(next_.items())))


@given(offsets)
def test_a_position_is_read_as_it_was_written(next_: dict[int, int]) -> None:
    assert Position.from_json(_of(next_).to_json()) == _of(next_)


@given(offsets, st.integers(1, 2**63 - 1))
def test_a_position_carries_the_snapshot_that_the_rows_were_made_from(
    next_: dict[int, int], snapshot_id: int
) -> None:
    made = replace(_of(next_), made_from=snapshot_id)
    assert Position.from_json(made.to_json()) == made
    assert dict(everyones.Position.from_json(made.to_json()).next) == next_, "other readers pass over it"


@pytest.mark.long
@given(offsets)
def test_the_map_of_ingest_is_understood(next_: dict[int, int]) -> None:
    source = TopicIdentity(cluster="c", topic="flight-events", topic_id="t")
    for known in (next_, {**next_, **{10 + p: p for p in range(200)}}):
        text = OffsetMap(source=source, next=known).to_json()
        assert Position.from_offsets(text, location="s3://tarn/x") == _of(known)


@pytest.mark.parametrize("lists", ["[1]", "[[]]", '[["a",1]]', "null", '{"0":1}'])
def test_a_map_of_many_partitions_that_cannot_be_read_stops(lists: str) -> None:
    with pytest.raises(PositionError, match="offsets in a snapshot summary"):
        Position.from_offsets(f'{{"v":2,"next":{lists}}}', location="s3://tarn/x")


@pytest.mark.parametrize(
    "text",
    [
        *("", "nonsense", "[]", '{"v":2}', '{"v":1}', '{"v":1,"source":{},"next":{"a":1}}'),
        '{"v":1,"source":{},"next":{},"made-from":"last"}',
    ],
)
def test_a_position_that_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(PositionError, match="offsets in a snapshot summary"):
        Position.from_json(text)


@pytest.mark.long
@settings(max_examples=200)
@given(offsets, st.dictionaries(st.integers(0, 7), st.integers(0, 10_000)), st.integers(1, 5_000))
def test_pieces_cover_what_is_there_once_and_in_order(
    done: dict[int, int], more: dict[int, int], offsets_max: int
) -> None:
    available = {p: done.get(p, 0) + more.get(p, 0) for p in {*done, *more}}
    at: Position | None = _of(done) if done else None
    read: dict[int, int] = dict(done)
    pieces = 0
    while (piece := next_range(at, _of(available), offsets_max=offsets_max)) is not None:
        assert 0 < piece.offsets <= offsets_max + len(available)
        for partition, start, end in piece.bounds:
            assert read.get(partition, 0) == start < end <= available[partition]
            read[partition] = end
        assert dict(piece.after.next) == {p: o for p, o in read.items() if p in dict(piece.after.next)}
        at, pieces = piece.after, pieces + 1
        assert pieces <= sum(more.values())
    assert {p: o for p, o in read.items() if o} == {p: o for p, o in available.items() if o}


def test_a_partition_that_is_new_is_read_from_its_start() -> None:
    piece = next_range(_at(p0=5), _at(p0=5, p1=3), offsets_max=10)
    assert piece is not None
    assert piece.bounds == ((1, 0, 3),)
    assert piece.after == _at(p0=5, p1=3)


def test_a_piece_is_a_condition_that_bounds_can_prune() -> None:
    piece = next_range(_at(p0=5), _at(p0=9, p1=3), offsets_max=100)
    assert piece is not None
    assert piece.condition() == (
        "_tarn.source = 'flight-events' AND ("
        "(_tarn.partition = 0 AND _tarn.offset >= 5 AND _tarn.offset < 9) OR "
        "(_tarn.partition = 1 AND _tarn.offset >= 0 AND _tarn.offset < 3))"
    )


def test_the_source_in_the_condition_is_a_literal() -> None:
    piece = next_range(None, Position(source=(("topic", r"it's \n"),), next=((0, 1),)), offsets_max=100)
    assert piece is not None
    assert piece.condition().startswith(r"_tarn.source = 'it\'s \\n' AND (")
    assert replace(piece, bounds=()).condition() == "false"


def test_gold_is_made_from_all_of_silver_when_half_of_the_stream_is_new() -> None:
    done, after = _at(p0=100, p1=99), _at(p0=199, p1=200, p2=1)
    assert after.since(done) == 201
    assert after.since(None) == 400
    assert is_remade(done, after, share=0.5)
    assert not is_remade(done, after, share=0.51)
    elsewhere = Position(source=(("topic", "other"),), next=after.next)
    assert is_remade(elsewhere, after, share=2), "of another stream"


def test_offsets_that_went_back_stop() -> None:
    with pytest.raises(
        PositionError, match=r"partition 1 ends at 2, silver has read up to 3.*Drop the silver"
    ):
        next_range(_at(p0=1, p1=3), _at(p0=9, p1=2), offsets_max=10)
    with pytest.raises(PositionError, match="partition 1 ends at 0"):
        next_range(_at(p0=1, p1=3), _at(p0=9), offsets_max=10)


@pytest.mark.parametrize("name", ["cluster", "topic", "topic-id", "table"])
def test_another_source_stops(name: str) -> None:
    other = Position(source=tuple((n, "other" if n == name else v) for n, v in SOURCE), next=((0, 9),))
    with pytest.raises(PositionError, match=rf"{name} was '.*', is 'other'; drop the silver"):
        next_range(_at(p0=1), other, offsets_max=10)


@pytest.mark.long
@given(offsets, offsets)
def test_covering_is_per_partition(a: dict[int, int], b: dict[int, int]) -> None:
    assert _of(a).covers(_of(b)) == all(a.get(p, 0) >= o for p, o in b.items())


def _snapshot(
    id_: int,
    parent: int | None,
    value: str | None = None,
    *,
    current: bool = False,
    tagged: bool = False,
    delete_files: int = 0,
    operation: str | None = "append",
) -> Snapshot:
    return Snapshot(
        id=id_,
        parent=parent,
        value=value,
        current=current,
        tagged=tagged,
        at_us=id_,
        delete_files=delete_files,
        operation=operation,
    )


@pytest.mark.parametrize(
    ("after", "until", "followed"),
    [
        (1, 4, True),
        (3, 4, True),
        (4, 4, True),
        (4, 1, False),
        (5, 4, False),
        (1, 5, True),
        (1, 7, False),
        (6, 7, True),
        (1, 9, False),
        (9, 4, False),
    ],
)
def test_changes_are_followed_along_the_history(after: int, until: int, followed: bool) -> None:
    """1 to 4 in a row, 5 branched off at 2, and 6 and 7, whose common ancestor is gone."""
    parents = {1: None, 2: 1, 3: 2, 4: 3, 5: 2, 6: 8, 7: 6}
    history = [_snapshot(id_, parent) for id_, parent in parents.items()]
    assert is_followed(reversed(history), after=after, until=until) is followed


@pytest.mark.parametrize(("of", "followed"), [(1, True), (2, False), (3, False), (4, False), (5, True)])
def test_changes_are_not_followed_over_delete_files(of: int, followed: bool) -> None:
    """From 2 to 4; the manifest of those that 2 had may still be in 3."""
    history = [_snapshot(n, n - 1 or None, delete_files=1 if n == of else 0) for n in (1, 2, 3, 4, 5)]
    assert is_followed(history, after=2, until=4) is followed
    assert descends(history, after=2, until=4), "whatever delete files there are"
    assert not descends(history, after=4, until=2)


def test_the_nearest_ancestor_with_a_value_counts() -> None:
    history = [_snapshot(1, None, "a"), _snapshot(2, 1, "b"), _snapshot(3, 2), _snapshot(4, 3, current=True)]
    head, value = newest(reversed(history))
    assert head is not None
    assert (head.id, value) == (4, "b")


def test_a_snapshot_that_was_rolled_back_or_branched_off_does_not_count() -> None:
    history = [_snapshot(1, None, "a"), _snapshot(2, 1, "undone"), _snapshot(3, 1, current=True)]
    assert newest(history)[1] == "a"


def test_a_history_that_is_cut_before_a_position_stops() -> None:
    """Its rows are in the table: to read the stream from its start would double them."""
    thinned = [_snapshot(1, None, "a"), _snapshot(3, 2), _snapshot(4, 3, current=True)]
    with pytest.raises(PositionError, match=r"snapshot 4 back to 3, .*\(3 snapshots are left\)"):
        newest(thinned)
    assert newest([_snapshot(1, None, current=True)])[1] is None
    assert newest([]) == (None, None)


def test_the_tag_knows_the_position_where_the_history_is_cut() -> None:
    """Foreign commits and an expiry left the tagged snapshot, which no known ancestor leads to."""
    cut = [_snapshot(3, 2), _snapshot(4, 3, current=True)]
    head, value = newest([_snapshot(1, None, "a", tagged=True), *cut])
    assert head is not None
    assert (head.id, value) == (4, "a")
    for tagged in (_snapshot(1, None, tagged=True), _snapshot(9, 8, "rolled back", tagged=True)):
        with pytest.raises(PositionError, match="gone from the history"):
            newest([tagged, *cut])


@pytest.mark.parametrize("parents", [{1: 1}, {1: 2, 2: 1}, {1: 2, 2: 1, 3: 2}])
def test_a_history_that_forms_a_circle_ends(parents: dict[int, int]) -> None:
    """Tables that were stored before such snapshots were refused may have one."""
    last = max(parents)
    history = [_snapshot(id_, parent, current=id_ == last) for id_, parent in parents.items()]
    with pytest.raises(PositionError, match=f"snapshot {last} back to .*, which is its own ancestor"):
        newest(history)
    assert not descends(history, after=9, until=last)
    with_value = [replace(one, value="a") if one.id == 1 else one for one in history]
    assert newest(with_value)[1] == "a"
    assert descends(history, after=1, until=last)


@pytest.mark.parametrize(
    ("after", "changed"),
    [
        ([], False),
        (["replace", "replace"], False),
        (["delete"], True),
        (["overwrite", "replace"], True),
        (["append"], True),
        ([None], True),
    ],
)
def test_commits_that_change_rows_are_known_from_those_of_maintenance(
    after: list[str | None], changed: bool
) -> None:
    history = [_snapshot(1, None, "a", operation="delete"), _snapshot(2, 1, "b", operation="overwrite")]
    history += [_snapshot(n, n - 1, operation=one) for n, one in enumerate(after, start=3)]
    history[-1] = replace(history[-1], current=True)
    assert is_changed(reversed(history)) is changed


def test_a_history_without_a_position_is_looked_through_to_its_begin() -> None:
    assert not is_changed([])
    assert not is_changed([_snapshot(1, None, operation="replace", current=True)])
    circle = [_snapshot(1, 2, operation="replace"), _snapshot(2, 1, operation="replace", current=True)]
    assert not is_changed(circle)
