"""Tables with snapshot retention keep a bounded size; snapshots still needed are kept all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tarn.core.errors import InvalidError
from tarn.core.history import HISTORY_PROPERTY, YOUNG_MS
from tarn.core.history import KEPT_PROPERTY as PROPERTY
from tarn_catalog.metadata import table_metadata
from tarn_catalog.metadata.expiry import DEFAULT

UUID = "e12f474e-2f6f-4e1a-9a83-8a46a0d45098"
START_MS = 1_795_000_000_000
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": True}]}
Json = dict[str, Any]


def table(**properties: str) -> Json:
    return table_metadata.new_table(
        schema=SCHEMA,
        spec=None,
        order=None,
        properties=properties,
        location=f"s3://tarn/warehouse/ns/t-{UUID}",
        table_uuid=UUID,
        now_ms=START_MS,
    )


def grown(meta: Json, first: int, last: int, *, every_ms: int, position: str = "x" * 200) -> Json:
    """The metadata after one commit per number, `every_ms` apart."""
    for number in range(first, last + 1):
        at_ms = START_MS + number * every_ms
        snapshot = {
            "snapshot-id": number,
            **({"parent-snapshot-id": number - 1} if number > 1 else {}),
            "sequence-number": number,
            "timestamp-ms": at_ms,
            "manifest-list": f"s3://tarn/snap-{number:05}.avro",
            "summary": {"operation": "append", "tarn.position": position},
            "schema-id": 0,
        }
        updates = [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
        ]
        done = table_metadata.commit(
            meta, updates, now_ms=at_ms, previous_location=f"s3://x/{number:05}-a.metadata.json"
        )
        assert done is not None
        meta = done
    return meta


def ids(meta: Json) -> list[int]:
    return [s["snapshot-id"] for s in meta["snapshots"]]


def test_the_newest_stay_and_nothing_is_removed_before_there_are_more() -> None:
    few = grown(table(**{PROPERTY: "5"}), 1, 5, every_ms=YOUNG_MS)
    assert ids(few) == [1, 2, 3, 4, 5]
    many = grown(few, 6, 30, every_ms=YOUNG_MS)
    assert ids(many) == [26, 27, 28, 29, 30]
    assert [entry["snapshot-id"] for entry in many["snapshot-log"]] == ids(many)
    assert many["current-snapshot-id"] == 30


def test_young_ones_stay_up_to_four_times_as_many() -> None:
    assert len(ids(grown(table(**{PROPERTY: "5"}), 1, 12, every_ms=1_000))) == 12
    meta = grown(table(**{PROPERTY: "5"}), 1, 60, every_ms=1_000)
    assert ids(meta) == list(range(41, 61))


@pytest.mark.long
def test_without_a_property_history_thins_and_says_all_keeps_it() -> None:
    assert len(ids(grown(table(), 1, 80, every_ms=1_000))) == 80, "few commits: all of them"
    meta = grown(table(), 1, 400, every_ms=1_000)
    found = ids(meta)
    assert found[-40:] == list(range(361, 401)), "the newest"
    spaced = found[:-40]
    assert len(found) == 80, spaced
    assert len(ids(grown(table(**{HISTORY_PROPERTY: "all"}), 1, 400, every_ms=1_000))) == 400
    assert len(ids(grown(table(**{HISTORY_PROPERTY: "10, 1m for 1h"}), 1, 400, every_ms=1_000))) == 18


def test_the_log_of_a_thinned_history_has_no_gap() -> None:
    """As Java's library keeps it: entries before an expired one cannot answer an "as of" query."""
    meta = grown(table(), 1, 400, every_ms=1_000)
    log = [entry["snapshot-id"] for entry in meta["snapshot-log"]]
    assert log == list(range(log[0], 401))
    assert len(log) >= 40
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in meta["snapshots"]}
    assert all(parent == number - 1 for number, parent in parents.items() if number > 1), "never rewritten"


@pytest.mark.long
def test_metadata_stays_below_100_kb_at_a_commit_a_second() -> None:
    """With snapshots as ingest writes them, 870 bytes each, and as many as the ladder ever keeps."""
    properties = {"write.metadata.previous-versions-max": "20"}
    meta = grown(table(**properties), 1, 1_500, every_ms=1_000, position="x" * 660)
    many, size = len(meta["snapshots"]), len(json.dumps(meta, separators=(",", ":")))
    each = len(json.dumps(meta["snapshots"], separators=(",", ":"))) / many
    assert many >= 70
    assert 860 <= each <= 880
    columns = 6_000
    assert size + (DEFAULT.count_max - many) * each + columns <= 100_000, (size, many)


def test_what_a_tag_or_a_branch_needs_stays() -> None:
    meta = grown(table(**{PROPERTY: "5"}), 1, 5, every_ms=YOUNG_MS)
    named = [
        {"action": "set-snapshot-ref", "ref-name": "nightly", "type": "tag", "snapshot-id": 2},
        {"action": "set-snapshot-ref", "ref-name": "audit", "type": "branch", "snapshot-id": 4},
    ]
    with_refs = table_metadata.commit(
        meta, named, now_ms=START_MS + 6, previous_location="s3://x/a.metadata.json"
    )
    assert with_refs is not None
    after = grown(with_refs, 6, 30, every_ms=YOUNG_MS)
    assert ids(after) == [1, 2, 3, 4, 26, 27, 28, 29, 30], "a branch needs its ancestors"
    assert {name: ref["snapshot-id"] for name, ref in after["refs"].items()} == {
        "main": 30,
        "nightly": 2,
        "audit": 4,
    }


