"""The reaper's model of a table's metadata versions, and what it may delete. Pure. See ADR 14.

The chain of metadata files records what was removed: each file names its predecessor, and whatever a file has
and its successor lacks was removed by that commit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import orjson

from tarn.core import metadata_json
from tarn.core.digests import digest
from tarn.core.errors import CorruptStateError
from tarn.core.object_store import is_key
from tarn.core.producers import PROPERTY as PRODUCERS

REAPER_PREFIX = "reaper/v1/"
CLOCK_KEY = "reaper/v1/clock.json"
MEASURED_KEY = "reaper/v1/measured/tables.json"
LISTS_PREFIX = "reaper/v1/lists/"
HOLDS_PREFIX = "reaper/v1/holds/"
MARKS_PREFIX = "reaper/v1/marks/"
PURGED_PREFIX = "reaper/v1/purged/"
HOLD_SUFFIX = ".json"
HOLD_MS = 5 * 60_000
"""How long an unrenewed hold keeps the reaper from deleting, in milliseconds by the store's clock."""

WAREHOUSE_PREFIX = "warehouse/"
METADATA_SUFFIX = ".metadata.json"
SIZE_DIGITS_MAX = 18
"""A writer states the size of its table; more digits are no size, and too many for a number of 64 bits."""
FORMAT = 1
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What one or more commits removed from a table.

    Attributes:
        snapshots: snapshot id to the location of its manifest list.
        statistics: locations of statistics files.
    """

    snapshots: Mapping[int, str] = field(default_factory=dict)
    statistics: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.snapshots or self.statistics)

    @staticmethod
    def all_of(parts: Iterable[Removed]) -> Removed:
        """The union of several removals."""
        snapshots: dict[int, str] = {}
        statistics: set[str] = set()
        for part in parts:
            snapshots.update(part.snapshots)
            statistics |= part.statistics
        return Removed(snapshots=snapshots, statistics=frozenset(statistics))


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """One metadata file, as far as the reaper reads it.

    Attributes:
        uuid: UUID of the table.
        root: location of the table, without a trailing slash.
        previous: the metadata file before it; None for the first, or if its log does not name one.
        log: all metadata files in its metadata log.
        log_begin: the oldest of them; None if there are none.
        snapshots: snapshot id to the location of its manifest list; None for one without a list (format 1).
        statistics: locations of statistics files.
        keeps_metadata: whether the table's old metadata files must be kept.
        keeps_files: whether other tables may share its files (`gc.enabled` is false).
        live_bytes: total size of the current snapshot's files in bytes, by its summary; None if not stated.
        has_keys: whether the gateway writes to the table, and so may have left keys of repeated writes.
    """

    uuid: str
    root: str
    previous: str | None
    log: frozenset[str]
    snapshots: Mapping[int, str | None]
    statistics: frozenset[str]
    keeps_metadata: bool
    keeps_files: bool
    live_bytes: int | None
    has_keys: bool = False
    log_begin: str | None = None

    def less(self, newer: Full) -> Removed:
        """What this version has and a newer one lacks."""
        return Removed(
            snapshots={
                number: listed
                for number, listed in self.snapshots.items()
                if number not in newer.snapshots and listed is not None
            },
            statistics=self.statistics - newer.statistics,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A metadata file in the chain.

    Attributes:
        location: location of the file.
        modified_ms: last modification by the store's clock, in milliseconds since the epoch; if that is in
            the future, not after that of its successor.
        bytes: file size in bytes.
        removed: what its successor lacks; empty for the current version.
    """

    location: str
    modified_ms: int
    bytes: int
    removed: Removed = field(default_factory=Removed)

    def before(self, successor: Version, *, now_ms: int) -> Version:
        """This version, with its successor's time if its own lies in the future: the chain proves the order.

        One commit while the store's clock was ahead would else keep all later ones until then. A successor
        of a clock that was behind proves nothing of the time of those before.

        Args:
            successor: the next version.
            now_ms: the store's time, in milliseconds since the epoch.
        """
        if self.modified_ms <= max(now_ms, successor.modified_ms):
            return self
        return replace(self, modified_ms=successor.modified_ms)


