"""Every table update and requirement of the REST specification, on parsed JSON."""

from __future__ import annotations

import copy
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataUtil

from tarn.core.errors import ConflictError, InvalidError, TarnError
from tarn_catalog.metadata import schemas, table_metadata, types
from tarn_catalog.metadata import updates as table_updates

UUID = "e12f474e-2f6f-4e1a-9a83-8a46a0d45098"
NOW_MS = 1_795_000_000_000
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "at", "type": "timestamp", "required": False},
    ],
}
Json = dict[str, Any]


def table(version: int = 2, **more: Any) -> Json:
    arguments = {"schema": SCHEMA, "spec": None, "order": None, "properties": {}, **more}
    properties = {"format-version": str(version), **arguments.pop("properties")}
    return table_metadata.new_table(
        **arguments,
        properties=properties,
        location=f"s3://tarn/warehouse/ns/t-{UUID}",
        table_uuid=UUID,
        now_ms=NOW_MS,
    )


def commit(meta: Json, *updates: Json, now_ms: int = NOW_MS + 5) -> Json:
    """The metadata after the commit; the base is not modified, and pyiceberg can read the result."""
    before = copy.deepcopy(meta)
    done = table_metadata.commit(
        meta, list(updates), now_ms=now_ms, previous_location="s3://x/00001-a.metadata.json"
    )
    assert meta == before, "the base is never changed in place"
    assert done is not None, "something must change"
    if done["format-version"] < 3:
        TableMetadataUtil.parse_obj(done)
    return done


def snapshot(number: int, parent: int | None = None, **more: Any) -> Json:
    return {
        "action": "add-snapshot",
        "snapshot": {
            "snapshot-id": number,
            **({"parent-snapshot-id": parent} if parent else {}),
            "sequence-number": number,
            "timestamp-ms": NOW_MS + number * 10,
            "manifest-list": f"s3://tarn/snap-{number}.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
            **more,
        },
    }


def move(number: int, name: str = "main", kind: str = "branch", **more: Any) -> Json:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": number, **more}


def with_snapshots(count: int, version: int = 2) -> Json:
    meta = table(version)
    for number in range(1, count + 1):
        meta = commit(meta, snapshot(number, number - 1 or None), move(number))
    return meta


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_new_table_is_whole(version: int) -> None:
    meta = table(version, properties={"a": "b", "snapshot-count": "9"})
    assert meta["format-version"] == version
    assert meta["properties"] == {"write.parquet.compression-codec": "zstd", "a": "b"}
    assert (meta["last-column-id"], meta["last-partition-id"]) == (2, 999)
    assert meta["current-snapshot-id"] == (None if version == 3 else -1)
    assert ("next-row-id" in meta) == (version == 3)
    assert ("schema" in meta, "last-sequence-number" in meta) == (version == 1, version > 1)
    parsed = TableMetadataUtil.parse_obj(meta)
    assert parsed.location == meta["location"]
    assert parsed.current_schema_id == 0


@pytest.mark.parametrize("version", ["0", "4", "x", ""])
def test_unknown_format_versions_are_refused(version: str) -> None:
    with pytest.raises(InvalidError, match="Unsupported format version"):
        table(properties={"format-version": version})


