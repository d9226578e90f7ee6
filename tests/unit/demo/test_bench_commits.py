"""What the benchmark of commits lays, counts and requires, on contenders made for the test."""

from __future__ import annotations

import gc
import itertools
import json
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from tarn.adapters.files import encode_rows
from tarn.adapters.store import MemoryStore
from tarn.adapters.write_schema import create_request, layout_of
from tarn.core.errors import DataError, UnavailableError
from tarn.core.object_store import StoreRefusedError
from tarn.core.table_state import TableState
from tarn_demo.bench.commits import measure, parts, readers
from tarn_demo.bench.commits.delta import facts_of, like
from tarn_demo.bench.commits.measure import Cell, Tally, by_depth, contend, shares, tallied, wrong_rows
from tarn_demo.bench.commits.ours import FIELDS
from tarn_demo.bench.commits.places import ROWS, Appended, Facts, Named, Places, rows_of
from tarn_demo.bench.commits.pyiceberg_peer import PACE_MS, laid, overtaken

SCHEMA = {"type": "struct", "schema-id": 0, "fields": []}


class Table:
    """A contender in memory that refuses, loses or doubles what the test says.

    Args:
        name: its name.
        refuse: whether the append of this number, from 0, is refused.
        on_tarn: whether a lost row ends the benchmark.
        kept: number of copies that the append of this number leaves behind.
    """

    def __init__(
        self,
        name: str = "mine",
        *,
        on_tarn: bool = True,
        refuse: Callable[[int], bool] = lambda _n: False,
        kept: Callable[[int], int] = lambda _n: 1,
    ) -> None:
        self.name = name
        self.on_tarn = on_tarn
        self._refuse, self._kept = refuse, kept
        self._lock = threading.Lock()
        self.calls = itertools.count()
        self.tables: dict[str, int] = {}
        self.files = 0
        self.laid: list[tuple[str, int]] = []
        self.order: list[str] = []

    def create(self, table: str) -> None:
        self.tables[table] = 0

    def lay(self, table: str, commits: int) -> None:
        self.laid.append((table, commits))
        self.tables[table] = commits * ROWS

    def open(self, table: str, writer: int, writers: int) -> TableWriter:
        return TableWriter(self, table)

    def facts(self, table: str) -> Facts:
        return Facts(snapshots=3, metadata_bytes=99, metadata_files=self.files)

    def rows(self, table: str) -> int:
        return self.tables[table]

    def append(self, table: str, rows: pa.Table) -> Appended:
        with self._lock:
            number = next(self.calls)
            self.files += 1
            if self._refuse(number):
                return Appended(acked=False, refused=1)
            self.tables[table] += self._kept(number) * rows.num_rows
            return Appended(acked=True)


class TableWriter:
    def __init__(self, contender: Table, table: str) -> None:
        self._contender, self._table = contender, table

    def append(self, rows: pa.Table) -> Appended:
        self._contender.order.append(self._contender.name)
        return self._contender.append(self._table, rows)


def test_rows_are_a_thousand_of_the_columns_that_the_committer_writes() -> None:
    state = TableState(
        {
            **{"table-uuid": "u", "location": "s3://tarn/t", "format-version": 2},
            "schemas": [create_request(FIELDS, trace=False)["schema"]],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
        }
    )
    layout = layout_of(state, FIELDS, trace=False, table="t")
    rows = rows_of(3)
    (file,) = encode_rows(layout, state.root, rows, new_name=lambda: "name")
    assert file.file.records == ROWS == rows.num_rows
    assert rows.column("id").to_pylist() == list(range(3_000, 4_000))
    assert rows != rows_of(4)


@pytest.mark.parametrize(
    ("commits", "rounds", "found"), [(50, 5, [10] * 5), (7, 3, [3, 2, 2]), (2, 5, [1, 1]), (1, 1, [1])]
)
def test_the_commits_are_divided_into_rounds(commits: int, rounds: int, found: list[int]) -> None:
    assert shares(commits, rounds) == found
    assert sum(found) == commits


