"""Windows of all partitions together, complete and in order: a pure function of the partitions' parts.

A window is complete when every partition has closed it. Parts of a partition come in the order of their
windows, each with the start of the one before, so that a missing one is noticed; a part that comes again is
passed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tarn.core.errors import CorruptStateError
from tarn_demo.stream.alerts import Alert, AlertKind, Limits, Passed, alerts, passed
from tarn_demo.stream.partials import Part
from tarn_demo.stream.windows import Route, Routes, Rules, Sums, routes_from_data, routes_to_data

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A window of all partitions.

    Attributes:
        start_ms: its start.
        routes: the sums; no route has nothing but zeros.
        alerts: of this window.
    """

    start_ms: int
    routes: Routes
    alerts: tuple[Alert, ...]


class Merge:
    """The parts of all partitions.

    Args:
        rules: how windows are cut.
        limits: when there is an alert.
        partitions: how many partitions flight-events has.
    """

    def __init__(self, rules: Rules, limits: Limits, partitions: int) -> None:
        self._rules = rules
        self._limits = limits
        self._partitions = partitions
        self.next_offset = 0
        self.missing = 0
        """How often parts were missing."""
        self._last: dict[int, int] = {}
        self._windows: dict[int, dict[Route, Sums]] = {}
        self._floor_ms: int | None = None
        self._passed: Passed = frozenset()
        self._passed_start_ms: int | None = None

    def add(self, part: Part) -> list[Complete]:
        """Take a part; returns the windows that are complete with it, oldest first; none twice."""
        last = self._last.get(part.partition)
        if last is not None and part.start_ms <= last:
            return []
        if part.previous_ms != last:
            self._lost(part)
        self._last[part.partition] = part.start_ms
        if self._floor_ms is None or part.start_ms >= self._floor_ms:
            routes = self._windows.setdefault(part.start_ms, {})
            for route, sums in part.routes.items():
                routes[route] = routes.get(route, Sums()).plus(sums)
        if len(self._last) < self._partitions:
            return []
        until = min(self._last.values())
        return [self._completed(start) for start in sorted(self._windows) if start <= until]

    def _lost(self, part: Part) -> None:
        """Parts before this one are missing: no window before it will be complete."""
        self.missing += 1
        self._floor_ms = max(self._floor_ms or part.start_ms, part.start_ms)
        for start in [one for one in self._windows if one < self._floor_ms]:
            del self._windows[start]

    def _completed(self, start_ms: int) -> Complete:
        routes = self._windows.pop(start_ms)
        before = self._passed if self._passed_start_ms == start_ms - self._rules.hop_ms else frozenset()
        self._passed, self._passed_start_ms = passed(routes, self._limits), start_ms
        return Complete(
            start_ms=start_ms,
            routes=routes,
            alerts=tuple(alerts(start_ms, routes, self._passed, before)),
        )

    def to_data(self) -> dict[str, Any]:
        """The whole state, as JSON can hold it."""
        return {
            "version": STATE_VERSION,
            "next": self.next_offset,
            "missing": self.missing,
            "last": sorted(self._last.items()),
            "windows": [[start, routes_to_data(routes)] for start, routes in self._windows.items()],
            "floor": self._floor_ms,
            "passed": sorted([kind.value, *route] for kind, route in self._passed),
            "passed_start": self._passed_start_ms,
        }

    @classmethod
    def from_data(cls, rules: Rules, limits: Limits, partitions: int, data: Mapping[str, Any]) -> Merge:
        """The state that `to_data` returned.

        Raises:
            CorruptStateError: it is not one of this version.
        """
        found = cls(rules, limits, partitions)
        try:
            if data["version"] != STATE_VERSION:
                raise ValueError(f"version {data['version']!r}")
            found.next_offset, found.missing = int(data["next"]), int(data["missing"])
            found._last = dict(data["last"])
            found._windows = {start: routes_from_data(routes) for start, routes in data["windows"]}
            found._floor_ms, found._passed_start_ms = data["floor"], data["passed_start"]
            found._passed = frozenset(
                (AlertKind(kind), (origin, destination)) for kind, origin, destination in data["passed"]
            )
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptStateError(f"a state of the merge cannot be read: {type(e).__name__}: {e}") from e
        return found
