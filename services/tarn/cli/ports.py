"""Interfaces of the commands to the outside; the adapters are in `clients`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from tarn.core.offsets import OffsetMap
from tarn.core.position import Position
from tarn.ingest.lake_ports import Clock as Clock
from tarn.ingest.lake_ports import Tell as Tell
from tarn.keeper.measured import Sizes as Sizes

Bounds = Mapping[int, tuple[int, int]]
"""Per partition of a topic its first offset (log start) and the offset of the next message (log end)."""


class Offsets(StrEnum):
    """What a rollback does with the offsets of a table's streams."""

    REWIND = "rewind"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of a query.

    Attributes:
        columns: column names.
        rows: one tuple per row, with plain Python values.
        truncated: whether there were more rows than requested.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Partition and offset of a produced message."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A table as described by its catalog; None where the snapshot summary does not say.

    Attributes:
        name: namespace and name, separated by dots.
        format_version: Iceberg format version.
        rows: number of live rows.
        data_files: number of live data files.
        delete_files: number of live delete files.
        snapshots: number of snapshots in the metadata.
        last_commit: time of the current snapshot; None if there is none.
        streams: stream to its offset map, for an ingested table.
        position: position of a table derived by a job; None if not stored.
        location: location in the store, without a trailing slash; no two tables share one.
    """

    name: str
    format_version: int
    rows: int | None
    data_files: int | None
    delete_files: int | None
    snapshots: int
    last_commit: datetime | None
    streams: Mapping[str, OffsetMap] = field(default_factory=dict)
    position: Position | None = None
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Origin of the rows of an ingested table.

    Attributes:
        rows: (partition, offset) of every row of the table.
        dead: (partition, offset) of every dead letter of the stream.
        next: the table's offset map: partition to the next offset.
    """

    rows: tuple[tuple[int, int], ...]
    dead: tuple[tuple[int, int], ...]
    next: Mapping[int, int] = field(default_factory=dict)


class MessageLog(Protocol):
    """Kafka, for single messages."""

    def send(self, topic: str, value: bytes, *, timeout_s: float) -> Placed:
        """Append one message; returns its position once the broker has acknowledged it.

        Args:
            topic: name of the topic.
            value: content.
            timeout_s: limit in seconds.

        Raises:
            UnavailableError: the broker or the topic is not available in time.
        """

    def topics(self, *, timeout_s: float) -> Sequence[str]:
        """Return the names of all topics.

        Raises:
            UnavailableError: no response in time.
        """


class LogEnds(Protocol):
    """Bounds of topics and times of messages."""

    def bounds(self) -> Mapping[str, Bounds]:
        """Return the bounds of every topic.

        Raises:
            UnavailableError: no response in time.
        """

    def newest(
        self, topic: str, bounds: Bounds, places: Sequence[Mapping[int, int]]
    ) -> tuple[datetime | None, ...]:
        """Return the time of the newest message before each position; None if the log no longer has it.

        Args:
            topic: name of the topic.
            bounds: bounds of the topic.
            places: positions, each partition to offset.

        Raises:
            UnavailableError: no response in time.
        """


class Lake(Protocol):
    """Tables, through the REST catalog."""

    def committed(self, table: str, stream: str) -> Mapping[int, int] | None:
        """Return the table's offset map for a stream; None while the table or the map does not exist.

        Raises:
            TarnError: the catalog does not respond or denies access.
        """

    def traced(self, table: str, stream: str) -> Traced:
        """Return the origin of every row of an ingested table.

        Raises:
            TarnError: the table cannot be read.
        """


class Tables(Protocol):
    """Tables as described by the catalog."""

    def tables(self) -> Sequence[str]:
        """Return the qualified names of all tables.

        Raises:
            TarnError: the catalog does not respond or denies access.
        """

    def facts(self, table: str) -> TableFacts:
        """Return the catalog's description of a table.

        Raises:
            TarnError: the catalog does not respond or denies access, or the metadata is unreadable.
        """


class Reader(Protocol):
    """An engine that can read canary rows."""

    name: str

    def find(self, table: str, row_id: str, *, timeout_s: float) -> Sequence[tuple[object, ...]]:
        """Return (id, sent_at, note) of all rows with this id.

        Args:
            table: qualified name of the table.
            row_id: id of the row.
            timeout_s: limit in seconds.

        Raises:
            UnavailableError: the engine is not available.
            TarnError: the engine fails.
        """


class Engine(Protocol):
    """A SQL engine."""

    name: str

    def query(self, sql: str, *, rows_max: int) -> Answer:
        """Run one statement.

        Args:
            sql: the statement.
            rows_max: maximum number of rows to return.

        Raises:
            UnavailableError: the engine is not available.
            InvalidError: the engine rejects the statement.
        """
