"""Which driver runs a writer: threads together, processes where resources are limited or all are to be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tarn.core.control.model import Phase, WorkerId, WorkerSeen
from tarn.core.spec import IngestorSpec, spec_of
from tarn.ingest.drivers import ByResources
from tarn.ingest.status import IngestorStatus, StatusRegistry
from tarn.ingest.thread_driver import _View

WITHIN_S = 30.0
ID = WorkerId(ingestor="orders", topic="orders", replica=0, revision="1")
EVENTS = {"eventTime": {"column": "at"}}
LIMITED = {"workerTemplate": {"resources": {"threads": 1}}}


@dataclass
class Fake:
    """A driver that remembers what it was asked."""

    asked: list[str] = field(default_factory=list)
    ended: bool = True

    def list(self) -> Sequence[WorkerSeen]:
        return [WorkerSeen(id=ID, phase=Phase.RUNNING, since_s=0.0, started_s=0.0)] if self.asked else []

    def start(self, id_: WorkerId, spec: IngestorSpec) -> None:
        self.asked.append("start")

    def drain(self, id_: WorkerId) -> None:
        self.asked.append("drain")

    def kill(self, id_: WorkerId) -> None:
        self.asked.append("kill")

    def collect(self, id_: WorkerId) -> None:
        self.asked.append("collect")

    def on_change(self, call: Callable[[], None]) -> None:
        self.asked.append("on_change")

    def drain_all(self) -> None:
        self.asked.append("drain_all")

    def join(self, timeout_s: float) -> bool:
        self.asked.append("join")
        return self.ended


def spec(**body: Any) -> IngestorSpec:
    fields = [{"name": "id", "type": "long"}, {"name": "at", "type": "timestamptz"}]
    return spec_of(
        {
            "apiVersion": "tarn/v1",
            "kind": "Ingestor",
            "metadata": {"name": "orders"},
            "spec": {
                "source": {"kafka": {"topic": "orders"}},
                "table": {"namespace": "a", "name": "b"},
                "schema": {"fields": fields},
                **body,
            },
        },
        file="x",
    )


@pytest.mark.parametrize(
    ("all_limited", "body", "process"),
    [
        (False, {}, False),
        (False, LIMITED, True),
        (True, {}, True),
        (True, {"replicas": 2}, True),
        (True, EVENTS, True),
        # Whether a stream has stopped is for all of its readers to say, which share a process.
        (True, {**EVENTS, "replicas": 2}, False),
    ],
)
def test_a_writer_is_a_process_if_it_is_limited_or_all_are(
    all_limited: bool, body: dict[str, Any], process: bool
) -> None:
    shared, limited = Fake(), Fake()
    driver = ByResources(shared, limited, all_limited=all_limited)
    driver.start(ID, spec(**body))
    assert (shared.asked, limited.asked) == (([], ["start"]) if process else (["start"], []))
    assert [one.id for one in driver.list()] == [ID]


def test_everything_else_is_for_both() -> None:
    shared, limited = Fake(), Fake(ended=False)
    driver = ByResources(shared, limited)
    driver.drain(ID)
    driver.kill(ID)
    driver.collect(ID)
    driver.on_change(lambda: None)
    driver.drain_all()
    assert driver.join(1.0) is False
    assert shared.asked == limited.asked == ["drain", "kill", "collect", "on_change", "drain_all", "join"]


@pytest.mark.long
def test_a_writer_that_is_left_behind_leaves_nothing_in_the_registry() -> None:
    """A change that is under way when it is left behind is over before its reader is removed."""
    entered, go = threading.Event(), threading.Event()

    class Slow(StatusRegistry):
        def update(self, name: str, **changes: Any) -> IngestorStatus:
            entered.set()
            assert go.wait(WITHIN_S)
            return super().update(name, **changes)

    registry = Slow()
    view = _View(registry)
    writing = threading.Thread(target=lambda: view.update("orders", rows=1))

    def leave() -> None:
        view.detach()
        registry.remove("orders")

    leaving = threading.Thread(target=leave)
    writing.start()
    assert entered.wait(WITHIN_S)
    leaving.start()
    leaving.join(0.2)
    go.set()
    for thread in (writing, leaving):
        thread.join(WITHIN_S)
    assert registry.readers() == {}
    view.update("orders", rows=2)
    assert registry.readers() == {}