@pytest.mark.parametrize(
    "kind", ["variant", "timestamp_ns", "timestamptz_ns", "unknown", "geometry", "geography(x)"]
)
def test_types_of_v3_need_v3(kind: str) -> None:
    schema = {"type": "struct", "fields": [{"id": 1, "name": "v", "type": kind, "required": False}]}
    assert table(3, schema=schema)["schemas"][0]["fields"][0]["type"] == kind
    with pytest.raises(InvalidError, match="is not supported until v3"):
        table(2, schema=schema)
    schema["fields"][0] |= {"type": "int", "initial-default": 7}
    with pytest.raises(InvalidError, match=r"non-null default \(7\) is not supported until v3"):
        table(2, schema=schema)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([{"id": 1, "name": "a", "type": "money", "required": True}], "unknown type 'money'"),
        ([{"id": 1, "type": "int", "required": False}], "has no name"),
        ([{"name": "a", "type": "int", "required": False}], "has no id or no type"),
        (
            [
                {"id": 1, "name": "a", "type": "int", "required": False},
                {"id": 2, "name": "a", "type": "int", "required": False},
            ],
            "multiple fields",
        ),
        (
            [{"id": 1, "name": "a", "type": {"type": "list", "element": "int"}, "required": True}],
            "a.element has no id",
        ),
        ([{"id": 1, "name": "a", "type": {"type": "bag"}, "required": True}], "unknown type 'bag'"),
        ([{"id": 1, "name": "a", "type": 7, "required": True}], "neither a name nor an object"),
        ([{"id": 1, "name": "a", "type": "int"}], "required of a is no bool"),
        ([{"id": True, "name": "a", "type": "int", "required": True}], "has no id"),
        ("x", "no struct"),
    ],
)
def test_bad_schemas_are_refused_by_field(fields: Any, said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        table(schema={"type": "struct", "fields": fields})


def test_a_schema_nested_without_end_is_refused() -> None:
    kind: Any = "int"
    for number in range(200):
        kind = {"type": "struct", "fields": [{"id": number, "name": "a", "type": kind, "required": False}]}
    with pytest.raises(InvalidError, match="nested deeper"):
        table(
            schema={"type": "struct", "fields": [{"id": 999, "name": "a", "type": kind, "required": False}]}
        )


def test_specs_and_orders_are_bound_to_the_fresh_ids() -> None:
    schema = {"type": "struct", "fields": [{**field, "id": field["id"] + 100} for field in SCHEMA["fields"]]}
    spec = {"spec-id": 7, "fields": [{"source-id": 102, "field-id": 5, "name": "day", "transform": "day"}]}
    field = {"source-id": 101, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    meta = table(schema=schema, spec=spec, order={"order-id": 3, "fields": [field]})
    assert meta["partition-specs"] == [
        {"spec-id": 0, "fields": [{"source-id": 2, "field-id": 1000, "name": "day", "transform": "day"}]}
    ]
    assert meta["sort-orders"] == [{"order-id": 1, "fields": [{**field, "source-id": 1}]}]
    assert (meta["last-partition-id"], meta["default-sort-order-id"]) == (1000, 1)
    for bad, said in (
        ({"source-id": 9, "name": "d", "transform": "day"}, "Cannot find source column"),
        ({"source-id": 102, "name": "id", "transform": "day"}, "name that exists in schema: id"),
        ({"source-id": 102, "name": "d", "transform": "decade"}, "unknown transform"),
        ({"source-id": 102, "name": "", "transform": "day"}, "empty or null"),
    ):
        with pytest.raises(InvalidError, match=said):
            table(schema=schema, spec={"fields": [bad]})


def test_snapshots_refs_and_logs() -> None:
    meta = with_snapshots(3)
    assert [s["snapshot-id"] for s in meta["snapshots"]] == [1, 2, 3]
    assert (meta["current-snapshot-id"], meta["last-sequence-number"]) == (3, 3)
    assert meta["last-updated-ms"] == NOW_MS + 30
    assert [e["snapshot-id"] for e in meta["snapshot-log"]] == [1, 2, 3]
    assert len(meta["metadata-log"]) == 3
    assert meta["refs"] == {"main": {"snapshot-id": 3, "type": "branch"}}
    tagged = commit(meta, move(2, "v1", "tag", **{"max-ref-age-ms": 5}))
    assert tagged["refs"]["v1"] == {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 5}
    assert tagged["snapshot-log"] == meta["snapshot-log"]
    back = commit(meta, move(1), now_ms=NOW_MS + 99)
    assert back["current-snapshot-id"] == 1
    assert back["snapshot-log"][-1] == {"timestamp-ms": NOW_MS + 99, "snapshot-id": 1}
    gone = commit(meta, {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert (gone["current-snapshot-id"], gone["refs"]) == (-1, {})
    assert gone["snapshot-log"] == meta["snapshot-log"], "a table that is replaced keeps its history"


def test_logs_never_go_back_in_time_whatever_the_clocks_say() -> None:
    """Java rejects metadata whose logs are more than a minute out of order."""
    meta = commit(table(), snapshot(1, **{"timestamp-ms": NOW_MS + 3_600_000}), move(1))
    meta = commit(meta, snapshot(2, 1, **{"timestamp-ms": NOW_MS - 3_600_000}), move(2), now_ms=NOW_MS)
    meta = commit(meta, {"action": "set-properties", "updates": {"a": "b"}}, now_ms=NOW_MS - 7_200_000)
    for log in (meta["snapshot-log"], meta["metadata-log"]):
        times = [entry["timestamp-ms"] for entry in log]
        assert times == sorted(times)
        assert meta["last-updated-ms"] >= times[-1]


def test_snapshots_that_only_passed_leave_the_log() -> None:
    meta = commit(with_snapshots(1), snapshot(2, 1), move(2), snapshot(3, 2), move(3))
    assert [e["snapshot-id"] for e in meta["snapshot-log"]] == [1, 3]


def test_snapshots_are_removed_with_their_statistics_and_history() -> None:
    meta = with_snapshots(4)
    file = {
        "snapshot-id": 2,
        "statistics-path": "s3://x",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
    }
    part = {"snapshot-id": 2, "statistics-path": "s3://y", "file-size-in-bytes": 1}
    meta = commit(
        meta,
        {"action": "set-statistics", "snapshot-id": 2, "statistics": {**file, "blob-metadata": []}},
        {"action": "set-partition-statistics", "partition-statistics": part},
    )
    assert (len(meta["statistics"]), len(meta["partition-statistics"])) == (1, 1)
    replaced = commit(
        meta,
        {"action": "set-partition-statistics", "partition-statistics": {**part, "file-size-in-bytes": 2}},
    )
    assert [p["file-size-in-bytes"] for p in replaced["partition-statistics"]] == [2]
    without = commit(
        meta,
        {"action": "remove-statistics", "snapshot-id": 2},
        {"action": "remove-partition-statistics", "snapshot-id": 2},
    )
    assert (without["statistics"], without["partition-statistics"]) == ([], [])
    less = commit(meta, {"action": "remove-snapshots", "snapshot-ids": [1, 2, 77]})
    assert [s["snapshot-id"] for s in less["snapshots"]] == [3, 4]
    assert [e["snapshot-id"] for e in less["snapshot-log"]] == [3, 4]
    assert (less["statistics"], less["partition-statistics"]) == ([], [])
    holes = commit(meta, {"action": "remove-snapshots", "snapshot-ids": [3]})
    assert [e["snapshot-id"] for e in holes["snapshot-log"]] == [4], "history before a hole is gone"


def test_a_snapshot_that_a_ref_names_stays() -> None:
    meta = commit(with_snapshots(3), move(2, "v1", "tag"))
    for number, name in ((2, "tag v1"), (3, "branch main")):
        with pytest.raises(ConflictError, match=f"{name} points at it"):
            commit(meta, {"action": "remove-snapshots", "snapshot-ids": [number]})
    remove = {"action": "remove-snapshots", "snapshot-ids": [2]}
    untag = {"action": "remove-snapshot-ref", "ref-name": "v1"}
    for updates in ((remove, untag), (untag, remove)):
        assert [s["snapshot-id"] for s in commit(meta, *updates)["snapshots"]] == [1, 3]


def test_row_lineage_of_v3() -> None:
    meta = table(3)
    first = snapshot(1, **{"first-row-id": 0, "added-rows": 10})
    meta = commit(meta, first, move(1))
    assert meta["next-row-id"] == 10
    assert meta["current-snapshot-id"] == 1
    meta = commit(meta, snapshot(2, 1, **{"first-row-id": 10, "added-rows": 0}), move(2))
    assert meta["next-row-id"] == 10
    with pytest.raises(ConflictError, match="behind table next-row-id: 9 < 10"):
        commit(meta, snapshot(3, 2, **{"first-row-id": 9, "added-rows": 1}))
    for name in ("first-row-id", "added-rows"):
        whole = {"first-row-id": 10, "added-rows": 1, name: None}
        with pytest.raises(InvalidError, match=f"{name} is null"):
            commit(meta, snapshot(3, 2, **whole))
    key = {"key-id": "k", "encrypted-key-metadata": "AA=="}
    meta = commit(meta, {"action": "add-encryption-key", "encryption-key": key})
    assert meta["encryption-keys"] == [key]
    assert commit(meta, {"action": "remove-encryption-key", "key-id": "k"})["encryption-keys"] == []
    with pytest.raises(InvalidError, match="needs v3"):
        commit(table(2), {"action": "add-encryption-key", "encryption-key": key})


def test_format_versions_go_up_only() -> None:
    meta = commit(table(1), {"action": "upgrade-format-version", "format-version": 2})
    assert (meta["format-version"], meta["last-sequence-number"]) == (2, 0)
    assert "schema" not in meta
    assert "partition-spec" not in meta
    meta = commit(meta, {"action": "upgrade-format-version", "format-version": 3})
    assert (meta["next-row-id"], meta["current-snapshot-id"]) == (0, None)
    with pytest.raises(InvalidError, match="Cannot downgrade v3 table to v2"):
        commit(meta, {"action": "upgrade-format-version", "format-version": 2})
    with pytest.raises(InvalidError, match="unsupported format version: v4"):
        commit(meta, {"action": "upgrade-format-version", "format-version": 4})


def wider() -> Json:
    return {**SCHEMA, "fields": [*SCHEMA["fields"], {"id": 3, "name": "n", "type": "int", "required": False}]}


def test_schemas_are_added_reused_chosen_and_removed() -> None:
    meta = commit(
        table(),
        {"action": "add-schema", "schema": wider()},
        {"action": "set-current-schema", "schema-id": -1},
    )
    assert ([s["schema-id"] for s in meta["schemas"]], meta["current-schema-id"], meta["last-column-id"]) == (
        [0, 1],
        1,
        3,
    )
    again = commit(
        meta, {"action": "add-schema", "schema": SCHEMA}, {"action": "set-current-schema", "schema-id": -1}
    )
    assert (len(again["schemas"]), again["current-schema-id"], again["last-column-id"]) == (2, 0, 3)
    assert [
        s["schema-id"] for s in commit(meta, {"action": "remove-schemas", "schema-ids": [0]})["schemas"]
    ] == [1]
    with pytest.raises(InvalidError, match="Cannot remove the current schema"):
        commit(meta, {"action": "remove-schemas", "schema-ids": [1]})
    with pytest.raises(InvalidError, match="unknown schema: 9"):
        commit(meta, {"action": "set-current-schema", "schema-id": 9})
    with pytest.raises(InvalidError, match="no schema has been added"):
        commit(meta, {"action": "set-current-schema", "schema-id": -1})


def test_specs_are_added_reused_chosen_and_removed() -> None:
    add = {"action": "add-spec", "spec": {"fields": [{"source-id": 2, "name": "day", "transform": "day"}]}}
    use = {"action": "set-default-spec", "spec-id": -1}
    meta = commit(table(), add, use)
    assert meta["partition-specs"][1] == {
        "spec-id": 1,
        "fields": [{"source-id": 2, "field-id": 1000, "name": "day", "transform": "day"}],
    }
    assert (meta["default-spec-id"], meta["last-partition-id"]) == (1, 1000)
    same = {"action": "add-spec", "spec": meta["partition-specs"][1]}
    assert table_metadata.commit(meta, [same, use], now_ms=NOW_MS, previous_location="x") is None
    none = commit(meta, {"action": "add-spec", "spec": {"fields": []}}, use)
    assert (none["default-spec-id"], len(none["partition-specs"])) == (0, 2)
    assert len(commit(none, {"action": "remove-partition-specs", "spec-ids": [1]})["partition-specs"]) == 1
    with pytest.raises(InvalidError, match="Cannot remove the default partition spec"):
        commit(meta, {"action": "remove-partition-specs", "spec-ids": [1]})
    dropped = {"type": "struct", "fields": [SCHEMA["fields"][0]]}
    with pytest.raises(InvalidError, match="Cannot find source column for partition field: day"):
        commit(
            meta,
            {"action": "add-schema", "schema": dropped},
            {"action": "set-current-schema", "schema-id": -1},
        )
    bad = {"source-id": 2, "field-id": 1007, "name": "day", "transform": "day"}
    with pytest.raises(InvalidError, match="sequential IDs"):
        commit(table(1), {"action": "add-spec", "spec": {"fields": [bad]}}, use)


def test_sort_orders_are_added_reused_and_chosen() -> None:
    field = {"source-id": 2, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}
    add = {"action": "add-sort-order", "sort-order": {"order-id": 9, "fields": [field]}}
    use = {"action": "set-default-sort-order", "sort-order-id": -1}
    meta = commit(table(), add, use)
    assert (meta["sort-orders"][1], meta["default-sort-order-id"]) == ({"order-id": 1, "fields": [field]}, 1)
    unsorted = commit(meta, {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}}, use)
    assert (len(unsorted["sort-orders"]), unsorted["default-sort-order-id"]) == (2, 0)
    for bad in ({**field, "direction": "up"}, {**field, "source-id": 9}, {**field, "transform": "x"}):
        with pytest.raises(InvalidError):
            commit(meta, {"action": "add-sort-order", "sort-order": {"fields": [bad]}})


def test_properties_location_and_uuid() -> None:
    meta = commit(table(), {"action": "set-properties", "updates": {"a": "1", "b": "2"}})
    assert (
        commit(meta, {"action": "remove-properties", "removals": ["a", "nope"]})["properties"].get("a")
        is None
    )
    assert meta["last-updated-ms"] == NOW_MS + 5
    for nothing in (
        {"action": "set-properties", "updates": {"a": "1"}},
        {"action": "remove-properties", "removals": ["nope"]},
        {"action": "assign-uuid", "uuid": UUID.upper()},
        {"action": "set-location", "location": meta["location"] + "/"},
        {"action": "remove-snapshot-ref", "ref-name": "nope"},
        {"action": "remove-snapshots", "snapshot-ids": [7]},
        {"action": "remove-statistics", "snapshot-id": 7},
        {"action": "upgrade-format-version", "format-version": 2},
    ):
        assert table_metadata.commit(meta, [nothing], now_ms=NOW_MS, previous_location="x") is None, nothing
    with pytest.raises(InvalidError, match="Cannot reassign uuid"):
        commit(meta, {"action": "assign-uuid", "uuid": "11111111-2222-4333-8444-555555555555"})


@pytest.mark.parametrize(
    ("update", "said"),
    [
        ({"action": "fly"}, "unknown update"),
        ({}, "unknown update"),
        ({"action": "set-properties", "updates": {"a": 1}}, "names to strings"),
        ({"action": "set-current-schema", "schema-id": "0"}, "schema-id is missing or no"),
        ({"action": "set-current-schema", "schema-id": True}, "schema-id is missing or no"),
        ({"action": "add-snapshot"}, "snapshot is missing"),
        ({"action": "add-snapshot", "snapshot": {}}, "snapshot-id is missing"),
        (snapshot(2, 1), "Snapshot already exists for id: 2"),
        (move(99), "Cannot set main to unknown snapshot: 99"),
        (move(1, kind="tag"), "it must be a branch"),
        (move(1, "x", "twig"), "Invalid snapshot ref type: twig"),
        (move(1, "x", "tag", **{"min-snapshots-to-keep": 1}), "Tags do not support"),
        (move(1, "x", **{"max-snapshot-age-ms": 0}), "greater than 0"),
        ({"action": "assign-uuid", "uuid": "x"}, "no UUID"),
    ],
)
def test_updates_that_cannot_be_applied(update: Json, said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        commit(with_snapshots(2), update)


def test_a_sequence_number_from_the_past_is_a_conflict() -> None:
    meta = with_snapshots(3)
    with pytest.raises(ConflictError, match="sequence number 3 older than last sequence number 3"):
        commit(meta, snapshot(9, 2, **{"sequence-number": 3}))
    assert commit(meta, snapshot(9, None, **{"sequence-number": 1}))["last-sequence-number"] == 3
    one = commit(table(1), snapshot(5, 4, **{"sequence-number": 0}))
    assert one["snapshots"][0]["snapshot-id"] == 5


@pytest.mark.parametrize(
    "circle",
    [
        [snapshot(3, 3)],
        [snapshot(3, 4), snapshot(4, 3)],
        [snapshot(3, 5), snapshot(4, 3), snapshot(5, 4)],
    ],
    ids=["its own parent", "two", "three"],
)
@pytest.mark.parametrize("branch", ["main", "other"])
def test_a_snapshot_that_would_be_its_own_ancestor_is_refused(circle: list[Json], branch: str) -> None:
    """Whoever follows the parents would never come to an end: the next commit of a branch, and readers."""
    meta = commit(with_snapshots(2), {"action": "set-properties", "updates": {"tarn.snapshots-kept": "1"}})
    with pytest.raises(InvalidError, match=r"Cannot add snapshot \d: .* would be its own ancestor"):
        commit(meta, *circle, move(3, branch))


def test_a_parent_that_is_gone_or_comes_later_is_no_circle() -> None:
    meta = commit(with_snapshots(2), snapshot(4, 3), snapshot(5, 4), move(5, "other"))
    assert len(commit(meta, snapshot(6, 9), snapshot(3, 2, **{"sequence-number": 7}))["snapshots"]) == 6


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_id_that_stands_for_no_snapshot_is_refused(version: int) -> None:
    with pytest.raises(InvalidError, match="snapshot-id is -1, which stands for no snapshot"):
        commit(table(version), snapshot(-1, **{"first-row-id": 0, "added-rows": 0}), move(-1))


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ({"type": "assert-create"}, "table already exists"),
        (
            {"type": "assert-table-uuid", "uuid": "11111111-2222-4333-8444-555555555555"},
            f"UUID does not match: expected {UUID} != 11111111-2222-4333-8444-555555555555",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1},
            "branch main has changed: expected id 1 != 2",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
            "branch main was created concurrently",
        ),
        (
            {"type": "assert-ref-snapshot-id", "ref": "x", "snapshot-id": 1},
            "branch or tag x is missing, expected 1",
        ),
        (
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 9},
            "last assigned field id changed: expected id 9 != 2",
        ),
        (
            {"type": "assert-current-schema-id", "current-schema-id": 9},
            "current schema changed: expected id 9 != 0",
        ),
        (
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 9},
            "last assigned partition id changed: expected id 9 != 999",
        ),
        (
            {"type": "assert-default-spec-id", "default-spec-id": 9},
            "default partition spec changed: expected id 9 != 0",
        ),
        (
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 9},
            "default sort order changed: expected id 9 != 0",
        ),
    ],
)
def test_requirements_that_do_not_hold(requirement: Json, said: str) -> None:
    with pytest.raises(ConflictError, match="Requirement failed: ") as caught:
        table_metadata.check_requirements([requirement], with_snapshots(2))
    assert caught.value.message == f"Requirement failed: {said}"
    if requirement["type"] != "assert-create":
        with pytest.raises(ConflictError, match="current table metadata is missing"):
            table_metadata.check_requirements([requirement], None)


