"""The archives of classes that the images hold are used: a JVM that cannot use one starts without a word."""

from __future__ import annotations

from testcontainers.core.container import DockerContainer

from tests.integration.engines.conftest import Trino

MAPPED = ["sh", "-c", "cat /proc/[0-9]*/maps | grep -o '[^ ]*classes.jsa' | sort -u"]


def mapped(container: DockerContainer) -> str:
    """The archives that a process of the container has mapped."""
    return container.exec(MAPPED).output.decode().strip()


def test_trino_uses_its_archive(trino_server: Trino) -> None:
    assert mapped(trino_server.container) == "/opt/trino/classes.jsa"


def test_spark_uses_its_archive(spark_server: DockerContainer) -> None:
    assert mapped(spark_server) == "/opt/spark-classes.jsa"
