"""The trail: every event once in the log, whatever the store does, and once in its table."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from structlog.testing import capture_logs

from tarn.adapters.store import FileStore, MemoryStore
from tarn.adapters.trail_topics import LIST_EVERY_S, TrailReader, TrailTopics
from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.errors import CorruptStateError
from tarn.core.object_store import ObjectStore
from tarn.core.source import NoSuchTopicError
from tarn.core.spec import clashes, parse_spec
from tarn.core.spec.table import PartitionRule
from tarn.core.trail import AUDIT, LINES_MAX, LOGS, METRICS, spec_text
from tarn.testing.memory_topic import MemoryTopicClient, Topic
from tarn_catalog.operations.trail import (
    ATTEMPTS_MAX,
    KEPT_MS,
    LINE_BYTES_MAX,
    REPORTS_MAX,
    SEGMENTS_MAX,
    TEXT_CHARS_MAX,
    TRIM_EVERY_S,
    WAITING_BYTES_MAX,
    Trail,
)
from tarn_catalog.testing.faulty_store import ANSWERS, Crash, Fault, FaultyStore, Op
from tests.contract.catalog.access_world import World, error, world
from tests.support.lake import Lake
from tests.support.plays import seeds

BEGAN_MS = 1_760_000_000_000


class Clocks:
    def __init__(self) -> None:
        self.now_s = 0.0

    def trail(self, store: ObjectStore) -> Trail:
        return Trail(store, now_ms=lambda: BEGAN_MS + int(self.now_s * 1000), clock=lambda: self.now_s)

    def reader(self, store: ObjectStore, log: Any = AUDIT) -> TrailReader:
        return TrailReader(store, log, bucket="tarn", sleep=lambda _: None, clock=self.tick)

    def tick(self) -> float:
        self.now_s += LIST_EVERY_S
        return self.now_s


def event(number: int) -> dict[str, Any]:
    return {
        "principal": "ann",
        "client_id": "a",
        "action": "commit",
        "object": f"n{number}",
        "outcome": "done",
    }


def read(reader: TrailReader, *, at: int = 0, records_max: int = 1_000) -> list[tuple[int, dict[str, Any]]]:
    """All that a reader finds from an offset on, as (offset, line)."""
    reader.seek({0: at})
    found: list[tuple[int, dict[str, Any]]] = []
    while True:
        polled = reader.poll(records_max=records_max, timeout_s=0)
        if not polled:
            return found
        (one,) = polled
        assert one.start == at, "a range starts where the last one ended"
        assert one.end > at, "the reader makes no way"
        at = one.end
        found += [
            (offset, json.loads(line or b"")) for offset, line in zip(one.offsets, one.values, strict=True)
        ]


def objects_in(reader: TrailReader) -> list[str]:
    return [line["object"] for _, line in read(reader)]


STORES: tuple[Callable[[Path], ObjectStore], ...] = (lambda _: MemoryStore(), FileStore)


@pytest.fixture(params=STORES, ids=("memory", "file"))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made: ObjectStore = request.param(tmp_path)
    return made


def test_events_are_lines_of_the_log_in_order_and_each_once(store: ObjectStore) -> None:
    clocks = Clocks()
    trail, reader = clocks.trail(store), clocks.reader(store)
    assert (read(reader), reader.bounds()[0].end) == ([], 0)
    trail.write()
    assert list(store.list("trail/")) == [], "without events nothing is written"
    for number in range(5):
        trail.audit({**event(number), "mode": "read", "privileges": ["READ"]})
        if number % 2:
            trail.write()
    trail.stop()
    found = read(reader)
    assert [line["object"] for _, line in found] == [f"n{number}" for number in range(5)]
    assert len({line["event_id"] for _, line in found}) == 5
    assert found[0][1]["details"] == {"mode": "read", "privileges": ["READ"]}
    assert found[0][1]["at"] == "2025-10-09T08:53:22.000+00:00"
    first = found[0][0] // LINES_MAX
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert [offset for offset, _ in found] == [(first + s) * LINES_MAX + line for s, line in places]
    assert reader.bounds()[0].end == (first + 3) * LINES_MAX
    assert reader.bounds()[0].start == 0
    # From the middle of a segment, and one record at a time.
    assert read(reader, at=found[1][0], records_max=1) == found[1:]


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(60))
def test_every_event_is_in_the_log_once_whatever_the_store_does(seed: int) -> None:
    """Two replicas, restarts, faults and late writes; only what a crash found unwritten may be missing."""
    chance = random.Random(seed)
    inner, clocks = MemoryStore(), Clocks()

    def plan(op: Op) -> Fault | None:
        return chance.choice((*ANSWERS, Fault.CRASH, Fault.CRASH_DONE)) if chance.random() < 0.25 else None

    faulty = FaultyStore(inner, plan, late_ops=5)
    trails = [clocks.trail(faulty), clocks.trail(faulty)]
    waiting: list[list[str]] = [[], []]
    sent: list[str] = []
    lost: set[str] = set()
    reader, seen, at = clocks.reader(inner), [], 0
    for step in range(120):
        who = chance.randrange(2)
        if chance.random() < 0.6:
            name = f"n{step}"
            trails[who].audit({**event(0), "object": name})
            waiting[who].append(name)
            sent.append(name)
        else:
            try:
                trails[who].write()
            except Crash:
                lost |= set(waiting[who])
                trails[who], waiting[who] = clocks.trail(faulty), []
            else:
                if not trails[who]._waiting[AUDIT].lines:
                    waiting[who] = []
        if chance.random() < 0.3:
            found = read(reader, at=at)
            seen += [line["object"] for _, line in found]
            at = found[-1][0] + 1 if found else at
    faulty.plan = lambda _: None
    for trail in trails:
        trail.write()
    faulty.settle()
    whole = objects_in(clocks.reader(inner))
    assert len(whole) == len(set(whole)), "an event is there twice"
    assert set(sent) - set(whole) <= lost
    seen += [line["object"] for _, line in read(reader, at=at)]
    assert seen == whole, "a reader that followed saw the same, in the same order"
    numbers = [AUDIT.segment_of(one.key) for one in inner.list(AUDIT.prefix)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))  # type: ignore[operator, arg-type]


def test_what_waits_for_the_store_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clocks = FaultyStore(MemoryStore(), lambda op: Fault.DENIED), Clocks()
    trail = clocks.trail(store)
    trail.audit({**event(0), "reason": "x" * 1_000_000})
    for _ in range(2 * WAITING_BYTES_MAX // 1_000):
        trail.audit({**event(1), "reason": "y" * 1_900, "other": "z" * 100})
    trail.audit({**event(2), **{f"f{n}": "x" * 2_000 for n in range(20)}})
    waiting = trail._waiting[AUDIT]
    assert WAITING_BYTES_MAX - LINE_BYTES_MAX < waiting.size <= WAITING_BYTES_MAX
    assert max(map(len, waiting.lines)) <= LINE_BYTES_MAX
    dropped, kept = waiting.dropped, len(waiting.lines)
    assert dropped + kept == 2 * WAITING_BYTES_MAX // 1_000 + 2
    trail.write()
    assert (waiting.dropped, len(waiting.lines)) == (dropped, kept), "nothing was written, nothing is lost"
    store.plan = lambda _: None
    trail.write()
    assert (waiting.lines, waiting.size, waiting.dropped) == ([], 0, 0)
    assert len(read(clocks.reader(store.inner))) == kept


def test_an_outage_is_one_warning_and_one_count_at_its_end() -> None:
    store, clocks = FaultyStore(MemoryStore(), lambda op: Fault.DENIED), Clocks()
    trail = clocks.trail(store)

    def logged() -> list[dict[str, Any]]:
        with capture_logs() as found:
            trail.write()
        return [line for line in found if line["log"] == AUDIT.name]

    sent = 2 * WAITING_BYTES_MAX // 1_000
    for _ in range(sent):
        trail.audit({**event(1), "reason": "y" * 1_900})
    (first,) = logged()
    assert (first["event"], first["log_level"]) == ("trail not written; events wait", "warning")
    for _ in range(5):
        clocks.now_s += 10
        trail.audit(event(2))
        assert logged() == []
    kept = len(trail._waiting[AUDIT].lines)
    store.plan = lambda _: None
    again, dropped = logged()
    assert (again["event"], again["seconds"]) == ("trail written again", 50.0)
    assert (dropped["event"], dropped["events"]) == ("trail events dropped", sent + 5 - kept)
    assert dropped["log_level"] == "warning"
    assert logged() == []
    # An event that is too long, with nothing to write beside it.
    trail.audit({**event(2), **{f"f{n}": "x" * 2_000 for n in range(20)}})
    (dropped,) = logged()
    assert dropped["events"] == 1
    assert logged() == []
    # The next outage is another one; what it has at the stop is lost, and counted.
    store.plan = lambda _: Fault.DENIED
    trail.audit(event(3))
    assert [line["event"] for line in logged()] == ["trail not written; events wait"]
    with capture_logs() as found:
        trail.stop()
    assert [(line["event"], line["events"]) for line in found] == [("trail events lost at the stop", 1)]


def test_metrics_reports_are_kept_within_bounds() -> None:
    store, clocks = MemoryStore(), Clocks()
    trail = clocks.trail(store)
    scan = {
        "report-type": "scan-report",
        "table-name": "x",
        "snapshot-id": 7,
        "metrics": {"total-planning": 1},
    }
    trail.report("ann", "ns.t", scan)
    trail.report("ann", "ns.t", {**scan, "filter": "f" * LINE_BYTES_MAX, "snapshot-id": True})
    trail.report("ann", "ns.t", {"snapshot-id": 2**63, "report-type": 5})
    for _ in range(REPORTS_MAX + 10):
        trail.report("ann", "ns.t", scan)
    assert trail._waiting[METRICS].dropped == 13
    trail.write()
    found = [line for _, line in read(clocks.reader(store, METRICS))]
    assert len(found) == REPORTS_MAX
    assert (found[0]["report"], found[0]["snapshot_id"], found[0]["table_name"]) == (scan, 7, "ns.t")
    assert (found[1]["report"], found[1]["snapshot_id"]) == (None, None)
    assert found[1]["report_bytes"] > LINE_BYTES_MAX
    assert (found[2]["snapshot_id"], found[2]["report_type"]) == (None, None)
    assert found[2]["report"] == {"snapshot-id": 2**63, "report-type": 5}
    assert read(clocks.reader(store)) == [], "the audit trail is another log"


def test_a_report_of_any_form_is_a_row_and_no_dead_letter() -> None:
    """Who may read a table chooses what is in it; dead letters are kept for good."""
    clocks, store = Clocks(), MemoryStore()
    trail = clocks.trail(store)
    types: list[Any] = ["scan-report", 5, 1.5, True, None, [1], {"a": 1}, "x" * 10_000]
    for one in types:
        trail.report("ann", "ns.t", {"report-type": one, "snapshot-id": one})
    trail.write()
    values = [orjson.dumps(line) for _, line in read(clocks.reader(store, METRICS))]
    fields = parse_spec(spec_text(METRICS), file="metrics").spec.columns.fields
    decoder = Decoder(fields, source="metrics", trace=False, record_bytes_max=1 << 20)
    count = len(values)
    done = decoder.decode(
        RawBatch(
            partitions=[0] * count,
            offsets=[*range(count)],
            times_ms=[1] * count,
            keys=[None] * count,
            values=values,
            ranges=(),
        )
    )
    assert done.bad == {}
    kept = done.rows.column("report_type").to_pylist()
    assert kept == ["scan-report", *[None] * 6, "x" * TEXT_CHARS_MAX]


def test_old_segments_go_and_the_last_one_stays() -> None:
    clocks = Clocks()
    store = MemoryStore(now_ms=lambda: BEGAN_MS + int(clocks.now_s * 1000))
    trail, reader = clocks.trail(store), clocks.reader(store)
    for number in range(4):
        trail.audit(event(number))
        trail.write()
    follower = clocks.reader(store)
    assert len(read(follower)) == 4
    clocks.now_s += KEPT_MS / 1000 + 1
    trail.audit(event(4))
    trail.write()
    assert objects_in(reader) == ["n4"]
    clocks.now_s += KEPT_MS / 1000 + TRIM_EVERY_S
    trail.write()
    assert objects_in(reader) == ["n4"], "the last one says where the log goes on"
    # What was removed unread is skipped, and a segment removed under a reader too.
    assert reader.bounds()[0].start == 0
    follower.seek({0: 0})
    (key,) = [one.key for one in store.list(AUDIT.prefix)]
    follower._due()
    store.delete(key)
    (gone,) = follower.poll(records_max=10, timeout_s=0)
    assert (list(gone.offsets), gone.end) == ([], (AUDIT.segment_of(key) + 1) * LINES_MAX)  # type: ignore[operator]
    # Too many, however new.
    for number in range(SEGMENTS_MAX + 5):
        store.put(AUDIT.key(AUDIT.segment_of(key) + 1 + number), b"{}\n")  # type: ignore[operator]
    clocks.now_s += TRIM_EVERY_S + 1
    trail.write()
    assert len(list(store.list(AUDIT.prefix))) == SEGMENTS_MAX


def test_a_segment_has_as_many_lines_as_it_has_offsets_and_texts_are_cut() -> None:
    clocks, store = Clocks(), MemoryStore()
    trail = clocks.trail(store)
    trail.audit({**event(0), "object": "o" * 5_000, "reason": "r" * 5_000})
    for number in range(1, LINES_MAX + 2):
        trail.audit(event(number))
    trail.write()
    segments = [one.key for one in store.list(AUDIT.prefix)]
    counts = [held.data.count(b"\n") for key in segments if (held := store.get(key)) is not None]
    assert counts == [LINES_MAX, 2]
    found = read(clocks.reader(store))
    assert len({offset for offset, _ in found}) == LINES_MAX + 2
    assert found[0][1]["object"] == "o" * TEXT_CHARS_MAX
    assert found[0][1]["details"] == {"reason": "r" * TEXT_CHARS_MAX}


def test_old_segments_are_looked_for_once_in_ten_minutes() -> None:
    """A listing of up to 10,000 objects, in each replica."""
    clocks, listed = Clocks(), []

    def plan(op: Op) -> Fault | None:
        if op.kind == "list" and op.key == AUDIT.prefix:
            listed.append(op.key)
        return None

    trail = clocks.trail(FaultyStore(MemoryStore(), plan))
    for number in range(30):
        trail.audit(event(number))
        trail.write()
        clocks.now_s += 10
    assert len(listed) == 2, "one for the number of the first segment, one for what is old"
    clocks.now_s += TRIM_EVERY_S
    trail.write()
    assert len(listed) == 3


def test_a_log_that_begins_again_begins_after_the_old_one() -> None:
    """A lake restored without its trail: the table's offsets must lie before the new ones."""
    clocks, former, later = Clocks(), MemoryStore(), MemoryStore()
    trail = clocks.trail(former)
    for number in range(3):
        trail.audit(event(number))
        trail.write()
    end = clocks.reader(former).bounds()[0].end
    clocks.now_s += 60
    again = [clocks.trail(later), clocks.trail(later)]
    for one in again:
        clocks.now_s += 1
        one.audit(event(9))
        one.write()
    found = read(clocks.reader(later), at=end)
    assert [line["object"] for _, line in found] == ["n9", "n9"]
    assert found[0][0] > end
    later.put(AUDIT.start_key, b"no number")
    for one in later.list(AUDIT.prefix):
        later.delete(one.key)
    fresh = clocks.trail(later)
    fresh.audit(event(1))
    with pytest.raises(CorruptStateError, match="is no number: remove it"):
        fresh._write(AUDIT)


