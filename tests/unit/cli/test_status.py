"""Status is gathered from whatever answers; a fault is a part of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tarn.cli.clients.catalog_facts import CatalogFacts, facts_of
from tarn.cli.layers import Progress
from tarn.cli.ports import Clock, TableFacts
from tarn.cli.status import (
    Container,
    Look,
    Sources,
    Status,
    age_s,
    as_data,
    audit_faults,
    audit_reasons,
    gather,
    ingestors,
)
from tarn.core.errors import NoSuchNamespaceError, NoSuchTableError, TarnError, UnavailableError
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap, TopicIdentity
from tarn.core.position import Position
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState
from tarn.ingest.lake_files import commit_of

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def facts(name: str, **changes) -> TableFacts:
    values = {
        "format_version": 2,
        "rows": 5,
        "data_files": 2,
        "delete_files": 0,
        "snapshots": 3,
        "last_commit": AT - timedelta(seconds=90),
    }
    return TableFacts(name=name, **{**values, **changes})


@dataclass
class MemoryLake:
    held: dict[str, object] = field(default_factory=dict)
    down: bool = False

    def tables(self):
        if self.down:
            raise UnavailableError("the catalog is away")
        return sorted(self.held)

    def facts(self, table: str) -> TableFacts:
        found = self.held[table]
        if isinstance(found, TarnError):
            raise found
        return found


@dataclass
class MemoryLog:
    held: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    down: bool = False
    written: datetime | None = AT - timedelta(seconds=4)
    asked: int = 0

    def bounds(self):
        self.asked += 1
        if self.down:
            raise UnavailableError("kafka is away")
        return self.held

    def newest(self, topic, bounds, places):
        assert bounds == self.held[topic]
        return tuple(self.written for _ in places)


def away() -> str:
    raise UnavailableError("nobody listens")


UP = Look(service="trino", address="http://trino:8080", look=lambda: "version 483")
DOWN = Look(service="kafka", address="kafka:9092", look=away)
RUNS = Container(running=True, good=True, words="healthy")
KILLED = Container(running=False, good=False, words="ended with exit code 137")


def status(looks, lake, ingest=lambda: {"ingestors": {}}, log=None, containers=None):
    sources = Sources(looks=looks, lake=lake, log=log or MemoryLog(), ingest=ingest, containers=containers)
    return gather(sources, clock=Clock(), at=AT)


def offsets(topic: str, **next_: int) -> OffsetMap:
    source = TopicIdentity(cluster="c", topic=topic, topic_id="t")
    return OffsetMap(source=source, next={int(p[1:]): o for p, o in next_.items()})


def test_all_well():
    seen = status([UP], MemoryLake({"ops.canary": facts("ops.canary"), "a.b": facts("a.b")}))
    assert seen.ok
    assert [(s.service, s.ok, s.detail) for s in seen.services] == [("trino", True, "version 483")]
    assert [t.name for t in seen.tables] == ["a.b", "ops.canary"]
    assert seen.ingest == {"ingestors": {}}
    assert (seen.layers, seen.ingestors, seen.faults) == ((), (), {})


def test_one_service_down_is_shown_among_the_others():
    seen = status([UP, DOWN], MemoryLake())
    assert not seen.ok
    assert [(s.service, s.ok, s.detail) for s in seen.services] == [
        ("trino", True, "version 483"),
        ("kafka", False, "nobody listens"),
    ]


def test_every_part_that_cannot_be_asked_is_told_with_its_reason_and_the_others_are_there():
    seen = status([UP], MemoryLake(down=True), away, MemoryLog(down=True))
    assert not seen.ok
    assert seen.tables == ()
    assert seen.faults == {
        "tables": "the catalog is away",
        "offsets": "kafka is away",
        "ingest": "nobody listens",
    }
    assert seen.ingest is None
    assert seen.services[0].ok


def test_one_table_that_cannot_be_read_does_not_hide_the_others():
    seen = status([UP], MemoryLake({"a.b": facts("a.b"), "c.d": TarnError("broken metadata")}))
    assert [t.name for t in seen.tables] == ["a.b"]
    assert seen.faults == {"c.d": "broken metadata"}
    assert not seen.ok


def test_nobody_waits_for_a_service_whose_container_does_not_run():
    def never() -> str:
        raise AssertionError("looked at a service that cannot answer")

    log = MemoryLog()
    looks = [Look(service=name, address="x", look=never) for name in ("minio", "trino")]
    seen = status(looks, MemoryLake(down=True), never, log, {"minio": KILLED})
    assert [(s.service, s.ok) for s in seen.services] == [("minio", False), ("trino", False)]
    assert seen.services[0].detail == (
        "its container is not running (ended with exit code 137); see docker compose logs minio"
    )
    assert seen.services[1].detail == "has no container; scripts/up starts it"
    assert seen.faults == {
        name: f"{service} has no container; scripts/up starts it"
        for name, service in (("tables", "catalog"), ("offsets", "kafka"), ("ingest", "ingest"))
    }
    assert log.asked == 0


def test_services_that_listen_nowhere_are_told_by_their_containers():
    done = Container(running=False, good=True, words="done")
    containers = {
        **dict.fromkeys(("trino", "catalog", "kafka", "ingest", "pipeline"), RUNS),
        "init": done,
        "bootstrap": KILLED,
        "replay": done,
    }
    seen = status([UP], MemoryLake(), containers=containers)
    told = {s.service: (s.ok, s.container) for s in seen.services}
    assert told["trino"] == (True, "healthy")
    assert told["pipeline"] == (True, "healthy")
    assert told["replay"] == (True, "done")
    assert told["bootstrap"] == (False, "ended with exit code 137")
    assert "init" not in told


def test_a_service_that_answers_while_its_health_check_fails_is_not_well():
    all_up = dict.fromkeys(("catalog", "kafka", "ingest"), RUNS)
    sick = Container(running=True, good=False, words="unhealthy")
    (found,) = status([UP], MemoryLake(), containers={**all_up, "trino": sick}).services[:1]
    assert not found.ok
    assert found.detail == "version 483, but its container is unhealthy; see docker compose logs trino"
    starting = Container(running=True, good=False, words="starting")
    assert status([UP], MemoryLake(), containers={**all_up, "trino": starting}).services[0].ok


def test_age_is_that_of_the_last_commit_and_never_negative():
    assert age_s(facts("t"), AT) == 90
    assert age_s(facts("t", last_commit=None), AT) is None
    assert age_s(facts("t", last_commit=AT + timedelta(seconds=3)), AT) == 0


@pytest.mark.parametrize("ahead", [timedelta(days=1, seconds=1), timedelta(days=2_000_000)])
def test_the_age_of_a_commit_that_is_yet_to_come_is_unknown(ahead: timedelta):
    """A writer stated a time in microseconds, say: that is not a table that was committed to just now."""
    assert age_s(facts("t", last_commit=AT + timedelta(days=1)), AT) == 0
    late = facts("t", last_commit=AT + ahead)
    assert age_s(late, AT) is None
    (shown,) = as_data(Status(at=AT, services=(), tables=(late,)))["tables"]
    assert (shown["age_s"], shown["last_commit"]) == (None, (AT + ahead).isoformat())


def flights() -> MemoryLake:
    return MemoryLake(
        {
            "bronze.flight_events": facts(
                "bronze.flight_events", streams={"flights": offsets("flights.events", p0=90, p1=40)}
            ),
            "silver.flights": facts(
                "silver.flights", position=Position(topic="flights.events", next={0: 50, 1: 40})
            ),
        }
    )


LOG = {"flights.events": {0: (0, 100), 1: (0, 40)}, "tarn.canary": {0: (0, 7)}}


def test_layers_are_compared_with_the_ends_of_their_topic():
    bronze, silver = status([UP], flights(), log=MemoryLog(LOG)).layers
    assert (bronze.layer, bronze.progress, bronze.behind) == ("bronze", Progress.BEHIND, 10)
    assert (silver.layer, silver.behind, silver.behind_bronze) == ("silver", 50, 40)
    assert bronze.freshness_s == silver.freshness_s == 4


def test_layers_of_two_topics_are_each_compared_with_their_own():
    lake = flights()
    lake.held["bronze.orders"] = facts("bronze.orders", streams={"orders": offsets("orders", p0=6)})
    log = MemoryLog({**LOG, "orders": {0: (0, 9)}})
    seen = status([UP], lake, log=log).layers
    assert [(found.topic, found.layer, found.behind) for found in seen] == [
        ("flights.events", "bronze", 10),
        ("flights.events", "silver", 50),
        ("orders", "bronze", 3),
    ]


def test_layers_without_kafka_are_still_compared_with_bronze():
    seen = status([UP], flights(), log=MemoryLog(down=True))
    assert [(layer.progress, layer.behind_bronze) for layer in seen.layers] == [
        (Progress.UNKNOWN, 0),
        (Progress.UNKNOWN, 40),
    ]
    assert seen.faults == {"offsets": "kafka is away"}


def test_the_lag_of_an_ingestor_is_what_topic_and_table_tell_not_what_ingest_saw_last():
    lake = MemoryLake({"ops.canary": facts("ops.canary", streams={"canary": offsets("tarn.canary", p0=5)})})
    (entry,) = status([UP], lake, lambda: page("Running"), MemoryLog(LOG)).ingestors
    assert (entry.name, entry.state, entry.lag, entry.rows) == ("canary", "Running", 2, 4)
    (entry,) = status([UP], lake, lambda: page("Running"), MemoryLog(down=True)).ingestors
    assert entry.lag == 3


def test_without_ingest_the_streams_are_known_by_their_tables():
    seen = status([UP], flights(), away, MemoryLog(LOG))
    (entry,) = seen.ingestors
    assert (entry.name, entry.state, entry.topic, entry.table, entry.lag, entry.rows) == (
        *("flights", "?", "flights.events", "bronze.flight_events"),
        *(10, None),
    )
    assert set(seen.faults) == {"ingest"}


def test_the_data_form_is_json_and_keeps_every_fact():
    lake = flights()
    lake.held["e.f"] = facts("e.f", rows=None, last_commit=None)
    data = json.loads(json.dumps(as_data(status([UP, DOWN], lake, log=MemoryLog(LOG)))))
    assert data["ok"] is False
    assert data["services"][1]["detail"] == "nobody listens"
    assert data["tables"][0] == {
        "name": "bronze.flight_events",
        "format_version": 2,
        "rows": 5,
        "data_files": 2,
        "delete_files": 0,
        "snapshots": 3,
        "last_commit": "2026-03-01T11:58:30+00:00",
        "age_s": 90.0,
        "streams": {"flights": {"topic": "flights.events", "next": {"0": 90, "1": 40}}},
        "position": None,
        "bytes": None,
    }
    assert data["tables"][1]["rows"] is None
    assert data["tables"][1]["age_s"] is None
    assert data["tables"][2]["position"] == {"0": 50, "1": 40}
    assert data["layers"][1] == {
        "layer": "silver",
        "topic": "flights.events",
        "progress": "behind",
        "rows": 5,
        "offsets": 90,
        "behind": 50,
        "behind_bronze": 40,
        "newest": "2026-03-01T11:59:56+00:00",
        "freshness_s": 4.0,
    }
    assert data["seconds"] >= 0


def page(state: str, message: str = "") -> dict:
    """The form of ingest's own status page."""
    from tarn.ingest.status import IngestorStatus, State

    status = IngestorStatus(
        state=State(state),
        message=message,
        table="ops.canary",
        topic="tarn.canary",
        committed={0: 5},
        ends={0: 8},
        measured=True,
        rows=4,
        bad_records=1,
        commits=2,
        event_column="sent_at",
        watermark_us=1_700_000_000_000_000,
        complete_us=1_699_999_200_000_000,
    )
    return {"service": "ingest", "ingestors": {"canary": status.to_json()}}