def test_a_commit_without_a_snapshot_removes_none() -> None:
    meta = grown(table(**{HISTORY_PROPERTY: "all"}), 1, 30, every_ms=YOUNG_MS)
    update = {"action": "set-properties", "updates": {PROPERTY: "5"}}
    unset = {"action": "remove-properties", "removals": [HISTORY_PROPERTY]}
    after = table_metadata.commit(
        meta, [unset, update], now_ms=START_MS, previous_location="s3://x/a.metadata.json"
    )
    assert after is not None
    assert len(ids(after)) == 30
    assert len(ids(grown(after, 31, 31, every_ms=YOUNG_MS))) == 5


def test_metadata_is_as_large_after_a_thousand_commits_as_after_a_hundred() -> None:
    meta = grown(table(**{PROPERTY: "20"}), 1, 100, every_ms=60_000)
    early = len(json.dumps(meta))
    late = len(json.dumps(grown(meta, 101, 1_000, every_ms=60_000)))
    assert late <= early * 1.1, (early, late)


def analyzed(meta: Json, snapshot_id: int) -> Json:
    """The metadata once both kinds of statistics of a snapshot are set, as an analysis ends with that."""
    file = {
        "snapshot-id": snapshot_id,
        "statistics-path": f"{meta['location']}/metadata/{snapshot_id}.stats",
        "file-size-in-bytes": 9,
    }
    updates = [
        {
            "action": "set-statistics",
            "statistics": {**file, "file-footer-size-in-bytes": 1, "blob-metadata": []},
        },
        {"action": "set-partition-statistics", "partition-statistics": file},
    ]
    done = table_metadata.commit(
        meta, updates, now_ms=meta["last-updated-ms"], previous_location="s3://x/b.metadata.json"
    )
    assert done is not None
    return done


def with_statistics(meta: Json) -> list[list[int]]:
    return [[f["snapshot-id"] for f in meta.get(n) or []] for n in ("statistics", "partition-statistics")]


@pytest.mark.parametrize("history", ["2", "all"])
def test_statistics_of_a_snapshot_that_was_gone_before_go_with_the_next_snapshot(history: str) -> None:
    """An analysis that takes longer than its snapshot stays; or its file would be kept for good."""
    meta = grown(table(**{HISTORY_PROPERTY: "2"}), 1, 4, every_ms=YOUNG_MS)
    assert ids(meta) == [3, 4]
    meta["properties"] = {HISTORY_PROPERTY: history}
    late = analyzed(analyzed(meta, 1), 4)
    assert with_statistics(late) == [[1, 4], [1, 4]], "one version has them: the reaper finds the files by it"
    update = {"action": "set-properties", "updates": {"a": "b"}}
    other = table_metadata.commit(late, [update], now_ms=START_MS, previous_location="s3://x/c.metadata.json")
    assert other is not None
    assert with_statistics(other) == [[1, 4], [1, 4]]
    assert with_statistics(grown(other, 5, 5, every_ms=YOUNG_MS)) == [[4], [4]]


def test_statistics_that_come_with_a_snapshot_are_in_one_version_whatever_they_are_of() -> None:
    meta = grown(table(**{HISTORY_PROPERTY: "2"}), 1, 4, every_ms=YOUNG_MS)
    snapshot = {**meta["snapshots"][-1], "snapshot-id": 5, "sequence-number": 5, "parent-snapshot-id": 4}
    file = {"snapshot-id": 1, "statistics-path": f"{meta['location']}/metadata/x", "file-size-in-bytes": 9}
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 5},
        {"action": "set-partition-statistics", "partition-statistics": file},
    ]
    both = table_metadata.commit(meta, updates, now_ms=START_MS, previous_location="s3://x/b.metadata.json")
    assert both is not None
    assert with_statistics(both) == [[], [1]]
    assert with_statistics(grown(both, 6, 6, every_ms=YOUNG_MS)) == [[], []]


@pytest.mark.parametrize("value", ["0", "-1", "many", "", "1.5", "10001", "\u0665", "1" * 5_000])
def test_a_number_that_is_none_is_refused_at_once(value: str) -> None:
    with pytest.raises(InvalidError, match=r"tarn\.snapshots-kept .*: give a number from 1 to 10000"):
        table(**{PROPERTY: value})
    update = {"action": "set-properties", "updates": {PROPERTY: value}}
    with pytest.raises(InvalidError, match="give a number from 1 to 10000"):
        table_metadata.commit(table(), [update], now_ms=START_MS, previous_location="s3://x/a.metadata.json")


@pytest.mark.parametrize(
    "value", ["0", "none", "", "40 30s for 15m", "40, 30s", "40, 1h for 1m", "10001", "1" * 5_000]
)
def test_a_ladder_that_is_none_is_refused_at_once(value: str) -> None:
    with pytest.raises(InvalidError, match=r"Invalid tarn\.history .*such as '40, 30s for 15m, 1h for 1d'"):
        table(**{HISTORY_PROPERTY: value})


def test_two_rules_at_once_and_too_many_snapshots_are_refused() -> None:
    with pytest.raises(InvalidError, match="are both set"):
        table(**{HISTORY_PROPERTY: "all", PROPERTY: "5"})
    with pytest.raises(InvalidError, match="it keeps up to 86441 snapshots"):
        table(**{HISTORY_PROPERTY: "40, 1s for 1d"})
