"""A door that loses answers: a proxy of the notebook's own between a client and a service of the lake."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

TIMEOUT_S = 60.0
HOP_BY_HOP = frozenset({"connection", "host", "keep-alive", "transfer-encoding", "content-length"})


class LossyProxy:
    """Forwards requests to a service, and can drop answers after the service has done its work.

    As a context manager it listens on a free port of the loopback.

    Args:
        uri: address of the service.

    Attributes:
        dropped: how many answers were dropped.
        forwarded: how many requests were forwarded.
    """

    def __init__(self, uri: str) -> None:
        self.dropped = 0
        self.forwarded = 0
        self._target = urlsplit(uri)
        self._to_drop = 0
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                proxy._forward(self)

            def do_GET(self) -> None:
                proxy._forward(self)

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def uri(self) -> str:
        """Its own address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def drop(self, answers: int = 1) -> None:
        """Drop the next answers: the service does its work, and the client's connection ends."""
        with self._lock:
            self._to_drop = answers

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="lossy-proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _forward(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        headers = {n: v for n, v in request.headers.items() if n.lower() not in HOP_BY_HOP}
        there = http.client.HTTPConnection(
            self._target.hostname or "", self._target.port or 80, timeout=TIMEOUT_S
        )
        try:
            there.request(request.command, request.path, body=body or None, headers=headers)
            answer = there.getresponse()
            data = answer.read()
        finally:
            there.close()
        with self._lock:
            self.forwarded += 1
            lose = self._to_drop > 0
            if lose:
                self._to_drop -= 1
                self.dropped += 1
        if lose:
            request.close_connection = True
            return
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP_BY_HOP and name.lower() not in ("date", "server"):
                request.send_header(name, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)
