"""Manifests that are merged or rewritten: what is read for it, when they are written, what fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntryStatus

from tarn.adapters import avro_files, manifests
from tarn.adapters.files import PUT_ATTEMPTS_MAX, FileIO
from tarn.adapters.manifests import MERGE_COUNT, ON_THE_WAY_MAX, entry_layout, read_list
from tarn.adapters.table_files import IcebergWriter
from tarn.core.errors import UnavailableError
from tarn.core.history import Retention
from tarn.core.object_store import StoreBusyError, Stored
from tarn.core.table_catalog import CommitDone
from tarn.core.table_files import FilesNotLiveError
from tarn.core.table_state import Append, TableState, WrittenFile, build_commit
from tarn.ingest.wiring import uuid7
from tests.contract.ingest.test_uploads import FIELDS, PLAIN, AtTheLastMoment, Slowest, Watched, plain
from tests.support.lake import BUCKET


class Busy(Slowest):
    """The slowest workers, with the number of writes that were begun and are not done."""

    def __init__(self) -> None:
        self.open = self.most = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> AtTheLastMoment:
        self.open += 1
        self.most = max(self.most, self.open)

        def work() -> Any:
            self.open -= 1
            return fn(*args, **kwargs)

        return AtTheLastMoment(work)


class Appending(Watched):
    """A table of numbers with one writer, and the keys of manifests and lists in the order of requests.

    Attributes:
        read: keys of manifests that were read.
        written: keys below `metadata/` that were written.
        broken: part of the keys that the store does not take; empty for none.
        failures: how many more of such requests it refuses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy = Busy()
        self.objects = FileIO(self.store, bucket=BUCKET, sleep=lambda _s: None, workers=self.busy)
        self.writer, self.state = plain(self)
        self.read: list[str] = []
        self.written: list[str] = []
        self.broken, self.failures = "", 0
        get, put = self.store.get, self.store.put

        def seen_get(key: str, *, known: Stored | None = None) -> Stored | None:
            if key.endswith("-m0.avro"):
                self.read.append(key)
            return get(key, known=known)

        def seen_put(key: str, data: bytes, **options: Any) -> str:
            if self.broken and self.broken in key and self.failures:
                self.failures -= 1
                raise StoreBusyError("slow down")
            if "/metadata/" in key and key.endswith(".avro"):
                self.written.append(key.rsplit("/", 1)[1])
            return put(key, data, **options)

        self.store.get = seen_get  # type: ignore[method-assign]
        self.store.put = seen_put  # type: ignore[method-assign]

    def another_process(self) -> None:
        """Go on with a writer that has written nothing."""
        writer = self.context().tables.table("plain", FIELDS, trace=False).writer(self.state)
        assert isinstance(writer, IcebergWriter)
        self.writer = writer

    def append(
        self, *numbers: int, removed: Sequence[WrittenFile] = (), attempts: int = 1
    ) -> tuple[WrittenFile, ...]:
        """Commit numbers as one file, none without, and remove files; return the file.

        Args:
            numbers: the rows.
            removed: files to remove.
            attempts: how often the list is written; all but the last time it must fail.
        """
        rows = pa.table({"id": pa.array(numbers, pa.int64())})
        files = self.writer.put(self.writer.encode(rows)) if numbers else ()
        snapshot_id = self.state.last_sequence + 1
        snapshot = self.writer.snapshot(files, snapshot_id=snapshot_id, removed=removed)
        self.written.clear()
        for _ in range(attempts - 1):
            with pytest.raises(UnavailableError, match=f"in {PUT_ATTEMPTS_MAX} attempts"):
                snapshot.write_manifest_list(self.state)
        self.read.clear()
        listed = snapshot.write_manifest_list(self.state)
        reads = list(self.read)
        change = Append.of(files, commit_id=f"c{snapshot_id}", summary={}, removed=removed)
        request = build_commit(
            self.state, change, snapshot_id=snapshot_id, manifest_list=listed.path, added_rows=0,
            now_ms=1_700_000_000_000 + snapshot_id, retention=Retention(),
        )  # fmt: skip
        done = self.local.commit(PLAIN, request, key=uuid7())
        assert isinstance(done, CommitDone)
        self.state, self.read = done.state, reads
        return files

    def sizes(self) -> list[int]:
        """The number of live files of each manifest of the table."""
        listed = self.listed(self.state)
        return [(one.added_files_count or 0) + (one.existing_files_count or 0) for one in listed]

    def listed(self, state: TableState) -> list[Any]:
        assert state.head is not None
        return read_list(self.objects.read(state.head["manifest-list"]))

    def live(self) -> int:
        """The number of live data files; all of them, and what names them, were read."""
        assert self.state.head is not None
        return self.read_all(self.state, self.state.head["manifest-list"])


def test_a_merge_reads_no_manifest_that_was_written_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MERGE_COUNT", 4)
    lake = Appending()
    reads: list[str] = []
    for n in range(4 * 4 + 4 + 2):
        lake.append(n)
        reads += lake.read
    assert reads == []
    assert sorted(lake.sizes()) == [1, 1, 4, 16], "merged to the second level"
    assert lake.live() == 22


def test_what_another_process_wrote_is_read_to_be_merged() -> None:
    lake = Appending()
    for n in range(MERGE_COUNT):
        lake.append(n)
    lake.another_process()
    lake.append(MERGE_COUNT)
    assert len(set(lake.read)) == MERGE_COUNT
    assert sorted(lake.sizes()) == [1, MERGE_COUNT]
    assert lake.live() == MERGE_COUNT + 1


