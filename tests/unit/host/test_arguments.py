"""Options must be spelled out in full; a near match is proposed and nothing is done."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tarn_host import down, up
from tarn_host.arguments import Parser, meant
from tarn_host.bench import command as bench
from tarn_host.doctor import command as doctor
from tarn_host.sbom import command as sbom
from tarn_host.stack import project
from tarn_host.testing import tiers

ROOT = project.ROOT
FOLDERS = ("scripts", "services", "catalog", "spark", "notebooks", "trino", "minio")


@pytest.mark.parametrize(
    ("main", "word", "proposed"),
    [
        (up.main, "--smal", "--small"),
        (up.main, "--no-canry", "--no-canary"),
        (up.main, "--port=20000", "--ports"),
        (down.main, "--purg", "--purge"),
        (down.main, "--ye", "--yes"),
        (tiers.main, "--kep", "--keep"),
        (doctor.main, "--jso", "--json"),
        (sbom.main, "--int=x", "--into"),
    ],
)
def test_part_of_an_option_is_refused_with_the_whole_one(
    main: object, word: str, proposed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(main)
    with pytest.raises(SystemExit) as left:
        main([word])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert f"unrecognized arguments: {word} (did you mean {proposed}?)" in said
    assert "nothing was done" in said


def test_options_of_subcommands_are_proposed_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["up", "--warm", "--round", "1"])
    assert "did you mean --rounds?" in capsys.readouterr().err


def test_what_is_like_nothing_is_refused_without_a_proposal() -> None:
    assert meant(["--zzz", "word"], ["--small", "--full"]) == ""
    assert meant(["--no"], ["--no-demo", "--no-canary"]) == " (did you mean --no-demo or --no-canary?)"


def calls() -> list[tuple[Path, ast.Call]]:
    """Every argparse command line in the shipped code."""
    found = []
    for path in (p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("ArgumentParser", ".add_parser")
            ):
                found.append((path, node))
    return found


@pytest.mark.long
def test_no_command_line_takes_part_of_an_option() -> None:
    found = calls()
    assert len(found) > 10
    for path, call in found:
        inside = path.relative_to(ROOT).as_posix()
        exact = any(
            k.arg == "allow_abbrev" and isinstance(k.value, ast.Constant) and k.value.value is False
            for k in call.keywords
        )
        ours = inside.startswith("scripts/") and not ast.unparse(call.func).endswith("ArgumentParser")
        assert exact or ours, f"{inside}:{call.lineno} needs allow_abbrev=False"


def test_our_own_parser_cannot_be_made_to_guess() -> None:
    assert Parser(allow_abbrev=True).allow_abbrev is False
