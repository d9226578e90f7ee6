"""Many writers of one table: none refused, no file written in vain, served evenly, and others unhindered."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from structlog.testing import capture_logs

from tarn.adapters.store import MemoryStore
from tarn.core.errors import ConflictError, TarnError
from tarn.core.naming import TRANSACTIONS_PREFIX
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import TableIdentifier, placed, pointer_change
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.rest import app
from tarn_catalog.rest.lines import Lines, Place
from tarn_catalog.rest.routes import SEVERAL
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.record import Record, RecordState
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.state.transactions import ParticipantChange, Renew
from tarn_catalog.testing.faulty_store import FaultyStore, Op, no_faults
from tarn_catalog.testing.server import Running, serving
from tests.contract.catalog.test_commits import NEW, ROOTS, SECOND, SLOT, append, repeat
from tests.support.contention import race

WAIT_S_MAX = 60.0
TABLE = "/v1/namespaces/ns/tables/t"


def set_to(**properties: str) -> list[Any]:
    return [{"action": "set-properties", "updates": properties}]


class World:
    """A lake with two tables whose store takes a while for everything, or stands still at commits to one."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory, lambda _: time.sleep(delay_s) if delay_s else None)
        self.healthy = Catalog(self.memory, ROOTS)
        self.healthy.namespaces.create(("ns",), {})
        for slot in (SLOT, SECOND):
            self.healthy.tables.create(slot, NEW)
        self.catalog = Catalog(self.store, ROOTS)
        self.go_on = threading.Event()
        self.stands: list[str] = []

    def stand_still(self) -> None:
        """From now on no pointer of the first table is written until `go_on` is set."""

        def plan(op: Op) -> None:
            if op.kind == "put" and op.key == SLOT.key:
                self.stands.append(op.key)
                assert self.go_on.wait(WAIT_S_MAX)

        self.store.plan = plan

    def files(self, slot: TableIdentifier = SLOT) -> int:
        """How many metadata files the table has, beside the first."""
        folder = ROOTS.key(self.healthy.tables.load(slot).location).rpartition("/")[0]
        return sum(1 for _ in self.memory.list(f"{folder}/")) - 1

    def properties(self, slot: TableIdentifier = SLOT) -> dict[str, str]:
        found = self.healthy.tables.load(slot).parsed["properties"]
        return {name: value for name, value in found.items() if not name.startswith("write.")}


class Client:
    """A client with a token, on one connection."""

    def __init__(self, running: Running) -> None:
        self.running = running
        host, _, port = running.published.removeprefix("http://").rpartition(":")
        self.where = host, int(port)
        self.connection = http.client.HTTPConnection(*self.where, timeout=WAIT_S_MAX)
        self.sockets: list[socket.socket] = []
        client_id, _, secret = running.credential.partition(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        kind = {"content-type": "application/x-www-form-urlencoded"}
        self.connection.request("POST", "/v1/oauth/tokens", urlencode(form), kind)
        answer = json.loads(self.connection.getresponse().read())
        self.token = {"authorization": f"Bearer {answer['access_token']}"}

    def ask(
        self, method: str, path: str, body: Any = None, *, turn: str | None = None
    ) -> tuple[int, dict[str, str], Any]:
        headers = self.token if turn is None else {**self.token, app.TURN: turn}
        self.connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, dict(answer.getheaders()), json.loads(text) if text else None

    def send_and_leave_open(self, path: str, body: Any, *, chunked: bool = False) -> socket.socket:
        """Send a request on a connection of its own and do not wait for the answer."""
        data = json.dumps(body).encode()
        length = f"content-length: {len(data)}"
        if chunked:
            length, data = (
                "transfer-encoding: chunked",
                f"{len(data):x}\r\n".encode() + data + b"\r\n0\r\n\r\n",
            )
        one = socket.create_connection(self.where, timeout=WAIT_S_MAX)
        self.sockets.append(one)
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{length}\r\n"
        one.sendall(f"{head}authorization: {self.token['authorization']}\r\n\r\n".encode() + data)
        return one

    def close(self) -> None:
        for one in (self.connection, *self.sockets):
            one.close()


def commit(**properties: str) -> dict[str, Any]:
    return {"requirements": [], "updates": set_to(**properties)}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Lines]:
    """The lines of every server that is started in the test."""
    found: list[Lines] = []

    def made() -> Lines:
        found.append(Lines())
        return found[-1]

    monkeypatch.setattr(app, "Lines", made)
    return found


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def running(world: World, lines: list[Lines], tmp_path: Path) -> Iterator[Running]:
    with serving(world.catalog, tmp_path / "secrets") as running:
        yield running
        world.go_on.set()


