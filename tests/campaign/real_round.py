"""One round on the real stack: a topic, a table and engines of its own; a fault; exact counts."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from typing import Any

from tarn.core.table_state import TableState
from tarn.ingest.batch_commit import offsets_in
from tarn_testkit import fault_proxy
from tests.campaign.real_faults import REAL, RealFault
from tests.campaign.real_rig import Lane
from tests.campaign.results import Counts, ended
from tests.support.stack import eventually

PARTITIONS = 3
RECORDS = 600
RUNS = "ingestor runs"
"""What an engine logs when it begins to read."""
FEED_S = 6.0
BAD_EVERY = 50
HEALED_WITHIN_S = 180.0
RUNS_WITHIN_S = 90.0
DOWN_S = 20.0
LATE_WITHIN_S = 120.0

SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: STREAM}
spec:
  source: {kafka: {topic: TOPIC, create: true, partitions: PARTITIONS}}
  table: {namespace: bronze, name: NAME}
  schema:
    fields:
      - {name: id, type: long, required: true}
      - {name: text, type: string}
  deadLetters: {table: {namespace: ops, name: letters_NAME}}
  batching: {maxRecords: 100, maxLatencySeconds: 0.2}
  replicas: REPLICAS
"""


class Round:
    """One seed of one fault.

    Args:
        lane: where to run it.
        replicas: readers of each engine.
        number: number of the fault.
        seed: the seed.
        fault: how the fault is made; that of its number if no other is given.
    """

    def __init__(
        self, lane: Lane, replicas: int, number: int, seed: int, *, fault: RealFault | None = None
    ) -> None:
        self.lane = lane
        self.rig = lane.rig
        self.replicas = replicas
        self.fault: RealFault = fault or REAL[number]
        self.number = number
        self.seed = seed
        self.chance = random.Random(f"real/{number}/{seed}/{replicas}")
        self.name = f"f{number}_s{seed}_r{replicas}_{int(time.time())}"
        self.stream = self.name.replace("_", "-")
        self.table = f"bronze.{self.name}"
        self.sent: dict[tuple[int, int], bool] = {}
        self.happened = 0
        self.problems: list[str] = []
        self.fed = threading.Event()
        self._client: Any = None
        self.engines = lane.engines(self.fault.engines)

    def run(self) -> tuple[Counts, float]:
        """Run it; its counts, and the seconds that it took."""
        began_s = time.monotonic()
        counts = Counts(fault=self.number)
        try:
            self._start()
            feeder = threading.Thread(target=self._feed, daemon=True)
            feeder.start()
            time.sleep(self.chance.uniform(0.5, 2.0))
            self.lane.plan(*self._plan())
            if self.fault.action:
                getattr(self, self.fault.action)()
            feeder.join(180)
            if not self.fed.is_set():
                raise AssertionError("the producer did not end within 180 s")
            self._count()
            self.lane.end_plan()
            heal_s = self._await_all()
            self._await_late()
            self._judge(counts)
            if self.happened:
                counts.heal_s.append(round(heal_s, 2))
        except Exception as e:  # noqa: BLE001 - a round that cannot end is a finding
            self.problems.append(f"{type(e).__name__}: {e}")
        finally:
            logs = [self.rig.last_lines(one) for one in self.engines]
            more = [self.lane.catalog, self.lane.store_proxy] if self.fault.store else []
            logs += [self.rig.last_lines(one) for one in more]
            for name in (*self.engines, *more):
                self.rig.docker("rm", "-f", name, check=False)
        return ended(
            counts,
            seed=self.seed,
            problems=self.problems,
            logs=logs,
            happened=self.happened,
            began_s=began_s,
        )

    # -- parts

    def _lake(self) -> Any:
        """A client of the lake: one for the round, as each begins with a token of its own."""
        if self._client is None:
            self._client = self.rig.lake()
        return self._client

    def _start(self) -> None:
        specs = self.rig.folder / "specs" / self.name
        specs.mkdir(parents=True)
        text = (
            SPEC.replace("STREAM", self.stream)
            .replace("NAME", self.name)
            .replace("TOPIC", f"campaign.{self.name}")
        )
        text = text.replace("PARTITIONS", str(PARTITIONS)).replace("REPLICAS", str(self.replicas))
        (specs / "spec.yaml").write_text(text)
        self.lane.plan()
        uri = self.lane.start_catalog() if self.fault.store else f"http://{self.lane.proxy}:8181"
        for number, engine in enumerate(self.engines):
            through = ("-e", f"TARN_CATALOG_URI={uri}") if number == 0 else ()
            self.rig.start(
                engine,
                *(
                    "-e",
                    "TARN_INGEST_LISTEN=0.0.0.0",
                    "-e",
                    "TARN_SPECS_DIR=/specs",
                    "-e",
                    "TARN_TRAIL=off",
                    "-e",
                    "TARN_INGEST_SPECS=folder",
                ),
                *through,
                *("-v", f"{specs}:/specs:ro", "ingest"),
            )
        lake = self._lake()
        eventually(
            lambda: lake.table_exists(self.table),
            timeout_s=RUNS_WITHIN_S,
            what=f"{self.table} is made",
            pause_s=1.0,
        )
        for engine in self.engines:
            # An engine that begins when all is written meets no other one.
            eventually(
                lambda: RUNS in self.rig.docker("logs", engine, check=False),  # noqa: B023 - called here
                timeout_s=RUNS_WITHIN_S,
                what=f"{engine} runs",
            )

    def _plan(self) -> list[str]:
        lines = list(self.fault.plan)
        if len(lines) > 1:
            self.chance.shuffle(lines)
        return lines

    def _feed(self) -> None:
        producer = self.rig.producer()
        bad_every = 3 if self.number == 16 else BAD_EVERY
        waiting: list[tuple[Any, bool]] = []
        for n in range(RECORDS):
            good = n % bad_every != bad_every - 1
            value = json.dumps({"id": n, "text": f"row {n}"}).encode() if good else b"junk %d" % n
            waiting.append(
                (
                    producer.send(
                        f"campaign.{self.name}", value, partition=self.chance.randrange(PARTITIONS)
                    ),
                    good,
                )
            )
            if n % 20 == 19:
                time.sleep(FEED_S * 20 / RECORDS)
        for future, good in waiting:
            meta = future.get(timeout=150)
            self.sent[meta.partition, meta.offset] = good
        producer.close()
        self.fed.set()

    def _count(self) -> None:
        """Let the plan end, and count what the proxy did."""
        if self.fault.plan:
            total = sum(int(line.split()[1]) for line in self.fault.plan)
            with contextlib.suppress(AssertionError):
                eventually(
                    lambda: len(self.lane.noted("done")) >= total or self._caught_up(),
                    timeout_s=120,
                    what="the plan is done",
                )
            if self.fault.action != "wait_for_conflicts":
                self.happened += len(self.lane.noted("done"))

    def _offsets(self) -> dict[int, int]:
        table = self._lake().load_table(self.table)
        state = TableState(json.loads(table.metadata.model_dump_json(by_alias=True)))
        found = offsets_in(state, self.stream)
        return dict(found.next) if found is not None else {}

    def _caught_up(self) -> bool:
        ends: dict[int, int] = {}
        for partition, offset in self.sent:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        try:
            found = self._offsets()
        except Exception:  # noqa: BLE001 - what was stopped may not be there yet
            self._client = None
            return False
        return all(found.get(p, 0) >= end for p, end in ends.items())

    def _await_all(self) -> float:
        began_s = time.monotonic()
        eventually(self._caught_up, timeout_s=HEALED_WITHIN_S, what=f"{self.table} has everything")
        return time.monotonic() - began_s

    def _await_late(self) -> None:
        """Wait until what the proxy held back has arrived: it must change nothing that is judged."""
        held = [line for line in self.lane.noted("done") if line.split()[0] in ("late", "slow")]
        if held:
            eventually(
                lambda: len(self.lane.noted("landed")) >= len(held),
                timeout_s=LATE_WITHIN_S,
                what="late requests",
            )

    def _judge(self, counts: Counts) -> None:
        lake = self._lake()
        rows = lake.load_table(self.table).scan(selected_fields=("_tarn",)).to_arrow().to_pylist()
        found = Counter((r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in rows)
        good = Counter(place for place, ok in self.sent.items() if ok)
        bad = Counter(place for place, ok in self.sent.items() if not ok)

        def letters() -> Counter[tuple[int, int]]:
            table = lake.load_table(f"ops.letters_{self.name}")
            read = table.scan(selected_fields=("partition", "offset")).to_arrow().to_pylist()
            return Counter((r["partition"], r["offset"]) for r in read)

        with contextlib.suppress(AssertionError):
            eventually(lambda: letters() == bad, timeout_s=30, what="all dead letters are registered")
        dead = letters()
        counts.rows = len(rows)
        counts.lost = (good - found).total() + (bad - dead).total()
        counts.doubled = (found - good).total() + (dead - bad).total()
        if counts.lost or counts.doubled:
            self.problems.append(f"{counts.lost} lost, {counts.doubled} doubled of {len(self.sent)}")
        audit = self.rig.stack.script("tarn", "audit", self.table, timeout_s=120)
        if audit.code:
            self.problems.append(f"scripts/tarn audit ended with {audit.code}: {audit.text[-600:]}")

    # -- actions

    def _service(self, name: str) -> str:
        return self.rig.stack.container(name)

    def _kill(self, container: str) -> None:
        self.rig.docker("kill", "--signal", "KILL", container)
        self.happened += 1
        time.sleep(self.chance.uniform(0.1, 1.0))
        self.rig.docker("start", container)

    def kill_engine(self, times: int = 3) -> None:
        """Kill the first engine some times."""
        for _ in range(times):
            time.sleep(self.chance.uniform(0.5, 3.0))
            self._kill(self.engines[0])

    def kill_often(self) -> None:
        """Kill the first engine often, soon after it started to work."""
        self.kill_engine(6)

    def kill_catalog(self) -> None:
        """Kill the catalog some times."""
        for _ in range(2):
            time.sleep(self.chance.uniform(0.5, 2.0))
            self._kill(self._service("catalog"))

    def kill_over_reply(self) -> None:
        """Let the proxy take the answer of a commit, and kill the engine over it."""
        for _ in range(2):
            self.lane.plan("reply 1")
            eventually(lambda: self.lane.noted("done"), timeout_s=60, what="a commit", pause_s=0.02)
            self._kill(self.engines[0])
            if self.fed.is_set():
                return

    def wait_for_conflicts(self) -> None:
        """Two engines are the fault: count the commits that were refused since the other was first."""
        self.fed.wait(180)
        time.sleep(2 * fault_proxy.HELD_S)
        self.happened += self.lane.noted("statuses").count("409")

    def freeze_engine(self) -> None:
        """Freeze the first engine, while the second one goes on."""
        before = self._offsets()
        self.rig.pause(self.engines[0])
        try:
            self.fed.wait(DOWN_S)
            time.sleep(self.chance.uniform(1.0, 5.0))
            self.happened += self._offsets() != before
        finally:
            self.rig.docker("unpause", self.engines[0])

    def stop_store(self) -> None:
        """Kill or freeze the store, or kill the broker, for 20 s."""
        how = ("kill minio", "pause minio", "kill kafka")[self.seed % 3]
        word, service = how.split()
        container = self._service(service)
        if word == "pause":
            self.rig.pause(container)
        else:
            self.rig.docker(word, container)
        self.happened += 1
        time.sleep(DOWN_S)
        self.rig.docker("unpause" if word == "pause" else "start", container)
