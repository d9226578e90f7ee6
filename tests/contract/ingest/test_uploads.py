"""Files are written beside each other: a commit waits for all of them, and a failed one is written again.

Invariant I2: whatever a pointer names, directly or through other files, is in the store before it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tarn.adapters.files import PUT_ATTEMPTS_MAX, FileIO, put_files
from tarn.adapters.manifests import Manifests, read_entries, read_list
from tarn.adapters.table_files import IcebergWriter
from tarn.core.errors import UnavailableError
from tarn.core.object_store import StoreBusyError
from tarn.core.outcome import Conflict
from tarn.core.spec import FieldSpec, parse_spec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn.ingest.changes import CommitResult, NeedsReplan
from tarn.ingest.context import one_thread
from tarn.ingest.ingestor import Ingestor
from tarn.testing.memory_topic import Topic
from tests.support.lake import BUCKET, SPEC, Lake, order, spec

FIELDS = (FieldSpec(name="id", type="long"),)
PLAIN = TableName(("bronze",), "plain")
WAIT_S = 60.0


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


def plain(lake: Lake) -> tuple[IcebergWriter, TableState]:
    """A writer of a table of numbers, and the table."""
    files = lake.context().tables.table("plain", FIELDS, trace=False)
    lake.local.create_namespace(PLAIN.namespace)
    state = lake.local.create(PLAIN, {"name": PLAIN.name, **files.create_request()})
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
    writer, state = plain(lake)
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


class Hanging(Lake):
    """A lake with real workers, whose store answers a PUT of a data file once it may.

    Attributes:
        begun: paths of data files whose PUT was begun.
        first: set when the first one was.
        go: set when PUTs are answered.
    """

    def __init__(self, *topics: Topic, workers: int = 8) -> None:
        super().__init__(*topics)
        self.begun: list[str] = []
        self.first, self.go = threading.Event(), threading.Event()
        self.pool = ThreadPoolExecutor(workers)
        self.objects = FileIO(self.store, bucket=BUCKET, sleep=lambda _s: None, workers=self.pool)
        put = self.store.put

        def slow(key: str, data: bytes, **options: Any) -> str:
            if "/data/" in key and "dead_letters" not in key:
                self.begun.append(key)
                self.first.set()
                assert self.go.wait(WAIT_S)
            return put(key, data, **options)

        self.store.put = slow  # type: ignore[method-assign]


def test_what_is_left_is_not_begun_any_more_and_waited_for_if_it_was() -> None:
    lake = Hanging(workers=1)
    first, second = (lake.objects.begin(f"s3://{BUCKET}/t/data/{n}", b"x") for n in range(2))
    late = threading.Thread(target=first.leave, args=(True,))
    late.start()
    assert lake.first.wait(WAIT_S)
    second.leave(True)
    first_again = threading.Thread(target=first.leave, args=(True,))
    first_again.start()
    first_again.join(WAIT_S)
    late.join(0.1)
    assert late.is_alive(), "its PUT is under way"
    lake.go.set()
    late.join(WAIT_S)
    assert not late.is_alive()
    lake.pool.shutdown()
    assert lake.begun == ["t/data/0"]
    second.finish()
    assert lake.store.get("t/data/1") is None, "a write that was given up is no write"


def test_one_that_is_left_without_a_wait_goes_on_alone() -> None:
    lake = Hanging()
    upload = lake.objects.begin(f"s3://{BUCKET}/t/data/0", b"x")
    assert lake.first.wait(WAIT_S)
    upload.leave(False)
    lake.go.set()
    lake.pool.shutdown()
    assert lake.store.get("t/data/0") is not None


def test_when_one_file_of_several_cannot_be_put_nothing_of_the_others_is_left_behind() -> None:
    lake = Hanging(workers=1)
    lake.go.set()
    writer, _ = plain(lake)
    encoded = [one for n in range(3) for one in writer.encode(pa.table({"id": pa.array([n], pa.int64())}))]
    put = lake.store.put

    def fail(key: str, data: bytes, **options: Any) -> str:
        lake.begun.append(key)
        raise StoreBusyError("slow down")

    lake.store.put = fail  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        put_files(lake.objects, encoded)
    attempts = len(lake.begun)
    lake.store.put = put  # type: ignore[method-assign]
    lake.pool.shutdown()
    assert len(lake.begun) == attempts


def test_a_batch_that_does_not_fit_is_read_again_only_when_its_files_are_under_way_no_more() -> None:
    """The store hangs and the table moves: without that, each plan would leave a batch behind."""
    topic = Topic("orders", 1)
    topic.send(0, *(order(n) for n in range(8)))
    lake = Hanging(topic)
    ingestor = Ingestor(spec(), replace(lake.context(), executor=one_thread))
    refused: list[int] = []
    commit = ingestor._commits.commit

    def moved(change: Any, writer: Any) -> CommitResult:
        if change.files and len(refused) < 4:
            refused.append(len(lake.begun))
            return NeedsReplan(state=lake.table(), reason="another service was first")
        return commit(change, writer)

    ingestor._commits.commit = moved  # type: ignore[method-assign]
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            ingestor.cycle(stop.is_set)

    running = threading.Thread(target=run)
    running.start()
    late_s = time.monotonic() + WAIT_S
    while not (refused and lake.begun):
        assert time.monotonic() < late_s
        time.sleep(0.005)
    time.sleep(0.5)
    assert (len(lake.begun), len(refused)) == (1, 1)
    assert ingestor._context.memory.held > 0
    lake.go.set()
    while lake.registry.get("orders").rows < 8:
        assert time.monotonic() < late_s
        time.sleep(0.005)
    stop.set()
    running.join(WAIT_S)
    assert len(refused) == 4
    assert lake.offsets() == [(0, n) for n in range(8)]
    assert ingestor._context.memory.held == 0


def test_a_batch_on_its_way_is_its_files_and_neither_records_nor_columns() -> None:
    topic, rows = Topic("orders", 1), 5000
    topic.send(0, *(order(n) for n in range(rows)), b"junk")
    lake, seen, columns = Lake(topic), list[tuple[int, int]](), list[int]()
    inner = lake.local.commit

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if "orders" in table.name and lake.table().head is not None:
            seen.append((sum(map(sys.getrefcount, topic.logs[0])), pa.total_allocated_bytes()))
        return inner(table, request, key=key)

    lake.local.commit = commit  # type: ignore[method-assign]
    text = (
        SPEC.replace("FORMAT", "2")
        .replace("PARTITIONING", "[]")
        .replace("maxRecords: 10", "maxRecords: 10000")
    )
    ingestor = lake.ingestor(parse_spec(text, file="orders.yaml"))
    encode = IcebergWriter.encode

    def encoded(writer: IcebergWriter, data: pa.Table, *, whole: bool = False) -> Any:
        columns.append(data.nbytes)
        return encode(writer, data, whole=whole)

    references, held = sum(map(sys.getrefcount, topic.logs[0])), pa.total_allocated_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IcebergWriter, "encode", encoded)
        lake.work(ingestor)
    assert lake.offsets() == [(0, n) for n in range(rows)]
    # What other tests of this process hold changes by some hundred bytes.
    assert any(now == references and more - held < max(columns) / 4 for now, more in seen), (seen, columns)
    assert max(columns) > 100_000


def test_files_that_are_put_are_in_the_store() -> None:
    lake = Watched()
    writer, _ = plain(lake)
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
