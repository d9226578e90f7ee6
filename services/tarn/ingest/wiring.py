"""Composition root: the only place where adapters and flows meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import S3Bulk
from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.catalog_tables import CatalogTables
from tarn.adapters.files import FileIO
from tarn.adapters.kafka import KafkaSources, cluster_id
from tarn.adapters.lent_credentials import LentCredentials
from tarn.adapters.origins import ParquetOrigins
from tarn.adapters.spec_store import SpecStore
from tarn.adapters.store import MemoryStore, S3Store
from tarn.adapters.table_files import IcebergFormat
from tarn.adapters.trail_topics import TrailTopics
from tarn.core.credentials import CREDENTIAL_FILE
from tarn.core.object_store import ObjectStore
from tarn.core.table_catalog import TableCatalog
from tarn.core.table_files import WrittenList
from tarn.ingest.audit import Report, audit
from tarn.ingest.audit_schedule import FILES_MAX, AuditSchedule
from tarn.ingest.batch_memory import BatchMemory
from tarn.ingest.committer import Ports
from tarn.ingest.context import IngestContext
from tarn.ingest.drivers import ByResources, WriterDriver
from tarn.ingest.effects import new_id as new_id
from tarn.ingest.effects import new_snapshot_id as new_snapshot_id
from tarn.ingest.effects import stoppable_sleep as stoppable_sleep
from tarn.ingest.effects import uuid7 as uuid7
from tarn.ingest.fsck_look import FsckLook
from tarn.ingest.lake_files import LakePorts
from tarn.ingest.lake_look import LakeLook
from tarn.ingest.lost_replies import TrappedCatalog, Traps
from tarn.ingest.principals import Principals
from tarn.ingest.process_driver import ProcessDriver
from tarn.ingest.settings import Settings
from tarn.ingest.status import StatusRegistry
from tarn.ingest.strikes import Strikes
from tarn.ingest.table_look import TableLook
from tarn.ingest.thread_driver import ThreadDriver
from tarn.keeper.fsck_record import read_record
from tarn.keeper.measured import Measured
from tarn.keeper.walk import Places

PUT_TIMEOUT_MS = 60_000
PUT_THREADS = 8
LOOK_TIMEOUT_MS = 4_000
SPECS_TIMEOUT_MS = 8_000


def make_store(settings: Settings, *, request_timeout_ms: int = PUT_TIMEOUT_MS) -> S3Store:
    """Object store client of the bucket, with this service's own key."""
    return S3Store(**settings.store_access(), request_timeout_ms=request_timeout_ms)


def make_objects(store: ObjectStore, bucket: str, sleep: Callable[[float], None] = time.sleep) -> FileIO:
    """Files of the bucket; what is begun is written by threads, several files at one time."""
    workers = ThreadPoolExecutor(PUT_THREADS, thread_name_prefix="tarn-put")
    return FileIO(store, bucket=bucket, sleep=sleep, workers=workers)


def make_catalog(settings: Settings, *, read_timeout_s: float = 20.0) -> RestCatalog:
    """Catalog client, as this service's own principal."""
    return RestCatalog(
        settings.catalog_uri,
        warehouse=settings.warehouse,
        credential=lambda: settings.secret(CREDENTIAL_FILE),
        read_timeout_s=read_timeout_s,
    )


def trapped(catalog: RestCatalog, traps: Traps | None) -> TableCatalog:
    """The catalog client as ingestors use it; it loses answers on purpose only where that is allowed."""
    return catalog if traps is None else TrappedCatalog(catalog, traps)


def make_principals(settings: Settings, traps: Traps | None = None) -> Principals:
    """Other principals that ingestors act as, by the credentials that they lend to this service."""
    lent = LentCredentials(make_store(settings, request_timeout_ms=SPECS_TIMEOUT_MS))

    def catalog(principal: str) -> TableCatalog:
        acting = RestCatalog(
            settings.catalog_uri,
            warehouse=settings.warehouse,
            credential=lambda: lent.get(principal),
            remedy=f"lend its present one with scripts/tarn principal lend {principal}",
        )
        return trapped(acting, traps)

    return Principals(catalog)


def check_kafka(settings: Settings) -> Callable[[], None]:
    """A check that asks for the cluster id, logged in with the current content of the secret files."""

    def look() -> None:
        cluster_id(settings.kafka_bootstrap, settings.kafka_login())

    return look


