"""The reaper: the only component that deletes table files, and only those that no kept snapshot reaches (I7).

One pass per table: walk the chain of metadata files; write what only the expiring ones reference to a
candidate list, then delete them, oldest first; of lists whose grace period has passed, delete what nothing
references, data before manifests before manifest lists, then the list. A pass killed anywhere is continued by
the next one. Two reapers at once do no harm.
"""

from __future__ import annotations

import time
import uuid
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from weakref import WeakValueDictionary

import orjson
import structlog

from tarn.core.audit.manifests import ManifestReader
from tarn.core.catalog_objects import PointerValue, ReadObject, parse_claim, parse_pointer
from tarn.core.digests import digest
from tarn.core.errors import CorruptStateError, TarnError
from tarn.core.metadata_json import JSON_BYTES_MAX
from tarn.core.naming import CLAIMS_PREFIX, POINTERS_PREFIX
from tarn.core.object_store import Listed, ReapedStore, Stored, StoreTooLargeError
from tarn.core.reap import (
    CLOCK_KEY,
    HOLD_MS,
    HOLD_SUFFIX,
    HOLDS_PREFIX,
    LISTS_PREFIX,
    MARKS_PREFIX,
    MEASURED_KEY,
    METADATA_SUFFIX,
    PURGED_PREFIX,
    REAPER_PREFIX,
    Candidates,
    Full,
    ListedManifest,
    Removed,
    Trust,
    Version,
    dead_manifests,
    file_key,
    folder_of,
    holders,
    key_within,
    read_candidates,
    read_full,
    same_name,
    sampled,
)
from tarn.core.write_keys import FILE_PREFIX, NEEDED_MS

log = structlog.get_logger()

CHAIN_MAX = 50_000
"""Maximum number of metadata files of one table to walk back; earlier ones are kept."""
RETIRED_MAX = 500
BURIED_LISTS_MAX = 200
WAITING_MAX = 12_000
"""Maximum number of manifest lists of one table that are read while their grace period has not passed."""
LISTS_REMEMBERED_MAX = 30_000
"""Enough for each of them to be read once, not in each pass: 15 minutes of 33 commits a second."""
FILES_REMEMBERED_MAX = 3_000_000
"""Eight bytes each. What does not fit is read again in each pass."""
LOOK_AGAIN_MS = 5_000
FOLLOWED_MAX = 200
"""Maximum number of metadata files that are read to see that the history only advanced: each names about
twenty before it, so a pass of three minutes is followed at twenty commits a second."""
DELETED_TOGETHER_MAX = 100
"""Maximum number of objects in one request to delete: the pointer is read again between two."""
PURGED_PER_PASS_MAX = 5_000
KEYS_EVERY_MS = 60_000
KEYS_PER_PASS_MAX = 5_000
MEASURE_EVERY_MS = 5 * 60_000
MEASURE_SHARE = 50
"""Measuring takes at most one part in this many of the time."""


