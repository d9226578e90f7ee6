"""Reads one table from the store into the model that is audited and copied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tarn.core import metadata_json
from tarn.core.audit.manifests import ManifestReader, trace_ids
from tarn.core.audit.model import (
    Ahead,
    FileEntry,
    Finding,
    Json,
    Kind,
    Logged,
    ManifestEntry,
    Table,
)
from tarn.core.audit.tables import FROM_BACKUP
from tarn.core.catalog_objects import PointerValue
from tarn.core.errors import CorruptStateError
from tarn.core.object_store import (
    GET_BYTES_MAX,
    PART_BYTES,
    BulkStore,
    ObjectBody,
    Stored,
    StoreTooLargeError,
)
from tarn.core.reap import WAREHOUSE_PREFIX, Full, file_key, read_full

T = TypeVar("T")

READERS = 8
IN_FLIGHT_MAX = 32
FILES_MAX = 2_000_000
"""Maximum number of live files of one table held in memory; about 0.6 kB each."""
AHEAD_MAX = 50

Lists = dict[str, tuple[ManifestEntry, ...] | None]
Manifests = dict[str, tuple[FileEntry, ...] | None]
Listed = tuple[Lists, Manifests, dict[str, str]]
Content = bytes | StoreTooLargeError | None
"""Content of an object, or why it is not read; None if there is none."""
Stray = tuple[str, int]
"""Location of a metadata file, and its last modification in milliseconds by the store's clock."""


