"""Query results as a table, records, JSON or CSV."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tarn.cli.ports import Answer

CELL_CHARS_MAX = 200
TABLE_COLUMNS_MAX = 100_000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(value: object) -> Any:
    """Convert a value to JSON types without loss: decimals and times become strings, bytes base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if value == value and abs(value) != float("inf") else str(value)
        case datetime():
            return _stamp(value)
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(bytes(value)).decode()
        case Decimal() | UUID():
            return str(value)
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(item) for item in value]
        case _:
            return str(value)


def as_json(answer: Answer) -> str:
    """Return a JSON object with columns, rows (as lists, since names may occur twice) and truncated."""
    return json.dumps(
        {
            "columns": list(answer.columns),
            "rows": [[plain(value) for value in row] for row in answer.rows],
            "truncated": answer.truncated,
        }
    )


def as_csv(answer: Answer) -> str:
    """Return the rows as CSV with a header; null is empty, nested values are JSON."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(answer.columns)
    for row in answer.rows:
        writer.writerow(["" if value is None else cell(value) for value in row])
    return stream.getvalue()


def as_table(answer: Answer) -> Table:
    """Return the rows as a table; long values are truncated."""
    table = Table(show_edge=False, pad_edge=False)
    for column in answer.columns:
        table.add_column(Text(visible(column)), overflow="fold")
    for row in answer.rows:
        table.add_row(*(_shown(value) for value in row))
    return table


def as_records(answer: Answer) -> Text:
    """Return the rows as records, one line per value; long values are truncated."""
    columns = [visible(column) for column in answer.columns]
    width = max(map(cell_len, columns), default=0)
    lines = []
    for number, row in enumerate(answer.rows, start=1):
        lines.append(f"─[ row {number} ]{'─' * max(width - 6, 3)}")
        for column, value in zip(columns, row, strict=True):
            # Keep a multi-line value beside its name.
            text = _shown(value).plain.replace("\n", "\n" + " " * width + " │ ")
            lines.append(f"{column}{' ' * (width - cell_len(column))} │ {text}")
    return Text("\n".join(lines))


def page(answer: Answer, console: Console) -> Iterator[RenderableType]:
    """Yield the output for people: rows as a table if it fits, else as records; then the number of rows.

    A file or pipe has room for any table: nothing is squeezed there.
    """
    if answer.columns:
        table = as_table(answer)
        room = console.options.update_width(TABLE_COLUMNS_MAX)
        wide = console.is_terminal and console.measure(table, options=room).maximum > console.width
        yield as_records(answer) if wide and answer.rows else table
    count = len(answer.rows)
    yield Text(f"({'first ' if answer.truncated else ''}{count:,} {'row' if count == 1 else 'rows'})")


def cell(value: object) -> str:
    """Return one value as a string."""
    flat = plain(value)
    return flat if isinstance(flat, str) else json.dumps(flat)


def visible(text: str) -> str:
    """The text with control characters escaped, but for tabs and line breaks.

    Whoever may send a message could otherwise write to the terminal of whoever looks at it.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _shown(value: object) -> Text:
    text = "NULL" if value is None else visible(cell(value))
    return Text(text if len(text) <= CELL_CHARS_MAX else f"{text[: CELL_CHARS_MAX - 1]}…")


def _stamp(value: datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    try:
        value = value.astimezone(UTC)
    except OverflowError:  # in the first or the last hours of the calendar: it stays in its own zone
        return value.isoformat()
    return value.isoformat().replace("+00:00", "Z")
