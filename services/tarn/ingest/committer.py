"""The commit loop: one logical commit, any number of attempts, applied to the table at most once.

Each attempt reads one version of the table, lets the change judge it (what to append, already committed, or
rejected) and sends a commit that requires this version to be the current snapshot. The outcomes (I3):

- committed: done.
- conflict: another writer won. Reload the table; rebuild the payload with a new idempotency key.
- unknown: back off and reload. If the change is in the ancestry, it is committed. If the current snapshot is
  unchanged, resend the same payload with the same key; at most one of the two requests can match the base.

Nothing is ever deleted here: unreferenced files are left to the reaper.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from tarn.core.errors import AlreadyExistsError, NoSuchTableError, UnavailableError
from tarn.core.history import Retention
from tarn.core.outcome import AlreadyCommitted, Conflict, Rejected, Unknown
from tarn.core.table_catalog import (
    CommitDone,
    CommitOutcome,
    TableCatalog,
    TableName,
)
from tarn.core.table_files import FilesNotLiveError, SnapshotFiles, TableWriter, WrittenList
from tarn.core.table_state import (
    COMMIT_ID_KEY,
    Append,
    CommitRequest,
    Json,
    TableState,
    WrittenFile,
    build_commit,
)

log = structlog.get_logger()

WARN_EVERY_ATTEMPTS = 10
COMMITTED_LOOK_BACK_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The change is committed.

    Attributes:
        state: a version of the table that includes the change.
        by_us: whether a request of this commit applied it.
        attempts: number of requests sent.
        listed: manifest list of the last request; None if another one was applied, or none was sent.
    """

    state: TableState
    by_us: bool
    attempts: int
    listed: WrittenList | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsReplan:
    """The change is not in the table and does not fit it: plan again from the table's current state."""

    state: TableState
    reason: str


CommitResult = Done | NeedsReplan


