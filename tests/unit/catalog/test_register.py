"""The register's three outcomes under every fault (invariants I2 and I3)."""

from __future__ import annotations

import itertools
import json

import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.errors import ConflictError, UnavailableError
from tarn.core.object_store import StoreDeniedError, StoreUnavailableError
from tarn.core.outcome import Committed, Conflict, Unknown
from tarn_catalog.state.register import Register, RetryPolicy, Superseded, write_once
from tarn_catalog.testing.faulty_store import ANSWERS, Fault, FaultyStore, Op

KEY = "catalog/v1/pointers/ns/t.json"


def value(nonce: str, before: tuple[str, ...] = ()) -> bytes:
    return json.dumps({"nonce": nonce, "before": before}).encode()


def is_mine(nonce: str):
    def check(data: bytes) -> bool | None:
        found = json.loads(data)
        if found["nonce"] == nonce or nonce in found["before"]:
            return True
        return None if found["before"] == ["forgotten"] else False

    return check


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.waits_s.append(seconds)


def register(store, **limits) -> tuple[Register, Clock]:
    clock = Clock()
    patience = RetryPolicy(clock=lambda: clock.now_s, sleep=clock.sleep, chance=lambda: 0.5, **limits)
    return Register(store, patience), clock


def puts(*faults: Fault | None):
    """Faults for the first writes, none for later ones."""
    queue = list(faults)

    def plan(op: Op) -> Fault | None:
        return queue.pop(0) if op.kind == "put" and queue else None

    return plan


def always(fault: Fault):
    return lambda op: fault if op.kind == "put" else None


def test_create_then_create_again() -> None:
    reg, _ = register(MemoryStore())
    first = reg.create(KEY, value("a"), is_mine=is_mine("a"))
    assert isinstance(first, Committed)
    assert first.etag == reg.read(KEY).etag
    assert reg.create(KEY, value("b"), is_mine=is_mine("b")) == Conflict(reason=f"{KEY} holds another value")
    assert reg.read(KEY).data == value("a")


def test_swap_with_right_stale_and_missing_base() -> None:
    reg, _ = register(MemoryStore())
    first = reg.create(KEY, value("a"), is_mine=is_mine("a"))
    second = reg.swap(KEY, value("b"), if_match=first.etag, is_mine=is_mine("b"))
    assert isinstance(second, Committed)
    assert second.etag != first.etag
    assert isinstance(reg.swap(KEY, value("c"), if_match=first.etag, is_mine=is_mine("c")), Conflict)
    gone = reg.swap("elsewhere", value("c"), if_match=first.etag, is_mine=is_mine("c"))
    assert gone == Conflict(reason="elsewhere is gone")
    assert reg.read(KEY).data == value("b")


@pytest.mark.parametrize("swap", [False, True], ids=["create", "swap"])
@pytest.mark.parametrize(
    ("faults", "writes"),
    [
        ((Fault.LOST_REPLY,), 1),
        ((Fault.RESET,), 2),
        ((Fault.RESET, Fault.RESET, Fault.LOST_REPLY), 3),
        ((Fault.CONFLICT,), 2),
        ((Fault.CONFLICT, Fault.CONFLICT, Fault.BUSY), 4),
        ((Fault.BUSY,), 2),
        ((Fault.BUSY_DONE,), 2),
        ((Fault.BUSY_DONE, Fault.RESET), 2),
        ((Fault.LATE,), 2),
    ],
)
def test_a_fault_that_passes_ends_committed_once(swap: bool, faults, writes: int) -> None:
    store = FaultyStore(MemoryStore())
    reg, _ = register(store)
    base = reg.create(KEY, value("base"), is_mine=is_mine("base")) if swap else None
    store.plan = puts(*faults)
    before = len([op for op in store.seen if op.kind == "put"])
    if base is None:
        outcome = reg.create(KEY, value("a"), is_mine=is_mine("a"))
    else:
        outcome = reg.swap(KEY, value("a"), if_match=base.etag, is_mine=is_mine("a"))
    assert isinstance(outcome, Committed)
    assert len([op for op in store.seen if op.kind == "put"]) - before == writes
    store.settle()
    stored = reg.read(KEY)
    assert (stored.data, stored.etag) == (value("a"), outcome.etag)


