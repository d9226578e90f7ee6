"""Section of docs/benchmarks.md about commits: a function of the raw results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tarn_host.bench.ingest import at_share
from tarn_host.bench.ingest_page import spread

ABOUT = """Everybody commits from one process on the host, through HTTP, to one MinIO. A commit appends 1,000
rows of four columns that are in memory: the data file, what describes it, and the commit itself. The
contenders take turns in rounds, after two commits of each that do not count. Median of the rounds, then the
smallest and the largest.

- *tarn*: ingest's committer with its batches (`tarn.ingest`) on Tarn's catalog. Every commit before the timed
  ones is real.
- The others' history is laid at once: as many snapshots, and a manifest list as long, as after so many
  single appends once a second; of a Delta log the entries. The data files behind it are one.
- *After so many commits* is what the table has seen; what it still holds is in the next column. Tarn's
  default retention thins the history, the others keep it. *All history live*: `tarn.history` is `all`.
- A *conflict* is an attempt that another writer's commit had overtaken and that the client itself repeats; a
  *refusal* ended otherwise: the client gave up (pyiceberg after four repeats), or the server had no room.
- pyiceberg on Nessie cannot repeat an overtaken commit: it looks for the snapshot that it built on, and
  Nessie serves the newest one only. Each is a refusal. Before the writers begin, the table has one commit: on
  an empty one Nessie 0.99 acknowledges each of several first appends and keeps the last (its issue 10062,
  mended in later versions, of which Maven Central has none).
- *Rows wrong* are acknowledged rows that the table does not have (negative), or rows too many, counted at the
  end. On Tarn's catalog one such row ends the benchmark.
- The writers of one table are threads of one Python process, which shares the machine's two cores with
  everything else: with many of them that process is the limit.
