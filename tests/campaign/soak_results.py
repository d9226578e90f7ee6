"""Result files of soaks, and what the page says of one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.campaign.results import now

FORMAT = 1


@dataclass(slots=True, kw_only=True)
class Interval:
    """What happened between two draws.

    Attributes:
        at_s: when it began, in seconds since the load began.
        fault: the fault that was drawn.
        times: how often it happened.
        behind: messages that were sent and not in the table when it ended.
        rows_sent: messages sent until it ended.
        memory_mib: memory in use at its end, by service; engines by their number.
    """

    at_s: float
    fault: str
    times: int
    behind: int
    rows_sent: int
    memory_mib: dict[str, float]


@dataclass(slots=True, kw_only=True)
class SoakResult:
    """The result file of a soak.

    Attributes:
        commit: commit of the clone.
        changed: whether tracked files differed from it.
        start: when it began, UTC.
        end: when it ended, UTC.
        minutes: how long faults were drawn.
        seed: what the draws follow.
        rate: messages a second.
        intervals: what happened, in order.
        sent: messages that the broker confirmed.
        rows: rows in the table at the end.
        lost: messages that are nowhere.
        doubled: rows and dead letters in excess of the ledger.
        heal_s: seconds from the last fault to a table that has everything.
        problems: what did not hold.
    """

    commit: str
    changed: bool
    start: str
    end: str
    minutes: float
    seed: int
    rate: int
    intervals: list[Interval] = field(default_factory=list)
    sent: int = 0
    rows: int = 0
    lost: int = 0
    doubled: int = 0
    heal_s: float | None = None
    problems: list[str] = field(default_factory=list)

    def write(self, file: Path) -> None:
        """Write the file, whole or not at all."""
        self.end = now()
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")
        part.replace(file)


def read(file: Path) -> SoakResult:
    """Read a result file.

    Raises:
        ValueError: it is of another format.
    """
    data: dict[str, Any] = json.loads(file.read_text())
    if data.pop("format") != FORMAT:
        raise ValueError(f"{file} is of another format than {FORMAT}; run the soak again")
    data["intervals"] = [Interval(**one) for one in data["intervals"]]
    return SoakResult(**data)


def section(found: SoakResult | None) -> str:
    """The section about a soak. Pure."""
    head = "## Soak\n"
    if found is None:
        return head + "There is no recorded run yet."
    changed = ", with changes that were not committed" if found.changed else ""
    healed = (
        "it never had everything" if found.heal_s is None else f"healed {found.heal_s:.0f} s after the last"
    )
    lines = [
        f"{head}Commit {found.commit}{changed}, {found.start} to {found.end}; two engines with three readers "
        f"on one table, {found.rate} messages a second, {found.minutes:g} minutes, seed {found.seed}.",
        f"{found.sent:,} messages, {found.rows:,} rows, {found.lost} lost, {found.doubled} doubled; "
        f"{healed}.",
        *(f"**{text}**" for text in found.problems),
        "",
        "| fault | intervals | times | messages not in the table at the interval's end, median | most |",
        "|---|---|---|---|---|",
    ]
    for name in sorted({one.fault for one in found.intervals}):
        some = [one for one in found.intervals if one.fault == name]
        behind = [one.behind for one in some]
        times = sum(one.times for one in some)
        lines.append(f"| {name} | {len(some)} | {times} | {median(behind):,.0f} | {max(behind):,} |")
    lines += ["", "| memory, MiB | first quarter of the run, most | last quarter, most |", "|---|---|---|"]
    quarter = max(1, len(found.intervals) // 4)
    for name in sorted({name for one in found.intervals for name in one.memory_mib}):
        first, last = (
            [one.memory_mib[name] for one in some if name in one.memory_mib]
            for some in (found.intervals[:quarter], found.intervals[-quarter:])
        )
        cells = [f"{max(some):,.0f}" if some else "not seen" for some in (first, last)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
