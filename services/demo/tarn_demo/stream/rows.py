"""The messages that become rows: of flight-windows in live.route_delays, of flight-alerts in live.alerts.

They hold nothing but what follows from the events: a message that is sent again is the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from tarn_demo.stream.alerts import Alert, AlertKind
from tarn_demo.stream.merge import Complete
from tarn_demo.stream.windows import Route, Rules

Message = tuple[bytes, bytes]
"""Key and value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Makes messages.

    Attributes:
        rules: how windows are cut.
        names: airport code to name.
    """

    rules: Rules
    names: Mapping[str, str]

    def windows(self, window: Complete) -> Iterator[Message]:
        """A message per route of a window, in the order of the routes."""
        for route in sorted(window.routes):
            sums = window.routes[route]
            key = self._id(route, window.start_ms)
            yield (
                key.encode(),
                orjson.dumps(
                    {
                        "window_id": key,
                        **self._about(route, window.start_ms),
                        "flights": sums.flights,
                        "departures": sums.departures,
                        "arrivals": sums.arrivals,
                        "cancelled": sums.cancelled,
                        "mean_departure_delay_minutes": sums.mean_departure_delay,
                        "mean_arrival_delay_minutes": sums.mean_arrival_delay,
                    }
                ),
            )

    def alerts(self, window: Complete) -> Iterator[Message]:
        """A message per alert of a window."""
        for alert in window.alerts:
            key = f"{alert.kind.value}/{self._id(alert.route, alert.start_ms)}"
            yield (
                key.encode(),
                orjson.dumps(
                    {
                        "alert_id": key,
                        "kind": alert.kind.value,
                        "at": instant(alert.start_ms + self.rules.window_ms),
                        "route": "-".join(alert.route),
                        **self._about(alert.route, alert.start_ms),
                        "value": alert.value,
                        "message": self._text(alert),
                    }
                ),
            )

    def _about(self, route: Route, start_ms: int) -> dict[str, Any]:
        origin, destination = route
        return {
            "origin": origin,
            "destination": destination,
            "origin_name": self.names.get(origin),
            "destination_name": self.names.get(destination),
            "window_start": instant(start_ms),
            "window_end": instant(start_ms + self.rules.window_ms),
        }

    def _id(self, route: Route, start_ms: int) -> str:
        return f"{'-'.join(route)}/{instant(start_ms)}/{self.rules.window_ms // 1000}"

    def _text(self, alert: Alert) -> str:
        origin, destination = (self.names.get(code) or code for code in alert.route)
        until = f"{span(self.rules.window_ms)} until {instant(alert.start_ms + self.rules.window_ms)}"
        if alert.kind is AlertKind.DELAY:
            said = f"departures were {alert.value:.0f} minutes late on average"
        else:
            said = f"{alert.value:.0f} flights were cancelled"
        return f"{origin} to {destination}: {said} in the {until}"


def instant(ms: int) -> str:
    """Milliseconds since the epoch as ISO 8601, in UTC."""
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def span(ms: int) -> str:
    """A length of time in words."""
    seconds = ms // 1000
    for unit, size in (("hour", 3600), ("minute", 60)):
        if seconds % size == 0:
            count = seconds // size
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{seconds} seconds"
