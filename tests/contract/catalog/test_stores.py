"""Every store keeps the same guarantees; the start-up check accepts those that do and names a broken one."""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    ForbiddenError,
    ServiceUnavailableError,
)

from tarn.adapters.store import FileStore, MemoryStore
from tarn.core.errors import InvalidNameError, InvalidSettingError, TarnError, UnavailableError
from tarn.core.object_store import (
    DELETED_AT_ONCE_MAX,
    ObjectStore,
    ReapedStore,
    Stored,
    StoreDeniedError,
    StoreNotDurableError,
    StoreRefusedError,
    StoreUnavailableError,
    is_key,
)
from tarn_catalog.operations.health import StoreUnfitError, check_store
from tarn_catalog.testing.faulty_store import Fault, FaultyStore


@pytest.fixture(params=["memory", "file", "faulty"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ReapedStore:
    if request.param == "file":
        return FileStore(tmp_path / "store")
    return MemoryStore() if request.param == "memory" else FaultyStore(MemoryStore())


def test_put_get_delete(store: ObjectStore) -> None:
    assert store.get("a/b.json") is None
    etag = store.put("a/b.json", b"1")
    assert (store.get("a/b.json").data, store.get("a/b.json").etag) == (b"1", etag)
    assert store.put("a/b.json", b"2") != etag
    store.delete("a/b.json")
    store.delete("a/b.json")
    assert store.get("a/b.json") is None
    assert store.get("a") is None


def test_many_keys_are_deleted_at_once_and_missing_ones_do_not_matter(store: ReapedStore) -> None:
    for key in ("a/1", "a/2", "b"):
        store.put(key, b"1")
    store.delete_many(["a/1", "a/missing", "b"])
    store.delete_many([])
    assert [listed.key for listed in store.list("a/")] == ["a/2"]
    assert store.get("b") is None
    with pytest.raises(ValueError, match="1001 keys to delete at once: at most 1000"):
        store.delete_many(["a/2", *(f"c/{number}" for number in range(DELETED_AT_ONCE_MAX))])
    assert store.get("a/2") is not None


NO_KEYS = (
    "a//b",
    "a/./b",
    "a/../b",
    "..",
    "/a",
    "a/",
    "",
    "a/\x00",
    "a\nb",
    "a/\x7f",
    "\ud800",
    "a/" * 511 + "é" * 2,
)


@pytest.mark.parametrize("key", NO_KEYS)
def test_a_key_that_no_object_can_have_is_missing_and_cannot_be_written(store: ReapedStore, key: str) -> None:
    store.put("a", b"1")
    assert not is_key(key)
    assert store.get(key) is None
    store.delete(key)
    store.delete_many([key])
    with pytest.raises(InvalidNameError, match="no object can have the key"):
        store.put(key, b"2")
    assert [listed.key for listed in store.list("") if listed.key != ".lock"] == ["a"]


@pytest.mark.parametrize("key", ["a b/c+%.json", "a/..b/c.", "é/\x80", "a\\b", "a/" * 511 + "é"])
def test_any_other_key_is_one(store: ObjectStore, key: str) -> None:
    store.put(key, b"1")
    assert store.get(key).data == b"1"
    assert [listed.key for listed in store.list("") if listed.key != ".lock"] == [key]


def test_what_is_known_and_has_not_changed_is_not_sent_again(store: ObjectStore) -> None:
    known = Stored(data=b"", etag=store.put("k", b"1"))
    assert store.get("k", known=known) is known
    store.put("k", b"2")
    assert store.get("k", known=known).data == b"2"
    store.put("k", b"1")
    assert store.get("k", known=known) is known
    store.delete("k")
    assert store.get("k", known=known) is None


def test_conditions(store: ObjectStore) -> None:
    first = store.put("k", b"1", if_absent=True)
    for condition in ({"if_absent": True}, {"if_match": '"00"'}):
        with pytest.raises(StoreRefusedError):
            store.put("k", b"2", **condition)
    second = store.put("k", b"2", if_match=first)
    with pytest.raises(StoreRefusedError):
        store.put("k", b"3", if_match=first)
    with pytest.raises(StoreRefusedError):
        store.put("other", b"3", if_match=second)
    assert store.get("k").data == b"2"
    assert store.get("other") is None


def test_list_is_in_key_order_and_goes_on(store: ObjectStore) -> None:
    for key in ("p/b", "p/a", "q/x", "p/c/d", "pp"):
        store.put(key, b"1")
    assert [listed.key for listed in store.list("p/")] == ["p/a", "p/b", "p/c/d"]
    assert [listed.key for listed in store.list("p/", after="p/a")] == ["p/b", "p/c/d"]
    assert list(store.list("nope/")) == []
    listed = next(iter(store.list("q/")))
    assert (listed.etag, listed.size_bytes) == (store.get("q/x").etag, 1)


@pytest.mark.parametrize("rounds", [30])
def test_a_race_has_one_winner(store: ObjectStore, rounds: int) -> None:
    for number in range(rounds):
        base = store.put(f"k{number}", b"0")
        barrier, won = threading.Barrier(8), []

        def race(racer: int, number: int = number, base: str = base, barrier=barrier, won=won) -> None:
            barrier.wait(timeout=60)
            try:
                store.put(f"k{number}", f"{racer}".encode(), if_match=base)
            except StoreRefusedError:
                return
            won.append(racer)

        threads = [threading.Thread(target=race, args=(racer + 1,)) for racer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.get(f"k{number}").data == f"{won[0]}".encode()


def test_the_check_accepts_it_and_leaves_nothing(store: ObjectStore) -> None:
    check_store(store, name="x", wait_s_max=0)
    assert list(store.list("catalog/")) == []


class Broken(MemoryStore):
    """Ignores one condition."""

    def __init__(self, ignores: Callable[[bool, str | None, bool], bool]) -> None:
        super().__init__()
        self._ignores = ignores

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        if self._ignores(if_absent, if_match, self.get(key) is not None):
            return super().put(key, data)
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


@pytest.mark.parametrize(
    ("ignores", "named"),
    [
        (lambda absent, match, there: absent, "a second create-if-absent was accepted"),
        (lambda absent, match, there: match is not None, "an If-Match with a stale entity tag was accepted"),
        (
            lambda absent, match, there: match and not there,
            "an If-Match on a key that is not there was accepted",
        ),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused_by_name(ignores, named: str) -> None:
    with pytest.raises(StoreUnfitError, match=named):
        check_store(Broken(ignores), name="x", wait_s_max=0)


class Stale(MemoryStore):
    """Reports every value as unchanged."""

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        return known or super().get(key)


def test_the_check_names_a_store_that_hides_changes() -> None:
    with pytest.raises(StoreUnfitError, match="replaced has not changed; clients would not see commits"):
        check_store(Stale(), name="x", wait_s_max=0)


class Racy(MemoryStore):
    """Checks and writes without a lock in between: several racers win."""

    def __init__(self) -> None:
        super().__init__()
        self._start = threading.Barrier(8)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        if "/race-" not in key:
            return super().put(key, data, if_absent=if_absent, if_match=if_match)
        allowed = self.get(key) is None
        self._start.wait(timeout=60)
        if not allowed:
            raise StoreRefusedError("it exists")
        return super().put(key, data)


def test_a_store_that_is_only_nearly_atomic_is_refused() -> None:
    with pytest.raises(StoreUnfitError, match="8 of 8 writers won a race of create-if-absent, exactly 1 may"):
        check_store(Racy(), name="x", wait_s_max=0)


def test_the_check_waits_for_a_store_that_comes_up_and_not_for_ever() -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    store = FaultyStore(MemoryStore(), lambda _: Fault.RESET if now_s < 7 else None)
    check_store(store, name="x", wait_s_max=60, clock=lambda: now_s, sleep=sleep)
    assert 7 <= now_s < 8
    never = FaultyStore(MemoryStore(), lambda _: Fault.DENIED)
    with pytest.raises(UnavailableError, match="could not be used for"):
        check_store(never, name="x", wait_s_max=5, clock=lambda: now_s, sleep=sleep)


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    one, two = FileStore(tmp_path), FileStore(tmp_path)
    etag = one.put("k", b"1", if_absent=True)
    with pytest.raises(StoreRefusedError):
        two.put("k", b"2", if_absent=True)
    two.put("k", b"2", if_match=etag)
    assert one.get("k").data == b"2"


def opened(uri: str) -> PyIcebergCatalog:
    return load_catalog("lake", **{"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": uri})


@pytest.mark.parametrize("name", ["a#b", "a?b", "a\tb", "a\nb"])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_folder_whose_path_libraries_cut_is_refused(tmp_path: Path, name: str, quoted: bool) -> None:
    """They would open the folder `a`, and write all files of the lake into one file of that name."""
    folder = tmp_path / name / "lake"
    with pytest.raises(
        InvalidSettingError, match=r"the location of a file ends at .*; choose a folder whose"
    ):
        opened(folder.as_uri() if quoted else f"file://{folder}")
    (tmp_path / "link").symlink_to(tmp_path / name)
    with pytest.raises(InvalidSettingError, match="choose a folder"):
        opened(f"file://{tmp_path}/link/lake")
    assert [path.name for path in tmp_path.iterdir()] == ["link"], "nothing is made"


@pytest.mark.parametrize("path", ["file", "file/lake"])
def test_a_file_is_no_lake(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(InvalidSettingError, match=rf"{path} cannot be a folder: .*; choose another one"):
        opened((tmp_path / path).as_uri())


@pytest.mark.parametrize(
    ("code", "kind", "theirs"),
    [
        (errno.EACCES, StoreDeniedError, ForbiddenError),
        (errno.EROFS, StoreDeniedError, ForbiddenError),
        (errno.ENOSPC, StoreUnavailableError, ServiceUnavailableError),
    ],
)
def test_a_lake_whose_folder_cannot_be_made_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    kind: type[TarnError],
    theirs: type[Exception],
) -> None:
    monkeypatch.setattr(Path, "mkdir", broken(code))
    words = rf"could not open the store in {re.escape(str(tmp_path))}/lake: {os.strerror(code)}; nothing was"
    with pytest.raises(kind, match=words):
        FileStore(tmp_path / "lake")
    with pytest.raises(theirs, match=words):
        opened((tmp_path / "lake").as_uri())


@pytest.mark.parametrize("name", ["a b", "a%20b", "ä", "a;b", "a[b]", "a'b", 'a"b', "a\\b", " a", "a+b&c=d~"])
def test_a_lake_lies_in_a_folder_of_an_odd_name(tmp_path: Path, name: str) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    catalog = opened((tmp_path / name).as_uri())
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", rows.schema)
    table.append(rows)
    table.append(rows)
    found = opened((tmp_path / name).as_uri()).load_table("ns.t")
    assert found.scan().to_arrow().num_rows == 4
    assert [path.name for path in tmp_path.iterdir()] == [name], "all files are in it"


@pytest.mark.parametrize("uri", ["file://tmp/lake", "file://~/lake", "file://./lake"])
def test_two_slashes_name_a_host_and_open_no_other_folder(uri: str) -> None:
    with pytest.raises(InvalidSettingError, match=r"is a host, not a folder; write three slashes"):
        opened(uri)


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    steps: list[str] = []
    sync, replace, unlink = os.fsync, Path.replace, Path.unlink

    def synced(handle: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        name = "data" if path.name.startswith(".put-") else path.relative_to(tmp_path).as_posix()
        steps.append(f"sync {name}")
        sync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", lambda one, to: (steps.append("rename"), replace(one, to))[1])
    monkeypatch.setattr(Path, "unlink", lambda one, **how: (steps.append("unlink"), unlink(one, **how))[1])
    store.put("a/b/c", b"1")
    assert steps == ["sync data", "rename", "sync a/b", "sync a", "sync ."], "new folders have names too"
    steps.clear()
    store.put("a/b/c", b"2")
    assert steps == ["sync data", "rename", "sync a/b"]
    steps.clear()
    store.delete("a/b/c")
    assert steps == ["unlink", "sync a/b"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path)
    store.put("k", b"1")

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailableError, match=r"could not write k in .*: No space left.*nothing was"):
        store.put("k", b"2")
    assert store.get("k").data == b"1"
    assert {path.name for path in tmp_path.iterdir()} == {"k", ".lock"}


class Synced:
    """Records which files and folders are synchronized, and when a pointer gets its name."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.before: set[str] = set()
        sync, replace = os.fsync, Path.replace

        def synced(handle: int) -> None:
            path = Path(os.readlink(f"/proc/self/fd/{handle}"))
            self.before.add(path.relative_to(root).as_posix())
            sync(handle)

        def replaced(one: Path, to: Path) -> Path:
            if "/pointers/" in to.as_posix():
                self.committed = frozenset(self.before)
            return replace(one, to)

        self.committed: frozenset[str] = frozenset()
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(Path, "replace", replaced)

    def of(self, change: Callable[[], object]) -> frozenset[str]:
        """What was on the disk before the commit of a change, of what it synchronized."""
        self.before.clear()
        change()
        return self.committed


def files_of(root: Path) -> set[str]:
    """Files of tables, without metadata files, and all folders of the warehouse."""
    paths = {path.relative_to(root).as_posix(): path for path in (root / "warehouse").rglob("*")}
    return {name for name, path in paths.items() if path.is_dir() or not name.endswith(".metadata.json")}


def test_what_a_commit_names_is_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a loss of power leaves a pointer to a snapshot whose files are empty."""
    root = tmp_path / "lake"
    catalog = opened(root.as_uri())
    catalog.create_namespace("ns")
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "day": ["a", "b"]})
    synced = Synced(root, monkeypatch)
    table = catalog.create_table("ns.t", rows.schema)
    with table.update_spec() as spec:
        spec.add_identity("day")
    for change in (
        lambda: table.append(rows),
        lambda: table.append(rows),
        lambda: table.delete("day = 'a' and id = 1"),
        lambda: table.overwrite(rows),
    ):
        known = files_of(root)
        done = synced.of(change)
        new = files_of(root) - known
        assert len(new) >= 3
        assert new <= done, sorted(new - done)
        assert not {name for name in known & done if (root / name).is_file()}, "only what is new"
    with catalog.create_table_transaction("ns.staged", rows.schema) as staged:
        known = files_of(root)
        staged.append(rows)
    new = files_of(root) - known
    assert len([name for name in new if "/staged-" in name]) >= 5
    assert new <= synced.committed, sorted(new - synced.committed)


def test_a_file_of_a_commit_that_cannot_be_brought_to_the_disk_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = opened(tmp_path.as_uri())
    catalog.create_namespace("ns")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    table = catalog.create_table("ns.t", rows.schema)
    fsync = os.fsync

    def failing(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(".parquet"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(ServiceUnavailableError, match="nothing was changed"):
            table.append(rows)
    assert opened(tmp_path.as_uri()).load_table("ns.t").current_snapshot() is None
    catalog.load_table("ns.t").append(rows)


def test_files_outside_of_the_folder_are_not_its_to_synchronize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "lake", tmp_path / "outside.parquet"
    catalog = opened(root.as_uri())
    catalog.create_namespace("ns")
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    pq.write_table(rows, outside)
    table = catalog.create_table("ns.t", rows.schema)
    synced = Synced(root, monkeypatch)
    table.add_files([outside.as_uri()])
    assert any("/snap-" in name for name in synced.committed)
    assert catalog.load_table("ns.t").scan().to_arrow().num_rows == 2


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_others_may_read_a_lake_in_a_folder_as_they_may_read_other_files(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        FileStore(tmp_path).put("a/k", b"1")
    finally:
        os.umask(before)
    assert (tmp_path / "a/k").stat().st_mode & 0o777 == 0o666 & ~umask


def test_what_a_killed_writer_left_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = FileStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken(errno.EIO))
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(StoreUnavailableError):
            killed.put("k", b"1" * 100)
    (left,) = tmp_path.glob(".put-*")
    store = FileStore(tmp_path)
    assert store.get("k") is None
    assert left.exists(), "a reader removes nothing"
    store.put("other", b"2")
    assert {path.name for path in tmp_path.iterdir()} == {"other", ".lock"}


def broken(code: int) -> Callable[..., NoReturn]:
    def raises(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return raises


def test_a_folder_that_fails_behind_the_new_name_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    etag = store.put("k", b"1")
    monkeypatch.setattr("tarn.adapters.store._sync", broken(errno.EIO))
    with pytest.raises(StoreNotDurableError, match="may have happened"):
        store.put("k", b"2", if_match=etag)
    assert store.get("k").data == b"2"
    with pytest.raises(StoreNotDurableError, match="may have happened"):
        store.delete("k")


FOLDERS = ("pointers", "metadata")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_commit_whose_folder_fails_is_not_committed_because_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """The system still has the name in memory; after a loss of power it may be another."""
    catalog = opened(f"file://{tmp_path}")
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", pa.schema([("id", pa.int64())]))
    fsync = os.fsync

    def failing(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        if path.is_dir() and f"/{folder}" in path.as_posix():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        unknown = folder == "pointers"
        error = CommitStateUnknownException if unknown else ServiceUnavailableError
        with pytest.raises(error, match=os.strerror(errno.EIO)), table.transaction() as change:
            change.set_properties(a="b")
    found = opened(f"file://{tmp_path}").load_table("ns.t")
    assert ("a" in found.properties) == unknown, "nobody commits over what may be there"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_synchronizes_no_folders_keeps_a_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some shared folders and FUSE mounts answer so each time: that is no failure of the disk."""
    fsync, asked = os.fsync, list[str]()

    def refusing(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            asked.append("folder")
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refusing)
    catalog = opened(f"file://{tmp_path}")
    catalog.create_namespace("ns")
    rows = pa.table({"id": [1, 2]})
    catalog.create_table("ns.t", rows.schema).append(rows)
    assert opened(f"file://{tmp_path}").load_table("ns.t").scan().to_arrow().num_rows == 2
    catalog.drop_table("ns.t")
    assert asked


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EACCES, StoreDeniedError),
        (errno.EPERM, StoreDeniedError),
        (errno.EROFS, StoreDeniedError),
        (errno.EIO, StoreUnavailableError),
    ],
)
def test_a_folder_that_may_not_be_used_or_does_not_answer_is_said_as_of_any_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[TarnError]
) -> None:
    store = FileStore(tmp_path)
    store.put("a/k", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", broken(code))
        with pytest.raises(kind, match=re.escape(os.strerror(code))):
            store.get("a/k")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", broken(code))
        with pytest.raises(kind, match=re.escape(os.strerror(code))):
            store.exists("a/k")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", broken(code))
        with pytest.raises(kind, match=re.escape(os.strerror(code))):
            store.put("a/k", b"2")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", broken(code))
        with pytest.raises(kind, match=re.escape(os.strerror(code))):
            store.delete("a/k")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rglob", broken(code))
        with pytest.raises(kind, match=re.escape(os.strerror(code))):
            list(store.list("a/"))
    assert store.get("a/k").data == b"1"


@pytest.mark.parametrize("number", range(1, 5))
def test_a_disk_that_fills_up_during_a_create_leaves_no_table_that_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    catalog = opened(f"file://{tmp_path}")
    catalog.create_namespace("ns")
    fsync, writes = os.fsync, itertools.count(1)
    refused: list[str] = []

    def full(handle: int) -> None:
        if not Path(f"/proc/self/fd/{handle}").is_dir() and next(writes) >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        try:
            catalog.create_table("ns.t", pa.schema([("id", pa.int64())]))
        except ServiceUnavailableError as e:
            refused.append(str(e))
    assert bool(refused) == (number < 4), "a create has three writes"
    assert all("No space left on device" in text for text in refused)
    assert opened(f"file://{tmp_path}").table_exists("ns.t") == (not refused)
