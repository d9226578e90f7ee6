"""The inbox of a table's log: writes that wait go into its topic in one transaction, with what they claim.

A write is answered once the broker has the transaction, or none of its rows is or will be in the log. One
thread does everything: it takes all that wait, judges their repeats, decodes them, and writes. Whatever ends
a transaction other than a plain answer, the log is opened and read again before anything else: the mark of
the transaction then says whether it is in the log.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import structlog

from tarn.core.errors import (
    AccessError,
    InvalidSettingError,
    InvalidSpecError,
    OffsetGapError,
    OutcomeUnknownError,
    SourceChangedError,
    TarnError,
    UnavailableError,
)
from tarn.core.log_claims import (
    Appended,
    Change,
    Fate,
    KeyClaim,
    LogBook,
    ProducerClaim,
    claims_topic_of,
    topic_of,
)
from tarn.core.offsets import OffsetMap
from tarn.core.pressure import Pressure
from tarn.core.quota import DAY_MS
from tarn.core.rejected_rows import numbers_in
from tarn.core.source import NoSuchTopicError
from tarn.core.table_catalog import TableName
from tarn.core.table_log import LogFencedError, LogPlace, Record, TableLog, TableLogs
from tarn.gateway.group_wait import GroupWait
from tarn.gateway.log_judge import LogJudge, LogLimits, LogTaken
from tarn.gateway.log_plan import LogPlan, landing, looked
from tarn.gateway.log_queue import WriteQueue
from tarn.gateway.log_records import LogColumns, judged
from tarn.gateway.repeats import REASON_GONE
from tarn.gateway.room import Room
from tarn.gateway.takes import Waiting
from tarn.gateway.writes import Receipt, Write
from tarn.ingest.changes import TableCommits
from tarn.ingest.context import IngestContext

log = structlog.get_logger()

GAP_LOOK_S = 0.01
"""How often writes that wait for rows before them are looked at, in seconds."""
SETTLE_LOOK_S = 0.5
"""How often a broker that does not respond is asked what became of a transaction, in seconds."""
REST_S = 5.0
"""How often the log is attended to while nothing is written, in seconds."""
RESTART_S = 4.0
"""A broker that was killed is not back within this time, in seconds."""
BROKER_AWAY = "nothing was written, send it again; durability=lake needs no Kafka"


@dataclass(slots=True, kw_only=True)
class Sent:
    """A transaction, from its beginning until its outcome is known.

    Attributes:
        mark: identifies it.
        since_s: when it began, on the monotonic clock.
        parts: its writes, each with the reasons why rows of it were rejected, by index.
        change: what it claims, once its rows have offsets.
        fates: what becomes of each write, likewise.
        ends: partition to the offset behind its last row, likewise.
    """

    mark: str
    since_s: float
    parts: Sequence[tuple[Waiting, dict[int, str]]]
    change: Change | None = None
    fates: Sequence[Fate] = ()
    ends: Mapping[int, int] = field(default_factory=dict)


class LogInbox:
    """Takes writes to the log of one table. `submit`, `withdraw`, `pressure` and `close` are thread-safe.

    Args:
        table: name of the table.
        context: dependencies.
        commits: the table's bookkeeper, which loads it; nothing is committed.
        logs: the logs of all tables.
        own: id of this inbox, for the marks of its transactions.
        limits: bounds.
        room: what all inboxes may decode at one time.

    Attributes:
        name: name of the table.
    """

    def __init__(
        self,
        table: TableName,
        context: IngestContext,
        commits: TableCommits,
        logs: TableLogs,
        *,
        own: str,
        limits: LogLimits | None = None,
        room: Room | None = None,
    ) -> None:
        self.name = table
        self._context = context
        self._commits = commits
        self._logs = logs
        self._own = own
        self._limits = limits or LogLimits()
        self._room = room or Room()
        self._queue = WriteQueue(
            str(table),
            writes_max=self._limits.waiting_writes_max,
            bytes_max=self._limits.waiting_bytes_max,
            clock=context.clock,
        )
        self._judge = LogJudge(str(table), self._limits)
        self._plan: LogPlan | None = None
        self._columns: LogColumns | None = None
        self._log: TableLog | None = None
        self._uuid = ""
        self._place: LogPlace | None = None
        self._landed: OffsetMap | None = None
        self._ends: dict[int, int] = {}
        self._book = LogBook("")
        self._whole = False
        self._read_s = 0.0
        self._unsettled: Sent | None = None
        self._turn = 0
        self._held_back = Pressure()
        self._group = GroupWait()

    def submit(self, write: Write) -> Future[Receipt]:
        """Hand in a write; its future ends with a receipt, or with the error why it is not in the log.

        Raises:
            BusyError: too much waits.
            UnavailableError: the inbox was closed.
        """
        return self._queue.submit(write)

    def withdraw(self, answer: Future[Receipt]) -> bool:
        """Take back a write that is still waiting for its turn; False if it is on its way into the log."""
        return self._queue.withdraw(answer)

    def leave(self, answer: Future[Receipt]) -> bool:
        """False: no write here waits for another one's answer."""
        return False

    def pressure(self) -> Pressure:
        """How much writers are held back now."""
        return max(self._queue.pressure, self._held_back, key=lambda one: one.share)

    @property
    def waiting(self) -> tuple[int, int]:
        """Number and bytes of the writes that wait."""
        return self._queue.size

    def close(self) -> None:
        """Take no more writes; those that wait are still written by `run`."""
        self._queue.close()

    def run(self) -> None:
        """Write until `close`, then what still waits; whatever happens, each write is answered."""
        try:
            while self._wait():
                if self._unsettled is None:
                    self._queue.gather(self._group)
                self.turn()
        except Exception:
            log.exception("inbox of a log broke", table=str(self.name))
        finally:
            self._end()

    def turn(self) -> None:
        """Write what waits; whatever fails is the answer of the writes that it concerns."""
        taken = LogTaken()
        try:
            plan = self._ready()
            self._settle()
            lag = self._lag()
            self._queue.take(
                lambda waiting: self._judge.judge(
                    waiting,
                    taken,
                    self._book,
                    plan,
                    read_s=self._read_s,
                    now_s=self._context.clock(),
                    now_ms=self._context.ports.now_ms(),
                    lag=lag,
                )
            )
            self._answer_repeats(plan, taken)
            if taken.stale:
                self._whole = False
            if taken.parts:
                self._write(plan, taken)
        except Exception as e:  # noqa: BLE001 - answered to those who wait; others go on
            self._failed(taken, e)
            return
        if not taken.parts and not taken.repeats and not taken.stale and self.waiting[0]:
            with self._queue.changed:
                self._queue.changed.wait(timeout=GAP_LOOK_S)  # for the rows before those that wait

    def _wait(self) -> bool:
        """Wait for writes, or until the outcome of a transaction may be known; False if there is no more."""
        with self._queue.changed:
            while not self._queue.changed.wait_for(
                lambda: self._queue.size[0] or self._queue.closed,
                timeout=REST_S if self._unsettled is None else SETTLE_LOOK_S,
            ):
                if self._unsettled is not None:
                    break
                if self._log is not None:
                    self._log.rest()
            return bool(self._queue.size[0]) or (self._unsettled is not None and not self._queue.closed)

    def _end(self) -> None:
        """Answer what is left after `run`: a transaction without a known outcome, or a fault of the code."""
        self._queue.close()
        self._fail(
            self._queue.empty(),
            UnavailableError(
                f"the log of table {self.name}: the gateway stopped; nothing was written, send it again"
            ),
        )
        self._leave_unsettled("the gateway stopped")
        self._drop_log()

    def _leave_unsettled(self, reason: str) -> None:
        """Answer the writes of a transaction whose outcome is not asked for any more."""
        if self._unsettled is not None:
            self._fail([one for one, _ in self._unsettled.parts], self._unknown(reason))
            self._unsettled = None

    # What is known of table and log.

    def _ready(self) -> LogPlan:
        """The table, with its log open and its claims read to their end.

        Raises:
            TarnError: one of them does not respond, or takes no rows.
        """
        plan = self._plan
        if plan is None or self._context.clock() - plan.asked_s > self._limits.look_s:
            self._plan = None
            asked_s = self._context.clock()
            state = self._commits.load()
            if state.uuid != self._uuid:
                self._leave_unsettled("another table has its name now")
            plan = self._plan = looked(
                state, asked_s, table=self.name, known=self._columns, row_bytes_max=self._limits.row_bytes_max
            )
            self._columns = plan.columns
        if self._log is None or self._uuid != plan.state.uuid:
            self._drop_log()
            self._uuid = plan.state.uuid
            self._log = self._logs.of(self._uuid)
            self._book = LogBook(claims_topic_of(self._uuid))
        if self._place is None:
            self._open(self._log)
        assert self._place is not None
        self._landed = plan.landed_of(self._place.identity)
        if self._landed is None:
            self._place = None
            raise InvalidSpecError(
                f"the topic {topic_of(self._uuid)} is another one than the ingestor of table {self.name} "
                "reads: it was deleted and created again. See scripts/tarn status, which says what to do",
                table=str(self.name),
            )
        self._require_ahead(self._log, self._landed)
        if not self._whole:
            asked_s = self._context.clock()
            try:
                self._book.read(self._log.claims())
            except SourceChangedError as e:
                raise self._changed(e) from e
            self._whole, self._read_s = True, asked_s
        return plan

    def _require_ahead(self, opened: TableLog, landed: OffsetMap) -> None:
        """Require that the next rows get offsets that the table does not have yet.

        Args:
            opened: the log.
            landed: the table's offsets of it.

        Raises:
            OffsetGapError: the log ends before the table's offsets.
            UnavailableError: the broker does not respond.
        """
        if all(self._ends.get(p, 0) >= offset for p, offset in landed.next.items()):
            return
        # The marks of transactions have offsets, and another gateway may have written.
        try:
            self._ends = dict(opened.ends())
        except TarnError as e:
            raise UnavailableError(f"the log of table {self.name}: {e.message}; {BROKER_AWAY}") from e
        for partition, offset in landed.next.items():
            end = self._ends.get(partition, 0)
            if end < offset:
                raise self._truncated(partition, end, offset)

    def _require_new(self, plan: LogPlan, places: Sequence[tuple[int, int]]) -> None:
        """Require that the table has none of the offsets that rows got; they are not committed yet.

        Args:
            plan: what was known of the table when the transaction began.
            places: partition and offset of each row.

        Raises:
            OffsetGapError: it has one: the log was truncated since the plan was made.
            TarnError: the table cannot be asked.
        """
        landed = self._landed
        if landed is not None and self._context.clock() - plan.asked_s > RESTART_S:
            # Long enough for a broker to come back; what the table had before that is known now.
            now = replace(plan, landed=landing(self._commits.load()))
            landed = now.landed_of(landed.source) or landed
        known = {} if landed is None else landed.next
        for partition, offset in places:
            if offset < known.get(partition, 0):
                raise self._truncated(partition, offset, known[partition])

    def _truncated(self, partition: int, end: int, offset: int) -> OffsetGapError:
        return OffsetGapError(
            f"the log of table {self.name} was truncated: partition {partition} of topic "
            f"{topic_of(self._uuid)} ended at {end}, and the table has its rows before {offset}. Rows "
            "that are written there now would not get into the table; nothing was written. Restore Kafka's "
            "log, or write with durability=lake",
            table=str(self.name),
            partition=partition,
            end=end,
            offset=offset,
        )

    def _open(self, opened: TableLog) -> None:
        self._whole = False
        try:
            self._place = opened.open()
        except NoSuchTopicError as e:
            raise InvalidSpecError(
                f"the topic {topic_of(self._uuid)} of table {self.name} does not exist any more, and its "
                "ingestor waits for it: restore it, or delete the ingestor (scripts/tarn delete) and "
                "declare it again",
                table=str(self.name),
            ) from e
        except SourceChangedError as e:
            raise self._changed(e) from e
        except (AccessError, InvalidSettingError) as e:
            raise UnavailableError(
                f"the gateway may not write the log of table {self.name}: {e.message}"
            ) from e
        except UnavailableError as e:
            raise UnavailableError(f"the log of table {self.name}: {e.message}; {BROKER_AWAY}") from e
        self._ends = dict(self._place.ends)

    def _changed(self, error: SourceChangedError) -> SourceChangedError:
        """The error of claims that are lost, with the table."""
        return SourceChangedError(f"the log of table {self.name}: {error.message}", table=str(self.name))

    def _lag(self) -> Pressure:
        """The pressure of offsets that the log has and the table has not."""
        landed: Mapping[int, int] = {} if self._landed is None else self._landed.next
        behind = sum(max(0, end - landed.get(p, 0)) for p, end in self._ends.items())
        self._held_back = self._limits.lag(behind)
        return self._held_back

    # One transaction.

    def _write(self, plan: LogPlan, taken: LogTaken) -> None:
        """Decode what was taken and write it; its writes are answered, or wait again.

        Raises:
            TarnError: nothing of it is in the log.
        """
        assert self._log is not None
        writes = [one.write for one in taken.parts]
        with self._room.hold(taken.bytes):
            found = judged(plan.columns, writes)
        parts, rows, spans = [], list[tuple[int, bytes]](), []
        for one, own in zip(taken.parts, found, strict=True):
            partition = self._partition(one.write)
            begin = len(rows)
            rows += [(partition, record) for record in own.records.values()]
            parts.append((one, own.bad))
            spans.append((begin, len(rows)))
        sent = Sent(mark=self._context.new_id(), since_s=self._context.clock(), parts=parts)
        self._turn += 1

        def claims(offsets: Sequence[int]) -> Sequence[Record]:
            places = [(partition, offset) for (partition, _), offset in zip(rows, offsets, strict=True)]
            self._require_new(plan, places)
            sent.fates = [
                Fate.of(places[begin:end], own) for (begin, end), (_, own) in zip(spans, parts, strict=True)
            ]
            sent.ends = {partition: offset + 1 for partition, offset in sorted(places)}
            sent.change = self._change(sent, taken)
            return sent.change.records()

        try:
            self._log.append(rows, claims)
        except LogFencedError as e:
            log.info("another gateway has taken the log", table=str(self.name), reason=e.message)
            self._place = None
            self._queue.put_back(one for one, _ in parts)
            self._let_others()
        except OffsetGapError:
            self._place = None
            raise
        except (AccessError, UnavailableError) as e:
            self._place = None
            raise UnavailableError(f"the log of table {self.name}: {e.message}; {BROKER_AWAY}") from e
        except Exception as e:  # noqa: BLE001 - what became of it is in the log
            log.warning("outcome of a transaction unknown", table=str(self.name), error=repr(e))
            self._place, self._unsettled = None, sent
            self._let_others()  # one of them may be the reason
        else:
            assert sent.change is not None
            self._book.apply(sent.change)
            self._done(sent)

    def _let_others(self) -> None:
        """Give another gateway its turn: two that take the log from each other at once get nothing done."""
        self._context.ports.sleep(self._limits.turn_s * (0.5 + self._context.ports.chance.random()))

    def _settle(self) -> None:
        """Answer the writes of a transaction whose outcome was unknown; the log was opened and read since.

        What it claims was read with the rest. Another gateway may have claimed more after it, so its claims
        are not applied: they would take the place of newer ones.
        """
        sent, self._unsettled = self._unsettled, None
        if sent is None:
            return
        if self._book.mark(self._own) == sent.mark:
            log.info("the transaction is in the log", table=str(self.name))
            self._done(sent)
        else:
            log.info("the transaction is not in the log; it is written again", table=str(self.name))
            self._queue.put_back(one for one, _ in sent.parts)

    def _done(self, sent: Sent) -> None:
        """Answer the writes of a transaction that is in the log, and whose claims are in the book."""
        self._ends.update({p: max(end, self._ends.get(p, 0)) for p, end in sent.ends.items()})
        if self._plan is not None:
            self._lag()
        now_s = self._context.clock()
        company = len(sent.parts) + self.waiting[0]  # before those who are answered come back
        self._group = GroupWait.after(company, took_s=now_s - sent.since_s, now_s=now_s)
        for (one, own), fate in zip(sent.parts, sent.fates, strict=True):
            if not one.answer.done():
                one.answer.set_result(self._receipt(fate, own, repeated=False))

    def _change(self, sent: Sent, taken: LogTaken) -> Change:
        """What a transaction claims, once its rows have offsets."""
        now_ms = self._context.ports.now_ms()
        producers: dict[str, ProducerClaim] = {}
        keys: dict[str, KeyClaim] = {}
        for (one, _), fate in zip(sent.parts, sent.fates, strict=True):
            write = one.write
            if write.producer is not None:
                before = producers.get(write.producer) or self._book.producers.get(write.producer)
                appended = Appended(start=write.sequence, end=write.end, fate=fate)
                producers[write.producer] = (before or ProducerClaim(end=0, at_ms=0)).plus(appended, now_ms)
            if write.keyed is not None:
                keys[write.keyed.key] = KeyClaim(digest=write.keyed.digest, at_ms=now_ms, fate=fate)
        change = Change(
            mark=sent.mark,
            writer=self._own,
            at_ms=now_ms,
            producers=producers,
            keys=keys,
            used=self._book.used.plus(now_ms // DAY_MS, taken.rows, taken.bytes),
        )
        written = change.names()
        return replace(change, forgotten=[key for key in self._book.outdated(now_ms) if key not in written])

    def _partition(self, write: Write) -> int:
        """The partition of a write: all rows of a producer are in one, others take turns."""
        assert self._place is not None
        if write.producer is None:
            return self._turn % len(self._place.ends)
        return zlib.crc32(write.producer.encode()) % len(self._place.ends)

    # Answers.

    def _answer_repeats(self, plan: LogPlan, taken: LogTaken) -> None:
        for one, fate in taken.repeats:
            try:
                one.answer.set_result(
                    self._receipt(fate, self._reasons(plan, one.write, fate), repeated=True)
                )
            except Exception as e:  # noqa: BLE001 - answered to those who wait; others go on
                one.answer.set_exception(e)

    def _reasons(self, plan: LogPlan, write: Write, fate: Fate | None) -> dict[int, str] | None:
        """Why rows were rejected, as far as the columns of now say it; None if it is not known which."""
        if fate is None or fate.rejected is None:
            return None
        rows = numbers_in(fate.rejected)
        if not rows:
            return {}
        part = replace(write, values=[write.values[row] for row in rows])
        try:
            with self._room.hold(part.bytes):
                (found,) = judged(plan.columns, [part])
            bad = found.bad
        except UnavailableError:  # no room: the others are in the log all the same
            bad = {}
        return {row: bad.get(at, REASON_GONE) for at, row in enumerate(rows)}

    def _receipt(self, fate: Fate | None, bad: dict[int, str] | None, *, repeated: bool) -> Receipt:
        return Receipt(
            accepted=None if fate is None or bad is None else fate.accepted,
            rejected=bad,
            snapshot_id=None,
            repeated=repeated,
            topic=topic_of(self._uuid),
            offsets=() if fate is None else fate.runs,
        )

    def _failed(self, taken: LogTaken, error: Exception) -> None:
        """Nothing was taken, or nothing of it is in the log: those who wait are answered."""
        self._plan = None
        if (
            self._unsettled is not None
            and self._context.clock() - self._unsettled.since_s > self._limits.settle_s_max
        ):
            self._leave_unsettled(str(error))
        waiting = taken.parts or [one for one, _ in taken.repeats] or self._queue.empty()
        if self._unsettled is not None and not waiting:
            log.debug("outcome of a transaction still unknown", table=str(self.name), error=repr(error))
            return
        log.warning("rows not in the log", table=str(self.name), writes=len(waiting), error=repr(error))
        self._fail(waiting, error)

    def _fail(self, waiting: Sequence[Waiting], error: Exception) -> None:
        for one in waiting:
            if not one.answer.done():
                one.answer.set_exception(error)

    def _unknown(self, reason: str) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"the log of table {self.name} did not confirm the write ({reason}); it may be there: repeat it "
            "with the same headers, or without any look before you send it again"
        )

    def _drop_log(self) -> None:
        if self._log is not None:
            self._log.close()
        self._log, self._place, self._whole, self._ends = None, None, False, {}
