"""scripts/bench workshop: the workshop's timetable walked by the clock, on a stack of its own."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tarn_host import shell
from tarn_host.bench import classroom, memory, soak, workshop_page
from tarn_host.bench.options import Adder, Verbs, asked, require
from tarn_host.bench.workshop_student import CODE
from tarn_host.console import StopError, line
from tarn_host.stack.project import LOG_DIR, ROOT

LOG = LOG_DIR / "bench-workshop.log"
PROGRESS = LOG_DIR / "bench-workshop.json"
NOTES = ROOT / "docs/teacher.md"
STUDENTS = ("ada", "ben", "cleo")
"""Who works through the notebooks of a slot: the first through its first notebook, and so on."""
SHARE = 0.8
"""The part of a slot over which the cells of its notebook are spread."""
GRACE_S = 900.0
SAMPLES = 120
SCRIPT_S = 600
TRAIL = "_tarn_trail."
"""Prefix of the topics that are no topics of Kafka; `scripts/tarn audit` does not take their tables."""
STUDENTS_TABLES = "ws_"
"""Prefix of the namespaces of students, who delete rows and roll tables back on purpose."""
SOLVED = re.compile(r"; (\d+) of (\d+) exercises solved")
_ROW = re.compile(r"^\| *(\d+) *\| *([^|]*?) *\| *([^|]*?) *\|$")


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        minutes: how long the whole timetable takes.
        size: size of the notebooks, `full` or `small` (`TARN_WORKSHOP_SIZE`).
        jupyter_mib: memory limit of JupyterLab's container; all kernels stay open.
    """

    minutes: float = 120.0
    size: str = "full"
    jupyter_mib: int = 2048

    def words(self) -> str:
        """The options of the command that measures this."""
        return f"--minutes {self.minutes:g} --size {self.size} --jupyter-mib {self.jupyter_mib}"

    def small(self) -> Options:
        """A few minutes, small."""
        return replace(self, minutes=12.0, size="small")


@dataclass(frozen=True)
class Slot:
    """A row of the timetable.

    Attributes:
        at_s: when it begins, in seconds after the workshop's beginning.
        seconds: how long it takes.
        notebooks: numbers of its notebooks; none is a pause.
    """

    at_s: float
    seconds: float
    notebooks: tuple[str, ...]


