"""The door that loses answers: the work is done, the answer is gone, and only as often as asked for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tarn.core.errors import UnavailableError
from tarn.workshop.lossy import LossyProxy
from tarn.workshop.web import Web


class Service:
    """A service that keeps the bodies that it got, and answers with their number and one header."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        kept, paths = self.bodies, self.paths

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                paths.append(self.path)
                kept.append(self.rfile.read(int(self.headers["Content-Length"])))
                data = json.dumps({"number": len(kept), "key": self.headers["Idempotency-Key"]}).encode()
                self.send_response(200)
                self.send_header("X-From", "service")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.long
def test_it_forwards_bodies_and_headers_both_ways(service: Service) -> None:
    with LossyProxy(service.uri) as door:
        answer = Web("service", door.uri).ask("POST", "rows", {"a": 1}, headers={"Idempotency-Key": "k"})
    assert (answer.status, answer.body) == (200, {"number": 1, "key": "k"})
    assert answer.headers["x-from"] == "service"
    assert service.bodies == [b'{"a": 1}']
    assert (door.forwarded, door.dropped) == (1, 0)


@pytest.mark.long
def test_a_dropped_answer_is_one_whose_work_was_done(service: Service) -> None:
    with LossyProxy(service.uri) as door:
        door.drop(answers=2)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="service does not answer"):
                Web("service", door.uri).ask("POST", "rows", b"x")
        answer = Web("service", door.uri).ask("POST", "rows", b"x")
    assert answer.body["number"] == 3, "all three were done"
    assert (door.forwarded, door.dropped) == (3, 2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("v1/tables/ws_ada.my table/rows", "/v1/tables/ws_ada.my%20table/rows"),
        ("v1/tables/ws_ada.tä?limit=2&after=a%2Fb", "/v1/tables/ws_ada.t%C3%A4?limit=2&after=a%2Fb"),
    ],
)
def test_a_name_with_a_space_or_an_umlaut_is_no_service_that_does_not_answer(
    service: Service, path: str, sent: str
) -> None:
    assert Web("service", service.uri).ask("POST", path, b"x").status == 200
    assert service.paths == [sent]
