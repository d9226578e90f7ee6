"""Health checks are accurate: an unusable service is unhealthy within 60 s, port open, and recovers."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from tests.support.stack import ENGINE_S, LONG_RUNNING, Stack, eventually, run

UNHEALTHY_WITHIN_S = 60
HEALTHY_WITHIN_S = 240

PORT_OF = {
    "minio": "TARN_PORT_S3",
    "catalog": "TARN_PORT_CATALOG",
    "kafka": "TARN_PORT_KAFKA",
    "spark": "TARN_PORT_SPARK",
    "trino": "TARN_PORT_TRINO",
    "ingest": "TARN_PORT_INGEST",
    "gateway": "TARN_PORT_GATEWAY",
    "jupyter": "TARN_PORT_JUPYTER",
    "stream": "TARN_PORT_STREAM",
}

SWITCH_USERS = """
import json, pathlib
from minio import MinioAdmin
from minio.credentials import StaticProvider
folder = pathlib.Path("/run/tarn/secrets")
root = [(folder / n).read_text().strip() for n in ("root_user", "root_password")]
admin = MinioAdmin(endpoint="minio:9000", credentials=StaticProvider(*root), secure=False)
users = json.loads((folder / "store_users.json").read_text())
for name in {names!r}:
    admin.{verb}(users[name]["access_key"])
    print("{verb}", name)
"""


@contextlib.contextmanager
def frozen_process(stack: Stack, *services: str) -> Iterator[None]:
    """Freeze the applications; the kernel still accepts connections on their ports."""
    for service in services:
        stack.signal_application(service, "SIGSTOP")
    try:
        yield
    finally:
        for service in services:
            stack.signal_application(service, "SIGCONT")


@contextlib.contextmanager
def frozen_container(stack: Stack, service: str) -> Iterator[None]:
    """Pause a whole container, including its health check."""
    identity = stack.container(service)
    assert run(["docker", "pause", identity], timeout_s=ENGINE_S).code == 0
    try:
        yield
    finally:
        assert run(["docker", "unpause", identity], timeout_s=ENGINE_S).code == 0


@contextlib.contextmanager
def revoked_keys(stack: Stack, *names: str) -> Iterator[None]:
    """Make the store reject the keys of these services."""
    switch_users(stack, "user_disable", names)
    try:
        yield
    finally:
        switch_users(stack, "user_enable", names)


def switch_users(stack: Stack, verb: str, names: tuple[str, ...]) -> None:
    answer = stack.one_shot("bootstrap", SWITCH_USERS.format(names=names, verb=verb))
    assert answer.code == 0, answer.text
    assert answer.text.count(verb) == len(names), answer.text


Fault = Callable[[Stack], AbstractContextManager[None]]
STRUCK = ("minio", "catalog", "kafka", "ingest", "gateway", "jupyter", "spark", "pipeline", "trino")
OTHERS = tuple(name for name in LONG_RUNNING if name not in STRUCK)
"""Services that no fault is made for, such as the reaper: they are frozen together with Spark."""
FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {
    "the store stands still": (lambda s: frozen_process(s, "minio"), ("minio", "catalog")),
    "broker and notebooks stand still": (
        lambda s: frozen_process(s, "kafka", "jupyter"),
        ("kafka", "ingest", "jupyter"),
    ),
    "Spark and the others stand still": (
        lambda s: frozen_process(s, "spark", *OTHERS),
        ("spark", "pipeline", *OTHERS),
    ),
    "the catalog stands still": (
        lambda s: frozen_container(s, "catalog"),
        ("spark", "trino", "ingest", "gateway"),
    ),
    "store keys are revoked": (
        lambda s: revoked_keys(s, "catalog", "spark", "trino", "ingest"),
        ("catalog", "spark", "trino", "ingest"),
    ),
}


def is_open(port: str) -> bool:
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


def wait_for(stack: Stack, services: tuple[str, ...], health: str, timeout_s: float) -> dict[str, float]:
    """Seconds until each service got this health status."""
    begin = time.monotonic()
    took: dict[str, float] = {}

    def look() -> bool:
        found = stack.health()
        for service in services:
            if found.get(service) == health:
                took.setdefault(service, round(time.monotonic() - begin, 1))
        return len(took) == len(services)

    try:
        eventually(look, timeout_s=timeout_s, what=f"{services} {health}")
    except AssertionError as error:
        found = stack.health()
        late = {service: found.get(service) for service in services if service not in took}
        answers = {service: stack.last_probe(service) for service in late}
        raise AssertionError(f"{error}; took {took}; late {late}; their last probes: {answers}") from None
    return took


@pytest.mark.in_turn(2, "a health check misses a dependency that hangs or refuses")
@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_used_is_unhealthy_within_a_minute(
    stack: Stack, name: str, record_property: Callable[[str, object], None]
) -> None:
    fault, services = FAULTS[name]
    wait_for(stack, LONG_RUNNING, "healthy", HEALTHY_WITHIN_S)
    with stack.fault():
        with fault(stack):
            took = wait_for(stack, services, "unhealthy", UNHEALTHY_WITHIN_S)
            closed = [s for s in services if s in PORT_OF and not is_open(stack.ports[PORT_OF[s]])]
            assert closed == [], (
                "a closed port would be seen by any check; this must be seen behind an open one"
            )
        healed = wait_for(stack, LONG_RUNNING, "healthy", HEALTHY_WITHIN_S)
    record_property("unhealthy_after_s", took)
    record_property("healthy_after_s", healed)


def test_every_service_is_made_unusable_once() -> None:
    assert {service for _, services in FAULTS.values() for service in services} == set(LONG_RUNNING)