def test_lost_reply_then_another_commit_on_top_is_still_committed() -> None:
    store = FaultyStore(MemoryStore())
    reg, _ = register(store)
    base = reg.create(KEY, value("base"), is_mine=is_mine("base"))

    def plan(op: Op) -> Fault | None:
        if op.kind == "get":
            found = store.inner.get(KEY)
            if found.data == value("a"):
                store.inner.put(KEY, value("other", ("a",)), if_match=found.etag)
            return None
        return Fault.LOST_REPLY if op.kind == "put" else None

    store.plan = plan
    outcome = reg.swap(KEY, value("a"), if_match=base.etag, is_mine=is_mine("a"))
    assert outcome == Superseded(etag=store.inner.get(KEY).etag)
    assert isinstance(outcome, Committed)


def test_a_refusal_over_a_value_that_forgot_is_unknown() -> None:
    store = MemoryStore()
    reg, _ = register(store)
    store.put(KEY, value("other", ("forgotten",)))
    outcome = reg.create(KEY, value("a"), is_mine=is_mine("a"))
    assert isinstance(outcome, Unknown)


def test_no_answer_at_all_is_unknown_and_a_late_write_may_land() -> None:
    store = FaultyStore(MemoryStore(), lambda op: Fault.LATE if op.kind == "put" else Fault.RESET)
    reg, clock = register(store, attempts_max=3)
    outcome = reg.create(KEY, value("a"), is_mine=is_mine("a"))
    assert isinstance(outcome, Unknown)
    assert len(clock.waits_s) == 2
    assert store.inner.get(KEY) is None
    store.settle()
    assert store.inner.get(KEY).data == value("a")


def test_a_late_write_never_overwrites_what_came_after() -> None:
    store = FaultyStore(MemoryStore())
    reg, _ = register(store, attempts_max=1)
    base = reg.create(KEY, value("base"), is_mine=is_mine("base"))
    store.plan = always(Fault.LATE)
    assert isinstance(reg.swap(KEY, value("late"), if_match=base.etag, is_mine=is_mine("late")), Unknown)
    store.plan = lambda _: None
    winner = reg.swap(KEY, value("w"), if_match=base.etag, is_mine=is_mine("w"))
    assert isinstance(winner, Committed)
    store.settle()
    assert reg.read(KEY).data == value("w")


def test_refused_again_and_again_with_nothing_in_the_way_changed_nothing() -> None:
    store = FaultyStore(MemoryStore(), always(Fault.CONFLICT))
    reg, clock = register(store, attempts_max=4)
    with pytest.raises(UnavailableError, match="nothing was changed"):
        reg.create(KEY, value("a"), is_mine=is_mine("a"))
    assert clock.waits_s == [0.015, 0.03, 0.06]
    assert store.inner.get(KEY) is None


def test_busy_for_ever_is_unknown_but_read_back_once_more() -> None:
    store = FaultyStore(MemoryStore(), always(Fault.BUSY))
    reg, _ = register(store, attempts_max=3)
    assert isinstance(reg.create(KEY, value("a"), is_mine=is_mine("a")), Unknown)
    store = FaultyStore(MemoryStore(), always(Fault.BUSY_DONE))
    reg, _ = register(store, attempts_max=1)
    assert isinstance(reg.create(KEY, value("a"), is_mine=is_mine("a")), Committed)


def test_denied_is_an_error_unless_something_was_sent_before() -> None:
    reg, _ = register(FaultyStore(MemoryStore(), always(Fault.DENIED)))
    with pytest.raises(StoreDeniedError):
        reg.create(KEY, value("a"), is_mine=is_mine("a"))
    reg, _ = register(FaultyStore(MemoryStore(), puts(Fault.LATE, Fault.DENIED)))
    assert isinstance(reg.create(KEY, value("a"), is_mine=is_mine("a")), Unknown)


def test_a_refusal_that_cannot_be_read_back_is_not_a_conflict() -> None:
    store = FaultyStore(MemoryStore())
    store.inner.put(KEY, value("other"))
    store.plan = lambda op: Fault.RESET if op.kind == "get" else None
    reg, _ = register(store, attempts_max=2)
    assert isinstance(reg.create(KEY, value("a"), is_mine=is_mine("a")), Unknown)


