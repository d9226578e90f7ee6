"""`write.metadata.compression-codec`: metadata files are compressed where a table asks for it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

from tarn.core import metadata_json
from tarn.core.errors import ConflictError, CorruptStateError, InvalidError, OutcomeUnknownError
from tarn_catalog.metadata import validate_file
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tests.contract.catalog.test_commits import NEW, NOW_MS, ROOTS, SCHEMA, SECOND, SLOT, World, append
from tests.contract.catalog.test_views import V, wanted

CODEC = "write.metadata.compression-codec"
GZIPPED = CreateTableRequest(schema=SCHEMA, properties={CODEC: "GZIP"})
PLAIN = b'{"'
MAGIC = b"\x1f\x8b"


@pytest.fixture
def world() -> World:
    return World()


def setting(codec: str) -> list[dict[str, Any]]:
    return [{"action": "set-properties", "updates": {CODEC: codec}}]


def data_at(world: World, location: str) -> bytes:
    stored = world.memory.get(ROOTS.key(location))
    assert stored is not None
    return stored.data


def test_commits_are_compressed_from_the_first_one_on_and_read_by_any_replica(world: World) -> None:
    first = world.catalog.tables.create(SLOT, GZIPPED)
    assert first.location.endswith(f"/00000-{first.parsed['table-uuid']}.metadata.json")
    assert data_at(world, first.location).startswith(PLAIN), "its name is fixed, so that only one can make it"
    for number in range(1, 30):
        done = world.catalog.tables.commit(SLOT, *append(number, number - 1 or None, number))
    assert done.location.rpartition("/")[2].startswith("00029-")
    assert done.location.endswith(".gz.metadata.json")
    data = data_at(world, done.location)
    assert data.startswith(MAGIC)
    assert len(data) < len(done.raw) / 3
    read = world.another().tables.load(SLOT)
    assert (read.location, read.raw, read.parsed) == (done.location, done.raw, done.parsed)


def test_the_property_can_be_set_and_reset(world: World) -> None:
    world.table()
    on = world.catalog.tables.commit(SLOT, [], setting("gzip"))
    assert data_at(world, on.location).startswith(MAGIC)
    off = world.another().tables.commit(SLOT, [], setting("None"))
    assert off.location.endswith(".metadata.json")
    assert not off.location.endswith(".gz.metadata.json")
    assert data_at(world, off.location).startswith(PLAIN)
    assert off.parsed["metadata-log"][-1]["metadata-file"] == on.location


def test_another_codec_is_refused_before_anything_is_written(world: World) -> None:
    wrong = setting("zstd")
    world.table()
    before = dict(world.memory._objects)
    with pytest.raises(InvalidError, match=r"write.metadata.compression-codec 'zstd': give gzip or none"):
        world.catalog.tables.create(SECOND, CreateTableRequest(schema=SCHEMA, properties={CODEC: "zstd"}))
    with pytest.raises(InvalidError, match="give gzip or none"):
        world.catalog.tables.commit(SLOT, [], wrong)
    with pytest.raises(InvalidError, match="give gzip or none"):
        world.catalog.together.commit([Change(slot=SLOT, requirements=[], updates=wrong)])
    assert world.memory._objects == before


def test_a_staged_create_with_another_codec_is_refused(world: World) -> None:
    staged = world.catalog.tables.stage(SLOT, NEW)
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "set-location", "location": staged["location"]},
        {"action": "add-schema", "schema": SCHEMA, "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        *setting("lz4"),
    ]
    with pytest.raises(InvalidError, match="give gzip or none"):
        world.catalog.tables.commit(SLOT, [{"type": "assert-create"}], updates)


def test_a_commit_to_several_tables_is_compressed_too(world: World) -> None:
    world.catalog.tables.create(SLOT, GZIPPED)
    world.catalog.tables.create(SECOND, NEW)
    changes = [Change(slot=slot, requirements=[], updates=append(1, None, 1)[1]) for slot in (SLOT, SECOND)]
    world.catalog.together.commit(changes)
    healthy = world.healthy()
    assert data_at(world, healthy.tables.load(SLOT).location).startswith(MAGIC)
    assert data_at(world, healthy.tables.load(SECOND).location).startswith(PLAIN)


def test_a_lost_commit_is_found_in_a_compressed_log(world: World) -> None:
    world.catalog.tables.create(SLOT, GZIPPED)
    for number in range(1, 201):
        world.catalog.tables.commit(SLOT, *append(number, number - 1 or None, number))
    assert 20 not in world.snapshots()
    done = world.another().tables.commit(SLOT, *append(20, 19, 20))
    assert done.parsed["current-snapshot-id"] == 200
    with pytest.raises(ConflictError, match="expected id 19 != 200"):
        world.another().tables.commit(SLOT, *append(999, 19, 20))


@pytest.mark.parametrize("kept", [20, -4], ids=["begin", "almost all"])
def test_a_damaged_file_is_named(world: World, kept: int) -> None:
    world.table()
    done = world.catalog.tables.commit(SLOT, [], setting("gzip"))
    key = ROOTS.key(done.location)
    world.memory.put(key, data_at(world, done.location)[:kept])
    with pytest.raises(CorruptStateError, match=r"gz.metadata.json is no JSON: damaged gzip data"):
        world.another().tables.load(SLOT)


def test_a_compressed_file_of_another_writer_is_registered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.catalog.tables.create(SLOT, GZIPPED)
    world.catalog.tables.drop(SLOT)
    location = f"{first.location.rpartition('/')[0]}/00003-theirs.gz.metadata.json"
    data = metadata_json.packed(orjson.dumps(first.parsed))
    world.memory.put(ROOTS.key(location), data[:-9])
    with pytest.raises(InvalidError, match=r"Cannot register .*: it is no JSON \(damaged gzip data"):
        world.catalog.names.register(SLOT, location)
    world.memory.put(ROOTS.key(location), data)
    monkeypatch.setattr(metadata_json, "KEPT_BYTES_MAX", 100)
    with pytest.raises(InvalidError, match=r"Cannot register .*: it has more than 0 MiB when decompressed"):
        world.catalog.names.register(SLOT, location)
    monkeypatch.undo()
    assert world.catalog.names.register(SLOT, location).parsed == first.parsed
    done = world.catalog.tables.commit(SLOT, *append(1, None, 1))
    assert done.location.rpartition("/")[2].startswith("00004-")
    assert data_at(world, done.location).startswith(MAGIC)


def test_pyiceberg_reads_the_file_itself(world: World, tmp_path: Path) -> None:
    world.table()
    world.catalog.tables.commit(SLOT, *append(1, None, 1))
    done = world.catalog.tables.commit(SLOT, [], setting("gzip"))
    file = tmp_path / done.location.rpartition("/")[2]
    file.write_bytes(data_at(world, done.location))
    table = StaticTable.from_metadata(str(file), {"py-io-impl": f"{PyArrowFileIO.__module__}.PyArrowFileIO"})
    assert str(table.metadata.table_uuid) == done.parsed["table-uuid"]
    assert [one.timestamp_ms for one in table.metadata.snapshots] == [NOW_MS + 1]
    assert table.properties[CODEC] == "gzip"


def test_what_outran_a_commit_to_several_tables_is_followed_in_its_form(world: World) -> None:
    """The name is chosen before the next metadata is known; it takes the form of what lies there."""
    world.catalog.tables.create(SLOT, GZIPPED)
    one = world.catalog.tables.commit(SLOT, *append(1, None, 1))
    assert world.catalog.tables.next_location(one.location).endswith(".gz.metadata.json")
    other = TableIdentifier.of(("ns",), "other")
    plain = world.catalog.tables.create(other, NEW)
    assert not world.catalog.tables.next_location(plain.location).endswith(".gz.metadata.json")


def test_more_than_there_is_room_for_is_not_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_json, "KEPT_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(metadata_json, "KEPT_PARSED_BYTES_MAX", 100 << 20)  # from 0.9 MiB on it is looked at
    made = world.catalog.tables.create(SLOT, GZIPPED)
    many = {"action": "set-properties", "updates": {f"p{number}": "x" * 10_000 for number in range(110)}}
    for codec in ("gzip", "none"):
        with pytest.raises(InvalidError, match=r"it has \d+ bytes of JSON, at most 1 MiB are taken; keep"):
            world.catalog.tables.commit(SLOT, [], [many, *setting(codec)])
    assert world.another().tables.load(SLOT).location == made.location


DENSE: dict[str, list[Any]] = {
    "of objects": [{}] * 10_000,
    "of lists": [[]] * 16_000,
    "of numbers": [1] * 22_000,
}


@pytest.mark.parametrize("what", DENSE)
def test_what_is_short_as_json_and_large_in_memory_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The three bytes of an empty object become more than seventy, and the catalog is there for all."""
    first = world.catalog.tables.create(SLOT, GZIPPED)
    world.catalog.tables.drop(SLOT)
    monkeypatch.setattr(metadata_json, "KEPT_PARSED_BYTES_MAX", 2 << 20)
    location = f"{first.location.rpartition('/')[0]}/00003-theirs.metadata.json"
    text = orjson.dumps({**first.parsed, "more": DENSE[what]})
    assert len(text) < 70_000
    for data in (text, metadata_json.packed(text)):
        world.memory.put(ROOTS.key(location), data)
        with pytest.raises(
            InvalidError, match=r"Cannot register .*: its \d+ bytes may take \d+ MiB once parsed"
        ):
            world.catalog.names.register(SLOT, location)
    monkeypatch.undo()
    world.catalog.names.register(SLOT, location)
    monkeypatch.setattr(metadata_json, "KEPT_PARSED_BYTES_MAX", 2 << 20)
    with pytest.raises(
        InvalidError, match=r"Cannot store the metadata: its \d+ bytes may take .*; keep fewer"
    ):
        world.catalog.tables.commit(SLOT, [], setting("none"))
    assert world.another().tables.load(SLOT).location == location


