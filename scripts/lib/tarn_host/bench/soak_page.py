"""Section of docs/benchmarks.md about hours of use, and its verdict: functions of the raw results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WHOLE_LAKE_MIB_MAX = 3584
GROWTH_MAX = 0.05
LIVE_TIMES_MAX = 3
STORED_BYTES_FREE = 200_000_000
HOUR_S = 3600
FLOORS = {"anon_mib": 8.0, "threads": 8.0, "open": 16.0, "commit": 5.0, "trino": 100.0, "spark": 200.0}
"""Growth below this is within the noise of two samples: MiB, threads, open files, milliseconds."""
ENDING = frozenset({"replay"})
"""Services that end by themselves: the replay has played all its flights after 14.6 hours."""
UNITS = {"anon_mib": "memory, MiB", "threads": "threads", "open": "open files"}
LATENCIES = ("commit", "trino", "spark")
ABOUT = """A stack of its own with everything: the replay plays and the pipeline follows. Trino and Spark are
asked question after question, each in a session of its own, {pause_s:.0f} s between an answer and the next.
Every {kernel_min:.0f} minutes a notebook kernel starts, asks pyiceberg and Spark, and ends without closing
its session.

Memory is the median of looks every {look_s:.0f} s: `anon` of the container's control group, and for all
together what `docker stats` shows (largest sum of one moment). Stored are the bytes of MinIO's files, its own
headers included; live is what the current snapshots of all tables count as their data files.

Growth in the last hour is more than {growth:.0%} and more than two samples differ ({floors}). The last table
has every change.
"""


@dataclass(frozen=True)
class Growth:
    """Change of a metric over the last hour.

    Attributes:
        what: the service and the metric, in words.
        before: its value an hour before the end (or after the first period of a shorter run).
        after: its value at the end.
        grew: whether it grew by more than the limit and by more than the noise of two samples.
    """

    what: str
    before: float
    after: float
    grew: bool

    @property
    def share(self) -> float:
        """The growth as a fraction of the value before."""
        return (self.after - self.before) / self.before if self.before else 0.0


def hour(records: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The record an hour before the last one (the first whole one of a shorter run), and the last. Pure."""
    last = records[-1]
    later = [r for r in records[1:] if r["at_s"] >= last["at_s"] - HOUR_S - 1]
    return (later or [last])[0], last


def growths(records: Sequence[Mapping[str, Any]]) -> list[Growth]:
    """Change of every service's metrics and every latency in the last hour. Pure."""
    before, after = hour(records)
    found = []
    for service in sorted(set(before["services"]) & set(after["services"])):
        was, now = before["services"][service], after["services"][service]
        for key, words in UNITS.items():
            found.append(_growth(f"{service}: {words}", was[key], now[key], FLOORS[key]))
    for name in LATENCIES:
        if "p50_ms" in before[name] and "p50_ms" in after[name]:
            what = f"{name}: p50, ms"
            found.append(_growth(what, before[name]["p50_ms"], after[name]["p50_ms"], FLOORS[name]))
    return found


def _growth(what: str, before: float, after: float, floor: float) -> Growth:
    more = after - before
    return Growth(what, before, after, more > floor and more > GROWTH_MAX * before)


def verdict(records: Sequence[Mapping[str, Any]]) -> list[tuple[bool, str]]:
    """Each aim: whether it was met, and the figures. Pure."""
    last = records[-1]
    kills = {n: s["oom_kills"] for n, s in last["services"].items() if s["oom_kills"]}
    starts = {n: s["restarts"] for n, s in last["services"].items() if s["restarts"]}
    # A record of an earlier version does not say which services were there at its end.
    running = set(last.get("running", last["services"]))
    gone = {name for record in records for name in record["services"]} - running - ENDING
    peak = max(r["all"]["max_mib"] for r in records)
    swap = max(r["all"]["swap_mib"] for r in records)
    grown = [g for g in growths(records) if g.grew]
    words = ", ".join(f"{g.what} {g.before:,.0f} to {g.after:,.0f}" for g in grown)
    worst = max(records, key=lambda r: r["store"]["bytes"] - _allowed(r))
    failed = {n: sum(r[n]["errors"] for r in records) for n in ("trino", "spark", "kernel")}
    before, _ = hour(records)
    minutes = (last["at_s"] - before["at_s"]) / 60
    return [
        (not kills, f"no process was killed for its memory{_counts(kills)}"),
        (not starts, f"no container started again{_counts(starts)}"),
        (
            not gone,
            "every service ran until the end" + (f", except {', '.join(sorted(gone))}" if gone else ""),
        ),
        (peak <= WHOLE_LAKE_MIB_MAX, f"all together at most {peak:,} of {WHOLE_LAKE_MIB_MAX:,} MiB"),
        (swap == 0, f"nothing in swap (most: {swap} MiB)"),
        (
            not grown,
            f"in the last {minutes:.0f} minutes nothing but the rows grew by more than {GROWTH_MAX:.0%} "
            f"and than two samples differ" + (f", except {words}" if words else ""),
        ),
        (
            worst["store"]["bytes"] <= _allowed(worst),
            f"stored at most {LIVE_TIMES_MAX} times the live bytes and {_mb(STORED_BYTES_FREE)} MB: "
            f"{_mb(worst['store']['bytes'])} of {_mb(_allowed(worst))} MB",
        ),
        (not any(failed.values()), f"every question was answered{_counts(failed)}"),
    ]


