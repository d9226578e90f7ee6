"""What the gateway works with, wired for production."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import NoReturn

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.catalog_rights import CatalogRights
from tarn.adapters.connections import READ, WELCOME
from tarn.adapters.files import FileIO
from tarn.adapters.kafka_log import KafkaLogs
from tarn.adapters.store import S3Store
from tarn.adapters.table_files import IcebergFormat
from tarn.core.credentials import CREDENTIAL_FILE
from tarn.core.errors import InvalidError
from tarn.gateway.access import Gate
from tarn.gateway.app import App
from tarn.gateway.health import Health
from tarn.gateway.logs import Logs
from tarn.gateway.memory import Memory
from tarn.gateway.settings import Settings
from tarn.gateway.tables import Tables
from tarn.ingest.committer import Ports
from tarn.ingest.context import IngestContext
from tarn.ingest.effects import new_id, new_snapshot_id, stoppable_sleep, uuid7

MEMORY_BYTES_MAX = 24 << 20
"""Of bodies, until they are answered; decoded they are several times as large."""
MEMORY_WAIT_S_MAX = 20
PUT_THREADS = 8
LOOK_TIMEOUT_MS = 4_000


class NoTopics:
    """The topics of a service that reads and writes none: a `TopicClient`."""

    def open(self, topic: str, *, stream: str) -> NoReturn:
        """Refuse."""
        raise InvalidError(f"the gateway reads no topic: {topic!r}, stream {stream!r}")

    def list_topics(self) -> list[str]:
        """None."""
        return []

    def create(self, topic: str, *, partitions: int) -> NoReturn:
        """Refuse."""
        raise InvalidError(f"the gateway creates no topic: {topic!r} of {partitions} partitions")

    def send(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> NoReturn:
        """Refuse."""
        raise InvalidError(f"the gateway writes to no topic: {len(events)} events to {topic!r}")


def make_context(settings: Settings, stop: Event) -> tuple[IngestContext, FileIO]:
    """Dependencies of the inboxes, and the objects of the lake.

    Args:
        settings: environment variables of the service.
        stop: set when commits that wait have to end.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    sleep = stoppable_sleep(stop)
    workers = ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="tarn-put")
    store = S3Store(**settings.store_access())
    objects = FileIO(store, bucket=settings.bucket, sleep=sleep, workers=workers)
    context = IngestContext(
        sources=NoTopics(),
        catalog=_catalog(settings),
        tables=IcebergFormat(objects, new_name=new_id),
        ports=Ports(sleep=sleep, new_key=uuid7, new_snapshot_id=new_snapshot_id),
        new_id=new_id,
        stopping=stop.is_set,
    )
    return context, objects


def make_health(settings: Settings, stop: Event) -> Health:
    """What asks store and catalog, with this service's own keys.

    Args:
        settings: environment variables of the service.
        stop: ends its threads when set.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    store = S3Store(**settings.store_access(), request_timeout_ms=LOOK_TIMEOUT_MS)
    return Health(store, _catalog(settings, read_timeout_s=LOOK_TIMEOUT_MS / 1_000), stop)


def make_logs(settings: Settings, context: IngestContext) -> Logs:
    """The logs of tables, on Kafka; nothing is asked of it yet."""
    return Logs(context, KafkaLogs(settings.kafka_bootstrap, settings.kafka_login))


def make_app(settings: Settings, tables: Tables, logs: Logs, health: Health) -> App:
    """The application over these tables and logs; the catalog says who may write."""
    return App(
        Gate(CatalogRights(settings.catalog_uri)),
        tables,
        Memory(MEMORY_BYTES_MAX, wait_s_max=MEMORY_WAIT_S_MAX),
        logs=logs,
        hosts=settings.own_hosts,
        health=health,
        welcome=WELCOME,
        read=READ,
    )


def _catalog(settings: Settings, *, read_timeout_s: float = 20.0) -> RestCatalog:
    return RestCatalog(
        settings.catalog_uri,
        warehouse=settings.warehouse,
        credential=lambda: settings.secret(CREDENTIAL_FILE),
        read_timeout_s=read_timeout_s,
    )