def test_what_ingest_says_is_understood():
    (found,) = ingestors(page("Running"))
    assert (found.name, found.state, found.topic, found.table) == (
        "canary",
        "Running",
        "tarn.canary",
        "ops.canary",
    )
    assert (found.lag, found.rows, found.bad_records, found.commits) == (3, 4, 1, 2)
    assert (found.watermark, found.complete_through) == ("2023-11-14T22:13:20Z", "2023-11-14T22:00:00Z")
    assert ingestors(None) == ingestors({}) == ingestors({"ingestors": [1]}) == ()


def test_what_an_audit_found_is_a_fault_with_what_to_do():
    audits = {
        "a.b": {"findings": ["offsets doubled: 7 twice. What to do: roll back", "another"]},
        "a.fine": {"findings": []},
        "a.new": {},
    }
    seen = status([UP], MemoryLake(), lambda: {**page("Running"), "audits": audits})
    assert not seen.ok
    assert seen.faults == {"audit of a.b": "offsets doubled: 7 twice. What to do: roll back; another"}
    assert audit_faults(None) == audit_faults({"audits": [1]}) == audit_faults({"audits": {"a": 1}}) == {}


def test_why_an_audit_was_not_finished_is_a_note_and_no_fault():
    audits = {
        "a.b": {"findings": [], "reason": "a.b has no column _tarn"},
        "a.fine": {"findings": [], "reason": ""},
        "a.other": 1,
    }
    seen = status([UP], MemoryLake(), lambda: {**page("Running"), "audits": audits})
    assert seen.ok
    note = "the last one was not finished: a.b has no column _tarn"
    assert as_data(seen)["notes"] == seen.notes == {"audit of a.b": note}
    assert audit_reasons(None) == audit_reasons({"audits": [1]}) == {}


