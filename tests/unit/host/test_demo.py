"""When scripts/up replays flights; a replay started by the user stops that one first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tarn_host import cli
from tarn_host.console import StopError
from tarn_host.shell import Result
from tarn_host.stack import lifecycle
from tarn_host.stack.project import Project
from tarn_host.up import is_demo_on, parser

HERE = Project(name="tarn-abc", base="base", own_base=True, settings={})


@pytest.mark.parametrize(
    ("settings", "on"),
    [({}, True), ({"TARN_DEMO": ""}, True), ({"TARN_DEMO": "ON"}, True), ({"TARN_DEMO": "off"}, False)],
)
def test_the_demo_is_on_unless_told(settings: Mapping[str, str], on: bool) -> None:
    assert is_demo_on(settings) is on


def test_another_word_is_refused() -> None:
    with pytest.raises(StopError) as told:
        is_demo_on({"TARN_DEMO": "maybe"})
    assert (told.value.what, told.value.code) == ("TARN_DEMO is maybe", 2)
    assert "on or off" in told.value.fix


def test_the_flag() -> None:
    assert parser().parse_args([]).demo is True
    assert parser().parse_args(["--no-demo"]).demo is False


@pytest.mark.parametrize(
    ("words", "plays"),
    [
        (["demo", "load"], True),
        (["demo", "load", "--again"], True),
        (["--debug", "demo", "replay", "--rate", "500"], True),
        (["demo", "load", "--help"], False),
        (["demo", "show"], False),
        (["demo"], False),
        (["sql", "demo load"], False),
    ],
)
def test_what_plays(words: list[str], plays: bool) -> None:
    assert cli.is_play(words) is plays


@pytest.mark.parametrize("running", [True, False])
def test_only_a_running_replay_is_stopped(monkeypatch: pytest.MonkeyPatch, running: bool) -> None:
    ran: list[list[str]] = []

    def capture(command: Sequence[str], **_: Any) -> Result:
        assert "label=com.docker.compose.project=tarn-abc" in command
        assert "label=com.docker.compose.service=replay" in command
        return Result(0, "0123abc\n" if running else "", "")

    monkeypatch.setattr(lifecycle.shell, "capture", capture)
    monkeypatch.setattr(lifecycle.shell, "logged", lambda command, *_, **__: ran.append(list(command)))
    assert lifecycle.stop_replay(HERE) is running
    assert ran == [["docker", "compose", "--profile", "demo", "stop", "replay"]] * running


@pytest.mark.parametrize(("refused", "ran"), [(2, ["check"]), (0, ["check", "stop", "play"])])
def test_a_play_whose_options_are_refused_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, refused: int, ran: list[str]
) -> None:
    did: list[str] = []

    def run(here: Project, service: str, words: Sequence[str], **_: Any) -> int:
        check = "--check" in words
        did.append("check" if check else "play")
        assert list(words)[:4] == ["demo", "replay", "--speed", "0"]
        return refused if check else 0

    monkeypatch.setattr(cli.base, "is_there", lambda image: True)
    monkeypatch.setattr(cli.run_once, "run", run)
    monkeypatch.setattr(lifecycle, "replay_runs", lambda here: True)
    monkeypatch.setattr(lifecycle, "stop_replay", lambda here: did.append("stop"))
    assert cli.main(["demo", "replay", "--speed", "0"]) == refused
    assert did == ran


def test_stopping_tarn_stops_what_profiles_started_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(lifecycle.shell, "logged", lambda command, *_, **__: ran.append(list(command)))
    lifecycle.stop(HERE, purge=False)
    assert ran == [["docker", "compose", *lifecycle.PROFILES, "down", "--remove-orphans"]]
    assert {"tools", "demo"} <= set(lifecycle.PROFILES)


@pytest.mark.parametrize("words", [["demo", "load"], ["demo", "show"]])
def test_the_container_of_a_play_can_be_told_from_others(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    given: list[list[str]] = []

    def run(*_: Any, options: Sequence[str] = (), **__: Any) -> int:
        given.append(list(options))
        return 0

    monkeypatch.setattr(cli.base, "is_there", lambda image: True)
    monkeypatch.setattr(cli.run_once, "run", run)
    monkeypatch.setattr(lifecycle, "replay_runs", lambda here: False)
    assert cli.main(words) == 0
    assert given == [["-l", "tarn.play=user"] if words == ["demo", "load"] else []]


@pytest.mark.parametrize("plays", [True, False])
def test_the_replay_is_left_out_while_a_play_of_the_user_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plays: bool
) -> None:
    """Both would go on where the topic ends, and send the same events."""
    ran: list[str] = []

    def capture(command: Sequence[str], **_: Any) -> Result:
        assert "label=com.docker.compose.project=tarn-abc" in command
        assert "label=tarn.play=user" in command
        return Result(0, "0123abc\n" if plays else "", "")

    monkeypatch.setattr(lifecycle.shell, "capture", capture)
    monkeypatch.setattr(lifecycle.shell, "logged", lambda command, *_, **__: ran.append(command[-1]))
    lifecycle.start_replay(HERE)
    assert ran == ["replay"] * (not plays)
    assert ("scripts/tarn demo load or demo replay runs" in capsys.readouterr().out) is plays