@pytest.fixture
def client(running: Running) -> Iterator[Client]:
    with closing(Client(running)) as client:
        yield client


def test_64_writers_in_process_write_one_file_per_commit_and_are_served_evenly(record_property) -> None:
    world = World(delay_s=0.002)

    def write(writer: int, number: int) -> str | None:
        try:
            world.catalog.tables.commit(SLOT, [], set_to(**{f"w{writer}": str(number)}))
        except TarnError as e:
            return e.message
        return None

    found = race(write, writers=64, commits=64 * 6)
    record_property("commits", found.total)
    assert not found.refused
    assert world.files() == found.total
    assert found.evenness(64) >= 0.5
    assert world.properties() == {f"w{writer}": str(found.done[writer]) for writer in range(64)}


def test_64_writers_over_http_write_one_file_per_commit_and_are_served_evenly(
    tmp_path: Path, record_property
) -> None:
    world = World(delay_s=0.002)
    with serving(world.catalog, tmp_path / "secrets") as running:
        clients = [Client(running) for _ in range(64)]

        def write(writer: int, number: int) -> str | None:
            status, _, answer = clients[writer].ask("POST", TABLE, commit(**{f"w{writer}": str(number)}))
            return None if status == 200 else str(answer)

        found = race(write, writers=64, commits=64 * 4)
    record_property("commits", found.total)
    assert not found.refused
    assert world.files() == found.total
    for client in clients:
        client.close()
    assert found.evenness(64) >= 0.5


def test_writers_that_wait_for_one_table_hinder_no_other(
    world: World, client: Client, lines: list[Lines]
) -> None:
    """More of them than there are threads; the store stands still at their table."""
    world.stand_still()
    count = app.THREADS_MAX + 16
    waiting = [client.send_and_leave_open(TABLE, commit(**{f"w{n}": "1"})) for n in range(count)]
    until(lambda: lines[0].waiting("ns.t") == count - 1)
    assert client.ask("GET", "/v1/namespaces/ns/tables/second")[0] == 200
    assert client.ask("POST", "/v1/namespaces/ns/tables/second", commit(a="1"))[0] == 200
    assert client.ask("GET", TABLE)[0] == 200, "who reads it need not wait"
    assert len(world.stands) == 1, "one commit at a time"
    world.go_on.set()
    for one in waiting:
        assert one.recv(1_000).startswith(b"HTTP/1.1 200")
    assert len(world.properties()) == count == world.files()


