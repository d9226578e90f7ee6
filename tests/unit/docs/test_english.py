"""The documents keep to plain English: phrases of a former private dialect do not come back."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
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


CODE = ("catalog", "minio", "notebooks", "scripts", "services", "spark", "trino")
BETTER_IN_CODE = {
    phrase: BETTER[phrase] for phrase in (r"told|tells?", r"anew|afresh", r"of ours", r"by chance")
}


def prose(source: str) -> Iterator[str]:
    """Yield the docstrings and comments of a module, without quoted names and names of parameters."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield re.sub(r"`[^`]*`|^ *\w+:", "", str(statement.value.value), flags=re.MULTILINE)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


@pytest.mark.long
@pytest.mark.parametrize("folder", CODE)
def test_no_phrase_of_the_dialect_is_in_a_docstring_or_comment(folder: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}: {hit[0]!r}: write {better}"
        for path in (ROOT / folder).rglob("*.py")
        for text in prose(path.read_text(encoding="utf-8"))
        for phrase, better in BETTER_IN_CODE.items()
        for hit in re.finditer(rf"\b(?:{phrase})\b", text, re.IGNORECASE)
    }
    assert not found


def test_the_prose_of_a_module_is_its_docstrings_and_comments() -> None:
    function = 'def f(told):\n    """Read `told`.\n\n    Args:\n        told: it.\n    """\n'
    source = f'"""Told by."""\nx = "told"  # anew\n{function}'
    assert [text.split() for text in prose(source)] == [["Told", "by."], ["Read", ".", "it."], ["#", "anew"]]
