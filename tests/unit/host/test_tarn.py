"""What scripts/tarn adds to a command before it passes it to the container."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tarn_host import cli
from tarn_host.stack.lifecycle import Service

from tarn.cli.status import Container
from tarn.cli.wiring import containers
from tarn.core.errors import InvalidSettingError


def service(name: str, state: str, health: str = "", exit_code: int = 0) -> Service:
    return Service(name=name, container="x", state=state, health=health, exit_code=exit_code)


def test_only_status_is_told_of_the_containers():
    assert cli.is_status(["status"])
    assert cli.is_status(["--debug", "status", "--json"])
    assert not cli.is_status(["pipeline", "status"])
    assert not cli.is_status([])


def test_what_the_engine_says_arrives_in_the_container_as_it_was_meant():
    told = cli.containers(
        [
            service("minio", "running", "healthy"),
            service("trino", "running", "starting"),
            service("pipeline", "exited", exit_code=137),
            service("replay", "exited"),
            service("kafka", "paused", "healthy"),
        ]
    )
    assert containers(told) == {
        "minio": Container(running=True, good=True, words="healthy"),
        "trino": Container(running=True, good=False, words="starting"),
        "pipeline": Container(running=False, good=False, words="ended with exit code 137"),
        "replay": Container(running=False, good=True, words="done"),
        "kafka": Container(running=False, good=False, words="paused"),
    }


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["healthy", "healthy"], Container(running=True, good=True, words="healthy")),
        (["ended", "healthy"], Container(running=True, good=False, words="1 of 2 ended with exit code 137")),
        (["healthy", "ended"], Container(running=True, good=False, words="1 of 2 ended with exit code 137")),
        (["ended", "ended"], Container(running=False, good=False, words="2 of 2 ended with exit code 137")),
        (["starting", "healthy"], Container(running=True, good=False, words="starting")),
        (["starting", "unhealthy"], Container(running=True, good=False, words="1 of 2 unhealthy")),
    ],
)
def test_of_several_containers_those_that_are_not_well_are_counted(states: list[str], expected: Container):
    found = [
        service("catalog", "exited", exit_code=137)
        if state == "ended"
        else service("catalog", "running", state)
        for state in states
    ]
    assert containers(cli.containers(found)) == {"catalog": expected}


def test_where_nothing_was_told_nothing_is_known():
    assert containers("") is None
    assert containers(json.dumps({})) == {}


@pytest.mark.parametrize("text", ["x", "[]", '{"minio": 1}', '{"minio": {"good": true}}'])
def test_anything_else_is_refused(text: str):
    with pytest.raises(InvalidSettingError, match="TARN_CONTAINERS"):
        containers(text)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["check-spec", "F"], ["check-spec", "--shown-as", "F", "-"]),
        (["check-spec", "--json", "F"], ["check-spec", "--json", "--shown-as", "F", "-"]),
        (
            ["--debug", "check-spec", "F", "--json"],
            ["--debug", "check-spec", "--shown-as", "F", "-", "--json"],
        ),
        (
            ["dead-letters", "replay", "F", "--dry-run"],
            ["dead-letters", "replay", "--shown-as", "F", "-", "--dry-run"],
        ),
        (["apply", "-f", "F"], ["apply", "--shown-as", "F", "-f", "-"]),
        (["apply", "-fF", "--wait=9"], ["apply", "--shown-as", "F", "-f", "-", "--wait=9"]),
        (["apply", "--file=F"], ["apply", "--shown-as", "F", "--file", "-"]),
        (
            ["apply", "--wait", "30", "--file", "F", "--take-over"],
            ["apply", "--wait", "30", "--shown-as", "F", "--file", "-", "--take-over"],
        ),
    ],
)
def test_a_file_is_read_on_the_host(words: list[str], expected: list[str], tmp_path: Path):
    file = tmp_path / "orders.yaml"
    file.write_text("kind: Ingestor")
    found, stdin = cli.with_file([word.replace("F", str(file)) for word in words])
    assert found == [str(file) if word == "F" else word for word in expected]
    assert stdin is not None
    with stdin:
        assert stdin.read() == b"kind: Ingestor"


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["check-spec", "-"],
            ["apply", "-f", "-"],
            ["apply", "-f"],
            ["apply", "nowhere.yaml"],
            ["apply", "nowhere.yaml", "--wait", "60"],
            ["apply", "nowhere.yaml", "--file"],
            ["get", "orders"],
            ["check-spec"],
            ["check-spec", "--help"],
            ["sql", "check-spec"],
            ["status"],
            [],
        ),
        *(["dead-letters"], ["dead-letters", "replay"], ["dead-letters", "replay", "-"]),
        *(["dead-letters", "show", "orders"], ["dead-letters", "list"]),
        ["dead-letters", "replay", "--ingestor", "orders"],
        ["dead-letters", "replay", "--ingestor=orders", "--dry-run"],
    ],
)
def test_other_commands_read_no_file_here(words: list[str]):
    assert cli.with_file(words) == (words, None)


def test_two_files_for_one_apply_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second one was looked for in the container: "No such file" of a file that is there."""
    monkeypatch.setattr(cli.project, "load", lambda: Here())
    monkeypatch.setattr(cli.base, "is_there", lambda image: True)
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text("kind: Ingestor")
    assert cli.main(["apply", "-f", str(files[0]), f"--file={files[1]}"]) == 2
    assert f"2 files for one apply: {files[0]}, {files[1]}" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_wrong_input(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(cli.project, "load", lambda: Here())
    monkeypatch.setattr(cli.base, "is_there", lambda image: True)
    assert cli.main(["check-spec", "/nowhere/orders.yaml"]) == 2
    assert "could not read /nowhere/orders.yaml: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["is_there", "services"])
def test_ctrl_c_before_the_container_runs_is_a_sentence(where: str, monkeypatch: pytest.MonkeyPatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.project, "load", lambda: Here())
    monkeypatch.setattr(cli.base, "is_there", lambda image: True)
    monkeypatch.setattr(cli.base if where == "is_there" else cli.lifecycle, where, interrupted)
    assert cli.main(["status"]) == 130
    assert capsys.readouterr().err == "\nerror: stopped by the keyboard\n  -> run the command again\n"


def test_a_play_with_wrong_options_stops_nothing(monkeypatch: pytest.MonkeyPatch):
    done: list[object] = []

    def run(here: object, service: str, words: list[str], **_: object) -> int:
        done.append(words)
        return 2 if "0" in words else 0

    monkeypatch.setattr(cli.project, "load", lambda: Here())
    monkeypatch.setattr(cli.base, "is_there", lambda image: True)
    monkeypatch.setattr(cli.run_once, "run", run)
    monkeypatch.setattr(cli.lifecycle, "replay_runs", lambda here: True)
    monkeypatch.setattr(cli.lifecycle, "stop_replay", lambda here: done.append("stopped"))
    assert cli.main(["demo", "replay", "--speed", "0"]) == 2
    assert done == [["demo", "replay", "--speed", "0", "--check"]]
    done.clear()
    assert cli.main(["demo", "replay", "--speed", "9"]) == 0
    assert done == [
        ["demo", "replay", "--speed", "9", "--check"],
        "stopped",
        ["demo", "replay", "--speed", "9"],
    ]


class Here:
    name = "tarn-000000"
