"""Summary of the demo: rows per layer, how fresh each is, and one real answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from tarn.cli.formats import plain
from tarn.cli.hostenv import TRINO_CATALOG
from tarn.cli.ports import Answer, Clock, Engine, Tell
from tarn.core.errors import TarnError, UnavailableError
from tarn_demo.loading import GOLD_TABLES, LayerProgress

BRONZE, SILVER = "bronze.flight_events", "silver.flights"
GOLD = tuple(f"gold.{name}" for name in GOLD_TABLES)
LOOK_S = 1.0
LINE_S = 5.0
RECENT_OFFSETS = 1_000
QUESTION = "The three airlines that leave latest, so far"
ANSWER_SQL = (
    "SELECT name AS airline, flights, round(mean_dep_delay, 1) AS minutes_late "  # noqa: S608 - names from constants
    f"FROM {TRINO_CATALOG}.gold.delays_by_carrier WHERE mean_dep_delay IS NOT NULL "
    "ORDER BY mean_dep_delay DESC LIMIT 3"
)


class Tables(Protocol):
    """The tables of the flights."""

    def by_table(self) -> Mapping[str, LayerProgress]:
        """Rows and position of each; a table that does not exist is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A table.

    Attributes:
        table: its name.
        rows: how many it holds.
        newest_s: seconds since the newest event in it was produced; None if it holds none.
    """

    table: str
    rows: int
    newest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSummary:
    """The demo's tables at one moment.

    Attributes:
        at: when.
        tables: bronze, silver, then gold.
        answer: to `QUESTION`, by Trino; None while gold holds none.
    """

    at: datetime
    tables: tuple[TableRow, ...]
    answer: Answer | None


def summarize(tables: Tables, engine: Engine, *, now: datetime) -> DemoSummary:
    """Summary of the tables as they are now.

    Args:
        tables: what there is.
        engine: answers.
        now: what ages are counted to, in UTC.

    Raises:
        TarnError: catalog or engine do not answer.
    """
    seen = tables.by_table()
    newest = _newest(seen, engine)
    rows = tuple(
        TableRow(table=name, rows=seen[name].rows, newest_s=_age_s(newest.get(name), now))
        for name in (BRONZE, SILVER, *GOLD)
    )
    answer = engine.query(ANSWER_SQL, rows_max=3) if _filled(seen) else None
    return DemoSummary(at=now, tables=rows, answer=answer if answer is not None and answer.rows else None)


def await_gold(tables: Tables, clock: Clock, *, wait_s: float, tell: Tell) -> None:
    """Wait until every table of the flights holds rows, showing progress.

    Args:
        tables: what is waited for.
        clock: time.
        wait_s: at most so many seconds.
        tell: shows progress.

    Raises:
        UnavailableError: they do not within the time; the message says which layer is empty, and what to do.
    """
    begun_s = told_s = clock.now_s()
    seen: Mapping[str, LayerProgress] = {}
    fault = ""
    while True:
        try:
            seen, fault = tables.by_table(), ""
        except TarnError as error:
            fault = error.message
        if _filled(seen):
            return
        now_s = clock.now_s()
        if now_s - begun_s >= wait_s:
            raise UnavailableError(_empty(seen, fault, wait_s))
        if now_s - told_s >= LINE_S:
            told_s = now_s
            tell(f"{now_s - begun_s:4.0f} s  {_words(seen)}")
        clock.wait(LOOK_S)


def as_data(seen: DemoSummary) -> dict[str, Any]:
    """The summary as plain data; the form of `tarn demo show --json`."""
    answer = None
    if seen.answer is not None:
        answer = [
            {c: plain(v) for c, v in zip(seen.answer.columns, r, strict=True)} for r in seen.answer.rows
        ]
    return {
        "at": seen.at.isoformat(),
        "tables": [{"table": t.table, "rows": t.rows, "newest_s": t.newest_s} for t in seen.tables],
        "question": QUESTION,
        "answer": answer,
    }


def newest_sql(seen: Mapping[str, LayerProgress]) -> str:
    """The produce time of the newest event in bronze, in silver and in gold, as one statement over bronze.

    Silver and gold do not hold that time; it follows from the offsets up to which they hold everything. Only
    the last `RECENT_OFFSETS` of each partition are read.
    """
    columns = ", ".join(
        f"max(produced_at) FILTER (WHERE {_before(seen[name].next)})" for name in (SILVER, GOLD[0])
    )
    return (
        f"SELECT max(produced_at), {columns} FROM {TRINO_CATALOG}.{BRONZE} "  # noqa: S608 - names and numbers
        f"WHERE {_recent([seen[name].next for name in (BRONZE, SILVER, GOLD[0])])}"
    )


def _newest(seen: Mapping[str, LayerProgress], engine: Engine) -> dict[str, datetime]:
    if not seen[BRONZE].next:
        return {}
    found = engine.query(newest_sql(seen), rows_max=1).rows[0]
    times = dict(zip((BRONZE, SILVER, GOLD[0]), found, strict=True))
    return {
        name: at
        for name in (BRONZE, SILVER, *GOLD)
        if isinstance(at := times[name if name in times else GOLD[0]], datetime)
    }


def _before(offsets: Mapping[int, int]) -> str:
    parts = [f'(_tarn."partition" = {p} AND _tarn."offset" < {end})' for p, end in sorted(offsets.items())]
    return " OR ".join(parts) if parts else "false"


def _recent(layers: list[Mapping[int, int]]) -> str:
    held = [layer for layer in layers if layer]
    low = {p: min(layer.get(p, 0) for layer in held) - RECENT_OFFSETS for p in held[0]}
    parts = [f'(_tarn."partition" = {p} AND _tarn."offset" >= {max(0, at)})' for p, at in sorted(low.items())]
    return " OR ".join(parts)


def _age_s(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else round(max(0.0, (now - at.astimezone(UTC)).total_seconds()), 1)


def _filled(seen: Mapping[str, LayerProgress]) -> bool:
    return bool(seen) and all(seen[name].rows > 0 for name in (BRONZE, SILVER, *GOLD))


def _words(seen: Mapping[str, LayerProgress]) -> str:
    if not seen:
        return "nothing could be read yet"
    gold = sum(seen[name].rows for name in GOLD)
    return f"bronze {seen[BRONZE].rows:,} rows   silver {seen[SILVER].rows:,} rows   gold {gold:,} rows"


def _empty(seen: Mapping[str, LayerProgress], fault: str, wait_s: float) -> str:
    if fault or not seen:
        return f"the tables of the flights could not be read for {wait_s:.0f} s: {fault}"
    services = "pipeline" if seen[BRONZE].rows else "replay ingest"
    return (
        f"no answers within {wait_s:.0f} s: {_words(seen)}; see docker compose logs {services}, and "
        "scripts/tarn status; what arrives later is shown by scripts/tarn demo show"
    )
