"""scripts/bench history: whether commits, reading and storage stay as they were while a history grows."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.bench import peers, soak_look
from tarn_host.bench.ingest import FIX, Own, at_share, own_stack, parse_commits
from tarn_host.bench.options import Adder, Verbs, require
from tarn_host.console import StopError, line
from tarn_host.stack.project import ROOT

VERBS = "tarn_demo.bench.history"
TENTHS = 10
GROWTH_MAX = 1.2
STORED_TIMES_MAX = 3.0
FAST_S_PER_COMMIT, FAST_S_MIN = 0.36, 600.0
"""How long the fast run may take: seven times the time that its ingestor waits between commits."""
BAD_EVERY = 50
"""As in `tarn_demo.bench.peers`."""
LATENCY_S = {"steady": 1.0, "fast": 0.05}
"""Kind of run -> `maxLatencySeconds` of its ingestor, which sets the pace of its commits."""
METRICS = {
    "commit_ms": ("commit, p50 ms", 5.0),
    "fresh_p50_ms": ("age when readable, p50 ms", 50.0),
    "fresh_p95_ms": ("age when readable, p95 ms", 100.0),
    "planning_ms": ("Trino: EXPLAIN, p50 ms", 20.0),
    "count_ms": ("Trino: count(*), p50 ms", 40.0),
    "files": ("data files", 10.0),
    "manifests": ("manifests", 3.0),
    "snapshots": ("snapshots", 5.0),
    "metadata_bytes": ("metadata.json, bytes", 5_000.0),
}
"""Metric -> words, and the growth that is within the noise of two samples."""
WARMED_UP = ("planning_ms", "count_ms")
"""Metrics of Trino, which is several times as slow in its first minutes: growth would not show."""
SAWTEETH = ("files", "manifests")
"""Metrics that rise until a merge and fall: of these the most in either half of a run is compared too."""
ABOUT = """Messages of 200 bytes come at {rate:,.0f} a second into one table, from a topic of 4 partitions,
by an ingest service of its own. Trino plans and counts the table every few seconds; a reader looks for new
rows 20 times a second. {pace} Stored are the bytes of the store's files
below the table, the store's own headers included. After the run the messages stop, the reaper works for at
most {settle:g} more minutes, and stored is compared with live.

From the first tenth to the last a figure may grow by a fifth, or by as much as two samples differ ({floors}).
Trino's are compared from the third tenth on: in the first two its machine still compiles.

{files}
"""
PACE = {
    "steady": "The table is committed to once a second for {minutes:g} minutes.",
    "fast": "The table is committed to as often as `maxLatencySeconds: 0.05` and the machine let it, "
    "{commits:,} times.",
}
FILES = {
    "steady": """The number of data files rises to some sixteen of a minute each and falls when they are
merged again, as docs/ingestion.md says under Small files; that of manifests does too. So the most in either
half of a run is compared as well as the tenths, of which the last may be at the top and the first at the
bottom.""",
    "fast": """Data files and manifests rise and fall as they are merged. So the most in either half of a run
is compared as well as the tenths.""",
}
LOOKS = " For that the table is looked at four times a second, its manifests every 2.5 s."
"""Runs before 2026-11-29 have the ends of their tenths only."""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        minutes: duration of the steady run; 0 leaves it out.
        commits: commits of the fast run; 0 leaves it out.
        rate: messages per second.
        settle_minutes: time for the reaper after a run.
    """

    minutes: float = 30.0
    commits: int = 10_000
    rate: float = 1_000.0
    settle_minutes: float = 25.0

    def words(self) -> str:
        """The options of the command that measures this."""
        sizes = f"--minutes {self.minutes:g} --commits {self.commits} --rate {self.rate:g}"
        return f"{sizes} --settle-minutes {self.settle_minutes:g}"


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    text = "a table that is committed to for long, and what it costs, on a stack of its own"
    command = Adder(verbs, "history", text, Options, quick=False)
    command.number("minutes", float, "of commits each second; 0: none")
    command.number("commits", int, "fast ones; 0: none")
    command.number("rate", float, "messages a second")
    command.number("settle-minutes", float, "for the reaper after each run")


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(
        minutes=found.minutes, commits=found.commits, rate=found.rate, settle_minutes=found.settle_minutes
    )
    require(
        0 <= numbers.minutes <= 600
        and 0 <= numbers.commits <= 100_000
        and numbers.minutes + numbers.commits > 0
        and 1 <= numbers.rate <= 50_000
        and 0 <= numbers.settle_minutes <= 120,
        numbers,
        "give at most 600 minutes and 100,000 commits, not both 0, 1 to 50,000 messages a second, and at "
        "most 120 minutes for the reaper",
    )
    return numbers


