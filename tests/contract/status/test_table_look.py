"""Looks into a table: its snapshots, files and objects by pages, and what is said when nobody answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntryStatus, write_manifest
from pyiceberg.manifest import ManifestEntry as ManifestEntryOf
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from tarn.adapters import manifest_audit
from tarn.core.audit.model import FileEntry, ManifestEntry
from tarn.core.errors import NoSuchTableError, UnavailableError
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState
from tarn.ingest.status_api import app
from tarn.ingest.table_look import MANIFEST_BYTES_MAX, MANIFESTS_MAX, TableLook, shown_path, type_text
from tarn.testing.memory_topic import Topic
from tests.support.lake import TABLE, Lake, foreign_snapshot, order, spec
from tests.support.status_api import Client, LakeTables, into, look_of, now_of, served

BATCHES = 4
AT = f"/v1/tables/{TABLE}"


def lake_of(batches: int = BATCHES, **options: Any) -> Lake:
    """A lake whose table has one snapshot and one file per batch."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor(spec(**options))
    for number in range(batches):
        topic.send(0, order(number), order(number + 100))
        lake.work(ingestor, turns=40)
    return lake


@contextmanager
def shown(lake: Lake, tables: LakeTables | None = None, **options: Any) -> Iterator[Client]:
    look = look_of(lake, LakeTables(lake, TABLE))
    look.look()
    tables = tables or LakeTables(lake)
    with served(
        lake.registry, lake=look.seen, now_ms=now_of(lake), look=into(lake, tables, **options)
    ) as one:
        yield one


def pages(client: Client, path: str, key: str, limit: int) -> list[Any]:
    """All entries of a list, read in pages."""
    found: list[Any] = []
    after: str | None = None
    for _ in range(100):
        page = client.get(f"{path}?limit={limit}" + (f"&after={after}" if after else ""))
        assert len(page[key]) <= limit
        found += page[key]
        after = page["next"]
        if after is None:
            return found
    raise AssertionError(f"{path} does not end")


def test_the_snapshots_are_those_of_the_table_newest_first() -> None:
    lake = lake_of()
    state = lake.table()
    with shown(lake) as client:
        page = client.get(f"{AT}/snapshots")
        assert (page["total"], page["next"], page["table"]) == (BATCHES + 1, None, TABLE)
        ids = [str(one["snapshot-id"]) for one in state.ancestors()]
        assert [one["snapshotId"] for one in page["snapshots"]] == ids
        assert [one["parentId"] for one in page["snapshots"]] == [*ids[1:], None]
        assert [one["rows"] for one in page["snapshots"]] == [8, 6, 4, 2, 0]
        made = [(one["addedRows"], one["addedFiles"], one["commits"]) for one in page["snapshots"]]
        assert made == [(2, 1, 1)] * BATCHES + [(0, 0, 1)], "the first one holds the start alone"
        assert {one["operation"] for one in page["snapshots"]} == {"append"}
        assert [one["current"] for one in page["snapshots"]] == [True] + [False] * BATCHES
        assert "main" in page["snapshots"][0]["refs"]
        sizes = sorted(entry.data_file.file_size_in_bytes for entry in lake.files())
        assert sorted(one["addedBytes"] for one in page["snapshots"][:BATCHES]) == sizes


@pytest.mark.parametrize("limit", [1, 2, 4, 5])
def test_pages_of_snapshots_and_files_have_everything_once(limit: int) -> None:
    lake = lake_of()
    with shown(lake) as client:
        snapshots = pages(client, f"{AT}/snapshots", "snapshots", limit)
        assert [one["snapshotId"] for one in snapshots] == [
            str(one["snapshot-id"]) for one in lake.table().ancestors()
        ]
        files = pages(client, f"{AT}/files", "files", limit)
        whole = {entry.data_file.file_path: entry.data_file for entry in lake.files()}
        root = lake.table().root
        assert sorted(f"{root}/{one['path']}" for one in files) == sorted(whole)
        for one in files:
            entry = whole[f"{root}/{one['path']}"]
            assert (one["bytes"], one["rows"]) == (entry.file_size_in_bytes, entry.record_count)
            assert one["deletes"] is False
        assert {one["addedBy"] for one in files} == {one["snapshotId"] for one in snapshots[:BATCHES]}


