"""scripts/bench small-writes: many producers of small writes into one table, on a stack of its own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tarn_host.bench import commit
from tarn_host.bench.ingest import Own, own_stack
from tarn_host.bench.options import Adder, Verbs, asked, counts, require, shown
from tarn_host.console import line
from tarn_host.testing import python

MODULE = "tarn_demo.bench.small_writes"
PEERS = ("pyiceberg, Tarn's catalog", "deltalake")
PRODUCERS_MAX, SECONDS_MAX, BYTES_LIMIT = 256, 7_200, 65_536
AIMS = {64: (2_000, 80), 256: (5_000, 150)}
"""Producers to the writes a second that are aimed at, and the milliseconds at the 99th percentile."""
LOG_AIM = (5_000, 50)
"""The same with `durability=log`, whatever the number of producers."""
LOG_WAIT_S = 120
ABOUT = """Each producer sends one row of {low:,} to {high:,} bytes, waits for the answer, and sends the next,
all into one table; with `durability=lake` the row can be read when it is answered. Producers number their
rows, a refused write is repeated. They are connections of one Python process on the host, which shares the
machine's cores with the gateway, the catalog and the store. Nothing is sent before the time begins. Each
number of producers is measured once. Rows are counted at the end, from the data files: one too few or too
many ends the benchmark.

With `durability=log` a row is in Kafka when it is answered, and ingest, which runs beside, brings it into the
table (`scripts/tarn log`). *All in the table after* is from the last answer. Kafka and ingest are stopped
while `lake` and the peers are measured.

The peers are threads of a like process, after one commit that does not count; a write is a commit of 50 rows,
some 2 kB, which is repeated until it is in. Their *rows wrong* are acknowledged rows that the table does not
have (negative), or rows too many.
"""
Run = Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        producers: numbers of producers.
        seconds: how long they write.
        bytes_min: smallest row, in characters of text.
        bytes_max: largest row, likewise.
        writers: numbers of writers of the peers; none: no peers.
        writer_s: how long these write.
        log: whether `durability=log` is measured too.
    """

    producers: tuple[int, ...] = (1, 4, 16, 64, 256)
    seconds: float = 60.0
    bytes_min: int = 1_000
    bytes_max: int = 10_000
    writers: tuple[int, ...] = (1, 4, 16, 64)
    writer_s: float = 10.0
    log: bool = True

    def small(self) -> Options:
        """The same with everything small: whether it works, not what it costs."""
        return replace(self, producers=(1, 4), seconds=3.0, writers=(1, 2), writer_s=2.0)

    def words(self) -> str:
        """The options of the command that measures this."""
        writers = shown(self.writers) or "0"
        text = f"--producers {shown(self.producers)} --seconds {self.seconds:g} --writers {writers}"
        return text if self.log else f"{text} --no-log"


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    text = "many producers of small writes over HTTP, on a small stack of its own"
    command = Adder(verbs, "small-writes", text, Options)
    command.number("producers", counts, "of one table")
    command.number("seconds", float, "that they write")
    command.number("writers", counts, "of the peers; 0: none")
    command.flag("no-log", "without durability=log")


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(
        producers=tuple(sorted(set(found.producers))),
        seconds=found.seconds,
        writers=tuple(sorted(set(found.writers) - {0})),
        log=not found.no_log,
    )
    require(
        1 <= numbers.producers[0] <= numbers.producers[-1] <= PRODUCERS_MAX
        and 1 <= numbers.seconds <= SECONDS_MAX
        and all(1 <= number <= PRODUCERS_MAX for number in numbers.writers),
        numbers,
        f"give 1 to {PRODUCERS_MAX} producers and writers, and 1 to {SECONDS_MAX:,} seconds",
    )
    return asked(numbers, found)


def measure(options: Options) -> list[dict[str, Any]]:
    """The results of one run.

    Raises:
        StopError: the stack does not start, a row was lost or doubled, or the benchmark failed.
    """
    line(python.ensure())
    why = commit.site()
    missing = {"deltalake": why} if why else {}
    with own_stack(log_level="info") as own, commit.scratch_folder() as folder:
        own.compose("up", "--detach", "--no-deps", "--wait", "gateway", timeout_s=300)
        asked = {
            **asdict(options),
            "missing": missing,
            "gateway": f"http://127.0.0.1:{own.env['TARN_PORT_GATEWAY']}",
            "places": commit.places(own, {}, folder),
        }
        file = folder / "asked.json"
        file.touch(mode=0o600)
        logs = []
        for producers in options.producers if options.log else ():
            logs.append(_log_cell(own, file, asked, producers))
        own.compose("stop", "ingest", "kafka")
        file.write_text(json.dumps(asked), encoding="utf-8")
        found = commit.run_module(MODULE, file, verb="small-writes")
        found["memory_peak_mib"] = round(own.memory_peak_mib("gateway"), 1)
        return [{**found, "log": logs}]


def _log_cell(own: Own, file: Path, asked: Mapping[str, Any], producers: int) -> dict[str, Any]:
    """So many producers into the log of a new table.

    Raises:
        StopError: its ingestor does not run, or a row was lost or doubled.
    """
    line(f"durability=log, {producers} producers")
    file.write_text(json.dumps({**asked, "create": f"log_{producers}"}), encoding="utf-8")
    table = commit.run_module(MODULE, file, verb="small-writes")["table"]
    own.compose("run", "--rm", "--no-deps", "-T", "cli", "log", table, "--wait", str(LOG_WAIT_S))
    cell = {**asked, "log_table": table, "producers": [producers]}
    file.write_text(json.dumps(cell), encoding="utf-8")
    (found,) = commit.run_module(MODULE, file, verb="small-writes")["log"]
    assert isinstance(found, dict)
    return found


