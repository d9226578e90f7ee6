"""Runs of fsck as they are recorded: whole, damaged, failed, interrupted, two at once, without the right."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import FileStore, MemoryStore
from tarn.cli import keeper as cli
from tarn.cli.main import main
from tarn.core.errors import UnavailableError
from tarn.core.fsck_record import RECORD_BYTES_MAX, RESULT_KEY, RUN_KEY, RunState, to_bytes
from tarn.core.object_store import ObjectStore, Stored, StoreDeniedError, StoreOutcomeUnknownError
from tarn.keeper.fsck_record import FsckRecord, Recording, read_record, recorded
from tests.contract.keeper.conftest import World
from tests.support.fsck_records import a_result

START_MS = 1_764_000_000_000


class Clock:
    """Goes on by a millisecond each time it is asked."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def a_run(store: ObjectStore, name: str = "one", *, clock: Callable[[], int] | None = None) -> Recording:
    return Recording(store, run=name, version="1", now_ms=clock or Clock(), tell=TOLD.append, every_s=0.01)


TOLD: list[str] = []


@pytest.fixture(autouse=True)
def _quiet() -> None:
    TOLD.clear()


def looked(world: World, name: str = "one", *, clock: Callable[[], int] | None = None) -> bool:
    with recorded(a_run(world.store, name, clock=clock)) as run:
        return run.done(world.fsck())


def record(world: World) -> FsckRecord:
    return read_record(PlainBulk(world.store))


def break_a_file(world: World) -> None:
    world.store.delete(next(k for k in world.keys("bronze/orders-") if k.endswith(".parquet")))


def test_a_lake_without_a_run_has_no_record(world: World) -> None:
    assert record(world) == FsckRecord()


def test_what_a_run_found_is_recorded_and_nothing_else_is_touched(world: World) -> None:
    before = dict(world.store._objects)
    assert looked(world)
    report, found = world.fsck(), record(world).result
    assert found is not None
    assert found.clean
    assert (found.run, found.damage, found.findings) == ("one", 0, ())
    assert (found.namespaces, found.tables, found.snapshots) == (4, 3, report.snapshots)
    assert (found.files, found.bytes) == (report.files, report.bytes)
    assert (found.orphans, found.orphan_bytes) == (report.orphans, report.orphan_bytes)
    assert START_MS < found.began_ms < found.ended_ms
    run = record(world).run
    assert run is not None
    assert (run.run, run.state) == ("one", RunState.DONE)
    changed = {key for key in world.store._objects if world.store._objects[key] != before.get(key)}
    assert changed == {RESULT_KEY, RUN_KEY}
    assert TOLD == []

    break_a_file(world)
    assert looked(world, "two", clock=Clock(START_MS + 1_000))
    found = record(world).result
    assert found is not None
    assert not found.clean
    assert (found.damage, found.findings[0].kind, found.findings[0].where) == (
        1,
        "data file missing",
        "bronze.orders",
    )


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (
            UnavailableError("the store does not respond; wait"),
            RunState.FAILED,
            "the store does not respond; wait",
        ),
        (KeyError("x"), RunState.FAILED, "KeyError: 'x'; a defect of Tarn"),
        (KeyboardInterrupt(), RunState.INTERRUPTED, ""),
    ],
)
def test_a_run_that_comes_to_no_end_leaves_the_result_before_it(
    world: World, error: BaseException, state: RunState, reason: str
) -> None:
    break_a_file(world)
    looked(world)
    before = record(world).result

    def break_off() -> None:
        with recorded(a_run(world.store, "two", clock=Clock(START_MS + 99))) as run:
            run.tell("table 1 of 3: bronze.orders")
            raise error

    with pytest.raises(type(error)):
        break_off()
    found = record(world)
    assert found.run is not None
    assert (found.run.run, found.run.state, found.run.reason) == ("two", state, reason)
    assert found.run.progress == "table 1 of 3: bronze.orders"
    assert found.result == before


