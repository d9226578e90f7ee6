"""The documents keep to plain English: phrases of a former private dialect do not come back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT

GENERATED_OR_RECORDS = {"benchmarks.md", "review-1.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in GENERATED_OR_RECORDS),
]
BETTER = {
    r"told|tells?": "say, report, show, contain",
    r"anew|afresh": "again, recreate",
    r"of ours": "Tarn's",
    r"by chance": "at random",
    r"stands? (?:in|at|beside|behind)": "is in, is at",
    r"(?<!there )(?:is|are) no (?!longer)": "is not a",
    r"for ever": "forever, without limit",
    r"is away": "is unavailable",
    r"looks? whether": "checks whether",
}
"""Phrase -> what to write instead. Code, quoted names and titles of decisions may have them."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_phrase_of_the_dialect_is_in_a_page(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", "", text)
    found = {
        f"{hit[0]!r}: write {better}"
        for phrase, better in BETTER.items()
        for hit in re.finditer(rf"\b(?:{phrase})\b", text, re.IGNORECASE)
    }
    assert not found