def test_no_attempt_starts_after_the_deadline() -> None:
    store = FaultyStore(MemoryStore(), always(Fault.RESET))
    reg, clock = register(store, attempts_max=50, wait_ms=1000, wait_ms_max=10_000, deadline_ms=5_000)
    assert isinstance(reg.create(KEY, value("a"), is_mine=is_mine("a")), Unknown)
    assert clock.now_s < 5.0 + 10.0
    assert len([op for op in store.seen if op.kind == "put"]) < 8


def test_every_attempt_but_the_first_pauses_with_jitter_up_to_a_limit() -> None:
    clock = Clock()
    draws = iter([0.0, 0.5, 0.999, 0.0, 0.0, 0.999])
    patience = RetryPolicy(
        sleep=clock.sleep, chance=lambda: next(draws), wait_ms=20, wait_ms_max=200, attempts_max=99
    )
    attempts = patience.attempts(7)
    assert next(attempts) == 1
    assert clock.waits_s == []
    assert list(attempts) == [2, 3, 4, 5, 6, 7]
    longest_ms = [20, 40, 80, 160, 200, 200]
    share = [0.5, 0.75, 0.9995, 0.5, 0.5, 0.9995]
    assert clock.waits_s == pytest.approx([ms * f / 1000 for ms, f in zip(longest_ms, share, strict=True)])


FAULTS = [None, *ANSWERS]


@pytest.mark.long
@pytest.mark.parametrize("late_ops", [None, 1, 2, 4])
def test_every_sequence_of_four_faults_tells_the_truth(late_ops: int | None, record_property) -> None:
    """Committed: the value is there and stays. Conflict: it is not there and never will be."""
    rounds = {"committed": 0, "conflict": 0, "unknown": 0, "raised": 0}
    for faults in itertools.product(FAULTS, repeat=4):
        for rival_at in (None, 1, 3):
            store = FaultyStore(MemoryStore(), late_ops=late_ops)
            reg, _ = register(store, attempts_max=5)
            base = reg.create(KEY, value("base"), is_mine=is_mine("base"))
            queue = list(faults)

            numbers = itertools.count(1)

            def plan(op: Op, store=store, queue=queue, rival_at=rival_at, seen=numbers) -> Fault | None:
                found = store.inner.get(KEY)
                if next(seen) == rival_at and found.data == value("base"):
                    store.inner.put(KEY, value("rival"), if_match=found.etag)
                return queue.pop(0) if queue else None

            store.plan = plan
            try:
                outcome = reg.swap(KEY, value("a"), if_match=base.etag, is_mine=is_mine("a"))
            except (StoreDeniedError, UnavailableError, StoreUnavailableError):
                rounds["raised"] += 1
                store.settle()
                assert store.inner.get(KEY).data != value("a"), faults
                continue
            now = store.inner.get(KEY)
            store.settle()
            then = store.inner.get(KEY)
            if isinstance(outcome, Committed):
                rounds["committed"] += 1
                assert now == then
                assert then.data == value("a"), faults
            elif isinstance(outcome, Conflict):
                rounds["conflict"] += 1
                assert then.data == value("rival"), faults
            else:
                rounds["unknown"] += 1
    record_property("rounds", rounds)
    assert sum(rounds.values()) == 3 * 8**4
    assert min(rounds.values()) > 0


def test_write_once_accepts_its_own_repeat_and_no_other() -> None:
    clock = Clock()
    patience = RetryPolicy(clock=lambda: clock.now_s, sleep=clock.sleep, attempts_max=3)
    store = FaultyStore(MemoryStore(), puts(Fault.LOST_REPLY, Fault.BUSY))
    write_once(store, "k", b"1", patience=patience)
    write_once(store, "k", b"1", patience=patience)
    with pytest.raises(ConflictError, match="another content"):
        write_once(store, "k", b"2", patience=patience)
    assert store.inner.get("k").data == b"1"
    with pytest.raises(UnavailableError, match="nothing was changed"):
        write_once(FaultyStore(MemoryStore(), always(Fault.RESET)), "k", b"1", patience=patience)


def test_write_once_waits_longer_before_each_attempt() -> None:
    clock = Clock()
    patience = RetryPolicy(
        clock=lambda: clock.now_s, sleep=clock.sleep, chance=lambda: 0.5, attempts_max=4, wait_ms=20
    )
    with pytest.raises(UnavailableError):
        write_once(FaultyStore(MemoryStore(), always(Fault.RESET)), "k", b"1", patience=patience)
    assert clock.waits_s == pytest.approx([0.015, 0.030, 0.060])
