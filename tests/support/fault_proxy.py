"""An HTTP proxy before the catalog that loses, breaks and delays commits; in a container, stdlib only.

    python fault_proxy.py PORT UPSTREAM_HOST UPSTREAM_PORT FOLDER

`FOLDER/plan` has lines `kind count`, taken from top to bottom by the commits that pass; each one that was
broken is a line of `FOLDER/done`, each answer of the catalog to a commit one of `FOLDER/statuses`, each
request that arrived late one of `FOLDER/landed`. Kinds:

    reply          forwarded, and the connection is closed without an answer
    cut            closed without being forwarded
    500, 502, 504  answered so without being forwarded
    500-done, …    forwarded, and answered so
    late           answered 504, forwarded 3 s later
    slow           forwarded after 75 s
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LATE_S = 3.0
SLOW_S = 75.0
TIMEOUT_S = 60.0
HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}

Answer = tuple[int, list[tuple[str, str]], bytes]


class Plan:
    """The plan of a folder; thread-safe within this process, written by others between runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def next(self) -> str:
        """The kind of the next commit; empty for none."""
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
        """Note the status of a commit's answer by the catalog."""
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

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def forward(self, body: bytes) -> Answer:
        """Send the request on; the answer."""
        host, port = self.upstream
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in {*HOP, "host"}}
            connection.request(self.command, self.path, body or None, {**headers, "Host": f"{host}:{port}"})
            answer = connection.getresponse()
            kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in HOP]
            return answer.status, kept, answer.read()
        finally:
            connection.close()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer the client."""
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def pass_on(self) -> None:
        """Forward the request, unless the plan says otherwise."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        commit = self.command == "POST" and "/tables/" in self.path
        kind = self.plan.next() if commit else ""
        if kind == "cut":
            self.close_connection = True
            return
        if kind in ("500", "502", "504"):
            self.answer(int(kind), [], b'{"error": {"message": "broken on purpose"}}')
            return
        if kind == "late":
            threading.Thread(target=self.later, args=(body,), daemon=True).start()
            self.answer(504, [], b'{"error": {"message": "late on purpose"}}')
            return
        if kind == "slow":
            time.sleep(SLOW_S)
        try:
            status, headers, found = self.forward(body)
        except OSError:
            self.close_connection = True
            return
        finally:
            if kind == "slow":
                self.plan.landed(kind)
        if commit:
            self.plan.saw(status)
        if kind == "reply":
            self.close_connection = True
            return
        if kind.endswith("-done"):
            status, headers, found = int(kind.partition("-")[0]), [], b'{"error": {"message": "after it"}}'
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


def serve(port: int, host: str, upstream_port: int, folder: Path) -> ThreadingHTTPServer:
    """A server that listens, and does not serve yet; port 0 for any."""
    made = type("Bound", (Handler,), {"plan": Plan(folder), "upstream": (host, upstream_port)})
    return ThreadingHTTPServer(("0.0.0.0", port), made)


if __name__ == "__main__":
    with serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])) as server:
        server.serve_forever()
