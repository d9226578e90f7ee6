"""One table under load for an hour, a fault every half minute: `python -m tests.campaign soak`.

Two engines read one topic into one table, the first one through the proxy before the catalog. Each
`DRAW_S` a fault is drawn from the mix by the seed. The rows and dead letters at the end are the producer's
ledger, or they are not; what the run saw on its way is a line per interval in its result file.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.campaign import results
from tests.campaign.real_faults import RealFault
from tests.campaign.real_rig import Lane, rig
from tests.campaign.real_round import BAD_EVERY, PARTITIONS, Round
from tests.campaign.results import Counts, now
from tests.campaign.soak_results import Interval, SoakResult
from tests.support.stack import eventually

DRAW_S = 30.0
RATE = 100
"""Messages a second."""
FROZEN_S = 12.0
HEALED_WITHIN_S = 300.0
SOAK = RealFault(how="a mix of faults, drawn every 30 s", engines=2)


class Soak(Round):
    """The load, and the faults.

    Args:
        lane: where to run it.
        seed: what the draws follow.
        minutes: how long faults are drawn.
        result: what is written down.
        file: its file; written after every draw.
    """

    def __init__(self, lane: Lane, *, seed: int, minutes: float, result: SoakResult, file: Path) -> None:
        super().__init__(lane, 3, 0, seed, fault=SOAK)
        self._minutes = minutes
        self._result = result
        self._file = file
        self._ends: Counter[int] = Counter()
        self._over = threading.Event()
        self.mix: dict[str, Callable[[], None]] = {
            "no fault": lambda: None,
            "engine killed": lambda: self._kill(self.engines[self.chance.randrange(2)]),
            "both engines killed": self._kill_both,
            "catalog killed": lambda: self._kill(self._service("catalog")),
            "store killed": lambda: self._kill(self._service("minio")),
            "broker killed": lambda: self._kill(self._service("kafka")),
            "store frozen": lambda: self._freeze(self._service("minio")),
            "broker frozen": lambda: self._freeze(self._service("kafka")),
            "catalog frozen": lambda: self._freeze(self._service("catalog")),
            "engine frozen": lambda: self._freeze(self.engines[self.chance.randrange(2)]),
            "answers dropped": lambda: self._broken("reply 3"),
            "answer dropped, engine killed": self._reply_and_kill,
            "commits cut": lambda: self._broken("cut 3"),
            "errors before and after": lambda: self._broken("500 1", "502-done 2", "504 1", "500-done 2"),
            "commits late": lambda: self._broken("late 3"),
        }

    def soak(self) -> None:
        """Run it, and write down what came of it."""
        result = self._result
        try:
            self._start()
            feeder = threading.Thread(target=self._feed, daemon=True)
            feeder.start()
            self._draw_all()
            self._over.set()
            feeder.join(180)
            if not self.fed.is_set():
                raise AssertionError("the producer did not end within 180 s")
            self.lane.end_plan()
            began_s = time.monotonic()
            eventually(self._caught_up, timeout_s=HEALED_WITHIN_S, what=f"{self.table} has everything")
            result.heal_s = round(time.monotonic() - began_s, 1)
            self._await_late()
            self._sum_up()
        except Exception as e:  # noqa: BLE001 - a soak that cannot end is a finding
            self.problems.append(f"{type(e).__name__}: {e}")
            self.problems += [self.rig.last_lines(one) for one in self.engines]
        finally:
            result.problems = [text[:800] for text in self.problems]
            result.write(self._file)
            for name in self.engines:
                self.rig.docker("rm", "-f", name, check=False)

    def _sum_up(self) -> None:
        counts = Counts(fault=0)
        self._judge(counts)
        result = self._result
        result.sent, result.rows = len(self.sent), counts.rows
        result.lost, result.doubled = counts.lost, counts.doubled
        fsck = self.rig.stack.script("tarn", "fsck", timeout_s=300)
        if fsck.code:
            self.problems.append(f"scripts/tarn fsck ended with {fsck.code}: {fsck.text[-600:]}")

    def _draw_all(self) -> None:
        """Draw a fault every `DRAW_S` until the time is over."""
        began_s = time.monotonic()
        for number, name in enumerate(drawn(self.mix, int(self._minutes * 60 / DRAW_S), self.chance)):
            at_s = time.monotonic() - began_s
            before = self.happened
            self.lane.plan()
            self.mix[name]()
            time.sleep(max(0.0, (number + 1) * DRAW_S - (time.monotonic() - began_s)))
            self.happened += len(self.lane.noted("done"))
            self._note(at_s, name, self.happened - before)

    def _note(self, at_s: float, name: str, times: int) -> None:
        sent = sum(self._ends.values())
        one = Interval(
            at_s=round(at_s, 1),
            fault=name,
            times=times,
            behind=max(0, sent - self._in_table()),  # of those that had been sent before the look
            rows_sent=sent,
            memory_mib=self._memory(),
        )
        self._result.intervals.append(one)
        self._result.write(self._file)
        sys.stderr.write(
            f"{one.at_s:>6.0f} s: {name}, {times} times; {sent} sent, {one.behind} not in the table\n"
        )
        sys.stderr.flush()

    def _in_table(self) -> int:
        with contextlib.suppress(Exception):  # what was stopped may not be there yet
            return sum(self._offsets().values())
        self._client = None
        return 0

    def _memory(self) -> dict[str, float]:
        """Memory of the engines and services, in MiB; who does not answer is left out."""
        names = {engine: f"engine {n}" for n, engine in enumerate(self.engines)}
        for service in ("minio", "catalog", "kafka"):
            with contextlib.suppress(Exception):
                names[self._service(service)[:12]] = service
        form = "{{.Name}} {{.ID}} {{.MemUsage}}"
        said = self.rig.docker("stats", "--no-stream", "--format", form, *names, check=False)
        return memory_of(said, names)

    def _feed(self) -> None:
        """Send at `RATE` until the draws are over; a message counts as sent when the broker confirmed it."""
        producer = self.rig.producer()
        waiting: list[tuple[Any, bool]] = []
        began_s, n = time.monotonic(), 0
        chance = random.Random(self.seed)  # of this thread
        while not self._over.is_set():
            good = n % BAD_EVERY != BAD_EVERY - 1
            value = json.dumps({"id": n, "text": f"row {n}"}).encode() if good else b"junk %d" % n
            future = producer.send(f"campaign.{self.name}", value, partition=chance.randrange(PARTITIONS))
            waiting.append((future, good))
            n += 1
            if n % 20 == 0:
                waiting = self._confirmed(waiting, wait_s=None)
                time.sleep(max(0.0, began_s + n / RATE - time.monotonic()))
        self._confirmed(waiting, wait_s=150)
        producer.close()
        self.fed.set()

    def _confirmed(
        self, waiting: Sequence[tuple[Any, bool]], *, wait_s: float | None
    ) -> list[tuple[Any, bool]]:
        """Take what the broker confirmed into the ledger; what is left of `waiting`."""
        left = []
        for future, good in waiting:
            if wait_s is None and not future.is_done:
                left.append((future, good))
                continue
            meta = future.get(timeout=wait_s)
            self.sent[meta.partition, meta.offset] = good
            self._ends[meta.partition] = max(self._ends[meta.partition], meta.offset + 1)
        return left

    # -- faults

    def _kill_both(self) -> None:
        for engine in self.engines:
            self._kill(engine)

    def _freeze(self, container: str) -> None:
        self.rig.pause(container)
        self.happened += 1
        time.sleep(FROZEN_S)
        self.rig.docker("unpause", container)

    def _broken(self, *lines: str) -> None:
        """Have the proxy break commits of the first engine; counted when the interval ends."""
        self.lane.plan(*lines)

    def _reply_and_kill(self) -> None:
        self.lane.plan("reply 1")
        with contextlib.suppress(AssertionError):
            eventually(lambda: self.lane.noted("done"), timeout_s=15, what="a commit", pause_s=0.02)
        self._kill(self.engines[0])


def drawn(mix: Iterable[str], count: int, chance: random.Random) -> list[str]:
    """So many faults of a mix: each once, in any order, before one comes again."""
    found: list[str] = []
    while len(found) < count:
        bag = sorted(mix)
        chance.shuffle(bag)
        found += bag
    return found[:count]


def memory_of(said: str, names: Mapping[str, str]) -> dict[str, float]:
    """What `docker stats` says, in MiB, by what `names` calls the containers; the others are left out.

    Args:
        said: lines with name, id, and memory in use of its limit.
        names: name or short id of a container, to what it is called.
    """
    found = {}
    for name, identity, used, *_ in (line.split() for line in said.splitlines() if line.count(" ") >= 2):
        called = names.get(name, names.get(identity[:12]))
        with contextlib.suppress(ValueError):
            if called is not None:
                found[called] = mib(used)
    return found


def mib(text: str) -> float:
    """What `docker stats` says of memory, in MiB.

    Raises:
        ValueError: it is no such text.
    """
    for unit, factor in (("GiB", 1024.0), ("MiB", 1.0), ("KiB", 1 / 1024)):
        if text.strip().endswith(unit):
            return round(float(text.strip().removesuffix(unit)) * factor, 1)
    raise ValueError(f"{text!r} is no size in KiB, MiB or GiB")


def soak(*, minutes: float, seed: int, file: Path, project: str) -> int:
    """Run a soak; 0 if nothing was lost, doubled or broken.

    Args:
        minutes: how long faults are drawn.
        seed: what the draws follow.
        file: result file; it must not exist.
        project: a running project to use; empty to start one and purge it.

    Raises:
        ValueError: the result file exists.
    """
    if file.exists():
        raise ValueError(f"{file} exists: a soak is one run; give another --out")
    at, changed = results.commit()
    result = SoakResult(
        commit=at, changed=changed, start=now(), end=now(), minutes=minutes, seed=seed, rate=RATE
    )
    with rig(project, 1) as (lane,):
        made = Soak(lane, seed=seed, minutes=minutes, result=result, file=file)
        made.soak()
    for text in result.problems:
        sys.stderr.write(f"{text}\n")
    return 1 if result.problems or result.lost or result.doubled else 0
