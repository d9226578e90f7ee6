"""What the gateway works with, wired for production."""

from __future__ import annotations

from threading import Event

from tarn.adapters.budget import Budget
from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.catalog_rights import CatalogRights
from tarn.adapters.connections import WELCOME
from tarn.adapters.files import FileIO
from tarn.adapters.kafka import KafkaSources
from tarn.adapters.store import S3Store
from tarn.adapters.table_files import IcebergFormat
from tarn.core.credentials import CREDENTIAL_FILE
from tarn.gateway.access import Gate
from tarn.gateway.app import App
from tarn.gateway.settings import Settings
from tarn.gateway.tables import Tables
from tarn.ingest.committer import Ports
from tarn.ingest.context import IngestContext
from tarn.ingest.wiring import make_objects, new_id, new_snapshot_id, stoppable_sleep, uuid7

MEMORY_BYTES_MAX = 128 << 20
MEMORY_WAIT_S_MAX = 20


def make_context(settings: Settings, stop: Event) -> tuple[IngestContext, FileIO]:
    """Dependencies of the inboxes, and the objects of the lake.

    Args:
        settings: environment variables of the service.
        stop: set when commits that wait have to end.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    sleep = stoppable_sleep(stop)
    objects = make_objects(S3Store(**settings.store_access()), settings.bucket, sleep)
    context = IngestContext(
        sources=KafkaSources(settings.kafka_bootstrap, settings.kafka_login),
        catalog=RestCatalog(
            settings.catalog_uri,
            warehouse=settings.warehouse,
            credential=lambda: settings.secret(CREDENTIAL_FILE),
        ),
        tables=IcebergFormat(objects, new_name=new_id),
        ports=Ports(sleep=sleep, new_key=uuid7, new_snapshot_id=new_snapshot_id),
        new_id=new_id,
        stopping=stop.is_set,
    )
    return context, objects


def make_app(settings: Settings, tables: Tables) -> App:
    """The application over these tables; the catalog says who may write."""
    return App(
        Gate(CatalogRights(settings.catalog_uri)),
        tables,
        Budget(MEMORY_BYTES_MAX, wait_s_max=MEMORY_WAIT_S_MAX, who="The gateway"),
        hosts=settings.own_hosts,
        welcome=WELCOME,
    )
