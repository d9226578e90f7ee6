"""Registering a table: pointers are read once, and the next metadata file has a number."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tarn.core.errors import InvalidError, InvalidLocationError
from tarn.core.naming import POINTERS_PREFIX
from tarn.core.object_store import StoreTooLargeError
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tests.contract.catalog.test_commits import NEW, ROOTS, SLOT, World, append

Json = dict[str, Any]


@pytest.fixture
def world() -> World:
    return World()


def test_a_pointer_that_did_not_change_is_read_once_for_all_registrations(world: World) -> None:
    others = [TableIdentifier.of(("ns",), f"other{number}") for number in range(3)]
    for slot in others:
        world.healthy().tables.create(slot, NEW)
    reads: list[int] = []
    for _ in range(3):
        location = world.healthy().tables.create(SLOT, NEW).location
        world.healthy().tables.drop(SLOT)
        del world.store.seen[:]
        world.catalog.names.register(SLOT, location)
        keys = {slot.key for slot in others}
        reads.append(sum(1 for op in world.store.seen if op.kind == "get" and op.key in keys))
        world.healthy().tables.drop(SLOT)
    assert reads == [len(others), 0, 0]


@pytest.mark.parametrize(
    ("name", "number"), [("v2.metadata.json", "00001"), ("00007-x.metadata.json", "00008")]
)
def test_the_number_of_the_next_metadata_file_follows_the_last_one(
    world: World, name: str, number: str
) -> None:
    first = world.catalog.tables.create(SLOT, NEW)
    world.catalog.tables.drop(SLOT)
    folder = first.location.rpartition("/")[0]
    world.memory.put(ROOTS.key(f"{folder}/{name}"), orjson.dumps(first.parsed))
    registered = world.catalog.names.register(SLOT, f"{folder}/{name}")
    assert registered.location == f"{folder}/{name}"
    done = world.catalog.tables.commit(SLOT, [], [{"action": "set-properties", "updates": {"a": "b"}}])
    assert done.location.startswith(f"{folder}/{number}-")
    assert world.memory.get(f"{POINTERS_PREFIX}ns/t.json") is not None


def changed_file(world: World, change: Callable[[Json], object], properties: Json | None = None) -> str:
    """The location of a changed copy of a dropped table's metadata file; the table has one snapshot."""
    location = world.healthy().tables.create(SLOT, NEW).parsed["location"]
    requirements, updates = append(1, None, 1)
    updates[0]["snapshot"]["manifest-list"] = f"{location}/metadata/snap-1.avro"
    meta = orjson.loads(world.catalog.tables.commit(SLOT, requirements, updates).raw)
    world.catalog.tables.drop(SLOT)
    change(meta)
    meta["properties"] = properties or meta["properties"]
    copied = f"{location}/metadata/00009-x.metadata.json"
    world.memory.put(ROOTS.key(copied), orjson.dumps(meta))
    return copied


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.pop("refs"),
        lambda meta: meta.update({"refs": None}),
        lambda meta: meta.update({"refs": {"seen": {"snapshot-id": 1, "type": "tag"}}}),
    ],
    ids=["missing", "null", "without main"],
)
def test_main_is_at_the_current_snapshot_of_a_file_that_does_not_say_so(
    world: World, change: Callable[[Json], object]
) -> None:
    location = changed_file(world, change)
    registered = world.catalog.names.register(SLOT, location)
    for found in (registered, world.catalog.tables.load(SLOT), world.another().tables.load(SLOT)):
        assert orjson.loads(found.raw) == found.parsed, "readers get what commits build on"
        assert found.parsed["refs"]["main"] == {"snapshot-id": 1, "type": "branch"}
    done = world.another().tables.commit(SLOT, *append(2, 1, 2))
    assert done.parsed["refs"]["main"]["snapshot-id"] == done.parsed["current-snapshot-id"] == 2


