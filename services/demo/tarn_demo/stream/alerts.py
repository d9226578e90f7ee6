"""Which windows are worth an alert: a pure function of a window and the one before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from tarn_demo.stream.windows import Route, Routes


class AlertKind(Enum):
    """What an alert is about; the value is part of its id."""

    DELAY = "delay"
    CANCELLATIONS = "cancellations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a route gets an alert.

    Attributes:
        delay_minutes: mean delay of its departures in a window, at least.
        departures: of so many departures, at least.
        cancelled: cancellations in a window, at least.
    """

    delay_minutes: float
    departures: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A route passed a limit.

    Attributes:
        kind: which one.
        route: the route.
        start_ms: start of the window.
        value: mean delay in minutes, or number of cancellations.
    """

    kind: AlertKind
    route: Route
    start_ms: int
    value: float


Passed = frozenset[tuple[AlertKind, Route]]
"""Who is beyond a limit."""


def passed(routes: Routes, limits: Limits) -> Passed:
    """Who is beyond a limit in a window."""
    found = set()
    for route, sums in routes.items():
        mean = sums.mean_departure_delay
        if mean is not None and sums.departures >= limits.departures and mean >= limits.delay_minutes:
            found.add((AlertKind.DELAY, route))
        if sums.cancelled >= limits.cancelled:
            found.add((AlertKind.CANCELLATIONS, route))
    return frozenset(found)


def alerts(start_ms: int, routes: Routes, now: Passed, before: Passed) -> Iterable[Alert]:
    """One alert per route that passes a limit: not again while it stays beyond it, window after window.

    Args:
        start_ms: start of the window.
        routes: its sums.
        now: who is beyond a limit in it.
        before: who was in the window one hop before.
    """
    for kind, route in sorted(now - before, key=lambda one: (one[0].value, one[1])):
        sums = routes[route]
        value = sums.mean_departure_delay if kind is AlertKind.DELAY else float(sums.cancelled)
        assert value is not None
        yield Alert(kind=kind, route=route, start_ms=start_ms, value=value)
