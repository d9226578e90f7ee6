"""What scripts/tarn adds to a command before it hands it to the container."""

from __future__ import annotations

import json

import pytest
from tarn_host import cli
from tarn_host.stack import Service

from tarn.cli.status import Container
from tarn.cli.wiring import containers
from tarn.core.errors import InvalidSettingError


def service(name: str, state: str, health: str = "", exit_code: int = 0) -> Service:
    return Service(name=name, container="x", state=state, health=health, exit_code=exit_code)


def test_only_status_is_told_of_the_containers():
    assert cli.is_status(["status"])
    assert cli.is_status(["--debug", "status", "--json"])
    assert not cli.is_status(["pipeline", "status"])
    assert not cli.is_status([])


def test_what_the_engine_says_arrives_in_the_container_as_it_was_meant():
    told = cli.containers(
        [
            service("minio", "running", "healthy"),
            service("trino", "running", "starting"),
            service("pipeline", "exited", exit_code=137),
            service("replay", "exited"),
            service("kafka", "paused", "healthy"),
        ]
    )
    assert containers(told) == {
        "minio": Container(running=True, good=True, words="healthy"),
        "trino": Container(running=True, good=False, words="starting"),
        "pipeline": Container(running=False, good=False, words="ended with exit code 137"),
        "replay": Container(running=False, good=True, words="done"),
        "kafka": Container(running=False, good=False, words="paused"),
    }


def test_where_nothing_was_told_nothing_is_known():
    assert containers("") is None
    assert containers(json.dumps({})) == {}


@pytest.mark.parametrize("text", ["x", "[]", '{"minio": 1}', '{"minio": {"good": true}}'])
def test_anything_else_is_refused(text: str):
    with pytest.raises(InvalidSettingError, match="TARN_CONTAINERS"):
        containers(text)
