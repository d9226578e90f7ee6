"""Every table update and requirement of the REST specification, on parsed JSON."""

from __future__ import annotations

import copy
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataUtil

from tarn.core.errors import ConflictError, InvalidError, TarnError
from tarn_catalog.metadata import table_metadata, types
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
