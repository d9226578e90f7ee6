"""Tarn's own tools on the lake of this folder, in this process: ingest, DuckDB on the lake, status, fsck."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import S3Bulk
from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.files import FileIO
from tarn.adapters.store import S3Store
from tarn.adapters.table_files import IcebergFormat
from tarn.cli.clients.catalog_facts import CatalogFacts
from tarn.cli.clients.duck import Duck
from tarn.cli.clients.scans import LakeScans
from tarn.cli.ports import TableFacts
from tarn.cli.settings import Secrets, Settings
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.ingest.committer import Ports
from tarn.ingest.context import IngestContext
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.status import StatusRegistry
from tarn.ingest.wiring import new_snapshot_id, uuid7
from tarn.keeper.fsck import Report, fsck
from tarn.testing.memory_topic import MemoryTopicClient, Topic
from tests.integration.engines.conftest import Lake
from tests.integration.engines.history import Content, Ingest
from tests.integration.engines.writers import message

INGESTED_WITHIN_S = 180.0


def keys(lake: Lake, consumer: str) -> dict[str, str]:
    """The store credentials of a consumer, as arguments of `S3Store` and `S3Bulk`."""
    held = lake.secrets[consumer]
    return {
        "bucket": "tarn",
        "endpoint": lake.s3,
        "region": "us-east-1",
        "access_key_id": held["s3_access_key_id"],
        "secret_access_key": held["s3_secret_access_key"],
    }


class OwnTools:
    """The functions behind `scripts/tarn`, with the same credentials."""

    def __init__(self, lake: Lake) -> None:
        held = lake.secrets["cli"]
        secrets = Secrets(
            access_key=held["s3_access_key_id"],
            secret_key=held["s3_secret_access_key"],
            credential=held["catalog_credential"],
            jupyter_token=held["jupyter_token"],
            spark_token=held["spark_token"],
        )
        settings = Settings(catalog_uri=lake.catalog, s3_endpoint=lake.s3)
        self.duck = Duck(LakeScans(settings, secrets))
        catalog = RestCatalog(lake.catalog, warehouse="tarn", credential=lambda: secrets.credential)
        self._facts = CatalogFacts(catalog)
        self._bulk = S3Bulk(**keys(lake, "keeper"))

    def facts(self, table: str) -> TableFacts:
        """The facts about a table that `tarn status` shows."""
        return self._facts.facts(table)

    def fsck(self) -> Report:
        """The report of `tarn fsck`."""
        return fsck(self._bulk, manifest_audit, bucket="tarn", tell=lambda _line: None)


class Ingesting:
    """Ingest as the stack runs it, with a topic in memory: one stream per table, one process per step."""

    def __init__(self, lake: Lake) -> None:
        self._catalog = RestCatalog(
            lake.catalog, warehouse="tarn", credential=lambda: lake.secrets["ingest"]["catalog_credential"]
        )
        objects = FileIO(S3Store(**keys(lake, "ingest")), bucket="tarn", sleep=time.sleep)
        self._tables = IcebergFormat(objects, new_name=lambda: f"{random.getrandbits(128):032x}")
        self._topics: dict[str, Topic] = {}

    def take(self, table: str, step: Ingest, before: Content) -> None:
        """Append rows to a table, whichever writer created it.

        Raises:
            TarnError: ingest rejects this table.
        """
        self.send(table, before.columns, [message(row) for row in step.rows])

    def send(
        self,
        table: str,
        columns: Mapping[str, str],
        messages: Sequence[bytes],
        *,
        evolution: str = "strict",
    ) -> None:
        """Send messages and ingest them all into a table with these columns, which is created if needed.

        Raises:
            TarnError: ingest rejects this table.
        """
        topic = self._topics.setdefault(table, Topic(table, 1))
        topic.send(0, *messages)
        spec = _spec(table, columns, evolution)
        world = self._context(topic)
        end_s = time.monotonic() + INGESTED_WITHIN_S

        def done() -> bool:
            assert time.monotonic() < end_s, f"{table} not ingested: {world.registry.get(spec.name)}"
            return world.registry.get(spec.name).committed.get(0, 0) == len(topic.logs[0])

        while not done():
            Ingestor(spec, world).cycle(done)

    def _context(self, topic: Topic) -> IngestContext:
        return IngestContext(
            sources=MemoryTopicClient(topic),
            catalog=self._catalog,
            tables=self._tables,
            ports=Ports(sleep=time.sleep, new_key=uuid7, new_snapshot_id=new_snapshot_id),
            new_id=lambda: f"{random.getrandbits(128):032x}",
            registry=StatusRegistry(),
        )


def _spec(table: str, columns: Mapping[str, str], evolution: str) -> IngestorSpec:
    namespace, _, name = table.rpartition(".")
    fields = "".join(f"\n      - {{name: {n}, type: '{kind}'}}" for n, kind in columns.items())
    text = f"""
apiVersion: tarn/v1
kind: Ingestor
metadata: {{name: {name.replace("_", "-")}}}
spec:
  source: {{kafka: {{topic: {table}}}}}
  table: {{namespace: {namespace}, name: {name}}}
  trace: false
  schema:
    evolution: {evolution}
    fields:{fields}
  deadLetters: {{table: {{namespace: ops, name: dead_letters}}}}
  batching: {{maxRecords: 1000, maxLatencySeconds: 0.05}}
"""
    return parse_spec(text, file=f"{name}.yaml")
