"""An HTTP proxy that loses, breaks and delays writes; stdlib only, as this file also runs in a container.

    python fault_proxy.py PORT UPSTREAM_HOST UPSTREAM_PORT FOLDER [commits|pointers|rows]

Before the catalog it breaks commits, before the store writes of pointers, before the gateway writes of rows.
`FOLDER/plan` has lines `kind count`, taken from top to bottom by the writes that pass; each one that was
broken is a line of `FOLDER/done`, each answer to a write one of `FOLDER/statuses`, each request that arrived
late one of `FOLDER/landed`. In a test's own process the plan is an object (`MemoryPlan`). Kinds:

    reply          forwarded, and the connection is closed without an answer
    cut            closed without being forwarded
    500, 503, …    answered so without being forwarded
    500-done, …    forwarded, and answered so
    late           answered 504, forwarded 3 s later
    slow           forwarded after 75 s
    held           forwarded after 1 s, so that other writers are first
"""

from __future__ import annotations

import http.client
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

LATE_S = 3.0
SLOW_S = 75.0
HELD_S = 1.0
TIMEOUT_S = 60.0
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
WRITES = {
    # A commit to one table, a rename, a commit to several tables; not a table's report of metrics.
    "commits": ("POST", re.compile(r"/tables/[^/?]+(\?|$)|/transactions/commit(\?|$)")),
    "pointers": ("PUT", re.compile("/catalog/v1/pointers/")),
    "rows": ("POST", re.compile("/rows")),
}
"""Name -> method, and what the path has, of what is broken."""
TEXTS = {"409": "ConditionalRequestConflict", "503": "SlowDown"}
"""Status -> the store's code of the error."""

Answer = tuple[int, list[tuple[str, str]], bytes]


class Plan(Protocol):
    """What becomes of the writes that pass."""

    def next(self) -> str:
        """The kind of the next write; empty for none."""

    def saw(self, status: int) -> None:
        """Note the status of the answer to a write."""

    def landed(self, kind: str) -> None:
        """Note that a request that was held back has arrived."""


class MemoryPlan:
    """A `Plan` of this process; thread-safe.

    Attributes:
        done: kinds of the writes that were broken, in their order.
        statuses: statuses of the answers to writes, as the upstream gave them.
        late: kinds of the requests that arrived late.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.statuses: list[int] = []
        self.late: list[str] = []
        self._left: list[str] = []
        self._lock = threading.Lock()

    def add(self, kind: str, count: int) -> None:
        """Plan so many writes of a kind after those that are planned."""
        with self._lock:
            self._left += [kind] * count

    def next(self) -> str:
        """See `Plan.next`."""
        with self._lock:
            if not self._left:
                return ""
            self.done.append(self._left.pop(0))
            return self.done[-1]

    def saw(self, status: int) -> None:
        """See `Plan.saw`."""
        with self._lock:
            self.statuses.append(status)

    def landed(self, kind: str) -> None:
        """See `Plan.landed`."""
        with self._lock:
            self.late.append(kind)


class FolderPlan:
    """The plan of a folder; thread-safe within this process, written by others between runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def next(self) -> str:
        """The kind of the next write; empty for none."""
        file = self._folder / "plan"
        with self._lock:
            lines = file.read_text().split("\n") if file.exists() else []
            wanted = [line.split() for line in lines if line.strip()]
            if not wanted:
                return ""
            kind, count = wanted[0][0], int(wanted[0][1]) - 1
            rest = [[kind, str(count)]] * (count > 0) + wanted[1:]
            file.write_text("".join(f"{' '.join(line)}\n" for line in rest))
            with (self._folder / "done").open("a") as done:
                done.write(f"{kind} {time.time():.3f}\n")
            return kind

    def saw(self, status: int) -> None:
        """Note the status of the answer to a write."""
        with self._lock, (self._folder / "statuses").open("a") as seen:
            seen.write(f"{status}\n")

    def landed(self, kind: str) -> None:
        """Note that a request that was held back has arrived."""
        with self._lock, (self._folder / "landed").open("a") as seen:
            seen.write(f"{kind} {time.time():.3f}\n")


class Handler(BaseHTTPRequestHandler):
    """Forwards one connection's requests."""

    protocol_version = "HTTP/1.1"
    plan: Plan
    upstream: tuple[str, int]
    what: str

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def forward(self, body: bytes) -> Answer:
        """Send the request on; the answer."""
        host, port = self.upstream
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP}
            if self.what != "pointers":
                # Signatures for the store cover the name that was asked for; the catalog knows its own.
                headers = {k: v for k, v in headers.items() if k.lower() != "host"}
                headers["Host"] = f"{host}:{port}"
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            dropped = HOP - {"content-length"} if self.command == "HEAD" else HOP
            kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in dropped]
            return answer.status, kept, answer.read()
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer the client."""
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status: str) -> bytes:
        """The body of a made-up answer."""
        if self.what != "pointers":
            return b'{"error": {"message": "broken on purpose"}}'
        code = TEXTS.get(status, "InternalError")
        return f"<Error><Code>{code}</Code><Message>broken on purpose</Message></Error>".encode()

    def body(self) -> bytes:
        """The body of the request, of the length that it says or in chunks, as of a generator."""
        if "chunked" not in (self.headers.get("Transfer-Encoding") or "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue  # what may follow the last chunk
        return b"".join(parts)

    def pass_on(self) -> None:
        """Forward the request, unless the plan says otherwise."""
        body = self.body()
        method, part = WRITES[self.what]
        write = self.command == method and part.search(self.path) is not None
        kind = self.plan.next() if write else ""
        if kind == "cut":
            self.close_connection = True
            return
        if kind.isdecimal():
            self.answer(int(kind), [], self.error(kind))
            return
        if kind == "late":
            threading.Thread(target=self.later, args=(body,), daemon=True).start()
            self.answer(504, [], b'{"error": {"message": "late on purpose"}}')
            return
        if kind in ("slow", "held"):
            time.sleep(SLOW_S if kind == "slow" else HELD_S)
        try:
            status, headers, found = self.forward(body)
        except OSError:
            self.close_connection = True
            return
        finally:
            if kind == "slow":
                self.plan.landed(kind)
        if write:
            self.plan.saw(status)
        if kind == "reply":
            self.close_connection = True
            return
        if kind.endswith("-done"):
            status, headers, found = int(kind.partition("-")[0]), [], self.error(kind.partition("-")[0])
        self.answer(status, headers, found)

    def later(self, body: bytes) -> None:
        """Forward the request some time after it was answered."""
        time.sleep(LATE_S)
        try:
            self.plan.saw(self.forward(body)[0])
        except OSError:
            return
        finally:
            self.plan.landed("late")

    do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = pass_on  # noqa: N815 - names of the base class


def serve(
    port: int, host: str, upstream_port: int, plan: Plan, what: str = "commits", *, listen: str = "0.0.0.0"
) -> ThreadingHTTPServer:
    """A server that listens, and does not serve yet.

    Args:
        port: port to listen on; 0 for any.
        host: host of the upstream.
        upstream_port: port of the upstream.
        plan: what becomes of the writes.
        what: which writes those are, see `WRITES`.
        listen: address to listen on; by default all, as in a container of its own.
    """
    made = type("Bound", (Handler,), {"plan": plan, "upstream": (host, upstream_port), "what": what})
    return ThreadingHTTPServer((listen, port), made)


if __name__ == "__main__":
    with serve(
        int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), FolderPlan(Path(sys.argv[4])), *sys.argv[5:]
    ) as server:
        server.serve_forever()
