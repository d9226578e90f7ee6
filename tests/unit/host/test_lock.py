"""One script at a time: the second is refused with the pid of the first, and a killed one leaves nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tarn_host import cli, down, up
from tarn_host.console import StopError
from tarn_host.doctor import command
from tarn_host.stack import lock, project
from tarn_host.stack.project import Project

from tests.support.stack import eventually

HERE = Project(name="tarn-1", base="b", own_base=True, settings={})
HOLD = """
import sys, time
sys.path.insert(0, sys.argv.pop(1))
from pathlib import Path
from tarn_host.stack import lock, project
project.STATE_DIR = Path(sys.argv.pop(1))
sys.argv = ["scripts/up", "--small"]
with lock.only_one(project.Project(name="tarn-1", base="b", own_base=True, settings={})):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "STATE_DIR", tmp_path)
    monkeypatch.setattr(lock, "GLANCE_S", 0.2)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another script that holds the lock."""
    library = str(project.ROOT / "scripts/lib")
    command = [sys.executable, "-I", "-c", HOLD, library, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.mark.long
def test_the_second_is_refused_with_the_first_ones_pid_and_words(other: subprocess.Popen[str]) -> None:
    assert lock.is_busy(HERE)
    with pytest.raises(StopError) as caught, lock.only_one(HERE):
        pytest.fail("two at once")
    assert f"scripts/up --small (pid {other.pid}, for " in caught.value.what
    assert "nothing was changed" in caught.value.what
    assert "Ctrl-C" in caught.value.fix


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "words"), [(up.main, ["--yes"]), (down.main, ["--purge", "--yes"])], ids=["up", "down --purge"]
)
def test_neither_a_second_up_nor_down_touches_anything_during_up(
    other: subprocess.Popen[str],
    script: Callable[[list[str]], int],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def touched(*_: object, **__: object) -> None:
        pytest.fail("it went on beside the other")

    monkeypatch.setattr(project, "load", lambda: HERE)
    monkeypatch.setattr(up, "prepare", touched)
    monkeypatch.setattr(down, "down", touched)
    assert script(words) == 1
    said = capsys.readouterr().err
    assert f"scripts/up --small (pid {other.pid}, for " in said
    assert "nothing was changed" in said


def test_what_a_killed_one_left_is_taken_over(other: subprocess.Popen[str], tmp_path: Path) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait(timeout=40)
    assert f'"pid": {other.pid}' in (tmp_path / "tarn-1.lock").read_text()
    eventually(lambda: not lock.is_busy(HERE), timeout_s=40, what="the lock of a killed one is free")
    with lock.only_one(HERE):
        assert json.loads((tmp_path / "tarn-1.lock").read_text())["pid"] == os.getpid()


def test_another_project_of_the_clone_is_not_in_the_way(other: subprocess.Popen[str]) -> None:
    with lock.only_one(Project(name="tarn-1-test", base="b", own_base=True, settings={})):
        assert lock.is_busy(HERE)


def test_a_look_changes_and_leaves_nothing(tmp_path: Path) -> None:
    assert not lock.is_busy(HERE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_lock_without_words_is_refused_all_the_same(other: subprocess.Popen[str], tmp_path: Path) -> None:
    (tmp_path / "tarn-1.lock").write_text("")
    with pytest.raises(StopError, match="another script is at work on tarn-1"), lock.only_one(HERE):
        pytest.fail("two at once")


def refused(path: Path) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    return refuse


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (up.main, ["--yes"]),
        (down.main, []),
        (cli.main, ["restore", "lake.tar"]),
        (cli.main, ["status"]),
        (command.main, []),
    ],
    ids=["up", "down", "restore", "tarn", "doctor"],
)
def test_what_a_run_as_root_left_is_named_with_its_owner(
    script: Callable[[list[str]], int],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "tarn-1.lock"
    file.touch()
    monkeypatch.setattr(project, "ENV_FILE", tmp_path / "clone" / ".env")
    monkeypatch.setattr(project, "_user", lambda uid: f"user {uid}")
    monkeypatch.setattr(cli.base, "is_there", lambda image: True)
    monkeypatch.setattr(lock, "path_of", refused(file))
    monkeypatch.setattr(cli.lifecycle, "services", refused(file))
    monkeypatch.setattr(command, "look", refused(file))
    assert script(words) == 1
    said = capsys.readouterr().err
    assert f"{file} belongs to user {os.getuid()}, and user {os.getuid()} may not use it" in said
    assert f"cd {project.ROOT} && sudo chown -R $USER {tmp_path.name}\n" in said


def test_a_clone_on_a_file_system_that_is_read_only_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def mkdir(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(project, "STATE_DIR", tmp_path / ".tarn")
    monkeypatch.setattr(Path, "mkdir", mkdir)
    for script in (up.main, down.main):
        assert script([]) == 1
        said = capsys.readouterr().err
        assert f"{tmp_path / '.tarn'} cannot be written: Read-only file system" in said
        assert "clone the repository on another one" in said


def test_what_cannot_be_made_is_laid_to_the_folder(tmp_path: Path) -> None:
    """An error of a file that does not exist is that of its folder."""
    with pytest.raises(PermissionError) as caught:
        refused(tmp_path / "logs" / "stop.log")()
    assert project.hindered(caught.value).what.startswith(f"{tmp_path} belongs to ")


def test_a_file_that_is_not_of_the_clones_state_is_not_laid_to_a_run_as_root(tmp_path: Path) -> None:
    for path in (tmp_path.parent / "other", Path("docker")):
        with pytest.raises(PermissionError):
            project.hindered(PermissionError(errno.EACCES, "Permission denied", str(path)))


def test_a_lock_that_may_not_be_read_is_not_called_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Path, "open", refused(tmp_path / "tarn-1.lock"))
    assert not lock.is_busy(HERE)


def test_a_file_system_without_locks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(handle: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refused)
    refusal = pytest.raises(StopError, match="cannot be locked: No locks available")
    with refusal as caught, lock.only_one(HERE):
        pytest.fail("without a lock")
    assert "local disk" in caught.value.fix
