"""Waiting for a container's health: what it was instead is in the message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import healthy
from tests.support.healthy import await_health, health_of


class Container:
    """A container whose health is the next of these each time that somebody looks; the last one stays."""

    name = "some-container"

    def __init__(self, *healths: str, status: str = "running") -> None:
        self._healths, self._status = list(healths), status
        self.attrs: dict[str, Any] = {}

    def reload(self) -> None:
        health = self._healths.pop(0) if len(self._healths) > 1 else self._healths[0]
        log = [{"Output": f"check {number}\n"} for number in range(5)]
        state = {"Status": self._status, "ExitCode": 3, "Health": {"Status": health, "Log": log}}
        if not health:
            del state["Health"]
        self.attrs = {"State": state}


def test_it_returns_once_the_engine_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthy, "PAUSE_S", 0)
    container: Any = Container("starting", "unhealthy", "healthy")
    assert await_health(container, timeout_s=60) > 0
    assert health_of(container) == "healthy"


def test_a_container_without_a_check_has_its_status() -> None:
    container: Any = Container("", status="exited")
    assert health_of(container) == "exited"


def test_a_failure_says_the_state_and_what_the_last_checks_said() -> None:
    container: Any = Container("unhealthy", status="exited")
    with pytest.raises(AssertionError) as failed:
        await_health(container, timeout_s=0, what="the store")
    assert str(failed.value) == (
        "the store not healthy within 0 s: it is exited, exit code 3, unhealthy; "
        "checks said ['check 2', 'check 3', 'check 4']"
    )
    with pytest.raises(
        AssertionError, match="some-container not unhealthy within 0 s: it is running, healthy"
    ):
        await_health(Container("healthy"), "unhealthy", timeout_s=0)  # type: ignore[arg-type]
