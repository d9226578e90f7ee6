"""What becomes of a write to a table's log: taken for the next transaction, answered, or left to wait on."""

from __future__ import annotations

from dataclasses import dataclass, field

from tarn.core.errors import UnavailableError
from tarn.core.log_claims import KEY_MS, KEYS_MAX, PRODUCERS_MAX, Fate, LogBook
from tarn.core.pressure import Pressure
from tarn.core.quota import DAY_MS, Used
from tarn.gateway.log_plan import LogPlan
from tarn.gateway.quotas import over_quota
from tarn.gateway.takes import Verdict, Waiting
from tarn.gateway.writes import BusyError, KeyReusedError, OverQuotaError, SequenceError, Write


@dataclass(slots=True, kw_only=True)
class LogTaken:
    """Writes taken for one transaction.

    Attributes:
        parts: the writes, in order.
        ends: producer to the row behind its last one here.
        keys: keys of the writes.
        repeats: writes that the log has already, with what became of them; None if that is not remembered.
        rows: number of rows.
        bytes: size of the rows.
        stale: whether a write has to be judged again once the claims are read again.
        freed: outdated keys and producers, which the transaction removes; None before anybody asks.
    """

    parts: list[Waiting] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    repeats: list[tuple[Waiting, Fate | None]] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    stale: bool = False
    freed: tuple[frozenset[str], frozenset[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Bounds of a log's inbox.

    Attributes:
        rows_max: rows of a transaction; a write of more is taken alone.
        bytes_max: bytes of a transaction, likewise.
        waiting_bytes_max: bytes that may wait.
        waiting_writes_max: writes that may wait.
        wait_s_max: how long a write may wait for its turn, in seconds.
        gap_s_max: how long it waits for rows before it, in seconds.
        row_bytes_max: a longer row is a bad one.
        look_s: age of the known version of the table after which it is asked for again, in seconds.
        lag_slow: rows that are not in the table yet, from which on each write is delayed.
        lag_stop: the same, from which on writes are refused.
        keys_max: keys in one window.
        settle_s_max: how long it is asked what became of a transaction, in seconds.
        turn_s: how long this gateway waits after another one took the log, in seconds; spread.
    """

    rows_max: int = 20_000
    bytes_max: int = 2 << 20
    waiting_bytes_max: int = 32 << 20
    waiting_writes_max: int = 10_000
    wait_s_max: float = 20.0
    gap_s_max: float = 1.0
    row_bytes_max: int = 1 << 20
    look_s: float = 2.0
    lag_slow: int = 500_000
    lag_stop: int = 2_000_000
    keys_max: int = KEYS_MAX
    settle_s_max: float = 120.0
    turn_s: float = 0.5

    def lag(self, offsets: int) -> Pressure:
        """The pressure of rows that are not in the table yet."""
        if offsets <= self.lag_slow:
            return Pressure()
        share = min(1.0, (offsets - self.lag_slow) / (self.lag_stop - self.lag_slow))
        reason = (
            f"{offsets} offsets of its log are not in the table, and from {self.lag_stop} on none are taken"
        )
        return Pressure(share=share, reason=reason, retry_s=10.0)


class LogJudge:
    """Judges writes by the claims of a log.

    Args:
        table: name of the table, for messages.
        limits: bounds.
    """

    def __init__(self, table: str, limits: LogLimits) -> None:
        self._table = table
        self._limits = limits

    def judge(
        self,
        waiting: list[Waiting],
        taken: LogTaken,
        book: LogBook,
        plan: LogPlan,
        *,
        read_s: float,
        now_s: float,
        now_ms: int,
        lag: Pressure,
    ) -> list[Waiting]:
        """Take writes, or answer them.

        Args:
            waiting: the writes.
            taken: what was taken; further writes are added.
            book: the claims.
            plan: the table.
            read_s: when the claims were asked for, on the monotonic clock.
            now_s: time on that clock.
            now_ms: wall-clock time in milliseconds since the epoch.
            lag: how much the rows that are not in the table yet hold writers back.

        Returns:
            Those that wait on.
        """
        later = []
        for one in waiting:
            if taken.parts and (
                taken.rows + len(one.write.values) > self._limits.rows_max
                or taken.bytes + one.write.bytes > self._limits.bytes_max
            ):
                later.append(one)
                continue
            try:
                verdict = self._judge(one, taken, book, plan, read_s, now_s, now_ms, lag)
                if verdict is Verdict.LATER:
                    later.append(one)
            except (KeyReusedError, OverQuotaError, SequenceError, UnavailableError) as e:
                one.answer.set_exception(e)
        return later

    def _judge(
        self,
        one: Waiting,
        taken: LogTaken,
        book: LogBook,
        plan: LogPlan,
        read_s: float,
        now_s: float,
        now_ms: int,
        lag: Pressure,
    ) -> Verdict:
        """Take or answer a write, or let it wait on.

        Raises:
            KeyReusedError, OverQuotaError, SequenceError, UnavailableError: its answer.
        """
        write = one.write
        if now_s - one.since_s > self._limits.wait_s_max:
            raise UnavailableError(
                f"the log of table {self._table} did not take the write within "
                f"{self._limits.wait_s_max:g} s; "
                "nothing of it was written, send it again"
            )
        if write.keyed is not None:
            if write.keyed.key in taken.keys:
                return Verdict.LATER  # answered as a repeat once that one is in the log
            known = book.keys.get(write.keyed.key)
            if known is not None and known.at_ms >= now_ms - KEY_MS:
                if known.digest != write.keyed.digest:
                    raise KeyReusedError(
                        f"the Idempotency-Key came with other rows for the log of table {self._table} "
                        "before; take a new key for each write, and the same one only to repeat it"
                    )
                taken.repeats.append((one, known.fate))
                return Verdict.ANSWERED
        if write.producer is not None:
            verdict = self._in_order(one, write.producer, taken, book, read_s, now_s)
            if verdict is not Verdict.TAKEN:
                return verdict
        if lag.refused:
            raise BusyError(f"table {self._table}: {lag.reason}", retry_after_s=lag.retry_s)
        self._require_room(write, taken, book, now_ms)
        day = now_ms // DAY_MS
        used = _sum(book.used.plus(day, taken.rows, taken.bytes), plan.used.on(day))
        over = over_quota(plan.quota, used, write, now_ms=now_ms, table=self._table)
        if over is not None:
            raise over
        if write.producer is not None:
            taken.ends[write.producer] = write.end
        if write.keyed is not None:
            taken.keys.add(write.keyed.key)
        taken.parts.append(one)
        taken.rows += len(write.values)
        taken.bytes += write.bytes
        return Verdict.TAKEN

    def _in_order(
        self, one: Waiting, name: str, taken: LogTaken, book: LogBook, read_s: float, now_s: float
    ) -> Verdict:
        """Whether a numbered write follows its producer's rows, repeats some, or waits for those before it.

        Raises:
            SequenceError: it neither follows them nor repeats any.
        """
        write = one.write
        known = book.producers.get(name)
        stored = known.end if known is not None else 0
        wanted = taken.ends.get(name, stored)
        if write.sequence == wanted and wanted < write.end:
            return Verdict.TAKEN
        if known is not None and write.end <= stored:
            taken.repeats.append((one, known.find(write.sequence, write.end)))
            return Verdict.ANSWERED
        if write.end <= wanted:
            return Verdict.LATER  # answered as a repeat once that one is in the log
        if write.sequence > wanted and now_s - one.since_s <= self._limits.gap_s_max:
            return Verdict.LATER
        if read_s < one.since_s:
            # Another gateway may have written what is missing here, before the client sent this.
            taken.stale = True
            return Verdict.LATER
        if name in taken.ends:
            return Verdict.LATER
        if known is None:
            advice = "the log does not know this producer (or has forgotten it); begin with a new id at row 0"
        elif write.sequence > wanted:
            advice = "rows before it are missing; send those first, or begin with a new id at row 0"
        else:
            advice = "part of it is in the log already; send a repeat with the same rows as the first time"
        raise SequenceError(
            f"producer {name!r} sends rows from {write.sequence} on, the log of table {self._table} wants "
            f"row {wanted} next: {advice}",
            producer=name,
            expected=wanted,
        )

    def _require_room(self, write: Write, taken: LogTaken, book: LogBook, now_ms: int) -> None:
        """Require that a new producer or key fits, once the transaction has removed outdated ones.

        Raises:
            BusyError: too many are remembered.
        """
        name = write.producer
        new = name is not None and name not in book.producers and name not in taken.ends
        if new:
            fresh = sum(name not in book.producers for name in taken.ends)
            held = len(book.producers) + fresh
            # Only a transaction removes claims: if outdated ones counted, a full log would stay full.
            if held >= PRODUCERS_MAX and held - len(_freed(taken, book, now_ms)[1]) >= PRODUCERS_MAX:
                raise BusyError(
                    f"the log of table {self._table} has {PRODUCERS_MAX} producers already; use fewer ids, "
                    "or wait until some are forgotten",
                    retry_after_s=60.0,
                )
        if write.keyed is not None:
            held, most = len(book.keys) + len(taken.keys), self._limits.keys_max
            if held >= most and held - len(_freed(taken, book, now_ms)[0]) >= most:
                raise BusyError(
                    f"the log of table {self._table} remembers {len(book.keys)} idempotency keys already, "
                    "no more fit in their window; put more rows into a write, or number them (Tarn-Producer)",
                    retry_after_s=60.0,
                )


def _freed(taken: LogTaken, book: LogBook, now_ms: int) -> tuple[frozenset[str], frozenset[str]]:
    """Keys and producers that this transaction removes."""
    if taken.freed is None:
        taken.freed = book.freed(now_ms)
    keys, producers = taken.freed
    return keys, producers - taken.ends.keys()


def _sum(log: Used, lake: Used) -> Used:
    """What both ways took on the day of the log's count."""
    if lake.day < log.day:
        return log
    return Used(day=lake.day, rows=log.rows + lake.rows, bytes=log.bytes + lake.bytes)
