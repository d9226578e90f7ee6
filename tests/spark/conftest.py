"""One Spark for the tier: Tarn's image over Spark Connect, or classic PySpark if it is installed.

By hand with classic PySpark (it leaves sockets open, which pytest would report as a fault of Tarn):
`PYTHONPATH=services:spark TARN_TEST_JARS=iceberg.jar pytest -W ignore::ResourceWarning
-W ignore::pytest.PytestUnraisableExceptionWarning tests/spark`.

Each test gets its own lake: an Iceberg catalog in a folder that nothing else uses.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tarn.adapters import spark_remote
from tarn_jobs.lake import Lake

READY_S = 240.0
SECRETS = {
    "catalog_credential": "nobody:nothing",
    "s3_access_key_id": "nobody",
    "s3_secret_access_key": "nothing",
    "spark_token": "nothing-for-nobody",
    "kafka_user": "nobody",
    "kafka_password": "nothing",
}
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled": "false",
}

_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session shared by every test of the tier."""
    if importlib.util.find_spec("py4j") is not None:
        yield from _classic()
        return
    yield from _in_container(tmp_path_factory.mktemp("secrets"))


@pytest.fixture
def lake(spark: SparkSession) -> Lake:
    """An empty lake."""
    name = f"lake{next(_numbers)}"
    folder = f"{spark.conf.get('tarn.test.warehouse')}/{name}"
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": f"file://{folder}",
        ".cache-enabled": "false",
    }.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    spark.conf.set(
        "spark.sql.defaultCatalog", name
    )  # procedures open this one, whatever they are asked about
    return Lake(spark, name)


def _classic() -> Iterator[SparkSession]:
    """PySpark with its own JVM; TARN_TEST_JARS names the Iceberg runtime if Spark does not include it."""
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.jars.ivy", folder)
        if jars := os.environ.get("TARN_TEST_JARS"):
            builder = builder.config("spark.jars", jars)
        extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        session = builder.config("spark.sql.extensions", extensions).getOrCreate()
        yield _set_up(session, folder)
        session.stop()


def _in_container(folder: Path) -> Iterator[SparkSession]:
    from testcontainers.core.container import DockerContainer

    from tests.support.images import image

    folder.chmod(0o755)
    for name, value in SECRETS.items():
        (folder / name).write_text(value)
        (folder / name).chmod(0o444)
    container = DockerContainer(image("spark")).with_exposed_ports(15002)
    container.with_volume_mapping(str(folder), "/run/tarn/secrets", "ro").with_env("SPARK_MASTER", "local[1]")
    container.with_tmpfs_mount("/tmp", "exec,size=1g")
    container.with_kwargs(init=True, read_only=True, cap_drop=["ALL"], mem_limit="2g", pids_limit=1024)
    with container:
        remote = f"sc://localhost:{container.get_exposed_port(15002)}/;token={SECRETS['spark_token']}"
        _await_ready(remote)
        with spark_remote.session(remote, {}) as session:
            yield _set_up(session, "/tmp")


def _await_ready(remote: str) -> None:
    until = time.monotonic() + READY_S
    while True:
        try:
            with spark_remote.session(remote, {}) as session:
                session.sql("SELECT 1").collect()
        except PySparkException:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
        else:
            return


def _set_up(session: SparkSession, warehouse: str) -> SparkSession:
    for key, value in {**SETTINGS, "tarn.test.warehouse": warehouse}.items():
        session.conf.set(key, value)
    return session
