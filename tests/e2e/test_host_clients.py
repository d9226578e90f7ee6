"""Clients on the host with only the output of `scripts/tarn env`: each can read and write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

from tests.support.stack import Stack

CLIENT_S = 240

PYICEBERG = """
import json, os, sys
import pyarrow as pa
from pyiceberg.catalog import load_catalog

catalog = load_catalog(
    "tarn",
    type="rest",
    uri=os.environ["TARN_CATALOG_URI"],
    credential=os.environ["TARN_CATALOG_CREDENTIAL"],
    warehouse=os.environ["TARN_WAREHOUSE"],
)
canary = catalog.load_table("ops.canary").scan().to_arrow()
catalog.create_namespace(sys.argv[1])
rows = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})
table = catalog.create_table((sys.argv[1], "rows"), schema=rows.schema)
table.append(rows)
table.append(rows.slice(0, 1))
found = catalog.load_table((sys.argv[1], "rows")).scan().to_arrow()
catalog.drop_table((sys.argv[1], "rows"))
catalog.drop_namespace(sys.argv[1])
print(json.dumps({"canaries": canary.num_rows, "names": sorted(found["name"].to_pylist(), key=str)}))
"""

TRINO = """
import json, os
from urllib.parse import urlsplit
import trino

where = urlsplit(os.environ["TARN_TRINO_URI"])
connection = trino.dbapi.connect(
    host=where.hostname,
    port=where.port,
    user=os.environ["TARN_TRINO_USER"],
    extra_credential=[tuple(os.environ["TARN_TRINO_EXTRA_CREDENTIALS"].split(":", 1))],
    catalog=os.environ["TARN_TRINO_CATALOG"],
)
cursor = connection.cursor()
cursor.execute("SELECT count(*), count(DISTINCT id) FROM ops.canary")
rows, ids = cursor.fetchone()
print(json.dumps({"rows": rows, "ids": ids}))
"""

SPARK = """
import json, os
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(os.environ["TARN_SPARK_REMOTE"]).getOrCreate()
canaries = spark.table("tarn.ops.canary")
print(json.dumps({"rows": canaries.count(), "ids": canaries.select("id").distinct().count()}))
spark.stop()
"""

KAFKA = """
import json, os, sys
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

settings = {
    "bootstrap_servers": os.environ["TARN_KAFKA_BOOTSTRAP"],
    "security_protocol": os.environ["TARN_KAFKA_SECURITY_PROTOCOL"],
    "sasl_mechanism": os.environ["TARN_KAFKA_SASL_MECHANISM"] or None,
    "sasl_plain_username": os.environ["TARN_KAFKA_USERNAME"] or None,
    "sasl_plain_password": os.environ["TARN_KAFKA_PASSWORD"] or None,
}
topic = sys.argv[1]
admin = KafkaAdminClient(**settings)
admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
try:
    producer = KafkaProducer(**settings)
    for number in range(3):
        producer.send(topic, key=b"k", value=b"%d" % number)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", enable_auto_commit=False, consumer_timeout_ms=90_000, **settings
    )
    found = []
    for record in consumer:
        found.append([record.offset, record.value.decode()])
        if len(found) == 3:
            break
    consumer.close()
finally:
    admin.delete_topics([topic])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def exports(stack: Stack) -> str:
    """The text that the user's shell evaluates: standard output alone."""
    from tarn_host.stack import project

    done = subprocess.run(
        [str(project.ROOT / "scripts" / "tarn"), "env"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=CLIENT_S,
        cwd=project.ROOT,
        env={**os.environ, **stack.env},
        check=True,
    )
    return done.stdout.decode()


def client(exports: str, code: str, *words: str) -> object:
    """Run a Python program in a clean environment after eval; returns its output, parsed as JSON.

    A warning shown to the user is a failure too, so standard error must be empty.
    """
    script = 'eval "$1"; shift; exec "$@"'
    done = subprocess.run(
        ["sh", "-euc", script, "sh", exports, sys.executable, "-c", code, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=CLIENT_S,
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
    return json.loads(done.stdout)


def test_pyiceberg_reads_and_appends_by_uri_credential_and_warehouse(exports: str) -> None:
    told = client(exports, PYICEBERG, f"host_{uuid.uuid4().hex[:12]}")
    assert isinstance(told, dict)
    assert told["canaries"] > 0
    assert told["names"] == [None, "a", "a", "c"]


@pytest.mark.parametrize("code", [TRINO, SPARK], ids=["trino", "spark"])
def test_a_query_engine_answers_its_own_client(exports: str, code: str) -> None:
    told = client(exports, code)
    assert isinstance(told, dict)
    assert told["rows"] == told["ids"] > 0


def test_kafka_python_produces_and_consumes(exports: str) -> None:
    assert client(exports, KAFKA, f"host.{uuid.uuid4().hex[:12]}") == [[0, "0"], [1, "1"], [2, "2"]]
