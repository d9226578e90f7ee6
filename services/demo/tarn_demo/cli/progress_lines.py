"""Progress of a load, for people."""

from __future__ import annotations

from collections.abc import Callable

from tarn.cli.ports import Clock
from tarn_demo.loading import LAYERS, LoadProgress

LINE_S = 5.0
SHARE_MIN = 0.02  # before that nothing is known of the time left


class ProgressLines:
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

    def show(self, progress: LoadProgress) -> None:
        """See `loading.ProgressView`."""
        now_s = self._clock.now_s()
        if now_s - self._shown_s < LINE_S:
            return
        self._shown_s = now_s
        elapsed_s, sent = now_s - self._begun_s, progress.sent
        rows = {name: progress.layers[name].rows for name in LAYERS}
        parts = [
            f"{elapsed_s:4.0f} s  {progress.phase}",
            f"sent {sent:,} of {progress.messages:,}{self._per_s(now_s, sent)}",
            *(f"{name} {rows[name]:,} rows{self._rows_per_s(now_s, name, rows[name])}" for name in LAYERS),
        ]
        if SHARE_MIN < progress.done < 1.0:
            parts.append(f"about {elapsed_s * (1 - progress.done) / progress.done:.0f} s left")
        self._last = (now_s, sent, rows)
        self._tell("   ".join(parts))

    def _per_s(self, now_s: float, at: int) -> str:
        if self._last is None or at == self._last[1]:
            return ""
        return f" ({(at - self._last[1]) / max(0.001, now_s - self._last[0]):,.0f}/s)"

    def _rows_per_s(self, now_s: float, name: str, rows: int) -> str:
        if self._last is None or rows == self._last[2][name]:
            return ""
        return f" ({(rows - self._last[2][name]) / max(0.001, now_s - self._last[0]):,.0f}/s)"
