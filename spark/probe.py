"""Spark's health probe (see services/tarn/probe/runner.py)."""

from __future__ import annotations

import site
from typing import TYPE_CHECKING

from tarn.probe.lake import check_catalog, check_store
from tarn.probe.look import own_host, secret
from tarn.probe.spark import check_connect

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

SERVICE = "spark"
SHALLOW_BUDGET_S = 6.0
DEEP_BUDGET_S = 45.0

CONNECT = (own_host("TARN_SPARK_LISTEN"), 15002)
# A table that does not exist: the probe is independent of users' tables.
ABSENT_TABLE = "tarn.tarn_health.absent"


def alive() -> None:
    """Require that the Connect server completes a handshake."""
    check_connect(CONNECT, timeout_s=4.0)


def shallow() -> None:
    """Require that the Connect server answers, and that Spark's catalog and store accept its own keys."""
    check_connect(CONNECT, timeout_s=2.0)
    check_store(timeout_s=2.0)
    check_catalog(timeout_s=2.0)


def deep() -> None:
    """Run a query through Spark Connect, and make Spark look up a table in its catalog."""
    site.main()  # the probe starts without site-packages, to save memory; the client is in there
    from pyspark.sql.connect.session import SparkSession

    remote = f"sc://{CONNECT[0]}:{CONNECT[1]}/;user_id=tarn-health"
    remote += f";authorization=Bearer%20{secret('spark_token')}"
    spark = SparkSession.builder.remote(remote).create()
    try:
        use(spark)
    finally:
        close(spark)


def close(spark: SparkSession) -> None:
    """Stop a session for good: its finalizer could block the next; see `tarn.adapters.spark_remote.close`.

    One process makes several deep checks while Spark is unhealthy.
    """
    spark.stop()
    spark.client.close = lambda: None  # type: ignore[method-assign]


def use(spark: SparkSession) -> None:
    """Run a query, and look up a table that does not exist.

    Raises:
        RuntimeError: a result is not the expected one.
    """
    rows = spark.range(100).groupBy().sum("id").collect()
    if [row[0] for row in rows] != [4950]:
        raise RuntimeError(f"the sum of 0 to 99 is {rows}, expected 4950")
    if spark.catalog.tableExists(ABSENT_TABLE):
        raise RuntimeError(f"the catalog has a table {ABSENT_TABLE}, which nobody makes")
