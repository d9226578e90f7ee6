"""Health checks of the catalog, and the start-up check that the store supports conditional writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import orjson
import structlog

from tarn.core.catalog_objects import RESTORE_MARKER
from tarn.core.errors import (
    AccessError,
    InvalidSettingError,
    NoSuchTableError,
    NotEmptyError,
    TarnError,
    UnavailableError,
)
from tarn.core.naming import PROBE_PREFIX
from tarn.core.object_store import (
    ObjectStore,
    StoreBusyError,
    Stored,
    StoreDeniedError,
    StoreOutcomeUnknownError,
    StoreRefusedError,
    StoreUnavailableError,
)
from tarn_catalog.metadata import table_metadata
from tarn_catalog.metadata.types import TableRequirement, TableUpdate
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.tables import Tables
from tarn_catalog.state.context import CatalogContext
from tarn_catalog.state.pointer import Pointer, PointerState

log = structlog.get_logger()

RACERS = 8
RACES = 3
WAIT_S = 0.5
LOG_EVERY_S = 5.0
SHALLOW_KEPT_S = 1.0
DEEP_ATTEMPTS_MAX = 3
HEALTH_SLOT = TableIdentifier(namespace=(), name="tarn health", key=f"{PROBE_PREFIX}health.json")


class StoreUnfitError(InvalidSettingError):
    """The store violates a guarantee that the catalog depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    store: ObjectStore
    prefix: str

    def run(self) -> None:
        self._create()
        self._swap()
        self._absent()
        for number in range(RACES):
            self._race(number)

    def _refused(self, what: str, put: Callable[[], str]) -> None:
        try:
            put()
        except StoreRefusedError:
            return
        raise StoreUnfitError(
            f"The store {self.store!r} cannot be used: {what} was accepted and must be refused; tables would "
            "lose commits. Use a store with conditional writes (MinIO, Amazon S3)"
        )

    def _holds(self, key: str, data: bytes | None, what: str) -> str:
        found = self.store.get(key)
        if (found.data if found else None) != data:
            raise StoreUnfitError(
                f"The store {self.store!r} cannot be used: after {what} it answers "
                f"{found.data if found else None!r} instead of {data!r}"
            )
        return found.etag if found else ""

    def _create(self) -> None:
        key = f"{self.prefix}/create"
        self.store.put(key, b"1", if_absent=True)
        self._refused("a second create-if-absent", lambda: self.store.put(key, b"2", if_absent=True))
        self._holds(key, b"1", "a second create-if-absent")
        self.store.delete(key)

    def _swap(self) -> None:
        key = f"{self.prefix}/swap"
        first = self.store.put(key, b"1", if_absent=True)
        second = self.store.put(key, b"2", if_match=first)
        self._refused(
            "an If-Match with a stale entity tag", lambda: self.store.put(key, b"3", if_match=first)
        )
        seen = self._holds(key, b"2", "an If-Match with a stale entity tag")
        if seen != second:
            raise StoreUnfitError(
                f"The store {self.store!r} cannot be used: a write answered entity tag {second}, a read "
                f"{seen}"
            )
        stale = Stored(data=b"1", etag=first)
        if self.store.get(key, known=stale) is stale:
            raise StoreUnfitError(
                f"The store {self.store!r} cannot be used: to a read with If-None-Match it answers that a "
                "value which was replaced has not changed; clients would not see commits"
            )
        self.store.delete(key)

    def _absent(self) -> None:
        key = f"{self.prefix}/absent"
        self._refused(
            "an If-Match on a key that is not there",
            lambda: self.store.put(key, b"1", if_match='"00000000000000000000000000000000"'),
        )
        self._holds(key, None, "an If-Match on a key that is not there")

    def _race(self, number: int) -> None:
        key = f"{self.prefix}/race-{number}"
        start = threading.Barrier(RACERS)

        def race(if_match: str | None) -> Callable[[int], int]:
            def one(racer: int) -> int:
                start.wait(timeout=10)
                try:
                    self.store.put(
                        key, f"{if_match}{racer}".encode(), if_absent=not if_match, if_match=if_match
                    )
                except StoreRefusedError:
                    return 0
                return 1

            return one

        with ThreadPoolExecutor(max_workers=RACERS) as pool:
            etag: str | None = None
            for what in ("create-if-absent", "If-Match"):
                won = sum(pool.map(race(etag), range(RACERS)))
                if won != 1:
                    raise StoreUnfitError(
                        f"The store {self.store!r} cannot be used: {won} of {RACERS} writers won a race of "
                        f"{what}, exactly 1 may"
                    )
                found = self.store.get(key)
                etag = found.etag if found else None
        self.store.delete(key)