def test_requirements_that_hold() -> None:
    table_metadata.check_requirements([{"type": "assert-create"}], None)
    table_metadata.check_requirements(
        [
            {"type": "assert-table-uuid", "uuid": UUID},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2},
            {"type": "assert-ref-snapshot-id", "ref": "new", "snapshot-id": None},
            {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2},
            {"type": "assert-current-schema-id", "current-schema-id": 0},
            {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
            {"type": "assert-default-spec-id", "default-spec-id": 0},
            {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
        ],
        with_snapshots(2),
    )
    for bad in ({"type": "assert-luck"}, {"type": "assert-current-schema-id"}):
        with pytest.raises(InvalidError):
            table_metadata.check_requirements([bad], with_snapshots(1))


def test_already_applied_knows_equal_content_and_rebased_ancestors_only() -> None:
    meta = with_snapshots(3)
    assert table_metadata.already_applied([snapshot(2, 1), move(2)], meta)
    assert table_metadata.already_applied([snapshot(2, 3), move(2)], meta), "rebased, but an ancestor of main"
    assert not table_metadata.already_applied([snapshot(2, 3), move(2, "other")], meta)
    assert not table_metadata.already_applied([snapshot(4, 3), move(4)], meta)
    assert not table_metadata.already_applied([snapshot(2, 1), snapshot(4, 3)], meta)
    assert not table_metadata.already_applied([move(2)], meta)
    assert not table_metadata.already_applied([{"action": "add-snapshot"}], meta)


LATE_MS = NOW_MS + table_metadata.CLOCKS_DIFFER_MS + 1_000


@pytest.mark.parametrize("field", ["snapshot-id", "ref-name"])
@pytest.mark.parametrize("value", [{}, [], None])
def test_a_malformed_ref_beside_a_snapshot_that_is_there_is_refused_in_words(field: str, value: Any) -> None:
    meta = with_snapshots(2)
    for added in (snapshot(2, 1), snapshot(2, None)):
        wanted = [added, {**move(2), field: value}]
        assert not table_metadata.already_applied(wanted, meta)
        with pytest.raises(InvalidError):
            commit(meta, *wanted)
    with pytest.raises(InvalidError, match=f"field {field} is missing or no"):
        commit(meta, wanted[1])


def test_a_staged_snapshot_is_not_taken_for_a_current_one() -> None:
    first = commit(table(), snapshot(1))
    assert not table_metadata.already_applied([snapshot(1), move(1)], first), "nothing was ever current"
    assert table_metadata.already_applied([snapshot(1)], first), "as it was staged"
    assert table_metadata.already_applied([snapshot(1), move(1, "audit")], first), "branches have no history"
    with pytest.raises(InvalidError, match="Snapshot already exists for id: 1; to publish it, send set-"):
        commit(first, snapshot(1), move(1))
    staged = snapshot(4, 3, **{"timestamp-ms": LATE_MS})
    meta = commit(with_snapshots(3), staged)
    assert not table_metadata.already_applied([staged, move(4)], meta)
    assert table_metadata.already_applied([staged, move(4)], commit(meta, move(4)))
    assert table_metadata.already_applied([staged], meta)


def test_what_was_current_before_a_rollback_or_what_the_log_no_longer_tells_counts_as_done() -> None:
    last = snapshot(4, 3, **{"timestamp-ms": LATE_MS})
    whole = commit(with_snapshots(3), last, move(4))
    back = commit(whole, move(1))
    assert table_metadata.already_applied([last, move(4)], back), "rolled back"
    gone = commit(back, {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert table_metadata.already_applied([last, move(4)], gone), "without a current snapshot"
    cut = commit(commit(whole, move(2)), {"action": "remove-snapshots", "snapshot-ids": [3]})
    assert [entry["snapshot-id"] for entry in cut["snapshot-log"]] == [4, 2]
    assert table_metadata.already_applied([last, move(4)], cut)
    shorter = {**cut, "snapshot-log": cut["snapshot-log"][1:]}
    shorter["snapshot-log"][0] = {"snapshot-id": 2, "timestamp-ms": LATE_MS}
    assert table_metadata.already_applied([last, move(4)], shorter), "its entry may have been cut off"
    for log in ([], None):
        assert table_metadata.already_applied([last, move(4)], {**back, "snapshot-log": log}), (
            "no log, no proof"
        )
    emptied = {**commit(table(), snapshot(3)), "snapshot-log": []}
    assert table_metadata.already_applied([snapshot(3), move(3)], emptied), "others were removed since"


@pytest.mark.long
@settings(deadline=None)
@given(st.data())
def test_any_course_of_commits_keeps_the_metadata_whole(data: st.DataObject) -> None:
    """A simple model of snapshots, refs and properties against the real code; every step stays readable."""
    meta, live, refs, next_id = table(), [], {}, 1
    properties = dict(meta["properties"])
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["append", "tag", "untag", "expire", "set", "unset", "rollback"]))
        if step == "append":
            updates = [snapshot(next_id, refs.get("main")), move(next_id)]
            live, refs, next_id = [*live, next_id], {**refs, "main": next_id}, next_id + 1
        elif step in ("tag", "rollback") and live:
            target = data.draw(st.sampled_from(live))
            name = "main" if step == "rollback" else data.draw(st.sampled_from(["a", "b"]))
            updates, refs = (
                [move(target, name, "branch" if name == "main" else "tag")],
                {**refs, name: target},
            )
        elif step == "untag":
            name = data.draw(st.sampled_from(["a", "b"]))
            updates = [{"action": "remove-snapshot-ref", "ref-name": name}]
            refs = {key: value for key, value in refs.items() if key != name}
        elif step == "expire" and live:
            gone = set(data.draw(st.lists(st.sampled_from(live), max_size=4)))
            updates = [{"action": "remove-snapshots", "snapshot-ids": sorted(gone)}]
            if gone & set(refs.values()):
                with pytest.raises(ConflictError):
                    table_metadata.commit(meta, updates, now_ms=NOW_MS, previous_location="p")
                continue
            live = [number for number in live if number not in gone]
        elif step == "set":
            name, value = data.draw(st.sampled_from("pq")), data.draw(st.sampled_from("xy"))
            updates, properties = (
                [{"action": "set-properties", "updates": {name: value}}],
                {**properties, name: value},
            )
        else:
            updates = [{"action": "remove-properties", "removals": ["p"]}]
            properties = {key: value for key, value in properties.items() if key != "p"}
        now_ms = NOW_MS + data.draw(st.integers(-100_000, 100_000))
        meta = table_metadata.commit(meta, updates, now_ms=now_ms, previous_location="s3://x/p.json") or meta
        assert [s["snapshot-id"] for s in meta["snapshots"]] == live
        assert {name: ref["snapshot-id"] for name, ref in meta["refs"].items()} == refs
        assert meta["properties"] == properties
        assert meta["current-snapshot-id"] == refs.get("main", -1)
        log = meta["snapshot-log"]
        assert not log or log[-1]["snapshot-id"] == meta["current-snapshot-id"]
        assert {entry["snapshot-id"] for entry in log} <= set(live)
        assert [e["timestamp-ms"] for e in log] == sorted(e["timestamp-ms"] for e in log)
        TableMetadataUtil.parse_obj(meta)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in paths(item, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = copy.copy(value)
    if new is ... and len(path) == 1:
        del changed[path[0]]
    else:
        changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


FILE = {"snapshot-id": 1, "statistics-path": "s3://x", "file-size-in-bytes": 1}
VALID: list[list[Json]] = [
    [snapshot(9, 2), move(9, "b", **{"max-ref-age-ms": 5})],
    [{"action": "add-schema", "schema": wider()}, {"action": "set-current-schema", "schema-id": -1}],
    [
        {"action": "add-spec", "spec": {"fields": [{"source-id": 2, "name": "day", "transform": "day"}]}},
        {"action": "set-default-spec", "spec-id": -1},
    ],
    [
        {
            "action": "add-sort-order",
            "sort-order": {
                "order-id": 1,
                "fields": [
                    {"source-id": 2, "transform": "identity", "direction": "asc", "null-order": "nulls-last"}
                ],
            },
        },
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ],
    [{"action": "set-properties", "updates": {"a": "b"}}, {"action": "remove-properties", "removals": ["a"]}],
    [
        {"action": "remove-snapshots", "snapshot-ids": [1]},
        {"action": "remove-snapshot-ref", "ref-name": "main"},
    ],
    [
        {
            "action": "set-statistics",
            "statistics": {**FILE, "file-footer-size-in-bytes": 1, "blob-metadata": []},
        },
        {"action": "set-partition-statistics", "partition-statistics": FILE},
        {"action": "remove-statistics", "snapshot-id": 1},
    ],
    [{"action": "remove-partition-specs", "spec-ids": [5]}, {"action": "remove-schemas", "schema-ids": [5]}],
    [{"action": "upgrade-format-version", "format-version": 2}, {"action": "assign-uuid", "uuid": UUID}],
]
ODD = st.sampled_from(
    [None, True, -1, 0, 7, 2**70, 1.5, "", "x", [], [1], ["x"], {}, {"a": 1}, [[]], [{}], ...]
)


@pytest.mark.long
@settings(max_examples=600, deadline=None)
@given(st.data())
def test_malformed_updates_are_refused_or_leave_what_readers_understand(data: st.DataObject) -> None:
    updates = data.draw(st.sampled_from(VALID))
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from([path for path in paths(updates) if path]))
        updates = replaced(updates, path, data.draw(ODD))
    if not all(isinstance(update, dict) for update in updates):
        return
    try:
        done = table_metadata.commit(
            with_snapshots(2), updates, now_ms=NOW_MS, previous_location="s3://x/p.json"
        )
    except TarnError:
        return
    if done is None:
        return
    read = TableMetadataUtil.parse_obj(done)
    assert str(read.table_uuid) == done["table-uuid"]
    assert [s.snapshot_id for s in read.snapshots] == [s["snapshot-id"] for s in done["snapshots"]]
    assert {n: r.snapshot_id for n, r in read.refs.items()} == {
        n: r["snapshot-id"] for n, r in done["refs"].items()
    }
    assert read.schema().schema_id == done["current-schema-id"]
    assert read.properties == done["properties"]


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_malformed_new_tables_are_refused_or_leave_what_readers_understand(data: st.DataObject) -> None:
    request: Json = {
        "schema": {
            **SCHEMA,
            "identifier-field-ids": [1],
            "fields": [
                *SCHEMA["fields"],
                {
                    "id": 3,
                    "name": "m",
                    "required": False,
                    "type": {
                        "type": "map",
                        "key-id": 4,
                        "key": "string",
                        "value-id": 5,
                        "value": {
                            "type": "list",
                            "element-id": 6,
                            "element": "int",
                            "element-required": False,
                        },
                        "value-required": True,
                    },
                },
            ],
        },
        "spec": {"fields": [{"source-id": 2, "field-id": 1000, "name": "day", "transform": "day"}]},
        "order": {"fields": []},
    }
    path = data.draw(st.sampled_from([path for path in paths(request) if len(path) > 1]))
    request = replaced(request, path, data.draw(ODD))
    try:
        done = table(**request)
    except TarnError:
        return
    read = TableMetadataUtil.parse_obj(done)
    assert read.schema().highest_field_id == done["last-column-id"]
    assert [f.name for f in read.schema().fields] == [f["name"] for f in done["schemas"][0]["fields"]]
    assert [f.name for f in read.spec().fields] == [f["name"] for f in done["partition-specs"][0]["fields"]]
    assert read.sort_order().order_id == done["default-sort-order-id"]


def test_lists_nested_without_end_are_refused() -> None:
    kind: Any = "int"
    for number in range(400):
        kind = {"type": "list", "element-id": number, "element": kind, "element-required": False}
    with pytest.raises(InvalidError, match="nested deeper"):
        table(
            schema={"type": "struct", "fields": [{"id": 999, "name": "a", "type": kind, "required": False}]}
        )


def test_every_update_and_every_requirement_has_a_type() -> None:
    def names(union: Any, field: str) -> list[str]:
        return sorted(get_args(get_type_hints(shape)[field])[0] for shape in get_args(union))

    assert names(types.TableUpdate, "action") == sorted(table_updates._UPDATES)
    others = ("assert-create", "assert-table-uuid", "assert-ref-snapshot-id")
    assert names(types.TableRequirement, "type") == sorted((*others, *table_metadata._EQUALITIES))


NESTED = {
    "type": "struct",
    "fields": [
        {
            "id": 1,
            "name": "tags",
            "required": False,
            "type": {
                "type": "list",
                "element-id": 2,
                "element-required": False,
                "element": {
                    "type": "struct",
                    "fields": [{"id": 3, "name": "text", "type": "string", "required": False}],
                },
            },
        },
        {
            "id": 4,
            "name": "marks",
            "required": False,
            "type": {
                "type": "map",
                "key-id": 5,
                "key": "string",
                "value-id": 6,
                "value": "long",
                "value-required": False,
            },
        },
        {
            "id": 7,
            "name": "place",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [{"id": 8, "name": "town", "type": "string", "required": False}],
            },
        },
    ],
}
IN_LISTS = [(3, "tags.element.text"), (5, "marks.key"), (6, "marks.value")]


