"""The network side of `scripts/bench soak`: `python -m tarn_demo.bench.soak VERB`, JSON on stdout.

`queries` simulates a user who never rests: each query runs in its own session. `lake` reports the content of
the tables.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from tarn.adapters.catalog_client import RestCatalog
from tarn.cli.ports import Engine
from tarn.cli.settings import Settings, load_secrets
from tarn.cli.wiring import ENGINES, engine
from tarn.core.errors import NotFoundError, TarnError
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState
from tarn_demo.bench.lines import printed

QUESTIONS = (
    "SELECT count(*), max(_tarn.time) FROM tarn.bronze.flight_events",
    "SELECT carrier, flights, mean_arr_delay FROM tarn.gold.delays_by_carrier ORDER BY flights DESC",
    "SELECT origin, count(*), avg(dep_delay) FROM tarn.silver.flights GROUP BY origin",
    "SELECT dest_name, count(*) AS n FROM tarn.silver.flights WHERE arr_delay > 60 "
    "GROUP BY dest_name ORDER BY n DESC LIMIT 20",
)
REASON_CHARS_MAX = 300
ROWS_MAX = 100


class Catalog(Protocol):
    """Catalog operations of the soak test."""

    def namespaces(self, parent: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """Child namespaces of a namespace, or the top-level ones."""

    def tables(self, namespace: tuple[str, ...]) -> list[TableName]:
        """Tables of a namespace."""

    def load(self, table: TableName) -> TableState:
        """Load the state of a table."""


def queries(
    asked: Engine,
    *,
    seconds: float,
    pause_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Run one query after the other; yields `{"ms": …}` or `{"error": …}` of each.

    Args:
        asked: opens a session for each query and closes it.
        seconds: duration, in seconds.
        pause_s: pause between two queries, in seconds.
        clock: monotonic time in seconds.
        sleep: waits, in seconds.
    """
    begun = clock()
    for question in itertools.cycle(QUESTIONS):
        at = clock()
        if at - begun >= seconds:
            return
        try:
            asked.query(question, rows_max=ROWS_MAX)
        except TarnError as error:
            yield {"error": error.message[:REASON_CHARS_MAX]}
        else:
            yield {"ms": round((clock() - at) * 1_000, 1)}
        sleep(pause_s)


def lake(catalog: Catalog) -> dict[str, Any]:
    """Rows, live bytes and length of the history of every table, from its current snapshot."""
    found = {}
    for table in sorted(_all_tables(catalog, ()), key=str):
        try:
            state = catalog.load(table)
        except NotFoundError:
            continue  # dropped meanwhile
        summary = (state.head or {}).get("summary", {})
        found[str(table)] = {
            "rows": int(summary.get("total-records", 0)),
            "live_bytes": int(summary.get("total-files-size", 0)),
            "live_files": int(summary.get("total-data-files", 0)),
            "snapshots": len(state.metadata.get("snapshots") or []),
        }
    return {"tables": found}


def _all_tables(catalog: Catalog, parent: tuple[str, ...]) -> Iterable[TableName]:
    for namespace in catalog.namespaces(parent):
        yield from catalog.tables(namespace)
        yield from _all_tables(catalog, namespace)


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit code."""
    parser = argparse.ArgumentParser(prog="tarn_demo.bench.soak", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    asking = verbs.add_parser("queries", allow_abbrev=False)
    asking.add_argument("--engine", choices=ENGINES, required=True)
    asking.add_argument("--seconds", type=float, required=True)
    asking.add_argument("--pause", type=float, required=True)
    verbs.add_parser("lake", allow_abbrev=False)
    options = parser.parse_args(arguments)

    def rows() -> Iterable[dict[str, Any]]:
        settings = Settings.read()
        if options.verb != "lake":
            asked = engine(settings, options.engine)
            return queries(asked, seconds=options.seconds, pause_s=options.pause)
        secrets = load_secrets(settings.secrets_dir)
        catalog = RestCatalog(
            settings.catalog_uri, warehouse=settings.warehouse, credential=lambda: secrets.credential
        )
        return [lake(catalog)]

    return printed(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
