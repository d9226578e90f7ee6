"""What people see: the window that runs, of all partitions together, and the last alerts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import orjson

from tarn_demo.stream.partials import Part, Running
from tarn_demo.stream.rows import instant
from tarn_demo.stream.windows import Route, Routes, Rules, Sums

ALERTS_MAX = 100
PARTS_MAX = 64
"""Closed parts that are kept of each partition, the newest, for those that are ahead of the others."""


class View:
    """What was heard from the partitions and of alerts.

    Args:
        rules: how windows are cut.
        partitions: how many partitions flight-events has.
        names: airport code to name.
    """

    def __init__(self, rules: Rules, partitions: int, names: Mapping[str, str]) -> None:
        self._rules = rules
        self._partitions = partitions
        self._names = names
        self._running: dict[int, Running] = {}
        self._parts: dict[int, dict[int, Routes]] = {}
        self._alerts: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def heard(self, said: Part | Running) -> None:
        """Take what a partition said; a worker that lost its partition may say something older."""
        if isinstance(said, Running):
            known = self._running.get(said.partition)
            if known is None or said.watermark_ms >= known.watermark_ms:
                self._running[said.partition] = said
            return
        parts = self._parts.setdefault(said.partition, {})
        parts[said.start_ms] = said.routes
        if len(parts) > PARTS_MAX:
            del parts[min(parts)]  # not the first that came: older parts come again after a kill

    def alerted(self, message: bytes | None) -> None:
        """Take a message of flight-alerts; one that comes again changes nothing."""
        try:
            found = orjson.loads(message or b"")
            alert = {
                "id": found["alert_id"],
                "at": found["at"],
                "kind": found["kind"],
                "route": found["route"],
                "message": found["message"],
                "value": found["value"],
            }
        except (KeyError, TypeError, ValueError):
            return  # not of this service: anybody with the right may write to that topic
        self._alerts.setdefault(str(alert["id"]), alert)
        while len(self._alerts) > ALERTS_MAX:
            self._alerts.popitem(last=False)

    def windows(self) -> dict[str, Any]:
        """The window that runs; see docs/stream.md."""
        late = sum(one.counters["late"] for one in self._running.values())
        answer: dict[str, Any] = {
            "windowSeconds": self._rules.window_ms // 1000,
            "hopSeconds": self._rules.hop_ms // 1000,
            "latenessSeconds": self._rules.lateness_ms // 1000,
            "watermark": None,
            "lateDropped": late if self._running else None,
            "complete": False,
            "routes": [],
        }
        if len(self._running) < self._partitions:
            return answer
        watermark_ms = min(one.watermark_ms for one in self._running.values())
        start = self._rules.first_running(watermark_ms)
        routes, complete = self._together(start)
        answer["watermark"] = instant(watermark_ms)
        answer["complete"] = complete
        answer["routes"] = [self._route(route, routes[route], start) for route in sorted(routes)]
        return answer

    def alerts(self) -> dict[str, Any]:
        """The last alerts, newest first."""
        return {"alerts": list(reversed(self._alerts.values()))}

    def _together(self, start: int) -> tuple[dict[Route, Sums], bool]:
        """A window of all partitions, and whether each has said what it knows of it."""
        routes: dict[Route, Sums] = {}
        complete = True
        for partition, running in self._running.items():
            own: Routes | None = running.windows.get(start)
            own = self._parts.get(partition, {}).get(start) if own is None else own
            if own is None:
                complete = False
                continue
            for route, sums in own.items():
                routes[route] = routes.get(route, Sums()).plus(sums)
        return routes, complete

    def _route(self, route: Route, sums: Sums, start: int) -> dict[str, Any]:
        origin, destination = route
        return {
            "origin": origin,
            "destination": destination,
            "originName": self._names.get(origin),
            "destinationName": self._names.get(destination),
            "flights": sums.flights,
            "meanDepartureDelayMinutes": _rounded(sums.mean_departure_delay),
            "meanArrivalDelayMinutes": _rounded(sums.mean_arrival_delay),
            "cancelled": sums.cancelled,
            "windowStart": instant(start),
            "windowEnd": instant(start + self._rules.window_ms),
        }


def _rounded(minutes: float | None) -> float | None:
    return None if minutes is None else round(minutes, 1)
