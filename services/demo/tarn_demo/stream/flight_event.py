"""What a message of the topic flight-events says, as far as windows need it."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import IntEnum
from typing import Any, NamedTuple

import orjson

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")
_MILLISECOND = timedelta(milliseconds=1)
FLIGHT_DIGITS_MAX = 9
DELAY_MINUTES_MAX = 1_000_000


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
    """The event of a message; None if it is none that the demo's spec accepts."""
    try:
        found = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("event_id"), str):
        return None
    kind = _KINDS.get(found.get("event", "")) if isinstance(found.get("event"), str) else None
    time_ms, hour_ms = _instant(found.get("event_time")), _instant(found.get("time_hour"))
    carrier, number = found.get("carrier"), found.get("flight")
    if kind is None or time_ms is None or hour_ms is None or not isinstance(carrier, str):
        return None
    if type(number) is not int or abs(number) >= 10**FLIGHT_DIGITS_MAX:
        return None
    flight = f"{hour_ms}/{carrier}/{number}"
    if kind is Kind.SCHEDULED:
        origin, dest = found.get("origin"), found.get("dest")
        if not (isinstance(origin, str) and isinstance(dest, str) and origin and dest):
            return None
        return FlightEvent(kind, time_ms, flight, hour_ms, route=(origin, dest))
    if kind is Kind.CANCELLED:
        return FlightEvent(kind, time_ms, flight, hour_ms)
    delay = found.get(_DELAY[kind])
    if delay is not None and not _is_delay(delay):
        return None
    return FlightEvent(kind, time_ms, flight, hour_ms, delay=delay)


def _is_delay(value: Any) -> bool:
    return type(value) is int and abs(value) <= DELAY_MINUTES_MAX


def _instant(text: Any) -> int | None:
    """Milliseconds since the epoch; None if the text is no instant with a zone."""
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND
    except (TypeError, ValueError, OverflowError):
        return None
