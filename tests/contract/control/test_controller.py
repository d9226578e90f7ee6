"""The controller over a lake in memory with real readers: each message is one row, whatever is declared."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tarn.controller.files import SpecFile, SpecFiles
from tarn.core.control.declared import HAND, applied, spec_key
from tarn.core.control.model import Phase
from tarn.core.control.report import parse_report
from tarn.core.errors import CorruptStateError, UnavailableError
from tarn.core.spec import spec_of
from tarn.testing.memory_topic import Topic
from tests.support.lake import Lake, order
from tests.support.plant import Crash, Mortal, Plant, document, load
from tests.support.stack import eventually


def topic(name: str = "orders", partitions: int = 4, messages: int = 10) -> Topic:
    made = Topic(name, partitions, topic_id=f"id-{name}")
    for p in made.logs:
        made.send(p, *(order(100 * p + n) for n in range(messages)))
    return made


@pytest.fixture
def plant() -> Iterator[Plant]:
    made = Plant(Lake(topic(), topic("sales")))
    yield made
    made.close()


def test_create(plant: Plant) -> None:
    plant.controller.step()
    assert plant.workers() == []
    plant.apply()
    plant.until(lambda: plant.all_in() and plant.running(1))
    plant.exact()
    assert plant.workers() == ["orders/orders/0 Running"]
    assert (plant.ready()["status"], plant.ready()["reason"]) == (True, "Running")


def test_scale_up_and_down_under_load(plant: Plant) -> None:
    plant.apply()
    with load(plant.lake):
        for replicas in (1, 3, 1):
            plant.scale(replicas)
            plant.until(lambda n=replicas: plant.running(n))
            before = plant.lake.registry.get("orders").rows
            plant.until(lambda n=before: plant.lake.registry.get("orders").rows > n)
            assert len(plant.workers()) == replicas
    plant.until(plant.all_in)
    plant.exact()
    found = plant.specs.get("orders")
    assert found is not None
    assert found.generation == 3


def test_changes_of_a_running_ingestor(plant: Plant) -> None:
    """Batching, mapping, the version of the spec's table, and the version of the program."""
    plant.apply()
    with load(plant.lake):
        plant.until(lambda: plant.running(1))
        bodies: list[dict[str, Any]] = [
            {"batching": {"maxRecords": 7, "maxLatencySeconds": 0.05}},
            {"mapping": {"drop": ["debug"]}},
            {"table": {"namespace": "bronze", "name": "orders", "formatVersion": 3}},
        ]
        before = {one.id for one in plant.seen()}
        for generation, body in enumerate(bodies, start=2):
            plant.apply(**body)
            plant.until(lambda g=generation: plant.running(1, generation=g))
            now = {one.id for one in plant.seen()}
            assert not before & now, "a change of the spec is another writer"
            before = now
        plant.version = "2"
        plant.controller = plant.new_controller()
        plant.until(lambda: plant.running(1) and not before & {one.id for one in plant.seen()})
    plant.until(plant.all_in)
    plant.exact()
    assert plant.lake.table().format_version == 2, "an existing table keeps its version"


def test_a_mapping_is_changed_and_what_was_not_yet_read_follows_it(plant: Plant) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "at", "type": "string"}]
    plant.apply(schema={"fields": fields})
    plant.until(plant.all_in)
    former = sum(len(log) for log in plant.lake.sources.topics["orders"].logs.values())
    plant.apply(schema={"fields": fields}, mapping={"drop": ["none"], "rename": {"day": "at"}})
    plant.until(lambda: plant.running(1, generation=2))
    for p in range(4):
        plant.lake.sources.topics["orders"].send(p, b'{"id": 7, "day": "monday"}')
    plant.until(plant.all_in)
    plant.exact()
    found = [row["at"] for row in plant.lake.rows()]
    assert found.count("monday") == 4
    assert found.count("2026-11-21T08:00:00Z") == former


