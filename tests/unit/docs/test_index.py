"""docs/index.md leads to every page, the README leads to it, and no link of any page is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import ROOT, anchors, links, text_of

INDEX = ROOT / "docs" / "index.md"
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)


def targets(page: Path) -> list[tuple[Path, str]]:
    """What the relative links of a page lead to: the file and the anchor, empty for none."""
    found = []
    for link in links(page.read_text(encoding="utf-8")):
        if not link.startswith(("http://", "https://", "mailto:")):
            path, _, anchor = link.partition("#")
            found.append(((page.parent / path).resolve() if path else page, anchor))
    return found


def test_every_page_is_in_the_index() -> None:
    led_to = {path for path, _ in targets(INDEX)}
    missing = [str(path.relative_to(ROOT)) for path in PAGES if path not in {*led_to, INDEX}]
    assert not missing


def test_the_readme_leads_to_the_index() -> None:
    assert INDEX in {path for path, _ in targets(ROOT / "README.md")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_broken(page: Path) -> None:
    broken = []
    for path, anchor in targets(page):
        here = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        if not path.exists():
            broken.append(f"{here} does not exist")
        elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
            broken.append(f"{here} has no heading #{anchor}")
    assert not broken


def test_the_index_names_each_decision_as_its_own_heading_does() -> None:
    index = text_of("docs/index.md")
    for path in sorted((ROOT / "docs" / "adr").glob("*.md")):
        number, _, title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").partition(". ")
        assert f"| {number} | [{title}](adr/{path.name}) |" in index
