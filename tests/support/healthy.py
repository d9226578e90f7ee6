"""Waiting for the health of a container that a test has started; what it was instead is in the failure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker.models.containers import Container

HEALTHY_WITHIN_S = 180.0
"""Until a container is healthy: tiers side by side keep all cores busy, and three JVMs start at a time."""
ENDED_WITHIN_S = 120.0
"""Until a container that cannot start has ended."""
PAUSE_S = 0.2


def state_of(container: Container) -> dict[str, Any]:
    """The container's state, as the engine reports it."""
    container.reload()
    return dict(container.attrs["State"])


def health_of(container: Container) -> str:
    """The result of its health check; its status if there is none."""
    found = state_of(container)
    return str(found["Health"]["Status"] if "Health" in found else found["Status"])


def said_by(container: Container) -> str:
    """Its state in a line, with what its last health checks said."""
    found = state_of(container)
    health = found.get("Health") or {}
    checks = [str(one["Output"]).strip()[-300:] for one in (health.get("Log") or [])[-3:]]
    ended = f", exit code {found['ExitCode']}" if found["Status"] == "exited" else ""
    return f"it is {found['Status']}{ended}, {health.get('Status', 'without a check')}; checks said {checks}"


def await_health(
    container: Container, status: str = "healthy", *, timeout_s: float = HEALTHY_WITHIN_S, what: str = ""
) -> float:
    """Seconds until the engine reported this health.

    Args:
        container: the container.
        status: the health that is waited for.
        timeout_s: the timeout, in seconds.
        what: name of the container, for the message.

    Raises:
        AssertionError: it did not before the timeout; the message has its state and its last checks.
    """
    began_s = time.monotonic()
    while True:
        is_last = time.monotonic() - began_s >= timeout_s
        if health_of(container) == status:
            return time.monotonic() - began_s
        if is_last:
            name = what or str(container.name)
            raise AssertionError(f"{name} not {status} within {timeout_s:g} s: {said_by(container)}")
        time.sleep(PAUSE_S)
