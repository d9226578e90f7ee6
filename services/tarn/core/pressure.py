"""When a table's writers have to go slower, or stop: in steps, with the reason. Pure.

Two things drive it: bytes that wait for a commit, and the health of the table. A table that many small
commits have filled with snapshots, files and delete files is slow to read and to commit to, and more of the
same makes it worse: its writers wait until maintenance has caught up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tarn.core.table_state import TableState

SLOW_DELAY_S_MAX = 0.5
FULL_RETRY_S = 1.0
DEBT_RETRY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Where a measure of a table makes writers slower, and where it stops them.

    Attributes:
        slow: from here on each write is delayed, the longer the nearer `stop` is.
        stop: from here on writes are refused.
    """

    slow: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DebtLimits:
    """The steps of a table's health.

    Attributes:
        snapshots: snapshots that its metadata keep.
        files: data files.
        delete_files: delete files, of deletes and updates on read.
    """

    snapshots: Step = field(default_factory=lambda: Step(slow=2_000, stop=5_000))
    files: Step = field(default_factory=lambda: Step(slow=50_000, stop=200_000))
    delete_files: Step = field(default_factory=lambda: Step(slow=5_000, stop=20_000))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """How much a writer is held back.

    Attributes:
        share: 0 for not at all, below 1 for a delay, from 1 on for a refusal.
        reason: why, for people; empty without pressure.
        retry_s: when to come again after a refusal, in seconds.
    """

    share: float = 0.0
    reason: str = ""
    retry_s: float = 0.0

    @property
    def refused(self) -> bool:
        """Whether writes are refused."""
        return self.share >= 1

    @property
    def delay_s(self) -> float:
        """How long a write is delayed, in seconds."""
        return SLOW_DELAY_S_MAX * min(1.0, self.share)


def of_debt(state: TableState, limits: DebtLimits) -> Pressure:
    """The pressure of a table's health; summaries without totals count as zero."""
    found = Pressure()
    for count, what, step, remedy in (
        (len(state.metadata.get("snapshots") or ()), "snapshots", limits.snapshots, "expire snapshots"),
        (state.total("data-files") or 0, "data files", limits.files, "compact it"),
        (state.total("delete-files") or 0, "delete files", limits.delete_files, "compact it"),
    ):
        share = _share(count, step)
        if share > found.share:
            found = Pressure(
                share=share,
                reason=f"the table has {count} {what}; writers go slower from {step.slow} on and stop at "
                f"{step.stop}: {remedy}",
                retry_s=DEBT_RETRY_S,
            )
    return found


def of_waiting(waiting_bytes: int, bytes_max: int) -> Pressure:
    """The pressure of bytes that wait for a commit: none up to half of what may wait."""
    share = _share(waiting_bytes, Step(slow=bytes_max // 2, stop=bytes_max))
    if share == 0:
        return Pressure()
    return Pressure(
        share=share,
        reason=f"{waiting_bytes} bytes wait for a commit, at most {bytes_max} may",
        retry_s=FULL_RETRY_S,
    )


def _share(count: int, step: Step) -> float:
    """0 below `slow`, 1 at `stop`, and in between how far it is on the way."""
    if count < step.slow:
        return 0.0
    if count >= step.stop:
        return 1.0
    return max(0.01, (count - step.slow) / (step.stop - step.slow))
