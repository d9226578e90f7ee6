"""Files are written beside each other: a commit waits for all of them, and a failed one is written again.

Invariant I2: whatever a pointer names, directly or through other files, is in the store before it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tarn.adapters.files import PUT_ATTEMPTS_MAX, FileIO
from tarn.adapters.manifests import Manifests, read_entries, read_list
from tarn.adapters.table_files import IcebergWriter
from tarn.core.errors import UnavailableError
from tarn.core.object_store import StoreBusyError
from tarn.core.outcome import Conflict
from tarn.core.spec import FieldSpec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn.testing.memory_topic import Topic
from tests.support.lake import BUCKET, Lake, order, spec

FIELDS = (FieldSpec(name="id", type="long"),)
PLAIN = TableName(("bronze",), "plain")


class AtTheLastMoment(Future[Any]):
    """Begins its work only when somebody waits for it: the slowest worker there can be."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> Any:
        return self._work()


class Slowest(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return AtTheLastMoment(lambda: fn(*args, **kwargs))


class Watched(Lake):
    """A lake with the slowest workers, whose catalog reads at each commit all that the snapshot names."""

    def __init__(self, *topics: Topic) -> None:
        super().__init__(*topics)
        self.objects = FileIO(self.store, bucket=BUCKET, sleep=lambda _s: None, workers=Slowest())
        self.looked = self.conflicts = 0
        inner = self.local.commit

        def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
            for update in request.updates:
                if update["action"] == "add-snapshot":
                    self.read_all(self.local.load(table), update["snapshot"]["manifest-list"])
            if self.conflicts:
                self.conflicts -= 1
                return Conflict(reason="another writer was first")
            return inner(table, request, key=key)

        self.local.commit = commit  # type: ignore[method-assign]

    def read_all(self, state: TableState, manifest_list: str) -> int:
        """The number of data files that a manifest list names; all of them were read.

        Raises:
            UnavailableError: a file is not in the store.
        """
        self.looked += 1
        found = 0
        for manifest in read_list(self.objects.read(manifest_list)):
            spec_ = PartitionSpec.model_validate(state.metadata["partition-specs"][0])
            schema = Schema.model_validate(state.metadata["schemas"][0])
            for entry in read_entries(self.objects.read(manifest.manifest_path), manifest, spec_, schema):
                assert len(self.objects.read(entry.data_file.file_path)) == entry.data_file.file_size_in_bytes
                found += 1
        return found

    def plain(self) -> tuple[IcebergWriter, TableState]:
        """A writer of a table of numbers, and the table."""
        files = self.context().tables.table("plain", FIELDS, trace=False)
        self.local.create_namespace(PLAIN.namespace)
        state = self.local.create(PLAIN, {"name": PLAIN.name, **files.create_request()})
        writer = files.writer(state)
        assert isinstance(writer, IcebergWriter)
        return writer, state


def test_a_commit_is_sent_when_all_its_files_are_in_the_store() -> None:
    topic = Topic("orders", 2)
    lake = Watched(topic)
    ingestor = lake.ingestor(spec(partitioning="['bucket(4, id)']"))
    for n in range(40):
        topic.send(n % 2, order(n), b"broken")
        lake.conflicts = n % 3
        lake.work(ingestor, turns=12)
    assert lake.looked > 60, "merged manifests and repeated commits were looked at"
    assert sorted(row["id"] for row in lake.rows()) == list(range(40))


@pytest.mark.parametrize("broken", ["/data/", "-m0.avro", "/metadata/snap-"])
def test_a_file_that_could_not_be_written_is_written_again_before_the_commit(broken: str) -> None:
    lake = Watched()
    writer, state = lake.plain()
    put, failures = lake.store.put, [PUT_ATTEMPTS_MAX]

    def fail(key: str, data: bytes, **options: Any) -> str:
        if broken in key and failures[0]:
            failures[0] -= 1
            raise StoreBusyError("slow down")
        return put(key, data, **options)

    lake.store.put = fail  # type: ignore[method-assign]
    files = writer.begin(writer.encode(pa.table({"id": pa.array([1, 2, 3], pa.int64())})))
    snapshot = writer.snapshot(files, snapshot_id=7)
    with pytest.raises(UnavailableError, match="in 5 attempts"):
        snapshot.write_manifest_list(state)
    assert lake.read_all(state, snapshot.write_manifest_list(state).path) == 1


def test_files_that_are_put_are_in_the_store() -> None:
    lake = Watched()
    writer, _ = lake.plain()
    (file,) = writer.put(writer.encode(pa.table({"id": pa.array([1], pa.int64())})))
    assert len(lake.objects.read(file.path)) == file.bytes


@pytest.mark.parametrize("versions", [(2, 2), (3, 3), (2, 3)], ids=["2", "3", "2, then 3"])
def test_a_list_of_remembered_entries_is_the_one_that_is_encoded_again(versions: tuple[int, int]) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    before, after = versions
    ingestor = lake.ingestor(spec(format_version=before))
    commits = 0

    def write(count: int) -> None:
        nonlocal commits
        for n in range(commits, commits + count):
            topic.send(0, order(n))
            lake.work(ingestor, turns=12)
        commits += count

    write(20)
    if after != before:
        slot = lake.local._slot(TableName(("bronze",), "orders"))
        upgrade = {"action": "upgrade-format-version", "format-version": 3}
        lake.local.catalog.tables.commit(slot, [], [upgrade])
    write(3)
    state = lake.table()
    assert state.format_version == after
    forgetful = Manifests(lake.objects, new_name=lake.new_id)
    writer = ingestor.files.writer(state)
    assert isinstance(writer, IcebergWriter)
    schema = writer._layout.schema
    by_memory = writer._manifests.write_manifest_list(state, None, snapshot_id=5, schema=schema)
    again = forgetful.write_manifest_list(state, None, snapshot_id=5, schema=schema)
    one, other = (read_list(lake.objects.read(written.path)) for written in (by_memory, again))
    assert len(one) > 3
    assert [manifest._data for manifest in one] == [manifest._data for manifest in other]
    assert sorted(row["id"] for row in lake.rows()) == list(range(commits))
