"""`tarn audit` and `tarn trace`: whether a table has every message of its streams once, and where one is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from tarn.cli import wiring
from tarn.cli.formats import visible
from tarn.cli.render import add_row, new_table, tell_progress, unwrapped
from tarn.cli.settings import Settings
from tarn.cli.tables import table_name
from tarn.core.errors import InvalidError, NotFoundError
from tarn.core.exit_codes import FAILED, OK

if TYPE_CHECKING:
    from tarn.cli.trace import Trace
    from tarn.ingest.audit import Report

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]


@app.command()
def audit(
    table: Annotated[str, typer.Argument(help="A table, with its namespace.", metavar="TABLE")],
    as_json_: Json = False,
) -> None:
    """Account for every message of a table's streams. 0: each is there once; 1: some are not."""
    from tarn.ingest.audit import audit as account

    table_name(table)
    with wiring.lake_ports(Settings.read(), tell_progress) as ports:
        try:
            report = account(table, ports)
        except NotFoundError as error:
            raise _no_table(error) from error
    if as_json_:
        print(json.dumps(report.data()))  # noqa: T201
    else:
        print_audit(report, unwrapped())
    raise typer.Exit(OK if report.whole else FAILED)


@app.command()
def trace(
    message: Annotated[str, typer.Argument(help="Such as orders/0/1234.", metavar="TOPIC/PARTITION/OFFSET")],
    as_json_: Json = False,
    table: Annotated[
        str | None, typer.Option(help="Search this table only, not all.", metavar="TABLE", show_default=False)
    ] = None,
) -> None:
    """Find one message: its file and commit, or its dead letter. 0: found; 1: not found."""
    from tarn.cli.trace import parse_message
    from tarn.cli.trace import trace as find

    wanted = parse_message(message)
    if table is not None:
        table_name(table)
    with wiring.lake_ports(Settings.read(), tell_progress) as ports:
        try:
            found = find(wanted, ports, table=table)
        except NotFoundError as error:
            raise _no_table(error) from error
    if as_json_:
        print(json.dumps(found.data()))  # noqa: T201
    else:
        print_trace(found, unwrapped())
    raise typer.Exit(OK if found.ok else FAILED)


def print_audit(report: Report, out: Console) -> None:
    """Print an audit: a line per partition, the findings, the verdict."""
    table = new_table(
        "stream",
        "topic",
        "partition>",
        "next offset>",
        "rows>",
        "dead letters>",
        "without record>",
        "unknown>",
        "missing>",
        "doubled>",
    )
    for account in report.accounts:
        counts = (
            account.partition,
            account.next,
            account.rows.rows,
            account.letters.rows,
            len(account.without_record),
            len(account.unknown),
            len(account.missing),
            len(account.doubled),
        )
        add_row(table, " + ".join(account.streams), account.topic, *(f"{count:,}" for count in counts))
    out.print(table)
    out.print()
    for finding in sorted(report.findings, key=lambda found: not found.damage):
        word = "DAMAGE" if finding.damage else "note"
        said = f"{word}: {finding.where}: {finding.kind.value}: {finding.what}. Do: {finding.fix}."
        out.print(Text(visible(said)))
    for topic, reason in report.unasked.items():
        out.print(Text(visible(f"The log of {topic} was not asked about everything: {reason}.")))
    out.print(Text(verdict(report)))


def verdict(report: Report) -> str:
    """The result in one sentence."""
    accounts = report.accounts
    rows, letters = (
        sum(tally.rows for tally in tallies)
        for tallies in ([a.rows for a in accounts], [a.letters for a in accounts])
    )
    unknown = sum(len(account.unknown) for account in accounts)
    deleted = sum(len(account.deleted) for account in accounts)
    counted = f"{rows:,} rows in {report.files:,} files and {letters:,} dead letters"
    if not report.whole:
        return f"{report.table} is damaged, as said above: {counted} ({report.seconds:.1f} s)."
    if unknown:
        return (
            f"Nothing is doubled or known to be missing in {report.table}: {counted}; {unknown:,} offsets "
            f"have neither, and the log no longer says whether they had a record ({report.seconds:.1f} s)."
        )
    if deleted:
        return (
            f"Every message of its streams was added to {report.table} once: {counted}; another engine "
            f"deleted {deleted:,} rows since ({report.seconds:.1f} s)."
        )
    return f"Every message of its streams is in {report.table} once: {counted} ({report.seconds:.1f} s)."


def print_trace(found: Trace, out: Console) -> None:
    """Print where a message is, with one paragraph per stream."""
    for each in found.found:
        out.print(Text(visible(f"{found.message} in {each.table} (stream {each.stream}): {each.what}")))
        for file in each.files:
            commit = file.commit
            at = "its history is expired" if commit.at is None else f"{commit.at:%Y-%m-%d %H:%M:%S}Z"
            out.print(Text(visible(f"  file      {file.path}")))
            out.print(Text(f"  snapshot  {commit.snapshot_id}, {at}"))
            by = "another writer's" if commit.at is not None else "no longer known"
            out.print(Text(visible(f"  commit    {commit.commit_id or by}")))
        for letter in each.letters:
            reason = f"  reason    {letter.reason} (decoded {letter.at:%Y-%m-%d %H:%M:%S}Z)"
            out.print(Text(visible(reason)))


def _no_table(error: NotFoundError) -> InvalidError:
    return InvalidError(f"{error.message}; scripts/tarn status lists the tables there are")
