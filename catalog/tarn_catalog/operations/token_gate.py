"""A gate before the store's token service: one that hangs holds few threads, and nobody waits for a dead one.

A request for keys takes a thread of the catalog until it is answered. So a few ask at one time, some more
wait, and neither longer than a moment once the service is silent. After a failure one request at a time
finds out whether it answers again; the others are refused at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from tarn.core.errors import TarnError, UnavailableError
from tarn.core.temporary_keys import KeysRefusedError, TemporaryKeys, TokenService

ASKING_MAX = 8
"""Requests to the token service at one time."""
WAITING_MAX = 40
"""Requests that wait for those; with them they leave a quarter of the catalog's threads to all others."""
WAIT_S_MAX = 2.0
"""How long a request waits for another's, and how long the service may be silent before none begins to."""
FAILURE_KEPT_S = 1.0
"""How long a failure is the answer for all, seconds."""


class TokenGate:
    """A `TokenService` that asks another one, with few requests at one time.

    Args:
        tokens: the token service.
        clock: monotonic clock, seconds.
    """

    def __init__(self, tokens: TokenService, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = tokens
        self._clock = clock
        self._changed = threading.Condition()
        # When each request that is on its way began, oldest first.
        self._asking: list[float] = []
        self._waiting = 0
        self._failure: UnavailableError | None = None
        self._failed_at = 0.0

    def assume(self, policy: str, *, duration_s: int) -> TemporaryKeys:
        """See `TokenService.assume`.

        Raises:
            UnavailableError: also if the service did not answer a moment ago, or too many ask it already.
        """
        began = self._enter()
        try:
            keys = self._tokens.assume(policy, duration_s=duration_s)
        except KeysRefusedError:
            self._leave(began, None)  # it answers
            raise
        except UnavailableError as e:
            self._leave(began, e)
            raise
        except BaseException:
            self._leave(began, None)
            raise
        self._leave(began, None)
        return keys

    def wait(self, asked: Future[TemporaryKeys]) -> TemporaryKeys:
        """Return what another request asks for.

        Raises:
            TarnError: that request failed; an error of its own for each that waited.
            UnavailableError: it was not answered in time, or too many wait.
        """
        with self._changed:
            self._check()
        with self._room():
            try:
                failure = asked.exception(WAIT_S_MAX)
            except TimeoutError as e:
                raise _silent(WAIT_S_MAX) from e
        if failure is None:
            return asked.result()
        if isinstance(failure, TarnError):
            raise type(failure)(failure.message, **failure.fields) from failure
        raise UnavailableError("no temporary keys: the request for them broke off; try again") from failure

    # -- inside

    def _enter(self) -> float:
        with self._changed:
            self._check()
            if len(self._asking) >= ASKING_MAX:
                with self._room():
                    self._changed.wait_for(lambda: len(self._asking) < ASKING_MAX, WAIT_S_MAX)
                self._check()
                if len(self._asking) >= ASKING_MAX:
                    raise _silent(WAIT_S_MAX)
            began = self._clock()
            self._asking.append(began)
            return began

    def _leave(self, began: float, failure: UnavailableError | None) -> None:
        with self._changed:
            self._asking.remove(began)
            self._failure, self._failed_at = failure, self._clock()
            self._changed.notify_all()

    def _check(self) -> None:
        """Refuse a request that would find the service dead; needs the lock.

        Raises:
            UnavailableError: it would.
        """
        now = self._clock()
        failure = self._failure
        # Later, one request at a time looks whether it answers again.
        if failure is not None and (now - self._failed_at < FAILURE_KEPT_S or self._asking):
            raise UnavailableError(failure.message, **failure.fields) from failure
        if self._asking and now - self._asking[0] >= WAIT_S_MAX:
            raise _silent(now - self._asking[0])

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Count a request that waits, for the duration of the block.

        Raises:
            UnavailableError: too many wait.
        """
        with self._changed:
            if self._waiting >= WAITING_MAX:
                raise UnavailableError(
                    f"no temporary keys: {self._waiting} requests wait for the token service (STS) of the "
                    "store already, and no more may; try again"
                )
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1


def _silent(seconds: float) -> UnavailableError:
    return UnavailableError(
        f"no temporary keys: the token service (STS) of the store has not answered other requests for "
        f"{seconds:.0f} s; wait for the store and try again"
    )
