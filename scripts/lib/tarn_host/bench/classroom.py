"""scripts/bench classroom: a class works through one notebook at the same time, on a stack of its own."""

from __future__ import annotations

import argparse
import json
import re
import runpy
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tarn_host.bench import memory
from tarn_host.bench.options import Adder, Verbs, asked, require
from tarn_host.console import StopError, line
from tarn_host.stack.project import LOG_DIR, ROOT

LOG = LOG_DIR / "bench-classroom.log"
STUDENTS_MAX = 60
SECONDS_MAX = 3_000
DONE = re.compile(r"(\d+) facts checked on this lake, all of them hold")
FOLDER = ROOT / "notebooks"

# Runs in the container of JupyterLab: one kernel per student, all at once, as the server would start them.
INSIDE = """
import json, os, sys, threading, time
import nbformat
from nbclient import NotebookClient

asked = json.load(sys.stdin)
found = {}


def learn(student):
    book = nbformat.reads(json.dumps(asked["book"]), as_version=4)
    own = {"metadata": {"path": "/notebooks/tarn"}}
    client = NotebookClient(book, timeout=asked["cell_s"], startup_timeout=600, resources=own)
    begun = time.monotonic()
    fault = ""
    try:
        own_environ = {**os.environ, "TARN_STUDENT": student, "TARN_WORKSHOP_SIZE": asked["size"]}
        client.execute(env=own_environ)
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"[-600:]
    said = "".join(
        output.get("text", "") for cell in book.cells if cell.cell_type == "code" for output in cell.outputs
    )
    found[student] = {"seconds": round(time.monotonic() - begun, 1), "fault": fault, "said": said[-400:]}


threads = [threading.Thread(target=learn, args=(student,)) for student in asked["students"]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

from pathlib import Path
from pyiceberg.catalog import load_catalog

credential = Path("/run/tarn/secrets/catalog_credential").read_text().strip()
where = {"uri": os.environ["TARN_CATALOG_URI"], "warehouse": os.environ["TARN_WAREHOUSE"]}
catalog = load_catalog("tarn", type="rest", credential=credential, **where)
left = {}
for student in asked["students"]:
    space = f"ws_{student}"
    left[student] = {}
    if (space,) in catalog.list_namespaces():
        for name in catalog.list_tables(space):
            table = catalog.load_table(name)
            head = table.current_snapshot()
            rows = 0 if head is None else int(head.summary.additional_properties["total-records"])
            left[student][name[-1]] = rows
print(json.dumps({"students": found, "left": left}))
"""


@dataclass(frozen=True)
class Options:
    """What is measured.

    Attributes:
        students: how many work at the same time.
        notebook: number of the notebook.
        size: its size, `full` or `small` (`TARN_WORKSHOP_SIZE`).
        jupyter_mib: memory limit of JupyterLab's container.
    """

    students: int = 20
    notebook: str = "02"
    size: str = "full"
    jupyter_mib: int = 6144

    def words(self) -> str:
        """The options of the command that measures this."""
        return (
            f"--students {self.students} --notebook {self.notebook} --size {self.size} "
            f"--jupyter-mib {self.jupyter_mib}"
        )

    def small(self) -> Options:
        """Two students, small."""
        return replace(self, students=2, size="small")


def add(verbs: Verbs) -> None:
    """Add the command to scripts/bench."""
    options = Adder(verbs, "classroom", "a class in one notebook at the same time", Options)
    options.number("students", int, "how many students")
    options.number("notebook", str, "number of the notebook")
    options.number("size", str, "full or small")
    options.number("jupyter-mib", int, "memory limit of JupyterLab, MiB")


def options_of(found: argparse.Namespace) -> Options:
    """The options of a command.

    Raises:
        StopError: they make no sense.
    """
    options = asked(
        Options(
            students=found.students,
            notebook=found.notebook,
            size=found.size,
            jupyter_mib=found.jupyter_mib,
        ),
        found,
    )
    require(1 <= options.students <= STUDENTS_MAX, options, f"give 1 to {STUDENTS_MAX} students")
    require(options.size in ("full", "small"), options, "give --size full or small")
    require(
        len(list(FOLDER.glob(f"{options.notebook}_*.ipynb"))) == 1, options, "give a notebook that exists"
    )
    return options


def solved(notebook: str) -> dict[str, Any]:
    """The notebook with the solutions of its exercises put in.

    Raises:
        StopError: its solutions name a cell that it does not have.
    """
    (path,) = FOLDER.glob(f"{notebook}_*.ipynb")
    book: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    cells = {cell["id"]: cell for cell in book["cells"]}
    for name, source in answers(notebook)["SOLUTIONS"].items():
        if name not in cells:
            raise StopError(
                f"notebooks/solutions/{notebook}.py: {path.name} has no cell {name}", "correct it"
            )
        cells[name]["source"] = source
    return book