class _Snapshot(msgspec.Struct, rename="kebab", gc=False):
    snapshot_id: int
    manifest_list: str | None = None
    summary: msgspec.Raw = msgspec.Raw(b"null")


class _Logged(msgspec.Struct, rename="kebab", gc=False):
    metadata_file: str


class _Statistics(msgspec.Struct, rename="kebab", gc=False):
    statistics_path: str


class _Properties(msgspec.Struct, gc=False):
    delete_metadata: Any = msgspec.field(name="write.metadata.delete-after-commit.enabled", default="")
    collect: Any = msgspec.field(name="gc.enabled", default="")
    producers: Any = msgspec.field(name=PRODUCERS, default=None)


class _Metadata(msgspec.Struct, rename="kebab"):
    """What the reaper reads of a metadata file; no object is made of anything else in it."""

    table_uuid: str
    location: str
    current_snapshot_id: int | None = None
    snapshots: list[_Snapshot] | None = None
    metadata_log: list[_Logged] | None = None
    statistics: list[_Statistics] | None = None
    partition_statistics: list[_Statistics] | None = None
    properties: _Properties | None = None


_METADATA = msgspec.json.Decoder(_Metadata)


def read_full(data: bytes, where: str, *, bytes_max: int = metadata_json.JSON_BYTES_MAX) -> Full:
    """Parse a metadata file. In memory it takes its length as JSON and about half as much.

    Args:
        data: its content.
        where: its location, for messages.
        bytes_max: longest JSON of a compressed one.

    Raises:
        CorruptStateError: the data is not table metadata.
    """
    try:
        value = _METADATA.decode(metadata_json.unpacked(data, bytes_max))
        log = [entry.metadata_file for entry in value.metadata_log or ()]
        snapshots, properties = value.snapshots or (), value.properties or _Properties()
        return Full(
            uuid=value.table_uuid,
            root=value.location.rstrip("/"),
            previous=log[-1] if log else None,
            log=frozenset(log),
            snapshots={snapshot.snapshot_id: snapshot.manifest_list for snapshot in snapshots},
            statistics=frozenset(
                entry.statistics_path
                for entries in (value.statistics, value.partition_statistics)
                for entry in entries or ()
            ),
            keeps_metadata=_says(properties.delete_metadata, "false"),
            keeps_files=_says(properties.collect, "false"),
            live_bytes=_live_bytes(snapshots, value.current_snapshot_id),
            has_keys=properties.producers is not None,
            log_begin=log[0] if log else None,
        )
    except (ValueError, AttributeError, RecursionError) as e:
        raise CorruptStateError(f"{where} is no table metadata: {e!r}", location=where) from e


def _live_bytes(snapshots: Sequence[_Snapshot], current: int | None) -> int | None:
    if not snapshots:
        return 0
    summary = next((found.summary for found in snapshots if found.snapshot_id == current), None)
    size = str((msgspec.json.decode(summary) or {}).get("total-files-size", "")) if summary else ""
    return int(size) if size.isdecimal() and len(size) <= SIZE_DIGITS_MAX else None


def _says(value: object, wanted: str) -> bool:
    return str(value).lower() == wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """A candidate list: what was removed from a table, stored before the metadata that shows it is deleted.

    Attributes:
        key: key of the list.
        uuid: UUID of the table.
        root: location of the table.
        removed: what to examine once the grace period has passed.
        modified_ms: last modification by the store's clock, in milliseconds since the epoch.
    """

    key: str
    uuid: str
    root: str
    removed: Removed
    modified_ms: int = 0

    def dump(self) -> bytes:
        """Serialise to the stored JSON."""
        return orjson.dumps(
            {
                "format": FORMAT,
                "table-uuid": self.uuid,
                "location": self.root,
                "snapshots": [[number, listed] for number, listed in self.removed.snapshots.items()],
                "statistics": sorted(self.removed.statistics),
            }
        )


