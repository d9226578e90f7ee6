"""The inbox of a table: writes that wait become one file and one commit.

Writes are handed in by the threads of the HTTP server. One thread takes all that wait, decodes them together
and writes their file; another commits it, while the next file is made. A write is answered once its rows can
be read, or are certainly not in the table. What a client repeats is found by its sequence
(`tarn.core.producers`): in the table, or on its way there.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import structlog

from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.errors import UnavailableError
from tarn.core.offsets import TRACE_COLUMN, OffsetMap
from tarn.core.producers import NUMBER_MAX, PRODUCERS_MAX, STREAM, Claim, ProducerBook, next_sequence
from tarn.core.table_catalog import TableName
from tarn.core.table_columns import columns_of
from tarn.core.table_files import TableWriter
from tarn.core.table_state import TableState, WrittenFile, current_schema
from tarn.gateway.rows_commit import RowsCommit, book_in
from tarn.gateway.writes import BusyError, Receipt, SequenceError, Write
from tarn.ingest.batch_commit import decode, encode, offsets_in
from tarn.ingest.changes import Done, TableCommits
from tarn.ingest.context import IngestContext

log = structlog.get_logger()

DAY_MS = 86_400_000
GAP_LOOK_S = 0.01
"""How often writes that wait for rows before them are looked at, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxLimits:
    """Bounds of an inbox.

    Attributes:
        rows_max: rows of one commit.
        bytes_max: bytes of one commit.
        waiting_bytes_max: bytes that may wait; beyond them a write is refused.
        waiting_writes_max: writes that may wait.
        wait_s_max: how long a write waits for its turn, in seconds; then it is answered: not written.
        gap_s_max: how long a write waits for the rows before it, in seconds.
        row_bytes_max: size of a row.
        retry_s: wait after a dependency failed, in seconds; doubled per failure up to `retry_s_max`.
        retry_s_max: longest such wait.
    """

    rows_max: int = 100_000
    bytes_max: int = 16 << 20
    waiting_bytes_max: int = 32 << 20
    waiting_writes_max: int = 10_000
    wait_s_max: float = 20.0
    gap_s_max: float = 1.0
    row_bytes_max: int = 1 << 20
    retry_s: float = 0.1
    retry_s_max: float = 2.0


@dataclass(slots=True, eq=False)
class Waiting:
    """A write that is not answered yet.

    Attributes:
        write: the write.
        answer: its future answer.
        since_s: when it arrived, on the monotonic clock.
    """

    write: Write
    answer: Future[Receipt]
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is known of a version of the table.

    Attributes:
        state: that version.
        book: its producers.
        offsets: the next row of each; None before the first.
        writer: writer of its files.
        decoder: decoder of rows.
    """

    state: TableState
    book: ProducerBook
    offsets: OffsetMap | None
    writer: TableWriter
    decoder: Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Writes whose file is in the store, in no table yet.

    Attributes:
        change: their commit.
        writer: writer of the file.
        parts: the writes, each with the reasons why rows of it were rejected, by index.
    """

    change: RowsCommit
    writer: TableWriter
    parts: tuple[tuple[Waiting, dict[int, str]], ...]


@dataclass(slots=True)
class Taken:
    """Writes taken for one commit.

    Attributes:
        parts: the writes, each with its producer and the sequence of its first row.
        claims: their rows, by producer.
    """

    parts: list[tuple[Waiting, str, int]] = field(default_factory=list)
    claims: dict[str, Claim] = field(default_factory=dict)


class Verdict(Enum):
    """What becomes of a write that waits."""

    TAKEN = auto()
    LATER = auto()
    ANSWERED = auto()