def test_requests_of_unknown_length_that_wait_leave_others_room_to_be_read(
    world: World, client: Client, lines: list[Lines]
) -> None:
    """Each might have become as long as the longest; read, they are short."""
    world.stand_still()
    count = 1 + 2 * (app.READING_BYTES_MAX // app.BODY_BYTES_MAX)
    bodies = [commit(**{f"w{n}": "1"}) for n in range(count)]
    waiting = [client.send_and_leave_open(TABLE, body, chunked=True) for body in bodies]
    until(lambda: lines[0].waiting("ns.t") == count - 1)
    assert client.ask("POST", "/v1/namespaces/ns/tables/second", commit(a="1"))[0] == 200
    world.go_on.set()
    for one in waiting:
        assert one.recv(1_000).startswith(b"HTTP/1.1 200")


def test_a_client_that_is_gone_leaves_the_line_and_its_commit_does_not_happen(
    world: World, client: Client, lines: list[Lines]
) -> None:
    world.stand_still()
    stays = client.send_and_leave_open(TABLE, commit(stays="1"))
    until(lambda: len(world.stands) == 1)
    goes = client.send_and_leave_open(TABLE, commit(goes="1"))
    until(lambda: lines[0].waiting("ns.t") == 1)
    last = client.send_and_leave_open(TABLE, commit(last="1"))
    until(lambda: lines[0].waiting("ns.t") == 2)
    goes.close()
    until(lambda: lines[0].waiting("ns.t") == 1)
    world.go_on.set()
    assert stays.recv(1_000).startswith(b"HTTP/1.1 200")
    assert last.recv(1_000).startswith(b"HTTP/1.1 200")
    assert world.properties() == {"stays": "1", "last": "1"}


def test_beyond_the_bound_the_answer_is_503_with_retry_after_and_nothing_is_changed(
    world: World, client: Client, lines: list[Lines]
) -> None:
    lines[0]._waiting_max = 1
    world.stand_still()
    waiting = [client.send_and_leave_open(TABLE, commit(first="1"))]
    until(lambda: len(world.stands) == 1)
    waiting.append(client.send_and_leave_open(TABLE, commit(second="1")))
    until(lambda: lines[0].waiting("ns.t") == 1)
    status, headers, answer = client.ask("POST", TABLE, commit(third="1"))
    assert (status, answer["error"]["type"]) == (503, "ServiceUnavailableException")
    assert int(headers["retry-after"]) >= 1
    assert answer["error"]["message"] == (
        "1 changes of ns.t wait already, and no more may; nothing was changed, try again"
    )
    status, _, _ = client.ask("DELETE", TABLE)
    assert status == 503, "a drop is a change too"
    world.go_on.set()
    for one in waiting:
        assert one.recv(1_000).startswith(b"HTTP/1.1 200")
    assert world.properties() == {"first": "1", "second": "1"}


def overtaken(**properties: str) -> dict[str, Any]:
    """A commit that builds on a snapshot which is no longer the current one."""
    require = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 1}
    return {"requirements": [require], "updates": set_to(**properties)}


def test_a_writer_that_was_overtaken_and_asks_for_it_has_the_next_turn(
    world: World, client: Client, lines: list[Lines]
) -> None:
    lines[0]._reserved_s = 60
    status, headers, _ = client.ask("POST", TABLE, overtaken(a="1"))
    assert (status, headers.get(app.TURN)) == (409, None), "who does not ask is answered at once, as before"
    status, headers, answer = client.ask("POST", TABLE, overtaken(a="1"), turn="next")
    assert (status, answer["error"]["type"]) == (409, "CommitFailedException")
    faster = client.send_and_leave_open(TABLE, commit(faster="1"))
    assert client.ask("GET", TABLE)[0] == 200, "readers do not wait"
    assert world.properties() == {}
    status, _, _ = client.ask("POST", TABLE, commit(a="1"), turn=headers[app.TURN])
    assert status == 200
    assert faster.recv(1_000).startswith(b"HTTP/1.1 200")
    history = world.healthy.tables.load(SLOT).parsed["metadata-log"]
    assert len(history) == 2
    first = json.loads(world.memory.get(ROOTS.key(history[1]["metadata-file"])).data)  # type: ignore[union-attr]
    assert first["properties"]["a"] == "1"
    assert "faster" not in first["properties"]


def test_a_turn_that_its_writer_does_not_take_ends_soon(
    world: World, client: Client, lines: list[Lines]
) -> None:
    lines[0]._reserved_s = 0.05
    status, headers, _ = client.ask("POST", TABLE, overtaken(a="1"), turn="next")
    assert (status, app.TURN in headers) == (409, True)
    assert client.ask("POST", TABLE, commit(other="1"))[0] == 200
    assert client.ask("POST", TABLE, commit(a="1"), turn=headers[app.TURN])[0] == 200
    until(lambda: lines[0]._lines == {})
    assert world.properties() == {"other": "1", "a": "1"}


def test_other_refusals_reserve_no_turn(client: Client, lines: list[Lines]) -> None:
    status, headers, _ = client.ask("POST", TABLE, {"requirements": [], "updates": [{}]}, turn="next")
    assert (status, headers.get(app.TURN)) == (400, None)
    status, headers, _ = client.ask("POST", TABLE.replace("/t", "/none"), overtaken(a="1"), turn="next")
    assert (status, headers.get(app.TURN)) == (404, None)
    assert lines[0]._lines == {}


