"""The canary's report and the status, laid out for people."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarn.cli.canary import Report
from tarn.cli.status import Status, freshness_s, ingestors


def report_data(report: Report) -> dict[str, object]:
    """Return a report as plain data; the form of `tarn canary --json`."""
    return {
        "ok": report.ok,
        "seconds": round(report.seconds, 3),
        "row": {
            "id": report.row.id,
            "sent_at": report.row.sent_at.isoformat(),
            "note": report.row.note,
        },
        "stages": [{**asdict(stage), "seconds": round(stage.seconds, 3)} for stage in report.stages],
    }


def print_report(report: Report, out: Console, err: Console) -> None:
    """Print a report: one line per part, then what went wrong."""
    table = _table("part", "", "rows>", "seconds>", "seen")
    for stage in report.stages:
        rows = "" if stage.rows is None else str(stage.rows)
        detail = stage.detail if stage.ok else "see below"
        _add(table, stage.name, "ok" if stage.ok else "FAILED", rows, f"{stage.seconds:.1f}", detail)
    out.print(table)
    for stage in report.stages:
        if not stage.ok:
            err.print(Text(f"{stage.name}: {stage.detail}", style="red"))
    verdict = "The canary went through everything" if report.ok else "The canary did not make it"
    out.print(f"{verdict} in {report.seconds:.1f} s.")


def print_status(seen: Status, out: Console, err: Console) -> None:
    """Print the status: services, ingestors, tables, then what is wrong."""
    services = _table("service", "", "address", "ms>", "seen")
    for state in seen.services:
        detail = state.detail if state.ok else "see below"
        word = "ok" if state.ok else "DOWN"
        _add(services, state.service, word, state.address, str(state.milliseconds), detail)
    out.print(services)
    if found := ingestors(seen.ingest):
        table = _table("ingestor", "state", "from", "to", "lag>", "rows>", "bad>", "commits>")
        for each in found:
            counts = (f"{n:,}" for n in (each.lag, each.rows, each.bad_records, each.commits))
            _add(table, each.name, each.state, each.topic, each.table, *counts)
        out.print()
        out.print(table)
    tables = _table("table", "rows>", "files>", "deletes>", "snapshots>", "last commit", "age>")
    for facts in seen.tables:
        age_s = freshness_s(facts, seen.at)
        _add(
            tables,
            facts.name,
            *("?" if n is None else f"{n:,}" for n in (facts.rows, facts.data_files, facts.delete_files)),
            f"{facts.snapshots:,}",
            "never" if facts.last_commit is None else f"{facts.last_commit:%Y-%m-%d %H:%M:%S}Z",
            "" if age_s is None else _age(age_s),
        )
    out.print()
    out.print(tables if seen.tables else "no tables")
    for state in seen.services:
        if not state.ok:
            err.print(Text(f"{state.service}: {state.detail}", style="red"))
    for name, fault in seen.faults.items():
        err.print(Text(f"{name}: {fault}", style="red"))


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _table(*columns: str) -> Table:
    """Return an empty table; a column whose name ends in > is flush right."""
    table = Table(show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))
