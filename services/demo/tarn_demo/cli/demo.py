"""`tarn demo`: play a year of flights into the lake; data and libraries are loaded when needed only."""

from __future__ import annotations

import json
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tarn.cli.ports import Clock
from tarn.cli.settings import Settings, load_secrets
from tarn.core.errors import InvalidError
from tarn.core.exit_codes import FAILED, INTERRUPTED, OK

if TYPE_CHECKING:
    from tarn_demo.cli.demo_summary import DemoSummary
    from tarn_demo.flights.events import Stream
    from tarn_demo.flights.pace import Pace
    from tarn_demo.loading import Loaded

LINE_S = 5.0
LINE_IN_A_LOG_S = 60.0
SPEED = 600.0

app = typer.Typer(
    name="demo",
    help="A year of flights from New York (2013) as a stream of events.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Duplicates = Annotated[float, typer.Option(min=0, max=1, help="Share of events sent twice.")]
Late = Annotated[float, typer.Option(min=0, max=1, help="Share of events sent hours after they happened.")]
Broken = Annotated[float, typer.Option(min=0, max=1, help="Share of further messages that cannot be read.")]
Check = Annotated[
    bool, typer.Option("--check", hidden=True, help="Check the options and leave: before a stack is asked.")
]
Seed = Annotated[int, typer.Option(min=0, help="What chance depends on.")]


@app.command("load")
def load_(
    again: Annotated[
        bool, typer.Option("--again", help="Send everything once more: bronze doubles, the rest stays.")
    ] = False,
    duplicates: Duplicates = 0.02,
    late: Late = 0.05,
    broken: Broken = 0.001,
    seed: Seed = 1,
    stall_s: Annotated[float, typer.Option(min=10, help="Give up when nothing moves for so long.")] = 300.0,
    check: Check = False,
) -> None:
    """Send the whole year at once and return when gold is complete; nothing to do on a complete lake."""
    if check:
        return
    from tarn_demo.cli.progress_lines import ProgressLines
    from tarn_demo.flight_tables import FlightTables
    from tarn_demo.flights.producer import Topic
    from tarn_demo.loading import Limits, load

    settings = Settings.read()
    lake = FlightTables(settings, load_secrets(settings.secrets_dir))
    stream = _stream(duplicates, late, broken, seed)
    clock = Clock()
    _interrupt_on_sigterm()
    try:
        done = load(
            stream,
            Topic(bootstrap=settings.kafka_bootstrap, login=settings.kafka_login()),
            lake,
            ProgressLines(clock, _err().print),
            again=again,
            clock=clock,
            limits=Limits(stall_s_max=stall_s),
        )
    except KeyboardInterrupt:
        _err().print("Stopped; the next load goes on from here.")
        raise typer.Exit(INTERRUPTED) from None
    _print_loaded(done)


@app.command()
def replay(
    speed: Annotated[
        float | None, typer.Option(help=f"Times as fast as it happened; {SPEED:g} if nothing is said.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Messages a second instead.")] = None,
    messages: Annotated[
        int | None, typer.Option(min=1, help="Stop after about so many messages of the stream.")
    ] = None,
    head_start: Annotated[
        float, typer.Option(min=0, help="Send so many hours of the beginning of the year at once.")
    ] = 0.0,
    only_own: Annotated[
        bool, typer.Option("--only-own", help="Leave if the topic ends with another play (shares or seed).")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Begin once more if the year has been played.")
    ] = False,
    duplicates: Duplicates = 0.02,
    late: Late = 0.05,
    broken: Broken = 0.001,
    seed: Seed = 1,
    check: Check = False,
) -> None:
    """Play the year in the order of events, going on where the topic ends; stop it with Ctrl-C."""
    from tarn_demo.flights.pace import HeadStart
    from tarn_demo.flights.producer import Topic, ends_in
    from tarn_demo.flights.resume import is_finished, is_forgotten, is_of_another_stream, plan

    pace = HeadStart(head_start, _pace(speed, rate))
    if check:
        return
    stream = _stream(duplicates, late, broken, seed)
    settings = Settings.read()
    topic = Topic(bootstrap=settings.kafka_bootstrap, login=settings.kafka_login())
    ends, tails = ends_in(stream, topic.ensure()), topic.tails()
    out = _err()
    if only_own and is_of_another_stream(tails, fingerprint=stream.fingerprint):
        out.print("The topic ends with another play (other shares or seed), which is left alone.")
        return
    forgotten = is_forgotten(tails, topic.first_offsets())
    if forgotten and not again:
        out.print(
            "Kafka has deleted the last messages of the topic, so nobody knows how far the year was played; "
            "scripts/tarn demo load sends what the lake lacks, and demo replay --again begins once more."
        )
        return
    play = plan({} if forgotten else tails, ends, fingerprint=stream.fingerprint, again=again)
    if is_finished(play, ends):
        out.print("The year has been played; --again begins once more.")
        return
    shown_s, line_s = 0.0, LINE_S if out.is_terminal else LINE_IN_A_LOG_S

    def progress(at: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= line_s:
            shown_s = time.monotonic()
            out.print(f"{_moment(stream, at)}   {at:,} of {len(stream):,} messages", highlight=False)

    _interrupt_on_sigterm()
    end = None if messages is None else play.start + messages
    try:
        sent = topic.play(stream, pace, play, end=end, on_progress=progress)
    except KeyboardInterrupt:
        out.print("Stopped; the next replay or load goes on from here.")
        return
    out.print(f"Sent {sent:,} messages.")


@app.command()
def show(
    wait: Annotated[
        float, typer.Option(min=0, help="Wait so many seconds for the first rows of gold.")
    ] = 0.0,
    as_json_: Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")] = False,
) -> None:
    """Show rows per layer, how fresh they are, and one answer from gold."""
    from tarn.cli import wiring
    from tarn_demo.cli import demo_summary
    from tarn_demo.flight_tables import FlightTables

    settings = Settings.read()
    tables = FlightTables(settings, load_secrets(settings.secrets_dir))
    if wait:
        demo_summary.await_gold(tables, Clock(), wait_s=wait, tell=_err().print)
    seen = demo_summary.summarize(tables, wiring.trino(settings), now=datetime.now(UTC))
    if as_json_:
        typer.echo(json.dumps(demo_summary.as_data(seen)))
    else:
        _print_summary(seen)
    raise typer.Exit(FAILED if seen.answer is None else OK)


def _print_summary(seen: DemoSummary) -> None:
    from tarn.cli.formats import as_table
    from tarn_demo.cli.demo_summary import QUESTION

    out = Console(highlight=False)
    table = Table(show_edge=False, pad_edge=False)
    for column in ("table", "rows", "newest event"):
        table.add_column(column, justify="left" if column == "table" else "right")
    for row in seen.tables:
        age = "" if row.newest_s is None else f"{row.newest_s:,.0f} s ago"
        table.add_row(row.table, f"{row.rows:,}", age)
    out.print(table)
    out.print()
    if seen.answer is None:
        out.print("Gold holds no answer yet: scripts/tarn demo replay or demo load plays the flights.")
        return
    out.print(f"{QUESTION} (Trino, gold.delays_by_carrier):")
    out.print(as_table(seen.answer))


def _print_loaded(done: Loaded) -> None:
    from tarn_demo.loading import LAYERS

    out = _err()
    if done.complete_before and not done.sent:
        out.print("The lake holds the whole year already; --again sends it once more.")
    else:
        out.print(
            f"Sent {done.sent:,} messages in {done.produce_s:.0f} s; gold complete after "
            f"{done.total_s:.0f} s.",
            highlight=False,
        )
    for name in LAYERS:
        out.print(f"{name:7} {done.layers[name].rows:>12,} rows", highlight=False)


def _interrupt_on_sigterm() -> None:
    """Handle SIGTERM, as a stopped container gets it, like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _stream(duplicates: float, late: float, broken: float, seed: int) -> Stream:
    import pyarrow as pa

    from tarn_demo.flights import dataset
    from tarn_demo.flights.events import NoiseRates, Stream

    noise = NoiseRates(duplicates=duplicates, late=late, broken=broken)
    stream = Stream(dataset.read_flights(), dataset.read_reference("airports"), noise=noise, seed=seed)
    # A replay runs for days, and Arrow's pool would keep what only reading the data set took: 40 MiB.
    pa.default_memory_pool().release_unused()
    return stream


def _pace(speed: float | None, rate: float | None) -> Pace:
    from tarn_demo.flights.pace import Rate, Speed

    if speed is not None and rate is not None:
        raise InvalidError(f"--speed {speed:g} and --rate {rate:g} at once: choose one")
    return Rate(rate) if rate is not None else Speed(SPEED if speed is None else speed)


def _moment(stream: Stream, at: int) -> str:
    due_ms = stream.due(min(at, len(stream) - 1))
    return f"{datetime.fromtimestamp(due_ms / 1000, UTC):%Y-%m-%d %H:%M}Z"


def _err() -> Console:
    return Console(stderr=True, soft_wrap=True)
