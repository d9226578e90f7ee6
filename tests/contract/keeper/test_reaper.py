"""The reaper eventually deletes everything unreachable, and never anything else (I7, I8)."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.core.naming import CLAIMS_PREFIX
from tarn.core.object_store import (
    ObjectStore,
    Stored,
    StoreOutcomeUnknownError,
    StoreTooLargeError,
    StoreUnavailableError,
)
from tarn.core.reap import HOLDS_PREFIX, LISTS_PREFIX, dead_manifests
from tarn.keeper import reaper as reaper_module
from tarn.keeper.measured import Measured
from tarn.keeper.reaper import Graces, Reaper
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.testing.faulty_store import Crash, Fault, FaultyStore, Op
from tests.contract.keeper.reaping import GRACES, Clocked, Writer
from tests.support.plays import seeds

MINUTE_MS = 60_000


def settled(lake: Clocked, reaper: Reaper | None = None) -> None:
    """Run passes, with time in between, until every grace period has passed."""
    reaper = reaper or lake.reaper()
    for _ in range(3):
        reaper.run_once()
        lake.wait(GRACES.files_ms + GRACES.metadata_ms)
        assert lake.missing() == []
    reaper.run_once()


def test_an_hour_of_commits_a_second_stays_flat_in_bytes() -> None:
    """Scaled by ten: grace periods of 12 s and a minute, an hour of commits in six minutes of them."""
    lake = Clocked()
    table = lake.table(**{"tarn.history": "40, 3s for 90s, 360s for 8640s"})
    reaper = lake.reaper(graces=Graces(metadata_ms=12_000, files_ms=60_000))
    stored: list[int] = []
    largest = 0
    for number in range(1, 721):
        lake.wait(1_000)
        table.append()
        if number % 15 == 0:
            done = reaper.run_once()
            assert done.failed == {}
        if number % 120 == 0:
            assert lake.missing() == []
            live = 9 * number
            stored.append(lake.bytes() - live)
            newest = max(
                (e for e in lake.store.list(f"{table.folder}/metadata/") if e.key.endswith(".metadata.json")),
                key=lambda e: e.key,
            )
            largest = max(largest, newest.size_bytes)
    assert stored[-1] <= 1.1 * stored[2], stored
    assert largest <= 90 * 900, largest
    assert len(lake.keys(".metadata.json")) <= 20 + 12 + 15 + 2
    assert len(lake.keys(".parquet")) == 720, "rows stay"


def expire_all_but(table: Writer, *kept: int | None) -> None:
    table.lake.wait(1_000)
    table.expire(*(s["snapshot-id"] for s in table.meta()["snapshots"] if s["snapshot-id"] not in kept))
    assert table.lake.missing() == []


def test_a_file_that_was_added_twice_stays_while_a_tag_on_its_first_snapshot_does() -> None:
    lake = Clocked()
    table = lake.table()
    table.append()
    first = table.append()
    path = table.live()[-1]
    table.ref("keep", first)
    table.delete(path)
    for _ in range(3):
        table.append(merge_at=99)
    table.append_known(path)
    table.delete(path)
    expire_all_but(table, first, table.head)
    settled(lake)
    assert lake.store.get(path.removeprefix("s3://tarn/")) is not None
    assert lake.reaper().run_once().failed == {}


def test_a_file_that_was_added_again_stays_when_the_branch_goes_back_to_before_its_removal() -> None:
    lake = Clocked()
    table = lake.table()
    table.append()
    first = table.append()
    path = table.live()[-1]
    table.delete(path)
    table.append_known(path)
    table.ref("main", first, "branch")
    table.manifests[table.head] = table.manifests[first]
    expire_all_but(table, first)
    settled(lake)
    assert lake.store.get(path.removeprefix("s3://tarn/")) is not None


def test_a_manifest_is_one_manifest_whichever_scheme_names_it() -> None:
    reaper = Clocked().reaper()
    removed = reaper._same("s3://tarn/warehouse/ns/t/metadata/m.avro", 3, 1)
    kept = reaper._same("s3a://tarn/warehouse/ns/t/metadata/m.avro", 3, 1)
    assert dead_manifests([[removed]], [[kept]]) == {}


@pytest.mark.parametrize(("removed", "kept"), [("s3", "s3a"), ("s3a", "s3"), ("s3n", "s3a")])
def test_a_file_is_one_file_whichever_scheme_names_it(removed: str, kept: str) -> None:
    """Hadoop's file systems list objects as s3a://, so `add_files` may write that beside Iceberg's s3://."""
    lake = Clocked()
    table = lake.table()
    table.append()
    key = table.live()[-1].removeprefix("s3://tarn/")
    table.delete(table.live()[-1])
    table.append_known(f"{removed}://tarn/{key}")
    table.delete(f"{removed}://tarn/{key}")
    table.append_known(f"{kept}://tarn/{key}")
    head = table.head
    lake.wait(1_000)
    table.expire(*(s["snapshot-id"] for s in table.meta()["snapshots"] if s["snapshot-id"] != head))
    reaper = lake.reaper()
    for _ in range(4):
        assert reaper.run_once().failed == {}
        lake.wait(GRACES.files_ms + GRACES.metadata_ms)
    assert lake.store.get(key) is not None
    table.delete(f"{kept}://tarn/{key}")
    table.append()
    expire_all_but(table, table.head)
    settled(lake, reaper)
    assert lake.store.get(key) is None, "and goes when nothing names it any more"


