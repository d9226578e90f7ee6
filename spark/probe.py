"""Spark's health probe (see services/tarn/health.py)."""

from __future__ import annotations

import site
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from tarn.health_lake import check_catalog, check_store
from tarn.health_spark import check_connect

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

SERVICE = "spark"
SHALLOW_BUDGET_S = 6.0
DEEP_BUDGET_S = 45.0

CONNECT = ("127.0.0.1", 15002)
SESSION_PATH = Path("/tmp/tarn-health-session")  # noqa: S108 - the container's own tmpfs
# A name that no table has: what users call theirs is no matter of health.
ABSENT_TABLE = "tarn.tarn_health.absent"


def alive() -> None:
    """The Connect server greets."""
    check_connect(CONNECT, timeout_s=4.0)


def shallow() -> None:
    """The Connect server answers, and Spark's catalog and store answer to its own keys."""
    check_connect(CONNECT, timeout_s=2.0)
    check_store(timeout_s=2.0)
    check_catalog(timeout_s=2.0)


def deep() -> None:
    """A query through Connect is worked on, and Spark asks its catalog for a table."""
    site.main()  # the check runs without it, for its memory; the client is in there
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
    return SparkSession.builder.remote(remote).create()


def use(spark: SparkSession) -> None:
    """Lets Spark compute, and ask its catalog for a table that is not there.

    Raises:
        RuntimeError: another result than expected.
    """
    rows = spark.range(100).groupBy().sum("id").collect()
    if [row[0] for row in rows] != [4950]:
        raise RuntimeError(f"the sum of 0 to 99 is {rows}, expected 4950")
    if spark.catalog.tableExists(ABSENT_TABLE):
        raise RuntimeError(f"the catalog has a table {ABSENT_TABLE}, which nobody makes")
