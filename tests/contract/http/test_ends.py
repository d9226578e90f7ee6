"""How connections end: none stays because its client does not read, and none takes what others need."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from tarn.adapters.connections import Door
from tests.support.echo import CHUNKED, GET, Client, Echo, Serve, post

LOOPS: list[Any] = [asyncio.run, uvloop.run]
BODY = b"x" * 20_000
ANSWERS_MAX = 100


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Any:
    return request.param


def until(holds: Callable[[], bool], *, within_s: float = 60) -> bool:
    end_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.01)
    return True


def only_door(echo: Echo) -> Door:
    assert until(lambda: len(echo.visitors) == 1)
    (found,) = echo.visitors._all
    return found


def unread_bytes(door: Door) -> int:
    found: int = door.transport.get_write_buffer_size()
    return found


def who_does_not_read(echo: Echo, *fields: bytes) -> tuple[Client, Door, int]:
    """A client with answers that wait in the server, too few for it to stop writing; and how many."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(60)
    connection.connect(echo.address)
    client = Client(connection)
    door = only_door(echo)
    count = 0
    while not unread_bytes(door) and count < ANSWERS_MAX:
        count += 1
        client.send(post(b"content-length: %d" % len(BODY)) + BODY)
        assert until(lambda n=count: len(echo.seen) == n and door.cycle.response_complete)
        time.sleep(0.02)
    assert unread_bytes(door)
    assert not door.flow.write_paused
    if fields:
        client.send(post(*fields))
        assert until(lambda: door.transport.is_closing())
        count += 1
    return client, door, count


@pytest.mark.parametrize("ending", ["the client's wish", "keep-alive", "eviction"])
def test_an_answer_that_nobody_reads_ends_with_its_connection(
    serve: Serve, loop: Any, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    # Not so short that it ends before there is such an answer, on a machine that stands still for a second.
    monkeypatch.setattr("tarn.adapters.http_server.KEEP_ALIVE_S", 2 if ending == "keep-alive" else 75)
    echo = serve(answer_wait_s=0.5, send_bytes=4_096, loop=loop, count_max=1)
    fields = (b"connection: close",) if ending == "the client's wish" else ()
    client, door, _ = who_does_not_read(echo, *fields)
    gone = weakref.ref(door)
    del door
    with client:
        if ending == "eviction":
            with echo.connect() as other:
                assert other.send(GET).echo()["path"] == "/a"

        def is_gone() -> bool:
            gc.collect()
            return gone() is None

        assert until(is_gone)
    assert until(lambda: len(echo.visitors) == 0)


def test_an_answer_that_is_read_late_is_whole(serve: Serve, loop: Any) -> None:
    echo = serve(answer_wait_s=60, send_bytes=4_096, loop=loop)
    client, _, count = who_does_not_read(echo, b"connection: close")
    with client:
        found = [client.echo() for _ in range(count)]
        assert [len(one["body"]) for one in found] == [len(BODY)] * (count - 1) + [0]
        assert client.ends() == b""
    assert until(lambda: len(echo.visitors) == 0)


def test_who_does_not_read_the_last_answer_keeps_nobody_out(serve: Serve, loop: Any) -> None:
    echo = serve(send_bytes=4_096, loop=loop, count_max=1)
    client, _, _ = who_does_not_read(echo, b"connection: close")
    with client, echo.connect() as other:
        assert other.send(GET).echo()["path"] == "/a"
        assert len(echo.visitors) == 1


def test_nothing_is_left_of_a_connection_that_was_reset(serve: Serve, loop: Any) -> None:
    echo = serve(loop=loop)
    with echo.connect() as client:
        client.send(GET).echo()
        gone = weakref.ref(only_door(echo))
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert until(lambda: len(echo.visitors) == 0)

    def is_gone() -> bool:
        gc.collect()
        return gone() is None

    assert until(is_gone)


def test_a_client_that_is_known_too_late_is_not_counted(serve: Serve) -> None:
    echo = serve()
    with echo.connect() as client:
        client.send(GET).echo()
        door = only_door(echo)
    assert until(lambda: len(echo.visitors) == 0)
    door.welcome()
    assert not echo.visitors._guests


def test_a_connection_is_idle_once_the_rest_of_a_body_has_come(serve: Serve, loop: Any) -> None:
    echo = serve(head_wait_s=2, loop=loop)
    with echo.connect() as client:
        assert client.send(post(b"content-length: 10", path=b"/refuse") + b"a").answer()[0] == 401
        client.send(b"b" * 9)
        time.sleep(2.4)
        assert client.send(GET).echo()["path"] == "/a"


def test_chunks_that_take_long_to_parse_keep_nobody_waiting(serve: Serve, loop: Any) -> None:
    echo = serve(loop=loop, head_wait_s=60)  # as long as a busy machine may take for the flood
    size = 4 << 20
    flood = b"%x\r\n" % size + b"\r\n" * (size // 2) + b"\r\n0\r\n\r\n"

    def longest_wait_s() -> float:
        with echo.connect() as client, echo.connect() as other:
            assert client.send(post(CHUNKED, path=b"/refuse")).answer()[0] == 401
            other.send(GET).echo()
            sending = threading.Thread(target=lambda: client.send(flood + GET))
            sending.start()
            longest_s = 0.0
            while sending.is_alive():
                began_s = time.monotonic()
                other.send(GET).echo()
                longest_s = max(longest_s, time.monotonic() - began_s)
            sending.join()
            assert client.echo()["path"] == "/a"
        return longest_s

    # A machine that stands still for a while does so in one flood, and hardly in each of three.
    waits_s: list[float] = []
    while not waits_s or waits_s[-1] >= 0.5:
        assert len(waits_s) < 3, waits_s
        waits_s.append(longest_wait_s())


def test_a_body_that_takes_long_to_parse_is_read_whole(
    serve: Serve, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarn.adapters.connections.TURN_S", 0.0)  # each piece in a turn of its own
    echo = serve(loop=loop)
    part = b"\r\n0\r\n\r\n" * 9_000
    sent = post(CHUNKED) + (b"%x\r\n%b\r\n" % (len(part), part)) * 10 + b"0\r\nx: y\r\n\r\n"
    with echo.connect() as client:
        sending = threading.Thread(target=lambda: client.send(sent + sent + GET))
        sending.start()
        for _ in range(2):
            assert client.echo()["body"].encode() == part * 10
        assert client.echo()["path"] == "/a"
        sending.join()