@pytest.mark.long
def test_the_contenders_take_turns_and_another_one_begins_each_round() -> None:
    order: list[str] = []
    both = [Table("a"), Table("b")]
    for one in both:
        one.order = order
    results, failed = by_depth(both, 200, commits=4, rounds=2, cell_s_max=60.0, say=lambda _text: None)
    warm_up = ["a", "a", "b", "b"]
    assert order == [*warm_up, "a", "a", "b", "b", "b", "b", "a", "a"]
    assert [one.laid for one in both] == [[("depth_200", 200)]] * 2
    assert failed == {}
    assert [(r["contender"], r["depth"], r["snapshots"], r["metadata_bytes"]) for r in results] == [
        ("a", 200, 3, 99),
        ("b", 200, 3, 99),
    ]
    assert [[len(one) for one in r["times_ms"]] for r in results] == [[2, 2], [2, 2]]


@pytest.mark.long
def test_a_slow_contender_gets_no_further_round_and_is_not_left_out() -> None:
    results, failed = by_depth([Table()], 0, commits=9, rounds=3, cell_s_max=0.0, say=lambda _text: None)
    assert [len(one) for one in results[0]["times_ms"]] == [1]
    assert failed == {}


@pytest.mark.long
def test_a_round_ends_in_the_middle_when_the_time_of_the_contender_is_over() -> None:
    now = itertools.count()
    cell = Cell(contender=Table(), depth=0)
    cell.prepare(lambda _text: None)
    cell.round(4, seconds_max=2.0, clock=lambda: float(next(now)))
    assert cell.times_ms == [[1_000.0, 1_000.0]]


def test_a_warm_up_that_takes_long_is_one_commit() -> None:
    table, now = Table(), itertools.count(0, 6)
    Cell(contender=table, depth=0).prepare(lambda _text: None, clock=lambda: float(next(now)))
    assert next(table.calls) == 1


@pytest.mark.long
def test_one_that_fails_is_left_out_with_its_reason_and_the_others_are_measured() -> None:
    class Broken(Table):
        def lay(self, table: str, commits: int) -> None:
            raise ValueError("no\nsuch thing")

    results, failed = by_depth(
        [Broken("broken"), Table("good")], 0, commits=2, rounds=1, cell_s_max=9.0, say=lambda _text: None
    )
    assert [one["contender"] for one in results] == ["good"]
    assert failed == {"broken": "ValueError: no such thing"}


@pytest.mark.long
def test_the_time_of_a_refused_append_goes_on_until_it_is_acknowledged() -> None:
    now = itertools.count()
    table = Table(refuse=lambda number: number in (2, 3))
    cell = Cell(contender=table, depth=0)
    cell.prepare(lambda _text: None)
    cell.round(2, seconds_max=9.0, clock=lambda: float(next(now)))
    assert cell.times_ms == [[1_000.0, 1_000.0]]
    assert next(table.calls) == 2 + 2 + 2, "two to warm up, two refused, two timed"


@pytest.mark.long
def test_an_aged_table_takes_turns_with_new_ones() -> None:
    table, appended = Table(), []
    table.lay("depth_9", 9)
    count = table.append
    table.append = lambda name, rows: appended.append(name) or count(name, rows)  # type: ignore[method-assign]
    now = itertools.count()
    found = measure.aging(table, 9, commits=4, rounds=2, clock=lambda: float(next(now)))
    assert found == {"depth": 9, **{name: [[1_000.0] * 2] * 2 for name in ("young_ms", "aged_ms")}}
    timed = [["young_0"] * 2 + ["depth_9", "young_0"] + ["young_0", "depth_9"]]
    timed += [["young_1"] * 2 + ["depth_9", "young_1"] + ["young_1", "depth_9"]]
    assert appended == ["depth_9", *timed[0], *timed[1]]
    assert ("young_1", 0) in table.laid


def test_many_writers_are_summed_and_the_slowest_is_named() -> None:
    tallies = [
        Tally(acked=4, refused=1, conflicts=5),
        Tally(acked=9, unknown=1, error="gone"),
        Tally(acked=6, refused=2),
    ]
    assert tallied(tallies, 2.0) == {
        **{"seconds": 2.0, "acked": 19, "slowest": 4, "fastest": 9, "refused": 3, "unknown": 1},
        "conflicts": 5,
        "errors": ["gone"],
    }


@pytest.mark.parametrize(
    ("rows", "unknown", "wrong"), [(5, 0, 0), (4, 0, -1), (6, 0, 1), (6, 1, 0), (4, 1, -1), (7, 1, 1)]
)
def test_every_acknowledged_append_is_there_once(rows: int, unknown: int, wrong: int) -> None:
    assert wrong_rows(rows * ROWS, acked=5, unknown=unknown) == wrong * ROWS


