"""Every block that somebody could type is counted, so that none is passed over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.documents import (
    DOCS,
    DOCS_ELSEWHERE,
    DOCS_KEPT_BACK,
    README_KEPT_BACK,
    README_RUN,
    blocks,
    commands_in_disguise,
    to_try,
)

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    str(path.relative_to(ROOT))
    for path in (ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
]


def test_the_readme_has_as_many_blocks_as_are_run() -> None:
    found = to_try(ROOT / "README.md")
    kept_back = [block for block in found if block.kept_back is not None]
    assert (len(found) - len(kept_back), len(kept_back)) == (README_RUN, README_KEPT_BACK)


def test_no_other_document_has_blocks_that_are_not_run() -> None:
    counted = {name: Counter(block.kept_back is None for block in to_try(ROOT / name)) for name in PAGES}
    run = {name: found[True] for name, found in counted.items() if found[True]}
    assert run == DOCS | DOCS_ELSEWHERE
    assert {name: found[False] for name, found in counted.items() if found[False]} == DOCS_KEPT_BACK


def test_no_command_is_in_a_block_that_nobody_would_run() -> None:
    """A shell command in a block of another language would be passed over."""
    pages = [name for name in ("README.md", *PAGES) if name.startswith(("README", "docs/"))]
    found = [
        f"{name}:{block.line}"
        for name in pages
        for block in blocks((ROOT / name).read_text(encoding="utf-8"))
        if commands_in_disguise(block)
    ]
    assert not found


@pytest.mark.parametrize(
    ("block", "is_one"),
    [
        ("```text\nscripts/tarn get\n```", True),
        ("```\n# a comment\n.venv/bin/python -m tests.mutation\n```", True),
        ("```text\nfor one in a b; do\n  docker restart $one\ndone\n```", True),
        ("```text\ncurl http://127.0.0.1:8091/v1\n```", True),
        ("```text\nstream flights -> bronze.flight_events\n```", False),
        ("```yaml\nrun: scripts/tarn get\n```", False),
        ("```sh\nscripts/tarn get\n```", False),
    ],
)
def test_commands_are_known_in_any_block(block: str, is_one: bool) -> None:
    (found,) = blocks(block)
    assert commands_in_disguise(found) is is_one
