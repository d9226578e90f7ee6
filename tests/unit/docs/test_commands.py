"""Commands in guides, notebooks and messages exist, with the options given to them; blocks run elsewhere."""

from __future__ import annotations

import ast
import functools
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tarn.cli import main as cli
from tests.support.pages import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COMMAND = re.compile(r"scripts/(tarn|up|down|doctor|test|bench|sbom)((?: [^`|;&>\n]*)?)")
SOURCES = sorted(
    path
    for folder in ("services", "spark", "catalog", "scripts/lib")
    for path in (ROOT / folder).rglob("*.py")
)
IN_A_MESSAGE = re.compile(r"scripts/tarn ([a-z][a-z-]+)(?: ([a-z][a-z-]+))?((?: [^\s`|;,()]+)*)")
OPTION = re.compile(r"--[a-z][a-z-]+")


def text_of(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    book = json.loads(path.read_text(encoding="utf-8"))
    return "\n".join("".join(cell["source"]) for cell in book["cells"])


def commands(path: Path) -> Iterator[tuple[str, str]]:
    """Script and arguments of each command in code: between backticks, or at the beginning of a line."""
    for code in re.findall(r"`([^`\n]+)`|^\s*(scripts/\S.*)$", text_of(path), re.MULTILINE):
        for script, rest in COMMAND.findall(code[0] or code[1]):
            yield script, rest.strip()


def words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quotation that goes on in the next line
        return text.split()


def wrong_with(rest: str) -> str:
    """What is wrong with arguments of `scripts/tarn`; empty for nothing."""
    at = all_commands()
    options: set[str] = {"--help"}
    for number, word in enumerate(words(rest)):
        options |= {name for one in at.params for name in (*one.opts, *one.secondary_opts)}
        if hasattr(at, "get_command"):
            if word.startswith("-"):
                continue
            found = at.get_command(None, word)
            if found is None:
                # A place for any command, as in `scripts/tarn COMMAND --help`, or a mention.
                return (
                    "" if number == 0 and not re.fullmatch(r"[a-z][a-z-]+", word) else f"no command {word!r}"
                )
            at = found
            options |= {name for one in at.params for name in (*one.opts, *one.secondary_opts)}
    unknown = [one for one in words(rest) if OPTION.fullmatch(one) and one not in options]
    return f"no option {unknown[0]}" if unknown else ""


@functools.cache
def options_of(script: str, verb: str = "") -> frozenset[str]:
    """The options that the help of a script, or of a verb of it, names."""
    command = [ROOT / "scripts" / script, *verb.split(), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script} {verb}: {done.stderr}"
    return frozenset(OPTION.findall(done.stdout))


def wrong_with_script(script: str, rest: str) -> str:
    """The same for the other scripts."""
    own, *_theirs = rest.split(" -- ")  # what follows is pytest's
    found = words(own)
    verb = found[0] if script == "bench" and found else ""
    unknown = [one for one in found if OPTION.fullmatch(one) and one not in options_of(script, verb)]
    return f"no option {unknown[0]}" if unknown else ""


@pytest.mark.long
@pytest.mark.parametrize("path", [*PAGES, *BOOKS], ids=lambda path: path.name)
def test_every_command_exists_with_its_options(path: Path) -> None:
    wrong = []
    for script, rest in commands(path):
        found = wrong_with(rest) if script == "tarn" else wrong_with_script(script, rest)
        if found:
            wrong.append(f"scripts/{script} {rest}: {found}")
    assert not wrong


def messages(path: Path) -> Iterator[str]:
    """The texts of a module that names commands, with a place for each value; no docstrings."""
    source = path.read_text(encoding="utf-8")
    if "scripts/tarn " not in source:
        return
    tree = ast.parse(source)
    prose = {
        id(one.body[0].value)
        for one in ast.walk(tree)
        if isinstance(one, ast.Module | ast.ClassDef | ast.FunctionDef)
        if one.body and isinstance(one.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            prose |= {id(part) for part in node.values}
            parts = (part.value if isinstance(part, ast.Constant) else "VALUE" for part in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


@functools.cache
def all_commands() -> Any:
    return get_command(cli.app)


def wrong_in_message(text: str) -> list[str]:
    """Commands of `scripts/tarn` in a message that do not exist, or not with their options."""
    wrong = []
    for first, second, rest in IN_A_MESSAGE.findall(text):
        found = all_commands().get_command(None, first)
        if found is None:
            wrong.append(f"no command {first!r}")
            continue
        inner = found.get_command(None, second) if hasattr(found, "get_command") else found
        if inner is None:
            wrong.append(f"no command {first} {second}")
            continue
        known = {"--help", *(name for one in inner.params for name in (*one.opts, *one.secondary_opts))}
        wrong += [f"no option {one}" for one in OPTION.findall(rest) if one not in known]
    return wrong


@pytest.mark.long
def test_every_command_in_a_message_exists() -> None:
    texts = [(path, text) for path in SOURCES for text in messages(path) if "scripts/tarn " in text]
    assert len(texts) > 80
    found = {f"{path.relative_to(ROOT)}: {text[:80]}": wrong_in_message(text) for path, text in texts}
    assert not {where: wrong for where, wrong in found.items() if wrong}
    assert wrong_in_message("delete it (scripts/tarn topics delete VALUE)") == ["no command 'topics'"]
    assert wrong_in_message("see scripts/tarn topic remove VALUE") == ["no command topic remove"]
    assert wrong_in_message("run scripts/tarn demo load --once more") == ["no option --once"]


def test_what_is_wrong_is_found() -> None:
    assert wrong_with("rollback ws_ada.coldstore --to good --offsets rewind") == ""
    assert wrong_with("rollback TABLE --until good") == "no option --until"
    assert wrong_with("dead-letters repeat") == "no command 'repeat'"
    assert wrong_with("rolback TABLE") == "no command 'rolback'"
    assert wrong_with_script("up", "--ports 20000 --yes") == ""
    assert wrong_with_script("up", "--port 20000") == "no option --port", "a part of --ports"
    assert wrong_with_script("bench", "commit --quick") == ""
    assert wrong_with_script("bench", "commit --loads 3") == "no option --loads"
    assert wrong_with_script("test", "contract --keep -- --anything") == ""
    assert len([one for path in PAGES for one in commands(path)]) > 150
