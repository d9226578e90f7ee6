"""Commands of the README and the docs, run in order; each must work.

`sh` blocks run in bash unchanged, `python` blocks with the variables exported by the blocks before them
(`eval "$(scripts/tarn env)"`), `sql` blocks through `scripts/tarn sql`. A block that cannot run in a test has
`<!-- test: skip <reason> -->` in the Markdown; tests/support/documents.py holds the expected count of both
kinds.

This module is the last of its tier: the README ends by stopping the stack.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from tarn_host.stack import project

from tests.support.containers import LogKeeper
from tests.support.documents import (
    BREAKING,
    DOCS,
    LEFT_BEHIND,
    PRINCIPALS,
    README_KEPT_BACK,
    README_RUN,
    Block,
    to_try,
)
from tests.support.stack import ENGINE_S, Stack, run

README = project.ROOT / "README.md"
BLOCK_S = 600


class Reader:
    """A user at a shell who types one block after the other; exported variables persist."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.exported: dict[str, str] = {}
        self.state = folder / "environment"
        self.said: list[str] = []

    def type(self, block: Block, where: str) -> None:
        """Run one block.

        Raises:
            AssertionError: its exit code is not 0; its output is in the message.
        """
        if block.language == "sh":
            script = f'set -euo pipefail\n{block.text}\nenv -0 > "$TARN_DOCUMENT_STATE"\n'
            command = ["bash", "-c", script]
        elif block.language == "sql":
            command = ["scripts/tarn", "sql", block.text]
        else:
            command = [sys.executable, "-c", block.text]
        env = {**self.exported, **self.stack.env, "TARN_DOCUMENT_STATE": str(self.state)}
        answer = run(command, timeout_s=BLOCK_S, env=env)
        assert answer.code == 0, f"{where}:{block.line}: exit code {answer.code}\n{answer.text[-4000:]}"
        self.said.append(answer.text)
        if block.language == "sh":
            pairs = self.state.read_bytes().split(b"\0")
            found = dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
            self.exported = {n: v for n, v in found.items() if n.startswith(("TARN_", "AWS_"))}


@pytest.fixture
def tidy(stack: Stack) -> Iterator[None]:
    """Nothing that a page makes outside of tables and topics is there before or after its test."""

    def remove() -> None:
        for file in LEFT_BEHIND:
            (project.ROOT / file).unlink(missing_ok=True)
        for principal in PRINCIPALS:
            stack.script("tarn", "principal", "drop", principal, timeout_s=120)

    remove()
    yield
    remove()


@pytest.mark.usefixtures("tidy")
@pytest.mark.parametrize("name", DOCS)
def test_the_blocks_of_the_docs_work(stack: Stack, tmp_path: Path, name: str) -> None:
    found = [block for block in to_try(project.ROOT / name) if block.kept_back is None]
    assert len(found) == DOCS[name]
    reader = Reader(stack, tmp_path)
    with stack.fault() if name in BREAKING else nullcontext():
        for block in found:
            text = block.text.replace("file:///tmp/lake", tmp_path.as_uri())
            reader.type(Block(language=block.language, text=text, line=block.line, kept_back=None), name)
        if name in BREAKING:
            stack.await_healthy()


@pytest.mark.timeout(1500)
def test_the_readme_works_from_its_first_block_to_its_last(
    stack: Stack, log_keeper: LogKeeper, tmp_path: Path
) -> None:
    found = to_try(README)
    to_run = [block for block in found if block.kept_back is None]
    assert (len(to_run), len(found) - len(to_run)) == (README_RUN, README_KEPT_BACK)
    reader = Reader(stack, tmp_path)
    for block in to_run:
        if "scripts/down" in block.text:
            stack.keep_logs(log_keeper)
        reader.type(block, "README.md")
    assert "Tarn is up" in reader.said[0]
    assert reader.exported["TARN_TRINO_URI"] == f"http://127.0.0.1:{stack.ports['TARN_PORT_TRINO']}"
    left = run(
        ["docker", "ps", "-q", "--filter", f"label=com.docker.compose.project={stack.name}"],
        timeout_s=ENGINE_S,
    )
    assert left.text.split() == [], "the README ends with everything stopped"


def test_a_block_that_fails_is_a_failure(stack: Stack, tmp_path: Path) -> None:
    """Control: a command in the middle that fails, and a variable that was never exported."""
    for text in ("true\nfalse\ntrue\n", 'echo "$NEVER_EXPORTED"\n', "false | true\n"):
        block = Block(language="sh", text=text, line=1, kept_back=None)
        with pytest.raises(AssertionError, match="control:1: exit code 1"):
            Reader(stack, tmp_path).type(block, "control")
    block = Block(language="python", text="raise SystemExit(3)\n", line=1, kept_back=None)
    with pytest.raises(AssertionError, match="exit code 3"):
        Reader(stack, tmp_path).type(block, "control")
