"""The canary with scripted parts, and its audit against a simple model."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.cli.canary import STREAM, TABLE, TOPIC, CanaryRow, Flight, Limits, audit, differences, fly
from tarn.cli.deadline import within
from tarn.cli.ports import Clock, Placed, Traced
from tarn.cli.ready import Ready
from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.errors import DataError, TarnError, UnavailableError
from tarn.core.spec import parse_spec

ROW = CanaryRow(
    id="0123456789abcdef", sent_at=datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC), note='a "note", ü'
)
AS_READ = ((ROW.id, ROW.sent_at, ROW.note),)


class FakeTime:
    def __init__(self) -> None:
        self.now = 0.0
        self.lock = threading.Lock()

    def wait(self, seconds: float) -> None:
        with self.lock:
            self.now += seconds

    def clock(self) -> Clock:
        return Clock(now_s=lambda: self.now, wait=self.wait)


@dataclass
class MemoryLog:
    messages: list[bytes] = field(default_factory=list)
    fault: TarnError | None = None

    def send(self, topic: str, value: bytes, *, timeout_s: float) -> Placed:
        assert topic == "tarn.canary"
        assert timeout_s > 0
        if self.fault:
            raise self.fault
        self.messages.append(value)
        return Placed(partition=0, offset=len(self.messages) - 1)

    def topics(self, *, timeout_s: float):
        return ["tarn.canary"]


@dataclass
class MemoryLake:
    """Commits the log's messages after `after` queries."""

    log: MemoryLog
    after: int = 0
    faults: list[TarnError] = field(default_factory=list)
    lost: frozenset[int] = frozenset()
    asked: int = 0

    def committed(self, table: str, stream: str):
        assert (table, stream) == ("ops.canary", "canary")
        self.asked += 1
        if self.faults:
            raise self.faults.pop(0)
        return {0: len(self.log.messages)} if self.asked > self.after else None

    def traced(self, table: str, stream: str) -> Traced:
        rows = tuple((0, n) for n in range(len(self.log.messages)) if n not in self.lost)
        return Traced(rows=rows, dead=(), next={0: len(self.log.messages)})


@dataclass
class MemoryReader:
    name: str
    answers: list[object] = field(default_factory=lambda: [AS_READ])

    def find(self, table: str, row_id: str, *, timeout_s: float):
        assert (table, row_id) == ("ops.canary", ROW.id)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def flight(**changes) -> Flight:
    log = changes.pop("log", None) or MemoryLog()
    parts = {
        "log": log,
        "lake": MemoryLake(log=log),
        "readers": (MemoryReader("pyiceberg"), MemoryReader("trino"), MemoryReader("spark")),
        "limits": Limits(),
        "clock": FakeTime().clock(),
        "tell": lambda _: None,
    }
    return Flight(**{**parts, **changes})


def test_a_row_that_goes_all_the_way():
    report = fly(flight(), ROW)
    assert report.ok
    assert [(s.name, s.ok, s.rows) for s in report.stages] == [
        ("kafka", True, 1),
        ("ingest", True, 1),
        ("pyiceberg", True, 1),
        ("trino", True, 1),
        ("spark", True, 1),
        ("audit", True, 1),
    ]


def test_the_message_holds_the_row_with_its_microseconds_in_utc():
    row = CanaryRow(id="x", sent_at=ROW.sent_at.astimezone(timezone(timedelta(hours=5))), note=ROW.note)
    assert json.loads(row.message()) == {
        "id": "x",
        "sent_at": "2026-03-01T12:00:00.123456Z",
        "note": 'a "note", ü',
    }


def test_ingest_decodes_the_message_into_exactly_the_row_by_the_shipped_spec():
    path = Path(__file__).parents[3] / "services" / "specs" / "canary.yaml"
    spec = parse_spec(path.read_text(encoding="utf-8"), file=path.name)
    assert (spec.name, str(spec.spec.table), spec.spec.source.kafka.topic) == (STREAM, TABLE, TOPIC)
    decoder = Decoder(spec.spec.columns.fields, source="x", trace=True, record_bytes_max=10_000)
    batch = RawBatch(
        partitions=[0], offsets=[7], times_ms=[0], keys=[None], values=[ROW.message()], ranges=()
    )
    decoded = decoder.decode(batch)
    assert decoded.bad == {}
    found = decoded.rows.select(["id", "sent_at", "note"]).to_pylist()
    assert differences(ROW, [tuple(row.values()) for row in found]) == []
    assert decoded.rows.column("_tarn").to_pylist()[0]["offset"] == 7


