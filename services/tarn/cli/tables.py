"""Commands that change or examine one table."""

from __future__ import annotations

import json
import re
import sys
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tarn.cli import wiring
from tarn.cli.formats import TABLE_COLUMNS_MAX, visible
from tarn.cli.ports import Offsets
from tarn.cli.settings import Settings
from tarn.core.errors import InvalidError
from tarn.core.table_catalog import TableName

if TYPE_CHECKING:
    from tarn.cli.rollback import RolledBack
    from tarn.core.offsets import OffsetMap

DOTTED = re.compile(r"[^.\x00-\x1f\x7f-\x9f]+(\.[^.\x00-\x1f\x7f-\x9f]+)*")
"""Names with dots between them. A name may have spaces; what else it may not have, the catalog says."""

app = typer.Typer()


@app.command()
def rollback(
    table: Annotated[str, typer.Argument(help="Namespace and name, such as bronze.orders.")],
    to: Annotated[str, typer.Option(help="A snapshot id, a tag or a branch.")],
    offsets: Annotated[
        Offsets | None,
        typer.Option(help="rewind: read again from Kafka. keep: leave it out, and go on."),
    ] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")] = False,
) -> None:
    """Take a table back to one of its snapshots, with or without the offsets of its streams."""
    from tarn.cli.rollback import roll_back

    name = table_name(table)
    done = roll_back(wiring.rollback_ports(Settings.read()), name, to, offsets)
    if as_json_:
        print(json.dumps(rollback_data(done)))  # noqa: T201
        return
    out = Console(highlight=False, width=None if sys.stdout.isatty() else TABLE_COLUMNS_MAX)
    for line in rollback_lines(done):
        out.print(visible(line), soft_wrap=True, markup=False)


def table_name(text: str) -> TableName:
    """Return the identifier of a qualified name.

    Raises:
        InvalidError: the name has no namespace, or an empty part.
    """
    if not (DOTTED.fullmatch(text) and "." in text):
        raise InvalidError(f"{text!r} is not the name of a table; write NAMESPACE.TABLE, such as ops.canary")
    *levels, name = text.split(".")
    return TableName(tuple(levels), name)


def rollback_data(done: RolledBack) -> dict[str, Any]:
    """Return a rollback as JSON types; the format of `tarn rollback --json`."""
    return {
        "table": done.table,
        "before": done.before,
        "target": done.target,
        "tag": done.tag,
        "rows": {"before": done.rows[0], "after": done.rows[1]},
        "streams": {
            stream: {"before": _next(before), "after": _next(after)}
            for stream, (before, after) in done.streams.items()
        },
    }


def rollback_lines(done: RolledBack) -> list[str]:
    """Return what a person reads after a rollback."""
    before, after = ("?" if rows is None else f"{rows:,}" for rows in done.rows)
    lines = [f"{done.table} has the rows of snapshot {done.target}: {after} (before: {before})."]
    for stream, (was, now) in done.streams.items():
        if was == now:
            lines.append(f"stream {stream}: goes on at {_words(now)}; what was rolled back stays away.")
        else:
            lines.append(f"stream {stream}: reads again from {_words(now)} (it was at {_words(was)}).")
    if done.tag is not None:
        again = f"To go back: scripts/tarn rollback {quote(done.table)} --to {done.tag}"
        if not done.returns:
            again = "They state no offsets, so no rollback goes back to them: query them by the tag."
        elif done.streams:
            again += " --offsets rewind"
        lines.append(f"Tag {done.tag} keeps the former rows until it is dropped. {again}")
    lines.append("Tables that were derived from it are as they were: drop them, and they are filled again.")
    return lines


def _next(found: OffsetMap | None) -> dict[str, int] | None:
    return None if found is None else {str(p): offset for p, offset in found.next.items()}


def _words(found: OffsetMap | None) -> str:
    if found is None or not found.next:
        return "the beginning of its topic"
    return ", ".join(f"{offset} in partition {p}" for p, offset in found.next.items())
