"""A lake whose ingestor runs under a controller while rows come, served with faults by hand."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.origins import ParquetOrigins
from tarn.ingest.audit import Report, audit
from tarn.ingest.context import StoppedError
from tarn.ingest.drivers import WriterDriver
from tarn.ingest.lake_files import LakePorts
from tarn.ingest.lake_ports import Clock
from tarn.ingest.lost_replies import TrappedCatalog, Traps
from tarn.ingest.process_driver import ProcessDriver
from tarn.ingest.status import State
from tarn.ingest.strikes import Strikes
from tarn.ingest.thread_driver import ThreadDriver
from tarn.keeper.walk import Places
from tarn.testing.memory_topic import Topic
from tests.support.lake import BUCKET, TABLE, Lake, order
from tests.support.plant import Plant
from tests.support.process_world import ROOT, FileLake, messages
from tests.support.status_api import Client, served

FEED_S = 0.05
COMMAND = (sys.executable, "-m", "tarn.ingest.worker", "--world", "tests.support.process_world:trapped")


@dataclass
class Struck:
    """A served lake with faults by hand.

    Attributes:
        plant: the lake, its ingestor and its controller.
        strikes: what makes the faults.
        client: asks the server.
        feeding: whether rows come.
    """

    plant: Plant
    strikes: Strikes
    client: Client
    feeding: bool = True

    def post(self, kind: str, ingestor: str = "orders", *, method: str = "POST", **headers: str) -> Any:
        """Ask for a fault as the page does."""
        headers = {"X_Tarn_Fault_Token": self.strikes.token} | headers
        return self.client.ask(f"/v1/faults/{kind}?ingestor={ingestor}", method=method, **headers)

    def rest(self, within_s: float = 60.0) -> None:
        """Let no more rows come, and return once all that came are in the table and none is on its way."""
        self.feeding = False
        late_s = time.monotonic() + within_s
        before = -1
        while (sent := len(self.plant.lake.sources.topics["orders"].logs[0])) != before or sent > len(
            self.plant.lake.offsets()
        ):
            assert time.monotonic() < late_s, (sent, self.plant.workers())
            before = sent
            time.sleep(2 * FEED_S)

    def over(self, within_s: float = 60.0) -> Any:
        """The newest strike, once it is over."""
        late_s = time.monotonic() + within_s
        while True:
            page = self.client.get("/v1/faults")
            if page["strikes"] and not page["running"]:
                return page["strikes"][0]
            assert time.monotonic() < late_s, (page, self.plant.workers())
            time.sleep(0.02)


def audit_of(lake: Lake) -> Callable[[str], Report]:
    """Audits a table of a lake in memory or in a folder."""
    store: Any = PlainBulk(lake.store)

    class States:
        def tables(self) -> list[str]:
            return [TABLE, "ops.dead_letters"]

        def state(self, table: str) -> Any:
            return lake.table(table)

    def look(table: str) -> Report:
        with ThreadPoolExecutor(max_workers=1) as pool:
            ports = LakePorts(
                tables=States(),
                store=store,
                manifests=manifest_audit,
                origins=ParquetOrigins(store, Places(BUCKET).key),
                topics=lake.sources,
                bucket=BUCKET,
                pool=pool,
                clock=Clock(now_s=time.monotonic),
                tell=lambda _text: None,
            )
            return audit(table, ports)

    return look


@contextmanager
def struck(*, processes: Path | None = None, **options: Any) -> Iterator[Struck]:
    """A lake that is written to, by threads or by processes over a folder, until the end of the block.

    Args:
        processes: folder of a lake whose writers are processes; `PLANT_ROOT` names it.
        **options: of `Strikes`.
    """
    lake = Lake(Topic("orders", 1)) if processes is None else FileLake(processes)

    def clock_ms() -> int:
        return int(lake.clock.now_s * 1_000) + 1_700_000_000_000

    now_ms = clock_ms if processes is None else lambda: time.time_ns() // 1_000_000
    traps = Traps(now_ms=now_ms)
    driver: WriterDriver
    if processes is None:
        lake.catalog = TrappedCatalog(lake.local, traps)
        driver = ThreadDriver(replace(lake.context(), traps=traps))
    else:
        driver = ProcessDriver(lake.registry, command=COMMAND, traps=traps)
    plant = Plant(lake, driver)
    ending = threading.Event()

    def sleep(seconds: float) -> None:
        if ending.wait(seconds):
            raise StoppedError

    strikes = Strikes(
        lake.registry, driver, traps, audit=audit_of(lake), now_ms=now_ms, sleep=sleep, **options
    )
    with ExitStack() as closing:
        closing.callback(plant.close)
        client = closing.enter_context(served(lake.registry, strikes=strikes, now_ms=now_ms))
        made = Struck(plant, strikes, client)

        def control() -> None:
            while not ending.is_set():
                plant.controller.step()
                time.sleep(0.01)

        def feed() -> None:
            number = 0
            while not ending.wait(FEED_S):
                if made.feeding:
                    number += 1
                    lake.sources.topics["orders"].send(0, order(number))

        plant.apply(replicas=1)
        threads = [threading.Thread(target=one, daemon=True) for one in (control, feed)]
        for thread in threads:
            thread.start()
        closing.callback(lambda: [thread.join(20) for thread in threads])
        closing.callback(ending.set)
        late_s = time.monotonic() + 60
        while lake.registry.get("orders").state is not State.RUNNING:
            assert time.monotonic() < late_s, lake.registry.ingestors()
            time.sleep(0.02)
        yield made


def folder(root: Path) -> Path:
    """A folder for a lake whose writers are processes, with the topic of the orders."""
    messages(root, "orders", 1, 3)
    return root


__all__ = ["ROOT", "Struck", "folder", "struck"]