def test_a_broker_that_is_away_stops_the_flight_at_once():
    report = fly(flight(log=MemoryLog(fault=UnavailableError("no broker: start it"))), ROW)
    assert not report.ok
    assert [(s.name, s.ok, s.detail) for s in report.stages] == [("kafka", False, "no broker: start it")]


def test_waits_for_the_commit_and_through_a_catalog_that_is_away_for_a_moment():
    log = MemoryLog()
    lake = MemoryLake(log=log, after=10, faults=[UnavailableError("starting")] * 3)
    time = FakeTime()
    report = fly(flight(log=log, lake=lake, clock=time.clock()), ROW)
    assert report.ok
    assert lake.asked == 11
    assert report.stages[1].seconds == pytest.approx(2.0)


@pytest.mark.long
def test_a_catalog_that_hangs_is_left_behind():
    class Hanging(MemoryLake):
        def committed(self, table: str, stream: str):
            threading.Event().wait(60)

    log = MemoryLog()
    limits = Limits(total_s=1.0)
    report = fly(flight(log=log, lake=Hanging(log=log), limits=limits, clock=Clock()), ROW)
    assert not report.ok
    assert report.seconds < 40
    assert "catalog did not answer" in report.stages[-1].detail


def test_a_row_that_ingest_never_commits_is_told_with_what_the_table_holds():
    log = MemoryLog()
    report = fly(flight(log=log, lake=MemoryLake(log=log, after=10**9)), ROW)
    assert [s.name for s in report.stages] == ["kafka", "ingest"]
    assert "offset 0 of tarn.canary was not committed within 40 s" in report.stages[1].detail
    assert "no offset map yet" in report.stages[1].detail
    assert "docker compose logs ingest" in report.stages[1].detail
    assert report.seconds == pytest.approx(40, abs=1)


def test_a_wrong_credential_is_told_at_once_and_not_waited_for():
    log = MemoryLog()
    lake = MemoryLake(log=log, faults=[TarnError("wrong credential")])
    report = fly(flight(log=log, lake=lake), ROW)
    assert report.stages[-1].detail == "wrong credential"
    assert report.seconds == 0, "the clock of this test moves only where something waits"


def test_one_engine_down_fails_the_flight_and_the_others_are_still_told():
    readers = (MemoryReader("pyiceberg"), MemoryReader("trino", [UnavailableError("trino is away")]))
    report = fly(flight(readers=readers), ROW)
    assert not report.ok
    assert {s.name: s.ok for s in report.stages} == {
        "kafka": True,
        "ingest": True,
        "pyiceberg": True,
        "trino": False,
        "audit": report.stages[-1].ok,
    }
    assert next(s for s in report.stages if s.name == "trino").detail == "trino is away"


def test_an_engine_that_comes_up_while_waiting_is_fine():
    readers = (MemoryReader("spark", [UnavailableError("starting")] * 5 + [AS_READ]),)
    report = fly(flight(readers=readers), ROW)
    assert report.ok


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ((), "expected 1 row with id 0123456789abcdef, found 0"),
        (AS_READ * 2, "expected 1 row with id 0123456789abcdef, found 2"),
        (((ROW.id, ROW.sent_at + timedelta(microseconds=1), ROW.note),), "sent_at: sent"),
        (((ROW.id, ROW.sent_at.replace(tzinfo=None), ROW.note),), "sent_at: sent"),
        (((ROW.id, ROW.sent_at, ROW.note + " "),), "note: sent"),
        (((ROW.id, ROW.sent_at, None),), "note: sent"),
        (((ROW.id, ROW.sent_at),), "found 2 values"),
    ],
)
def test_an_engine_that_reads_something_else_fails_the_flight(found, said):
    report = fly(flight(readers=(MemoryReader("trino", [found]),)), ROW)
    stage = next(s for s in report.stages if s.name == "trino")
    assert not report.ok
    assert said in stage.detail
    assert "trino read something else than was sent" in stage.detail


