"""A lake with a controller over it: declared ingestors, real readers in threads, and controllers that die."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tarn.adapters.spec_store import SpecStore
from tarn.controller.files import SpecFiles
from tarn.controller.loop import Controller, Refused, Surroundings
from tarn.core.control.declared import HAND, Declared, Stamp, applied, deleted, scaled
from tarn.core.control.driver import Driver
from tarn.core.control.model import Phase, Timing, WorkerSeen
from tarn.core.control.report import parse_report
from tarn.core.errors import NotFoundError
from tarn.core.spec import IngestorSpec, parse_document
from tarn.ingest.drivers import WriterDriver
from tarn.ingest.facts import facts_of
from tarn.ingest.thread_driver import ThreadDriver
from tests.support.lake import SPEC, Lake, order

WITHIN_S = 60.0
TIMING = Timing(drain_s_max=20.0, backoff_s=0.05, backoff_s_max=0.4, stable_s=60.0)


def document(name: str = "orders", **body: Any) -> dict[str, Any]:
    """The spec of an ingestor of topic and table `name`, as its author writes it."""
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    found = parse_document(text.replace("orders", name), file="x")
    return {**found, "spec": {**found["spec"], **body}}


class Crash(BaseException):
    """The death of a controller: a BaseException, so that no error handling runs."""


@dataclass(slots=True)
class Mortal:
    """Steps of a controller, which dies before or after one of them.

    Attributes:
        at: number of the step, from 1; 0: never.
        after: whether the step is done.
        steps: steps that began.
    """

    at: int = 0
    after: bool = False
    steps: int = 0

    def wrap(self, inner: Any, names: Sequence[str]) -> Any:
        """The object, each of whose methods is a step."""

        class Wrapped:
            def __getattr__(_, name: str) -> Any:  # noqa: N805
                found = getattr(inner, name)
                return self._step(found) if name in names else found

        return Wrapped()

    def _step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            self.steps += 1
            mine = self.steps
            if self.at == mine and not self.after:
                raise Crash
            result = call(*args, **options)
            if self.at == mine:
                raise Crash
            return result

        return step


class Plant:
    """Declared ingestors over a lake.

    Args:
        lake: the lake.
        driver: runs the writers; threads by default. It outlives controllers.
    """

    def __init__(self, lake: Lake, driver: WriterDriver | None = None) -> None:
        self.lake = lake
        self.specs: SpecStore = lake.specs()
        self.driver: WriterDriver = driver or ThreadDriver(lake.context())
        self.refused: dict[str, Refused | None] = {}
        self.executor = ThreadPoolExecutor(1)
        self.version = "1"
        self.controller = self.new_controller()
        # Readers in memory never wait; without a pause they would take the processor from each other.
        lake.sources.on_poll = lambda: time.sleep(0.002)

    def new_controller(
        self,
        mortal: Mortal | None = None,
        *,
        files: SpecFiles | None = None,
        built_in: Mapping[str, IngestorSpec] | None = None,
    ) -> Controller:
        """A controller that remembers nothing."""
        registry: Any = self.specs
        driver: Driver = self.driver
        if mortal is not None:
            registry = mortal.wrap(self.specs, ("list", "get", "change", "finalize", "put_status"))
            driver = mortal.wrap(self.driver, ("list", "start", "drain", "kill", "collect"))
        return Controller(
            Surroundings(
                registry=registry,
                driver=driver,
                topics=lambda spec: spec.spec.source.kafka.names,
                holds=lambda _spec: False,
                facts=lambda name: facts_of(self.lake.registry, name),
                on_refused=self.refused.__setitem__,
                on_names=lambda _names: None,
                executor=self.executor,
                clock=time.monotonic,
                now_ms=lambda: time.time_ns() // 1_000_000,
                version=self.version,
            ),
            files=files or SpecFiles(files={}),
            built_in=built_in,
            timing=TIMING,
        )

    def apply(self, name: str = "orders", **body: Any) -> Declared:
        """Apply the spec of an ingestor by hand."""

        def make(found: Declared | None, stamp: Stamp) -> Declared:
            return applied(found, document(name, **body), file="x", owner=HAND, stamp=stamp)

        return self.specs.change(name, make)

    def scale(self, replicas: int, name: str = "orders") -> Declared:
        """Change the number of replicas."""

        def make(found: Declared | None, stamp: Stamp) -> Declared:
            assert found is not None
            return scaled(found, replicas, stamp=stamp)

        return self.specs.change(name, make)

    def delete(self, name: str = "orders") -> Declared:
        """Request a deletion."""

        def make(found: Declared | None, stamp: Stamp) -> Declared:
            assert found is not None
            return deleted(found, stamp=stamp)

        return self.specs.change(name, make)

    def until(self, done: Callable[[], bool], *, within_s: float = WITHIN_S) -> None:
        """Run passes of the present controller until the condition holds."""
        late_s = time.monotonic() + within_s
        while True:
            self.controller.step()
            if done():
                return
            assert time.monotonic() < late_s, (self.workers(), self.lake.registry.ingestors())
            time.sleep(0.01)

    def workers(self) -> list[str]:
        """Writers as `orders/orders/0 Running`, without their revisions."""
        return sorted(
            f"{one.id.ingestor}/{one.id.topic}/{one.id.replica} {one.phase.value}" for one in self.seen()
        )

    def seen(self) -> Sequence[WorkerSeen]:
        """What the driver says."""
        return self.driver.list()

    def running(self, replicas: int, name: str = "orders", *, generation: int | None = None) -> bool:
        """Whether the status object says that all of so many replicas run, at this generation."""
        data = self.specs.status(name)
        if data is None:
            return False
        found = parse_report(data, key=name)
        there = self.specs.get(name)
        wanted = generation if generation is not None else there.generation if there is not None else None
        return (found["observedGeneration"], found["replicas"], found["readyReplicas"]) == (
            wanted,
            replicas,
            replicas,
        )

    def ready(self, name: str = "orders") -> dict[str, Any]:
        """The condition `Ready` of the status object."""
        data = self.specs.status(name)
        assert data is not None
        (found,) = (one for one in parse_report(data, key=name)["conditions"] if one["type"] == "Ready")
        return dict(found)

    def only_running(self) -> bool:
        """Whether every writer runs."""
        return all(one.phase is Phase.RUNNING for one in self.seen())

    def all_in(self, name: str = "orders") -> bool:
        """Whether the table has as many rows as the topic has messages."""
        topic = self.lake.sources.topics[name]
        try:
            total = self.lake.table(f"bronze.{name}").total("records")
        except NotFoundError:
            return False
        return total == sum(len(log) for log in topic.logs.values())

    def exact(self, name: str = "orders") -> None:
        """Require each message of the topic to be one row."""
        topic = self.lake.sources.topics[name]
        wanted = sorted((p, o) for p, log in topic.logs.items() for o in range(len(log)))
        assert self.lake.offsets(f"bronze.{name}") == wanted

    def close(self) -> None:
        """End every writer."""
        self.lake.stop = True
        self.driver.drain_all()
        assert self.driver.join(WITHIN_S)
        self.executor.shutdown()


@contextmanager
def load(lake: Lake, name: str = "orders", *, every_s: float = 0.003) -> Iterator[None]:
    """Send a message every few milliseconds, to each partition in turn."""
    topic, stop = lake.sources.topics[name], threading.Event()

    def send() -> None:
        number = 1_000
        while not stop.wait(every_s):
            topic.send(number % len(topic.logs), order(number))
            number += 1

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
