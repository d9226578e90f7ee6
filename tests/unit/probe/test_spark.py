"""A Connect server is recognised by its greeting, not by its open port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tarn.probe.spark import HTTP2_HELLO, check_connect

SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + bytes(6)


@contextmanager
def server(
    *answers: bytes, close: bool = True, heard: list[bytes] | None = None
) -> Iterator[tuple[str, int]]:
    """Sends these parts to every client that greets it, then closes or stays silent."""
    heard = [] if heard is None else heard
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                heard.append(peer.recv(1024))
                for part in answers:
                    peer.sendall(part)
                if not close:
                    done.wait(40)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            done.set()
            thread.join(40)
    assert heard == [HTTP2_HELLO]


@pytest.mark.parametrize("parts", [(SETTINGS,), (SETTINGS[:4], SETTINGS[4:])])
def test_a_server_that_greets_is_there(parts: tuple[bytes, ...]) -> None:
    heard: list[bytes] = []
    with server(*parts, heard=heard) as address:
        check_connect(address, timeout_s=30.0)
    assert heard == [HTTP2_HELLO]


@pytest.mark.long
def test_a_frozen_process_behind_an_open_port_is_seen() -> None:
    with (
        server(close=False) as address,
        pytest.raises(RuntimeError, match=r"Spark Connect at 127\.0\.0\.1:\d+: no answer within 0\.3 s"),
    ):
        check_connect(address, timeout_s=0.3)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", SETTINGS[:8]])
def test_another_server_on_the_port_is_refused(answer: bytes) -> None:
    with server(answer) as address, pytest.raises(RuntimeError, match="does not speak as a Spark Connect"):
        check_connect(address, timeout_s=30.0)


def test_nobody_on_the_port_is_said() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(RuntimeError, match="refused"):
            check_connect(bound.getsockname(), timeout_s=30.0)
