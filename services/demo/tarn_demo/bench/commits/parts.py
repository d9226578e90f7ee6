"""Where the time of one commit of Tarn's own writer goes: when each part begins, and how long it takes."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tarn.core.object_store import Listed, ObjectStore, Stored
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitDone, TableCatalog, TableName
from tarn.core.table_state import CommitRequest, Json, TableState

WHOLE = "the whole append"
ENCODE = "Parquet with its statistics, in memory"
DATA, MANIFEST, LIST = "data file, to the store", "manifest, to the store", "manifest list, to the store"
REQUEST = "commit request, until its answer"


@dataclass(slots=True)
class Timeline:
    """When the parts of one append began and ended. Thread-safe.

    Attributes:
        spans: part -> begin and end, monotonic, in seconds; the last one of each part counts.
    """

    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block."""
        began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.spans[name] = (began, time.perf_counter())


class TimedStore:
    """A store that times the writes of a commit.

    Args:
        inner: the store.
        timeline: where to note them.
    """

    def __init__(self, inner: ObjectStore, timeline: Timeline) -> None:
        self._inner = inner
        self._timeline = timeline

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        """See `ObjectStore.get`."""
        return self._inner.get(key, known=known)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """See `ObjectStore.put`."""
        with self._timeline.part(kind_of(key)):
            return self._inner.put(key, data, if_absent=if_absent, if_match=if_match)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._inner.delete(key)

    def list(self, prefix: str, *, after: str | None = None) -> Iterator[Listed]:
        """See `ObjectStore.list`."""
        return self._inner.list(prefix, after=after)


class TimedCatalog:
    """A catalog whose commits are timed.

    Args:
        inner: the catalog.
        timeline: where to note them.
    """

    def __init__(self, inner: TableCatalog, timeline: Timeline) -> None:
        self._inner = inner
        self._timeline = timeline

    def load(self, table: TableName) -> TableState:
        """See `TableCatalog.load`."""
        return self._inner.load(table)

    def create_namespace(self, namespace: tuple[str, ...]) -> None:
        """See `TableCatalog.create_namespace`."""
        self._inner.create_namespace(namespace)

    def create(self, table: TableName, request: Json) -> TableState:
        """See `TableCatalog.create`."""
        return self._inner.create(table, request)

    def commit(
        self, table: TableName, request: CommitRequest, *, key: str
    ) -> CommitDone | Conflict | Unknown:
        """See `TableCatalog.commit`."""
        with self._timeline.part(REQUEST):
            return self._inner.commit(table, request, key=key)


def kind_of(key: str) -> str:
    """What a commit writes under a key. Pure."""
    if "/data/" in key:
        return DATA
    return LIST if key.rsplit("/", 1)[-1].startswith("snap-") else MANIFEST


def summed_up(appends: Sequence[dict[str, tuple[float, float]]]) -> list[dict[str, Any]]:
    """The parts in the order of their begin: medians over appends, in milliseconds. Pure.

    Args:
        appends: the spans of each append, among them `WHOLE`.
    """
    found = []
    for name in {name for spans in appends for name in spans}:
        having = [spans for spans in appends if name in spans]
        begins = [(spans[name][0] - spans[WHOLE][0]) * 1_000 for spans in having]
        takes = [(spans[name][1] - spans[name][0]) * 1_000 for spans in having]
        found.append(
            {
                "part": name,
                "appends": len(having),
                "begins_ms": round(statistics.median(begins), 2),
                "takes_ms": round(statistics.median(takes), 2),
            }
        )
    return sorted(found, key=lambda one: (one["begins_ms"], -one["takes_ms"]))