class Moved(Exception):  # noqa: N818 - not an error: the next pass goes on
    """The table changed since this pass read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graces:
    """How long unreferenced objects are kept.

    Attributes:
        metadata_ms: metadata files, in milliseconds from the write of their successor; the catalog and
            backups read them.
        files_ms: all other files, in milliseconds from their entry in a list; readers may still use them.
    """

    metadata_ms: int = 2 * 60_000
    files_ms: int = 15 * 60_000


@dataclass(slots=True, kw_only=True)
class Pass:
    """Result of one pass: numbers of objects deleted by kind, and the tables that failed."""

    tables: int = 0
    metadata: int = 0
    manifest_lists: int = 0
    manifests: int = 0
    data: int = 0
    statistics: int = 0
    keys: int = 0
    purged: int = 0
    lists: int = 0
    held: bool = False
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def deleted(self) -> int:
        """Number of table objects deleted."""
        return (
            self.metadata
            + self.manifest_lists
            + self.manifests
            + self.data
            + self.statistics
            + self.keys
            + self.purged
        )


@dataclass(slots=True)
class _Table:
    """What is remembered of a table between passes; all of it can be read again."""

    full: Full
    chain: list[Version]
    known_ms: int
    """Monotonic time at which the newest of the chain was read."""
    measured_ms: int | None = None
    measure_ms: int = 0
    keys_ms: int | None = None


@dataclass(slots=True)
class _Claim:
    """What is remembered of a claim between passes, unless its purge is done.

    Attributes:
        etag: its entity tag.
        known_ms: monotonic time at which it was found, in milliseconds.
        idle: whether it says no purge, and no transaction on it is open: it is not read again.
    """

    etag: str
    known_ms: int
    idle: bool = False


class Reaper:
    """Deletes unreferenced files. Not thread-safe; several processes may run concurrently.

    Args:
        store: object store of the lake, with the reaper's own privileges.
        manifests: reader of manifests.
        bucket: bucket of the lake, or its folder as a location (`file:///…`).
        graces: grace periods.
        measures: whether the sizes of tables are recorded, for `tarn status`.
        json_bytes_max: longest JSON of a compressed metadata file.
        mono_ms: monotonic time in milliseconds.
        wall_ms: this machine's wall-clock time, in milliseconds since the epoch.
        new_id: generates a unique name.
    """

    def __init__(
        self,
        store: ReapedStore,
        manifests: ManifestReader,
        *,
        bucket: str,
        graces: Graces | None = None,
        measures: bool = True,
        json_bytes_max: int = JSON_BYTES_MAX,
        mono_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._store = store
        self._reader = manifests
        self._bucket = bucket
        self._graces = graces or Graces()
        self._measures = measures
        self._json_bytes_max = json_bytes_max
        self._mono_ms = mono_ms
        self._wall_ms = wall_ms
        self._new_id = new_id
        self._trust = Trust()
        self._tables: dict[str, _Table] = {}
        self._pointers: dict[str, tuple[str, PointerValue]] = {}
        self._claims: dict[str, _Claim] = {}
        self._manifests: OrderedDict[str, tuple[ListedManifest, ...]] = OrderedDict()
        self._one: WeakValueDictionary[str, ListedManifest] = WeakValueDictionary()
        self._contents_known: dict[str, Removed] = {}
        self._lists_known_ms: dict[str, int] = {}
        self._live: OrderedDict[str, array[int]] = OrderedDict()
        self._live_count = 0
        self._measured: dict[str, dict[str, int | str | None]] = {}

    def run_once(self) -> Pass:
        """Run one pass over all tables; a table that fails is recorded and does not affect the others.

        Raises:
            UnavailableError: the store does not respond.
            ForbiddenError: the reaper's user lacks permission.
        """
        done = Pass()
        own = self._look()
        if self._held(own):
            done.held = True
            return done
        lists = self._lists(own)
        named = {one.key for some in lists.values() for one in some}
        self._contents_known = {key: value for key, value in self._contents_known.items() if key in named}
        marks = {entry.key for entry in own if entry.key.startswith(MARKS_PREFIX)}
        pointers = self._read_pointers()
        live: dict[str, PointerValue] = {}
        twice: set[str] = set()
        for pointer in pointers:
            if pointer.live and pointer.kind == "table":
                other = live.get(pointer.uuid)
                # A rename that ended in between leaves its former name with the intent to go.
                if other is not None and other.intent is None and pointer.intent is None:
                    twice.add(pointer.uuid)
                if other is None or other.intent is not None:
                    live[pointer.uuid] = pointer
        for uuid_, pointer in live.items():
            done.tables += 1
            if uuid_ in twice:
                done.failed[pointer.text] = (
                    f"another name has its uuid {uuid_} too, so nothing of either is deleted; run "
                    "scripts/tarn fsck"
                )
                continue
            try:
                if pointer.intent is None:
                    self._table(pointer, lists.get(uuid_, []), marks, done)
            except Moved:
                continue
            except CorruptStateError as error:
                done.failed[pointer.text] = error.message
            except TarnError:
                raise
            except Exception as error:  # noqa: BLE001 - files of any content: the next table is looked at
                done.failed[pointer.text] = _unexpected(error)
        self._purge(own, {pointer.uuid for pointer in pointers if pointer.live}, lists, done)
        for gone in set(self._tables) - set(live):
            self._forget(self._tables.pop(gone).full)
        if self._measures:
            self._measure(live, lists)
        return done

    # -- time, holds, lists

    def _look(self) -> list[Listed]:
        """List everything below the reaper's own prefix, and read the store's time on the way."""
        self._store.put(CLOCK_KEY, orjson.dumps({"format": 1, "nonce": self._new_id()}))
        own = list(self._store.list(REAPER_PREFIX))
        store_ms = next(entry.modified_ms for entry in own if entry.key == CLOCK_KEY)
        odd = self._trust.look(store_ms=store_ms, mono_ms=self._mono_ms(), wall_ms=self._wall_ms())
        if odd is not None:
            log.warning("clock is odd; nothing is deleted for a grace", reason=odd)
        return own

    def _held(self, own: Iterable[Listed]) -> bool:
        return any(
            entry.key.startswith(HOLDS_PREFIX)
            and entry.key.endswith(HOLD_SUFFIX)
            and not self._trust.lapsed(entry.modified_ms, HOLD_MS)
            for entry in own
        )

    def _lists(self, own: Iterable[Listed]) -> dict[str, list[Candidates]]:
        """Candidate lists by table UUID, oldest first; contents are read on demand."""
        found: dict[str, list[Candidates]] = {}
        known, now_ms = self._lists_known_ms, self._mono_ms()
        self._lists_known_ms = {}
        for entry in own:
            if entry.key.startswith(LISTS_PREFIX):
                table = entry.key.removeprefix(LISTS_PREFIX).partition("/")[0]
                self._lists_known_ms[entry.key] = known.get(entry.key, now_ms)
                found.setdefault(table, []).append(
                    Candidates(
                        key=entry.key, uuid=table, root="", removed=Removed(), modified_ms=entry.modified_ms
                    )
                )
        return found

    def _read(self, listed: Candidates) -> Candidates | None:
        stored = _whole(self._store, listed.key)
        return None if stored is None else read_candidates(listed.key, stored.data, listed.modified_ms)

    def _read_pointers(self) -> list[PointerValue]:
        found: dict[str, tuple[str, PointerValue]] = {}
        for entry in self._store.list(POINTERS_PREFIX):
            known = self._pointers.get(entry.key)
            # What an undecided intent becomes does not change the pointer, but another object.
            if known is None or known[0] != entry.etag or known[1].intent is not None:
                stored = self._store.get(entry.key)
                if stored is None:
                    continue
                try:
                    known = (stored.etag, parse_pointer(entry.key, stored.data, _reading(self._store)))
                except CorruptStateError as error:
                    log.warning("pointer cannot be read", key=entry.key, reason=error.message)
                    continue
            found[entry.key] = known
        self._pointers = found
        return [value for _, value in found.values()]

    # -- one table

    def _table(self, pointer: PointerValue, lists: list[Candidates], marks: set[str], done: Pass) -> None:
        assert pointer.metadata is not None, pointer.key
        table = self._walk(pointer, f"{MARKS_PREFIX}{pointer.uuid}.json" in marks)
        if folder_of(table.full.root, bucket=self._bucket, uuid=pointer.uuid) is None:
            return
        guard = _Guard(self._store, pointer, self._bucket, self._mono_ms, self._json_bytes_max)
        fresh = self._retire(pointer, table, guard, done)
        if not table.full.keeps_files:
            self._bury(table, lists, fresh, guard, done)
            self._forget_keys(pointer.uuid, table, done)

    def _walk(self, pointer: PointerValue, marked: bool) -> _Table:
        """The table with its chain of metadata files, newest first; reads only what the last pass did not.

        Raises:
            Moved: its metadata file is gone: the pointer is outdated.
            CorruptStateError: its metadata file is unreadable.
        """
        known, now_ms, store_ms = self._tables.get(pointer.uuid), self._mono_ms(), self._trust.now_ms
        assert pointer.metadata is not None, pointer.key
        if known is not None and known.chain[0].location == pointer.metadata:
            return known
        mark = self._mark(pointer.uuid) if marked else None
        chain: list[Version] = []
        first: Full | None = None
        newer: Full | None = None
        at: str | None = pointer.metadata
        while at is not None and at != mark and len(chain) < CHAIN_MAX:
            root = first.root if first is not None else None
            key = key_within(at, bucket=self._bucket, root=root or at.rpartition("/metadata/")[0])
            try:
                stored = _whole(self._store, key) if key is not None else None
                if stored is None:
                    break
                full = read_full(stored.data, at, bytes_max=self._json_bytes_max)
            except CorruptStateError as error:
                if first is None:
                    raise
                log.warning("earlier metadata cannot be read", path=at, reason=error.message)
                break
            if full.uuid != pointer.uuid:
                break
            version = Version(
                location=at,
                modified_ms=stored.modified_ms,
                bytes=len(stored.data),
                removed=full.less(newer) if newer is not None else Removed(),
            )
            chain.append(version if not chain else version.before(chain[-1], now_ms=store_ms))
            first = first or full
            if known is not None and at == known.chain[0].location:
                for version in known.chain[1:]:
                    chain.append(version.before(chain[-1], now_ms=store_ms))
                break
            newer, at = full, full.previous
        if first is None:
            raise Moved
        if len(chain) >= CHAIN_MAX:
            log.warning("more earlier metadata than are walked back; the oldest stay", table=pointer.text)
        table = _Table(full=first, chain=chain, known_ms=now_ms)
        if known is not None:
            table.measured_ms, table.measure_ms = known.measured_ms, known.measure_ms
            table.keys_ms = known.keys_ms
        self._tables[pointer.uuid] = table
        return table

    def _mark(self, table_uuid: str) -> str | None:
        stored = self._store.get(f"{MARKS_PREFIX}{table_uuid}.json")
        return None if stored is None else str(orjson.loads(stored.data)["metadata"])

    def _retire(self, pointer: PointerValue, table: _Table, guard: _Guard, done: Pass) -> list[Candidates]:
        """Delete the oldest metadata files, after listing what only they reference.

        Never deleted are the current file, files in its metadata log, and files younger than the grace
        period.

        Returns:
            The candidate list that was written, if any.
        """
        chain, full = table.chain, table.full
        due = 0
        while due < RETIRED_MAX and due < len(chain) - 1:
            version, successor = chain[-1 - due], chain[-2 - due]
            old = self._trust.passed(successor.modified_ms, self._graces.metadata_ms, known_ms=table.known_ms)
            if not old or (version.location in full.log and not full.keeps_metadata):
                break
            due += 1
        if due == 0:
            return []
        oldest = chain[len(chain) - due :][::-1]
        removed = Removed.all_of(version.removed for version in oldest)
        fresh: list[Candidates] = []
        if removed and not full.keeps_files:
            key = f"{LISTS_PREFIX}{full.uuid}/{self._trust.now_ms:015}-{self._new_id()}.json"
            listed = Candidates(key=key, uuid=full.uuid, root=full.root, removed=removed)
            self._store.put(key, listed.dump(), if_absent=True)
            done.lists += 1
            fresh.append(replace(listed, modified_ms=self._trust.now_ms))
        if full.keeps_metadata:
            mark = orjson.dumps({"format": 1, "metadata": oldest[-1].location})
            self._store.put(f"{MARKS_PREFIX}{full.uuid}.json", mark)
        for version in oldest:
            if not full.keeps_metadata:
                key_ = key_within(version.location, bucket=self._bucket, root=full.root)
                if key_ is not None and key_.endswith(METADATA_SUFFIX):
                    guard.check()
                    self._store.delete(key_)
                    done.metadata += 1
            chain.pop()
        return fresh

    def _bury(
        self, table: _Table, lists: list[Candidates], fresh: list[Candidates], guard: _Guard, done: Pass
    ) -> None:
        """Delete what was removed a grace period ago, unless something still references it.

        Removed objects are on candidate lists or, as with a table without further commits, still in the
        chain.
        """
        chain, full = table.chain, table.full
        grace_ms = self._graces.files_ms
        # Not only the first ones: names of lists from a clock that was ahead come last.
        ripe = [
            one
            for one in lists
            if self._trust.passed(one.modified_ms, grace_ms, known_ms=self._lists_known_ms[one.key])
        ][:BURIED_LISTS_MAX]
        old = [
            number
            for number in range(1, len(chain))
            if chain[number].removed
            and self._trust.passed(chain[number - 1].modified_ms, grace_ms, known_ms=table.known_ms)
        ]
        if not ripe and not old:
            return
        due = Removed.all_of([*self._contents(ripe), *(chain[number].removed for number in old)])
        seen = set(old)
        chosen = {one.key for one in ripe}
        later = self._contents([*(one for one in lists if one.key not in chosen), *fresh])
        others = (version.removed for number, version in enumerate(chain) if number not in seen)
        waiting = Removed.all_of([*later, *others])
        if any(listed is None for listed in full.snapshots.values()):
            return
        kept = self._names(str(listed) for listed in full.snapshots.values())
        back = {number for number in due.snapshots if number in full.snapshots}
        gone = self._names(listed for number, listed in due.snapshots.items() if number not in back)
        still = self._names(waiting.snapshots.values()) - kept
        gone -= kept | still
        of_kept = [self._listed(path, needed=True) for path in kept]
        # Neighbours share nearly everything, so a sample is enough if they are too many. Nothing reachable
        # depends on it.
        of_waiting = [self._listed(path, needed=False) for path in sampled(still, WAITING_MAX)]
        of_gone = (self._listed(path, needed=False, waiting=False) for path in gone)
        dead = dead_manifests(of_gone, [*of_kept, *of_waiting])
        files = self._dead_files(dead, of_kept, of_waiting)
        statistics = self._names(due.statistics) - self._names([*full.statistics, *waiting.statistics])
        done.data += self._delete(files, full, guard)
        done.statistics += self._delete(statistics, full, guard)
        done.manifests += self._delete(dead, full, guard)
        done.manifest_lists += self._delete(gone, full, guard)
        for chunk in _chunks([one.key for one in ripe]):
            self._store.delete_many(chunk)
        for number in old:
            chain[number] = replace(chain[number], removed=Removed())
        for path in dead:
            self._live_count -= len(self._live.pop(path, ()))
        for path in gone:
            self._manifests.pop(path, None)

    def _forget_keys(self, table_uuid: str, table: _Table, done: Pass) -> None:
        """Delete keys of repeated writes that no gateway reads any more, by their age alone.

        No version of the table needs them longer: a gateway that finds an older entry starts without keys.
        """
        now_ms = self._mono_ms()
        if not table.full.has_keys or (table.keys_ms is not None and now_ms - table.keys_ms < KEYS_EVERY_MS):
            return
        folder = folder_of(table.full.root, bucket=self._bucket, uuid=table_uuid)
        written = self._files(f"{folder}metadata/{FILE_PREFIX}")
        old = (entry.key for entry in written if self._trust.passed(entry.modified_ms, NEEDED_MS))
        keys = list(islice(old, KEYS_PER_PASS_MAX))
        for chunk in _chunks(keys):
            self._store.delete_many(chunk)
        done.keys += len(keys)
        table.keys_ms = now_ms if len(keys) < KEYS_PER_PASS_MAX else None

    def _contents(self, lists: Iterable[Candidates]) -> Iterator[Removed]:
        """Yield the contents of candidate lists; lists never change, so each is read once."""
        for one in lists:
            known = one.removed or self._contents_known.get(one.key)
            if known is None:
                read = self._read(one)
                if read is None:
                    continue
                known = self._contents_known[one.key] = read.removed
            yield known

    def _listed(self, path: str, *, needed: bool, waiting: bool = True) -> tuple[ListedManifest, ...]:
        """The manifests of a manifest list; empty if the list is gone and not needed.

        Args:
            path: location of the list.
            needed: whether it is that of a kept snapshot.
            waiting: whether it is that of a snapshot whose grace period has not passed, if it is not needed:
                what it shares with one that is due must stay.

        Raises:
            CorruptStateError: the list of a kept snapshot is unreadable, or that of a waiting one too long:
                nothing of the table is deleted.
        """
        known = self._manifests.get(path)
        if known is None:
            try:
                data = self._get(path)
                if data is None:
                    if needed:
                        raise CorruptStateError(f"the manifest list {path} is missing")
                    return ()
                known = tuple(self._same(*found) for found in self._reader.list_sequences(data))
            except TarnError as error:
                if needed or waiting or not isinstance(error, CorruptStateError):
                    raise
                log.warning("removed manifest list cannot be read", path=path, reason=error.message)
                return ()
            except Exception as error:  # readers fail in many ways on arbitrary bytes
                if not needed:
                    log.warning("removed manifest list cannot be read", path=path, reason=repr(error))
                    return ()
                raise CorruptStateError(f"the manifest list {path} cannot be read: {error!r}") from error
            self._manifests[path] = known
            while len(self._manifests) > LISTS_REMEMBERED_MAX:
                self._manifests.popitem(last=False)
        self._manifests.move_to_end(path)
        return known

    def _same(self, path: str, sequence: int, sequence_min: int) -> ListedManifest:
        """One shared object per manifest, as neighbouring lists have nearly the same manifests."""
        path = same_name(path, self._bucket)
        found = self._one.get(path)
        if found is None:
            found = self._one[path] = ListedManifest(path, sequence, sequence_min)
        return found

    def _dead_files(
        self,
        dead: dict[str, ListedManifest],
        kept: list[tuple[ListedManifest, ...]],
        waiting: list[tuple[ListedManifest, ...]],
    ) -> dict[str, None]:
        """Files that were live in dead manifests and are in no other one.

        The others are read until every file was found live: in a table with appends only, that is the
        manifest into which the dead ones were merged.
        """
        candidates: dict[int, str] = {}
        for path in dead:
            try:
                data = self._get(path)
                if data is None:
                    continue
                entries = self._reader.file_entries(data, added_snapshot_id=None, trace=None)
            except CorruptStateError as error:
                log.warning("removed manifest cannot be read", path=path, reason=error.message)
                continue
            names = (same_name(entry.path, self._bucket) for entry in entries)
            candidates.update((digest(name), name) for name in names)
        if not candidates:
            return {}
        near = max(one.sequence for one in dead.values())
        reachable = {one.path for listed in kept for one in listed}
        others = holders(kept, waiting, dead.values())
        for manifest in sorted(others, key=lambda m: (m.sequence < near, abs(m.sequence - near))):
            for one in self._live_in(manifest.path, needed=manifest.path in reachable):
                candidates.pop(one, None)
            if not candidates:
                break
        return dict.fromkeys(candidates.values())

    def _live_in(self, path: str, *, needed: bool) -> array[int]:
        """Digests of the live files of a manifest; none if it is gone and not needed.

        A pass that ended early may have deleted manifests of a snapshot that then waits once more.

        Raises:
            CorruptStateError: a kept manifest is missing or unreadable: nothing of the table is deleted.
        """
        known = self._live.get(path)
        if known is None:
            data = self._get(path)
            if data is None:
                if needed:
                    raise CorruptStateError(f"the manifest {path} is missing")
                return array("Q")
            entries = self._reader.file_entries(data, added_snapshot_id=None, trace=None)
            known = array("Q", (digest(same_name(entry.path, self._bucket)) for entry in entries))
            self._live[path] = known
            self._live_count += len(known)
            while self._live_count > FILES_REMEMBERED_MAX and len(self._live) > 1:
                self._live_count -= len(self._live.popitem(last=False)[1])
        self._live.move_to_end(path)
        return known

    def _forget(self, gone: Full) -> None:
        """Forget what is remembered of a table that has no name any more."""
        own = f"{LISTS_PREFIX}{gone.uuid}/"
        for key in [key for key in self._contents_known if key.startswith(own)]:
            del self._contents_known[key]
        folder = same_name(gone.root, self._bucket) + "/"
        for path in [path for path in self._manifests if path.startswith(folder)]:
            del self._manifests[path]
        for path in [path for path in self._live if path.startswith(folder)]:
            self._live_count -= len(self._live.pop(path))

    def _names(self, locations: Iterable[str]) -> set[str]:
        return {same_name(location, self._bucket) for location in locations}

    def _delete(self, locations: Iterable[str], full: Full, guard: _Guard) -> int:
        found = (key_within(location, bucket=self._bucket, root=full.root) for location in locations)
        keys = [key for key in found if key is not None and not key.endswith(METADATA_SUFFIX)]
        for chunk in _chunks(keys):
            guard.check()
            self._store.delete_many(chunk)
        return len(keys)

    def _get(self, location: str) -> bytes | None:
        """The content of a file of a table; None if it is gone, or nothing can be there.

        Raises:
            CorruptStateError: it is too long to be read whole.
        """
        key = file_key(location, bucket=self._bucket)
        stored = _whole(self._store, key) if key is not None else None
        return None if stored is None else stored.data

    # -- purged tables

    def _purge(
        self, own: Iterable[Listed], live: set[str], lists: dict[str, list[Candidates]], done: Pass
    ) -> None:
        """Delete all files of tables that were purged a grace period ago."""
        finished = {entry.key for entry in own if entry.key.startswith(PURGED_PREFIX)}
        claims: dict[str, _Claim] = {}
        for entry in self._store.list(CLAIMS_PREFIX):
            table_uuid = entry.key.removeprefix(CLAIMS_PREFIX).removesuffix(".json")
            end_key = f"{PURGED_PREFIX}{table_uuid}.json"
            if end_key in finished:
                continue
            claim = self._claims.get(entry.key)
            if claim is None or claim.etag != entry.etag:
                claim = _Claim(entry.etag, self._mono_ms())
            claims[entry.key] = claim
            if claim.idle or not self._trust.passed(
                entry.modified_ms, self._graces.files_ms, known_ms=claim.known_ms
            ):
                continue
            try:
                folder = self._purged_folder(entry.key, claim)
                if folder is None or table_uuid in live:
                    continue
                keys = [found.key for found in islice(self._files(folder), PURGED_PER_PASS_MAX)]
                for chunk in _chunks(keys):
                    self._store.delete_many(chunk)
                done.purged += len(keys)
                if len(keys) < PURGED_PER_PASS_MAX:
                    for chunk in _chunks([one.key for one in lists.get(table_uuid, [])]):
                        self._store.delete_many(chunk)
                    self._store.put(end_key, orjson.dumps({"format": 1, "table-uuid": table_uuid}))
            except TarnError:
                raise
            except Exception as error:  # noqa: BLE001 - one claim: the next one is looked at
                done.failed[entry.key] = _unexpected(error)
        self._claims = claims

    def _purged_folder(self, key: str, known: _Claim) -> str | None:
        """Key prefix of a purged table's files; None unless the claim unambiguously says so, for a grace.

        Args:
            key: key of the claim.
            known: what is remembered of it.
        """
        stored = self._store.get(key)
        if stored is None:
            return None
        young: list[bool] = []

        def record(key: str) -> bytes | None:
            found = self._store.get(key)
            if found is None:
                return None
            young.append(not self._trust.passed(found.modified_ms, self._graces.files_ms))
            return found.data

        try:
            claim = parse_claim(key, stored.data, record)
        except CorruptStateError as error:
            log.warning("claim cannot be read", key=key, reason=error.message)
            return None
        known.idle = claim.purge is None and claim.settled and stored.etag == known.etag
        if claim.purge is None or not claim.settled or claim.holder is not None or any(young):
            return None
        return folder_of(str(claim.purge.get("location")), bucket=self._bucket, uuid=claim.uuid)

    def _files(self, folder: str) -> Iterator[Listed]:
        return self._store.list(folder)

    # -- how much there is

    def _measure(self, live: dict[str, PointerValue], lists: dict[str, list[Candidates]]) -> None:
        """Measure bytes per table, for `tarn status`; larger tables are listed less often."""
        changed = False
        for table_uuid, pointer in live.items():
            table = self._tables.get(table_uuid)
            if table is None:
                continue
            now_ms = self._mono_ms()
            wait_ms = max(MEASURE_EVERY_MS, MEASURE_SHARE * table.measure_ms)
            if table.measured_ms is not None and now_ms - table.measured_ms < wait_ms:
                continue
            folder = folder_of(table.full.root, bucket=self._bucket, uuid=table_uuid)
            if folder is None:
                continue
            try:
                sizes = self._sizes(table, folder, lists.get(table_uuid, []))
            except TarnError:
                raise
            except Exception as error:  # noqa: BLE001 - one table: the next one is measured
                log.warning("a table is not measured", table=pointer.text, reason=_unexpected(error))
            else:
                self._measured[table_uuid] = {"name": pointer.text, **sizes, "at-ms": self._trust.now_ms}
                changed = True
            table.measured_ms, table.measure_ms = now_ms, self._mono_ms() - now_ms
        gone = set(self._measured) - set(live)
        for table_uuid in gone:
            del self._measured[table_uuid]
        if changed or gone:
            self._store.put(MEASURED_KEY, orjson.dumps({"format": 1, "tables": self._measured}))

    def _sizes(self, table: _Table, folder: str, lists: list[Candidates]) -> dict[str, int | None]:
        """Objects in a table's folder, and bytes: in all, of its current snapshot, to be removed."""
        objects = total = 0
        sizes: dict[str, int] = {}
        for entry in self._files(folder):
            objects += 1
            total += entry.size_bytes
            if "/metadata/snap-" in entry.key:
                sizes[entry.key.rpartition("/")[2]] = entry.size_bytes
        going = sum(version.bytes for version in table.chain if version.location not in table.full.log)
        going -= table.chain[0].bytes
        # A list that cannot be read was reported with its table; the sizes of all others do not need it.
        with suppress(CorruptStateError):
            for removed in self._contents(lists):
                going += sum(sizes.get(path.rpartition("/")[2], 0) for path in removed.snapshots.values())
        return {
            "objects": objects,
            "bytes": total,
            "live": table.full.live_bytes,
            "to-be-removed": min(going, total),
        }


