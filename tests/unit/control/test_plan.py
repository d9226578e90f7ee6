"""Plans of the controller: what is wanted and what is seen, to what is done; golden plans, as text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.core.control.model import (
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
from tarn.core.control.plan import plan
from tarn.core.spec import IngestorSpec
from tests.support.lake import spec

NOW_S = 1_000.0
TIMING = Timing(drain_s_max=30, backoff_s=1, backoff_s_max=60, stable_s=60)


def wanted(name: str = "a", revision: str = "r1", replicas: int = 1, **more: Any) -> Wanted:
    made: IngestorSpec = spec(replicas=replicas)
    known = {"wish": Wish.RUN, "topics": ("t",), "spec": made, "generation": 1, "uid": f"uid-{name}"}
    return Wanted(name=name, revision=revision, **(known | more))


def seen(text: str, *, since_s: float = NOW_S, started_s: float = NOW_S, why: str = "") -> WorkerSeen:
    """A writer from `a/t/0@r1 Running`."""
    where, phase = text.split()
    path, revision = where.split("@")
    ingestor, topic, replica = path.split("/")
    return WorkerSeen(
        id=WorkerId(ingestor=ingestor, topic=topic, replica=int(replica), revision=revision),
        phase=Phase(phase),
        since_s=since_s,
        started_s=started_s,
        reason=why,
    )


def shown(found: Plan) -> list[str]:
    lines = []
    for action in found.actions:
        match action:
            case Start(id=id_, replicas=count):
                lines.append(f"start {id_} of {count}")
            case Drain(id=id_, why=why):
                lines.append(f"drain {id_}: {why}")
            case Kill(id=id_):
                lines.append(f"kill {id_}")
            case Collect(id=id_):
                lines.append(f"collect {id_}")
            case Finalize(name=name, uid=uid):
                lines.append(f"finalize {name} {uid}")
    return lines


def made(wants: list[Wanted], workers: list[WorkerSeen], crashes: Crashes | None = None) -> Plan:
    return plan(wants, workers, crashes or {}, now_s=NOW_S, timing=TIMING)


GOLDEN: dict[str, tuple[list[Wanted], list[WorkerSeen], list[str]]] = {
    "nothing is wanted and nothing is there": ([], [], []),
    "create": ([wanted()], [], ["start a/t/0@r1 of 1"]),
    "what runs is left alone": ([wanted()], [seen("a/t/0@r1 Running")], []),
    "create with replicas and topics": (
        [wanted(replicas=2, topics=("t", "u"))],
        [],
        ["start a/t/0@r1 of 2", "start a/t/1@r1 of 2", "start a/u/0@r1 of 2", "start a/u/1@r1 of 2"],
    ),
    "a change drains first": (
        [wanted(revision="r2")],
        [seen("a/t/0@r1 Running")],
        ["drain a/t/0@r1: SpecChanged"],
    ),
    "what drains is waited for": ([wanted(revision="r2")], [seen("a/t/0@r1 Draining")], []),
    "what has ended is collected and the new version begins": (
        [wanted(revision="r2")],
        [seen("a/t/0@r1 Ended")],
        ["collect a/t/0@r1", "start a/t/0@r2 of 1"],
    ),
    "scale up waits for all of the former": (
        [wanted(revision="r3", replicas=3)],
        [seen("a/t/0@r1 Running")],
        ["drain a/t/0@r1: SpecChanged"],
    ),
    "scale down waits for the last of the former": (
        [wanted(revision="r1")],
        [seen("a/t/0@r3 Ended"), seen("a/t/1@r3 Draining"), seen("a/t/2@r3 Ended")],
        ["collect a/t/0@r3", "collect a/t/2@r3"],
    ),
    "a change waits for the former of its own topic only": (
        [wanted(revision="r2", topics=("t", "u"))],
        [seen("a/t/0@r1 Draining")],
        ["start a/u/0@r2 of 1"],
    ),
    "a missing replica is started beside the others": (
        [wanted(replicas=2)],
        [seen("a/t/1@r1 Running")],
        ["start a/t/0@r1 of 2"],
    ),
    "a topic that is new does not wait for the others": (
        [wanted(topics=("t", "u"))],
        [seen("a/t/0@r1 Running")],
        ["start a/u/0@r1 of 1"],
    ),
    "a topic that is gone": (
        [wanted(topics=("t",))],
        [seen("a/t/0@r1 Running"), seen("a/u/0@r1 Running")],
        ["drain a/u/0@r1: TopicGone"],
    ),
    "topics that cannot be asked stop nobody": ([wanted(topics=None)], [seen("a/t/0@r1 Running")], []),
    "a change is drained also while topics cannot be asked": (
        [wanted(topics=None, revision="r2")],
        [seen("a/t/0@r1 Running")],
        ["drain a/t/0@r1: SpecChanged"],
    ),
    "delete drains": (
        [wanted(wish=Wish.DELETE, reason="Deleting")],
        [seen("a/t/0@r1 Running")],
        ["drain a/t/0@r1: Deleting"],
    ),
    "delete waits": ([wanted(wish=Wish.DELETE)], [seen("a/t/0@r1 Draining")], []),
    "delete finalizes behind the last writer": (
        [wanted(wish=Wish.DELETE)],
        [seen("a/t/0@r1 Ended")],
        ["collect a/t/0@r1", "finalize a uid-a"],
    ),
    "delete of one without writers": ([wanted(wish=Wish.DELETE)], [], ["finalize a uid-a"]),
    "a spec that is gone": ([], [seen("a/t/0@r1 Running")], ["drain a/t/0@r1: SpecGone"]),
    "what is left of a spec that is gone": ([], [seen("a/t/0@r1 Ended")], ["collect a/t/0@r1"]),
    "a refused spec leaves what runs": ([wanted(wish=Wish.HOLD)], [seen("a/t/0@r0 Running")], []),
    "a refused spec starts nothing": ([wanted(wish=Wish.HOLD)], [], []),
    "one that lost a clash ends": (
        [wanted(wish=Wish.STOP, reason="Clash")],
        [seen("a/t/0@r1 Running")],
        ["drain a/t/0@r1: Clash"],
    ),
    "a writer that does not end": (
        [wanted(revision="r2")],
        [seen("a/t/0@r1 Draining", since_s=NOW_S - 30)],
        ["kill a/t/0@r1"],
    ),
    "the spec is as before while its writer drains": (
        [wanted()],
        [seen("a/t/0@r1 Draining")],
        [],
    ),
    "one ingestor's change disturbs no other": (
        [wanted("a", "r2"), wanted("b"), wanted("c", wish=Wish.DELETE, reason="Deleting")],
        [seen("a/t/0@r1 Running"), seen("b/t/0@r1 Running"), seen("c/t/0@r1 Running")],
        ["drain a/t/0@r1: SpecChanged", "drain c/t/0@r1: Deleting"],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_plans(name: str) -> None:
    wants, workers, expected = GOLDEN[name]
    assert shown(made(wants, workers)) == expected


def test_a_writer_that_dies_is_started_later_and_later() -> None:
    crashes: Crashes = {}
    now_s, waits = NOW_S, []
    for _ in range(9):
        dead = seen("a/t/0@r1 Ended", since_s=now_s, started_s=now_s - 0.1, why="Exit")
        found = plan([wanted()], [dead], crashes, now_s=now_s, timing=TIMING)
        assert shown(found) == ["collect a/t/0@r1"], "not started at once"
        assert found.due_s is not None
        waits.append(found.due_s - now_s)
        before = plan([wanted()], [], found.crashes, now_s=found.due_s - 0.01, timing=TIMING)
        assert shown(before) == []
        now_s, crashes = found.due_s, found.crashes
        assert shown(plan([wanted()], [], crashes, now_s=now_s, timing=TIMING)) == ["start a/t/0@r1 of 1"]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [crash.count for crash in crashes.values()] == [9]


def test_a_writer_that_ran_for_long_begins_its_count_again() -> None:
    id_ = seen("a/t/0@r1 Ended").id
    before = {id_: Crash(count=7, last_s=NOW_S - 90, reason="Exit", message="")}
    dead = seen("a/t/0@r1 Ended", started_s=NOW_S - 60, why="Exit")
    assert made([wanted()], [dead], before).crashes[id_].count == 1
    dead = seen("a/t/0@r1 Ended", started_s=NOW_S - 59, why="Exit")
    assert made([wanted()], [dead], before).crashes[id_].count == 8


def test_a_changed_spec_begins_at_once() -> None:
    id_ = seen("a/t/0@r1 Ended").id
    before = {id_: Crash(count=7, last_s=NOW_S, reason="Exit", message="")}
    found = made([wanted(revision="r2")], [], before)
    assert shown(found) == ["start a/t/0@r2 of 1"]
    assert found.crashes == {}


def test_a_writer_that_was_asked_to_end_has_not_died() -> None:
    assert made([wanted()], [seen("a/t/0@r1 Ended")]).crashes == {}


def test_one_that_died_while_it_was_held_is_not_started_at_once() -> None:
    held = made([wanted(wish=Wish.HOLD)], [seen("a/t/0@r1 Ended", why="Exit")])
    assert shown(held) == ["collect a/t/0@r1"]
    found = made([wanted()], [], held.crashes)
    assert (shown(found), found.due_s) == ([], NOW_S + 1)


def test_one_that_dies_again_and_again_delays_no_other_replica() -> None:
    dead = seen("a/t/0@r1 Ended", why="Exit")
    found = made([wanted(replicas=2), wanted("b")], [dead])
    assert shown(found) == ["collect a/t/0@r1", "start a/t/1@r1 of 2", "start b/t/0@r1 of 1"]


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["r1", "r2"]), st.integers(1, 3), st.booleans()), max_size=6
)


@pytest.mark.long
@given(STEPS, st.randoms(use_true_random=False))
def test_whatever_is_there_ends_as_wanted(steps: list[tuple[int, str, int, bool]], chance: Any) -> None:
    """Specs change at any time, and some writers die: it settles, and never has two revisions at once."""
    workers: dict[WorkerId, WorkerSeen] = {}
    now_s, crashes = NOW_S, dict[WorkerId, Crash]()

    def act(wants: list[Wanted], *, dying: bool) -> bool:
        nonlocal crashes
        found = plan(wants, list(workers.values()), crashes, now_s=now_s, timing=TIMING)
        crashes = dict(found.crashes)
        for action in found.actions:
            match action:
                case Start(id=id_):
                    beside = {w.id.revision for w in workers.values() if w.id.ingestor == id_.ingestor}
                    assert beside <= {id_.revision}
                    workers[id_] = seen(f"{id_} Running", since_s=now_s, started_s=now_s)
                case Drain(id=id_):
                    workers[id_] = seen(f"{id_} Draining", since_s=now_s, started_s=workers[id_].started_s)
                case Kill(id=id_) | Collect(id=id_):
                    workers.pop(id_)
        for id_, one in list(workers.items()):
            if one.phase is Phase.DRAINING and (not dying or chance.random() < 0.5):
                workers[id_] = seen(f"{id_} Ended", since_s=now_s, started_s=one.started_s)
            if one.phase is Phase.RUNNING and dying and chance.random() < 0.3:
                workers[id_] = seen(f"{id_} Ended", since_s=now_s, started_s=one.started_s, why="Exit")
        return bool(found.actions)

    last: dict[int, Wanted] = {}
    for number, revision, replicas, delete in steps:
        wish = Wish.DELETE if delete else Wish.RUN
        last[number] = wanted(f"n{number}", f"{revision}x{replicas}", replicas, wish=wish)
        for _ in range(chance.randint(0, 3)):
            now_s += 1
            act(list(last.values()), dying=True)
    for _ in range(10):
        now_s += 100
        act([one for one in last.values() if one.wish is Wish.RUN], dying=False)
    expected = {
        WorkerId(ingestor=one.name, topic="t", replica=r, revision=one.revision)
        for one in last.values()
        if one.wish is Wish.RUN and one.spec is not None
        for r in range(one.spec.spec.replicas)
    }
    assert {one.id for one in workers.values() if one.phase is Phase.RUNNING} == expected
    assert set(workers) == expected


@pytest.mark.parametrize("wish", [Wish.HOLD, Wish.RUN])
def test_what_could_not_be_done_is_not_due_at_once_again(wish: Wish) -> None:
    """A writer that does not end: while its ingestor is held it is left alone, and the loop must not spin."""
    late = seen("a/t/0@r1 Draining", since_s=NOW_S - 31)
    assert made([wanted(wish=wish, revision="r2")], [late]).due_s is None
    soon = seen("a/t/0@r1 Draining", since_s=NOW_S - 29)
    assert made([wanted(wish=wish, revision="r2")], [soon]).due_s == NOW_S + 1