def partitioned(source: int, transform: str = "identity") -> Json:
    field = {"source-id": source, "field-id": 1000, "name": "p", "transform": transform}
    return {"spec-id": 1, "fields": [field]}


@pytest.mark.parametrize(("source", "path"), IN_LISTS)
def test_a_partition_column_within_a_list_or_map_is_refused(source: int, path: str) -> None:
    said = f"Invalid source column {path} of partition field p: it is in a list or map"
    with pytest.raises(InvalidError, match=said):
        table(schema=NESTED, spec=partitioned(source))
    meta = table(schema=NESTED)
    named = next(
        found for found, at, _, _ in schemas.walk(meta["schemas"][0]) if at == path
    )  # a create gives new ids
    with pytest.raises(InvalidError, match=said):
        commit(meta, {"action": "add-spec", "spec": partitioned(named)})
    bound = {**meta, "partition-specs": [{"spec-id": 0, "fields": partitioned(named)["fields"]}]}
    with pytest.raises(InvalidError, match=said):
        schemas.check_bound(bound)
    schemas.check_bound({**bound, "partition-specs": [{**partitioned(named, "void"), "spec-id": 0}]})


def test_two_fields_of_one_name_are_refused_wherever_they_are_nested() -> None:
    inner = {"id": 4, "name": "b", "type": "long", "required": False}
    struct = {"id": 3, "name": "a", "type": {"type": "struct", "fields": [inner]}, "required": False}
    whole = {
        "type": "struct",
        "fields": [struct, {"id": 5, "name": "a.b", "type": "long", "required": False}],
    }
    with pytest.raises(InvalidError, match=r"multiple fields for name a\.b: \d and \d; rename one"):
        table(schema=whole)
    with pytest.raises(InvalidError, match=r"multiple fields for name a\.b: 4 and 5; rename one"):
        commit(table(), {"action": "add-schema", "schema": whole})
    assert schemas.check_schema(whole, 2, new=False) == 5, "a file to register may have them"


