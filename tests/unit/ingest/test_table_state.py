"""Table state and commits on it: ancestors, the newest map, expired snapshots, the request."""

from __future__ import annotations

from typing import Any

import pytest

from tarn.core.errors import CorruptStateError
from tarn.core.history import Retention
from tarn.core.table_state import Append, TableState, build_commit, main_at, marker_property

KEY, TAG = "tarn.offsets.s", "tarn-offsets-s"


def snapshot(number: int, parent: int | None, *, at_ms: int = 0, **summary: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "snapshot-id": number,
        "sequence-number": number,
        "timestamp-ms": at_ms or number,
        "manifest-list": f"s3://tarn/m{number}",
        "summary": {"operation": "append", **summary},
    }
    if parent is not None:
        found["parent-snapshot-id"] = parent
    return found


def table(
    *snapshots: dict[str, Any], head: int | None, refs: dict[str, Any] | None = None, **more: Any
) -> TableState:
    every = dict(refs or {})
    if head is not None:
        every["main"] = {"snapshot-id": head, "type": "branch"}
    return TableState(
        {
            "format-version": 2,
            "table-uuid": "u",
            "location": "s3://tarn/warehouse/ns/t-u/",
            "last-sequence-number": max([s["sequence-number"] for s in snapshots], default=0),
            "last-updated-ms": 0,
            "current-schema-id": 3,
            "snapshots": list(snapshots),
            "refs": every,
            "properties": {},
            **more,
        }
    )


def tag(number: int) -> dict[str, Any]:
    return {TAG: {"snapshot-id": number, "type": "tag"}}


def test_ancestors_end_where_they_begin_again():
    state = table(snapshot(1, 3), snapshot(2, 1), snapshot(3, 2), head=3)
    assert [one["snapshot-id"] for one in state.ancestors()] == [3, 2, 1]
    assert [one["snapshot-id"] for one in table(snapshot(1, 1), head=1).ancestors()] == [1]


def test_the_newest_value_among_ancestors_counts_and_foreign_commits_are_walked_over():
    state = table(
        snapshot(1, None, **{KEY: "a"}), snapshot(2, 1, **{KEY: "b"}), snapshot(3, 2), snapshot(4, 3), head=4
    )
    assert state.newest(KEY, tag=TAG) == "b"


def test_a_snapshot_beside_the_branch_does_not_count():
    state = table(
        snapshot(1, None, **{KEY: "a"}), snapshot(2, 1, **{KEY: "rolled back"}), snapshot(3, 1), head=3
    )
    assert state.newest(KEY, tag=TAG) == "a"


def test_a_table_without_the_key_has_no_value():
    assert table(head=None).newest(KEY, tag=TAG) is None
    assert table(snapshot(1, None), head=1).newest(KEY, tag=TAG) is None


def test_where_expiry_cut_the_ancestry_the_tag_speaks():
    state = table(snapshot(2, 1, **{KEY: "kept"}), snapshot(7, 6), snapshot(8, 7), head=8, refs=tag(2))
    assert state.newest(KEY, tag=TAG) == "kept"


def test_a_tag_that_is_newer_than_the_known_ancestors_does_not_speak():
    """The branch was rolled back to before it: its rows are not in the table."""
    state = table(snapshot(5, 4), snapshot(9, 5, **{KEY: "rolled back"}), head=5, refs=tag(9))
    with pytest.raises(CorruptStateError, match="tag 'tarn-offsets-s' is gone or newer"):
        state.newest(KEY, tag=TAG)


@pytest.mark.parametrize(
    ("since", "says"),
    [("2", "kept"), ("4", "kept"), ("5", None), ("9", None), ("", None), ("-1", None), ("9" * 5_000, None)],
)
def test_a_tag_whose_snapshot_repeats_a_value_speaks_from_when_it_was_stated(since: str, says: str | None):
    """Another stream's commit repeated it, and the branch was rolled back to before that."""
    repeats = snapshot(9, 8, **{KEY: "kept", "tarn.restated.s": since})
    state = table(snapshot(5, 4), repeats, head=5, refs=tag(9))
    if says is None:
        with pytest.raises(CorruptStateError, match="tag 'tarn-offsets-s' is gone or newer"):
            state.newest(KEY, tag=TAG)
    else:
        assert state.newest(KEY, tag=TAG) == says


