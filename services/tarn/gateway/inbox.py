"""The inbox of a table: writes that wait become one file and one commit.

Writes are handed in by the threads of the HTTP server. One thread takes all that wait, decodes them together
and begins to write their file; another commits it, while the next file is made, if it is large. A write is
answered once its rows can be read, or are certainly not in the table. What a client repeats is found by its
sequence (`tarn.core.producers`): in the table, or on its way there.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future

import structlog

from tarn.core.decode import Decoder
from tarn.core.errors import DataError, OutcomeUnknownError, TooManyPartitionsError, UnavailableError
from tarn.core.offsets import TRACE_COLUMN
from tarn.core.pressure import Pressure, of_debt, of_waiting
from tarn.core.producers import STREAM
from tarn.core.quota import DAY_MS, quota_in
from tarn.core.rejected_rows import runs_of
from tarn.core.row_parser import RowParser
from tarn.core.table_catalog import TableName
from tarn.core.table_columns import columns_of
from tarn.core.table_state import TableState, WrittenFile, current_schema
from tarn.gateway.group_wait import TOGETHER_BYTES, GroupWait
from tarn.gateway.judge import Judge
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.merges import Merges
from tarn.gateway.repeats import repeated, same_rows
from tarn.gateway.room import Room
from tarn.gateway.rows_commit import KeysCommit, RowsCommit, book_in, ends_in, keys_in, naming_keys
from tarn.gateway.takes import (
    Columns,
    InboxLimits,
    OnTheWay,
    Plan,
    Prepared,
    Taken,
    Verdict,
    Waiting,
    in_turn,
    judged,
    raw_batch,
)
from tarn.gateway.uploads import NotWrittenError, Sending, give_up, written
from tarn.gateway.writes import BusyError, Receipt, Write
from tarn.ingest.batch_commit import decode, encode, offsets_in
from tarn.ingest.changes import Done, TableCommits
from tarn.ingest.context import IngestContext

log = structlog.get_logger()

FORGOTTEN_S = 30.0
"""A commit that took longer may have landed before the table forgot this gateway, in seconds."""
NEVER = sys.maxsize
"""Of writes or bytes that wait: more than there can be."""
KEYS_WAIT_S = 30.0
"""How long a commit with idempotency keys is tried, in seconds. What is kept of a key counts from before its
commit: one that landed much later would be forgotten at once, and a repeat be a new write."""
GAP_LOOK_S = 0.01
"""How often writes that wait for rows before them are looked at, in seconds."""


class Inbox:
    """Takes writes to one table. `submit` and `close` are thread-safe; the rest is its thread's.

    Args:
        table: name of the table.
        context: dependencies.
        commits: the table's bookkeeper.
        keys: the idempotency keys that the table remembers.
        own: producer id of this process, for clients that do not number their rows.
        limits: bounds.
        merges: where committed files are merged; None: they are not.
        room: what all inboxes may decode at one time.
        sending: looks after the files of a commit while the bookkeeper waits.
    """

    def __init__(
        self,
        table: TableName,
        context: IngestContext,
        commits: TableCommits,
        keys: KeyMemory,
        *,
        own: str,
        limits: InboxLimits | None = None,
        merges: Merges | None = None,
        room: Room | None = None,
        sending: Sending | None = None,
    ) -> None:
        self.name = table
        self._sending = sending or Sending()
        self._room = room or Room()
        self.merges = merges
        self._context = context
        self._commits = commits
        self._keys = keys
        self._limits = limits or InboxLimits()
        self._changed = threading.Condition()
        self._queue: deque[Waiting] = deque()
        self._bytes = 0
        self._closed = False
        self._wake_writes = self._wake_bytes = NEVER
        self._together_max = NEVER  # writes of one commit
        self._plan: Plan | None = None
        self._columns: Columns | None = None
        self._way = OnTheWay()
        self._judge = Judge(table, context, keys, self._way, own=own, limits=self._limits)
        self._failed_commit = False
        self._committing = False
        self._company = 0
        self._group = GroupWait()
        self._own = own

    def submit(self, write: Write) -> Future[Receipt]:
        """Hand in a write; its future ends with a receipt, or with the error why it is not in the table.

        Raises:
            BusyError: too much waits.
            UnavailableError: the inbox was closed.
        """
        limits = self._limits
        with self._changed:
            if self._closed:
                raise UnavailableError("the gateway stops; nothing was written, send it again")
            if self._queue and (
                self._bytes + write.bytes > limits.waiting_bytes_max
                or len(self._queue) >= limits.waiting_writes_max
            ):
                raise BusyError(
                    f"{len(self._queue)} writes of {self._bytes} bytes wait for table {self.name}; at most "
                    f"{limits.waiting_writes_max} of {limits.waiting_bytes_max} may; send it again later",
                    retry_after_s=1.0,
                )
            waiting = Waiting(write, Future(), self._context.clock())
            self._queue.append(waiting)
            self._bytes += write.bytes
            if len(self._queue) >= self._wake_writes or self._bytes >= self._wake_bytes:
                self._changed.notify_all()
        return waiting.answer

    def withdraw(self, answer: Future[Receipt]) -> bool:
        """Take back a write that is still waiting for its turn; False if it is on its way into the table."""
        with self._changed:
            left = [one for one in self._queue if one.answer is not answer]
            found = len(left) < len(self._queue)
            self._queue = deque(left)
            self._bytes = sum(one.write.bytes for one in left)
        if found:
            # Repeats may follow it, if it was on its way before.
            answer.set_exception(
                UnavailableError(
                    f"table {self.name}: the write was taken back; nothing was written, repeat it"
                )
            )
        return found

    def leave(self, answer: Future[Receipt]) -> bool:
        """Forget a repeat that waits for the write before it; False if it is none: its rows are here."""
        with self._changed:
            for one in (*self._way.flying.values(), *self._queue):
                if answer in one.followers:
                    one.followers.remove(answer)
                    return True
        return False

    def pressure(self) -> Pressure:
        """How much writers of the table are held back now."""
        with self._changed:
            waiting = of_waiting(self._bytes, self._limits.waiting_bytes_max)
            debt = self._plan.debt if self._plan is not None else Pressure()
        return max(waiting, debt, key=lambda one: one.share)

    @property
    def waiting(self) -> tuple[int, int]:
        """Number and bytes of the writes that wait."""
        return len(self._queue), self._bytes

    def close(self) -> None:
        """Take no more writes; those that wait are still written by `run`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self, executor: Callable[[], Executor] | None = None) -> None:
        """Write until `close`, then what still waits; whatever happens, each write is answered."""
        try:
            self._run(executor or self._context.executor)
        except Exception:
            log.exception("inbox broke", table=str(self.name))
        finally:
            self._end()

    def _run(self, executor: Callable[[], Executor]) -> None:
        with executor() as committing:
            under_way: Future[None] | None = None
            while self._wait():
                self._failed_commit = False
                prepared = self.prepare()
                if under_way is not None:
                    under_way.result()
                    under_way = None
                if prepared is not None and self._failed_commit:
                    self.put_back(prepared)  # it was made to follow a commit that did not come
                elif prepared is not None:
                    self._committing = True
                    under_way = committing.submit(self._commit, prepared)
            if under_way is not None:
                under_way.result()

    def _commit(self, prepared: Prepared) -> None:
        """Commit a file; a fault of the code ends neither the inbox nor the wait of its writes."""
        began_s = self._context.clock()
        try:
            self.commit(prepared)
        except Exception as e:
            log.exception("commit of rows broke", table=str(self.name))
            with self._changed:
                self._plan, self._failed_commit = None, True
                self._way.land(prepared, self._keys)
            self._answer_unknown([one for one, _ in prepared.parts], repr(e))
        finally:
            with self._changed:
                now_s = self._context.clock()
                self._group = GroupWait.after(self._company, took_s=now_s - began_s, now_s=now_s)
                self._committing = False
                self._changed.notify_all()

    def _end(self) -> None:
        """Answer what is left after `run`: nothing, but for a fault of the code."""
        with self._changed:
            self._closed = True
            waiting, self._queue, self._bytes = list(self._queue), deque(), 0
            sent = list(self._way.flying.values())
        error = UnavailableError(
            f"table {self.name}: the gateway stopped; nothing was written, send it again"
        )
        for one in waiting:
            if not one.answer.done():
                one.answer.set_exception(error)
        self._answer_unknown(sent, "the gateway stopped")

    def _answer_unknown(self, writes: Sequence[Waiting], reason: str) -> None:
        error = OutcomeUnknownError(
            f"table {self.name} did not confirm the write ({reason}); it may be there: repeat it with the "
            "same headers, or without any look before you send it again"
        )
        for one in writes:
            if not one.answer.done():
                one.answer.set_exception(error)

    def _wait(self) -> bool:
        """Wait for writes, and for those that will come with them; False if there will be none."""
        with self._changed:
            while True:
                self._until(
                    lambda: not self._committing or self._bytes >= TOGETHER_BYTES or self._closed,
                    size=TOGETHER_BYTES,
                )
                self._until(lambda: self._queue or self._closed, writes=1)
                group = self._group
                left_s = group.left_s(self._context.clock())
                self._until(
                    lambda: len(self._queue) >= group.writes or self._closed,  # noqa: B023 - called here
                    writes=group.writes,
                    timeout_s=left_s,
                )
                if self._queue or self._closed:  # what waited may have been taken back
                    return bool(self._queue)

    def _until(
        self,
        ready: Callable[[], object],
        *,
        writes: int = NEVER,
        size: int = NEVER,
        timeout_s: float | None = None,
    ) -> None:
        """Wait with the lock; a write wakes this thread only if so many wait with it, or so many bytes.

        To wake it for each of the writes that it waits for costs as much as to take them.
        """
        self._wake_writes, self._wake_bytes = writes, size
        try:
            self._changed.wait_for(ready, timeout=timeout_s)
        finally:
            self._wake_writes = self._wake_bytes = NEVER

    def prepare(self) -> Prepared | None:
        """Take what waits, and begin to write its file; None if nothing is left to be committed.

        Whatever fails is the answer of the writes taken; nothing of them is in the table. Writes that are too
        much for one commit only together are taken for several, one after the other.
        """
        while True:
            taken = Taken()
            try:
                plan = self._take(taken)
                self._answer_repeats(plan, taken)
                if not taken.parts:
                    return None
                return self._written(plan, taken)
            except Exception as e:  # noqa: BLE001 - answered to those who wait; others go on
                if isinstance(e, TooManyPartitionsError) and len(taken.parts) > 1:
                    self._halve(taken)
                    continue
                self._failed(taken, e)
                return None

    def _halve(self, taken: Taken) -> None:
        """Let writes wait again that touch too many partitions together; at most half of them come next."""
        with self._changed:
            self._together_max = len(taken.parts) // 2
            self._wait_again([one for one, _, _ in taken.parts])

    def commit(self, prepared: Prepared) -> None:
        """Commit a file; its writes are answered, or wait again if the table has changed under them."""
        asked_s = self._context.clock()
        if self._keys_too_old(prepared.change):
            log.info("rows are planned again", table=str(self.name), reason="their keys waited for too long")
            self.put_back(prepared)
            return
        try:
            with self._sending.of(prepared.change.files, lambda: self._require_young_keys(prepared.change)):
                result = self._commits.commit(prepared.change, prepared.writer)
        except Exception as e:  # noqa: BLE001 - answered to those who wait; others go on
            give_up(prepared.change.files)
            log.warning("rows not committed", table=str(self.name), error=repr(e))
            with self._changed:
                self._plan, self._failed_commit = None, True
                self._way.land(prepared, self._keys)
            if isinstance(e, DataError):
                # What the table states became unreadable meanwhile; a request before that may have landed.
                self._answer_unknown([one for one, _ in prepared.parts], e.message)
                return
            error = UnavailableError(e.message, **e.fields) if isinstance(e, NotWrittenError) else e
            for waiting, _ in prepared.parts:
                waiting.answer.set_exception(error)
            return
        late = self._context.clock() - asked_s > FORGOTTEN_S
        if late and not isinstance(result, Done) and self._forgotten(prepared, result.state):
            with self._changed:
                self._plan, self._failed_commit = None, True
                self._way.land(prepared, self._keys)
            self._answer_unknown([one for one, _ in prepared.parts], "the table has forgotten this gateway")
            return
        if not isinstance(result, Done):
            log.info("rows are planned again", table=str(self.name), reason=result.reason)
            self.put_back(prepared)
            return
        change = prepared.change
        if not result.by_us and change.is_not_in(result.state, sent=result.attempts > 0):
            log.error("numbers of rows were given twice; they are planned again", table=str(self.name))
            self.put_back(prepared)
            return
        with self._changed:
            self._plan = self._seen(result.state, asked_s)
            self._way.land(prepared, self._keys)
            self._company = len(prepared.parts) + len(self._queue)  # before those who are answered come back
        by_us = result.by_us or change.is_last_in(result.state)
        if self.merges is not None and by_us:
            self.merges.add(change.files, prepared.writer, result.state)
        head = result.state.head_id
        for waiting, bad in prepared.parts:
            known = by_us or same_rows(result.state, waiting.write, bad)
            waiting.answer.set_result(
                Receipt(
                    accepted=len(waiting.write.values) - len(bad) if known else None,
                    rejected=bad if known else None,
                    snapshot_id=head,
                    repeated=not by_us,
                )
            )

    def _keys_too_old(self, change: RowsCommit) -> bool:
        keys = change.keys
        return keys is not None and self._context.ports.now_ms() - keys.after.at_ms > 1_000 * KEYS_WAIT_S

    def _require_young_keys(self, change: RowsCommit) -> None:
        """Require that the keys of a commit are not too old to be committed; see `KEYS_WAIT_S`.

        Raises:
            UnavailableError: they are.
        """
        if self._keys_too_old(change):
            raise UnavailableError(
                f"table {self.name} did not take a commit with idempotency keys within {KEYS_WAIT_S:g} s; it "
                "was given up"
            )

    def _forgotten(self, prepared: Prepared, state: TableState) -> bool:
        """Whether the table had the rows of this gateway's own id, perhaps these, and dropped it since."""
        book, offsets = book_in(state), offsets_in(state, STREAM)
        ends = offsets.next if offsets is not None else {}
        return any(
            claim.producer == self._own and book.may_have_had(claim, ends) for claim in prepared.change.claims
        )

    def _seen(self, state: TableState, asked_s: float) -> Plan | None:
        """What the answer to a commit says of the table; None: it is loaded before the next write."""
        try:
            found = self._look(state, asked_s)
        except Exception as e:  # noqa: BLE001 - said to those who write next; the rows before are in
            log.warning("table cannot be written to any more", table=str(self.name), error=repr(e))
            return None
        # Keys of another gateway are loaded before anything else is judged.
        return found if self._keys.follow(found.keys) else None

    def put_back(self, prepared: Prepared) -> None:
        """Let writes whose file is not in the table wait again; the table is loaded before they are taken."""
        give_up(prepared.change.files)
        with self._changed:
            self._way.land(prepared, self._keys)
            self._plan, self._failed_commit = None, True
            self._wait_again([one for one, _ in prepared.parts])
            self._changed.notify_all()

    def _wait_again(self, writes: Sequence[Waiting]) -> None:
        """Put writes that were taken back to where they were; with the lock."""
        self._queue.extendleft(reversed(writes))
        self._bytes += sum(one.write.bytes for one in writes)

    def _planned(self) -> Plan:
        """What is known of the table; loaded if it is not known.

        Raises:
            TarnError: the table cannot be loaded, or takes no rows.
        """
        plan = self._plan
        if (
            plan is not None
            and plan.debt.refused
            and self._context.clock() - plan.asked_s > self._limits.look_s
        ):
            plan = None  # maintenance may have caught up
        while plan is None:
            landings = self._way.landings
            asked_s = self._context.clock()
            found = self._look(self._commits.load(), asked_s)
            self._keys.load(found.keys, named_by=naming_keys(found.state, found.keys))
            with self._changed:
                # A commit that ended meanwhile is on its way no more, and perhaps not in what was loaded:
                # the numbers of its rows would be given again.
                if self._way.landings == landings:
                    self._plan = found
                plan = self._plan
        return plan

    def _look(self, state: TableState, asked_s: float) -> Plan:
        fields = columns_of(state, table=str(self.name)).fields
        trace = any(f["name"] == TRACE_COLUMN for f in current_schema(state.metadata)["fields"])
        known = self._columns  # read once: the other thread may look at a version with other columns
        if known is None or (known.fields, known.trace) != (fields, trace):
            files = self._context.tables.table(str(self.name), fields, trace=trace)
            decoder = Decoder(
                fields,
                source=STREAM,
                trace=trace,
                record_bytes_max=self._limits.row_bytes_max,
                parser=RowParser(fields),
                limit_name="the limit of a row",
            )
            known = self._columns = Columns(fields=fields, trace=trace, files=files, decoder=decoder)
        return Plan(
            state=state,
            asked_s=asked_s,
            book=book_in(state),
            offsets=ends_in(state, table=str(self.name)),
            keys=keys_in(state),
            quota=quota_in(state.properties, table=str(self.name)),
            debt=of_debt(state, self._limits.debt),
            writer=known.files.writer(state),
            decoder=known.decoder,
        )

    def _take(self, taken: Taken) -> Plan:
        """Take writes for one commit; those that cannot be taken are answered, or wait on.

        A commit that ends meanwhile changes what is known of the table and what is on its way to it, both
        under the lock; so both are looked at under one lock.

        Returns:
            The version of the table on which they were judged.

        Raises:
            TarnError: the table cannot be loaded, or takes no rows.
        """
        while True:
            plan = self._planned()
            with self._changed:
                if plan is self._plan and plan.keys == self._keys.entry:
                    self._take_on(plan, taken)
                    return plan
                if plan is self._plan:
                    self._plan = None

    def _take_on(self, plan: Plan, taken: Taken) -> None:
        limits, now = self._limits, self._context.clock()
        later: list[Waiting] = []
        for one in in_turn(self._queue):
            full = taken.rows >= limits.rows_max or taken.bytes >= limits.bytes_max
            if full or len(taken.parts) >= self._together_max:
                later.append(one)
                continue
            verdict = self._judge.verdict(plan, taken, one, now)
            if verdict is Verdict.TAKEN:
                taken.rows += len(one.write.values)
                taken.bytes += one.write.bytes
            elif verdict is Verdict.LATER:
                later.append(one)
        self._queue = deque(sorted(later, key=lambda one: one.since_s))
        self._bytes = sum(one.write.bytes for one in self._queue)
        if taken.stale:
            self._plan = None
        elif later and not taken.parts and not taken.repeats:
            # For the rows before those that wait.
            waiting = len(self._queue)
            self._until(lambda: len(self._queue) > waiting, writes=waiting + 1, timeout_s=GAP_LOOK_S)

    def _answer_repeats(self, plan: Plan, taken: Taken) -> None:
        for one in taken.repeats:
            try:
                one.answer.set_result(repeated(plan, one.write, self._keys, self._room))
            except Exception as e:  # noqa: BLE001 - answered to those who wait; others go on
                one.answer.set_exception(e)

    def _written(self, plan: Plan, taken: Taken) -> Prepared | None:
        """Decode what was taken and begin to write its file; None if the table has nothing to take."""
        claims = tuple(taken.claims.values())
        parts = [(one.write, taken.claims[name].slot, start) for one, name, start in taken.parts]
        with self._room.hold(taken.bytes):
            made = encode(decode(plan.decoder, raw_batch(parts, claims)), plan.writer)
            files = written(plan.writer, made.files)
        self._together_max = min(NEVER, 2 * self._together_max)
        found = judged(taken.parts, made.bad)
        del made
        try:
            return self._prepared(plan, taken, found, files)
        except Exception:
            give_up(files)
            raise

    def _prepared(
        self,
        plan: Plan,
        taken: Taken,
        found: Mapping[int, dict[int, str]],
        files: tuple[WrittenFile, ...],
    ) -> Prepared | None:
        """The commit of what was taken; None if the table has nothing to take."""
        self._answer_needless(plan, taken, found)
        if not taken.parts:
            return None
        claims = taken.judged_claims(found)
        keys = self._key_commit(plan, taken, found)
        with self._changed:
            self._way.send(taken, plan.book, keys)
        change = RowsCommit(
            commit_id=self._context.new_id(),
            table=str(self.name),
            table_uuid=plan.state.uuid,
            gateway=self._own,
            claims=claims,
            files=files,
            day=self._context.ports.now_ms() // DAY_MS,
            size=taken.bytes,
            keys=keys,
        )
        return Prepared(
            change=change, writer=plan.writer, parts=tuple((one, found[id(one)]) for one, _, _ in taken.parts)
        )

    def _answer_needless(self, plan: Plan, taken: Taken, found: Mapping[int, dict[int, str]]) -> None:
        """Answer writes whose rows are all bad, where the table need not know of them.

        It must for a producer that numbers its rows: its next ones begin behind these.
        """
        for one, _, _ in list(taken.parts):
            bad = found[id(one)]
            if one.write.producer is None and len(bad) == len(one.write.values):
                taken.leave(one)
                one.answer.set_result(
                    Receipt(accepted=0, rejected=bad, snapshot_id=plan.state.head_id, repeated=False)
                )

    def _key_commit(self, plan: Plan, taken: Taken, found: Mapping[int, dict[int, str]]) -> KeysCommit | None:
        """Put the objects with the keys of the writes into the store; None if no write has one.

        Raises:
            UnavailableError: the store does not respond.
        """
        if not taken.keys:
            return None
        with self._changed:
            # Since they were judged, only commits of this inbox may have landed, whose keys were known then.
            base = self._way.keys_tail if self._way.keys_tail is not None else self._keys.entry
        keyed = [one.write.keyed for one in taken.keys.values() if one.write.keyed is not None]
        rejected = {key: runs_of(found[id(one)]) for key, one in taken.keys.items()}
        return KeysCommit(base=base, after=self._keys.draft(base, plan.state.root, keyed, rejected))

    def _failed(self, taken: Taken, error: Exception) -> None:
        """Nothing was taken, or its file could not be written: those who wait are answered."""
        with self._changed:
            self._plan = None
            waiting = [one for one, _, _ in taken.parts] or list(self._queue)
            failed = {id(one) for one in waiting}
            self._queue = deque(one for one in self._queue if id(one) not in failed and not one.answer.done())
            self._bytes = sum(one.write.bytes for one in self._queue)
        log.warning("rows not written", table=str(self.name), writes=len(waiting), error=repr(error))
        for one in waiting:
            if not one.answer.done():
                one.answer.set_exception(error)