class Inbox:
    """Takes writes to one table. `submit` and `close` are thread-safe; the rest belongs to the inbox's thread.

    Args:
        table: name of the table.
        context: dependencies.
        commits: the table's bookkeeper.
        own: producer id of this process, for clients that do not number their rows.
        limits: bounds.
    """

    def __init__(
        self,
        table: TableName,
        context: IngestContext,
        commits: TableCommits,
        *,
        own: str,
        limits: InboxLimits | None = None,
    ) -> None:
        self.name = table
        self._context = context
        self._commits = commits
        self._own = own
        self._limits = limits or InboxLimits()
        self._changed = threading.Condition()
        self._queue: deque[Waiting] = deque()
        self._bytes = 0
        self._closed = False
        self._plan: Plan | None = None
        self._fields: object = None
        self._decoder: Decoder | None = None
        self._tails: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._flying: dict[tuple[str, int], Waiting] = {}
        self._failed_commit = False

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
            if self._bytes + write.bytes > limits.waiting_bytes_max or (
                len(self._queue) >= limits.waiting_writes_max
            ):
                raise BusyError(
                    f"{len(self._queue)} writes of {self._bytes} bytes wait for table {self.name}; at most "
                    f"{limits.waiting_writes_max} of {limits.waiting_bytes_max} may; send it again later",
                    retry_after_s=1.0,
                )
            waiting = Waiting(write, Future(), self._context.clock())
            self._queue.append(waiting)
            self._bytes += write.bytes
            self._changed.notify_all()
        return waiting.answer

    def close(self) -> None:
        """Take no more writes; those that wait are still written by `run`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def run(self, executor: Callable[[], Executor] | None = None) -> None:
        """Write until `close`, then what still waits."""
        with (executor or self._context.executor)() as committing:
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
                    under_way = committing.submit(self.commit, prepared)
            if under_way is not None:
                under_way.result()

    def _wait(self) -> bool:
        """Wait for writes; False if there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            return bool(self._queue)

    def prepare(self) -> Prepared | None:
        """Take what waits, and put its file into the store; None if nothing is left to be committed.

        Whatever fails is the answer of the writes taken; nothing of them is in the table.
        """
        taken = Taken()
        try:
            plan = self._take(taken)
            if not taken.parts:
                return None
            return self._written(plan, taken)
        except Exception as e:  # noqa: BLE001 - answered to those who wait; others go on
            self._failed(taken, e)
            return None

    def commit(self, prepared: Prepared) -> None:
        """Commit a file; its writes are answered, or wait again if the table has changed under them."""
        try:
            result = self._commits.commit(prepared.change, prepared.writer)
        except Exception as e:  # noqa: BLE001 - answered to those who wait; others go on
            log.warning("rows not committed", table=str(self.name), error=repr(e))
            with self._changed:
                self._plan, self._failed_commit = None, True
                self._land(prepared)
            for waiting, _ in prepared.parts:
                waiting.answer.set_exception(e)
            return
        if not isinstance(result, Done):
            log.info("rows are planned again", table=str(self.name), reason=result.reason)
            self.put_back(prepared)
            return
        with self._changed:
            self._land(prepared)
            self._plan = self._look(result.state)
        head = result.state.head_id
        for waiting, bad in prepared.parts:
            waiting.answer.set_result(
                Receipt(
                    accepted=len(waiting.write.values) - len(bad),
                    rejected=bad,
                    snapshot_id=head,
                    repeated=not result.by_us,
                )
            )

    def put_back(self, prepared: Prepared) -> None:
        """Let writes whose file is not in the table wait again; the table is loaded before they are taken."""
        with self._changed:
            self._land(prepared)
            self._plan, self._failed_commit = None, True
            for waiting, _ in reversed(prepared.parts):
                self._queue.appendleft(waiting)
                self._bytes += waiting.write.bytes
            self._changed.notify_all()

    def _land(self, prepared: Prepared) -> None:
        """Forget that these writes are on their way. The lock is held."""
        for claim in prepared.change.claims:
            if self._tails.get(claim.producer) == claim.end:
                del self._tails[claim.producer]
                self._numbers.pop(claim.producer, None)
        gone = {id(waiting) for waiting, _ in prepared.parts}
        self._flying = {key: one for key, one in self._flying.items() if id(one) not in gone}

    def _planned(self) -> Plan:
        """What is known of the table; loaded if it is not known.

        Raises:
            TarnError: the table cannot be loaded, or takes no rows.
        """
        if self._plan is None:
            self._plan = self._look(self._commits.load())
        return self._plan

    def _look(self, state: TableState) -> Plan:
        columns = columns_of(state, table=str(self.name)).fields
        trace = any(f["name"] == TRACE_COLUMN for f in current_schema(state.metadata)["fields"])
        if self._decoder is None or self._fields != (columns, trace):
            self._fields = (columns, trace)
            self._files = self._context.tables.table(str(self.name), columns, trace=trace)
            self._decoder = Decoder(
                columns, source=STREAM, trace=trace, record_bytes_max=self._limits.row_bytes_max
            )
        return Plan(
            state=state,
            book=book_in(state),
            offsets=offsets_in(state, STREAM),
            writer=self._files.writer(state),
            decoder=self._decoder,
        )

    def _take(self, taken: Taken) -> Plan:
        """Take writes for one commit; those that cannot be taken are answered, or wait on.

        A commit that ends meanwhile changes what is known of the table and what is on its way to it, both under
        the lock; so both are looked at under one lock.

        Returns:
            The version of the table on which they were judged.

        Raises:
            TarnError: the table cannot be loaded, or takes no rows.
        """
        while True:
            plan = self._planned()
            with self._changed:
                if plan is self._plan:
                    self._take_on(plan, taken)
                    return plan

    def _take_on(self, plan: Plan, taken: Taken) -> None:
        limits, now = self._limits, self._context.clock()
        later: list[Waiting] = []
        rows = size = 0
        # Writes of one producer that arrived in another order are taken in that of their rows.
        waiting = sorted(self._queue, key=lambda one: one.write.sequence if one.write.producer else -1)
        for one in waiting:
            if rows >= limits.rows_max or size >= limits.bytes_max:
                later.append(one)
                continue
            verdict = self._judge(plan, taken, one, now)
            if verdict is Verdict.TAKEN:
                rows, size = rows + len(one.write.values), size + one.write.bytes
            elif verdict is Verdict.LATER:
                later.append(one)
        self._queue = deque(sorted(later, key=lambda one: one.since_s))
        self._bytes = sum(one.write.bytes for one in self._queue)
        if later and not taken.parts:
            self._changed.wait(timeout=GAP_LOOK_S)  # for the rows before those that wait

    def _judge(self, plan: Plan, taken: Taken, one: Waiting, now: float) -> Verdict:
        """Take a write, answer it, or let it wait. The lock is held, as below."""
        write = one.write
        if now - one.since_s > self._limits.wait_s_max:
            one.answer.set_exception(
                UnavailableError(
                    f"table {self.name} did not take the write within {self._limits.wait_s_max:g} s; nothing of "
                    "it was written, send it again"
                )
            )
            return Verdict.ANSWERED
        name = write.producer if write.producer is not None else self._own
        claimed = taken.claims.get(name)
        stored = next_sequence(plan.book, plan.offsets, name)
        wanted = claimed.end if claimed else self._tails.get(name, stored or 0)
        start = write.sequence if write.producer is not None else wanted
        if start != wanted:
            return self._out_of_order(plan, one, now, start=start, wanted=wanted, stored=stored)
        number = self._number(plan, taken, name)
        if number is None:
            one.answer.set_exception(
                BusyError(
                    f"table {self.name} has {PRODUCERS_MAX} producers already; use fewer ids, or wait until some "
                    "are forgotten",
                    retry_after_s=60.0,
                )
            )
            return Verdict.ANSWERED
        taken.claims[name] = Claim(
            producer=name,
            number=number,
            start=claimed.start if claimed else start,
            end=start + len(write.values),
        )
        taken.parts.append((one, name, start))
        return Verdict.TAKEN

    def _out_of_order(
        self, plan: Plan, one: Waiting, now: float, *, start: int, wanted: int, stored: int | None
    ) -> Verdict:
        """A write that does not begin where its producer's rows end: a repeat, early, or wrong."""
        write = one.write
        assert write.producer is not None
        if write.end <= (stored or 0):
            one.answer.set_result(self._repeated(plan, write))
            return Verdict.ANSWERED
        former = self._flying.get((write.producer, start))
        if former is not None and former.write.end == write.end:
            former.answer.add_done_callback(lambda done: _copy(done, one.answer))
            return Verdict.ANSWERED
        if start > wanted and now - one.since_s <= self._limits.gap_s_max:
            return Verdict.LATER
        one.answer.set_exception(
            SequenceError(
                f"producer {write.producer!r} sends rows from {start} on, table {self.name} wants row {wanted} "
                f"next: {_advice(start, wanted, known=stored is not None)}",
                producer=write.producer,
                expected=wanted,
            )
        )
        return Verdict.ANSWERED

    def _number(self, plan: Plan, taken: Taken, name: str) -> int | None:
        """The number of a producer, or the one that it is to get; None if there are too many."""
        known = plan.book.producers.get(name)
        if known is not None:
            return known.number
        if (given := self._numbers.get(name)) is not None:
            return given
        if (claimed := taken.claims.get(name)) is not None:
            return claimed.number
        taken_numbers = [claim.number for claim in taken.claims.values()]
        number = max([plan.book.next_number - 1, *self._numbers.values(), *taken_numbers]) + 1
        if len(plan.book.producers) + len(self._numbers) >= PRODUCERS_MAX or number > NUMBER_MAX:
            return None
        return number

    def _repeated(self, plan: Plan, write: Write) -> Receipt:
        """The answer to rows that the table has: they are judged as they were then."""
        bad = decode(plan.decoder, self._raw([(write, 0, 0)], ())).bad
        return Receipt(
            accepted=len(write.values) - len(bad),
            rejected=bad,
            snapshot_id=plan.state.head_id,
            repeated=True,
        )

    def _written(self, plan: Plan, taken: Taken) -> Prepared:
        """Decode what was taken and put its file into the store."""
        claims = tuple(taken.claims.values())
        parts = [(one.write, taken.claims[name].number, start) for one, name, start in taken.parts]
        batch = self._raw(parts, claims)
        made = encode(decode(plan.decoder, batch), plan.writer)
        files: tuple[WrittenFile, ...] = plan.writer.put(made.files)
        with self._changed:
            for one, name, start in taken.parts:
                self._flying[(name, start)] = one
            for claim in claims:
                self._tails[claim.producer] = claim.end
                if claim.producer not in plan.book.producers:
                    self._numbers[claim.producer] = claim.number
        bad = sorted(made.bad.items())
        found, first, at = [], 0, 0
        for one, _, _ in taken.parts:
            end, own = first + len(one.write.values), {}
            while at < len(bad) and bad[at][0] < end:
                own[bad[at][0] - first] = bad[at][1]
                at += 1
            found.append((one, own))
            first = end
        change = RowsCommit(
            commit_id=self._context.new_id(),
            table_uuid=plan.state.uuid,
            claims=claims,
            files=files,
            day=self._context.ports.now_ms() // DAY_MS,
        )
        return Prepared(change=change, writer=plan.writer, parts=tuple(found))

    def _raw(self, parts: Sequence[tuple[Write, int, int]], claims: tuple[Claim, ...]) -> RawBatch:
        """Rows as records: the producer's number is their partition, the sequence their offset."""
        return RawBatch(
            partitions=[number for write, number, _ in parts for _ in write.values],
            offsets=[start + i for write, _, start in parts for i in range(len(write.values))],
            times_ms=[write.at_ms for write, _, _ in parts for _ in write.values],
            keys=[None for write, _, _ in parts for _ in write.values],
            values=[value for write, _, _ in parts for value in write.values],
            ranges=tuple(claim.range() for claim in claims),
        )

    def _failed(self, taken: Taken, error: Exception) -> None:
        """Nothing was taken, or its file could not be written: those who wait are answered."""
        with self._changed:
            self._plan = None
            waiting = [one for one, _, _ in taken.parts] or list(self._queue)
            if not taken.parts:
                self._queue.clear()
            self._bytes = sum(one.write.bytes for one in self._queue)
        log.warning("rows not written", table=str(self.name), writes=len(waiting), error=repr(error))
        for one in waiting:
            one.answer.set_exception(error)


def _copy(done: Future[Receipt], answer: Future[Receipt]) -> None:
    """Answer a repeat as the write that was on its way."""
    error = done.exception()
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(replace(done.result(), repeated=True))


def _advice(start: int, wanted: int, *, known: bool) -> str:
    if not known:
        return "the table does not know this producer (or has forgotten it); begin with a new id at row 0"
    if start > wanted:
        return "rows before it are missing; send those first, or begin with a new id at row 0"
    return "part of it is in the table already; send a repeat with the same rows as the first time"