@pytest.fixture
def others(client: Client, running: Running) -> Iterator[Callable[[str], Client]]:
    """Makes principals without any right; each gets a client of its own."""
    with ExitStack() as stack:

        def made(name: str) -> Client:
            status, _, new = client.ask("POST", "/tarn/v1/principals", {"name": name})
            assert status == 200
            credential = f"{new['client-id']}:{new['client-secret']}"
            return stack.enter_context(closing(Client(replace(running, credential=credential))))

        yield made


def grant(client: Client, to: str, *privileges: str, name: str | None = "t", revoke: bool = False) -> None:
    on = {"kind": "namespace" if name is None else "table", "namespace": ["ns"]}
    body = {"on": on | ({} if name is None else {"name": name}), "to": to, "privileges": [*privileges]}
    status, _, answer = client.ask("POST", "/tarn/v1/grants" + ("/revoke" if revoke else ""), body)
    assert status == 200, answer


def test_who_may_not_change_a_table_takes_no_place_in_its_line(
    world: World, client: Client, lines: list[Lines], others: Callable[[str], Client]
) -> None:
    """And learns nothing: the answer is the same for a full line, an empty one and no table at all."""
    eve, ann = others("eve"), others("ann")
    grant(client, "eve", "READ")
    grant(client, "eve", "CREATE", name=None)
    grant(client, "ann", "WRITE")
    world.stand_still()
    lines[0]._waiting_max = 1
    first = client.send_and_leave_open(TABLE, commit(first="1"))
    until(lambda: len(world.stands) == 1)
    register = {"name": "x", "metadata-location": "s3://tarn/warehouse/x/metadata/y.metadata.json"}
    for waits in (0, 1):
        for method, path, body in (
            ("POST", TABLE, commit(eve="1")),
            ("DELETE", TABLE, None),
            ("POST", "/v1/namespaces/ns/views/t", {"updates": []}),
            ("DELETE", "/v1/namespaces/ns/views/t", None),
            ("POST", "/v1/namespaces/other/tables/none", commit(eve="1")),
            ("POST", "/v1/namespaces/ns/register", register),
            ("POST", "/v1/namespaces/ns/register-view", register),
        ):
            status, _, answer = eve.ask(method, path, body)
            assert (status, answer["error"]["type"]) == (403, "ForbiddenException"), (path, answer)
            assert lines[0].waiting("ns.t") == waits
        if not waits:
            waiting = ann.send_and_leave_open(TABLE, commit(ann="1"))
            until(lambda: lines[0].waiting("ns.t") == 1)
    assert ann.ask("POST", TABLE, commit(ann="2"))[0] == 503, "who may write it finds the line full"
    world.go_on.set()
    for one in (first, waiting):
        assert one.recv(1_000).startswith(b"HTTP/1.1 200")
    assert world.properties() == {"first": "1", "ann": "1"}


def test_who_may_create_waits_for_a_new_table_and_for_no_other(
    world: World, client: Client, lines: list[Lines], others: Callable[[str], Client]
) -> None:
    eve = others("eve")
    grant(client, "eve", "CREATE", name=None)
    place = Place(what="ns.new")

    async def never() -> None:
        await asyncio.Event().wait()

    async def taken() -> None:
        async with lines[0].hold(place, 0, never):
            held.set()
            while not done.is_set():
                await asyncio.sleep(0.01)

    held, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(taken()), daemon=True)
    thread.start()
    new = {"requirements": [{"type": "assert-create"}], "updates": []}
    try:
        assert held.wait(60)
        lines[0]._waiting_max = 0
        assert eve.ask("POST", "/v1/namespaces/ns/tables/new", new)[0] == 503
        assert eve.ask("DELETE", "/v1/namespaces/ns/tables/new")[0] == 404
    finally:
        done.set()
        thread.join(60)