def with_columns(meta: Json, *columns: Json) -> list[Json]:
    """Updates that give the table these columns beside, or instead of, those of the same ids."""
    new = {column["id"]: {"type": "string", "required": False, **column} for column in columns}
    fields = {field["id"]: field for field in meta["schemas"][-1]["fields"]} | new
    schema = {"type": "struct", "fields": list(fields.values())}
    return [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]


@pytest.mark.parametrize("former", [False, True])
@pytest.mark.parametrize(
    "column",
    [
        {"id": 3, "name": "at_day"},
        {
            "id": 3,
            "name": "at",
            "type": {
                "type": "struct",
                "fields": [{"id": 4, "name": "day", "type": "date", "required": False}],
            },
        },
    ],
)
def test_a_column_with_the_name_of_a_partition_field_is_refused(column: Json, former: bool) -> None:
    nested = column["name"] == "at"
    name = "at.day" if nested else "at_day"
    field = {"source-id": 2, "field-id": 1000, "name": name, "transform": "day"}
    meta = table(spec={"fields": [field]})
    if former:
        plain = {"action": "add-spec", "spec": {"fields": []}}
        meta = commit(meta, plain, {"action": "set-default-spec", "spec-id": -1})
    renamed = [{"id": 2, "name": "when", "type": "timestamp"}] if nested else []
    said = f"the column {name} has the name of a partition field"
    with pytest.raises(InvalidError, match=said):
        commit(meta, *with_columns(meta, *renamed, column))
    apart = {"action": "remove-partition-specs", "spec-ids": [0]}
    if former:
        assert commit(meta, apart, *with_columns(meta, *renamed, column))["last-column-id"] >= 3


def test_a_column_is_not_made_again_under_the_name_of_its_partition_field() -> None:
    field = {"source-id": 1, "field-id": 1000, "name": "id", "transform": "identity"}
    meta = table(spec={"fields": [field]})
    meta = commit(meta, *with_columns(meta, {"id": 1, "name": "number", "type": "long"}))
    with pytest.raises(InvalidError, match="the column id has the name of a partition field"):
        commit(meta, *with_columns(meta, {"id": 3, "name": "id"}))
    again = with_columns(meta, {"id": 1, "name": "id", "type": "long"})
    assert commit(meta, *again)["current-schema-id"] != meta["current-schema-id"]
    # Another catalog, or a former release, left a table so: it can be changed, and mended.
    left = {**meta, "schemas": [*meta["schemas"]], "current-schema-id": 9}
    left["schemas"] += [{**with_columns(meta, {"id": 3, "name": "id"})[0]["schema"], "schema-id": 9}]
    assert commit(left, *with_columns(left, {"id": 4, "name": "note"}))["last-column-id"] == 4
    mended = commit(left, *with_columns(left, {"id": 3, "name": "other"}))
    assert schemas.names_of_both(left) == {"id"}
    assert schemas.names_of_both(mended) == set()


def test_a_partition_column_within_a_struct_is_taken_and_one_of_a_list_may_sort() -> None:
    assert table(schema=NESTED, spec=partitioned(8))["partition-specs"][0]["fields"]
    by = {"transform": "identity", "source-id": 3, "direction": "asc", "null-order": "nulls-first"}
    assert table(schema=NESTED, order={"order-id": 1, "fields": [by]})["sort-orders"][0]["fields"]


