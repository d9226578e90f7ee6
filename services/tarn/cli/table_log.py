"""`tarn log`: declares the ingestor that brings a table's log into it (docs/gateway.md, Through the log)."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer
import yaml

from tarn.cli import ingestors, wiring
from tarn.cli.settings import Settings
from tarn.controller import declaring
from tarn.core.errors import InvalidError
from tarn.core.log_claims import topic_of
from tarn.core.offsets import TRACE_COLUMN
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState, current_schema

app = typer.Typer()

NAME_CHARS_MAX = 40
FRESH_S = 0.5
"""Age of a batch at which it is committed."""


@app.command()
def log(
    table: Annotated[str, typer.Argument(help="The table, as namespace.name; it exists.")],
    partitions: Annotated[int, typer.Option(min=1, max=64, help="Partitions of its topic.")] = 1,
    print_: Annotated[bool, typer.Option("--print", help="Print the spec, and declare nothing.")] = False,
    wait: ingestors.Wait = 0,
) -> None:
    """Declare the ingestor that brings rows written with durability=log into a table."""
    settings = Settings.read()
    *levels, name = table.split(".")
    if not levels or not all((*levels, name)):
        raise InvalidError(f"{table!r} is no table; name it as namespace.name, such as shop.orders")
    document = spec_for(wiring.table(settings, TableName(tuple(levels), name)), table, partitions=partitions)
    if print_:
        print(yaml.safe_dump(document, sort_keys=False), end="")  # noqa: T201
        return
    specs = wiring.specs(settings)
    made, what = declaring.put(specs, document, f"the log of {table}", take_over=False)
    print(f"ingestor {made.name} {what}: {ingestors.summary(made.spec)}")  # noqa: T201
    ingestors.follow(settings, specs, made.name, wait)


def spec_for(state: TableState, table: str, *, partitions: int) -> dict[str, Any]:
    """The spec of the ingestor that brings a table's log into it.

    Args:
        state: the table.
        table: its qualified name.
        partitions: partitions of the topic, if it is created.
    """
    namespace, _, name = table.rpartition(".")
    plain = re.sub(r"[^a-z0-9]+", "-", table.lower()).strip("-")[:NAME_CHARS_MAX]
    traced = any(column["name"] == TRACE_COLUMN for column in current_schema(state.metadata)["fields"])
    return {
        "apiVersion": "tarn/v1",
        "kind": "Ingestor",
        # Not the table's name alone: two names may have the same letters, and a table may be recreated.
        "metadata": {"name": f"log-{plain}-{state.uuid[:8]}"},
        "spec": {
            "source": {"kafka": {"topic": topic_of(state.uuid), "create": True, "partitions": partitions}},
            "table": {"namespace": namespace, "name": name},
            "batching": {"maxLatencySeconds": FRESH_S},
            **({} if traced else {"trace": False}),
        },
    }
