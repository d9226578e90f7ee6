"""The catalog's door: answers leave at once; silent, slow and foreign clients do not get in others' way."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from tarn.adapters.store import MemoryStore
from tarn.core.naming import Roots
from tarn_catalog.catalog import Catalog
from tarn_catalog.testing import Running, serving

ASKED = 100
DELAYED_ACK_MS_MIN = 40


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The server's side of every connection."""
    found: list[Any] = []
    made = H11Protocol.connection_made

    def connection_made(self: H11Protocol, transport: Any) -> None:
        found.append(transport)
        made(self, transport)

    monkeypatch.setattr(H11Protocol, "connection_made", connection_made)
    return found


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    catalog = Catalog(MemoryStore(), Roots(base="s3://tarn"))
    with serving(catalog, tmp_path / "secrets") as running:
        yield running


def address(uri: str) -> tuple[str, int]:
    host, _, port = uri.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_answers_do_not_wait_for_an_acknowledgement(accepted: list[Any], running: Running) -> None:
    for uri in (running.inside, running.published):
        connection = http.client.HTTPConnection(*address(uri), timeout=10)
        times_ms = []
        for _ in range(ASKED):
            began = time.perf_counter()
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
            times_ms.append((time.perf_counter() - began) * 1000)
        (server_side,) = accepted
        option = server_side.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert option != 0
        # A kernel acknowledges the first 16 segments at once; the wait shows in three quarters at the latest.
        assert sorted(times_ms)[ASKED // 4] < DELAYED_ACK_MS_MIN, sorted(times_ms)
        connection.close()
        accepted.clear()
