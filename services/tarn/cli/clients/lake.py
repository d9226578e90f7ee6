"""Tables through the REST catalog, with pyiceberg."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import requests
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from pyiceberg.exceptions import (
    ForbiddenError as RefusedError,
)
from pyiceberg.exceptions import (
    NoSuchNamespaceError as NoNamespaceError,
)
from pyiceberg.exceptions import (
    NoSuchTableError as NoTableError,
)
from pyiceberg.expressions import BooleanExpression, EqualTo
from pyiceberg.table import Table

from tarn.cli.clients.unreadable import READING_ERRORS, unreadable
from tarn.cli.deadline import within
from tarn.cli.ports import Traced
from tarn.cli.settings import Secrets, Settings
from tarn.core.dead_letter import FIELDS as DEAD_LETTER_FIELDS
from tarn.core.errors import (
    ForbiddenError,
    NoSuchTableError,
    TarnError,
    UnauthenticatedError,
    UnavailableError,
)
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap
from tarn.core.spec import TRACE_COLUMN, DeadLetters

ANCESTORS_MAX = 10_000
TIMEOUT_S = 30.0

T = TypeVar("T")


def rest_catalog(settings: Settings, secrets: Secrets) -> Catalog:
    """Open the REST catalog with the cli's keys of the store."""
    return load_catalog(
        "tarn",
        **{
            "type": "rest",
            "uri": settings.catalog_uri,
            "warehouse": settings.warehouse,
            "credential": secrets.credential,
            "oauth2-server-uri": f"{settings.catalog_uri.rstrip('/')}/v1/oauth/tokens",
            "s3.endpoint": settings.s3_endpoint,
            "s3.region": settings.region,
            "s3.access-key-id": secrets.access_key,
            "s3.secret-access-key": secrets.secret_key,
            # Otherwise the catalog's keys, which end after minutes, would take the place of these.
            "header.X-Iceberg-Access-Delegation": "",
        },
    )


class RestLake:
    """Client of one REST catalog and its object store.

    Args:
        settings: addresses.
        secrets: credentials.
        timeout_s: limit of each operation, in seconds; pyiceberg itself has none.
    """

    name = "pyiceberg"

    def __init__(self, settings: Settings, secrets: Secrets, *, timeout_s: float = TIMEOUT_S) -> None:
        self._settings = settings
        self._secrets = secrets
        self._timeout_s = timeout_s

    @cached_property
    def _catalog(self) -> Catalog:
        return rest_catalog(self._settings, self._secrets)

    def find(self, table: str, row_id: str, *, timeout_s: float) -> Sequence[tuple[object, ...]]:
        """See `Reader.find`."""

        def work() -> list[tuple[object, ...]]:
            columns = ("id", "sent_at", "note")
            scan = self._load(table).scan(row_filter=_equal("id", row_id), selected_fields=columns)
            return [tuple(row[column] for column in columns) for row in scan.to_arrow().to_pylist()]

        return self._call(work, table)

    def committed(self, table: str, stream: str) -> Mapping[int, int] | None:
        """See `Lake.committed`."""
        try:
            return self._call(lambda: newest_offsets(self._load(table), stream), table)
        except NoSuchTableError:
            return None

    def traced(self, table: str, stream: str) -> Traced:
        """See `Lake.traced`."""

        def work() -> Traced:
            loaded = self._load(table)
            column = loaded.scan(selected_fields=(TRACE_COLUMN,)).to_arrow().column(TRACE_COLUMN)
            rows = tuple((row["partition"], row["offset"]) for row in column.to_pylist())
            return Traced(rows=rows, dead=self._dead(stream), next=newest_offsets(loaded, stream) or {})

        return self._call(work, table)

    def _dead(self, stream: str) -> tuple[tuple[int, int], ...]:
        names = {field.name for field in DEAD_LETTER_FIELDS}
        assert {"ingestor", "partition", "offset"} <= names
        try:
            loaded = self._load(str(DeadLetters().table))
        except NoTableError:
            return ()
        scan = loaded.scan(row_filter=_equal("ingestor", stream), selected_fields=("partition", "offset"))
        return tuple((row["partition"], row["offset"]) for row in scan.to_arrow().to_pylist())

    def _load(self, table: str) -> Table:
        return self._catalog.load_table(tuple(table.split(".")))

    def _call(self, work: Callable[[], T], table: str) -> T:
        try:
            return within(self._timeout_s, "catalog", work)
        except (NoTableError, NoNamespaceError) as error:
            raise NoSuchTableError(
                f"the catalog at {self._settings.catalog_uri} has no such table: {error}; "
                "scripts/tarn status lists what there is"
            ) from error
        except (UnauthorizedError, AuthorizationExpiredError, OAuthError) as error:
            raise UnauthenticatedError(
                f"the catalog at {self._settings.catalog_uri} does not accept the cli's "
                f"credential ({error}); it was started with "
                "other secrets: run docker compose up --force-recreate init catalog"
            ) from error
        except RefusedError as error:
            raise ForbiddenError(
                f"the catalog at {self._settings.catalog_uri} refuses this to the principal cli: {error}"
            ) from error
        except (ServerError, ServiceUnavailableError) as error:
            raise UnavailableError(
                f"the catalog at {self._settings.catalog_uri} cannot do it now: {error}; "
                "see docker compose logs catalog minio",
                address=self._settings.catalog_uri,
            ) from error
        except requests.RequestException as error:
            raise UnavailableError(
                f"the catalog at {self._settings.catalog_uri} does not answer "
                f"({type(error).__name__}: {error}); is the service "
                "catalog running and healthy? see docker compose logs catalog",
                address=self._settings.catalog_uri,
            ) from error
        except RESTError as error:
            raise TarnError(
                f"the catalog at {self._settings.catalog_uri} says {type(error).__name__}: {error}; "
                "see docker compose logs catalog"
            ) from error
        except READING_ERRORS as error:
            raise unreadable(error, table=table, endpoint=self._settings.s3_endpoint) from error


def newest_offsets(table: Any, stream: str) -> Mapping[int, int] | None:
    """Return the newest offset map among the current snapshot and its ancestors; None if none has one.

    Raises:
        CorruptStateError: the map is unreadable.
    """
    for entries in summaries(table):
        text = entries.get(f"{SUMMARY_PREFIX}{stream}")
        if text is not None:
            return OffsetMap.from_json(text).next
    # If history was thinned before it, the tag that moves with the stream's commits has it.
    tagged = table.metadata.refs.get(f"{TAG_PREFIX}{stream}")
    snapshot = table.metadata.snapshot_by_id(tagged.snapshot_id) if tagged is not None else None
    entries = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
    text = entries.get(f"{SUMMARY_PREFIX}{stream}")
    return None if text is None else OffsetMap.from_json(text).next


def summaries(table: Any) -> Iterator[Mapping[str, str]]:
    """Yield the summary properties of the current snapshot and its ancestors, newest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshot = by_id.get(table.metadata.current_snapshot_id)
    for _ in range(ANCESTORS_MAX):
        if snapshot is None:
            return
        yield snapshot.summary.additional_properties if snapshot.summary else {}
        snapshot = by_id.get(snapshot.parent_snapshot_id)


def _equal(column: str, value: str) -> BooleanExpression:
    return EqualTo(column, value)  # type: ignore[call-arg]
