"""audit and trace over a lake made by ingest, whole and then damaged in one way at a time."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.origins import ParquetOrigins
from tarn.cli.ports import Clock
from tarn.cli.trace import Trace, Where, parse_message, trace
from tarn.core.audit.accounts import Account
from tarn.core.audit.manifests import ManifestReader
from tarn.core.audit.model import FileEntry, Kind
from tarn.core.errors import CorruptStateError, InvalidError, NoSuchTableError, UnavailableError
from tarn.core.object_store import BulkStore
from tarn.core.source import TopicClient
from tarn.core.table_catalog import TableName
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.ingest import ingestor
from tarn.ingest.audit import Report, audit
from tarn.ingest.batch_commit import streams_named
from tarn.ingest.committer import Committer, Done
from tarn.ingest.lake_files import LakePorts
from tarn.keeper.walk import Places
from tarn.testing.memory_topic import HOLE, Topic
from tests.support.lake import BUCKET, TABLE, Lake, order, spec

LETTERS = "ops.dead_letters"
BAD, DEAD_AT = b"not json", 3
HOLES = (5, 6)


@dataclass(frozen=True)
class Tables:
    """`StateOfTables` of a lake in memory."""

    lake: Lake
    names: tuple[str, ...] = (TABLE, LETTERS)
    pinned: TableState | None = None

    def tables(self) -> list[str]:
        return list(self.names)

    def state(self, table: str) -> TableState:
        if self.pinned is not None and table == TABLE:
            return self.pinned
        return self.lake.table(table)


class AwayTopics:
    def open(self, topic: str, *, stream: str) -> Any:
        raise UnavailableError("no broker answers")

    def create(self, topic: str, *, partitions: int) -> None:
        raise UnavailableError("no broker answers")


@dataclass
class Opened:
    """Reads of a store, counted."""

    store: BulkStore
    keys: list[str] = field(default_factory=list)

    def get(self, key: str) -> Any:
        self.keys.append(key)
        return self.store.get(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Seen:
    """A lake with its audit: 24 offsets of partition 0 with a dead letter and two holes, 2 of partition 1."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.topic = Topic("orders", 2)
        self.lake = Lake(self.topic)
        self.pool = pool
        self.topics: TopicClient = self.lake.sources
        self.manifests: ManifestReader = manifest_audit
        self.store = Opened(PlainBulk(self.lake.store))
        self.told: list[str] = []
        self.pinned: TableState | None = None
        values: list[Any] = [order(n) for n in range(8)]
        values[DEAD_AT], values[HOLES[0]], values[HOLES[1]] = BAD, HOLE, HOLE
        self.topic.send(1, order(100), order(101))
        self.send(*values)
        self.send(*[order(n) for n in range(8, 16)])
        self.send(*[order(n) for n in range(16, 24)])

    def send(self, *values: Any) -> None:
        self.topic.send(0, *values)
        self.lake.work(self.lake.ingestor())

    @property
    def ports(self) -> LakePorts:
        return LakePorts(
            tables=Tables(self.lake, pinned=self.pinned),
            store=self.store,
            manifests=self.manifests,
            origins=ParquetOrigins(self.store, Places(BUCKET).key),
            topics=self.topics,
            bucket=BUCKET,
            pool=self.pool,
            clock=Clock(now_s=self.lake.clock),
            tell=self.told.append,
        )

    def audit(self, table: str = TABLE) -> Report:
        return audit(table, self.ports)

    def trace(self, message: str, **options: Any) -> Trace:
        return trace(parse_message(message), self.ports, **options)

    def kinds(self) -> list[Kind]:
        return [found.kind for found in self.audit().findings]

    def file_with(self, offset: int) -> str:
        """Location of the data file of partition 0 with this offset."""
        found: list[str] = []
        for entry in self.lake.files():
            table = pq.read_table(io.BytesIO(self.lake.objects.read(entry.data_file.file_path)))
            rows = [(r["partition"], r["offset"]) for r in table["_tarn"].to_pylist()]
            found += [entry.data_file.file_path] * rows.count((0, offset))
        assert found, offset
        return found[0]

    def rows_of(self, path: str) -> pa.Table:
        return pq.read_table(io.BytesIO(self.lake.objects.read(path)))

    def opened(self) -> Any:
        return self.lake.context().tables.table(TABLE, spec().spec.columns.fields, trace=True)

    def append(self, rows: pa.Table | None = None, files: tuple[WrittenFile, ...] = ()) -> None:
        """Commit as another writer does: without an offset map."""
        state = self.lake.table()
        writer = self.opened().writer(state)
        if rows is not None:
            files = writer.put(writer.encode(rows))
        name = TableName(("bronze",), "orders")
        committer = Committer(self.lake.catalog, name, ports=self.lake.context().ports)
        change = Foreign(files=files, table_uuid=state.uuid)
        assert isinstance(committer.commit(change, writer), Done)

    def empty_list(self) -> str:
        state = self.lake.table()
        none = TableState({**state.metadata, "snapshots": [], "refs": {}, "current-snapshot-id": None})
        written = self.opened().writer(state).snapshot((), snapshot_id=1).write_manifest_list(none)
        return str(written.path)

    def edit(self, table: str = TABLE, **changes: Any) -> dict[str, Any]:
        """Put a snapshot on top of a table's metadata, with these fields."""
        namespace, _, name = table.partition(".")
        pointer = self.lake.store.get(f"catalog/v1/pointers/{namespace}/{name}.json")
        assert pointer is not None
        key = orjson.loads(pointer.data)["metadata-location"].removeprefix(f"s3://{BUCKET}/")
        stored = self.lake.store.get(key)
        assert stored is not None
        metadata: dict[str, Any] = orjson.loads(stored.data)
        head = metadata["snapshots"][-1]
        added = {
            **head,
            "snapshot-id": 4711,
            "parent-snapshot-id": head["snapshot-id"],
            "sequence-number": head["sequence-number"] + 1,
            "timestamp-ms": head["timestamp-ms"] + 1,
            "summary": {"operation": "overwrite"},
            **changes,
        }
        metadata["snapshots"].append(added)
        metadata["current-snapshot-id"] = metadata["refs"]["main"]["snapshot-id"] = added["snapshot-id"]
        metadata["last-sequence-number"] = added["sequence-number"]
        self.lake.store.put(key, orjson.dumps(metadata))
        self.lake.local.catalog = type(self.lake.local)(self.lake.store).catalog
        return added

    def list_before(self, offset: int) -> str:
        """Manifest list of the newest snapshot whose map ends at or before this offset of partition 0."""
        for snapshot in self.lake.table().ancestors():
            text = snapshot["summary"].get("tarn.offsets.orders")
            if text is not None and orjson.loads(text)["next"].get("0", 0) <= offset:
                return str(snapshot["manifest-list"])
        raise AssertionError(offset)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """An append by a writer that knows nothing of offsets."""

    files: tuple[WrittenFile, ...]
    table_uuid: str
    commit_id: str = "foreign"
    removed: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append:
        return Append.of(
            self.files, commit_id=self.commit_id, summary={}, tag="foreign", since="foreign.since"
        )