def measure(options: Options) -> list[dict[str, Any]]:
    """The results: one entry per kind of run.

    Raises:
        StopError: the stack does not start, or a run does not reach its end.
    """
    kinds = [kind for kind, wanted in (("steady", options.minutes), ("fast", options.commits)) if wanted]
    return [_run(kind, options) for kind in kinds]


def seconds_of(kind: str, options: Options) -> float:
    """How long a run takes, in seconds: exactly if it is steady, at most if it is fast. Pure."""
    return options.minutes * 60 if kind == "steady" else max(FAST_S_MIN, FAST_S_PER_COMMIT * options.commits)


def _run(kind: str, options: Options) -> dict[str, Any]:
    seconds = seconds_of(kind, options)
    with own_stack(profile="full") as own, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        own.compose("stop", "spark", "jupyter", "pipeline", "ingest", timeout_s=180)
        topic = stream = f"history-{kind}"
        peers.verb(own, "create", topic=topic)
        with peers.ingest_of(own, folder / kind, kind, spec(stream, topic, LATENCY_S[kind])) as container:
            words = ["--topic", topic, "--stream", stream, "--rate", f"{options.rate:g}"]
            words += ["--seconds", f"{seconds:g}"]
            words += ["--commits", str(options.commits)] if kind == "fast" else []
            began = time.time()
            tenths, last = _tenths(own, container, words, kind, began, stream)
            settled = _settle(own, options.settle_minutes, tenths[-1])
        rows = peers.verb(own, "count", table="bench.history")["rows"]
    if rows != good_of(last["sent"]):
        raise StopError(
            f"{rows} rows of {good_of(last['sent'])} good messages", "a bug: keep the logs and report it"
        )
    for tenth, age in zip(tenths, last["ages"], strict=True):
        tenth["fresh_p50_ms"], tenth["fresh_p95_ms"] = age.get("p50_ms"), age.get("p95_ms")
    return {
        "kind": kind,
        "options": vars(options),
        "sent": last["sent"],
        "rows": rows,
        "tenths": tenths,
        "settled": settled,
    }


