"""docs/glossary.md: every word is used where the page says; every stored name is a constant of the code."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support.pages import PACKAGE_FOLDERS, ROOT, file_of, section, tables, text_of

PAGE = text_of("docs/glossary.md")
WORDS = tables(PAGE)[0]
NOT_STORED = {
    "tarn-catalog",  # issuer and audience of tokens
    "tarn-catalog-probe",  # the same, for the probe
    "tarn-gateway",  # a consumer group that keeps no offsets
    "tarn-probe",  # a principal
    "tarn-producer",  # a header of a request
    "tarn-sequence",  # likewise
    "tarn-turn",  # likewise
    "tarn.commands",  # a group of entry points
    "tarn.read",  # a name inside one process
    "tarn.welcome",  # a name inside one process
}


def code_of(row: dict[str, str]) -> str:
    return row["code"].strip("`")


def test_the_words_are_in_order_and_each_is_there_once() -> None:
    words = [row["word"] for row in WORDS]
    assert words == sorted(set(words))
    assert len(words) > 25


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row["word"])
def test_a_word_has_one_sentence_a_nearest_term_and_code_that_uses_it(row: dict[str, str]) -> None:
    assert row["what it is"].endswith("."), row
    assert row["nearest term elsewhere"], row
    path = file_of(code_of(row))
    assert path is not None, f"{code_of(row)} does not exist; where does {row['word']!r} live now?"
    source = path.read_text(encoding="utf-8").lower()
    missing = [part for part in re.findall(r"\w+", row["word"]) if part not in source]
    assert not missing, f"{code_of(row)} does not say {missing}"


def test_every_word_is_used_by_another_page() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages if path.name != "glossary.md")
    unused = []
    for row in WORDS:
        for word in row["word"].split(", "):
            phrase = re.escape(word).replace("\\ ", r"[\s-]+")
            if not re.search(rf"\b{phrase}s?\b", text, re.IGNORECASE):
                unused.append(word)
    assert not unused


def constants() -> dict[str, str]:
    """Value -> name, of all module constants that begin as Tarn's stored names do."""
    found = {}
    for folder in PACKAGE_FOLDERS:
        for path in sorted((ROOT / folder).glob("*/**/*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                value = getattr(getattr(node, "value", None), "value", None)
                if isinstance(value, str) and re.fullmatch(r"tarn[.-][\w.-]+", value):
                    found[value] = ast.unparse(node)
    return found


@pytest.mark.long
def test_every_stored_name_is_listed_and_no_other() -> None:
    (rows,) = tables(section(PAGE, "Names that are stored"))
    listed = {re.sub(r"<\w+>$", "", name) for row in rows for name in re.findall(r"`([^`]+)`", row["name"])}
    found = constants()
    assert {value: found[value] for value in set(found) - listed - NOT_STORED} == {}
    assert listed - set(found) == set()
    assert set(found) >= NOT_STORED, "an exception that nothing needs"
