"""The model of a lake that is audited, and the findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tarn.core.catalog_objects import PointerValue
from tarn.core.dead_letter import PENDING_PREFIX, pending_from_json
from tarn.core.errors import CorruptStateError

Json = dict[str, Any]
SizeOf = Callable[[str], int | None]
"""Size in bytes of the object at a location; None if it does not exist."""


class Kind(StrEnum):
    """Kinds of findings."""

    POINTER_UNREADABLE = "pointer unreadable"
    POINTER_MISPLACED = "pointer under another name"
    NAMESPACE_UNREADABLE = "namespace unreadable"
    NAMESPACE_MISSING = "namespace missing"
    NAMESPACE_DROPPED = "namespace dropped"
    TABLE_TWICE = "table under two names"
    CLAIM_UNREADABLE = "claim unreadable"
    GRANTS_UNREADABLE = "grants unreadable"
    CLAIM = "claim of another name"
    TOMBSTONE = "tombstone with metadata"
    KEY_PAGE = "key page missing"
    PENDING = "change pending"
    RESTORE = "restore unfinished"
    METADATA_MISSING = "metadata missing"
    METADATA_UNREADABLE = "metadata unreadable"
    METADATA_OTHER = "metadata of another table"
    METADATA_OLD = "pointer behind its table"
    METADATA_AHEAD = "metadata ahead of the pointer"
    LOG_MISSING = "earlier metadata missing"
    LOG_BROKEN = "metadata log broken"
    REF = "ref without snapshot"
    LIST = "manifest list missing"
    MANIFEST = "manifest missing"
    FILE = "data file missing"
    DELETES = "delete file missing"
    STATISTICS = "statistics missing"
    SIZE = "size differs"
    UNREADABLE = "unreadable"
    DOUBLE = "file live twice"
    ELSEWHERE = "outside the warehouse"
    OFFSETS_UNREADABLE = "offset map unreadable"
    OFFSETS_BROKEN = "offset chain broken"
    OFFSETS_DOUBLED = "offsets doubled"
    OFFSETS_HOLE = "offsets without a row"
    OFFSETS_MISSING = "offsets missing"
    OFFSETS_BEYOND = "rows beyond the offset map"
    ROWS_UNTRACED = "rows without an origin"
    ROWS_DELETED = "rows deleted"
    STREAMS_DOUBLED = "topic ingested twice"
    STREAMS_SAME = "two streams of one topic"
    LETTERS = "dead letters missing"
    LETTERS_UNREGISTERED = "dead letters not registered"
    LETTERS_WAITING = "dead letters waiting"
    LETTERS_AGAIN = "dead letters repeated"


NOTES = frozenset(
    {
        Kind.PENDING,
        Kind.METADATA_AHEAD,
        Kind.STATISTICS,
        Kind.OFFSETS_HOLE,
        Kind.STREAMS_SAME,
        Kind.LETTERS_WAITING,
        Kind.LETTERS_AGAIN,
        Kind.ROWS_UNTRACED,
        Kind.ROWS_DELETED,
    }
)
"""Kinds that are no damage in themselves: nothing is lost, or a cause outside the lake explains them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One violation of a rule.

    Attributes:
        kind: kind of finding.
        where: table, name or key.
        what: what was expected and what was found, with values.
        fix: what to do.
    """

    kind: Kind
    where: str
    what: str
    fix: str

    @property
    def damage(self) -> bool:
        """Whether the finding is damage to the lake."""
        return self.kind not in NOTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """An earlier metadata file listed in the metadata log.

    Attributes:
        location: location in the log.
        size_bytes: file size in bytes; None if the file does not exist.
        uuid: table UUID in the file; None if unreadable.
        parent: last entry of the file's own log; None if it has none.
    """

    location: str
    size_bytes: int | None = None
    uuid: str | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """A metadata file with a higher version than the current one, which the current one does not reference.

    Attributes:
        location: location of the file.
        parent: last entry of its metadata log.
        updated_ms: its last-updated time, in milliseconds since the epoch.
    """

    location: str
    parent: str | None
    updated_ms: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lowest and highest Kafka partition and offset among a file's rows."""

    partition_min: int
    partition_max: int
    offset_min: int
    offset_max: int


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A live file of a manifest.

    Attributes:
        path: location of the file.
        bytes: file size in bytes, by the manifest.
        records: number of rows, by the manifest.
        deletes: whether it is a delete file.
        snapshot_id: snapshot that added it.
        bounds: bounds of the trace column, if the file has them.
    """

    path: str
    bytes: int
    records: int
    deletes: bool = False
    snapshot_id: int | None = None
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A manifest as described by a manifest list: location and length in bytes."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Everything about one table that is audited.

    Attributes:
        pointer: the pointer of the table.
        metadata: parsed metadata that the pointer names.
        logged: files of the metadata log, oldest first.
        ahead: metadata files of higher versions that no history contains.
        lists: location of a manifest list to its manifests; None where unreadable.
        manifests: location of a manifest to its live files; None where unreadable.
        unreadable: location to the reason, for objects that exist but cannot be read.
    """

    pointer: PointerValue
    metadata: Json
    logged: tuple[Logged, ...] = ()
    ahead: tuple[Ahead, ...] = ()
    lists: Mapping[str, tuple[ManifestEntry, ...] | None]
    manifests: Mapping[str, tuple[FileEntry, ...] | None]
    unreadable: Mapping[str, str]

    @property
    def name(self) -> str:
        """Qualified name, for messages."""
        return self.pointer.text

    @property
    def uuid(self) -> str:
        """UUID of the table."""
        return str(self.metadata.get("table-uuid"))

    @property
    def root(self) -> str:
        """Location of the table, without a trailing slash."""
        return str(self.metadata.get("location", "")).rstrip("/")

    @property
    def snapshots(self) -> list[Json]:
        """All snapshots in the metadata."""
        return list(self.metadata.get("snapshots") or [])

    @property
    def refs(self) -> Mapping[str, Json]:
        """Branches and tags, by name."""
        found: Mapping[str, Json] = self.metadata.get("refs") or {}
        return found

    @property
    def head_id(self) -> int | None:
        """Id of the current snapshot; None if there is none."""
        main = self.refs.get("main")
        found = main.get("snapshot-id") if main else self.metadata.get("current-snapshot-id")
        return None if found is None or found == -1 else int(found)

    def chain(self) -> list[Json]:
        """The current snapshot and its known ancestors, oldest first."""
        by_id = {s["snapshot-id"]: s for s in self.snapshots}
        found: list[Json] = []
        at = self.head_id
        while at is not None and at in by_id and len(found) <= len(by_id):
            found.append(by_id[at])
            at = by_id[at].get("parent-snapshot-id")
        return found[::-1]

    def files_of(self, snapshot: Json) -> Iterator[FileEntry]:
        """Yield the live files of a snapshot, as far as its manifest list and manifests are readable."""
        for manifest in self.lists.get(snapshot.get("manifest-list", "")) or ():
            yield from self.manifests.get(manifest.path) or ()


