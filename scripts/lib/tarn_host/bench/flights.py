"""scripts/bench flights: a year of flights from Kafka to gold, at once and in equal steps."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tarn_host import shell
from tarn_host.bench import soak_look
from tarn_host.bench.ingest import FIX, Own, own_stack
from tarn_host.bench.options import Adder, Verbs, asked, require
from tarn_host.console import StopError, line
from tarn_host.stack.project import ROOT

VERBS = "tarn_demo.bench.flights"
YEAR = 336_776
TENTHS = 10
LOAD_S_MAX = 60.0
GROWTH_MAX = 1.2
RUN_TIMEOUT_S = 3_600
METRICS = {
    "silver_s": ("silver, s of a cycle", 0.3),
    "gold_s": ("gold, s of a cycle", 0.3),
    "bronze_s": ("sent and in bronze, s of a step", 0.5),
    "silver_files": ("data files of silver", 12.0),
}
"""Figure of a tenth -> its words, and what is no growth: less than two samples of it differ, or a year has
twelve partitions."""
ABOUT = """The demo's year, {flights:,} flights in some {messages:,} messages: one message in fifty comes
twice, one in twenty hours late, one in a thousand is broken. A stack of its own for each run, all services
on.

- *At once*: `scripts/tarn demo load` on a lake that has no flights, from its first message to the look,
  two a second, that shows gold with all of them.
- *In steps*: the same year in {steps} equal parts. When bronze holds a part, one cycle of the pipeline brings
  silver and the four gold tables up to it. Tenths of the year are compared; the first two, in which Spark's
  machine still compiles and gold may be made from all of silver, are shown and not compared. A figure may
  grow by a fifth, or by as much as two samples differ ({floors}; silver has twelve partitions).

Afterwards each offset is one row of bronze or one dead letter, and silver holds every event of every flight,
or there is no result.
"""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        loads: loads of the year at once.
        steps: parts of the year of the other run, a multiple of ten; 0 leaves it out.
        flights: how many of the year's flights.
    """

    loads: int = 3
    steps: int = 40
    flights: int = YEAR

    def small(self) -> Options:
        """The same with everything small: whether it works, not what it costs."""
        return replace(self, loads=1, steps=10, flights=5_000)

    def words(self) -> str:
        """The options of the command that measures this."""
        return f"--loads {self.loads} --steps {self.steps} --flights {self.flights}"


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    text = "a year of flights from Kafka to gold, at once and in steps, on stacks of its own"
    command = Adder(verbs, "flights", text, Options)
    command.number("loads", int, "of the year at once")
    command.number("steps", int, "parts of the year, a cycle of the pipeline after each; 0: none")
    command.number("flights", int, "of the year")


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(loads=found.loads, steps=found.steps, flights=found.flights)
    require(
        0 <= numbers.loads <= 20
        and 0 <= numbers.steps <= 200
        and numbers.steps % TENTHS == 0
        and numbers.loads + numbers.steps > 0
        and 1_000 <= numbers.flights <= YEAR,
        numbers,
        f"give at most 20 loads, at most 200 steps in tens, not both 0, and 1,000 to {YEAR:,} flights",
    )
    return asked(numbers, found)


def measure(options: Options) -> list[dict[str, Any]]:
    """The result: one entry.

    Raises:
        StopError: a stack does not start, a row was lost or doubled, or the benchmark failed.
    """
    loads = []
    for turn in range(1, options.loads + 1):
        with own_stack(profile="full", log_level="info") as own:
            (found,) = _run(own, "load", options)
        loads.append(found)
        line(f"    load {turn} of {options.loads}: gold complete after {found['gold_s']:.1f} s")
    steps: list[dict[str, Any]] = []
    if options.steps:
        with own_stack(profile="full", log_level="info") as own:
            own.compose("stop", "pipeline", timeout_s=180)
            steps = _run(own, "steps", options)
        if len(steps) != options.steps:
            raise StopError(f"{len(steps)} of {options.steps} steps were made", FIX)
    return [{"options": vars(options), "loads": loads, "tenths": tenths(steps)}]