def test_what_another_engine_wrote_is_unknown_where_it_does_not_say() -> None:
    lake = lake_of(1)
    assert foreign_snapshot(lake.local, TableName(("bronze",), "orders"), 2**62 + 1)
    with shown(lake) as client:
        first = client.get(f"{AT}/snapshots")["snapshots"][0]
        assert (first["snapshotId"], first["commits"], first["addedRows"]) == (str(2**62 + 1), 0, None)


@pytest.mark.parametrize("at_ms", [1_700_000_000_000_000, 2**63 - 1, -(2**63)])
def test_a_time_that_no_calendar_has_is_unknown_and_hides_no_other_table(at_ms: int) -> None:
    """A writer may send any number, such as microseconds, and the catalog takes it."""
    lake = lake_of(2)
    assert foreign_snapshot(lake.local, TableName(("bronze",), "orders"), 7, at_ms=at_ms)
    with shown(lake) as client:
        assert [one["lastCommitAt"] for one in client.get("/v1/tables")["tables"]] == [None]
        assert client.get(AT)["lastCommitAt"] is None
        found = pages(client, f"{AT}/snapshots", "snapshots", 1)
        assert len(found) == 4
        assert [one["snapshotId"] for one in found if one["at"] is None] == ["7"]
        client.get(f"{AT}/metadata")


def test_the_objects_are_those_that_make_the_table() -> None:
    lake = lake_of(partitioning='["day(at)"]')
    state = lake.table()
    head = state.head
    assert head is not None
    with shown(lake) as client:
        page = client.get(f"{AT}/metadata")
        assert (page["uuid"], page["formatVersion"], page["location"]) == (state.uuid, 2, state.root)
        assert f"{state.root}/{page['manifestList']}" == head["manifest-list"]
        assert page["manifestsTotal"] == len(page["manifests"]) > 0
        for one in page["manifests"]:
            assert len(lake.objects.read(f"{state.root}/{one['path']}")) == one["bytes"]
        assert page["earlierTotal"] == len(state.metadata["metadata-log"]) > 0
        newest = state.metadata["metadata-log"][-1]["metadata-file"]
        assert f"{state.root}/{page['earlier'][0]['path']}" == newest
        columns = {one["name"]: one for one in page["columns"]}
        assert (columns["id"]["type"], columns["id"]["required"]) == ("long", True)
        assert columns["_tarn"]["type"].startswith("struct<source: string, partition: int")
        assert page["partitioning"] == [{"name": "at_day", "transform": "day", "column": "at"}]
        assert {"name": "main", "kind": "branch", "snapshotId": str(state.head_id)} in page["refs"]


def test_a_table_without_a_snapshot_has_no_files_and_no_history() -> None:
    lake = lake_of(1)

    class Bare(LakeTables):
        def state(self, table: str) -> TableState:
            return TableState(
                super().state(table).metadata | {"snapshots": [], "refs": {}, "current-snapshot-id": -1}
            )

    with shown(lake, Bare(lake)) as client:
        assert client.get(f"{AT}/snapshots")["snapshots"] == []
        page = client.get(f"{AT}/files")
        assert (page["files"], page["snapshotId"], page["total"], page["next"]) == ([], None, None, None)
        page = client.get(f"{AT}/metadata")
        assert (page["manifestList"], page["manifests"], page["snapshotId"]) == (None, [], None)


def test_following_pages_are_of_the_snapshot_in_which_the_first_began() -> None:
    lake = lake_of(3)
    with shown(lake) as client:
        first = client.get(f"{AT}/files?limit=1")
        lake.sources.topics["orders"].send(0, order(9))
        lake.work(lake.ingestor(), turns=40)
        second = client.get(f"{AT}/files?limit=1000&after={first['next']}")
        assert second["snapshotId"] == first["snapshotId"]
        assert len(first["files"]) + len(second["files"]) == first["total"] == 3
        error = client.get(f"{AT}/files?after=12.0.0", 404)["error"]
        assert (error["field"], error["value"]) == ("after", "12.0.0")
        assert "begin again" in error["fix"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("snapshots?after=1", "after"),
        ("snapshots?after=1.2.x", "after"),
        ("files?after=1.2", "after"),
        ("files?after=%D9%A1.0.0", "after"),
        ("files?limit=0", "limit"),
        ("metadata?limit=1", "limit"),
    ],
)
def test_a_wrong_place_is_named(query: str, field: str) -> None:
    with shown(lake_of(1)) as client:
        assert client.get(f"{AT}/{query}", 400)["error"]["field"] == field