def _tenths(
    own: Own, container: str, words: Sequence[str], kind: str, began: float, stream: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the verb; the tenths with what the host sees of each, and its last line."""
    tenths: list[dict[str, Any]] = []
    last: dict[str, Any] = {}

    def heard(text: str) -> None:
        for row in soak_look.parse_answers([text]):
            if "tenth" not in row:
                last.update(row)
                continue
            since = tenths[-1]["unix_s"] if tenths else began
            logs = peers.docker("logs", "--since", f"{since:.3f}", container)
            commits = [each for each in parse_commits(logs, since, stream) if each["at_unix"] < row["unix_s"]]
            times = sorted(float(each["ms"]) for each in commits)
            row |= {"commit_ms": at_share(times, 0.5) if times else None, "commits_seen": len(times)}
            row |= _store(own)
            tenths.append(row)
            line(f"    {kind}: {summary(row)}")

    run = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "cli", "-m", VERBS)
    running = shell.Running(["docker", "compose", *run, *words], on_line=heard, env=own.env, cwd=ROOT)
    try:
        while running.poll() is None:
            time.sleep(1)
    finally:
        running.stop()
    if len(tenths) != TENTHS or "ages" not in last:
        raise StopError(f"the {kind} run ended early: {' / '.join(list(running.tail)[-3:])}", FIX)
    return tenths, last


def _store(own: Own) -> dict[str, int]:
    """Files of the store, and bytes below the run's table."""
    found = soak_look.parse_store(own.compose("exec", "-T", "minio", "sh", "-c", soak_look.STORE))
    table = found["tables"].get("bench.history", {"data": 0, "metadata": 0})
    return {"objects": found["files"], "stored_bytes": table["data"] + table["metadata"]}


def _settle(own: Own, minutes: float, tenth: Mapping[str, Any]) -> dict[str, Any]:
    """Wait for the reaper; stop early once what is stored fits."""
    until = time.monotonic() + minutes * 60
    while True:
        found = {**_store(own), "live_bytes": tenth["live_bytes"]}
        if time.monotonic() > until or found["stored_bytes"] <= STORED_TIMES_MAX * found["live_bytes"]:
            found["after_s"] = round(time.monotonic() - (until - minutes * 60))
            line(f"    stored {found['stored_bytes']:,} of {found['live_bytes']:,} live bytes")
            return found
        time.sleep(15)


def spec(stream: str, topic: str, latency_s: float) -> str:
    """The spec of a run's ingestor. Pure."""
    return peers.events_spec(stream, topic, "history", f"{{maxLatencySeconds: {latency_s:g}}}")


def good_of(sent: int) -> int:
    """How many of the first `sent` messages are good: each fiftieth is not, from the first on. Pure."""
    return sent - -(-sent // BAD_EVERY)


def summary(row: Mapping[str, Any]) -> str:
    """A tenth as one line of progress. Pure."""
    return (
        f"{row['tenth']}/{TENTHS}, {row['at_s']:,.0f} s: {row['commits']:,} commits, "
        f"{_figure(row['commit_ms'])} ms each, "
        f"Trino plans in {_figure(row['planning_ms'])} and counts in {_figure(row['count_ms'])} ms, "
        f"{row['snapshots']} snapshots, {row['files']} files, {row['objects']:,} objects"
    )


def verdict(run: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """Each aim of a run: whether it was met, and the figures. Pure.

    A metric may grow by a fifth from the first to the last tenth, or by as much as two samples of it differ;
    those of Trino from the third one.
    """
    first, warm, last = run["tenths"][0], run["tenths"][2], run["tenths"][-1]
    found = []
    for name, (words, floor) in METRICS.items():
        was, now = (warm if name in WARMED_UP else first).get(name), last.get(name)
        if was is None or now is None:
            found.append((False, f"{words}: not measured"))
            continue
        kept = now <= GROWTH_MAX * was or now - was <= floor
        found.append(
            (kept, f"{words}: {_figure(was)} to {_figure(now)}, {now / was:.2f} times" if was else words)
        )
    for name in SAWTEETH:
        halves = run["tenths"][: TENTHS // 2], run["tenths"][TENTHS // 2 :]
        was, now = (max(tenth.get(f"{name}_most", tenth[name]) for tenth in half) for half in halves)
        words = f"{METRICS[name][0]}, the most in either half: {_figure(was)} and {_figure(now)}"
        found.append((now <= GROWTH_MAX * was, words))
    settled = run["settled"]
    times = settled["stored_bytes"] / settled["live_bytes"]
    found.append(
        (
            times <= STORED_TIMES_MAX,
            f"stored {settled['after_s']} s after the run: {times:.1f} times the live bytes "
            f"({settled['stored_bytes'] / 1e6:,.1f} of {settled['live_bytes'] / 1e6:,.1f} MB)",
        )
    )
    failed = sum(each["failed"] for each in run["tenths"])
    asked = sum(each["questions"] for each in run["tenths"])
    found.append((not failed, f"{asked} pairs of questions to Trino answered, {failed} failed"))
    return found


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section about a run. Pure."""
    (run,) = runs
    options, tenths = run["options"], run["tenths"]
    pace = PACE[run["kind"]].format(minutes=options["minutes"], commits=options["commits"])
    looks = LOOKS if "files_most" in tenths[0] else ""
    parts = [
        ABOUT.format(
            rate=options["rate"],
            pace=pace,
            settle=options["settle_minutes"],
            files=FILES[run["kind"]] + looks,
            floors="; ".join(f"{words}: {floor:,.0f}" for words, floor in METRICS.values()),
        ),
        f"\n{run['kind'].capitalize()}: {tenths[-1]['commits']:,} commits in "
        f"{tenths[-1]['at_s'] / 60:,.1f} minutes, {run['sent']:,} messages.\n\n",
    ]
    parts += [f"- {'reached' if ok else '**missed**'}: {words}.\n" for ok, words in verdict(run)]
    names = [words for words, _ in METRICS.values()]
    parts.append("\n| tenth | commits | " + " | ".join(names) + " | objects in the store | MB stored |\n")
    parts.append("|---" * (len(names) + 4) + "|\n")
    for row in tenths:
        cells = [_figure(row.get(name)) for name in METRICS]
        cells += [f"{row['objects']:,}", f"{row['stored_bytes'] / 1e6:,.1f}"]
        parts.append(f"| {row['tenth']} | {row['commits']:,} | " + " | ".join(cells) + " |\n")
    return "".join(parts)


def _figure(value: float | None) -> str:
    return "\u2013" if value is None else f"{value:,.0f}"