def _run(own: Own, verb: str, options: Options) -> list[dict[str, Any]]:
    """The rows of a verb, with progress shown.

    Raises:
        StopError: it failed.
    """
    rows: list[dict[str, Any]] = []

    def heard(text: str) -> None:
        for row in soak_look.parse_answers([text]):
            rows.append(row)
            if "step" in row:
                line(f"    {summary(row)}")

    run = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "cli", "-m", VERBS, verb)
    words = ["--flights", str(options.flights), "--steps", str(max(1, options.steps))]
    running = shell.Running(["docker", "compose", *run, *words], on_line=heard, env=own.env, cwd=ROOT)
    try:
        code = running.wait(RUN_TIMEOUT_S)
    finally:
        running.stop()
    if code != 0 or not rows:
        raise StopError(f"{verb} ended with exit code {code}: {' / '.join(list(running.tail)[-3:])}", FIX)
    return rows


def summary(row: Mapping[str, Any]) -> str:
    """A step as one line of progress. Pure."""
    return (
        f"{row['step']}/{row['steps']}: {row['messages']:,} messages, in bronze after "
        f"{row['bronze_s']:.1f} s, silver {row['silver_s']:.1f} s, gold {row['gold_s']:.1f} s"
    )


def tenths(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Medians of the seconds of each tenth of the steps, and what the tables held at its end. Pure."""
    size = len(steps) // TENTHS
    found = []
    for number in range(TENTHS if size else 0):
        part = steps[number * size : (number + 1) * size]
        times = {
            name: round(statistics.median(float(step[name]) for step in part), 3)
            for name in ("bronze_s", "silver_s", "gold_s", "cycle_s")
        }
        kept = ("silver_rows", "silver_files", "silver_snapshots", "bronze_files")
        messages = sum(int(step["messages"]) for step in part)
        found.append(
            {"tenth": number + 1, "messages": messages, **times, **{name: part[-1][name] for name in kept}}
        )
    return found


def verdict(run: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """Each aim: whether it was met, and the figures. Pure."""
    found = []
    if run["loads"]:
        times = sorted(one["gold_s"] for one in run["loads"])
        middle = statistics.median(times)
        words = f"gold complete after {middle:.1f} s ({times[0]:.1f} to {times[-1]:.1f}) of {LOAD_S_MAX:.0f}"
        found.append((middle <= LOAD_S_MAX, words))
    if run["tenths"]:
        third, last = run["tenths"][2], run["tenths"][-1]
        for name, (words, floor) in METRICS.items():
            was, now = third[name], last[name]
            kept = now <= GROWTH_MAX * was or now - was <= floor
            found.append((kept, f"{words}, third and last tenth: {_figure(was)} to {_figure(now)}"))
    return found


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section about a run. Pure."""
    (run,) = runs
    messages = run["loads"][0]["messages"] if run["loads"] else sum(one["messages"] for one in run["tenths"])
    floors = "; ".join(f"{words}: {floor:g}" for words, floor in METRICS.values())
    parts = [ABOUT.format(messages=messages, floors=floors, **run["options"]), "\n"]
    parts += [f"- {'reached' if ok else '**missed**'}: {words}.\n" for ok, words in verdict(run)]
    if run["loads"]:
        parts.append(
            "\n| at once, seconds until | acknowledged by Kafka | in bronze | in silver | in gold |\n"
            "|---|---|---|---|---|\n"
        )
        names = ("produced_s", "bronze_s", "silver_s", "gold_s")
        for number, one in enumerate(run["loads"], 1):
            parts.append(f"| load {number} | " + " | ".join(f"{one[name]:.1f}" for name in names) + " |\n")
    if run["tenths"]:
        parts.append(
            "\n| tenth | messages | sent and in bronze, s of a step | silver, s of a cycle "
            "| gold, s of a cycle | the whole cycle, s | rows of silver | files | snapshots "
            "| files of bronze |\n"
            "|---|---|---|---|---|---|---|---|---|---|\n"
        )
        for row in run["tenths"]:
            cells = [str(row["tenth"]), f"{row['messages']:,}"]
            cells += [f"{row[name]:.2f}" for name in ("bronze_s", "silver_s", "gold_s", "cycle_s")]
            cells += [f"{row[name]:,}" for name in ("silver_rows", "silver_files", "silver_snapshots")]
            parts.append(f"| {' | '.join([*cells, format(row['bronze_files'], ',')])} |\n")
    return "".join(parts)


def _figure(value: float) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
