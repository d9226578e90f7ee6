"""The scheduled audit over a lake made by ingest: what it reads, what it finds, and what it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pyroaring import BitMap64
from structlog.testing import capture_logs

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.origins import ParquetOrigins
from tarn.core.audit.accounts import Account, Origins, Tally
from tarn.core.audit.model import FileEntry
from tarn.core.errors import UnavailableError
from tarn.core.offsets import TopicIdentity
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.ingest import audit_memory, audit_schedule
from tarn.ingest.audit import _known_removals
from tarn.ingest.audit_schedule import AuditSchedule
from tarn.ingest.committer import Committer
from tarn.ingest.context import StoppedError
from tarn.ingest.lake_files import KnownRemovals, LakePorts, LiveFiles
from tarn.ingest.lake_ports import Clock
from tarn.ingest.metrics import to_metrics
from tarn.ingest.status import AuditStatus, StatusRegistry
from tarn.keeper.walk import Places
from tarn.testing.memory_topic import HOLE, Topic
from tests.support.lake import BUCKET, TABLE, Lake, order

SOURCE = TopicIdentity(cluster="c", topic="orders", topic_id="t")
EVERY_S, ALL_FILES_S = 900.0, 86_400.0


@dataclass
class Opened:
    """Reads of data files, counted; each takes a while."""

    store: PlainBulk
    clock: Any
    took_s: float = 0.5
    keys: list[str] = field(default_factory=list)
    away: bool = False
    hook: Callable[[str], None] | None = None

    def get(self, key: str) -> Any:
        if self.hook is not None:
            self.hook(key)
        if self.away:
            raise UnavailableError("the store does not answer")
        if key.endswith(".parquet"):
            self.clock.now_s += self.took_s
            self.keys.append(key)
        return self.store.get(key)

    def open(self, key: str, *, bytes_max: int) -> Any:
        if self.away:
            raise UnavailableError("the store does not answer")
        return self.store.open(key, bytes_max=bytes_max)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Audited:
    """A lake whose table is audited on the schedule: ten rows of partition 0, one dead letter, one hole."""

    def __init__(self) -> None:
        self.topic = Topic("orders", 2)
        self.lake = Lake(self.topic)
        self.store = Opened(PlainBulk(self.lake.store), self.lake.clock)
        self.rests: list[float] = []
        self.ingestor = self.lake.ingestor()
        self.send(*[order(n) for n in range(5)], b"junk", HOLE)
        self.send(*[order(n) for n in range(5, 10)])
        self.schedule = self.made()

    def made(self, registry: StatusRegistry | None = None) -> AuditSchedule:
        return AuditSchedule(
            self.ports,
            registry or self.lake.registry,
            every_s=EVERY_S,
            all_files_s=ALL_FILES_S,
            now_s=self.lake.clock,
            now_ms=lambda: int(self.lake.clock.now_s * 1_000) + 1_700_000_000_000,
            sleep=self.sleep,
        )

    @contextmanager
    def ports(self) -> Iterator[LakePorts]:
        with ThreadPoolExecutor(max_workers=1) as pool:
            yield LakePorts(
                tables=Tables(self.lake),
                store=self.store,
                manifests=manifest_audit,
                origins=ParquetOrigins(self.store, Places(BUCKET).key),
                topics=self.lake.sources,
                bucket=BUCKET,
                pool=pool,
                clock=Clock(now_s=self.lake.clock),
                tell=lambda _text: None,
            )

    def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        self.lake.clock.now_s += seconds
        if self.lake.stop:
            raise StoppedError

    def send(self, *values: Any) -> None:
        self.topic.send(0, *values)
        self.lake.work(self.ingestor)

    def look(self) -> AuditStatus:
        self.schedule.look(TABLE)
        return self.lake.registry.audits()[TABLE]

    def again(self, *, offset_of_file: int) -> None:
        """Add a live data file once more, under another path."""
        entry = self.lake.files()[offset_of_file].data_file
        data = self.lake.objects.read(entry.file_path)
        path = entry.file_path.replace(".parquet", "-again.parquet")
        self.lake.objects.write_new(path, data)
        state = self.lake.table()
        writer = self.ingestor.files.writer(state)
        (encoded,) = writer.merge([written(entry)])
        file = writer.put([encoded])[0]
        assert path != file.path
        Committer(self.lake.local, self.ingestor.table, ports=self.lake.context().ports).commit(
            Foreign(state.uuid, (file,)), writer
        )


def written(entry: Any) -> Any:
    return WrittenFile(
        path=entry.file_path,
        partition=tuple(entry.partition),
        spec_id=0,
        records=entry.record_count,
        bytes=entry.file_size_in_bytes,
    )


@dataclass
class Foreign:
    """A commit of another writer."""

    table_uuid: str
    files: Any
    removed: Any = ()
    commit_id: str = "foreign"

    def on(self, state: Any) -> Append:
        return Append.of(self.files, commit_id=self.commit_id, summary={}, removed=self.removed)


@dataclass(frozen=True)
class Tables:
    lake: Lake

    def tables(self) -> list[str]:
        return [TABLE, "ops.dead_letters"]

    def state(self, table: str) -> Any:
        return self.lake.table(table)


def metrics(registry: StatusRegistry) -> dict[str, float]:
    found = re.findall(
        r'^tarn_ingest_audit_(\w+)\{table="bronze.orders"\} (\S+)$', to_metrics(registry), re.M
    )
    return {name: float(value) for name, value in found}


def test_a_whole_table_is_shown_with_what_was_read() -> None:
    audited = Audited()
    found = audited.look()
    assert (found.findings, found.missing, found.doubled, found.unknown, found.foreign) == ((), 0, 0, 0, 0)
    assert found.files == len(audited.lake.files())
    assert found.read == found.files + 1  # and the dead letters
    assert found.snapshot_id == audited.lake.table().head_id
    assert found.at_ms == found.whole_at_ms > 1_700_000_000_000
    assert metrics(audited.lake.registry) == {
        "missing_offsets": 0,
        "doubled_offsets": 0,
        "unknown_offsets": 0,
        "foreign_streams": 0,
        "findings": 0,
        "timestamp_seconds": found.at_ms / 1_000,
        "all_files_timestamp_seconds": found.at_ms / 1_000,
        "duration_seconds": found.seconds,
        "failures_total": 0,
    }
    assert found.to_json()["whole"] is True


def test_the_next_audit_reads_only_files_that_are_new_and_accounts_for_all() -> None:
    audited = Audited()
    audited.look()
    files = len(audited.lake.files())
    audited.store.keys.clear()
    audited.send(order(20), order(21))
    found = audited.look()
    assert len(audited.store.keys) == found.read == 1
    assert found.files == files + 1
    assert found.findings == ()
    assert found.whole_at_ms < found.at_ms
    memory = audited.schedule._tables[TABLE].memory
    assert memory.files == found.files + 1


def test_rows_that_are_gone_are_found_though_their_file_was_read_before() -> None:
    """Offsets of remembered files count only while the file is live."""
    audited = Audited()
    audited.look()
    gone = audited.lake.files()[0].data_file
    state = audited.lake.table()
    Committer(audited.lake.local, audited.ingestor.table, ports=audited.lake.context().ports).commit(
        Foreign(state.uuid, (), (written(gone),)), audited.ingestor.files.writer(state)
    )
    with capture_logs() as logs:
        found = audited.look()
    assert found.missing == gone.record_count
    assert metrics(audited.lake.registry)["missing_offsets"] == gone.record_count
    (line,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert line["table"] == TABLE
    assert "scripts/tarn audit bronze.orders" in line["do"]
    assert "roll the table back" in line["do"]


def test_a_doubled_row_is_confirmed_by_reading_everything_and_logged_once() -> None:
    audited = Audited()
    audited.look()
    audited.again(offset_of_file=0)
    audited.store.keys.clear()
    with capture_logs() as logs:
        found = audited.look()
        audited.look()
    assert found.doubled == audited.lake.files()[-1].data_file.record_count
    assert found.whole_at_ms == found.at_ms
    assert found.read == found.files + 1
    assert len([entry for entry in logs if entry["log_level"] == "error"]) == 1
    assert found.to_json()["whole"] is False


def drop(audited: Audited, *, operation: str, number: int = 0) -> int:
    """Drop the first data file as another engine does; returns the number of its rows."""
    gone = audited.lake.files()[0].data_file
    state = audited.lake.table()
    change = Foreign(state.uuid, (), (written(gone),), commit_id=f"foreign-{number}")
    Committer(audited.lake.local, audited.ingestor.table, ports=audited.lake.context().ports).commit(
        change, audited.ingestor.files.writer(state)
    )
    edit_head(audited.lake, operation=operation)
    return int(gone.record_count)


def edit_head(lake: Lake, *, operation: str, without: str = "tarn.") -> None:
    """Change the summary of the table's last snapshot: to one of another engine, as it has no commit id."""
    pointer = lake.store.get("catalog/v1/pointers/bronze/orders.json")
    assert pointer is not None
    key = json.loads(pointer.data)["metadata-location"].removeprefix(f"s3://{BUCKET}/")
    stored = lake.store.get(key)
    assert stored is not None
    metadata = json.loads(stored.data)
    summary = metadata["snapshots"][-1]["summary"]
    kept = {name: value for name, value in summary.items() if not name.startswith(without)}
    metadata["snapshots"][-1]["summary"] = kept | {"operation": operation}
    lake.store.put(key, json.dumps(metadata).encode())
    lake.local.catalog = type(lake.local)(lake.store).catalog


