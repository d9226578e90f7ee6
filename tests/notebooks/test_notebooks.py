"""Every notebook runs in its own image, with wrong and right answers, and its facts hold on a real lake."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.support.containers import artifacts
from tests.support.stack import Stack
from tests.support.turns import one_after_the_other
from tests.support.workshop import (
    FILES,
    FOLDER,
    Book,
    Expected,
    answered,
    check_of,
    errors,
    exercises,
    expected,
    noise,
    pictures,
    printed,
    read,
    source,
)

TOUR = "00_tour.ipynb"
OTHERS = [path.name for path in FILES if path.name != TOUR]
TURN_OF = one_after_the_other(
    OTHERS, "an exercise takes a wrong answer, or a notebook no longer runs to its end", times=2
)
RUN_S = 420
SECONDS_MAX = 120.0
"""The longest that a notebook may take, with all answers; 60 s are meant, and the machine may be busy."""
STUDENT = "tests"

# As the server would: the kernel that the notebook names, in the notebook's folder.
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
book = nbformat.reads(sys.stdin.read(), as_version=4)
nbformat.validate(book)
there = {"metadata": {"path": "/notebooks/tarn"}}
try:
    NotebookClient(book, timeout=240, startup_timeout=180, resources=there).execute()
except CellExecutionError:
    pass  # it stands in the outputs
print(nbformat.writes(book))
"""