def _allowed(record: Mapping[str, Any]) -> int:
    return int(LIVE_TIMES_MAX * _live(record) + STORED_BYTES_FREE)


def _live(record: Mapping[str, Any]) -> int:
    return sum(t["live_bytes"] for t in record["lake"].values())


def _rows(record: Mapping[str, Any]) -> int:
    return sum(t["rows"] for t in record["lake"].values())


def _counts(found: Mapping[str, int]) -> str:
    words = ", ".join(f"{name} {count}" for name, count in sorted(found.items()) if count)
    return f", except {words}" if words else ""


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f}"


def summary(record: Mapping[str, Any], seconds: float) -> str:
    """A record as one progress line."""
    parts = [
        f"{_clock(record['at_s'])} of {_clock(seconds)}",
        f"{record['all']['max_mib']:,} MiB",
        f"commit {_p50(record['commit'])}",
        f"trino {_p50(record['trino'])}",
        f"spark {_p50(record['spark'])}",
        f"{_rows(record):,} rows, {_mb(record['store']['bytes'])} MB stored, {_mb(_live(record))} MB live",
    ]
    errors = sum(record[n]["errors"] for n in ("trino", "spark", "kernel"))
    if errors:
        parts.append(f"{errors} questions failed")
    return "; ".join(parts)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d}"


def _p50(found: Mapping[str, Any]) -> str:
    return f"{found['p50_ms']:,.0f} ms" if "p50_ms" in found else "\u2013"


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section about one run. Pure."""
    run = runs[0]
    records = run["records"]
    about = ABOUT.format(
        pause_s=run["pause_s"],
        kernel_min=run["kernel_every_s"] / 60,
        look_s=run["look_every_s"],
        growth=GROWTH_MAX,
        floors="; ".join(f"{UNITS.get(k, f'{k}: p50, ms')}: {floor:,.0f}" for k, floor in FLOORS.items()),
    )
    parts = [about, "\n"]
    parts += [f"- {'reached' if ok else '**missed**'}: {words}.\n" for ok, words in verdict(records)]
    names = sorted({name for record in records for name in record["services"]})
    parts.append("\n| MiB, anon | " + " | ".join(names) + " | all, with cache | swap |\n")
    parts.append("|---" * (len(names) + 3) + "|\n")
    for record in records:
        cells = [_cell(record["services"].get(n), "anon_mib") for n in names]
        cells += [f"{record['all']['max_mib']:,}", str(record["all"]["swap_mib"])]
        parts.append(f"| {_clock(record['at_s'])} | " + " | ".join(cells) + " |\n")
    parts.append(
        "\n| p50 (p95), ms | commit | Trino | Spark | kernel | rows | MB stored | MB live | MB metadata |\n"
    )
    parts.append("|---" * 9 + "|\n")
    for record in records:
        times = [_times(record[n]) for n in ("commit", "trino", "spark", "kernel")]
        metadata = sum(t["metadata"] for t in record["store"]["tables"].values())
        sizes = [f"{_rows(record):,}", _mb(record["store"]["bytes"]), _mb(_live(record)), _mb(metadata)]
        parts.append(f"| {_clock(record['at_s'])} | " + " | ".join([*times, *sizes]) + " |\n")
    parts.append("\n| in the last hour | before | after | |\n|---|---|---|---|\n")
    for g in growths(records):
        mark = "**grew**" if g.grew else ""
        parts.append(f"| {g.what} | {g.before:,.0f} | {g.after:,.0f} | {g.share:+.0%} {mark} |\n")
    return "".join(parts)


def _cell(entry: Mapping[str, Any] | None, key: str) -> str:
    return "\u2013" if entry is None else f"{entry[key]:,.0f}"


def _times(found: Mapping[str, Any]) -> str:
    if "p50_ms" not in found:
        return "\u2013"
    failed = f", {found['errors']} failed" if found.get("errors") else ""
    return f"{found['p50_ms']:,.0f} ({found['p95_ms']:,.0f}){failed}"
