"""docs/faults.md, generated from the result files in docs/results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.campaign.faults import FAULTS
from tests.campaign.gateway_log import LOG_FAULTS, SCENARIOS
from tests.campaign.mutant import Mutant
from tests.campaign.mutants import GATEWAY_MUTANTS, MUTANTS
from tests.campaign.real_faults import NOT_REAL, REAL
from tests.campaign.real_gateway_faults import REAL_HOW
from tests.campaign.results import Counts, Kind, Result, read
from tests.campaign.soak_results import read as read_soak
from tests.campaign.soak_results import section as soak_section
from tests.campaign.sources import ROOT, digest
from tests.campaign.through import UNITS, Through

FILE = ROOT / "docs" / "faults.md"
RESULTS = ROOT / "docs" / "results"

SUMMED = ("faults", "rows", "lost", "doubled")
HERE = Path(__file__).parent


def latest(kind: Kind, through: Through = "ingest") -> dict[int, Result]:
    """Number of readers or gateways -> the result of a kind that has such runs and ended last."""
    found: dict[int, Result] = {}
    name = f"faults-{kind}-*.json" if through == "ingest" else f"faults-{through}-{kind}-*.json"
    for result in sorted(map(read, RESULTS.glob(name)), key=lambda result: result.end):
        found |= {replicas: result for replicas, by_fault in result.counts.items() if by_fault}
    return dict(sorted(found.items()))


def page() -> str:
    """The whole page."""
    head, gateway, limits = (
        (HERE / f"page_{name}.md").read_text(encoding="utf-8") for name in ("head", "gateway", "limits")
    )
    counts = [_kind("simulated", "Simulated"), _kind("real", "Real")]
    more = [
        _kind("simulated", "Simulated, through the gateway", "gateway"),
        _kind("real", "Real, through the gateway", "gateway"),
        _kind("simulated", "Simulated, through the gateway with durability=log", "log"),
    ]
    rules = [_mutants("Rules that are taken out", MUTANTS), _mutants("Rules of the gateway", GATEWAY_MUTANTS)]
    parts = [head, *counts, _soak(), _faults(), rules[0], gateway, *more, _gateway_faults(), rules[1], limits]
    return "\n".join(part.strip() + "\n" for part in parts)


def _kind(kind: Kind, title: str, through: Through = "ingest") -> str:
    found = latest(kind, through)
    clock = "the clock of the simulation" if kind == "simulated" else "the wall clock"
    parts = [
        f"## {title}\n" + (f"Seconds to heal are by {clock}." if found else "There is no recorded run yet.")
    ]
    parts += [_counts(replicas, result) for replicas, result in found.items()]
    return "\n\n".join(parts)


def _counts(replicas: int, result: Result) -> str:
    every = [counts for _, counts in sorted(result.counts[replicas].items())]
    if result.through != "ingest":
        title, who = "One gateway" if replicas == 1 else f"{replicas} gateways", "several clients, one table"
    else:
        title = "Engines with one reader" if replicas == 1 else f"Engines with {replicas} readers"
        who = "one and two ingest engines on one table"
    names = FAULTS if result.through == "ingest" else SCENARIOS[result.through]
    lines = [
        f"### {title}",
        f"{_ran(result)}, {result.start} to {result.end}; {who}.",
        _total(every, result.seeds_wanted),
        "",
        "| fault | seeds | faults | rows | lost | doubled | failed | s to heal, median | s to heal, most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    counted = [counts for counts in every if counts.seeds or counts.failed]
    return "\n".join(lines + [_row(counts, names[counts.fault].name) for counts in counted])


def _ran(result: Result) -> str:
    """What ran: the digest of the sources, and the commits at which runs were added; or the one commit."""
    changed = ", with changes that were not committed"
    if not result.sources:
        return f"Commit {result.commits[-1].commit}{changed * result.commits[-1].changed}"
    every = [one for one in result.commits if one.runs]
    commits = "; ".join(f"{one.runs} at {one.commit}{changed * one.changed}" for one in every)
    return f"Sources {digest(result.sources)[:12]} ({len(result.sources)} files), runs by commit: {commits}"


def _total(every: list[Counts], wanted: int) -> str:
    least = min((len(counts.seeds) for counts in every), default=0)
    runs, failed = (
        sum(len(one) for one in some)
        for some in ([counts.seeds for counts in every], [counts.failed for counts in every])
    )
    sums = {name: sum(getattr(counts, name) for counts in every) for name in SUMMED}
    text = (
        f"{runs} runs of {len(every)} faults, at least {least} seeds each of {wanted} wanted; "
        f"{', '.join(f'{number} {name}' for name, number in sums.items())}, {failed} runs failed"
    )
    for name, words in (("reads", "reads beside the writers"), ("groups", "snapshots with several batches")):
        number = sum(getattr(counts, name) for counts in every)
        text += f"; {number} {words}" if number else ""
    minutes = sum(counts.cpu_s for counts in every) / 60
    return text + (f". The runs took {minutes:.0f} minutes of processor time." if minutes >= 1 else ".")


def _row(counts: Counts, name: str) -> str:
    heal = counts.heal_s
    times = (f"{median(heal):.1f}", f"{max(heal):.1f}") if heal else ("", "")
    cells = (
        f"{counts.fault} · {name}",
        len(counts.seeds),
        counts.faults,
        counts.rows,
        counts.lost,
        counts.doubled,
        len(counts.failed),
        *times,
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _soak() -> str:
    """The section about the soak that ended last."""
    every = sorted(map(read_soak, RESULTS.glob("soak-*.json")), key=lambda one: one.end)
    return soak_section(every[-1] if every else None)


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


def _gateway_faults() -> str:
    lines = [
        "## The faults through the gateway",
        "| | fault | what happens, and what must follow | on the real stack |",
        "|---|---|---|---|",
    ]
    for number, fault in sorted(SCENARIOS["gateway"].items()):
        lines.append(f"| {number} | {fault.name} | {fault.what} | {REAL_HOW[number]} |")
    lines += [
        "",
        "With `durability=log`, simulated only:",
        "",
        "| | fault | what happens, and what must follow |",
        "|---|---|---|",
    ]
    lines += [f"| {n} | {fault.name} | {fault.what} |" for n, fault in sorted(LOG_FAULTS.items())]
    return "\n".join(lines)


def _mutants(title: str, mutants: Sequence[Mutant]) -> str:
    unit = UNITS[mutants[0].through]
    lines = [
        f"## {title}",
        "Where several rules hide each other's loss, a mutant takes out all of them.",
        "",
        f"| mutant | the product without the rule | noticed by fault | {unit} |",
        "|---|---|---|---|",
    ]
    for mutant in mutants:
        faults = ", ".join(map(str, mutant.faults))
        lines.append(f"| {mutant.name} | {mutant.rule} | {faults} | {mutant.replicas} |")
    return "\n".join(lines)
