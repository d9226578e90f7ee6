"""Puts the adapters together from the settings; the only place where flows and adapters meet.

Adapters are imported when they are needed: `tarn version` must not pay for Spark's client.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tarn.adapters.spark_remote import with_token
from tarn.cli.canary import ON_THE_WAY, CanaryRow, Flight, Limits
from tarn.cli.ports import Clock, Engine, Reader, Tell
from tarn.cli.settings import Settings, load_secrets
from tarn.cli.status import Container, Look, Sources
from tarn.core.credentials import CREDENTIAL_FILE
from tarn.core.errors import InvalidError, InvalidSettingError, UnavailableError

if TYPE_CHECKING:
    from tarn.adapters.catalog_client import RestCatalog
    from tarn.adapters.lent_credentials import LentCredentials
    from tarn.adapters.spec_store import SpecStore
    from tarn.cli.clients.access import AccessClient
    from tarn.cli.clients.engines import Trino
    from tarn.cli.clients.kafka_topics import KafkaTopics
    from tarn.cli.replay import ReplayPorts
    from tarn.cli.rollback import RollbackPorts
    from tarn.core.table_catalog import TableName
    from tarn.core.table_state import TableState
    from tarn.ingest.lake_files import LakePorts

LOOK_S = 4.0
LOG_S = 20.0
ENGINES = ("trino", "spark", "duckdb")
NOT_IN_SMALL = frozenset({"trino", "spark"})


def trino(settings: Settings) -> Trino:
    """Return the client of Trino, with the command line's own principal where there is a secret of it."""
    from tarn.cli.clients.engines import Trino

    known = (settings.secrets_dir / CREDENTIAL_FILE).exists()
    return Trino(settings.trino_uri, settings.secret(CREDENTIAL_FILE) if known else None)


def engine(settings: Settings, name: str) -> Engine:
    """Return an engine by name.

    Raises:
        InvalidError: no such engine.
        UnavailableError: this profile leaves it out.
    """
    if name in NOT_IN_SMALL and settings.profile == "small":
        raise UnavailableError(
            f"the small profile has no {name}: use --engine duckdb, or scripts/up --full", engine=name
        )
    if name == "trino":
        return trino(settings)
    if name == "spark":
        from tarn.cli.clients.engines import Spark

        return Spark(with_token(settings.spark_remote, settings.secrets_dir))
    if name == "duckdb":
        from tarn.cli.clients.duck import Duck
        from tarn.cli.clients.scans import LakeScans

        return Duck(LakeScans(settings, load_secrets(settings.secrets_dir)))
    raise InvalidError(f"no such engine: {name!r}; choose one of {', '.join(ENGINES)}", engine=name)


def flight(
    settings: Settings, limits: Limits, tell: Tell, *, ready_names: Iterable[str] | None = None
) -> Flight:
    """Return what a canary needs.

    Args:
        settings: of the command line.
        limits: how long things may take.
        tell: shows progress.
        ready_names: names services that are ready, one a line, all of them at its end; None if all are.
    """
    from tarn.cli.clients.engines import Spark
    from tarn.cli.clients.kafka_log import KafkaLog
    from tarn.cli.clients.lake import RestLake

    tables = RestLake(settings, load_secrets(settings.secrets_dir))
    readers: tuple[Reader, ...] = (tables,)
    if settings.profile == "full":
        readers += (trino(settings), Spark(with_token(settings.spark_remote, settings.secrets_dir)))
    else:
        tell("the small profile: no Trino, no Spark; pyiceberg alone reads back")
    return Flight(
        log=KafkaLog(settings.kafka_bootstrap, settings.kafka_login()),
        lake=tables,
        readers=readers,
        limits=limits,
        clock=Clock(),
        tell=tell,
        wait_for=(lambda service: None) if ready_names is None else _from_names(ready_names),
    )


def _from_names(ready_names: Iterable[str]) -> Callable[[str], None]:
    """Return what waits until a service is named, and meanwhile imports its client."""
    from tarn.cli.ready import Ready

    ready = Ready(ready_names, later={*ON_THE_WAY, *NOT_IN_SMALL})

    def wait_for(service: str) -> None:
        if service == "spark":
            import_module("pyspark.sql.connect.session")
        ready.wait_for(service)

    return wait_for


def canary_row(note: str) -> CanaryRow:
    """Return a row that was never sent before."""
    return CanaryRow(id=uuid.uuid4().hex, sent_at=datetime.now(UTC), note=note)


def specs(settings: Settings) -> SpecStore:
    """Return the declared ingestors in the store."""
    from tarn.adapters.spec_store import SpecStore
    from tarn.adapters.store import S3Store

    return SpecStore(
        S3Store(**settings.store_access(), request_timeout_ms=int(LOOK_S * 1_000)),
        now_ms=lambda: int(datetime.now(UTC).timestamp() * 1_000),
        new_id=lambda: uuid.uuid4().hex,
    )