def test_rows_that_another_engine_deleted_are_no_damage_and_are_remembered() -> None:
    audited = Audited()
    audited.look()
    drop(audited, operation="delete")
    with capture_logs() as logs:
        first = audited.look()
    assert (first.findings, first.missing) == ((), 0)
    assert [entry for entry in logs if entry["log_level"] == "error"] == []
    audited.store.keys.clear()
    again = audited.look()
    assert (again.findings, again.missing, again.read, audited.store.keys) == ((), 0, 0, [])
    assert again.whole_at_ms == first.whole_at_ms
    # The next time that all files are read, too; and what a rewrite loses after it is damage.
    audited.lake.clock.now_s += ALL_FILES_S
    assert audited.look().findings == ()
    lost = drop(audited, operation="replace", number=1)
    with capture_logs():
        found = audited.look()
    assert found.missing == lost
    assert len(found.findings) == 1


def test_a_delete_is_remembered_after_its_snapshot_is_expired_and_forgotten_with_a_rollback() -> None:
    known = KnownRemovals(taken={("orders", 0): {7: BitMap64([1]), 9: BitMap64([2])}})
    audited = Audited()
    state = audited.lake.table()
    left = BitMap64(range(100)) - BitMap64([1, 2])
    account = Account(topic="orders", partition=0, streams=("orders",), ends={SOURCE: 100}, rows=tally(left))
    metadata = {**state.metadata, "snapshots": [*state.metadata["snapshots"], {"snapshot-id": 9}]}
    live = LiveFiles.__new__(LiveFiles)
    live.state = TableState(metadata)
    with audited.ports() as ports:
        _known_removals(replace(ports, known=known), live, {("orders", 0): account})
    assert list(account.taken) == [1]
    assert known.taken == {("orders", 0): {7: BitMap64([1])}}


