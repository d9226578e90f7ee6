"""Changes of several objects at once, and how everybody else meets them on the way (invariant I2).

    1. The record is written, pending.
    2. Each object gets an intent that names the record, in the order of the keys.
    3. What must still hold is looked at.
    4. The record is swapped to committed: that is the commit.
    5. Each object is swapped to its new value, without the intent; then the record goes.

A change of one object needs no record: its intent is decided by the object's own next value.

A reader that meets an intent asks the record and writes nothing: pending is the old value, committed the new.
A writer may build on what is decided at once. What is pending it aborts, but only after it saw intent and
record unchanged for `intent_wait_ms` on its own monotonic clock. A record that is not there tells nothing
before the object was read again: changed means start over, unchanged means aborted.

Only who began a transaction removes its record: after a commit once no object carries its intent any more,
after an abort only if it never asked for the commit. For a request on the way may still write a record that
was removed, and a commit that follows it would then succeed with nothing behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

import structlog

from tarn.core.errors import OutcomeUnknownError, TarnError, UnavailableError
from tarn.core.naming import transaction_key
from tarn.core.outcome import Committed, Conflict, Unknown
from tarn_catalog.state.context import CatalogContext, IdempotencyKey, Versioned
from tarn_catalog.state.pointer import Intent, Participant
from tarn_catalog.state.record import Record, RecordState
from tarn_catalog.state.register import Superseded

log = structlog.get_logger()

INTENT_WAIT_MS = 2_000
LOOK_EVERY_MS = 20
SETTLE_MS_MAX = 30_000
READ_ATTEMPTS_MAX = 20

P = TypeVar("P", bound=Participant)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticipantChange:
    """An object that takes part in a transaction.

    Attributes:
        key: of the object.
        held: what is stored, settled; None if nothing is.
        base: what it is built on: the value held, or a blank one.
        then: its fields once the transaction is committed.
    """

    key: str
    held: Versioned[Any] | None
    base: Participant
    then: Mapping[str, Any]


class Verdict(Enum):
    """What an intent amounts to."""

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


class Transactions:
    """Transactions over the register.

    Args:
        core: register, time, ids.
        intent_wait_ms: how long a pending intent must stay as it is before a writer aborts it.
    """

    def __init__(self, core: CatalogContext, *, intent_wait_ms: int = INTENT_WAIT_MS) -> None:
        self._core = core
        self._intent_wait_ms = intent_wait_ms

    # -- meeting intents

    def read(self, key: str, load: Callable[[bytes, str], P]) -> Versioned[P] | None:
        """What the object means to a reader, or None. Nothing is written.

        Raises:
            UnavailableError: the store did not answer, or the object changed without end.
        """
        for _ in range(READ_ATTEMPTS_MAX):
            held = self._core.read(key, load, keep=True)
            if held is None or held.value.intent is None:
                return held
            seen = self._judge(key, held)
            if seen.verdict is not Verdict.CHANGED:
                return _settled(held, seen.verdict)
        raise _restless(key)

    def read_to_write(self, key: str, load: Callable[[bytes, str], P]) -> Versioned[P] | None:
        """What the object means, with nothing pending any more, so that it may be swapped.

        Raises:
            UnavailableError: the store did not answer, or others do not finish.
        """
        clock = self._core.patience.clock
        started = since = clock()
        mark: tuple[str, str | None] | None = None
        while (clock() - started) * 1000 <= SETTLE_MS_MAX:
            held = self._core.read(key, load, keep=True)
            if held is None or held.value.intent is None:
                return held
            seen = self._judge(key, held)
            if seen.verdict is Verdict.CHANGED:
                continue
            if seen.verdict is not Verdict.PENDING:
                return _settled(held, seen.verdict)
            now = held.etag, seen.record.etag if seen.record else None
            if now != mark:
                mark, since = now, clock()
            elif (clock() - since) * 1000 >= self._intent_wait_ms:
                self._abort(key, held, seen.record)
                continue
            self._core.patience.sleep(LOOK_EVERY_MS / 1000)
        raise _restless(key)

    def _judge(self, key: str, held: Versioned[P]) -> _Seen:
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
        """Decide a pending intent against whoever began it. What came of it is seen at the next look."""
        if record is not None:
            log.info("transaction aborted", record=record.value.uuid, keys=record.value.keys, met_at=key)
            self._decide(record, RecordState.ABORTED)
            return
        log.info("intent aborted", key=key)
        self._settle(key, held, committed=False)

    def _decide(self, record: Versioned[Record], state: RecordState) -> Committed | Conflict | Unknown:
        key = transaction_key(record.value.uuid)
        value = record.value.decided(state, nonce=self._core.new_uuid())

        def is_mine(data: bytes) -> bool:
            return Record.load(data, key).state is state

        return self._core.register.swap(key, value.dump(), if_match=record.etag, is_mine=is_mine)

    def _settle(
        self, key: str, held: Versioned[Any], *, committed: bool
    ) -> tuple[Versioned[Any] | None, Committed | Conflict | Unknown]:
        """Swap an object to what its intent amounts to; what is stored then, if known, and the outcome."""
        value = held.value.settled(committed=committed)
        wanted = value.touched(nonce=self._core.new_uuid(), now_ms=self._core.now_ms())
        written, outcome = self._core.write(key, wanted, over=held)
        if isinstance(outcome, Committed) and not isinstance(outcome, Superseded):
            return Versioned(value=written, etag=outcome.etag), outcome
        return None, outcome

    # -- beginning one

    def run(
        self,
        parts: Iterable[ParticipantChange],
        *,
        repeat: IdempotencyKey | None = None,
        confirm: Callable[[], object] = lambda: None,
    ) -> Mapping[str, Versioned[Any]] | None:
        """Change all parts or none. The new values by key, as far as they are known; None: others were first.

        Args:
            parts: what changes; read with `read_to_write`.
            repeat: how the client marks the request; remembered with every part.
            confirm: raises if something that must hold does not; called when all intents are written.

        Raises:
            OutcomeUnknownError: it may have happened, or may still happen.
            UnavailableError: it did not and will not happen.
            TarnError: whatever `confirm` raises; nothing was changed.
        """
        ordered = sorted(parts, key=lambda part: part.key)
        for part in ordered:
            self._core.cache.drop(part.key)
        nonce, at_ms = self._core.new_uuid(), self._core.now_ms()
        record = self._open(ordered, nonce, at_ms) if len(ordered) > 1 else None
        taken: list[tuple[str, Versioned[Any]]] = []
        try:
            for part in ordered:
                intent = Intent(
                    record=transaction_key(nonce) if record else None,
                    nonce=nonce,
                    then=part.then,
                    at_ms=at_ms,
                    key=repeat.key if repeat else None,
                    what=repeat.what if repeat else None,
                )
                held = self._take(part, intent)
                if held is None:
                    self._give_up(record, taken)
                    return None
                taken.append((part.key, held))
            confirm()
        except TarnError:
            self._give_up(record, taken)
            raise
        return self._commit_alone(*taken[0]) if record is None else self._commit(record, taken)

    def _open(self, parts: Sequence[ParticipantChange], nonce: str, at_ms: int) -> Versioned[Record]:
        keys = tuple(part.key for part in parts)
        assert len(set(keys)) == len(keys), keys
        value = Record(uuid=nonce, keys=keys, at_ms=at_ms, nonce=self._core.new_uuid())
        key = transaction_key(nonce)
        outcome = self._core.register.create(
            key, value.dump(), is_mine=lambda data: Record.load(data, key).uuid == nonce
        )
        if isinstance(outcome, Committed) and not isinstance(outcome, Superseded):
            return Versioned(value=value, etag=outcome.etag)
        raise UnavailableError(
            f"could not begin a change of {', '.join(keys)}: no answer to the record {key}; nothing was "
            "changed, try again",
            key=key,
        )

    def _take(self, part: ParticipantChange, intent: Intent) -> Versioned[Any] | None:
        """The object with the intent; None if somebody else was first."""
        wanted = part.base.touched(nonce=self._core.new_uuid(), now_ms=self._core.now_ms(), intent=intent)
        written, outcome = self._core.write(part.key, wanted, over=part.held)
        match outcome:
            case Superseded() | Conflict():
                return None
            case Committed(etag=etag):
                return Versioned(value=written, etag=etag)
            case Unknown(reason=reason):
                # Should it land after all, it names a transaction that is aborted.
                raise UnavailableError(
                    f"could not change {part.key}: {reason}; nothing was changed, try again", key=part.key
                )

    def _commit_alone(self, key: str, held: Versioned[Any]) -> Mapping[str, Versioned[Any]] | None:
        try:
            stored, outcome = self._settle(key, held, committed=True)
        except TarnError:
            # Refused for good: it did not happen, and must not be left to others to wait for.
            self._quietly(lambda: self._settle(key, held, committed=False))
            raise
        match outcome:
            case Committed():
                return {} if stored is None else {key: stored}
            case Conflict():
                return None
            case Unknown(reason=reason):
                raise _unknown([key], reason)

    def _commit(
        self, record: Versioned[Record], taken: Sequence[tuple[str, Versioned[Any]]]
    ) -> Mapping[str, Versioned[Any]] | None:
        try:
            outcome = self._decide(record, RecordState.COMMITTED)
        except TarnError:
            # Refused for good: it did not happen, and must not be left to others to wait for.
            self._quietly(lambda: self._decide(record, RecordState.ABORTED))
            raise
        match outcome:
            case Committed():
                return self._finish(record, taken)
            case Conflict():
                for key, held in taken:
                    self._quietly(partial(self._settle, key, held, committed=False))
                return None
            case Unknown(reason=reason):
                raise _unknown(record.value.keys, reason)

    def _finish(
        self, record: Versioned[Record], taken: Sequence[tuple[str, Versioned[Any]]]
    ) -> Mapping[str, Versioned[Any]]:
        """It is committed: write the new values, and remove the record if all are known to be there."""
        stored: dict[str, Versioned[Any]] = {}
        clean = 0
        for key, held in taken:
            try:
                known, outcome = self._settle(key, held, committed=True)
            except TarnError as e:
                log.info("new value left to the next writer", key=key, reason=e.message)
                continue
            # A conflict: somebody built on the intent, which is decided. It is gone either way.
            clean += not isinstance(outcome, Unknown)
            if known is not None:
                stored[key] = known
        if clean == len(taken):
            self._quietly(lambda: self._core.store.delete(transaction_key(record.value.uuid)))
        return stored

    def _give_up(self, record: Versioned[Record] | None, taken: Sequence[tuple[str, Versioned[Any]]]) -> None:
        """Nothing was committed, nor asked for: take it back as far as the store lets us."""

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


def _unknown(keys: Iterable[str], reason: str) -> OutcomeUnknownError:
    names = ", ".join(keys)
    return OutcomeUnknownError(
        f"Cannot tell whether the change of {names} happened: {reason}; load what it names and look, and "
        "delete nothing",
        keys=names,
    )