def own_time() -> Callable[[], float]:
    """A clock of each thread by itself, which goes on by 10 ms with each look: all have the same time."""
    mine = threading.local()

    def clock() -> float:
        mine.now_s = getattr(mine, "now_s", 0.0) + 0.01
        return float(mine.now_s)

    return clock


@pytest.mark.long
def test_writers_of_one_table_are_counted_and_what_they_wrote_is_looked_at() -> None:
    table = Table(refuse=lambda number: number % 3 == 2)
    found = contend(table, "t", 3, seconds=0.2, clock=own_time())
    assert found["writers"] == 3
    assert found["acked"] * ROWS == found["rows"] > 0
    assert found["refused"] > 0
    assert found["metadata_files"] == found["acked"] + found["refused"]
    assert 0 < found["slowest"] <= found["fastest"] <= found["acked"]


def test_the_writers_begin_on_a_table_with_one_commit_that_does_not_count() -> None:
    table = Table(refuse=lambda number: number == 0)
    found = contend(table, "t", 1, seconds=0.2, clock=own_time())
    assert table.tables["t"] == found["rows"] + ROWS
    assert found["refused"] == 0, "the first commit is repeated until it is there"


@pytest.mark.long
@pytest.mark.parametrize("copies", [0, 2])
def test_a_lost_or_doubled_append_ends_the_benchmark(copies: int) -> None:
    with pytest.raises(DataError, match="something was lost or doubled"):
        contend(
            Table(kept=lambda number: copies if number == 1 else 1), "t", 2, seconds=0.2, clock=own_time()
        )


@pytest.mark.long
def test_what_others_lose_is_a_result() -> None:
    found = contend(
        Table(on_tarn=False, kept=lambda number: int(number != 1)), "t", 2, seconds=0.2, clock=own_time()
    )
    assert found["wrong_rows"] == -ROWS
    assert Named("py", Table(on_tarn=False)).on_tarn is False


def test_repeats_of_pyiceberg_are_counted_for_the_thread_that_made_them() -> None:
    logger = logging.getLogger("pyiceberg.table")
    with overtaken() as mine:
        logger.warning("Commit failed due to a concurrent update, retrying (%s/%s) in %s ms", 1, 4, 100)
        logger.warning("something else")
        other = threading.Thread(target=lambda: logger.warning("a concurrent update of another thread"))
        other.start()
        other.join()
    assert mine == ["Commit failed due to a concurrent update, retrying (1/4) in 100 ms"]
    logger.warning("a concurrent update outside of an append")
    assert len(mine) == 1


@pytest.mark.long
def test_a_writer_that_dies_is_reported_and_its_append_is_unknown() -> None:
    def refuse(number: int) -> bool:
        if number == 1:
            raise RuntimeError("cut off")
        return False

    found = contend(Table(refuse=refuse), "t", 2, seconds=0.2, clock=own_time())
    assert found["errors"] == ["RuntimeError: cut off"]
    assert found["unknown"] == 1


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("warehouse/a/t-1/data/day=3/x.parquet", parts.DATA),
        ("warehouse/a/t-1/metadata/snap-7-x.avro", parts.LIST),
        ("warehouse/a/t-1/metadata/x-m0.avro", parts.MANIFEST),
    ],
)
def test_each_write_of_a_commit_is_a_part_of_its_own(key: str, kind: str) -> None:
    timeline = parts.Timeline()
    store = parts.TimedStore(MemoryStore(), timeline)
    etag = store.put(key, b"1", if_absent=True)
    assert set(timeline.spans) == {kind}
    stored = store.get(key)
    assert stored is not None
    assert (stored.data, stored.etag) == (b"1", etag)
    with pytest.raises(StoreRefusedError):
        store.put(key, b"2", if_absent=True)


def test_parts_are_medians_in_the_order_of_their_begin() -> None:
    appends = [
        {parts.WHOLE: (10.0, 10.0 + n / 10), parts.DATA: (10.002, 10.002 + n / 100)} for n in (1, 2, 9)
    ]
    appends[0][parts.LIST] = (10.001, 10.5)
    assert [tuple(one.values()) for one in parts.summed_up(appends)] == [
        (parts.WHOLE, 3, 0.0, 200.0),
        (parts.LIST, 1, 1.0, 499.0),
        (parts.DATA, 3, 2.0, 20.0),
    ]


