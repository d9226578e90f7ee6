"""Status is gathered from whatever answers; a fault is a part of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tarn.cli.ports import Clock, TableFacts
from tarn.cli.status import Look, as_data, freshness_s, gather, ingestors
from tarn.core.errors import TarnError, UnavailableError

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


def away() -> str:
    raise UnavailableError("nobody listens")


UP = Look(service="trino", address="http://trino:8080", look=lambda: "version 483")
DOWN = Look(service="kafka", address="kafka:9092", look=away)


def status(looks, lake, ingest=lambda: {"ingestors": []}):
    return gather(looks, lake, ingest, clock=Clock(), at=AT)


def test_all_well():
    seen = status([UP], MemoryLake({"ops.canary": facts("ops.canary"), "a.b": facts("a.b")}))
    assert seen.ok
    assert [(s.service, s.ok, s.detail) for s in seen.services] == [("trino", True, "version 483")]
    assert [t.name for t in seen.tables] == ["a.b", "ops.canary"]
    assert seen.ingest == {"ingestors": []}


def test_one_service_down_is_shown_among_the_others():
    seen = status([UP, DOWN], MemoryLake())
    assert not seen.ok
    assert [(s.service, s.ok, s.detail) for s in seen.services] == [
        ("trino", True, "version 483"),
        ("kafka", False, "nobody listens"),
    ]


def test_a_catalog_that_is_away_and_an_ingest_that_is_away_are_told():
    seen = status([UP], MemoryLake(down=True), away)
    assert not seen.ok
    assert seen.tables == ()
    assert seen.faults == {"catalog": "the catalog is away"}
    assert seen.ingest is None


def test_one_table_that_cannot_be_read_does_not_hide_the_others():
    seen = status([UP], MemoryLake({"a.b": facts("a.b"), "c.d": TarnError("broken metadata")}))
    assert [t.name for t in seen.tables] == ["a.b"]
    assert seen.faults == {"c.d": "broken metadata"}
    assert not seen.ok


def test_freshness_is_the_age_of_the_last_commit_and_never_negative():
    assert freshness_s(facts("t"), AT) == 90
    assert freshness_s(facts("t", last_commit=None), AT) is None
    assert freshness_s(facts("t", last_commit=AT + timedelta(seconds=3)), AT) == 0


def test_the_data_form_is_json_and_keeps_every_fact():
    seen = status(
        [UP, DOWN], MemoryLake({"a.b": facts("a.b"), "e.f": facts("e.f", rows=None, last_commit=None)})
    )
    data = json.loads(json.dumps(as_data(seen)))
    assert data["ok"] is False
    assert data["services"][1]["detail"] == "nobody listens"
    assert data["tables"][0] == {
        "name": "a.b",
        "format_version": 2,
        "rows": 5,
        "data_files": 2,
        "delete_files": 0,
        "snapshots": 3,
        "last_commit": "2026-03-01T11:58:30+00:00",
        "freshness_s": 90.0,
    }
    assert data["tables"][1]["rows"] is None
    assert data["tables"][1]["freshness_s"] is None


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
        rows=4,
        bad_records=1,
        commits=2,
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
    assert ingestors(None) == ingestors({}) == ingestors({"ingestors": [1]}) == ()


def test_an_ingestor_that_is_stuck_is_a_fault_with_its_message():
    seen = status([UP], MemoryLake(), lambda: page("Stopped", "offset gap: seek by hand"))
    assert not seen.ok
    assert seen.faults == {"ingestor canary": "Stopped: offset gap: seek by hand"}
    for fine in ("Starting", "Running", "Finished"):
        assert status([UP], MemoryLake(), lambda fine=fine: page(fine)).ok