def test_damage_that_is_known_is_not_read_for_again_and_a_further_loss_is_new() -> None:
    audited = Audited()
    audited.look()
    lost = drop(audited, operation="replace")
    with capture_logs():
        first = audited.look()
    assert first.missing == lost
    audited.store.keys.clear()
    with capture_logs() as logs:
        again = audited.look()
    assert (again.findings, again.missing) == (first.findings, lost)
    assert (audited.store.keys, again.read) == ([], 0)
    assert [entry["log_level"] for entry in logs] == ["debug"]
    # The log forgets the records: it stays found.
    audited.topic.starts[0] = len(audited.topic.logs[0])
    again = audited.look()
    assert (again.findings, again.missing, again.read) == (first.findings, lost, 0)
    audited.topic.starts[0] = 0
    more = drop(audited, operation="replace", number=1)
    with capture_logs() as logs:
        found = audited.look()
    assert found.missing == lost + more
    assert found.findings != first.findings
    assert [entry["log_level"] for entry in logs] == ["error", "debug"]


def test_a_lost_file_is_found_when_all_files_are_read_again() -> None:
    audited = Audited()
    audited.look()
    path = audited.lake.files()[0].data_file.file_path
    del audited.lake.store._objects[path.removeprefix(f"s3://{BUCKET}/")]
    assert audited.look().findings == ()
    audited.lake.clock.now_s += ALL_FILES_S / 2
    assert audited.look().findings == ()
    audited.lake.clock.now_s += ALL_FILES_S / 2
    with capture_logs():
        found = audited.look()
    assert any("is not in the store" in text for text in found.findings), found.findings


