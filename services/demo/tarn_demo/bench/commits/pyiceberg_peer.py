"""pyiceberg on any catalog: Tarn's, Apache's reference server, Nessie, SQLite."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    RESTError,
    ServerError,
    ValidationException,
)
from pyiceberg.manifest import write_manifest_list
from pyiceberg.table import Table

from tarn.core.history import HISTORY_PROPERTY, KEEP_ALL
from tarn_demo.bench.commits.places import NAMESPACE, ROWS, Appended, Facts, Keys, Places, rows_of

PACE_MS = 1_000
"""Age between two snapshots of a laid history, in milliseconds: a stream that commits once a second."""
SETTLE_COMMITS_MAX = 20


class IcebergWriter:
    """A table object of pyiceberg with a catalog of its own.

    Args:
        table: the table.
        refusals: further exceptions of its catalog that say that nothing was changed.
    """

    def __init__(self, table: Table, refusals: tuple[type[Exception], ...]) -> None:
        self._table = table
        # A repeat of pyiceberg looks for the snapshot that it built on; Nessie serves the newest one only.
        no_base = (ValidationException,)
        self._refusals: tuple[type[Exception], ...] = (CommitFailedException, RESTError, *no_base, *refusals)

    def append(self, rows: pa.Table) -> Appended:
        """See `Writer.append`. pyiceberg itself repeats an overtaken commit four times."""
        with overtaken() as conflicts:
            try:
                self._table.append(rows)
            except (CommitStateUnknownException, ServerError):
                return self._again(conflicts, unknown=1)
            except self._refusals:
                return self._again(conflicts, refused=1)
        return Appended(acked=True, conflicts=len(conflicts))

    def _again(self, conflicts: list[str], *, refused: int = 0, unknown: int = 0) -> Appended:
        self._table.refresh()
        return Appended(acked=False, conflicts=len(conflicts), refused=refused, unknown=unknown)


class _Overtaken(logging.Handler):
    """Collects what pyiceberg logs about repeated commits, per thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.mine = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        message = record.getMessage()
        if "concurrent update" in message and hasattr(self.mine, "seen"):
            self.mine.seen.append(message)


_OVERTAKEN = _Overtaken()


@contextmanager
def overtaken() -> Iterator[list[str]]:
    """What pyiceberg logs about commits of this thread that it repeats, during the block."""
    logger = logging.getLogger("pyiceberg.table")
    if _OVERTAKEN not in logger.handlers:
        logger.addHandler(_OVERTAKEN)
        logger.setLevel(logging.WARNING)  # whatever level its parent has
        logger.propagate = False
    _OVERTAKEN.mine.seen = []
    try:
        yield _OVERTAKEN.mine.seen
    finally:
        del _OVERTAKEN.mine.seen