def test_a_run_that_is_killed_has_only_begun(world: World) -> None:
    begun = threading.Event()

    class Seen(MemoryStore):
        def put(self, key: str, data: bytes, **how: object) -> str:
            etag = super().put(key, data)
            begun.set()
            return etag

    store = Seen()
    run = a_run(store)
    run.start()
    assert begun.wait(60)
    found = read_record(PlainBulk(store))
    assert found.run is not None
    assert (found.run.state, found.result) == (RunState.RUNNING, None)
    first = found.run.said_ms
    begun.clear()
    assert begun.wait(60), "it goes on saying so"
    run.broken(RunState.INTERRUPTED)
    found = read_record(PlainBulk(store))
    assert found.run is not None
    assert found.run.said_ms > first
    assert not run._thread.is_alive()


def test_who_breaks_off_a_run_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarn.keeper.fsck_record.BREAK_S", 0.05)
    asked, answers = threading.Event(), threading.Event()

    class Hanging(MemoryStore):
        puts = 0

        def put(self, key: str, data: bytes, **how: object) -> str:
            self.puts += 1
            asked.set()
            assert answers.wait(110)
            return super().put(key, data)

    store = Hanging()
    run = a_run(store)
    run.start()
    assert asked.wait(60)
    run.broken(RunState.INTERRUPTED)
    assert store.puts == 1
    answers.set()
    run._thread.join(60)
    found = read_record(PlainBulk(store)).run
    assert found is not None
    assert found.state is RunState.RUNNING, "its silence is shown as an interruption"


def test_of_two_runs_at_once_that_which_began_later_counts(world: World) -> None:
    early, late = a_run(world.store, "early"), a_run(world.store, "late", clock=Clock(START_MS + 1_000))
    with recorded(early), recorded(late):
        clean = world.fsck()
        break_a_file(world)
        assert late.done(world.fsck())
        early._now_ms = Clock(START_MS + 9_000)
        assert not early.done(clean)
    found = record(world).result
    assert found is not None
    assert (found.run, found.clean) == ("late", False)
    assert "a run that began later has recorded its result" in TOLD[-1]


def test_a_result_from_the_future_is_overwritten(world: World) -> None:
    """The clock was set back: what was written by it then must not stay for years."""
    looked(world, "future", clock=Clock(START_MS + 10**9))
    assert looked(world, "now")
    found = record(world).result
    assert found is not None
    assert found.run == "now"