def executed(stack: Stack, book: Book) -> Book:
    """The notebook with the outputs of its cells, up to the first that failed."""
    settings = ("--env", "TARN_WORKSHOP_SIZE=small", "--env", f"TARN_STUDENT={STUDENT}")
    done = subprocess.run(
        ["docker", "exec", "--interactive", *settings, stack.container("jupyter"), "python", "-c", EXECUTE],
        input=json.dumps(book).encode(),
        capture_output=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    found: Book = json.loads(done.stdout)
    return found


def shown(stack: Stack, name: str, book: Book) -> tuple[Book, float]:
    """The executed notebook, kept among the artifacts, and how long it took."""
    begin = time.monotonic()
    found = executed(stack, book)
    seconds = round(time.monotonic() - begin, 1)
    (artifacts() / name).write_text(json.dumps(found), encoding="utf-8")
    (artifacts() / f"{name}.json").write_text(json.dumps({"seconds": seconds}), encoding="utf-8")
    return found, seconds


def require_facts(name: str, book: Book) -> None:
    """Require that the notebook ran to its end, its facts hold, and its exercises are solved."""
    wanted = expected(name)
    assert errors(book) == []
    assert noise(book) == []
    text = printed(book)
    assert text.count("✓ ") == wanted.facts
    closing = re.search(
        r"(\d+) facts checked on this lake, all of them hold(?:; (\d+) of (\d+) exercises solved)?\n\Z", text
    )
    assert closing, f"the closing cell did not run:\n{text[-2000:]}"
    assert int(closing[1]) == wanted.facts
    total = len(wanted.solutions)
    assert (closing[2], closing[3]) == ((str(total), str(total)) if total else (None, None))
    assert pictures(book) == wanted.pictures


def test_every_notebook_is_in_the_image_as_it_is_in_the_repository(stack: Stack) -> None:
    for name in (*(path.name for path in FILES), "start.md"):
        text = stack.said_inside("jupyter", "cat", f"/notebooks/tarn/{name}")
        assert text == (FOLDER / name).read_text(encoding="utf-8"), name


def require_verdicts(book: Book, wanted: Expected) -> None:
    """Require that each checker refuses what is wrong, with its reason, and takes what is right."""
    for exercise in exercises(book):
        check, number = check_of(exercise), exercise.rpartition("-")[2]
        assert printed(book, check) == f"○ exercise {number}: not answered yet\n"
        for at, (_, words) in enumerate(wanted.wrong[exercise]):
            text = printed(book, f"{check}-wrong-{at}")
            assert text.startswith(f"✗ exercise {number}: "), (exercise, at, text)
            assert words in text, (exercise, at)
        for at, _ in enumerate(wanted.also.get(exercise, ())):
            text = printed(book, f"{check}-also-{at}")
            assert text.startswith(f"★ exercise {number}: right. "), (exercise, at, text)
        assert printed(book, f"{check}-solved").startswith(f"★ exercise {number}: right. "), printed(
            book, f"{check}-solved"
        )


@pytest.mark.parametrize("name", [pytest.param(name, marks=TURN_OF[name]) for name in OTHERS])
def test_a_notebook_refuses_wrong_answers_and_takes_right_ones(stack: Stack, name: str) -> None:
    wanted = expected(name)
    book, seconds = shown(stack, name, answered(read(name), wanted))
    assert errors(book) == []
    require_verdicts(book, wanted)
    require_facts(name, book)
    assert seconds <= SECONDS_MAX


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


def test_the_tour_runs_to_its_end_and_its_facts_hold(flights: Stack, odd_table: str) -> None:
    wanted = expected(TOUR)
    book, _ = shown(flights, TOUR, answered(read(TOUR), wanted))
    require_verdicts(book, wanted)
    require_facts(TOUR, book)
    assert f"left out: {odd_table}, which pyiceberg cannot read" in printed(book)


def test_a_broken_copy_fails_at_its_fact(flights: Stack) -> None:
    """Control: a fact that does not hold stops the notebook and is named."""
    book = copy.deepcopy(read(TOUR))
    wrong = "len(rows) + len(dead) == read + 1"
    changed = 0
    for cell in book["cells"]:
        text = source(cell)
        if "len(rows) + len(dead) == read" in text:
            cell["source"] = text.replace("len(rows) + len(dead) == read", wrong)
            changed += 1
    assert changed == 1
    found = errors(executed(flights, book))
    assert len(found) == 1
    assert "AssertionError: not so: rows + dead letters = committed offsets" in found[0]


def test_a_notebook_runs_twice_in_one_kernel_and_says_what_to_do_out_of_order(stack: Stack) -> None:
    book = read("02_concurrency.ipynb")
    by_id = {cell["id"]: cell for cell in book["cells"]}
    copies = {"early": "check-2", "twice": "concurrency-09"}
    odd = {}
    for name, of in copies.items():
        odd[name] = {**copy.deepcopy(by_id[of]), "id": name, "metadata": {"tags": ["raises-exception"]}}
    odd["early"]["source"] = 'lab.check("2", 7)'
    again = [{**copy.deepcopy(cell), "id": f"{cell['id']}-again"} for cell in book["cells"]]
    opened = [cell["id"] for cell in book["cells"]].index("concurrency-02") + 1
    book["cells"] = [
        *book["cells"][:opened],
        odd["early"],
        *book["cells"][opened:],
        odd["twice"],
        *again,
    ]
    found, _ = shown(stack, "twice-02.ipynb", book)
    assert "run the cells from the top" in printed(found, "early")
    (error,) = errors(found)
    assert error.startswith("twice: TableAlreadyExistsError: "), error
    assert "→ What to do: this cell has run before: run the cell with lab.reset()" in printed(found, "twice")
    closing = f"{expected('02_concurrency.ipynb').facts} facts checked on this lake, all of them hold"
    assert printed(found, "concurrency-25").startswith(closing)
    assert printed(found, "concurrency-25-again").startswith(closing)
    assert "ws_tests.race" in printed(found, "concurrency-02-again"), "the second run has dropped the first"


RESET = """
import json, pyarrow as pa
from tarn import workshop
found = {}
labs = {name: workshop.open("03", student=name) for name in ("reset", "reset2")}
def there(lab):
    admin = lab.topics._connection.admin()
    try:
        topics = sorted(one for one in admin.list_topics() if one.startswith(lab.topic("")))
    finally:
        admin.close()
    tables = sorted(one[-1] for one in lab.catalog.list_tables(lab.namespace))
    ingestors = [n for n in ("orders", "carts") if not lab.ingestors.gone(lab.ingestor(n))]
    return [tables, topics, ingestors]
for lab in labs.values():
    lab.reset()
    lab.produce(lab.topic("orders"), [{"id": 1}])
    lab.ingest({"apiVersion": "tarn/v1", "kind": "Ingestor", "metadata": {"name": lab.ingestor("orders")},
        "spec": {"source": {"kafka": {"topic": lab.topic("orders")}},
                 "table": {"namespace": lab.namespace, "name": "orders"},
                 "schema": {"fields": [{"name": "id", "type": "long"}]},
                 "deadLetters": {"table": {"namespace": lab.namespace, "name": "letters"}}}})
    lab.until(lambda: lab.rows(lab.name("orders")) == 1, "the row")
carts = labs["reset"].catalog.create_table(labs["reset"].name("carts"), pa.schema([("id", pa.int64())]))
log = f"tarn.log.{carts.metadata.table_uuid}"
spec = {"source": {"kafka": {"topic": log, "create": True}}, "trace": False,
        "table": {"namespace": labs["reset"].namespace, "name": "carts"}}
labs["reset"].ingest({"apiVersion": "tarn/v1", "kind": "Ingestor", "spec": spec,
    "metadata": {"name": labs["reset"].ingestor("carts")}})
found["before"] = there(labs["reset"])
said = []
labs["reset"].say = said.append
labs["reset"].reset()
found["after"] = there(labs["reset"])
found["other"] = there(labs["reset2"])
labs["reset2"].reset()
found["end"] = there(labs["reset2"])
found["log"], found["said"] = log, said
print("FOUND", json.dumps(found))
"""


def test_a_reset_leaves_nothing_of_its_own_and_touches_nothing_of_another(stack: Stack) -> None:
    """One name begins with the other; the log of a table is the gateway's, and is named."""
    done = stack.inside("jupyter", "python", "-c", RESET, timeout_s=240)
    assert done.code == 0, done.text[-4000:]
    found = json.loads(done.text.rpartition("FOUND ")[2])
    orders = ["workshop.reset.orders"]
    assert found["before"] == [["carts", "letters", "orders"], orders, ["orders", "carts"]]
    assert found["after"] == [[], [], []]
    assert found["other"] == [["letters", "orders"], ["workshop.reset2.orders"], ["orders"]]
    assert found["end"] == [[], [], []]
    assert found["said"][-1].startswith(f"left: the topics {found['log']} and tarn.log.claims.")
    gone = stack.script("tarn", "topic", "delete", found["log"], "--yes", timeout_s=120)
    assert gone.code == 0, gone.text