def test_other_topics_are_kafkas_and_a_pattern_never_reads_the_trail() -> None:
    kafka = MemoryTopicClient(Topic("orders", 1))
    topics = TrailTopics(MemoryStore(), bucket="tarn", others=kafka)
    topics.create("new", partitions=1)
    assert topics.list_topics() == ["new", "orders"]
    assert topics.open("orders", stream="s").identity().cluster == "c-1"
    identities = {topics.open(log.topic, stream="s").identity() for log in LOGS}
    assert {one.cluster for one in identities} == {"store tarn"}
    assert len(identities) == 2
    with pytest.raises(NoSuchTopicError, match=r"choose from _tarn_trail\.audit, _tarn_trail\.metrics"):
        topics.open("_tarn_trail.other", stream="s")


def test_ingest_makes_it_a_table_with_each_event_once() -> None:
    """Through restarts of ingest, with the built-in specs."""
    lake, clocks = Lake(), Clocks()
    lake.sources = TrailTopics(  # type: ignore[assignment]
        lake.store, bucket="tarn", others=lake.sources, sleep=lambda _: None, clock=clocks.tick
    )
    trail = clocks.trail(lake.store)
    specs = {log: parse_spec(spec_text(log), file=log.name) for log in LOGS}
    assert list(clashes({log.name: one for log, one in specs.items()})) == []
    for log, days in ((AUDIT, 90), (METRICS, 30)):
        body = specs[log].spec
        assert body.retention is not None
        assert (body.retention.seconds, body.retention_column) == (days * 86_400, "at")
        assert body.table.partitioning == (PartitionRule.parse("day(at)"),), (
            "a file has rows of one day, merged ones too"
        )
    for round_ in range(3):
        for number in range(4):
            trail.audit({**event(10 * round_ + number), "mode": "write"})
        trail.report("ann", "ns.t", {"report-type": "scan-report", "snapshot-id": round_, "metrics": {}})
        trail.write()
        for one in specs.values():
            lake.work(lake.ingestor(one), turns=400)
    rows = lake.rows("ops.audit")
    assert sorted(row["object"] for row in rows) == sorted(
        f"n{10 * r + n}" for r in range(3) for n in range(4)
    )
    assert len({row["event_id"] for row in rows}) == 12
    assert {json.loads(row["details"])["mode"] for row in rows} == {"write"}
    assert {(row["principal"], row["action"], row["outcome"]) for row in rows} == {("ann", "commit", "done")}
    reports = lake.rows("ops.metrics")
    assert sorted(row["snapshot_id"] for row in reports) == [0, 1, 2]
    assert json.loads(reports[0]["report"])["report-type"] == "scan-report"
    assert list(lake.local.catalog.namespaces.children((), token=None, page_size=None).names) == [("ops",)]


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    with world(tmp_path) as made:
        made.core.trail = Trail(made.store.inner)
        yield made


