"""`tarn fsck`: a read-only integrity check of the whole lake while writers are active."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any

from tarn.core.audit.manifests import ManifestReader
from tarn.core.audit.model import Finding, Kind, Table, letters_of, locations
from tarn.core.audit.names import judge_names
from tarn.core.audit.offsets import (
    LetterFacts,
    Stand,
    judge_letters,
    judge_offsets,
    judge_streams,
    letter_facts,
    stands,
)
from tarn.core.audit.tables import judge_table, version_of
from tarn.core.catalog_objects import VIEW, PointerValue
from tarn.core.errors import TarnError
from tarn.core.object_store import BulkStore
from tarn.core.reading import is_reader_key
from tarn.core.write_keys import is_key_object
from tarn.keeper.hold import held
from tarn.keeper.register import Register, read_register
from tarn.keeper.walk import READERS, Places, Stray, Walker

WAREHOUSE_PREFIX = "warehouse/"
HEALTH_PREFIX = "warehouse/_health/"
TELL_EVERY_S = 5.0
AGAIN_S = 2.0

Tell = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Report:
    """Result of an integrity check.

    Attributes:
        namespaces: number of namespaces.
        tables: number of tables.
        tombstones: number of tombstones.
        snapshots: number of snapshots.
        files: number of referenced files below `warehouse/`.
        bytes: total size of the referenced files.
        orphans: number of unreferenced files below `warehouse/`.
        orphan_bytes: total size of the unreferenced files.
        findings: damage and notes.
        streams: offsets of every ingested stream.
        seconds: duration.
    """

    namespaces: int = 0
    tables: int = 0
    tombstones: int = 0
    snapshots: int = 0
    files: int = 0
    bytes: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    streams: list[Stand] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def damage(self) -> list[Finding]:
        """Findings that are damage."""
        return [finding for finding in self.findings if finding.damage]

    @property
    def notes(self) -> list[Finding]:
        """Findings that are no damage but worth knowing."""
        return [finding for finding in self.findings if not finding.damage]

    def data(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "clean": not self.damage,
            "namespaces": self.namespaces,
            "tables": self.tables,
            "tombstones": self.tombstones,
            "snapshots": self.snapshots,
            "files": self.files,
            "bytes": self.bytes,
            "orphans": self.orphans,
            "orphan_bytes": self.orphan_bytes,
            "seconds": round(self.seconds, 2),
            "findings": [finding_data(found) for found in self.findings],
            "streams": [stand_data(stand) for stand in self.streams],
        }


def finding_data(found: Finding) -> dict[str, Any]:
    """A finding as JSON."""
    return {
        "severity": "damage" if found.damage else "note",
        "kind": found.kind.value,
        "where": found.where,
        "what": found.what,
        "do": found.fix,
    }


def stand_data(stand: Stand) -> dict[str, Any]:
    """A stream's position as JSON."""
    source = stand.map.source
    return {
        "table": stand.table,
        "stream": stand.stream,
        "cluster": source.cluster,
        "topic": source.topic,
        "topic_id": source.topic_id,
        "next": {str(partition): offset for partition, offset in stand.map.next.items()},
    }


class Index:
    """Size of every object below `warehouse/`, and whether it is referenced; about 100 bytes per object."""

    def __init__(self, store: BulkStore, places: Places) -> None:
        self._store = store
        self._places = places
        self._sizes: dict[int, int] = {}

    def load(self, strays: dict[str, tuple[int, list[Stray]]], tell: Tell) -> None:
        """List the warehouse once, collecting metadata files of higher versions than the current one.

        Args:
            strays: metadata folder to (current version, list that receives the newer files).
            tell: called with progress messages.
        """
        told_s = time.monotonic()
        for entry in self._store.list(WAREHOUSE_PREFIX):
            if entry.key.startswith(HEALTH_PREFIX) or is_reader_key(entry.key) or is_key_object(entry.key):
                continue
            self._sizes[_digest(entry.key)] = entry.size_bytes
            if entry.key.endswith(".metadata.json"):
                found = strays.get(entry.key.rpartition("/")[0])
                if found is not None and (version_of(entry.key) or 0) > found[0]:
                    found[1].append((self._places.location(entry.key), entry.modified_ms))
            if time.monotonic() - told_s > TELL_EVERY_S:
                told_s = time.monotonic()
                tell(f"{len(self._sizes)} objects listed")

    def size(self, location: str) -> int | None:
        """Size in bytes of the object at a location; objects not in the listing are looked up singly."""
        key = self._places.key(location)
        if key is None:
            return None
        digest = _digest(key)
        found = self._sizes.get(digest)
        if found is None:
            opened = self._store.open(key, bytes_max=0)
            if opened is None:
                return None
            found = self._sizes[digest] = opened.size_bytes
        return found if found >= 0 else -found - 1

    def reach(self, location: str) -> int | None:
        """Mark a location as referenced; returns its size in bytes the first time, else None."""
        key = self._places.key(location)
        found = self._sizes.get(_digest(key)) if key is not None else None
        if key is None or found is None or found < 0:
            return None
        self._sizes[_digest(key)] = -found - 1
        return found

    def unreached(self) -> tuple[int, int]:
        """Number and total size in bytes of unreferenced objects."""
        left = [size for size in self._sizes.values() if size >= 0]
        return len(left), sum(left)


