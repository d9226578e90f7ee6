"""`tarn pipeline`: run the jobs by hand, and see how far the tables are."""

from __future__ import annotations

import json
import logging
from typing import Annotated

import structlog
import typer
from rich.console import Console
from rich.table import Table

from tarn.adapters.spark_remote import with_token
from tarn.cli.settings import Settings, load_secrets
from tarn.core.errors import DataError, InvalidError, UnavailableError

app = typer.Typer(
    name="pipeline",
    help="Bronze to silver to gold, by Spark Connect.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command()
def run() -> None:
    """Bring silver and gold up to what bronze holds now; safe beside the pipeline service."""
    from pyspark.errors import PySparkException

    from tarn_demo.driver import run_once
    from tarn_jobs.lake import TableMismatchError
    from tarn_jobs.pipeline import Step
    from tarn_jobs.position import PositionError

    out = Console(highlight=False, soft_wrap=True)

    def show(step: Step) -> None:
        ignored = f", {step.ignored:,} ignored" if step.ignored else ""
        events = f", {step.events:,} events" if step.events else ""
        out.print(f"{step.table}: {step.offsets:,} offsets{events}{ignored}, {step.seconds:.1f} s")

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    settings = Settings.read()
    try:
        commits = run_once(with_token(settings.spark_remote, settings.secrets_dir), show)
    except PositionError as e:
        raise DataError(str(e)) from e
    except TableMismatchError as e:
        raise InvalidError(str(e)) from e
    except PySparkException as e:
        raise UnavailableError(
            f"Spark at {settings.spark_remote} could not do it ({type(e).__name__}: {str(e)[:300]}); "
            "nothing is half done: see docker compose logs spark, then run this again"
        ) from e
    out.print(f"up to date, {commits} commits")


@app.command()
def status(
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")] = False,
) -> None:
    """Show how far bronze, silver and gold are behind the topic."""
    from tarn_demo.flight_tables import FlightTables
    from tarn_demo.flights.producer import Topic
    from tarn_demo.loading import LAYERS

    settings = Settings.read()
    ends = Topic(bootstrap=settings.kafka_bootstrap, login=settings.kafka_login()).end_offsets()
    layers = FlightTables(settings, load_secrets(settings.secrets_dir)).layers()
    total = sum(ends.values())
    if as_json_:
        found = {n: {"rows": layers[n].rows, "behind": total - layers[n].offsets} for n in LAYERS}
        typer.echo(json.dumps({"topic": total, "layers": found}))
        return
    table = Table(show_edge=False, pad_edge=False)
    for column in ("layer", "rows", "offsets", "behind"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    table.add_row("topic", "", f"{total:,}", "")
    for name in LAYERS:
        layer = layers[name]
        table.add_row(name, f"{layer.rows:,}", f"{layer.offsets:,}", f"{total - layer.offsets:,}")
    Console(highlight=False).print(table)