@pytest.mark.parametrize("waiting_max", [reaper_module.WAITING_MAX, 20])
def test_a_pass_reads_what_is_new_however_much_waits(
    monkeypatch: pytest.MonkeyPatch, waiting_max: int
) -> None:
    monkeypatch.setattr(reaper_module, "WAITING_MAX", waiting_max)
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    store = FaultyStore(lake.store)
    reaper = lake.reaper(store, Graces(metadata_ms=5_000, files_ms=60_000))
    read: list[int] = []
    deleted: list[int] = []
    for number in range(1, 121):
        lake.wait(1_000)
        table.append(merge_at=4)
        if number % 5 == 0:
            store.seen.clear()
            done = reaper.run_once()
            read.append(sum(op.kind == "get" and "/snap-" in op.key for op in store.seen))
            deleted.append(done.manifest_lists)
    assert deleted[-7:] == [5] * 7, deleted
    steady = [count for count, gone in zip(read, deleted, strict=True) if gone == 5]
    assert max(steady[1:]) <= 5 + 5, read
    assert lake.missing() == []


def test_a_pass_reads_few_manifests_while_small_files_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged file is dead, so every manifest that could hold it has to be looked into."""
    monkeypatch.setattr(reaper_module, "FILES_REMEMBERED_MAX", 300)
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    store = FaultyStore(lake.store)
    reaper = lake.reaper(store, Graces(metadata_ms=5_000, files_ms=90_000))
    read: list[int] = []
    deleted: list[int] = []
    snapshots: list[int] = []
    for number in range(1, 181):
        lake.wait(1_000)
        snapshots.append(table.append())
        if number % 4 == 0:
            table.compact(4, newest=True)
        if number % 5 == 0:
            store.seen.clear()
            done = reaper.run_once()
            read.append(sum(op.kind == "get" and "-m0.avro" in op.key for op in store.seen))
            deleted.append(done.data)
        held = {path for one in snapshots[-80:] for held in table.manifests[one] for path in held.live}
        assert all(lake.store.get(path.removeprefix("s3://tarn/")) for path in held), "readers have a grace"
    assert sum(deleted[-12:]) > 40, deleted
    assert max(read[-12:]) < 60, (read, "there are more than a hundred manifests that wait")
    remembered = [*reaper._live, *reaper._manifests]
    assert all(lake.store.get(path.removeprefix("s3://tarn/")) for path in remembered), (
        "what is gone is forgotten"
    )
    assert reaper._live_count == sum(map(len, reaper._live.values()))
    assert lake.missing() == []


def test_what_is_in_many_manifests_is_remembered_in_little_memory() -> None:
    files, manifests = 4_000, 80
    lake = Clocked()
    store = FaultyStore(lake.store)
    paths = [f"s3://tarn/warehouse/m{number}.avro" for number in range(manifests)]
    for path in paths:
        lake.store.put(path.removeprefix("s3://tarn/"), path.encode())

    class Large:
        """Reads as many entries out of anything."""

        def file_entries(self, data: bytes, **_: object) -> list[SimpleNamespace]:
            return [SimpleNamespace(path=f"{data.decode()}/{number}") for number in range(files)]

    large: Any = Large()
    reaper = Reaper(store, large, bucket="tarn")
    tracemalloc.start()
    try:
        for path in paths:
            assert len(reaper._live_in(path, needed=True)) == files
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 12 * files * manifests
    for path in paths:
        reaper._live_in(path, needed=True)
    assert sum(op.kind == "get" for op in store.seen) == manifests, "each is read once"


def test_objects_are_deleted_many_at_once() -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    for _ in range(200):
        lake.wait(1_000)
        table.append(merge_at=4)
    store = FaultyStore(lake.store)
    reaper = lake.reaper(store)
    for _ in range(2):
        reaper.run_once()
        lake.wait(GRACES.files_ms + GRACES.metadata_ms)
    store.seen.clear()
    done = reaper.run_once()
    assert (done.manifest_lists, done.manifests, done.metadata) == (100, 130, 0)
    asked = [op.key for op in store.seen if op.kind == "delete"]
    assert sum("/snap-" in key for key in asked) == 1, "up to a hundred in one request"
    assert sum("-m0.avro" in key for key in asked) == 2
    assert len(asked) == 4, "and their candidate list"


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_everything_that_nothing_reaches_goes_in_the_end_and_not_before_its_grace(codec: str) -> None:
    lake = Clocked()
    settings = {"tarn.history": "3", "write.metadata.previous-versions-max": "2"}
    table = lake.table(**settings, **{"write.metadata.compression-codec": codec})
    for _ in range(4):
        table.append(2)
    victim = table.live()[0]
    table.delete(victim)
    table.compact(4)
    table.vectors()
    before = len(lake.keys("warehouse/"))
    reaper = lake.reaper()
    reaper.run_once()
    assert len(lake.keys("warehouse/")) == before, "everything is young"
    lake.wait(GRACES.metadata_ms)
    done = reaper.run_once()
    assert done.metadata == 5
    assert done.deleted == 5
    assert len(lake.keys(LISTS_PREFIX)) == 1
    lake.wait(GRACES.files_ms - GRACES.metadata_ms - 1)
    assert reaper.run_once().deleted == 0, "a reader may still be using them"
    lake.wait(GRACES.metadata_ms + 1)
    assert reaper.run_once().deleted > 5
    for _ in range(3):
        table.append()
    settled(lake, reaper)
    assert lake.missing() == []
    assert [key for key in lake.left() if not key.endswith(".metadata.json")] == []
    assert lake.keys(victim.rpartition("/")[2]) == []
    assert lake.keys(LISTS_PREFIX) == []


def test_tags_and_branches_keep_what_they_need() -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    first = table.append(2)
    table.ref("nightly", first)
    second = table.append(2)
    table.ref("audit", second, "branch")
    kept = table.live()
    table.delete(*kept)
    for _ in range(5):
        table.append()
    settled(lake)
    assert lake.missing() == []
    assert all(lake.store.get(path.removeprefix("s3://tarn/")) for path in kept)
    table.update(
        {"action": "remove-snapshot-ref", "ref-name": "nightly"},
        {"action": "remove-snapshot-ref", "ref-name": "audit"},
    )
    table.append()
    for _ in range(30):
        table.append()
    settled(lake)
    assert not any(lake.store.get(path.removeprefix("s3://tarn/")) for path in kept)
    assert [key for key in lake.left() if not key.endswith(".metadata.json")] == []


def test_statistics_go_with_their_snapshot_or_when_they_are_replaced() -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    table.append()
    replaced = table.statistics()
    table.statistics()
    table.append()
    kept = table.statistics()
    table.append()
    for _ in range(25):
        table.update({"action": "set-properties", "updates": {"n": str(lake.numbers.random())}})
    settled(lake)
    assert lake.missing() == []
    assert lake.keys(replaced.rpartition("/")[2]) == []
    assert len(lake.keys(".stats")) == 1
    assert lake.keys(kept.rpartition("/")[2])


def test_statistics_of_a_snapshot_that_was_gone_before_go_after_the_next_commit() -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    first = table.append()
    for _ in range(30):
        table.append()
    late = table.statistics(first)
    reaper = lake.reaper()
    settled(lake, reaper)
    assert lake.keys(late.rpartition("/")[2]), "the table names it"
    for _ in range(22):
        table.append()
    settled(lake, reaper)
    assert lake.keys(".stats") == []


def test_an_engines_own_expiry_and_its_own_deletes_are_fine() -> None:
    lake = Clocked()
    table = lake.table()
    ids = [table.append() for _ in range(5)]
    lists = {s["snapshot-id"]: s["manifest-list"] for s in table.meta()["snapshots"]}
    table.expire(*ids[:3])
    lake.store.delete(lists[ids[0]].removeprefix("s3://tarn/"))
    for _ in range(25):
        table.update({"action": "set-properties", "updates": {"n": str(lake.numbers.random())}})
    settled(lake)
    assert lake.missing() == []
    assert not any(lake.store.get(lists[one].removeprefix("s3://tarn/")) for one in ids[:3])


def test_properties_of_the_table_are_honoured() -> None:
    lake = Clocked()
    kept = lake.table("kept", **{"write.metadata.delete-after-commit.enabled": "false", "tarn.history": "2"})
    shared = lake.table("shared", **{"gc.enabled": "false", "tarn.history": "2"})
    for table in (kept, shared):
        for _ in range(5):
            table.append()
        table.delete(table.live()[0])
        for _ in range(30):
            table.append()
    settled(lake)
    folder = kept.folder
    assert len([k for k in lake.keys(folder) if k.endswith(".metadata.json")]) == 37
    assert len([k for k in lake.keys(folder) if "/snap-" in k]) == 2, "what was removed goes all the same"
    folder = shared.folder
    assert len([k for k in lake.keys(folder) if "/snap-" in k]) == 36
    assert len([k for k in lake.keys(folder) if k.endswith(".metadata.json")]) == 21
    more = lake.reaper()
    for _ in range(3):
        kept.append()
        settled(lake, more)
    assert len([k for k in lake.keys(kept.folder) if "/snap-" in k]) == 2


def test_a_dropped_table_stays_and_a_purged_one_goes_after_its_grace() -> None:
    lake = Clocked()
    dropped, purged, again = lake.table("dropped"), lake.table("purged"), lake.table("again")
    for table in (dropped, purged, again):
        table.append(3)
    lake.catalog.tables.drop(dropped.slot)
    lake.catalog.names.purge(purged.slot)
    lake.catalog.names.purge(again.slot)
    recreated = lake.table("again")
    recreated.append(2)
    reaper = lake.reaper()
    reaper.run_once()
    assert len(lake.keys(purged.folder)) > 0
    settled(lake, reaper)
    assert lake.keys(purged.folder) == []
    assert lake.keys(again.folder) == []
    assert len(lake.keys(dropped.folder)) == 7
    assert lake.missing() == []
    location = max(k for k in lake.keys(dropped.folder) if ".metadata.json" in k)
    lake.catalog.names.register(dropped.slot, f"s3://tarn/{location}")
    settled(lake, reaper)
    assert lake.missing() == []


def test_a_claim_without_a_purge_is_read_once() -> None:
    """Each table that was renamed or registered leaves one, also one that was dropped since."""
    lake = Clocked()
    store = FaultyStore(lake.store)
    reaper = lake.reaper(store)

    def read() -> int:
        lake.wait(GRACES.files_ms)
        store.seen.clear()
        assert reaper.run_once().failed == {}
        return sum(op.kind == "get" and op.key.startswith(CLAIMS_PREFIX) for op in store.seen)

    tables = [lake.table(f"t{number}") for number in range(5)]
    for number, table in enumerate(tables):
        lake.catalog.names.rename(table.slot, TableIdentifier.of(("ns",), f"r{number}"))
    for number in range(4):
        lake.catalog.tables.drop(TableIdentifier.of(("ns",), f"r{number}"))
    assert [read(), read(), read()] == [5, 0, 0]
    lake.catalog.names.purge(TableIdentifier.of(("ns",), "r4"))
    assert read() == 1, "it is another one now"
    assert lake.keys(tables[4].folder) == []
    assert read() == 0
    assert len(reaper._claims) == 4, "of a purge that is done nothing is remembered"


def test_of_a_table_that_is_gone_nothing_is_remembered() -> None:
    """Or a lake whose tables come and go would fill its memory."""
    lake = Clocked()
    reaper = lake.reaper()

    def work(table: Writer) -> None:
        for _ in range(2):
            for _ in range(8):
                table.append(merge_at=4)
            table.compact()
            expire_all_but(table, table.head)
            settled(lake, reaper)
        expire_all_but(table, table.append())
        for _ in range(2):
            lake.wait(5 * MINUTE_MS)
            for _ in range(25):  # metadata in the log of the newest one stay
                table.append(merge_at=4)
            reaper.run_once()

    def remembered(table: Writer) -> int:
        lists = (key for key in reaper._contents_known if uuids[table.root] in key)
        return sum(table.root in path for path in (*reaper._manifests, *reaper._live)) + len([*lists])

    stays, purged, dropped = lake.table("stays"), lake.table("purged"), lake.table("dropped")
    tables = (stays, purged, dropped)
    uuids = {table.root: table.meta()["table-uuid"] for table in tables}
    for table in tables:
        work(table)
        assert any(table.root in path for path in reaper._live)
        assert any(uuids[table.root] in key for key in reaper._contents_known)
    before = remembered(stays)
    lake.catalog.names.purge(purged.slot)
    lake.catalog.tables.drop(dropped.slot)
    reaper.run_once()
    assert (remembered(purged), remembered(dropped)) == (0, 0)
    assert remembered(stays) == before > 0
    assert reaper._live_count == sum(map(len, reaper._live.values()))


def test_what_comes_back_by_a_roll_back_is_not_deleted() -> None:
    lake = Clocked()
    table = lake.table()
    ids = [table.append(2) for _ in range(4)]
    older = lake.catalog.tables.load(table.slot).location
    table.delete(*table.live()[:3])
    table.expire(*ids)
    for _ in range(22):
        table.update({"action": "set-properties", "updates": {"n": str(lake.numbers.random())}})
    reaper = lake.reaper()
    lake.wait(GRACES.metadata_ms - 1)
    reaper.run_once()
    lake.catalog.names.register(table.slot, older, overwrite=True)
    settled(lake, reaper)
    assert lake.missing() == []


def meanwhile(change: Callable[[], None]) -> Callable[[Op], Fault | None]:
    """A plan without faults that makes a change when the first manifest list is read: the pass has begun."""
    left = [change]

    def plan(op: Op) -> Fault | None:
        if op.kind == "get" and "/snap-" in op.key and left:
            left.pop()()
        return None

    return plan


def about_to_delete() -> tuple[Clocked, Writer]:
    """A lake with removed snapshots, more than 28 of them, whose grace has passed."""
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    for _ in range(60):
        table.append()
    lake.wait(GRACES.metadata_ms)
    lake.reaper().run_once()
    lake.wait(GRACES.files_ms)
    return lake, table


@pytest.mark.parametrize("commits", [1, 19, 20, 21, 150])
def test_a_pass_goes_on_whatever_is_committed_meanwhile(commits: int) -> None:
    """A metadata file names about twenty before it; a busy table gets more than that during a pass."""
    lake, table = about_to_delete()

    def commit() -> None:
        lake.wait(reaper_module.LOOK_AGAIN_MS)
        for _ in range(commits):
            table.append()

    done = lake.reaper(FaultyStore(lake.store, meanwhile(commit))).run_once()
    assert done.failed == {}
    assert done.manifest_lists >= 28, done
    assert lake.missing() == []


def test_a_pass_deletes_nothing_if_the_table_was_set_back_meanwhile() -> None:
    lake, table = about_to_delete()
    older = lake.catalog.tables.load(table.slot).location
    table.append()

    def set_back() -> None:
        lake.wait(reaper_module.LOOK_AGAIN_MS)
        lake.catalog.names.register(table.slot, older, overwrite=True)
        for number in range(30):
            table.update({"action": "set-properties", "updates": {"n": str(number)}})

    before = lake.bytes()
    done = lake.reaper(FaultyStore(lake.store, meanwhile(set_back))).run_once()
    assert done.deleted == done.metadata, done
    assert lake.bytes() > before
    assert lake.missing() == []


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_of_a_damaged_table_no_file_is_deleted_and_its_history_is_not_read_again(damage: str) -> None:
    lake, table = about_to_delete()
    kept = table.manifests[table.head]
    key = kept[0].file.manifest_path.removeprefix("s3://tarn/")
    lake.store.delete(key)
    if damage == "empty":
        lake.store.put(key, b"")
    store = FaultyStore(lake.store)
    reaper = lake.reaper(store)
    for number in range(3):
        store.seen.clear()
        done = reaper.run_once()
        assert "manifest" in done.failed["ns.t"], done
        assert done.deleted == done.metadata, done
        read = [op for op in store.seen if op.kind == "get" and op.key.endswith(".metadata.json")]
        assert number == 0 or len(read) <= 2, read
        table.update({"action": "set-properties", "updates": {"n": str(number)}})


class Long(FaultyStore):
    """Refuses to read what is named, as a store does with objects that are too long."""

    def __init__(self, inner: ObjectStore, *names: str) -> None:
        super().__init__(inner)
        self.names = names

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        if key.endswith(self.names):
            raise StoreTooLargeError(f"{key} has 200000000 bytes")
        return super().get(key, known=known)


@pytest.mark.parametrize("what", ["metadata", "manifest list", "manifest"])
def test_an_object_that_is_too_long_to_be_read_keeps_its_own_table_alone(what: str) -> None:
    """Whoever may write a table chooses what it names; the files of other tables are deleted all the same."""
    lake, table = about_to_delete()
    named = {
        "metadata": lake.catalog.tables.load(table.slot).location,
        "manifest list": next(
            s["manifest-list"] for s in table.meta()["snapshots"] if s["snapshot-id"] == table.head
        ),
        "manifest": table.manifests[table.head][0].file.manifest_path,
    }[what]
    other = lake.table("u", **{"tarn.history": "2"})
    for _ in range(30):
        other.append()
    lake.wait(30 * MINUTE_MS)
    done = lake.reaper(Long(lake.store, named.rpartition("/")[2])).run_once()
    assert list(done.failed) == ["ns.t"], done
    assert "200000000 bytes" in done.failed["ns.t"], done
    assert done.manifest_lists > 0, done
    assert lake.missing() == []


@pytest.mark.parametrize("what", ["of a later release", "too long"])
def test_a_list_of_the_reaper_that_it_cannot_read_keeps_its_own_table_alone(what: str) -> None:
    """One of a later release is there after an upgrade was taken back."""
    lake, _ = about_to_delete()
    other = lake.table("u", **{"tarn.history": "2"})
    for _ in range(30):
        other.append()
    lake.wait(30 * MINUTE_MS)
    (listed, *_) = lake.store.list(LISTS_PREFIX)
    if what == "too long":
        done = lake.reaper(Long(lake.store, listed.key)).run_once()
    else:
        lake.store.put(listed.key, b'{"format": 2}')
        done = lake.reaper().run_once()
    assert list(done.failed) == ["ns.t"], done
    assert ("200000000 bytes" if what == "too long" else "knows 1") in done.failed["ns.t"], done
    assert set(Measured(lake.store).sizes()) == {"ns.t", "ns.u"}


def test_a_removed_manifest_list_that_is_too_long_to_be_read_holds_nothing_up() -> None:
    lake, table = about_to_delete()
    kept = {s["manifest-list"] for s in table.meta()["snapshots"]}
    names = [e.key.rpartition("/")[2] for e in lake.store.list("warehouse/") if "/snap-" in e.key]
    gone = next(name for name in names if not any(path.endswith(name) for path in kept))
    done = lake.reaper(Long(lake.store, gone)).run_once()
    assert done.failed == {}
    assert done.manifest_lists > 0, done
    assert lake.missing() == []


def test_a_waiting_manifest_list_that_is_too_long_to_be_read_keeps_what_it_shares_for_its_grace() -> None:
    """Who reads that snapshot still needs the files that it shares with those that are due."""
    lake = Clocked()
    table = lake.table()
    first = table.append(2)
    second = table.append()
    waiting = next(s["manifest-list"] for s in table.meta()["snapshots"] if s["snapshot-id"] == second)
    shared = [path.removeprefix("s3://tarn/") for path in table.live()]
    table.delete(*table.live())
    table.expire(first)
    lake.wait(GRACES.files_ms)
    table.expire(second)
    lake.wait(GRACES.metadata_ms)
    reaper = lake.reaper(Long(lake.store, waiting.rpartition("/")[2]))
    done = reaper.run_once()
    assert [path for path in shared if lake.store.get(path) is None] == []
    assert "200000000 bytes" in done.failed["ns.t"], done
    lake.wait(GRACES.files_ms)
    done = reaper.run_once()
    assert done.failed == {}
    assert done.manifest_lists > 0, done
    assert lake.missing() == []


def test_what_a_killed_pass_deleted_a_part_of_does_not_stop_the_next_ones() -> None:
    """Its snapshots are put on a list and wait once more: manifests that only they name may be gone."""
    lake = Clocked()
    graces = Graces(metadata_ms=5 * MINUTE_MS, files_ms=MINUTE_MS)
    table = lake.table(**{"tarn.history": "2"})
    read: list[int] = []

    def commits(count: int) -> None:
        for number in range(count):
            lake.wait(1_000)
            table.append()
            if number % 4 == 0:
                table.compact(4, newest=True)

    def killed(op: Op) -> Fault | None:
        gone = op.kind == "delete" and "/snap-" in op.key
        return Fault.CRASH if gone else None

    commits(60)
    lake.wait(graces.files_ms)
    commits(40)
    with pytest.raises(Crash):
        lake.reaper(FaultyStore(lake.store, killed), graces).run_once()
    lake.wait(graces.metadata_ms - graces.files_ms - 20_000)
    commits(30)
    store = FaultyStore(lake.store)
    reaper = lake.reaper(store, graces)
    for _ in range(12):
        store.seen.clear()
        done = reaper.run_once()
        read.append(sum(op.kind == "get" and op.key.endswith(".metadata.json") for op in store.seen))
        assert done.failed == {}
        commits(10)
    assert lake.missing() == []
    assert max(read[1:]) <= 15, (read, "earlier metadata are read once, not in each pass")


def test_a_hold_stops_it_until_it_is_released_or_lapses() -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    for _ in range(30):
        table.append()
    lake.wait(10 * MINUTE_MS)
    lake.store.put(f"{HOLDS_PREFIX}backup.json", b"{}")
    reaper = lake.reaper()
    assert reaper.run_once().held
    lake.wait(4 * MINUTE_MS)
    assert reaper.run_once().held
    lake.wait(MINUTE_MS)
    assert not reaper.run_once().held
    assert reaper.run_once().held is False


def test_a_hold_of_a_clock_that_was_ahead_stops_it_no_longer_than_any_other() -> None:
    lake = Clocked()
    reaper = lake.reaper()
    lake.now_ms += 3_600_000
    lake.store.put(f"{HOLDS_PREFIX}backup.json", b"{}")
    assert reaper.run_once().held
    lake.now_ms -= 3_600_000
    assert reaper.run_once().held, "who holds it writes it again before long"
    lake.wait(4 * MINUTE_MS)
    assert reaper.run_once().held
    lake.wait(MINUTE_MS)
    assert not reaper.run_once().held


def test_a_hold_of_the_future_counts_for_a_reaper_that_began_after_the_clock_went_back() -> None:
    """Who holds it may be alive, and writes it again within a minute."""
    lake = Clocked()
    lake.now_ms += 3_600_000
    lake.store.put(f"{HOLDS_PREFIX}backup.json", b"{}")
    lake.now_ms -= 3_600_000
    reaper = lake.reaper()
    assert reaper.run_once().held
    lake.wait(4 * MINUTE_MS)
    assert reaper.run_once().held
    lake.store.put(f"{HOLDS_PREFIX}backup.json", b"{}")
    lake.wait(MINUTE_MS)
    assert reaper.run_once().held, "it was written again"
    lake.wait(5 * MINUTE_MS)
    assert not reaper.run_once().held


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
def test_a_clock_that_jumps_shortens_no_grace(jump_ms: int) -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    for _ in range(30):
        table.append()
    reaper = lake.reaper()
    reaper.run_once()
    lake.now_ms += jump_ms
    lake.wait(1_000)
    for _ in range(3):
        table.append()
    assert reaper.run_once().deleted == 0, "an hour has not passed"
    lake.wait(GRACES.files_ms - 2_000)
    reaper.run_once()
    assert len(lake.keys("/snap-")) == 33
    lake.wait(2 * 3_600_000)
    settled(lake, reaper)
    assert len(lake.keys("/snap-")) == 2


def test_a_store_whose_clock_is_not_this_machines_is_observed_first() -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    for _ in range(30):
        table.append()
    lake.wait(2 * 3_600_000)
    reaper = Reaper(
        lake.store,
        manifest_audit,
        bucket="tarn",
        graces=GRACES,
        mono_ms=lambda: lake.mono_ms,
        wall_ms=lambda: lake.now_ms - 3_600_000,
    )
    assert reaper.run_once().deleted == 0
    lake.wait(GRACES.metadata_ms)
    assert reaper.run_once().metadata > 0


MONTH_MS = 30 * 86_400_000


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_was_ahead_holds_up_nothing_that_is_written_since(restarted: bool) -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2", "write.metadata.previous-versions-max": "2"})
    reaper = lake.reaper()

    def minutes(count: int) -> None:
        for _ in range(count):
            for _ in range(3):
                lake.wait(1_000)
                table.append(merge_at=4)
            lake.wait(57_000)
            assert reaper.run_once().failed == {}

    def waiting() -> tuple[int, int, int]:
        return len(lake.keys(".metadata.json")), len(lake.keys("/snap-")), len(lake.keys(LISTS_PREFIX))

    minutes(20)
    usual = waiting()
    lake.now_ms += MONTH_MS
    minutes(15)
    lake.now_ms -= MONTH_MS
    if restarted:
        reaper = lake.reaper()
    minutes(20)
    assert waiting() == usual
    assert lake.missing() == []


def test_a_commit_by_a_clock_that_was_behind_makes_nothing_old_that_came_before_it() -> None:
    """Its time says nothing of the versions before it, whose readers still run."""
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    for _ in range(10):
        lake.wait(1_000)
        table.append(merge_at=4)
    lake.now_ms -= MONTH_MS
    table.append(merge_at=4)
    lake.now_ms += MONTH_MS
    there = lake.keys("/snap-")
    done = lake.reaper().run_once()
    assert (done.failed, done.metadata) == ({}, 0)
    assert len(there) - len(lake.keys("/snap-")) <= 1, "that of the last commit alone"
    assert lake.missing() == []


def test_what_was_removed_while_the_clock_was_ahead_goes_after_its_grace_without_another_commit() -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    lake.now_ms += MONTH_MS
    for _ in range(30):
        table.append(merge_at=4)
    lake.now_ms -= MONTH_MS
    reaper = lake.reaper()
    reaper.run_once()
    lake.wait(GRACES.metadata_ms - 1)
    assert reaper.run_once().deleted == 0, "for this reaper all of it is younger than the grace"
    lake.wait(1)
    assert reaper.run_once().metadata == 10
    settled(lake, reaper)
    assert len(lake.keys("/snap-")) == 2
    assert lake.keys(LISTS_PREFIX) == []


def test_a_table_that_was_purged_while_the_clock_was_ahead_goes_after_its_grace() -> None:
    lake = Clocked()
    purged = lake.table("purged")
    purged.append()
    lake.now_ms += MONTH_MS
    lake.catalog.names.purge(purged.slot)
    lake.now_ms -= MONTH_MS
    reaper = lake.reaper()
    reaper.run_once()
    lake.wait(GRACES.files_ms - 1)
    assert reaper.run_once().purged == 0, "for this reaper it is younger than the grace"
    lake.wait(1)
    assert reaper.run_once().purged == 5
    assert lake.keys(purged.folder) == []


def test_a_list_of_a_time_that_never_was_is_worked_off() -> None:
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2"})
    lake.now_ms += MONTH_MS
    for _ in range(30):
        table.append()
    lake.wait(GRACES.metadata_ms)
    lake.reaper().run_once()
    assert len(lake.keys(LISTS_PREFIX)) == 1
    lake.now_ms -= MONTH_MS
    reaper = lake.reaper()
    for _ in range(12):
        lake.wait(MINUTE_MS)
        table.append()
        reaper.run_once()
    assert [key for key in lake.keys(LISTS_PREFIX) if int(key.rpartition("/")[2][:15]) > lake.now_ms] == []
    assert lake.missing() == []


def full() -> Clocked:
    """A lake in which an earlier reaper left lists, all of them past their grace period."""
    lake = Clocked()
    table = lake.table(**{"tarn.history": "2", "write.metadata.previous-versions-max": "1"})
    for _ in range(3):
        table.append(2, merge_at=4)
        table.delete(table.live()[0])
        table.compact(3)
        table.vectors()
        table.statistics()
        lake.wait(90_000)
    lake.catalog.names.purge(lake.table("purged").slot)
    lake.reaper().run_once()
    lake.wait(GRACES.files_ms + GRACES.metadata_ms)
    return lake


def two_passes(lake: Clocked, fault: Fault | None = None, *, at: int = 0) -> int:
    """Run two passes of a reaper with this fault in store call `at`; returns the number of calls."""
    calls = 0

    def plan(_: Op) -> Fault | None:
        nonlocal calls
        calls += 1
        return fault if calls == at else None

    reaper = lake.reaper(FaultyStore(lake.store, plan))
    reaper.run_once()
    lake.wait(GRACES.files_ms)
    reaper.run_once()
    return calls


@pytest.mark.parametrize(
    "fault", [Fault.CRASH, Fault.CRASH_DONE, Fault.LATE], ids=["before", "after", "halfway"]
)
def test_killed_at_any_call_nothing_reachable_is_lost_and_the_next_one_finishes(fault: Fault) -> None:
    """At every store call, before it or after it took effect, or when half of the keys are deleted."""
    begin = full()
    # There are no more commits, so what is reachable stays the same.
    reached = set(begin.reachable())
    calls = two_passes(begin.fork())
    for at in range(1, calls + 1):
        lake = begin.fork()
        with pytest.raises((Crash, StoreOutcomeUnknownError, StoreUnavailableError)):
            two_passes(lake, fault, at=at)
        assert reached <= set(lake.keys("")), at
        for _ in range(4):
            lake.reaper().run_once()
            lake.wait(GRACES.files_ms + GRACES.metadata_ms)
        kept = set(lake.keys(""))
        assert reached <= kept, at
        left = {key for key in kept - reached if key.startswith("warehouse/")}
        assert not [key for key in left if not key.endswith(".metadata.json")], at
        assert lake.keys(LISTS_PREFIX) == [], at
    assert calls > 50
    assert len(reached) > 10


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(12))
def test_commits_and_two_reapers_in_any_order_lose_nothing(seed: int) -> None:
    chance = random.Random(seed)
    lake = Clocked(numbers=random.Random(seed))
    table = lake.table(**{"tarn.history": "3, 10s for 1m", "write.metadata.previous-versions-max": "3"})
    graces = Graces(metadata_ms=2_000, files_ms=8_000)
    refs: list[str] = []
    moves = [table.append]

    def pause(op: Op) -> Fault | None:
        """Between two steps of a reaper, others commit, and time passes."""
        if op.kind in ("delete", "get") and chance.random() < 0.05:
            lake.wait(chance.choice([10, 1_000, 6_000]))
            chance.choice(moves)()
            lake.catalog.core.cache.drop("nothing")
        return Fault.BUSY if op.kind == "delete" and chance.random() < 0.01 else None

    def remove() -> None:
        live = table.live()
        if live:
            table.delete(*chance.sample(live, min(2, len(live))))

    def tag() -> None:
        refs.append(f"t{len(refs)}")
        table.ref(refs[-1], chance.choice(table.meta()["snapshots"])["snapshot-id"])

    def untag() -> None:
        if refs:
            table.update({"action": "remove-snapshot-ref", "ref-name": refs.pop(0)})

    table.append()
    moves += [table.append, remove, table.compact, table.vectors, table.statistics, tag, untag]
    reapers = [lake.reaper(FaultyStore(lake.store, pause), graces) for _ in range(2)]
    for _ in range(60):
        chance.choice(moves)()
        lake.wait(chance.choice([100, 900, 3_000]))
        if chance.random() < 0.4:
            with suppress(StoreOutcomeUnknownError):
                chance.choice(reapers).run_once()
            assert lake.missing() == []
    last = lake.reaper(graces=graces)
    while refs:
        untag()
    for _ in range(30):
        lake.wait(4_000)
        table.append()
        last.run_once()
    for _ in range(4):
        lake.wait(20_000)
        table.append()
        last.run_once()
    assert lake.missing() == []
    assert lake.keys(".metadata.json")
