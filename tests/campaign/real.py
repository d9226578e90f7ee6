"""The faults of the campaign on a stack of its own: real containers, exact counts, seconds to heal.

Each round has its own topic and tables, and one or two engines of its own: containers of the service `ingest`
that read nothing else. The first one reaches the catalog through a proxy. The stack's own engine goes on.
Rounds that break nothing of the others run at the same time, each in a lane.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

from tarn.adapters import gateway_client
from tests.campaign import results
from tests.campaign.real_faults import NOT_REAL, REAL, RealFault
from tests.campaign.real_gateway import READ_TIMEOUT_S, GatewayRound
from tests.campaign.real_gateway_faults import REAL_GATEWAY, REAL_HOW
from tests.campaign.real_rig import Lane, rig
from tests.campaign.real_round import Round
from tests.campaign.results import Counts, Result
from tests.campaign.through import UNITS, Through

WITHOUT_MAX = 3
"""A fault for which more than this many rounds per wanted seed pass without it is given up."""


class Runs(Protocol):
    """A round."""

    def run(self) -> tuple[Counts, float]:
        """Run it; its counts, and the seconds that it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundKind:
    """The rounds of what writes.

    Attributes:
        faults: those that the real stack gets.
        not_real: why not, for the others.
        made: makes a round of lane, number of readers or gateways, fault and seed.
    """

    faults: Mapping[int, RealFault]
    not_real: Mapping[int, str]
    made: Callable[[Lane, int, int, int], Runs]


KINDS: dict[Through, RoundKind] = {
    "ingest": RoundKind(faults=REAL, not_real=NOT_REAL, made=Round),
    "gateway": RoundKind(faults=REAL_GATEWAY, not_real=REAL_HOW, made=GatewayRound),
}


def campaign(
    faults: str,
    *,
    seeds: int,
    first: int,
    minutes: float,
    file: Path,
    project: str,
    replicas: Sequence[int],
    lanes: int,
    ended: Callable[[Result], int],
    through: Through = "ingest",
) -> int:
    """Run the campaign; 0 if nothing was lost, doubled or broken.

    Args:
        faults: `all`, or numbers separated by commas.
        seeds: seeds per fault and number of readers in which it happened.
        first: the first seed.
        minutes: limit of this call, without starting and stopping the stack.
        file: result file; gone on with if it exists.
        project: a running project to use; empty to start one and purge it.
        replicas: numbers of readers of each engine.
        lanes: rounds at the same time.
        ended: prints the result and returns the exit code.
        through: what writes; with gateways, `replicas` is their number.
    """
    kind = KINDS[through]
    numbers = sorted(kind.faults) if faults == "all" else [int(part) for part in faults.split(",")]
    unknown = [n for n in numbers if n not in kind.faults]
    if unknown:
        reasons = "; ".join(f"{n}: {kind.not_real.get(n, 'is no fault')}" for n in unknown)
        sys.stderr.write(f"the real stack does not have these faults: {reasons}\n")
        return 2
    result = results.begun("real", seeds, file, through=through)
    result.want(replicas, numbers, first)
    with rig(project, lanes) as made, patch.object(gateway_client, "READ_TIMEOUT_S", READ_TIMEOUT_S):
        until_s = time.monotonic() + minutes * 60
        Rounds(made, result, file, lambda: time.monotonic() < until_s, kind).run(numbers, replicas)
    result.write(file)
    return ended(result)


class Rounds:
    """Rounds in lanes, until all faults have their seeds or the time is over.

    Args:
        lanes: the lanes.
        result: where they are counted.
        file: its file; written after every round.
        goes_on: whether there is time for another round.
        kind: the rounds.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        result: Result,
        file: Path,
        goes_on: Callable[[], bool],
        kind: RoundKind,
    ) -> None:
        self._kind = kind
        self._free: queue.Queue[Lane] = queue.Queue()
        for lane in lanes:
            self._free.put(lane)
        self._lanes = len(lanes)
        self._result = result
        self._file = file
        self._goes_on = goes_on
        self._lock = threading.Lock()
        self._interrupted = False

    def run(self, numbers: Sequence[int], replicas: Sequence[int]) -> None:
        """Run waves: a round of each fault that has the fewest, then alone those that break the stack."""
        with ThreadPoolExecutor(self._lanes) as pool:
            try:
                while self._goes_on():
                    wave = self._wave([(count, fault) for count in replicas for fault in numbers])
                    if not wave:
                        return
                    beside = [key for key in wave if not self._kind.faults[key[1]].alone]
                    beside.sort(key=lambda key: -self._kind.faults[key[1]].lasts_s)
                    list(pool.map(lambda key: self._one(*key), beside))
                    for key in [key for key in wave if self._kind.faults[key[1]].alone]:
                        self._one(*key)
            except BaseException:
                # Interrupted: what is under way ends somehow, and says nothing about the product.
                self._interrupted = True
                raise

    def _wave(self, keys: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        of = {key: self._result.counts[key[0]][key[1]] for key in keys}
        wanted = self._result.seeds_wanted
        left = {
            key: len(counts.seeds) + counts.without
            for key, counts in of.items()
            if len(counts.seeds) < wanted and counts.without <= WITHOUT_MAX * wanted
        }
        return [key for key, done in left.items() if done == min(left.values())]

    def _one(self, replicas: int, fault: int) -> None:
        """Run one round, if there is time, and count it."""
        if self._interrupted or not self._goes_on():
            return
        with self._lock:
            (seed,) = self._result.take(replicas, fault)
        lane = self._free.get()
        try:
            counts, took_s = self._kind.made(lane, replicas, fault, seed).run()
        finally:
            self._free.put(lane)
        if self._interrupted:
            return
        with self._lock:
            add(self._result.counts[replicas][fault], counts)
            self._result.commits[-1].runs += 1
            self._result.write(self._file)
        failed = f"; FAILED: {counts.problems[0]}" if counts.problems else ""
        sys.stderr.write(
            f"fault {fault:>2}, {replicas} {UNITS[self._result.through]}, seed {seed}: "
            f"happened {counts.faults} times, {counts.rows} rows, {counts.lost} lost, {counts.doubled} "
            f"doubled, healed after {counts.heal_s} s, {took_s:.0f} s{failed}\n"
        )
        sys.stderr.flush()


def add(total: Counts, counts: Counts) -> None:
    """Add a round to the counts of its fault."""
    for name in ("seeds", "failed", "problems", "heal_s"):
        getattr(total, name).extend(getattr(counts, name))
    del total.problems[results.PROBLEMS_MAX :]
    for name in ("without", "faults", "rows", "lost", "doubled", "seconds"):
        setattr(total, name, getattr(total, name) + getattr(counts, name))
