"""Atomic changes of several objects, and how concurrent readers and writers resolve their intents (I2).

    1. The transaction record is created, pending.
    2. Each object gets an intent that names the record, in key order.
    3. The preconditions are validated.
    4. The record is swapped to committed: that is the commit point.
    5. Each object is swapped to its new value, without the intent; then the record is deleted.

As in CockroachDB, write intents refer to one transaction record, which decides for all of them (in Percolator
the primary lock does). The record is committed after all intents are written, without the staging state of
CockroachDB's parallel commits. A change of one object needs no record: the object's own next value decides
its intent.

A reader that finds an intent reads the record and writes nothing: pending means the old value, committed the
new one. A writer may build on a decided intent at once. It aborts a pending transaction, but only after
intent and record were unchanged for `intent_wait_ms` on its own monotonic clock. A missing record is decisive
only after the object was read again: changed means start over, unchanged means aborted.

A transaction that takes long renews its record, so that others see progress and do not abort it: at most for
20 s, less than they wait. If another writer changes an object before the intent is there, a change that can
be made `again` on the new value takes that object once more and keeps the intents that it has. Objects are
taken in key order and nobody waits for anything else meanwhile, so that transactions never wait in a circle.

Only the transaction's own process deletes its record: after a commit once no object carries its intent, after
an abort only if it never asked for the commit. Otherwise a delayed request could create the deleted record
again, and a commit after it would succeed without any intents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

import structlog

from tarn.core.errors import TarnError, UnavailableError
from tarn.core.naming import transaction_key
from tarn.core.outcome import Committed, Outcome, Unknown
from tarn_catalog.state.context import CatalogContext, IdempotencyKey, Versioned, lost
from tarn_catalog.state.parallel import in_parallel
from tarn_catalog.state.record import Record, RecordState
from tarn_catalog.state.register import happened
from tarn_catalog.state.value import Intent, Participant, WriteStamp

log = structlog.get_logger()

INTENT_WAIT_MS = 2_000
LOOK_EVERY_MS = 20
SETTLE_MS_MAX = 30_000
READ_ATTEMPTS_MAX = 20
TAKE_ATTEMPTS_MAX = 16
RENEWED_MS_MAX = 20_000
RENEWALS = 4  # so often within the time after which others abort
LOOK = "load what it names and look, and delete nothing"

P = TypeVar("P", bound=Participant)
Renew = Callable[[], None]
"""Shows others that the transaction goes on; called between the steps of anything that may take long."""


def nothing() -> None:
    """Do nothing."""


class StartOverError(Exception):
    """Raised by a step of a transaction: give it up, nothing was changed; `run` returns None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantChange:
    """A participant of a transaction.

    Attributes:
        key: the object's key.
        held: the stored value, without an intent; None if there is none.
        blank: the value to build on if there is none.
        then: its fields once the transaction is committed, JSON.
        again: reads the object and returns the same change of its new value; used after another writer won.
            None: the transaction ends then. It renews while it waits, and raises as `confirm` does.
    """

    key: str
    held: Versioned[Any] | None
    blank: Participant
    then: Mapping[str, Any]
    again: Callable[[Renew], ParticipantChange] | None = None


class Verdict(Enum):
    """The status of an intent; CHANGED: the object was replaced during the check."""

    PENDING = auto()
    COMMITTED = auto()
    ABORTED = auto()
    CHANGED = auto()