def lines_of(made: World, log: Any = AUDIT) -> list[dict[str, Any]]:
    assert made.core.trail is not None
    made.core.trail.write()
    return [line for _, line in read(Clocks().reader(made.store.inner, log))]


def test_what_is_done_and_refused_over_http_is_in_the_trail(kept: World) -> None:
    kept.namespace()
    kept.table("t")
    kept.principal("eve")
    assert kept.load("eve", "ns.t") == 403
    kept.grant("eve", "table:ns.t", "READ")
    kept.must("admin", "POST", "/v1/namespaces/ns/tables/t", {"requirements": [], "updates": []})
    kept.must("admin", "DELETE", "/v1/namespaces/ns/tables/t")
    found = [(line["principal"], line["action"], line["object"], line["outcome"]) for line in lines_of(kept)]
    assert found == [
        ("tester", "create-namespace", "namespace ns", "done"),
        ("tester", "create", "table ns.t", "done"),
        ("tester", "create-principal", "principal eve", "done"),
        ("eve", "load", "table ns.t", "refused"),
        ("tester", "grant", "table ns.t", "done"),
        ("tester", "commit", "table ns.t", "done"),
        ("tester", "drop", "table ns.t", "done"),
    ]
    secret = kept.credentials["eve"].split(":")[1]
    assert all(secret.encode() not in one.data for one in _objects(kept))


