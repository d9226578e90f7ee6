"""Which of several specs that exclude each other is used: the one whose table already has its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import structlog

from tarn.core.control.model import Wish
from tarn.core.errors import TarnError
from tarn.core.spec import Clash, IngestorSpec, settle

log = structlog.get_logger()

CLASH = "Clash"
"""Reason of all specs that exclude each other."""
AGAIN_S = 2.0
"""How long after a table could not be asked it is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What becomes of one spec of a clash.

    Attributes:
        wish: run it, stop it, or leave it as it is until the tables have answered.
        reason: why it is not run, in one word.
        message: the same, for people.
    """

    wish: Wish
    reason: str = ""
    message: str = ""


@dataclass(slots=True)
class _Case:
    """A clash that is being settled, or is."""

    asked: Future[frozenset[str]]
    message: str = "the tables are asked whose stream they hold"
    again_s: float | None = None
    failed: bool = False
    verdicts: Mapping[str, Verdict] | None = None


class Settlements:
    """Settles clashes; tables are asked by an executor, as the catalog may take long to answer.

    Args:
        holds: whether the table of a spec has its stream, or one of its streams; raises if it cannot be
            asked.
        executor: runs `holds`.
        clock: monotonic time in seconds.
        on_change: called, from any thread, when the tables have answered.
    """

    def __init__(
        self,
        holds: Callable[[IngestorSpec], bool],
        executor: Executor,
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self._holds = holds
        self._executor = executor
        self._clock = clock
        self._on_change = on_change
        self._cases: dict[tuple[str, ...], _Case] = {}

    @property
    def due_s(self) -> float | None:
        """When tables are asked again; None if no question is open."""
        return min((case.again_s for case in self._cases.values() if case.again_s is not None), default=None)

    def of(
        self, clashes: Sequence[Clash], specs: Mapping[str, IngestorSpec], versions: Mapping[str, str]
    ) -> dict[str, Verdict]:
        """Label to what becomes of the spec, for all specs of these clashes.

        Args:
            clashes: every clash that there is, by label.
            specs: label to spec.
            versions: label to its version; another version is another case.
        """
        found: dict[str, Verdict] = {}
        cases: dict[tuple[str, ...], _Case] = {}
        for clash in clashes:
            key = tuple(f"{label}@{versions[label]}" for label in clash.files)
            case = self._cases.get(key) or _Case(self._ask(clash, specs))
            cases[key] = case
            self._look(case, clash, specs)
            waiting = Verdict(wish=Wish.HOLD, reason=CLASH, message=f"{clash.about}: {case.message}")
            found.update(case.verdicts or dict.fromkeys(clash.files, waiting))
        self._cases = cases
        return found

    def _look(self, case: _Case, clash: Clash, specs: Mapping[str, IngestorSpec]) -> None:
        if case.again_s is not None:
            if self._clock() < case.again_s:
                return
            case.asked, case.again_s = self._ask(clash, specs), None
        if case.verdicts is not None or not case.asked.done():
            return
        try:
            winner, errors = settle(clash, case.asked.result())
        except TarnError as e:
            # Unavailable or damaged: the clash can only be settled once every table is readable.
            case.message, case.again_s = e.message, self._clock() + AGAIN_S
            return
        except Exception as e:
            # A defect about one table must not keep all other ingestors waiting.
            if not case.failed:
                log.error("a clash cannot be settled", about=clash.about, exc_info=e)
            case.failed = True
            case.message = f"{type(e).__name__}: {e}; a defect of Tarn, please report it"
            case.again_s = self._clock() + AGAIN_S
            return
        case.verdicts = {
            label: Verdict(wish=Wish.RUN)
            if label == winner
            else Verdict(wish=Wish.STOP, reason=CLASH, message=errors[label].message)
            for label in clash.files
        }

    def _ask(self, clash: Clash, specs: Mapping[str, IngestorSpec]) -> Future[frozenset[str]]:
        wanted = {label: specs[label] for label in clash.files}
        asked = self._executor.submit(
            lambda: frozenset(label for label, spec in wanted.items() if self._holds(spec))
        )
        asked.add_done_callback(lambda _done: self._on_change())
        return asked