class Places:
    """Mapping between locations and keys of the warehouse in one bucket."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket

    @property
    def warehouse(self) -> str:
        """Location that contains all tables, with a trailing slash."""
        return self.location(WAREHOUSE_PREFIX)

    def key(self, location: str) -> str | None:
        """Key of a location; None outside the warehouse, or if no object can be there."""
        return file_key(location, bucket=self.bucket)

    def location(self, key: str) -> str:
        """Location of a key."""
        return f"s3://{self.bucket}/{key}"


class Walker:
    """Reads tables. Anything missing or malformed becomes a finding or a gap in the model, never an error.

    Args:
        store: object store of the lake.
        manifests: reader of manifests.
        places: locations of its bucket.
        pool: executor for read-ahead.
    """

    def __init__(
        self, store: BulkStore, manifests: ManifestReader, places: Places, pool: ThreadPoolExecutor
    ) -> None:
        self._store = store
        self._manifest_reader = manifests
        self._places = places
        self._pool = pool

    def read(self, pointer: PointerValue, strays: Sequence[Stray] = ()) -> Table | Finding:
        """Read the table of a pointer, or return why there is none.

        Args:
            pointer: a live pointer.
            strays: metadata files in its folder that may be newer than the current one.

        Raises:
            UnavailableError: the store does not respond.
        """
        where = pointer.metadata or ""
        data = self._content(where)
        if data is None:
            return _metadata_missing(pointer)
        metadata = _json(data)
        if metadata is None or not isinstance(metadata.get("table-uuid"), str):
            return _metadata_unreadable(pointer, data, "table metadata")
        wanted = [str(s["manifest-list"]) for s in metadata.get("snapshots") or () if s.get("manifest-list")]
        lists, manifests, unreadable = self.listed(metadata, wanted)
        return Table(
            pointer=pointer,
            metadata=metadata,
            logged=tuple(self._logged(metadata)),
            ahead=tuple(self._strays(strays[-AHEAD_MAX:])),
            lists=lists,
            manifests=manifests,
            unreadable=unreadable,
        )

    def check_view(self, pointer: PointerValue) -> Finding | None:
        """Read the metadata file of a live view, which is all that it consists of; return what is wrong.

        Raises:
            UnavailableError: the store does not respond.
        """
        where = pointer.metadata or ""
        data = self._content(where)
        if data is None:
            return _metadata_missing(pointer)
        metadata = _json(data)
        versions = (metadata or {}).get("versions")
        if metadata is None or not isinstance(versions, list) or not versions:
            return _metadata_unreadable(pointer, data, "view metadata")
        if metadata.get("view-uuid") != pointer.uuid:
            return Finding(
                kind=Kind.METADATA_OTHER,
                where=pointer.text,
                what=f"the pointer is that of {pointer.uuid}, {where} that of {metadata.get('view-uuid')}",
                fix=FROM_BACKUP,
            )
        return None

    def listed(self, metadata: Json, wanted: Iterable[str], *, files_max: int = FILES_MAX) -> Listed:
        """Read these manifest lists of a table and their manifests; see `Table` for the three results.

        Args:
            metadata: the table's metadata.
            wanted: locations of the manifest lists.
            files_max: once so many live files are exceeded, no further manifest is looked into.
        """
        unreadable: dict[str, str] = {}
        lists: Lists = {}
        added: dict[str, int | None] = {}
        for location, data in self._ahead(dict.fromkeys(wanted)):
            lists[location] = None
            if data is None:
                continue
            try:
                entries = self._manifest_reader.list_entries(_whole(data))
            except CorruptStateError as error:
                unreadable[location] = error.message
                continue
            lists[location] = tuple(entry for entry, _ in entries)
            added.update({entry.path: snapshot for entry, snapshot in entries})
        return lists, self._manifests(metadata, added, unreadable, files_max), unreadable

    def _manifests(
        self, metadata: Json, added: dict[str, int | None], unreadable: dict[str, str], files_max: int
    ) -> Manifests:
        trace = trace_ids(metadata)
        found: Manifests = {}
        count = 0
        for location, data in self._ahead(added):
            found[location] = None
            if data is None:
                continue
            if count > files_max:
                unreadable[location] = f"not looked at: the table has more than {files_max} live files"
                continue
            try:
                entries = self._manifest_reader.file_entries(
                    _whole(data), added_snapshot_id=added[location], trace=trace
                )
            except CorruptStateError as error:
                unreadable[location] = error.message
                continue
            found[location] = entries
            count += len(entries)
        return found

    def _logged(self, metadata: Json) -> Iterator[Logged]:
        names = [str(entry["metadata-file"]) for entry in metadata.get("metadata-log") or ()]
        for location, data in self._ahead(dict.fromkeys(names)):
            if data is None:
                yield Logged(location=location)
                continue
            full = _full(location, data)
            yield Logged(
                location=location,
                size_bytes=len(data) if isinstance(data, bytes) else GET_BYTES_MAX,
                uuid=full.uuid if full is not None else None,
                parent=full.previous if full is not None else None,
            )

    def _strays(self, strays: Sequence[Stray]) -> Iterator[Ahead]:
        modified = dict(strays)
        for location, data in self._ahead(modified):
            full = _full(location, data)
            parent = full.previous if full is not None else None
            yield Ahead(location=location, parent=parent, updated_ms=modified[location])

    def _content(self, location: str) -> Content:
        key = self._places.key(location)
        try:
            stored: Stored | None = self._store.get(key) if key is not None else None
        except StoreTooLargeError as error:
            return error
        return None if stored is None else stored.data

    def _ahead(self, wanted: Iterable[str]) -> Iterator[tuple[str, Content]]:
        """Yield each location with its content, in order. A large object is read when it is its turn."""
        for location, opened in in_order(self._pool, wanted, self._open):
            if opened is None:
                yield location, None
            else:
                yield location, opened.data if opened.data is not None else self._content(location)

    def _open(self, location: str) -> ObjectBody | None:
        key = self._places.key(location)
        try:
            return self._store.open(key, bytes_max=PART_BYTES) if key is not None else None
        except StoreTooLargeError:
            return ObjectBody(size_bytes=GET_BYTES_MAX, data=None)


def in_order(
    pool: ThreadPoolExecutor, wanted: Iterable[T], work: Callable[[T], Any], ahead: int = IN_FLIGHT_MAX
) -> Iterator[tuple[T, Any]]:
    """Yield each item with its result, in order, while at most `ahead` further items are in progress.

    Args:
        pool: executor.
        wanted: items.
        work: called with each item.
        ahead: maximum number of items in progress.
    """
    waiting: list[tuple[T, Any]] = []
    for item in wanted:
        waiting.append((item, pool.submit(work, item)))
        if len(waiting) >= ahead:
            first, future = waiting.pop(0)
            yield first, future.result()
    for item, future in waiting:
        yield item, future.result()


def _metadata_missing(pointer: PointerValue) -> Finding:
    return Finding(
        kind=Kind.METADATA_MISSING,
        where=pointer.text,
        what=f"the pointer names {pointer.metadata or ''}, which is not in the store",
        fix=f"drop the name without purge and register the newest metadata in the same folder, or "
        f"{FROM_BACKUP}",
    )


def _metadata_unreadable(pointer: PointerValue, data: bytes | StoreTooLargeError, what: str) -> Finding:
    where = pointer.metadata or ""
    why = f"{where} ({len(data)} bytes) is no {what}" if isinstance(data, bytes) else data.message
    return Finding(kind=Kind.METADATA_UNREADABLE, where=pointer.text, what=why, fix=FROM_BACKUP)


def _whole(data: bytes | StoreTooLargeError) -> bytes:
    """The content of an object.

    Raises:
        CorruptStateError: it is too long to be read.
    """
    if isinstance(data, StoreTooLargeError):
        raise CorruptStateError(data.message) from data
    return data


def _full(location: str, data: Content) -> Full | None:
    """What is read of a metadata file that is not the current one; None if it is unreadable or missing."""
    try:
        return read_full(data, location) if isinstance(data, bytes) else None
    except CorruptStateError:
        return None


def _json(data: Content) -> Json | None:
    if not isinstance(data, bytes):
        return None
    try:
        value = metadata_json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
