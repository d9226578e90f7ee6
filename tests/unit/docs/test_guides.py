"""The guides stay short: a newcomer reads them before the reference, and finds them by the index."""

from __future__ import annotations

from pathlib import Path

from tests.support.pages import ROOT, links

WORDS_MAX = 7_500
"""Half of what the documents had before there were guides."""
README_WORDS_MAX = 1_300


def guides() -> list[Path]:
    """The pages that docs/index.md lists under Guides."""
    index = ROOT / "docs" / "index.md"
    section = index.read_text(encoding="utf-8").partition("\n## Guides\n")[2].partition("\n## ")[0]
    return [(index.parent / link.partition("#")[0]).resolve() for link in links(section)]


def words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def test_the_guides_are_short() -> None:
    counted = {path.name: words(path) for path in guides()}
    assert {"README.md", "first-hour.md", "first-stream.md", "how-to.md", "demo.md"} <= set(counted)
    assert sum(counted.values()) <= WORDS_MAX, counted
    assert counted["README.md"] <= README_WORDS_MAX, counted


def test_the_readme_leads_to_every_guide() -> None:
    readme = ROOT / "README.md"
    led_to = {(readme.parent / link.partition("#")[0]).resolve() for link in links(readme.read_text("utf-8"))}
    missing = [path.name for path in guides() if path not in {*led_to, readme}]
    assert not missing