def column(kind: Any, **more: Any) -> Json:
    field = {"id": 1, "name": "x", "type": kind, "required": False, **more}
    return {"type": "struct", "fields": [field]}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("decimal(39,2)", "its precision is at most 38"),
        ("decimal(9,2147483648)", "its scale is at most 2147483647"),
        ("fixed[2147483648]", "its length is at most 2147483647"),
        (f"fixed[{'9' * 5_000}]", "its length is at most 2147483647"),
        ("fixed[\u0663]", "unknown type"),
        ("decimal(\u0663,1)", "unknown type"),
        ("geometry()", "give geometry, or"),
        ("geometry(a)b)", "give geometry, or"),
        ("geography()", "give geography, or"),
        ("geography(a,b)", "one of spherical, vincenty, thomas, andoyer, karney"),
        ("geography(a,)", "one of spherical"),
        ("geography(a,spherical,c)", "one of spherical"),
    ],
)
def test_a_type_that_readers_cannot_parse_is_refused(kind: str, said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        table(3, schema=column(kind))
    with pytest.raises(InvalidError, match=said):
        commit(table(3), {"action": "add-schema", "schema": column(kind)})


@pytest.mark.parametrize(
    "kind",
    [
        "decimal(038, 2)",
        "fixed[0]",
        "fixed[2147483647]",
        "geometry(a, b)",
        "geometry( a )",
        "geography(a, Karney )",
        "geography(srid:1)",
    ],
)
def test_a_type_at_the_limits_is_taken(kind: str) -> None:
    assert table(3, schema=column(kind))["schemas"][0]["fields"][0]["type"] == kind


def test_a_type_of_any_length_is_judged_in_a_step() -> None:
    kind = f"geography(a,{' ' * 40_000}!)"
    before = time.thread_time()
    with pytest.raises(InvalidError, match="one of spherical"):
        schemas.check_schema(column(kind), 3)
    assert time.thread_time() - before < 5, "the square of its length takes far longer"


@pytest.mark.parametrize(
    ("kind", "good", "said"),
    [
        (f"fixed[{'0' * 5_000}1]", "00", "give a text of 2 hexadecimal digits"),
        (f"decimal(9,{'0' * 5_000}2)", "1.23", "give a text of a number with 2 decimal places"),
    ],
    ids=["fixed", "decimal"],
)
def test_zeros_before_a_number_count_for_nothing(kind: str, good: str, said: str) -> None:
    assert table(3, schema=column(kind, **{"initial-default": good}))["last-column-id"] == 1
    with pytest.raises(InvalidError, match=said):
        table(3, schema=column(kind, **{"initial-default": "0"}))


VALUES: list[tuple[str, list[Any], list[Any]]] = [
    ("boolean", [True], [1, "true"]),
    ("int", [5, -(2**31)], [5.0, 2**31, True, "5"]),
    ("long", [5, 2**63 - 1], [5.5, 2**63, "5"]),
    ("float", [5.5, 1e300], [5, "NaN"]),
    ("double", [5.5], [5, "5"]),
    ("decimal(9,2)", ["1.23", ".23", "+1.23", "123E-2"], [1.23, "1.2", "1E+2", " 1.23", "1_0.23", "x"]),
    ("decimal(9,0)", ["12"], ["1.2"]),
    ("string", ["x", ""], [5, {}]),
    ("uuid", ["F79C3E09-677c-4bbd-a479-3f349cb785e7"], ["f79c3e09677c4bbda4793f349cb785e7", 5]),
    ("date", ["2007-12-03"], ["20071203", "2007-13-03", "\u0662007-12-03", 5]),
    ("time", ["10:15", "10:15:30", "10:15:30.123456789"], ["101530", "24:00", "10:60", 5]),
    (
        "timestamp",
        ["2007-12-03T10:15:30", "2007-12-03T10:15"],
        ["2007-12-03 10:15:30", "2007-12-03T10:15:30Z"],
    ),
    (
        "timestamptz",
        ["2007-12-03T10:15:30+00:00", "2007-12-03T10:15:30.5Z"],
        ["2007-12-03T10:15:30+01:00", "2007-12-03T10:15:30", "2007-02-30T10:15:30Z"],
    ),
    ("timestamp_ns", ["2007-12-03T10:15:30.123456789"], ["1000-12-03T10:15:30", "2007-12-03T10:15:30Z"]),
    ("timestamptz_ns", ["2007-12-03T10:15:30.123456789+00:00"], ["2007-12-03T10:15:30.123456789"]),
    ("fixed[2]", ["00ff", "00FF"], ["00", "00f", "zzzz", 5]),
    ("binary", ["00ff", ""], ["00f", "zz", 5]),
    ("variant", [], ["x"]),
    ("unknown", [], [5]),
    ("geometry", [], ["POINT (1 1)"]),
    ("geography", [], ["x"]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), VALUES, ids=[kind for kind, _, _ in VALUES])
def test_a_default_value_is_one_of_its_type(kind: str, good: list[Any], bad: list[Any]) -> None:
    for name in ("initial-default", "write-default"):
        for value in good:
            made = table(3, schema=column(kind, **{name: value}))
            assert made["schemas"][0]["fields"][0][name] == value
        for value in bad:
            with pytest.raises(InvalidError, match=f"Invalid {name} .* of x of type .*leave it out"):
                table(3, schema=column(kind, **{name: value}))


def test_a_struct_has_no_default_value_and_a_null_is_none() -> None:
    kind = {"type": "struct", "fields": [{"id": 2, "name": "y", "type": "int", "required": False}]}
    with pytest.raises(InvalidError, match=r"Invalid initial-default \{\} of x of type struct: it has none"):
        table(3, schema=column(kind, **{"initial-default": {}}))
    kind["fields"][0]["write-default"] = None  # type: ignore[index]
    nothing = column(kind, **{"initial-default": None, "write-default": None, "doc": None})
    added = commit(table(3), {"action": "add-schema", "schema": nothing})["schemas"][-1]
    for schema in (table(3, schema=nothing)["schemas"][0], added):
        field = schema["fields"][0]
        assert field.keys() == {"id", "name", "type", "required", "doc"}
        assert field["type"]["fields"][0].keys() == {"id", "name", "type", "required"}


@pytest.mark.parametrize(
    "field",
    [
        {"required": False, "type": "long"},
        {"required": True, "type": "double"},
        {"required": True, "type": "float"},
        {"required": True, "type": "variant"},
        {"required": True, "type": {"type": "struct", "fields": []}},
    ],
)
def test_an_identifier_field_is_one_that_can_identify_a_row(field: Json) -> None:
    schema = {**column("long", **field), "identifier-field-ids": [1]}
    for wanted in (lambda: table(3, schema=schema), lambda: schemas.check_schema(schema, 3)):
        with pytest.raises(
            InvalidError, match="cannot add field x as an identifier: an identifier is required"
        ):
            wanted()


@pytest.mark.parametrize("required", [True, False])
def test_an_identifier_field_within_a_struct_needs_all_of_it_required(required: bool) -> None:
    kind = {"type": "struct", "fields": [{"id": 2, "name": "y", "type": "long", "required": True}]}
    schema = {**column(kind, required=required), "identifier-field-ids": [2]}
    if required:
        assert table(schema=schema)["schemas"][0]["identifier-field-ids"] == [2]
    else:
        with pytest.raises(InvalidError, match=r"cannot add field x\.y as an identifier"):
            table(schema=schema)


@pytest.mark.parametrize("ids", [0, False, "", {}, 1, "1", [None], [1.0]])
def test_identifier_fields_that_are_no_list_of_ids_are_refused(ids: object) -> None:
    schema = {**column("long", required=True), "identifier-field-ids": ids}
    update = {"action": "add-schema", "schema": schema}
    for wanted in (lambda: table(schema=schema), lambda: commit(table(), update)):
        with pytest.raises(InvalidError, match="identifier-field-ids is no list of numbers"):
            wanted()


def test_identifier_fields_that_are_null_are_left_out() -> None:
    schema = {**column("long"), "identifier-field-ids": None}
    assert "identifier-field-ids" not in table(schema=schema)["schemas"][0]
    added = commit(
        table(), {"action": "add-schema", "schema": {**column("int"), "identifier-field-ids": None}}
    )
    assert "identifier-field-ids" not in added["schemas"][1]


def test_an_id_beyond_32_bits_and_a_required_unknown_are_refused() -> None:
    with pytest.raises(InvalidError, match="Invalid id 2147483648 of x: give an id of 32 bits"):
        commit(table(), {"action": "add-schema", "schema": column("int", id=2**31)})
    for kind in (
        "unknown",
        {"type": "list", "element-id": 2, "element": "unknown", "element-required": True},
        {
            "type": "map",
            "key-id": 2,
            "key": "unknown",
            "value-id": 3,
            "value": "int",
            "value-required": False,
        },
    ):
        with pytest.raises(InvalidError, match=r"Invalid type unknown of x.*: all its values are null"):
            table(3, schema=column(kind, required=True))
    field = {"source-id": 1, "field-id": 2**31, "name": "p", "transform": "identity"}
    with pytest.raises(InvalidError, match="field-id 2147483648 of p is no number from 0 to 2147483647"):
        commit(table(), {"action": "add-spec", "spec": {"fields": [field]}})


def test_several_source_columns_are_refused() -> None:
    field = {"source-ids": [1, 2], "name": "p", "transform": "bucket[4]"}
    with pytest.raises(InvalidError, match=r"Invalid source-ids \[1, 2\] of partition field p: give one"):
        table(spec={"fields": [field]})
    by = {**field, "direction": "asc", "null-order": "nulls-first"}
    with pytest.raises(InvalidError, match=r"Invalid source-ids \[1, 2\] of a sort field: give one"):
        table(order={"fields": [by]})
    assert table(spec={"fields": [{**field, "source-ids": [1]}]})["partition-specs"][0]["fields"] == [
        {"source-id": 1, "field-id": 1000, "name": "p", "transform": "bucket[4]"}
    ]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("snapshot-id", 2**63, "field snapshot-id is 9223372036854775808; give an integer of 64 bits"),
        ("timestamp-ms", 2**63, "field timestamp-ms is .* 64 bits"),
        ("parent-snapshot-id", 2**63, "field parent-snapshot-id is .* 64 bits"),
        ("sequence-number", 2**63, "field sequence-number is .* 64 bits"),
        ("schema-id", 2**31, "field schema-id is .* 32 bits"),
        ("first-row-id", True, "first-row-id is missing or no int"),
        ("added-rows", True, "added-rows is missing or no int"),
        ("first-row-id", 2**63 - 5, "its rows reach 9223372036854775813, and row ids have 64 bits"),
        ("key-id", 7, "key-id is missing or no str"),
    ],
)
def test_a_snapshot_that_readers_cannot_parse_is_refused(field: str, value: object, said: str) -> None:
    more = {"first-row-id": 0, "added-rows": 10, field: value}
    with pytest.raises(InvalidError, match=said):
        commit(table(3), snapshot(1, **more))


