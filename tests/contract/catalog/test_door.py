"""Connections of the catalog: responses leave at once; silent, slow and unknown clients block nobody else."""

from __future__ import annotations

import functools
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tarn.adapters.connections import Visitors, door
from tarn.adapters.store import MemoryStore
from tarn.core.naming import WarehouseLayout
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.namespaces import Namespaces, Page
from tarn_catalog.rest import app, server
from tarn_catalog.rest.auth import Authenticator
from tarn_catalog.settings import Settings
from tarn_catalog.testing.server import Running, serving

ASKED = 100
DELAYED_ACK_MS_MIN = 40


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The server's side of every connection."""
    found: list[Any] = []
    made = HttpToolsProtocol.connection_made

    def connection_made(self: HttpToolsProtocol, transport: Any) -> None:
        found.append(transport)
        made(self, transport)

    monkeypatch.setattr(HttpToolsProtocol, "connection_made", connection_made)
    return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    catalog = Catalog(MemoryStore(), WarehouseLayout(base="s3://tarn"))
    with serving(catalog, tmp_path / "secrets") as running:
        yield running


def address(uri: str) -> tuple[str, int]:
    host, _, port = uri.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_answers_do_not_wait_for_an_acknowledgement(accepted: list[Any], running: Running) -> None:
    for uri in (running.inside, running.published):
        connection = http.client.HTTPConnection(*address(uri), timeout=60)
        times_ms = []
        for _ in range(ASKED):
            began = time.perf_counter()
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
            times_ms.append((time.perf_counter() - began) * 1000)
        (server_side,) = accepted
        option = server_side.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert option != 0
        # A kernel acknowledges the first 16 segments at once; a delayed ACK would slow most of them.
        assert sorted(times_ms)[ASKED // 4] < DELAYED_ACK_MS_MIN, sorted(times_ms)
        connection.close()
        accepted.clear()


def connect(uri: str) -> socket.socket:
    return socket.create_connection(address(uri), timeout=60)


def head(method: str, path: str, **headers: object) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{n.replace('_', '-')}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """The next response on a connection, which stays open."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, {n.lower(): v for n, v in response.getheaders()}, response.read()


def token(running: Running) -> str:
    name, secret = running.credential.split(":")
    form = f"grant_type=client_credentials&client_id={name}&client_secret={secret}".encode()
    connection = http.client.HTTPConnection(*address(running.published), timeout=60)
    connection.request("POST", "/v1/oauth/tokens", form)
    found = json.loads(connection.getresponse().read())["access_token"]
    connection.close()
    return f"Bearer {found}"


def closed(connection: socket.socket) -> bool:
    """Wait for the other side to close the connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8181", 200),
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8181", 200),
        ("catalog:8181", 200),
        ("catalog.:8181", 200),
        ("lake.example", 200),
        ("evil.example", 421),
        ("evil.example:8181", 421),
        ("127.0.0.1.evil.example", 421),
        ("catalog.evil.example:8181", 421),
        ("localhost@evil.example", 421),
        ("192.168.1.7:8181", 421),
        ("[::2]:8181", 421),
        ("", 421),
        (":8181", 421),
        ("localhost:", 421),
        ("localhost:8181:1", 421),
    ],
)
def test_only_known_hosts_are_answered(tmp_path: Path, host: str, status: int) -> None:
    settings = Settings(hosts="lake.example")
    with serving(
        Catalog(MemoryStore(), WarehouseLayout(base="s3://tarn")), tmp_path / "secrets", settings
    ) as running:
        for uri, path in ((running.inside, "/health"), (running.published, "/health")):
            with connect(uri) as connection:
                connection.sendall(head("GET", path, host=host))
                found, headers, body = answer(connection)
                assert found == status
                assert "access-control-allow-origin" not in headers
                if status == 421:
                    error = json.loads(body)["error"]
                    assert (error["code"], error["type"]) == (421, "MisdirectedRequestException")
                    assert repr(host) in error["message"]
                    assert "TARN_HOSTS" in error["message"]


