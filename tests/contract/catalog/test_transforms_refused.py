"""A partition or sort transform that does not fit its column's type is a 400 on every way into a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.errors import InvalidError
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.tables import CreateTableRequest, TableIdentifier
from tarn_catalog.testing.faulty_store import FaultyStore
from tarn_catalog.testing.server import serving
from tests.contract.catalog.test_http import World, error

TABLES = "/v1/namespaces/ns/tables"
KINDS = ("string", "double", "boolean", "date", "variant", "timestamp_ns", "time")
FIELDS = [
    {"id": number, "name": f"c_{kind}", "type": kind, "required": False}
    for number, kind in enumerate(KINDS, start=1)
]
SCHEMA = {"type": "struct", "schema-id": 0, "fields": FIELDS}
V3 = {"format-version": "3"}
WRONG = [
    ("day", "string", "takes date, timestamp", "use identity, truncate or bucket instead"),
    ("bucket[4]", "double", "takes int, long, decimal", "use identity instead"),
    ("truncate[4]", "boolean", "takes int, long, decimal, string, binary", "use identity instead"),
    ("hour", "date", "takes timestamp", "use identity, year, month, day or bucket instead"),
    ("year", "time", "takes date", "use identity or bucket instead"),
    ("identity", "variant", "takes any but geometry", "leave it out"),
]


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = orjson.loads(orjson.dumps(SCHEMA))
    return loaded


def spec(transform: str, kind: str) -> dict[str, Any]:
    source = KINDS.index(kind) + 1
    return {
        "spec-id": 0,
        "fields": [{"source-id": source, "field-id": 1000, "name": "p", "transform": transform}],
    }


def order(transform: str, kind: str) -> dict[str, Any]:
    field = {"transform": transform, "source-id": KINDS.index(kind) + 1}
    return {"order-id": 1, "fields": [{**field, "direction": "asc", "null-order": "nulls-first"}]}


def new(name: str = "t", **more: Any) -> dict[str, Any]:
    return {"name": name, "schema": schema(), "properties": V3, **more}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    store = FaultyStore(MemoryStore())
    catalog = Catalog(store, WarehouseLayout(base="s3://tarn"))
    folder: Path = tmp_path_factory.mktemp("secrets")
    with serving(catalog, folder) as running:
        made = World(store, running)
        made.post("/v1/namespaces", {"namespace": ["ns"]})
        answer = made.post(TABLES, new())
        assert answer.status_code == 200, answer.text
        yield made
        made.close()


def add_spec(transform: str, kind: str) -> list[dict[str, Any]]:
    return [
        {"action": "add-spec", "spec": {**spec(transform, kind), "spec-id": 1}},
        {"action": "set-default-spec", "spec-id": -1},
    ]


def commit(world: World, updates: list[dict[str, Any]]) -> httpx.Response:
    return world.post(f"{TABLES}/t", {"requirements": [], "updates": updates})


def replaced(world: World, transform: str, kind: str) -> httpx.Response:
    """As engines send CREATE OR REPLACE: the schema again, and then a partitioning of it."""
    again = {**schema(), "schema-id": 1}
    head: list[dict[str, Any]] = [
        {"action": "add-schema", "schema": again, "last-column-id": len(KINDS)},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    return commit(world, head + add_spec(transform, kind))


def transaction(world: World, transform: str, kind: str) -> httpx.Response:
    change = {
        "identifier": {"namespace": ["ns"], "name": "t"},
        "requirements": [],
        "updates": add_spec(transform, kind),
    }
    return world.post("/v1/transactions/commit", {"table-changes": [change]})


def created_in_steps(world: World, transform: str, kind: str) -> httpx.Response:
    """The commit that ends a staged create, with another partitioning than was staged."""
    staged = world.post(TABLES, new("staged", **{"stage-create": True})).json()["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 3},
        {"action": "add-schema", "schema": staged["schemas"][0], "last-column-id": len(KINDS)},
        {"action": "set-current-schema", "schema-id": -1},
        *add_spec(transform, kind),
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
    ]
    return world.post(f"{TABLES}/staged", {"requirements": [{"type": "assert-create"}], "updates": updates})


WAYS: dict[str, Callable[[World, str, str], httpx.Response]] = {
    "create": lambda w, t, k: w.post(TABLES, new("u", **{"partition-spec": spec(t, k)})),
    "create, sorted": lambda w, t, k: w.post(TABLES, new("u", **{"write-order": order(t, k)})),
    "staged create": lambda w, t, k: w.post(
        TABLES, new("u", **{"partition-spec": spec(t, k), "stage-create": True})
    ),
    "end of a staged create": created_in_steps,
    "commit": lambda w, t, k: commit(w, add_spec(t, k)),
    "commit of a spec that is not the default": lambda w, t, k: commit(w, add_spec(t, k)[:1]),
    "commit, sorted": lambda w, t, k: commit(w, [{"action": "add-sort-order", "sort-order": order(t, k)}]),
    "replace": replaced,
    "transaction": transaction,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("transform", "kind", "takes", "instead"), WRONG)
def test_it_is_refused_with_type_transform_and_what_fits(
    world: World, way: str, transform: str, kind: str, takes: str, instead: str
) -> None:
    message = error(WAYS[way](world, transform, kind), 400, "BadRequestException")
    assert f"Invalid source type {kind} for transform: {transform} of c_{kind}" in message
    assert f"{transform} {takes}" in message
    assert f"for {kind} " in message
    assert message.endswith(instead)
    names = [one["name"] for one in world.published.get(TABLES).json()["identifiers"]]
    assert names == ["t"], "nothing was created"
    meta = world.published.get(f"{TABLES}/t").json()["metadata"]
    assert [one["fields"] for one in meta["partition-specs"]] == [[]], "nothing was changed"


@pytest.mark.parametrize("way", WAYS)
def test_a_width_that_no_engine_can_read_is_refused(world: World, way: str) -> None:
    message = error(WAYS[way](world, "bucket[2147483648]", "string"), 400, "BadRequestException")
    assert "'bucket[2147483648]'" in message
    assert message.endswith("its width is at most 2147483647, a 32-bit integer")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "variant"])
def test_void_and_what_fits_are_taken(kind: str) -> None:
    catalog = Catalog(MemoryStore(), WarehouseLayout(base="s3://tarn"))
    catalog.namespaces.create(("ns",), {})
    for number, transform in enumerate(("void", "identity")):
        wanted = CreateTableRequest(
            schema=schema(), spec=spec(transform, kind), order=None, properties=dict(V3)
        )
        made = catalog.tables.create(TableIdentifier.of(("ns",), f"t{number}"), wanted).parsed
        assert made["partition-specs"][0]["fields"][0]["transform"] == transform


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_the_catalog_within_a_process_refuses_it_too_in_every_format_version(version: str) -> None:
    catalog = Catalog(MemoryStore(), WarehouseLayout(base="s3://tarn"))
    catalog.namespaces.create(("ns",), {})
    columns = {**schema(), "fields": [f for f in FIELDS if f["type"] not in ("variant", "timestamp_ns")]}
    wanted = CreateTableRequest(
        schema=columns, spec=spec("day", "string"), order=None, properties={"format-version": version}
    )
    with pytest.raises(InvalidError, match=r"Invalid source type string for transform: day of c_string"):
        catalog.tables.create(TableIdentifier.of(("ns",), "t"), wanted)


def test_a_metadata_file_with_such_a_partitioning_is_not_registered() -> None:
    store = MemoryStore()
    layout = WarehouseLayout(base="s3://tarn")
    catalog = Catalog(store, layout)
    catalog.namespaces.create(("ns",), {})
    wanted = CreateTableRequest(
        schema=schema(), spec=spec("identity", "string"), order=None, properties=dict(V3)
    )
    made = catalog.tables.create(TableIdentifier.of(("ns",), "t"), wanted)
    catalog.tables.drop(TableIdentifier.of(("ns",), "t"))
    whole = orjson.loads(orjson.dumps(made.parsed))
    whole["partition-specs"][0]["fields"][0]["transform"] = "day"
    location = f"{made.location.rpartition('/')[0]}/00009-x.metadata.json"
    store.put(layout.key(location), orjson.dumps(whole))
    with pytest.raises(InvalidError, match="Invalid source type string for transform: day"):
        catalog.names.register(TableIdentifier.of(("ns",), "t"), location)
