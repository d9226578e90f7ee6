"""Writes that come whole on a known connection are taken without a task: as any other, and sooner."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tarn.gateway import access
from tarn.gateway.app import App, AppLimits
from tarn.gateway.memory import Memory
from tests.support.gateway import Gateway, World, row
from tests.support.stack import eventually

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WITHIN_S = 60.0


class Held:
    """A catalog whose commits wait until `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0

    def __call__(self, catalog: Any) -> Any:
        held = self

        class Waits:
            def __getattr__(self, name: str) -> Any:
                return getattr(catalog, name)

            def commit(self, *arguments: Any, **options: Any) -> Any:
                held.asked += 1
                assert held.go.wait(timeout=110)
                return catalog.commit(*arguments, **options)

        return Waits()


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long for one write."""
    monkeypatch.setattr(access, "ALLOWED_S", 60.0)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request that was offered to `App.quick`, whether it was taken."""
    found: list[bool] = []
    quick = App.quick

    def noted(self: App, *what: Any) -> Any:
        given = quick(self, *what)
        found.append(given is not None)
        return given

    monkeypatch.setattr(App, "quick", noted)
    return found


def request(
    world: World,
    body: bytes,
    *fields: str,
    who: str = "admin",
    kind: str = "application/json",
    path: str = "/v1/tables/bronze.orders/rows",
    method: str = "POST",
    length: bool = True,
) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {world.tokens[who]}",
        f"Content-Type: {kind}",
        *fields,
    ]
    if length:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Known:
    """A connection on which a write was answered, so that its client is known.

    Args:
        world: the world.
        gateway: the gateway.
    """

    def __init__(self, world: World, gateway: Gateway) -> None:
        self.world = world
        self.socket = gateway.connect()
        self.socket.settimeout(WITHIN_S)
        world._stack.callback(self.socket.close)
        self._came = b""
        assert self.ask(request(world, json.dumps(row(1_000)).encode()))[0] == 200

    def ask(self, sent: bytes) -> tuple[int, dict[str, str], Any]:
        self.socket.sendall(sent)
        return self.answer()

    def answer(self) -> tuple[int, dict[str, str], Any]:
        """The next answer: status, fields and body."""
        while b"\r\n\r\n" not in self._came.removeprefix(CONTINUE):
            self._more()
        head, _, self._came = self._came.removeprefix(CONTINUE).partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        fields = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        size = int(fields["content-length"])
        while len(self._came) < size:
            self._more()
        body, self._came = self._came[:size], self._came[size:]
        return int(first.split()[1]), fields, json.loads(body) if body else None

    def ended(self) -> bool:
        return self.socket.recv(1) == b""

    def _more(self) -> None:
        part = self.socket.recv(65_536)
        assert part, "the connection ended"
        self._came += part


def body(number: int) -> bytes:
    return json.dumps(row(number)).encode()


def test_a_write_on_a_known_connection_is_taken_at_once_and_answered_as_any_other(
    world: World, taken: list[bool]
) -> None:
    gateway = world.gateway()
    first = gateway.connect()
    first.close()
    known = Known(world, gateway)
    assert taken == [], "its client was not known"
    status, fields, said = known.ask(request(world, body(1), "Tarn-Producer: p", "Tarn-Sequence: 0"))
    other = world.post(gateway, row(1), producer="p")  # the same on another connection
    assert (status, taken) == (200, [True])
    assert said == {**other.json(), "repeated": False}
    assert other.json()["repeated"]
    assert fields.keys() == set(other.headers)
    assert fields["content-type"] == "application/json"
    mixed = json.dumps([row(2), {"id": "x"}]).encode()
    status, _, said = known.ask(request(world, mixed, "Idempotency-Key: k"))
    assert (status, said["accepted"], [one["row"] for one in said["rejected"]]) == (200, 1, [1])
    assert known.ask(request(world, b'[{"id": "x"}]'))[0] == 422
    lines = b'{"id": 3}\n{"id": 4}\n'
    assert known.ask(request(world, lines, kind="application/x-ndjson"))[2]["accepted"] == 2
    assert taken == [True] * 4
    assert world.ids() == [1, 2, 3, 4, 1_000]
    nothing_held(gateway.memory)


UNUSUAL: dict[str, tuple[Callable[[World], bytes], int]] = {
    "a body that it is asked for": (lambda w: request(w, body(1), "Expect: 100-continue"), 200),
    "an Arrow stream": (lambda w: request(w, b"abc", kind="application/vnd.apache.arrow.stream"), 400),
    "no JSON": (lambda w: request(w, b"[1"), 400),
    "another format": (lambda w: request(w, body(1), kind="text/csv"), 415),
    "compressed": (lambda w: request(w, body(1), "Content-Encoding: gzip"), 415),
    "a foreign page": (lambda w: request(w, body(1), "Origin: http://evil.example"), 403),
    "half of a number": (lambda w: request(w, body(1), "Tarn-Producer: p"), 400),
    "two names": (
        lambda w: request(w, body(1), "Tarn-Producer: p", "Tarn-Sequence: 0", "Idempotency-Key: k"),
        400,
    ),
    "an unknown promise": (
        lambda w: request(w, body(1), path="/v1/tables/bronze.orders/rows?durability=x"),
        400,
    ),
    "another method": (lambda w: request(w, body(1), method="PUT"), 405),
    "another path": (lambda w: request(w, body(1), path="/v1/tables/bronze.orders"), 404),
    "another table": (lambda w: request(w, body(1), path="/v1/tables/bronze.nothing/rows"), 404),
    "a caller who may not": (lambda w: request(w, body(1), who="bob"), 403),
    "many rows": (lambda w: request(w, b"[" + b",".join([b'{"id":1}'] * 1_200) + b"]"), 200),
    "an empty body": (lambda w: request(w, b""), 400),
    "chunks": (
        lambda w: request(w, b'9\r\n{"id": 1}\r\n0\r\n\r\n', "Transfer-Encoding: chunked", length=False),
        200,
    ),
}


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_no_plain_write_is_served_as_before(world: World, taken: list[bool], what: str) -> None:
    make, status = UNUSUAL[what]
    world.principal("bob", "READ")
    gateway = world.gateway()
    known = Known(world, gateway)
    found = known.ask(make(world))
    assert found[0] == status, found
    assert True not in taken
    nothing_held(gateway.memory)
    assert known.ask(request(world, body(9)))[0] == 200, "the connection goes on"
    assert taken[-1]


def test_a_client_that_says_what_goes_without_saying_is_taken(world: World, taken: list[bool]) -> None:
    known = Known(world, world.gateway())
    assert known.ask(request(world, body(1), "Connection: Keep-Alive"))[0] == 200
    assert taken == [True]


def test_a_client_that_wants_to_end_is_answered_and_the_connection_ends(world: World) -> None:
    known = Known(world, world.gateway())
    status, fields, _ = known.ask(request(world, body(1), "Connection: close"))
    assert (status, fields["connection"]) == (200, "close")
    assert known.ended()


def test_a_right_that_was_taken_away_ends_within_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    world.principal("bob", "WRITE")
    gateway = world.gateway()
    known = Known(world, gateway)
    wanted = request(world, body(1), who="bob")
    assert known.ask(wanted)[0] == 200
    assert known.ask(wanted)[0] == 200
    assert taken == [False, True]
    world.revoke("bob", "WRITE")
    clock = gateway.gate._clock
    monkeypatch.setattr(gateway.gate, "_clock", lambda: clock() + access.ALLOWED_S)
    assert known.ask(wanted)[0] == 403


def test_no_room_or_pressure_or_a_full_queue_is_left_to_those_who_say_it(
    world: World, monkeypatch: pytest.MonkeyPatch, taken: list[bool]
) -> None:
    memory = Memory(60_000, wait_s_max=0.2)
    body_limits = AppLimits().body
    gateway = world.gateway(memory=memory, app=AppLimits(body=replace(body_limits, bytes_max=20_000)))
    known = Known(world, gateway)
    others = {"somebody": 40_000, "another": 19_990}
    for who, held in others.items():
        memory.count(who, held)
    status, _, said = known.ask(request(world, body(1)))
    assert (status, taken) == (503, [False])
    assert "there was no room" in said["error"]["message"]
    for who, held in others.items():
        memory.count(who, -held)
    known.socket.close()
    nothing_held(memory)


def nothing_held(memory: Memory) -> None:
    """An answer is held for a moment after its client has read it."""
    eventually(lambda: memory.held == 0, timeout_s=WITHIN_S, what="nothing is held", pause_s=0.01)


@contextmanager
def one_on_its_way(world: World, gateway: Gateway, held: Held) -> Iterator[Known]:
    """A connection with a write whose commit hangs."""
    held.go.set()
    known = Known(world, gateway)
    held.go.clear()
    asked = held.asked
    known.socket.sendall(request(world, body(1), "Tarn-Producer: p", "Tarn-Sequence: 0"))
    eventually(lambda: held.asked > asked, timeout_s=WITHIN_S, what="it is on its way", pause_s=0.01)
    try:
        yield known
    finally:
        held.go.set()


def test_what_follows_on_the_connection_waits_for_the_answer_before(world: World, taken: list[bool]) -> None:
    held = Held()
    gateway = world.gateway(catalog=held)
    with one_on_its_way(world, gateway, held) as known:
        more = [request(world, body(n), "Tarn-Producer: p", f"Tarn-Sequence: {n - 1}") for n in range(2, 6)]
        known.socket.sendall(b"".join(more))
        known.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            known.answer()
        assert taken == [True], "the next one is not looked at"
        known.socket.settimeout(WITHIN_S)
        held.go.set()
        assert [known.answer()[0] for _ in range(5)] == [200] * 5
    assert taken == [True] * 5
    assert world.ids() == [1, 2, 3, 4, 5, 1_000]


def test_a_write_that_is_late_is_unknown_and_holds_its_memory_until_it_has_landed(
    world: World, taken: list[bool]
) -> None:
    held = Held()
    gateway = world.gateway(catalog=held, app=AppLimits(answer_s_max=4))
    with one_on_its_way(world, gateway, held) as known:
        status, _, said = known.answer()
        assert (status, said["error"]["type"], taken) == (504, "OutcomeUnknown", [True])
        rows = len(body(1))
        eventually(lambda: gateway.memory.held == rows, timeout_s=WITHIN_S, what="its rows are there")
        held.go.set()
        nothing_held(gateway.memory)

    def repeated() -> Any | None:
        status, _, said = known.ask(request(world, body(1), "Tarn-Producer: p", "Tarn-Sequence: 0"))
        return None if status == 504 else (status, said["repeated"])

    assert eventually(repeated, timeout_s=60, what="an answer in time") == (200, True)
    assert world.ids() == [1, 1_000]


def test_a_client_that_leaves_takes_nothing_with_it(world: World) -> None:
    held = Held()
    gateway = world.gateway(catalog=held)
    with one_on_its_way(world, gateway, held) as known:
        known.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        known.socket.close()
        held.go.set()
        eventually(
            lambda: world.ids() == [1, 1_000], timeout_s=WITHIN_S, what="the row is there", pause_s=0.02
        )
    nothing_held(gateway.memory)
    assert world.post(gateway, row(2)).status_code == 200


def test_a_gateway_that_ends_answers_what_it_has(world: World) -> None:
    held = Held()
    gateway = world.gateway(catalog=held)
    with one_on_its_way(world, gateway, held) as known:
        gateway._server.should_exit = True
        eventually(
            lambda: not gateway._server.servers[0].sockets, timeout_s=WITHIN_S, what="it ends", pause_s=0.01
        )
        held.go.set()
        status, fields, _ = known.answer()
        assert (status, fields["connection"]) == (200, "close")
        assert known.ended()


def test_a_gateway_that_waits_no_longer_says_that_it_is_not_known(world: World) -> None:
    held = Held()
    gateway = world.gateway(catalog=held)
    with one_on_its_way(world, gateway, held) as known:
        gateway._server.should_exit = True
        status, fields, said = known.answer()
        assert (status, said["error"]["type"]) == (504, "OutcomeUnknown")
        assert "the gateway stops" in said["error"]["message"]
        assert fields["connection"] == "close"
        assert known.ended()


@pytest.mark.parametrize("then", ["reads", "leaves"])
@pytest.mark.parametrize(("rows", "answer_bytes"), [(400, 40_000), (10_000, 1_000_000)])
def test_an_answer_is_held_until_its_client_has_read_it(
    world: World, taken: list[bool], rows: int, answer_bytes: int, then: str
) -> None:
    """One that names many bad rows is ten times as large as their body. A second one waits behind it."""
    gateway = world.gateway()
    known = Known(world, gateway)
    sent = request(world, json.dumps([{"y": 1}] * rows, separators=(",", ":")).encode())
    together, count = 10_000 // rows, 0

    def held() -> bool:
        nonlocal count
        if gateway.memory.held < 2 * answer_bytes:
            count += together  # the kernel has all of those before
            known.socket.sendall(together * sent)
            time.sleep(0.3)
        return gateway.memory.held >= 2 * answer_bytes

    assert eventually(held, timeout_s=60, what="answers that are not read")
    assert any(taken) is (rows == 400)
    if then == "reads":
        assert {known.answer()[0] for _ in range(count)} == {422}
    else:
        known.socket.close()
    assert eventually(lambda: gateway.memory.held == 0, timeout_s=WITHIN_S, what="nothing that is held")
