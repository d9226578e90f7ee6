"""Every notebook runs from top to bottom in its own image, and checks its facts on a real lake."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tarn_host.stack import project

from tests.support.containers import artifacts
from tests.support.stack import Stack

NOTEBOOKS = sorted((project.ROOT / "notebooks").glob("*.ipynb"))
FACTS = {"00_tour.ipynb": 13}
PICTURES = {"00_tour.ipynb": 4}
RUN_S = 420

# As the server would: the kernel that the notebook names, in the notebook's folder.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
book = nbformat.reads(sys.stdin.read(), as_version=4)
nbformat.validate(book)
there = {"metadata": {"path": "/notebooks/tarn"}}
try:
    NotebookClient(book, timeout=240, startup_timeout=60, resources=there).execute()
except CellExecutionError:
    pass  # it stands in the outputs
print(nbformat.writes(book))
"""

Notebook = dict[str, Any]


def read(name: str) -> Notebook:
    found: Notebook = json.loads((project.ROOT / "notebooks" / name).read_text(encoding="utf-8"))
    return found


def executed(stack: Stack, book: Notebook) -> Notebook:
    """The notebook with the outputs of its cells, up to the first that failed."""
    done = subprocess.run(
        ["docker", "exec", "--interactive", stack.container("jupyter"), "python", "-c", EXECUTE],
        input=json.dumps(book).encode(),
        capture_output=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    found: Notebook = json.loads(done.stdout)
    return found


def outputs(book: Notebook) -> Iterator[tuple[str, dict[str, Any]]]:
    for cell in book["cells"]:
        for output in cell.get("outputs", []):
            yield cell["id"], output


def errors(book: Notebook) -> list[str]:
    return [f"{at}: {o['ename']}: {o['evalue']}" for at, o in outputs(book) if o["output_type"] == "error"]


def printed(book: Notebook) -> str:
    return "".join("".join(o["text"]) for _, o in outputs(book) if o.get("name") == "stdout")


def pictures(book: Notebook) -> int:
    return sum(1 for _, o in outputs(book) if "image/png" in o.get("data", {}))


def test_every_notebook_is_in_the_image_as_it_is_in_the_repository(stack: Stack) -> None:
    assert [path.name for path in NOTEBOOKS] == list(FACTS)
    for path in NOTEBOOKS:
        answer = stack.inside("jupyter", "cat", f"/notebooks/tarn/{path.name}")
        assert answer.text == path.read_text(encoding="utf-8"), path.name


@pytest.fixture
def odd_table(flights: Stack) -> Iterator[str]:
    """A table with a type that pyiceberg does not know, in a schema whose name must be quoted in SQL."""
    name = "`odd names`.`variant`"
    for text in (
        "CREATE NAMESPACE IF NOT EXISTS `odd names`",
        f"CREATE TABLE {name} (v VARIANT) USING iceberg TBLPROPERTIES ('format-version' = '3')",
    ):
        assert (done := flights.script("tarn", "sql", "--engine", "spark", text, timeout_s=120)).code == 0, (
            done.text
        )
    yield "odd names.variant"
    for text in (f"DROP TABLE {name}", "DROP NAMESPACE `odd names`"):
        assert (done := flights.script("tarn", "sql", "--engine", "spark", text, timeout_s=120)).code == 0, (
            done.text
        )


@pytest.mark.parametrize("name", FACTS)
def test_a_notebook_runs_to_its_end_and_its_facts_hold(flights: Stack, odd_table: str, name: str) -> None:
    begin = time.monotonic()
    book = executed(flights, read(name))
    seconds = round(time.monotonic() - begin, 1)
    (artifacts() / name).write_text(json.dumps(book), encoding="utf-8")
    (artifacts() / f"{name}.json").write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
    assert errors(book) == []
    text = printed(book)
    assert f"left out: {odd_table}, which pyiceberg cannot read" in text
    assert text.count("✓ ") == FACTS[name]
    closing = re.search(r"(\d+) facts checked on this lake, all of them hold\n\Z", text)
    assert closing, f"the closing cell did not run:\n{text[-2000:]}"
    assert int(closing[1]) == FACTS[name]
    assert pictures(book) == PICTURES[name]
    noise = [f"{at}: {''.join(o['text'])[:300]}" for at, o in outputs(book) if o.get("name") == "stderr"]
    assert noise == [], "a notebook for teaching warns about nothing"


def test_a_broken_copy_fails_at_its_fact(flights: Stack) -> None:
    """Control: a fact that does not hold stops the notebook and is named."""
    book = copy.deepcopy(read("00_tour.ipynb"))
    wrong = "len(rows) + len(dead) == read + 1"
    changed = 0
    for cell in book["cells"]:
        source = "".join(cell["source"])
        if "len(rows) + len(dead) == read" in source:
            cell["source"] = source.replace("len(rows) + len(dead) == read", wrong)
            changed += 1
    assert changed == 1
    found = errors(executed(flights, book))
    assert len(found) == 1
    assert "AssertionError: not so: rows + dead letters = committed offsets" in found[0]
