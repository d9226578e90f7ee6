"""One-off service runs: a signal to the command reaches the container, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tarn_host.stack import project, run_once

from tests.support.stack import eventually

DOCKER = """#!{python}
# Stands in for the engine: a "container" is a file; `compose run` waits for the signal in it.
import pathlib, signal, sys, time
state = pathlib.Path({state!r})
words = sys.argv[1:]
with open(state / "calls", "a") as calls:
    print(*words, file=calls)
if words[:2] == ["compose", "run"]:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(99))  # as Compose: ends, and leaves its container
    (state / "asked").touch()
    while (state / "late").exists():
        time.sleep(0.02)
    (state / words[words.index("--name") + 1]).write_text("")
    if (state / "leaves").exists():  # as Compose, whose reader left or whose user detached
        sys.exit(int((state / "leaves").read_text()))
    end = time.monotonic() + 50
    while time.monotonic() < end:
        for container in state.glob("tarn-*"):
            got = container.read_text()
            if got and not (state / "deaf").exists():
                container.unlink()
                sys.exit({{"INT": 130, "TERM": 143}}[got])
        time.sleep(0.02)
    sys.exit(70)
if words[0] == "kill":
    container = state / words[-1]
    if not container.exists():
        (state / "late").unlink(missing_ok=True)
        sys.exit("no such container")
    container.write_text(words[2])
if words[0] == "stop":
    if not (state / words[1]).exists():
        sys.exit("no such container")
    (state / words[1]).write_text("TERM")
if words[:2] == ["rm", "--force"]:
    (state / words[2]).unlink(missing_ok=True)
"""

RUN = """
import sys
from tarn_host.stack import project, run_once
run_once.GRACE_S = float(sys.argv[1])
here = project.Project(name="tarn-x", base="b", own_base=False, settings={})
sys.exit(run_once.run(here, "cli", ["demo", "load"]))
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER.format(python=sys.executable, state=str(folder)))
    docker.chmod(0o755)
    return folder


def heard() -> None:
    """Undo the ignored signals inherited from nohup or a shell's background job."""
    for number in run_once.SENT_AS:
        signal.signal(number, signal.SIG_DFL)


def interrupted(
    state: Path, number: signal.Signals, *, wait_for: str = "tarn-*", grace_s: float = 40.0
) -> int:
    """Start a command and signal its process group as a terminal does; returns its exit code."""
    path = os.pathsep.join([str(state.parent / "bin"), os.environ["PATH"]])
    lib = str(project.ROOT / "scripts" / "lib")
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(grace_s)],
        env={**os.environ, "PATH": path, "PYTHONPATH": lib},
        start_new_session=True,
        preexec_fn=heard,
    ) as process:
        try:
            eventually(lambda: any(state.glob(wait_for)), timeout_s=40, what="it was started", pause_s=0.02)
            os.killpg(process.pid, number)
            return process.wait(timeout=40)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_goes_to_the_container_whose_exit_code_is_told(
    state: Path, number: signal.Signals, code: int
):
    assert interrupted(state, number) == code
    assert not list(state.glob("tarn-*"))


@pytest.mark.long
def test_a_container_that_is_not_there_yet_gets_the_signal_when_it_is(state: Path):
    (state / "late").touch()
    assert interrupted(state, signal.SIGINT, wait_for="asked") == 130
    assert (state / "calls").read_text().count("kill --signal INT") >= 2


@pytest.mark.long
def test_a_container_that_does_not_end_is_removed(state: Path):
    (state / "deaf").touch()
    assert interrupted(state, signal.SIGINT, grace_s=1.0) != 0
    assert not list(state.glob("tarn-*"))
    assert "rm --force tarn-x-cli-run-" in (state / "calls").read_text()


@pytest.mark.parametrize(
    ("code", "terminal"), [(1, False), (0, True)], ids=["the reader of its output left", "detached"]
)
def test_a_container_that_compose_left_running_is_stopped_and_removed(
    state: Path, monkeypatch: pytest.MonkeyPatch, code: int, terminal: bool
):
    monkeypatch.setenv("PATH", os.pathsep.join([str(state.parent / "bin"), os.environ["PATH"]]))
    (state / "leaves").write_text(str(code))
    here = project.Project(name="tarn-x", base="b", own_base=False, settings={})
    assert run_once.run(here, "cli", ["consume", "orders", "--follow"], terminal=terminal) == code
    assert not list(state.glob("tarn-*"))
    _, stop, remove = (state / "calls").read_text().splitlines()
    assert stop.startswith("stop tarn-x-cli-run-"), "it may end what it has begun"
    assert remove == f"rm --force {stop.split()[1]}"


def test_the_engine_is_asked_nothing_more_after_a_run_that_succeeded(
    state: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", os.pathsep.join([str(state.parent / "bin"), os.environ["PATH"]]))
    (state / "leaves").write_text("0")
    here = project.Project(name="tarn-x", base="b", own_base=False, settings={})
    assert run_once.run(here, "cli", ["status"]) == 0
    assert len((state / "calls").read_text().splitlines()) == 1


@pytest.mark.long
def test_a_block_that_fails_ends_the_container(state: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", os.pathsep.join([str(state.parent / "bin"), os.environ["PATH"]]))
    here = project.Project(name="tarn-x", base="b", own_base=False, settings={})
    ended = []

    def write() -> None:
        with run_once.started(here, "keeper", ["backup"]) as process:
            ended.append(process)
            eventually(lambda: any(state.glob("tarn-*")), timeout_s=40, what="it was started", pause_s=0.02)
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write()
    assert ended[0].returncode == 143
    assert not list(state.glob("tarn-*"))


def test_without_a_signal_nothing_is_asked_of_the_engine_but_the_run():
    words = run_once.command("tarn-x-cli-run-1", "cli", ["sql", "SELECT 1"], options=["--env", "A=1"])
    assert words == [
        *("docker", "compose", "run", "--rm", "--no-deps", "-T", "--name", "tarn-x-cli-run-1"),
        *("--env", "A=1", "cli", "sql", "SELECT 1"),
    ]
    assert "-T" not in run_once.command("n", "cli", [], terminal=True)
