"""What hangs or is killed inside its container comes back by itself, and nobody has to see it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from tests.support.stack import LONG_RUNNING, Stack, eventually, run

# The watch needs 100 s at most to end a process that hangs; the rest is its start, on a busy machine.
BACK_WITHIN_S = 300
KILLED_BACK_WITHIN_S = 180
RUN_S_MIN = 120
HEALTHY_WITHIN_S = 180
# Frozen together, so that one pass shows a service also while what it needs hangs as well.
TOGETHER = (("minio", "kafka", "trino", "jupyter"), ("catalog", "spark", "ingest", "pipeline", "reaper"))

MAIN = """
import sys
sys.path.insert(0, '/opt/tarn/probe')
from runner import main_process
print(main_process())
"""


def starts(stack: Stack, service: str) -> tuple[int, str]:
    """How often the engine started the container again, and when it started it last."""
    found = stack.inspect(service)
    return int(found["RestartCount"]), str(found["State"]["StartedAt"])


def all_healthy(stack: Stack) -> bool:
    found = stack.health()
    return all(found.get(service) == "healthy" for service in LONG_RUNNING)


def await_healthy(stack: Stack) -> None:
    eventually(lambda: all_healthy(stack), timeout_s=HEALTHY_WITHIN_S, what=f"all healthy: {stack.health()}")


def await_age(stack: Stack, services: tuple[str, ...]) -> None:
    """The watch ends nothing in a container's first two minutes."""

    def old_enough() -> bool:
        now = datetime.now(UTC)
        began = [datetime.fromisoformat(starts(stack, s)[1][:19] + "+00:00") for s in services]
        return all((now - at).total_seconds() > RUN_S_MIN + 2 for at in began)

    eventually(old_enough, timeout_s=RUN_S_MIN + 30, what="containers older than two minutes", pause_s=2)


def main_process(stack: Stack, service: str) -> str:
    answer = stack.inside(service, "python3", "-I", "-c", MAIN)
    assert answer.code == 0, answer.text
    assert answer.text.strip().isdigit(), answer.text
    return answer.text.strip()


def signal_main(stack: Stack, service: str, name: str) -> None:
    """Signals the service's own process; with KILL the container ends before the answer comes."""
    process = main_process(stack, service)
    run(["docker", "exec", stack.container(service), "sh", "-c", f"kill -{name} {process}"], timeout_s=60)


def seconds_until_back(
    stack: Stack, before: dict[str, tuple[int, str]], *, within_s: float
) -> dict[str, float]:
    """Seconds until each service was started again and healthy."""
    begin = time.monotonic()
    took: dict[str, float] = {}

    def look() -> bool:
        health = stack.health()
        for service, was in before.items():
            if service not in took and health.get(service) == "healthy" and starts(stack, service) != was:
                took[service] = round(time.monotonic() - begin, 1)
        return len(took) == len(before)

    eventually(look, timeout_s=within_s, what=f"{sorted(before)} back; so far {took}", pause_s=1)
    return took


def ends_told(stack: Stack, service: str) -> list[dict[str, object]]:
    """The lines in which the watch says that it ended the process."""
    lines = stack.compose("logs", "--no-log-prefix", "--no-color", service).text.splitlines()
    # Compose puts a control sequence before lines.
    found = [raw[raw.find("{") :] for raw in lines if "the process is ended" in raw and "{" in raw]
    return [json.loads(raw) for raw in found]


@pytest.mark.parametrize("services", TOGETHER, ids=", ".join)
def test_what_hangs_is_ended_and_comes_back(
    stack: Stack, services: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    await_healthy(stack)
    await_age(stack, services)
    told = {service: len(ends_told(stack, service)) for service in services}
    before = {service: starts(stack, service) for service in services}
    with stack.fault():
        for service in services:
            signal_main(stack, service, "STOP")
        took = seconds_until_back(stack, before, within_s=BACK_WITHIN_S)
        await_healthy(stack)
    for service in services:
        count, _ = starts(stack, service)
        assert count == before[service][0] + 1, f"{service} was ended more than once"
        lines = ends_told(stack, service)
        assert len(lines) == told[service] + 1
        assert lines[-1]["service"] == service
        assert int(str(lines[-1]["silent_s"])) >= 60
    record_property("back_after_freeze_s", took)


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_what_is_killed_inside_comes_back(
    stack: Stack, service: str, record_property: Callable[[str, object], None]
) -> None:
    """As by the kernel, when the container is out of memory."""
    await_healthy(stack)
    before = {service: starts(stack, service)}
    with stack.fault():
        signal_main(stack, service, "KILL")
        took = seconds_until_back(stack, before, within_s=KILLED_BACK_WITHIN_S)
        await_healthy(stack)
    assert set(took) == {service}
    record_property("back_after_kill_s", took)


def test_a_dependency_that_hangs_ends_nobody_else(stack: Stack) -> None:
    """The store is paused for longer than any watch waits: its users are unhealthy, and go on running."""
    await_healthy(stack)
    others = tuple(service for service in LONG_RUNNING if service != "minio")
    await_age(stack, others)
    before = {service: starts(stack, service) for service in others}
    minio = stack.container("minio")
    with stack.fault():
        assert run(["docker", "pause", minio], timeout_s=30).code == 0
        try:
            begin = time.monotonic()
            eventually(
                lambda: stack.health().get("trino") == "unhealthy" and time.monotonic() - begin > 100,
                timeout_s=180,
                what="trino unhealthy, and 100 s gone",
                pause_s=2,
            )
        finally:
            assert run(["docker", "unpause", minio], timeout_s=30).code == 0
        await_healthy(stack)
    assert {service: starts(stack, service) for service in others} == before
