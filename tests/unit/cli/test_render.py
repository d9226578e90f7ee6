"""Text output for users."""

from __future__ import annotations

import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from tarn.cli import keeper
from tarn.cli.canary import CanaryRow, Report, Stage
from tarn.cli.layers import LayerState, Progress
from tarn.cli.ports import TableFacts
from tarn.cli.render import _age, print_report, print_status, tell_progress
from tarn.cli.status import IngestorFacts, ServiceState, Status
from tarn.core.audit.model import Finding, Kind
from tarn.core.audit.offsets import Stand
from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn.core.years import moment_of
from tarn.keeper.fsck import Report as FsckReport

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def consoles() -> tuple[Console, Console]:
    return Console(file=io.StringIO(), width=160), Console(file=io.StringIO(), width=160, soft_wrap=True)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_status_shows_a_row_per_service_layer_ingestor_and_table_and_faults_apart():
    services = (
        ServiceState(service="minio", address="http://minio:9000", ok=True, detail="answers", milliseconds=4),
        ServiceState(
            service="kafka",
            address="kafka:9092",
            ok=False,
            detail="[red]away[/red]",
            milliseconds=5000,
            container="unhealthy",
        ),
        ServiceState(service="pipeline", address="", ok=True, detail="", milliseconds=0, container="healthy"),
    )
    table = TableFacts(
        name="ops.canary",
        format_version=2,
        rows=1234567,
        data_files=None,
        delete_files=0,
        snapshots=3,
        last_commit=AT - timedelta(minutes=10),
    )
    layers = (
        layer("bronze", Progress.IDLE, behind=0, freshness_s=600.0),
        layer("silver", Progress.UNKNOWN, behind=None, freshness_s=None),
    )
    entry = IngestorFacts(name="flights", state="?", topic="flights.events", table="bronze.x", lag=7)
    out, err = consoles()
    faults = {"a.b": "broken", "offsets": "[red]away[/red]"}
    print_status(
        Status(at=AT, services=services, layers=layers, ingestors=(entry,), tables=(table,), faults=faults),
        out,
        err,
    )
    shown = text(out)
    for first, parts in (
        ("minio", ("ok", "answers")),
        ("kafka", ("DOWN", "see below", "unhealthy")),
        ("pipeline", ("ok", "healthy")),
        ("bronze ", ("1,200", "nothing new was produced", "10 min")),
        ("silver", ("? ", "300 behind bronze")),
        ("flights", ("flights.events", "bronze.x", "7", "?")),
        ("ops.canary", ("1,234,567", "?", "3", "2026-03-01 11:50:00Z", "10 min")),
    ):
        (row,) = [line for line in shown.splitlines() if line.startswith(first)]
        for part in parts:
            assert part in row, (first, part)
    assert text(err).splitlines() == ["kafka: [red]away[/red]", "a.b: broken"]


def test_an_age_that_is_unknown_is_shown_as_such() -> None:
    table = TableFacts(
        name="a.b",
        format_version=2,
        rows=1,
        data_files=1,
        delete_files=0,
        snapshots=1,
        last_commit=moment_of(2**62),
    )
    out, err = consoles()
    print_status(
        Status(at=AT, services=(), tables=(table, replace(table, name="c.d", last_commit=None))), out, err
    )
    shown = [[cell.strip() for cell in line.split("│")][-2:] for line in text(out).splitlines()]
    assert ["9999-12-31 23:59:59Z", "?"] in shown
    assert ["never", ""] in shown


def test_watermarks_are_shown_if_a_stream_has_one() -> None:
    plain = IngestorFacts(name="plain", state="Running", topic="t", table="a.b", lag=0)
    timed = replace(
        plain, name="timed", watermark="2026-03-01T11:59:58Z", complete_through="2026-03-01T11:00:00Z"
    )
    shown = []
    for ingestors in ((plain,), (plain, timed)):
        out, err = consoles()
        print_status(Status(at=AT, services=(), tables=(), ingestors=ingestors), out, err)
        shown.append(text(out))
    assert "watermark" not in shown[0]
    (row,) = [line for line in shown[1].splitlines() if line.startswith("timed")]
    assert [cell.strip() for cell in row.split("│")][-2:] == ["2026-03-01T11:59:58Z", "2026-03-01T11:00:00Z"]