def check_restored(store: ObjectStore) -> None:
    """Require that no restore of a backup was interrupted in this lake.

    A part of a backup would pass for a whole lake: ingest would make tables that are still to come, and the
    restore could not go on. Releases until November 2026 served such a lake, and it may have been used since:
    what their restores left is served still.

    Raises:
        NotEmptyError: one was.
        UnavailableError: the store did not answer.
    """
    marker = store.get(RESTORE_MARKER)
    if marker is None:
        return
    try:
        value = orjson.loads(marker.data)
        closed, backup = value.get("closed") is True, f"{value['id']} of {value['of']}"
    except (orjson.JSONDecodeError, AttributeError, KeyError):
        closed, backup = False, "unknown"
    if not closed:
        log.warning("a restore was interrupted here; scripts/tarn fsck says what to do", backup=backup)
        return
    raise NotEmptyError(
        f"a restore of the backup {backup} was interrupted in this lake; run scripts/down, then scripts/tarn "
        "restore with the same file again, which goes on with it; or begin with an empty lake: scripts/down "
        "--purge"
    )


def check_store(
    store: ObjectStore,
    *,
    name: str,
    wait_s_max: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until the store answers, then require that its conditional writes work as the catalog needs.

    Args:
        store: the store.
        name: unique to this call; the probe's keys start with it.
        wait_s_max: how long to wait for a store that does not answer or does not know its user yet, seconds.
        clock: monotonic clock, seconds.
        sleep: waits for a number of seconds.

    Raises:
        StoreUnfitError: a guarantee is violated; the message names it.
        UnavailableError: the store did not answer in time.
    """
    started = logged = clock()
    attempt = 0
    while True:
        attempt += 1
        try:
            _Check(store=store, prefix=f"{PROBE_PREFIX}{name}-{attempt}").run()
        except (StoreUnavailableError, StoreDeniedError, StoreOutcomeUnknownError, StoreBusyError) as e:
            waited_s = clock() - started
            if waited_s >= wait_s_max:
                raise UnavailableError(
                    f"The store {store!r} could not be used for {waited_s:.0f} s: {e.message}"
                ) from e
            if clock() - logged >= LOG_EVERY_S or attempt == 1:
                logged = clock()
                log.info("waiting for the store", waited_s=round(waited_s, 1), reason=e.message)
            sleep(WAIT_S)
        else:
            log.info("the store keeps its promises", seconds=round(clock() - started, 2), attempt=attempt)
            return


class Health:
    """Two levels of health check; neither leaves more than one pointer and one metadata file behind."""

    def __init__(
        self, core: CatalogContext, tables: Tables, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._core = core
        self._tables = tables
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: tuple[float, str | None] | None = None

    def shallow(self) -> str | None:
        """Read from the store; return the problem or None. The result is cached for one second."""
        with self._lock:
            if self._seen is not None and self._clock() - self._seen[0] < SHALLOW_KEPT_S:
                return self._seen[1]
            problem: str | None = None
            try:
                self._core.register.read(HEALTH_SLOT.key)
            except TarnError as e:
                problem = e.message
            self._seen = (self._clock(), problem)
            return problem

    def deep(self) -> str | None:
        """Commit to an internal table that users cannot name; return the problem or None."""
        problem: str | None = None
        with self._lock:
            for _ in self._core.patience.attempts(DEEP_ATTEMPTS_MAX):
                try:
                    self._commit()
                except TarnError as e:
                    # A concurrent replica may have replaced the metadata file during the read.
                    problem = e.message
                    if isinstance(e, UnavailableError | AccessError):
                        break
                else:
                    return None
        return problem

    def _commit(self) -> None:
        try:
            before = self._tables.load(HEALTH_SLOT)
        except NoSuchTableError:
            self._create()
            before = self._tables.load(HEALTH_SLOT)
        update: TableUpdate = {"action": "set-properties", "updates": {"probe": self._core.new_uuid()}}
        require: TableRequirement = {"type": "assert-table-uuid", "uuid": before.parsed["table-uuid"]}
        after = self._tables.commit(HEALTH_SLOT, [require], [update])
        if self._tables.load(HEALTH_SLOT).parsed["properties"].get("probe") is None:
            raise UnavailableError(f"the commit of {after.location} cannot be read back")
        # No user can reference the probe's table: its old metadata file can be deleted at once.
        self._core.store.delete(self._core.roots.key(before.location))

    def _create(self) -> None:
        table_uuid = self._core.new_uuid()
        meta = table_metadata.new_table(
            schema={"type": "struct", "fields": [{"id": 1, "name": "x", "type": "int", "required": False}]},
            spec=None,
            order=None,
            properties={"write.metadata.previous-versions-max": "1"},
            location=self._core.roots.location(f"{PROBE_PREFIX}health-{table_uuid}"),
            table_uuid=table_uuid,
            now_ms=self._core.now_ms(),
        )
        location = f"{meta['location']}/metadata/00000-{table_uuid}.metadata.json"
        stored = self._core.write_metadata(location, meta)
        value = replace(
            Pointer.blank(HEALTH_SLOT.namespace, HEALTH_SLOT.name),
            state=PointerState.LIVE,
            uuid=table_uuid,
            metadata=stored.location,
        )
        # On conflict another replica created the table; that one is loaded next.
        self._core.write(HEALTH_SLOT.key, value.next(self._core.stamp()), over=None)
