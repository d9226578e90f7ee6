"""scripts/bench sustained: many producers of small writes into one table for long, tenth by tenth."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tarn_host import shell
from tarn_host.bench import commit, small_writes, soak_look
from tarn_host.bench.ingest import FIX, Own, own_stack
from tarn_host.bench.options import Adder, Verbs, asked, require
from tarn_host.console import StopError, line
from tarn_host.stack.project import ROOT
from tarn_host.testing import python

TENTHS = 10
GROWTH_MAX = 1.2
SERVICES = ("gateway", "catalog", "minio", "reaper")
METRICS = {
    "rate": ("writes a second", True, 0.0),
    "p50_ms": ("p50, ms", False, 2.0),
    "p99_ms": ("p99, ms", False, 20.0),
    "file_mb": ("MB of a data file, on average", True, 0.0),
    "metadata_bytes": ("metadata.json, bytes", False, 1_000.0),
    "gateway": ("gateway's memory, MiB", False, 16.0),
    "catalog": ("catalog's memory, MiB", False, 8.0),
}
"""Figure of a tenth -> its words, whether it must not shrink (else: not grow), and what is no growth."""
ABOUT = """{producers} producers as above write for {minutes:g} minutes into one table, `durability=lake`, and
small files are merged and the reaper works meanwhile. From the first to the last tenth of the time none of
the figures in the list may get worse by more than a fifth, and by more than samples differ ({floors}).
Data files become more as the table grows, and must not become smaller.
Memory is `anon` of the control groups at the end of each tenth;
stored are the bytes of the store's files below the table, its own headers included. Rows are counted at the
end: one too few or too many ends the benchmark.
"""
HEAR_OUT_S = 120


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        producers: number of producers.
        minutes: how long they write.
    """

    producers: int = 64
    minutes: float = 30.0

    def small(self) -> Options:
        """The same with everything small: whether it works, not what it costs."""
        return replace(self, producers=4, minutes=0.2)

    def words(self) -> str:
        """The options of the command that measures this."""
        return f"--producers {self.producers} --minutes {self.minutes:g}"


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    text = "producers of small writes for half an hour, tenth by tenth, on a small stack of its own"
    command = Adder(verbs, "sustained", text, Options)
    command.number("producers", int, "of one table")
    command.number("minutes", float, "that they write")


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(producers=found.producers, minutes=found.minutes)
    require(
        1 <= numbers.producers <= small_writes.PRODUCERS_MAX and 0.1 <= numbers.minutes <= 600,
        numbers,
        f"give 1 to {small_writes.PRODUCERS_MAX} producers, and 0.1 to 600 minutes",
    )
    return asked(numbers, found)


def measure(options: Options) -> list[dict[str, Any]]:
    """The result of one run.

    Raises:
        StopError: the stack does not start, a row was lost or doubled, or the benchmark failed.
    """
    line(python.ensure())
    commit.site()
    with own_stack(log_level="info") as own, commit.scratch_folder() as folder:
        own.compose("stop", "ingest", "kafka")
        sizes = small_writes.Options()
        wanted = {
            "sustained": True,
            "producers": [options.producers],
            "seconds": options.minutes * 60,
            "bytes_min": sizes.bytes_min,
            "bytes_max": sizes.bytes_max,
            "missing": {},
            "gateway": f"http://127.0.0.1:{own.env['TARN_PORT_GATEWAY']}",
            "places": commit.places(own, {}, folder),
        }
        file = folder / "asked.json"
        file.touch(mode=0o600)
        file.write_text(json.dumps(wanted), encoding="utf-8")
        tenths: list[dict[str, Any]] = []
        last: dict[str, Any] = {}

        def heard(text: str) -> None:
            for row in soak_look.parse_answers([text]):
                if "tenth" not in row:
                    last.update(row)
                    continue
                tenths.append(row | looked(own))
                line(f"    {summary(tenths[-1])}")

        running = shell.Running(
            commit.module_command(small_writes.MODULE, file), on_line=heard, env=commit.MODULE_ENV, cwd=ROOT
        )
        try:
            while running.poll() is None:
                time.sleep(1)
            running.hear_out(HEAR_OUT_S)  # a look at the store comes before the last line
        finally:
            running.stop()
        if len(tenths) != TENTHS or "acked" not in last:
            raise StopError(f"the run ended early: {' / '.join(list(running.tail)[-3:])}", FIX)
        return [{"options": vars(options), "tenths": tenths, "whole": last}]