@dataclass
class Student:
    """What one student's run of a notebook printed so far.

    Attributes:
        cells: the cells that ran: name, seconds, text and error.
        faults: output that is none of these, such as a traceback of the client.
    """

    cells: list[dict[str, Any]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def heard(self, row: str) -> None:
        """Take one line of output."""
        try:
            found = json.loads(row)
        except ValueError:
            self.faults.append(row)
            return
        if "cell" in found:
            self.cells.append(found)


def add(verbs: Verbs) -> None:
    """Add the command to scripts/bench."""
    options = Adder(verbs, "workshop", "the two hours of docs/teacher.md by the clock", Options)
    options.number("minutes", float, "how long the whole timetable takes")
    options.number("size", str, "full or small")
    options.number("jupyter-mib", int, "memory limit of JupyterLab, MiB")


def options_of(found: argparse.Namespace) -> Options:
    """The options of a command.

    Raises:
        StopError: they make no sense.
    """
    options = asked(Options(minutes=found.minutes, size=found.size, jupyter_mib=found.jupyter_mib), found)
    require(5 <= options.minutes <= 24 * 60, options, "give five minutes to a day")
    require(options.size in ("full", "small"), options, "give --size full or small")
    return options


def timetable(notes: str) -> list[Slot]:
    """The timetable in the teacher's notes. Pure.

    Raises:
        StopError: the notes have none, or a row that is neither a notebook nor a pause.
    """
    _, _, rest = notes.partition("\n## Two hours\n")
    section, _, _ = rest.partition("\n## ")
    slots: list[Slot] = []
    at_s = 0.0
    for row in section.splitlines():
        match = _ROW.match(row)
        if match is None:
            continue
        notebooks = tuple(re.findall(r"\b\d\d\b", match[2]))
        if not notebooks and match[3] != "pause":
            raise StopError(f"{NOTES.name}: neither a notebook nor a pause: {row}", "correct the timetable")
        slots.append(Slot(at_s, int(match[1]) * 60.0, notebooks))
        at_s += slots[-1].seconds
    if not slots:
        raise StopError(f"{NOTES.name} has no timetable below `## Two hours`", "write one")
    return slots


def schedule(slots: Sequence[Slot], minutes: float) -> list[Slot]:
    """The timetable stretched or shrunk to a number of minutes. Pure."""
    scale = minutes * 60 / (slots[-1].at_s + slots[-1].seconds)
    return [replace(slot, at_s=slot.at_s * scale, seconds=slot.seconds * scale) for slot in slots]


def outcome(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a notebook's cells say of it: time, facts, exercises, errors. Pure."""
    nothing: Mapping[str, Any] = {"cell": "none", "seconds": 0.0}
    slowest = max(cells, key=lambda cell: float(cell["seconds"]), default=nothing)
    said = cells[-1]["said"] if cells else ""
    solved = SOLVED.search(said)
    return {
        "cells": len(cells),
        "busy_s": round(sum(cell["seconds"] for cell in cells), 1),
        "slowest": {"cell": slowest["cell"], "seconds": round(slowest["seconds"], 1)},
        "facts": classroom.facts(said),
        "solved": int(solved[1]) if solved else 0,
        "refused": _judged(cells, "wrong", "✗"),
        "accepted": _judged(cells, "solved", "★"),
        "errors": [f"{cell['cell']}: {cell['error']}"[:600] for cell in cells if cell["error"]],
    }


def _judged(cells: Sequence[Mapping[str, Any]], answer: str, mark: str) -> int:
    """How many checks of such an answer were answered with this mark."""
    checks = [cell for cell in cells if re.fullmatch(rf"check-\d+-{answer}", cell["cell"])]
    return sum(f"{mark} exercise " in cell["said"] for cell in checks)


def measure(options: Options) -> list[dict[str, Any]]:
    """Walk through the timetable once.

    Raises:
        StopError: a script failed.
    """
    slots = schedule(timetable(NOTES.read_text(encoding="utf-8")), options.minutes)
    run: dict[str, Any] = {"minutes": options.minutes, "size": options.size, "share": SHARE}
    run |= {"notebooks": [], "samples": [], "unseen": 0}
    with memory.own_stack("workshop", LOG) as own:
        own.env["TARN_MEM_JUPYTER"] = f"{options.jupyter_mib}m"
        line("starting the lake with everything")
        own.script("up", "--yes")
        soaked = soak.Soak(own)
        begun = time.monotonic()
        with _watched(soaked, begun, options.minutes * 60 / SAMPLES, run):
            for slot in slots:
                _walk(own, options, slot, begun, run)
                PROGRESS.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
        run |= _ends(soaked)
        PROGRESS.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
        for ok, words in workshop_page.verdict(run):
            line(f"{'reached' if ok else 'MISSED'}: {words}")
    return [run]


def _walk(own: memory.Own, options: Options, slot: Slot, begun: float, run: dict[str, Any]) -> None:
    """One slot, from its beginning to its end; if the one before was late, from then on."""
    until = begun + slot.at_s + slot.seconds
    if not slot.notebooks:
        line(f"{workshop_page.clock(time.monotonic() - begun)} pause")
    else:
        time.sleep(max(0.0, begun + slot.at_s - time.monotonic()))

        def learn(student: str, notebook: str) -> dict[str, Any]:
            return _learned(own, options, slot, notebook, student, begun)

        with ThreadPoolExecutor(len(STUDENTS)) as pool:
            run["notebooks"] += pool.map(learn, STUDENTS, slot.notebooks)
    time.sleep(max(0.0, until - time.monotonic()))


def _learned(
    own: memory.Own, options: Options, slot: Slot, notebook: str, student: str, begun: float
) -> dict[str, Any]:
    """A student works through a notebook."""
    (path,) = classroom.FOLDER.glob(f"{notebook}_*.ipynb")
    known = classroom.answers(notebook)
    started = time.monotonic()
    until_s = slot.at_s + slot.seconds
    asked_for = {
        "file": path.name,
        "student": student,
        "size": options.size,
        "solutions": known["SOLUTIONS"],
        "wrong": known.get("WRONG", {}),
        "seconds": max(0.0, begun + until_s - started) * SHARE,
    }
    line(f"{workshop_page.clock(started - begun)} {student} opens {path.name}")
    heard = Student()
    command = [
        "docker",
        "exec",
        own.containers().get("jupyter", ""),
        "python3",
        "-c",
        CODE,
        json.dumps(asked_for),
    ]
    client = shell.Running(command, on_line=heard.heard)
    code = client.wait(slot.seconds + GRACE_S)
    ended = time.monotonic()
    found = outcome(heard.cells)
    if code != 0:
        found["errors"].append(f"the client ended with {code}: {' '.join(heard.faults)[-600:]}")
    found |= {
        "notebook": notebook,
        "student": student,
        "due_s": round(slot.at_s, 1),
        "until_s": round(until_s, 1),
        "begun_s": round(started - begun, 1),
        "ended_s": round(ended - begun, 1),
        "facts_wanted": known["FACTS"],
        "exercises": len(known["SOLUTIONS"]),
    }
    line(f"{workshop_page.clock(ended - begun)} {student} is through: {workshop_page.words(found)}")
    return found


@contextmanager
def _watched(soaked: soak.Soak, begun: float, every_s: float, run: dict[str, Any]) -> Iterator[None]:
    """Sample the stack during the block."""
    stop = threading.Event()

    def look() -> None:
        while True:
            at = time.monotonic()
            try:
                run["samples"].append({"at_s": round(at - begun), **_sample(soaked)})
            except (OSError, ValueError, KeyError, IndexError, StopError) as error:
                run["unseen"] += 1
                line(f"    nothing seen at {workshop_page.clock(at - begun)}: {error}")
            if stop.wait(max(0.0, at + every_s - time.monotonic())):
                return

    threads = [threading.Thread(target=look), threading.Thread(target=soak.kills, args=(soaked, stop))]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _sample(soaked: soak.Soak) -> dict[str, Any]:
    """Memory of each container and of its processes alone (MiB), and rows and lag of the demo's layers."""
    seen = soaked.look()
    held = {name: one["working"] // memory.MIB for name, one in seen.items()}
    own = {name: one["anon"] // memory.MIB for name, one in seen.items()}
    said = _script(soaked.own, "tarn", "pipeline", "status", "--json").out
    return {"memory": held, "own": own, "layers": json.loads(said.splitlines()[-1])["layers"]}


def _script(own: memory.Own, *words: str) -> shell.Result:
    command = [str(ROOT / "scripts" / words[0]), *words[1:]]
    return shell.capture(command, timeout_s=SCRIPT_S, env=own.env, cwd=ROOT)


def ingested(status: Mapping[str, Any]) -> list[str]:
    """The tables that ingest fills from topics, by its status. Pure."""
    ingestors = status["ingestors"].values()
    return sorted({one["table"] for one in ingestors if not one["topic"].startswith(TRAIL)})


def without_folder(said: str) -> str:
    """What a script said, without the folder of this clone, which is nobody's business in a record. Pure."""
    return said.replace(f" in {ROOT}", "").replace(str(ROOT), ".")


def _ends(soaked: soak.Soak) -> dict[str, Any]:
    """What the lake says of itself afterwards."""
    own = soaked.own
    line("the lake after the workshop: fsck, audit, doctor")
    soaked.look()  # who was replaced since the last sample
    watch = memory.Watch()
    with contextlib.suppress(ValueError):
        own.look(watch)
    ends = []
    tables: list[str] = []
    try:
        page = f"http://127.0.0.1:{own.env['TARN_PORT_INGEST']}/status"
        with urllib.request.urlopen(page, timeout=30) as answer:
            tables = ingested(json.loads(answer.read()))
    except (OSError, ValueError, KeyError) as error:
        ends.append({"command": "the status of ingest", "code": 1, "said": str(error), "judged": True})
    asked_for = [("tarn", "fsck"), *(("tarn", "audit", name) for name in tables), ("doctor",)]
    for words in asked_for:
        done = _script(own, *words)
        said = without_folder(done.out.strip() or done.err.strip())
        judged = not words[-1].startswith(STUDENTS_TABLES)
        command = f"scripts/{' '.join(words)}"
        ends.append({"command": command, "code": done.code, "said": said[-2000:], "judged": judged})
        line(f"    scripts/{' '.join(words)}: exit code {done.code}")
    counted = shell.capture(
        ["docker", "exec", own.containers().get("jupyter", ""), "python3", "-c", CODE, "null"],
        timeout_s=SCRIPT_S,
    )
    sessions: list[str] = []
    with contextlib.suppress(ValueError, IndexError, KeyError):
        sessions = json.loads(counted.out.splitlines()[-1])["kernels"]
    return {
        "ends": ends,
        "kernels": sessions,
        "limits": {name: limit // memory.MIB for name, limit in sorted(watch.limits.items())},
        "restarts": soaked.restarts(),
        "ooms": dict(soaked.killed),
    }