def fsck(
    store: BulkStore,
    manifests: ManifestReader,
    *,
    bucket: str,
    tell: Tell,
    sleep: Callable[[float], None] = time.sleep,
) -> Report:
    """Check the whole lake; a damaged table never keeps the others from being checked.

    Args:
        store: object store of the lake.
        manifests: reader of manifests.
        bucket: bucket of the lake.
        tell: called with progress messages.
        sleep: waits, in seconds.

    Raises:
        UnavailableError: the store does not respond.
        AccessError: the store denies access.
    """
    began_s = time.monotonic()
    places = Places(bucket)
    report = Report()
    with held(store, "fsck", tell=tell), ThreadPoolExecutor(max_workers=READERS) as pool:
        register = read_register(store, pool, sleep=sleep)
        names = _names(register)
        if any(finding.damage for finding in names):
            # A concurrent rename or drop causes this for a moment; only what persists is reported.
            sleep(AGAIN_S)
            register = read_register(store, pool, sleep=sleep)
            names = _names(register)
        live = register.live
        report.namespaces = sum(value.state != "dropped" for value in register.namespaces.values())
        report.tombstones = len(register.pointers) - len(live)
        report.findings += [*register.findings, *names]
        tell(f"{len(live)} tables; listing the warehouse")
        index = Index(store, places)
        strays = _folders(live, places)
        index.load(strays, tell)
        walker = Walker(store, manifests, places, pool)
        letters: list[LetterFacts] = []
        told_s = time.monotonic()
        for number, pointer in enumerate(live):
            if time.monotonic() - told_s > TELL_EVERY_S:
                told_s = time.monotonic()
                tell(f"table {number + 1} of {len(live)}: {pointer.text}")
            found = _one(store, walker, index, places, pointer, strays, report, letters)
            report.findings += _guarded(pointer, found)
        for facts in letters:
            report.findings += _letters(facts, letters, index)
    report.orphans, report.orphan_bytes = index.unreached()
    report.seconds = time.monotonic() - began_s
    return report


def _names(register: Register) -> list[Finding]:
    return list(judge_names(register.pointers, register.namespaces, register.claims, register.keys))


def _one(
    store: BulkStore,
    walker: Walker,
    index: Index,
    places: Places,
    pointer: PointerValue,
    strays: dict[str, tuple[int, list[Stray]]],
    report: Report,
    letters: list[LetterFacts],
) -> Iterator[Finding]:
    """Yield all findings about one table or view."""
    report.tables += 1
    if pointer.kind == VIEW:
        problem = walker.check_view(pointer)
        if problem is not None:
            yield problem
        size = index.reach(pointer.metadata or "")
        if size is not None:
            report.files += 1
            report.bytes += size
        return
    found = walker.read(pointer, _still(store, pointer, strays, places))
    if isinstance(found, Finding):
        yield found
        return
    # First: what the table names is no orphan, whatever else is wrong with it.
    reached = _guarded(pointer, _reach(found, index, places, report))
    judged = _guarded(pointer, _judge(found, index, report, letters))
    yield from dict.fromkeys([*reached, *judged])


def _guarded(pointer: PointerValue, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield the findings; an error that nobody expects is one more, as metadata may have any shape."""
    try:
        yield from findings
    except TarnError:
        raise
    except Exception as error:  # noqa: BLE001 - reported, and the next table is looked at
        yield Finding(
            kind=Kind.METADATA_UNREADABLE,
            where=pointer.text,
            what=f"{pointer.metadata} cannot be judged: {type(error).__name__}: {error}",
            fix="restore a backup; if engines read the table without trouble, report this as a defect",
        )


def _judge(table: Table, index: Index, report: Report, letters: list[LetterFacts]) -> Iterator[Finding]:
    report.snapshots += len(table.snapshots)
    yield from judge_table(table, index.size)
    yield from judge_offsets(table)
    yield from judge_streams(table)
    letters.append(letter_facts(table))
    report.streams += stands(table)


def _letters(facts: LetterFacts, tables: list[LetterFacts], index: Index) -> Iterator[Finding]:
    """Yield all findings about the dead letters that one table names."""
    try:
        yield from judge_letters(facts, tables, index.size)
    except TarnError:
        raise
    except Exception as error:  # noqa: BLE001 - any table names what its writers chose: the next one is looked at
        yield Finding(
            kind=Kind.LETTERS,
            where=facts.table,
            what=f"its dead letters cannot be judged: {type(error).__name__}: {error}",
            fix="report this as a defect",
        )


def _reach(table: Table, index: Index, places: Places, report: Report) -> Iterator[Finding]:
    elsewhere = []
    for location in chain(locations(table), (letter.path for letter in letters_of(table))):
        size = index.reach(location)
        if size is not None:
            report.files += 1
            report.bytes += size
        elif places.key(location) is None:
            elsewhere.append(location)
    if elsewhere:
        yield Finding(
            kind=Kind.ELSEWHERE,
            where=table.name,
            what=f"{len(elsewhere)} files are not in {places.warehouse} or have names that no object can "
            f"have: {elsewhere[0]}",
            fix="they are neither looked at nor in a backup: copy the table into the warehouse, or remove "
            "what names them",
        )


def _folders(live: list[PointerValue], places: Places) -> dict[str, tuple[int, list[Stray]]]:
    """Metadata folder of every table to (version of its current metadata file, empty list)."""
    found: dict[str, tuple[int, list[Stray]]] = {}
    for pointer in live:
        key = places.key(pointer.metadata or "")
        version = version_of(pointer.metadata or "")
        if key is not None and version is not None:
            found[key.rpartition("/")[0]] = (version, [])
    return found


def _still(
    store: BulkStore, pointer: PointerValue, strays: dict[str, tuple[int, list[Stray]]], places: Places
) -> list[Stray]:
    """Newer metadata files of a table whose pointer has not moved since; a table with commits has none."""
    key = places.key(pointer.metadata or "")
    found = strays.get((key or "").rpartition("/")[0])
    if found is None or not found[1]:
        return []
    now = store.get(pointer.key)
    needle = (pointer.metadata or "").encode()
    return sorted(found[1]) if now is not None and needle in now.data else []


def _digest(key: str) -> int:
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