def test_delete_drains_and_leaves_a_tombstone_and_the_table(plant: Plant) -> None:
    plant.apply()
    with load(plant.lake):
        plant.until(lambda: plant.running(1))
        plant.delete()
        plant.until(lambda: plant.workers() == [])
    plant.until(lambda: bool((found := plant.specs.get("orders")) and found.gone))
    held = plant.lake.offsets()
    assert len(held) == len(set(held))
    time.sleep(0.05)
    plant.controller.step()
    assert plant.lake.offsets() == held, "nothing writes any more"
    assert "orders" not in plant.lake.registry.ingestors()
    plant.apply()
    plant.until(plant.all_in)
    plant.exact()


def test_a_spec_that_is_removed_behind_its_back(plant: Plant) -> None:
    plant.apply()
    plant.apply("sales")
    plant.until(lambda: plant.running(1) and plant.running(1, "sales") and plant.all_in())
    (other,) = (one for one in plant.seen() if one.id.ingestor == "sales")
    plant.lake.store.delete(spec_key("orders"))
    plant.until(lambda: plant.workers() == ["sales/sales/0 Running"])
    held = plant.lake.offsets()
    plant.lake.sources.topics["orders"].send(0, order(1))
    plant.lake.sources.topics["sales"].send(0, order(1))
    plant.until(lambda: plant.all_in("sales"))
    plant.exact("sales")
    (still,) = plant.seen()
    assert (still.id, still.started_s) == (other.id, other.started_s), "the other one is left alone"
    assert plant.lake.offsets() == held, "nobody reads for what is not declared"
    assert "orders" not in plant.lake.registry.ingestors()
    assert plant.apply().generation == 1, "nothing is left of the former one"
    plant.until(plant.all_in)
    plant.exact()


def test_a_spec_that_is_damaged_stops_no_writer(plant: Plant) -> None:
    plant.apply()
    plant.until(lambda: plant.running(1))
    plant.lake.store.put(spec_key("orders"), b"{")
    plant.lake.sources.topics["orders"].send(0, order(1))
    plant.until(plant.all_in)
    assert plant.workers() == ["orders/orders/0 Running"]
    why = plant.refused["ingestor orders"]
    assert why is not None
    assert why.reason == "Unreadable"
    assert "specs/v1/ingestors/orders.json is not the spec of an ingestor" in why.message
    data = plant.specs.status("orders")
    assert data is not None
    for one in parse_report(data, key="orders")["conditions"]:
        assert (one["status"], one["reason"], one["message"]) == (False, "Unreadable", why.message)
    plant.lake.store.delete(spec_key("orders"))
    plant.apply()
    plant.until(lambda: plant.running(1))


def test_a_spec_folder_without_files_is_said_until_nothing_belongs_to_it(plant: Plant) -> None:
    file = SpecFile(spec=spec_of(document(), file="x"), document=document())
    plant.controller = plant.new_controller(files=SpecFiles(files={"orders.yaml": file}))
    plant.until(lambda: plant.running(1))
    plant.controller = plant.new_controller(files=SpecFiles(files={}))
    plant.until(lambda: plant.running(1))
    why = plant.refused["spec folder"]
    assert why is not None
    assert (why.reason, why.waiting) == ("NoSpecs", False)
    assert "these ingestors belong to files of it: orders. Nothing is deleted" in why.message
    plant.delete()
    plant.until(lambda: plant.workers() == [] and plant.refused["spec folder"] is None)


@pytest.mark.parametrize("error", [UnavailableError("no memory left"), ValueError("no memory left")])
def test_a_writer_that_cannot_be_started_is_in_the_status(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, error: Exception, logged: list[Any]
) -> None:
    def away(*_: object) -> None:
        raise error

    inner = plant.driver.start
    monkeypatch.setattr(plant.driver, "start", away)
    plant.apply()
    for _ in range(3):
        plant.controller.step()
    assert (plant.ready()["status"], plant.ready()["reason"]) == (False, "CannotStart")
    assert "no memory left" in plant.ready()["message"]
    why = plant.refused["ingestor orders"]
    assert why is not None
    assert (why.reason, why.waiting) == ("CannotStart", True)
    said = [line for line in logged if line["event"] in ("controller waits", "controller failed")]
    assert len(said) == 1, "once, and not in each pass"
    logged[:] = [line for line in logged if line not in said]
    monkeypatch.setattr(plant.driver, "start", inner)
    plant.until(lambda: plant.running(1))
    assert plant.refused["ingestor orders"] is None