def test_a_table_was_replaced_after_a_value_was_stated_although_another_history_repeats_it_since():
    repeats = snapshot(9, 8, **{KEY: "a", "tarn.restated.s": "2"})
    state = table(repeats, snapshot(5, None, **FULL), head=5, refs=tag(9))
    assert state.replaced_after(KEY, tag=TAG) == 5


def test_a_tag_beside_a_history_that_is_not_cut_does_not_speak():
    """The table was replaced by another client, or rolled back behind the first commit."""
    for old, new in ((1, 5), (5, 1)):
        state = table(snapshot(old, None, **{KEY: "former"}), snapshot(new, None), head=new, refs=tag(old))
        assert state.newest(KEY, tag=TAG) is None
        assert state.newest_summary(KEY, tag=TAG) is None


FULL = {"total-records": "7"}


@pytest.mark.parametrize(
    ("first", "named", "expected"),
    [
        (snapshot(5, None, **FULL), tag(1), 5),
        (snapshot(5, None), tag(1), 5),
        (snapshot(5, None, at_ms=9, **FULL), {}, 5),
        (snapshot(5, None, **{**FULL, "total-records": "0"}), tag(1), None),
        (snapshot(5, None, **FULL, **{"tarn.commit-id": "c"}), tag(1), None),
        (snapshot(5, None, **FULL, **{KEY: "map"}), tag(1), None),
        (snapshot(5, 4, **FULL), tag(1), None),
        (snapshot(5, None, **FULL), tag(9), None),
        (snapshot(5, None, at_ms=8, **FULL), {}, None),
        (snapshot(5, None, at_ms=9, **FULL), tag(9), 5),
    ],
    ids=[
        "with rows", "with unknown rows", "the tag is gone", "without rows", "of a stream", "states the key",
        "history is cut", "older than the stream", "not newer than the stream, the tag is gone",
        "the tag moved since",
    ],
)  # fmt: skip
def test_a_table_with_rows_of_another_client_first_that_are_newer_was_replaced(
    first: dict[str, Any], named: dict[str, Any], expected: int | None
) -> None:
    began = {marker_property(KEY): "8"}
    former = [snapshot(1, None, **{KEY: "a"}), snapshot(9, 1, **{KEY: "b"})]
    more = snapshot(6, 5, **FULL)
    for head in (5, 6):
        state = table(*former, first, more, head=head, refs=named, properties=began)
        assert state.replaced_after(KEY, tag=TAG) == expected
    assert table(*former, head=None, refs=named, properties=began).replaced_after(KEY, tag=TAG) is None


def test_a_replaced_table_whose_rows_were_deleted_since_has_none_of_them() -> None:
    empty = snapshot(6, 5, **{"total-records": "0"})
    state = table(
        snapshot(1, None, **{KEY: "a"}), snapshot(5, None, **FULL), empty, snapshot(7, 6, **FULL),
        head=7, refs=tag(1),
    )  # fmt: skip
    assert state.replaced_after(KEY, tag=TAG) is None


def test_a_cut_ancestry_without_tag_stops_only_a_table_that_we_wrote():
    assert table(snapshot(5, 4), head=5).newest(KEY, tag=TAG) is None
    ours = table(snapshot(5, 4), head=5, properties={marker_property(KEY): "1"})
    with pytest.raises(CorruptStateError):
        ours.newest(KEY, tag=TAG)


def test_a_head_that_is_not_there_stops():
    with pytest.raises(CorruptStateError, match="snapshot 9 is referenced and missing"):
        _ = table(snapshot(1, None), head=9).head


def append(**more: Any) -> Append:
    return Append(commit_id="c-1", summary={KEY: "map"}, tags=(TAG,), since=("since",), **more)


