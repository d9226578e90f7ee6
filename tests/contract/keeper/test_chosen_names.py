"""Whoever may write a table chooses what it names: no name ends what looks at the whole lake."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.core.audit.model import Kind
from tarn.core.object_store import ObjectBody, Stored, StoreDeniedError, is_key
from tarn.keeper.archive import Begin
from tarn.keeper.backup import Done, backup
from tarn.keeper.fsck import Report, fsck
from tarn.keeper.measured import Measured
from tarn.keeper.reaper import MEASURE_EVERY_MS, MEASURE_SHARE
from tarn.keeper.restore import restore
from tarn_catalog.operations.tables import TableIdentifier
from tests.contract.keeper.conftest import World
from tests.contract.keeper.reaping import Clocked, Writer
from tests.support.lake import BUCKET

MINUTE_MS = 60_000
CHOSEN = {
    "two slashes": "{root}//x.stats",
    "dots": "{root}/a/../x.stats",
    "control character": "{root}/x\x01.stats",
    "slash at the end": "{root}/x.stats/",
    "slash before the key": "s3://tarn//warehouse/x.stats",
    "longer than any key": "{root}/" + "x" * 1_100,
    "another service's": "s3://tarn/credentials/x.stats",
    "of the catalog": "s3://tarn/catalog/v1/grants.json",
    "of the reaper": "s3://tarn/reaper/v1/clock.json",
    "another bucket": "s3://elsewhere/x.stats",
    "no location": "x",
    "nothing": "",
}
NAMES = pytest.mark.parametrize("name", CHOSEN.values(), ids=CHOSEN.keys())


class Strict(MemoryStore):
    """Raises what the library raises of keys that it refuses, and what the store says of other services'."""

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        if not is_key(key):
            raise ValueError(f"Could not parse path: {key!r}")
        if key.startswith("credentials/"):
            raise StoreDeniedError(f"may not read {key}")
        return super().get(key, known=known)

    def delete_many(self, keys: Sequence[str]) -> None:
        if not all(map(is_key, keys)):
            raise TypeError("Expected string path or sequence of string paths.")
        super().delete_many(keys)


def quiet(_: object) -> None:
    return None


def taken(bulk: PlainBulk) -> tuple[bytes, Done]:
    out = io.BytesIO()
    begin = Begin(id="b-1", bucket=BUCKET, warehouse="tarn", at="2026-11-21T12:00:00+00:00", version="0")
    done = backup(bulk, manifest_audit, out, begin, tell=quiet, sleep=quiet)
    return out.getvalue(), done


def restored(data: bytes) -> MemoryStore:
    store = MemoryStore()
    restore(PlainBulk(store), io.BytesIO(data), bucket=BUCKET, warehouse="tarn", tell=quiet, sleep=quiet)
    return store


def looked(bulk: PlainBulk) -> Report:
    return fsck(bulk, manifest_audit, bucket=BUCKET, tell=quiet, sleep=quiet)


def statistics(path: str, size: int = 1) -> dict[str, Any]:
    return {
        **{"snapshot-id": 1, "statistics-path": path, "blob-metadata": []},
        **{"file-size-in-bytes": size, "file-footer-size-in-bytes": 1},
    }


def strict(world: World) -> World:
    store = Strict()
    store._objects = world.store._objects
    return World(store)


@NAMES
def test_statistics_of_any_name_end_neither_fsck_nor_a_backup(world: World, name: str) -> None:
    world = strict(world)
    key, metadata = world.metadata("gold.eu.kept")
    path = name.format(root=metadata["location"])
    if "reaper" in path:
        world.store.put(path.removeprefix("s3://tarn/"), b"{}")
    world.put_json(key, {**metadata, "statistics": [statistics(path)]})
    found = looked(world.bulk).findings
    assert {finding.where for finding in found} == {"gold.eu.kept"}
    data, done = taken(world.bulk)
    assert (done.whole, done.end.missing, done.findings) == (False, [path], ())
    copy = looked(PlainBulk(restored(data)))
    assert [(f.kind, f.where) for f in copy.findings] == [(f.kind, f.where) for f in found]


