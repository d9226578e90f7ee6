"""The picture of the data flow: boxes and arrows as data, and the SVG that is made of them.

    python3 docs/pictures/flow.py        writes flow.svg beside this file
    python3 docs/pictures/flow.py --check  exits with 1 if flow.svg is not what the source makes

Standard library only. The picture brings its own background, so that it can be read on a light and on a dark
page; a viewer that prefers dark gets dark colours.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 1080, 560
TITLE = "How data flows through Tarn"
DESCRIPTION = (
    "Producers write messages to Kafka. Ingest reads them, writes Parquet files to the object store, and "
    "commits rows and offsets together to the catalog, which decides a commit by one conditional PUT. Spark "
    "jobs turn bronze into silver and gold tables. Trino, Spark Connect, pyiceberg and JupyterLab ask the "
    "catalog for a table's metadata and read its files from the store."
)
LINE_PX = 17
TITLE_PX = 16

# name of a colour: in light, in dark
COLOURS = {
    "page": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "store": ("#f6f8fa", "#151b23"),
    "edge": ("#8c959f", "#656c76"),
    "stream": ("#ddf4ff", "#0c2d4d"),
    "service": ("#fff1e5", "#3d2300"),
    "table": ("#dafbe1", "#0f3019"),
    "client": ("#fbefff", "#33204a"),
    "data": ("#0969da", "#58a6ff"),
    "commit": ("#bc4c00", "#f0883e"),
}


@dataclass(frozen=True)
class Box:
    """A box with a title and lines of words; place and size in pixels."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: Sequence[str]
    colour: str


@dataclass(frozen=True)
class Arrow:
    """A line through points with a head at its end, and words beside it.

    Attributes:
        points: (x, y) in pixels.
        words: what goes along it; several lines are stacked.
        at: where the words stand.
        colour: `data` for rows and files, `commit` for what decides, `soft` for questions.
        anchor: which end of the words `at` is: start, middle or end.
    """

    points: Sequence[tuple[int, int]]
    words: Sequence[str]
    at: tuple[int, int]
    colour: str
    anchor: str = "middle"


STORE = Box(350, 318, 710, 226, "object store (MinIO)", ("the only durable state of the lake",), "store")

BOXES = (
    Box(16, 178, 150, 74, "producers", ("yours, or the demo's", "replay of flights"), "client"),
    Box(220, 178, 100, 74, "Kafka", ("the log of", "messages"), "stream"),
    Box(380, 178, 150, 74, "ingest", ("decodes, writes,", "commits"), "service"),
    Box(
        *(380, 24, 350, 74),
        "catalog (Iceberg REST)",
        ("one pointer per table;", "keeps no state itself"),
        "service",
    ),
    Box(600, 178, 150, 74, "pipeline", ("jobs on Spark", "Connect"), "service"),
    Box(
        *(890, 24, 170, 156),
        "your queries",
        ("Trino", "Spark Connect", "pyiceberg", "JupyterLab", "scripts/tarn sql"),
        "client",
    ),
    Box(380, 346, 150, 62, "bronze", ("raw events",), "table"),
    Box(600, 346, 150, 62, "silver", ("one row per flight",), "table"),
    Box(820, 346, 150, 62, "gold", ("aggregates",), "table"),
    Box(
        *(380, 438, 590, 58),
        "pointers and metadata",
        ("one small object per table names its current metadata",),
        "stream",
    ),
)

