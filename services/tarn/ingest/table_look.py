"""A look into one table when somebody asks for it: its snapshots, its files, its metadata. Bounded.

Unlike everything else that the status API shows, this waits for the catalog and the store. It reads metadata,
manifest lists and manifests, never a data file, and shows no value of a column: the values of partitions in
the names of folders are left out.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tarn.core.audit.manifests import ManifestReader
from tarn.core.audit.model import FileEntry, ManifestEntry
from tarn.core.errors import CorruptStateError, NotFoundError
from tarn.core.table_state import Json, TableState

KEPT_S = 2.0
"""How long a table's metadata are the answer to everybody, in seconds: pages of one list agree."""
TABLES_KEPT_MAX = 4
MANIFESTS_MAX = 50
"""Manifests that one request reads."""
MANIFEST_BYTES_MAX = 32 << 20
LISTED_MAX = 1_000
"""Manifests, earlier metadata files, fields and refs that one answer names."""
TYPE_CHARS_MAX = 200

Position = tuple[int, int, int]
"""Snapshot, manifest in its list, and file in that manifest."""
_HIDDEN = re.compile(r"=[^/]*(?=/)")
_HIDDEN_IN_TEXT = re.compile(r"(/[^/=\s]+=)[^/]*(?=/|\Z)")


class StateOfTable(Protocol):
    """Tables with their metadata."""

    def state(self, table: str) -> TableState:
        """Metadata of a table. Raises NotFoundError, UnavailableError and other TarnErrors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest of a snapshot.

    Attributes:
        entry: its location and size.
        added_by: snapshot that added it; None if its list does not say.
    """

    entry: ManifestEntry
    added_by: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    """Some files of a snapshot.

    Attributes:
        snapshot_id: the snapshot; None if the table has none.
        files: the files, in the order of the manifests.
        next: where the next page begins; None at the end.
    """

    snapshot_id: int | None
    files: Sequence[FileEntry]
    next: Position | None


class TableLook:
    """Looks into tables; safe for several threads.

    Args:
        tables: the tables.
        read: reads an object of the store by its location; raises TarnError.
        manifests: reads manifests and manifest lists.
        now_s: monotonic time in seconds.
    """

    def __init__(
        self,
        tables: StateOfTable,
        *,
        read: Callable[[str], bytes],
        manifests: ManifestReader,
        now_s: Callable[[], float],
    ) -> None:
        self._tables = tables
        self._read = read
        self._manifests = manifests
        self._now_s = now_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, TableState]] = OrderedDict()

    def state(self, table: str) -> TableState:
        """Metadata of a table, at most two seconds old.

        Raises:
            NotFoundError: there is no such table, or this service may not read it.
            TarnError: the catalog does not respond.
        """
        with self._lock:
            kept = self._kept.get(table)
        if kept is not None and self._now_s() - kept[0] < KEPT_S:
            return kept[1]
        state = self._tables.state(table)
        with self._lock:
            self._kept[table] = (self._now_s(), state)
            self._kept.move_to_end(table)
            while len(self._kept) > TABLES_KEPT_MAX:
                self._kept.popitem(last=False)
        return state

    def manifests(self, state: TableState, snapshot: Json | None) -> Sequence[Manifest]:
        """The manifests of a snapshot, in the order of its list.

        Raises:
            TarnError: the list cannot be read.
        """
        location = str((snapshot or {}).get("manifest-list") or "")
        if not location:
            return ()
        found = self._manifests.list_entries(self._read(location))
        return [Manifest(entry=entry, added_by=added_by) for entry, added_by in found]

    def files(self, state: TableState, *, begin: Position | None, limit: int) -> FilePage:
        """Files of the current snapshot, or of the one in which a page before began.

        A page ends early where it would have to read more than 50 manifests.

        Raises:
            NotFoundError: the page's snapshot is not kept any more.
            TarnError: a manifest cannot be read.
        """
        snapshot = state.head
        if begin is not None:
            if not state.has_snapshot(begin[0]):
                raise NotFoundError(
                    f"after: snapshot {begin[0]} is not kept any more; begin again without after",
                    field="after",
                    value=after_of(begin),
                    fix="begin again without after",
                )
            snapshot = state.snapshot(begin[0])
        if snapshot is None:
            return FilePage(snapshot_id=None, files=(), next=None)
        snapshot_id = int(snapshot["snapshot-id"])
        manifests = self.manifests(state, snapshot)
        _, first, skip = begin or (snapshot_id, 0, 0)
        found: list[FileEntry] = []
        for number in range(first, len(manifests)):
            if number - first >= MANIFESTS_MAX or len(found) >= limit:
                return FilePage(snapshot_id=snapshot_id, files=found, next=(snapshot_id, number, 0))
            one = manifests[number]
            if one.entry.bytes > MANIFEST_BYTES_MAX:
                raise CorruptStateError(
                    f"manifest {one.entry.path} has {one.entry.bytes} bytes, and up to {MANIFEST_BYTES_MAX} "
                    "are read for this page; read the table's files with an engine (table.files)"
                )
            data = self._read(one.entry.path)
            start = skip if number == first else 0
            end = start + limit - len(found)
            # One more than fit says whether there are more; to decode a hundred thousand takes seconds.
            files = self._manifests.file_entries(
                data, added_snapshot_id=one.added_by, trace=None, most=end + 1
            )
            found += files[start:end]
            if end < len(files):
                return FilePage(snapshot_id=snapshot_id, files=found, next=(snapshot_id, number, end))
        return FilePage(snapshot_id=snapshot_id, files=found, next=None)


