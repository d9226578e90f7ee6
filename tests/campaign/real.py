"""The faults of the campaign on a stack of its own: real containers, exact counts, seconds to heal.

Each round has its own topic and tables, and one or two engines of its own: containers of the service `ingest`
that read nothing else. The first one reaches the catalog through a proxy. The stack's own engine goes on.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarn_host.stack import project

from tarn.core.table_state import TableState
from tarn.ingest.batch_commit import offsets_in
from tests.campaign import results
from tests.campaign.real_faults import NOT_REAL, REAL, RealFault
from tests.campaign.results import Counts, Result
from tests.support.stack import Stack, eventually, free_ports, run

with warnings.catch_warnings():
    # kafka-python reads its message schemas with a function that is deprecated in Python 3.11.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka import KafkaProducer

PARTITIONS = 3
RECORDS = 600
FEED_S = 6.0
BAD_EVERY = 50
HEALED_WITHIN_S = 180.0
RUNS_WITHIN_S = 90.0
DOWN_S = 20.0
GRACE_S = 60
FOLDER = project.STATE_DIR / "campaign"

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
"""


@dataclass
class Rig:
    """A stack with room for engines of the campaign.

    Attributes:
        stack: the stack.
        folder: folder of the campaign's own files: specs and the proxy's plan.
        env: settings for clients on the host.
    """

    stack: Stack
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def docker(self, *words: str, timeout_s: float = 60, check: bool = True) -> str:
        """Run the engine's client.

        Raises:
            RuntimeError: it failed.
        """
        done = run(["docker", *words], timeout_s=timeout_s)
        if check and done.code:
            raise RuntimeError(f"docker {' '.join(words)}: {done.text[-600:]}")
        return done.text

    def start(self, name: str, *words: str) -> None:
        """Start a further container of the service `ingest`."""
        self.docker("rm", "-f", name, check=False)
        done = self.stack.compose("run", "-d", "--no-deps", "--name", name, *words, timeout_s=120)
        if done.code:
            raise RuntimeError(f"{name} was not started: {done.text[-600:]}")

    @property
    def proxy(self) -> str:
        """Name of the proxy's container."""
        return f"{self.stack.name}-fault-proxy"

    def start_proxy(self) -> None:
        """Start the proxy before the catalog."""
        plan = self.folder / "plan"
        plan.mkdir(parents=True, exist_ok=True)
        plan.chmod(0o777)
        script = results.ROOT / "tests" / "support" / "fault_proxy.py"
        self.start(
            self.proxy,
            *("--entrypoint", "python", "-v", f"{script}:/opt/fault_proxy.py:ro", "-v", f"{plan}:/plan"),
            *("ingest", "/opt/fault_proxy.py", "8181", "catalog", "8181", "/plan"),
        )

    def plan(self, *lines: str) -> None:
        """Give the proxy a new plan, and forget what it did."""
        for name in ("done", "statuses", "plan"):
            (self.folder / "plan" / name).unlink(missing_ok=True)
        made = self.folder / "plan" / "plan"
        made.write_text("".join(f"{line}\n" for line in lines))
        made.chmod(0o666)

    def noted(self, name: str) -> list[str]:
        """Lines that the proxy wrote: `done` or `statuses`."""
        file = self.folder / "plan" / name
        return file.read_text().split("\n")[:-1] if file.exists() else []

    def lake(self) -> Any:
        """A pyiceberg catalog, as the cli's principal."""
        from pyiceberg.catalog import load_catalog

        env = self.env
        return load_catalog(
            "lake",
            **{
                "type": "rest",
                "uri": env["TARN_CATALOG_URI"],
                "oauth2-server-uri": f"{env['TARN_CATALOG_URI']}/v1/oauth/tokens",
                "credential": env["TARN_CATALOG_CREDENTIAL"],
                "warehouse": env["TARN_WAREHOUSE"],
                "s3.access-key-id": env["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": env["AWS_SECRET_ACCESS_KEY"],
                "s3.endpoint": env["TARN_S3_ENDPOINT"],
                "s3.region": env["AWS_REGION"],
            },
        )

    def producer(self) -> Any:
        """A producer that waits for the broker's word."""
        env = self.env
        return KafkaProducer(
            bootstrap_servers=env["TARN_KAFKA_BOOTSTRAP"],
            security_protocol=env["TARN_KAFKA_SECURITY_PROTOCOL"],
            sasl_mechanism=env["TARN_KAFKA_SASL_MECHANISM"],
            sasl_plain_username=env["TARN_KAFKA_USERNAME"],
            sasl_plain_password=env["TARN_KAFKA_PASSWORD"],
            acks="all",
            delivery_timeout_ms=120_000,
        )


@contextlib.contextmanager
def rig(name: str) -> Iterator[Rig]:
    """A stack for the campaign: a running project of this name, or one that is started and purged."""
    ports_file = FOLDER / "ports.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    started = not name
    name = name or f"{project.default_name(project.ROOT)}-campaign"
    if started or not ports_file.exists():
        wanted = list(project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8")))
        ports_file.write_text(json.dumps(free_ports(wanted)))
    ports = json.loads(ports_file.read_text())
    made = Rig(stack=Stack(name=name, ports=ports), folder=FOLDER)
    grace = {"TARN_REAPER_GRACE_S": str(GRACE_S), "TARN_PROFILE": "small"}
    try:
        if started:
            up = made.stack.script("up", "--small", "--yes", env=grace)
            if up.code:
                raise RuntimeError(f"scripts/up --small failed:\n{up.text[-3000:]}")
        answer = made.stack.script("tarn", "env", "--json", timeout_s=120)
        made.env = json.loads(answer.text.splitlines()[-1])
        made.start_proxy()
        yield made
    finally:
        made.docker("rm", "-f", made.proxy, check=False)
        if started:
            made.stack.script("down", "--purge", "--yes", timeout_s=300)


class Round:
    """One seed of one fault.

    Args:
        rig: the stack.
        number: number of the fault.
        seed: the seed.
    """

    def __init__(self, rig: Rig, number: int, seed: int) -> None:
        self.rig = rig
        self.fault: RealFault = REAL[number]
        self.number = number
        self.seed = seed
        self.chance = random.Random(f"real/{number}/{seed}")
        self.name = f"f{number}_s{seed}_{int(time.time())}"
        self.stream = self.name.replace("_", "-")
        self.table = f"bronze.{self.name}"
        self.sent: dict[tuple[int, int], bool] = {}
        self.happened = 0
        self.problems: list[str] = []
        self.fed = threading.Event()
        self.engines = [f"{rig.stack.name}-engine-{n}" for n in range(self.fault.engines)]

    def run(self) -> tuple[Counts, float]:
        """Run it; its counts, and the seconds that it took."""
        began_s = time.monotonic()
        counts = Counts(fault=self.number)
        try:
            self._start()
            feeder = threading.Thread(target=self._feed, daemon=True)
            feeder.start()
            time.sleep(self.chance.uniform(0.5, 2.0))
            self.rig.plan(*self._plan())
            if self.fault.action:
                getattr(self, self.fault.action)()
            feeder.join(180)
            if not self.fed.is_set():
                raise AssertionError("the producer did not end within 180 s")
            self._count()
            self.rig.plan()
            heal_s = self._await_all()
            self._judge(counts)
            if self.happened:
                counts.heal_s.append(round(heal_s, 2))
        except Exception as e:  # noqa: BLE001 - a round that cannot end is a finding
            self.problems.append(f"{type(e).__name__}: {e}")
        finally:
            logs = [self.rig.docker("logs", "--tail", "5", one, check=False) for one in self.engines]
            for engine in self.engines:
                self.rig.docker("rm", "-f", engine, check=False)
        if self.problems:
            counts.failed.append(self.seed)
            counts.problems += [f"seed {self.seed}: {text}"[:800] for text in (*self.problems, *logs)]
        if self.happened:
            counts.seeds.append(self.seed)
            counts.faults = self.happened
        else:
            counts.without = 1
        counts.seconds = time.monotonic() - began_s
        return counts, counts.seconds

    # -- parts

    def _start(self) -> None:
        specs = self.rig.folder / "specs" / self.name
        specs.mkdir(parents=True)
        text = (
            SPEC.replace("STREAM", self.stream)
            .replace("NAME", self.name)
            .replace("TOPIC", f"campaign.{self.name}")
        )
        (specs / "spec.yaml").write_text(text.replace("PARTITIONS", str(PARTITIONS)))
        self.rig.plan()
        for number, engine in enumerate(self.engines):
            through = ("-e", f"TARN_CATALOG_URI=http://{self.rig.proxy}:8181") if number == 0 else ()
            self.rig.start(
                engine,
                *("-e", "TARN_INGEST_LISTEN=0.0.0.0", "-e", "TARN_SPECS_DIR=/specs", *through),
                *("-v", f"{specs}:/specs:ro", "ingest"),
            )
        lake = self.rig.lake()
        eventually(
            lambda: lake.table_exists(self.table), timeout_s=RUNS_WITHIN_S, what=f"{self.table} is made"
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
                    lambda: len(self.rig.noted("done")) >= total or self._caught_up(),
                    timeout_s=120,
                    what="the plan is done",
                )
            self.happened += len(self.rig.noted("done"))

    def _offsets(self) -> dict[int, int]:
        table = self.rig.lake().load_table(self.table)
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
            return False
        return all(found.get(p, 0) >= end for p, end in ends.items())

    def _await_all(self) -> float:
        began_s = time.monotonic()
        eventually(self._caught_up, timeout_s=HEALED_WITHIN_S, what=f"{self.table} has everything")
        return time.monotonic() - began_s

    def _judge(self, counts: Counts) -> None:
        lake = self.rig.lake()
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
            self.rig.plan("reply 1")
            eventually(lambda: self.rig.noted("done"), timeout_s=60, what="a commit", pause_s=0.02)
            self._kill(self.engines[0])
            if self.fed.is_set():
                return

    def wait_for_conflicts(self) -> None:
        """Two engines are the fault: count the commits that were refused since the other was first."""
        self.fed.wait(180)
        self.happened += self.rig.noted("statuses").count("409")

    def freeze_engine(self) -> None:
        """Freeze the first engine, while the second one goes on."""
        before = self._offsets()
        self.rig.docker("pause", self.engines[0])
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
        self.rig.docker(word, container)
        self.happened += 1
        time.sleep(DOWN_S)
        self.rig.docker("unpause" if word == "pause" else "start", container)


def campaign(faults: str, *, seeds: int, first: int, minutes: float, file: Path, project: str) -> int:
    """Run the campaign; 0 if nothing was lost, doubled or broken.

    Args:
        faults: `all`, or numbers separated by commas.
        seeds: seeds per fault in which it happened.
        first: the first seed.
        minutes: limit of this call, without starting and stopping the stack.
        file: result file; gone on with if it exists.
        project: a running project to use; empty to start one and purge it.
    """
    numbers = sorted(REAL) if faults == "all" else [int(part) for part in faults.split(",")]
    unknown = [n for n in numbers if n not in REAL]
    if unknown:
        reasons = "; ".join(f"{n}: {NOT_REAL.get(n, 'is no fault')}" for n in unknown)
        sys.stderr.write(f"the real stack does not have these faults: {reasons}\n")
        return 2
    result = results.begun("real", seeds)
    result.engines = (1, 2)
    if file.exists():
        former = results.read(file)
        if (former.kind, former.commit, former.changed) != ("real", result.commit, result.changed):
            sys.stderr.write(f"{file} is of commit {former.commit} ({former.kind}); give another --out\n")
            return 2
        former.seeds_wanted = seeds
        result = former
    for number in numbers:
        result.counts.setdefault(number, Counts(fault=number))
        result.next_seed.setdefault(number, first)
    with rig(project) as made:
        until_s = time.monotonic() + minutes * 60
        _rounds(made, result, numbers, seeds, file, lambda: time.monotonic() < until_s)
    result.write(file)
    failed = {n: counts.failed for n, counts in result.counts.items() if counts.failed}
    short = [n for n, counts in result.counts.items() if len(counts.seeds) < seeds]
    sys.stderr.write(f"failed: {failed or 'none'}; fewer seeds than asked for: {short or 'none'}\n")
    return 1 if failed else 0


def _rounds(
    made: Rig, result: Result, numbers: list[int], seeds: int, file: Path, goes_on: Callable[[], bool]
) -> None:
    """Run rounds, the fault with the fewest first, until all have their seeds or the time is over."""
    while goes_on():
        left = [
            n
            for n in numbers
            if len(result.counts[n].seeds) < seeds and result.counts[n].without <= 3 * seeds
        ]
        if not left:
            return
        number = min(left, key=lambda n: (len(result.counts[n].seeds) + result.counts[n].without, n))
        seed = result.next_seed[number]
        result.next_seed[number] = seed + 1
        counts, took_s = Round(made, number, seed).run()
        total = result.counts[number]
        for name in ("seeds", "failed", "problems", "heal_s"):
            getattr(total, name).extend(getattr(counts, name))
        del total.problems[results.PROBLEMS_MAX :]
        for name in ("without", "faults", "rows", "lost", "doubled", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(counts, name))
        result.write(file)
        sys.stderr.write(
            f"fault {number:>2}, seed {seed}: happened {counts.faults} times, {counts.rows} rows, "
            f"{counts.lost} lost, {counts.doubled} doubled, healed after {counts.heal_s} s, {took_s:.0f} s"
            f"{'; FAILED: ' + counts.problems[0] if counts.problems else ''}\n"
        )
        sys.stderr.flush()
