"""Section of docs/benchmarks.md about ingestion: a function of the raw results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

ABOUT = """Flight events as `scripts/tarn demo load` sends them (2 % doubled, 5 % late, 0.1 % broken); one
topic of 4 partitions, one ingest process. A stack of its own without Spark and Trino, made for this and then
removed; everything, the producer too, shares the machine's cores. Median of the rounds, then the smallest
and the largest.

- *As they come*: producer and ingest at once, from the first message sent to the last offset committed.
- *Catching up*: the messages wait in the topic while ingest is frozen; from its thaw to the last commit.
- *Killed*: the same, with one `kill -9` of ingest at half of the way; its new start counts.
- *Reading only*: ingest's Kafka client reads as many messages and does nothing with them: its ceiling.
- *Freshness*: from the time stamp that the producer gives a message to the first look of a reader of the
  catalog that shows a snapshot with it; it looks every {look_ms:.0f} ms.
"""
Row = tuple[str, str, str]
AS_THEY_COME: tuple[Row, ...] = (
    ("messages sent, per second", "as_they_come.produced_per_s", ",.0f"),
    ("rows in bronze, per second", "as_they_come.rows_per_s", ",.0f"),
    ("rows per second of ingest's processor time", "as_they_come.rows_per_cpu_s", ",.0f"),
    ("commits", "as_they_come.commits", ".0f"),
    ("a batch, from its close to its commit, p50, ms", "as_they_come.batch_ms_p50", ",.0f"),
    ("a batch, p95, ms", "as_they_come.batch_ms_p95", ",.0f"),
)
CATCHING_UP: tuple[Row, ...] = (
    ("rows in bronze, per second", "catching_up.rows_per_s", ",.0f"),
    ("rows per second of ingest's processor time", "catching_up.rows_per_cpu_s", ",.0f"),
    ("commits", "catching_up.commits", ".0f"),
    ("a batch, from its close to its commit, p50, ms", "catching_up.batch_ms_p50", ",.0f"),
    ("a batch, p95, ms", "catching_up.batch_ms_p95", ",.0f"),
    ("decoding it, mostly before its close, p50, ms", "catching_up.batch_decode_ms_p50", ",.0f"),
    ("of it writing files, p50, ms", "catching_up.batch_write_ms_p50", ",.0f"),
    ("ingest's memory at its peak, MiB", "catching_up.memory_peak_mib", ",.0f"),
)
SIDE_BY_SIDE: tuple[Row, ...] = (
    ("reading only, messages per second", "reading_only.rows_per_s", ",.0f"),
    ("reading only, per second of processor time", "reading_only.rows_per_cpu_s", ",.0f"),
    ("ingest's share of that, by processor time, %", "share_of_reading", ".0f"),
    ("reading only by kafka-python, messages per second", "reading_by_kafka_python.rows_per_s", ",.0f"),
    (
        "reading only by kafka-python, per second of processor time",
        "reading_by_kafka_python.rows_per_cpu_s",
        ",.0f",
    ),
    ("catching up, seconds", "catching_up.seconds", ".1f"),
    ("the same, killed at half of the way, seconds", "killed.seconds", ".1f"),
)
FRESHNESS: tuple[Row, ...] = (
    ("p50, ms", "freshness.p50_ms", ",.0f"),
    ("p95, ms", "freshness.p95_ms", ",.0f"),
    ("oldest, ms", "freshness.max_ms", ",.0f"),
)


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section about a set of runs."""
    fresh, last = runs[0]["freshness"], runs[-1]["count"]
    paced = f"freshness at {fresh['rate']:,.0f} messages a second for {fresh['seconds']:.0f} s"
    parts = [ABOUT.format(look_ms=fresh["look_ms"])]
    parts.append(f"\n{runs[0]['events']:,} messages per measurement, rounds: {len(runs)}.\n")
    tables = (
        ("as they come", AS_THEY_COME),
        ("catching up", CATCHING_UP),
        ("side by side", SIDE_BY_SIDE),
        (paced, FRESHNESS),
    )
    for head, rows in tables:
        parts.append(f"\n| {head} | |\n|---|---|\n")
        parts += [
            f"| {words} | {spread([_value(r, path) for r in runs], form)} |\n"
            for words, path, form in rows
            if path == "share_of_reading" or path.partition(".")[0] in runs[0]
        ]
    parts.append(
        f"\nAfter the last round, kills included: {last['offsets']:,} offsets in the topic = "
        f"{last['rows']:,} rows + {last['dead_letters']:,} dead letters.\n"
    )
    return "".join(parts)


def spread(values: Sequence[float], form: str) -> str:
    """The median, with the minimum and maximum if there are several values."""
    middle = format(statistics.median(values), form)
    if len(values) == 1:
        return middle
    return f"{middle} ({format(min(values), form)} to {format(max(values), form)})"


def _value(run: Mapping[str, Any], path: str) -> float:
    if path == "share_of_reading":
        return 100 * _value(run, "catching_up.rows_per_cpu_s") / _value(run, "reading_only.rows_per_cpu_s")
    part, _, name = path.partition(".")
    return float(run[part][name])
