"""The class archives in the images are used: a JVM that cannot use one starts without a message."""

from __future__ import annotations

import pytest
from testcontainers.core.container import DockerContainer

from tests.integration.engines.conftest import Trino
from tests.support.inside import said_inside

MAPPED = ["sh", "-c", "cat /proc/[0-9]*/maps | grep -o '[^ ]*classes.jsa' | sort -u"]


def mapped(container: DockerContainer) -> list[str]:
    """The class archives mapped by the processes of the container, including the JVM's own."""
    return said_inside(container.get_wrapped_container(), MAPPED).output.decode().split()


@pytest.mark.in_turn(2, "Trino starts without its archive of classes, and slower")
def test_trino_uses_its_archive(trino_server: Trino) -> None:
    assert "/opt/trino/classes.jsa" in mapped(trino_server.container)


@pytest.mark.in_turn(4, "Spark starts without its archive of classes, and slower")
def test_spark_uses_its_archive(spark_server: DockerContainer) -> None:
    assert "/opt/spark-classes.jsa" in mapped(spark_server)
