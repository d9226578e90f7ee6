""".ci/run: every test on a machine with nothing installed, within a hard time limit, leaving only caches."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from tarn_host import shell
from tarn_host.console import Phases, StopError, line, stopped
from tarn_host.stack import engine, images, lifecycle, project
from tarn_host.stack.lock import only_one
from tarn_host.stack.project import ROOT, Project
from tarn_host.testing import tiers

LIMIT_S = 84 * 60
GRACE_S = 90
CLOSING = tiers.ARTIFACTS / "closing-line.txt"


def main() -> int:
    """Run all tests and return their exit code; always clean up."""
    phases = Phases()
    signal.signal(signal.SIGTERM, _interrupt)
    os.environ["COMPOSE_PROJECT_NAME"] = own_name()
    had_engine = engine.look().server is not None
    line(
        "an engine answers already: it stays"
        if had_engine
        else "no engine answers: one is got and stopped again"
    )
    CLOSING.unlink(missing_ok=True)
    try:
        with only_one(project.load()):
            code = _tested(phases, stop_engine=not had_engine)
    except StopError as error:
        code = stopped(error)
    for row in phases.table():
        line(row)
    line("")
    line(CLOSING.read_text(encoding="utf-8").strip() if CLOSING.is_file() else "0 passed, 1 failed")
    return code


def own_name() -> str:
    """The Compose project of these tests; never the clone's own, whose lake a user may keep."""
    return f"{project.default_name(ROOT)}-ci"


def _tested(phases: Phases, *, stop_engine: bool) -> int:
    """The exit code of all tests; what they created is removed, whatever the result."""
    try:
        with phases.phase("tests"):
            return _bounded([str(ROOT / "scripts/test"), "--yes"], limit_s())
    except KeyboardInterrupt:
        return 130
    finally:
        with phases.phase("clean-up"):
            clean_up(project.load(), stop_engine=stop_engine)


def limit_s() -> int:
    """Time limit of the tests in seconds: 84 minutes, or TARN_CI_LIMIT_S."""
    text = os.environ.get("TARN_CI_LIMIT_S", "")
    return int(text) if text.isdigit() else LIMIT_S


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _bounded(command: list[str], timeout_s: float) -> int:
    """Run a program in its own process group; at the limit the whole group is killed."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=ROOT, start_new_session=True)
    try:
        return process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        line(f"error: the tests were not done within {timeout_s:g} s; they are stopped")
        return shell.TIMED_OUT
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=GRACE_S)


def clean_up(here: Project, *, stop_engine: bool) -> None:
    """Remove containers, volumes and image tags of these tests; stop the engine only if it was started here.

    The build cache and the engine's data are kept, so that the next run is fast.
    """
    assert here.name == own_name(), f"{here.name} is not the project of these tests"
    begin = time.monotonic()
    try:
        if engine.look().server is not None:
            tiers.clean(here)
            with contextlib.suppress(StopError):
                lifecycle.stop(here, purge=True)
            _forget_images(here)
        if stop_engine:
            line(f"    {engine.stop()}")
    except StopError as error:
        line(f"    not everything could be cleaned up ({time.monotonic() - begin:.0f} s): {error.what}")


def _forget_images(here: Project) -> None:
    """Remove these tests' image tags: the layers stay in the build cache."""
    names = [t.image for t in images.targets(images.compose_config(here))]
    there = sorted(images.image_ids(names))
    if there:
        shell.capture(["docker", "image", "rm", *there], timeout_s=120)


if __name__ == "__main__":
    sys.exit(main())
