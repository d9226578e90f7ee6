"""Exercises of notebook 02: a counter under concurrency, the base of a rebase, the price of a race."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarn.adapters.store import MemoryStore
from tarn.core.object_store import Stored, StoreRefusedError
from tarn.workshop.commits import chain
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

OTHERS = 2
"""How often somebody else is faster."""
CALLS_MAX = 20
"""Calls after which an answer is taken to be endless."""
WRITERS = 16


class _EndlessError(BaseException):
    """An answer goes on and on; none that `except Exception` would catch, and go on."""


class Contended:
    """A store in which others add to the counter between a read and a write.

    Attributes:
        unconditional: whether something was written without a condition.
        endless: whether it was asked too often; it then takes every write, and keeps none.
    """

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.inner.put("counter", b"5")
        self.unconditional = False
        self.endless = False
        self._others = OTHERS
        self._calls = 0

    def get(self, key: str) -> Stored | None:
        """See `ObjectStore.get`."""
        self._count()
        return self.inner.get(key)

    def put(self, key: str, data: Any, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """See `ObjectStore.put`; others are faster a few times."""
        self._count()
        if self.endless:
            return ""
        if self._others:
            self._others -= 1
            self.inner.put("counter", str(self.counter + 1).encode())
        self.unconditional = self.unconditional or (if_match is None and not if_absent)
        content = data if isinstance(data, bytes) else str(data).encode()
        return self.inner.put(key, content, if_absent=if_absent, if_match=if_match)

    @property
    def counter(self) -> int:
        """What the counter says."""
        found = self.inner.get("counter")
        assert found is not None
        return int(found.data)

    def _count(self) -> None:
        self._calls += 1
        self.endless = self._calls > CALLS_MAX
        if self._calls > 2 * CALLS_MAX:
            raise _EndlessError


def exercise_1(_: Lab, answer: Any) -> Verdict:
    """A function that adds one, whoever else writes."""
    if not callable(answer):
        return wrong(f"{answer!r} is no function", "write answer = add_one, without parentheses.")
    store = Contended()
    try:
        answer(store)
    except StoreRefusedError:
        return wrong(
            "the first refusal ended it: somebody else was faster, and your one was never added",
            "put the read and the write into a loop, and catch StoreRefusedError.",
        )
    except _EndlessError:
        store.endless = True
    if store.endless:
        return wrong(
            f"it asked the store more than {CALLS_MAX} times and did not end",
            "after a refusal read again: the ETag of the first read is that of a version that is gone.",
        )
    if store.unconditional:
        return wrong(
            "it wrote without if_match, and may have written over what somebody else wrote",
            "give put the ETag of what you have read.",
        )
    if store.counter != 5 + OTHERS + 1:
        return wrong(
            f"the counter was 5, {OTHERS} others added one each, and with yours it says {store.counter} "
            f"instead of {5 + OTHERS + 1}",
            "the number to write has to be computed from what was read last.",
        )
    return right(f"{OTHERS} others were faster, you read again each time, and no addition is lost.")


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """The snapshot that the rebased commit is based on."""
    ids = chain(lab.catalog.load_table(lab.name("counter")))
    if len(ids) < 2:
        return wrong("Ada has not committed yet", "run the cells above from the top.")
    if isinstance(answer, str) and answer.isascii() and answer.isdecimal():
        answer = int(answer)
    # From the oldest: the first row, Ada's, and Bob's once he is in.
    base, ada = ids[-1], ids[-2]
    if answer == ada:
        return right("It is the snapshot that Ada's commit made: the branch main points to it now.")
    if answer == base:
        return wrong(
            "that is the snapshot from which both began; main has moved on since: it would be 409 again",
            "load the table, and look at current_snapshot().snapshot_id.",
        )
    return wrong(
        f"{answer!r} is not the snapshot to which main points after Ada's commit",
        "lab.catalog.load_table(lab.name('counter')).current_snapshot().snapshot_id",
    )


def exercise_3(_: Lab, answer: Any) -> Verdict:
    """Attempts of sixteen writers in the worst case."""
    total = sum(range(1, WRITERS + 1))
    if answer == total:
        return right("16 + 15 + … + 1 = 136: the work grows with the square of the number of writers.")
    if answer == WRITERS:
        return wrong("16 are the commits that are accepted; the refused attempts count too")
    if answer == total - WRITERS:
        return wrong(f"{answer} are the refusals alone; the 16 that are accepted are attempts too")
    if answer == WRITERS * WRITERS:
        return wrong("not every writer needs sixteen attempts", "in each round there is one writer less.")
    return wrong(f"{answer!r} is not it", "the first round has 16 attempts, the second 15.")