_VERDICTS = {
    RecordState.PENDING: Verdict.PENDING,
    RecordState.COMMITTED: Verdict.COMMITTED,
    RecordState.ABORTED: Verdict.ABORTED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    verdict: Verdict
    record: Versioned[Record] | None = None


class _Course:
    """A transaction under way: its record, and the intents that are written.

    Args:
        core: the catalog context.
        record: its record; None if it has none, because it changes one object.
        renew_ms: how often it is renewed, milliseconds.
    """

    def __init__(self, core: CatalogContext, record: Versioned[Record] | None, *, renew_ms: float) -> None:
        self.record = record
        self.taken: list[tuple[str, Versioned[Any]]] = []
        self._core = core
        self._renew_ms = renew_ms
        self._began = self._renewed = core.patience.clock()

    def renew(self) -> None:
        """Write the pending record again, if it is time to.

        Raises:
            StartOverError: another writer has aborted the transaction.
            UnavailableError: it is not known whether the record was written.
        """
        now = self._core.patience.clock()
        early = (now - self._renewed) * 1000 < self._renew_ms
        if self.record is None or early or (now - self._began) * 1000 > RENEWED_MS_MAX:
            return
        key = transaction_key(self.record.value.uuid)
        wanted = replace(self.record.value, nonce=self._core.new_uuid())
        written, outcome = self._core.write(key, wanted, over=self.record)
        if isinstance(outcome, Unknown):
            raise UnavailableError(
                f"could not go on with a change of {', '.join(wanted.keys)}: {outcome.reason}; nothing was "
                "changed, try again",
                key=key,
            )
        if written is None:
            raise StartOverError
        self.record, self._renewed = written, self._core.patience.clock()


class Transactions:
    """Transactions over the register.

    Args:
        core: the catalog context.
        intent_wait_ms: milliseconds that a pending intent must stay unchanged before a writer aborts it.
    """

    def __init__(self, core: CatalogContext, *, intent_wait_ms: int = INTENT_WAIT_MS) -> None:
        self._core = core
        self._intent_wait_ms = intent_wait_ms

    # -- meeting intents

    def read(self, key: str, load: Callable[[bytes, str], P]) -> Versioned[P] | None:
        """Return the value that a reader sees, or None. Writes nothing.

        Raises:
            UnavailableError: the store did not answer, or the object changed on each of 20 reads.
        """
        for _ in self._core.patience.attempts(READ_ATTEMPTS_MAX):
            held = self._core.read(key, load, keep=True)
            if held is None or held.value.intent is None:
                return held
            seen = self._judge(key, held)
            if seen.verdict is not Verdict.CHANGED:
                return _settled(held, seen.verdict)
        raise _restless(key)

    def read_to_write(
        self, key: str, load: Callable[[bytes, str], P], *, renew: Renew = nothing
    ) -> Versioned[P] | None:
        """Return the value with its intent resolved, so that it can be swapped; None if there is none.

        Args:
            key: the object's key.
            load: parses the stored bytes.
            renew: called while it waits.

        Raises:
            UnavailableError: the store did not answer, or other transactions did not finish within 30 s.
        """
        clock = self._core.patience.clock
        started = since = clock()
        mark: tuple[str, str | None] | None = None
        while (clock() - started) * 1000 <= SETTLE_MS_MAX:
            held = self._core.read(key, load, keep=True)
            if held is None or held.value.intent is None:
                return held
            seen = self._judge(key, held)
            if seen.verdict in (Verdict.COMMITTED, Verdict.ABORTED):
                return _settled(held, seen.verdict)
            # Progress by its owner changes the intent's or the record's etag and restarts the wait.
            now = held.etag, seen.record.etag if seen.record else None
            if now != mark or seen.verdict is Verdict.CHANGED:
                mark, since = now, clock()
            elif (clock() - since) * 1000 >= self._intent_wait_ms:
                self._abort(key, held, seen.record)
                continue
            self._core.patience.sleep(LOOK_EVERY_MS / 1000)
            renew()
        raise _restless(key)

    def _judge(self, key: str, held: Versioned[P]) -> _Seen:
        """Return the status of the object's intent, with the transaction record if there is one."""
        intent = held.value.intent
        assert intent is not None, key
        if intent.record is None:
            return _Seen(verdict=Verdict.PENDING)
        stored = self._core.register.read(intent.record)
        if stored is not None:
            record = Versioned(value=Record.load(stored.data, intent.record), etag=stored.etag)
            return _Seen(verdict=_VERDICTS[record.value.state], record=record)
        again = self._core.register.read(key)
        same = again is not None and again.etag == held.etag
        return _Seen(verdict=Verdict.ABORTED if same else Verdict.CHANGED)

    def _abort(self, key: str, held: Versioned[P], record: Versioned[Record] | None) -> None:
        """Abort the transaction of a pending intent; the caller reads the result on its next attempt."""
        if record is not None:
            log.info("transaction aborted", record=record.value.uuid, keys=record.value.keys, met_at=key)
            self._decide(record, RecordState.ABORTED)
            return
        log.info("intent aborted", key=key)
        self._settle(key, held, committed=False)

    def _decide(self, record: Versioned[Record], state: RecordState) -> Outcome:
        """Swap a pending record to its final state."""
        wanted = replace(record.value, state=state, nonce=self._core.new_uuid())
        _, outcome = self._core.write(transaction_key(record.value.uuid), wanted, over=record)
        return outcome

    def _settle(
        self, key: str, held: Versioned[Any], *, committed: bool
    ) -> tuple[Versioned[Any] | None, Outcome]:
        """Swap in the value with its intent applied or discarded; return what `CatalogContext.write` does."""
        wanted = held.value.settled(committed=committed).next(self._core.stamp())
        return self._core.write(key, wanted, over=held)

    # -- beginning one

    def run(
        self,
        parts: Iterable[ParticipantChange],
        *,
        repeat: IdempotencyKey | None = None,
        confirm: Callable[[Renew], object] = lambda _: None,
    ) -> Mapping[str, Versioned[Any]] | None:
        """Change all participants or none; None if another writer won.

        Args:
            parts: the changes; their values come from `read_to_write`.
            repeat: the request's idempotency key, recorded with every participant.
            confirm: raises TarnError if a precondition does not hold, StartOverError if the change has to be
                begun again; called once all intents are written.

        Returns:
            The new values by key, as far as they are known; None if another writer won.

        Raises:
            OutcomeUnknownError: the change may have happened, or may still happen.
            ConflictError: others won every attempt to take an object; nothing was changed.
            UnavailableError: the change did not and will not happen.
            TarnError: raised by `confirm`; nothing was changed.
        """
        ordered = sorted(parts, key=lambda part: part.key)
        for part in ordered:
            self._core.cache.drop(part.key)
        stamp = self._core.stamp(repeat)
        record = self._open(ordered, stamp) if len(ordered) > 1 else None
        course = _Course(self._core, record, renew_ms=self._intent_wait_ms / RENEWALS)
        try:
            for part in ordered:
                course.taken.append((part.key, self._take(part, stamp, course)))
                course.renew()
            confirm(course.renew)
        except StartOverError:
            self._give_up(course.record, course.taken)
            return None
        except Exception:
            self._give_up(course.record, course.taken)
            raise
        if course.record is None:
            return self._commit_alone(*course.taken[0])
        return self._commit(course.record, course.taken)

    def _open(self, parts: Sequence[ParticipantChange], stamp: WriteStamp) -> Versioned[Record]:
        """Create the transaction record, pending.

        Raises:
            UnavailableError: the record was not confirmed as created; nothing was changed.
        """
        keys = tuple(part.key for part in parts)
        assert len(set(keys)) == len(keys), keys
        wanted = Record(uuid=stamp.nonce, keys=keys, at_ms=stamp.at_ms, nonce=self._core.new_uuid())
        key = transaction_key(stamp.nonce)
        record, _ = self._core.write(key, wanted, over=None)
        if record is not None:
            return record
        raise UnavailableError(
            f"could not begin a change of {', '.join(keys)}: no answer to the record {key}; nothing was "
            "changed, try again",
            key=key,
        )

    def _take(self, part: ParticipantChange, stamp: WriteStamp, course: _Course) -> Versioned[Any]:
        """Write the intent of one object, on its newest value if the change allows that; return the object.

        Raises:
            StartOverError: another writer won.
            ConflictError: others won every attempt.
            UnavailableError: the write may have happened; the transaction is to be aborted.
        """
        change = part
        for number in self._core.patience.attempts(TAKE_ATTEMPTS_MAX if part.again else 1):
            if number > 1 and part.again is not None:
                course.renew()
                change = part.again(course.renew)
            intent = Intent(
                record=transaction_key(stamp.nonce) if course.record else None,
                nonce=stamp.nonce,
                then=change.then,
                at_ms=stamp.at_ms,
                key=stamp.key,
                what=stamp.what,
            )
            held = self._write_intent(change, intent)
            if held is not None:
                return held
        if part.again is None:
            raise StartOverError
        raise lost(f"the change of {part.key}", TAKE_ATTEMPTS_MAX)

    def _write_intent(self, part: ParticipantChange, intent: Intent) -> Versioned[Any] | None:
        """Write an intent and return the object with it; None if another writer won.

        Raises:
            UnavailableError: the write may have happened; the transaction is to be aborted.
        """
        base = part.held.value if part.held is not None else part.blank
        wanted = replace(base, intent=intent).next(self._core.stamp())
        # What will be written after the commit point must keep the rules too, or it is not begun.
        wanted.settled(committed=True).next(self._core.stamp()).check_follows(wanted, part.key)
        written, outcome = self._core.write(part.key, wanted, over=part.held)
        if isinstance(outcome, Unknown):
            # If the write lands after all, its intent names an aborted transaction.
            raise UnavailableError(
                f"could not change {part.key}: {outcome.reason}; nothing was changed, try again", key=part.key
            )
        return written

    def _commit_alone(self, key: str, held: Versioned[Any]) -> Mapping[str, Versioned[Any]] | None:
        """Commit the change of one object by swapping in its next value."""
        try:
            stored, outcome = self._settle(key, held, committed=True)
        except TarnError:
            # Definitely not committed: roll back, so that other writers need not wait for the intent.
            self._quietly(lambda: self._settle(key, held, committed=False))
            raise
        if not happened(outcome, f"the change of {key}", look=LOOK):
            return None
        return {} if stored is None else {key: stored}

    def _commit(
        self, record: Versioned[Record], taken: Sequence[tuple[str, Versioned[Any]]]
    ) -> Mapping[str, Versioned[Any]] | None:
        """Commit the record, then apply the intents; None if another writer aborted the transaction."""
        try:
            outcome = self._decide(record, RecordState.COMMITTED)
        except TarnError:
            # Definitely not committed: roll back, so that other writers need not wait for the intent.
            self._quietly(lambda: self._decide(record, RecordState.ABORTED))
            raise
        if happened(outcome, f"the change of {', '.join(record.value.keys)}", look=LOOK):
            return self._finish(record, taken)
        for key, held in taken:
            self._quietly(partial(self._settle, key, held, committed=False))
        return None

    def _finish(
        self, record: Versioned[Record], taken: Sequence[tuple[str, Versioned[Any]]]
    ) -> Mapping[str, Versioned[Any]]:
        """Apply the intents of a committed transaction; delete its record once none is left.

        Returns:
            The new values by key, as far as they are known.
        """

        def apply(one: tuple[str, Versioned[Any]]) -> tuple[Versioned[Any] | None, bool]:
            try:
                known, outcome = self._settle(*one, committed=True)
            except TarnError as e:
                log.info("new value left to the next writer", key=one[0], reason=e.message)
                return None, False
            # On conflict another writer built on the decided intent. It is resolved either way.
            return known, not isinstance(outcome, Unknown)

        applied = in_parallel(apply, taken)
        if all(clean for _, clean in applied):
            self._quietly(lambda: self._core.store.delete(transaction_key(record.value.uuid)))
        pairs = zip(taken, applied, strict=True)
        return {key: known for (key, _), (known, _) in pairs if known is not None}

    def _give_up(self, record: Versioned[Record] | None, taken: Sequence[tuple[str, Versioned[Any]]]) -> None:
        """Roll back a transaction whose commit was not requested, as far as the store permits."""

        def back() -> None:
            settled = record is None or isinstance(self._decide(record, RecordState.ABORTED), Committed)
            for key, held in taken:
                _, outcome = self._settle(key, held, committed=False)
                settled = settled and not isinstance(outcome, Unknown)
            if record is not None and settled:
                self._core.store.delete(transaction_key(record.value.uuid))

        self._quietly(back)

    @staticmethod
    def _quietly(step: Callable[[], object]) -> None:
        try:
            step()
        except TarnError as e:
            log.info("tidying left to the next writer", reason=e.message)


def _settled(held: Versioned[P], verdict: Verdict) -> Versioned[P]:
    return Versioned(value=held.value.settled(committed=verdict is Verdict.COMMITTED), etag=held.etag)


def _restless(key: str) -> UnavailableError:
    return UnavailableError(
        f"could not read {key}: others are changing it and do not finish; try again", key=key
    )
