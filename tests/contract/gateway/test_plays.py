"""Plays over sockets: clients that repeat, lost answers, gateways that are killed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tarn.core.table_catalog import TableCatalog
from tarn.gateway.app import AppLimits
from tarn.testing.faulty_catalog import Faults, FaultyCatalog
from tests.support.gateway import Gateway, World, row
from tests.support.lake import foreign_snapshot
from tests.support.plays import seeds

WRITES = 8
TRIES_MAX = 60


class Doors:
    """The gateways that clients know; one of them may die at any time.

    Attributes:
        faults: faults of the catalog's commits.
    """

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._lock = threading.Lock()
        self.faults = Faults(chance, rate=0.3)
        self.all = [self.made(), self.made()]

    def made(self) -> Gateway:
        lake = self._world.lake
        ids = random.Random(1)

        def faulty(catalog: TableCatalog) -> TableCatalog:
            return FaultyCatalog(
                catalog,
                self.faults,
                foreign=lambda name: foreign_snapshot(lake.local, name, ids.getrandbits(62)),
            )

        return self._world.gateway(catalog=faulty, app=AppLimits(answer_s_max=5))

    def any(self, chance: random.Random) -> Gateway:
        with self._lock:
            return chance.choice(self.all)

    def replace(self, number: int) -> None:
        """Kill a gateway, whose commits may still be under way, and start another."""
        with self._lock:
            dead, self.all[number] = self.all[number], self.made()
        dead.stop(drain=False)


def client(
    world: World, doors: Doors, name: int, seed: int, more: Callable[[int, int], dict[str, Any]]
) -> list[int]:
    """Send writes in order, each until it is answered, some once more; return the ids of the good rows."""
    chance = random.Random(seed)
    good: list[int] = []
    sequence = 0
    for turn in range(WRITES):
        ids = [name * 1_000 + turn * 10 + n for n in range(chance.randint(1, 3))]
        rows: list[Any] = [row(one) for one in ids]
        if chance.random() < 0.3:
            rows.insert(chance.randrange(len(rows) + 1), {})
        repeats = 1 + (chance.random() < 0.3)
        for _ in range(TRIES_MAX):
            try:
                answer = world.post(doors.any(chance), rows, **more(turn, sequence))
            except httpx.TransportError:
                continue  # killed before it answered
            if answer.status_code == 200:
                found = answer.json()
                assert (found["accepted"], len(found["rejected"])) == (len(ids), len(rows) - len(ids))
                repeats -= 1
                if not repeats:
                    break
            else:
                assert answer.status_code in (429, 503, 504), answer.text
        assert not repeats, "not answered"
        good += ids
        sequence += len(rows)
    return good


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(3))
def test_each_row_is_in_once(world: World, seed: int) -> None:
    chance = random.Random(seed)
    doors = Doors(world, chance)
    with ThreadPoolExecutor(5) as pool:
        asked = []
        for name in range(4):
            more = _keyed(name) if name % 2 else _numbered(name)
            asked.append(pool.submit(client, world, doors, name, seed * 10 + name, more))
        killed = pool.submit(_kill, doors, seed)
        good = sorted(one for part in asked for one in part.result())
        killed.result()
    doors.faults.rate = 0
    doors.faults.land_all()
    assert world.ids() == good
    assert len(set(world.lake.offsets())) == len(good)
    assert sum(doors.faults.counts.values()) > doors.faults.counts.get("fine", 0)


def _keyed(name: int) -> Callable[[int, int], dict[str, Any]]:
    return lambda turn, _: {"key": f"{name}-{turn}"}


def _numbered(name: int) -> Callable[[int, int], dict[str, Any]]:
    return lambda _, sequence: {"producer": f"p{name}", "sequence": sequence}


def _kill(doors: Doors, seed: int) -> None:
    pause = threading.Event()
    for number in range(2):
        pause.wait(0.5 + seed % 3 / 5)
        doors.replace(number)