@NAMES
def test_dead_letters_of_any_name_do_not_either(world: World, name: str) -> None:
    world = strict(world)
    key, metadata = world.metadata("gold.eu.kept")
    path = name.format(root=metadata["location"])
    letters = orjson.dumps([[path, 1, 1, 1]]).decode()
    summary = {"operation": "append", "tarn.dead-letters.s": letters}
    snapshot = {"snapshot-id": 5, "sequence-number": 1, "timestamp-ms": 1, "summary": summary}
    head = {"current-snapshot-id": 5, "refs": {"main": {"snapshot-id": 5, "type": "branch"}}}
    world.put_json(key, {**metadata, "snapshots": [snapshot], **head})
    assert {finding.where for finding in looked(world.bulk).findings} == {"gold.eu.kept"}
    data, done = taken(world.bulk)
    assert done.end.missing == [path]
    assert looked(PlainBulk(restored(data))).tables == done.end.tables == 3


def other(lake: Clocked) -> Writer:
    """A table of which a pass has something to delete."""
    table = lake.table("u", **{"tarn.history": "2"})
    for _ in range(10):
        table.append()
    return table


@NAMES
def test_removed_statistics_of_any_name_do_not_end_the_reaper(name: str) -> None:
    lake = Clocked()
    table = lake.table()
    snapshot = table.append()
    other(lake)
    location = lake.catalog.tables.load(table.slot).location
    value = table.meta()
    value["statistics"] = [{**statistics(name.format(root=table.root)), "snapshot-id": snapshot}]
    lake.store.put(location.removeprefix("s3://tarn/"), orjson.dumps(value))
    table.update({"action": "set-properties", "updates": {"n": "1"}})
    table.update({"action": "remove-statistics", "snapshot-id": snapshot})
    picky = Strict(now_ms=lambda: lake.now_ms)
    picky._objects = lake.store._objects  # type: ignore[attr-defined]
    reaper = lake.reaper(picky)
    reaper.run_once()
    lake.wait(30 * MINUTE_MS)
    done = reaper.run_once()
    assert done.failed == {}
    assert done.manifest_lists > 0, done
    assert lake.missing() == []


@NAMES
def test_a_manifest_list_of_any_name_keeps_its_own_table_alone_from_the_reaper(name: str) -> None:
    lake = Clocked()
    table = lake.table()
    first = table.append()
    second = table.append()
    other(lake)
    table.expire(first)
    location = lake.catalog.tables.load(table.slot).location.removeprefix("s3://tarn/")
    value = lake.json(location)
    path = name.format(root=table.root)
    value["snapshots"] = [
        {**snapshot, "manifest-list": path} if snapshot["snapshot-id"] == second else snapshot
        for snapshot in value["snapshots"]
    ]
    lake.store.put(location, orjson.dumps(value))
    picky = Strict(now_ms=lambda: lake.now_ms)
    picky._objects = lake.store._objects  # type: ignore[attr-defined]
    lake.wait(30 * MINUTE_MS)
    done = lake.reaper(picky).run_once()
    assert list(done.failed) == ["ns.t"]
    assert "is missing" in done.failed["ns.t"], done
    assert done.manifest_lists > 0, done


def failing(store: MemoryStore, part: str, *, listing: bool = False) -> MemoryStore:
    """A store that raises what nobody expects of keys with this part."""

    class Failing(MemoryStore):
        def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
            if part in key and not listing:
                raise RuntimeError("what nobody expects")
            return super().get(key, known=known)

        def list(self, prefix: str, *, after: str | None = None) -> Any:
            if part in prefix and listing:
                raise RuntimeError("what nobody expects")
            return super().list(prefix, after=after)

    found = Failing(now_ms=store._now_ms)
    found._objects = store._objects
    return found


