"""A test that does not end by its time limit fails by name, and the others run."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.stack import eventually
from tests.support.tiers import TESTS_DIR

pytestmark = pytest.mark.long

COMMAND = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
ENV = {"PYTHONPATH": f"{TESTS_DIR.parent}"}
CONFTEST = """
from pathlib import Path

from tests.support.stuck import Ender, Unended

def pytest_configure(config):
    config.pluginmanager.register(Ender(grace_s=1))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Unended(Path("unended.txt")))
"""
TESTS = """
import threading

import pytest

pytestmark = pytest.mark.timeout(1, method="signal")


def test_its_clean_up_waits():
    try:
        threading.Event().wait(30)
    finally:
        threading.Event().wait(300)


@pytest.mark.parametrize("n", range(5))
def test_good(n):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_some.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments, "."]
    return subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True, timeout=50)


def test_beside_others_it_fails_by_name_and_the_rest_is_run(folder: Path) -> None:
    ended = run(folder, "-n", "2", "--dist", "worksteal")
    shown = ended.stdout + ended.stderr
    assert ended.returncode == 1, shown
    assert "crashed while running 'test_some.py::test_its_clean_up_waits'" in shown
    assert "1 failed, 5 passed" in shown
    assert "in test_its_clean_up_waits" in ended.stderr, "where it stands"


@pytest.mark.parametrize("beside", [(), ("-n", "2", "--dist", "worksteal")])
def test_what_runs_when_the_run_is_stopped_is_named(folder: Path, beside: tuple[str, ...]) -> None:
    waiting = """
    import pathlib, threading, pytest

    @pytest.mark.timeout(60)
    def test_it_waits():
        pathlib.Path("waits").touch()
        threading.Event().wait(60)

    @pytest.mark.timeout(60)
    def test_good():
        pass
    """
    (folder / "test_some.py").write_text(textwrap.dedent(waiting), encoding="utf-8")
    command = [*COMMAND, *beside, "."]
    with subprocess.Popen(command, cwd=folder, env=ENV, stdout=subprocess.DEVNULL) as process:
        try:
            eventually((folder / "waits").exists, timeout_s=40, what="the test", pause_s=0.05)
            process.send_signal(signal.SIGINT)
            process.wait(20)
        finally:
            process.kill()
    named = (folder / "unended.txt").read_text(encoding="utf-8").splitlines()
    assert "test_some.py::test_it_waits" in named


def test_alone_the_run_ends_and_shows_where_it_stands(folder: Path) -> None:
    ended = run(folder)
    assert ended.returncode == 1, ended.stdout
    assert "in test_its_clean_up_waits" in ended.stderr


def test_what_its_limit_ends_fails_as_ever(folder: Path) -> None:
    (folder / "test_some.py").write_text(TESTS.replace("wait(300)", "wait(0.1)"), encoding="utf-8")
    ended = run(folder)
    assert ended.returncode == 1, ended.stdout
    assert "Failed: Timeout (>1.0s) from pytest-timeout" in ended.stdout
    assert "1 failed, 5 passed" in ended.stdout
    assert not (folder / "unended.txt").exists()