def section(runs: Sequence[Run]) -> str:
    """The section about one run. Pure."""
    (run,) = runs
    parts = [ABOUT.format(low=run["bytes_min"], high=run["bytes_max"]), "\n"]
    parts += [f"- {words}\n" for words in aims(run)]
    parts.append(
        f"\nMost memory of the gateway's container: {run['memory_peak_mib']:,.0f} MiB.\n"
        "\n| producers | writes/s | p50, ms | p99, ms | slowest and fastest producer, writes | refused "
        "| commits/s | data files left | objects | MB sent | MB stored, data | MB stored, all |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    parts += [f"| {_row(cell)} |\n" for cell in run["lake"]]
    parts += [
        f"\nOf {cell['producers']} producers {cell['failed']} ended early: {'; '.join(cell['errors'])}\n"
        for cell in [*run["lake"], *run.get("log", [])]
        if cell.get("failed")
    ]
    if run.get("log"):
        parts.append(
            "\n| producers, `log` | writes/s | p50, ms | p99, ms | slowest and fastest producer, writes "
            "| refused | all in the table after, s |\n|---|---|---|---|---|---|---|\n"
        )
        parts += [f"| {_log(cell)} |\n" for cell in run["log"]]
    if run["peers"]:
        parts.append(
            "\n| writers | peer | writes/s | p50, ms | p99, ms | slowest and fastest writer, writes "
            "| refusals per write | rows wrong |\n|---|---|---|---|---|---|---|---|\n"
        )
        parts += [f"| {_peer(cell)} |\n" for cell in run["peers"]]
        parts += [
            f"\nOf {cell['writers']} writers of {cell['contender']} {cell['failed']} ended early: "
            f"{'; '.join(cell['errors'])}\n"
            for cell in run["peers"]
            if cell.get("failed")
        ]
    parts += [f"\nNot measured: {name}: {why}\n" for name, why in sorted(run["missing"].items())]
    return "".join(parts)


def aims(run: Run) -> list[str]:
    """What was aimed at, each with whether it was reached; what was not measured is left out. Pure."""
    found = []
    for cell in run["lake"]:
        if cell["producers"] not in AIMS:
            continue
        if cell["p99_ms"] is None:
            found.append(f"**missed**: {cell['producers']} producers: no write was answered.")
            continue
        rate, p99_ms = AIMS[cell["producers"]]
        mine = cell["acked"] / cell["seconds"]
        reached = mine >= rate and cell["p99_ms"] <= p99_ms and not cell.get("failed")
        word = "reached" if reached else "**missed**"
        found.append(
            f"{word}: {cell['producers']} producers: {mine:,.0f} of {rate:,} "
            f"writes a second, at p99 {cell['p99_ms']:,.0f} of {p99_ms} ms."
        )
    return found + _log_aim(run.get("log", []))


def _log_aim(cells: Sequence[Run]) -> list[str]:
    """Whether a number of producers reached the aim with `durability=log`; of several the fastest."""
    answered = [cell for cell in cells if cell["p99_ms"] is not None and not cell.get("failed")]
    if not answered:
        return ["**missed**: `log`: no number of producers ended well."] if cells else []
    rate, p99_ms = LOG_AIM
    in_time = [cell for cell in answered if cell["p99_ms"] <= p99_ms]
    best = max(in_time or answered, key=lambda cell: cell["acked"] / cell["seconds"])
    mine = best["acked"] / best["seconds"]
    word = "reached" if in_time and mine >= rate else "**missed**"
    return [
        f"{word}: `log`, {best['producers']} producers: {mine:,.0f} of {rate:,} "
        f"writes a second, at p99 {best['p99_ms']:,.0f} of {p99_ms} ms."
    ]


def _row(cell: Run) -> str:
    cells = (
        str(cell["producers"]),
        f"{cell['acked'] / cell['seconds']:,.0f}",
        _ms(cell["p50_ms"]),
        _ms(cell["p99_ms"]),
        f"{cell['slowest']:,} and {cell['fastest']:,}",
        f"{cell['refused']:,}",
        f"{cell['commits'] / cell['seconds']:.1f}",
        f"{cell['data_files']:,}",
        f"{cell['objects']:,}",
        *(f"{cell[key] / 1e6:,.1f}" for key in ("bytes", "stored_data_bytes", "stored_bytes")),
    )
    return " | ".join(cells)


def _log(cell: Run) -> str:
    cells = (
        str(cell["producers"]),
        f"{cell['acked'] / cell['seconds']:,.0f}",
        _ms(cell["p50_ms"]),
        _ms(cell["p99_ms"]),
        f"{cell['slowest']:,} and {cell['fastest']:,}",
        f"{cell['refused']:,}",
        f"{cell['landed_s']:,.1f}",
    )
    return " | ".join(cells)


def _peer(cell: Run) -> str:
    cells = (
        str(cell["writers"]),
        cell["contender"],
        f"{cell['acked'] / cell['seconds']:,.1f}",
        _ms(cell["p50_ms"]),
        _ms(cell["p99_ms"]),
        f"{cell['slowest']:,} and {cell['fastest']:,}",
        f"{cell['refused'] / max(1, cell['acked']):.2f}",
        f"{cell['wrong_rows']:,}" if "wrong_rows" in cell else "not counted",
    )
    return " | ".join(cells)


def _ms(value: float | None) -> str:
    return "none" if value is None else f"{value:,.1f}"
