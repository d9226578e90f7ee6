"""The commit loop: one logical commit, as many attempts as it takes, in the table at most once.

Each attempt looks at one version of the table, lets the change judge it (already in, refused, or what to
append), and sends a commit that holds only if that very version is still the head. The outcomes (I3):

- committed: done.
- conflict: somebody was first. Look again; the payload is made anew with a new idempotency key.
- unknown: wait, look again. If the change is in the ancestry it is done. If the head has not moved, the same
  payload goes out again with the same key; at most one of the two can match the base.

Nothing is deleted, whatever happens: files that no snapshot names are the reaper's.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from pyiceberg.manifest import ManifestFile

from tarn.adapters.catalog_client import (
    CommitConflict,
    CommitDone,
    CommitOutcome,
    CommitUnknown,
    TableCatalog,
    TableName,
    backoff_s,
)
from tarn.adapters.files import WrittenFile
from tarn.adapters.manifests import Manifests
from tarn.adapters.write_schema import WriteSchema, is_current
from tarn.core.errors import TarnError, UnavailableError
from tarn.core.history import Retention
from tarn.core.table_state import COMMIT_ID_KEY, Append, CommitRequest, TableState, build_commit

log = structlog.get_logger()

WARN_EVERY_ATTEMPTS = 10
COMMITTED_LOOK_BACK_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The change is in the table.

    Attributes:
        state: a version of the table that holds it.
        by_us: whether a request of this very commit put it there.
        attempts: requests sent.
    """

    state: TableState
    by_us: bool
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsReplan:
    """The change does not fit the table and is not in it: plan again from the table's own state."""

    state: TableState
    reason: str


CommitResult = Done | NeedsReplan


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """A change's verdict: what it wants is in this version already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """A change's verdict: it cannot be put on this version."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A change's verdict: put this on exactly this version."""

    summary: Mapping[str, str]


class Change(Protocol):
    """One logical commit."""

    @property
    def commit_id(self) -> str:
        """The same for all attempts."""

    @property
    def table_uuid(self) -> str:
        """The table that it was planned for."""

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """Data files to add; they are in the store."""

    @property
    def tag(self) -> str:
        """The tag that moves to the new snapshot."""

    @property
    def since(self) -> str:
        """The property that is set with the first such commit."""

    def on(self, state: TableState) -> Covered | Unfit | Fit:
        """Judges one version of the table. Pure.

        Raises:
            DataError: going on would lose or double rows.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What the commit loop calls; time, ids and the random number generator are arguments.

    Attributes:
        sleep: waits; raises to give up when the process is asked to stop.
        now_ms: wall time in milliseconds.
        new_key: an idempotency key, a UUIDv7.
        new_snapshot_id: a positive 63-bit number.
        chance: for jitter.
    """

    sleep: Callable[[float], None] = time.sleep
    now_ms: Callable[[], int] = field(default=lambda: time.time_ns() // 1_000_000)
    new_key: Callable[[], str]
    new_snapshot_id: Callable[[], int]
    chance: random.Random = field(default_factory=random.SystemRandom)


class Committer:
    """Commits changes to one table. Not safe for several threads; several of them are safe beside each other.

    Args:
        catalog: where the table is.
        table: its name.
        manifests: writes manifests and lists.
        ports: time, ids, chance.
        retention: which snapshots stay, where the table's properties do not say.
        on_wait: told why before each wait, for the status page.
    """

    def __init__(
        self,
        catalog: TableCatalog,
        table: TableName,
        manifests: Manifests,
        *,
        ports: Ports,
        retention: Retention | None = None,
        on_wait: Callable[[str], None] = lambda _reason: None,
    ) -> None:
        self._catalog = catalog
        self._table = table
        self._manifests = manifests
        self._ports = ports
        self._retention = retention or Retention()
        self._on_wait = on_wait
        self._last: TableState | None = None

    def load(self) -> TableState:
        """The table as it is now; remembered as the base of the next first attempt.

        Raises:
            NoSuchTableError: it does not exist.
            UnavailableError: no answer.
        """
        self._last = self._catalog.load(self._table)
        return self._last

    def commit(self, change: Change, layout: WriteSchema) -> CommitResult:
        """Puts the change into the table, once; returns only when that is certain, one way or the other.

        The first attempt may build on the version that the last answer showed: if that is not the head any
        more, the catalog refuses it.

        Raises:
            DataError: from the change's judgement; or stored state contradicts itself.
            NoSuchTableError, InvalidError, AccessError: waiting does not help.
        """
        snapshot_id = self._ports.new_snapshot_id()
        manifest: ManifestFile | None = None
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
                if isinstance(verdict, Covered):
                    return Done(state=state, by_us=False, attempts=attempts)
                if isinstance(verdict, Unfit):
                    return NeedsReplan(state=state, reason=verdict.reason)
                if not is_current(layout, state):
                    return NeedsReplan(
                        state=state, reason="the table's columns or partitions changed meanwhile"
                    )
                if sent is None or sent[2] != state.head_id:
                    if manifest is None:
                        manifest = self._manifests.write_manifest(
                            layout, state.root, change.files, snapshot_id=snapshot_id
                        )
                    request = self._request(change, verdict, state, manifest, snapshot_id, layout)
                    sent = (request, self._ports.new_key(), state.head_id)
                attempts += 1
                outcome: CommitOutcome = self._catalog.commit(self._table, sent[0], key=sent[1])
            except UnavailableError as e:
                state, waits = None, waits + 1
                self._wait(e.message, waits)
                continue
            if isinstance(outcome, CommitDone):
                self._last = outcome.state
                return Done(state=outcome.state, by_us=True, attempts=attempts)
            state, waits = None, waits + 1
            if isinstance(outcome, CommitConflict):
                sent = None
                log.info("commit conflict", table=str(self._table), attempt=attempts, reason=outcome.reason)
                self._pause(min(waits, 6))
            else:
                self._unknown(outcome, attempts)
                self._wait(outcome.reason, waits)

    def _settled(self, change: Change, state: TableState, attempts: int) -> Done | None:
        """Whether an earlier request of this commit is in the ancestry: asked before anything else (I3)."""
        if attempts == 0:
            return None
        for seen, snapshot in enumerate(state.ancestors()):
            if snapshot.get("summary", {}).get(COMMIT_ID_KEY) == change.commit_id:
                return Done(state=state, by_us=True, attempts=attempts)
            if seen >= COMMITTED_LOOK_BACK_MAX:
                break
        return None

    def _request(
        self,
        change: Change,
        fit: Fit,
        state: TableState,
        manifest: ManifestFile | None,
        snapshot_id: int,
        layout: WriteSchema,
    ) -> CommitRequest:
        written = self._manifests.write_manifest_list(
            state, manifest, snapshot_id=snapshot_id, schema=layout.schema
        )
        files = change.files
        append = Append(
            commit_id=change.commit_id,
            summary=fit.summary,
            tag=change.tag,
            since=change.since,
            files=len(files),
            records=sum(f.records for f in files),
            bytes=sum(f.bytes for f in files),
            partitions=len({f.partition for f in files}),
        )
        return build_commit(
            state,
            append,
            snapshot_id=snapshot_id,
            manifest_list=written.path,
            added_rows=written.added_rows,
            now_ms=self._ports.now_ms(),
            retention=self._retention,
        )

    def _unknown(self, outcome: CommitUnknown, attempts: int) -> None:
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


def describe(error: TarnError) -> dict[str, object]:
    """An error as log fields."""
    return {"error": type(error).__name__, "reason": error.message}