def test_a_view_that_is_large_in_memory_is_not_registered(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = world.catalog.views.create(V, wanted())
    world.catalog.tables.drop(V)
    text = orjson.dumps({**made.parsed, "more": [{}] * 10_000})
    location = f"{made.location.rpartition('/')[0]}/00003-theirs.metadata.json"
    world.memory.put(ROOTS.key(location), text)
    monkeypatch.setattr(metadata_json, "KEPT_PARSED_BYTES_MAX", 2 << 20)
    with pytest.raises(InvalidError, match=r"its \d+ bytes may take \d+ MiB once parsed, at most 2 MiB"):
        world.catalog.names.register(V, location)


def test_one_file_is_looked_at_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may take most of the memory that there is."""
    files = {}
    for name in ("a", "b", "c", "d"):
        slot = TableIdentifier.of(("ns",), name)
        files[slot] = world.catalog.tables.create(slot, NEW).location
        world.catalog.tables.drop(slot)
    check, lock, now, most = validate_file.check_metadata, threading.Lock(), 0, 0

    def counted(*args: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.05)
        with lock:
            now -= 1
        return check(*args)

    monkeypatch.setattr(validate_file, "check_metadata", counted)
    with ThreadPoolExecutor(len(files)) as pool:
        done = list(pool.map(world.catalog.names.register, files, files.values()))
    assert [one.location for one in done] == list(files.values())
    assert most == 1


def test_what_a_registered_table_names_as_its_history_is_read_within_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose sequence number was thinned is looked for in the oldest file of the metadata log."""
    folder = world.catalog.tables.create(SLOT, NEW).parsed["location"]
    earlier = orjson.loads(world.catalog.tables.commit(SLOT, *append(1, None, 1)).raw)
    for number in (2, 3):
        world.catalog.tables.commit(SLOT, *append(number, number - 1, number))
    meta = orjson.loads(world.catalog.tables.load(SLOT).raw)
    meta["snapshots"] = [meta["snapshots"][2] | {"manifest-list": f"{folder}/metadata/l"}]
    meta["snapshots"][0].pop("parent-snapshot-id")
    meta["snapshot-log"] = meta["snapshot-log"][2:]
    dense = f"{folder}/data/dense"
    meta["metadata-log"] = [{"timestamp-ms": meta["last-updated-ms"], "metadata-file": dense}]
    world.catalog.tables.drop(SLOT)
    location = f"{folder}/metadata/00009-theirs.metadata.json"
    world.memory.put(ROOTS.key(location), orjson.dumps(meta))
    world.memory.put(ROOTS.key(dense), orjson.dumps({**earlier, "more": [{}] * 10_000}))
    world.catalog.names.register(SLOT, location)
    assert world.another().tables.commit(SLOT, *append(1, None, 1)).location == location
    monkeypatch.setattr(metadata_json, "KEPT_PARSED_BYTES_MAX", 2 << 20)
    with pytest.raises(OutcomeUnknownError, match="Cannot tell whether the commit"):
        world.another().tables.commit(SLOT, *append(1, None, 1))


def test_identifier_fields_that_are_null_are_not_registered(world: World) -> None:
    """Readers refuse the whole table."""
    made = world.catalog.tables.create(SLOT, NEW)
    world.catalog.tables.drop(SLOT)
    meta = orjson.loads(made.raw)
    meta["schemas"][0]["identifier-field-ids"] = None
    location = f"{made.location.rpartition('/')[0]}/00003-theirs.metadata.json"
    world.memory.put(ROOTS.key(location), orjson.dumps(meta))
    with pytest.raises(InvalidError, match="identifier-field-ids of a schema is null, which readers refuse"):
        world.catalog.names.register(SLOT, location)