@pytest.fixture
def seen() -> Iterator[Seen]:
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield Seen(pool)


def counts(account: Account) -> dict[str, int]:
    return {
        "next": account.next,
        "rows": account.rows.rows,
        "letters": account.letters.rows,
        "without": len(account.without_record),
        "unknown": len(account.unknown),
        "missing": len(account.missing),
        "doubled": len(account.doubled),
    }


WHOLE = {"next": 24, "rows": 21, "letters": 1, "without": 2, "unknown": 0, "missing": 0, "doubled": 0}


def test_a_whole_table_is_accounted_for(seen: Seen) -> None:
    report = seen.audit()
    assert report.findings == []
    assert report.whole
    first, second = report.accounts
    assert (first.streams, first.topic, first.partition) == (("orders",), "orders", 0)
    assert counts(first) == WHOLE
    assert counts(second) == {**dict.fromkeys(WHOLE, 0), "next": 2, "rows": 2}
    assert report.dead_letter_tables == [LETTERS]
    assert (report.files, report.unasked) == (len(seen.lake.files()), {})
    data = json.loads(json.dumps(report.data()))
    assert (data["whole"], data["partitions"][0]["next"], data["findings"]) == (True, 24, [])


def test_without_the_log_offsets_without_a_row_are_not_called_lost(seen: Seen) -> None:
    seen.topics = AwayTopics()
    report = seen.audit()
    assert report.whole
    (finding,) = report.findings
    assert finding.kind is Kind.OFFSETS_HOLE
    assert "2 offsets have neither row nor dead letter: 5 to 6; the log could not be asked" in finding.what
    assert counts(report.accounts[0]) == {**WHOLE, "without": 0, "unknown": 2}
    assert report.unasked == {"orders": "no broker answers"}


