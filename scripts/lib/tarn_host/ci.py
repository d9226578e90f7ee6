""".ci/run: every test on a machine that may have nothing, within a hard limit, leaving only caches."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from tarn_host import engine, images, project, shell, stack, tiers
from tarn_host.project import ROOT, Project
from tarn_host.say import Phases, StopError, line

LIMIT_S = 80 * 60
GRACE_S = 90
CLOSING = tiers.ARTIFACTS / "closing-line.txt"


def main() -> int:
    """Run all tests and give their exit code; clean up whatever happens."""
    phases = Phases()
    signal.signal(signal.SIGTERM, _interrupt)
    had_engine = engine.look().server is not None
    line(
        "an engine answers already: it stays"
        if had_engine
        else "no engine answers: one is got and stopped again"
    )
    CLOSING.unlink(missing_ok=True)
    code = 1
    try:
        with phases.phase("tests"):
            code = _bounded([str(ROOT / "scripts/test"), "--yes"], limit_s())
    except KeyboardInterrupt:
        code = 130
    finally:
        with phases.phase("clean-up"):
            clean_up(stop_engine=not had_engine)
    for row in phases.table():
        line(row)
    line("")
    line(CLOSING.read_text(encoding="utf-8").strip() if CLOSING.is_file() else "0 passed, 1 failed")
    return code


def limit_s() -> int:
    """How long the tests may take: 80 minutes, or what TARN_CI_LIMIT_S says."""
    text = os.environ.get("TARN_CI_LIMIT_S", "")
    return int(text) if text.isdigit() else LIMIT_S


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _bounded(command: list[str], timeout_s: float) -> int:
    """Run a program in a process group of its own; at the limit the whole group ends."""
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


def clean_up(*, stop_engine: bool) -> None:
    """Remove this clone's containers, volumes and image names; stop the engine only if it was started here.

    Build cache and the engine's data stay, so that the next run is quick.
    """
    begin = time.monotonic()
    try:
        here = project.load()
        if engine.look().server is not None:
            tiers.clean(here)
            with contextlib.suppress(StopError):
                stack.stop(here, purge=True)
            _forget_images(here)
        if stop_engine:
            line(f"    {engine.stop()}")
    except StopError as error:
        line(f"    not everything could be cleaned up ({time.monotonic() - begin:.0f} s): {error.what}")


def _forget_images(here: Project) -> None:
    """Take this clone's names off its images: the layers stay in the build cache."""
    names = [t.image for t in images.targets(images.compose_config(here))]
    there = sorted(images.image_ids(names))
    if there:
        shell.capture(["docker", "image", "rm", *there], timeout_s=120)


if __name__ == "__main__":
    sys.exit(main())