class Change(Protocol):
    """One logical commit."""

    @property
    def commit_id(self) -> str:
        """Commit id, the same for all attempts."""

    @property
    def table_uuid(self) -> str:
        """UUID of the table that the change was planned for."""

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """Data files to add; they are in the store already."""

    @property
    def removed(self) -> tuple[WrittenFile, ...]:
        """Data files to remove, whose rows `files` hold; all must be live."""

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """What to append to exactly this version of the table, or why nothing. Pure.

        Raises:
            DataError: continuing would lose or duplicate rows.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Side effects of the commit loop: time, ids and the random number generator are injected.

    Attributes:
        sleep: waits for a number of seconds; raises if the process is asked to stop.
        now_ms: wall-clock time in milliseconds since the epoch.
        new_key: generates an idempotency key, a UUIDv7.
        new_snapshot_id: generates a positive 63-bit integer.
        chance: random number generator for backoff jitter.
    """

    sleep: Callable[[float], None] = time.sleep
    now_ms: Callable[[], int] = field(default=lambda: time.time_ns() // 1_000_000)
    new_key: Callable[[], str]
    new_snapshot_id: Callable[[], int]
    chance: random.Random = field(default_factory=random.SystemRandom)


class Committer:
    """Commits changes to one table. Not thread-safe; several committers may work on one table concurrently.

    Args:
        catalog: catalog of the table.
        table: table identifier.
        ports: time, ids and the random number generator.
        retention: default snapshot retention, where the table's properties set none.
        on_wait: called with the reason before each wait, for the status page.
        on_refusal: called with each outcome that is no commit, for the metrics.
        on_retry: called before each request of a commit but the first, likewise.
        on_resolved: called with the number of unknown outcomes of a commit once its outcome is certain.
    """

    def __init__(
        self,
        catalog: TableCatalog,
        table: TableName,
        *,
        ports: Ports,
        retention: Retention | None = None,
        on_wait: Callable[[str], None] = lambda _reason: None,
        on_refusal: Callable[[Conflict | Unknown], None] = lambda _outcome: None,
        on_retry: Callable[[], None] = lambda: None,
        on_resolved: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._catalog = catalog
        self._table = table
        self._ports = ports
        self._retention = retention or Retention()
        self._on_wait = on_wait
        self._on_refusal = on_refusal
        self._on_retry = on_retry
        self._on_resolved = on_resolved
        self._last: TableState | None = None
        self._listed: WrittenList | None = None
        self._unknowns = 0

    def ensure(self, request: Json) -> TableState:
        """Load the table; create it, and its namespace, if it does not exist.

        Args:
            request: create-table request without the name.

        Raises:
            UnavailableError: the catalog does not respond.
        """
        try:
            return self._catalog.load(self._table)
        except NoSuchTableError:
            pass
        self._catalog.create_namespace(self._table.namespace)
        try:
            state = self._catalog.create(self._table, request)
        except AlreadyExistsError:
            return self._catalog.load(self._table)
        log.info("table created", table=str(self._table), uuid=state.uuid)
        return state

    def load(self) -> TableState:
        """Load the table; the result is the base of the next first attempt.

        Raises:
            NoSuchTableError: the table does not exist.
            UnavailableError: the catalog does not respond.
        """
        self._last = self._catalog.load(self._table)
        return self._last

    def alter(self, request: CommitRequest) -> TableState:
        """Send a commit that adds no snapshot, once; the result is the base of the next first attempt.

        Raises:
            UnavailableError: the catalog does not respond, another commit came first, or the outcome is
                unknown; the table then says whether anything is left to be done.
        """
        outcome = self._catalog.commit(self._table, request, key=self._ports.new_key())
        if isinstance(outcome, CommitDone):
            self._last = outcome.state
            return outcome.state
        self._on_refusal(outcome)
        raise UnavailableError(
            f"table {self._table} could not be altered: {outcome.reason}; it is looked at again",
            table=str(self._table),
        )

    def commit(self, change: Change, writer: TableWriter) -> CommitResult:
        """Commit the change at most once; return only when the outcome is certain.

        The first attempt may build on the version in the previous response; if that is no longer current, the
        catalog rejects it.

        Args:
            change: the logical commit.
            writer: writer of the change's files; the table must still have its schema and partition spec.

        Returns:
            `Done` if the table includes the change, `NeedsReplan` if it does not and cannot as planned.

        Raises:
            DataError: raised by the change's `on`, or the stored state contradicts itself.
            NoSuchTableError, InvalidError, AccessError: waiting does not help.
        """
        self._unknowns = 0
        result = self._attempt(change, writer)
        if self._unknowns:
            self._on_resolved(self._unknowns)
        return result

    def _attempt(self, change: Change, writer: TableWriter) -> CommitResult:
        """See `commit`."""
        snapshot_id = self._ports.new_snapshot_id()
        files = writer.snapshot(change.files, snapshot_id=snapshot_id, removed=change.removed)
        sent: tuple[CommitRequest, str, int | None] | None = None
        attempts = 0
        waits = 0
        state = self._last
        while True:
            try:
                if state is None:
                    state = self.load()
                if state.uuid != change.table_uuid:
                    reason = f"the table was made anew: {change.table_uuid} is {state.uuid} now"
                    return NeedsReplan(state=state, reason=reason)
                found = self._settled(change, state, attempts)
                if found is not None:
                    return found
                verdict = change.on(state)
                if isinstance(verdict, AlreadyCommitted):
                    return Done(state=state, by_us=False, attempts=attempts)
                if isinstance(verdict, Rejected):
                    return NeedsReplan(state=state, reason=verdict.reason)
                if not writer.is_current(state):
                    return NeedsReplan(
                        state=state, reason="the table's columns or partitions changed meanwhile"
                    )
                if attempts and state.has_snapshot(snapshot_id):
                    # It was committed and rolled back since: its id is taken, and it is not in the table.
                    snapshot_id, sent = self._ports.new_snapshot_id(), None
                    files = writer.snapshot(change.files, snapshot_id=snapshot_id, removed=change.removed)
                if sent is None or sent[2] != state.head_id:
                    request = self._request(verdict, state, files, snapshot_id)
                    sent = (request, self._ports.new_key(), state.head_id)
                if attempts:
                    self._on_retry()
                attempts += 1
                outcome: CommitOutcome = self._catalog.commit(self._table, sent[0], key=sent[1])
            except UnavailableError as e:
                state, waits = None, waits + 1
                self._wait(e.message, waits)
                continue
            except FilesNotLiveError as e:
                assert state is not None
                return NeedsReplan(state=state, reason=str(e))
            if isinstance(outcome, CommitDone):
                self._last = outcome.state
                return Done(state=outcome.state, by_us=True, attempts=attempts, listed=self._listed)
            state, waits = None, waits + 1
            self._on_refusal(outcome)
            if isinstance(outcome, Conflict):
                sent = None
                log.info("commit conflict", table=str(self._table), attempt=attempts, reason=outcome.reason)
                self._pause(min(waits, 6))
            else:
                self._unknown(outcome, attempts)
                self._wait(outcome.reason, waits)

    def _settled(self, change: Change, state: TableState, attempts: int) -> Done | None:
        """`Done` if an earlier request of this commit is in the ancestry; checked first of all (I3)."""
        if attempts == 0:
            return None
        for seen, snapshot in enumerate(state.ancestors()):
            if snapshot.get("summary", {}).get(COMMIT_ID_KEY) == change.commit_id:
                return Done(state=state, by_us=True, attempts=attempts)
            if seen >= COMMITTED_LOOK_BACK_MAX:
                break
        return None

    def _request(
        self, append: Append, state: TableState, files: SnapshotFiles, snapshot_id: int
    ) -> CommitRequest:
        self._listed = written = files.write_manifest_list(state)
        return build_commit(
            state,
            append,
            snapshot_id=snapshot_id,
            manifest_list=written.path,
            added_rows=written.added_rows,
            now_ms=self._ports.now_ms(),
            retention=self._retention,
        )

    def _unknown(self, outcome: Unknown, attempts: int) -> None:
        self._unknowns += 1
        log.warning(
            "commit outcome unknown; looking for it before anything else",
            table=str(self._table),
            attempt=attempts,
            reason=outcome.reason,
        )

    def _wait(self, reason: str, waits: int) -> None:
        self._on_wait(reason)
        if waits % WARN_EVERY_ATTEMPTS == 0:
            log.warning("commit still waiting", table=str(self._table), waits=waits, reason=reason)
        self._pause(waits)

    def _pause(self, waits: int) -> None:
        self._ports.sleep(backoff_s(waits, chance=self._ports.chance))


def backoff_s(attempt: int, *, base_s: float = 0.05, max_s: float = 5.0, chance: random.Random) -> float:
    """Backoff before attempt `attempt` (from 1), in seconds: doubling, capped, with jitter from 50 to 100 %.

    Args:
        attempt: number of the attempt.
        base_s: backoff of the first attempt without jitter.
        max_s: upper bound.
        chance: random number generator for the jitter.
    """
    whole = min(max_s, base_s * 2.0 ** min(attempt - 1, 20))
    return whole * (0.5 + chance.random() / 2)