def layer(
    name: str,
    progress: Progress,
    *,
    behind: int | None = 0,
    freshness_s: float | None = None,
    topic: str = "flights.events",
) -> LayerState:
    return LayerState(
        layer=name,
        topic=topic,
        progress=progress,
        rows=1200,
        offsets=1300,
        behind=behind,
        behind_bronze=300,
        newest=None,
        freshness_s=freshness_s,
    )


def test_the_topic_of_a_layer_is_shown_where_there_are_several():
    def shown(*topics: str) -> str:
        out, err = consoles()
        layers = tuple(layer("bronze", Progress.CURRENT, topic=topic) for topic in topics)
        print_status(Status(at=AT, services=(), layers=layers, tables=()), out, err)
        return text(out)

    assert "orders" not in shown("orders")
    assert "topic" in shown("orders", "flights.events")
    assert "orders" in shown("orders", "flights.events")


def test_the_report_shows_a_row_per_part_and_what_went_wrong_apart():
    stages = (
        Stage(name="kafka", ok=True, rows=1, seconds=0.12, detail="partition 0, offset 3"),
        Stage(name="trino", ok=False, rows=None, seconds=60.0, detail="trino is away: start it"),
    )
    out, err = consoles()
    row = CanaryRow(id="x", sent_at=AT, note="")
    print_report(Report(row=row, stages=stages, seconds=61.04), out, err)
    assert any("kafka" in line and "0.1" in line and "offset 3" in line for line in text(out).splitlines())
    assert "The canary did not make it in 61.0 s." in text(out)
    assert text(err) == "trino: trino is away: start it\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_ages_are_told_in_the_unit_that_says_most(seconds, shown):
    assert _age(seconds) == shown


@pytest.mark.parametrize("name", ["orders[/x]", "orders[bold]", "orders\x1b[2J"])
def test_findings_are_printed_as_they_are(name: str):
    out, _ = consoles()
    keeper._print(FsckReport(findings=[Finding(kind=Kind.DOUBLE, where=name, what="w", fix="f")]), out)
    assert name.replace("\x1b", "\\x1b") in text(out)


def test_names_of_streams_are_printed_without_control_characters(capsys: pytest.CaptureFixture[str]):
    """Who may write a table names its streams."""
    source = TopicIdentity(cluster="c", topic="t", topic_id="d")
    report = FsckReport(
        streams=[Stand(table="b", stream="a\x1b[2J", map=OffsetMap(source=source, next={0: 1}))]
    )
    out, _ = consoles()
    keeper._print(report, out)
    keeper._tell("a\x1b[2J")
    tell_progress("a\x1b[2J")
    assert "stream a\\x1b[2J -> b" in text(out)
    assert capsys.readouterr().err == "a\\x1b[2J\n" * 2


def test_notes_of_the_status_are_on_stdout():
    out, err = Console(file=io.StringIO(), width=160), Console(file=io.StringIO(), width=160)
    notes = {"audit of a.b": "the last one was not finished: a.b has [no] column _tarn"}
    print_status(Status(at=AT, services=(), tables=(), notes=notes), out, err)
    assert (
        "note: audit of a.b: the last one was not finished: a.b has [no] column _tarn" in out.file.getvalue()
    )
    assert err.file.getvalue() == ""


def test_no_table_is_not_the_same_as_nobody_to_ask():
    """A lake whose catalog is away is not empty."""

    def shown(*, ok: bool, **faults: str) -> str:
        out, err = consoles()
        found = ServiceState(service="catalog", address="", ok=ok, detail="", milliseconds=0)
        print_status(Status(at=AT, services=(found,), tables=(), faults=faults), out, err)
        return text(out).splitlines()[-1]

    assert shown(ok=True) == "no tables"
    unknown = "tables: not known, the catalog could not be asked"
    assert shown(ok=False) == shown(ok=True, tables="away") == unknown