def test_a_commit_holds_on_its_base_only_and_moves_branch_and_tag_together():
    base = {"total-records": "10", "total-data-files": "2", "total-files-size": "100"}
    state = table(snapshot(1, None, at_ms=5_000, **base), head=1, refs=tag(1))
    request = build_commit(
        state,
        append(files=1, records=3, bytes=7, partitions=1),
        snapshot_id=77,
        manifest_list="s3://tarn/list",
        added_rows=0,
        now_ms=4_000,
        retention=Retention(),
    )
    assert list(request.requirements) == [
        {"type": "assert-table-uuid", "uuid": "u"},
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
        {"type": "assert-current-schema-id", "current-schema-id": 3},
    ]
    added, main, moved, since = request.updates
    assert added["snapshot"]["snapshot-id"] == 77
    assert added["snapshot"]["parent-snapshot-id"] == 1
    assert added["snapshot"]["sequence-number"] == 2
    assert added["snapshot"]["schema-id"] == 3
    assert added["snapshot"]["timestamp-ms"] == 5_000, "never before its parent, whatever the clock says"
    summary = added["snapshot"]["summary"]
    assert (summary["total-records"], summary["total-data-files"], summary["total-files-size"]) == (
        "13",
        "3",
        "107",
    )
    assert (summary[KEY], summary["tarn.commit-id"]) == ("map", "c-1")
    assert (main["ref-name"], main["type"], main["snapshot-id"]) == ("main", "branch", 77)
    assert (moved["ref-name"], moved["type"], moved["snapshot-id"]) == (TAG, "tag", 77)
    assert since == {"action": "set-properties", "updates": {"since": "5000"}}


def test_a_commit_says_nothing_of_the_history_of_the_branch_and_a_rollback_what_the_table_has():
    """As Spark's CREATE OR REPLACE BRANCH does. The state may be older than what the catalog has."""
    rule = {"max-snapshot-age-ms": 864_000_000, "min-snapshots-to-keep": 100, "max-ref-age-ms": 7}
    state = table(snapshot(1, None), head=1, refs=tag(1))
    state.metadata["refs"]["main"] |= rule
    request = build_commit(
        state,
        append(files=1, records=3, bytes=7),
        snapshot_id=77,
        manifest_list="s3://tarn/list",
        added_rows=0,
        now_ms=4_000,
        retention=Retention(),
    )
    at = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
    main, moved = request.updates[1:3]
    assert main == {**at, "snapshot-id": 77}
    assert moved.keys() == {"action", "ref-name", "type", "snapshot-id"}
    assert main_at(state, 1) == {**at, "snapshot-id": 1, **rule}


def test_a_commit_removes_what_the_table_says_and_keeps_what_the_tag_names():
    many = [snapshot(n, n - 1 if n > 1 else None, at_ms=n) for n in range(1, 13)]

    def removed(properties: dict[str, str]) -> list[int]:
        state = table(*many, head=12, refs=tag(4), properties=properties)
        request = build_commit(
            state,
            append(),
            snapshot_id=77,
            manifest_list="l",
            added_rows=0,
            now_ms=10**9,
            retention=Retention(newest=9, steps=(), total_min=0),
        )
        last = request.updates[-1]
        return last["snapshot-ids"] if last["action"] == "remove-snapshots" else []

    assert removed({}) == [1, 2, 3], "nine stay with the one that is about to be added, and the tagged one"
    assert removed({"tarn.history": "5"}) == [1, 2, 3, 5, 6, 7, 8]
    assert removed({"tarn.snapshots-kept": "3"}) == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert removed({"tarn.history": "all"}) == []


def test_the_first_commit_asserts_that_there_is_no_branch():
    request = build_commit(
        table(head=None),
        append(),
        snapshot_id=1,
        manifest_list="l",
        added_rows=0,
        now_ms=9,
        retention=Retention(),
    )
    assert request.requirements[1]["snapshot-id"] is None
    assert "parent-snapshot-id" not in request.updates[0]["snapshot"]


def test_format_3_says_which_row_ids_it_gave_out():
    state = table(head=None, **{"format-version": 3, "next-row-id": 40})
    request = build_commit(
        state, append(), snapshot_id=1, manifest_list="l", added_rows=5, now_ms=9, retention=Retention()
    )
    assert request.updates[0]["snapshot"]["first-row-id"] == 40
    assert request.updates[0]["snapshot"]["added-rows"] == 5