class IcebergPeer:
    """pyiceberg with one catalog.

    Args:
        name: name in the results.
        places: addresses and keys.
        catalog: properties of the catalog.
        properties: properties of new tables.
        on_tarn: whether the catalog is Tarn's.
        merged: whether the manifest list of a laid history has one entry, as if manifests had been merged.
        refusals: further exceptions of its catalog that say that nothing was changed.
    """

    def __init__(
        self,
        name: str,
        places: Places,
        catalog: Mapping[str, str],
        *,
        properties: Mapping[str, str] | None = None,
        on_tarn: bool = False,
        merged: bool = False,
        refusals: tuple[type[Exception], ...] = (),
    ) -> None:
        self.name = name
        self.on_tarn = on_tarn
        self._places = places
        self._properties = dict(catalog)
        self._table_properties = dict(properties or {})
        self._merged = merged
        self._refusals = refusals
        self._catalog = self._open()
        self._catalog.create_namespace_if_not_exists(NAMESPACE)

    def _open(self) -> Catalog:
        return load_catalog(self.name, **self._properties)

    def create(self, table: str) -> None:
        """See `Contender.create`."""
        self._catalog.create_table(
            (NAMESPACE, table), schema=rows_of(0).schema, properties=self._table_properties
        )

    def lay(self, table: str, commits: int) -> None:
        """See `Contender.lay`.

        One append is real. The metadata file that follows holds the other snapshots too, and its current
        snapshot's manifest list has an entry for each of them (all name the one manifest that there is): as
        large as after so many single appends, once a second until now. The catalog gets it by `register`.
        """
        self.create(table)
        if commits == 0:
            return
        made = self._catalog.load_table((NAMESPACE, table))
        made.append(rows_of(0))
        if commits > 1:
            location = self._write_history(made, commits)
            self._catalog.drop_table((NAMESPACE, table))
            self._catalog.register_table((NAMESPACE, table), location)
        if self.on_tarn and not self._table_properties:
            self._settle(table)

    def _write_history(self, table: Table, commits: int) -> str:
        """The location of a metadata file like the table's own, after so many appends."""
        root = load_catalog("root", **{**self._properties, **keys_of(self._places.root)})
        io = root._load_file_io(location=table.location())
        head = table.metadata.current_snapshot()
        assert head is not None
        manifests = head.manifests(table.io)
        file, last = f"{table.location()}/metadata/snap-laid-{uuid.uuid4()}.avro", commits
        ids = [secrets.randbits(62) + 1 for _ in range(commits)]
        with write_manifest_list(
            format_version=2,
            output_file=io.new_output(file),
            snapshot_id=ids[-1],
            parent_snapshot_id=ids[-2],
            sequence_number=last,
            avro_compression="deflate",
        ) as written:
            written.add_manifests(manifests * (1 if self._merged else commits))
        metadata = laid(json.loads(table.metadata.model_dump_json()), ids, file, time.time_ns() // 1_000_000)
        location = f"{table.location()}/metadata/{commits:05}-{uuid.uuid4()}.metadata.json"
        with io.new_output(location).create() as out:
            out.write(json.dumps(metadata).encode())
        return location

    def _settle(self, table: str) -> None:
        """Append until the history no longer becomes shorter: retention expires a limited number at once."""
        writer = self.open(table, 0, 1)
        held = self.facts(table).snapshots
        for number in range(SETTLE_COMMITS_MAX):
            writer.append(rows_of(number % 10))
            before, held = held, self.facts(table).snapshots
            if held >= before:
                return

    def open(self, table: str, writer: int, writers: int) -> IcebergWriter:
        """See `Contender.open`."""
        return IcebergWriter(self._open().load_table((NAMESPACE, table)), self._refusals)

    def facts(self, table: str) -> Facts:
        """See `Contender.facts`."""
        found = self._catalog.load_table((NAMESPACE, table))
        sizes = self._places.sizes(f"{found.location()}/metadata")
        files = [path for path in sizes if path.endswith(".metadata.json")]
        return Facts(
            snapshots=len(found.metadata.snapshots),
            metadata_bytes=sizes[found.metadata_location.removeprefix("s3://")],
            metadata_files=len(files),
        )

    def rows(self, table: str) -> int:
        """See `Contender.rows`."""
        return int(self._catalog.load_table((NAMESPACE, table)).scan().count())


def laid(metadata: dict[str, Any], ids: list[int], manifest_list: str, now_ms: int) -> dict[str, Any]:
    """Table metadata as after so many appends of 1,000 rows, the last one now. Pure.

    Args:
        metadata: the table's metadata after one append.
        ids: the snapshot ids, oldest first.
        manifest_list: location of the current snapshot's manifest list.
        now_ms: wall-clock time in milliseconds since the epoch.
    """
    (first,) = metadata["snapshots"]
    location, count = metadata["location"], len(ids)
    added = int(first["summary"].get("added-files-size", "0"))
    snapshots = []
    for place, snapshot_id in enumerate(ids, 1):
        one = {
            **first,
            "snapshot-id": snapshot_id,
            "sequence-number": place,
            "timestamp-ms": now_ms - (count - place) * PACE_MS,
            "manifest-list": f"{location}/metadata/snap-{snapshot_id}-0-{uuid.UUID(int=snapshot_id)}.avro",
            "summary": {
                **first["summary"],
                "total-data-files": str(place),
                "total-records": str(place * ROWS),
                "total-files-size": str(place * added),
            },
        }
        if place > 1:
            one["parent-snapshot-id"] = ids[place - 2]
        snapshots.append(one)
    snapshots[-1]["manifest-list"] = manifest_list
    log = [{"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]} for one in snapshots]
    return {
        **metadata,
        "last-sequence-number": count,
        "last-updated-ms": now_ms,
        "snapshots": snapshots,
        "snapshot-log": log,
        "current-snapshot-id": ids[-1],
        "refs": {"main": {"snapshot-id": ids[-1], "type": "branch"}},
        "metadata-log": [],
    }


def keys_of(keys: Keys) -> dict[str, str]:
    """Properties of a pyiceberg catalog that hold these keys."""
    return {"s3.access-key-id": keys.access, "s3.secret-access-key": keys.secret}


def store_of(places: Places, keys: Keys) -> dict[str, str]:
    """Properties of a pyiceberg catalog for the store with these keys."""
    return {"s3.endpoint": places.endpoint, "s3.region": places.region, **keys_of(keys)}


def on_tarn(
    places: Places, *, name: str = "pyiceberg, Tarn's catalog", live: bool = False, merged: bool = False
) -> IcebergPeer:
    """Pyiceberg on Tarn's catalog, with the default retention or with all history live."""
    catalog = {
        "type": "rest",
        "uri": places.catalog,
        "oauth2-server-uri": f"{places.catalog}/v1/oauth/tokens",
        "credential": places.credential,
        "warehouse": places.warehouse,
        **store_of(places, places.client),
    }
    properties = {HISTORY_PROPERTY: KEEP_ALL} if live else {}
    return IcebergPeer(name, places, catalog, properties=properties, on_tarn=True, merged=merged)


def on_reference(places: Places) -> IcebergPeer:
    """Pyiceberg on Apache's reference server."""
    catalog = {"type": "rest", "uri": places.reference, **store_of(places, places.root)}
    return IcebergPeer("pyiceberg, reference server", places, catalog)


def on_nessie(places: Places) -> IcebergPeer:
    """Pyiceberg on Nessie."""
    catalog = {"type": "rest", "uri": f"{places.nessie}/iceberg", **store_of(places, places.root)}
    return IcebergPeer("pyiceberg, Nessie", places, catalog)


def on_sqlite(places: Places) -> IcebergPeer:
    """Pyiceberg on SQLite, in a file of the benchmark's folder."""
    from sqlalchemy.exc import OperationalError  # only here: it is not among Tarn's dependencies

    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{places.folder / 'sqlite.db'}",
        "warehouse": f"s3://{places.bucket}/warehouse/sqlite",
        **store_of(places, places.root),
    }
    return IcebergPeer("pyiceberg, SQLite", places, catalog, refusals=(OperationalError,))
