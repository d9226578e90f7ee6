"""A server that echoes, over a real socket, and a client that sends byte by byte."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tarn.adapters.connections import CONNECTIONS_MAX, Visitors, door
from tarn.adapters.http_server import bound, listener

HEAD_BYTES_MAX = 4_096
CHUNKED = b"transfer-encoding: chunked"
HOST = b"host: localhost\r\n"
GET = b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n"
Serve = Callable[..., "Echo"]


class Echo:
    """A server that answers with what it read; `/refuse` answers before the body, `/part` only begins.

    Args:
        count_max: how many connections it has at one time.
        send_bytes: how much of an answer the kernel takes, about; None for the usual.
        loop: runs its event loop.
        **waits: time limits of its connections, in seconds.

    Attributes:
        visitors: its connections.
        seen: the paths of the requests that reached the application.
    """

    def __init__(
        self,
        *,
        count_max: int = CONNECTIONS_MAX,
        send_bytes: int | None = None,
        loop: Callable[..., None] = asyncio.run,
        **waits: float,
    ) -> None:
        self.visitors = Visitors(count_max)
        self.seen: list[str] = []
        self.waits = threading.Event()
        protocol = door(self.visitors, head_bytes_max=HEAD_BYTES_MAX, **waits)  # type: ignore[arg-type]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await self._app(scope, receive, send)

        self._server = listener(app, protocol, stop_wait_s=1)
        at = bound("127.0.0.1", 0, variables=("A", "B"))
        self.address = at.getsockname()
        if send_bytes is not None:
            at.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        self._thread = threading.Thread(target=lambda: loop(self._server.serve(sockets=[at])), daemon=True)
        self._thread.start()
        until_s = time.monotonic() + 60
        while not self._server.started:
            assert time.monotonic() < until_s
            time.sleep(0.005)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(scope["raw_path"].decode())
        request = Request(scope, receive)
        if scope["path"] == "/wait":
            await asyncio.to_thread(self.waits.wait, 110)
        if scope["path"] == "/part":
            fields = [(b"content-length", b"10")]
            await send({"type": "http.response.start", "status": 200, "headers": fields})
            await send({"type": "http.response.body", "body": b"12345", "more_body": True})
        try:
            body = b"" if scope["path"] == "/refuse" else await request.body()
        except ClientDisconnect:
            return
        if scope["path"] == "/part":
            await send({"type": "http.response.body", "body": b"67890"})
            return
        fields = [[n.decode("latin-1"), v.decode("latin-1")] for n, v in scope["headers"]]
        found = {
            "method": scope["method"],
            "path": scope["raw_path"].decode(),
            "query": scope["query_string"].decode(),
            "headers": fields,
            "body": body.decode("latin-1"),
        }
        await Response(json.dumps(found), status_code=401 if scope["path"] == "/refuse" else 200)(
            scope, receive, send
        )

    def stop(self) -> None:
        self.waits.set()
        self._server.should_exit = True
        self._thread.join(timeout=60)

    def connect(self) -> Client:
        return Client(socket.create_connection(self.address, timeout=60))


class Client:
    """One connection, byte by byte."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._came = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Client:
        self.socket.sendall(data)
        return self

    def _more(self) -> bool:
        try:
            part = self.socket.recv(65_536)
        except ConnectionResetError:
            return False
        self._came += part
        return bool(part)

    def answer(self, *, bodiless: bool = False) -> tuple[int, dict[str, str], bytes]:
        """The next answer."""
        while b"\r\n\r\n" not in self._came:
            assert self._more(), f"closed after {self._came!r}"
        head, _, self._came = self._came.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        size = 0 if bodiless else int(headers.get("content-length", "0"))
        while len(self._came) < size:
            assert self._more(), f"closed after {self._came!r}"
        body, self._came = self._came[:size], self._came[size:]
        return int(first.split()[1]), headers, body

    def echo(self) -> dict[str, Any]:
        status, _, body = self.answer()
        assert status == 200, body
        found: dict[str, Any] = json.loads(body)
        return found

    def ends(self) -> bytes:
        """What comes until the server closes."""
        while self._more():
            pass
        return self._came


def post(*fields: bytes, path: bytes = b"/a", version: bytes = b"1.1") -> bytes:
    lines = [b"POST " + path + b" HTTP/" + version, b"host: localhost", *fields, b"", b""]
    return b"\r\n".join(lines)
