"""pyiceberg's operations on a catalog, opened in every way."""

from __future__ import annotations

import re
import threading

import orjson
import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from tarn.core.naming import claim_key
from tarn_catalog.operations.identifiers import TableIdentifier
from tests.contract.catalog.conftest import Lake

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "who": ["a", "b", "c"]})


def test_a_schema_of_arrow_may_have_any_number_of_columns_and_depths(lake: Lake) -> None:
    lake.client.create_namespace("a")
    rows = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "inner": [{"x": "a", "y": [1]}],
            "late": pa.array([0.5]),
            "who": ["b"],
        }
    )
    table = lake.client.create_table("a.wide", schema=rows.schema)
    assert sorted(table.schema().field_ids) == list(range(1, 8))
    table.append(rows)
    assert lake.open().load_table("a.wide").scan().to_arrow().to_pylist() == rows.to_pylist()


def test_namespaces_come_and_go(lake: Lake) -> None:
    client = lake.client
    assert client.list_namespaces() == []
    client.create_namespace("a", {"owner": "x"})
    client.create_namespace(("a", "b c"), {})
    client.create_namespace("z")
    assert client.list_namespaces() == [("a",), ("z",)]
    assert client.list_namespaces("a") == [("a", "b c")]
    assert client.list_namespaces(("a", "b c")) == []
    assert client.load_namespace_properties("a") == {"owner": "x"}
    assert client.namespace_exists(("a", "b c"))
    assert not client.namespace_exists("nope")
    with pytest.raises(NamespaceAlreadyExistsError, match="Namespace already exists: a"):
        client.create_namespace("a")
    with pytest.raises(NamespaceNotEmptyError, match="is not empty: it holds namespace"):
        client.drop_namespace("a")
    client.drop_namespace(("a", "b c"))
    client.drop_namespace("a")
    assert lake.open().list_namespaces() == [("z",)]
    with pytest.raises(NoSuchNamespaceError, match="Namespace does not exist: a"):
        client.load_namespace_properties("a")
    with pytest.raises(NoSuchNamespaceError, match="Namespace does not exist: a"):
        client.drop_namespace("a")
    # pyiceberg has no error class of its own for a 404 here.
    with pytest.raises((NoSuchNamespaceError, RESTError), match="Namespace does not exist: nope"):
        client.create_namespace(("nope", "child"))
    client.create_namespace("a", {"life": "2"})
    assert client.load_namespace_properties("a") == {"life": "2"}


