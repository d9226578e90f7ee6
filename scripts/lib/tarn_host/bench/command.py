"""scripts/bench: measure starts, memory, catalog, ingestion; keep raw results; write docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.arguments import Parser
from tarn_host.bench import (
    catalog,
    classroom,
    commit_command,
    commit_page,
    flights,
    fresh,
    history,
    ingest,
    ingest_page,
    memory,
    peers,
    small_writes,
    soak,
    soak_page,
    sustained,
    workshop,
    workshop_page,
)
from tarn_host.console import StopError, agree, line, stopped
from tarn_host.stack import engine, needs
from tarn_host.stack.project import ROOT

RAW = ROOT / "docs/benchmarks/raw"
REPORT = ROOT / "docs/benchmarks.md"
UP_TIMEOUT_S = 3600
ROUNDS_MAX = 100
CHANGED = " with changes"
HELP = "Measure, keep the raw numbers in docs/benchmarks/raw, and write docs/benchmarks.md from them."
HEAD = """# Benchmarks

Made by `scripts/bench report` from the files in `docs/benchmarks/raw`; edit those tools, not this page.
"""
ABOUT = {
    "up-cold": (
        "`scripts/up` from nothing",
        "A fresh clone, an engine with an empty data folder, a new home folder: no image, no build cache, "
        "no Compose. The engine's own packages are installed already.",
    ),
    "up-warm": (
        "`scripts/up` with everything built",
        "Images and data are there, all containers were removed by `scripts/down`.",
    ),
    "up-small": (
        "`scripts/up --small` with everything built",
        "The same without Spark, Trino, the pipeline and notebooks.",
    ),
    "memory": (
        "Memory",
        "What the control group of each container holds without the cache of files that were read once "
        "(`memory.current` less `inactive_file`, as `docker stats` shows it), every two seconds: idle, a "
        "minute after the start, with the replay of flights, and while `scripts/tarn demo load` runs.",
    ),
    "catalog": ("The catalog over HTTP", "Latency and memory, on a stack of its own without other work."),
    "commit": ("Commits, beside others", "Appends to one table, on a stack of its own without other work."),
    "small-writes": ("Small writes over HTTP", "Many producers of one table, on a stack of its own."),
    "sustained": (
        "Small writes for half an hour",
        "Whether it gets slower, or anything grows, while they go on.",
    ),
    "soak": ("Hours of use", "Whether anything but the rows grows while the lake is in use."),
    "classroom": (
        "A class of students",
        "Many students in one JupyterLab at the same time, on a stack of its own.",
    ),
    "workshop": ("The workshop by the clock", "The timetable of two hours, on a stack of its own."),
    "history-steady": ("A growing history", "Whether a table gets slower or larger with every commit."),
    "history-fast": ("A history that grows fast", "The same with as many commits as the machine makes."),
    "ingest": ("Ingestion", "Rows, processor time and freshness, on a stack of its own."),
    "flights": ("A year of flights", "From Kafka to gold, on stacks of its own with all services."),
    "fresh": ("Freshness", "From a message's time stamp to its row, on a stack of its own."),
    "peers": (
        "Ingestion beside others",
        "The same topics by ingest and by what others use, on one stack in one run.",
    ),
}

SECTIONS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    "soak": soak_page.section,
    "catalog": catalog.section,
    "history-steady": history.section,
    "history-fast": history.section,
    "classroom": classroom.section,
    "workshop": workshop_page.section,
    "flights": flights.section,
    "fresh": fresh.section,
    "peers": peers.section,
    "commit": commit_page.section,
    "small-writes": small_writes.section,
    "sustained": sustained.section,
    "ingest": ingest_page.section,
}
"""Kind of benchmark -> what makes its section of the page."""
MEASURED: Mapping[str, Any] = {
    "ingest": ingest,
    "catalog": catalog,
    "peers": peers,
    "commit": commit_command,
    "small-writes": small_writes,
    "sustained": sustained,
    "flights": flights,
    "fresh": fresh,
    "history": history,
    "classroom": classroom,
    "workshop": workshop,
}
"""Command -> module with its options (`add`, `options_of`) and `measure`, which takes what these say."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scripts/bench and return its exit code."""
    found = Parser(prog="scripts/bench", description=HELP)
    verbs = found.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="time scripts/up")
    kind = up.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--cold", action="store_true", help="fresh clone, empty engine, new HOME; root on Linux"
    )
    kind.add_argument("--warm", action="store_true", help="everything built, containers removed")
    kind.add_argument("--small", action="store_true", help="the same, of the small profile")
    up.add_argument("--rounds", type=int, default=3, help="how often to measure --warm (default 3)")
    up.add_argument("--yes", action="store_true", help="do not ask")
    for module in MEASURED.values():
        module.add(verbs)
    soak_verb = verbs.add_parser("soak", help="hours of use of the whole lake, on a stack of its own")
    soak_verb.add_argument("--hours", type=float, help="how long (default 2)")
    soak_verb.add_argument("--minutes", type=float, help="the same in minutes")
    verbs.add_parser("memory", help="memory of every container, on a stack of its own; some ten minutes")
    verbs.add_parser("report", help="write docs/benchmarks.md from the raw numbers")
    options = found.parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = _code()
        if options.verb == "up" and options.cold:
            of_the_clone = code.removesuffix(CHANGED)
            _keep("up-cold", "scripts/bench up --cold", of_the_clone, [cold(options.yes)])
        elif options.verb == "up":
            if not 1 <= options.rounds <= ROUNDS_MAX:
                raise StopError(f"--rounds {options.rounds}: no such benchmark", f"give 1 to {ROUNDS_MAX}", 2)
            which = "small" if options.small else "warm"
            runs = warm(options.rounds, small=options.small)
            _keep(f"up-{which}", f"scripts/bench up --{which} --rounds {options.rounds}", code, runs)
        elif options.verb == "memory":
            _keep("memory", "scripts/bench memory", code, memory.measure())
        elif options.verb == "soak":
            seconds = soak.seconds_of(options.hours, options.minutes)
            runs = soak.measure(soak.Options(seconds=seconds))
            _keep("soak", f"scripts/bench soak --minutes {seconds / 60:g}", code, runs)
        elif options.verb in MEASURED:
            module = MEASURED[options.verb]
            sizes = module.options_of(options)
            runs = module.measure(sizes)
            if getattr(options, "quick", False):
                return _show(SECTIONS[options.verb](runs))
            for name, some in kept_as(options.verb, runs):
                _keep(name, f"scripts/bench {options.verb} {sizes.words()}", code, some)
        REPORT.write_text(report(_raw_files()), encoding="utf-8")
        line(f"wrote {REPORT.relative_to(ROOT)}")
    except StopError as error:
        return stopped(error)
    except KeyboardInterrupt:
        return stopped(StopError("stopped before the end; nothing was kept", "run it again", 130))
    return 0


