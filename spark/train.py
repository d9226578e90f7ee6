"""Class-data-sharing training run, while the image is built: a few statements load the classes of a lake."""

import socket
import time
from pathlib import Path

from pyspark.sql import SparkSession

WAIT_S = 600.0
HOST, PORT = "127.0.0.1", 15002
# The token that the Dockerfile uses for this start only.
SERVER = f"sc://{HOST}:{PORT}/;authorization=Bearer%20none%3Anone"
LAKE = {
    "": "tarn.spark.SharedCatalog",
    ".type": "hadoop",
    ".warehouse": str(Path.cwd() / "lake"),
}
STATEMENTS = (
    "CREATE NAMESPACE train.a",
    "CREATE TABLE train.a.t (id BIGINT, at TIMESTAMP, s STRUCT<x: INT>, d DOUBLE) USING iceberg "
    "PARTITIONED BY (days(at))",
    "INSERT INTO train.a.t "
    "SELECT id, timestamp_seconds(id * 40000), named_struct('x', 1), rand() FROM range(9)",
    "MERGE INTO train.a.t t USING (SELECT id, current_timestamp() AS at FROM range(5, 12)) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET t.at = s.at WHEN NOT MATCHED THEN INSERT (id, at) VALUES (s.id, s.at)",
    "DELETE FROM train.a.t WHERE id = 3",
    "SELECT l.s.x, count(*), avg(r.d), row_number() OVER (ORDER BY l.s.x) FROM train.a.t l "
    "LEFT JOIN train.a.t r ON l.id = r.id WHERE l.at IS NOT NULL GROUP BY l.s.x ORDER BY 1",
    "SELECT snapshot_id, summary FROM train.a.t.snapshots",
    "DROP TABLE train.a.t",
)


def session() -> SparkSession:
    """Return the only session of this process, once the server listens.

    No second one: the finalizer of a session that failed could block it, see `tarn.adapters.spark_remote`.

    Raises:
        SystemExit: the server does not listen within 600 s.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            socket.create_connection((HOST, PORT), timeout=10).close()
        except OSError as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"no answer within {WAIT_S:g} s: {error}") from error
            time.sleep(0.5)
        else:
            return SparkSession.builder.remote(SERVER).create()


def main() -> None:
    """Run all statements in an Iceberg catalog on local disk."""
    spark = session()
    for end, value in LAKE.items():
        spark.conf.set(f"spark.sql.catalog.train{end}", value)
    for statement in STATEMENTS:
        spark.sql(statement).toPandas()
    spark.stop()


if __name__ == "__main__":
    main()
