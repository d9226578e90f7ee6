"""Markdown pages as tests read them: tables, links, headings, and the modules that a page names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE_FOLDERS = ("services", "services/demo", "catalog", "spark", "scripts/lib")
"""Folders whose subfolders are Python packages."""

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def text_of(page: str) -> str:
    """The text of a page; the path is relative to the repository."""
    return (ROOT / page).read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What follows a heading of the second level, up to the next one.

    Raises:
        AssertionError: there is no such heading, or nothing follows it.
    """
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no section {heading!r}"
    return found[1]


def tables(text: str) -> list[list[dict[str, str]]]:
    """The tables of a text in order, each as rows by column; `\\|` in a cell is a bar."""
    found = []
    for block in re.findall(r"(?:^ *\|.*\n?)+", text, re.MULTILINE):
        lines = [_cells(line) for line in block.splitlines()]
        found.append([dict(zip(lines[0], line, strict=True)) for line in lines[2:]])
    return found


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", inner)]


def links(text: str) -> list[str]:
    """The targets of all links and pictures outside of code blocks."""
    return _LINK.findall(_FENCED.sub("", text))


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub forms them."""
    found = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        plain = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(plain.replace(" ", "-"))
    return found


def file_of(name: str) -> Path | None:
    """The file or folder that a page names: a path, or a dotted module; None if there is none."""
    if "/" in name or (ROOT / name).is_file():
        path = ROOT / name
        return path if path.exists() else None
    inside = Path(*name.split("."))
    for folder in PACKAGE_FOLDERS:
        module, package = ROOT / folder / inside.with_suffix(".py"), ROOT / folder / inside / "__init__.py"
        for path in (module, package):
            if path.is_file():
                return path
    return None
