"""Code blocks of a Markdown file, and which of them are marked as not to be run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

README_RUN, README_KEPT_BACK = 10, 1
"""Number of README blocks that tests/notebooks/test_readme.py runs, and number that it skips."""
DOCS = {
    "docs/first-stream.md": 5,
    "docs/catalog.md": 2,
    "docs/clients.md": 7,
    "docs/first-hour.md": 5,
    "docs/gateway.md": 5,
    "docs/ingestion.md": 3,
    "docs/ingestors.md": 2,
    "docs/operations.md": 3,
    "docs/status.md": 1,
    "docs/stream.md": 1,
}
"""Number of blocks of every other document that tests/notebooks/test_readme.py runs, in this order, as they
use what the first one makes."""
DOCS_KEPT_BACK = {
    "docs/ingestion.md": 1,
    "docs/operations.md": 1,
    "docs/page.md": 1,
    "docs/testing.md": 6,
    "docs/upgrading.md": 1,
}
"""Number of those that say above themselves why no test runs them."""
LEFT_BEHIND = ("credential", "lake.tar", "orders.json", "orders.yaml", "tills.yaml")
"""Files that blocks write beside the README."""
PRINCIPALS = ("bob",)
"""Principals that blocks create: while there is one, Trino asks everybody for a login."""
BREAKING = {"docs/first-hour.md", "docs/operations.md"}
"""Those that kill a service: what the others log meanwhile is expected."""
DOCS_ELSEWHERE = {"docs/pipeline.md": 2, "docs/test-your-pipeline.md": 3}
"""Number of those that test_read_stream.py, test_spark_streams.py and test_example.py of the tier integration
run, and test_kit.py of e2e."""
TRIED = ("sh", "python", "sql")

FENCE = re.compile(r"^```(\w*)\s*$")
MARKER = re.compile(r"^<!-- test: (?P<word>\S+)(?: (?P<reason>.*\S))? -->$")
REASON_WORDS_MIN = 3
COMMAND = re.compile(
    r"^\s*(?:\$ |sudo |(?:scripts|\.venv|\.tarn|\.ci)/\S"
    r"|(?:docker|curl|git|pip|python3?|echo|export|eval|for|cat) )",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block.

    Attributes:
        language: the info string of the fence; empty for none.
        text: its content, with a trailing newline.
        line: line number of the fence, from 1.
        kept_back: why it is skipped; None if it is run.
    """

    language: str
    text: str
    line: int
    kept_back: str | None


def blocks(markdown: str) -> Iterator[Block]:
    """All fenced blocks in order; `<!-- test: skip <reason> -->` on the line above skips one.

    Raises:
        ValueError: a fence is not closed, or a marker is malformed, has no reason, or is not above a block.
    """
    lines = markdown.splitlines()
    at = 0
    marked: str | None = None
    while at < len(lines):
        line = lines[at]
        fence = FENCE.match(line)
        if fence is None:
            if marked is not None:
                raise ValueError(f"line {at}: the marker stands above no block")
            marked = _reason(line, at + 1)
            at += 1
            continue
        try:
            end = lines.index("```", at + 1)
        except ValueError:
            raise ValueError(f"line {at + 1}: the block does not end") from None
        text = "".join(f"{raw}\n" for raw in lines[at + 1 : end])
        yield Block(language=fence[1], text=text, line=at + 1, kept_back=marked)
        marked = None
        at = end + 1
    if marked is not None:
        raise ValueError(f"line {at}: the marker stands above no block")


def _reason(line: str, number: int) -> str | None:
    if not line.startswith("<!-- test"):
        return None
    marker = MARKER.match(line)
    if marker is None or marker["word"] != "skip" or len((marker["reason"] or "").split()) < REASON_WORDS_MIN:
        raise ValueError(
            f"line {number}: write <!-- test: skip <why, in three words or more> -->, not {line}"
        )
    return marker["reason"]


def to_try(path: Path) -> list[Block]:
    """The blocks of a file that a user could run, including skipped ones."""
    return [block for block in blocks(path.read_text(encoding="utf-8")) if block.language in TRIED]


def commands_in_disguise(block: Block) -> bool:
    """Whether a block of no language that is tried has a line that looks like a command of a shell."""
    return (
        block.language in ("", "text", "bash", "console", "shell") and COMMAND.search(block.text) is not None
    )
