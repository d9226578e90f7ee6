"""Sockets of clients of kafka-python that are closed early: none is left to the collector."""

from __future__ import annotations

import gc
import socket
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.net.inet import create_connection
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport

from tests.support.kafka_sockets import close_abandoned_sockets


@pytest.fixture(autouse=True)
def _closed() -> None:
    close_abandoned_sockets()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that takes connections and reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def left(use: Callable[[Any], None]) -> list[str]:
    """Warnings of the collector after a loop was used, stopped and forgotten."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what earlier tests left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop = NetworkSelector()
        use(loop)
        loop._poll_once()
        loop.close()
        del loop
        gc.collect()
    return [str(one.message) for one in caught if "unclosed" in str(one.message)]


def test_a_client_that_is_closed_while_it_connects_closes_its_socket(server: socket.socket) -> None:
    async def connect(loop: Any) -> None:
        await create_connection(loop, *server.getsockname())

    assert left(lambda loop: loop.call_soon(lambda: connect(loop))) == []


def test_a_client_that_is_closed_while_it_sends_closes_its_socket(server: socket.socket) -> None:
    def send(loop: Any) -> None:
        mine = socket.create_connection(server.getsockname())
        mine.setblocking(False)
        transport = KafkaTCPTransport(loop, mine)
        transport.write(b"x" * (64 << 20))
        loop._poll_once()
        transport.close()

    assert left(send) == []


def test_done_twice_is_done_once() -> None:
    before = KafkaTCPTransport._write_to_sock
    close_abandoned_sockets()
    assert KafkaTCPTransport._write_to_sock is before
