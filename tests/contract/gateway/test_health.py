"""The gateway says what keeps it from working, and nobody's page makes it write."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.errors import ForbiddenError, NoSuchTableError, UnavailableError
from tarn.core.object_store import Stored
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState
from tarn.gateway.health import PROBE_KEY, Health
from tarn.gateway.server import DRAIN_S, STOP_WAIT_S
from tarn.ingest.deep_look import DEEP_KEPT_S, OneDeepLook
from tests.support.gateway import World, row
from tests.support.stack import eventually


class SickStore(MemoryStore):
    """A store whose reads and writes fail on request."""

    reads = writes = True

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        if not self.reads:
            raise UnavailableError("the store does not respond")
        return super().get(key, known=known)

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        if not self.writes:
            raise ForbiddenError("the key was revoked")
        return super().put(key, data, if_absent=if_absent, if_match=if_match)


class SickCatalog:
    """A catalog that is away or has no tables."""

    away = False

    def load(self, table: TableName) -> TableState:
        if self.away:
            raise UnavailableError("the catalog does not answer")
        raise NoSuchTableError(f"table {table} does not exist")


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_what_is_wrong_is_named_until_it_is_mended(
    world: World, stop: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_EVERY_S", "LOOK_AGAIN_S"):
        monkeypatch.setattr(f"tarn.ingest.health.{name}", 0.02)
    monkeypatch.setattr("tarn.ingest.deep_look.DEEP_KEPT_S", 0.0)
    store, catalog = SickStore(), SickCatalog()
    health = Health(store, catalog, stop)  # type: ignore[arg-type]
    url = world.gateway(health=health).url

    def asked(query: str, **headers: str) -> httpx.Response:
        return world.http.get(f"{url}/health{query}", headers=headers)

    def faults(query: str = "?ready") -> list[str]:
        found: list[str] = asked(query).json().get("faults", [])
        return found

    assert faults() == ["no dependency was looked at yet"]
    health.start()
    eventually(lambda: not faults(), timeout_s=60, what="well", pause_s=0.02)
    assert asked("?deep").json() == {"status": "ok"}
    assert store.get(PROBE_KEY) is not None
    catalog.away = True
    eventually(
        lambda: faults() == ["catalog: the catalog does not answer"], timeout_s=60, what="ill", pause_s=0.02
    )
    assert asked("?ready").status_code == asked("?deep").status_code == 503
    assert asked("").json() == {"status": "ok"}, "the process itself answers"
    catalog.away, store.reads = False, False
    eventually(
        lambda: faults() == ["store: the store does not respond"], timeout_s=60, what="ill", pause_s=0.02
    )
    store.reads, store.writes = True, False
    eventually(lambda: not faults(), timeout_s=60, what="well", pause_s=0.02)
    assert faults("?deep") == ["store: the key was revoked"]


def test_a_page_of_another_origin_makes_nothing_write(world: World, stop: threading.Event) -> None:
    store = SickStore()
    url = world.gateway(health=Health(store, SickCatalog(), stop)).url  # type: ignore[arg-type]
    foreign = {"origin": "http://evil.example"}
    assert world.http.get(f"{url}/health?deep", headers=foreign).status_code == 403
    assert world.http.get(f"{url}/health?ready", headers=foreign).status_code == 503
    assert store.get(PROBE_KEY) is None


class SlowLooks:
    """Deep looks that take as long as somebody wants."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = 0
        self.at_once = self.most = 0

    def faults(self, *, deep: bool = False) -> list[str]:
        assert deep
        self.begun += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.go.wait(110)
        self.at_once -= 1
        return [f"look {self.begun}"]


def test_deep_looks_are_made_one_at_a_time_and_serve_everybody_for_a_moment() -> None:
    looks, now = SlowLooks(), [0.0]
    found: list[list[list[str]]] = []

    async def ask() -> None:
        one = OneDeepLook(looks, clock=lambda: now[0])
        waiting = [asyncio.ensure_future(one.faults()) for _ in range(60)]
        async with asyncio.timeout(60):  # until the first look has begun
            while not looks.begun:
                await asyncio.sleep(0.01)
        waiting[0].cancel()  # whoever asked first goes away; the others still hear of it
        waiting += [asyncio.ensure_future(one.faults()) for _ in range(60)]
        await asyncio.sleep(0.05)
        looks.go.set()
        found.append(await asyncio.gather(*waiting[1:]))
        now[0] += DEEP_KEPT_S - 0.1
        found.append([await one.faults()])
        now[0] += 0.2
        found.append([await one.faults()])

    asyncio.run(ask())
    assert found == [[["look 1"]] * 119, [["look 1"]], [["look 2"]]]
    assert looks.most == 1


def test_many_deep_looks_leave_threads_for_those_who_write(world: World) -> None:
    """Each write of a new caller needs a thread, of which there are forty."""
    looks = SlowLooks()
    gateway = world.gateway(health=looks)
    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(httpx.get, f"{gateway.url}/health?deep", timeout=110) for _ in range(50)]
        eventually(lambda: looks.begun > 0, timeout_s=60, what="a look", pause_s=0.02)
        assert world.post(gateway, row(1)).status_code == 200
        looks.go.set()
        assert {one.result().status_code for one in asked} == {503}
    assert looks.most == 1


def test_what_it_waits_for_at_the_end_fits_before_the_engine_kills_it() -> None:
    compose = Path("docker-compose.yml").read_text()
    grace = re.search(r"stop_grace_period: (\d+)s", compose)
    assert grace is not None
    assert int(grace.group(1)) - 2 >= DRAIN_S + STOP_WAIT_S