def test_the_same_instant_in_another_zone_is_the_same_value():
    shifted = ROW.sent_at.astimezone(timezone(timedelta(hours=-8)))
    assert differences(ROW, [(ROW.id, shifted, ROW.note)]) == []


def test_a_row_lost_long_ago_fails_the_audit():
    log = MemoryLog(messages=[b"{}"] * 7)
    report = fly(flight(log=log, lake=MemoryLake(log=log, lost=frozenset({3}))), ROW)
    assert not report.ok
    assert "partition 0: 1 missing (3)" in report.stages[-1].detail


def test_no_time_left_is_said_and_nothing_more_is_tried():
    log = MemoryLog()
    lake = MemoryLake(log=log, after=10**9)
    report = fly(flight(log=log, lake=lake, limits=Limits(total_s=5)), ROW)
    assert report.seconds <= 6
    assert [s.name for s in report.stages] == ["kafka", "ingest"]


def test_blocking_work_is_left_behind_after_its_time():
    release = threading.Event()
    with pytest.raises(
        UnavailableError, match="spark did not answer within 0 s; see docker compose logs spark"
    ):
        within(0.05, "spark", release.wait)
    release.set()
    assert within(5, "spark", lambda: 7) == 7
    with pytest.raises(DataError, match="inside"):
        within(5, "spark", lambda: (_ for _ in ()).throw(DataError("inside")))


OFFSETS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=20)


@pytest.mark.long
@given(rows=OFFSETS, dead=OFFSETS, ends=st.dictionaries(st.integers(0, 2), st.integers(1, 13)))
def test_the_audit_passes_exactly_when_each_offset_up_to_the_end_is_there_once(rows, dead, ends):
    together = Counter([*rows, *dead])
    right = all(count == 1 for count in together.values())
    for partition in {0, 1, 2}:
        offsets = sorted(o for p, o in together if p == partition)
        end = ends.get(partition, 0)
        right &= offsets == list(range(offsets[0] if offsets else end, end))
        right &= bool(offsets) or end == 0
    wrong = audit(Traced(rows=tuple(rows), dead=tuple(dead), next=ends))
    assert (wrong == []) == right, wrong


def test_the_audit_names_partition_kind_and_the_first_few_offsets():
    traced = Traced(rows=((0, 0), (0, 0), (0, 9)), dead=(), next={0: 9, 1: 4})
    assert audit(traced) == [
        "partition 0: 8 missing (1, 2, 3, 4, 5, …)",
        "partition 0: 1 doubled (0)",
        "partition 0: 1 beyond the map (9)",
        "partition 1: the map ends at 4 and there is no row",
    ]


def test_an_engine_is_asked_when_it_is_ready_and_the_wait_counts_against_no_limit():
    time = FakeTime()
    asked = []

    def wait_for(engine: str) -> None:
        asked.append(engine)
        if engine == "spark":
            time.wait(500.0)

    report = fly(flight(clock=time.clock(), wait_for=wait_for), ROW)
    assert report.ok, report.stages
    assert asked[:2] == ["kafka", "ingest"]
    assert sorted(asked[2:]) == ["pyiceberg", "spark", "trino"]
    assert [s.seconds for s in report.stages if s.name == "spark"] == [0.0]
    assert report.seconds >= 500.0


def test_an_engine_is_ready_when_it_is_named_and_all_are_at_the_end():
    from queue import SimpleQueue

    words: SimpleQueue[str | None] = SimpleQueue()
    ready = Ready(iter(words.get, None), later={"trino", "spark"})
    ready.wait_for("pyiceberg")
    words.put("nobody\n")
    words.put("trino\n")
    ready.wait_for("trino")
    waiting = threading.Thread(target=ready.wait_for, args=("spark",))
    waiting.start()
    assert waiting.is_alive()
    words.put(None)
    waiting.join(timeout=50)
    assert not waiting.is_alive()
