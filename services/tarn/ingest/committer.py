"""The commit loop: logical commits, any number of attempts, each applied to the table at most once.

Each attempt reads one version of the table, lets the changes judge it (what to append, already committed, or
rejected) and sends a commit that requires this version to be the current snapshot. The outcomes (I3):

- committed: done.
- conflict: another writer won. Back off, unless the catalog keeps the next turn for this one; reload the
  table; rebuild the payload with a new idempotency key.
- unknown: back off and reload. A change that is in the ancestry is committed. If the current snapshot is
  unchanged, resend the same payload with the same key; at most one of the two requests can match the base.

Several changes are committed as one snapshot, and fail or succeed each for itself (`tarn.ingest.group`).
Nothing is ever deleted here: unreferenced files are left to the reaper.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from tarn.core.errors import AlreadyExistsError, NoSuchTableError, NotFoundError, UnavailableError
from tarn.core.history import Retention
from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import CommitDone, TableCatalog, TableName
from tarn.core.table_files import FilesNotLiveError, SnapshotFiles, TableWriter, WrittenList
from tarn.core.table_state import Append, CommitRequest, Json, TableState, build_commit
from tarn.ingest.changes import Change, CommitResult, Done, NeedsReplan
from tarn.ingest.group import Draft, Member, draft_on, settle_committed
from tarn.ingest.silent_streams import with_silent

__all__ = ["Change", "CommitResult", "Committer", "Done", "NeedsReplan", "Ports", "backoff_s"]

log = structlog.get_logger()

WARN_EVERY_ATTEMPTS = 10
MEMBERS_MAX = 64
TURNS_MAX = 3
"""Reserved turns in a row that are taken without a pause before them."""


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
    """Commits changes to one table; several committers may work on one table concurrently.

    Not thread-safe, but for `load`, `ensure` and `alter`.

    Args:
        catalog: catalog of the table.
        table: table identifier.
        ports: time, ids and the random number generator.
        retention: default snapshot retention, where the table's properties set none.
        on_wait: called with the reason before each wait in `commit`, for the status page.
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
        self._lock = threading.Lock()
        self._last: TableState | None = None
        self._writer: TableWriter | None = None

    def ensure(self, request: Json) -> TableState:
        """See `TableCommits.ensure`."""
        try:
            return self._catalog.load(self._table)
        except NoSuchTableError:
            pass
        try:
            state = self._create(request)
        except AlreadyExistsError:
            return self._catalog.load(self._table)
        log.info("table created", table=str(self._table), uuid=state.uuid)
        return state

    def _create(self, request: Json) -> TableState:
        """Create the table; its namespace only if there is none, which takes a right on what contains it."""
        try:
            return self._catalog.create(self._table, request)
        except NotFoundError:
            self._catalog.create_namespace(self._table.namespace)
        return self._catalog.create(self._table, request)

    def load(self) -> TableState:
        """See `TableCommits.load`; the newest known result is the base of the next first attempt."""
        state = self._catalog.load(self._table)
        self._remember(state)
        return state

    def alter(self, request: CommitRequest) -> TableState:
        """See `TableCommits.alter`; the result is the base of the next first attempt."""
        outcome = self._catalog.commit(self._table, request, key=self._ports.new_key())
        if isinstance(outcome, CommitDone):
            self._remember(outcome.state)
            return outcome.state
        self._on_refusal(outcome)
        raise UnavailableError(
            f"table {self._table} could not be altered: {outcome.reason}; it is looked at again",
            table=str(self._table),
        )

    def commit(self, change: Change, writer: TableWriter) -> CommitResult:
        """See `TableCommits.commit`.

        The first attempt may build on the version in the previous response; if that is no longer current, the
        catalog rejects it.
        """
        member = Member(
            change=change,
            writer=writer,
            on_wait=self._on_wait,
            on_refusal=self._on_refusal,
            on_retry=self._on_retry,
            on_resolved=self._on_resolved,
        )
        self.commit_all([member])
        return settled(member)

    def commit_all(
        self,
        members: Sequence[Member],
        *,
        leader: Member | None = None,
        on_settled: Callable[[], None] = lambda: None,
        on_wait: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        """Commit each of the changes at most once, together if they allow it; return when all are settled.

        Or when the leader was given up, whose thread this is: the others stay open, and may have been sent.

        A change that does not fit, or whose own judgement fails, is settled for itself. If the catalog
        refuses a snapshot of several for another reason than its base, each is sent alone.

        Args:
            members: changes with files in the store; one that was sent before is looked for first.
            leader: the one of them whose reader makes the commit; None: it makes it until all are settled.
            on_settled: called after some of them were settled.
            on_wait: called with the reason before each wait, as is `on_wait` of the open members.

        Raises:
            Exception: the process was asked to stop (`Ports.sleep`); open members stay open.
        """
        attempt = _Attempt()
        with self._lock:
            state = None if any(member.attempts for member in members) else self._last
        fresh, waits, overtaken, members_max = False, 0, 0, MEMBERS_MAX
        turn, turns = None, 0
        while _open(members) and not (leader is not None and isinstance(leader.result, BaseException)):
            try:
                if state is None:
                    state, fresh = self.load(), True
            except UnavailableError as e:
                waits += 1
                self._wait(e.message, waits, _open(members), on_wait)
                continue
            except Exception as e:  # noqa: BLE001 - raised to whoever handed the changes over
                _settle_all(_open(members), e)
            else:
                settle_committed(_open(members), state)
            left = _open(members)
            _tell_resolved(members)
            if len(left) < len(members):
                on_settled()
            if not left or state is None:
                return
            if not attempt.may_be_resent(left, state):
                draft = draft_on(left, state, fresh=fresh, members_max=members_max)
                if draft.append is None:
                    state = None if draft.stale else state
                    continue
                attempt = self._attempt(draft, state, attempt)
            try:
                outcome = self._send(attempt, state, overtaken, turn)
            except UnavailableError as e:
                state, waits = None, waits + 1
                self._wait(e.message, waits, left, on_wait)
            except FilesNotLiveError as e:
                for member in attempt.members:
                    member.result = NeedsReplan(state=state, reason=str(e))
            except Exception as e:  # noqa: BLE001 - raised to whoever handed the change over
                if not fresh:
                    # No requirement names all that may have changed since, as the format version.
                    log.info("commit refused; it is made again", table=str(self._table), reason=str(e))
                elif len(attempt.members) == 1:
                    _settle_all(attempt.members, e)
                else:
                    log.warning(
                        "a snapshot of several commits was refused; each is sent alone",
                        table=str(self._table),
                        members=len(attempt.members),
                        reason=str(e),
                    )
                    members_max = 1
                attempt, state = _Attempt(), None
            else:
                if isinstance(outcome, CommitDone):
                    state, fresh, waits, overtaken = outcome.state, True, 0, 0
                    turn, turns = None, 0
                    self._remember(state)
                    for number, member in enumerate(attempt.members):
                        member.result = Done(
                            state=state,
                            by_us=True,
                            attempts=member.attempts,
                            first=number == 0,
                            listed=attempt.listed,
                        )
                    continue
                state, waits = None, waits + 1
                attempt.members[0].on_refusal(outcome)
                if isinstance(outcome, Conflict):
                    attempt.request, overtaken = None, overtaken + 1
                    log.info("commit conflict", table=str(self._table), attempt=waits, reason=outcome.reason)
                    # A turn that comes to nothing again and again: something else is slow.
                    turns = turns + 1 if outcome.turn is not None else 0
                    turn = outcome.turn if turns <= TURNS_MAX else None
                    self._pause(0 if turn is not None else min(waits, 6), left)
                else:
                    attempt.members[0].unknowns += 1
                    for member in attempt.members:
                        member.doubtful = True
                    self._unknown(outcome, waits)
                    self._wait(outcome.reason, waits, left, on_wait)
        _tell_resolved(members)
        on_settled()

    def _attempt(self, draft: Draft, state: TableState, before: _Attempt) -> _Attempt:
        """The next request; the manifest and the snapshot's id stay while its members are the same."""
        if self._writer is None or not self._writer.is_current(state):
            # One writer for the snapshots of all: it remembers the manifests of the last ones.
            self._writer = draft.members[0].writer
        same = before.members == draft.members and before.files is not None
        # An id in the metadata is taken: its snapshot was committed and rolled back since.
        if not same or state.has_snapshot(before.snapshot_id):
            before = _Attempt(members=draft.members, snapshot_id=self._ports.new_snapshot_id())
            before.files = self._writer.snapshot(
                [file for member in draft.members for file in member.change.files],
                snapshot_id=before.snapshot_id,
                removed=[file for member in draft.members for file in member.change.removed],
            )
        before.append, before.request, before.base = draft.append, None, (state.uuid, state.head_id)
        return before

    def _send(
        self, attempt: _Attempt, state: TableState, overtaken: int, turn: str | None
    ) -> CommitDone | Conflict | Unknown:
        if attempt.request is None:
            assert attempt.append is not None
            assert attempt.files is not None
            attempt.listed = written = attempt.files.write_manifest_list(state)
            now_ms = self._ports.now_ms()
            request = build_commit(
                state,
                with_silent(state, attempt.append, now_ms=now_ms, retention=self._retention),
                snapshot_id=attempt.snapshot_id,
                manifest_list=written.path,
                added_rows=written.added_rows,
                now_ms=now_ms,
                retention=self._retention,
            )
            attempt.request = replace(request, overtaken=overtaken, turn=turn)
            attempt.key = self._ports.new_key()
        again = next((member for member in attempt.members if member.attempts), None)
        if again is not None:
            again.on_retry()
        for member in attempt.members:
            member.attempts += 1
        return self._catalog.commit(self._table, attempt.request, key=attempt.key)

    def _remember(self, state: TableState) -> None:
        """Keep the newest version that is known as the base of the next first attempt."""
        with self._lock:
            known = self._last
            if known is None or known.uuid != state.uuid or known.last_sequence <= state.last_sequence:
                self._last = state

    def _unknown(self, outcome: Unknown, attempts: int) -> None:
        log.warning(
            "commit outcome unknown; looking for it before anything else",
            table=str(self._table),
            attempt=attempts,
            reason=outcome.reason,
        )

    def _wait(
        self, reason: str, waits: int, members: Sequence[Member], on_wait: Callable[[str], None]
    ) -> None:
        for member in members:
            member.on_wait(reason)
        on_wait(reason)
        if waits % WARN_EVERY_ATTEMPTS == 0:
            log.warning("commit still waiting", table=str(self._table), waits=waits, reason=reason)
        self._pause(waits, members)

    def _pause(self, waits: int, members: Sequence[Member]) -> None:
        """Wait, unless all of these changes were given up by those who handed them over.

        Args:
            waits: number of the wait; 0 for one that takes no time.
            members: the changes.
        """
        for member in members:
            try:
                member.require_going()
            except Exception as e:  # noqa: BLE001 - raised to whoever handed the change over
                member.result = e
        if _open(members):
            self._ports.sleep(backoff_s(waits, chance=self._ports.chance) if waits else 0.0)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """The request that is sent, or sent again.

    Attributes:
        members: the changes that it holds.
        append: what it appends.
        snapshot_id: id of its snapshot.
        files: manifests of its snapshot.
        listed: its manifest list.
        request: the request; None if it must be made first.
        key: its idempotency key.
        base: UUID of the table, and the snapshot that it builds on.
    """

    members: list[Member] = field(default_factory=list)
    append: Append | None = None
    snapshot_id: int = 0
    files: SnapshotFiles | None = None
    listed: WrittenList | None = None
    request: CommitRequest | None = None
    key: str = ""
    base: tuple[str, int | None] = ("", None)

    def may_be_resent(self, left: Sequence[Member], state: TableState) -> bool:
        """Whether the very request may still be applied to this version of the table.

        Not if its snapshot is in the metadata: it was committed and rolled back since, and its id is taken.
        """
        return (
            self.request is not None
            and self.base == (state.uuid, state.head_id)
            and not state.has_snapshot(self.snapshot_id)
            and all(member in left for member in self.members)
        )


def settled(member: Member) -> CommitResult:
    """The result of a settled member.

    Raises:
        Exception: its commit failed with this one.
    """
    if isinstance(member.result, Exception) and member.doubtful:
        raised = member.in_doubt(member.result)
        if raised is not member.result:
            raise raised from member.result
    if isinstance(member.result, BaseException):
        raise member.result
    assert member.result is not None, "asked for the result of an open commit"
    return member.result


def _open(members: Sequence[Member]) -> list[Member]:
    return [member for member in members if member.result is None]


def _tell_resolved(members: Sequence[Member]) -> None:
    """Count the unknown outcomes of members whose result is known by now; of a failed one it is not."""
    for member in members:
        if member.unknowns and isinstance(member.result, Done | NeedsReplan):
            member.on_resolved(member.unknowns)
            member.unknowns = 0


def _settle_all(members: Sequence[Member], error: BaseException) -> None:
    for member in members:
        member.result = error


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
