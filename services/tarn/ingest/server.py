"""The HTTP server of ingest, on a thread of its own, with the limits that all of Tarn's servers have."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from tarn.adapters.connections import Visitors, door
from tarn.adapters.http_server import BACKLOG, bound, listener
from tarn.core.hosts import Hosts
from tarn.ingest.fsck_look import FsckSeen
from tarn.ingest.lake_look import LakeSeen
from tarn.ingest.status import StatusRegistry
from tarn.ingest.status_api.app import StatusApp
from tarn.ingest.status_api.views import Engine
from tarn.ingest.strikes import Strikes
from tarn.ingest.table_look import TableLook

HEAD_BYTES_MAX = 16 << 10
REQUEST_WAIT_S = 5.0
"""How long a client may take for the head of its request, and for reading the answer, in seconds."""
CONNECTIONS_MAX = 128
STOP_WAIT_S = 1
OWN_HOSTS = Hosts.of("ingest")


class StatusServer:
    """Serves the status registry over HTTP.

    Args:
        registry: status registry to show.
        listen: address to listen on.
        port: TCP port; 0 takes a free one.
        clock: monotonic time in seconds, the clock of the registry's writers.
        deep: checks of the deep health check beyond the registry; returns their faults.
        hosts: accepted values of the Host header.
        wake: has the controller look now; called by `POST /wake`.
        lake: what was seen of the lake last.
        now_ms: wall-clock time in milliseconds since the epoch.
        version: version of Tarn.
        look: looks into a table; None: there is no catalog to ask.
        stream_url: address of the service stream, for the page; empty if there is none.
        strikes: makes faults by hand; None: nobody may.
        fsck: what fsck found last.

    Raises:
        InvalidSettingError: the address cannot be used; the message names the variables.
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
        wake: Callable[[], None] = lambda: None,
        lake: Callable[[], LakeSeen] = LakeSeen,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        version: str = "",
        look: TableLook | None = None,
        stream_url: str = "",
        strikes: Strikes | None = None,
        fsck: Callable[[], FsckSeen] = FsckSeen,
    ) -> None:
        engine = Engine(
            registry=registry,
            lake=lake,
            clock=clock,
            now_ms=now_ms,
            started_ms=now_ms(),
            version=version,
            look=look,
            stream_url=stream_url,
            strikes=strikes,
            fsck=fsck,
        )
        app = StatusApp(engine, deep=deep, hosts=hosts, wake=wake)
        protocol = door(
            Visitors(CONNECTIONS_MAX),
            head_bytes_max=HEAD_BYTES_MAX,
            head_wait_s=REQUEST_WAIT_S,
            answer_wait_s=REQUEST_WAIT_S,
        )
        self._server = listener(app.asgi(), protocol, stop_wait_s=STOP_WAIT_S)
        self._at = bound(listen, port, variables=("TARN_INGEST_LISTEN", "TARN_INGEST_PORT"))
        # From here on clients may connect; they wait until the server takes them.
        self._at.listen(BACKLOG)
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    @property
    def port(self) -> int:
        """The TCP port that the server listens on."""
        return int(self._at.getsockname()[1])

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(STOP_WAIT_S + 5)
        self._at.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._at]))
