"""The proxy before the catalog, in front of a server that counts what arrives."""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from tarn_testkit import fault_proxy
from tarn_testkit.fault_proxy import FolderPlan
from tests.support.stack import eventually

COMMIT = "/v1/tarn/namespaces/a/tables/b"


class Counting(BaseHTTPRequestHandler):
    arrived: list[tuple[str, str, bytes]]
    hosts: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        self.do_POST()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4711")
        self.end_headers()

    def do_POST(self) -> None:
        self.hosts.append(self.headers["Host"])
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.arrived.append((self.path, self.headers["Idempotency-Key"] or "", body))
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"done")


class Way:
    """A client's way through the proxy."""

    def __init__(
        self, port: int, folder: Path, arrived: list[tuple[str, str, bytes]], hosts: list[str]
    ) -> None:
        self.port, self.folder, self.arrived, self.hosts = port, folder, arrived, hosts

    def plan(self, text: str) -> None:
        (self.folder / "plan").write_text(text)

    def post(self, path: str = COMMIT, method: str = "POST") -> tuple[int, bytes] | None:
        """Status and body; None if the connection was closed without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=40)
        try:
            connection.request(method, path, b"body", {"Idempotency-Key": "k", "Expect": "100-continue"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (http.client.RemoteDisconnected, ConnectionResetError):
            return None
        finally:
            connection.close()


@pytest.fixture
def what() -> str:
    return "commits"


@pytest.fixture
def way(tmp_path: Path, what: str) -> Iterator[Way]:
    arrived: list[tuple[str, str, bytes]] = []
    hosts: list[str] = []
    seen = type("Own", (Counting,), {"arrived": arrived, "hosts": hosts})
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), seen)
    proxy = fault_proxy.serve(0, "127.0.0.1", upstream.server_address[1], FolderPlan(tmp_path), what)
    for server in (upstream, proxy):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Way(proxy.server_address[1], tmp_path, arrived, hosts)
    for server in (proxy, upstream):
        server.shutdown()
        server.server_close()


@pytest.mark.long
def test_without_a_plan_all_passes_with_its_key(way: Way) -> None:
    assert way.post() == (200, b"done")
    assert way.arrived == [(COMMIT, "k", b"body")]
    assert not (way.folder / "done").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "answer", "arrived"),
    [
        ("reply", None, 1),
        ("cut", None, 0),
        ("502", 502, 0),
        ("504-done", 504, 1),
    ],
)
def test_the_plan_is_done_once_and_counted(way: Way, kind: str, answer: int | None, arrived: int) -> None:
    way.plan(f"{kind} 1\n")
    found = way.post()
    assert (found[0] if found else None) == answer
    assert len(way.arrived) == arrived
    assert way.post() == (200, b"done")
    assert len(way.arrived) == arrived + 1
    assert [line.split()[0] for line in (way.folder / "done").read_text().splitlines()] == [kind]


@pytest.mark.long
def test_only_commits_are_broken(way: Way) -> None:
    way.plan("cut 1\n")
    assert way.post("/v1/oauth/tokens") == (200, b"done")
    assert way.post() is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "broken"),
    [
        ("/v1/namespaces/a/tables/t/metrics", False),
        ("/v1/namespaces/a/tables", False),
        ("/v1/namespaces/a/tables/t", True),
        ("/v1/namespaces/a/tables/t?x=1", True),
        ("/v1/warehouse/namespaces/a/tables/t", True),
        ("/v1/tables/rename", True),
        ("/v1/transactions/commit", True),
    ],
)
def test_a_commit_is_known_by_its_path(way: Way, path: str, broken: bool) -> None:
    way.plan("cut 1\n")
    assert (way.post(path) is None) is broken


@pytest.mark.long
def test_a_late_commit_arrives_after_its_answer(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    waited, go = list[float](), threading.Event()

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        assert go.wait(40)

    monkeypatch.setattr(fault_proxy, "time", SimpleNamespace(sleep=sleep, time=time.time))
    way.plan("late 1\n")
    found = way.post()
    assert found is not None
    assert (found[0], way.arrived) == (504, [])
    go.set()
    statuses = way.folder / "statuses"
    eventually(
        lambda: statuses.exists() and statuses.read_text() == "200\n",
        timeout_s=40,
        what="its answer",
        pause_s=0.05,
    )
    assert (waited, len(way.arrived)) == ([fault_proxy.LATE_S], 1)


@pytest.mark.long
@pytest.mark.parametrize("what", ["pointers"])
def test_before_the_store_writes_of_pointers_are_broken(way: Way) -> None:
    """Its errors are the store's; signatures stay valid, as they cover the name that was asked for."""
    pointer = "/tarn/catalog/v1/pointers/bronze/a.json"
    way.plan("409 1\n503-done 1\n")
    assert way.post(pointer) == (200, b"done"), "no PUT"
    assert way.post("/tarn/warehouse/a.parquet", "PUT") == (200, b"done")
    assert way.hosts == [f"127.0.0.1:{way.port}"] * 2
    found = [way.post(pointer, "PUT") for _ in range(3)]
    assert [one[0] if one else None for one in found] == [409, 503, 200]
    codes = [re.findall(rb"<Code>(\w+)</Code>", one[1]) for one in found if one]
    assert codes == [[b"ConditionalRequestConflict"], [b"SlowDown"], []]
    assert len(way.arrived) == 4


@pytest.mark.long
@pytest.mark.parametrize("what", ["commits", "pointers"])
def test_the_length_of_an_object_passes(way: Way) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", way.port, timeout=40)
    connection.request("HEAD", "/tarn/a")
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("Content-Length")) == (200, "4711")
    connection.close()


@pytest.mark.long
def test_a_body_in_chunks_arrives_whole(way: Way) -> None:
    """As clients send rows of a generator, whose length they do not know."""
    connection = http.client.HTTPConnection("127.0.0.1", way.port, timeout=40)
    for _ in range(2):
        connection.request("POST", COMMIT, iter([b"first, ", b"second" * 1000]), encode_chunked=True)
        assert connection.getresponse().read() == b"done"
    connection.close()
    assert [body for _, _, body in way.arrived] == [b"first, " + b"second" * 1000] * 2