def lent_credentials(settings: Settings) -> LentCredentials:
    """Return the credentials that principals lend to ingest; this user may write them, and read none."""
    from tarn.adapters.lent_credentials import LentCredentials
    from tarn.adapters.store import S3Store

    return LentCredentials(S3Store(**settings.store_access(), request_timeout_ms=int(LOOK_S * 1_000)))


def wake_ingest(settings: Settings) -> None:
    """Have ingest look at the declared ingestors now.

    Raises:
        UnavailableError: it does not answer.
    """
    from tarn.cli.clients.http import post

    status = post(f"{_base(settings.ingest_uri)}/wake", service="ingest", timeout_s=LOOK_S)
    if status >= 300:
        raise UnavailableError(f"ingest answers {status}; see docker compose logs ingest", status=status)


def looks(settings: Settings) -> tuple[Look, ...]:
    """Return how to look at every service that the cli can reach."""
    from tarn.cli.clients.http import connect, get, get_json
    from tarn.cli.clients.kafka_log import KafkaLog

    def answers(service: str, url: str, below: int) -> Callable[[], str]:
        def look() -> str:
            status, _ = get(url, service=service, timeout_s=LOOK_S)
            if status >= below:
                raise UnavailableError(f"answers {status}; see docker compose logs {service}", status=status)
            return "answers"

        return look

    def trino() -> str:
        info = get_json(f"{_base(settings.trino_uri)}/v1/info", service="trino", timeout_s=LOOK_S)
        if info.get("starting"):
            raise UnavailableError("is still starting; wait a few seconds")
        return f"version {info.get('nodeVersion', {}).get('version', '?')}"

    def kafka() -> str:
        log = KafkaLog(settings.kafka_bootstrap, settings.kafka_login())
        return f"{len(log.topics(timeout_s=LOOK_S))} topics"

    def spark() -> str:
        where = urlsplit(settings.spark_remote)
        connect(where.hostname or "", where.port or 15002, service="spark", timeout_s=LOOK_S)
        return "accepts connections"

    def ingest() -> str:
        get_json(f"{_base(settings.ingest_uri)}/status", service="ingest", timeout_s=LOOK_S)
        return "answers"

    store, catalog = _base(settings.s3_endpoint), _base(settings.catalog_uri)
    gateway = _base(settings.gateway_uri)
    found = (
        Look(service="minio", address=store, look=answers("minio", f"{store}/minio/health/live", 300)),
        # Without a token the catalog answers 401 at most: it is there.
        Look(service="catalog", address=catalog, look=answers("catalog", f"{catalog}/v1/config", 500)),
        Look(service="kafka", address=settings.kafka_bootstrap, look=kafka),
        Look(service="ingest", address=settings.ingest_uri, look=ingest),
        Look(service="gateway", address=gateway, look=answers("gateway", f"{gateway}/health?ready", 300)),
    )
    if settings.profile == "small":
        return found
    return (
        *found,
        Look(service="trino", address=settings.trino_uri, look=trino),
        Look(service="spark", address=settings.spark_remote, look=spark),
    )


def sources(settings: Settings) -> Sources:
    """Return where the status comes from.

    Raises:
        InvalidSettingError: a secret cannot be read, or TARN_CONTAINERS is not what scripts/tarn writes.
    """
    from tarn.adapters.catalog_client import RestCatalog
    from tarn.adapters.store import S3Store
    from tarn.cli.clients.catalog_facts import CatalogFacts
    from tarn.cli.clients.http import get_json
    from tarn.cli.clients.kafka_offsets import KafkaOffsets
    from tarn.keeper.measured import Measured

    credential = settings.secret(CREDENTIAL_FILE)
    store = S3Store(**settings.store_access(), request_timeout_ms=int(LOOK_S * 1_000))
    catalog = RestCatalog(
        settings.catalog_uri,
        warehouse=settings.warehouse,
        credential=lambda: credential,
        read_timeout_s=LOOK_S,
    )
    return Sources(
        looks=looks(settings),
        lake=CatalogFacts(catalog),
        log=KafkaOffsets(settings.kafka_bootstrap, settings.kafka_login(), timeout_s=LOOK_S),
        ingest=lambda: get_json(f"{_base(settings.ingest_uri)}/status", service="ingest", timeout_s=LOOK_S),
        sizes=Measured(store).sizes,
        containers=containers(settings.containers),
    )


def topics(settings: Settings) -> KafkaTopics:
    """Return Kafka's topics, for the command line's own user."""
    from tarn.cli.clients.kafka_topics import KafkaTopics

    return KafkaTopics(settings.kafka_bootstrap, settings.kafka_login(), timeout_s=LOG_S)


