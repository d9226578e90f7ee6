"""Plain reads on a known connection are taken without a task: answered as any other, and sooner (ADR 52)."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.rest import reads, server
from tarn_catalog.rest.reads import READS_MAX, Reads
from tarn_catalog.rest.routes import Routes
from tarn_catalog.testing.server import Running, serving
from tests.support.stack import eventually

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}
TABLE = "/v1/namespaces/ns/tables/t"
Answer = tuple[int, dict[str, str], bytes]


class Known:
    """A connection on which a request was answered, so that its client is known."""

    def __init__(self, uri: str, token: str) -> None:
        parts = urlsplit(uri)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        self.token = token
        assert self.ask("GET", "/v1/config")[0] == 200

    def send(self, method: str, path: str, body: bytes | None = None, **fields: str) -> None:
        named = {name.replace("_", "-"): value for name, value in fields.items()}
        headers = {"Authorization": f"Bearer {self.token}", **named}
        self.connection.request(method, path, body=body, headers=headers)

    def answer(self) -> Answer:
        found = self.connection.getresponse()
        body = found.read()
        return found.status, {name.lower(): value for name, value in found.getheaders()}, body

    def ask(self, method: str, path: str, body: bytes | None = None, **fields: str) -> Answer:
        self.send(method, path, body, **fields)
        return self.answer()


class World:
    """A catalog with a table, and what its listeners did with the requests."""

    def __init__(self, running: Running, taken: list[bool]) -> None:
        self.running = running
        self.taken = taken
        client_id, secret = running.credential.split(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        token = httpx.post(f"{running.published}/v1/oauth/tokens", data=form, timeout=60).json()[
            "access_token"
        ]
        self.token = token
        self.headers = {"authorization": f"Bearer {token}"}
        for path, body in (
            ("/v1/namespaces", {"namespace": ["ns"]}),
            ("/v1/namespaces/ns/tables", {"name": "t", "schema": SCHEMA}),
        ):
            made = httpx.post(running.published + path, json=body, headers=self.headers, timeout=60)
            assert made.status_code == 200, made.text
        self._known: list[Known] = []
        taken.clear()

    def known(self) -> Known:
        self._known.append(Known(self.running.published, self.token))
        return self._known[-1]

    def close(self) -> None:
        for one in self._known:
            one.connection.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    taken: list[bool] = []
    quick = Reads.quick

    def noted(self: Reads, *what: Any) -> Any:
        given = quick(self, *what)
        taken.append(given is not None)
        return given

    monkeypatch.setattr(Reads, "quick", noted)
    catalog = Catalog(MemoryStore(), WarehouseLayout(base="s3://tarn"))
    with serving(catalog, tmp_path / "secrets") as running:
        found = World(running, taken)
        yield found
        found.close()


class Held:
    """Loads of tables wait until `go` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.waiting = 0
        self._lock = threading.Lock()
        answer, held = Routes.answer, self

        def waits(self: Routes, call: Any, admitted: Any) -> Any:
            if call.path == TABLE:
                with held._lock:
                    held.waiting += 1
                assert held.go.wait(timeout=110)
            return answer(self, call, admitted)

        monkeypatch.setattr(Routes, "answer", waits)

    def on_their_way(self, count: int) -> None:
        eventually(lambda: self.waiting == count, timeout_s=60, what=f"{count} loads wait", pause_s=0.01)


READS = (TABLE, f"{TABLE}?snapshots=refs", "/v1/namespaces/ns", "/v1/namespaces/ns/tables?pageSize=1")


@pytest.mark.parametrize("path", [*READS, "/v1/namespaces/ns/tables/none", f"{TABLE}?snapshots=x"])
def test_a_read_on_a_known_connection_is_taken_and_answered_as_any_other(world: World, path: str) -> None:
    first = httpx.get(world.running.published + path, headers=world.headers, timeout=60)
    assert world.taken == [], "its client was not known"
    known = world.known()
    world.taken.clear()
    for _ in range(3):
        status, fields, body = known.ask("GET", path)
        assert (status, body) == (first.status_code, first.content)
        assert {**fields, "date": ""} == {**first.headers, "date": ""}
    assert world.taken == [True] * 3


def test_what_has_not_changed_is_answered_without_a_body_or_a_length(world: World) -> None:
    known = world.known()
    tag = known.ask("GET", TABLE)[1]["etag"]
    world.taken.clear()
    status, fields, body = known.ask("GET", TABLE, If_None_Match=tag)
    assert (status, body, fields["etag"], world.taken) == (304, b"", tag, [True])
    assert "content-length" not in fields, "it would be that of another answer"
    assert known.ask("GET", TABLE)[0] == 200, "the connection goes on"