def statistics_of(metadata: Json) -> Iterator[tuple[str, int]]:
    """Yield (location, size in bytes) of every statistics file, by the metadata."""
    for name in ("statistics", "partition-statistics"):
        for entry in metadata.get(name) or ():
            yield str(entry["statistics-path"]), int(entry["file-size-in-bytes"])


class NamedLetters(NamedTuple):
    """A dead-letter file that a snapshot of an ingested table lists.

    Attributes:
        stream: name of the stream.
        path: location of the file.
        bytes: file size in bytes.
        sequence: sequence number of the snapshot that listed it first.
    """

    stream: str
    path: str
    bytes: int
    sequence: int


def letters_of(table: Table) -> Iterator[NamedLetters]:
    """Yield every dead-letter file in any snapshot, each once.

    Unreadable lists are skipped here; `judge_offsets` reports them.
    """
    seen: set[str] = set()
    for snapshot in table.snapshots:
        for key, text in (snapshot.get("summary") or {}).items():
            if not key.startswith(PENDING_PREFIX):
                continue
            try:
                pending = pending_from_json(text)
            except CorruptStateError:
                continue
            for file in pending:
                if file.path not in seen:
                    seen.add(file.path)
                    yield NamedLetters(key.removeprefix(PENDING_PREFIX), file.path, file.bytes, file.sequence)


def locations(table: Table) -> Iterator[str]:
    """Yield every location that the table references, each once, after the locations it references itself.

    Dead-letter files that its snapshots list are not among them: they belong to another table (`letters_of`).
    """
    seen: set[str] = set()
    for found in _locations(table):
        if found not in seen:
            seen.add(found)
            yield found


def _locations(table: Table) -> Iterator[str]:
    for entries in table.manifests.values():
        for entry in entries or ():
            yield entry.path
    for path, _ in statistics_of(table.metadata):
        yield path
    yield from table.manifests
    yield from table.lists
    for logged in table.logged:
        yield logged.location
    if table.pointer.metadata is not None:
        yield table.pointer.metadata
