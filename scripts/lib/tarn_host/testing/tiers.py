"""scripts/test: the test tiers, each in its own pytest run, with everything they need set up first."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tarn_host import shell, up
from tarn_host.arguments import Parser
from tarn_host.console import Phases, StopError, line, stopped
from tarn_host.stack import firewall, lifecycle
from tarn_host.stack.project import ROOT, Project
from tarn_host.testing import parallel, python

# Faults last: they leave errors in the logs of the stack that the tiers share.
TIERS = (
    *("unit", "contract", "spark", "integration", "e2e", "notebooks", "faults", "rck"),
    *("nightly", "nightly-stack"),
)
ONLY_NAMED = ("nightly", "nightly-stack")
CONTAINER_TIERS = ("spark", "integration", "e2e", "faults", "notebooks", "rck", "nightly-stack")
SIDE_BY_SIDE = (("unit", "contract", "spark"), ("integration", "rck"))
TIER_TIMEOUT_S = {"unit": 1_800, "contract": 2_700, "nightly": 4 * 3_600, "nightly-stack": 2 * 3_600}
CONTAINER_TIER_TIMEOUT_S = 3_000
LINT_TIMEOUT_S = 300
PARALLEL = ("unit", "contract", "nightly")
WORKERS_MAX = 4
NIGHTLY_TIMES = 20
NIGHTLY_ENV = {
    "nightly": {"TARN_TEST_TIMES": str(NIGHTLY_TIMES), "TARN_TEST_NIGHTLY": "1"},
    "nightly-stack": {"TARN_TEST_NIGHTLY": "1"},
}
# A developer waits for `unit`: its long tests run with the next tier, unless tests are selected.
WHOLE_TESTS = {
    "unit": ("tests/unit", "-m", "not long"),
    "contract": ("tests/contract", "tests/unit", "-m", "contract or long"),
}
NIGHTLY_TESTS = {
    "nightly": ("tests/unit", "tests/contract", "-m", "plays or nightly"),
    "nightly-stack": ("tests/spark", "tests/integration", "tests/e2e", "tests/faults", "-m", "nightly"),
}
TURNS = 6
UNEXPECTED = "unexpected-errors.txt"  # written by tests/conftest.py
UNENDED = "unended.txt"  # the same; a test per line that ran when the tier was stopped
OTHER_TURNS = "other-turns.txt"  # the same; a test per line
BROKEN_LINES_MAX = 40
BROKEN_CHARS_MAX = 400
ARTIFACTS = ROOT / "artifacts"
TIMES = ARTIFACTS / "times.json"
HELP = """Run the tests. No tier: all that exist, with one turn of six of the long tests. `unit` includes
`lint` (format, lint, types, imports), needs no container and is quick: its long tests run with `contract`.
Tiers with containers build the images first and remove their containers after. Only if named: `nightly` runs
the random plays of unit and contract with 20 times the seeds, and `nightly-stack` the long tests of the tiers
with containers. Reports, container logs and the time of each tier (times.json) are in artifacts/."""
EPILOG = f"Tiers: {' '.join(TIERS)}. What follows `--` goes to pytest: scripts/test unit -- -k spec"


@dataclass(frozen=True)
class Outcome:
    """Result of a tier."""

    tier: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    broken: tuple[str, ...] = ()  # each failed test with the first line of the reason
    other_turns: int = 0  # tests that other runs have

    @property
    def tests(self) -> int:
        """Number of tests that ran or were skipped."""
        return self.passed + self.failed + self.skipped


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The script's own arguments and those for pytest, split at the first `--`. Pure."""
    words = list(arguments)
    if "--" in words:
        place = words.index("--")
        return words[:place], words[place + 1 :]
    return words, []


def existing(tests_dir: Path) -> list[str]:
    """The tiers whose folder contains tests, in execution order."""
    return [tier for tier in TIERS if any((tests_dir / tier).rglob("test_*.py"))]


