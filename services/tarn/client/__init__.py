"""A table as a queue: `subscribe` reads the rows that ingest adds, each once per group.

    with subscribe("bronze.orders", group="billing", timeout_s=60) as orders:
        for batch in orders:
            use(batch.rows)

docs/ingestion.md, Reading a table as a queue, says what holds after a crash, and what ends a reader.

`writer` sends rows to the gateway, each exactly once however often a request is repeated:

    with writer("shop.orders") as orders:
        orders.write({"id": 1})

`async_writer` does the same with `await`. docs/gateway.md, From Python, says what holds after a crash.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import get_args
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import Catalog, load_catalog

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.gateway_client import Durability, GatewayClient
from tarn.adapters.lake_reader import LakeReader
from tarn.adapters.store import FileStore, S3Store
from tarn.client.async_writing import REQUESTS_MAX, AsyncRowWriter, ThreadedClient
from tarn.client.group import Group, group_key
from tarn.client.subscription import Batch, Limits, Start, Subscription
from tarn.client.writing import (
    AnswerGoneError,
    NotTakenError,
    Receipt,
    RejectedRowsError,
    RepeatTooLateError,
    RowWriter,
    WriteLimits,
)
from tarn.core.errors import InvalidError, InvalidSettingError
from tarn.core.object_store import ObjectStore
from tarn.core.reading import ReaderPosition, check_group

__all__ = (
    "AnswerGoneError",
    "AsyncRowWriter",
    "Batch",
    "NotTakenError",
    "ReaderPosition",
    "Receipt",
    "RejectedRowsError",
    "RepeatTooLateError",
    "RowWriter",
    "Subscription",
    "async_writer",
    "subscribe",
    "writer",
)


def subscribe(
    table: str,
    *,
    group: str | None,
    start: Start = "earliest",
    position: Start | None = None,
    columns: Sequence[str] | None = None,
    catalog: Catalog | None = None,
    auto_commit: bool = True,
    rows_max: int = 100_000,
    files_max: int = 64,
    poll_s: float = 1.0,
    timeout_s: float | None = None,
) -> Subscription:
    """Read an ingested table as a queue.

    Args:
        table: qualified name of the table.
        group: name of the group, whose position is stored below the table's location; None to store nothing.
        start: where a group begins that has no position yet: "earliest", "latest", a time with a time zone
            (the first message of each partition that has this time or a later one), or a position.
        position: the same, for a group that has a position too: it begins there from now on.
        columns: columns of the rows; None for all.
        catalog: a pyiceberg catalog; None for the one that `scripts/tarn env` describes.
        auto_commit: store the position of a batch when the next one is asked for; otherwise call `commit`.
        rows_max: maximum number of rows in a batch.
        files_max: maximum number of files that a batch is read from, unless more hold the same offsets.
        poll_s: pause between two looks at a table without new rows, in seconds.
        timeout_s: seconds without a row after which the iteration ends; None for never, 0 to read what there
            is.

    Raises:
        InvalidError: an argument is invalid, or no ingestor writes the table.
        NoSuchTableError: the table does not exist.
        ReaderPlaceError: the table does not have the position's place.
        ForbiddenError: the credentials may not read the table, or store the group's position.
        UnavailableError: catalog or store do not respond.
    """
    limits = Limits(rows_max=rows_max, files_max=files_max, poll_s=poll_s, timeout_s=timeout_s)
    if group is not None:
        check_group(group)
    if "." not in table.strip("."):
        raise InvalidError(f"Invalid table {table!r}: give namespace and name, such as 'bronze.orders'")
    reader = LakeReader(catalog or _catalog(os.environ), table, columns=columns)
    subscription = Subscription(
        reader=reader,
        group=None if group is None else _group(group, reader, os.environ),
        limits=limits,
        auto_commit=auto_commit,
    )
    subscription.open(start, position)
    return subscription


def writer(
    table: str,
    *,
    gateway: str | None = None,
    catalog: str | None = None,
    credential: str | None = None,
    rows_max: int = 1_000,
    bytes_max: int = 1 << 20,
    timeout_s: float = 60.0,
    durability: Durability = "lake",
) -> RowWriter:
    """Write rows to a table through the gateway.

    Args:
        table: qualified name of the table, which exists.
        gateway: base URL of the gateway; None for that of `scripts/tarn env`.
        catalog: base URL of the catalog, which gives the token; None likewise.
        credential: `client_id:client_secret` of a principal that may write the table; None likewise.
        rows_max: number of rows after which `write` sends what it has.
        bytes_max: size of the rows after which it does, in bytes of JSON.
        timeout_s: how long a request is repeated, in seconds, before its error is raised.
        durability: `lake` waits until the rows can be read, `log` until Kafka has them; an ingestor has to
            bring the table's log in (docs/gateway.md, Through the log).

    Raises:
        InvalidError: an argument is invalid.
        InvalidSettingError: an address or the credential is neither given nor in the environment.
    """
    limits = WriteLimits(rows_max=rows_max, bytes_max=bytes_max, timeout_s=timeout_s)
    client = _gateway_client(table, gateway, catalog, credential, durability=durability)
    return RowWriter(table=table, client=client, limits=limits)


def async_writer(
    table: str,
    *,
    gateway: str | None = None,
    catalog: str | None = None,
    credential: str | None = None,
    rows_max: int = 1_000,
    bytes_max: int = 1 << 20,
    timeout_s: float = 60.0,
    requests_max: int = REQUESTS_MAX,
    durability: Durability = "lake",
) -> AsyncRowWriter:
    """Write rows to a table through the gateway, from asyncio.

    As `writer`, with the same arguments and errors. Beyond them, `requests_max` is how many requests may be
    under way at one time, from 1 to 256, each on a thread.
    """
    limits = WriteLimits(rows_max=rows_max, bytes_max=bytes_max, timeout_s=timeout_s)
    if not 1 <= requests_max <= REQUESTS_MOST:
        raise InvalidError(f"Invalid requests_max {requests_max!r}: give a number from 1 to {REQUESTS_MOST}")
    client = _gateway_client(
        table, gateway, catalog, credential, connections_max=requests_max, durability=durability
    )
    return AsyncRowWriter(
        table=table, client=ThreadedClient(client, requests_max=requests_max), limits=limits
    )


def _gateway_client(
    table: str,
    gateway: str | None,
    catalog: str | None,
    credential: str | None,
    *,
    connections_max: int = REQUESTS_MAX,
    durability: Durability = "lake",
) -> GatewayClient:
    if durability not in get_args(Durability):
        raise InvalidError(
            f"Invalid durability {durability!r}: give one of {', '.join(get_args(Durability))}"
        )
    if "." not in table.strip("."):
        raise InvalidError(f"Invalid table {table!r}: give namespace and name, such as 'bronze.orders'")
    given = {"TARN_GATEWAY_URI": gateway, "TARN_CATALOG_URI": catalog, "TARN_CATALOG_CREDENTIAL": credential}
    found = {name: value or os.environ.get(name, "") for name, value in given.items()}
    _require_set(found, "pass it")
    own = found["TARN_CATALOG_CREDENTIAL"]
    principal = RestCatalog(
        found["TARN_CATALOG_URI"],
        warehouse="",
        credential=lambda: own,
        remedy="check TARN_CATALOG_CREDENTIAL, or credential=",
    )
    return GatewayClient(
        found["TARN_GATEWAY_URI"],
        token=principal.token,
        connections_max=connections_max,
        durability=durability,
    )


REQUESTS_MOST = 256
VENDED = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")


def _catalog(env: Mapping[str, str]) -> Catalog:
    """The catalog that the variables of `scripts/tarn env` describe."""
    names = ("TARN_CATALOG_URI", "TARN_CATALOG_CREDENTIAL", "TARN_WAREHOUSE")
    _require_set({name: env.get(name, "") for name in names}, "pass a catalog")
    uri, credential, warehouse = (env[name] for name in names)
    # Keys of the environment last; those that the catalog vends end after minutes.
    own = {"header.X-Iceberg-Access-Delegation": ""} if env.get("AWS_ACCESS_KEY_ID") else {}
    return load_catalog("tarn", type="rest", uri=uri, credential=credential, warehouse=warehouse, **own)


def _require_set(found: Mapping[str, str], otherwise: str) -> None:
    missing = [name for name, value in found.items() if not value]
    if missing:
        raise InvalidSettingError(
            f'{", ".join(missing)} not set: run eval "$(scripts/tarn env)" first, or {otherwise}'
        )


def _group(name: str, reader: LakeReader, env: Mapping[str, str]) -> Group:
    loaded = reader.load()
    properties = {key: str(value) for key, value in loaded.table.io.properties.items()}
    store, prefix = open_store(loaded.state.root, properties, env)
    return Group(
        name=name,
        store=store,
        key=group_key(prefix, name),
        reader=uuid.uuid4().hex,
        new_nonce=lambda: uuid.uuid4().hex,
    )


def open_store(
    location: str, properties: Mapping[str, str], env: Mapping[str, str]
) -> tuple[ObjectStore, str]:
    """Open the object store of a location; return it with the key of the location.

    Args:
        location: location of a table: `s3://bucket/key` or `file:///folder`.
        properties: pyiceberg's FileIO properties of the table.
        env: environment, for what the properties do not say: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
            `AWS_REGION`, `AWS_ENDPOINT_URL`.

    Raises:
        InvalidSettingError: the location is of another kind, or something is missing.
    """
    parts = urlsplit(location)
    if parts.scheme == "file":
        return FileStore(unquote(parts.path)), ""
    if parts.scheme not in ("s3", "s3a", "s3n"):
        raise InvalidSettingError(
            f"positions cannot be stored beside {location}: only s3 and file are supported; subscribe with "
            "group=None, and keep the position with the results"
        )
    if properties.get("s3.session-token"):
        # Vended keys end after minutes, and a group outlives them.
        properties = {name: value for name, value in properties.items() if name not in VENDED}
    found = {
        "endpoint": properties.get("s3.endpoint") or env.get("AWS_ENDPOINT_URL", ""),
        "access_key_id": properties.get("s3.access-key-id") or env.get("AWS_ACCESS_KEY_ID", ""),
        "secret_access_key": properties.get("s3.secret-access-key") or env.get("AWS_SECRET_ACCESS_KEY", ""),
    }
    missing = [f"s3.{name.replace('_', '-')}" for name, value in found.items() if not value]
    if missing:
        raise InvalidSettingError(
            f"positions cannot be stored beside {location}: set {', '.join(missing)} of the catalog, or the "
            "AWS_… variables (keys that the catalog vends do not last), or subscribe with group=None"
        )
    region = properties.get("s3.region") or properties.get("client.region") or env.get("AWS_REGION")
    store = S3Store(
        bucket=parts.netloc,
        region=region or "us-east-1",
        endpoint=found["endpoint"],
        access_key_id=found["access_key_id"],
        secret_access_key=found["secret_access_key"],
    )
    return store, parts.path.strip("/")