def after_of(position: Position) -> str:
    """The `after` of a page of files."""
    return ".".join(map(str, position))


def position_of(after: str) -> Position:
    """The position that an `after` names.

    Raises:
        ValueError: it names none.
    """
    if not re.fullmatch(r"-?[0-9]{1,20}\.[0-9]{1,9}\.[0-9]{1,9}", after, re.ASCII):
        raise ValueError("`next` of the page before")
    snapshot, manifest, file = after.split(".")
    return int(snapshot), int(manifest), int(file)


def newest_first(state: TableState) -> list[Json]:
    """The snapshots of a table, those of branches too."""
    return sorted(state.metadata.get("snapshots") or (), key=order_of, reverse=True)


def order_of(snapshot: Json) -> tuple[int, int, int]:
    """Where a snapshot comes: tables of format 1 have no sequence numbers."""
    sequence, at_ms = snapshot.get("sequence-number") or 0, snapshot.get("timestamp-ms") or 0
    return int(sequence), int(at_ms), int(snapshot["snapshot-id"])


def shown_path(location: str, root: str) -> str:
    """A location as it is shown: below the table's own, and without the values of partitions."""
    path = location.removeprefix(f"{root}/")
    return _HIDDEN.sub("=\u2026", path)


def without_values(text: str) -> str:
    """A message that may name locations, without the values of partitions, also where it was cut."""
    return _HIDDEN_IN_TEXT.sub("\\1\u2026", text)


def type_text(kind: Any) -> str:
    """A type as Iceberg's documents write it, cut at 200 characters."""
    text = "".join(_type(kind))
    return text if len(text) <= TYPE_CHARS_MAX else f"{text[: TYPE_CHARS_MAX - 1]}\u2026"


def _type(kind: Any) -> Iterator[str]:
    if not isinstance(kind, dict):
        yield str(kind)
    elif kind.get("type") == "list":
        yield from ("list<", *_type(kind.get("element")), ">")
    elif kind.get("type") == "map":
        yield from ("map<", *_type(kind.get("key")), ", ", *_type(kind.get("value")), ">")
    elif kind.get("type") == "struct":
        yield "struct<"
        for number, field in enumerate(kind.get("fields") or ()):
            yield f"{', ' if number else ''}{field.get('name')}: "
            yield from _type(field.get("type"))
        yield ">"
    else:
        yield str(kind.get("type"))
