"""What the commands need from outside, as small interfaces; the adapters are in `clients`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from tarn.core.offsets import OffsetMap
from tarn.core.position import Position

Bounds = Mapping[int, tuple[int, int]]
"""Per partition of a topic the first offset that it still holds, and the one that the next message gets."""

Tell = Callable[[str], None]
"""Shows progress to a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time as an argument: monotonic seconds, and a way to wait."""

    now_s: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine said to a query.

    Attributes:
        columns: the names.
        rows: one tuple per row, plain Python values.
        truncated: there were more rows than were asked for.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where the log put a message."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A table as its catalog describes it; None where the snapshot summary does not say.

    Attributes:
        name: namespace and name, joined by dots.
        format_version: of Iceberg.
        rows, data_files, delete_files: live ones.
        snapshots: how many the metadata keeps.
        last_commit: time of the current snapshot; None if there is none.
        streams: of an ingested table, per stream how far it is.
        position: of a table that a job derives, how far it is; None if it states none.
        location: where it is in the store, without a slash at its end; no two tables share one.
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
class Sizes:
    """How many bytes a table takes in the store, as the reaper measured it.

    Attributes:
        objects: how many objects it consists of.
        live: files of the current snapshot; None if its summary does not say, and counted as history then.
        history: metadata, manifests, and what only older snapshots that are kept reach; orphans as well.
        to_be_removed: what nothing reaches any more, and waits for its grace.
        at: when it was measured, by the store's clock.
    """

    objects: int
    live: int | None
    history: int
    to_be_removed: int
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Where ingested rows came from.

    Attributes:
        rows: (partition, offset) of every row of the table.
        dead: the same of every record of the stream that went to the dead letters.
        next: the table's offset map: partition -> first offset that is not in it.
    """

    rows: tuple[tuple[int, int], ...]
    dead: tuple[tuple[int, int], ...]
    next: Mapping[int, int] = field(default_factory=dict)


class MessageLog(Protocol):
    """Kafka."""

    def send(self, topic: str, value: bytes, *, timeout_s: float) -> Placed:
        """Append one message and return where it is, acknowledged by the broker.

        Raises:
            UnavailableError: the broker or the topic is not there within the time.
        """

    def topics(self, *, timeout_s: float) -> Sequence[str]:
        """Return the names of all topics.

        Raises:
            UnavailableError: no answer within the time.
        """


class LogEnds(Protocol):
    """How far the topics reach."""

    def bounds(self) -> Mapping[str, Bounds]:
        """Return the bounds of every topic.

        Raises:
            UnavailableError: no answer in time.
        """

    def newest(
        self, topic: str, bounds: Bounds, places: Sequence[Mapping[int, int]]
    ) -> tuple[datetime | None, ...]:
        """Return when the newest message before each place was written; None where it is not there any more.

        Args:
            topic: the topic's name.
            bounds: of that topic.
            places: partition -> offset.

        Raises:
            UnavailableError: no answer in time.
        """


class Lake(Protocol):
    """The tables, through the REST catalog."""

    def committed(self, table: str, stream: str) -> Mapping[int, int] | None:
        """Return the table's offset map for a stream; None while table or map do not exist.

        Raises:
            TarnError: the catalog cannot be asked.
        """

    def traced(self, table: str, stream: str) -> Traced:
        """Return the origin of every row of an ingested table.

        Raises:
            TarnError: the table cannot be read.
        """


class Tables(Protocol):
    """What the catalog says about its tables."""

    def tables(self) -> Sequence[str]:
        """Return the full names of all tables.

        Raises:
            TarnError: the catalog cannot be asked.
        """

    def facts(self, table: str) -> TableFacts:
        """Return what the catalog says about a table.

        Raises:
            TarnError: the catalog cannot be asked, or its metadata cannot be read.
        """


class Reader(Protocol):
    """An engine that can find canary rows."""

    name: str

    def find(self, table: str, row_id: str, *, timeout_s: float) -> Sequence[tuple[object, ...]]:
        """Return (id, sent_at, note) of all rows with this id.

        Raises:
            UnavailableError: the engine is not there.
            TarnError: it cannot answer.
        """


class Engine(Protocol):
    """An engine that takes SQL."""

    name: str

    def query(self, sql: str, *, rows_max: int) -> Answer:
        """Run one statement.

        Raises:
            UnavailableError: the engine is not there.
            InvalidError: it does not accept the statement.
        """