def test_a_prefix_keeps_two_contenders_of_one_catalog_apart() -> None:
    inner = Table()
    named = Named("py", inner)
    named.lay("depth_0", 5)
    named.open("depth_0", 0, 1).append(rows_of(0))
    assert inner.laid == [("py_depth_0", 5)]
    assert named.rows("depth_0") == 6 * ROWS
    assert named.name == "mine"
    assert named.facts("depth_0").snapshots == 3


def first_metadata() -> dict[str, Any]:
    snapshot = {
        **{"snapshot-id": 7, "sequence-number": 1, "timestamp-ms": 1, "schema-id": 0},
        "manifest-list": "s3://tarn/warehouse/t/metadata/snap-7.avro",
        "summary": {"operation": "append", "added-files-size": "50", "total-records": "1000"},
    }
    return {
        **{
            "format-version": 2,
            "table-uuid": "7fd5bd29-fb3c-4a48-8c79-30aca5b3d3cd",
            "location": "s3://tarn/warehouse/t",
        },
        **{"last-sequence-number": 1, "last-updated-ms": 1, "last-column-id": 0, "current-schema-id": 0},
        **{"schemas": [SCHEMA], "default-spec-id": 0, "partition-specs": [{"spec-id": 0, "fields": []}]},
        **{
            "last-partition-id": 999,
            "default-sort-order-id": 0,
            "sort-orders": [{"order-id": 0, "fields": []}],
        },
        **{
            "current-snapshot-id": 7,
            "snapshots": [snapshot],
            "refs": {"main": {"snapshot-id": 7, "type": "branch"}},
        },
    }


def test_a_laid_history_is_that_of_single_appends_once_a_second() -> None:
    found = laid(first_metadata(), [11, 12, 13], "s3://tarn/warehouse/t/metadata/list.avro", 1_000_000)
    metadata = TableMetadataUtil.parse_obj(found)
    assert [s.snapshot_id for s in metadata.snapshots] == [11, 12, 13]
    assert [s.parent_snapshot_id for s in metadata.snapshots] == [None, 11, 12]
    assert [s.sequence_number for s in metadata.snapshots] == [1, 2, 3]
    assert [s.timestamp_ms for s in metadata.snapshots] == [
        1_000_000 - 2 * PACE_MS,
        1_000_000 - PACE_MS,
        1_000_000,
    ]
    assert metadata.snapshots[2].summary is not None
    assert metadata.snapshots[2].summary["total-records"] == "3000"
    assert metadata.snapshots[2].summary["total-files-size"] == "150"
    assert metadata.current_snapshot_id == 13
    assert metadata.refs["main"].snapshot_id == 13
    assert metadata.snapshots[2].manifest_list == "s3://tarn/warehouse/t/metadata/list.avro"
    assert len({s.manifest_list for s in metadata.snapshots}) == 3
    assert metadata.last_sequence_number == 3


def test_a_laid_log_entry_adds_a_file_of_its_own() -> None:
    entry = '{"commitInfo":{"a":1}}\n{"add":{"path":"part-0.parquet","size":9}}\n'
    first, second = like(entry, 2), like(entry, 3)
    rows = [json.loads(row) for row in first.splitlines()]
    assert rows == [{"commitInfo": {"a": 1}}, {"add": {"path": "laid-00002.parquet", "size": 9}}]
    assert first != second


def test_a_delta_log_is_read_from_its_newest_checkpoint_on() -> None:
    folder = "tarn/warehouse/delta/bench/t/_delta_log"
    sizes = {f"{folder}/{number:020}.json": 100 for number in range(5)}
    sizes |= {f"{folder}/{2:020}.checkpoint.parquet": 1_000, f"{folder}/{1:020}.checkpoint.parquet": 5_000}
    sizes[f"{folder}/_last_checkpoint"] = 7
    assert facts_of(sizes) == Facts(snapshots=5, metadata_bytes=1_200, metadata_files=5)
    assert facts_of({}) == Facts(snapshots=0, metadata_bytes=0, metadata_files=0)