def test_a_commit_that_waited_is_judged_when_its_turn_comes(
    world: World, client: Client, lines: list[Lines], others: Callable[[str], Client]
) -> None:
    """A revocation holds for a request that waits: what counts are the grants of that moment."""
    ann, bob = others("ann"), others("bob")
    for name in ("ann", "bob"):
        grant(client, name, "WRITE")
    world.stand_still()
    first = client.send_and_leave_open(TABLE, commit(first="1"))
    until(lambda: len(world.stands) == 1)
    anns = ann.send_and_leave_open(TABLE, commit(ann="1"))
    until(lambda: lines[0].waiting("ns.t") == 1)
    bobs = bob.send_and_leave_open(TABLE, commit(bob="1"))
    until(lambda: lines[0].waiting("ns.t") == 2)
    grant(client, "ann", "WRITE", revoke=True)
    world.go_on.set()
    assert first.recv(1_000).startswith(b"HTTP/1.1 200")
    assert anns.recv(1_000).startswith(b"HTTP/1.1 403")
    assert bobs.recv(1_000).startswith(b"HTTP/1.1 200")
    assert world.properties() == {"first": "1", "bob": "1"}


def test_commits_to_several_tables_go_on_beside_those_that_stand_still_up_to_eight(
    world: World, client: Client, lines: list[Lines]
) -> None:
    """What they change is in their bodies, so they share one line."""

    def together(name: str) -> dict[str, Any]:
        changed = {"namespace": ["ns"], "name": name}
        return {"table-changes": [{"identifier": changed, **commit(a="1")}]}

    path = "/v1/transactions/commit"
    world.stand_still()
    waiting = [client.send_and_leave_open(path, together("t")) for _ in range(7)]
    until(lambda: bool(world.stands))
    assert client.ask("POST", path, together("second"))[0] == 204
    waiting += [client.send_and_leave_open(path, together("t")) for _ in range(4)]
    until(lambda: lines[0].waiting(SEVERAL.what) == 3)
    world.go_on.set()
    for one in waiting:
        assert one.recv(1_000).startswith(b"HTTP/1.1 204")


# -- commits to several tables

MANY = [TableIdentifier.of(("ns",), f"t{number:02}") for number in range(24)]


def many(world: World) -> list[Change]:
    for slot in MANY:
        world.healthy.tables.create(slot, NEW)
    return [Change(slot=slot, requirements=[], updates=set_to(together="1")) for slot in MANY]