def _objects(made: World) -> list[Any]:
    return [made.store.inner.get(listed.key) for listed in made.store.inner.list("trail/")]


@pytest.mark.parametrize("writer", [True, False])
def test_ingests_own_commits_to_the_trails_tables_are_not_in_it(
    kept: World, monkeypatch: pytest.MonkeyPatch, writer: bool
) -> None:
    """Or each would cause the next, without end; those of anybody else are in it."""
    if writer:
        monkeypatch.setattr("tarn_catalog.operations.audit.TRAIL_WRITER", "tester")
    kept.namespace("ops")
    for name in ("audit", "metrics", "other"):
        kept.table(name, ns="ops")
        kept.must("admin", "POST", f"/v1/namespaces/ops/tables/{name}", {"requirements": [], "updates": []})
    unmet = {"requirements": [{"type": "assert-table-uuid", "uuid": str(uuid.uuid4())}], "updates": []}
    refused = kept.ask("admin", "POST", "/v1/namespaces/ops/tables/metrics", unmet)
    error(refused, 409, "CommitFailedException")
    kept.must("admin", "DELETE", "/v1/namespaces/ops/tables/audit")
    lines = lines_of(kept)
    assert [line["object"] for line in lines if line["outcome"] == "failed"] == ["table ops.metrics"]
    found = [(line["action"], line["object"]) for line in lines if line["outcome"] == "done"]
    assert ("commit", "table ops.other") in found
    assert ("drop", "table ops.audit") in found
    own = {("commit", "table ops.audit"), ("commit", "table ops.metrics")} & {*found}
    assert len(own) == (0 if writer else 2)