"""
TARN, SQLITE = "tarn", "pyiceberg, SQLite"
P50_MS_MAX = 12.0
GROWTH_MAX = 1.2
SQLITE_TIMES_MIN = 10.0
SQLITE_DEPTH = 200
FILES_MAX = 1.1
LOAD_P99_MS_MAX = 5.0
Run = Mapping[str, Any]


def section(runs: Sequence[Run]) -> str:
    """The section about one run. Pure."""
    (run,) = runs
    parts = [ABOUT, "\n", *(f"- {words}\n" for words in aims(run)), "\n"]
    parts.append(
        "| one writer, after | contender | live snapshots | metadata, bytes | n | p50, ms | p95, ms |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    parts += [f"| {_row(cell)} |\n" for cell in run["depths"]]
    if run.get("aging"):
        parts.append(_aging(run["aging"]))
    if run.get("parts"):
        parts.append(_parts(run["parts"]))
    if run["contention"]:
        parts.append(
            "\n| writers | contender | commits/s | slowest and fastest writer, commits "
            "| conflicts per commit | refusals per commit | metadata files per commit | rows wrong |\n"
            "|---|---|---|---|---|---|---|---|\n"
        )
        parts += [f"| {_contended(one)} |\n" for one in run["contention"]]
        parts += [
            f"\nOf {one['writers']} writers, {one['contender']}, some ended early: "
            f"{'; '.join(one['errors'])}\n"
            for one in run["contention"]
            if one["errors"]
        ]
    if run["loads"]:
        parts.append(
            "\n| loads of one table by 10 clients | 20 a second each: p50, ms | p99, ms "
            "| one after the other: loads/s | p50, ms | p99, ms |\n|---|---|---|---|---|---|\n"
        )
        parts += [f"| {_loaded(one)} |\n" for one in run["loads"]]
        parts.append(_late(run["loads"]))
    parts += [f"\nNot measured: {name}: {why}\n" for name, why in sorted(run["missing"].items())]
    parts += [f"\nLeft out: {one['contender']} {_where(one)}: {one['why']}\n" for one in run["left_out"]]
    return "".join(parts)


def p50(cell: Mapping[str, Any]) -> float:
    """The median of the medians of the rounds of a cell, in milliseconds. Pure."""
    return statistics.median(medians(cell))


def medians(cell: Mapping[str, Any]) -> list[float]:
    """The median of each round of a cell, in milliseconds. Pure."""
    return [at_share(sorted(times), 0.5) for times in cell["times_ms"]]


def aims(run: Run) -> list[str]:
    """What was aimed at, each with whether it was reached; what was not measured is left out. Pure."""
    found = []
    mine = {cell["depth"]: p50(cell) for cell in run["depths"] if cell["contender"] == TARN}
    if 0 in mine:
        found.append(_aim(mine[0] <= P50_MS_MAX, f"p50 at the start {mine[0]:.1f} of {P50_MS_MAX:.0f} ms"))
        last = max(mine)
        grown, than = mine[last] / mine[0], "that"
        if aging := run.get("aging"):
            last, than = aging["depth"], "a new table in turns with it"
            grown = p50({"times_ms": aging["aged_ms"]}) / p50({"times_ms": aging["young_ms"]})
        words = f"after {last:,} commits {grown:.2f} times {than}, of {GROWTH_MAX}"
        found += [_aim(grown <= GROWTH_MAX, words)] if last else []
    theirs = [c for c in run["depths"] if (c["contender"], c["depth"]) == (SQLITE, SQLITE_DEPTH)]
    if theirs and SQLITE_DEPTH in mine:
        times = p50(theirs[0]) / mine[SQLITE_DEPTH]
        words = (
            f"after {SQLITE_DEPTH} commits {times:.1f} times as fast as {SQLITE} of {SQLITE_TIMES_MIN:.0f}"
        )
        found.append(_aim(times >= SQLITE_TIMES_MIN, words))
    crowds = [one for one in run["contention"] if one["contender"] == TARN]
    if crowds:
        most = max(crowds, key=lambda one: int(one["writers"]))
        words = f"{most['writers']} writers: {most['refused']} refusals of 0"
        words += ", and writers that ended early" if most["errors"] else ""
        found.append(_aim(most["refused"] == 0 and not most["errors"], words))
        files = most["metadata_files"] / max(1, most["acked"])
        words = f"{most['writers']} writers: {files:.2f} metadata files per commit of {FILES_MAX}"
        found.append(_aim(files <= FILES_MAX, words))
    loads = [one for one in run["loads"] if one["contender"] == TARN]
    if loads:
        worst = max(float(one["paced"]["p99_ms"]) for one in loads)
        words = f"loads by 10 clients: p99 {worst:.1f} of {LOAD_P99_MS_MAX:.0f} ms"
        found.append(_aim(worst <= LOAD_P99_MS_MAX, words))
    return found


def _aim(reached: bool, words: str) -> str:
    return f"{'reached' if reached else '**missed**'}: {words}."


def _row(cell: Mapping[str, Any]) -> str:
    every = sorted(ms for times in cell["times_ms"] for ms in times)
    cells = (
        f"{cell['depth']:,} commits",
        cell["contender"],
        f"{cell['snapshots']:,}",
        f"{cell['metadata_bytes']:,}",
        str(len(every)),
        spread(medians(cell), ",.1f"),
        f"{at_share(every, 0.95):,.1f}",
    )
    return " | ".join(cells)


def _contended(one: Mapping[str, Any]) -> str:
    acked = max(1, int(one["acked"]))
    cells = (
        str(one["writers"]),
        one["contender"],
        f"{one['acked'] / one['seconds']:.1f}",
        f"{one['slowest']} and {one['fastest']}",
        f"{one['conflicts'] / acked:.2f}",
        f"{one['refused'] / acked:.2f}",
        f"{one['metadata_files'] / acked:.2f}",
        f"{one['wrong_rows']:,}",
    )
    return " | ".join(cells)


def _loaded(one: Mapping[str, Any]) -> str:
    paced, flat_out = one["paced"], one["flat_out"]
    cells = (
        f"{one['contender']}, after {one['depth']:,} commits",
        f"{paced['p50_ms']:.1f}",
        _p99(paced),
        f"{flat_out['per_s']:,.0f}",
        f"{flat_out['p50_ms']:.1f}",
        _p99(flat_out),
    )
    return " | ".join(cells)


def _p99(one: Mapping[str, Any]) -> str:
    return spread(one.get("p99_rounds_ms", [one["p99_ms"]]), ".1f")


def _late(loads: Sequence[Mapping[str, Any]]) -> str:
    """How the readers of a run measure, and how late they were; empty for a run before they did so."""
    late = [ms for one in loads for ms in one["paced"].get("late_p99_rounds_ms", [])]
    if not late:
        return ""
    return (
        "\nThe clients are ten threads of a Python process that does nothing else; paced, they begin one "
        "after the other, evenly spread. p99 is the median of the rounds, then the smallest and the largest. "
        f"99 of 100 loads began at most {spread(late, '.1f')} ms later than planned: the time for which the "
        "machine kept the clients themselves waiting.\n"
    )


def _aging(found: Run) -> str:
    """A new table and an old one, side by side."""
    young, aged = (spread(medians({"times_ms": found[name]}), ".1f") for name in ("young_ms", "aged_ms"))
    count = sum(map(len, found["aged_ms"]))
    return (
        f"\nThe rows above are far apart in time, with the others' writes between. *tarn* alone, {count} "
        f"appends to new tables and to that of {found['depth']:,} commits, one after the other: "
        f"p50 {young} ms and {aged} ms.\n"
    )


def _parts(found: Run) -> str:
    """Where the time of tarn's own commits goes."""
    rows = [f"| {one['part']} | {one['begins_ms']:.1f} | {one['takes_ms']:.1f} |\n" for one in found["parts"]]
    return (
        f"\nWhere the time goes, in {found['commits']} appends of *tarn* to a table of its own, medians. The "
        "three files are on their way at the same time, and the request is sent when all are there. The "
        "catalog writes metadata and pointer, one after the other. The same two writes by a client alone, "
        f"{found['metadata_bytes']:,} bytes and 500: {found['two_writes_ms']:.1f} ms.\n"
        "\n| part | begins after, ms | takes, ms |\n|---|---|---|\n" + "".join(rows)
    )


def _where(one: Mapping[str, Any]) -> str:
    return f"after {one['depth']:,} commits" if "depth" in one else f"with {one['writers']} writers"
