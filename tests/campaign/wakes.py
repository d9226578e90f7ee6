"""What the simulated conditions have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any


class Wakes(ABC):
    """The part of `threading.Condition` that is made of `wait`, by the clock of the simulation."""

    _sim: Any
    _wakes: int

    @abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification."""

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate holds, or the time is over."""
        clock = self._sim.lake.clock
        until_s = None if timeout is None else clock.now_s + timeout
        while not (found := predicate()):
            left_s = None if until_s is None else until_s - clock.now_s
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return found

    def notify_all(self) -> None:
        """Wake all who wait."""
        self._wakes += 1