def answers(notebook: str) -> dict[str, Any]:
    """The names that `notebooks/solutions` has for a notebook, such as SOLUTIONS, WRONG and FACTS."""
    return runpy.run_path(str(FOLDER / "solutions" / f"{notebook}.py"))


def measure(options: Options) -> list[dict[str, Any]]:
    """One student alone, then all at the same time.

    Raises:
        StopError: a script failed, a notebook failed, or somebody has other tables than the student alone.
    """
    book = solved(options.notebook)
    with memory.own_stack("classroom", LOG) as own:
        own.env["TARN_MEM_JUPYTER"] = f"{options.jupyter_mib}m"
        own.script("up", "--yes", "--no-demo")
        line("one student alone")
        alone = _class(own, options, book, ["alone"])
        names = [f"s{number:02d}" for number in range(1, options.students + 1)]
        line(f"{len(names)} students at the same time")
        watch = memory.Watch()
        together = _class(own, options, book, names, watch)
    run = {
        "students": options.students,
        "notebook": options.notebook,
        "size": options.size,
        "jupyter_mib": options.jupyter_mib,
        "alone": alone,
        "together": together,
        "memory": watch.summary(),
    }
    faults = crosstalk(run)
    if faults:
        raise StopError("; ".join(faults[:5]), f"see {LOG.name} in .tarn/logs")
    return [run]


def _class(
    own: memory.Own,
    options: Options,
    book: Mapping[str, Any],
    students: Sequence[str],
    watch: memory.Watch | None = None,
) -> dict[str, Any]:
    """Run the notebook for all of them; `watch` gets samples of memory meanwhile.

    Raises:
        StopError: the run did not end in time or failed as a whole.
    """
    asked_for = {"book": book, "students": list(students), "size": options.size, "cell_s": SECONDS_MAX // 2}
    command = ["docker", "exec", "-i", own.containers()["jupyter"], "python3", "-c", INSIDE]
    done = threading.Event()

    def sample() -> None:
        while watch is not None and not done.is_set():
            own.look(watch)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        ran = subprocess.run(
            command,
            input=json.dumps(asked_for),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StopError(f"the class was not done in {SECONDS_MAX} s", "take fewer students") from None
    finally:
        done.set()
        thread.join()
    if ran.returncode != 0:
        raise StopError(f"the class ended with {ran.returncode}: {ran.stderr[-800:]}", f"see {LOG.name}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def facts(said: str) -> int | None:
    """The number of facts that a notebook checked, by its last line; None if it did not come to it. Pure."""
    match = DONE.search(said)
    return None if match is None else int(match[1])


def crosstalk(run: Mapping[str, Any]) -> list[str]:
    """What went wrong: a notebook that failed, other facts, other tables than the student alone has. Pure."""
    (model,) = run["alone"]["students"].values()
    (tables,) = run["alone"]["left"].values()
    wanted = facts(model["said"])
    found = [] if wanted is not None else [f"alone: {model['fault'] or model['said'][-200:]}"]
    for name, one in run["together"]["students"].items():
        if facts(one["said"]) != wanted:
            found.append(
                f"{name}: {facts(one['said'])} facts of {wanted}; {one['fault'] or one['said'][-200:]}"
            )
        if run["together"]["left"][name] != tables:
            found.append(f"{name} has {run['together']['left'][name]}, the student alone {tables}")
    return found


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section of docs/benchmarks.md. Pure."""
    run = runs[0]
    seconds = sorted(one["seconds"] for one in run["together"]["students"].values())
    (alone,) = run["alone"]["students"].values()
    held = run["memory"]["services"]
    rows = [
        "| MiB | limit | median | largest |",
        "|---|---|---|---|",
        *(
            f"| {name} | {one['limit_mib']} | {one['median_mib']} | {one['max_mib']} |"
            for name, one in held.items()
        ),
        f"| **all at once** | | {run['memory']['all']['median_mib']} | {run['memory']['all']['max_mib']} |",
    ]
    return (
        f"Notebook {run['notebook']} (size {run['size']}), with the solutions of its exercises, by one "
        f"student alone and then by {run['students']} at the same time, each with a kernel and a namespace. "
        "Each of them "
        "has to check as many facts as the student alone, and to end with the same tables and rows; else "
        "nothing is recorded.\n\n"
        f"- alone: {alone['seconds']} s; together: the first after {seconds[0]} s, half of them after "
        f"{seconds[len(seconds) // 2]} s, the last after {seconds[-1]} s.\n"
        f"- facts: {facts(alone['said'])} each, all held; tables of others in a namespace: 0.\n\n"
        + "\n".join(rows)
        + "\n"
    )