def test_a_null_of_a_file_without_a_current_snapshot_is_no_ref(world: World) -> None:
    change = {"refs": None, "current-snapshot-id": -1, "snapshot-log": []}
    world.catalog.names.register(SLOT, changed_file(world, lambda meta: meta.update(change)))
    found = world.another().tables.load(SLOT)
    assert orjson.loads(found.raw)["refs"] == found.parsed["refs"] == {}
    assert world.another().tables.commit(SLOT, *append(2, None, 2)).parsed["refs"].keys() == {"main"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"current-snapshot-id": -1}, "its branch main is at 1, its current-snapshot-id is -1"),
        ({"refs": {"main": {"snapshot-id": 1}}}, r"KeyError\('type'\)"),
        ({"refs": {"main": {"snapshot-id": 1, "type": "twig"}}}, "its ref main is of type 'twig'"),
    ],
)
def test_refs_that_no_reader_accepts_are_refused(world: World, change: Json, said: str) -> None:
    location = changed_file(world, lambda meta: meta.update(change))
    with pytest.raises(InvalidError, match=said):
        world.catalog.names.register(SLOT, location)


@pytest.mark.parametrize("name", ["statistics", "partition-statistics"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"statistics-path": None}, "statistics-path of one of its {name} is missing or no str"),
        ({"statistics-path": 5}, "statistics-path of one of its {name} is missing or no str"),
        ({"file-size-in-bytes": "9"}, "file-size-in-bytes of one of its {name} is missing or no int"),
    ],
)
def test_statistics_without_a_file_are_refused(world: World, name: str, change: Json, said: str) -> None:
    """No reader accepts them, and the reaper would delete nothing of the table."""
    file = {"snapshot-id": 1, "statistics-path": "s3://tarn/x", "file-size-in-bytes": 9}
    location = changed_file(world, lambda meta: meta.update({name: [{**file, **change}]}))
    with pytest.raises(InvalidError, match=said.format(name=name)):
        world.catalog.names.register(SLOT, location)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("write.metadata.compression-codec", "zstd", "give gzip or none"),
        ("write.metadata.previous-versions-max", "abc", "give a number"),
        ("tarn.history", "x", "give 'all', or how many"),
        ("tarn.snapshots-kept", "1" * 5_000, "give a number from 1 to 10000"),
    ],
)
def test_a_property_that_would_refuse_every_commit_is_refused(
    world: World, name: str, value: str, said: str
) -> None:
    location = changed_file(world, lambda _: None, {name: value})
    with pytest.raises(
        InvalidError, match=f"Cannot register .*Invalid {name} .*{said}.*in a copy of the file"
    ):
        world.catalog.names.register(SLOT, location)
    wanted = CreateTableRequest(schema=NEW.schema, properties={name: value})
    for make in (world.catalog.tables.create, world.catalog.tables.stage):
        with pytest.raises(InvalidError, match=f"Invalid {name} .*{said}"):
            make(SLOT, wanted)
    world.catalog.tables.create(SLOT, NEW)
    change = [{"action": "set-properties", "updates": {name: value}}]
    with pytest.raises(InvalidError, match=f"Invalid {name} .*{said}"):
        world.catalog.tables.commit(SLOT, [], change)


