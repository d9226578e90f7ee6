"""Output of the canary's report and of the status for people."""

from __future__ import annotations

import sys
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarn.cli.canary import Report
from tarn.cli.formats import TABLE_COLUMNS_MAX, visible
from tarn.cli.layers import Progress
from tarn.cli.ports import Sizes
from tarn.cli.status import Status, age_s


def report_data(report: Report) -> dict[str, object]:
    """Return a report as JSON types; the format of `tarn canary --json`."""
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
    """Print a report: one line per stage, then the faults.

    Args:
        report: result of a canary run.
        out: console of stdout.
        err: console of stderr, for the faults.
    """
    table = new_table("part", "", "rows>", "seconds>", "seen")
    for stage in report.stages:
        rows = "" if stage.rows is None else str(stage.rows)
        detail = stage.detail if stage.ok else "see below"
        add_row(table, stage.name, "ok" if stage.ok else "FAILED", rows, f"{stage.seconds:.1f}", detail)
    out.print(table)
    for stage in report.stages:
        if not stage.ok:
            err.print(Text(f"{stage.name}: {stage.detail}", style="red"))
    verdict = "The canary went through everything" if report.ok else "The canary did not make it"
    out.print(f"{verdict} in {report.seconds:.1f} s.")


def print_status(seen: Status, out: Console, err: Console) -> None:
    """Print the status: services, layers, ingestors, tables, the notes, then the faults.

    Args:
        seen: status of the lake.
        out: console of stdout.
        err: console of stderr, for the faults.
    """
    out.print(_services(seen))
    if seen.layers:
        out.print()
        out.print(_layers(seen))
    if seen.ingestors:
        out.print()
        out.print(_ingestors(seen))
    out.print()
    out.print(_tables(seen) if seen.tables else _no_tables(seen))
    for name, note in seen.notes.items():
        out.print(Text(visible(f"note: {name}: {note}")))
    printed: set[str] = set()
    services = {s.service: f"{s.service}: {s.detail}" for s in seen.services if not s.ok}
    faults = {name: f"{name}: {fault}" for name, fault in seen.faults.items()}
    for name, line in (*services.items(), *faults.items()):
        reason = line.removeprefix(f"{name}: ")
        if reason not in printed:
            err.print(Text(visible(line), style="red"))
        printed |= {reason, f"{name} {reason}"}


def _services(seen: Status) -> Table:
    table = new_table("service", "", "container", "address", "ms>", "seen")
    for state in seen.services:
        detail = state.detail if state.ok else "see below"
        milliseconds = str(state.milliseconds) if state.address else ""
        word = "ok" if state.ok else "DOWN"
        add_row(table, state.service, word, state.container, state.address, milliseconds, detail)
    return table


def _layers(seen: Status) -> Table:
    topics = {layer.topic for layer in seen.layers}
    named = ["topic"] if len(topics) > 1 else []
    table = new_table("layer", *named, "rows>", "offsets>", "behind>", "newest event", "age>", "")
    for layer in seen.layers:
        add_row(
            table,
            layer.layer,
            *([layer.topic or ""] if named else []),
            _number(layer.rows),
            f"{layer.offsets:,}",
            _number(layer.behind),
            "" if layer.newest is None else f"{layer.newest:%Y-%m-%d %H:%M:%S}Z",
            "" if layer.freshness_s is None else _age(layer.freshness_s),
            PROGRESS[layer.progress].format(bronze=layer.behind_bronze),
        )
    return table


def _sizes(found: Sizes | None) -> tuple[str, str, str]:
    if found is None:
        return "?", "?", "?"
    live = "?" if found.live is None else _bytes(found.live)
    return live, _bytes(found.history), _bytes(found.to_be_removed)


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


PROGRESS = {
    Progress.EMPTY: "holds nothing yet",
    Progress.BEHIND: "catching up",
    Progress.CURRENT: "up to date",
    Progress.IDLE: "up to date; nothing new was produced",
    Progress.UNKNOWN: "Kafka does not tell how far the topic is; {bronze:,} behind bronze",
}


def _ingestors(seen: Status) -> Table:
    timed = any(each.watermark for each in seen.ingestors)
    times = ["watermark", "complete through"] if timed else []
    table = new_table("ingestor", "state", "from", "to", "lag>", "rows>", "bad>", "commits>", *times)
    for each in seen.ingestors:
        counts = (_number(n) for n in (each.lag, each.rows, each.bad_records, each.commits))
        marks = (each.watermark or "", each.complete_through or "") if timed else ()
        add_row(table, each.name, each.state, each.topic, each.table, *counts, *marks)
    return table


def _no_tables(seen: Status) -> str:
    """Why no table is listed: there is none, or nobody could be asked."""
    away = "tables" in seen.faults or any(one.service == "catalog" and not one.ok for one in seen.services)
    return "tables: not known, the catalog could not be asked" if away else "no tables"


def _tables(seen: Status) -> Table:
    table = new_table(
        "table",
        "rows>",
        "files>",
        "deletes>",
        "snapshots>",
        "live>",
        "history>",
        "to go>",
        "last commit",
        "age>",
    )
    for facts in seen.tables:
        age = age_s(facts, seen.at)
        add_row(
            table,
            facts.name,
            *(_number(n) for n in (facts.rows, facts.data_files, facts.delete_files)),
            f"{facts.snapshots:,}",
            *_sizes(seen.sizes.get(facts.name)),
            "never" if facts.last_commit is None else f"{facts.last_commit:%Y-%m-%d %H:%M:%S}Z",
            _age(age) if age is not None else "" if facts.last_commit is None else "?",
        )
    return table


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _age(seconds: float) -> str:
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def new_table(*columns: str) -> Table:
    """Return an empty table; a column whose name ends in > is right-aligned."""
    table = Table(show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row; markup in its cells is shown as it is, control characters are escaped."""
    table.add_row(*(Text(visible(cell)) for cell in cells))


def unwrapped() -> Console:
    """Return a console for stdout that breaks no line; outside a terminal tables are as wide as they need."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else TABLE_COLUMNS_MAX, soft_wrap=True)


def tell_progress(text: str) -> None:
    """Print a progress message on stderr."""
    print(visible(text), file=sys.stderr, flush=True)  # noqa: T201
