"""Backup and restore over whole lakes: the restored lake is equal; inconsistencies are rejected by name."""

from __future__ import annotations

import errno
import io
import json
import tarfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.bootstrap.access import probe_keys
from tarn.core.audit.names import keys_to_copy
from tarn.core.catalog_objects import RESTORE_MARKER
from tarn.core.credentials import STORE_USERS
from tarn.core.errors import InvalidError, NotEmptyError, UnavailableError
from tarn.core.naming import GRANTS_KEY, KEY_PAGES_PREFIX, POINTERS_PREFIX, WarehouseLayout
from tarn.core.object_store import (
    PART_BYTES,
    ObjectBody,
    Stored,
    StoreOutcomeUnknownError,
    StoreTooLargeError,
)
from tarn.keeper import archive as archive_module
from tarn.keeper import backup as backup_module
from tarn.keeper import register as register_module
from tarn.keeper import restore as restore_module
from tarn.keeper.archive import BackupError, Begin, Writer, read
from tarn.keeper.backup import Done, backup
from tarn.keeper.fsck import fsck
from tarn.keeper.hold import held
from tarn.keeper.reaper import Graces, Reaper
from tarn.keeper.restore import Restored, restore
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.health import check_restored
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.tables import TableIdentifier
from tarn_catalog.state import request_history
from tarn_catalog.state.access import THE_WAREHOUSE, Privilege
from tarn_catalog.state.context import IdempotencyKey
from tests.contract.keeper.conftest import World, a_view, plain
from tests.support.lake import BUCKET

BEGIN = Begin(id="b-1", bucket=BUCKET, warehouse="tarn", at="2026-11-21T12:00:00+00:00", version="0")


def quiet(_: object) -> None:
    return None


def take(
    bulk: PlainBulk, begin: Begin = BEGIN, on_register: Callable[[], None] = lambda: None
) -> tuple[bytes, Done]:
    out = io.BytesIO()
    done = backup(bulk, manifest_audit, out, begin, tell=quiet, sleep=quiet, on_register=on_register)
    return out.getvalue(), done


def put_into(bulk: PlainBulk, data: bytes, *, bucket: str = BUCKET, warehouse: str = "tarn") -> Restored:
    return restore(bulk, io.BytesIO(data), bucket=bucket, warehouse=warehouse, tell=quiet, sleep=quiet)


def put(data: bytes, store: MemoryStore, **options: str) -> Restored:
    return put_into(PlainBulk(store), data, **options)


def check(store: MemoryStore):
    return fsck(PlainBulk(store), manifest_audit, bucket=BUCKET, tell=quiet, sleep=quiet)


def contents(store: MemoryStore, prefix: str = "") -> dict[str, bytes]:
    return {key: data for key, (data, _) in store._objects.items() if key.startswith(prefix)}


def test_a_view_comes_back_with_its_one_file(world: World):
    before = world.fsck().orphans
    view = TableIdentifier.of(("bronze",), "seen", "view")
    stored = world.catalog.views.create(view, a_view())
    replaced = world.catalog.views.commit(
        view, [], [{"action": "set-properties", "updates": {"comment": "all"}}]
    )
    data, done = take(world.bulk)
    assert done.whole
    assert world.fsck().orphans == before + 1, "the file before the replacement"
    fresh = MemoryStore()
    put(data, fresh)
    after = check(fresh)
    assert (after.findings, after.orphans) == ([], 0)
    catalog = Catalog(fresh, WarehouseLayout(base=f"s3://{BUCKET}"))
    assert catalog.tables.load(view).raw == replaced.raw
    assert fresh.get(stored.location.removeprefix(f"s3://{BUCKET}/")) is None
    world.store.delete(replaced.location.removeprefix(f"s3://{BUCKET}/"))
    _, broken = take(world.bulk)
    assert broken.end.missing == [replaced.location]
    assert not broken.whole


def test_what_comes_back_is_the_same_and_clean(world: World):
    data, done = take(world.bulk)
    assert done.whole
    fresh = MemoryStore()
    restored = put(data, fresh)
    before, after = world.fsck(), check(fresh)
    assert after.findings == []
    assert (after.orphans, after.files, after.bytes) == (0, before.files, before.bytes)
    assert (after.tables, after.snapshots, after.tombstones) == (3, before.snapshots, 1)
    assert after.streams == before.streams
    whole = contents(world.store)
    assert contents(fresh).items() <= whole.items()
    assert {k for k in contents(fresh) if k.startswith("catalog/")} == {
        k for k in whole if k.startswith("catalog/") and "probe" not in k
    }
    assert restored.end.objects == len(contents(fresh)) == done.end.objects
    assert restored.end.streams[0]["next"] == {"0": 54, "1": 18}
    # It is a working lake: the next commit continues from it.
    catalog = Catalog(fresh, WarehouseLayout(base=f"s3://{BUCKET}"))
    updates = [{"action": "set-properties", "updates": {"a": "b"}}]
    catalog.tables.commit(TableIdentifier.of(("bronze",), "orders"), [], updates)
    assert check(fresh).damage == []


