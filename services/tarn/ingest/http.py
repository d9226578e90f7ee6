"""Status server: /health, /status and /metrics. Reads the registry; only the deep health check blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

from tarn.core.hosts import Hosts
from tarn.ingest.status import StatusRegistry, faults, hanging, to_metrics

REQUEST_TIMEOUT_S = 5.0
OWN_HOSTS = Hosts.of("ingest")


class StatusServer:
    """Serves the status registry over HTTP on a thread of its own.

    Args:
        registry: status registry to show.
        listen: address to listen on.
        port: TCP port; 0 takes a free one.
        clock: monotonic time in seconds, the clock of the registry's writers.
        deep: checks of the deep health check beyond the registry; returns their faults.
        hosts: accepted values of the Host header.
    """

    def __init__(
        self,
        registry: StatusRegistry,
        *,
        listen: str,
        port: int,
        clock: Callable[[], float],
        deep: Callable[[], list[str]] = lambda: [],
        hosts: Hosts = OWN_HOSTS,
    ) -> None:
        class Handler(_Handler):
            pass

        Handler.registry = registry
        Handler.clock = staticmethod(clock)
        Handler.deep = staticmethod(deep)
        Handler.hosts = hosts
        self._server = ThreadingHTTPServer((listen, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="status", daemon=True)

    @property
    def port(self) -> int:
        """The TCP port that the server listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    registry: StatusRegistry
    clock: Callable[[], float]
    deep: Callable[[], list[str]]
    hosts: Hosts
    timeout = REQUEST_TIMEOUT_S
    # Send headers and body in one write; separate writes would wait for a delayed TCP ACK.
    wbufsize = -1
    disable_nagle_algorithm = True
    server_version = "tarn"
    sys_version = ""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        deep = path == "/health" and query == "deep"  # writes to the store
        headers = {name.lower(): value for name, value in self.headers.items()}
        refusal = self.hosts.refusal("GET", headers, changes=deep)
        if refusal is not None:
            self._answer(refusal.status, orjson.dumps({"error": refusal.message}))
        elif path == "/health":
            found = faults(self.registry, now_s=self.clock(), deep=query in ("deep", "lag"))
            if deep and not found:
                found = self.deep()
            stuck = hanging(self.registry, now_s=self.clock())
            body = {"healthy": not found, "faults": found, "hanging": stuck}
            self._answer(503 if found else 200, orjson.dumps(body))
        elif path == "/status":
            self._answer(200, self._status())
        elif path == "/metrics":
            self._answer(
                200, to_metrics(self.registry).encode(), kind="text/plain; version=0.0.4; charset=utf-8"
            )
        else:
            self._answer(
                404, orjson.dumps({"error": "no such page; there are /health, /status and /metrics"})
            )

    def log_message(self, format: str, *args: object) -> None:
        """Suppress access logs: probes send a request every few seconds."""

    def _status(self) -> bytes:
        now = self.clock()
        return orjson.dumps(
            {
                "service": "ingest",
                "ingestors": {n: s.to_json() for n, s in self.registry.ingestors().items()},
                "dependencies": {
                    n: {"ok": d.ok, "message": d.message, "ageSeconds": round(now - d.looked_s, 1)}
                    for n, d in self.registry.dependencies().items()
                },
                "faults": faults(self.registry, now_s=now),
            },
            option=orjson.OPT_INDENT_2,
        )

    def _answer(self, status: int, body: bytes, *, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