def read_candidates(key: str, data: bytes, modified_ms: int) -> Candidates:
    """Parse a stored candidate list.

    Args:
        key: object key.
        data: content.
        modified_ms: last modification by the store's clock, in milliseconds since the epoch.

    Raises:
        CorruptStateError: the data is not a candidate list of a known format.
    """
    try:
        value = orjson.loads(data)
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']}, this version knows {FORMAT}")
        return Candidates(
            key=key,
            uuid=str(value["table-uuid"]),
            root=str(value["location"]),
            removed=Removed(
                snapshots={int(number): str(listed) for number, listed in value["snapshots"]},
                statistics=frozenset(str(path) for path in value["statistics"]),
            ),
            modified_ms=modified_ms,
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as e:
        raise CorruptStateError(f"{key} is no list of the reaper: {e!r}; remove it by hand", key=key) from e


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ListedManifest:
    """A manifest as described by a manifest list.

    Attributes:
        path: location of the manifest.
        sequence: sequence number of the commit that wrote it.
        sequence_min: lowest sequence number of its live entries.
    """

    path: str
    sequence: int
    sequence_min: int


def dead_manifests(
    removed: Iterable[Sequence[ListedManifest]], kept: Iterable[Sequence[ListedManifest]]
) -> dict[str, ListedManifest]:
    """Manifests of removed snapshots that no kept snapshot references, by location."""
    found = {manifest.path: manifest for manifests in removed for manifest in manifests}
    for manifests in kept:
        for manifest in manifests:
            found.pop(manifest.path, None)
    return found


def holders(
    kept: Iterable[Sequence[ListedManifest]],
    waiting: Iterable[Sequence[ListedManifest]],
    dead: Collection[ListedManifest],
) -> list[ListedManifest]:
    """The manifests that can reference a file that was live in one of the dead ones, once each.

    Those of kept snapshots are all there: a file can have been added twice (a cherry-picked snapshot,
    `add_files` of a file that was removed by mistake), so an older manifest than the dead ones may have it
    too. Of removed snapshots only those count whose files are neither all newer nor all older: beside a
    stream of commits nearly all are newer.

    Args:
        kept: the manifest lists of the table's snapshots.
        waiting: those of removed snapshots whose grace period has not passed.
        dead: the manifests that are to be deleted.
    """
    oldest = min((one.sequence_min for one in dead), default=0)
    newest = max((one.sequence for one in dead), default=0)
    known = {
        one.path: one
        for manifests in waiting
        for one in manifests
        if one.sequence >= oldest and one.sequence_min <= newest
    }
    known |= {one.path: one for manifests in kept for one in manifests}
    return list(known.values())


def sampled(paths: Collection[str], most: int) -> list[str]:
    """At most about `most` of the paths: all of them, or every second, fourth, eighth by a digest.

    So what is in the sample stays in it while others come and go, and need not be read again.
    """
    spread = 1
    while len(paths) > most * spread:
        spread *= 2
    return [path for path in paths if spread == 1 or digest(path) % spread == 0]


def file_key(location: str, *, bucket: str) -> str | None:
    """Object key of a file that a table names; None outside the warehouse, or if no object can have that key.

    Whoever may write a table chooses what it names. Services that read all tables may read nothing outside
    the warehouse: they would end with an error of the store.

    Args:
        location: location of the file.
        bucket: bucket of the lake.
    """
    key = _key(location, bucket)
    return key if key is not None and key.startswith(WAREHOUSE_PREFIX) and is_key(key) else None


def key_within(location: str, *, bucket: str, root: str) -> str | None:
    """Object key of a table's file; None if the file is outside the table's own location.

    Args:
        location: location of the file.
        bucket: bucket of the lake.
        root: location of the table.
    """
    key, folder = file_key(location, bucket=bucket), file_key(root, bucket=bucket)
    return key if key is not None and folder is not None and key.startswith(f"{folder}/") else None


def folder_of(root: str, *, bucket: str, uuid: str) -> str | None:
    """Key prefix of a table, with a trailing slash; None if the location is not the table's own (I7).

    Args:
        root: location of the table.
        bucket: bucket of the lake.
        uuid: UUID of the table.
    """
    folder = file_key(root.rstrip("/"), bucket=bucket)
    return f"{folder}/" if uuid and folder is not None and folder.endswith(uuid) else None


def same_name(location: str, bucket: str) -> str:
    """The location in one spelling if it is in the bucket: Hadoop's `s3a://` names the same object as `s3://`.

    Args:
        location: location of an object.
        bucket: bucket of the lake, or its folder as a location (`file:///…`).
    """
    key = _key(location, bucket)
    return location if key is None else f"{_spellings(bucket)[0]}/{key}"


def _key(location: str, bucket: str) -> str | None:
    for spelling in _spellings(bucket):
        if location.startswith(f"{spelling}/"):
            return location[len(spelling) + 1 :]
    return None


def _spellings(bucket: str) -> tuple[str, ...]:
    """The locations of the empty key, the usual one first."""
    scheme, found, path = bucket.partition("://")
    if found:
        return bucket, f"{scheme}:{path}", path
    return tuple(f"{scheme}://{bucket}" for scheme in ("s3", "s3a", "s3n"))


@dataclass(slots=True)
class Trust:
    """Whether ages by the store's clock are reliable; after a clock jump, again once a grace has passed.

    Attributes:
        now_ms: the store's time at the last check, in milliseconds since the epoch.
        mono_ms: the process's monotonic time then, in milliseconds.
        odd_ms: monotonic time of the last anomaly; None if there was none.
        began_ms: monotonic time of the first look, in milliseconds.
    """

    now_ms: int = 0
    mono_ms: int = 0
    odd_ms: int | None = None
    began_ms: int = 0

    def look(self, *, store_ms: int, mono_ms: int, wall_ms: int) -> str | None:
        """Record the current times.

        Args:
            store_ms: the store's time, in milliseconds since the epoch.
            mono_ms: monotonic time in milliseconds.
            wall_ms: this machine's time, in milliseconds since the epoch.

        Returns:
            A newly detected anomaly, or None.
        """
        jump_ms = (store_ms - mono_ms) - (self.now_ms - self.mono_ms)
        first = self.now_ms == 0
        self.now_ms, self.mono_ms = store_ms, mono_ms
        if first:
            self.began_ms = mono_ms
        if first and abs(store_ms - wall_ms) > CLOCKS_DIFFER_MS:
            self.odd_ms = mono_ms
            return f"the store's clock and this machine's differ by {(store_ms - wall_ms) / 1000:.0f} s"
        if not first and abs(jump_ms) > CLOCKS_DIFFER_MS:
            self.odd_ms = mono_ms
            return f"the store's clock jumped by {jump_ms / 1000:.0f} s"
        return None

    def passed(self, modified_ms: int, grace_ms: int, *, known_ms: int | None = None) -> bool:
        """Whether an object is at least `grace_ms` old and the clock can be relied on.

        A clock that was ahead leaves objects of the future behind; such a one is as old as it is known.

        Args:
            modified_ms: its last modification by the store's clock, in milliseconds since the epoch.
            grace_ms: the grace period in milliseconds.
            known_ms: monotonic time at which this process found it, in milliseconds; None for now.
        """
        age_ms = self.now_ms - modified_ms
        if known_ms is not None:
            age_ms = max(age_ms, self.mono_ms - known_ms)
        return self._steady(grace_ms) and age_ms >= grace_ms

    def lapsed(self, modified_ms: int, period_ms: int) -> bool:
        """Whether what is written again within each period no longer is; it may be of a time that never was.

        A clock that was ahead once leaves objects of the future behind. Whoever still writes one again does
        so, with the time as it is, within a period from the first look on.
        """
        if modified_ms > self.now_ms and self.mono_ms - self.began_ms < period_ms:
            return False
        return self._steady(period_ms) and abs(self.now_ms - modified_ms) >= period_ms

    def _steady(self, period_ms: int) -> bool:
        return self.odd_ms is None or self.mono_ms - self.odd_ms >= period_ms


CLOCKS_DIFFER_MS = 5 * 60_000
