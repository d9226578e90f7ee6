"""What a message of the topic flight-events says, as far as windows need it."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, NamedTuple, TypeGuard

import orjson

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")
_MILLISECOND = timedelta(milliseconds=1)
FLIGHT_DIGITS_MAX = 9
DELAY_MINUTES_MAX = 1_000_000
CODE_CHARS_MAX = 16
"""Of an airport or a carrier: they are in states and in parts of windows, which must fit into a message."""
FIRST_MS, LAST_MS = -2_208_988_800_000, 7_258_118_400_000
"""1900 and 2200: further away, the ends of windows are no dates any more."""
APART_MS_MAX = 72 * 3_600_000
"""An event this far from the scheduled hour of its flight has a wrong time, which would be the watermark."""


class Kind(IntEnum):
    """What happened to a flight."""

    SCHEDULED = 0
    DEPARTED = 1
    ARRIVED = 2
    CANCELLED = 3


_KINDS = {kind.name.lower(): kind for kind in Kind}
_DELAY = {Kind.DEPARTED: "dep_delay", Kind.ARRIVED: "arr_delay"}


class FlightEvent(NamedTuple):
    """One event.

    Attributes:
        kind: what happened.
        time_ms: when, in milliseconds since the epoch.
        flight: the flight, unique.
        hour_ms: the hour of its scheduled departure, in milliseconds since the epoch.
        route: origin and destination, only of `SCHEDULED`.
        delay: minutes of delay, only of `DEPARTED` and `ARRIVED`; None if it is not known.
    """

    kind: Kind
    time_ms: int
    flight: str
    hour_ms: int
    route: tuple[str, str] | None = None
    delay: int | None = None


def parse(value: bytes | None) -> FlightEvent | None:
    """The event of a message; None if the demo's spec does not accept it, or it cannot have happened then."""
    try:
        found = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("event_id"), str):
        return None
    kind = _KINDS.get(found.get("event", "")) if isinstance(found.get("event"), str) else None
    time_ms, hour_ms = _instant(found.get("event_time")), _instant(found.get("time_hour"))
    carrier, number = found.get("carrier"), found.get("flight")
    if kind is None or time_ms is None or hour_ms is None or not _is_code(carrier):
        return None
    if abs(time_ms - hour_ms) > APART_MS_MAX:
        return None
    if type(number) is not int or abs(number) >= 10**FLIGHT_DIGITS_MAX:
        return None
    flight = f"{hour_ms}/{carrier}/{number}"
    if kind is Kind.SCHEDULED:
        origin, dest = found.get("origin"), found.get("dest")
        if not (_is_code(origin) and _is_code(dest)):
            return None
        return FlightEvent(kind, time_ms, flight, hour_ms, route=(origin, dest))
    if kind is Kind.CANCELLED:
        return FlightEvent(kind, time_ms, flight, hour_ms)
    delay = found.get(_DELAY[kind])
    if delay is not None and not _is_delay(delay):
        return None
    return FlightEvent(kind, time_ms, flight, hour_ms, delay=delay)


def _is_code(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= CODE_CHARS_MAX


def _is_delay(value: Any) -> bool:
    return type(value) is int and abs(value) <= DELAY_MINUTES_MAX


def _instant(text: Any) -> int | None:
    """Milliseconds since the epoch; None if the text is no instant with a zone, from 1900 to 2200."""
    try:
        found = (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND
    except (TypeError, ValueError, OverflowError):
        return None
    return found if FIRST_MS <= found < LAST_MS else None