def test_a_table_that_was_not_seen_is_not_asked_for() -> None:
    lake = lake_of(1)
    tables = LakeTables(lake)
    with shown(lake, tables) as client:
        for what in ("snapshots", "files", "metadata"):
            assert client.get(f"/v1/tables/bronze.other/{what}", 404)["error"]["field"] == "table"
        assert tables.asked == []


def test_a_catalog_or_store_that_does_not_answer_is_said_to_be_away() -> None:
    lake = lake_of(1)
    tables = LakeTables(lake)
    tables.fault = UnavailableError("the catalog at http://catalog:8181 does not answer")

    def lost(location: str) -> bytes:
        raise UnavailableError(f"{location} is not in the store")

    with shown(lake, tables) as client:
        error = client.get(f"{AT}/snapshots", 503)["error"]
        assert (error["type"], error["message"]) == ("Unavailable", tables.fault.message)
        assert client.get(AT)["rows"] == 2, "what is in memory is shown as ever"
    with shown(lake, read=lost) as client:
        assert "is not in the store" in client.get(f"{AT}/files", 503)["error"]["message"]
        assert client.get(f"{AT}/snapshots")["total"] == 2
    with shown(lake, read=lambda _location: b"junk") as client:
        assert "manifest list" in client.get(f"{AT}/metadata", 503)["error"]["message"]
    tables.fault = NoSuchTableError("principal ingest may not read it")
    with shown(lake, tables) as client:
        client.get(f"{AT}/files", 404)
    with served(lake.registry) as client:
        client.get(f"{AT}/files", 503)


def test_looks_that_wait_hold_nobody_up_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LOOKS_WAITING_MAX", 3)
    lake = lake_of(1)
    entered, go = threading.Semaphore(0), threading.Event()

    class Hanging(LakeTables):
        def state(self, table: str) -> TableState:
            entered.release()
            go.wait(110)
            return super().state(table)

    answers: list[int] = []
    with ExitStack() as ending, shown(lake, Hanging(lake)) as client:

        def ask() -> None:
            answers.append(client.ask(f"{AT}/snapshots").status)

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
            ending.callback(thread.join, 30)
        ending.callback(go.set)
        for _ in range(app.LOOKS_AT_ONCE):
            assert entered.acquire(timeout=60)
        assert not entered.acquire(timeout=0.2), "no more than two ask the catalog at once"
        client.get("/v1/tables")
        error = client.get(f"{AT}/snapshots", 503)["error"]
        assert "3 requests look into tables already" in error["message"]
        go.set()
        for thread in asking:
            thread.join(30)
        assert answers == [200, 200, 200]


class Many:
    """A list of many manifests, each with some files; counts what is read."""

    def __init__(self, manifests: int, files: int, size: int = 100) -> None:
        self.manifests, self.files, self.size = manifests, files, size
        self.reads = 0
        self.decoded = 0

    def read(self, location: str) -> bytes:
        self.reads += 1
        return location.encode()

    def list_sequences(self, data: bytes) -> list[tuple[str, int, int]]:
        raise AssertionError("not asked for")

    def list_entries(self, data: bytes) -> list[tuple[ManifestEntry, int | None]]:
        return [(ManifestEntry(f"m{number}", self.size), 7) for number in range(self.manifests)]

    def file_entries(self, data: bytes, *, most: int | None = None, **_: Any) -> tuple[FileEntry, ...]:
        count = self.files if most is None else min(most, self.files)
        self.decoded += count
        return tuple(FileEntry(f"{data.decode()}/{number}", 1, 1) for number in range(count))


def test_a_request_reads_a_bounded_number_of_manifests_of_bounded_size() -> None:
    lake = lake_of(1)
    state = lake.table()

    def look(many: Many) -> TableLook:
        tables: Any = LakeTables(lake)
        return TableLook(tables, read=many.read, manifests=many, now_s=lambda: 0.0)

    empty = Many(MANIFESTS_MAX * 2 + 1, 0)
    page = look(empty).files(state, begin=None, limit=10)
    assert (page.files, empty.reads) == ([], MANIFESTS_MAX + 1)
    reads = 0
    while page.next is not None:
        page = look(empty).files(state, begin=page.next, limit=10)
        reads += 1
        assert reads <= 2, f"there is a page after the last one: {page.next}"
    assert reads == 2
    full = Many(200, 30)
    page = look(full).files(state, begin=None, limit=31)
    assert (len(page.files), full.reads) == (31, 3)
    assert page.next == (state.head_id, 1, 1)
    with pytest.raises(Exception, match=r"table\.files"):
        look(Many(1, 1, MANIFEST_BYTES_MAX + 1)).files(state, begin=None, limit=1)


