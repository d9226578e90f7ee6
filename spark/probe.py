"""Spark's health probe (see services/tarn/health.py)."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tarn.health import own_host, secret
from tarn.health_lake import check_catalog, check_store
from tarn.health_spark import check_connect

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

SHALLOW_BUDGET_S = 6.0
DEEP_BUDGET_S = 45.0

CONNECT = (own_host("TARN_SPARK_LISTEN"), 15002)
SESSION_PATH = Path("/tmp/tarn-health-session")  # noqa: S108 - the container's own tmpfs
TABLES_TRIED_MAX = 3


def shallow() -> None:
    """The Connect server answers, and Spark's catalog and store answer to its own keys."""
    check_connect(CONNECT, timeout_s=2.0)
    check_store(timeout_s=2.0)
    check_catalog(timeout_s=2.0)


def deep() -> None:
    """A query through Connect lists the catalog, and one reads a table, if there is any, from the store."""
    from pyspark.errors import PySparkException

    try:
        use(session(fresh=False))
    except PySparkException as error:
        # The server closed the session of the last look, after an hour's pause or by a restart.
        if "SESSION" not in (error.getCondition() or str(error)):
            raise
        use(session(fresh=True))


def session(*, fresh: bool) -> SparkSession:
    """The session of all deep looks: each new one would cost the server a catalog client for good."""
    from pyspark.sql.connect.session import SparkSession

    if fresh or not SESSION_PATH.exists():
        SESSION_PATH.write_text(str(uuid.uuid4()), encoding="ascii")
    name = SESSION_PATH.read_text(encoding="ascii")
    remote = f"sc://{CONNECT[0]}:{CONNECT[1]}/;user_id=tarn-health;session_id={name}"
    remote += f";authorization=Bearer%20{secret('spark_token')}"
    return SparkSession.builder.remote(remote).create()


def use(spark: SparkSession) -> None:
    """Lists, and reads one row of the first table that can be read.

    Raises:
        RuntimeError: there are tables and none can be read.
    """
    from pyspark.errors import PySparkException

    faults = []
    for name in tables(spark):
        try:
            spark.sql(f"SELECT 1 FROM {name} LIMIT 1").collect()  # noqa: S608 - quoted
        except PySparkException as error:
            # One broken table is its own matter; when none can be read, Spark is not usable.
            faults.append(f"{name}: {error}")
        else:
            return
    if faults:
        raise RuntimeError(f"no table can be read: {faults[0]}")


def tables(spark: SparkSession) -> list[str]:
    """The full names, quoted, of the first few tables in namespaces of one level."""
    found: list[str] = []
    for namespace in spark.sql("SHOW NAMESPACES IN tarn").collect():
        if len(found) >= TABLES_TRIED_MAX:
            break
        inside = f"tarn.{quoted(namespace[0])}"
        rows = spark.sql(f"SHOW TABLES IN {inside}").limit(TABLES_TRIED_MAX).collect()
        found += [f"{inside}.{quoted(row['tableName'])}" for row in rows]
    return found[:TABLES_TRIED_MAX]


def quoted(name: str) -> str:
    """The name as an SQL identifier."""
    return "`" + name.replace("`", "``") + "`"
