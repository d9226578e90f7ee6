"""The HTTP client sends each request once, and says whether one that has no answer may have arrived."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import urllib3.util.connection
from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NameResolutionError,
    ProtocolError,
    ReadTimeoutError,
)

from tarn.adapters import http_client
from tarn.adapters.http_client import HttpClient, NoAnswerError, NotSentError
from tarn.core.errors import InvalidError
from tests.support.stack import eventually

LONG = 300_000


class Served:
    """A server that notes what it was sent, and answers by the last word of the path."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections: set[int] = set()
        self.silence = threading.Event()
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: object) -> None:
                """Log nothing."""

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                served.connections.add(self.client_address[1])
                headers = {k.lower(): v for k, v in self.headers.items()}
                served.seen.append((self.command, self.path, headers, body))
                how = self.path.rpartition("/")[2]
                if how == "cut":
                    self.close_connection = True
                    self.connection.close()
                elif how == "half":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{")
                    self.close_connection = True
                elif how == "silent":
                    served.silence.wait(110)
                    self.close_connection = True
                elif how == "moved":
                    self.reply(302, b"", Location="/elsewhere")
                elif how == "long":
                    self.reply(200, bytes(LONG))
                else:
                    self.reply(429, b"later", **{"Retry-After": "7"})

            do_GET = do_POST = handle_any  # noqa: N815 - the library's names

            def reply(self, status: int, body: bytes, **headers: str) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_arguments: None  # type: ignore[method-assign]
        self.uri = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    found.thread.start()
    yield found
    found.silence.set()
    found.server.shutdown()
    found.server.server_close()
    found.thread.join()


@pytest.fixture
def client(served: Served) -> Iterator[HttpClient]:
    made = HttpClient(f"{served.uri}/base/", read_timeout_s=60)
    yield made
    made.close()


def test_a_request_and_its_answer_arrive_whole(served: Served, client: HttpClient) -> None:
    answer = client.send("POST", "/v1/a%1Fb?x=1", body=b"rows", headers={"Authorization": "Bearer t"})
    assert (answer.status, answer.body) == (429, b"later")
    assert answer.headers["retry-after"] == answer.headers["Retry-After"] == "7"
    ((method, path, headers, body),) = served.seen
    assert (method, path, body) == ("POST", "/base/v1/a%1Fb?x=1", b"rows")
    assert headers["authorization"] == "Bearer t"
    assert headers["content-length"] == "4"
    assert "cookie" not in headers


def test_a_post_without_a_body_says_so(served: Served, client: HttpClient) -> None:
    client.send("POST", "/v1/x", body=None, headers={})
    client.send("GET", "/v1/x", body=None, headers={})
    assert served.seen[0][2]["content-length"] == "0"
    assert "content-length" not in served.seen[1][2]


def test_a_connection_is_kept(served: Served, client: HttpClient) -> None:
    for _ in range(3):
        assert len(client.send("GET", "/long", body=None, headers={}).body) == LONG
    assert len(served.connections) == 1


def test_a_client_that_was_closed_opens_another_connection(served: Served, client: HttpClient) -> None:
    client.send("GET", "/ok", body=None, headers={})
    client.close()
    client.send("GET", "/ok", body=None, headers={})
    assert len(served.connections) == 2


def test_a_process_that_was_forked_opens_connections_of_its_own(
    served: Served, client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send("GET", "/ok", body=None, headers={})
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for _ in range(2):
        client.send("GET", "/ok", body=None, headers={})
    assert len(served.connections) == 2, "on the parent's each would read the other's answers"


def test_a_redirect_is_an_answer(served: Served, client: HttpClient) -> None:
    assert client.send("GET", "/moved", body=None, headers={}).status == 302
    assert len(served.seen) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("how", "why"),
    [("cut", "without response"), ("half", "IncompleteRead"), ("silent", r"Read timed out\. .*=0\.5")],
)
def test_without_a_whole_answer_nothing_is_sent_again(
    method: str, how: str, why: str, served: Served
) -> None:
    client = HttpClient(f"{served.uri}/base/", read_timeout_s=0.5 if how == "silent" else 60)
    with closing(client), pytest.raises(NoAnswerError, match=why):
        client.send(method, f"/{how}", body=b"x", headers={})
    eventually(lambda: bool(served.seen), timeout_s=60, what="the request", pause_s=0.01)
    assert len(served.seen) == 1


def test_a_connection_that_the_server_closed_is_replaced(served: Served, client: HttpClient) -> None:
    with pytest.raises(NoAnswerError):
        client.send("POST", "/cut", body=b"x", headers={})
    assert client.send("POST", "/ok", body=b"y", headers={}).status == 429
    assert [body for _, _, _, body in served.seen] == [b"x", b"y"]


def test_where_nobody_listens_nothing_was_sent() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = HttpClient(f"http://127.0.0.1:{nobody.getsockname()[1]}", read_timeout_s=60)
        with pytest.raises(NotSentError) as found:
            away.send("POST", "/", body=b"x", headers={})
    assert str(found.value) == "Connection refused"


def test_to_a_name_without_an_address_nothing_was_sent() -> None:
    with pytest.raises(NotSentError, match=r"Failed to resolve 'nobody\.invalid'"):
        HttpClient("http://nobody.invalid:1", read_timeout_s=1).send("POST", "/", body=b"x", headers={})


def test_a_connection_that_nobody_takes_in_time_was_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*arguments: object, **options: object) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(urllib3.util.connection, "create_connection", late)
    with pytest.raises(NotSentError, match="timed out"):
        HttpClient("http://127.0.0.1:9", read_timeout_s=0.5).send("POST", "/", body=b"x", headers={})


@pytest.mark.parametrize(
    "uri", ["", "catalog:8181", "s3://tarn", "http://", "http://:8181", "http://c:x", "http://c:0", "//c/x"]
)
def test_what_is_no_address_is_refused(uri: str) -> None:
    with pytest.raises(InvalidError, match="is no address of a server; give one as in http://catalog:8181"):
        HttpClient(uri, read_timeout_s=1)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ReadTimeoutError(HTTPConnectionPool("c"), "/v1", "Read timed out."), "Read timed out."),
        (
            MaxRetryError(
                HTTPConnectionPool("c"), "/v1", NameResolutionError("c", HTTPConnection("c"), OSError("?"))
            ),
            "Failed to resolve 'c' (?)",
        ),
        (ProtocolError("aborted", ConnectionResetError(104, "reset")), "reset"),
        (ConnectTimeoutError(), "ConnectTimeoutError"),
    ],
)
def test_the_cause_is_what_is_wrapped(error: HTTPError, words: str) -> None:
    assert http_client.cause(error) == words