def looked(own: Own) -> dict[str, Any]:
    """Memory of the services, in bytes, and what the store holds of the table."""
    found: dict[str, Any] = {}
    for service in SERVICES:
        inside = own.compose("exec", "-T", service, "sh", "-c", soak_look.INSIDE)
        found[service] = soak_look.parse_inside(inside)["anon"] / soak_look.MIB
    store = soak_look.parse_store(own.compose("exec", "-T", "minio", "sh", "-c", soak_look.STORE))
    tables = [sizes for name, sizes in store["tables"].items() if ".sustained_" in name]
    stored = sum(sizes["data"] + sizes["metadata"] for sizes in tables)
    return {**found, "objects": store["files"], "stored_bytes": stored}


def figures(tenth: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a tenth, with its rate and the mean size of a data file. Pure."""
    size = tenth["live_bytes"] / 1e6 / max(1, tenth["files"])
    return {**tenth, "rate": tenth["acked"] / tenth["seconds"], "file_mb": size}


def summary(tenth: Mapping[str, Any]) -> str:
    """A tenth as one line of progress. Pure."""
    return (
        f"{tenth['tenth']}/{TENTHS}: {figures(tenth)['rate']:,.0f} writes/s, p50 {tenth['p50_ms']} and "
        f"p99 {tenth['p99_ms']} ms, {tenth['files']} files, gateway {tenth['gateway']:.0f} MiB, "
        f"{tenth['stored_bytes'] / 1e6:,.0f} MB stored"
    )


def verdict(run: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """Each figure: whether its last tenth is no worse than the first, and both. Pure."""
    first, last = figures(run["tenths"][0]), figures(run["tenths"][-1])
    found = []
    for name, (words, rises, floor) in METRICS.items():
        was, now = first[name], last[name]
        if was is None or now is None:
            found.append((False, f"{words}: not measured"))
            continue
        kept = now * GROWTH_MAX >= was if rises else now <= GROWTH_MAX * was or now - was <= floor
        digits = 2 if name == "file_mb" else 0
        found.append((kept, f"{words}: {was:,.{digits}f} to {now:,.{digits}f}"))
    whole = run["whole"]
    found.append(
        (not whole["failed"], f"{whole['acked']:,} writes answered, {whole['failed']} producers failed")
    )
    return found


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section about one run. Pure."""
    (run,) = runs
    whole = run["whole"]
    floors = "; ".join(f"{words}: {floor:,.0f}" for words, _, floor in METRICS.values() if floor)
    parts = [ABOUT.format(**run["options"], floors=floors), "\n"]
    parts += [f"- {'reached' if ok else '**missed**'}: {words}.\n" for ok, words in verdict(run)]
    parts.append(
        f"\nAll of it: {whole['acked'] / whole['seconds']:,.0f} writes a second, p50 {whole['p50_ms']} and "
        f"p99 {whole['p99_ms']} ms; slowest and fastest producer {whole['slowest']:,} and "
        f"{whole['fastest']:,} writes; {whole['refused']:,} refused and repeated; "
        f"{whole['bytes'] / 1e6:,.0f} MB sent.\n"
        "\n| tenth | writes/s | p50, ms | p99, ms | commits/s | data files | live, MB | stored, MB | objects "
        "| snapshots | metadata.json, bytes | gateway, MiB | catalog | minio | reaper |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    for tenth in map(figures, run["tenths"]):
        cells = (
            str(tenth["tenth"]),
            f"{tenth['rate']:,.0f}",
            str(tenth["p50_ms"]),
            str(tenth["p99_ms"]),
            f"{tenth['commits'] / tenth['seconds']:.1f}",
            f"{tenth['files']:,}",
            f"{tenth['live_bytes'] / 1e6:,.0f}",
            f"{tenth['stored_bytes'] / 1e6:,.0f}",
            f"{tenth['objects']:,}",
            str(tenth["snapshots"]),
            f"{tenth['metadata_bytes']:,}",
            *(f"{tenth[service]:.0f}" for service in SERVICES),
        )
        parts.append(f"| {' | '.join(cells)} |\n")
    return "".join(parts)