def test_namespace_properties(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("a", {"x": "1", "y": "2"})
    changed = client.update_namespace_properties("a", removals={"x", "nope"}, updates={"z": "3", "y": "4"})
    assert (sorted(changed.updated), changed.removed, changed.missing) == (["y", "z"], ["x"], ["nope"])
    assert client.load_namespace_properties("a") == {"y": "4", "z": "3"}
    with pytest.raises(NoSuchNamespaceError):
        client.update_namespace_properties("b", updates={"z": "3"})


def test_a_table_from_birth_to_death(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    table = client.create_table("ns.t", ROWS.schema, properties={"owner": "me"})
    assert re.fullmatch(rf"{re.escape(lake.roots.warehouse)}/ns/t-[0-9a-f-]{{36}}", table.location())
    assert table.location().endswith(str(table.metadata.table_uuid))
    assert table.properties["owner"] == "me"
    assert client.list_tables("ns") == [("ns", "t")]
    assert client.table_exists("ns.t")
    table.append(ROWS)
    table.append(ROWS)
    table.overwrite(ROWS.slice(0, 1), EqualTo("id", 1))
    again = lake.open().load_table("ns.t")
    assert again.metadata_location == table.metadata_location
    assert sorted(again.scan().to_arrow()["id"].to_pylist()) == [1, 2, 2, 3, 3]
    with pytest.raises(TableAlreadyExistsError, match=re.escape("Table already exists: ns.t")):
        client.create_table("ns.t", ROWS.schema)
    with pytest.raises(NamespaceNotEmptyError, match=re.escape("it holds table ns.t")):
        client.drop_namespace("ns")
    client.drop_table("ns.t")
    assert not client.table_exists("ns.t")
    assert client.list_tables("ns") == []
    for gone in (client.load_table, client.drop_table):
        with pytest.raises(NoSuchTableError, match=re.escape("Table does not exist: ns.t")):
            gone("ns.t")
    with pytest.raises(NoSuchTableError if lake.running is None else RESTError, match="Table does not exist"):
        table.append(ROWS)
    second = client.create_table("ns.t", ROWS.schema)
    assert second.metadata.table_uuid != table.metadata.table_uuid
    assert second.location() != table.location()
    assert second.scan().to_arrow().num_rows == 0
    with pytest.raises((CommitFailedException, ValueError), match="UUID does not match"):
        table.append(ROWS)
    assert second.scan().to_arrow().num_rows == 0
    client.drop_table("ns.t")
    client.drop_namespace("ns")


def test_a_table_is_renamed_and_stays_the_same_table(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    client.create_namespace("other")
    table = client.create_table("ns.t", ROWS.schema)
    table.append(ROWS)
    client.create_table("other.taken", ROWS.schema)
    renamed = client.rename_table("ns.t", "other.u")
    assert renamed.name() == ("other", "u")
    assert renamed.metadata == table.metadata
    assert renamed.metadata_location == table.metadata_location
    assert (client.list_tables("ns"), client.list_tables("other")) == (
        [],
        [("other", "taken"), ("other", "u")],
    )
    renamed.append(ROWS)
    assert lake.open().load_table("other.u").scan().to_arrow().num_rows == 6
    with pytest.raises(NoSuchTableError if lake.running is None else RESTError, match="Table does not exist"):
        table.append(ROWS)
    with pytest.raises(NoSuchTableError, match=re.escape("Table does not exist: ns.t")):
        client.rename_table("ns.t", "ns.u")
    with pytest.raises(TableAlreadyExistsError, match=re.escape("Table already exists: other.taken")):
        client.rename_table("other.u", "other.taken")
    # pyiceberg asks for the namespace first and raises its own error.
    with pytest.raises(NoSuchNamespaceError, match=r"amespace does not exist: .*nope"):
        client.rename_table("other.u", "nope.u")
    # The old name is free, the new one may be renamed back, and a name in between keeps its own table.
    second = client.create_table("ns.t", ROWS.schema)
    client.rename_table("ns.t", "ns.s")
    client.rename_table("other.u", "ns.t")
    assert client.load_table("ns.t").metadata.table_uuid == table.metadata.table_uuid
    assert client.load_table("ns.s").metadata.table_uuid == second.metadata.table_uuid
    assert client.load_table("ns.t").scan().to_arrow().num_rows == 6


def test_a_dropped_table_is_registered_again(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    table = client.create_table("ns.t", ROWS.schema, properties={"owner": "me"})
    table.append(ROWS)
    first = table.metadata_location
    table.append(ROWS)
    newest = table.metadata_location
    with pytest.raises(TableAlreadyExistsError, match=re.escape("Table already exists: ns.t")):
        client.register_table("ns.t", newest)
    with pytest.raises(TableAlreadyExistsError, match=re.escape("is ns.t, and a table has one name")):
        client.register_table("ns.second", newest)
    client.drop_table("ns.t")
    again = client.register_table("ns.back", newest)
    assert again.metadata == table.metadata
    assert again.metadata_location == newest
    again.append(ROWS)
    assert lake.open().load_table("ns.back").scan().to_arrow().num_rows == 9
    with pytest.raises(TableAlreadyExistsError, match=re.escape("is ns.back, and a table has one name")):
        client.register_table("ns.t", first)
    assert client.list_tables("ns") == [("ns", "back")]
    client.rename_table("ns.back", "ns.t")
    rolled = lake.core.names.register(TableIdentifier.of(("ns",), "t"), first, overwrite=True)
    assert rolled.parsed["table-uuid"] == str(table.metadata.table_uuid)
    assert client.load_table("ns.t").scan().to_arrow().num_rows == 3
    client.load_table("ns.t").append(ROWS)
    assert client.load_table("ns.t").scan().to_arrow().num_rows == 6


def test_what_cannot_be_registered_is_named(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    table = client.create_table("ns.t", ROWS.schema)
    good, location, table_uuid = table.metadata_location, table.location(), str(table.metadata.table_uuid)
    client.drop_table("ns.t")
    meta = orjson.loads(lake.store.get(lake.roots.key(good)).data)

    def refused(change: dict[str, object], why: str, where: str = location) -> None:
        at = f"{where}/metadata/00009-x.metadata.json"
        lake.store.put(lake.roots.key(at), orjson.dumps({**meta, **change}))
        with pytest.raises(BadRequestError, match=why):
            client.register_table("ns.t", at)

    for at, why in (
        (f"{lake.roots.base}/catalog/v1/metadata/x.metadata.json", "is not under"),
        ("s3://elsewhere/warehouse/t/metadata/x.metadata.json", "is not under"),
        (f"{location}/metadata/../metadata/00000-{table_uuid}.metadata.json", "not allowed"),
        (f"{location}/data/00000.parquet", "give the file that a load of the table answers"),
        (f"{location}/metadata/00007-gone.metadata.json", "there is no such file"),
    ):
        with pytest.raises(BadRequestError, match=why):
            client.register_table("ns.t", at)
    refused({"format-version": 9}, "Unsupported format version")
    refused({"table-uuid": "x"}, "table-uuid is missing or no UUID")
    refused({"location": f"{lake.roots.warehouse}/plain"}, "was not handed out by this catalog")
    other = f"{lake.roots.warehouse}/ns/other-{table_uuid}"
    refused({}, "a table's files stay in its own location", where=other)
    refused({"schemas": None}, "its field schemas is missing or no list")
    refused({"current-schema-id": 7}, "current-schema-id 7 is not among its schemas")
    refused({"current-snapshot-id": 7}, "current snapshot 7 is not among its snapshots")
    refused({"refs": {"main": {"type": "branch", "snapshot-id": 7}}}, "branch main points at snapshot 7")
    refused({"schemas": [{"type": "struct", "fields": [7]}]}, "Cannot|cannot|Invalid")
    refused({"properties": {"write.data.path": lake.roots.warehouse}}, re.escape("Invalid write.data.path"))
    assert client.list_tables("ns") == []
    assert client.register_table("ns.t", good).metadata == table.metadata


def test_a_purged_table_is_gone_and_its_files_are_marked(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    table = client.create_table("ns.t", ROWS.schema)
    table.append(ROWS)
    client.purge_table("ns.t")
    assert not client.table_exists("ns.t")
    with pytest.raises(NoSuchTableError, match=re.escape("Table does not exist: ns.t")):
        client.purge_table("ns.t")
    asked = orjson.loads(lake.store.get(claim_key(str(table.metadata.table_uuid))).data)["purge"]
    assert (asked["location"], asked["metadata-location"]) == (table.location(), table.metadata_location)
    assert lake.store.get(lake.roots.key(table.metadata_location)) is not None, "nothing is deleted here"
    # pyiceberg takes every 409 here for a name in use.
    with pytest.raises((CommitFailedException, TableAlreadyExistsError), match="dropped with purge"):
        client.register_table("ns.t", table.metadata_location)
    shared = client.create_table("ns.t", ROWS.schema, properties={"gc.enabled": "false"})
    client.purge_table("ns.t")
    assert lake.store.get(claim_key(str(shared.metadata.table_uuid))) is None, "dropped, not marked"
    assert client.register_table("ns.t", shared.metadata_location).metadata == shared.metadata


def test_values_of_properties_are_texts_as_pyiceberg_writes_them(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    client.create_table("ns.t", ROWS.schema, properties={"a": True, "b": 5})
    found = lake.open().load_table("ns.t").properties
    assert (found["a"], found["b"]) == ("true", "5")
    with pytest.raises(ValueError, match="None type is not a supported value in properties: a"):
        client.create_table("ns.u", ROWS.schema, properties={"a": None})
    assert not client.table_exists("ns.u")


def test_properties_of_a_table_that_are_not_properties(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    table = client.create_table("ns.t", ROWS.schema, properties={"format-version": "1"})
    with pytest.raises(BadRequestError, match="format-version is not set as a property"):
        table.transaction().set_properties({"format-version": "3"}).commit_transaction()
    with pytest.raises(BadRequestError, match="current-snapshot-id is not set as a property"):
        table.transaction().set_properties({"current-snapshot-id": "3"}).commit_transaction()
    table.transaction().upgrade_table_version(2).commit_transaction()
    table.transaction().set_properties({"a": "1", "b": "2"}).commit_transaction()
    table.transaction().remove_properties("b").commit_transaction()
    found = lake.open().load_table("ns.t")
    assert found.metadata.format_version == 2
    assert found.properties["a"] == "1"
    assert "b" not in found.properties


def test_missing_namespaces_and_tables_are_named(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    with pytest.raises(NoSuchNamespaceError, match="Namespace does not exist: nope"):
        client.create_table("nope.t", ROWS.schema)
    with pytest.raises(NoSuchNamespaceError, match="Namespace does not exist: nope"):
        client.list_tables("nope")
    with pytest.raises(NoSuchTableError, match=re.escape("Table does not exist: nope.t")):
        client.load_table("nope.t")
    with pytest.raises(NoSuchTableError, match=re.escape("Table does not exist: ns.t")):
        client.load_table("ns.t")


def test_a_rich_schema_gets_fresh_ids(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    schema = Schema(
        NestedField(10, "id", LongType(), required=True),
        NestedField(
            20,
            "where",
            StructType(NestedField(21, "lat", LongType()), NestedField(22, "lon", LongType())),
        ),
        NestedField(30, "tags", ListType(31, StringType(), element_required=False)),
        NestedField(40, "more", MapType(41, StringType(), 42, LongType(), value_required=False)),
        NestedField(50, "at", TimestampType()),
        identifier_field_ids=[10],
    )
    spec = PartitionSpec(
        PartitionField(50, 1000, DayTransform(), "at_day"), PartitionField(10, 1001, BucketTransform(8), "b")
    )
    order = SortOrder(SortField(50, IdentityTransform()))
    table = client.create_table("ns.t", schema, partition_spec=spec, sort_order=order)
    assert [field.field_id for field in table.schema().fields] == [1, 2, 3, 4, 5]
    assert table.schema().find_field("where.lon").field_id == 7
    assert table.schema().highest_field_id == table.metadata.last_column_id == 10
    assert table.schema().identifier_field_ids == [1]
    assert [(f.source_id, f.field_id) for f in table.spec().fields] == [(5, 1000), (1, 1001)]
    assert table.sort_order().fields[0].source_id == 5
    assert lake.open().load_table("ns.t").metadata == table.metadata


def test_schemas_specs_and_properties_evolve(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    table = client.create_table("ns.t", ROWS.schema)
    table.append(ROWS)
    with table.update_schema() as change:
        change.add_column("n", LongType())
        change.rename_column("who", "name")
    with table.update_spec() as change:
        change.add_field("id", BucketTransform(4), "bucket")
    with table.transaction() as tx:
        tx.set_properties(a="1", b="2")
        tx.remove_properties("b")
    table.append(pa.table({"id": [9], "name": ["z"], "n": [7]}))
    with table.manage_snapshots() as manage:
        manage.create_tag(table.current_snapshot().snapshot_id, "v1")
    found = lake.open().load_table("ns.t")
    assert found.schema().column_names == ["id", "name", "n"]
    assert found.schema().schema_id == 1
    assert found.spec().spec_id == 1
    assert found.properties["a"] == "1"
    assert "b" not in found.properties
    assert set(found.refs()) == {"main", "v1"}
    assert found.scan().to_arrow().sort_by("id")["n"].to_pylist() == [None, None, None, 7]
    assert len(found.metadata.metadata_log) == 6
    assert [entry.snapshot_id for entry in found.history()] == [s.snapshot_id for s in found.snapshots()]


def test_a_staged_create_is_nothing_until_it_commits(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    with client.create_table_transaction("ns.t", ROWS.schema, properties={"k": "v"}) as tx:
        tx.append(ROWS)
        assert not lake.open().table_exists("ns.t")
        staged = tx.table_metadata
    table = lake.open().load_table("ns.t")
    assert table.scan().to_arrow().num_rows == 3
    assert table.location() == staged.location
    assert table.metadata.table_uuid == staged.table_uuid
    assert table.properties["k"] == "v"
    with pytest.raises(TableAlreadyExistsError):
        client.create_table_transaction("ns.t", ROWS.schema)


def test_of_two_staged_creates_one_wins(lake: Lake) -> None:
    client, other = lake.open(), lake.open()
    client.create_namespace("ns")
    first = client.create_table_transaction("ns.t", ROWS.schema)
    second = other.create_table_transaction("ns.t", ROWS.schema)
    first.append(ROWS)
    first.commit_transaction()
    second.append(ROWS)
    with pytest.raises((CommitFailedException, TableAlreadyExistsError), match="already exists"):
        second.commit_transaction()
    assert client.load_table("ns.t").scan().to_arrow().num_rows == 3


def test_a_stale_commit_is_a_conflict_and_changes_nothing(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    client.create_table("ns.t", ROWS.schema, properties={"commit.retry.num-retries": "0"})
    stale = lake.open().load_table("ns.t")
    client.load_table("ns.t").append(ROWS)
    with pytest.raises(CommitFailedException, match="Requirement failed: branch main"):
        stale.append(ROWS)
    assert client.load_table("ns.t").scan().to_arrow().num_rows == 3


def test_a_lost_race_whose_assertions_hold_goes_through(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    table = client.create_table("ns.t", ROWS.schema)
    stale = lake.open().load_table("ns.t")
    table.append(ROWS)
    with stale.transaction() as tx:
        tx.set_properties(late="yes")
    found = client.load_table("ns.t")
    assert found.properties["late"] == "yes"
    assert found.scan().to_arrow().num_rows == 3


def test_locations_are_chosen_by_the_catalog(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    folder = f"{lake.roots.warehouse}/my/folder"
    one = client.create_table("ns.a", ROWS.schema, location=folder)
    two = client.create_table("ns.b", ROWS.schema, location=folder)
    for table in (one, two):
        assert table.location().startswith(f"{folder}/")
        assert table.location().endswith(str(table.metadata.table_uuid))
    assert one.location() != two.location()
    for bad in (f"{lake.roots.base}/elsewhere", f"{one.location()}/data", "s3://other/warehouse/x"):
        with pytest.raises(BadRequestError, match="Invalid location"):
            client.create_table("ns.c", ROWS.schema, location=bad)
    with pytest.raises(BadRequestError, match=re.escape("write.data.path")):
        client.create_table("ns.c", ROWS.schema, properties={"write.data.path": two.location()})
    with pytest.raises(BadRequestError, match=re.escape("write.metadata.path")), one.transaction() as tx:
        tx.set_properties(**{"write.metadata.path": f"{two.location()}/metadata"})
    assert client.list_tables("ns") == [("ns", "a"), ("ns", "b")]


@pytest.mark.parametrize("name", ["a*b", "a{b}", "$t", "a..b", "x" * 201])
def test_bad_names_are_refused(lake: Lake, name: str) -> None:
    client = lake.client
    client.create_namespace("ns")
    with pytest.raises(BadRequestError, match="Invalid table name"):
        client.create_table(("ns", name), ROWS.schema)
    with pytest.raises(BadRequestError, match="Invalid namespace"):
        client.create_namespace((name,))
    assert client.list_tables("ns") == []


def test_odd_but_good_names_work(lake: Lake) -> None:
    client = lake.client
    for name in ("with space", "Zürich", "50%", "a.b", "~x~", "日本"):
        client.create_namespace((name,))
        client.create_table((name, name), ROWS.schema).append(ROWS)
        assert client.list_tables((name,)) == [(name, name)]
        assert lake.open().load_table((name, name)).scan().to_arrow().num_rows == 3
    assert sorted(client.list_namespaces()) == sorted(
        (n,) for n in ("with space", "Zürich", "50%", "a.b", "~x~", "日本")
    )


def test_metadata_log_is_bounded(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    table = client.create_table("ns.t", ROWS.schema, properties={"write.metadata.previous-versions-max": "3"})
    locations = [table.metadata_location]
    for number in range(6):
        with table.transaction() as tx:
            tx.set_properties(n=str(number))
        locations.append(table.metadata_location)
    assert [entry.metadata_file for entry in table.metadata.metadata_log] == locations[-4:-1]
    names = [location.rsplit("/", 1)[1] for location in locations]
    assert [name[:6] for name in names] == [f"{n:05}-" for n in range(7)]


def append_until_done(
    lake: Lake, writer: int, appends: int, barrier: threading.Barrier, failures: list
) -> None:
    try:
        table = lake.open().load_table("ns.t")
        barrier.wait(timeout=60)
        for number in range(appends):
            rows = pa.table(
                {"writer": pa.array([writer] * 5, pa.int64()), "n": pa.array([number] * 5, pa.int64())}
            )
            table.append(rows)
    except BaseException as error:
        failures.append(error)
        raise


@pytest.mark.in_turn(4, "32 writers of pyiceberg lose commits, not those of our own client")
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_32_writers_at_once_lose_nothing(rest_lake: Lake, record_property) -> None:
    client = rest_lake.client
    client.create_namespace("ns")
    client.create_table(
        "ns.t",
        pa.schema([("writer", pa.int64()), ("n", pa.int64())]),
        properties={
            "commit.retry.num-retries": "400",
            "commit.retry.min-wait-ms": "5",
            "commit.retry.max-wait-ms": "200",
        },
    )
    writers, appends = 32, 2
    barrier, failures = threading.Barrier(writers), []
    threads = [
        threading.Thread(target=append_until_done, args=(rest_lake, w, appends, barrier, failures))
        for w in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
    assert failures == []
    table = client.load_table("ns.t")
    found = table.scan().to_arrow()
    counted = found.group_by(["writer", "n"]).aggregate([("n", "count")])
    assert found.num_rows == writers * appends * 5
    assert counted.num_rows == writers * appends
    assert set(counted["n_count"].to_pylist()) == {5}
    snapshots = table.snapshots()
    assert len(snapshots) == writers * appends
    parents = [s.parent_snapshot_id for s in snapshots]
    assert parents == [None, *(s.snapshot_id for s in snapshots[:-1])], "one chain, no branch in it"
    assert [s.sequence_number for s in snapshots] == list(range(1, len(snapshots) + 1))
    record_property("commits", len(snapshots))
