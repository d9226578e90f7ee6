"""The bookkeeper of a table: changes that wait at the same time are committed as one snapshot.

It has no thread, and no state that must survive it. Whoever hands a change over while nobody commits takes
all changes that wait and commits them; the others wait for their result. What arrives meanwhile makes the
next snapshot. So a lone reader commits as it would without a bookkeeper, and many make few commits when
commits are slow. A second bookkeeper, in another process, is a competitor like any other: slower, never
wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

from tarn.core.outcome import Conflict, Unknown
from tarn.core.table_catalog import TableName
from tarn.core.table_files import TableWriter
from tarn.core.table_state import CommitRequest, Json, TableState
from tarn.ingest.changes import Change, CommitResult
from tarn.ingest.committer import MEMBERS_MAX, Committer, settled
from tarn.ingest.group import Member
from tarn.ingest.pace import Pace, Turn

STOP_LOOK_S = 0.5
"""How often a reader that waits for another one's commit looks whether it is to stop."""


class Bookkeeper:
    """Commits the changes of all readers in this process to one table. Thread-safe.

    Args:
        committer: committer of the table.
        clock: monotonic time in seconds.
    """

    def __init__(self, committer: Committer, *, clock: Callable[[], float]) -> None:
        self._committer = committer
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: list[Member] = []
        self._leading = False
        self.pace = Pace(self._changed)

    def seat(
        self,
        *,
        on_wait: Callable[[str], None] = lambda _reason: None,
        on_refusal: Callable[[Conflict | Unknown], None] = lambda _outcome: None,
        on_retry: Callable[[], None] = lambda: None,
        on_resolved: Callable[[int], None] = lambda _count: None,
        require_going: Callable[[], None] = lambda: None,
        gather_s: float = 0.0,
        in_doubt: Callable[[Exception], Exception] = lambda error: error,
    ) -> Seat:
        """A reader's place at the bookkeeper.

        Args:
            on_wait: called with the reason before each wait, for the status page.
            on_refusal: called with each outcome that is no commit, for the metrics.
            on_retry: called before each request of a commit but the first, likewise.
            on_resolved: called with the number of unknown outcomes of a commit once its outcome is certain.
            require_going: called before each wait; what it raises ends the commit of this reader alone.
            gather_s: how long a commit of this reader waits for the files of neighbours, in seconds.
            in_doubt: makes what is raised of an error that ends a commit while an earlier request of it may
                still be applied; the error itself by default.
        """
        return Seat(
            self,
            self._committer,
            on_wait=on_wait,
            on_refusal=on_refusal,
            on_retry=on_retry,
            on_resolved=on_resolved,
            require_going=require_going,
            gather_s=gather_s,
            in_doubt=in_doubt,
        )

    def commit(self, member: Member, turn: Turn, *, gather_s: float = 0.0) -> CommitResult:
        """Commit a change at most once, with those that wait beside it; see `TableCommits.commit`.

        Args:
            member: the change.
            turn: its reader's part in the pace of the table.
            gather_s: how long to wait for neighbours whose files are on the way, in seconds.
        """
        try:
            return self._commit(member, turn, gather_s)
        finally:
            turn.settle()

    def _commit(self, member: Member, turn: Turn, gather_s: float) -> CommitResult:
        with self._changed:
            self._queue.append(member)
            turn.hand_over()
            while member.result is None and self._leading:
                self._changed.wait(STOP_LOOK_S)
                self._require_going(member)
            if member.result is not None:
                return settled(member)
            self._leading = True
        try:
            self._gather(gather_s)
            while member.result is None:
                self._commit_waiting(member)
        finally:
            with self._changed:
                self._leading = False
                self._changed.notify_all()
        return settled(member)

    def _require_going(self, member: Member) -> None:
        """Give a change up that nobody commits now, if its reader is to stop; the table says its outcome.

        It may have been sent before, by one who was given up since: `settled` says that it is in doubt.
        """
        if member not in self._queue:
            return
        try:
            member.require_going()
        except Exception as e:  # noqa: BLE001 - raised to whoever handed the change over
            self._queue.remove(member)
            member.result = e

    def _gather(self, gather_s: float) -> None:
        if gather_s > 0:
            with self._changed:
                self._changed.wait_for(lambda: not self.pace.awaited(self._clock()), timeout=gather_s)

    def _commit_waiting(self, leader: Member) -> None:
        """Commit what waits now; each change is settled when this returns, whatever happens.

        But if the leader was given up: then what is open waits for the next one, before all that came later.
        """
        with self._changed:
            taken, self._queue = self._queue[:MEMBERS_MAX], self._queue[MEMBERS_MAX:]
        try:
            self._committer.commit_all(
                taken, leader=leader, on_settled=self._notify, on_wait=self._show_waiting
            )
        except BaseException as e:  # noqa: BLE001 - raised to each of those who wait
            for member in taken:
                member.result = member.result or e
        with self._changed:
            self._queue = [member for member in taken if member.result is None] + self._queue

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _show_waiting(self, reason: str) -> None:
        """Those who wait for the next snapshot wait for the same reason."""
        with self._changed:
            waiting = list(self._queue)
            # A change that was given up in the wait before is settled.
            self._changed.notify_all()
        for member in waiting:
            member.on_wait(reason)


class Seat:
    """A reader's place at a table's bookkeeper: a `TableCommits`.

    Args:
        bookkeeper: the bookkeeper of the table.
        committer: its committer.
        on_wait: see `Bookkeeper.seat`, as the next four.
        on_refusal: likewise.
        on_retry: likewise.
        on_resolved: likewise.
        require_going: likewise.
        gather_s: likewise.
        in_doubt: likewise.
    """

    def __init__(
        self,
        bookkeeper: Bookkeeper,
        committer: Committer,
        *,
        on_wait: Callable[[str], None],
        on_refusal: Callable[[Conflict | Unknown], None],
        on_retry: Callable[[], None],
        on_resolved: Callable[[int], None],
        require_going: Callable[[], None],
        gather_s: float,
        in_doubt: Callable[[Exception], Exception],
    ) -> None:
        self._bookkeeper = bookkeeper
        self._on_wait = on_wait
        self._on_refusal = on_refusal
        self._on_retry = on_retry
        self._on_resolved = on_resolved
        self._require_going = require_going
        self._gather_s = gather_s
        self._in_doubt = in_doubt
        self.ensure: Callable[[Json], TableState] = committer.ensure
        self.load: Callable[[], TableState] = committer.load
        self.alter: Callable[[CommitRequest], TableState] = committer.alter
        self.turn: Turn = bookkeeper.pace.join()

    def commit(self, change: Change, writer: TableWriter) -> CommitResult:
        """See `TableCommits.commit`."""
        member = Member(
            change=change,
            writer=writer,
            on_wait=self._on_wait,
            on_refusal=self._on_refusal,
            on_retry=self._on_retry,
            on_resolved=self._on_resolved,
            require_going=self._require_going,
            in_doubt=self._in_doubt,
        )
        return self._bookkeeper.commit(member, self.turn, gather_s=self._gather_s)


class Bookkeepers:
    """The bookkeepers of a process, one per table for as long as somebody has it, or a seat. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: WeakValueDictionary[TableName, Bookkeeper] = WeakValueDictionary()

    def of(self, table: TableName, make: Callable[[], Bookkeeper]) -> Bookkeeper:
        """The bookkeeper of a table; made by the first who asks while nobody has one."""
        with self._lock:
            found = self._made.get(table)
            if found is None:
                found = self._made[table] = make()
            return found
