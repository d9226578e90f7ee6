"""One table's history as data: the steps that the writers take, and the expected rows after each.

The expectation is plain Python over the steps' own values, without any engine or library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

Row = Mapping[str, Any]

COLUMNS = {
    "id": "long",
    "kind": "string",
    "name": "string",
    "amount": "decimal(10, 2)",
    "score": "double",
    "seen": "timestamptz",
    "day": "date",
    "ok": "boolean",
}
"""Name -> Iceberg type of the columns that a table is created with; it is partitioned by `kind`."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append rows in one commit."""

    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Ingest:
    """Append rows through ingest, whichever writer the table belongs to."""

    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete rows by id: some rows of a file."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class DeleteKind:
    """Delete all rows of a kind: whole files, as the table is partitioned by it."""

    kind: str


@dataclass(frozen=True, slots=True)
class Update:
    """Update rows by id."""

    ids: Sequence[int]
    values: Row


@dataclass(frozen=True, slots=True)
class Merge:
    """Upsert rows by id and delete others; one commit if there is a statement for it."""

    rows: Sequence[Row]
    gone: Sequence[int]


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column that is null in earlier rows."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Rename:
    """Rename a column."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Repartition:
    """Partition by month of `day` and four buckets of `id` from now on, and no longer by `kind`."""


@dataclass(frozen=True, slots=True)
class Compact:
    """Rewrite the same rows into fewer files."""


Step = Append | Ingest | Delete | DeleteKind | Update | Merge | AddColumn | Rename | Repartition | Compact


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a table.

    Attributes:
        columns: name -> type, in order.
        rows: id -> row; a value that is not listed is null.
    """

    columns: Mapping[str, str] = field(default_factory=lambda: dict(COLUMNS))
    rows: Mapping[int, Row] = field(default_factory=dict)

    def after(self, step: Step) -> Content:
        """The content after a step."""
        match step:
            case Append(rows) | Ingest(rows):
                return self._with(dict(self.rows) | {row["id"]: row for row in rows})
            case Delete(ids):
                return self._with({i: row for i, row in self.rows.items() if i not in ids})
            case DeleteKind(kind):
                return self._with({i: row for i, row in self.rows.items() if row.get("kind") != kind})
            case Update(ids, values):
                return self._with({i: {**r, **values} if i in ids else r for i, r in self.rows.items()})
            case Merge(rows, gone):
                merged = dict(self.rows) | {row["id"]: row for row in rows}
                return self._with({i: row for i, row in merged.items() if i not in gone})
            case AddColumn(name, kind):
                return replace(self, columns={**self.columns, name: kind})
            case Rename(old, new):
                columns = {new if name == old else name: kind for name, kind in self.columns.items()}
                rows = {
                    i: {new if n == old else n: value for n, value in row.items()}
                    for i, row in self.rows.items()
                }
                return Content(columns, rows)
            case Repartition() | Compact():
                return self

    def tuples(self) -> list[tuple[Any, ...]]:
        """The rows sorted by id, each with a value for every column."""
        return [tuple(self.rows[i].get(name) for name in self.columns) for i in sorted(self.rows)]

    def _with(self, rows: Mapping[int, Row]) -> Content:
        return replace(self, rows=rows)


def row(number: int, kind: str, **others: Any) -> Row:
    """A row whose values are all derived from its number; every third one has nulls."""
    values: dict[str, Any] = {
        "id": number,
        "kind": kind,
        "name": f"n{number} ä'\"",
        "amount": Decimal(number) + Decimal("0.05"),
        "score": number / 8,
        "seen": datetime(2026, 3, 1, number % 24, 30, 15, 123456, tzinfo=UTC),
        "day": date(2026, 1 + number % 3, 1 + number % 28),
        "ok": number % 2 == 0,
    }
    if number % 3 == 0:
        values |= {"name": None, "amount": None, "score": None, "seen": None, "ok": None}
    return values | others


def _labelled(number: int, kind: str, extra: int | None = None) -> Row:
    values = dict(row(number, kind))
    return {**values, "label": values.pop("name"), "extra": extra}


HISTORY: Mapping[str, Sequence[Step]] = {
    "append": [
        Append([row(n, "ab"[n % 2]) for n in range(1, 9)]),
        Append([row(n, "abc"[n % 3]) for n in range(9, 15)]),
    ],
    "delete": [Delete((2, 3, 9))],
    "delete a partition": [DeleteKind("c")],
    "update": [Update((4, 10), {"name": "updated", "score": None})],
    "merge": [
        Merge(
            [row(4, "a", name="merged"), row(5, "b", amount=Decimal("-1.25")), row(20, "a"), row(21, "b")],
            gone=(6,),
        )
    ],
    "ingest": [Ingest([row(n, "ab"[n % 2]) for n in range(30, 34)])],
    "delete what ingest wrote": [Delete((30, 33))],
    "change columns and partitioning": [AddColumn("extra", "int"), Rename("name", "label"), Repartition()],
    "append after it": [Append([_labelled(50, "a", 500), _labelled(51, "b"), _labelled(52, "b", 502)])],
    "ingest after it": [Ingest([_labelled(60, "a", 600), _labelled(61, "b")])],
    "update old and new": [Update((1, 31, 50, 61), {"label": "late", "extra": 7})],
    "delete old and new": [Delete((4, 51, 60))],
    "compact": [Compact()],
    "merge at last": [Merge([_labelled(1, "a", 1), _labelled(70, "b", 700)], gone=(52,))],
}
"""Name -> steps taken together; every reader reads after each entry."""


def contents() -> dict[str, Content]:
    """The content after each entry of the history."""
    found: dict[str, Content] = {}
    now = Content()
    for name, steps in HISTORY.items():
        for step in steps:
            now = now.after(step)
        found[name] = now
    return found
