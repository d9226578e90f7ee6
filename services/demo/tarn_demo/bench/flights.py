"""The network side of `scripts/bench flights`: `python -m tarn_demo.bench.flights VERB`, JSON on stdout.

`load` does what `tarn demo load` does. `steps` sends the same year in equal parts and runs one cycle of the
pipeline after each, in this process instead of the service `pipeline`, which must be stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.spark_remote import with_token
from tarn.cli.ports import Clock
from tarn.cli.settings import Settings, load_secrets
from tarn.core.errors import CorruptStateError
from tarn.core.table_catalog import TableName
from tarn_demo.bench import ingest
from tarn_demo.bench.lines import printed
from tarn_demo.driver import open_pipeline, session
from tarn_demo.flight_tables import FlightTables
from tarn_demo.flights import dataset
from tarn_demo.flights.events import Stream
from tarn_demo.flights.pace import AllAtOnce
from tarn_demo.flights.producer import ends_in
from tarn_demo.flights.resume import is_finished, plan
from tarn_demo.loading import LAYERS, Lake, Limits, LoadProgress, is_complete, load
from tarn_jobs.pipeline import Pipeline, Step
from tarn_jobs.schema import SILVER

LOOK_S = 0.5


@dataclass(slots=True)
class FirstSeen:
    """When each layer was first seen to hold everything; a `loading.ProgressView`.

    Attributes:
        clock: monotonic time in seconds.
        at_s: layer to that time.
    """

    clock: Callable[[], float]
    at_s: dict[str, float] = field(default_factory=dict)

    def show(self, progress: LoadProgress) -> None:
        """See `loading.ProgressView`. While messages are sent, no layer holds everything."""
        if progress.sent < progress.messages:
            return
        for layer in LAYERS:
            if progress.layers[layer].offsets >= progress.goal:
                self.at_s.setdefault(layer, self.clock())


def stream_of(flights: int | None) -> Stream:
    """The stream of `tarn demo load`, or that of the year's first flights."""
    table = dataset.read_flights()
    chosen = table if flights is None else table.slice(0, flights)
    return Stream(chosen, dataset.read_reference("airports"), noise=ingest.NOISE, seed=ingest.SEED)


def load_at_once(context: ingest.BenchContext, lake: FlightTables, stream: Stream) -> dict[str, Any]:
    """Send everything, and wait until gold holds it.

    Args:
        context: dependencies.
        lake: the tables.
        stream: what is sent.

    Returns:
        Messages, and seconds from the beginning until all were acknowledged by Kafka (`produced_s`) and until
        each layer was seen to hold them.

    Raises:
        UnavailableError: a layer does not move any more.
        CorruptStateError: the tables do not hold what was sent.
    """
    clock = Clock()
    seen, began = FirstSeen(clock.now_s), clock.now_s()
    done = load(stream, context.topic, lake, seen, again=False, clock=clock, limits=Limits(look_s=LOOK_S))
    found = {f"{layer}_s": round(at - began, 2) for layer, at in seen.at_s.items()}
    require_whole(stream, lake, ingest.count(context))
    return {"messages": done.sent, "produced_s": round(done.produce_s, 2), **found}


