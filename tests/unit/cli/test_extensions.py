"""Commands of other packages: found by entry point, never in the way of those of `tarn` itself."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import typer

from tarn.cli import extensions
from tarn.cli.extensions import GROUP, ExtensibleGroup
from tarn.core.errors import InvalidSettingError

extra = typer.Typer(help="From elsewhere.", add_completion=False, rich_markup_mode=None)


@extra.command()
def first() -> None:
    """Say so."""
    typer.echo("first of extra")


@extra.command()
def second() -> None:
    """Do nothing."""


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two packages with commands: one that works, one that does not; the groups that were asked for."""
    points = (
        EntryPoint(name="extra", value=f"{__name__}:extra", group=GROUP),
        EntryPoint(name="broken", value="no_such_package.cli:app", group=GROUP),
        EntryPoint(name="own", value="no_such_package.cli:app", group=GROUP),
    )
    groups: list[str] = []

    def found(*, group: str) -> tuple[EntryPoint, ...]:
        groups.append(group)
        return points

    monkeypatch.setattr(extensions, "entry_points", found)
    return groups


def run(*words: str) -> int:
    app = typer.Typer(cls=ExtensibleGroup, add_completion=False, rich_markup_mode=None)

    @app.command()
    def own() -> None:
        """Stay."""

    @app.command()
    def fsck() -> None:
        """Be listed last."""

    with pytest.raises(SystemExit) as done:
        app(args=list(words), prog_name="tarn")
    return int(done.value.code or 0)


def test_it_is_found_and_run(searched: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("extra", "first") == 0
    assert capsys.readouterr().out == "first of extra\n"
    assert searched == [GROUP]


def test_the_help_lists_them_between_daily_and_rare_commands(
    searched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--help") == 0
    listed = [line.split() for line in capsys.readouterr().out.partition("Commands:\n")[2].splitlines()]
    assert [words[0] for words in listed] == ["own", "extra", "broken", "fsck"]
    assert listed[1][1:] == ["From", "elsewhere."]


def test_own_commands_are_run_without_looking_for_others(searched: list[str]) -> None:
    assert run("own") == 0
    assert searched == []


def test_a_slip_of_the_pen_is_answered_with_their_names_too(
    searched: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("extr") == 2
    assert "Did you mean 'extra'?" in capsys.readouterr().err


def test_a_package_that_cannot_be_imported_says_so_and_leaves_the_others_alone(searched: list[str]) -> None:
    with pytest.raises(InvalidSettingError) as told:
        run("broken", "--any", "word")
    assert told.value.message.startswith(
        "the command broken comes from an unknown package, whose no_such_package.cli:app cannot be loaded "
        "(ModuleNotFoundError: "
    )
    assert "install that package again, or remove it" in told.value.message


@pytest.mark.long
def test_a_light_command_imports_nothing_of_the_demo_and_the_demo_is_there() -> None:
    code = (
        "import sys\n"
        "from tarn.cli.main import main\n"
        "def end(code):\n"
        "    print(code, sorted(m for m in sys.modules if m.split('.')[0] in ('tarn_demo', 'tarn_jobs')))\n"
        "main(['version'], end=end)\n"
        "main(['demo', 'load', '--check'], end=end)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    version, first, second = done.stdout.splitlines()
    assert version.startswith("tarn ")
    assert first == "0 []"
    assert second.startswith("0 ['tarn_demo', ")