def counted(report: Path, tier: str, code: int, seconds: float) -> Outcome:
    """The counts of one pytest run; a run that failed without a failed test counts as one failure.

    Args:
        report: its JUnit XML report.
        tier: name of the tier.
        code: exit code of pytest.
        seconds: duration of the run.
    """
    passed = failed = skipped = 0
    broken: list[str] = []
    if report.is_file():
        root = ElementTree.parse(report).getroot()
        broken = [told for case in root.iter("testcase") for told in _why(case)]
        for suite in root.iter("testsuite"):
            total, bad = (
                int(suite.get("tests", 0)),
                int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
            )
            skips = int(suite.get("skipped", 0))
            failed, skipped = failed + bad, skipped + skips
            passed += max(0, total - bad - skips)
    if code != 0 and failed == 0:
        failed = 1
        broken.append(f"exit code {code} without a failed test; the reason is above and in artifacts/{tier}")
    for file, what in ((UNENDED, "had not ended"), (UNEXPECTED, "unexpected")):
        found = report.with_name(file)
        if code != 0 and found.is_file():
            broken += [f"{what}: {text}" for text in found.read_text(encoding="utf-8").splitlines()]
    others = report.with_name(OTHER_TURNS)
    left_out = len(others.read_text(encoding="utf-8").splitlines()) if others.is_file() else 0
    return Outcome(tier, passed, failed, skipped, round(seconds, 1), tuple(broken), left_out)


