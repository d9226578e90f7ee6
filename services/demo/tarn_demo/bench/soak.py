"""What `scripts/bench soak` runs inside the network: `python -m tarn_demo.bench.soak VERB`, JSON on stdout.

`queries` is a user who never rests: each question is asked in a session of its own. `lake` says what the
tables hold.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from tarn.adapters.catalog_client import RestCatalog, TableName
from tarn.cli.ports import Engine
from tarn.cli.settings import load_secrets, load_settings
from tarn.cli.wiring import ENGINES, engine
from tarn.core.errors import NotFoundError, TarnError
from tarn.core.exit_codes import OK, exit_code
from tarn.core.table_state import TableState

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
    """What is asked of the catalog."""

    def namespaces(self, parent: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """The namespaces right below another one, or the topmost."""

    def tables(self, namespace: tuple[str, ...]) -> list[TableName]:
        """The tables of a namespace."""

    def load(self, table: TableName) -> TableState:
        """A table's state."""


def queries(
    asked: Engine,
    *,
    seconds: float,
    pause_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[dict[str, Any]]:
    """Asks one question after the other for so long; gives `ms` or `error` of each.

    Args:
        asked: opens a session for each question and ends it.
        seconds: how long, seconds.
        pause_s: from the end of a question to the next one, seconds.
        clock: monotonic seconds.
        sleep: waits so many seconds.
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
    """Rows, live bytes and the length of the history of every table, as its current snapshot tells."""
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
    """Runs one verb and gives the exit code."""
    parser = argparse.ArgumentParser(prog="tarn_demo.bench.soak", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    asking = verbs.add_parser("queries", allow_abbrev=False)
    asking.add_argument("--engine", choices=ENGINES, required=True)
    asking.add_argument("--seconds", type=float, required=True)
    asking.add_argument("--pause", type=float, required=True)
    verbs.add_parser("lake", allow_abbrev=False)
    options = parser.parse_args(arguments)
    settings = load_settings()
    try:
        if options.verb == "lake":
            secrets = load_secrets(settings.secrets_dir)
            catalog = RestCatalog(
                settings.catalog_uri, warehouse=settings.warehouse, credential=lambda: secrets.credential
            )
            print(json.dumps(lake(catalog)))  # noqa: T201
        else:
            asked = engine(settings, options.engine)
            for answer in queries(asked, seconds=options.seconds, pause_s=options.pause):
                print(json.dumps(answer), flush=True)  # noqa: T201
    except TarnError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return exit_code(error)
    return OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