class _Guard:
    """Reads the pointer again right before anything is deleted.

    Args:
        store: object store of the lake.
        pointer: the pointer that this pass read.
        bucket: bucket of the lake.
        mono_ms: monotonic time in milliseconds.
        json_bytes_max: longest JSON of a compressed metadata file.
    """

    def __init__(
        self,
        store: ReapedStore,
        pointer: PointerValue,
        bucket: str,
        mono_ms: Callable[[], int],
        json_bytes_max: int,
    ) -> None:
        self._store = store
        self._pointer = pointer
        self._bucket = bucket
        self._mono_ms = mono_ms
        self._json_bytes_max = json_bytes_max
        self._looked_ms: int | None = None

    def check(self) -> None:
        """Require that the table still has its name and that its history only advanced.

        Raises:
            Moved: it was dropped, renamed or rolled back, or a transaction on it is pending.
        """
        now_ms = self._mono_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_AGAIN_MS:
            return
        stored = self._store.get(self._pointer.key)
        if stored is None:
            raise Moved
        found = parse_pointer(self._pointer.key, stored.data, _reading(self._store))
        if not found.live or found.uuid != self._pointer.uuid or found.intent is not None:
            raise Moved
        if found.metadata != self._pointer.metadata and not self._follows(found):
            raise Moved
        self._pointer = found
        self._looked_ms = now_ms

    def _follows(self, found: PointerValue) -> bool:
        """Whether the newer metadata build on those that this pass read, or that the last look found."""
        at = found.metadata
        for _ in range(FOLLOWED_MAX):
            key = file_key(at, bucket=self._bucket) if at is not None else None
            stored = _whole(self._store, key) if key is not None else None
            if stored is None or at is None:
                return False
            full = read_full(stored.data, at, bytes_max=self._json_bytes_max)
            if self._pointer.metadata in full.log:
                return True
            at = full.log_begin
        return False


def _reading(store: ReapedStore) -> ReadObject:
    """Reads small objects of a store."""

    def read(key: str) -> bytes | None:
        stored = store.get(key)
        return None if stored is None else stored.data

    return read


def _unexpected(error: Exception) -> str:
    return f"{type(error).__name__}: {error}; run scripts/tarn fsck, and report this if it finds nothing"


def _whole(store: ReapedStore, key: str) -> Stored | None:
    """Read an object of one table, of which who may write the table chooses the name or the size.

    Raises:
        CorruptStateError: it is too long to be read.
    """
    try:
        return store.get(key)
    except StoreTooLargeError as error:
        raise CorruptStateError(error.message) from error


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(keys), DELETED_TOGETHER_MAX):
        yield keys[start : start + DELETED_TOGETHER_MAX]