FIRST = {"snapshot-id": 1, "timestamp-ms": 1, "sequence-number": 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format-version": "2"}, "its field format-version is missing or no int"),
        ({"format-version": 2.0}, "its field format-version is missing or no int"),
        ({"last-column-id": True}, "its field last-column-id is missing or no int"),
        ({"last-column-id": 2**31}, "its field last-column-id is missing or no int"),
        ({"last-sequence-number": None}, "its field last-sequence-number is missing or no int"),
        ({"format-version": 3}, "its field next-row-id is missing or no int, and its format v3"),
        ({"properties": {"gc.enabled": False}}, "its property gc.enabled is False, no text"),
        ({"metadata-log": "abc"}, "its field metadata-log is no list"),
        ({"metadata-log": ["abc"]}, "its metadata-log hold 'abc', no object"),
        (
            {"metadata-log": [{"metadata-file": "s3://x"}]},
            "timestamp-ms of one of its metadata-log is missing",
        ),
        ({"snapshot-log": [{}]}, "timestamp-ms of one of its snapshot-log is missing"),
        ({"statistics": [{}]}, "snapshot-id of one of its statistics is missing"),
        (
            {"partition-statistics": [{"snapshot-id": "1"}]},
            "of its partition-statistics is missing or no int",
        ),
        ({"encryption-keys": [{}]}, "key-id of one of its encryption-keys is missing"),
        ({"snapshots": [{"snapshot-id": 1}]}, "timestamp-ms of one of its snapshots is missing"),
        ({"snapshots": [{**FIRST, "summary": "x"}]}, "summary of one of its snapshots is no dict"),
        ({"snapshots": [FIRST, FIRST]}, "two of its snapshots have the same snapshot-id"),
        ({"snapshots": [{**FIRST, "parent-snapshot-id": 1}]}, "snapshot 1 is its own ancestor"),
        (
            {
                "snapshots": [
                    FIRST,
                    {**FIRST, "snapshot-id": 4, "parent-snapshot-id": 3},
                    {**FIRST, "snapshot-id": 3, "parent-snapshot-id": 2},
                    {**FIRST, "snapshot-id": 2, "parent-snapshot-id": 3},
                ]
            },
            "snapshot 3 is its own ancestor",
        ),
        (
            {"snapshots": [FIRST, {**FIRST, "snapshot-id": -1}]},
            "the snapshot-id of one of its snapshots is -1",
        ),
        (
            {"partition-specs": [{"spec-id": 0, "fields": []}, {"spec-id": 5, "fields": [{"bogus": 1}]}]},
            "a field of one of its partition-specs lacks one of name, transform",
        ),
        (
            {"partition-specs": [{"spec-id": 0, "fields": [{"name": "p", "transform": "void"}]}]},
            "a field of one of its partition-specs has no source-id",
        ),
        ({"x": orjson.loads("[" * 300 + "]" * 300)}, "the next file could not be written"),
    ],
)
def test_a_file_that_commits_could_not_build_on_is_refused(world: World, change: Json, said: str) -> None:
    properties = change.pop("properties", None) if "properties" in change else None
    location = changed_file(world, lambda _: None, properties)
    found = world.memory.get(ROOTS.key(location))
    assert found is not None
    meta = {**orjson.loads(found.data), **change}
    world.memory.put(ROOTS.key(location), json.dumps(meta).encode())
    with pytest.raises(InvalidError, match=f"Cannot register .*{said}.*give the metadata file of an Iceberg"):
        world.catalog.names.register(SLOT, location)


@pytest.mark.parametrize("name", ["metadata-log", "snapshot-log", "statistics", "partition-statistics"])
def test_a_list_that_may_be_missing_may(world: World, name: str) -> None:
    location = changed_file(world, lambda meta: meta.pop(name))
    world.catalog.names.register(SLOT, location)
    assert world.catalog.tables.commit(SLOT, *append(2, 1, 2)).parsed["current-snapshot-id"] == 2


def test_a_file_that_is_too_long_to_be_read_is_a_wrong_location(world: World) -> None:
    location = changed_file(world, lambda _meta: None)
    read = world.store.get

    def get(key: str, **known: Any) -> Any:
        if key == ROOTS.key(location):
            raise StoreTooLargeError(f"{key} has 200 bytes, more than the 100 that are read whole")
        return read(key, **known)

    world.store.get = get  # type: ignore[method-assign]
    with pytest.raises(InvalidLocationError, match=r"Invalid metadata-location .* more than the 100 that"):
        world.catalog.names.register(SLOT, location)