COMMIT = json.dumps({"requirements": [], "updates": []}).encode()
UNUSUAL: dict[str, tuple[tuple[Any, ...], dict[str, str], int]] = {
    "a commit": (("POST", TABLE, COMMIT), {"Content_Type": "application/json"}, 200),
    "a question without an answer": (("HEAD", TABLE), {}, 204),
    "a read with a body": (("GET", TABLE, b"{}"), {}, 200),
    "a field that changes the exchange": (("GET", TABLE), {"Expect": "100-continue"}, 200),
    "what waits for nothing": (("GET", "/v1/config"), {}, 200),
    "what needs no token": (("GET", "/health"), {}, 200),
    "another path": (("GET", "/v1/nothing"), {}, 404),
    "another method": (("PATCH", TABLE), {}, 405),
    "another host": (("GET", TABLE), {"Host": "evil.example"}, 421),
    "a wrong token": (("GET", TABLE), {"Authorization": "Bearer x"}, 401),
}


def test_a_client_that_says_what_goes_without_saying_is_taken(world: World) -> None:
    """Python's requests and Java's HttpClient do; pyiceberg and Trino are made with them."""
    known = world.known()
    world.taken.clear()
    for word in ("keep-alive", "Keep-Alive"):
        assert known.ask("GET", TABLE, Connection=word)[0] == 200
    assert world.taken == [True, True]


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_no_plain_read_is_served_as_before(world: World, what: str) -> None:
    asked, fields, status = UNUSUAL[what]
    known = world.known()
    world.taken.clear()
    assert known.ask(*asked, **fields)[0] == status
    assert True not in world.taken
    assert known.ask("GET", TABLE)[0] == 200, "the connection goes on"
    assert world.taken[-1]


def test_a_client_that_wants_to_end_is_answered_and_the_connection_ends(world: World) -> None:
    known = world.known()
    status, fields, _ = known.ask("GET", TABLE, Connection="close")
    assert (status, fields["connection"]) == (200, "close")


def test_a_fault_of_the_code_is_answered_and_its_thread_is_free_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = world.known()
    with monkeypatch.context() as broken:
        broken.setattr(Routes, "answer", lambda *_: {}["nothing"])
        world.taken.clear()
        for _ in range(READS_MAX + 1):
            status, _, body = known.ask("GET", TABLE)
            assert (status, json.loads(body)["error"]["type"]) == (500, "InternalServerException")
        assert world.taken == [True] * (READS_MAX + 1)
    assert known.ask("GET", TABLE)[0] == 200


def test_more_reads_than_threads_are_left_to_the_application(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    connections = [world.known() for _ in range(READS_MAX + 3)]
    world.taken.clear()
    for one in connections:
        one.send("GET", TABLE)
    held.on_their_way(READS_MAX + 3)
    assert sorted(world.taken) == [False] * 3 + [True] * READS_MAX
    assert world.known().ask("GET", "/v1/namespaces/ns")[0] == 200, "others are served"
    held.go.set()
    assert [one.answer()[0] for one in connections] == [200] * (READS_MAX + 3)
    world.taken.clear()
    assert connections[0].ask("GET", TABLE)[0] == 200
    assert world.taken == [True]


def test_a_client_that_leaves_takes_no_thread_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    for _ in range(READS_MAX):
        gone = world.known()
        gone.send("GET", TABLE)
    held.on_their_way(READS_MAX)
    world.close()
    held.go.set()
    known = world.known()

    def is_taken() -> bool:
        world.taken.clear()
        return known.ask("GET", TABLE)[0] == 200 and world.taken == [True]

    eventually(is_taken, timeout_s=60, what="a thread is free", pause_s=0.05)


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, Held, Any]]:
    """A catalog that can be ended, with one load on its way."""
    started: list[Any] = []
    listener = server.listener
    monkeypatch.setattr(server, "STOP_WAIT_S", 1)
    monkeypatch.setattr(
        server, "listener", lambda *what, **how: started.append(listener(*what, **how)) or started[-1]
    )
    catalog = Catalog(MemoryStore(), WarehouseLayout(base="s3://tarn"))
    with serving(catalog, tmp_path / "secrets") as running:
        world = World(running, [])
        known, held = world.known(), Held(monkeypatch)
        known.send("GET", TABLE)
        held.on_their_way(1)
        for one in started:
            one.should_exit = True

        def ends() -> bool:
            return not any(socket.sockets for one in started for socket in one.servers)

        eventually(ends, timeout_s=60, what="it ends", pause_s=0.01)
        yield world, held, known
        held.go.set()
        world.close()


def test_a_catalog_that_ends_answers_what_it_has(ending: tuple[World, Held, Any]) -> None:
    _, held, known = ending
    held.go.set()
    status, fields, _ = known.answer()
    assert (status, fields["connection"]) == (200, "close")


def test_a_catalog_that_waits_no_longer_says_so(ending: tuple[World, Held, Any]) -> None:
    _, _, known = ending
    status, fields, body = known.answer()
    said = json.loads(body)["error"]
    assert (status, said["type"], said["message"]) == (503, "ServiceUnavailableException", reads.STOPPED)
    assert fields["connection"] == "close"