@pytest.mark.parametrize("first", [True, False])
def test_a_file_that_is_merged_and_reaped_while_all_files_are_read_is_no_damage(first: bool) -> None:
    """The first and the daily audit read for long; by the end, another file has the rows."""
    audited = Audited()
    if not first:
        audited.look()
        audited.lake.clock.now_s += ALL_FILES_S
    old = audited.lake.files()[0].data_file
    state = audited.lake.table()
    writer = audited.ingestor.files.writer(state)
    (encoded,) = writer.merge([written(old)])
    (merged,) = writer.put([encoded])
    change = Foreign(state.uuid, (merged,), (written(old),))

    def reaped(key: str) -> Any:
        if old.file_path.endswith(key) and audited.store.hook is not None:
            audited.store.hook = None
            Committer(audited.lake.local, audited.ingestor.table, ports=audited.lake.context().ports).commit(
                change, writer
            )
            del audited.lake.store._objects[key]

    audited.store.hook = reaped
    with capture_logs() as logs:
        found = audited.look()
    assert audited.store.hook is None
    assert (found.findings, found.missing) == ((), 0)
    assert [entry for entry in logs if entry["log_level"] == "error"] == []
    assert found.snapshot_id == audited.lake.table().head_id
    assert found.whole_at_ms == found.at_ms


def test_a_recreated_table_is_read_again() -> None:
    audited = Audited()
    audited.look()
    audited.lake.local.drop(audited.ingestor.table)
    audited.lake.work(audited.lake.ingestor())
    audited.store.keys.clear()
    found = audited.look()
    assert found.findings == ()
    assert found.read >= found.files


def test_what_fails_is_shown_counted_and_tried_again() -> None:
    audited = Audited()
    audited.store.away = True
    with capture_logs() as logs:
        audited.look()
        found = audited.look()
    assert (found.failures, found.at_ms) == (2, 0)
    assert "does not answer" in found.reason
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert metrics(audited.lake.registry) == {"failures_total": 2}
    audited.store.away = False
    found = audited.look()
    assert (found.failures, found.reason, found.findings) == (2, "", ())


