"""A lake with a simulated clock, a writer that does what engines do, and an auditor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from tarn.adapters import manifest_audit
from tarn.adapters.manifest_audit import file_entries
from tarn.adapters.manifests import _MemoryOutput, _Writer, read_list
from tarn.adapters.store import MemoryStore
from tarn.core import metadata_json
from tarn.core.naming import WarehouseLayout
from tarn.core.object_store import ObjectStore
from tarn.keeper.reaper import Graces, Reaper
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier

BUCKET = "tarn"
START_MS = 1_795_000_000_000
SCHEMA = Schema(NestedField(1, "x", LongType(), required=False))
GRACES = Graces(metadata_ms=120_000, files_ms=600_000)
Json = dict[str, Any]


class _Deletes(_Writer):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


@dataclass
class Held:
    """A manifest as the writer knows it: live paths with their data sequence numbers."""

    file: ManifestFile
    live: dict[str, int]


@dataclass
class Clocked:
    """The lake. Time passes only on request."""

    now_ms: int = START_MS
    mono_ms: int = 5_000
    numbers: random.Random = field(default_factory=lambda: random.Random(7))
    own: ObjectStore | None = None

    def __post_init__(self) -> None:
        self.store: ObjectStore = self.own or MemoryStore(now_ms=lambda: self.now_ms)
        self.catalog = Catalog(self.store, WarehouseLayout(base=f"s3://{BUCKET}"), now_ms=lambda: self.now_ms)
        self.catalog.namespaces.create(("ns",), {})

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.mono_ms += ms

    def fork(self) -> Clocked:
        """A copy with the same objects at the same time; changes to either lake do not affect the other."""
        assert isinstance(self.store, MemoryStore)
        other = Clocked(now_ms=self.now_ms, mono_ms=self.mono_ms)
        assert isinstance(other.store, MemoryStore)
        other.store._objects = dict(self.store._objects)
        return other

    def reaper(self, store: ObjectStore | None = None, graces: Graces = GRACES) -> Reaper:
        return Reaper(
            store or self.store,
            manifest_audit,
            bucket=BUCKET,
            graces=graces,
            mono_ms=lambda: self.mono_ms,
            wall_ms=lambda: self.now_ms,
            new_id=lambda: f"{self.numbers.getrandbits(64):016x}",
        )

    def table(self, name: str = "t", **properties: str) -> Writer:
        slot = TableIdentifier.of(("ns",), name)
        wanted = CreateTableRequest(
            schema=SCHEMA.model_dump(by_alias=True, mode="json"), properties=properties
        )
        self.catalog.tables.create(slot, wanted)
        return Writer(self, slot)

    # -- the auditor

    def missing(self) -> list[str]:
        """Objects that a live table references, in any kept snapshot or its log, but the store lacks."""
        return [key for key in self.reachable() if self.store.get(key) is None]

    def reachable(self) -> Iterator[str]:
        for entry in list(self.store.list("catalog/v1/pointers/")):
            pointer = self.json(entry.key)
            if pointer["state"] != "live":
                continue
            yield _key(pointer["metadata-location"])
            metadata = self.json(_key(pointer["metadata-location"]))
            yield from (_key(e["metadata-file"]) for e in metadata["metadata-log"])
            yield from (_key(e["statistics-path"]) for e in metadata.get("statistics") or ())
            seen: set[str] = set()
            for snapshot in metadata["snapshots"]:
                yield _key(snapshot["manifest-list"])
                listed = self.store.get(_key(snapshot["manifest-list"]))
                for manifest in read_list(listed.data) if listed is not None else ():
                    if manifest.manifest_path in seen:
                        continue
                    seen.add(manifest.manifest_path)
                    yield _key(manifest.manifest_path)
                    data = self.store.get(_key(manifest.manifest_path))
                    entries = file_entries(data.data, added_snapshot_id=None, trace=None) if data else ()
                    yield from (_key(e.path) for e in entries)

    def left(self) -> list[str]:
        """Unreachable objects below the warehouse."""
        reached = set(self.reachable())
        return [entry.key for entry in self.store.list("warehouse/") if entry.key not in reached]

    def bytes(self, prefix: str = "") -> int:
        return sum(entry.size_bytes for entry in self.store.list(prefix))

    def keys(self, part: str) -> list[str]:
        return [entry.key for entry in self.store.list("") if part in entry.key]

    def json(self, key: str) -> Json:
        stored = self.store.get(key)
        assert stored is not None, key
        value: Json = metadata_json.loads(stored.data)
        return value


class Writer:
    """Table changes as engines make them: append, delete, rewrite, merge, deletion vectors, roll back."""

    def __init__(self, lake: Clocked, slot: TableIdentifier) -> None:
        self.lake = lake
        self.slot = slot
        self.manifests: dict[int | None, list[Held]] = {None: []}
        meta = self.meta()
        self.root: str = meta["location"]
        self.folder = _key(self.root)

    def meta(self) -> Json:
        return self.lake.catalog.tables.load(self.slot).parsed

    @property
    def head(self) -> int | None:
        current = self.meta()["current-snapshot-id"]
        return None if current == -1 else current

    def live(self) -> list[str]:
        return [path for held in self.manifests[self.head] for path in held.live]

    def append(self, files: int = 1, *, merge_at: int = 16) -> int:
        held = self._merged(list(self.manifests[self.head]), merge_at)
        return self._commit("append", [*held, self._new(dict.fromkeys(self._files(files), 0))])

    def append_known(self, *paths: str) -> int:
        """Append files that exist, as `add_files` does, and a cherry-picked snapshot."""
        return self._commit("append", [*self.manifests[self.head], self._new(dict.fromkeys(paths, 0))])

    def delete(self, *paths: str) -> int:
        """Remove files: their manifests are rewritten without them, with DELETED entries, as engines do."""
        left = [self._without(held, set(paths)) for held in self.manifests[self.head]]
        return self._commit("delete", [held for held in left if held is not None])

    def compact(self, count: int = 3, *, newest: bool = False) -> int:
        """Replace some files, or the newest, by one that has their lowest sequence number."""
        chosen = {p: s for held in self.manifests[self.head] for p, s in held.live.items()}
        if newest:
            some = dict(sorted(chosen.items(), key=lambda pair: pair[1])[-count:])
        else:
            some = dict(self.lake.numbers.sample(sorted(chosen.items()), min(count, len(chosen))))
        left = [self._without(held, set(some)) for held in self.manifests[self.head]]
        fresh = self._new(dict.fromkeys(self._files(1), min(some.values(), default=0)))
        return self._commit("replace", [*(held for held in left if held is not None), fresh])

    def vectors(self, count: int = 2) -> int:
        """Write deletion vectors for some files, all in one Puffin file."""
        puffin = self._put(f"{self.root}/data/{self._name()}.puffin")
        held = [*self.manifests[self.head], self._new({puffin: 0}, deletes=True)]
        return self._commit("overwrite", held)

    def statistics(self, snapshot_id: int | None = None) -> str:
        snapshot_id = self.head if snapshot_id is None else snapshot_id
        path = self._put(f"{self.root}/metadata/{self._name()}.stats")
        statistics = {
            "snapshot-id": snapshot_id,
            "statistics-path": path,
            "file-size-in-bytes": 9,
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
        self.update({"action": "set-statistics", "snapshot-id": snapshot_id, "statistics": statistics})
        return path

    def ref(self, name: str, snapshot_id: int, kind: str = "tag") -> None:
        self.update(
            {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id}
        )

    def expire(self, *ids: int) -> None:
        self.update({"action": "remove-snapshots", "snapshot-ids": list(ids)})

    def update(self, *updates: Json) -> None:
        self.lake.catalog.tables.commit(self.slot, [], list(updates))

    # -- parts

    def _commit(self, operation: str, held: list[Held]) -> int:
        meta, parent = self.meta(), self.head
        number = self.lake.numbers.getrandbits(60)
        sequence = meta["last-sequence-number"] + 1
        for one in held:
            if one.file._data[4] == -1:
                one.file._data[4] = sequence
                one.live = {path: known or sequence for path, known in one.live.items()}
                one.file._data[5] = min(one.live.values(), default=sequence)
        out = _MemoryOutput(f"{self.root}/metadata/snap-{number}-{self._name()}.avro")
        with AvroOutputFile[ManifestFile](
            output_file=out,
            record_schema=MANIFEST_LIST_FILE_SCHEMAS[3],
            file_schema=MANIFEST_LIST_FILE_SCHEMAS[2],
            schema_name="manifest_file",
            metadata={},
        ) as writer:
            writer.write_block([ManifestFile(*([*one.file._data] + [None] * 16)[:16]) for one in held])
        self.lake.store.put(_key(out.location), out.data, if_absent=True)
        snapshot = {
            "snapshot-id": number,
            **({"parent-snapshot-id": parent} if parent is not None else {}),
            "sequence-number": sequence,
            "timestamp-ms": self.lake.now_ms,
            "manifest-list": out.location,
            "summary": {"operation": operation, "total-files-size": "9", "filler": "x" * 500},
            "schema-id": 0,
        }
        self.lake.catalog.tables.commit(
            self.slot,
            [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}],
            [
                {"action": "add-snapshot", "snapshot": snapshot},
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
            ],
        )
        self.manifests[number] = held
        return number

    def _new(
        self, live: dict[str, int], *, deletes: bool = False, gone: tuple[str, ...] = (), old: bool = False
    ) -> Held:
        out = _MemoryOutput(f"{self.root}/metadata/{self._name()}-m0.avro")
        kind = _Deletes if deletes else _Writer
        writer = kind(UNPARTITIONED_PARTITION_SPEC, SCHEMA, out, 1, 2)
        with writer:
            for path, sequence in live.items():
                status = ManifestEntryStatus.EXISTING if old else ManifestEntryStatus.ADDED
                writer.add_entry(_entry(status, path, sequence or None, deletes))
            for path in gone:
                writer.add_entry(_entry(ManifestEntryStatus.DELETED, path, 1, deletes))
        self.lake.store.put(_key(out.location), out.data, if_absent=True)
        return Held(file=writer.to_manifest_file(), live=dict(live))

    def _without(self, held: Held, paths: set[str]) -> Held | None:
        if not paths & set(held.live):
            return held
        left = {path: sequence for path, sequence in held.live.items() if path not in paths}
        return self._new(left, gone=tuple(sorted(paths & set(held.live))), old=True)

    def _merged(self, held: list[Held], merge_at: int) -> list[Held]:
        for size in (merge_at, merge_at**2):
            small = [one for one in held if size // merge_at <= len(one.live) < size]
            small = [one for one in small if one.file.content is ManifestContent.DATA]
            if len(small) >= merge_at:
                live = {path: sequence for one in small for path, sequence in one.live.items()}
                return [*(one for one in held if one not in small), self._new(live, old=True)]
        return held

    def _files(self, count: int) -> list[str]:
        return [self._put(f"{self.root}/data/{self._name()}.parquet") for _ in range(count)]

    def _put(self, path: str) -> str:
        self.lake.store.put(_key(path), b"some rows", if_absent=True)
        return path

    def _name(self) -> str:
        return f"{self.lake.numbers.getrandbits(96):024x}"


def _entry(status: ManifestEntryStatus, path: str, sequence: int | None, deletes: bool) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=1,
        sequence_number=sequence,
        file_sequence_number=sequence,
        data_file=DataFile.from_args(
            _table_format_version=3,
            content=DataFileContent.POSITION_DELETES if deletes else DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=9,
        ),
    )


def _key(location: str) -> str:
    return location.removeprefix(f"s3://{BUCKET}/")