def test_metrics_are_kept_for_who_may_report_them(kept: World) -> None:
    kept.namespace()
    kept.table("t")
    kept.principal("eve")
    path, report = "/v1/namespaces/ns/tables/t/metrics", {"report-type": "scan-report", "snapshot-id": 3}
    error(kept.ask("eve", "POST", path, report), 403, "ForbiddenException")
    kept.must("admin", "POST", path, report)
    (line,) = lines_of(kept, METRICS)
    assert (line["principal"], line["table_name"], line["report"]) == ("tester", "ns.t", report)
    error(kept.ask("admin", "POST", path, [1]), 400, "BadRequestException")


def test_a_store_that_takes_no_trail_stops_no_request(kept: World) -> None:
    assert kept.core.trail is not None
    kept.core.trail._store = FaultyStore(MemoryStore(), lambda op: Fault.DENIED)
    kept.namespace()
    kept.core.trail.write()
    kept.table("t")
    kept.core.trail._store = kept.store.inner
    assert [line["object"] for line in lines_of(kept)] == ["namespace ns", "table ns.t"]


def test_a_replica_that_was_idle_goes_on_behind_what_others_wrote_and_trimmed() -> None:
    """The number after its last one is free again, and ingest is past it."""
    clocks, store = Clocks(), MemoryStore()
    idle, busy = clocks.trail(store), clocks.trail(store)
    idle.audit(event(0))
    idle.write()
    for number in range(1, 4):
        busy.audit(event(number))
        busy.write()
    for one in sorted(store.list(AUDIT.prefix), key=lambda found: found.key)[:-1]:
        if AUDIT.segment_of(one.key) is not None:
            store.delete(one.key)
    clocks.now_s += TRIM_EVERY_S
    idle.write()
    last = max(n for one in store.list(AUDIT.prefix) if (n := AUDIT.segment_of(one.key)) is not None)
    idle.audit(event(4))
    idle.write()
    assert store.get(AUDIT.key(last + 1)) is not None, "behind the last segment"