def make_world(settings: Settings, registry: StatusRegistry, stop: Event) -> IngestContext:
    """Dependencies of an ingestor, wired for production.

    Args:
        settings: environment variables of the service.
        registry: status registry.
        stop: set when the process is asked to stop.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    sleep = stoppable_sleep(stop)
    traps = Traps() if settings.faults == "on" else None
    kafka = KafkaSources(settings.kafka_bootstrap, settings.kafka_login, client=settings.ingest_kafka_client)
    return IngestContext(
        sources=TrailTopics(make_store(settings), bucket=settings.bucket, others=kafka, sleep=sleep),
        catalog=trapped(make_catalog(settings), traps),
        tables=IcebergFormat(make_objects(make_store(settings), settings.bucket, sleep), new_name=new_id),
        ports=Ports(sleep=sleep, new_key=uuid7, new_snapshot_id=new_snapshot_id),
        new_id=new_id,
        registry=registry,
        stopping=stop.is_set,
        origins=ParquetOrigins(S3Bulk(**settings.store_access()), Places(settings.bucket).key),
        memory=BatchMemory(settings.ingest_batch_mib << 20),
        principals=make_principals(settings, traps),
        traps=traps,
    )


def make_specs(settings: Settings) -> SpecStore:
    """Declared ingestors in the bucket, with this service's own key; or in memory, for the folder alone."""
    store: ObjectStore = MemoryStore()
    if settings.ingest_specs == "store":
        store = make_store(settings, request_timeout_ms=SPECS_TIMEOUT_MS)
    return SpecStore(store, now_ms=lambda: time.time_ns() // 1_000_000, new_id=new_id)


def make_driver(settings: Settings, context: IngestContext, registry: StatusRegistry) -> WriterDriver:
    """What runs the writers: threads, and processes for those whose resources are limited.

    Args:
        settings: environment variables of the service.
        context: dependencies of the ingestors.
        registry: status registry.
    """
    return ByResources(
        ThreadDriver(context, sleeps=stoppable_sleep),
        ProcessDriver(registry, traps=context.traps),
        all_limited=settings.ingest_writers == "processes",
    )


@contextmanager
def audit_ports(settings: Settings, stop: Event) -> Iterator[LakePorts]:
    """What an audit reads with, until the end of the block, with this service's own keys."""
    store = S3Bulk(**settings.store_access())
    # One file at a time: what is read ahead would be held in memory.
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
    try:
        yield LakePorts(
            tables=CatalogTables(make_catalog(settings)),
            store=store,
            manifests=manifest_audit,
            origins=ParquetOrigins(store, Places(settings.bucket).key),
            topics=TrailTopics(
                make_store(settings),
                bucket=settings.bucket,
                others=KafkaSources(settings.kafka_bootstrap, settings.kafka_login),
                sleep=stoppable_sleep(stop),
            ),
            bucket=settings.bucket,
            pool=pool,
            tell=lambda _progress: None,
        )
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def make_audits(settings: Settings, registry: StatusRegistry, stop: Event) -> AuditSchedule | None:
    """The schedule of audits, with this service's own keys; None if they are switched off.

    Args:
        settings: environment variables of the service.
        registry: status registry.
        stop: set when the process is asked to stop.
    """
    if settings.ingest_audit_every_s == 0:
        return None

    return AuditSchedule(
        lambda: audit_ports(settings, stop),
        registry,
        every_s=settings.ingest_audit_every_s,
        all_files_s=settings.ingest_audit_all_files_s,
        now_s=time.monotonic,
        now_ms=lambda: time.time_ns() // 1_000_000,
        sleep=stoppable_sleep(stop),
    )


def make_strikes(
    settings: Settings, context: IngestContext, driver: WriterDriver, stop: Event
) -> Strikes | None:
    """Faults by hand; None unless they are allowed.

    Args:
        settings: environment variables of the service.
        context: dependencies of the ingestors.
        driver: runs the writers.
        stop: set when the process is asked to stop.
    """
    if context.traps is None:
        return None

    def look(table: str) -> Report:
        with audit_ports(settings, stop) as ports:
            return audit(table, replace(ports, files_max=FILES_MAX))

    return Strikes(
        context.registry,
        driver,
        context.traps,
        audit=look,
        now_ms=lambda: time.time_ns() // 1_000_000,
        sleep=stoppable_sleep(stop),
    )


def make_lake_look(settings: Settings, stop: Event) -> LakeLook:
    """What looks at all tables now and then, for the status API, with this service's own keys.

    Args:
        settings: environment variables of the service.
        stop: set when the process is asked to stop.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    store = make_store(settings, request_timeout_ms=LOOK_TIMEOUT_MS)
    files = FileIO(store, bucket=settings.bucket)
    return LakeLook(
        CatalogTables(make_catalog(settings, read_timeout_s=LOOK_TIMEOUT_MS / 1_000)),
        listed=lambda location: listed_in(files, location),
        sizes=Measured(store).sizes,
        now_s=time.monotonic,
        now_ms=lambda: time.time_ns() // 1_000_000,
        sleep=stoppable_sleep(stop),
    )


def make_fsck_look(settings: Settings, stop: Event) -> FsckLook:
    """What reads the records of fsck for the status API, with this service's own keys.

    Args:
        settings: environment variables of the service.
        stop: set when the process is asked to stop.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    store = S3Bulk(**settings.store_access(), request_timeout_ms=LOOK_TIMEOUT_MS)
    return FsckLook(
        lambda: read_record(store),
        now_ms=lambda: time.time_ns() // 1_000_000,
        sleep=stoppable_sleep(stop),
    )


def make_table_look(settings: Settings) -> TableLook:
    """What looks into a table for the status API, with this service's own keys.

    Args:
        settings: environment variables of the service.

    Raises:
        InvalidSettingError: a secret file cannot be read.
    """
    store = make_store(settings, request_timeout_ms=LOOK_TIMEOUT_MS)
    return TableLook(
        CatalogTables(make_catalog(settings, read_timeout_s=LOOK_TIMEOUT_MS / 1_000)),
        read=FileIO(store, bucket=settings.bucket).read,
        manifests=manifest_audit,
        now_s=time.monotonic,
    )


def listed_in(files: FileIO, location: str) -> WrittenList:
    """The manifest list of a snapshot, with the sizes of what it lists.

    Raises:
        TarnError: it cannot be read.
    """
    data = files.read(location)
    manifests = [entry for entry, _ in manifest_audit.list_entries(data)]
    size = len(data) + sum(manifest.bytes for manifest in manifests)
    return WrittenList(path=location, added_rows=0, manifests=len(manifests), bytes=size)