def test_two_ends_at_the_same_moment_leave_one_whole_result(tmp_path: Path, world: World) -> None:
    store = FileStore(tmp_path)
    report, messages = world.fsck(), []
    runs = [
        Recording(store, run=f"r{n}", version="1", now_ms=Clock(START_MS + 1_000 * n), tell=messages.append)
        for n in range(4)
    ]
    gate = threading.Barrier(len(runs))

    def end(run: Recording) -> None:
        with recorded(run):
            gate.wait(60)
            run.done(report)

    threads = [threading.Thread(target=end, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = read_record(PlainBulk(store))
    assert found.result is not None
    assert (found.faults, found.result.clean) == ((), True)


class Denied(MemoryStore):
    """Lets nobody write a record."""

    def put(self, key: str, data: bytes, **how: object) -> str:
        if key in (RESULT_KEY, RUN_KEY):
            raise StoreDeniedError(f"may not write {key}; check the store user and its policy")
        return super().put(key, data)


class Lost(MemoryStore):
    """Writes the first result, and loses the answer."""

    losses = 1

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        etag = super().put(key, data, if_absent=if_absent, if_match=if_match)
        if key == RESULT_KEY and self.losses:
            self.losses -= 1
            raise StoreOutcomeUnknownError(f"no answer to: write {key}; it may have happened")
        return etag


class Silent(MemoryStore):
    """Never answers a write of a result."""

    def put(self, key: str, data: bytes, **how: Any) -> str:
        if key == RESULT_KEY:
            raise StoreOutcomeUnknownError(f"no answer to: write {key}; it may have happened")
        return super().put(key, data, **how)


def test_a_result_whose_write_is_never_answered_is_not_said_to_be_lost(world: World) -> None:
    store = Silent()
    with recorded(a_run(store)) as run:
        assert not run.done(world.fsck())
    (said,) = TOLD
    assert said.startswith("it is not known whether this result was recorded: no answer")
    found = read_record(PlainBulk(store))
    assert found.run is not None
    assert "whether its result was recorded is unknown" in found.run.reason


def test_a_write_without_an_answer_is_looked_for(world: World) -> None:
    store = Lost()
    with recorded(a_run(store)) as run:
        assert run.done(world.fsck())
    assert (store.losses, TOLD) == (0, [])
    found = read_record(PlainBulk(store))
    assert found.result is not None
    assert found.run is not None
    assert found.run.state is RunState.DONE


def test_a_damaged_record_is_said_to_be_so_hides_no_other_and_is_replaced(world: World) -> None:
    looked(world)
    run = record(world).run
    for data, why in (
        (b"{", "is no JSON"),
        (b"x" * (RECORD_BYTES_MAX + 1), "more than"),
        (b'{"format": 2}', "another release"),
    ):
        world.store.put(RESULT_KEY, data)
        found = record(world)
        assert (found.result, found.run) == (None, run)
        (fault,) = found.faults
        assert why in fault
        assert looked(world, "again")
        assert record(world).faults == ()
        run = record(world).run


@pytest.fixture
def tarn(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `tarn fsck` over the lake; returns its exit code, stdout and stderr."""

    class EndedError(BaseException):
        pass

    def end(code: int) -> None:
        raise EndedError(code)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(cli, "_store", lambda _settings: CliStore(world.store))
        monkeypatch.setattr("signal.signal", lambda *_: None)
        with pytest.raises(EndedError) as caught:
            main(["fsck", *words], end=end)  # type: ignore[arg-type]
        return caught.value.args[0], *capsys.readouterr()

    return run


class CliStore(PlainBulk):
    """A `BulkStore` that also writes on conditions, as that over a bucket does."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        return self._store.put(key, data, if_absent=if_absent, if_match=if_match)

    def get(self, key: str) -> Stored | None:
        return self._store.get(key)


def test_the_command_records_and_says_what_to_do(
    world: World, tarn: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = tarn()
    assert code == 0
    assert "The lake is whole" in out
    assert "3 tables; listing the warehouse" in err, "progress"
    assert "What to do" not in out
    first = record(world).result
    assert first is not None
    break_a_file(world)
    code, out, _ = tarn()
    assert code == 1
    assert "data file missing" in out
    assert "run scripts/tarn fsck again" in out.splitlines()[-1]
    code, out, _ = tarn("--json")
    assert code == 1
    assert (json.loads(out)["clean"], json.loads(out)["recorded"]) == (False, True)
    last = record(world).result
    assert last is not None
    assert (last.clean, last.run == first.run) == (False, False)


def test_without_the_right_to_record_the_result_is_shown_and_that_is_said(
    world: World, tarn: Callable[..., tuple[int, str, str]]
) -> None:
    denied = Denied()
    denied._objects = world.store._objects
    world.store = denied
    code, out, err = tarn()
    assert code == 0
    assert "The lake is whole" in out
    assert "this result could not be recorded, so the status API and the page do not show it: may not" in err
    assert record(world) == FsckRecord()
    code, out, _ = tarn("--json")
    assert (code, json.loads(out)["recorded"]) == (0, False)


def test_a_command_that_cannot_look_or_is_interrupted_is_not_taken_for_clean_or_damaged(
    world: World, tarn: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tarn()
    before = record(world).result
    for error, code, text in (
        (UnavailableError("the store is away; wait"), 2, "could not look: the store is away; wait"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ):

        def broken(*_: object, thrown: BaseException = error, **__: object) -> None:
            raise thrown

        monkeypatch.setattr("tarn.keeper.fsck.fsck", broken)
        assert tarn()[0] == code
        _, out, err = tarn("--json")
        assert out == ""
        assert text in err
        assert "nothing is known of the lake" in err.lower()
        assert "run it again" in err
        found = record(world)
        assert found.result == before
        assert found.run is not None
        assert found.run.state is (RunState.FAILED if code == 2 else RunState.INTERRUPTED)


def test_a_record_of_the_shared_kind_is_what_others_read(world: World) -> None:
    world.store.put(RESULT_KEY, to_bytes(a_result()))
    assert record(world).result == a_result()