def _why(case: ElementTree.Element) -> list[str]:
    """What failed in a test: nothing, its body, its set-up or both."""
    name = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".")
    found = [*case.findall("failure"), *case.findall("error")]
    return [f"{name}: {(one.get('message') or '').partition(chr(10))[0]}" for one in found]


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """The outcomes as table rows, the last one in the form `N passed, N failed`. Pure."""
    rows = ["tier          tests  passed  failed  skipped     time"]
    for o in outcomes:
        rows.append(
            f"{o.tier:<12} {o.tests:>6} {o.passed:>7} {o.failed:>7} {o.skipped:>8} {o.seconds:>7.1f}s"
        )
    rows.append("")
    broken = [f"{o.tier}: {told[:BROKEN_CHARS_MAX]}" for o in outcomes for told in o.broken]
    if broken:
        rows += ["failed:", *(f"  {told}" for told in broken[:BROKEN_LINES_MAX]), ""]
    others = sum(o.other_turns for o in outcomes)
    if others:
        rows.append(f"{others} tests of other turns were not run; scripts/test --all runs them too")
    rows.append(f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed")
    return rows


def times(outcomes: Sequence[Outcome], *, commit: str, changed: bool, at: str) -> dict[str, object]:
    """The run as artifacts/times.json records it. Pure.

    Args:
        outcomes: the tiers that ran.
        commit: the commit that is checked out, or empty.
        changed: whether tracked files differ from that commit.
        at: start of the run, ISO 8601 in UTC.
    """
    rows = [
        {
            **{"tier": o.tier, "tests": o.tests, "passed": o.passed, "failed": o.failed},
            **{"skipped": o.skipped, "other_turns": o.other_turns, "seconds": o.seconds},
        }
        for o in outcomes
    ]
    return {"commit": commit, "changed": changed, "at": at, "tiers": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scripts/test and return its exit code."""
    own, for_pytest = split(sys.argv[1:] if arguments is None else arguments)
    found = Parser(prog="scripts/test", description=HELP, epilog=EPILOG)
    found.add_argument("tiers", nargs="*", metavar="tier", help="which tiers to run")
    found.add_argument(
        "--yes", action="store_true", help="do not ask before installing or starting an engine"
    )
    found.add_argument(
        "--keep", action="store_true", help="leave the tests' containers for a look; next run reuses them"
    )
    found.add_argument(
        "--all",
        action="store_true",
        help=f"also the long tests of other turns: without a tier, a run has one of {TURNS} turns",
    )
    options = found.parse_args(own)
    there = existing(ROOT / "tests")
    wanted = list(options.tiers) or there
    if "unit" in wanted and "lint" not in wanted:
        wanted.insert(wanted.index("unit"), "lint")
    absent = [tier for tier in wanted if tier not in (*there, "lint", *ONLY_NAMED)]
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        unknown = [tier for tier in wanted if tier not in (*TIERS, "lint")]
        if unknown:
            raise StopError(f"no such tier: {', '.join(unknown)}", f"choose from: {' '.join(TIERS)} lint", 2)
        if absent:
            raise StopError(
                f"no tests yet in {', '.join(f'tests/{tier}' for tier in absent)}",
                f"there are: {' '.join(there)}",
            )
        everything = bool(options.all or options.tiers or for_pytest)
        outcomes = run(
            wanted, for_pytest, assume_yes=options.yes, keep=options.keep, turn="" if everything else turn()
        )
    except StopError as error:
        code = stopped(error)
        line("\n0 passed, 1 failed")
        return code
    except KeyboardInterrupt:
        return stopped(StopError("stopped before the end", "run it again; what ran is in artifacts/", 130))
    rows = table(outcomes)
    (ARTIFACTS / "closing-line.txt").write_text(rows[-1] + "\n", encoding="utf-8")
    commit, changed = _checked_out()
    record = times(outcomes, commit=commit, changed=changed, at=at)
    TIMES.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    line("")
    for row in rows:
        line(row)
    return 1 if any(o.failed or not o.passed for o in outcomes) else 0


def _checked_out() -> tuple[str, bool]:
    """The commit that is checked out, empty without git, and whether tracked files differ from it."""
    commit = shell.capture(["git", "rev-parse", "HEAD"], timeout_s=20, cwd=ROOT)
    status = shell.capture(["git", "status", "--porcelain", "--untracked-files=no"], timeout_s=20, cwd=ROOT)
    return (commit.out.strip() if commit.ok else ""), bool(status.out.strip())


def turn() -> str:
    """This run's turn: that of TARN_TEST_TURN, else by the number of commits; 1 without git."""
    given = os.environ.get("TARN_TEST_TURN", "")
    if given and given not in [str(n + 1) for n in range(TURNS)]:
        raise StopError(f"TARN_TEST_TURN is {given!r}", f"set it to a number from 1 to {TURNS}", 2)
    commits = shell.capture(["git", "rev-list", "--count", "HEAD"], timeout_s=20, cwd=ROOT)
    return given or str((int(commits.out) if commits.ok else 0) % TURNS + 1)


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def run(
    wanted: Sequence[str], for_pytest: Sequence[str], *, assume_yes: bool, keep: bool, turn: str = ""
) -> list[Outcome]:
    """Set up what the tiers need, run them, clean up.

    Args:
        wanted: the tiers.
        for_pytest: extra arguments for pytest.
        assume_yes: do not ask before installing or starting an engine.
        keep: keep the tests' containers.
        turn: which of the long tests that take turns to run; empty for all.

    Raises:
        StopError: something could not be set up.
    """
    phases = Phases()
    if turn:
        line(f"turn {turn} of {TURNS} of the long tests; scripts/test --all runs all of them")
    ARTIFACTS.mkdir(exist_ok=True)
    os.environ["TARN_PROFILE"] = "full"  # whatever profile this clone's own stack uses
    env = {"TARN_TEST_TURN": turn}
    with phases.phase("python") as notes:
        notes.append(python.ensure())
    here: Project | None = None
    if any(tier in CONTAINER_TIERS for tier in wanted):
        here = up.prepare(phases, assume_yes=assume_yes, offline=False, ports=False)
        env |= {
            "TARN_IMAGE_TAG": here.name,
            "TARN_TEST_PROJECT": test_project(here),
            "TARN_BASE": here.base,
        }
    outcomes = []
    with _clean_after(here, keep):
        if "lint" in wanted:
            with phases.phase("lint") as notes:
                outcomes.append(lint())
                notes.append(_said(outcomes[-1]))
        for stage in planned([tier for tier in wanted if tier != "lint"]):
            with phases.phase(" and ".join(tier for lane in stage for tier in lane)) as notes:
                ended: list[Outcome] = []

                def keep_count(one: parallel.Ended, ended: list[Outcome] = ended) -> None:
                    outcome = counted(ARTIFACTS / one.name / "report.xml", one.name, one.code, one.seconds)
                    line(f"    {one.name}: {_said(outcome)} in {one.seconds:.1f} s")
                    ended.append(outcome)

                parallel.run([[job(tier, for_pytest, env) for tier in lane] for lane in stage], keep_count)
                notes.append(", ".join(f"{o.tier} {_said(o)}" for o in ended))
            outcomes.extend(sorted(ended, key=lambda o: TIERS.index(o.tier)))
    return outcomes


def _said(outcome: Outcome) -> str:
    return f"{outcome.passed} passed, {outcome.failed} failed"


def test_project(here: Project) -> str:
    """The Compose project of the tests' own stack."""
    return f"{here.name}-test"


def job(tier: str, for_pytest: Sequence[str], env: Mapping[str, str]) -> parallel.Job:
    """One tier's tests as a job with its own pytest process."""
    folder = ARTIFACTS / tier

    def empty() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    return parallel.Job(
        name=tier,
        command=[
            *(str(python.python()), "-u", "-m", "pytest", *selected(tier, for_pytest, os.cpu_count() or 1)),
            f"--junitxml={folder / 'report.xml'}",
        ],
        timeout_s=TIER_TIMEOUT_S.get(tier, CONTAINER_TIER_TIMEOUT_S),
        env={**env, "TARN_ARTIFACTS": str(folder), "TARN_KEEP": "1", **NIGHTLY_ENV.get(tier, {})},
        first=empty,
    )


def selected(tier: str, for_pytest: Sequence[str], processors: int) -> list[str]:
    """Pytest's arguments of a tier: its folder, processes side by side, and what the caller added. Pure.

    Arguments of the caller select or debug a few tests: those run in one process.
    """
    whole = NIGHTLY_TESTS if for_pytest else {**WHOLE_TESTS, **NIGHTLY_TESTS}
    where = list(whole.get(tier, (f"tests/{tier}",)))
    workers = min(processors, WORKERS_MAX)
    if tier in PARALLEL and not for_pytest and workers > 1:
        where += ["-n", str(workers), "--dist", "worksteal"]
    return [*where, *for_pytest]


def planned(wanted: Sequence[str]) -> list[list[list[str]]]:
    """The order of the tiers: sequential stages, each of parallel lanes. Pure.

    Tiers that use the whole stack run alone; the others leave one of two cores idle and run in two lanes.
    """
    first = [[tier for tier in lane if tier in wanted] for lane in SIDE_BY_SIDE]
    taken = {tier for lane in first for tier in lane}
    rest = [[[tier]] for tier in wanted if tier not in taken]
    return [[lane for lane in first if lane], *rest] if taken else rest


def lint() -> Outcome:
    """Formatting, lint, types of the services and of the host scripts, imports: one check each."""
    tool = python.tool
    checks = {
        "format": [tool("ruff"), "format", "--check", "--quiet", "."],
        "lint": [tool("ruff"), "check", "--quiet", "--output-format", "concise", "."],
        "types": [tool("mypy")],
        "types of scripts": [tool("mypy"), "--python-version", "3.10", "scripts/lib/tarn_host"],
        "imports": [tool("lint-imports")],
    }
    begin = time.monotonic()
    broken = []
    for name, command in checks.items():
        result = shell.capture(command, timeout_s=LINT_TIMEOUT_S, cwd=ROOT)
        line(f"    {name}: {'ok' if result.ok else 'FAILED'}")
        if not result.ok:
            broken.append(name)
            for text in (result.out + result.err).splitlines()[-60:]:
                line(f"        {text}")
    seconds = round(time.monotonic() - begin, 1)
    return Outcome("lint", len(checks) - len(broken), len(broken), 0, seconds, tuple(broken))


@contextlib.contextmanager
def _clean_after(here: Project | None, keep: bool) -> Iterator[None]:
    """Remove leftovers of an earlier, killed run and, after the block, what this run created."""
    if here is None:
        yield
        return
    if not keep:
        clean(here)
    try:
        yield
    finally:
        if keep:
            line(
                f"    kept: the containers of {test_project(here)}; scripts/test without --keep removes them"
            )
        else:
            clean(here)


def clean(here: Project) -> None:
    """Remove the containers, networks, volumes and image tags of the tests, whichever run created them."""
    name = test_project(here)
    tests = Project(name=name, base=here.base, own_base=here.own_base, settings={})
    with contextlib.suppress(StopError):
        lifecycle.stop(tests, purge=True)
    sessions = [path.read_text().strip() for path in ARTIFACTS.glob("*/session-id")]
    for session in sessions:
        by_label(f"label=org.testcontainers.session-id={session}")
    by_label(f"label=com.docker.compose.project={name}")
    firewall.remove(name)
    listed = shell.capture(["docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], timeout_s=30)
    names = [
        image for image in listed.out.split() if image.startswith("tarn/") and image.endswith(f":{name}")
    ]
    if names:
        shell.capture(["docker", "image", "rm", *names], timeout_s=60)


def by_label(condition: str) -> None:
    """Remove all containers, then networks and volumes, that match a filter."""
    for kind, listing, removal in (
        ("container", ["ps", "--all", "--quiet"], ["rm", "--force", "--volumes"]),
        ("network", ["network", "ls", "--quiet"], ["network", "rm"]),
        ("volume", ["volume", "ls", "--quiet"], ["volume", "rm"]),
    ):
        found = shell.capture(["docker", *listing, "--filter", condition], timeout_s=30)
        names = found.out.split() if found.ok else []
        if names:
            line(f"    removing {len(names)} {kind}(s) of the tests")
            shell.capture(["docker", *removal, *names], timeout_s=120)


if __name__ == "__main__":
    raise SystemExit(main())
