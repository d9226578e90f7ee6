"""The register: read, create and swap one small object, with three outcomes (invariants I2, I3).

After every precondition failure and every write without an answer the key is read back: absent means that a
create may be retried, the written value means committed, any other value means conflict. The writer
recognises its value with `is_mine`, because a later writer may already have built on it. Retrying the same
bytes is always safe: they carry a nonce, so a second success of the same value changes nothing, and the base,
once replaced, never comes back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tarn.core.errors import ConflictError, OutcomeUnknownError, UnavailableError
from tarn.core.object_store import (
    ObjectStore,
    StoreBusyError,
    Stored,
    StoreDeniedError,
    StoreNotDurableError,
    StoreOutcomeUnknownError,
    StoreRefusedError,
)
from tarn.core.outcome import Committed, Conflict, Outcome, Unknown

IsMine = Callable[[bytes], bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded(Committed):
    """A committed write that others have built on; the entity tag is theirs, so do not swap on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retry policy of a conditional write; clock and RNG are injected.

    Attributes:
        attempts_max: how often the same bytes are sent.
        wait_ms: the longest wait before the second attempt; it doubles with each attempt, and jitter shortens
            it by up to half.
        wait_ms_max: the upper limit of the wait.
        deadline_ms: no attempt starts later than this after the first.
        clock: monotonic clock, seconds.
        sleep: waits for a number of seconds.
        chance: RNG, returns a number in [0, 1).
    """

    attempts_max: int = 8
    wait_ms: int = 20
    wait_ms_max: int = 1_000
    deadline_ms: int = 20_000
    clock: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)
    chance: Callable[[], float] = field(default=random.random)

    def attempts(self, attempts_max: int) -> Iterator[int]:
        """Yield the numbers of the attempts, from 1; pause before each but the first."""
        for attempt in range(1, attempts_max + 1):
            if attempt > 1:
                longest_ms = min(self.wait_ms_max, self.wait_ms * 2 ** (attempt - 2))
                self.sleep(longest_ms * (0.5 + 0.5 * self.chance()) / 1000)
            yield attempt

    def resends(self) -> Iterator[int]:
        """Yield the numbers of the attempts to send the same bytes: as `attempts`, until the deadline."""
        started = self.clock()
        for attempt in self.attempts(self.attempts_max):
            yield attempt
            if (self.clock() - started) * 1000 > self.deadline_ms:
                return


class Register:
    """Conditional writes of small objects."""

    def __init__(self, store: ObjectStore, patience: RetryPolicy | None = None) -> None:
        self._store = store
        self._patience = patience or RetryPolicy()

    def read(self, key: str, *, known: Stored | None = None) -> Stored | None:
        """Return the stored object of a key, or None; `known` itself if it is unchanged."""
        return self._store.get(key, known=known)

    def create(self, key: str, data: bytes, *, is_mine: IsMine) -> Outcome:
        """Write the key if it is absent.

        Args:
            key: the key.
            data: the value; carries a nonce.
            is_mine: whether a value read back is this one or was built on it; None if undecidable.

        Raises:
            StoreDeniedError: the store denies the write; nothing was written.
            UnavailableError: the write provably did not happen.
        """
        return self._write(key, data, if_match=None, is_mine=is_mine)

    def swap(self, key: str, data: bytes, *, if_match: str, is_mine: IsMine) -> Outcome:
        """Replace the value whose entity tag is `if_match`.

        Args:
            key: the key.
            data: the value; carries a nonce.
            if_match: the entity tag of the value to replace.
            is_mine: as for `create`.

        Raises:
            StoreDeniedError: the store denies the write; nothing was written.
            UnavailableError: the write provably did not happen.
        """
        return self._write(key, data, if_match=if_match, is_mine=is_mine)

    def _write(self, key: str, data: bytes, *, if_match: str | None, is_mine: IsMine) -> Outcome:
        ambiguous = False
        reason = ""
        for _ in self._patience.resends():
            try:
                etag = self._store.put(key, data, if_absent=if_match is None, if_match=if_match)
                return Committed(etag=etag)
            except StoreRefusedError as e:
                reason = e.message
            except StoreBusyError as e:
                # A store that sheds load (503) does not prove that the write was not done.
                ambiguous, reason = True, e.message
                continue
            except StoreNotDurableError as e:
                return Unknown(reason=e.message)
            except StoreOutcomeUnknownError as e:
                ambiguous, reason = True, e.message
            except StoreDeniedError as e:
                if ambiguous:
                    return Unknown(reason=e.message)
                raise
            seen = self._look(key, data, if_match=if_match, is_mine=is_mine)
            if isinstance(seen, Unlooked):
                # The read-back failed too: the precondition failure alone proves nothing.
                ambiguous, reason = True, seen.reason
            elif seen is not None:
                return seen
        if ambiguous:
            seen = self._look(key, data, if_match=if_match, is_mine=is_mine)
            return Unknown(reason=reason) if seen is None or isinstance(seen, Unlooked) else seen
        raise UnavailableError(
            f"could not write {key}: refused {self._patience.attempts_max} times although its precondition "
            f"held ({reason}); nothing was changed, try again",
            key=key,
        )

    def _look(
        self, key: str, data: bytes, *, if_match: str | None, is_mine: IsMine
    ) -> Outcome | Unlooked | None:
        """Read back and return the outcome; None if nothing has changed and a retry is allowed."""
        try:
            found = self._store.get(key)
        except (UnavailableError, StoreDeniedError) as e:
            return Unlooked(reason=e.message)
        if found is None:
            return None if if_match is None else Conflict(reason=f"{key} is gone")
        if found.etag == if_match:
            return None
        if found.data == data:
            return Committed(etag=found.etag)
        mine = is_mine(found.data)
        if mine:
            return Superseded(etag=found.etag)
        if mine is None:
            return Unknown(reason=f"{key} was replaced so often that one's own write cannot be found in it")
        return Conflict(reason=f"{key} holds another value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlooked:
    """A read-back that failed.

    Attributes:
        reason: the reason, for messages.
    """

    reason: str


def happened(outcome: Outcome, what: str, *, look: str = "load it and look") -> bool:
    """Return whether a write was committed; False on a conflict.

    Args:
        outcome: the outcome of the write.
        what: what the write does, such as "the drop of table a.b", for the message.
        look: what to do if the outcome is unknown, for the message.

    Raises:
        OutcomeUnknownError: the write may have happened.
    """
    if isinstance(outcome, Unknown):
        raise OutcomeUnknownError(
            f"Cannot tell whether {what} happened: {outcome.reason}; {look}", change=what
        )
    return isinstance(outcome, Committed)


def write_once(store: ObjectStore, key: str, data: bytes, *, patience: RetryPolicy) -> None:
    """Write an immutable object; a repeated write of the same bytes succeeds.

    Args:
        store: the store.
        key: a key that no other writer uses.
        data: the bytes.
        patience: the retry policy.

    Raises:
        ConflictError: the key holds other bytes.
        UnavailableError: the store did not answer; the object may exist, but nothing references it.
        StoreDeniedError: the store denies the write.
    """
    reason = ""
    for _ in patience.resends():
        try:
            store.put(key, data, if_absent=True)
        except StoreRefusedError as e:
            found = store.get(key)
            if found is None:
                reason = e.message
                continue
            if found.data == data:
                return
            raise ConflictError(f"{key} exists with another content; it is written once only", key=key) from e
        except StoreNotDurableError as e:
            reason = e.message
            break
        except (StoreBusyError, StoreOutcomeUnknownError) as e:
            reason = e.message
        else:
            return
    raise UnavailableError(f"could not write {key}: {reason}; nothing was changed, try again", key=key)