def _catalog(settings: Settings, credential: str | None = None) -> RestCatalog:
    """Return the catalog, for the command line's own principal, or that of another credential.

    Raises:
        InvalidSettingError: the secret cannot be read.
    """
    from tarn.adapters.catalog_client import RestCatalog

    if credential is not None:
        return RestCatalog(
            settings.catalog_uri,
            warehouse=settings.warehouse,
            credential=lambda: credential,
            remedy="give its present one",
        )
    own = settings.secret(CREDENTIAL_FILE)
    return RestCatalog(settings.catalog_uri, warehouse=settings.warehouse, credential=lambda: own)


def table(settings: Settings, name: TableName) -> TableState:
    """Load a table, as the command line's own principal.

    Raises:
        NoSuchTableError: it does not exist.
        UnavailableError: the catalog does not respond.
    """
    return _catalog(settings).load(name)


def access(settings: Settings, credential: str | None = None) -> AccessClient:
    """Return the catalog's principals, roles and grants, as the command line's own principal or another one.

    Raises:
        InvalidSettingError: the secret cannot be read.
    """
    from tarn.cli.clients.access import AccessClient

    return AccessClient(_catalog(settings, credential).call)


def rollback_ports(settings: Settings) -> RollbackPorts:
    """Return what a rollback works with, as the command line's own principal."""
    from tarn.adapters.files import FileIO
    from tarn.adapters.store import S3Store
    from tarn.cli.clients.kafka_offsets import KafkaOffsets
    from tarn.cli.rollback import RollbackPorts
    from tarn.ingest.wiring import new_snapshot_id, uuid7

    log = KafkaOffsets(settings.kafka_bootstrap, settings.kafka_login(), timeout_s=LOG_S)
    return RollbackPorts(
        catalog=_catalog(settings),
        objects=FileIO(S3Store(**settings.store_access()), bucket=settings.bucket),
        bounds=log.bounds,
        identity=log.identity,
        new_key=uuid7,
        new_snapshot_id=new_snapshot_id,
    )


@contextmanager
def replay_ports(settings: Settings, tell: Tell) -> Iterator[ReplayPorts]:
    """Context manager with what a replay of dead letters works with, as the command line's own principal.

    Args:
        settings: of the command line.
        tell: shows progress.

    Raises:
        InvalidSettingError: a secret cannot be read.
    """
    from tarn.adapters.files import FileIO
    from tarn.adapters.store import S3Store
    from tarn.adapters.table_files import IcebergFormat
    from tarn.cli.replay import ReplayPorts
    from tarn.ingest.committer import Ports
    from tarn.ingest.wiring import new_snapshot_id, uuid7

    objects = FileIO(S3Store(**settings.store_access()), bucket=settings.bucket)
    with lake_ports(settings, tell) as lake:
        yield ReplayPorts(
            lake=lake,
            catalog=_catalog(settings),
            tables=IcebergFormat(objects, new_name=lambda: uuid.uuid4().hex),
            commit=Ports(new_key=uuid7, new_snapshot_id=new_snapshot_id),
            new_id=lambda: uuid.uuid4().hex,
        )


@contextmanager
def lake_ports(settings: Settings, tell: Tell) -> Iterator[LakePorts]:
    """Context manager with what audit and trace read.

    Args:
        settings: of the command line.
        tell: shows progress.

    Raises:
        InvalidSettingError: a secret cannot be read.
    """
    from tarn.adapters import manifest_audit
    from tarn.adapters.bulk import S3Bulk
    from tarn.adapters.kafka import KafkaSources
    from tarn.adapters.logging import to_stderr
    from tarn.adapters.origins import ParquetOrigins
    from tarn.cli.clients.catalog_facts import CatalogFacts
    from tarn.ingest.lake_files import LakePorts
    from tarn.keeper.walk import READERS, Places

    to_stderr()
    store = S3Bulk(**settings.store_access())
    catalog = _catalog(settings)
    with ThreadPoolExecutor(max_workers=READERS) as pool:
        yield LakePorts(
            tables=CatalogFacts(catalog),
            store=store,
            manifests=manifest_audit,
            origins=ParquetOrigins(store, Places(settings.bucket).key),
            topics=KafkaSources(settings.kafka_bootstrap, settings.kafka_login),
            bucket=settings.bucket,
            pool=pool,
            tell=tell,
        )


def containers(text: str) -> Mapping[str, Container] | None:
    """Return what scripts/tarn reports about the containers; None if it was not asked.

    Raises:
        InvalidSettingError: it is not what scripts/tarn writes.
    """
    if not text:
        return None
    try:
        return {
            service: Container(running=bool(c["running"]), good=bool(c["good"]), words=str(c["words"]))
            for service, c in json.loads(text).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidSettingError(
            f"TARN_CONTAINERS is {text[:100]!r} ({error!r}); leave it to scripts/tarn status"
        ) from error


def _base(url: str) -> str:
    return url.rstrip("/")
