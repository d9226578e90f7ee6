"""The proxy before the catalog, in front of a server that counts what arrives."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import fault_proxy
from tests.support.stack import eventually

COMMIT = "/v1/tarn/namespaces/a/tables/b"


class Counting(BaseHTTPRequestHandler):
    arrived: list[tuple[str, str, bytes]]

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.arrived.append((self.path, self.headers["Idempotency-Key"] or "", body))
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"done")


class Way:
    """A client's way through the proxy."""

    def __init__(self, port: int, folder: Path, arrived: list[tuple[str, str, bytes]]) -> None:
        self.port, self.folder, self.arrived = port, folder, arrived

    def plan(self, text: str) -> None:
        (self.folder / "plan").write_text(text)

    def post(self, path: str = COMMIT) -> tuple[int, bytes] | None:
        """Status and body; None if the connection was closed without an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("POST", path, b"body", {"Idempotency-Key": "k"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (http.client.RemoteDisconnected, ConnectionResetError):
            return None
        finally:
            connection.close()


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    arrived: list[tuple[str, str, bytes]] = []
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Counting,), {"arrived": arrived}))
    proxy = fault_proxy.serve(0, "127.0.0.1", upstream.server_address[1], tmp_path)
    for server in (upstream, proxy):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Way(proxy.server_address[1], tmp_path, arrived)
    for server in (proxy, upstream):
        server.shutdown()
        server.server_close()


def test_without_a_plan_all_passes_with_its_key(way: Way) -> None:
    assert way.post() == (200, b"done")
    assert way.arrived == [(COMMIT, "k", b"body")]
    assert not (way.folder / "done").exists()


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


def test_only_commits_are_broken(way: Way) -> None:
    way.plan("cut 1\n")
    assert way.post("/v1/oauth/tokens") == (200, b"done")
    assert way.post() is None


def test_a_late_commit_arrives_after_its_answer(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_proxy, "LATE_S", 0.3)
    way.plan("late 1\n")
    found = way.post()
    assert found is not None
    assert (found[0], way.arrived) == (504, [])
    eventually(lambda: way.arrived, timeout_s=10, what="the late commit", pause_s=0.05)
    eventually(lambda: (way.folder / "statuses").exists(), timeout_s=10, what="its answer", pause_s=0.05)
    assert (way.folder / "statuses").read_text() == "200\n"
