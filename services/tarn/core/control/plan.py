"""Planning: what is wanted and what is seen, to what is done now. Pure.

Writers of one topic of an ingestor are of one revision: those of another are drained, and the new ones start
once they have ended. That order saves work, and nothing rests on it: two revisions at once write each row
once, as two processes do (the offset map decides). No ingestor's actions depend on another ingestor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tarn.core.control.model import (
    Action,
    Collect,
    Crash,
    Crashes,
    Drain,
    Finalize,
    Kill,
    Phase,
    Plan,
    Start,
    Timing,
    Wanted,
    Wish,
    WorkerId,
    WorkerSeen,
)

NO_SPEC = "SpecGone"
DIED = "Died"


def plan(
    wanted: Sequence[Wanted],
    seen: Sequence[WorkerSeen],
    crashes: Crashes,
    *,
    now_s: float,
    timing: Timing | None = None,
) -> Plan:
    """What to do now.

    Args:
        wanted: the ingestors; none is named twice.
        seen: every writer that any driver knows, also those that an earlier controller started.
        crashes: `crashes` of the plan before.
        now_s: seconds of the driver's clock.
        timing: times; the usual ones by default.
    """
    timing = timing or Timing()
    by_name = {one.name: one for one in wanted}
    assert len(by_name) == len(wanted), "an ingestor is named twice"
    workers: dict[str, list[WorkerSeen]] = {}
    for worker in sorted(seen, key=lambda one: one.id):
        workers.setdefault(worker.id.ingestor, []).append(worker)
    actions: list[Action] = []
    known: dict[WorkerId, Crash] = {}
    due: list[float] = []
    for name in sorted(by_name.keys() | workers.keys()):
        own = _Ingestor(by_name.get(name) or Wanted(name=name, wish=Wish.STOP, reason=NO_SPEC), timing, now_s)
        mine = workers.get(name, [])
        found = own.died(mine, crashes)
        actions += own.actions(mine, found)
        known.update(found)
        due += own.due(mine, found)
    return Plan(actions=tuple(actions), crashes=known, due_s=min(due, default=None))


class _Ingestor:
    """Planning of one ingestor."""

    def __init__(self, wanted: Wanted, timing: Timing, now_s: float) -> None:
        self._wanted = wanted
        self._timing = timing
        self._now_s = now_s
        self._targets = frozenset(targets(wanted))

    def died(self, workers: Sequence[WorkerSeen], before: Crashes) -> dict[WorkerId, Crash]:
        """What is known of dead writers that are wanted still, with those that are found dead now."""
        kept = {id_: crash for id_, crash in before.items() if id_ in self._keeps(workers)}
        for worker in workers:
            if worker.phase is Phase.ENDED and worker.reason and worker.id in self._keeps(workers):
                ran_s = worker.since_s - worker.started_s
                count = kept[worker.id].count if worker.id in kept and ran_s < self._timing.stable_s else 0
                kept[worker.id] = Crash(
                    count=count + 1, last_s=worker.since_s, reason=worker.reason, message=worker.message
                )
        return kept

    def actions(self, workers: Sequence[WorkerSeen], crashes: Crashes) -> Iterator[Action]:
        """Yield what is done about this ingestor, in order."""
        there = {worker.id for worker in workers if worker.phase is not Phase.ENDED}
        if self._wanted.wish is not Wish.HOLD:
            for worker in workers:
                yield from self._end(worker)
        yield from (Collect(id=worker.id) for worker in workers if worker.phase is Phase.ENDED)
        if self._wanted.wish is Wish.DELETE and not there:
            yield Finalize(name=self._wanted.name, uid=self._wanted.uid)
        spec = self._wanted.spec
        for id_ in sorted(self._targets):
            former = any(one.topic == id_.topic and one not in self._targets for one in there)
            if spec is not None and id_ not in there and not former and self._may_start(id_, crashes):
                yield Start(id=id_, replicas=spec.spec.replicas)

    def due(self, workers: Iterable[WorkerSeen], crashes: Crashes) -> Iterator[float]:
        """Yield the times at which something is due by the clock alone."""
        for worker in workers:
            # What is due by now was done in this pass, or could not be: the next look is soon enough.
            if worker.phase is Phase.DRAINING and worker.since_s + self._timing.drain_s_max > self._now_s:
                yield worker.since_s + self._timing.drain_s_max
        for id_, crash in crashes.items():
            if id_ in self._targets:
                again_s = crash.last_s + self._timing.wait_s(crash.count)
                if again_s > self._now_s:
                    yield again_s

    def _end(self, worker: WorkerSeen) -> Iterator[Action]:
        if worker.phase is Phase.DRAINING and self._now_s - worker.since_s >= self._timing.drain_s_max:
            yield Kill(id=worker.id)
        if worker.phase is Phase.RUNNING and not self._stays(worker.id):
            yield Drain(id=worker.id, why=self._why(worker.id))

    def _stays(self, id_: WorkerId) -> bool:
        wanted = self._wanted
        if wanted.wish is Wish.RUN and wanted.topics is None:
            return id_.revision == wanted.revision
        return id_ in self._targets

    def _keeps(self, workers: Sequence[WorkerSeen]) -> frozenset[WorkerId]:
        """Writers whose deaths count: those that are wanted; all while the ingestor is held."""
        if self._wanted.wish is Wish.HOLD:
            return frozenset(worker.id for worker in workers)
        return self._targets

    def _why(self, id_: WorkerId) -> str:
        wanted = self._wanted
        if wanted.wish is not Wish.RUN:
            return wanted.reason or wanted.wish.value
        return "SpecChanged" if id_.revision != wanted.revision else "TopicGone"

    def _may_start(self, id_: WorkerId, crashes: Crashes) -> bool:
        crash = crashes.get(id_)
        return crash is None or self._now_s >= crash.last_s + self._timing.wait_s(crash.count)


def targets(wanted: Wanted) -> Iterator[WorkerId]:
    """Yield the writers that an ingestor is to have."""
    if wanted.wish is not Wish.RUN or wanted.spec is None:
        return
    for topic in wanted.topics or ():
        for replica in range(wanted.spec.spec.replicas):
            yield WorkerId(ingestor=wanted.name, topic=topic, replica=replica, revision=wanted.revision)


def waits(wanted: Wanted, crashes: Crashes, timing: Timing) -> Mapping[WorkerId, float]:
    """Writer to the time of its next start, of those that died."""
    return {
        id_: crashes[id_].last_s + timing.wait_s(crashes[id_].count)
        for id_ in targets(wanted)
        if id_ in crashes
    }