def test_a_defect_while_a_clash_is_settled_keeps_no_other_ingestor_waiting(
    plant: Plant, logged: list[Any]
) -> None:
    def defect(_spec: object) -> bool:
        raise ValueError("no table is like that")

    plant.controller._settlements._holds = defect
    second = {**document(), "metadata": {"name": "second"}}
    plant.specs.change(
        "second", lambda found, stamp: applied(found, second, file="x", owner=HAND, stamp=stamp)
    )
    plant.apply()
    plant.apply("sales")

    def message(name: str) -> str:
        why = plant.refused.get(f"ingestor {name}")
        return why.message if why is not None else ""

    plant.until(lambda: plant.running(1, "sales") and "a defect of Tarn" in message("second"))
    assert "ValueError: no table is like that" in message("orders")
    for _ in range(3):
        plant.controller.step()
    said = [line for line in logged if line["event"] == "a clash cannot be settled"]
    assert len(said) == 1
    logged[:] = [line for line in logged if line not in said]


def test_a_writer_without_a_thread_is_no_writer(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "orders":
            raise RuntimeError("can't start new thread")
        inner(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    plant.apply()
    plant.controller.step()
    assert plant.workers() == []
    assert "can't start new thread; there may be too many threads" in plant.ready()["message"]
    monkeypatch.setattr(threading.Thread, "start", inner)
    plant.until(lambda: plant.running(1) and plant.all_in())
    plant.exact()


def test_a_store_that_is_away_stops_no_writer(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant.apply()
    plant.until(lambda: plant.running(1))

    def away(*_: object) -> Any:
        raise UnavailableError("the store is away")

    there = type(plant.specs).list
    monkeypatch.setattr(type(plant.specs), "list", away)
    plant.controller.step()
    why = plant.refused["declared specs"]
    assert why is not None
    assert (why.reason, why.message, why.waiting) == ("Unavailable", "the store is away", True)
    plant.lake.sources.topics["orders"].send(0, order(1))
    plant.until(plant.all_in)
    plant.controller = plant.new_controller()
    plant.controller.step()
    assert plant.workers() == ["orders/orders/0 Running"], "a controller that knows nothing stops nothing"
    monkeypatch.setattr(type(plant.specs), "list", there)
    plant.controller.step()
    assert plant.refused["declared specs"] is None


def test_one_ingestors_change_disturbs_no_other(plant: Plant) -> None:
    plant.apply()
    plant.apply("sales")
    plant.until(lambda: plant.running(1) and plant.running(1, "sales") and plant.all_in("sales"))
    # A reader counts its rows after the table has them.
    rows = plant.lake.table("bronze.sales").total("records")
    plant.until(lambda: plant.lake.registry.get("sales").rows == rows)
    (other,) = (one for one in plant.seen() if one.id.ingestor == "sales")
    opened = len([reader for reader in plant.lake.sources.readers if reader._name == "sales"])
    for replicas in (2, 1):
        plant.scale(replicas)
        plant.until(lambda n=replicas: plant.running(n))
    (still,) = (one for one in plant.seen() if one.id.ingestor == "sales")
    assert (still.id, still.started_s) == (other.id, other.started_s)
    assert plant.lake.registry.get("sales").rows == rows
    again = len([reader for reader in plant.lake.sources.readers if reader._name == "sales"])
    assert again == opened, "it was not planned again either"
    plant.until(plant.all_in)
    plant.exact()
    plant.exact("sales")


def test_a_writer_that_dies_at_once_is_backed_off_and_goes_on_when_mended(
    plant: Plant, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tarn.ingest.ingestor import Ingestor

    run, starts = Ingestor.run, []
    broken = True

    def dies(self: Ingestor) -> None:
        if self.name == "orders":
            starts.append(time.monotonic())
            if broken:
                raise MemoryError("no room")
        run(self)

    monkeypatch.setattr(Ingestor, "run", dies)
    plant.apply()
    plant.apply("sales")
    plant.until(lambda: len(starts) >= 4 and plant.ready()["reason"] == "CrashLoop")
    waits = [later - first for first, later in pairwise(starts)]
    assert waits[0] >= 0.05
    assert waits[1] >= 0.1
    assert waits[2] >= 0.2
    found = plant.ready()
    assert found["status"] is False
    assert "times in a row" in found["message"]
    assert "MemoryError: no room" in found["message"]
    shown = plant.refused["ingestor orders"]
    assert shown is not None, "the status page names it while it has no reader"
    assert (shown.reason, shown.waiting) == ("CrashLoop", True)
    assert "MemoryError: no room" in shown.message
    assert {line["event"] for line in logged if line["log_level"] == "error"} == {"writer failed"}
    logged.clear()
    plant.until(lambda: plant.all_in("sales"))
    broken = False
    plant.until(lambda: plant.all_in() and plant.running(1))
    assert plant.refused["ingestor orders"] is None
    plant.exact()
    plant.exact("sales")
    logged.clear()


@pytest.mark.parametrize("where", ["commit", "poll"])
def test_a_writer_that_does_not_end_is_left_and_the_next_one_begins(
    where: str, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that hangs in a request wakes up when its successor has long begun."""
    from tests.support import plant as module

    monkeypatch.setattr(module, "TIMING", module.Timing(drain_s_max=0.2, backoff_s=0.05))
    plant.controller = plant.new_controller()
    plant.apply()
    plant.until(lambda: plant.running(1))
    commit, poll, hanging = plant.lake.local.commit, plant.lake.sources.on_poll, [True]
    wake, former = threading.Event(), list[threading.Thread]()

    def hang() -> None:
        if hanging and hanging.pop():
            former.append(threading.current_thread())
            assert wake.wait(110)

    def late_commit(*args: Any, **options: Any) -> Any:
        hang()
        return commit(*args, **options)

    def late_poll() -> None:
        hang()
        poll()

    if where == "commit":
        monkeypatch.setattr(plant.lake.local, "commit", late_commit)
    else:
        monkeypatch.setattr(plant.lake.sources, "on_poll", late_poll)
    plant.lake.sources.topics["orders"].send(0, *(order(n) for n in range(20)))
    eventually(lambda: bool(former), timeout_s=60, what="one that hangs", pause_s=0.005)
    plant.apply(batching={"maxRecords": 8, "maxLatencySeconds": 0.05})
    plant.until(lambda: plant.running(1, generation=2))
    wake.set()
    former[0].join(60)
    assert not former[0].is_alive()
    plant.until(plant.all_in)
    assert plant.running(1, generation=2), "the one that woke up says nothing of its successor"
    plant.exact()


STEPS_MAX = 60


def change_everything(plant: Plant) -> None:
    """Scale one ingestor, delete another, and create a third."""
    plant.scale(2)
    plant.delete("sales")
    plant.apply("items")


def settled(plant: Plant) -> bool:
    gone = plant.specs.get("sales")
    return (
        bool(gone and gone.gone)
        and plant.running(2)
        and plant.running(1, "items")
        and plant.all_in()
        and plant.all_in("items")
        and len(plant.workers()) == 3
        and plant.only_running()
    )


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_controller_that_dies_at_any_step_is_followed_by_one_that_goes_on(after: bool) -> None:
    """It is killed before, or right after, each of its steps in turn; the next one finishes the work."""
    died, at = 0, 0
    while at < STEPS_MAX:
        at += 1
        plant = Plant(Lake(*(topic(name, 2, 4) for name in ("orders", "sales", "items"))))
        try:
            plant.apply()
            plant.apply("sales")
            plant.until(lambda p=plant: p.running(1) and p.running(1, "sales"))
            change_everything(plant)
            plant.lake.sources.topics["orders"].send(0, *(order(n) for n in range(15)))
            mortal = Mortal(at=at, after=after)
            plant.controller = plant.new_controller(mortal)
            try:
                plant.until(lambda p=plant: settled(p))
            except Crash:
                died += 1
                plant.controller = plant.new_controller()
                plant.until(lambda p=plant: settled(p))
            for name in ("orders", "items"):
                plant.exact(name)
            held = plant.lake.offsets("bronze.sales")
            assert held == sorted(set(held))
            if mortal.steps < at:
                break
        finally:
            plant.close()
    assert died >= 15, "every step of a whole change is one that it died at"
    assert died == at - 1 or at == STEPS_MAX


def test_a_writer_is_one_writer_however_often_it_is_started(plant: Plant) -> None:
    plant.apply()
    plant.until(lambda: plant.running(1))
    found = plant.specs.get("orders")
    assert found is not None
    (one,) = plant.seen()
    opened = len(plant.lake.sources.readers)
    plant.driver.start(one.id, found.spec)
    plant.driver.collect(one.id)
    time.sleep(0.2)
    assert len(plant.lake.sources.readers) == opened
    assert [(two.id, two.phase) for two in plant.seen()] == [(one.id, Phase.RUNNING)]


def test_a_spec_with_the_name_of_a_built_in_ingestor_does_not_stop_that(plant: Plant) -> None:
    built_in = {"built-in sales": spec_of(document("sales"), file="built-in sales")}
    plant.controller = plant.new_controller(built_in=built_in)
    plant.until(lambda: plant.workers() == ["sales/sales/0 Running"] and plant.all_in("sales"))
    plant.apply("sales", table={"namespace": "bronze", "name": "other"})
    for _ in range(3):
        plant.controller.step()
        time.sleep(0.02)
    assert plant.workers() == ["sales/sales/0 Running"]
    why = plant.refused["ingestor sales"]
    assert why is not None
    assert (why.reason, why.waiting) == ("Clash", False)
    assert "the name of Tarn's own ingestor (built-in sales)" in why.message
    plant.controller = plant.new_controller(built_in=built_in)
    plant.controller.step()
    assert plant.workers() == ["sales/sales/0 Running"]
    plant.delete("sales")
    plant.controller.step()
    gone = plant.specs.get("sales")
    assert gone is not None
    assert gone.gone
    plant.controller.step()
    assert plant.refused["ingestor sales"] is None
    assert plant.workers() == ["sales/sales/0 Running"]
    plant.lake.sources.topics["sales"].send(0, order(1))
    plant.until(lambda: plant.all_in("sales"))
    plant.exact("sales")


def test_a_pass_that_fails_is_on_the_status_page(
    plant: Plant, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that fails again and again starts and ends nothing, however well the readers are."""
    passes: list[str] = []
    around = replace(plant.controller._around, on_pass=passes.append)
    plant.controller._around = around
    list_, broken = plant.driver.list, [True]

    def listed() -> Any:
        if broken and broken.pop():
            raise KeyError("x")
        return list_()

    monkeypatch.setattr(plant.driver, "list", listed)
    plant.controller._poll_s = 0.01
    plant.controller.run(lambda: len(passes) == 2)
    assert passes == ["KeyError: 'x'; a defect of Tarn, please report it", ""]
    assert [line["event"] for line in logged if line["log_level"] == "error"] == ["controller failed"]
    logged.clear()


def test_no_status_is_written_to_a_store_that_does_not_answer(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try takes seconds, and a writer that died meanwhile would wait for all of them."""
    plant.apply()
    plant.until(lambda: plant.running(1))
    tried: list[str] = []

    def away(*_: object) -> Any:
        raise UnavailableError("the store is away")

    specs, there = type(plant.specs), type(plant.specs).list
    monkeypatch.setattr(specs, "list", away)
    monkeypatch.setattr(specs, "put_status", lambda _self, name, _data: tried.append(name))
    (one,) = plant.seen()
    plant.driver.kill(one.id)
    plant.controller._memory.reports.clear()
    plant.controller.step()
    assert plant.workers() == ["orders/orders/0 Running"], "a writer that died is started all the same"
    assert not tried
    monkeypatch.setattr(specs, "list", there)
    plant.controller.step()
    assert tried == ["orders"]


def test_figures_are_written_although_the_clock_was_set_back(plant: Plant) -> None:
    plant.apply()
    plant.until(lambda: plant.all_in() and plant.running(1))
    now_ms = [2_000_000_000_000]

    def ticking() -> int:
        now_ms[0] += 11_000
        return now_ms[0]

    plant.controller._around = replace(plant.controller._around, now_ms=ticking)

    def rows() -> Any:
        plant.controller.step()
        status = plant.specs.status("orders")
        assert status is not None
        return parse_report(status, key="k")["rows"]

    topic = plant.lake.sources.topics["orders"]
    sent = sum(len(log) for log in topic.logs.values())
    plant.until(lambda: rows() == sent)
    now_ms[0] -= 1_000_000_000
    topic.send(0, order(1))
    plant.until(lambda: rows() == sent + 1)


def test_an_object_that_no_command_writes_is_unreadable_and_no_other_one_waits(plant: Plant) -> None:
    """The store lets notebooks write any bytes into an object named ws-…."""
    made = plant.apply("sales")
    for name, change in {
        "aaa": {"generation": 2**70},
        "ws-b": {"generation": -1},
        "ws-c": {"createdMs": 2**62},
        "ws-d": {"deletingMs": -(2**62)},
    }.items():
        value = json.loads(made.to_bytes()) | {"name": name} | change
        plant.lake.store.put(spec_key(name), json.dumps(value).encode())
    plant.until(lambda: plant.all_in("sales") and plant.running(1, "sales"))
    for name in ("aaa", "ws-b", "ws-c", "ws-d"):
        with pytest.raises(CorruptStateError, match="is not the spec of an ingestor"):
            plant.specs.get(name)


def test_a_defect_in_one_status_keeps_no_other_one_waiting(
    plant: Plant, logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant.apply()
    plant.apply("sales")
    put = type(plant.specs).put_status

    def broken(specs: Any, name: str, data: bytes) -> None:
        if name == "orders":
            raise TypeError("Integer exceeds 64-bit range")
        put(specs, name, data)

    monkeypatch.setattr(type(plant.specs), "put_status", broken)
    plant.until(lambda: plant.running(1, "sales"))
    errors = [line for line in logged if line["log_level"] == "error"]
    assert [(line["event"], line["ingestor"]) for line in errors] == [
        ("a status cannot be written", "orders")
    ]
    logged.clear()
    monkeypatch.setattr(type(plant.specs), "put_status", put)
    plant.until(lambda: plant.running(1))


def test_what_a_notebook_may_not_declare_has_no_writer(plant: Plant) -> None:
    """The store lets notebooks write any object named ws-…; what it says is judged here."""
    foreign = document("ws-ada-orders")
    assert foreign["spec"]["table"]["namespace"] == "bronze"
    plant.specs.change(
        "ws-ada-orders", lambda found, stamp: applied(found, foreign, file="f", owner=HAND, stamp=stamp)
    )
    plant.apply()
    plant.until(lambda: plant.all_in() and plant.running(1))
    assert plant.workers() == ["orders/orders/0 Running"]
    status = plant.specs.status("ws-ada-orders")
    assert status is not None
    conditions = parse_report(status, key="k")["conditions"]
    accepted = next(one for one in conditions if one["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == (False, "InvalidSpec")
    assert "spec.table is 'bronze.ws-ada-orders'" in accepted["message"]