def in_steps(
    context: ingest.BenchContext,
    lake: FlightTables,
    stream: Stream,
    open_session: Callable[[Callable[[Step], None]], AbstractContextManager[Pipeline]],
    *,
    steps: int,
) -> Iterator[dict[str, Any]]:
    """Send the stream in equal parts; after each, when bronze holds it, run one cycle of the pipeline.

    Args:
        context: dependencies.
        lake: the tables.
        stream: what is sent.
        open_session: returns a context with the pipeline, which calls its argument after each commit.
        steps: number of parts.

    Yields:
        What each step took: see `step_of`.

    Raises:
        UnavailableError: bronze does not come up to the topic.
        CorruptStateError: the tables do not hold what was sent.
    """
    made: list[Step] = []
    ends = ends_in(stream, context.topic.ensure())
    with open_session(made.append) as pipeline:
        for number in range(1, steps + 1):
            play = plan(context.topic.tails(), ends, fingerprint=stream.fingerprint, again=False)
            if is_finished(play, ends):
                break
            upto = len(stream) * number // steps
            began = time.monotonic()
            sent = context.topic.play(stream, AllAtOnce(), play, end=upto)
            ingest.await_bronze(partial(is_in_bronze, lake, context.topic.end_offsets()))
            in_bronze = time.monotonic()
            made.clear()
            commits = pipeline.cycle()
            yield {
                "step": number,
                "steps": steps,
                "messages": sent,
                "bronze_s": round(in_bronze - began, 3),
                "cycle_s": round(time.monotonic() - in_bronze, 3),
                "commits": commits,
                **step_of(made),
                **held(context.catalog),
            }
    require_whole(stream, lake, ingest.count(context))


def is_in_bronze(lake: Lake, ends: Mapping[int, int]) -> bool:
    """Whether bronze holds everything before these offsets."""
    return lake.layers()["bronze"].covers(ends)


def step_of(made: Sequence[Step]) -> dict[str, Any]:
    """Seconds of the commits of one cycle, silver's and those of all gold tables, and its offsets. Pure."""
    silver = [step for step in made if step.table == SILVER.name]
    gold = [step for step in made if step.table != SILVER.name]
    return {
        "offsets": sum(step.offsets for step in silver),
        "silver_s": round(sum(step.seconds for step in silver), 3),
        "gold_s": round(sum(step.seconds for step in gold), 3),
    }


def held(catalog: RestCatalog) -> dict[str, int]:
    """Rows, data files and snapshots of silver, and data files of bronze."""
    namespace, name = SILVER.name.split(".")
    silver, bronze = catalog.load(TableName((namespace,), name)), catalog.load(ingest.BRONZE)
    return {
        "silver_rows": silver.total("records") or 0,
        "silver_files": silver.total("data-files") or 0,
        "silver_snapshots": len(silver.metadata.get("snapshots") or []),
        "bronze_files": bronze.total("data-files") or 0,
    }


def require_whole(stream: Stream, lake: Lake, count: Mapping[str, int]) -> None:
    """Require that each offset is one row or one dead letter, and that silver holds every event.

    Raises:
        CorruptStateError: they do not.
    """
    if count["rows"] + count["dead_letters"] != count["offsets"]:
        raise CorruptStateError(
            f"{count['rows']} rows and {count['dead_letters']} dead letters of {count['offsets']} offsets"
        )
    layers = lake.layers()
    if not is_complete(stream, lake, layers):
        raise CorruptStateError(
            f"silver holds {layers['silver'].rows} of {stream.flights} flights, or not all of their events"
        )


def main(arguments: Sequence[str]) -> int:
    """Run one verb and return the exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tarn_demo.bench.flights")
    parser.add_argument("verb", choices=["load", "steps"])
    parser.add_argument("--flights", type=int)
    parser.add_argument("--steps", type=int, default=1)
    options = parser.parse_args(arguments)

    def rows() -> Iterator[Mapping[str, Any]]:
        settings = Settings.read()
        context = ingest.make_context(settings)
        lake = FlightTables(settings, load_secrets(settings.secrets_dir))
        stream = stream_of(options.flights)
        if options.verb == "load":
            yield load_at_once(context, lake, stream)
            return
        remote = with_token(settings.spark_remote, settings.secrets_dir)
        yield from in_steps(context, lake, stream, opened(remote), steps=options.steps)

    return printed(rows)


def opened(remote: str) -> Callable[[Callable[[Step], None]], AbstractContextManager[Pipeline]]:
    """What opens the pipeline on a Spark Connect server, as the service does."""

    @contextmanager
    def open_session(on_step: Callable[[Step], None]) -> Iterator[Pipeline]:
        with session(remote) as spark:
            yield open_pipeline(spark, on_step)

    return open_session


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
