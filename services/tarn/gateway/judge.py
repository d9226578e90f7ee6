"""What becomes of a write that waits: taken for the next commit, answered, or left to wait on.

What a client repeats is found by its sequence or its key: in the table, on its way there, or among what is
taken beside it.
"""

from __future__ import annotations

from tarn.core.errors import TarnError, UnavailableError
from tarn.core.producers import NUMBER_MAX, PRODUCERS_MAX, Claim, Slot, next_sequence
from tarn.core.quota import DAY_MS
from tarn.core.table_catalog import TableName
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.quotas import over_quota
from tarn.gateway.takes import InboxLimits, OnTheWay, Plan, Taken, Verdict, Waiting
from tarn.gateway.writes import (
    BusyError,
    KeyReusedError,
    SequenceError,
    Write,
)
from tarn.ingest.context import IngestContext


class Judge:
    """Judges the writes of one table. It belongs to the inbox, which is locked meanwhile.

    Args:
        table: name of the table.
        context: dependencies.
        keys: the idempotency keys that the table remembers.
        way: what is on its way into the table.
        own: producer id of this process, for clients that do not number their rows.
        limits: bounds.
    """

    def __init__(
        self,
        table: TableName,
        context: IngestContext,
        keys: KeyMemory,
        way: OnTheWay,
        *,
        own: str,
        limits: InboxLimits,
    ) -> None:
        self._table = table
        self._context = context
        self._keys = keys
        self._way = way
        self._own = own
        self._limits = limits

    def verdict(self, plan: Plan, taken: Taken, one: Waiting, now: float) -> Verdict:
        """Take a write, answer it, or let it wait. The inbox is locked, as below."""
        write = one.write
        if now - one.since_s > self._limits.wait_s_max:
            one.answer.set_exception(
                UnavailableError(
                    f"table {self._table} did not take the write within {self._limits.wait_s_max:g} s; "
                    "nothing of it was written, send it again"
                )
            )
            return Verdict.ANSWERED
        if plan.debt.refused:
            one.answer.set_exception(
                BusyError(f"table {self._table}: {plan.debt.reason}", retry_after_s=plan.debt.retry_s)
            )
            return Verdict.ANSWERED
        if write.keyed is not None and (verdict := self._judge_key(taken, one)) is not None:
            return verdict
        name = write.producer if write.producer is not None else self._own
        if plan.book.rolled_back(name, plan.offsets.next if plan.offsets is not None else {}):
            return self._rolled_back(plan, taken, one)
        claimed = taken.claims.get(name)
        stored = next_sequence(plan.book, plan.offsets, name)
        wanted = claimed.end if claimed else self._way.tails.get(name, stored or 0)
        start = write.sequence if write.producer is not None else wanted
        if start != wanted:
            return self._out_of_order(plan, taken, one, now, start=start, wanted=wanted, stored=stored)
        if (over := self._over_quota(plan, taken, write)) is not None:
            if plan.asked_s < one.since_s:
                taken.stale = True  # the owner may have allowed more
                return Verdict.LATER
            one.answer.set_exception(over)
            return Verdict.ANSWERED
        slot = self._slot(plan, taken, name)
        if slot is None:
            one.answer.set_exception(
                BusyError(
                    f"table {self._table} has {PRODUCERS_MAX} producers already; use fewer ids, or wait "
                    "until some are forgotten",
                    retry_after_s=60.0,
                )
            )
            return Verdict.ANSWERED
        taken.claims[name] = Claim(
            producer=name,
            slot=slot,
            start=claimed.start if claimed else start,
            end=start + len(write.values),
        )
        taken.parts.append((one, name, start))
        taken.firsts[(name, start)] = one
        if write.keyed is not None:
            taken.keys[write.keyed.key] = one
        return Verdict.TAKEN

    def _judge_key(self, taken: Taken, one: Waiting) -> Verdict | None:
        """What becomes of a write by its idempotency key; None if the key is new."""
        keyed = one.write.keyed
        assert keyed is not None
        known = self._keys.find(keyed.key)
        first = taken.keys.get(keyed.key) or self._way.flying_keys.get(keyed.key)
        digest = known.digest if known is not None else None
        if digest is None and first is not None and first.write.keyed is not None:
            digest = first.write.keyed.digest
        if digest is not None and digest != keyed.digest:
            one.answer.set_exception(
                KeyReusedError(
                    f"the Idempotency-Key came with other rows for table {self._table} before; take a new "
                    "key for each write, and the same one only to repeat it"
                )
            )
            return Verdict.ANSWERED
        if known is not None:
            taken.repeats.append(one)
            return Verdict.ANSWERED
        if first is not None:
            first.follow(one.answer)
            return Verdict.ANSWERED
        if len(self._keys) + len(taken.keys) >= self._limits.keys_max:
            self._keys.forget_old()
            if len(self._keys) + len(taken.keys) >= self._limits.keys_max:
                one.answer.set_exception(
                    BusyError(
                        f"table {self._table} remembers {len(self._keys)} idempotency keys already, no more "
                        "fit in their window; put more rows into a write, or number them (Tarn-Producer)",
                        retry_after_s=60.0,
                    )
                )
                return Verdict.ANSWERED
        return None

    def _over_quota(self, plan: Plan, taken: Taken, write: Write) -> TarnError | None:
        """Why the quota does not allow a write; None if it may. The commit itself decides on its own base."""
        now_ms = self._context.ports.now_ms()
        used = plan.book.used.plus(now_ms // DAY_MS, taken.rows, taken.bytes)
        return over_quota(plan.quota, used, write, now_ms=now_ms, table=str(self._table))

    def _out_of_order(
        self,
        plan: Plan,
        taken: Taken,
        one: Waiting,
        now: float,
        *,
        start: int,
        wanted: int,
        stored: int | None,
    ) -> Verdict:
        """A write that does not begin where its producer's rows end: a repeat, early, or wrong."""
        write = one.write
        assert write.producer is not None
        if write.end <= (stored or 0):
            taken.repeats.append(one)
            return Verdict.ANSWERED
        place = (write.producer, start)
        former = taken.firsts.get(place) or self._way.flying.get(place)
        if former is not None and former.write.end == write.end:
            former.follow(one.answer)
            return Verdict.ANSWERED
        if start > wanted and now - one.since_s <= self._limits.gap_s_max:
            return Verdict.LATER
        if plan.asked_s < one.since_s:
            # Another gateway may have committed what is missing here, before the client sent this.
            taken.stale = True
            return Verdict.LATER
        one.answer.set_exception(
            SequenceError(
                f"producer {write.producer!r} sends rows from {start} on, table {self._table} wants row "
                f"{wanted} next: {_advice(start, wanted, known=stored is not None)}",
                producer=write.producer,
                expected=wanted,
            )
        )
        return Verdict.ANSWERED

    def _rolled_back(self, plan: Plan, taken: Taken, one: Waiting) -> Verdict:
        """A write of a producer whose rows were rolled back; see `ProducerBook.rolled_back`."""
        if plan.asked_s < one.since_s:
            taken.stale = True
            return Verdict.LATER
        one.answer.set_exception(
            SequenceError(
                f"table {self._table} was rolled back to before all rows of producer {one.write.producer!r}: "
                "begin with a new id at row 0, with the rows that the table is to have again",
                producer=one.write.producer,
                expected=0,
            )
        )
        return Verdict.ANSWERED

    def _slot(self, plan: Plan, taken: Taken, name: str) -> Slot | None:
        """Where the rows of a producer are, or are to be; None if there are too many."""
        ends = plan.offsets.next if plan.offsets is not None else {}
        known = plan.book.slot_of(name, ends)
        if known is not None:
            return known
        if (given := self._way.slots.get(name)) is not None:
            return given
        if (claimed := taken.claims.get(name)) is not None:
            return claimed.slot
        others = [*self._way.slots.values(), *(claim.slot for claim in taken.claims.values())]
        slot = plan.book.new_slot(ends, [other.number for other in others])
        if slot.number > NUMBER_MAX:
            return None
        # The producer of the process is for all who do not number their rows: no ids shut it out.
        if name != self._own and plan.book.clients + len(self._way.slots) >= PRODUCERS_MAX:
            return None
        return slot


def _advice(start: int, wanted: int, *, known: bool) -> str:
    if not known:
        return "the table does not know this producer (or has forgotten it); begin with a new id at row 0"
    if start > wanted:
        return "rows before it are missing; send those first, or begin with a new id at row 0"
    return "part of it is in the table already; send a repeat with the same rows as the first time"
