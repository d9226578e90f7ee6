"""docs/faults.md, generated from the result files in docs/results."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from tests.campaign.faults import FAULTS
from tests.campaign.mutants import MUTANTS
from tests.campaign.real_faults import NOT_REAL, REAL
from tests.campaign.results import ROOT, Counts, Kind, Result, read

FILE = ROOT / "docs" / "faults.md"
RESULTS = ROOT / "docs" / "results"

SUMMED = ("faults", "rows", "lost", "doubled")
HERE = Path(__file__).parent


def latest(kind: Kind) -> Result | None:
    """The result file of a kind that ended last; None if there is none."""
    found = [read(file) for file in sorted(RESULTS.glob(f"faults-{kind}-*.json"))]
    return max(found, key=lambda result: result.end) if found else None


def page() -> str:
    """The whole page."""
    head, limits = ((HERE / f"page_{name}.md").read_text(encoding="utf-8") for name in ("head", "limits"))
    counts = [_counts("simulated", "Simulated"), _counts("real", "Real")]
    parts = [head, *counts, _faults(), _mutants(), limits]
    return "\n".join(part.strip() + "\n" for part in parts)


def _counts(kind: Kind, title: str) -> str:
    result = latest(kind)
    if result is None:
        return f"## {title}\nThere is no recorded run yet."
    changed = ", with changes that were not committed" if result.changed else ""
    lines = [
        f"## {title}",
        f"Commit {result.commit}{changed}, {result.start} to {result.end}; one and two ingest engines on one "
        f"table, {result.replicas} process per engine.",
        _total(result),
        "",
        "| fault | seeds | faults | rows | lost | doubled | failed | s to heal, median | s to heal, most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_row(counts) for _, counts in sorted(result.counts.items()) if counts.seeds or counts.failed]
    clock = "simulated seconds" if kind == "simulated" else "seconds"
    return "\n".join([*lines, "", f"Seconds to heal are {clock}."])


def _total(result: Result) -> str:
    every = list(result.counts.values())
    least = min((len(counts.seeds) for counts in every), default=0)
    reads = sum(counts.reads for counts in every)
    runs, failed = (
        sum(len(one) for one in some)
        for some in ([counts.seeds for counts in every], [counts.failed for counts in every])
    )
    sums = {name: sum(getattr(counts, name) for counts in every) for name in SUMMED}
    text = (
        f"{runs} runs of {len(every)} faults, at least {least} seeds each of {result.seeds_wanted} wanted; "
        f"{', '.join(f'{number} {name}' for name, number in sums.items())}, {failed} runs failed"
    )
    return f"{text}; {reads} reads beside the writers." if reads else f"{text}."


def _row(counts: Counts) -> str:
    heal = counts.heal_s
    times = (f"{median(heal):.1f}", f"{max(heal):.1f}") if heal else ("", "")
    cells = (
        f"{counts.fault} · {FAULTS[counts.fault].name}",
        len(counts.seeds),
        counts.faults,
        counts.rows,
        counts.lost,
        counts.doubled,
        len(counts.failed),
        *times,
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _faults() -> str:
    lines = [
        "## The faults",
        "| | fault | what happens, and what must follow | on the real stack |",
        "|---|---|---|---|",
    ]
    for number, fault in sorted(FAULTS.items()):
        real = REAL[number].how if number in REAL else f"simulated only: {NOT_REAL[number]}"
        lines.append(f"| {number} | {fault.name} | {fault.what} | {real} |")
    return "\n".join(lines)


def _mutants() -> str:
    lines = [
        "## Rules that are taken out",
        "Where several rules hide each other's loss, a mutant takes out all of them.",
        "",
        "| mutant | the product without the rule | noticed by fault |",
        "|---|---|---|",
    ]
    for mutant in MUTANTS:
        lines.append(f"| {mutant.name} | {mutant.rule} | {', '.join(map(str, mutant.faults))} |")
    return "\n".join(lines)