def test_positions_of_readers_come_back_and_are_no_leftovers(world: World):
    folder = world.metadata()[0].rpartition("/metadata/")[0]
    before = check(world.store).orphans
    world.store.put(f"{folder}/readers/billing.json", b'{"v": 1}')
    assert check(world.store).orphans == before, "they belong to the table"
    data, _ = take(world.bulk)
    fresh = MemoryStore()
    put(data, fresh)
    assert fresh.get(f"{folder}/readers/billing.json").data == b'{"v": 1}'
    assert (check(fresh).findings, check(fresh).orphans) == ([], 0)


@pytest.mark.parametrize("folder", ["", "/team/data", "/team/metadata", "/data"])
def test_positions_of_readers_come_back_wherever_the_table_lies(world: World, folder: str):
    """A location may be asked for: the warehouse itself, or a folder with the name of one of a table."""
    wanted = replace(plain("x"), location=f"s3://{BUCKET}/warehouse{folder}")
    world.catalog.tables.create(TableIdentifier.of(("bronze",), "asked"), wanted)
    root = world.metadata("bronze.asked")[0].rpartition("/metadata/")[0]
    assert root.startswith(f"warehouse{folder}/")
    world.store.put(f"{root}/readers/alerts.json", b'{"v": 1}')
    data, done = take(world.bulk)
    assert done.whole
    fresh = MemoryStore()
    put(data, fresh)
    assert contents(fresh, f"{root}/readers/") == {f"{root}/readers/alerts.json": b'{"v": 1}'}


def test_a_file_of_a_table_that_lies_among_positions_is_in_the_backup_once_and_is_no_finding(world: World):
    """`write.data.path` may name any folder of the table."""
    asked = TableIdentifier.of(("bronze",), "asked")
    world.catalog.tables.create(asked, plain("x"))
    root = world.metadata("bronze.asked")[0].rpartition("/metadata/")[0]
    path = f"{root}/readers/large.stats"
    world.store.put(path, bytes(PART_BYTES + 1))
    statistics = {
        **{"snapshot-id": 1, "statistics-path": f"s3://{BUCKET}/{path}", "blob-metadata": []},
        **{"file-size-in-bytes": PART_BYTES + 1, "file-footer-size-in-bytes": 1},
    }
    world.catalog.tables.commit(
        asked, [], [{"action": "set-statistics", "snapshot-id": 1, "statistics": statistics}]
    )
    data, done = take(world.bulk)
    assert done.whole, done.findings
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [name for name in tar.getnames() if "/readers/" in name] == [f"objects/{path}"]