def test_the_places_are_what_the_file_says() -> None:
    names = ("bucket", "region", "endpoint", "catalog", "warehouse", "credential", "reference", "nessie")
    value = {name: name for name in names} | {
        "folder": "/tmp/x",
        "client": {"access": "a", "secret": "b"},
        "root": {"access": "c", "secret": "d"},
    }
    places = Places.of(value)
    assert (places.client.access, places.root.secret, places.nessie) == ("a", "d", "nessie")
    assert places.folder.name == "x"


@contextmanager
def answering(status: int, came: list[float] | None = None) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if came is not None:
                came.append(time.perf_counter())
            self.send_response(status)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.long
def test_paced_loads_are_as_many_as_the_pace_allows() -> None:
    with answering(200) as uri:
        found = readers.loads(uri, "/v1/t", {}, seconds=0.4, paused_s=0.2)
    assert found["loads"] <= 2 * readers.CLIENTS
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert found["per_s"] == found["loads"] / 0.4


@pytest.mark.long
def test_a_load_that_is_refused_ends_the_benchmark() -> None:
    with answering(503) as uri, pytest.raises(UnavailableError, match="/v1/t answered 503"):
        readers.loads(uri, "/v1/t", {}, seconds=0.2, paused_s=0.1)


@pytest.mark.long
def test_paced_clients_begin_one_after_the_other() -> None:
    gaps: list[float] = []
    # A busy machine may delay some of them, and hardly so in each of several rounds.
    for _ in range(5):
        came: list[float] = []
        with answering(200, came) as uri:
            readers.loads(uri, "/v1/t", {}, seconds=0.5, paused_s=0.5)
        assert len(came) == readers.CLIENTS
        gaps.append(statistics.median(after - before for before, after in itertools.pairwise(sorted(came))))
        if gaps[-1] == pytest.approx(0.05, rel=0.5):
            return
    pytest.fail(f"{gaps}")


@pytest.mark.long
def test_readers_are_a_process_of_their_own_and_each_round_counts() -> None:
    with answering(200) as uri:
        found = readers.loads_apart(uri, "/v1/t", {"X-Y": "z"}, seconds=0.2, paused_s=0.1, rounds=3)
    assert found["loads"] <= 3 * 2 * readers.CLIENTS
    assert found["p99_ms"] == sorted(found["p99_rounds_ms"])[1]
    assert len(found["late_p99_rounds_ms"]) == 3


@pytest.mark.long
def test_what_a_reader_is_refused_with_ends_the_benchmark_from_its_process_too() -> None:
    with answering(503) as uri, pytest.raises(UnavailableError, match=r"^loads of .*/v1/t answered 503"):
        readers.loads_apart(uri, "/v1/t", {}, seconds=0.2, paused_s=0.1, rounds=1)


def test_rounds_of_loads_have_the_median_of_each_figure() -> None:
    rounds = [
        {"loads": 1_000, "per_s": 200.0, "p50_ms": p50, "p99_ms": p99, "late_p99_ms": late}
        for p50, p99, late in ((2.0, 9.0, 0.3), (1.0, 60.0, 55.0), (3.0, 8.0, 0.2))
    ]
    assert readers.summed_up(rounds) == {
        **{"loads": 3_000, "per_s": 200.0, "p50_ms": 2.0, "p99_ms": 9.0},
        **{"p99_rounds_ms": [9.0, 60.0, 8.0], "late_p99_rounds_ms": [0.3, 55.0, 0.2]},
    }
    assert readers.summed_up(rounds[:2])["p99_ms"] == 34.5, "between the two"


@pytest.mark.long
def test_what_a_process_holds_is_in_no_collection_of_a_timed_round() -> None:
    frozen: list[int] = []

    class Watched(Table):
        def note(self, number: int) -> bool:
            frozen.append(gc.get_freeze_count())
            return False

    watched = Watched()
    watched._refuse = watched.note
    before = gc.get_freeze_count()
    cell = Cell(contender=watched, depth=0)
    cell.prepare(lambda _text: None)
    warm = len(frozen)
    cell.round(2, seconds_max=60)
    assert all(count <= before for count in frozen[:warm])
    assert all(count > before + 1_000 for count in frozen[warm:])
    assert len(frozen[warm:]) == 2
    assert gc.get_freeze_count() <= before
