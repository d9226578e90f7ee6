"""A proxy between the test's own client and the catalog or the gateway, in the test's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyiceberg.catalog import load_catalog

from tarn_testkit.errors import KitError
from tarn_testkit.fault_proxy import LATE_S, TIMEOUT_S, MemoryPlan, serve
from tarn_testkit.waiting import eventually

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

LATE_POLL_S = 0.05
BREAKS = {"catalog": "commits", "gateway": "rows"}
"""Service -> what of it is broken, see `fault_proxy.WRITES`."""
FAULTS = ("reply", "cut", "500", "502", "503", "504", "500-done", "502-done", "503-done", "504-done", "late")


class Proxy:
    """A running proxy. All requests pass, but for the writes that are planned to be broken.

    Attributes:
        uri: its address, for a client in place of the service's own.
    """

    def __init__(self, uri: str, service: str, client: Mapping[str, str], plan: MemoryPlan) -> None:
        self.uri = uri
        self._service = service
        self._client = dict(client)
        self._plan = plan

    @property
    def catalog(self) -> Catalog:
        """A new pyiceberg client whose way to the catalog is this proxy.

        Raises:
            KitError: the proxy is before another service.
        """
        if self._service != "catalog":
            raise KitError(
                f"this proxy is before {self._service}: give its uri ({self.uri}) to a client of that"
            )
        return load_catalog(
            "tarn-proxy",
            **{
                **self._client,
                "type": "rest",
                "uri": self.uri,
                "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens",
                "warehouse": self._client.get("warehouse", "tarn"),
            },
        )

    @property
    def broken(self) -> list[str]:
        """What became of the writes that were broken so far: `reply`, `cut`, `503` and so on."""
        return list(self._plan.done)

    @property
    def statuses(self) -> list[int]:
        """The service's own answers to the writes that reached it, also those that no client got."""
        return list(self._plan.statuses)

    @property
    def late(self) -> int:
        """The number of writes that have reached the service after they were answered, see `fail_next`."""
        return len(self._plan.late)

    def drop_next_reply(self, count: int = 1) -> None:
        """Let the next writes through and close the connection in place of the answer: the write is done."""
        self._plan.add("reply", count)

    def fail_next(self, fault: str, count: int = 1) -> None:
        """Break the next writes.

        Args:
            fault: `cut`: the connection is closed and the write not made. A status, as `503`: so answered,
                not made. `503-done`: made, and answered so. `late`: answered 504, and made three seconds
                later, which the end of the block waits for. `reply`: as `drop_next_reply`.
            count: how many writes.

        Raises:
            KitError: there is no such fault.
        """
        if fault not in FAULTS:
            raise KitError(f"no such fault: {fault!r}; choose one of {', '.join(FAULTS)}")
        self._plan.add(fault, count)

    def wait_for_broken(self, count: int = 1, *, timeout_s: float = 30.0) -> None:
        """Wait until so many writes were broken.

        Raises:
            WaitError: they were not in time.
        """
        eventually(
            lambda: len(self._plan.done) >= count,
            timeout_s=timeout_s,
            what=lambda: (
                f"{count} writes to {self._service} broken; {len(self._plan.done)} were: does the client "
                f"under test use {self.uri}?"
            ),
        )


@contextmanager
def proxy_before(service: str, upstream: str, *, client: Mapping[str, str]) -> Iterator[Proxy]:
    """A proxy on a free port of 127.0.0.1 for the duration of the block, which waits for late writes.

    Args:
        service: `catalog` or `gateway`.
        upstream: the service's own address, `http://host:port`.
        client: properties of a pyiceberg client, besides its address.

    Raises:
        KitError: there is no proxy for this service.
    """
    if service not in BREAKS:
        raise KitError(f"there is no proxy before {service!r}; there is one before {' and '.join(BREAKS)}")
    parts, plan = urlsplit(upstream), MemoryPlan()
    server = serve(
        0, parts.hostname or "127.0.0.1", parts.port or 80, plan, BREAKS[service], listen="127.0.0.1"
    )
    # A client that keeps its connection would otherwise be waited for.
    server.daemon_threads, server.block_on_close = True, False
    thread = threading.Thread(target=server.serve_forever, name=f"proxy-{service}", daemon=True)
    thread.start()
    try:
        yield Proxy(f"http://127.0.0.1:{server.server_address[1]}", service, client, plan)
    finally:
        _await_late(plan)
        server.shutdown()
        server.server_close()
        thread.join(5)


def _await_late(plan: MemoryPlan) -> None:
    """Wait until the writes that were answered too early have reached the service, which may not do so."""
    until_s = time.monotonic() + LATE_S + TIMEOUT_S
    while len(plan.late) < plan.done.count("late") and time.monotonic() < until_s:
        time.sleep(LATE_POLL_S)
