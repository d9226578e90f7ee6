"""A cell that takes long says so below itself; one that is quick or shows a bar of its own does not.

The tier notebooks runs the same in real kernels.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CELLS = {
    "open": "from tarn import workshop\nlab = workshop.open('02')\nlab = workshop.open('02')",
    "long": "import time\ntime.sleep(2.6)",
    "quick": "pass",
    "with a bar": "for _ in lab.progress(range(26), 'steps'):\n    time.sleep(0.1)",
    "after its bar": "for _ in lab.progress(range(3), 'steps'):\n    time.sleep(0.2)\ntime.sleep(2.8)",
    "fails": "time.sleep(2.6)\n1 / 0",
    "afterwards": "time.sleep(0.1)",
}
TOOK = re.compile(r"<div>took (\d+\.\d) s</div>")
SHELL = """
import contextlib, io, json, sys
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.kernel = object()  # as in a notebook
found, cell = {}, None
class Kept(DisplayPublisher):
    def publish(self, data, metadata=None, *, transient=None, update=False, **_):
        found[cell].append([transient["display_id"], update, data["text/html"]])
shell.display_pub = Kept()
for cell, text in json.loads(sys.argv[1]).items():
    found[cell] = []
    with contextlib.redirect_stdout(io.StringIO()):
        shell.run_cell(text)
print(json.dumps(found))
"""
Shown = list[tuple[str, bool, str]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shown]:
    """Cell to what was put below it: the id of the place, whether it was there before, and the text."""
    folder: Path = tmp_path_factory.mktemp("kernel")
    own = {"IPYTHONDIR": str(folder), "TARN_SECRETS_DIR": str(folder), "TARN_STUDENT": "ada"}
    command = [sys.executable, "-c", SHELL, json.dumps(CELLS)]
    done = subprocess.run(
        command, env=os.environ | own, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return {name: [(str(i), bool(u), t) for i, u, t in outputs] for name, outputs in found.items()}


def running(outputs: Shown) -> Shown:
    return [one for one in outputs if "running: " in one[2] or TOOK.fullmatch(one[2])]


@pytest.mark.long
@pytest.mark.parametrize(("cell", "at_least_s"), [("long", 2.6), ("after its bar", 3.4), ("fails", 2.6)])
def test_a_cell_that_takes_long_says_so_in_one_place(
    shown: dict[str, Shown], cell: str, at_least_s: float
) -> None:
    found = running(shown[cell])
    assert len({place for place, _, _ in found}) == 1
    assert [update for _, update, _ in found] == [False] + [True] * (len(found) - 1)
    assert found[0][2].startswith("<div><progress></progress> running: ")
    took = TOOK.fullmatch(found[-1][2])
    assert took is not None, "the line was not brought to its end"
    assert at_least_s <= float(took[1]) < at_least_s + 20


@pytest.mark.long
@pytest.mark.parametrize("cell", ["quick", "with a bar", "afterwards"])
def test_others_say_nothing(shown: dict[str, Shown], cell: str) -> None:
    assert running(shown[cell]) == []
    assert bool(shown[cell]) is (cell == "with a bar")
