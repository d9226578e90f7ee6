"""Repeats of a request: when it is sent again under its key, when it is given up, when no repeat is safe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tarn.core.errors import OutcomeUnknownError, UnavailableError
from tarn.core.write_keys import WINDOW_S

TIMEOUT_S_MAX = 600.0
PAUSE_S = 0.05
PAUSE_S_MAX = 5.0
REPEAT_S_MAX = WINDOW_S - 240.0
"""Age of a request without an answer after which it is not repeated, in seconds.

The gateway may judge a repeat minutes after it was begun: body, turn and a new token are waited for.
"""

Row = Mapping[str, Any]


class RepeatTooLateError(OutcomeUnknownError):
    """The rows may be in the table, and a repeat might write them a second time: their key may be forgotten.

    Args:
        message: what is not known, and what to do.
        rows: the rows of the batch, as they were sent; empty for those of `send`, which the caller has.
        key: their key.
    """

    def __init__(self, message: str, *, rows: Sequence[Row], key: str) -> None:
        super().__init__(message, key=key, rows=len(rows))
        self.rows: tuple[Row, ...] = tuple(rows)
        self.key = key


class ClosedError(UnavailableError):
    """The writer was closed before a request was sent; it is not repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Where the time comes from, in seconds.

    Attributes:
        steady: never goes back; may stand still while the machine sleeps.
        wall: goes on then; may be set.
    """

    steady: Callable[[], float]
    wall: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """A point in time by both clocks.

    Attributes:
        steady_s: by the one that never goes back.
        wall_s: by the other.
    """

    steady_s: float
    wall_s: float

    @staticmethod
    def now(clocks: Clocks) -> Since:
        """This moment."""
        return Since(steady_s=clocks.steady(), wall_s=clocks.wall())

    def age_s(self, now: Since) -> float:
        """How long ago it was at most, in seconds."""
        return max(now.steady_s - self.steady_s, now.wall_s - self.wall_s)


@dataclass(slots=True, kw_only=True)
class Request:
    """Rows that are sent in one request, again and again until their fate is known.

    Attributes:
        body: the rows.
        kind: their media type.
        key: the same for all repeats.
        rows: gives the rows of a batch, for errors.
        open: when the first request began that may have written them; None if none may have.
    """

    body: bytes
    kind: str
    key: str
    rows: Callable[[], Sequence[Row]] = tuple
    open: Since | None = None


@dataclass(slots=True, kw_only=True)
class Repeats:
    """Sends a request until its time is over; each attempt is a block of `attempt`.

        while True:
            with repeats.attempt():
                return post(request)
            sleep(repeats.wait_s)

    Attributes:
        table: qualified name of the table, for messages.
        request: the request.
        timeout_s: how long it is repeated, in seconds.
        clocks: where the time comes from.
        chance: a random number from 0 to 1.
        wait_s: how long to wait after an attempt that failed, in seconds.
    """

    table: str
    request: Request
    timeout_s: float
    clocks: Clocks
    chance: Callable[[], float]
    wait_s: float = 0.0
    _until_s: float = field(init=False)
    _pause_s: float = PAUSE_S

    def __post_init__(self) -> None:
        """The time begins."""
        self._until_s = self.clocks.steady() + self.timeout_s

    def attempt(self) -> Attempt:
        """A block that sends the request once, and passes over an error that a repeat may cure.

        Raises:
            RepeatTooLateError: the request may have written the rows, and its key may be forgotten. Nothing
                was sent.
            UnavailableError: at the end of the block: the time is over, and no attempt can have written them.
            OutcomeUnknownError: likewise, and one of them may have.
        """
        now, request = Since.now(self.clocks), self.request
        if request.open is not None and (age_s := request.open.age_s(now)) > REPEAT_S_MAX:
            raise RepeatTooLateError(
                f"{self.table} may have the rows that were sent {age_s:.0f} s ago without an answer. A key "
                f"is known for {WINDOW_S} s: a repeat (key {request.key}) could write them twice, so none "
                "is sent. Look which of them the table has; drop a batch with discard(), and write the "
                "missing rows again",
                rows=request.rows(),
                key=request.key,
            )
        first = request.open is None
        if first:
            request.open = now  # also for a block that is left by anything else, such as a cancelled task
        return Attempt(self, first=first)

    def failed(self, error: UnavailableError | OutcomeUnknownError, *, first: bool) -> None:
        """Set `wait_s` after an attempt that failed.

        Args:
            error: what came instead of an answer.
            first: whether no attempt before may have written the rows.

        Raises:
            UnavailableError, OutcomeUnknownError: see `attempt`.
        """
        request = self.request
        unknown = isinstance(error, OutcomeUnknownError)
        if first and not unknown:
            request.open = None
        asked_s = error.fields.get("retry_after_s", 0.0)
        # Spread, so that clients that were refused together do not come together.
        self.wait_s = max(float(str(asked_s)), self._pause_s) * (0.5 + self.chance())
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        if not isinstance(error, ClosedError) and self.clocks.steady() + self.wait_s <= self._until_s:
            return
        if request.open is not None and not unknown:
            raise OutcomeUnknownError(
                f"{error.message}; an earlier request with the key {request.key} may have written the rows",
                key=request.key,
            ) from error
        raise error


class Attempt:
    """One attempt of `Repeats`.

    Args:
        repeats: what it belongs to.
        first: whether no attempt before may have written the rows.
    """

    def __init__(self, repeats: Repeats, *, first: bool) -> None:
        self._repeats = repeats
        self._first = first

    def __enter__(self) -> None:
        """The request may be sent."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Pass over an error that a repeat may cure, while there is time."""
        if not isinstance(error, (UnavailableError, OutcomeUnknownError)):
            return False
        self._repeats.failed(error, first=self._first)
        return True
