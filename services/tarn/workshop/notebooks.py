"""The notebooks: number, title, aim, minutes, and the names that each takes in its student's namespace.

The start page, the reset cells and the tests go by this list. After a change of it or a new notebook, write
the start page again:

    .venv/bin/python -c "from tarn.workshop.notebooks import write; write()"
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tarn.core.errors import NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """One notebook of the workshop.

    Attributes:
        number: two digits.
        slug: the rest of its file's name.
        title: its title.
        aim: what one can do or explain after it, as a clause after "you".
        minutes: how long a group takes.
        needs: services besides catalog and store.
        names: tables, topics and ingestors that it makes, by the name that `Lab.name` and its like take. No
            two notebooks share one, so that a reset drops what is its own.
    """

    number: str
    slug: str
    title: str
    aim: str
    minutes: int
    needs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Its file's name."""
        return f"{self.number}_{self.slug}.ipynb"


_ALL = (
    Notebook(
        number="00",
        slug="tour",
        title="A tour of the lake",
        aim="know what stands where, and have seen one table through three engines",
        minutes=10,
        needs=("kafka", "ingest", "spark", "trino"),
        names=("favourites",),
    ),
    Notebook(
        number="01",
        slug="anatomy",
        title="Anatomy of a table",
        aim="can open every object of a table and say what it is for",
        minutes=20,
        needs=("trino",),
        names=("anatomy",),
    ),
    Notebook(
        number="02",
        slug="concurrency",
        title="Optimistic concurrency by hand",
        aim="can say what a commit is, why one of two writers is refused, and what it does then",
        minutes=20,
        names=("counter", "race", "ledger"),
    ),
    Notebook(
        number="03",
        slug="streaming",
        title="Streaming in",
        aim="can bring a topic into a table, measure how fresh it is, and choose an acknowledgement",
        minutes=20,
        needs=("kafka", "ingest", "gateway"),
        names=("orders", "carts", "letters"),
    ),
    Notebook(
        number="04",
        slug="exactly_once",
        title="Exactly once",
        aim="can break the way in at its worst places, and prove by offsets that every row is there once",
        minutes=20,
        needs=("kafka", "ingest", "gateway"),
        names=("payments", "tickets", "careless", "receipts"),
    ),
    Notebook(
        number="05",
        slug="pipeline",
        title="Bronze, silver, gold",
        aim="can write a repeatable job from events to answers with PySpark",
        minutes=45,
        needs=("spark",),
        names=("heard", "flights", "delays", "stock"),
    ),
    Notebook(
        number="06",
        slug="time_travel",
        title="Time travel, branches, rollback",
        aim="can read the past, publish what was audited only, and take a stream back with its offsets",
        minutes=20,
        needs=("kafka", "ingest", "trino", "spark"),
        names=("prices", "coldstore"),
    ),
    Notebook(
        number="07",
        slug="evolution",
        title="Schema and partition evolution",
        aim="can change the columns and the layout of a table that is in use",
        minutes=35,
        needs=("spark", "trino"),
        names=("sales", "invoices", "visits"),
    ),
    Notebook(
        number="08",
        slug="questions",
        title="Questions to Trino, with plots",
        aim="can ask a year of flights with SQL, and show the answers",
        minutes=35,
        needs=("trino",),
        names=("timetable", "airlines", "airports", "weather"),
    ),
    Notebook(
        number="09",
        slug="live",
        title="Live",
        aim="can set windows over a stream beside the tables that it fills",
        minutes=40,
        needs=("kafka", "ingest", "trino"),
        names=("departures",),
    ),
    Notebook(
        number="10",
        slug="small_files",
        title="Small files, thinning and the reaper",
        aim="can see what many small commits cost, and what takes them away again",
        minutes=35,
        needs=("kafka", "ingest", "spark"),
        names=("drip", "trickle", "shreds"),
    ),
    Notebook(
        number="11",
        slug="capstone",
        title="Capstone: your own events",
        aim="have brought events of your own from a file to a plot",
        minutes=60,
        needs=("kafka", "ingest", "trino"),
        names=("events",),
    ),
)

NOTEBOOKS: Mapping[str, Notebook] = {one.number: one for one in _ALL}
"""Number to notebook, in order."""


def notebook(number: str) -> Notebook:
    """Return a notebook by its number.

    Raises:
        NotFoundError: there is none.
    """
    found = NOTEBOOKS.get(number)
    if found is None:
        raise NotFoundError(
            f"there is no notebook {number!r}; open one of {', '.join(NOTEBOOKS)}, as in workshop.open('03')",
            notebook=number,
        )
    return found


PAGE = """\
# The workshop

Each notebook works alone, also on a lake that has just been started: it makes its own data. They are
read only here; *File → Save Notebook As…* `work/NAME.ipynb` keeps a copy of your own in the folder
`work`, which survives restarts and updates.

| | notebook | afterwards you … | minutes |
|---|---|---|---|
{rows}

Run the cells from top to bottom (Shift+Enter). **✓** is a statement that was checked on *your* lake; if
it were wrong, the notebook would stop there. An **exercise** is a cell with `answer = ...`: put your
answer there, run it and the next cell, which says whether it is right (**★**) or what is wrong (**✗**).
The cell with `lab.reset()` drops what the notebook made, so that you can begin again.

**Several people share this lake?** Each takes a name: `workshop.open("03", student="ada")`. Tables are
then in the namespace `ws_ada`, topics begin with `workshop.ada.`, and nobody is in anybody's way.

**Something is missing?** On the host, `scripts/tarn status` says what runs, and `scripts/doctor` what to
do.
"""


def start_page(files: Collection[str]) -> str:
    """Return the page that JupyterLab opens on, as Markdown.

    Args:
        files: names of the files that there are; notebooks without a file are left out.
    """
    rows = [
        f"| {one.number} | [{one.title}]({one.file}) | {one.aim} | {one.minutes} |"
        for one in _ALL
        if one.file in files
    ]
    return PAGE.format(rows="\n".join(rows))


def write(folder: Path = Path("notebooks")) -> None:
    """Write the start page of the notebooks of a folder."""
    page = start_page([path.name for path in folder.iterdir()])
    (folder / "start.md").write_text(page, encoding="utf-8")
