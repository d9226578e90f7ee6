"""Views: the state of a name as tables have it, one version after the other, atomic whatever fails."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import Any

import orjson
import pytest
from pyiceberg.exceptions import (
    NamespaceNotEmptyError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewVersion

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    InvalidLocationError,
    TarnError,
)
from tarn.core.errors import NoSuchTableError as NoSuchTable
from tarn.core.errors import NoSuchViewError as NoView
from tarn.core.metadata_json import packed, unpacked
from tarn.keeper.fsck import Report, fsck
from tarn_catalog.metadata import view_metadata
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.views import CreateViewRequest, parsed
from tarn_catalog.testing.faulty_store import Crash, Fault, no_faults
from tests.contract.catalog.conftest import Lake
from tests.contract.catalog.test_commits import NEW, SLOT, World, append, repeat, staged

COLUMNS = Schema(NestedField(1, "x", LongType(), required=False))
SCHEMA = {"type": "struct", "fields": [{"id": 3, "name": "x", "type": "long", "required": False}]}
V, W = (TableIdentifier.of(("ns",), name, "view") for name in ("v", "w"))
T = TableIdentifier.of(("ns",), "v")


def version(sql: str = "select 1", *dialects: str, number: int = 1, at_ms: int = 1_000) -> dict[str, Any]:
    return {
        "version-id": number,
        "timestamp-ms": at_ms,
        "schema-id": 0,
        "summary": {"engine-name": "test"},
        "representations": [
            {"type": "sql", "sql": sql, "dialect": dialect} for dialect in dialects or ("spark",)
        ],
        "default-namespace": ["ns"],
    }


def wanted(sql: str = "select 1", *dialects: str, **properties: str) -> CreateViewRequest:
    return CreateViewRequest(schema=SCHEMA, version=version(sql, *dialects), properties=properties)


def replaced(sql: str, *dialects: str, at_ms: int = 2_000) -> list[dict[str, Any]]:
    """The updates of CREATE OR REPLACE VIEW."""
    return [
        {"action": "add-schema", "schema": SCHEMA},
        {
            "action": "add-view-version",
            "view-version": {**version(sql, *dialects, at_ms=at_ms), "schema-id": -1},
        },
        {"action": "set-current-view-version", "view-version-id": -1},
    ]


def sql_of(catalog: Catalog, slot: TableIdentifier = V) -> str:
    meta = parsed(catalog.tables.load(slot))
    current = next(v for v in meta["versions"] if v["version-id"] == meta["current-version-id"])
    return str(current["representations"][0]["sql"])


def check(store: MemoryStore) -> Report:
    return fsck(PlainBulk(store), manifest_audit, bucket="tarn", tell=lambda _: None, sleep=lambda _: None)


@pytest.fixture
def world() -> World:
    return World()


# -- as clients see them


def test_a_view_has_its_name_alone_and_comes_back_as_it_was_made(lake: Lake) -> None:
    client = lake.client
    client.create_namespace("ns")
    client.create_table("ns.t", schema=COLUMNS)
    query = SQLViewRepresentation(type="sql", sql="select x from ns.t", dialect="spark")
    first = ViewVersion(
        **{"version-id": 1, "schema-id": 0, "timestamp-ms": 1_000, "default-namespace": ["ns"]},
        summary={"engine-name": "test"},
        representations=[query],
    )
    stored = {"comment": "all of it", "trino.run-as-owner": "admin"}
    made = client.create_view("ns.v", COLUMNS, first, properties=stored)
    found = lake.open().load_view("ns.v")
    assert found == made
    assert (found.name(), found.properties) == (("ns", "v"), {"comment": "all of it"})
    assert found.sql_for("SPARK") == query
    assert [column.name for column in found.schema().fields] == ["x"]
    assert (client.list_views("ns"), client.list_tables("ns")) == ([("ns", "v")], [("ns", "t")])
    assert (client.view_exists("ns.v"), client.view_exists("ns.t"), client.table_exists("ns.v")) == (
        True,
        False,
        False,
    )
    with pytest.raises(NoSuchTableError):
        client.load_table("ns.v")
    with pytest.raises(NoSuchViewError):
        client.load_view("ns.t")
    with pytest.raises(NoSuchViewError):
        client.drop_view("ns.t")
    with pytest.raises(ViewAlreadyExistsError):
        client.create_view("ns.v", COLUMNS, first)
    with pytest.raises(ViewAlreadyExistsError, match=r"Table with same name already exists: ns\.t"):
        client.create_view("ns.t", COLUMNS, first)
    with pytest.raises(TableAlreadyExistsError, match=r"View with same name already exists: ns\.v"):
        client.create_table("ns.v", schema=COLUMNS)
    client.drop_table("ns.t")
    with pytest.raises(NamespaceNotEmptyError):
        client.drop_namespace("ns")
    location = lake.core.tables.load(V).location
    client.drop_view("ns.v")
    assert not client.view_exists("ns.v")
    back = client.register_view("ns.w", location)
    assert (back.name(), back.metadata) == (("ns", "w"), made.metadata)
    client.drop_view("ns.w")
    client.drop_namespace("ns")


def test_a_dropped_name_may_be_a_view_and_a_table_again(world: World) -> None:
    catalog = world.catalog
    for _ in range(2):
        catalog.tables.create(T, NEW)
        catalog.tables.drop(T)
        catalog.views.create(V, wanted())
        assert world.pointer(V).kind == "view"
        catalog.tables.drop(V)
        assert world.pointer(V).kind == "table", "a release without views can use the name again"
    catalog.views.create(V, wanted())
    catalog.names.rename(V, W)
    assert (world.pointer(V).kind, world.pointer(W).kind) == ("table", "view")
    assert check(world.memory).findings == []


def test_a_commit_to_a_table_never_meets_a_view(world: World) -> None:
    """Not by the cached pointer of the name, nor by the way that a renamed view left."""
    own = world.another()
    own.tables.create(T, NEW)
    change = [{"action": "set-properties", "updates": {"a": "1"}}]
    own.tables.commit(T, [], change)
    own.tables.drop(T)
    own.views.create(V, wanted())
    for number in range(2):
        own.views.commit(V, [], [{"action": "set-properties", "updates": {"b": str(number)}}])
        with pytest.raises(NoSuchTable, match=r"Table does not exist: ns\.v"):
            own.tables.commit(T, [], change)
        own.names.rename(V, W)
        with pytest.raises(NoSuchTable, match=r"Table does not exist: ns\.v"):
            own.tables.commit(T, *append(1, None, 1))
        own.names.rename(W, V)
    with pytest.raises(AlreadyExistsError, match=r"View with same name already exists: ns\.v"):
        own.tables.stage(T, NEW)
    begun = staged(world)
    own.views.create(TableIdentifier.of(("ns",), SLOT.name, "view"), wanted())
    with pytest.raises(AlreadyExistsError, match=r"View with same name already exists: ns\."):
        own.tables.commit(SLOT, *begun)
    for updates in (change, append(1, None, 1)[1]):
        with pytest.raises(NoSuchTable):
            own.together.commit([Change(slot=T, requirements=[], updates=updates)])
    assert sql_of(own) == "select 1"


# -- versions


def test_a_replaced_view_keeps_its_versions_and_their_times(world: World) -> None:
    catalog = world.catalog
    catalog.views.create(V, wanted())
    for number in (2, 3):
        catalog.views.commit(V, [], replaced(f"select {number}", at_ms=number * 1_000))
    before = parsed(catalog.tables.load(V))
    assert [v["version-id"] for v in before["versions"]] == [1, 2, 3]
    assert len(before["schemas"]) == 1
    catalog.views.commit(V, [], [{"action": "set-current-view-version", "view-version-id": 1}])
    catalog.views.commit(V, [], replaced("select 3"))  # as version 3: nothing is added
    meta = parsed(catalog.tables.load(V))
    assert [v["version-id"] for v in meta["versions"]] == [1, 2, 3]
    assert [(e["version-id"], e["timestamp-ms"]) for e in meta["version-log"][:3]] == [
        (1, 1_000),
        (2, 2_000),
        (3, 3_000),
    ]
    assert [e["version-id"] for e in meta["version-log"][3:]] == [1, 3]
    assert all(e["timestamp-ms"] > 3_000 for e in meta["version-log"][3:]), "the time of the change"
    assert sql_of(catalog) == "select 3"
    swaps = world.pointer(V).version
    catalog.views.commit(V, [], replaced("select 3"))
    assert world.pointer(V).version == swaps, "what changes nothing writes nothing"


def test_old_versions_expire_and_the_log_ends_where_they_did(world: World) -> None:
    catalog = world.catalog
    catalog.views.create(V, wanted(**{"version.history.num-entries": "3"}))
    for number in range(2, 7):
        catalog.views.commit(V, [], replaced(f"select {number}"))
    meta = parsed(catalog.tables.load(V))
    assert [v["version-id"] for v in meta["versions"]] == [4, 5, 6]
    assert [e["version-id"] for e in meta["version-log"]] == [4, 5, 6]
    catalog.views.commit(V, [], [{"action": "set-current-view-version", "view-version-id": 4}])
    for number in (7, 8):
        current = [{"action": "set-current-view-version", "view-version-id": 4}]
        catalog.views.commit(V, [], [*replaced(f"select {number}"), *current])
    meta = parsed(catalog.tables.load(V))
    assert [v["version-id"] for v in meta["versions"]] == [4, 7, 8], "the current one stays, however old"
    assert meta["current-version-id"] == 4
    assert {e["version-id"] for e in meta["version-log"]} <= {4, 7, 8}


def test_a_dialect_is_not_lost_unless_the_view_allows_it(world: World) -> None:
    catalog = world.catalog
    catalog.views.create(V, wanted("select 1", "spark", "trino"))
    with pytest.raises(InvalidError, match="loss of view dialects"):
        catalog.views.commit(V, [], replaced("select 2", "TRINO"))
    allowed = {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}}
    catalog.views.commit(V, [], [allowed, *replaced("select 2", "TRINO")])
    assert sql_of(catalog) == "select 2"


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ([{"action": "add-snapshot"}], "Unknown update of a view: add-snapshot"),
        ([{"action": "assign-uuid", "uuid": "x"}], "Cannot reassign uuid"),
        ([{"action": "upgrade-format-version", "format-version": 2}], "Unsupported format version: v2"),
        ([{"action": "set-current-view-version", "view-version-id": 7}], "unknown version: 7"),
        (
            [{"action": "set-current-view-version", "view-version-id": -1}],
            "no current version id has been set",
        ),
        (
            [{"action": "add-view-version", "view-version": {**version(), "schema-id": 4}}],
            "unknown schema: 4",
        ),
        (
            [{"action": "add-view-version", "view-version": {**version(), "schema-id": -1}}],
            "no schema has been",
        ),
        (
            [{"action": "add-schema", "schema": {**SCHEMA, "identifier-field-ids": [3]}}],
            "cannot add field x as an identifier",
        ),
        (replaced("select 2", "spark", "Spark"), "Cannot add multiple queries for dialect Spark"),
        ([{"action": "add-view-version", "view-version": {}}], "version-id is missing or no number"),
        ([{"action": "set-properties", "updates": {"version.history.num-entries": "0"}}], "must be positive"),
        ([{"action": "set-properties", "updates": {"version.history.num-entries": "9" * 5_000}}], "positive"),
        ([{"action": "set-properties", "updates": {"version.history.num-entries": "many"}}], "positive"),
        ([{"action": "set-properties", "updates": {"a": 1}}], "must map names to strings"),
        ([{"action": "remove-properties", "removals": "a"}], "must be a list of names"),
        (
            [{"action": "set-properties", "updates": {"a": str(number)}} for number in range(1_001)],
            "Cannot apply 1001 updates of a view at once: at most 1000",
        ),
    ],
)
def test_a_bad_update_is_refused_and_changes_nothing(
    world: World, updates: list[dict[str, Any]], message: str
) -> None:
    world.catalog.views.create(V, wanted())
    before = world.pointer(V)
    with pytest.raises(InvalidError, match=message):
        world.catalog.views.commit(V, [], updates)
    assert world.pointer(V) == before


def test_a_schema_that_readers_cannot_parse_is_refused(world: World) -> None:
    wide = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "decimal(39,2)", "required": False}]}
    with pytest.raises(InvalidError, match="its precision is at most 38"):
        world.catalog.views.create(V, CreateViewRequest(schema=wide, version=version(), properties={}))
    nothing = {**SCHEMA, "fields": [{**SCHEMA["fields"][0], "write-default": None}]}
    made = world.catalog.views.create(V, CreateViewRequest(schema=nothing, version=version(), properties={}))
    assert "write-default" not in orjson.loads(made.raw)["schemas"][0]["fields"][0]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("timestamp-ms", "now", "timestamp-ms is missing or no number"),
        ("timestamp-ms", 2**63, "timestamp-ms is missing or no number from 0"),
        ("version-id", 2**31, "version-id is missing or no number from 0 to 2147483647"),
        ("version-id", -1, "version-id is missing or no number from 0"),
        ("summary", {"a": {"b": 1}}, "summary must map"),
        ("summary", {"a": 1}, "summary must map names to strings"),
        ("default-namespace", "ns", "default-namespace must be a list"),
        ("default-catalog", 1, "default-catalog is no text"),
        ("representations", [], "it has no representations"),
        ("representations", [{"type": "sql", "sql": "x"}], "no dialect or no sql"),
        ("representations", [{"type": "plan", "sql": "x", "dialect": "a"}], "representation of type 'plan'"),
    ],
)
def test_a_bad_version_is_refused(world: World, field: str, value: object, message: str) -> None:
    bad = CreateViewRequest(schema=SCHEMA, version={**version(), field: value}, properties={})
    with pytest.raises(InvalidError, match=message):
        world.catalog.views.create(V, bad)
    assert not world.catalog.tables.exists(V)


def test_a_view_may_move_within_the_warehouse_and_keeps_a_folder_of_its_own(world: World) -> None:
    meta = parsed(world.catalog.views.create(V, wanted()))
    location = meta["location"]
    swaps = world.pointer(V).version
    world.catalog.views.commit(V, [], [{"action": "set-location", "location": location}])
    assert world.pointer(V).version == swaps
    move = [{"action": "set-location", "location": "s3://tarn/warehouse/elsewhere/"}]
    stored = world.catalog.views.commit(V, [], move)
    moved = f"s3://tarn/warehouse/elsewhere/v-{meta['view-uuid']}"
    assert parsed(stored)["location"] == moved
    assert stored.location.startswith(f"{moved}/metadata/00001-")
    world.catalog.tables.drop(V)
    world.catalog.names.register(W, stored.location)
    assert sql_of(world.catalog, W) == "select 1"
    for bad in (f"{location}/below", "s3://other/x"):
        with pytest.raises(InvalidLocationError):
            world.catalog.views.commit(W, [], [{"action": "set-location", "location": bad}])


def test_a_change_is_for_the_view_that_was_meant(world: World) -> None:
    world.catalog.views.create(V, wanted())
    with pytest.raises(InvalidLocationError, match=r"write\.metadata\.path"):
        world.catalog.views.create(W, wanted(**{"write.metadata.path": "s3://other/x"}))
    with pytest.raises(ConflictError, match="view UUID does not match"):
        world.catalog.views.commit(V, [{"type": "assert-view-uuid", "uuid": "x"}], replaced("select 2"))
    with pytest.raises(InvalidError, match="Unknown requirement type: assert-table-uuid"):
        world.catalog.views.commit(V, [{"type": "assert-table-uuid", "uuid": "x"}], replaced("select 2"))
    assert sql_of(world.catalog) == "select 1"


# -- where write.metadata.path asks for it

PATH = "write.metadata.path"
ASKED = "s3://tarn/warehouse/asked"


def asks(path: str, **more: str) -> list[dict[str, Any]]:
    return [{"action": "set-properties", "updates": {PATH: path, **more}}]


def moves(location: str) -> list[dict[str, Any]]:
    return [{"action": "set-location", "location": location}]


def test_a_view_is_made_where_its_metadata_path_asks(lake: Lake) -> None:
    lake.client.create_namespace("ns")
    query = SQLViewRepresentation(type="sql", sql="select 1", dialect="spark")
    first = ViewVersion(
        **{"version-id": 1, "schema-id": 0, "timestamp-ms": 1_000, "default-namespace": ["ns"]},
        summary={},
        representations=[query],
    )
    asked = f"{lake.roots.warehouse}/asked/for"
    other = f"{lake.roots.warehouse}/other"
    made = lake.client.create_view("ns.v", COLUMNS, first, location=other, properties={PATH: asked})
    stored = lake.core.tables.load(V)
    own = f"{asked}/v-{made.metadata.view_uuid}"
    assert made.metadata.location == own
    assert made.properties == {PATH: asked}
    assert stored.location == f"{own}/metadata/00000-{made.metadata.view_uuid}.metadata.json"
    for change in (replaced("select 2"), asks(f"{asked}/", x="y"), moves(other)):
        stored = lake.core.views.commit(V, [], change)
        assert stored.location.startswith(f"{own}/metadata/")
        assert parsed(stored)["location"] == own
    lake.client.drop_view("ns.v")
    assert lake.client.register_view("ns.w", stored.location).metadata.location == own


def test_a_view_moves_where_its_metadata_path_asks_and_stays_there(world: World) -> None:
    catalog = world.catalog
    number = parsed(catalog.views.create(V, wanted()))["view-uuid"]
    own = f"{ASKED}/v-{number}"
    stored = catalog.views.commit(V, [], asks(ASKED))
    assert stored.location.startswith(f"{own}/metadata/00001-")
    swaps = world.pointer(V).version
    for nothing in (asks(ASKED), moves(own), moves("s3://tarn/warehouse/other")):
        catalog.views.commit(V, [], nothing)
    assert world.pointer(V).version == swaps, "the property is there, and the view where it asks for"
    catalog.names.rename(V, W)
    for same in (asks(ASKED, x="y"), asks(f"{ASKED}/")):
        assert parsed(catalog.views.commit(W, [], same))["location"] == own
    gone = [{"action": "remove-properties", "removals": [PATH]}]
    assert parsed(catalog.views.commit(W, [], gone))["location"] == own
    moved = parsed(catalog.views.commit(W, [], moves("s3://tarn/warehouse/other")))
    assert moved["location"] == f"s3://tarn/warehouse/other/w-{number}"
    assert (check(world.memory).findings, sql_of(catalog, W)) == ([], "select 1")


@pytest.mark.parametrize("below", ["", "/", "/metadata", "/below/it/"])
def test_a_metadata_path_within_the_views_location_asks_for_nothing(world: World, below: str) -> None:
    location = parsed(world.catalog.views.create(V, wanted()))["location"]
    stored = world.catalog.views.commit(V, [], asks(f"{location}{below}"))
    assert stored.location.startswith(f"{location}/metadata/00001-")
    assert parsed(stored)["location"] == location
    with pytest.raises(InvalidLocationError, match=r"Invalid write\.metadata\.path"):
        world.catalog.views.commit(V, [], moves(ASKED))
    beside = parsed(world.catalog.views.commit(V, [], asks(f"{location}-2")))["location"]
    assert beside.startswith(f"{location}-2/v-")
    both = [{"action": "remove-properties", "removals": [PATH]}, *moves(ASKED)]
    assert parsed(world.catalog.views.commit(V, [], both))["location"].startswith(f"{ASKED}/v-")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "s3://tarn",
        "s3://tarn/catalog/v1/pointers/ns",
        "s3://tarn/warehouse-2/x",
        "s3://other/warehouse/x",
        "file:///tmp",
        "s3://tarn/warehouse/../catalog/v1",
        "s3://tarn/warehouse/x/..",
        "s3://tarn/warehouse/./x",
        "s3://tarn/warehouse//x",
        "s3://tarn/warehouse/x\n",
        "s3://tarn/warehouse/%2e%2e/x",
        "s3://tarn/warehouse/*",
        f"s3://tarn/warehouse/{'x' * 900}",
        "TABLE",
        "TABLE/",
        "TABLE/metadata",
        "TABLE/data/x",
        "VIEW",
        "VIEW/metadata",
        "OWN/../../x",
        "OWN/metadata/..",
    ],
)
def test_a_metadata_path_elsewhere_is_refused_and_changes_nothing(world: World, path: str) -> None:
    catalog = world.catalog
    table = catalog.tables.create(TableIdentifier.of(("ns",), "t"), NEW).parsed["location"]
    view = parsed(catalog.views.create(W, wanted()))["location"]
    own = parsed(catalog.views.create(V, wanted()))["location"]
    path = path.replace("TABLE", table).replace("VIEW", view).replace("OWN", own)
    before = [(one.key, one.etag) for one in world.memory.list("")]
    another = TableIdentifier.of(("ns",), "another", "view")
    with pytest.raises(InvalidLocationError, match=r"Invalid write\.metadata\.path"):
        catalog.views.create(another, wanted(**{PATH: path}))
    for more in ([], moves(ASKED), replaced("select 2")):
        with pytest.raises(InvalidLocationError, match=r"Invalid write\.metadata\.path"):
            catalog.views.commit(V, [], [*asks(path), *more])
    assert [(one.key, one.etag) for one in world.memory.list("")] == before


def test_a_metadata_path_excuses_no_other_location_and_no_other_path(world: World) -> None:
    bad = CreateViewRequest(
        schema=SCHEMA, version=version(), properties={PATH: ASKED}, location="s3://other/x"
    )
    with pytest.raises(InvalidLocationError, match="Invalid location s3://other/x"):
        world.catalog.views.create(V, bad)
    with pytest.raises(InvalidLocationError, match=r"Invalid write\.data\.path"):
        world.catalog.views.create(V, wanted(**{PATH: ASKED, "write.data.path": ASKED}))
    assert not world.catalog.tables.exists(V)
    with pytest.raises(InvalidLocationError, match=r"Invalid write\.metadata\.path"):
        world.catalog.tables.create(T, CreateTableRequest(schema=SCHEMA, properties={PATH: ASKED}))


@pytest.mark.parametrize("path", [ASKED, "s3://other/x", "s3://tarn/warehouse/ns/../ns"])
def test_a_file_whose_metadata_path_asks_for_another_place_is_not_registered(world: World, path: str) -> None:
    stored = world.catalog.views.create(V, wanted(**{PATH: "s3://tarn/warehouse/ns"}))
    world.catalog.tables.drop(V)
    key, meta = stored.location.removeprefix("s3://tarn/"), parsed(stored)
    world.memory.put(key, orjson.dumps({**meta, "properties": {PATH: path}}))
    with pytest.raises(InvalidLocationError, match=r"Invalid write\.metadata\.path"):
        world.healthy().names.register(V, stored.location)
    world.memory.put(key, stored.raw)
    assert world.healthy().names.register(V, stored.location) == stored


# -- names


def test_a_rename_takes_the_view_along_and_never_another_name(world: World) -> None:
    catalog = world.catalog
    catalog.views.create(V, wanted())
    catalog.tables.create(TableIdentifier.of(("ns",), "t"), NEW)
    catalog.views.create(TableIdentifier.of(("ns",), "x", "view"), wanted())
    for name, kind in (("t", "Table"), ("x", "View")):
        taken = TableIdentifier.of(("ns",), name, "view")
        with pytest.raises(
            AlreadyExistsError, match=f"Cannot rename ns.v to ns.{name}. {kind} already exists"
        ):
            catalog.names.rename(V, taken)
    with pytest.raises(NoView, match=r"View does not exist: ns\.t"):
        catalog.names.rename(TableIdentifier.of(("ns",), "t", "view"), W)
    catalog.names.rename(V, W)
    assert sql_of(catalog, W) == "select 1"
    assert world.pointer(W).kind == "view"
    assert check(world.memory).findings == []


def test_a_dropped_view_is_registered_once_and_goes_on(world: World) -> None:
    catalog = world.catalog
    stored = catalog.views.create(V, wanted())
    with pytest.raises(AlreadyExistsError, match="a view has one name"):
        catalog.names.register(W, stored.location)
    with pytest.raises(InvalidError, match="Cannot register"):
        catalog.names.register(TableIdentifier.of(("ns",), "t"), stored.location)
    catalog.tables.drop(V)
    catalog.names.register(W, stored.location)
    catalog.views.commit(W, [], replaced("select 2"))
    assert [v["version-id"] for v in parsed(catalog.tables.load(W))["versions"]] == [1, 2]
    table = catalog.tables.create(TableIdentifier.of(("ns",), "t"), NEW)
    catalog.tables.drop(TableIdentifier.of(("ns",), "t"))
    with pytest.raises(InvalidError, match="Cannot register"):
        catalog.names.register(TableIdentifier.of(("ns",), "t", "view"), table.location)
    with pytest.raises(AlreadyExistsError, match=r"View with same name already exists: ns\.w"):
        catalog.names.register(TableIdentifier.of(("ns",), "w"), table.location, overwrite=True)
    assert check(world.memory).findings == []


def test_a_compressed_file_of_a_view_is_registered_and_followed_by_one(world: World) -> None:
    catalog = world.catalog
    stored = catalog.views.create(V, wanted())
    catalog.tables.drop(V)
    location = f"{stored.location.rpartition('/')[0]}/00004-theirs.gz.metadata.json"
    key = location.removeprefix("s3://tarn/")
    world.memory.put(key, packed(stored.raw)[:-1])
    with pytest.raises(InvalidError, match="damaged gzip data"):
        catalog.names.register(W, location)
    world.memory.put(key, packed(stored.raw))
    assert parsed(catalog.names.register(W, location)) == parsed(stored)
    done = catalog.views.commit(W, [], replaced("select 2"))
    assert done.location.rpartition("/")[2].startswith("00005-")
    kept = world.memory.get(done.location.removeprefix("s3://tarn/"))
    assert kept is not None
    assert unpacked(kept.data) == done.raw != kept.data
    assert check(world.memory).findings == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format-version", 2),
        ("format-version", True),
        ("view-uuid", "x"),
        ("current-version-id", 9),
        ("current-version-id", 1.0),
        ("versions", [{**version(), "schema-id": 5}]),
        ("versions", None),
        ("version-log", [{"version-id": 1}]),
        ("version-log", [{"timestamp-ms": 1}]),
        ("version-log", {}),
        ("schemas", [{**SCHEMA, "schema-id": "0"}]),
        ("properties", {"version.history.num-entries": 5}),
        ("properties", {"version.history.num-entries": "many"}),
        ("properties", 7),
        ("location", "s3://tarn/warehouse/ns/other"),
    ],
)
def test_a_file_that_is_no_whole_view_is_not_registered(world: World, field: str, value: object) -> None:
    stored = world.catalog.views.create(V, wanted())
    world.catalog.tables.drop(V)
    key = stored.location.removeprefix("s3://tarn/")
    world.memory.put(key, orjson.dumps({**orjson.loads(stored.raw), field: value}))
    refused = "it was not handed out" if field == "location" else f"Cannot register {stored.location}: "
    with pytest.raises(InvalidError, match=refused):
        world.healthy().names.register(V, stored.location)
    assert not world.catalog.tables.exists(V)


# -- together, and when something breaks


def test_all_of_many_replacements_at_once_are_kept(world: World) -> None:
    world.catalog.views.create(V, wanted(**{"version.history.num-entries": "100"}))

    def replace(writer: int) -> None:
        own = world.another()
        for number in range(5):
            own.views.commit(V, [], replaced(f"select {writer * 10 + number}"))

    writers = [threading.Thread(target=replace, args=(number,)) for number in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    meta = parsed(world.healthy().tables.load(V))
    assert sorted(v["version-id"] for v in meta["versions"]) == list(range(1, 22))
    assert len({v["representations"][0]["sql"] for v in meta["versions"]}) == 21


def test_a_repeated_request_is_carried_out_once(world: World) -> None:
    catalog = world.catalog
    first = catalog.views.create(V, wanted(), repeat=repeat(1, "create"))
    assert catalog.views.create(V, wanted(), repeat=repeat(1, "create")).location == first.location
    key = repeat(2, "replace")
    catalog.views.commit(V, [], replaced("select 2"), repeat=key)
    catalog.views.commit(V, [], replaced("select 3"))
    catalog.views.commit(V, [], replaced("select 2"), repeat=key)
    assert sql_of(catalog) == "select 3", "the repeat is not applied on top of a later one"
    nothing, changed = repeat(3, "replace"), [{"action": "set-current-view-version", "view-version-id": 3}]
    catalog.views.commit(V, [], changed, repeat=nothing)
    catalog.views.commit(V, [], replaced("select 4"))
    catalog.views.commit(V, [], changed, repeat=nothing)
    assert sql_of(catalog) == "select 4", "nor the repeat of one that changed nothing"


def test_a_repeat_of_a_change_that_came_before_a_rename_is_answered_with_the_view(world: World) -> None:
    catalog, key = world.catalog, repeat(1, "replace")
    catalog.views.create(V, wanted())
    done = catalog.views.commit(V, [], replaced("select 2"), repeat=key)
    catalog.names.rename(V, W)
    assert world.another().views.commit(V, [], replaced("select 2"), repeat=key).location == done.location
    assert sql_of(catalog, W) == "select 2"
    catalog.names.rename(W, TableIdentifier.of(("ns",), "x", "view"))
    assert world.another().views.commit(V, [], replaced("select 2"), repeat=key).location == done.location
    for other in (repeat(2, "replace"), None):
        with pytest.raises(NoView):
            catalog.views.commit(V, [], replaced("select 2"), repeat=other)


def test_a_repeated_create_of_a_table_is_never_answered_with_a_view(world: World) -> None:
    catalog, key = world.catalog, repeat(1, "create")
    catalog.tables.create(T, NEW, repeat=key)
    catalog.tables.drop(T)
    catalog.views.create(V, wanted())
    with pytest.raises(NoSuchTable):
        catalog.tables.create(T, NEW, repeat=key)
    assert sql_of(catalog) == "select 1"


def test_many_versions_at_once_stay_with_the_current_one(world: World) -> None:
    catalog = world.catalog
    catalog.views.create(V, wanted(**{"version.history.num-entries": "1"}))
    adds = [{"action": "add-view-version", "view-version": version(f"select {n}", number=n)} for n in (2, 3)]
    catalog.views.commit(V, [], adds)
    meta = parsed(catalog.tables.load(V))
    assert [v["version-id"] for v in meta["versions"]] == [1, 2, 3]
    assert meta["current-version-id"] == 1
    last = version("select 9", number=2**31 - 1)
    catalog.views.commit(V, [], [{"action": "add-view-version", "view-version": last}])
    with pytest.raises(InvalidError, match="Cannot add a version after 2147483647"):
        catalog.views.commit(V, [], replaced("select 10"))


def test_a_registered_view_may_lack_properties_and_is_changed_all_the_same(world: World) -> None:
    stored = world.catalog.views.create(V, wanted())
    world.catalog.tables.drop(V)
    meta = orjson.loads(stored.raw)
    del meta["properties"]
    world.memory.put(stored.location.removeprefix("s3://tarn/"), orjson.dumps(meta))
    catalog = world.healthy()
    catalog.names.register(V, stored.location)
    catalog.views.commit(V, [], replaced("select 2"))
    assert sql_of(catalog) == "select 2"


def test_what_cannot_be_json_is_refused(world: World) -> None:
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"x": deep}
    bad = CreateViewRequest(schema={**SCHEMA, "deep": deep}, version=version(), properties={})
    with pytest.raises(InvalidError, match="Cannot store the metadata"):
        world.catalog.views.create(V, bad)
    assert not world.catalog.tables.exists(V)


OPERATIONS = {
    "create": lambda catalog: catalog.views.create(W, wanted("select 2")),
    "replace": lambda catalog: catalog.views.commit(V, [], replaced("select 2")),
    "rename": lambda catalog: catalog.names.rename(V, W),
    "drop": lambda catalog: catalog.tables.drop(V),
    "register": lambda catalog: catalog.names.register(W, DROPPED[0]),
}
DROPPED: list[str] = []  # the metadata file of a dropped view
AFTER = {
    "create": {"ns.v": "select 1", "ns.w": "select 2"},
    "replace": {"ns.v": "select 2"},
    "rename": {"ns.w": "select 1"},
    "drop": {},
    "register": {"ns.v": "select 1", "ns.w": "select 5"},
}


def views(catalog: Catalog) -> dict[str, str]:
    names = catalog.namespaces.list_tables(("ns",), kind="view").names
    return {".".join(n): sql_of(catalog, TableIdentifier.of(n[:-1], n[-1], "view")) for n in names}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("how", [Fault.CRASH, Fault.CRASH_DONE, Fault.LOST_REPLY])
def test_broken_at_any_step_it_is_done_or_not_and_hinders_nobody(operation: str, how: Fault) -> None:
    outcomes: Counter[str] = Counter()
    for at in itertools.count(1):
        world = World()
        world.catalog.views.create(V, wanted())
        DROPPED[:] = [world.catalog.views.create(W, wanted("select 5")).location]
        world.catalog.tables.drop(W)
        steps = itertools.count(1)
        world.store.plan = lambda _, steps=steps, at=at: how if next(steps) == at else None
        broken = False
        try:
            OPERATIONS[operation](world.another())
        except (Crash, TarnError):
            broken = True
        world.store.plan = no_faults
        healthy = world.healthy()
        found = views(healthy)
        assert found in (AFTER[operation], {"ns.v": "select 1"}), f"{operation} broken at {at}"
        assert broken or found == AFTER[operation]
        outcomes["done" if found == AFTER[operation] else "not done"] += 1
        for name in found:
            slot = TableIdentifier.of(("ns",), name.removeprefix("ns."), "view")
            healthy.views.commit(slot, [], replaced("select 9"))
            assert world.pointer(slot).intent is None
        for slot in (V, W):
            if slot.text not in found:
                healthy.views.create(slot, wanted())
        assert check(world.memory).damage == []
        if next(steps) <= at:
            break
    assert outcomes["done"] >= 1, outcomes
    assert outcomes["not done"] >= 1, outcomes


# -- fsck


@pytest.mark.parametrize("what", ["gone", "broken", "another"])
def test_fsck_reads_the_one_file_of_a_view(world: World, what: str) -> None:
    stored = world.catalog.views.create(V, wanted())
    other = world.catalog.views.create(W, wanted("select 2"))
    clean = check(world.memory)
    assert (clean.findings, clean.orphans, clean.files) == ([], 0, 2)
    key = stored.location.removeprefix("s3://tarn/")
    if what == "gone":
        world.memory.delete(key)
    else:
        world.memory.put(key, b"{}" if what == "broken" else other.raw)
    found = check(world.memory).damage
    kinds = {"gone": "METADATA_MISSING", "broken": "METADATA_UNREADABLE", "another": "METADATA_OTHER"}
    assert [(finding.kind.name, finding.where) for finding in found] == [(kinds[what], "ns.v")]


def test_the_first_metadata_is_that_of_the_specification(world: World) -> None:
    meta = parsed(world.catalog.views.create(V, wanted(comment="c")))
    assert meta == {
        "view-uuid": meta["view-uuid"],
        "format-version": view_metadata.FORMAT_VERSION,
        "location": f"s3://tarn/warehouse/ns/v-{meta['view-uuid']}",
        "schemas": [{**SCHEMA, "schema-id": 0}],
        "current-version-id": 1,
        "versions": [version()],
        "version-log": [{"version-id": 1, "timestamp-ms": 1_000}],
        "properties": {"comment": "c"},
    }