ARROWS = (
    Arrow(((166, 215), (220, 215)), ("JSON",), (192, 206), "data"),
    Arrow(((320, 215), (380, 215)), ("poll",), (349, 206), "data"),
    Arrow(((430, 252), (430, 346)), ("Parquet",), (422, 284), "data", "end"),
    Arrow(((455, 178), (455, 98)), ("commit:", "rows and offsets"), (447, 134), "commit", "end"),
    Arrow(((675, 178), (675, 98)), ("commit:", "rows and position"), (667, 134), "commit", "end"),
    Arrow(((500, 346), (500, 290), (640, 290), (640, 252)), ("new rows",), (570, 282), "data"),
    Arrow(((675, 252), (675, 346)), (), (0, 0), "data"),
    Arrow(
        ((710, 252), (710, 290), (895, 290), (895, 346)),
        ("groups that", "changed"),
        (905, 278),
        "data",
        "start",
    ),
    Arrow(((730, 80), (785, 80), (785, 438)), ("conditional", "PUT decides"), (793, 134), "commit", "start"),
    Arrow(((890, 50), (730, 50)), ("load table",), (812, 41), "soft"),
    Arrow(((1020, 318), (1020, 180)), ("files",), (1012, 222), "data", "end"),
)


def style() -> Iterator[str]:
    """The rules of the style sheet: sizes, and every colour for light and for dark."""
    yield "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px}"
    yield f".title{{font-size:{TITLE_PX}px;font-weight:600}}"
    yield ".arrow{fill:none;stroke-width:2}"
    yield ".box{stroke-width:1.2}"
    yield from _colours(0)
    yield "@media (prefers-color-scheme:dark){"
    yield from _colours(1)
    yield "}"


def _colours(dark: int) -> Iterator[str]:
    for name, both in COLOURS.items():
        yield f".fill-{name}{{fill:{both[dark]}}}.line-{name}{{stroke:{both[dark]}}}"


def box(item: Box) -> Iterator[str]:
    """One box; its words are centred in it, those of the store stand at its foot."""
    yield (
        f'<rect class="box fill-{item.colour} line-edge" x="{item.x}" y="{item.y}" width="{item.width}" '
        f'height="{item.height}" rx="8"/>'
    )
    if item is STORE:
        foot = item.y + item.height - 17
        yield _text(item.x + 30, foot, item.title, "title fill-ink", "start")
        yield _text(item.x + 230, foot, item.lines[0], "fill-soft", "start")
        return
    middle = item.x + item.width // 2
    top = item.y + (item.height - LINE_PX * len(item.lines) - TITLE_PX) // 2 + TITLE_PX - 3
    yield _text(middle, top, item.title, "title fill-ink", "middle")
    for number, words in enumerate(item.lines, 1):
        yield _text(middle, top + 2 + LINE_PX * number, words, "fill-soft", "middle")


def arrow(item: Arrow) -> Iterator[str]:
    """One arrow and its words."""
    way = " ".join(f"{x},{y}" for x, y in item.points)
    yield f'<polyline class="arrow line-{item.colour}" points="{way}" marker-end="url(#head-{item.colour})"/>'
    for number, words in enumerate(item.words):
        yield _text(item.at[0], item.at[1] + LINE_PX * number, words, f"fill-{item.colour}", item.anchor)


def _text(x: int, y: int, words: str, names: str, anchor: str) -> str:
    return f'<text class="{names}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def svg() -> str:
    """The whole picture."""
    heads = (
        f'<marker id="head-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path class="fill-{name}" d="M0,0 L10,5 L0,10 z"/></marker>'
        for name in ("data", "commit", "soft")
    )
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-labelledby="title words">',
        "<!-- made by flow.py from its own data: change that, not this -->",
        f'<title id="title">{escape(TITLE)}</title>',
        f'<desc id="words">{escape(DESCRIPTION)}</desc>',
        "<style>",
        *style(),
        "</style>",
        "<defs>",
        *heads,
        "</defs>",
        f'<rect class="fill-page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
        *box(STORE),
        *(row for item in ARROWS for row in arrow(item)),
        *(row for item in BOXES for row in box(item)),
        "</svg>",
    ]
    return "\n".join(rows) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the picture, or with `--check` compare it."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write("usage: flow.py [--check]\n")
        return 2
    if not arguments:
        PICTURE.write_text(svg(), encoding="utf-8")
    elif not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != svg():
        sys.stderr.write(f"{PICTURE} is not what the source makes: run flow.py without --check\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