def test_a_defect_ends_one_audit_only(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(audit_schedule, "audit", broken)
    with capture_logs() as logs:
        found = audited.look()
    assert "a defect of Tarn" in found.reason
    assert [entry["log_level"] for entry in logs] == ["error", "warning"]


def test_a_table_that_cannot_be_audited_says_why_and_is_counted() -> None:
    audited = Audited()
    registry = StatusRegistry()
    schedule = audited.made(registry)
    schedule.look("ops.dead_letters")
    found = registry.audits()["ops.dead_letters"]
    assert (found.failures, found.at_ms) == (1, 0)
    assert "no stream" in found.reason


def test_a_table_that_cannot_be_audited_any_more_shows_no_earlier_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audited = Audited()
    assert audited.look().to_json()["whole"] is True
    monkeypatch.setattr(audit_schedule, "FILES_MAX", 1)
    audited.look()
    found = audited.look()
    assert (found.at_ms, found.whole_at_ms, found.snapshot_id, found.failures) == (0, 0, None, 2)
    assert found.to_json()["whole"] is None
    assert metrics(audited.lake.registry) == {"failures_total": 2}
    assert "run scripts/tarn audit bronze.orders" in found.reason


def test_a_failure_leaves_open_whether_the_table_is_still_whole() -> None:
    audited = Audited()
    audited.look()
    audited.store.away = True
    with capture_logs():
        found = audited.look()
    assert found.at_ms > 0
    assert found.to_json()["whole"] is None


def test_a_table_that_was_dropped_or_is_not_ingested_any_more_is_not_shown() -> None:
    audited = Audited()
    audited.look()
    audited.lake.registry.update_audit("bronze.former", at_ms=1)
    audited.lake.local.drop(audited.ingestor.table)
    audited.schedule.look(TABLE)
    assert TABLE not in audited.lake.registry.audits()
    audited.lake.stop = False
    looks = [0]

    def sleep(seconds: float) -> None:
        looks[0] += 1
        if looks[0] == 2:
            raise StoppedError

    audited.schedule._sleep = sleep
    audited.schedule.run()
    assert audited.lake.registry.audits() == {}


def test_it_rests_nine_times_as_long_as_it_reads() -> None:
    audited = Audited()
    audited.rests.clear()
    found = audited.look()
    files = [rest for rest in audited.rests if rest > 1]  # and a little after manifests
    assert len(files) == found.read
    assert all(4.5 <= rest <= 4.9 for rest in files), audited.rests


def test_it_rests_ten_seconds_at_most_however_long_a_file_takes() -> None:
    audited = Audited()
    audited.store.took_s = 60.0
    audited.rests.clear()
    assert audited.look().read == len([rest for rest in audited.rests if rest == 10.0])
    assert max(audited.rests) == 10.0


def test_a_table_of_too_many_files_is_left_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()
    monkeypatch.setattr(audit_schedule, "FILES_MAX", 1)
    found = audited.look()
    assert "run scripts/tarn audit bronze.orders" in found.reason
    assert audited.store.keys == []


def test_the_limit_holds_for_a_table_whose_summary_has_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()
    audited.send(*[order(n) for n in range(20, 30)])
    edit_head(audited.lake, operation="append", without="total-data-files")
    assert audited.lake.table().total("data-files") is None
    files = len(audited.lake.files())
    monkeypatch.setattr(audit_schedule, "FILES_MAX", files - 1)
    audited.store.keys.clear()
    found = audited.look()
    assert f"has more than {files - 1} data and delete files" in found.reason
    assert "run scripts/tarn audit bronze.orders" in found.reason
    assert audited.store.keys == [], "no data file is read"
    monkeypatch.setattr(audit_schedule, "FILES_MAX", files)
    assert audited.look().reason == ""


def test_the_limit_holds_for_the_dead_letter_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()
    for _ in range(4):
        audited.send(b"junk")
    letters, files = len(audited.lake.files("ops.dead_letters")), len(audited.lake.files())
    assert letters > files
    monkeypatch.setattr(audit_schedule, "FILES_MAX", letters - 1)
    audited.store.keys.clear()
    found = audited.look()
    assert found.reason == (
        f"ops.dead_letters has more than {letters - 1} data and delete files, the limit here: run "
        "scripts/tarn audit bronze.orders, or compact ops.dead_letters"
    )
    monkeypatch.setattr(audit_schedule, "FILES_MAX", letters)
    assert audited.look().reason == ""


def test_no_manifest_is_looked_into_once_there_are_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()
    for n in range(3):
        audited.send(*[order(20 + 10 * n + m) for m in range(10)])
    edit_head(audited.lake, operation="append", without="total-data-files")
    monkeypatch.setattr(audit_schedule, "FILES_MAX", 1)
    looked: list[int] = []
    entries = manifest_audit.file_entries

    def seen(data: bytes, **options: Any) -> Any:
        looked.append(len(entries(data, **options)))
        return entries(data, **options)

    monkeypatch.setattr(manifest_audit, "file_entries", seen)
    audited.look()
    assert sum(looked[:-1]) <= 1 < sum(looked)


def test_it_rests_after_reading_manifests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()
    audited.look()
    entries = manifest_audit.file_entries

    def slow(data: bytes, **options: Any) -> Any:
        audited.lake.clock.now_s += 0.3
        return entries(data, **options)

    monkeypatch.setattr(manifest_audit, "file_entries", slow)
    audited.rests.clear()
    assert audited.look().read == 0
    assert audited.rests
    assert all(rest >= 2.7 for rest in audited.rests), audited.rests


def test_what_does_not_fit_into_memory_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()
    monkeypatch.setattr(audit_memory, "BYTES_MAX", audit_memory.OVERHEAD_BYTES * 2)
    first = audited.look()
    assert audited.schedule._tables[TABLE].memory.files == 1
    second = audited.look()
    assert (second.read, second.findings) == (first.read - 1, ())


def test_files_that_no_audit_asks_for_any_more_are_forgotten() -> None:
    memory = audit_memory.AuditMemory()
    origins = Origins(rows={("orders", 0): tally(range(10))}, deleted={})
    for path in ("a", "b"):
        assert memory.get(path) is None
        memory.put(path, audit_memory._Rows(audit_memory._levels(origins.rows), 0))
    memory.sweep()
    size = memory._bytes
    assert memory.get("b") is not None
    memory.sweep()
    assert (memory.files, memory._bytes) == (1, size // 2)
    assert memory.get("a") is None


def tally(offsets: Iterable[int]) -> Tally:
    found = Tally()
    found.add(BitMap64(offsets))
    return found


def test_it_runs_each_table_at_the_interval_until_the_process_stops() -> None:
    audited = Audited()
    looked: list[float] = []

    def look(table: str) -> None:
        looked.append(audited.lake.clock.now_s)
        audited.lake.stop = len(looked) == 3

    audited.schedule.look = look  # type: ignore[method-assign]
    assert audited.schedule.tables() == [TABLE]
    began_s = audited.lake.clock.now_s
    audited.schedule.run()
    assert [round((at - began_s) / EVERY_S) for at in looked] == [1, 2, 3]


def test_the_log_is_asked_once_about_an_offset_without_a_record() -> None:
    audited = Audited()
    asked: list[int] = []
    opened = audited.lake.sources.open

    def watched(topic: str, *, stream: str) -> Any:
        reader = opened(topic, stream=stream)
        seek = reader.seek

        def seen(positions: Any) -> None:
            asked.append(positions[0])
            seek(positions)

        reader.seek = seen  # type: ignore[method-assign]
        return reader

    audited.lake.sources.open = watched  # type: ignore[method-assign]
    assert audited.look().unknown == 0
    assert asked == [6]
    assert audited.look().unknown == 0
    assert asked == [6]


class Deleting:
    """An `OriginReader` of one file, of which a delete file removes rows later."""

    def __init__(self) -> None:
        self.reads = 0

    def rows(self, file: FileEntry, deleted: BitMap64) -> Origins:
        self.reads += 1
        left = BitMap64(range(10)) - deleted
        return Origins(rows={("orders", 0): tally(left)}, deleted={("orders", 0): deleted})

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_a_file_with_deleted_rows_is_read_each_time() -> None:
    reader = Deleting()
    origins = audit_memory.RememberingOrigins(
        reader, audit_memory.AuditMemory(), rest=lambda _s: None, now_s=lambda: 0.0
    )
    file = FileEntry("s3://tarn/a.parquet", 1, 10)
    one, two, none = BitMap64([3]), BitMap64([3, 4]), BitMap64()
    for deleted, reads in ((one, 1), (one, 2), (none, 3), (none, 3), (two, 4), (none, 4)):
        found = origins.rows(file, deleted)
        assert found is not None
        assert found.rows["orders", 0].rows == 10 - len(deleted)
        assert reader.reads == reads
