"""How long an inbox waits for company before it makes a commit: group commit, as databases have it. Pure.

A commit costs as much as some forty small writes, whatever is in it. Writers that wait for their answers
write again as soon as they have them, so most of those of one commit come back together, some milliseconds
after it. Taking the first of them alone would leave the others to wait for a commit of one row. Postgres has
`commit_siblings` and `commit_delay` for this; here both follow from the commit before.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 1.0
"""Of the time of the last commit, how much is waited at most."""
WAIT_S_MAX = 0.02
TOGETHER_BYTES = 1 << 20
"""With fewer bytes waiting, the next file is not made while a commit is under way: it takes no time to make,
and whoever comes until that commit ends is in it too. In bytes of rows."""


@dataclass(frozen=True, slots=True)
class GroupWait:
    """For whom the next commit waits, and until when.

    Attributes:
        writes: number of writes that are expected.
        until_s: when they are waited for no longer, in seconds on the monotonic clock.
    """

    writes: int = 0
    until_s: float = 0.0

    @staticmethod
    def after(company: int, *, took_s: float, now_s: float) -> GroupWait:
        """What the end of a commit means for the next one.

        Args:
            company: writes that it answered, whose writers may come back, and those that came meanwhile.
            took_s: how long it took, in seconds.
            now_s: when it ended, on the monotonic clock.
        """
        return GroupWait(company, now_s + min(WAIT_S_MAX, SHARE * took_s))

    def left_s(self, now_s: float) -> float:
        """How long to wait still, in seconds."""
        return max(0.0, self.until_s - now_s)