def test_nulls_of_a_snapshot_are_left_out() -> None:
    nulls = {"parent-snapshot-id": None, "schema-id": None, "key-id": None}
    update = snapshot(1, **nulls)
    kept = commit(table(), update, move(1))
    assert kept["snapshots"][0].keys().isdisjoint(nulls)
    assert table_metadata.already_applied([update, move(1)], kept)
    old = {"snapshot-id": 1, "timestamp-ms": 1, "manifest-list": "s3://x", "summary": None}
    assert "summary" not in commit(table(1), {"action": "add-snapshot", "snapshot": old})["snapshots"][0]


@pytest.mark.parametrize("manifests", [5, "s3://x", [5], {"a": "b"}])
def test_manifests_of_v1_are_a_list_of_locations(manifests: object) -> None:
    old = {"snapshot-id": 1, "timestamp-ms": 1, "manifests": ["s3://x"]}

    def add(snapshot: Json) -> Json | None:
        update = {"action": "add-snapshot", "snapshot": snapshot}
        return table_metadata.commit(table(1), [update], now_ms=NOW_MS, previous_location=None)

    kept = add(old)
    assert kept is not None
    assert kept["snapshots"] == [old]
    with pytest.raises(InvalidError, match="manifests"):
        add({**old, "manifests": manifests})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max-ref-age-ms", True),
        ("max-ref-age-ms", 2**63),
        ("max-snapshot-age-ms", 2**63),
        ("min-snapshots-to-keep", 2**31),
    ],
)
def test_retention_beyond_its_bits_is_refused(field: str, value: int) -> None:
    with pytest.raises(InvalidError, match=f"Invalid {field} {value} of ref main: .* at most"):
        commit(table(), snapshot(1), move(1, **{field: value}))
    most = 2**31 - 1 if field.startswith("min") else 2**63 - 1
    assert commit(table(), snapshot(1), move(1, **{field: most}))["refs"]["main"][field] == most


@pytest.mark.parametrize("field", ["statistics", "partition-statistics"])
@pytest.mark.parametrize(
    ("path", "taken"),
    [
        *(
            (f"s3://tarn/warehouse/ns/t{odd}", False)
            for odd in ("//x", "/./x", "/../x", "/\x01", "/x/", "/\x7f")
        ),
        *(("", False), ("s3://", False), ("s3://tarn//x", False), ("s3://tarn/" + "x" * 1_100, False)),
        *(
            ("s3://tarn/warehouse/ns/t/metadata/x y é.stats", True),
            ("file:///tmp/x", True),
            ("file:/x", True),
        ),
    ],
)
def test_statistics_are_where_a_file_can_be(field: str, path: str, taken: bool) -> None:
    """Or they end what looks for them, in releases before this one and in engines."""
    file = {**FILE, "statistics-path": path, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    update = {"action": f"set-{field}", field: file}
    if taken:
        assert commit(with_snapshots(1), update)[field] == [file]
        return
    with pytest.raises(InvalidError) as caught:
        commit(with_snapshots(1), update)
    assert f"Cannot parse set-{field}: no file can have the statistics-path {path[:300]!r}" in (
        caught.value.message
    )


def test_statistics_that_readers_cannot_parse_are_refused_and_their_nulls_left_out() -> None:
    blob = {
        "type": "deletion-vector-v1",
        "snapshot-id": 1,
        "sequence-number": 1,
        "fields": [1],
        "properties": None,
    }
    file = {
        "snapshot-id": 1,
        "statistics-path": "s3://x",
        "file-size-in-bytes": 5,
        "file-footer-size-in-bytes": 3,
        "key-metadata": None,
        "blob-metadata": [blob],
    }

    def put(**more: object) -> list[Json]:
        update = {"action": "set-statistics", "statistics": {**file, **more}}
        found: list[Json] = commit(with_snapshots(1), update)["statistics"]
        return found

    (kept,) = put()
    assert "key-metadata" not in kept
    assert "properties" not in kept["blob-metadata"][0]
    assert "properties" in blob, "what the client sent is not changed"
    for wrong in ({"fields": [2**31]}, {"snapshot-id": 2**63}, {"sequence-number": True}):
        with pytest.raises(InvalidError, match="Cannot parse"):
            put(**{"blob-metadata": [{**blob, **wrong}]})
    for name in ("file-size-in-bytes", "file-footer-size-in-bytes", "snapshot-id"):
        with pytest.raises(InvalidError, match=f"field {name} is 9223372036854775808; give an integer"):
            put(**{name: 2**63})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "encrypted-key-metadata is missing"),
        ({"encrypted-key-metadata": 5}, "encrypted-key-metadata is missing or no str"),
        ({"encrypted-key-metadata": "%%"}, "its encrypted-key-metadata is no base64"),
        ({"encrypted-key-metadata": "QUI=", "properties": [1]}, "its properties must map names to strings"),
        ({"encrypted-key-metadata": "QUI=", "encrypted-by-id": 5}, "encrypted-by-id is missing or no str"),
    ],
)
def test_an_encryption_key_that_readers_cannot_parse_is_refused(more: Json, said: str) -> None:
    with pytest.raises(InvalidError, match=said):
        commit(table(3), {"action": "add-encryption-key", "encryption-key": {"key-id": "k", **more}})
    whole = {"key-id": "k", "encrypted-key-metadata": "QUI=", "encrypted-by-id": None}
    kept = commit(table(3), {"action": "add-encryption-key", "encryption-key": whole})
    assert kept["encryption-keys"] == [{"key-id": "k", "encrypted-key-metadata": "QUI="}]


class Names(list[str]):
    def __contains__(self, name: object) -> bool:
        raise AssertionError("a search through a list for every property")


def test_many_properties_and_schemas_take_a_step_each(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = commit(table(), {"action": "set-properties", "updates": {"a": "1", "b": "2"}})
    gone = commit(meta, {"action": "remove-properties", "removals": Names(["a", "c"])})
    assert gone["properties"].keys() == {"b", "write.parquet.compression-codec"}
    keys: list[bytes] = []

    def counted(schema: Json) -> bytes:
        keys.append(schemas.schema_key(schema))
        return keys[-1]

    monkeypatch.setattr(table_updates, "schema_key", counted)
    adds = [
        {"action": "add-schema", "schema": column("int", name=f"c{number % 50}")} for number in range(100)
    ]
    made = commit(meta, *adds)
    assert [schema["schema-id"] for schema in made["schemas"]] == list(range(51)), "equal ones are reused"
    assert len(keys) == len(adds) + len(meta["schemas"])


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda n: {"action": "add-spec", "spec": {"fields": [bucket(n, name=f"b{n}")]}}, 100),
        (lambda n: {"action": "add-sort-order", "sort-order": {"fields": [bucket(n, **ASCENDING)]}}, 100),
        (lambda n: snapshot(n), 1_000),
    ],
    ids=["add-spec", "add-sort-order", "add-snapshot"],
)
def test_more_parts_than_a_commit_may_add_are_refused(make: Callable[[int], Json], most: int) -> None:
    adds = [make(number) for number in range(1, most + 2)]
    assert commit(table(), *adds[:most])
    with pytest.raises(InvalidError, match=rf"Cannot apply {most + 1} updates {adds[0]['action']} .*several"):
        commit(table(), *adds)


ASCENDING = {"direction": "asc", "null-order": "nulls-first"}


def bucket(width: int, **more: str) -> Json:
    return {"source-id": 1, "transform": f"bucket[{width}]", **more}