def test_a_report_that_is_nested_too_deeply_is_dropped_and_the_rest_is_kept() -> None:
    clocks, store = Clocks(), MemoryStore()
    trail = clocks.trail(store)
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"a": deep}
    trail.report("ann", "ns.t", {"report-type": "scan-report", "deep": deep})
    assert trail._waiting[METRICS].dropped == 1
    trail.report("ann", "ns.t", {"report-type": "scan-report"})
    trail.write()
    (held,) = [
        store.get(one.key) for one in store.list(METRICS.prefix) if METRICS.segment_of(one.key) is not None
    ]
    assert held is not None
    assert [json.loads(line)["report_type"] for line in held.data.splitlines()] == ["scan-report"]


def test_a_replica_that_was_idle_passes_any_number_of_segments_in_one_write() -> None:
    clocks, store = Clocks(), MemoryStore()
    idle, busy = clocks.trail(store), clocks.trail(store)
    idle.audit(event(0))
    idle.write()
    for number in range(1, ATTEMPTS_MAX + 5):
        busy.audit(event(number))
        busy.write()
    idle.audit(event(99))
    with capture_logs() as logs:
        idle.write()
    assert logs == []
    assert objects_in(clocks.reader(store)) == [*(f"n{n}" for n in range(ATTEMPTS_MAX + 5)), "n99"]