def test_what_lies_among_positions_and_is_too_much_for_a_restore_is_left_out_and_named(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Whoever may write a table can put it there; a backup that no restore takes is none."""
    folder = f"{world.metadata()[0].rpartition('/metadata/')[0]}/readers"
    world.store.put(f"{folder}/alerts.json", b"{}")
    world.store.put(f"{folder}/large.json", bytes(PART_BYTES + 1))
    world.store.put(f"{folder}/other.bin", bytes(PART_BYTES + 1))
    held = sum(map(len, contents(world.store, "catalog/v1/").values()))
    for module in (backup_module, restore_module):
        monkeypatch.setattr(module, "CATALOG_BYTES_MAX", held + 5_000)
    for number in range(3):
        world.store.put(f"{folder}/many-{number}.json", bytes(2_000))
    world.store.put(f"{folder}/a-small.bin", bytes(6_000))
    data, done = take(world.bulk)
    assert [found.where.rpartition("/")[2] for found in done.findings] == [
        *("large.json", "many-2.json", "other.bin")
    ]
    assert "not in the backup" in done.findings[0].what
    fresh = MemoryStore()
    put(data, fresh)
    assert sorted(key.rpartition("/")[2] for key in contents(fresh) if "/readers/" in key) == [
        *("a-small.bin", "alerts.json", "many-0.json", "many-1.json")
    ]


def test_positions_do_not_use_up_the_room_of_declared_ingestors(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Whoever may write one table can fill the folder of its readers."""
    folder = f"{world.metadata()[0].rpartition('/metadata/')[0]}/readers"
    declared = {f"specs/v1/ingestors/{name}.json": bytes(1_000) for name in ("orders", "payments")}
    for key, value in declared.items():
        world.store.put(key, value)
    for number in range(6):
        world.store.put(f"{folder}/many-{number}.json", bytes(1_000))
    held = sum(map(len, contents(world.store, "catalog/v1/").values()))
    for module in (backup_module, restore_module):
        monkeypatch.setattr(module, "CATALOG_BYTES_MAX", held + 5_000)
    data, done = take(world.bulk)
    assert [found.where for found in done.findings] == [f"{folder}/many-{n}.json" for n in (3, 4, 5)]
    fresh = MemoryStore()
    put(data, fresh)
    assert contents(fresh, "specs/") == declared


def test_declared_ingestors_come_back_and_their_status_does_not(world: World):
    key = "specs/v1/ingestors/orders.json"
    world.store.put(key, b'{"v": 1}')
    world.store.put("specs/v1/status/orders.json", b'{"v": 1}')
    data, _ = take(world.bulk)
    fresh = MemoryStore()
    put(data, fresh)
    assert {k: v for k, v in contents(fresh).items() if k.startswith("specs/")} == {key: b'{"v": 1}'}
    assert (check(fresh).findings, check(fresh).orphans) == ([], 0)


STARTED_MS = int(time.time() * 1_000)
PAGE = "catalog/v1/keys/0123/large.json"


def busy(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Commit with request keys until there are pages of them; return the keys of the pages."""
    monkeypatch.setattr(request_history, "INLINE_MAX", 8)
    monkeypatch.setattr(request_history, "INLINE_KEPT", 4)
    kept = TableIdentifier.of(("gold", "eu"), "kept")
    catalog = world.catalog
    for number in range(60):
        update = {"action": "set-properties", "updates": {"n": str(number)}}
        catalog.tables.commit(kept, [], [update], repeat=repeated(number))
    pages = world.keys("catalog/v1/keys/")
    assert len(pages) > 1
    return pages


def repeated(number: int) -> IdempotencyKey:
    return IdempotencyKey(key=str(uuid.UUID(int=(STARTED_MS << 80) + number)), what="commit")


def bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hold what the catalog has at present without its pages, and little more."""
    objects = contents(world.store, "catalog/v1/").items()
    held = sum(len(data) for key, data in objects if not key.startswith(KEY_PAGES_PREFIX))
    for module in (backup_module, register_module, restore_module):
        monkeypatch.setattr(module, "CATALOG_BYTES_MAX", held + 100)


def test_pages_of_request_keys_take_no_room_and_come_back(world: World, monkeypatch: pytest.MonkeyPatch):
    """A table that was busy once, or is dropped, keeps its last ones."""
    pages = busy(world, monkeypatch)
    world.store.put(PAGE, bytes(PART_BYTES + 1))
    bounded(world, monkeypatch)
    assert world.fsck().findings == []
    data, done = take(world.bulk)
    assert done.whole
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = [name.removeprefix("objects/") for name in tar.getnames() if name.startswith("objects/")]
    assert names[: len(pages) + 1] == sorted([*pages, PAGE]), (
        "the catalog may remove them while it is written"
    )
    fresh = MemoryStore()
    put(data, fresh)
    assert contents(fresh, KEY_PAGES_PREFIX) == contents(world.store, KEY_PAGES_PREFIX)
    assert check(fresh).findings == []
    catalog = Catalog(fresh, WarehouseLayout(base=f"s3://{BUCKET}"))
    before = contents(fresh, "catalog/")
    update = {"action": "set-properties", "updates": {"n": "3"}}
    catalog.tables.commit(TableIdentifier.of(("gold", "eu"), "kept"), [], [update], repeat=repeated(3))
    assert contents(fresh, "catalog/") == before, "it was done before the backup"


def test_a_catalog_that_is_too_large_without_its_pages_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    bounded(world, monkeypatch)
    world.store.put("catalog/v1/claims/x.json", bytes(200))
    with pytest.raises(UnavailableError, match=r"in \d+ objects; .* too many names, dropped ones among them"):
        take(world.bulk)


def test_a_backup_whose_pages_come_last_is_restored(world: World, monkeypatch: pytest.MonkeyPatch):
    """As in those of releases that held them."""
    busy(world, monkeypatch)
    bounded(world, monkeypatch)
    data, _ = take(world.bulk)
    out = io.BytesIO()
    writer = Writer(out, BEGIN)
    found: dict[str, bytes] = {}

    def keep(key: str, _: int, parts: Iterator[bytes]) -> None:
        found[key] = b"".join(parts)

    end = read(io.BytesIO(data), on_begin=quiet, on_object=keep)
    catalog = [key for key in found if key.startswith("catalog/")]
    for key in [*(key for key in found if key not in catalog), *keys_to_copy(catalog)]:
        writer.add(key, len(found[key]), iter([found[key]]))
    writer.close(tables=end.tables, missing=[], streams=[])
    fresh = MemoryStore()
    put(out.getvalue(), fresh)
    assert contents(fresh) == found
    assert check(fresh).findings == []


def test_pages_that_an_interrupted_restore_left_are_in_nobodys_way(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    plain_data, _ = take(world.bulk, replace(BEGIN, id="b-2"))
    pages = busy(world, monkeypatch)
    data, _ = take(world.bulk)
    store = MemoryStore()
    with pytest.raises(BackupError, match="No table shows"):
        put(data[: len(data) // 2], store)
    assert world.keys(KEY_PAGES_PREFIX) == sorted(contents(store, KEY_PAGES_PREFIX)) == pages
    with pytest.raises(NotEmptyError, match="was interrupted in"):
        check_restored(store)
    other = MemoryStore()
    other._objects = dict(store._objects)
    put(data, store)
    assert check(store).findings == []
    put(plain_data, other)
    assert check(other).findings == []
    left = MemoryStore()
    left.put(pages[0], contents(world.store)[pages[0]])
    with pytest.raises(NotEmptyError, match=r"this lake is not empty: .* 1 objects such as catalog/v1/keys/"):
        put(data, left)


@pytest.mark.parametrize("needed", [True, False])
def test_a_page_that_is_gone_is_named_if_something_names_it(
    world: World, monkeypatch: pytest.MonkeyPatch, needed: bool
):
    pages = busy(world, monkeypatch)
    world.store.put(PAGE, b"[]")
    gone = next(p for p in pages if p in str(world.pointer("gold.eu.kept"))) if needed else PAGE
    _, done = take(world.bulk, on_register=lambda: world.store.delete(gone))
    assert done.end.missing == ([f"s3://{BUCKET}/{gone}"] if needed else [])
    assert {finding.kind.name for finding in world.fsck().damage} == ({"KEY_PAGE"} if needed else set())


def test_any_tar_shows_it(world: World):
    data, _ = take(world.bulk)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
    assert names[0] == "tarn-backup.json"
    assert names[-2:] == ["manifest/000001.jsonl", "tarn-backup-end.json"]
    first_pointer = next(n for n, name in enumerate(names) if "/pointers/" in name)
    assert all(name.startswith("objects/catalog/v1/pointers/") for name in names[first_pointer:-2])
    assert all(name.startswith("objects/warehouse/") for name in names[1:-2] if "/catalog/" not in name)


def test_commits_drops_and_creates_while_it_runs_do_not_matter(world: World):
    catalog = world.catalog
    expected = {name: world.metadata(name)[0] for name in ("bronze.orders", "gold.eu.kept")}

    def meanwhile() -> None:
        updates = [{"action": "set-properties", "updates": {"later": "yes"}}]
        catalog.tables.commit(TableIdentifier.of(("bronze",), "orders"), [], updates)
        catalog.tables.drop(TableIdentifier.of(("gold", "eu"), "kept"))
        catalog.tables.create(TableIdentifier.of(("gold",), "fresh"), plain("fresh"))

    data, done = take(world.bulk, on_register=meanwhile)
    assert done.whole
    fresh = MemoryStore()
    put(data, fresh)
    assert check(fresh).findings == []
    copy = World(fresh)
    assert {name: copy.metadata(name)[0] for name in expected} == expected


def test_large_objects_go_in_parts_both_ways(world: World):
    key, metadata = world.metadata("gold.eu.kept")
    folder = key.rpartition("/metadata/")[0]
    large = bytes(range(256)) * (3 * PART_BYTES // 256) + b"end"
    world.store.put(f"{folder}/metadata/x.puffin", large)
    metadata["statistics"] = [
        {
            "snapshot-id": 1,
            "statistics-path": f"s3://{BUCKET}/{folder}/metadata/x.puffin",
            "file-size-in-bytes": len(large),
        }
    ]
    world.put_json(key, metadata)
    data, done = take(world.bulk)
    assert done.whole
    fresh = MemoryStore()
    put(data, fresh)
    assert contents(fresh)[f"{folder}/metadata/x.puffin"] == large


def test_a_damaged_lake_is_copied_as_far_as_it_goes_and_said_so(world: World):
    gone = next(key for key in world.keys("bronze/orders-") if key.endswith(".parquet"))
    world.store.delete(gone)
    world.store.delete(world.metadata("gold.eu.kept")[0])
    data, done = take(world.bulk)
    assert not done.whole
    assert done.end.missing == [f"s3://{BUCKET}/{gone}"]
    assert [finding.where for finding in done.findings] == ["gold.eu.kept"]
    fresh = MemoryStore()
    assert put(data, fresh).end.missing == done.end.missing
    assert [(f.kind.name, f.where) for f in check(fresh).damage] == [
        ("FILE", "bronze.orders"),
        ("METADATA_MISSING", "gold.eu.kept"),
    ]


def test_positions_of_streams_that_have_no_room_are_counted(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archive_module, "STREAMS_BYTES_MAX", 100)
    said: list[str] = []
    out = io.BytesIO()
    done = backup(world.bulk, manifest_audit, out, BEGIN, tell=said.append, sleep=quiet)
    assert (done.whole, done.end.streams) == (True, [])
    assert "no room for the positions of 1 streams" in said[-1]
    fresh = MemoryStore()
    put(out.getvalue(), fresh)
    assert check(fresh).streams == world.fsck().streams


def test_a_manifest_that_is_too_long_to_be_read_is_in_the_backup_and_so_is_all_else(world: World):
    """What it names cannot be looked up, so that is said; other tables are whole."""
    listed = world.head()["manifest-list"].removeprefix(f"s3://{BUCKET}/")
    (entry, _), *_ = manifest_audit.list_entries(contents(world.store)[listed])
    name = entry.path.rpartition("/")[2]

    class Long(PlainBulk):
        def get(self, key: str) -> Stored | None:
            if key.endswith(name):
                raise StoreTooLargeError(f"{key} has 200000000 bytes")
            return super().get(key)

        def open(self, key: str, *, bytes_max: int = PART_BYTES) -> ObjectBody | None:
            return super().open(key, bytes_max=0 if key.endswith(name) else bytes_max)

    data, done = take(Long(world.store))
    assert not done.whole
    assert [(found.where, "200000000 bytes" in found.what) for found in done.findings] == [
        ("bronze.orders", True)
    ]
    fresh = MemoryStore()
    put(data, fresh)
    assert any(key.endswith(name) for key in contents(fresh))
    assert {found.where for found in check(fresh).damage} <= {"bronze.orders"}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.8, 1.0])
def test_a_backup_that_is_cut_short_is_named_and_shows_no_table(world: World, share: float):
    data, _ = take(world.bulk)
    fresh = MemoryStore()
    # The last one ends in the middle of the closing record.
    cut = data[: int((data.index(b"tarn-backup-end.json") + 540) * share)]
    with pytest.raises(BackupError, match=r"cut short|no backup of Tarn") as caught:
        put(cut, fresh)
    assert "No table shows in this lake" in caught.value.message
    assert [key for key in contents(fresh, "catalog/") if key != "catalog/v1/restore.json"] == []
    if share > 0.001:  # before, nothing has begun
        with pytest.raises(NotEmptyError, match=r"a restore of the backup b-1 of .* was interrupted in"):
            check_restored(fresh)
    # The next restore resumes, with the whole file of this backup or with another one.
    other, _ = take(world.bulk, Begin(**{**vars_of(BEGIN), "id": "b-2"}))
    put(other if share == 0.8 else data, fresh)
    check_restored(fresh)
    assert check(fresh).findings == []


def vars_of(begin: Begin) -> dict[str, object]:
    return {name: getattr(begin, name) for name in begin.__dataclass_fields__}


def test_a_flipped_bit_is_found_wherever_it_is(world: World):
    data, _ = take(world.bulk)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = [m for m in tar if m.name.startswith("objects/")]
    for member in (members[0], members[len(members) // 2], members[-1]):
        at = member.offset_data + member.size // 2
        odd = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        fresh = MemoryStore()
        with pytest.raises(
            BackupError, match=r"the backup is damaged: manifest/000001\.jsonl states"
        ) as caught:
            put(odd, fresh)
        assert member.name.removeprefix("objects/") in caught.value.message
        assert [key for key in contents(fresh, "catalog/") if key != "catalog/v1/restore.json"] == []


def test_something_that_is_no_backup_is_refused(world: World):
    fresh = MemoryStore()
    other = io.BytesIO()
    with tarfile.open(fileobj=other, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("README"))
    for data in (b"", b"hello" * 1000, other.getvalue()):
        with pytest.raises(BackupError, match="no backup of Tarn"):
            put(data, fresh)
    assert contents(fresh) == {}


def test_a_backup_of_another_bucket_or_warehouse_is_refused(world: World):
    data, _ = take(world.bulk)
    fresh = MemoryStore()
    for options in ({"bucket": "lake2"}, {"warehouse": "other"}):
        with pytest.raises(InvalidError, match=r"would point elsewhere\. Set TARN_BUCKET=tarn"):
            put(data, fresh, **options)
    assert contents(fresh) == {}


def test_a_lake_that_is_not_empty_is_named_and_stays(world: World):
    data, _ = take(world.bulk)
    before = contents(world.store)
    with pytest.raises(NotEmptyError) as caught:
        put(data, world.store)
    count = len([key for key in contents(world.store, "catalog/") if "probe" not in key])
    assert f"{count} objects such as catalog/v1/" in caught.value.message
    assert "Nothing was changed" in caught.value.message
    assert "scripts/down --purge" in caught.value.message
    assert contents(world.store) == before
    files = MemoryStore()
    files.put("warehouse/a/b-1/data/x.parquet", b"mine")
    with pytest.raises(NotEmptyError, match="1 objects such as warehouse/a/b-1"):
        put(data, files)
    assert contents(files) == {"warehouse/a/b-1/data/x.parquet": b"mine"}


def test_what_a_fresh_stack_writes_by_itself_does_not_count(world: World):
    data, _ = take(world.bulk)
    fresh = MemoryStore()
    fresh.put("warehouse/_health/ingest", b"now")
    fresh.put("catalog/v1/probe/health.json", b"{}")
    put(data, fresh)
    assert check(fresh).findings == []


def test_what_a_killed_bootstrap_leaves_does_not_count(world: World):
    """It tries every right with objects of its own, and may be killed before it removes them."""
    data, _ = take(world.bulk)
    fresh = MemoryStore()
    left = [key for user in STORE_USERS for area in probe_keys(user, "0" * 32).values() for key in area]
    for key in left:
        fresh.put(key, b"tarn")
    put(data, fresh)
    assert set(left) <= contents(fresh).keys()
    assert check(fresh).findings == []
    assert (check(fresh).orphans, check(fresh).orphan_bytes) == (0, 0)


class Full(PlainBulk):
    """Accepts some objects and then answers every write with an error, as a full disk does."""

    def __init__(self, store: MemoryStore, room: int) -> None:
        super().__init__(store)
        self.room = room

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> str:
        if self.room <= 0:
            raise StoreOutcomeUnknownError(f"no answer to: write {key}: status code: 507 storage full")
        self.room -= 1
        return super().put(key, data, if_absent=if_absent)


def test_a_store_that_is_full_is_named_and_the_restore_goes_on_afterwards(world: World):
    data, done = take(world.bulk)
    catalog = len([k for k in contents(world.store, "catalog/") if "probe" not in k])
    for room in (0, 3, done.end.objects - catalog + 2, done.end.objects):
        store = MemoryStore()
        with pytest.raises(UnavailableError, match="is its disk full"):
            put_into(Full(store, room), data)
        assert [f.kind.name for f in check(store).damage if f.kind.name == "RESTORE"] == ["RESTORE"][:room]
        again = put(data, store)
        assert again.present == max(0, room - 1)
        assert check(store).findings == []


class Lost(PlainBulk):
    """Carries out the first write of each key and each deletion, and loses the answer."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.lost: set[str] = set()

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> str:
        found = super().put(key, data, if_absent=if_absent)
        if key not in self.lost:
            self.lost.add(key)
            raise StoreOutcomeUnknownError(f"no answer to: write {key}")
        return found

    def delete(self, key: str) -> None:
        there = self._store.get(key) is not None
        super().delete(key)
        if there:
            raise StoreOutcomeUnknownError(f"no answer to: delete {key}")


def test_an_answer_that_is_lost_refuses_no_write_of_the_restore_itself(world: World):
    data, _ = take(world.bulk)
    store = MemoryStore()
    done = put_into(Lost(store), data)
    assert done.present == 0
    assert check(store).findings == []


def test_half_a_catalog_of_another_backup_is_not_gone_on_with(world: World):
    data, done = take(world.bulk)
    other, _ = take(world.bulk, Begin(**{**vars_of(BEGIN), "id": "b-2"}))
    store = MemoryStore()
    with pytest.raises(UnavailableError):
        put_into(Full(store, done.end.objects - 1), data)
    with pytest.raises(NotEmptyError, match="a restore of the backup b-1 was cut off here"):
        put(other, store)
    put(data, store)
    assert check(store).findings == []


def test_a_restore_that_failed_leaves_nothing_that_another_backup_has_otherwise(world: World):
    """Specs and positions of readers change under their name."""
    folder = world.metadata()[0].rpartition("/metadata/")[0]
    spec, added = "specs/v1/ingestors/orders.json", "specs/v1/ingestors/new.json"
    position = f"{folder}/readers/billing.json"
    for key in (spec, position):
        world.store.put(key, b'{"v": 1}')
    monday, _ = take(world.bulk)
    for key in (spec, added, position):
        world.store.put(key, b'{"v": 2}')
    tuesday, done = take(world.bulk, replace(BEGIN, id="b-2"))
    damaged = bytearray(tuesday)
    damaged[bytes(tuesday).rindex(b"metadata-location")] ^= 1
    store = MemoryStore()
    with pytest.raises(BackupError):
        put(bytes(damaged), store)
    put(monday, store)
    assert {key: contents(store).get(key) for key in (spec, added, position)} == {
        **dict.fromkeys((spec, position), b'{"v": 1}'),
        added: None,
    }
    # Cut off while it writes them: the lake is of that backup alone by then.
    catalog = sum(key.startswith("catalog/") for key in contents(world.store))
    store = MemoryStore()
    with pytest.raises(UnavailableError):
        put_into(Full(store, done.end.objects - catalog + 2), tuesday)
    assert added in contents(store)
    with pytest.raises(NotEmptyError, match="a restore of the backup b-2 was cut off here"):
        put(monday, store)
    put(tuesday, store)
    assert contents(store)[position] == b'{"v": 2}'


def test_half_a_restore_of_a_former_version_is_gone_on_with_by_its_own_backup(world: World):
    """It had written a spec; another backup does not make this lake its own before it meets that."""
    spec = "specs/v1/ingestors/orders.json"
    world.store.put(spec, b'{"v": 1}')
    monday, _ = take(world.bulk)
    world.store.put(spec, b'{"v": 2}')
    tuesday, _ = take(world.bulk, replace(BEGIN, id="b-2"))
    store = MemoryStore()
    store.put(RESTORE_MARKER, json.dumps({"id": "b-1", "of": "then"}).encode())
    store.put(spec, b'{"v": 1}')
    with pytest.raises(NotEmptyError, match=r"orders\.json is there with other content"):
        put(tuesday, store)
    put(monday, store)
    assert check(store).findings == []


def test_a_restore_of_another_backup_is_the_one_that_is_gone_on_with(world: World):
    first, _ = take(world.bulk)
    second, done = take(world.bulk, replace(BEGIN, id="b-2"))
    store = MemoryStore()
    with pytest.raises(BackupError):
        put(first[: len(first) // 2], store)
    with pytest.raises(UnavailableError):
        put_into(Full(store, done.end.objects - 1), second)
    with pytest.raises(NotEmptyError, match="a restore of the backup b-2 was cut off here"):
        put(first, store)
    put(second, store)
    assert check(store).findings == []


def test_somebody_who_writes_meanwhile_is_noticed(world: World):
    data, _ = take(world.bulk)
    store = MemoryStore()

    class Stranger(PlainBulk):
        def delete(self, key: str) -> None:
            raise AssertionError("a restore that failed removes nothing")

        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> str:
            if key.endswith("/ops/dead_letters.json"):
                store.put(key, b"another")
            return super().put(key, data, if_absent=if_absent)

    with pytest.raises(NotEmptyError, match=r"dead_letters\.json is there with other content"):
        put_into(Stranger(store), data)
    assert contents(store)["catalog/v1/pointers/ops/dead_letters.json"] == b"another"


class FullFile(io.RawIOBase):
    """A file on a disk that is full after `room` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:  # type: ignore[no-untyped-def]
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)


def test_a_full_disk_ends_the_backup_and_leaves_the_lake_alone(world: World):
    before = contents(world.store)
    with pytest.raises(OSError, match="No space left"):
        backup(world.bulk, manifest_audit, FullFile(20_000), BEGIN, tell=quiet, sleep=quiet)
    assert contents(world.store) == before


def test_the_reaper_is_held_and_let_go_whatever_happens(world: World):
    seen: list[bool] = []
    said: list[str] = []

    def look() -> None:
        seen.append(reaper_of(world).run_once().held)

    out = io.BytesIO()
    backup(world.bulk, manifest_audit, out, BEGIN, tell=said.append, sleep=quiet, on_register=look)
    with pytest.raises(OSError, match="No space left"):
        backup(
            world.bulk, manifest_audit, FullFile(0), BEGIN, tell=said.append, sleep=quiet, on_register=look
        )
    look()
    assert seen == [True, True, False]
    assert world.keys("reaper/v1/holds/") == []


def test_a_backup_is_whole_though_the_table_is_committed_to_and_reaped_meanwhile(world: World):
    def meanwhile() -> None:
        slot = TableIdentifier.of(("bronze",), "orders")
        for number in range(30):
            update = {"action": "set-properties", "updates": {"n": str(number)}}
            world.catalog.tables.commit(slot, [], [update])
        assert reaper_of(world).run_once().deleted == 0

    out = io.BytesIO()
    done = backup(
        world.bulk, manifest_audit, out, BEGIN, tell=lambda _: None, sleep=quiet, on_register=meanwhile
    )
    assert done.whole
    assert reaper_of(world).run_once().deleted > 0


def test_a_store_that_takes_no_hold_is_backed_up_all_the_same(world: World):
    class Full(MemoryStore):
        def put(self, key: str, data: bytes, **conditions: Any) -> str:
            raise StoreOutcomeUnknownError("the disk is full")

    store = Full()
    store._objects = world.store._objects
    said: list[str] = []
    assert backup(PlainBulk(store), manifest_audit, io.BytesIO(), BEGIN, tell=said.append, sleep=quiet).whole
    assert said[0].startswith("the reaper could not be paused: the disk is full")


def test_a_hold_that_could_not_be_renewed_once_is_renewed_again():
    class Once(MemoryStore):
        tries = 0

        def put(self, key: str, data: bytes, **conditions: Any) -> str:
            self.tries += 1
            if self.tries in (2, 3):
                raise StoreOutcomeUnknownError("the store is slow")
            return super().put(key, data, **conditions)

    store, said = Once(), list[str]()
    with held(store, "backup", tell=said.append, renew_s=0.001):
        deadline = time.monotonic() + 60
        while store.tries < 6:
            assert time.monotonic() < deadline, "nobody renews it any more"
            time.sleep(0.001)
    assert said == [
        "the reaper could not be paused: the store is slow; what it removes meanwhile may be missed"
    ]
    assert list(store.list("")) == []


def reaper_of(world: World) -> Reaper:
    """A reaper for which every grace period has passed."""
    return Reaper(world.store, manifest_audit, bucket=BUCKET, graces=Graces(metadata_ms=0, files_ms=0))


def test_the_manifest_names_every_object_with_size_and_checksum(world: World):
    data, done = take(world.bulk)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        file = tar.extractfile("manifest/000001.jsonl")
        assert file is not None
        rows = [json.loads(line) for line in file]
    assert len(rows) == done.end.objects
    assert all(set(row) == {"key", "bytes", "sha256"} and len(row["sha256"]) == 64 for row in rows)
    assert sum(row["bytes"] for row in rows) == done.end.bytes
    assert len({row["key"] for row in rows}) == len(rows)


@pytest.mark.parametrize("at", ["bronze/orders.json", "gold.eu/kept.json"])
def test_a_commit_to_two_tables_is_in_a_backup_whole_or_not_at_all(world: World, at: str):
    """The commit happens after one of the two pointers was read, and before the other."""
    slots = [TableIdentifier.of(("bronze",), "orders"), TableIdentifier.of(("gold", "eu"), "kept")]

    class Between(PlainBulk):
        left = 1

        def get(self, key: str) -> Stored | None:
            found = super().get(key)
            if key.endswith(at) and self.left:
                self.left = 0
                world.catalog.together.commit(
                    [
                        Change(
                            slot=slot,
                            requirements=[],
                            updates=[{"action": "set-properties", "updates": {"both": "yes"}}],
                        )
                        for slot in slots
                    ]
                )
            return found

    data, _ = take(Between(world.store))
    fresh = MemoryStore()
    put(data, fresh)
    assert check(fresh).damage == []
    copy = World(fresh)
    found = [copy.metadata(slot.text)[1]["properties"].get("both") for slot in slots]
    assert found in ([None, None], ["yes", "yes"])


def test_principals_and_grants_come_back_before_any_table(world: World):
    access = world.catalog.access
    made = access.create_principal("bob", by="cli")
    access.grant(THE_WAREHOUSE, "bob", frozenset({Privilege.READ}))
    table = TableIdentifier.of(("gold", "eu"), "owned")
    world.catalog.tables.create(replace(table, owner=made.client_id), plain("x"))
    data, done = take(world.bulk)
    assert done.whole
    written: list[str] = []

    class Watched(MemoryStore):
        def put(self, key: str, data: bytes, **how: Any) -> str:
            written.append(key)
            return super().put(key, data, **how)

    store = Watched()
    put(data, store)
    first = next(at for at, key in enumerate(written) if key.startswith(POINTERS_PREFIX))
    assert written.index(GRANTS_KEY) < first
    restored = Catalog(store, WarehouseLayout(base=f"s3://{BUCKET}"))
    caller = restored.access.named("bob")
    assert caller.client_id == made.client_id
    assert caller.on("", None) == {Privilege.READ}
    found = restored.tables.find(table)
    assert found is not None
    assert Privilege.MANAGE in caller.on(found.uuid, found.owner)
    assert check(store).findings == []