def test_a_log_that_starts_later_says_nothing_about_older_offsets(seen: Seen) -> None:
    seen.topic.starts[0] = 10
    report = seen.audit()
    assert [found.kind for found in report.findings] == [Kind.OFFSETS_HOLE]
    assert report.unasked == {}


def test_the_log_is_asked_about_so_many_ranges_and_for_so_long(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen.send(order(24), HOLE, order(26))
    whole = {**WHOLE, "next": 27, "rows": 23, "without": 3}
    assert counts(seen.audit().accounts[0]) == whole
    monkeypatch.setattr("tarn.ingest.lake_files.LOG_RANGES_MAX", 1)
    assert counts(seen.audit().accounts[0]) == whole, "ranges that are close are one"
    monkeypatch.setattr("tarn.ingest.lake_files.LOG_APART_MAX", 5)
    report = seen.audit()
    assert counts(report.accounts[0]) == {**whole, "without": 2, "unknown": 1}
    assert report.unasked == {"orders": "only the first 1 ranges of partition 0 were asked about"}
    monkeypatch.setattr("tarn.ingest.lake_files.LOG_S_MAX", 0.0)
    report = seen.audit()
    assert counts(report.accounts[0]) == {**whole, "without": 0, "unknown": 3}
    assert report.unasked == {"orders": "reading partition 0 took longer than 0 s"}


def test_a_partition_that_the_topic_lacks_is_no_evidence(seen: Seen) -> None:
    del seen.topic.logs[0], seen.topic.starts[0]
    report = seen.audit()
    assert counts(report.accounts[0]) == {**WHOLE, "without": 0, "unknown": 2}
    assert report.unasked == {"orders": "the topic has no partition 0"}


def test_a_topic_that_was_recreated_is_no_evidence(seen: Seen) -> None:
    seen.topic.topic_id = "another"
    report = seen.audit()
    assert [found.kind for found in report.findings] == [Kind.OFFSETS_HOLE]
    assert "another one now" in report.unasked["orders"]


def test_dead_letters_that_wait_to_be_registered_count(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    seen.topic.send(0, BAD)
    later = seen.lake.ingestor()
    later._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    seen.lake.work(later)
    assert len(seen.lake.rows(LETTERS)) == 1
    report = seen.audit()
    assert report.findings == []
    assert counts(report.accounts[0]) == {**WHOLE, "next": 25, "letters": 2}


def test_a_dead_letter_that_was_deleted_after_it_was_registered_does_not_count(seen: Seen) -> None:
    seen.send(BAD)
    assert counts(seen.audit().accounts[0])["letters"] == 2
    seen.edit(LETTERS, **{"manifest-list": seen.empty_list()})
    report = seen.audit()
    assert [found.kind for found in report.findings] == [Kind.OFFSETS_MISSING]
    assert counts(report.accounts[0]) == {**WHOLE, "next": 25, "letters": 0, "missing": 2}


def test_dead_letters_that_are_added_meanwhile_do_not_count(seen: Seen) -> None:
    seen.pinned = seen.lake.table()
    seen.send(BAD, order(25))
    assert len(seen.lake.rows(LETTERS)) == 2
    report = seen.audit()
    assert report.findings == []
    assert counts(report.accounts[0]) == WHOLE


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("operation", ["overwrite", "delete"])
def test_rows_that_another_engine_deleted_are_a_note_and_its_snapshot_is_named(
    seen: Seen, operation: str, asked: bool
) -> None:
    seen.edit(**{"manifest-list": seen.list_before(16), "summary": {"operation": operation}})
    if not asked:
        seen.topics = AwayTopics()
    report = seen.audit()
    finding = next(found for found in report.findings if found.kind is Kind.ROWS_DELETED)
    assert report.whole
    assert "at 8 offsets: 16 to 23; snapshot 4711 (" + operation in finding.what
    assert "roll" not in finding.fix
    account = report.accounts[0]
    assert len(account.deleted) == 8
    assert counts(account) | {"without": 0, "unknown": 0} == {**WHOLE, "without": 0, "rows": 13}
    assert report.data()["partitions"][0]["deleted"] == 8


def test_rows_that_a_compaction_lost_after_a_delete_are_damage(seen: Seen) -> None:
    """The newest file of a row decides: the delete left these rows in, the replace after it did not."""
    before, whole = seen.list_before(16), seen.lake.table().head
    assert whole is not None
    seen.edit(**{"manifest-list": before})
    seen.edit(
        **{"manifest-list": whole["manifest-list"], "snapshot-id": 4712, "summary": {"operation": "append"}}
    )
    seen.edit(**{"manifest-list": before, "snapshot-id": 4713, "summary": {"operation": "replace"}})
    (finding,) = seen.audit().findings
    assert finding.kind is Kind.OFFSETS_MISSING
    assert "snapshot 4713 (replace of" in finding.what


COMPACTION = {"operation": "replace"}
TARNS = {"operation": "overwrite", "tarn.commit-id": "c"}


@pytest.mark.parametrize("summary", [COMPACTION, TARNS])
def test_rows_that_a_rewrite_lost_are_missing_and_it_is_named(seen: Seen, summary: dict[str, str]) -> None:
    path = seen.file_with(20)
    seen.edit(**{"manifest-list": seen.list_before(16), "summary": summary})
    report = seen.audit()
    (finding,) = report.findings
    assert finding.kind is Kind.OFFSETS_MISSING
    assert not report.whole
    for part in (
        "16 to 23; the log has records at 8 of them",
        path,
        f"snapshot 4711 ({summary['operation']} of",
    ):
        assert part in finding.what, (part, finding.what)
    assert counts(report.accounts[0]) == {**WHOLE, "rows": 13, "missing": 8}


def test_kept_history_proves_the_loss_when_the_log_cannot(seen: Seen) -> None:
    seen.topics = AwayTopics()
    seen.edit(**{"manifest-list": seen.list_before(16), "summary": COMPACTION})
    report = seen.audit()
    assert [found.kind for found in report.findings] == [Kind.OFFSETS_MISSING, Kind.OFFSETS_HOLE]
    assert counts(report.accounts[0]) == {**WHOLE, "rows": 13, "missing": 8, "without": 0, "unknown": 2}


def test_the_first_rows_are_missing_if_the_log_still_has_them(seen: Seen) -> None:
    rows = seen.rows_of(seen.file_with(20))
    seen.edit(**{"manifest-list": seen.empty_list(), "parent-snapshot-id": 99})
    seen.append(rows)
    report = seen.audit()
    assert [found.kind for found in report.findings] == [Kind.OFFSETS_MISSING, Kind.OFFSETS_MISSING]
    first, second = report.accounts
    assert counts(first) == {**WHOLE, "rows": 8, "missing": 13}
    assert counts(second) == {**dict.fromkeys(WHOLE, 0), "next": 2, "missing": 2}
    seen.topics = AwayTopics()
    assert counts(seen.audit().accounts[1]) == {**dict.fromkeys(WHOLE, 0), "next": 2}, (
        "nothing says otherwise"
    )


def test_an_offset_doubled_by_a_foreign_append_is_named_with_both_files(seen: Seen) -> None:
    path = seen.file_with(9)
    rows = seen.rows_of(path)
    which = [r["offset"] for r in rows["_tarn"].to_pylist()].index(9)
    seen.append(rows.slice(which, 1))
    report = seen.audit()
    (finding,) = report.findings
    assert finding.kind is Kind.OFFSETS_DOUBLED
    assert "1 offsets have more than one row: 9; offset 9 is in" in finding.what
    other = next(e.data_file.file_path for e in seen.lake.files() if e.data_file.record_count == 1)
    assert path in finding.what
    assert other in finding.what
    assert counts(report.accounts[0]) == {**WHOLE, "rows": 22, "doubled": 1}
    trace = seen.trace("orders/0/9")
    assert sorted(file.path for file in trace.found[0].files) == sorted([path, other])
    assert "2 times" in trace.found[0].what


def test_an_offset_doubled_within_one_file_is_found(seen: Seen) -> None:
    rows = seen.rows_of(seen.file_with(9))
    which = [r["offset"] for r in rows["_tarn"].to_pylist()].index(9)
    one = rows.slice(which, 1)
    seen.append(pa.concat_tables([one, one]))
    report = seen.audit()
    assert [found.kind for found in report.findings] == [Kind.OFFSETS_DOUBLED]
    assert "(2 times)" in report.findings[0].what
    assert counts(report.accounts[0]) == {**WHOLE, "rows": 23, "doubled": 1}


def test_a_data_file_that_is_live_twice_is_named(seen: Seen) -> None:
    path = seen.file_with(9)
    size, rows = len(seen.lake.objects.read(path)), seen.rows_of(path).num_rows
    seen.append(files=(WrittenFile(path=path, partition=(), spec_id=0, records=rows, bytes=size),))
    report = seen.audit()
    (finding,) = report.findings
    assert finding.kind is Kind.OFFSETS_DOUBLED
    assert f"{path} (2 times)" in finding.what
    assert counts(report.accounts[0])["doubled"] == rows


def test_a_second_stream_of_the_topic_is_named_with_its_rows(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingestor, "require_only_stream", lambda state, *_args, **_names: streams_named(state))
    body = spec().model_dump(by_alias=True)
    body["metadata"]["name"] = "renamed"
    seen.lake.work(seen.lake.ingestor(type(spec()).model_validate(body)))
    report = seen.audit()
    assert [found.kind for found in report.findings] == [
        Kind.STREAMS_DOUBLED,
        Kind.OFFSETS_DOUBLED,
        Kind.LETTERS_AGAIN,
        Kind.OFFSETS_DOUBLED,
    ]
    assert report.accounts[0].streams == ("orders", "renamed")
    assert counts(report.accounts[0]) == {**WHOLE, "rows": 42, "letters": 2, "doubled": 21}


def test_a_recreated_topic_of_the_same_name_doubles_nothing(seen: Seen) -> None:
    seen.lake.sources.topics["orders"] = again = Topic("orders", 1, topic_id="id-2")
    again.send(0, *[order(n) for n in range(10)])
    body = spec().model_dump(by_alias=True)
    body["metadata"]["name"] = "again"
    seen.lake.work(seen.lake.ingestor(type(spec()).model_validate(body)))
    report = seen.audit()
    assert report.whole
    assert counts(report.accounts[0])["doubled"] == 0
    assert report.unasked == {"orders": "the table has rows of 2 topics of this name"}
    seen.append(seen.rows_of(seen.file_with(20)))
    assert counts(seen.audit().accounts[0])["doubled"] == 8, (
        "beyond the second topic each offset is there once"
    )


def test_rows_beyond_the_map_are_damage(seen: Seen) -> None:
    rows = seen.rows_of(seen.file_with(9)).slice(0, 1)
    trace_column = rows["_tarn"].to_pylist()
    moved = [{**trace_column[0], "offset": 30}]
    at = rows.schema.get_field_index("_tarn")
    seen.append(rows.set_column(at, "_tarn", pa.array(moved, rows.schema.field(at).type)))
    report = seen.audit()
    assert [found.kind for found in report.findings] == [Kind.OFFSETS_BEYOND]
    assert "next one on, 24, have rows: 30" in report.findings[0].what


def test_rows_without_an_origin_and_of_another_topic_are_notes(seen: Seen) -> None:
    rows = seen.rows_of(seen.file_with(9)).slice(0, 2)
    known = rows["_tarn"].to_pylist()
    odd = [{**known[0], "source": "elsewhere"}, {**known[1], "offset": None}]
    at = rows.schema.get_field_index("_tarn")
    kind = pa.struct([f.with_nullable(True) for f in rows.schema.field(at).type])
    seen.append(rows.set_column(at, "_tarn", pa.array(odd, kind)))
    report = seen.audit()
    assert report.whole
    assert [found.kind for found in report.findings] == [Kind.ROWS_UNTRACED, Kind.ROWS_UNTRACED]
    assert counts(report.accounts[0]) == WHOLE


def test_a_data_file_that_is_gone_or_scrambled_is_damage_and_the_rest_is_read(seen: Seen) -> None:
    path = seen.file_with(20)
    key = path.removeprefix(f"s3://{BUCKET}/")
    seen.lake.store.put(key, b"scrambled")
    assert seen.kinds() == [Kind.UNREADABLE, Kind.OFFSETS_MISSING]
    seen.lake.store.delete(key)
    report = seen.audit()
    assert [found.kind for found in report.findings] == [Kind.FILE, Kind.OFFSETS_MISSING]
    assert report.findings[0].where == path
    assert counts(report.accounts[0])["missing"] == 8


def test_a_dead_letter_file_that_is_gone_stops_the_audit(seen: Seen) -> None:
    (entry,) = seen.lake.files(LETTERS)
    seen.lake.store.delete(entry.data_file.file_path.removeprefix(f"s3://{BUCKET}/"))
    with pytest.raises(CorruptStateError, match=r"dead-letter file .* is not in the store"):
        seen.audit()


def test_a_manifest_that_is_gone_stops_the_audit(seen: Seen) -> None:
    state = seen.lake.table()
    assert state.head is not None
    seen.lake.store.delete(state.head["manifest-list"].removeprefix(f"s3://{BUCKET}/"))
    with pytest.raises(CorruptStateError, match=r"manifest list .* cannot be read: it is not in the store"):
        seen.audit()


def test_a_map_that_cannot_be_read_is_damage(seen: Seen) -> None:
    seen.edit(summary={"operation": "append", "tarn.offsets.orders": "{"})
    assert seen.kinds() == [Kind.OFFSETS_UNREADABLE, Kind.ROWS_UNTRACED, Kind.ROWS_UNTRACED]


class WithDeletes:
    """A manifest reader that adds a delete file to the manifest with a data file."""

    def __init__(self, path: str, added: FileEntry) -> None:
        self._path = path
        self._added = added

    def file_entries(self, data: bytes, **options: Any) -> tuple[FileEntry, ...]:
        found = manifest_audit.file_entries(data, **options)
        return (*found, self._added, self._added) if any(e.path == self._path for e in found) else found

    def __getattr__(self, name: str) -> Any:
        return getattr(manifest_audit, name)


def with_deletes(seen: Seen, path: str, rows: pa.Table) -> None:
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    seen.lake.store.put("warehouse/deletes.parquet", sink.getvalue())
    entry = FileEntry(f"s3://{BUCKET}/warehouse/deletes.parquet", len(sink.getvalue()), 1, deletes=True)
    seen.manifests = WithDeletes(path, entry)


def test_a_row_that_a_delete_file_removes_is_not_in_the_table(seen: Seen) -> None:
    path = seen.file_with(20)
    offsets = [r["offset"] for r in seen.rows_of(path)["_tarn"].to_pylist()]
    with_deletes(seen, path, pa.table({"file_path": [path], "pos": [offsets.index(20)]}))
    seen.store.keys.clear()
    report = seen.audit()
    assert seen.store.keys.count("warehouse/deletes.parquet") == 1, "entries may name a file several times"
    (finding,) = report.findings
    assert finding.kind is Kind.ROWS_DELETED
    assert f"at 1 offsets: 20; a delete file for {path}" in finding.what
    assert report.whole
    assert counts(report.accounts[0]) == {**WHOLE, "rows": 20}
    assert seen.trace("orders/0/20").found[0].where is Where.REMOVED
    assert seen.trace("orders/0/21").found[0].where is Where.ROW


def test_deletes_by_value_are_refused(seen: Seen) -> None:
    with_deletes(seen, seen.file_with(20), pa.table({"id": [20]}))
    with pytest.raises(InvalidError, match="deletes rows by their values"):
        seen.audit()


def test_large_files_are_read_by_ranges_and_only_the_columns(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarn.adapters.origins.WHOLE_BYTES_MAX", 0)
    seen.store.keys.clear()
    report = seen.audit()
    assert counts(report.accounts[0]) == WHOLE
    assert [key for key in seen.store.keys if key.endswith(".parquet")] == []


def test_what_cannot_be_audited_is_refused_with_what_to_do(seen: Seen) -> None:
    with pytest.raises(InvalidError, match=r"ops\.dead_letters has no stream.*tarn status"):
        seen.audit(LETTERS)
    with pytest.raises(NoSuchTableError):
        seen.audit("bronze.nothing")


def test_a_table_without_the_trace_column_is_refused(seen: Seen) -> None:
    seen.lake.sources.topics["plain"] = plain = Topic("plain", 1)
    plain.send(0, order(1))
    body = spec().model_dump(by_alias=True)
    body["metadata"]["name"] = "plain"
    body["spec"]["source"]["kafka"]["topic"] = "plain"
    body["spec"]["table"]["name"] = "plain"
    body["spec"]["trace"] = False
    seen.lake.work(seen.lake.ingestor(type(spec()).model_validate(body)))
    with pytest.raises(InvalidError, match=r"bronze\.plain has no column _tarn"):
        seen.audit("bronze.plain")


def test_a_row_is_traced_to_its_file_snapshot_and_commit_with_few_reads(seen: Seen) -> None:
    path = seen.file_with(20)
    seen.store.keys.clear()
    (found,) = seen.trace("orders/0/20").found
    assert (found.table, found.stream, found.where, found.next) == (TABLE, "orders", Where.ROW, 24)
    (file,) = found.files
    assert file.path == path
    snapshots = {s["snapshot-id"]: s for s in seen.lake.table().metadata["snapshots"]}
    assert file.commit.snapshot_id is not None
    assert snapshots[file.commit.snapshot_id]["summary"]["tarn.commit-id"] == file.commit.commit_id
    assert file.commit.at is not None
    data = [key for key in seen.store.keys if key.endswith(".parquet") and "/orders-" in key]
    assert data == [path.removeprefix(f"s3://{BUCKET}/")], "bounds leave one file"
    assert seen.trace("orders/0/20").ok


def test_a_dead_letter_is_traced_to_its_reason(seen: Seen) -> None:
    result = seen.trace(f"orders/0/{DEAD_AT}")
    (found,) = result.found
    assert found.where is Where.LETTER
    (letter,) = found.letters
    assert "JSON" in letter.reason
    assert result.ok
    assert json.loads(json.dumps(result.data()))["tables"][0]["dead_letters"][0]["reason"] == letter.reason


def where(seen: Seen, message: str) -> tuple[Where, str]:
    result = seen.trace(message)
    assert not result.ok
    (found,) = result.found
    return found.where, found.what


def test_an_offset_that_is_nowhere_is_traced_to_why(seen: Seen) -> None:
    assert where(seen, "orders/0/24") == (
        Where.NOT_READ,
        "not read yet: stream orders: the table's next offset is 24",
    )
    assert where(seen, "orders/7/0")[1] == "not read yet: stream orders: has not read the partition"
    assert where(seen, "orders/0/5")[0] is Where.NO_RECORD
    seen.topics = AwayTopics()
    kind, what = where(seen, "orders/0/5")
    assert (kind, "or its row was lost" in what, "no broker answers" in what) == (Where.UNKNOWN, True, True)


def test_a_removed_and_a_missing_row_are_traced_to_the_evidence(seen: Seen) -> None:
    path = seen.file_with(20)
    earlier = seen.list_before(16)
    seen.edit(**{"manifest-list": earlier})
    kind, what = where(seen, "orders/0/20")
    assert (kind, path in what, "snapshot 4711 does not have it" in what) == (Where.REMOVED, True, True)
    # The history that showed it is expired: only the log does.
    seen.edit(**{"manifest-list": earlier, "snapshot-id": 4712, "parent-snapshot-id": 99})
    kind, what = where(seen, "orders/0/20")
    assert (kind, "the log has a record there" in what) == (Where.MISSING, True)
    assert seen.kinds() == [Kind.OFFSETS_MISSING]


def test_an_offset_before_the_first_row_is_before_the_streams_start() -> None:
    topic = Topic("orders", 1)
    topic.send(0, *[order(n) for n in range(20)])
    topic.starts[0] = 12
    with ThreadPoolExecutor(max_workers=2) as pool:
        seen = Seen(pool)
        seen.topic, seen.lake = topic, Lake(topic)
        seen.store = Opened(PlainBulk(seen.lake.store))
        seen.topics = seen.lake.sources
        seen.lake.work(seen.lake.ingestor())
        assert where(seen, "orders/0/3")[0] is Where.BEFORE
        report = seen.audit()
        assert report.findings == []
        assert (report.accounts[0].start, report.accounts[0].rows.rows) == (12, 8)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "orders/0",
        "orders/0/x",
        "orders/-1/0",
        "a b/0/0",
        "orders/0/0/0",
        "orders/0/9" + "9" * 18,
        "orders/9999999999/0",
    ],
)
def test_a_malformed_message_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(InvalidError, match="write TOPIC/PARTITION/OFFSET"):
        parse_message(text)


def test_an_unknown_topic_is_refused_with_those_there_are(seen: Seen) -> None:
    with pytest.raises(InvalidError, match=r"no table has a stream of topic 'order'; topics .*: orders"):
        seen.trace("order/0/1")
    with pytest.raises(
        InvalidError, match=r"table ops\.dead_letters does not have a stream of topic 'orders'"
    ):
        seen.trace("orders/0/1", table=LETTERS)
    with pytest.raises(NoSuchTableError):
        seen.trace("orders/0/1", table="a.b")


def test_deleted_positions_come_from_a_deletion_vector_too(seen: Seen) -> None:
    bitmap = BitMap64([1, 3]).serialize()
    payload = (0x6439D3D1).to_bytes(4, "big") + bitmap
    blob = len(payload).to_bytes(4, "big") + payload + b"crc!"
    footer = json.dumps(
        {
            "blobs": [
                {
                    "type": "deletion-vector-v1",
                    "fields": [],
                    "snapshot-id": 1,
                    "sequence-number": 1,
                    "offset": 4,
                    "length": len(blob),
                    "properties": {"referenced-data-file": "s3://tarn/warehouse/a.parquet"},
                }
            ]
        }
    ).encode()
    data = b"PFA1" + blob + b"PFA1" + footer + len(footer).to_bytes(4, "little") + b"\0\0\0\0" + b"PFA1"
    seen.lake.store.put("warehouse/dv.puffin", data)
    entry = FileEntry(f"s3://{BUCKET}/warehouse/dv.puffin", len(data), 2, deletes=True)
    found = seen.ports.origins.deleted(entry)
    assert found == {"s3://tarn/warehouse/a.parquet": BitMap64([1, 3])}