@pytest.mark.parametrize("suffix", [".metadata.json", ".avro", ".parquet"])
def test_what_nobody_expects_of_one_table_is_a_finding_and_the_others_are_in_the_backup(
    world: World, suffix: str
) -> None:
    root = world.metadata()[0].rpartition("/metadata/")[0].rpartition("/")[2]

    class Failing(PlainBulk):
        def get(self, key: str) -> Stored | None:
            if root in key and key.endswith(suffix):
                raise RuntimeError("what nobody expects")
            return super().get(key)

        def open(self, key: str, *, bytes_max: int = 4 << 20) -> ObjectBody | None:
            self.get(key)
            return super().open(key, bytes_max=bytes_max)

    data, done = taken(Failing(world.store))
    assert not done.whole
    assert {found.where for found in done.findings} == {"bronze.orders"}
    assert all("in the backup: " in found.what for found in done.findings)
    copy = World(restored(data))
    assert copy.metadata("gold.eu.kept") == world.metadata("gold.eu.kept")
    assert {found.where for found in looked(copy.bulk).damage} <= {"bronze.orders", "ops.dead_letters"}
    if suffix != ".parquet":  # whose sizes are in the listing
        found = looked(Failing(world.store)).damage
        assert ("bronze.orders", True) in {(one.where, "what nobody expects" in one.what) for one in found}


@pytest.mark.parametrize("offset", ["9" * 23, "9" * 19])
def test_an_offset_that_no_topic_has_ends_no_backup_and_is_damage_of_its_table(
    world: World, offset: str
) -> None:
    key, metadata = world.metadata()
    head = metadata["current-snapshot-id"]
    summary = next(s for s in metadata["snapshots"] if s["snapshot-id"] == head)["summary"]
    value = {"v": 1, "cluster": "c", "topic": "t", "topic-id": "i", "next": {"0": offset}}
    summary["tarn.offsets.x"] = orjson.dumps(value).decode()
    world.put_json(key, metadata)
    data, done = taken(world.bulk)
    assert done.whole
    assert [stream["stream"] for stream in done.end.streams] == ["orders"]
    found = looked(PlainBulk(restored(data))).damage
    assert [(one.where, one.kind) for one in found] == [("bronze.orders", Kind.OFFSETS_UNREADABLE)]
    assert looked(world.bulk).damage == found


def test_a_count_of_dead_letters_that_is_no_number_keeps_no_table_out_of_a_backup(world: World) -> None:
    orphans = world.fsck().orphans
    for name in ("bronze.orders", "ops.dead_letters"):
        key, metadata = world.metadata(name)
        for snapshot in metadata["snapshots"]:
            snapshot["summary"]["tarn.dead-letters-records"] = "9" * 5_000
        world.put_json(key, metadata)
    before = world.fsck()
    assert (before.damage, before.orphans) == ([], orphans)
    data, done = taken(world.bulk)
    assert done.whole, done.findings
    after = looked(PlainBulk(restored(data)))
    assert (after.files, after.bytes, after.orphans) == (before.files, before.bytes, 0)


