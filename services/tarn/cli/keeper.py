"""`tarn fsck`, `backup` and `restore`: the lake as a whole. They run in `keeper`, the last in `bootstrap`.

A backup is a stream: written to stdout and read from stdin, so that no container needs a folder of the host.
`scripts/tarn` connects files to these streams.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarn.cli.formats import visible
from tarn.cli.settings import Settings
from tarn.core.credentials import ACCESS_KEY_FILE, ROOT_FILES, SECRET_KEY_FILE
from tarn.core.errors import InvalidError, TarnError, UnavailableError
from tarn.core.exit_codes import INTERRUPTED
from tarn.core.producers import source_of
from tarn.core.trail import TOPIC_PREFIX as TRAIL_PREFIX

if TYPE_CHECKING:
    from tarn.adapters.bulk import S3Bulk
    from tarn.keeper.fsck import Report

CLEAN, DAMAGED, BLIND = 0, 1, 2
PIPE_COLUMNS = 160
MIB = 1024 * 1024

app = typer.Typer()

KAFKA_NOTICE = (
    "Kafka's log is no part of a backup. If this stack still has its log (only the store was lost), ingest "
    "goes on by itself and brings in what came after the backup. If its Kafka is new, each of these streams "
    "stops with SourceChanged, and nothing is lost or doubled: docs/operations.md, The new log, says how "
    "each goes on. Rows over HTTP and the tables of Tarn's own trail go on by themselves"
)


@app.command()
def fsck(
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")] = False,
) -> None:
    """Look at the whole lake and say what is damaged. 0: clean; 1: damage; 2: could not look."""
    # A container that is stopped ends as by Ctrl-C: the hold on the reaper is removed, and the end recorded.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report, recorded = _looked()
    except TarnError as error:
        print(  # noqa: T201
            f"tarn fsck: could not look: {error.message}. Nothing is known of the lake: run it again",
            file=sys.stderr,
        )
        raise typer.Exit(BLIND) from error
    except KeyboardInterrupt:
        print("tarn fsck: interrupted, so nothing is known of the lake: run it again", file=sys.stderr)  # noqa: T201
        raise typer.Exit(INTERRUPTED) from None
    if as_json_:
        print(json.dumps({**report.data(), "recorded": recorded}))  # noqa: T201
    else:
        _print(report, Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS))
    raise typer.Exit(DAMAGED if report.damage else CLEAN)


def _looked() -> tuple[Report, bool]:
    """Look, and record that; returns what was found, and whether the status API shows it from now on.

    Raises:
        TarnError: could not look.
    """
    from tarn.adapters import manifest_audit
    from tarn.keeper.fsck import fsck as look
    from tarn.keeper.fsck_record import Recording, recorded

    settings = Settings.read()
    store = _store(settings)
    run = Recording(
        store,
        run=uuid.uuid4().hex,
        version=package_version("tarn"),
        now_ms=lambda: time.time_ns() // 1_000_000,
        tell=_tell,
    )
    with recorded(run):
        report = look(store, manifest_audit, bucket=settings.bucket, tell=run.tell)
        return report, run.done(report)


@app.command()
def backup() -> None:
    """Write a backup of the lake to stdout. Use it as: scripts/tarn backup lake.tar."""
    from tarn.adapters import manifest_audit
    from tarn.keeper.archive import Begin
    from tarn.keeper.backup import backup as copy

    if sys.stdout.isatty():
        raise InvalidError("a backup is no text: name a file, as in scripts/tarn backup lake.tar")
    settings = Settings.read()
    begin = Begin(
        id=uuid.uuid4().hex,
        bucket=settings.bucket,
        warehouse=settings.warehouse,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        version=package_version("tarn"),
    )
    try:
        done = copy(_store(settings), manifest_audit, sys.stdout.buffer, begin, tell=_tell)
    except OSError as error:
        raise UnavailableError(
            f"the backup could not be written: {error.strerror or error}; what is there of it is cut short, "
            "and no restore takes it. Free some space and take it again"
        ) from error
    end = done.end
    _tell(
        f"{end.tables} tables, {end.objects} objects, {end.bytes / MIB:.1f} MiB in {done.seconds:.1f} s "
        f"({done.mib_per_s:.0f} MiB/s)"
    )
    if done.whole:
        return
    for location in end.missing[:20]:
        _tell(f"not in the backup, as the lake has nothing under this name: {location}")
    for finding in done.findings:
        _tell(f"{finding.where}: {finding.kind.value}: {finding.what}")
    _tell(
        f"The backup holds everything that can be read; {end.missing_count} files and {len(done.findings)} "
        "other things are damaged in the lake itself: scripts/tarn fsck tells more."
    )
    raise typer.Exit(DAMAGED)


@app.command()
def restore() -> None:
    """Put a backup from stdin into an empty lake. Use it as: scripts/tarn restore lake.tar."""
    from tarn.keeper.restore import restore as put

    if sys.stdin.isatty():
        raise InvalidError("no backup on stdin: name a file, as in scripts/tarn restore lake.tar")
    settings = Settings.read()
    store = _store(settings, names=ROOT_FILES)
    done = put(store, sys.stdin.buffer, bucket=settings.bucket, warehouse=settings.warehouse, tell=_tell)
    end = done.end
    again = f", {done.present} of them were there already" if done.present else ""
    _tell(
        f"{end.tables} tables, {end.objects} objects{again}, {end.bytes / MIB:.1f} MiB "
        f"in {done.seconds:.1f} s ({done.mib_per_s:.0f} MiB/s)"
    )
    if end.missing:
        _tell(
            f"{end.missing_count} files were missing in the lake that was backed up, first {end.missing[0]}"
        )
    streams = [stream for stream in end.streams if _is_of_kafka(stream)]
    for line in stream_lines(streams):
        _tell(line)
    if streams:
        _tell(KAFKA_NOTICE + ".")


def _is_of_kafka(stream: Mapping[str, Any]) -> bool:
    """Whether a new Kafka stops a stream: those of rows over HTTP and of the trail have no topic there."""
    over_http = source_of("")
    if (stream.get("cluster"), stream["topic"]) == (over_http.cluster, over_http.topic):
        return False
    return not str(stream["topic"]).startswith(TRAIL_PREFIX)


def stream_lines(streams: Sequence[Mapping[str, Any]]) -> list[str]:
    """Position of each stream in the backup, one line each."""
    return [
        f"stream {s['stream']} -> {s['table']}: topic {s['topic']} ({s['topic_id']}), next offsets "
        + ", ".join(f"{partition}: {offset}" for partition, offset in s["next"].items())
        for s in streams
    ]


def _store(settings: Settings, names: tuple[str, str] = (ACCESS_KEY_FILE, SECRET_KEY_FILE)) -> S3Bulk:
    from tarn.adapters.bulk import S3Bulk

    return S3Bulk(**settings.store_access(*names))


def _print(report: Report, out: Console) -> None:
    """Print the findings, then the counts."""
    if report.findings:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("", "where", "finding", "what to do"):
            table.add_column(column, overflow="fold")
        for found in (*report.damage, *report.notes):
            what = f"{found.kind.value}: {found.what}"
            cells = "DAMAGE" if found.damage else "note", found.where, what, found.fix
            table.add_row(*(Text(visible(cell)) for cell in cells))
        out.print(table)
        out.print()
    out.print(
        f"{report.tables} tables in {report.namespaces} namespaces, {report.tombstones} dropped names, "
        f"{report.snapshots} snapshots, {report.files} files of {report.bytes / MIB:.1f} MiB; "
        f"{report.orphans} objects of {report.orphan_bytes / MIB:.1f} MiB that nothing names "
        f"(what waits for the reaper, commits that lost a race, dropped tables)."
    )
    for line in stream_lines(report.data()["streams"]):
        out.print(visible(line), markup=False)
    count = len(report.damage)
    damage = f"{count} findings of damage" if count > 1 else "1 finding of damage"
    verdict = damage if count else "The lake is whole"
    out.print(f"{verdict} ({report.seconds:.1f} s).")
    if report.damage:
        out.print(
            "What to do: as each finding says. Nothing is mended by itself; then run scripts/tarn fsck again."
        )


def _tell(text: str) -> None:
    print(visible(text), file=sys.stderr, flush=True)  # noqa: T201