def test_only_manifests_of_the_last_lists_are_kept() -> None:
    lake = Appending()
    for n in range(3 * MERGE_COUNT):
        before = lake.state
        lake.append(n)
        listed = {one.manifest_path for one in lake.listed(lake.state)}
        if before.head is not None:
            listed |= {one.manifest_path for one in lake.listed(before)}
        kept = set(lake.writer._manifests._recent._files)
        assert {one.manifest_path for one in lake.listed(lake.state)} <= kept <= listed


def test_a_merge_whose_commit_was_lost_is_done_again_without_a_read() -> None:
    lake = Appending()
    for n in range(MERGE_COUNT):
        lake.append(n)
    lake.writer.snapshot((), snapshot_id=1_000).write_manifest_list(lake.state)
    lake.append(MERGE_COUNT)
    assert lake.read == []
    assert sorted(lake.sizes()) == [1, MERGE_COUNT]
    assert lake.live() == MERGE_COUNT + 1


def test_a_merged_manifest_is_on_the_way_while_the_list_is_written() -> None:
    lake = Appending()
    for n in range(MERGE_COUNT + 1):
        lake.append(n)
        assert lake.written[0].startswith("snap-")
    assert len(lake.written) == 3, "the list, the merged manifest, that of the new file"
    assert lake.live() == MERGE_COUNT + 1


def test_a_merged_manifest_that_could_not_be_written_is_written_again_before_the_commit() -> None:
    lake = Appending()
    for n in range(MERGE_COUNT):
        lake.append(n)
    lake.broken, lake.failures = "-m0.avro", PUT_ATTEMPTS_MAX
    lake.append(MERGE_COUNT, attempts=2)
    assert lake.failures == 0
    assert sorted(lake.sizes()) == [1, MERGE_COUNT]
    assert lake.live() == MERGE_COUNT + 1


def entries(lake: Appending) -> dict[str, list[tuple[str, int, int, int]]]:
    """Manifest to its entries as written, without what they inherit: file, status, snapshot, sequence."""
    schema, spec = lake.writer._layout.schema, lake.writer._layout.spec
    found = {}
    for one in lake.listed(lake.state):
        rows = avro_files.read(
            lake.objects.read(one.manifest_path), entry_layout(spec.partition_type(schema))
        )
        found[one.manifest_path] = [
            (e.data_file.file_path, int(e.status), e.snapshot_id, e.sequence_number) for e in rows
        ]
    return found


def test_files_of_many_manifests_are_removed_by_one_manifest_and_the_rest_is_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifests, "MERGE_COUNT", 4)
    lake = Appending()
    files = [file for n in range(11) for file in lake.append(n)]
    assert sorted(lake.sizes()) == [1, 1, 1, 4, 4]
    removed, stays = files[1:10], (files[0], files[10])
    (merged,) = lake.append(*range(1, 10), removed=removed)
    assert len(lake.written) == 4, "the list, the new file, the removed ones, what shared their manifest"
    by_size = {len(rows): rows for path, rows in entries(lake).items() if rows[0][0] != files[10].path}
    assert sorted(lake.sizes()) == [0, 1, 1, 1]
    commit = lake.state.head_id
    assert sorted(by_size[9]) == sorted(
        (f.path, ManifestEntryStatus.DELETED, commit, n) for n, f in enumerate(removed, start=2)
    )
    kept = [rows for rows in entries(lake).values() if rows[0][0] == files[0].path]
    assert kept == [[(files[0].path, ManifestEntryStatus.EXISTING, 1, 1)]]
    assert lake.live() == 3
    lake.append(11)
    listed = [row[0] for rows in entries(lake).values() for row in rows]
    assert set(listed) >= {merged.path, *(file.path for file in stays)}
    assert not set(listed) & {file.path for file in removed}, (
        "the next list has no manifest without live files"
    )
    assert lake.live() == 4


def test_a_large_manifest_is_written_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MERGE_COUNT", 4)
    monkeypatch.setattr(manifests, "MERGE_FILES_MAX", 12)
    lake = Appending()
    files = [file for n in range(10) for file in lake.append(n)]
    assert sorted(lake.sizes()) == [1, 1, 4, 4], "too large to be merged with others"
    lake.append(removed=(files[0], files[4], files[8]))
    assert sorted(lake.sizes()) == [0, 1, 3, 3]
    assert lake.live() == 7


def test_few_rewritten_manifests_are_on_the_way_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MERGE_FILES_MAX", 1)
    lake = Appending()
    files = [file for n in range(MERGE_COUNT - 1) for file in lake.append(n)]
    lake.busy.most = 0
    lake.append(removed=files[1:])
    assert 1 < lake.busy.most <= ON_THE_WAY_MAX < len(files) - 1
    assert lake.busy.open == 0
    assert lake.live() == 1


def test_a_manifest_of_a_list_that_was_given_up_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "MERGE_FILES_MAX", 1)
    lake = Appending()
    kept = [file for n in range(3) for file in lake.append(n)]
    gone = lake.append(7)
    lake.append(removed=gone)
    with pytest.raises(FilesNotLiveError):
        lake.append(removed=[kept[0], *gone])
    (left,) = lake.writer._manifests._on_the_way
    lake.broken, lake.failures = left.file.manifest_path.rsplit("/", 1)[1], 1_000
    lake.append(8)
    assert lake.failures == 1_000
    assert lake.live() == len(kept) + 1