def test_a_commit_to_many_tables_is_not_aborted_while_it_goes_on(record_property) -> None:
    """Its intents take three times as long as others wait for one that does not move.

    Time passes with each request of the slow one, 25 ms: a machine that stands still stops the clock too.
    """
    world = World()
    changes = many(world)
    waits, taken = threading.Event(), threading.Event()

    def plan(op: Op) -> None:
        if taken.is_set():
            assert waits.wait(WAIT_S_MAX)
        elif op.kind == "put" and op.key == MANY[0].key:
            taken.set()
        time.sleep(0.002)

    def clock_s() -> float:
        return len(world.store.seen) * 0.025

    def sleep(_: float) -> None:
        waits.set()
        time.sleep(0.001)

    world.store.plan = plan
    looking, patience = RetryPolicy(clock=clock_s, sleep=sleep), RetryPolicy(clock=clock_s)
    other = Catalog(world.memory, ROOTS, intent_wait_ms=250, patience=looking)
    slow = Catalog(world.store, ROOTS, intent_wait_ms=250, patience=patience)
    with capture_logs() as logs, ThreadPoolExecutor(1) as pool:
        done = pool.submit(slow.together.commit, changes)
        until(lambda: world.healthy.core.read(MANY[0].key, Pointer.load).value.intent is not None)
        began_s = clock_s()
        other.tables.commit(MANY[0], [], set_to(alone="1"))
        waited_s = clock_s() - began_s
        done.result(WAIT_S_MAX)
    record_property("waited_s", waited_s)
    assert waited_s > 0.4, "it had to wait longer than for a transaction that stands still"
    assert not [line for line in logs if line["event"] == "transaction aborted"]
    assert all(world.properties(slot)["together"] == "1" for slot in MANY)
    assert world.properties(MANY[0]) == {"together": "1", "alone": "1"}
    assert [world.files(slot) for slot in MANY[1:]] == [1] * (len(MANY) - 1)
    assert not list(world.memory.list(TRANSACTIONS_PREFIX)), "its record is removed"


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_commit_to_many_tables_beside_a_busy_writer_of_one_is_carried_out_and_keeps_its_files(
    replicas: int, record_property
) -> None:
    world = World()
    changes = many(world)
    world.store.plan = lambda _: time.sleep(0.002)
    busy = MANY[len(MANY) // 2]
    slow = Catalog(world.store, ROOTS)
    writer = slow if replicas == 1 else Catalog(world.store, ROOTS)
    stop, commits = threading.Event(), Counter[str]()

    def write() -> None:
        while not stop.is_set():
            commits["n"] += 1
            writer.tables.commit(busy, [], set_to(alone=str(commits["n"])))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(write)
        try:
            until(lambda: commits["n"] > 3)
            for number in range(3):
                slow.together.commit(changes)
                changes = [
                    replace(change, updates=set_to(together=f"round {number}, {n}"))
                    for n, change in enumerate(changes)
                ]
        finally:
            stop.set()
        running.result(WAIT_S_MAX)
    record_property("commits beside it", commits["n"])
    assert world.properties(busy)["alone"] == str(commits["n"]), "the busy one was refused nothing"
    assert all(world.properties(slot)["together"] for slot in MANY)
    others = [world.files(slot) for slot in MANY if slot != busy]
    assert others == [3] * len(others), "what another writer did not change is written once"


def test_a_table_that_was_changed_meanwhile_is_judged_on_what_it_is_now(world: World) -> None:
    """Another replica changes one of three after it was judged; the requirement holds still, or not."""
    slots = MANY[:3]
    for slot in slots:
        world.healthy.tables.create(slot, NEW)
    uuids = {slot: world.healthy.tables.load(slot).parsed["table-uuid"] for slot in slots}
    changes = [
        Change(
            slot=slot,
            requirements=[{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1}],
            updates=set_to(together="1"),
        )
        for slot in slots
    ]
    left = iter([set_to(meanwhile="1")])

    def plan(op: Op, key: str = slots[1].key) -> None:
        if op.kind == "put" and op.key == key:
            for updates in left:
                world.healthy.tables.commit(slots[1], [], updates)

    world.store.plan = plan
    world.catalog.together.commit(changes)
    assert world.properties(slots[1]) == {"meanwhile": "1", "together": "1"}
    assert [world.files(slot) for slot in slots] == [1, 3, 1]
    field = {"id": 2, "name": "y", "type": "long", "required": False}
    schema = {"type": "struct", "schema-id": 1, "fields": [*_fields(world, slots[1]), field]}
    left = iter([[{"action": "add-schema", "schema": schema}]])
    world.store.plan = plan
    changes = [replace(change, updates=set_to(z="1")) for change in changes]
    with pytest.raises(ConflictError, match="last assigned field id"):
        world.catalog.together.commit(changes)
    world.store.plan = no_faults
    assert not any("z" in world.properties(slot) for slot in slots)
    assert {slot: world.healthy.tables.load(slot).parsed["table-uuid"] for slot in slots} == uuids
    for slot in slots:
        world.healthy.tables.commit(slot, [], set_to(after="1"))
    assert not list(world.memory.list(TRANSACTIONS_PREFIX))


def test_pointers_are_taken_in_the_order_of_their_keys_whatever_the_client_names_first(world: World) -> None:
    slots = MANY[:4]
    for slot in slots:
        world.healthy.tables.create(slot, NEW)
    world.store.seen.clear()
    changes = [Change(slot=slot, requirements=[], updates=set_to(a="1")) for slot in reversed(slots)]
    world.catalog.together.commit(changes)
    keys = [slot.key for slot in slots]
    written = [op.key for op in world.store.seen if op.kind == "put" and op.key in keys]
    assert written[: len(keys)] == sorted(keys)


def test_a_commit_that_others_abort_writes_no_metadata_again(world: World) -> None:
    slots = MANY[:3]
    for slot in slots:
        world.healthy.tables.create(slot, NEW)
    aborted: list[str] = []

    def plan(op: Op) -> None:
        if op.kind == "put" and op.key == slots[2].key and not aborted:
            (record,) = world.memory.list(TRANSACTIONS_PREFIX)
            aborted.append(record.key)
            held = world.healthy.core.read(record.key, Record.load)
            world.healthy.transactions._decide(held, RecordState.ABORTED)

    world.store.plan = plan
    changes = [Change(slot=slot, requirements=[], updates=set_to(together="1")) for slot in slots]
    world.catalog.together.commit(changes)
    assert aborted
    assert [world.properties(slot) for slot in slots] == [{"together": "1"}] * 3
    assert [world.files(slot) for slot in slots] == [1, 1, 1]


@pytest.mark.parametrize("keyed", [True, False])
def test_a_commit_to_several_tables_that_a_repeat_of_it_outran_is_done_once(
    world: World, keyed: bool
) -> None:
    slots = MANY[:3]
    for slot in slots:
        world.healthy.tables.create(slot, NEW)
    key = repeat(1, at_ms=time.time_ns() // 1_000_000) if keyed else None
    changes = [
        Change(slot=slot, requirements=[], updates=set_to(a="1") if keyed else append(n, None, 1)[1])
        for n, slot in enumerate(slots, start=1)
    ]
    left = iter([changes])

    def plan(op: Op) -> None:
        if op.kind == "put" and op.key == slots[0].key:
            for same in left:
                world.healthy.together.commit(same, repeat=key)

    world.store.plan = plan
    world.catalog.together.commit(changes, repeat=key)
    assert [world.files(slot) for slot in slots] == [2, 2, 2], "one of each, and one of each in vain"
    assert [world.healthy.tables.pointer(slot).value.metadata for slot in slots] == [
        world.healthy.tables.load(slot).location for slot in slots
    ]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s

    def patience(self) -> RetryPolicy:
        return RetryPolicy(clock=lambda: self.now_s, sleep=self.sleep)


def changes_of_two(catalog: Catalog) -> list[ParticipantChange]:
    parts = []
    for slot in (SLOT, SECOND):
        held = catalog.tables.pointer(slot)
        assert held.value.metadata is not None
        parts.append(pointer_change(slot, held, placed(slot, held.value.uuid, held.value.metadata)))
    return parts


def test_a_transaction_is_renewed_for_20_s_and_not_for_ever(world: World) -> None:
    clock = Clock()
    catalog = Catalog(world.store, ROOTS, patience=clock.patience())
    writes: list[float] = []

    def confirm(renew: Renew) -> None:
        def plan(op: Op) -> None:
            assert (op.kind, op.key.startswith(TRANSACTIONS_PREFIX)) == ("put", True)
            writes.append(clock.now_s)

        world.store.plan = plan
        while clock.now_s < 60.0:
            clock.sleep(0.1)
            renew()
        world.store.plan = no_faults

    assert catalog.transactions.run(changes_of_two(catalog), confirm=confirm)
    gaps = [after - before for before, after in pairwise(writes)]
    assert 0.5 <= min(gaps) <= max(gaps) < 1.0, "often enough within 2 s"
    assert 19.0 < writes[-1] <= 20.0


def test_a_transaction_that_others_aborted_is_not_renewed_and_changes_nothing(world: World) -> None:
    clock = Clock()
    catalog = Catalog(world.store, ROOTS, patience=clock.patience())
    before = {slot: world.healthy.tables.pointer(slot).value.metadata for slot in (SLOT, SECOND)}
    steps: list[str] = []

    def confirm(renew: Renew) -> None:
        (record,) = world.memory.list(TRANSACTIONS_PREFIX)
        held = world.healthy.core.read(record.key, Record.load)
        world.healthy.transactions._decide(held, RecordState.ABORTED)
        steps.append("aborted")
        clock.sleep(1.0)
        renew()
        steps.append("went on")

    assert catalog.transactions.run(changes_of_two(catalog), confirm=confirm) is None
    assert steps == ["aborted"]
    for slot, location in before.items():
        world.healthy.tables.commit(slot, [], set_to(after="1"))
        assert world.healthy.tables.load(slot).parsed["metadata-log"][-1]["metadata-file"] == location


def _fields(world: World, slot: TableIdentifier) -> list[Any]:
    return list(world.healthy.tables.load(slot).parsed["schemas"][-1]["fields"])
