"""Every block that somebody could type is counted, so that none is passed over."""

from __future__ import annotations

from pathlib import Path

from tests.support.documents import DOCS, DOCS_ELSEWHERE, README_KEPT_BACK, README_RUN, to_try

ROOT = Path(__file__).resolve().parents[3]


def test_the_readme_has_as_many_blocks_as_are_run() -> None:
    found = to_try(ROOT / "README.md")
    kept_back = [block for block in found if block.kept_back is not None]
    assert (len(found) - len(kept_back), len(kept_back)) == (README_RUN, README_KEPT_BACK)


def test_no_other_document_has_blocks_that_are_not_run() -> None:
    paths = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    counted = {str(path.relative_to(ROOT)): to_try(path) for path in paths}
    assert {name: len(found) for name, found in counted.items() if found} == DOCS | DOCS_ELSEWHERE
    assert not [name for name, found in counted.items() for block in found if block.kept_back is not None]