def test_updates_that_would_go_through_too_much_are_refused_at_that(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = [move(1, f"tag {number}", "tag") for number in range(100)]
    base = with_snapshots(1)
    assert len(commit(base, *tags)["refs"]) == 101
    monkeypatch.setattr(table_metadata, "WORK_MAX", 3_000)
    with pytest.raises(InvalidError, match=r"Cannot apply 100 updates in one commit: after \d\d of them"):
        commit(base, *tags)
    assert len(commit(base, *tags[:50])["refs"]) == 51
    names = {f"p{number}": "x" for number in range(2_000)}
    one = {"action": "set-properties", "updates": names}
    assert len(commit(base, one)["properties"]) > len(names), "one update of many counts once"
    with pytest.raises(InvalidError, match="after 2 of them the table has 20"):
        commit(base, one, {"action": "set-properties", "updates": {"more": "x"}})


def test_snapshots_that_are_removed_one_by_one_are_gone_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's library for Java may send an update for each snapshot."""
    base = with_snapshots(1)
    (only,) = base["snapshots"]
    numbers = range(1, 12_001)
    base["snapshots"] = [{**only, "snapshot-id": number} for number in numbers]
    base["snapshot-log"] = [{"timestamp-ms": NOW_MS, "snapshot-id": number} for number in numbers]
    base["refs"] = {"main": {"snapshot-id": 12_000, "type": "branch"}}
    base["current-snapshot-id"] = 12_000
    removes = [{"action": "remove-snapshots", "snapshot-ids": [number]} for number in range(1, 11_001)]
    before = time.thread_time()
    left = commit(base, *removes)
    assert time.thread_time() - before < 5
    assert [s["snapshot-id"] for s in left["snapshots"]] == list(range(11_001, 12_001))
    assert [e["snapshot-id"] for e in left["snapshot-log"]] == list(range(11_001, 12_001))


def test_removals_of_snapshots_that_are_joined_do_what_each_does() -> None:
    def remove(*ids: Any) -> Json:
        return {"action": "remove-snapshots", "snapshot-ids": [*ids]}

    meta = commit(with_snapshots(5), move(2, "a", "tag"))
    untag, again = {"action": "remove-snapshot-ref", "ref-name": "a"}, move(4, "b", "tag")
    less = commit(meta, remove(1), remove(1, 77), remove(), untag, remove(2), again, remove(3))
    assert [s["snapshot-id"] for s in less["snapshots"]] == [4, 5]
    assert less["refs"].keys() == {"main", "b"}
    with pytest.raises(InvalidError, match="Cannot set b to unknown snapshot: 4"):
        commit(meta, remove(4), remove(1), again)
    for wrong in (remove("2"), remove(True), remove([2]), remove(None)):
        with pytest.raises(InvalidError, match="snapshot-ids holds something that is no number"):
            commit(meta, remove(1), wrong)
    for wrong in ({"action": "remove-snapshots"}, {"action": "remove-snapshots", "snapshot-ids": 2}):
        with pytest.raises(InvalidError, match="field snapshot-ids is missing or no list"):
            commit(meta, remove(1), wrong)


def test_all_that_updates_copy_counts() -> None:
    lists = {name for name, hint in get_type_hints(types.TableMetadata).items() if "[" in str(hint)}
    assert lists - {*table_metadata._LISTS} == {"metadata-log", "partition-spec", "schema"}


def test_the_columns_of_a_table_are_looked_through_once_for_all_its_partition_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Json] = []

    def single(struct: Json) -> Any:
        looks.append(struct)
        return (field["id"] for field in struct["fields"])

    monkeypatch.setattr(schemas, "_single", single)
    fields = [
        {"id": number, "name": f"c{number}", "type": "int", "required": False} for number in range(1, 101)
    ]
    spec = [{"source-id": number, "name": f"c{number}", "transform": "identity"} for number in range(1, 101)]
    meta = table(schema={"type": "struct", "fields": fields}, spec={"fields": spec})
    commit(meta, {"action": "add-spec", "spec": {"fields": spec[1:]}})
    assert len(looks) == 3, "for the create, for the update, and once for the table after it"


def test_a_long_name_above_many_fields_is_refused_before_it_is_in_the_path_of_each() -> None:
    below = [{"id": number, "name": f"c{number}", "type": "int", "required": False} for number in range(2, 9)]
    wide = column({"type": "struct", "fields": below}, name="x" * 3_000_000)
    for wanted in (
        lambda: table(schema=wide),
        lambda: commit(table(), {"action": "add-schema", "schema": wide}),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(InvalidError, match=r"the names of all fields, each with those .*shorten"):
                wanted()
            assert tracemalloc.get_traced_memory()[1] < 4 * schemas.PATHS_MAX
        finally:
            tracemalloc.stop()


def test_schemas_are_known_by_content_also_after_one_was_removed() -> None:
    def add(name: str, **more: object) -> Json:
        schema = column("int", name=name, required=True)
        return {"action": "add-schema", "schema": {**schema, "schema-id": 9, **more}}

    use = {"action": "set-current-schema", "schema-id": -1}
    meta = commit(table(), add("a"), add("b"), add("a"), use)
    assert (len(meta["schemas"]), meta["current-schema-id"]) == (3, 1)
    assert len(commit(meta, add("a", **{"identifier-field-ids": [1]}))["schemas"]) == 4
    gone = {"action": "remove-schemas", "schema-ids": [2]}
    again = commit(meta, add("b"), gone, add("b"), use)
    assert [schema["schema-id"] for schema in again["schemas"]] == [0, 1, 2]
    assert again["current-schema-id"] == 2
    assert again["schemas"][-1]["fields"][0]["name"] == "b"
    deep = json.loads("[" * 300 + "]" * 300)
    with pytest.raises(InvalidError, match=r"Invalid schema: .*nest less"):
        commit(meta, {"action": "add-schema", "schema": column("int", extra=deep)})


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_equal_partition_field_without_an_id_has_that_of_the_earlier_one(version: int) -> None:
    day = {"source-id": 2, "name": "day", "transform": "day"}
    hour = {"source-id": 2, "name": "hour", "transform": "hour"}
    meta = table(version, spec={"fields": [day]})
    again = [{"action": "add-spec", "spec": {"fields": [day]}}, {"action": "set-default-spec", "spec-id": -1}]
    assert table_metadata.commit(meta, again, now_ms=NOW_MS, previous_location=None) is None, "all is there"
    more = commit(meta, {"action": "add-spec", "spec": {"fields": [day, hour]}})
    assert [field["field-id"] for field in more["partition-specs"][1]["fields"]] == [1000, 1001]
    assert more["last-partition-id"] == 1001
    other = {"action": "add-spec", "spec": {"fields": [{**hour, "name": "h"}]}}
    (field,) = commit(more, other)["partition-specs"][2]["fields"]
    assert field["field-id"] == (1000 if version == 1 else 1002), "v1 numbers them by position"
    alone = commit(more, {"action": "add-spec", "spec": {"fields": [hour]}})["partition-specs"][2]["fields"]
    assert alone[0]["field-id"] == (1000 if version == 1 else 1001)


RULE = {"max-snapshot-age-ms": 864_000_000, "min-snapshots-to-keep": 100, "max-ref-age-ms": 7}


@pytest.mark.parametrize("name", ["main", "b"])
def test_a_branch_that_goes_on_keeps_what_is_said_of_its_history(name: str) -> None:
    """pyiceberg sends nothing of it, and so does ingest, whose state may be older."""
    meta = commit(with_snapshots(2), move(2, name, **RULE))
    on = commit(meta, snapshot(3, 2), move(3, name))
    assert on["refs"][name] == {"snapshot-id": 3, "type": "branch", **RULE}
    other = {"min-snapshots-to-keep": 5}
    assert commit(meta, snapshot(3, 2), move(3, name, **other))["refs"][name].items() >= other.items()
    assert not commit(meta, snapshot(3, 2), move(3, name, **other))["refs"][name].keys() & {"max-ref-age-ms"}
    taken = commit(on, move(3, name))["refs"][name]
    assert taken == {"snapshot-id": 3, "type": "branch"}, "without a new snapshot it says all"
    assert commit(on, move(2, name))["refs"][name] == {"snapshot-id": 2, "type": "branch"}


def test_a_tag_or_a_branch_that_was_a_tag_has_what_is_sent() -> None:
    meta = commit(with_snapshots(2), move(2, "t", "tag", **{"max-ref-age-ms": 7}))
    for kind in ("tag", "branch"):
        on = commit(meta, snapshot(3, 2), move(3, "t", kind))
        assert on["refs"]["t"] == {"snapshot-id": 3, "type": kind}