def test_an_ingestor_that_is_stuck_is_a_fault_with_its_message():
    seen = status([UP], MemoryLake(), lambda: page("Stopped", "offset gap: seek by hand"))
    assert not seen.ok
    assert seen.faults == {"ingestor canary": "Stopped: offset gap: seek by hand"}
    for fine in ("Starting", "Running", "Finished"):
        assert status([UP], MemoryLake(), lambda fine=fine: page(fine)).ok


def test_a_table_that_was_dropped_meanwhile_is_not_there_and_no_fault():
    lake = MemoryLake({"a.gone": NoSuchTableError("there is no table a.gone"), "b.there": facts("b.there")})
    seen = status([UP], lake)
    assert [table.name for table in seen.tables] == ["b.there"]
    assert seen.ok


def test_a_schema_that_was_dropped_meanwhile_hides_no_other():
    class Catalog:
        def namespaces(self, parent: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
            return [("bronze",), ("gone",), ("silver",)] if not parent else []

        def tables(self, namespace: tuple[str, ...]) -> list[TableName]:
            if namespace == ("gone",):
                raise NoSuchNamespaceError("there is no namespace gone")
            return [TableName(namespace, "t")]

    assert CatalogFacts(Catalog()).tables() == ["bronze.t", "silver.t"]


def test_all_tables_are_named_however_many_namespaces_there_are():
    class Catalog:
        def namespaces(self, parent: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
            return [] if parent else [(f"n{number}",) for number in range(1_500)]

        def tables(self, namespace: tuple[str, ...]) -> list[TableName]:
            return [TableName(namespace, "t")]

    assert len(CatalogFacts(Catalog()).tables()) == 1_500


@pytest.mark.parametrize(
    ("at_ms", "shown"),
    [(1_700_000_000_000_000, "9999-12-31"), (2**63 - 1, "9999-12-31"), (-(2**63), "0001-01-01")],
)
def test_a_time_that_no_calendar_has_keeps_no_table_from_being_shown(at_ms: int, shown: str):
    snapshots = [{"snapshot-id": 1, "timestamp-ms": at_ms, "sequence-number": 1, "summary": {}}]
    refs = {"main": {"snapshot-id": 1, "type": "branch"}}
    state = TableState(
        {"format-version": 2, "table-uuid": "u", "location": "s3://b/t", "refs": refs, "snapshots": snapshots}
    )
    assert f"{facts_of('a.b', state).last_commit:%Y-%m-%d}".rjust(10, "0") == shown
    assert f"{commit_of(state, 1).at:%Y-%m-%d}".rjust(10, "0") == shown


def test_the_facts_of_a_table_with_branches_and_tags_carry_its_name():
    """A stream's map that is beyond a gap of the history is the tag's."""
    offsets_json = offsets("t", p0=5).to_json()
    metadata = {
        "format-version": 2,
        "table-uuid": "u",
        "location": "s3://b/t",
        "refs": {
            "main": {"snapshot-id": 2, "type": "branch"},
            f"{TAG_PREFIX}orders": {"snapshot-id": 1, "type": "tag"},
        },
        "snapshots": [
            {"snapshot-id": 1, "timestamp-ms": 1, "summary": {f"{SUMMARY_PREFIX}orders": offsets_json}},
            {"snapshot-id": 2, "timestamp-ms": 2, "parent-snapshot-id": 7, "summary": {"total-records": "3"}},
        ],
    }
    found = facts_of("bronze.orders", TableState(metadata))
    assert (found.name, found.rows, set(found.streams)) == ("bronze.orders", 3, {"orders"})