def test_another_sites_page_changes_nothing(running: Running) -> None:
    host, authorization = running.published.removeprefix("http://"), token(running)
    port = host.rpartition(":")[2]
    body = b'{"namespace":["ns"]}'
    foreign: tuple[dict[str, str], ...] = (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": f"http://localhost:{port}"},
        {"origin": f"http://127.0.0.1:{port}.evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    )
    own: tuple[dict[str, str], ...] = (
        {},
        {"origin": f"http://{host}", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
    )

    def send(method: str, path: str, sent: bytes, page: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        with connect(running.published) as connection:
            asked = head(
                method, path, host=host, authorization=authorization, content_length=len(sent), **page
            )
            connection.sendall(asked + sent)
            return answer(connection)

    for page in foreign:
        for method, path in (
            ("POST", "/v1/namespaces"),
            ("DELETE", "/v1/namespaces/ns"),
            ("POST", "/v1/oauth/tokens"),
        ):
            status, headers, told = send(method, path, body, page)
            assert status == 403, (page, method, path)
            assert "another origin" in json.loads(told)["error"]["message"]
            assert "access-control-allow-origin" not in headers
    status, headers, told = send("GET", "/v1/namespaces", b"", {"origin": "http://evil.example"})
    assert (status, json.loads(told)["namespaces"]) == (200, [])
    assert "access-control-allow-origin" not in headers, "the page may not read it"
    status, headers, _ = send("OPTIONS", "/v1/namespaces", b"", {"origin": "http://evil.example"})
    assert status == 405
    assert not [name for name in headers if name.startswith("access-control")]
    for number, page in enumerate(own):
        wanted = json.dumps({"namespace": [f"n{number}"]}).encode()
        assert send("POST", "/v1/namespaces", wanted, page)[0] == 200, page


def test_who_shows_no_token_is_answered_before_the_body(running: Running) -> None:
    for authorization in ({}, {"authorization": "Bearer x"}):
        with connect(running.published) as connection:
            size = app.BODY_BYTES_MAX - 1
            connection.sendall(
                head("POST", "/v1/namespaces", host="localhost", content_length=size, **authorization)
            )
            status, headers, _ = answer(connection)
            assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="tarn"')


def test_a_defect_is_an_answer_in_words_and_the_next_request_works(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = head("GET", "/v1/namespaces", host="localhost", authorization=token(running))
    for where, name in ((Authenticator, "principal"), (Namespaces, "children")):
        with connect(running.published) as connection, monkeypatch.context() as broken:
            broken.setattr(where, name, lambda *_, **__: 1 / 0)
            connection.sendall(asked)
            status, _, body = answer(connection)
            assert status == 500
            assert "Internal error: ZeroDivisionError; see the log" in json.loads(body)["error"]["message"]
            broken.undo()
            connection.sendall(asked)
            assert answer(connection)[0] == 200


def test_a_stranger_may_send_a_form_and_no_more(running: Running) -> None:
    for path in ("/v1/oauth/tokens", "/health"):
        method = "GET" if path == "/health" else "POST"
        with connect(running.published) as connection:
            connection.sendall(
                head(method, path, host="localhost", content_length=app.STRANGERS_BODY_BYTES_MAX + 1)
            )
            assert answer(connection)[0] == 413
        with connect(running.published) as connection:
            connection.sendall(head(method, path, host="localhost", transfer_encoding="chunked"))
            chunk = b"%x\r\n" % app.STRANGERS_BODY_BYTES_MAX + b"a" * app.STRANGERS_BODY_BYTES_MAX + b"\r\n"
            connection.sendall(chunk + b"1\r\na\r\n")
            assert answer(connection)[0] == 413


def test_a_body_of_many_values_is_refused_before_it_is_parsed(running: Running) -> None:
    connection = http.client.HTTPConnection(*address(running.published), timeout=60)
    body = b'{"namespace":[' + b"{}," * 1_000_000 + b"{}]}"
    connection.request("POST", "/v1/namespaces", body, {"authorization": token(running)})
    told = connection.getresponse()
    assert told.status == 413
    message = json.loads(told.read())["error"]["message"]
    connection.close()
    assert message.startswith(f"The request body of {len(body)} bytes may take ")
    assert message.endswith("split the request")


Serve = Callable[..., Running]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a catalog with small limits."""
    with ExitStack() as stack:

        def start(connections_max: int = 512, **waits: float) -> Running:
            monkeypatch.setattr(server, "door", functools.partial(door, **waits))
            monkeypatch.setattr(app, "Visitors", lambda: Visitors(connections_max))
            catalog = Catalog(MemoryStore(), WarehouseLayout(base="s3://tarn"))
            return stack.enter_context(serving(catalog, tmp_path / "secrets"))

        yield start


def test_silent_connections_make_room_for_others(serve: Serve) -> None:
    running = serve(connections_max=8, head_wait_s=60)
    authorization = token(running)
    list_all = head("GET", "/v1/namespaces", host="localhost", authorization=authorization)
    with ExitStack() as stack:
        guest = stack.enter_context(connect(running.published))
        guest.sendall(list_all)
        assert answer(guest)[0] == 200
        silent = [stack.enter_context(connect(running.published)) for _ in range(30)]
        # Once these are closed, all have been accepted: those that come after another one make it go.
        assert all(closed(connection) for connection in silent[:23]), "the oldest ones went"
        # New clients are served by either listener, and one that has sent a valid token is not disconnected.
        for uri in (running.inside, running.published):
            with connect(uri) as connection:
                connection.sendall(list_all)
                assert answer(connection)[0] == 200
        guest.sendall(list_all)
        assert answer(guest)[0] == 200


def test_known_clients_that_are_silent_make_room_where_there_is_no_stranger(serve: Serve) -> None:
    running = serve(connections_max=4)
    asked = head("GET", "/v1/namespaces", host="localhost", authorization=token(running))
    with ExitStack() as stack:
        guests = [stack.enter_context(connect(running.published)) for _ in range(4)]
        for guest in guests:
            guest.sendall(asked)
            assert answer(guest)[0] == 200
        with connect(running.published) as connection:
            connection.sendall(asked)
            assert answer(connection)[0] == 200
        assert closed(guests[0]), "the one that was silent for longest"
        guests[3].sendall(asked)
        assert answer(guests[3])[0] == 200


def test_strangers_who_send_half_a_form_make_room_too(serve: Serve) -> None:
    running = serve(connections_max=8, head_wait_s=60)
    authorization = token(running)
    half = head("POST", "/v1/oauth/tokens", host="localhost", content_length=100) + b"grant_type="
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(connect(running.published)).sendall(half)
        with connect(running.published) as connection:
            connection.sendall(head("GET", "/v1/namespaces", host="localhost", authorization=authorization))
            assert answer(connection)[0] == 200


def test_a_head_must_come_in_time_however_it_is_spread(serve: Serve) -> None:
    running = serve(head_wait_s=0.3)
    with connect(running.published) as silent:
        assert closed(silent)
    with connect(running.published) as dripping:
        dripping.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
        dripping.settimeout(0.02)
        until = time.monotonic() + 60
        while True:
            assert time.monotonic() < until, "it is still open"
            try:
                dripping.sendall(b"a")
                if dripping.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except (ConnectionResetError, BrokenPipeError):
                break
    running = serve(head_wait_s=20)  # a machine that stands still must not end this one
    with connect(running.published) as patient:
        for _ in range(3):
            patient.sendall(head("GET", "/health", host="localhost"))
            assert answer(patient)[0] == 200


def test_a_body_must_come_in_time(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    authorization = token(running)
    monkeypatch.setattr(app, "BODY_WAIT_S_MAX", 0.3)
    monkeypatch.setattr(app, "STRANGERS_BODY_WAIT_S_MAX", 0.2)
    for path, wait_s in (("/v1/namespaces", 0.3), ("/v1/oauth/tokens", 0.2)):
        with connect(running.published) as connection:
            asked = head("POST", path, host="localhost", authorization=authorization, content_length=10)
            connection.sendall(asked + b"{")
            status, headers, body = answer(connection)
            assert (status, headers["retry-after"]) == (503, "1")
            message = json.loads(body)["error"]["message"]
            assert message == f"The request body did not come within {wait_s} s; send it faster"


def test_who_comes_while_all_are_being_served_is_told_to_come_back(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = serve(connections_max=1)
    asked = head("GET", "/v1/namespaces", host="localhost", authorization=token(running))
    entered, go_on = threading.Event(), threading.Event()

    def wait(*_: object, **__: object) -> Page:
        entered.set()
        assert go_on.wait(timeout=60)
        return Page(names=[], next_token=None)

    monkeypatch.setattr(Namespaces, "children", wait)
    with connect(running.published) as first:
        first.sendall(asked)
        assert entered.wait(timeout=60)
        with connect(running.published) as second, connect(running.inside) as third:
            third.sendall(asked)
            assert answer(third)[0] == 503
            assert closed(second), "it was silent"
        go_on.set()
        assert answer(first)[0] == 200


def test_an_answer_must_be_read_in_time(serve: Serve) -> None:
    running = serve(answer_wait_s=0.3)
    asked = head("GET", "/v1/config", host="localhost", authorization=token(running)) * 20

    def fill(connection: socket.socket) -> None:
        """Fill the kernels' socket buffers until the other side gives up."""
        for _ in range(10_000):
            connection.sendall(asked)

    with connect(running.published) as connection, pytest.raises((ConnectionResetError, BrokenPipeError)):
        fill(connection)


def test_the_name_that_it_listens_at_is_its_own() -> None:
    hosts = Settings(catalog_host="catalog.own").own_hosts
    assert hosts.refusal("GET", {"host": "catalog.own:8181"}) is None
    assert hosts.refusal("GET", {"host": "trino.own:8181"}) is not None
