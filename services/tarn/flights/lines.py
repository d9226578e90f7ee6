"""Progress of a load, for people."""

from __future__ import annotations

from collections.abc import Callable

from tarn.flights.loading import LAYERS, Clock, Layers

LINE_S = 5.0


class Lines:
    """Shows a load as a line every few seconds.

    Args:
        clock: time.
        tell: shows a line.
    """

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock = clock
        self._tell = tell
        self._begun_s = clock.now_s()
        self._shown_s = self._begun_s - LINE_S
        self._last: tuple[float, int, dict[str, int]] | None = None

    def show(self, phase: str, at: int, total: int, layers: Layers) -> None:
        """See `loading.View`."""
        now_s = self._clock.now_s()
        if now_s - self._shown_s < LINE_S:
            return
        self._shown_s = now_s
        rows = {name: layers[name].rows for name in LAYERS}
        parts = [f"{now_s - self._begun_s:4.0f} s  {phase}: sent {at:,} of {total:,}{self._per_s(now_s, at)}"]
        parts += [f"{name} {rows[name]:,} rows{self._rows_per_s(now_s, name, rows[name])}" for name in LAYERS]
        left_s = _left_s(now_s - self._begun_s, at, total, layers)
        if left_s is not None:
            parts.append(f"about {left_s:.0f} s left")
        self._last = (now_s, at, rows)
        self._tell("   ".join(parts))

    def _per_s(self, now_s: float, at: int) -> str:
        if self._last is None or at == self._last[1]:
            return ""
        return f" ({(at - self._last[1]) / max(0.001, now_s - self._last[0]):,.0f}/s)"

    def _rows_per_s(self, now_s: float, name: str, rows: int) -> str:
        if self._last is None or rows == self._last[2][name]:
            return ""
        return f" ({(rows - self._last[2][name]) / max(0.001, now_s - self._last[0]):,.0f}/s)"


def _left_s(elapsed_s: float, at: int, total: int, layers: Layers) -> float | None:
    """Seconds left if the work goes on as it went: four stages of the same weight."""
    stages = [at / total, *(min(1.0, layers[name].offsets / total) for name in LAYERS)]
    done = sum(stages) / len(stages)
    return elapsed_s * (1 - done) / done if done > 0.02 else None
