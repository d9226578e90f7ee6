"""`tarn backup`: the catalog's state as of one moment, and all objects that it references, as one stream.

Later commits are neither included nor a problem: all objects but pointers are written once and never changed.
Pointers are read first, so the objects they reference existed before; they are written last, so a copy that
has a pointer is complete. Pages of request keys come first: the catalog itself removes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from typing import IO, Any, TypeVar

from tarn.core.audit.manifests import ManifestReader
from tarn.core.audit.model import Finding, Kind, Table, locations
from tarn.core.audit.names import keys_to_copy
from tarn.core.audit.offsets import LetterFacts, letter_facts, letters_needed, stands
from tarn.core.catalog_objects import VIEW, PointerValue
from tarn.core.control.declared import SPECS_PREFIX
from tarn.core.errors import TarnError
from tarn.core.object_store import PART_BYTES, BulkStore, ObjectBody
from tarn.core.reading import FOLDER, is_reader_key
from tarn.keeper.archive import Begin, End, Writer
from tarn.keeper.fsck import Tell, stand_data
from tarn.keeper.hold import held
from tarn.keeper.register import CATALOG_BYTES_MAX, read_register
from tarn.keeper.walk import READERS, Places, Walker, in_order

TELL_EVERY_S = 5.0
MIB = 1024 * 1024
PARTS_AHEAD = 4
LEFT_OUT = "what it names is not in the backup; scripts/tarn fsck tells more"
COPIED = "its files are in the backup; scripts/tarn fsck says more"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a backup.

    Attributes:
        end: the closing record.
        findings: tables of which something could not be copied, and objects that a restore would not take.
        seconds: duration.
    """

    end: End
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether the backup has everything that the lake references."""
        return not self.end.missing and not self.findings

    @property
    def mib_per_s(self) -> float:
        """Throughput in MiB/s."""
        return self.end.bytes / MIB / max(self.seconds, 1e-3)


def backup(
    store: BulkStore,
    manifests: ManifestReader,
    out: IO[bytes],
    begin: Begin,
    *,
    tell: Tell,
    sleep: Callable[[float], None] = time.sleep,
    on_register: Callable[[], None] = lambda: None,
) -> Done:
    """Write everything that the lake references to a stream; bounded memory, concurrent reads.

    Args:
        store: object store of the lake.
        manifests: reader of manifests.
        out: output stream.
        begin: first record of the archive.
        tell: called with progress messages.
        sleep: waits, in seconds.
        on_register: called once the pointers have been read; for tests.

    Raises:
        UnavailableError: the store does not respond.
        OSError: the stream cannot be written.
    """
    began_s = time.monotonic()
    with held(store, "backup", tell=tell), ThreadPoolExecutor(max_workers=READERS) as pool:
        register = read_register(store, pool, sleep=sleep)
        on_register()
        places = Places(begin.bucket)
        room = CATALOG_BYTES_MAX - sum(map(len, register.objects.values()))
        copy = _Copy(store, Writer(out, begin), pool, tell, began_s, room)
        walker = Walker(store, manifests, places, pool)
        findings = list(register.findings)
        streams: list[dict[str, Any]] = []
        letters: list[LetterFacts] = []
        tables = 0
        # First, as the catalog removes pages that have been merged since: a quarter of an hour later.
        copy.at = "remembered requests"
        copy.pages({*register.pages, *register.needed}, register.needed, places)
        copy.at = "declared ingestors"
        # Before the positions of readers: whoever may write a table must not use up their room.
        copy.below(SPECS_PREFIX)
        for number, pointer in enumerate(register.live, start=1):
            copy.at = f"table {number} of {len(register.live)}, {pointer.text}"
            if pointer.kind == VIEW:
                tables += 1
                copy.objects((pointer.metadata or "",), places, pointer.text)
                continue
            named = _read(walker, pointer)
            if isinstance(named, Finding):
                findings.append(named)
                continue
            tables += 1
            findings += named.findings
            streams += named.streams
            copy.objects(named.files, places, pointer.text)
            copy.positions(places.key(named.root))
            letters += named.letters
        copy.at = "dead letters"
        copy.objects(letters_needed(letters), places, copy.at)
        findings += copy.left_out
        copy.at = "catalog"
        for key in keys_to_copy(list(register.objects)):
            copy.data(key, register.objects[key])
        end = copy.writer.close(tables=tables, missing=copy.missing, streams=streams)
    unnamed = len(streams) - len(end.streams)
    if unnamed:
        tell(
            f"the closing record has no room for the positions of {unnamed} streams; "
            "scripts/tarn fsck prints all of them"
        )
    return Done(end=end, findings=tuple(findings), seconds=time.monotonic() - began_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """What a table names: its files, the positions of its streams, dead letters; and what cannot be read."""

    root: str
    files: Sequence[str]
    findings: Sequence[Finding]
    streams: Sequence[dict[str, Any]]
    letters: Sequence[LetterFacts]


def _read(walker: Walker, pointer: PointerValue) -> _Named | Finding:
    """What the table names, or why nothing of it can be copied."""

    def reached() -> tuple[Table, Sequence[str], str] | Finding:
        found = walker.read(pointer)
        return found if isinstance(found, Finding) else (found, tuple(locations(found)), found.root)

    read = _guarded(pointer, "nothing of it is in the backup", LEFT_OUT, reached)
    if isinstance(read, Finding):
        return read
    table, files, root = read
    findings = [
        Finding(kind=Kind.UNREADABLE, where=pointer.text, what=f"{at}: {why}", fix=LEFT_OUT)
        for at, why in table.unreadable.items()
    ]
    what = "the closing record has no position of its streams"
    streams = _guarded(pointer, what, COPIED, lambda: [stand_data(stand) for stand in stands(table)])
    if isinstance(streams, Finding):
        findings.append(streams)
        streams = []
    what = "its dead letters are in the backup only as far as other tables name them"
    letters = _guarded(pointer, what, COPIED, lambda: [letter_facts(table)])
    if isinstance(letters, Finding):
        findings.append(letters)
        letters = []
    return _Named(root=root, files=files, findings=findings, streams=streams, letters=letters)


def _guarded(pointer: PointerValue, what: str, fix: str, read: Callable[[], T]) -> T | Finding:
    """The result, or why there is none: nothing that a writer put into a table ends the backup.

    Args:
        pointer: the table.
        what: what is not in the backup without the result.
        fix: what to do then.
        read: reads the table.
    """
    try:
        return read()
    except TarnError:
        raise
    except Exception as error:  # noqa: BLE001 - reported, and the next table is copied
        return Finding(
            kind=Kind.METADATA_UNREADABLE,
            where=pointer.text,
            what=f"{what}: {pointer.metadata}: {type(error).__name__}: {error}",
            fix=fix,
        )


class _Copy:
    """Copies objects into the archive, in order, while the next ones are read."""

    def __init__(
        self,
        store: BulkStore,
        writer: Writer,
        pool: ThreadPoolExecutor,
        tell: Tell,
        began_s: float,
        room: int,
    ) -> None:
        self._store = store
        self.writer = writer
        self._pool = pool
        self._tell = tell
        self._began_s = self._told_s = began_s
        self._seen: set[bytes] = set()
        self.at = ""
        self.missing: list[str] = []
        self.left_out: list[Finding] = []
        self._room = room

    def objects(self, wanted: Iterable[str], places: Places, where: str) -> None:
        """Copy what lies at locations.

        Args:
            wanted: the locations.
            places: locations of the bucket.
            where: what names them, for findings.
        """

        def read(location: str) -> ObjectBody | Exception | None:
            key = places.key(location)
            try:
                return self._store.open(key) if key is not None else None
            except TarnError:
                raise
            except Exception as error:  # noqa: BLE001 - reported, and the next object is copied
                return error

        # Bounds the number of objects, of up to one part each, held in memory at once.
        fresh = (location for location in wanted if self._first(places.key(location) or location))
        for location, opened in in_order(self._pool, fresh, read, ahead=2 * READERS):
            key = places.key(location)
            if isinstance(opened, Exception):
                what = f"{location} is not in the backup: {type(opened).__name__}: {opened}"
                self.left_out.append(Finding(kind=Kind.UNREADABLE, where=where, what=what, fix=LEFT_OUT))
                continue
            if opened is None or key is None:
                self.missing.append(location)
                continue
            self._object(key, opened)

    def pages(self, keys: Collection[str], needed: Collection[str], places: Places) -> None:
        """Copy the catalog's pages of request keys; of those that nothing needs, as far as they are there."""
        for key, opened in in_order(self._pool, sorted(keys), self._store.open, ahead=2 * READERS):
            if opened is not None:
                self._object(key, opened)
            elif key in needed:
                self.missing.append(places.location(key))

    def _object(self, key: str, opened: ObjectBody) -> None:
        parts = iter((opened.data,)) if opened.data is not None else self._parts(key, opened.size_bytes)
        self.writer.add(key, opened.size_bytes, parts)
        self._progress()

    def _first(self, name: str) -> bool:
        """Whether the key is new: two tables may list one dead-letter file. 60 bytes per object."""
        digest = blake2b(name.encode(), digest_size=12).digest()
        if digest in self._seen:
            return False
        self._seen.add(digest)
        return True

    def positions(self, root: str | None) -> None:
        """Copy the positions of the readers of a table with this key."""
        if root:
            self.below(f"{root.rstrip('/')}/{FOLDER}/", is_reader_key)

    def below(self, prefix: str, held: Callable[[str], bool] = lambda _: True) -> None:
        """Copy the objects below a prefix that are small, as each of Tarn's own is.

        Whoever may write a table can put others there.

        Args:
            prefix: key prefix.
            held: whether a restore holds the object of this key in memory, for which its room is limited; it
                writes all others as files.
        """
        for entry in self._store.list(prefix):
            if not self._first(entry.key):
                continue
            most = min(PART_BYTES, self._room) if held(entry.key) else PART_BYTES
            if entry.size_bytes > most:
                what = f"it has {entry.size_bytes} bytes, there is room for {most}: it is not in the backup"
                self.left_out.append(
                    Finding(kind=Kind.UNREADABLE, where=entry.key, what=what, fix="find out who wrote it")
                )
                continue
            stored = self._store.get(entry.key)
            if stored is not None:
                if held(entry.key):
                    self._room -= len(stored.data)
                self.data(entry.key, stored.data)

    def data(self, key: str, data: bytes) -> None:
        self.writer.add(key, len(data), iter((data,)))
        self._progress()

    def _parts(self, key: str, size: int) -> Iterator[bytes]:
        """Yield the parts of a large object in order, reading a few parts ahead."""
        waiting: list[Future[bytes]] = []
        for start in range(0, size, PART_BYTES):
            waiting.append(self._pool.submit(self._store.part, key, start, min(start + PART_BYTES, size)))
            if len(waiting) > PARTS_AHEAD:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()

    def _progress(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= TELL_EVERY_S:
            self._told_s = now_s
            rate = self.writer.bytes / MIB / (now_s - self._began_s)
            self._tell(
                f"{self.at}: {self.writer.objects} objects, {self.writer.bytes / MIB:.0f} MiB, "
                f"{rate:.0f} MiB/s"
            )