def test_of_a_hundred_thousand_files_those_that_are_shown_are_decoded() -> None:
    """To decode them all takes two seconds of the process that commits."""
    lake = lake_of(1)
    tables: Any = LakeTables(lake)
    many = Many(1, 100_000)
    look = TableLook(tables, read=many.read, manifests=many, now_s=lambda: 0.0)
    page = look.files(lake.table(), begin=None, limit=25)
    assert (len(page.files), many.decoded) == (25, 26)
    page = look.files(lake.table(), begin=page.next, limit=25)
    assert ([one.path for one in page.files][:1], many.decoded) == (["m0/25"], 26 + 51)


def test_a_reader_of_manifests_stops_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    at = PyArrowFileIO().new_output(str(tmp_path / "m.avro"))
    with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, schema, at, 1, "deflate") as writer:
        for number in range(5):
            file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"s3://tarn/{number}.parquet",
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=1,
                file_size_in_bytes=1,
            )
            status = ManifestEntryStatus.ADDED
            writer.add_entry(ManifestEntryOf.from_args(status=status, snapshot_id=1, data_file=file))
    data = (tmp_path / "m.avro").read_bytes()
    made: list[int] = []
    entry = manifest_audit._entry
    monkeypatch.setattr(manifest_audit, "_entry", lambda *a: (made.append(1), entry(*a))[1])
    whole = manifest_audit.file_entries(data, added_snapshot_id=1, trace=None)
    assert len(whole) == len(made) == 5
    assert manifest_audit.file_entries(data, added_snapshot_id=1, trace=None, most=2) == whole[:2]
    assert len(made) == 5 + 2


def test_ten_thousand_snapshots_are_answered_in_bounded_time() -> None:
    lake = lake_of(1)
    state = lake.table()
    head = dict(state.head or {})
    kept = [
        {**head, "snapshot-id": number, "parent-snapshot-id": number - 1 or None, "sequence-number": number}
        for number in range(1, 10_001)
    ]
    main = {"main": {"type": "branch", "snapshot-id": 10_000}}
    metadata: Any = {**state.metadata, "snapshots": kept, "refs": main, "current-snapshot-id": 10_000}

    class Long(LakeTables):
        def state(self, table: str) -> TableState:
            return TableState(metadata, location=state.location)

    with shown(lake, Long(lake)) as client:
        began_s = time.process_time()
        page = client.get(f"{AT}/snapshots?limit=25")
        assert time.process_time() - began_s < 5.0
        assert (page["total"], len(page["snapshots"]), page["snapshots"][0]["snapshotId"]) == (
            10_000,
            25,
            "10000",
        )
        last = client.get(f"{AT}/snapshots?limit=25&after={page['next']}")
        assert last["snapshots"][0]["snapshotId"] == "9975"


def test_metadata_are_kept_for_two_seconds_and_for_few_tables() -> None:
    lake = lake_of(1)
    now_s = 0.0
    tables: Any = LakeTables(lake)
    look = TableLook(tables, read=lake.objects.read, manifests=manifest_audit, now_s=lambda: now_s)
    look.state(TABLE)
    now_s = 1.9
    look.state(TABLE)
    assert tables.asked == [TABLE]
    now_s = 2.0
    look.state(TABLE)
    assert tables.asked == [TABLE, TABLE]


def test_values_of_partitions_are_not_shown() -> None:
    root = "s3://tarn/bronze/orders"
    assert shown_path(f"{root}/data/name=Ann/day=2026-01-01/f=1.parquet", root) == (
        "data/name=\u2026/day=\u2026/f=1.parquet"
    )
    assert shown_path("s3://other/x=1/f", root) == "s3://other/x=\u2026/f"


def test_types_are_written_as_icebergs_documents_do_and_cut() -> None:
    element = {"type": "struct", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    assert type_text("decimal(9, 2)") == "decimal(9, 2)"
    assert type_text({"type": "list", "element": element}) == "list<struct<a: int, b: string>>"
    assert type_text({"type": "map", "key": "string", "value": "long"}) == "map<string, long>"
    wide = {"type": "struct", "fields": [{"name": f"f{n}", "type": "int"} for n in range(100)]}
    assert len(type_text(wide)) == 200