@pytest.mark.parametrize("fails", ["stands", "letter_facts"])
def test_what_nobody_expects_of_streams_or_dead_letters_keeps_no_file_out_of_a_backup(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    from tarn.keeper import backup as module
    from tarn.keeper import fsck as fsck_module

    before = world.fsck()

    def failing_for(read: Any) -> Any:
        def found(table: Any) -> Any:
            if table.name == "bronze.orders":
                raise RuntimeError("what nobody expects")
            return read(table)

        return found

    for each in (module, fsck_module):
        monkeypatch.setattr(each, fails, failing_for(getattr(each, fails)))
    data, done = taken(world.bulk)
    (finding,) = done.findings
    assert finding.where == "bronze.orders"
    assert "what nobody expects" in finding.what
    assert "its files are in the backup" in finding.fix
    assert done.end.missing == []
    assert len(done.end.streams) == (0 if fails == "stands" else 1)
    found = world.fsck()
    assert [(one.where, one.kind) for one in found.damage] == [("bronze.orders", Kind.METADATA_UNREADABLE)]
    assert (found.files, found.orphans) == (before.files, before.orphans)
    monkeypatch.undo()
    copy = looked(PlainBulk(restored(data)))
    assert {one.where for one in copy.damage} <= ({"bronze.orders"} if fails == "letter_facts" else set())
    assert copy.tables == before.tables


def test_dead_letters_that_cannot_be_judged_are_damage_of_their_table(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tarn.keeper import fsck as module

    def fails(facts: Any, *_: object) -> Any:
        if facts.table == "bronze.orders":
            raise RuntimeError("what nobody expects")
        yield from ()

    monkeypatch.setattr(module, "judge_letters", fails)
    (found,) = looked(world.bulk).damage
    assert (found.where, "what nobody expects" in found.what) == ("bronze.orders", True)


@pytest.mark.parametrize("part", ["000", "snap-"])
def test_what_nobody_expects_of_one_table_ends_no_pass_of_the_reaper(part: str) -> None:
    lake = Clocked()
    table = lake.table()
    first = table.append()
    table.append()
    table.expire(first)
    other(lake)
    lake.wait(30 * MINUTE_MS)
    store = failing(lake.store, f"{table.folder}/metadata/{part}")
    done = lake.reaper(store).run_once()
    assert list(done.failed) == ["ns.t"]
    assert "what nobody expects" in done.failed["ns.t"], done
    assert done.manifest_lists > 0, done


def test_a_table_that_cannot_be_measured_is_named_and_the_others_are_measured() -> None:
    lake = Clocked()
    tables = {name: lake.table(name) for name in ("t", "u")}
    lake.wait(30 * MINUTE_MS)
    with capture_logs() as logged:
        done = lake.reaper(failing(lake.store, tables["t"].folder, listing=True)).run_once()
    assert done.failed == {}
    assert [line["table"] for line in logged if line["event"] == "a table is not measured"] == ["ns.t"]
    assert set(Measured(lake.store).sizes()) == {"ns.u"}


def test_a_table_that_cannot_be_measured_is_listed_as_seldom_as_any_other() -> None:
    lake = Clocked()
    folder = lake.table().folder
    lake.wait(30 * MINUTE_MS)
    reaper = lake.reaper(failing(lake.store, folder, listing=True))

    def tried() -> int:
        with capture_logs() as logged:
            reaper.run_once()
        return len([line for line in logged if line["event"] == "a table is not measured"])

    found = []
    for _ in range(11):
        found.append(tried())
        lake.wait(MEASURE_EVERY_MS // 5)
    assert found == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_a_listing_that_fails_late_takes_no_more_of_the_time_than_one_that_ends() -> None:
    lake = Clocked()
    folder = lake.table().folder
    lake.wait(30 * MINUTE_MS)
    lists = 0

    class Slow(MemoryStore):
        def list(self, prefix: str, *, after: str | None = None) -> Any:
            nonlocal lists
            if folder in prefix:
                lists += 1
                lake.wait(MINUTE_MS)
                raise RuntimeError("what nobody expects")
            return super().list(prefix, after=after)

    store = Slow(now_ms=lambda: lake.now_ms)
    store._objects = lake.store._objects
    reaper = lake.reaper(store)
    for minutes in (0, MEASURE_SHARE - 2, 2):
        lake.wait(minutes * MINUTE_MS)
        reaper.run_once()
    assert lists == 2


def test_a_purge_that_fails_is_named_and_the_others_are_made() -> None:
    lake = Clocked()
    uuids = {}
    for name in ("v", "w"):
        uuids[name] = lake.table(name).meta()["table-uuid"]
        lake.catalog.names.purge(TableIdentifier.of(("ns",), name))
    lake.wait(30 * MINUTE_MS)
    done = lake.reaper(failing(lake.store, f"v-{uuids['v']}", listing=True)).run_once()
    assert list(done.failed) == [f"catalog/v1/claims/{uuids['v']}.json"]
    assert lake.keys(f"/v-{uuids['v']}/") != []
    assert lake.keys(f"/w-{uuids['w']}/") == []


@pytest.mark.parametrize("size", ["9" * 19, "9" * 30, "9" * 5_000, "²", "-1"])
def test_a_size_that_no_number_holds_keeps_no_table_from_being_measured(size: str) -> None:
    lake = Clocked()
    lake.table("u").append()
    table = lake.table()
    snapshot = table.append()
    location = lake.catalog.tables.load(table.slot).location.removeprefix("s3://tarn/")
    value = lake.json(location)
    value["snapshots"][-1]["summary"]["total-files-size"] = size
    assert value["snapshots"][-1]["snapshot-id"] == snapshot
    lake.store.put(location, orjson.dumps(value))
    assert lake.reaper().run_once().failed == {}
    assert set(Measured(lake.store).sizes()) == {"ns.t", "ns.u"}
