"""Writers as processes: real ones, over a lake in a folder; killed, limited, orphaned, drained."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from tarn.core.control.model import Phase, WorkerId
from tarn.core.spec import spec_of
from tarn.ingest.commit_ring import COMMITS_MAX, CommitKind, CommitOutcome, CommitSeen
from tarn.ingest.figures import TableFigures
from tarn.ingest.health import faults
from tarn.ingest.process_driver import ProcessDriver, commit_of, resident_bytes, status_of
from tarn.ingest.status import Histogram, IngestorStatus, State
from tests.support.plant import Plant, document
from tests.support.process_world import ROOT, FileLake, messages

WITHIN_S = 60.0
HERE = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "tarn.ingest.worker", "--world")
LIMITED = {"workerTemplate": {"resources": {"threads": 1}}}


def plant_of(root: Path, monkeypatch: pytest.MonkeyPatch, world: str = "make") -> Plant:
    monkeypatch.setenv(ROOT, str(root))
    monkeypatch.chdir(HERE)
    lake = FileLake(root)
    driver = ProcessDriver(lake.registry, command=(*COMMAND, f"tests.support.process_world:{world}"))
    return Plant(lake, driver)


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plant]:
    messages(tmp_path, "orders", 2, 20)
    made = plant_of(tmp_path, monkeypatch)
    yield made
    made.close()


def pids(plant: Plant) -> list[int]:
    driver: Any = plant.driver
    return [one.process.pid for one in driver._writers.values()]


def test_two_replicas_as_processes_killed_scaled_and_deleted(plant: Plant) -> None:
    plant.apply(replicas=2, **LIMITED)
    plant.until(lambda: plant.all_in() and plant.running(2))
    first = pids(plant)
    assert len(set(first)) == 2

    def shown() -> tuple[Any, ...]:
        status = plant.lake.registry.get("orders")
        return status.rows, status.lag, status.replicas, status.ready

    plant.until(lambda: shown() == (40, 0, 2, 2))

    def commits() -> list[CommitSeen]:
        return list(plant.lake.registry.commits.last(COMMITS_MAX).commits)

    plant.until(lambda: sum(one.rows for one in commits()) == 40)
    assert len({one.commit_id for one in commits()}) == len(commits()), "each is said once"
    assert {(one.ingestor, one.table) for one in commits()} == {("orders", "bronze.orders")}
    assert {one.reader for one in commits()} == {"orders/0", "orders/1"}
    plant.lake.sources.topics["orders"].send(0, b'{"id": 1}')
    plant.lake.sources.topics["orders"].send(1, b'{"id": 2}')
    os.kill(first[0], signal.SIGKILL)
    plant.until(lambda: plant.all_in() and plant.running(2) and first[0] not in pids(plant))
    assert first[1] in pids(plant), "the other replica is left alone"
    plant.scale(1)
    plant.until(lambda: plant.running(1) and len(plant.workers()) == 1)
    plant.lake.sources.topics["orders"].send(1, b'{"id": 3}')
    plant.until(plant.all_in)
    plant.exact()
    plant.delete()
    plant.until(lambda: bool((found := plant.specs.get("orders")) and found.gone))
    assert plant.workers() == []


def test_a_process_that_nobody_can_follow_is_ended(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no thread left that would say what it is to run, and notice its end."""
    inner, popen = threading.Thread.start, subprocess.Popen
    made: list[subprocess.Popen[bytes]] = []

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("writer-"):
            raise RuntimeError("can't start new thread")
        inner(thread)

    def run(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        made.append(popen(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(subprocess, "Popen", run)
    plant.apply(**LIMITED)
    plant.controller.step()
    assert plant.workers() == []
    assert [one.poll() for one in made] == [-signal.SIGKILL]
    assert plant.ready()["reason"] == "CannotStart"
    monkeypatch.setattr(threading.Thread, "start", inner)
    plant.until(lambda: plant.running(1))


def test_a_process_that_dies_at_once_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages(tmp_path, "orders", 1, 1)
    plant = plant_of(tmp_path, monkeypatch, "failing")
    try:
        plant.apply(**LIMITED)
        plant.until(
            lambda: plant.specs.status("orders") is not None and plant.ready()["reason"] == "CrashLoop"
        )
        assert "RuntimeError: no such world" in plant.ready()["message"]
    finally:
        plant.close()


def test_a_process_that_fails_ends_although_a_thread_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages(tmp_path, "orders", 1, 1)
    plant = plant_of(tmp_path, monkeypatch, "stuck")
    try:
        plant.apply(**LIMITED)
        plant.controller.step()
        (first,) = pids(plant)
        plant.until(
            lambda: plant.specs.status("orders") is not None and plant.ready()["reason"] == "CrashLoop",
        )
        assert "RuntimeError: no such world" in plant.ready()["message"]
        assert not Path(f"/proc/{first}").exists(), "it waits for its thread"
    finally:
        for one in plant.seen():
            plant.driver.kill(one.id)
        plant.close()


def test_a_process_that_says_nothing_is_no_good_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages(tmp_path, "orders", 1, 1)
    plant = plant_of(tmp_path, monkeypatch, "silent")
    try:
        plant.apply(replicas=2, **LIMITED)
        plant.controller.step()
        found = faults(plant.lake.registry, now_s=time.monotonic())
        assert "ingestor orders/1: Starting: not ready yet" in found
        status = plant.lake.registry.ingestors()["orders"]
        assert (status.replicas, status.ready, status.table) == (2, 0, "bronze.orders")
    finally:
        for one in plant.seen():
            plant.driver.kill(one.id)
        assert plant.lake.registry.readers() == {}
        plant.close()


def test_a_process_that_reads_nothing_does_not_hold_up_the_controller(plant: Plant) -> None:
    """Its order is more than a pipe takes."""
    driver = ProcessDriver(plant.lake.registry, command=("sleep", "600"))
    fields = [{"name": f"column_{n:0100}", "type": "string"} for n in range(1_000)]
    spec = spec_of(document(schema={"fields": fields}), file="x")
    one = WorkerId(ingestor="orders", topic="orders", replica=0, revision="1")
    driver.start(one, spec)
    try:
        time.sleep(0.2)
        drained = threading.Thread(target=driver.drain, args=(one,), daemon=True)
        drained.start()
        drained.join(WITHIN_S)
        assert not drained.is_alive()
        assert [each.phase for each in driver.list()] == [Phase.DRAINING]
    finally:
        driver.kill(one)


def test_a_process_that_takes_too_much_memory_is_ended_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages(tmp_path, "orders", 1, 1)
    plant = plant_of(tmp_path, monkeypatch, "greedy")
    try:
        plant.apply(workerTemplate={"resources": {"memory": "256Mi", "threads": 1}})
        plant.until(
            lambda: plant.specs.status("orders") is not None and "OutOfMemory" in plant.ready()["message"]
        )
        assert "workerTemplate.resources.memory allows 256 MiB" in plant.ready()["message"]
    finally:
        plant.close()


def test_a_process_whose_controller_is_gone_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages(tmp_path, "orders", 1, 5)
    monkeypatch.setenv(ROOT, str(tmp_path))
    order = {"spec": document(), "topic": "orders", "replica": 0, "memoryBytes": None, "threads": 1}
    with subprocess.Popen(
        (*COMMAND, "tests.support.process_world:make"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=HERE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(orjson.dumps(order) + b"\n")
        process.stdin.flush()
        killed = threading.Timer(WITHIN_S, process.kill)
        killed.start()
        try:
            while line := process.stdout.readline():
                if orjson.loads(line).get("state") == "Running":
                    break
            killed.cancel()
            assert line, f"it ended, or did not run within {WITHIN_S:g} s"
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            assert process.poll() is None, "signals of the group are for the controller"
            process.stdin.close()
            assert process.wait(WITHIN_S) == 0
            *_, last = process.stdout.read().splitlines()
        finally:
            killed.cancel()
            process.kill()
    assert orjson.loads(last)["state"] == "Finished"


def test_a_process_freezes_its_heap_before_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages(tmp_path, "orders", 1, 1)
    plant = plant_of(tmp_path, monkeypatch, "frozen")
    try:
        plant.apply(**LIMITED)
        plant.until(plant.all_in)
        # It is written again and again: empty for a moment.
        plant.until(lambda: int((tmp_path / "frozen").read_text() or 0) > 10_000)
    finally:
        plant.close()


def test_a_process_takes_no_replica_for_missing_that_it_cannot_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its lag would never be known, and no stream that stopped would be found complete."""
    messages(tmp_path, "orders", 2, 5)
    plant = plant_of(tmp_path, monkeypatch, "telling")
    try:
        plant.apply(replicas=2, **LIMITED)
        plant.until(lambda: [path.read_text() for path in tmp_path.glob("lag-*")] == ["0", "0"])
    finally:
        plant.close()


def test_what_has_ended_is_not_collected_before_and_not_started_twice(plant: Plant) -> None:
    plant.apply(**LIMITED)
    plant.until(lambda: plant.running(1))
    (one,) = plant.seen()
    found = plant.specs.get("orders")
    assert found is not None
    plant.driver.start(one.id, found.spec)
    plant.driver.collect(one.id)
    assert [two.phase for two in plant.seen()] == [Phase.RUNNING]
    plant.driver.kill(one.id)
    assert plant.seen() == []
    plant.driver.kill(WorkerId(ingestor="x", topic="x", replica=0, revision="x"))


def test_a_status_goes_through_json() -> None:
    status = IngestorStatus(
        state=State.WAITING,
        reason="Unavailable",
        committed={0: 7},
        ends={0: 9},
        freshness=Histogram().plus(0.3),
        held_by=("a",),
        measured=True,
        figures=TableFigures(
            uuid="u",
            format_version=2,
            rows=1,
            files=2,
            delete_files=None,
            bytes=3,
            snapshots=4,
            manifests=None,
            metadata_bytes=None,
            snapshot_id=2**62,
            commit_at_ms=5,
            sequence=6,
            updated_ms=7,
        ),
    )
    assert status_of(orjson.loads(orjson.dumps(status, option=orjson.OPT_NON_STR_KEYS))) == status
    with pytest.raises((ValueError, KeyError, TypeError)):
        status_of({"state": "Running"})


def test_a_commit_goes_through_json() -> None:
    commit = CommitSeen(
        number=7,
        at_ms=8,
        ingestor="orders",
        reader="orders/1",
        table="bronze.orders",
        kind=CommitKind.MERGE,
        outcome=CommitOutcome.RESOLVED,
        commit_id="c",
        snapshot_id=2**62,
        attempts=2,
        took_ms=1.5,
    )
    assert commit_of(orjson.loads(orjson.dumps(commit))) == commit
    for wrong in ({}, {"kind": "merge"}, {**orjson.loads(orjson.dumps(commit)), "kind": "x"}):
        with pytest.raises((ValueError, KeyError, TypeError)):
            commit_of(wrong)


def test_resident_memory_is_read_from_the_system() -> None:
    mine = resident_bytes(os.getpid())
    assert mine is not None
    assert mine > 10 << 20
    assert resident_bytes(2**22 + 1) is None