def kept_as(verb: str, runs: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The results of a command by kind: all its runs, but each of the histories for itself. Pure."""
    if verb != "history":
        return [(verb, runs)]
    return [(f"{verb}-{run['kind']}", [run]) for run in runs]


def _show(section: str) -> int:
    """Print the section of a small run, whose figures are not kept."""
    line(section)
    line("nothing was kept: this shows that it works, not what it costs")
    return 0


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def warm(rounds: int, *, small: bool = False) -> list[dict[str, Any]]:
    """Time `scripts/up` after `scripts/down`, `rounds` times.

    Raises:
        StopError: a script failed.
    """
    found = []
    env = {"TARN_PROFILE": "small" if small else "full"}
    _script(ROOT, "up", ["--yes"], env)
    for turn in range(1, rounds + 1):
        _script(ROOT, "down", [], {})
        line(f"round {turn} of {rounds}")
        found.append(_timed_up(ROOT, env))
    return found


def cold(assume_yes: bool) -> dict[str, Any]:
    """Time `scripts/up` in a fresh clone on an empty engine; the previous state is restored afterwards.

    Raises:
        StopError: containers are running, this clone did not start the engine, or `up` failed.
    """
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise StopError("only root on Linux can start an empty engine", "use scripts/bench up --warm here")
    now = engine.look()
    if now.server:
        running = shell.capture(["docker", "ps", "--format", "{{.Names}}"], timeout_s=20).out.split()
        if running:
            names = ", ".join(running[:5])
            raise StopError(
                f"{len(running)} containers run in the engine: {names}", "stop them first (scripts/down)"
            )
        if not engine.is_mine_alive():
            raise StopError(
                "the running engine was not started by scripts/up of this clone", "stop it yourself first"
            )
    if not agree(
        "This stops the engine, works on an empty one, and starts the former one again. Go on?", assume_yes
    ):
        raise StopError("nothing was done", "answer y, or give --yes")
    with _engine_away(now.server is not None, now.data_root), _scratch(now.data_root) as folder:
        clone = folder / "clone"
        fix = "commit your work: the measured clone is made of HEAD"
        shell.must(["git", "clone", "--quiet", str(ROOT), str(clone)], timeout_s=120, fix=fix)
        env = {
            "HOME": str(folder / "home"),
            "TARN_ENGINE_DATA_ROOT": str(folder / "engine"),
            "DOCKER_CONFIG": "",
        }
        (folder / "home").mkdir()
        try:
            found = _timed_up(clone, env)
            found["disk_mib"] = _size_mib(folder / "engine")
        finally:
            _script(clone, "down", ["--purge", "--engine", "--yes"], env, may_fail=True)
    return found


@contextmanager
def _engine_away(running: bool, data_root: str) -> Iterator[None]:
    """Stop this clone's engine for a block and restart it on the same data."""
    if running:
        line(engine.stop())
    try:
        yield
    finally:
        if running:
            os.environ["TARN_ENGINE_DATA_ROOT"] = data_root
            engine.start(engine.machine())
            line(f"the former engine runs again, data in {data_root}")


@contextmanager
def _scratch(data_root: str) -> Iterator[Path]:
    """A temporary folder on the file system of the engine's data, removed afterwards."""
    parent = Path(data_root).parent
    folder = Path(tempfile.mkdtemp(prefix="tarn-cold-", dir=parent if parent.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            line(f"    {folder} could not be removed wholly; something in it is still mounted")


def _timed_up(clone: Path, env: Mapping[str, str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "timings.json"
        _script(clone, "up", ["--yes", "--timings", str(file)], env)
        found = json.loads(file.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def _script(clone: Path, name: str, words: list[str], env: Mapping[str, str], may_fail: bool = False) -> None:
    """Run a script of a clone with its output shown.

    Raises:
        StopError: it failed and `may_fail` is not set.
    """
    variables = shell.environment(env)
    for unset in ("COMPOSE_PROJECT_NAME", "TARN_BASE", *(k for k, v in env.items() if not v)):
        variables.pop(unset, None)
    command = [str(clone / "scripts" / name), *words]
    try:
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, env=variables, cwd=clone, timeout=UP_TIMEOUT_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        code = shell.TIMED_OUT
    if code != 0 and not may_fail:
        raise StopError(
            f"`{' '.join(command)}` ended with exit code {code}", "its own words above say why", code
        )


def _size_mib(folder: Path) -> int:
    """Disk usage of a folder on its own file system, in MiB."""
    out = shell.capture(["du", "-sxm", str(folder)], timeout_s=300).out.split()
    return int(out[0]) if out and out[0].isdigit() else 0


def _code() -> str:
    """The commit that is measured, asked for before the run; says so if files here differ from it.

    Figures and their page do not count: the benchmark before may have just written them.
    """
    commit = shell.capture(["git", "rev-parse", "--short", "HEAD"], timeout_s=20, cwd=ROOT).out.strip()
    figures = (":(exclude)docs/benchmarks", ":(exclude)docs/benchmarks.md")
    words = ["git", "status", "--porcelain", "--", ".", *figures]
    return commit + CHANGED if shell.capture(words, timeout_s=60, cwd=ROOT).out.strip() else commit


def _keep(kind: str, command: str, code: str, runs: list[dict[str, Any]]) -> None:
    facts = {
        "bench": kind,
        "command": command,
        "commit": code,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": f"{os.cpu_count()} cores, {_memory_gib()} GiB, {platform.system()} {platform.machine()}",
        "engine": _engine_of(runs),
        "load": round(os.getloadavg()[1], 1),
        "runs": runs,
    }
    RAW.mkdir(parents=True, exist_ok=True)
    (RAW / f"{kind}.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    line(f"wrote {(RAW / kind).relative_to(ROOT)}.json")


def _engine_of(runs: Sequence[Mapping[str, Any]]) -> str:
    """The engine that the runs used; by the time of the report another one may run, or none."""
    if "phases" not in runs[0]:
        now = engine.look()
        return f"{now.server}, Compose {now.compose}"
    notes = [phase["note"] for phase in runs[0]["phases"] if phase["name"] == "engine"]
    return notes[0].removeprefix("engine ") if notes and notes[0].startswith("engine ") else "not told"


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30))


def _raw_files() -> list[dict[str, Any]]:
    return [
        json.loads(file.read_text(encoding="utf-8")) for name in ABOUT for file in RAW.glob(f"{name}.json")
    ]


def _load(raw: Mapping[str, Any]) -> str:
    """The 5-minute load average at the end of a run: a hint at other load on the machine."""
    return f" Load average at the end: {raw['load']}." if "load" in raw else ""


def report(raws: Sequence[Mapping[str, Any]]) -> str:
    """The page about a set of raw results. Pure.

    A time is the median over the runs; with several runs the minimum and maximum are added.
    """
    parts = [HEAD]
    for raw in raws:
        title, about = ABOUT[raw["bench"]]
        runs = raw["runs"]
        parts.append(f"\n## {title}\n\n{about}\n")
        parts.append(
            f"\n`{raw['command']}` on {raw['date']}, commit {raw['commit']}: "
            f"{raw['machine']}; engine {raw['engine']}.{_load(raw)}\n"
        )
        if raw["bench"] == "memory":
            measured = {each["bench"]: each["runs"][0] for each in raws if each["bench"] in needs.MEASURED}
            parts.append(f"\n{memory.section(runs)}\n{needs.words(measured)}")
            continue
        if (section := SECTIONS.get(raw["bench"])) is not None:
            parts.append(f"\n{section(runs)}")
            continue
        parts.append("\n| phase | seconds |\n|---|---|\n")
        for place, phase in enumerate(runs[0]["phases"]):
            parts.append(
                f"| {phase['name']} | {_spread([run['phases'][place]['seconds'] for run in runs])} |\n"
            )
        parts.append(f"| **total** | **{_spread([run['total_s'] for run in runs])}** |\n")
        if "disk_mib" in runs[0]:
            parts.append(f"\nDisk afterwards, images and build cache together: {runs[0]['disk_mib']} MiB.\n")
        notes = [phase for phase in runs[0]["phases"] if phase["name"] == "build" and " s" in phase["note"]]
        if notes:
            parts.append(f"\nImages, two at a time: {notes[0]['note']}.\n")
    return "".join(parts)


def _spread(values: list[float]) -> str:
    return ingest_page.spread(values, ".1f")


if __name__ == "__main__":
    raise SystemExit(main())
