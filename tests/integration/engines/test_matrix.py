"""Every engine reads what every engine wrote: writer by step by reader, each cell compared row by row.

One fixture lets every writer take its table through one history (`history.py`) and records what each reader
saw after each step; the tests only compare. So one wrong cell does not hide the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.engines.clients import READERS, Clients
from tests.integration.engines.history import HISTORY, Content, Ingest, contents
from tests.integration.engines.limits import LIMITS
from tests.integration.engines.writers import (
    PyIceberg,
    Relay,
    SqlWriter,
    Writer,
    plain_rows,
)
from tests.integration.engines.writers import (
    spark as spark_words,
)
from tests.integration.engines.writers import (
    trino as trino_words,
)
from tests.support.turns import one_after_the_other

pytestmark = pytest.mark.filterwarnings(
    # For a table set to merge-on-read, pyiceberg uses copy-on-write and warns.
    "ignore:Merge on read is not yet supported, falling back to copy-on-write:UserWarning"
)

NAMESPACE = "matrix"
AT_ONCE = 3
EXPECTED = contents()
STOPS = {"pyiceberg_v3": ("append", "write v3")}
"""Writers that cannot complete the history: table -> the failing step, and the limitation that it shows."""

TABLES = (
    "pyiceberg_v2",
    "pyiceberg_v3",
    "trino_v2",
    "trino_v3",
    "spark_v2_copy_on_write",
    "spark_v2_merge_on_read",
    "spark_v3",
    "in_turn_v2_pyiceberg_trino_spark",
    "in_turn_v2_spark_pyiceberg_trino",
    "in_turn_v3_trino_spark",
)


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of a step.

    Attributes:
        failed: why the step failed; nothing was read then.
        read: reader -> rows, or the error.
        rows: number of rows in data files, as `tarn status` shows it.
        deletes: number of delete files, as `tarn status` shows it.
    """

    failed: Exception | None = None
    read: Mapping[str, Sequence[tuple[Any, ...]] | Exception] = field(default_factory=dict)
    rows: int | None = None
    deletes: int | None = None


@pytest.fixture(scope="module")
def seen(clients: Clients, request: pytest.FixtureRequest) -> Mapping[tuple[str, str], Seen]:
    """Result of every step on every table that this run has tests of."""
    clients.catalog.create_namespace(NAMESPACE)
    called = (getattr(item, "callspec", None) for item in request.session.items)
    tables = {one.params["table"] for one in called if one is not None and "table" in one.params}
    found: dict[tuple[str, str], Seen] = {}
    with ThreadPoolExecutor(AT_ONCE) as writing, ThreadPoolExecutor(AT_ONCE * len(READERS)) as reading:
        todo = {
            name: writing.submit(_history, clients, f"{NAMESPACE}.{name}", writer, reading)
            for name, writer in writers(clients).items()
            if name in tables
        }
        for name, one in todo.items():
            found |= {(name, step): what for step, what in one.result().items()}
    return found


def writers(clients: Clients) -> Mapping[str, Writer]:
    """Table -> the writer that takes it through the history."""

    def in_spark(sql: str) -> object:
        return clients.spark.sql(sql).collect()

    py2, py3 = PyIceberg(clients.catalog, 2), PyIceberg(clients.catalog, 3)
    tr2, tr3 = (SqlWriter(clients.trino.rows, trino_words(version)) for version in (2, 3))
    cow = SqlWriter(in_spark, spark_words(2, "copy-on-write"))
    mor = SqlWriter(in_spark, spark_words(2, "merge-on-read"))
    sp3 = SqlWriter(in_spark, spark_words(3, "merge-on-read"))
    made = (
        *(py2, py3, tr2, tr3, cow, mor, sp3),
        *(Relay([py2, tr2, mor], 0), Relay([mor, py2, tr2], 0), Relay([tr3, sp3], 0)),
    )
    return dict(zip(TABLES, made, strict=True))


def _history(clients: Clients, table: str, writer: Writer, pool: ThreadPoolExecutor) -> dict[str, Seen]:
    """Results of one table through the whole history, or up to the first step that fails."""
    writer.create(table)
    found: dict[str, Seen] = {}
    now = Content()
    for name, steps in HISTORY.items():
        try:
            for step in steps:
                if isinstance(step, Ingest):
                    clients.ingesting.take(table, step, now)
                else:
                    writer.take(table, step, now)
                now = now.after(step)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is judged by the test
            found[name] = Seen(failed=error)
            break
        columns = list(now.columns)
        asked = {r: pool.submit(_rows, clients.read, r, table, columns) for r in READERS}
        facts = clients.tools.facts(table)
        found[name] = Seen(
            read={reader: rows.result() for reader, rows in asked.items()},
            rows=facts.rows,
            deletes=facts.delete_files,
        )
    return found


def _rows(
    read: Callable[[str, str, Sequence[str]], Sequence[Sequence[Any]]],
    reader: str,
    table: str,
    columns: Sequence[str],
) -> Sequence[tuple[Any, ...]] | Exception:
    try:
        return plain_rows(read(reader, table, columns))
    except Exception as error:  # noqa: BLE001 - as above
        return error


def steps(table: str) -> list[str]:
    """The steps that a table's writer can take."""
    names = list(HISTORY)
    return names[: names.index(STOPS[table][0])] if table in STOPS else names


TURN_OF = one_after_the_other(TABLES, "a client no longer reads what one of seven writers writes")
CELLS = [(table, step, reader) for table in TABLES for step in steps(table) for reader in READERS]


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(
    ("table", "step", "reader"),
    [pytest.param(*cell, id=" > ".join(cell), marks=TURN_OF[cell[0]]) for cell in CELLS],
)
def test_a_reader_sees_the_rows(
    seen: Mapping[tuple[str, str], Seen], table: str, step: str, reader: str
) -> None:
    what = _taken(seen, table, step)
    rows = what.read[reader]
    if isinstance(rows, Exception):
        raise AssertionError(f"{reader} cannot read {table} after '{step}'") from rows
    assert rows == EXPECTED[step].tuples()


@pytest.mark.parametrize(
    "table", [pytest.param(table, marks=TURN_OF[table]) for table in TABLES if steps(table)]
)
def test_status_counts_the_rows(seen: Mapping[tuple[str, str], Seen], table: str) -> None:
    for step in steps(table):
        what = _taken(seen, table, step)
        held = len(EXPECTED[step].rows)
        assert what.rows is not None
        assert what.rows == held if what.deletes == 0 else what.rows >= held, step


@pytest.mark.parametrize("table", [pytest.param(table, marks=TURN_OF[table]) for table in STOPS])
def test_what_a_writer_cannot_do_is_known(seen: Mapping[tuple[str, str], Seen], table: str) -> None:
    step, limit = STOPS[table]
    failed = seen[table, step].failed
    assert failed is not None, f"{LIMITS[limit].who} can {LIMITS[limit].cannot} now: take it out of limits.py"
    assert LIMITS[limit].says in str(failed)


def test_fsck_finds_no_damage(seen: Mapping[tuple[str, str], Seen], clients: Clients) -> None:
    assert seen, "some table was written"
    report = clients.tools.fsck()
    assert [finding for finding in report.damage if finding.where.startswith(f"{NAMESPACE}.")] == []


def _taken(seen: Mapping[tuple[str, str], Seen], table: str, step: str) -> Seen:
    """Result of a step that must have succeeded."""
    for name in HISTORY:
        what = seen[table, name]
        if what.failed is not None:
            raise AssertionError(f"{table}: the step '{name}' failed") from what.failed
        if name == step:
            return what
    raise AssertionError(step)
