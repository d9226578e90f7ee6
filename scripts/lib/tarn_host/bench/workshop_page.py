"""Section of docs/benchmarks.md about the workshop by the clock, and its verdict, from the raw results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ROW_EVERY_S = 600
LAST = "silver"
"""Layer whose rows grow as long as the demo plays: gold has one row per group."""
DASH = "\u2013"
COLUMNS = (
    "notebook",
    "student",
    "due",
    "began",
    "ended",
    "slot's end",
    "work, s",
    "slowest cell, s",
    "facts",
    "refused",
    "accepted",
)
ABOUT = """The timetable of [teacher.md](teacher.md#two-hours), walked by the clock in {minutes:g} minutes
(notebooks of size {size}), with the demo playing. At the beginning of each slot a student opens its notebook
in JupyterLab, in a kernel of its own that stays open to the end, and runs it cell by cell, spread over
{share:.0%} of the slot. Each exercise is first answered wrong, then right.
"""


def verdict(run: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """Each aim: whether it was met, and the figures. Pure."""
    books = run["notebooks"]
    late = [
        f"{b['notebook']} by {b['ended_s'] - b['until_s']:.0f} s"
        for b in books
        if b["ended_s"] > b["until_s"]
    ]
    errors = [f"{b['notebook']}, {error}" for b in books for error in b["errors"]]
    facts = [
        f"{b['notebook']} {b['facts'] or 0} of {b['facts_wanted']}"
        for b in books
        if b["facts"] != b["facts_wanted"]
    ]
    refused = [
        f"{b['notebook']} {b['refused']} of {b['exercises']}" for b in books if b["refused"] != b["exercises"]
    ]
    accepted = [
        f"{b['notebook']} {min(b['accepted'], b['solved'])} of {b['exercises']}"
        for b in books
        if not b["accepted"] == b["solved"] == b["exercises"]
    ]
    gone = len(books) - len(run["kernels"])
    restarts = [f"{name} {count}" for name, count in sorted(run["restarts"].items()) if count]
    kills = [f"{name} {count}" for name, count in sorted(run["ooms"].items()) if count]
    red = [
        f"{end['command']} ended with {end['code']}" for end in run["ends"] if end["judged"] and end["code"]
    ]
    samples = run["samples"]
    rows = [sample["layers"][LAST]["rows"] for sample in (samples[:1] + samples[-1:])]
    exercises = sum(b["exercises"] for b in books)
    return [
        (not late, f"each of {len(books)} notebooks ended within its slot{_except(late)}"),
        (not errors, f"no cell ended in an error{_except(errors)}"),
        (
            not facts,
            f"every fact of the notebooks held, {sum(b['facts'] or 0 for b in books)} in all{_except(facts)}",
        ),
        (not refused, f"a wrong answer to each of {exercises} exercises was refused{_except(refused)}"),
        (not accepted, f"the right answer to each of them was accepted{_except(accepted)}"),
        (gone == 0, f"{len(run['kernels'])} of {len(books)} kernels still knew their notebook at the end"),
        (not restarts, f"no container started again{_except(restarts)}"),
        (not kills, f"no container came to its memory limit{_except(kills)}"),
        (
            len(rows) == 2 and rows[0] < rows[1],
            f"the demo went on: {' to '.join(f'{count:,}' for count in rows) or 'no'} rows in {LAST}",
        ),
        (
            run["unseen"] == 0,
            f"the lake answered each look at it ({len(samples)} of {len(samples) + run['unseen']})",
        ),
        (
            not red,
            f"{_asked(run)} found nothing afterwards{_except(red)}",
        ),
    ]


def _asked(run: Mapping[str, Any]) -> str:
    return ", ".join(f"`{end['command']}`" for end in run["ends"] if end["judged"])


def _except(found: Sequence[str]) -> str:
    return f", except {'; '.join(found)}" if found else ""


def clock(seconds: float) -> str:
    """Hours and minutes after the beginning. Pure."""
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d}"


def words(book: Mapping[str, Any]) -> str:
    """A notebook as one progress line. Pure."""
    return (
        f"{book['busy_s']} s of work, slowest {book['slowest']['cell']} {book['slowest']['seconds']} s, "
        f"{book['facts']} facts of {book['facts_wanted']}, {book['refused']} refused and "
        f"{book['accepted']} accepted of {book['exercises']}{_except(book['errors'])}"
    )


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section about one run. Pure."""
    run = runs[0]
    parts = [ABOUT.format(minutes=run["minutes"], size=run["size"], share=run["share"]), "\n"]
    parts += [f"- {'reached' if ok else '**missed**'}: {words}.\n" for ok, words in verdict(run)]
    parts += [
        f"- `{end['command']}`, a table of a student's: exit code {end['code']}.\n"
        for end in run["ends"]
        if not end["judged"]
    ]
    parts.append(f"\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n")
    for b in run["notebooks"]:
        times = [_minutes(b[key]) for key in ("due_s", "begun_s", "ended_s", "until_s")]
        slowest = f"{b['slowest']['cell']} {b['slowest']['seconds']}"
        counts = [f"{b['facts'] or 0} of {b['facts_wanted']}"]
        counts += [f"{b[key]} of {b['exercises']}" for key in ("refused", "accepted")]
        cells = [b["notebook"], b["student"], *times, str(b["busy_s"]), slowest, *counts]
        parts.append(f"| {' | '.join(cells)} |\n")
    parts.append("\nTimes are minutes and seconds after the beginning.\n\n")
    return "".join([*parts, *_memory(run), *_layers(run)])


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def shown(samples: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first sample, the first one of every ten minutes, and the last one. Pure."""
    found: list[Mapping[str, Any]] = []
    for sample in samples:
        if not found or sample["at_s"] // ROW_EVERY_S > found[-1]["at_s"] // ROW_EVERY_S:
            found.append(sample)
    return found if not samples or found[-1] is samples[-1] else [*found, samples[-1]]


def _memory(run: Mapping[str, Any]) -> list[str]:
    samples = run["samples"]
    rows = shown(samples)
    names = sorted({name for sample in samples for name in sample["memory"]})
    own = [sample["own"] for sample in samples if "own" in sample]  # earlier records lack it
    parts = ["| MiB | limit | " + " | ".join(clock(row["at_s"]) for row in rows) + " | largest |"]
    parts.append(" own, first and last |\n" if own else "\n")
    parts.append("|---" * (len(rows) + 3 + bool(own)) + "|\n")
    for name in names:
        held = [str(row["memory"].get(name, DASH)) for row in rows]
        largest = max(sample["memory"].get(name, 0) for sample in samples)
        parts.append(f"| {name} | {run['limits'].get(name, DASH)} | {' | '.join(held)} | {largest} |")
        parts.append(f" {_ends(own, name)} |\n" if own else "\n")
    sums = [f"{sum(row['memory'].values()):,}" for row in rows]
    largest = max((sum(sample["memory"].values()) for sample in samples), default=0)
    parts.append(f"| **all** | | {' | '.join(sums)} | {largest:,} |{' |' if own else ''}\n")
    parts.append(
        "\nMemory is what `docker stats` shows. It has the cache of files that were read more than once, "
        "which grows with the lake and is given up when memory is wanted.\n"
    )
    if own:
        parts.append("*Own* is the memory of the processes, without any cache.\n")
    return parts


def _ends(samples: Sequence[Mapping[str, int]], name: str) -> str:
    """The first and the last value of a container."""
    values = [sample[name] for sample in samples if name in sample]
    return f"{values[0]} and {values[-1]}" if values else DASH


def _layers(run: Mapping[str, Any]) -> list[str]:
    samples = run["samples"]
    rows = shown(samples)
    names = list(dict.fromkeys(name for sample in samples for name in sample["layers"]))
    parts = [
        "\n| rows (offsets behind) | " + " | ".join(clock(row["at_s"]) for row in rows) + " | most behind |\n"
    ]
    parts.append("|---" * (len(rows) + 2) + "|\n")
    for name in names:
        cells = [f"{row['layers'][name]['rows']:,} ({row['layers'][name]['behind']:,})" for row in rows]
        most = max(sample["layers"][name]["behind"] for sample in samples)
        parts.append(f"| {name} | {' | '.join(cells)} | {most:,} |\n")
    return parts
