"""The canary during a start: when it is sent, its input, and which canary's result counts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tarn_host import shell
from tarn_host.console import StopError
from tarn_host.stack import canary, run_once
from tarn_host.stack.canary import LOADED_BESIDE, WAITED_FOR, Canary
from tarn_host.stack.lifecycle import Service
from tarn_host.stack.project import Project

HERE = Project(name="tarn-1", base="b", own_base=True, settings={})

# Records its stdin and exits with the next code of the file beside it, one exit code per line.
ACT = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
codes = (folder / "codes").read_text().split()
(folder / "codes").write_text(" ".join(codes[1:]))
with (folder / "heard").open("a") as heard:
    heard.write("sent:" + ",".join(sys.stdin.read().split()) + "\\n")
sys.exit(int(codes[0]))
"""


def states(*healthy: str, starting: Sequence[str] = ()) -> list[Service]:
    return [
        Service(name=name, container=name, state="running", health=health, exit_code=0)
        for names, health in ((healthy, "healthy"), (starting, "starting"))
        for name in names
    ]


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with `codes`, the exit codes of the canaries, and `heard`, their input."""
    command = [sys.executable, "-c", ACT, str(tmp_path)]
    monkeypatch.setattr(run_once, "command", lambda *words, **more: command)
    monkeypatch.setattr(shell, "capture", lambda *words, **more: shell.Result(0, "", ""))
    return tmp_path


def heard(folder: Path) -> list[str]:
    return (folder / "heard").read_text().splitlines()


def test_it_starts_beside_the_services_and_hears_of_each_once(act: Path) -> None:
    (act / "codes").write_text("0")
    with Canary(HERE) as one:
        one.look(states("minio", starting=["catalog", *WAITED_FOR]))
        assert one._running is None
        one.look(states(*LOADED_BESIDE, starting=WAITED_FOR))
        assert one._running is not None
        one.look(states(*LOADED_BESIDE, "ingest", starting=["kafka", "trino", "spark"]))
        one.look(states(*LOADED_BESIDE, "kafka", "ingest", "trino", starting=["spark"]))
        one.look(states(*LOADED_BESIDE, *WAITED_FOR))
        one.look(states(*LOADED_BESIDE, *WAITED_FOR))
        one.finish()
    assert heard(act) == ["sent:ingest,kafka,trino,spark"]


def test_without_a_look_it_is_sent_when_all_is_healthy(act: Path) -> None:
    (act / "codes").write_text("0")
    with Canary(HERE) as one:
        one.finish()
    assert heard(act) == ["sent:"]


def test_one_that_fails_beside_the_start_is_followed_by_one_that_counts(
    act: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (act / "codes").write_text("1 0")
    with Canary(HERE) as one:
        one.look(states(*LOADED_BESIDE))
        one.finish()
    assert heard(act) == ["sent:", "sent:"]
    assert "another one, now that all are healthy" in capsys.readouterr().out


def test_one_that_fails_when_all_is_healthy_stops_the_script_with_its_own_code(act: Path) -> None:
    (act / "codes").write_text("1 3")
    with Canary(HERE) as one:
        one.look(states(*LOADED_BESIDE))
        with pytest.raises(StopError, match="the canary failed with exit code 3") as caught:
            one.finish()
    assert caught.value.code == 3
    assert "docker compose logs ingest catalog" in caught.value.fix


def test_one_that_ended_early_does_not_stop_the_start(act: Path) -> None:
    (act / "codes").write_text("0 0")
    with Canary(HERE) as one:
        one.look(states(*LOADED_BESIDE))
        assert one._running is not None
        one._running.process.kill()
        one._running.process.wait(timeout=10)
        one.look(states(*LOADED_BESIDE, "trino"))
        one.finish()
    assert heard(act) == ["sent:"], "the one that was killed counts for nothing: another one was sent"


def test_a_start_that_fails_ends_it(act: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (act / "codes").write_text("0")
    ran: list[list[str]] = []

    def capture(command: list[str], **more: object) -> shell.Result:
        ran.append(command)
        return shell.Result(0, "", "")

    monkeypatch.setattr(canary.shell, "capture", capture)
    one = Canary(HERE)
    one.look(states(*LOADED_BESIDE))
    assert one._running is not None
    process = one._running.process
    with contextlib.suppress(StopError), one:
        raise StopError("spark is unhealthy")
    assert process.poll() is not None
    assert ran == [["docker", "rm", "--force", one._name]]
