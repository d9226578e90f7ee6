"""What a client may send on a connection, and how it is read: over real sockets, by a server that echoes."""

from __future__ import annotations

import functools
import socket
import time
from contextlib import suppress

import pytest

from tests.support.echo import CHUNKED, GET, HEAD_BYTES_MAX, HOST, Echo, Serve, post

NESTED = b"GET /nested HTTP/1.1\r\nhost: localhost\r\n\r\n"
REFUSED: dict[str, bytes] = {
    "length and chunks": post(b"content-length: 5", CHUNKED) + b"0\r\n\r\n" + NESTED,
    "chunks and length": post(CHUNKED, b"content-length: 5") + b"0\r\n\r\n" + NESTED,
    "two lengths": post(b"content-length: 5", b"content-length: 6") + b"abcdef",
    "the same length twice": post(b"content-length: 5", b"content-length: 5") + b"abcde",
    "a list of lengths": post(b"content-length: 5, 5") + b"abcde",
    "a length with a sign": post(b"content-length: +5") + b"abcde",
    "a negative length": post(b"content-length: -5") + b"abcde",
    "a length in hexadecimal": post(b"content-length: 0x5") + b"abcde",
    "a length with a gap": post(b"content-length: 1 0") + b"a" * 10,
    "an endless length": post(b"content-length: " + b"9" * 30),
    "an empty length": post(b"content-length: "),
    "another coding": post(b"transfer-encoding: gzip"),
    "two codings": post(b"transfer-encoding: gzip, chunked") + b"0\r\n\r\n",
    "a coding after the chunks": post(b"transfer-encoding: chunked, identity") + b"0\r\n\r\n",
    "chunks twice": post(CHUNKED, CHUNKED) + b"0\r\n\r\n",
    "a coding that looks like chunks": post(b"transfer-encoding: xchunked") + b"0\r\n\r\n",
    "a coding behind a control character": post(b"transfer-encoding: \x0bchunked") + b"0\r\n\r\n",
    "chunks of HTTP/1.0": post(CHUNKED, version=b"1.0") + b"0\r\n\r\n",
    "a space before the colon": post(b"content-length : 5") + b"abcde",
    "a field without a name": post(b": x"),
    "a field without a colon": post(b"nonsense"),
    "a folded field": post(b"x: a", b" b"),
    "a folded coding": post(b"transfer-encoding:", b" chunked") + b"0\r\n\r\n",
    "a field before the fields": b"GET /a HTTP/1.1\r\n x: y\r\n" + HOST + b"\r\n",
    "lines of LF": b"GET /a HTTP/1.1\nhost: localhost\n\n",
    "one line of LF": b"GET /a HTTP/1.1\r\nx: y\n" + HOST + b"\r\n",
    "a bare CR": b"GET /a HTTP/1.1\r\nx: a\rb: c\r\n" + HOST + b"\r\n",
    "an end of LF": b"GET /a HTTP/1.1\r\n" + HOST + b"\n",
    "a NUL": post(b"x: a\0b"),
    "a DEL": post(b"x: a\x7fb"),
    "a name of bytes": post(b"\xc3\xa4: b"),
    "no host": b"GET /a HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /a HTTP/1.1\r\n" + HOST + b"Host: evil.example\r\n\r\n",
    "a proxy's target": b"GET http://localhost/a HTTP/1.1\r\n" + HOST + b"\r\n",
    "another one's target": b"GET http://evil.example/a HTTP/1.1\r\n" + HOST + b"\r\n",
    "a target without a path": b"GET http://evil.example HTTP/1.1\r\n" + HOST + b"\r\n",
    "a target of any": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel": b"CONNECT localhost:1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel to a path": b"CONNECT /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "bytes in the target": b"GET /\xc3\xa4 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a space in the target": b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tab in the target": b"GET /a\tHTTP/1.1\r\n" + HOST + b"\r\n",
    "no version": b"GET /a\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET /a\r\n\r\n",
    "HTTP/0.9 by name": b"GET /a HTTP/0.9\r\n" + HOST + b"\r\n",
    "HTTP/2 without its beginning": b"GET /a HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/1.2": b"GET /a HTTP/1.2\r\n" + HOST + b"\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method in lower case": b"get /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "no method": b"NONESUCH /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "an empty line first": b"\r\n" + GET,
    "two empty lines first": b"\r\n\r\n" + GET,
    "a space first": b" " + GET,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a chunk of no size": post(CHUNKED) + b"x\r\na\r\n0\r\n\r\n",
    "a chunk of 0x": post(CHUNKED) + b"0x1\r\na\r\n0\r\n\r\n",
    "a chunk with a sign": post(CHUNKED) + b"+1\r\na\r\n0\r\n\r\n",
    "a chunk behind a space": post(CHUNKED) + b" 1\r\na\r\n0\r\n\r\n",
    "a chunk before a space": post(CHUNKED) + b"1 \r\na\r\n0\r\n\r\n",
    "a chunk that is longer": post(CHUNKED) + b"1\r\nabc\r\n0\r\n\r\n",
    "a chunk of LF": post(CHUNKED) + b"1\na\r\n0\r\n\r\n",
    "a chunk without its end": post(CHUNKED) + b"1\r\na0\r\n\r\n",
    "a huge chunk": post(CHUNKED) + b"fffffffffffffffff\r\n",
    "endless trailers": post(CHUNKED) + b"0\r\nx: " + b"y" * 2 * HEAD_BYTES_MAX,
    "many trailers": post(CHUNKED) + b"0\r\n" + b"x: y\r\n" * HEAD_BYTES_MAX,
    "an endless extension": post(CHUNKED) + b"1;" + b"y" * 2 * HEAD_BYTES_MAX,
}


@pytest.mark.parametrize("pieces", [0, 1, 7])
@pytest.mark.parametrize("what", REFUSED)
def test_what_can_be_read_in_two_ways_is_refused(
    one_for_all: Echo, caplog: pytest.LogCaptureFixture, what: str, pieces: int
) -> None:
    echo = one_for_all
    echo.seen.clear()
    sent = REFUSED[what]
    if pieces and len(sent) > 1_000:
        pieces = 1_000
    with echo.connect() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            for at in range(0, len(sent), pieces or len(sent)):
                client.send(sent[at : at + (pieces or len(sent))])
        except (ConnectionResetError, BrokenPipeError):
            pass  # it did not wait for the rest
        found = client.ends()
    assert found == b"" or found.startswith(b"HTTP/1.1 400 "), found
    assert b"HTTP/1.1 2" not in found
    if not pieces:
        assert b"connection: close" in found
    assert "/nested" not in echo.seen
    with echo.connect() as client:
        assert client.send(GET).echo()["path"] == "/a"
    assert [record.levelname for record in caplog.records] in ([], ["WARNING"])


@pytest.mark.parametrize(
    "head",
    [
        b"GET /a HTTP/1.1\r\n" + HOST + b"x: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n",
        b"GET /a HTTP/1.1\r\n" + HOST + b"x: y\r\n" * HEAD_BYTES_MAX + b"\r\n",
        b"GET /a HTTP/1.1\r\n" + HOST + b"x: " + b"y" * HEAD_BYTES_MAX,
        b"GET /" + b"a" * HEAD_BYTES_MAX,
    ],
)
def test_a_head_over_the_limit_is_431(echo: Echo, head: bytes) -> None:
    with echo.connect() as client:
        status, headers, body = client.send(head).answer()
        assert (status, headers["connection"]) == (431, "close")
        assert str(HEAD_BYTES_MAX).encode() in body
        assert client.ends() == b""
    assert echo.seen == []


def test_a_head_up_to_the_limit_is_served(echo: Echo) -> None:
    start = b"GET /a HTTP/1.1\r\n" + HOST + b"x: "
    with echo.connect() as client:
        value = b"y" * (HEAD_BYTES_MAX - len(start) - 4)
        assert ["x", value.decode()] in client.send(start + value + b"\r\n\r\n").echo()["headers"]


def test_fields_are_read_exactly(echo: Echo) -> None:
    sent = b"X-Empty:\r\nX-Wide: \t  a  b \t \r\nx-odd!#$%&'*+.^_`|~: \xe4,\r\nx-last:\r\n"
    with echo.connect() as client:
        for _ in range(2):
            found = client.send(b"GET /a%20b//c?d=e&f HTTP/1.1\r\n" + HOST + sent + b"\r\n").echo()
            assert found["headers"] == [
                ["host", "localhost"],
                ["x-empty", ""],
                ["x-wide", "a  b"],
                ["x-odd!#$%&'*+.^_`|~", "\xe4,"],
                ["x-last", ""],
            ]
            assert (found["path"], found["query"]) == ("/a%20b//c", "d=e&f")
        odd = client.send(b"GET //evil.example/a HTTP/1.1\r\n" + HOST + b"\r\n").echo()
        assert odd["path"] == "//evil.example/a"


def test_every_target_that_is_a_path_is_read_as_it_is(echo: Echo) -> None:
    odd = [
        "/",
        "//",
        "/?",
        "/??",
        "/?a?b",
        "/:80",
        "//user@host:80/x?y",
        "/[::1]",
        "/%",
        "/%zz%00%ff",
        "/../.",
        "/a//",
    ]
    odd += [f"/x{chr(c)}y{chr(c)}?z{chr(c)}=1" for c in range(0x21, 0x7F) if chr(c) != "#"]
    odd.append("/" + "a" * (HEAD_BYTES_MAX - 100) + "?b")
    with echo.connect() as client:
        for target in odd:
            found = client.send(b"GET " + target.encode() + b" HTTP/1.1\r\n" + HOST + b"\r\n").echo()
            path, _, query = target.partition("?")
            assert (found["path"], found["query"]) == (path, query)


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6, 7, 10_000])
def test_requests_in_a_row_are_answered_in_their_order(echo: Echo, step: int) -> None:
    chunked = post(CHUNKED, path=b"/2") + b"3\r\n\r\n\r\r\n4;x=y\r\n\n\r\n\r\r\n0\r\n\r\n"
    sent = (
        GET
        + post(b"content-length: 11", path=b"/1")
        + b"\r\n\r\nGET / \n"
        + chunked
        + post(b"content-length: 0", path=b"/3")
        + GET
    )
    with echo.connect() as client:
        for at in range(0, len(sent), step):
            client.send(sent[at : at + step])
            time.sleep(0.002)  # or the kernel joins them
        found = [client.echo() for _ in range(5)]
    assert [one["path"] for one in found] == ["/a", "/1", "/2", "/3", "/a"]
    assert [one["body"] for one in found] == ["", "\r\n\r\nGET / \n", "\r\n\r\n\r\n\r", "", ""]


def test_one_request_at_a_time_is_taken_in(echo: Echo) -> None:
    with echo.connect() as client:
        client.send(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n" + GET * 100)
        until_s = time.monotonic() + 60
        while not echo.seen and time.monotonic() < until_s:
            time.sleep(0.01)
        time.sleep(0.1)
        assert echo.seen == ["/wait"]
        echo.waits.set()
        assert [client.echo()["path"] for _ in range(101)] == ["/wait"] + ["/a"] * 100


def test_who_sends_on_while_it_is_served_is_not_read_without_end(echo: Echo) -> None:
    with echo.connect() as client:
        client.send(b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n")
        client.socket.settimeout(1)
        taken = 0
        with suppress(TimeoutError):
            while taken < 1_000:
                client.send(GET * 2_000)  # 70 kB
                taken += 1
        assert taken < 1_000
        echo.waits.set()


def test_trailers_are_no_fields_of_any_request(echo: Echo) -> None:
    sent = post(CHUNKED) + b"1\r\na\r\n0\r\nauthorization: Bearer x\r\nlast: z\r\n\r\n"
    with echo.connect() as client:
        for found in (client.send(sent).echo(), client.send(sent + GET).echo(), client.echo()):
            assert not {"authorization", "last"} & {name for name, _ in found["headers"]}


@pytest.mark.parametrize(
    "fields",
    [
        (b"upgrade: websocket", b"connection: Upgrade", b"sec-websocket-version: 13"),
        (b"Upgrade: h2c", b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAMAAABkAAQAAP__"),
        (b"UPGRADE: TLS/1.2", b"connection: upgrade"),
        (b"connection: upgrade",),
    ],
)
def test_an_upgrade_is_passed_over(
    echo: Echo, caplog: pytest.LogCaptureFixture, fields: tuple[bytes, ...]
) -> None:
    with echo.connect() as client:
        for _ in range(2):
            assert client.send(post(b"content-length: 3", *fields) + b"abc").echo()["body"] == "abc"
            in_chunks = post(*fields, CHUNKED) + b"1\r\nb\r\n0\r\n\r\n"
            assert client.send(in_chunks).echo()["body"] == "b"
            assert client.send(post(*fields) + GET).echo()["path"] == "/a"
            assert client.echo()["path"] == "/a"
    assert not caplog.records


def test_a_client_may_wait_to_be_asked_for_the_body(echo: Echo) -> None:
    with echo.connect() as client:
        head = post(b"expect: 100-Continue", b"content-length: 3")
        assert client.send(head).answer()[0] == 100
        assert client.send(b"abc").echo()["body"] == "abc"
        refused = post(b"expect: 100-continue", b"content-length: 3", path=b"/refuse")
        assert client.send(refused + b"abc").answer()[0] == 401
        status, headers, _ = client.send(refused).answer()
        assert (status, headers["connection"]) == (401, "close")
        assert client.send(GET).ends() == b"", "what is no body is not read as one"
    with echo.connect() as client:
        client.send(post(b"expect: 100-continue", b"content-length: 3", version=b"1.0") + b"abc")
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert client.ends() == b""


def test_an_answer_to_head_has_no_body(echo: Echo) -> None:
    with echo.connect() as client:
        status, headers, _ = client.send(b"HEAD /a HTTP/1.1\r\n" + HOST + b"\r\n" + GET).answer(bodiless=True)
        assert status == 200
        assert int(headers["content-length"]) > 0
        assert client.echo()["method"] == "GET"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /a HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
        b"GET /a HTTP/1.0\r\n" + HOST + b"\r\n",
        b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    ],
)
def test_a_connection_that_ends_takes_no_further_request(echo: Echo, head: bytes) -> None:
    with echo.connect() as client:
        status, headers, _ = client.send(head + NESTED).answer()
        assert (status, headers["connection"]) == (200, "close")
        assert client.ends() == b""
    assert echo.seen == ["/a"]


def test_a_body_that_nobody_read_is_passed_over_or_ends_the_connection(serve: Serve) -> None:
    echo = serve(head_wait_s=2.0)  # a machine that stands still must not end the first ones
    with echo.connect() as client:
        assert client.send(post(b"content-length: 200000", path=b"/refuse") + b"a" * 1_000).answer()[0] == 401
        assert client.send(b"b" * 199_000 + GET).echo()["path"] == "/a"
        assert client.send(post(CHUNKED, path=b"/refuse") + b"2\r\na").answer()[0] == 401
        assert client.send(b"b\r\n0\r\n\r\n" + GET).echo()["path"] == "/a"
        assert client.send(post(b"content-length: 10", path=b"/refuse") + b"a").answer()[0] == 401
        assert client.ends() == b""
    with echo.connect() as client:
        assert client.send(post(CHUNKED, path=b"/refuse")).answer()[0] == 401
        assert client.send(b"nonsense\r\n" + GET).ends() == b"", "no second answer"


def test_a_bad_chunk_after_the_answer_has_begun_cuts_it_off(echo: Echo) -> None:
    with echo.connect() as client:
        client.send(post(CHUNKED, path=b"/part"))
        client._more()
        while b"12345" not in client._came:
            assert client._more()
        assert client.send(b"nonsense\r\n").ends().endswith(b"12345")


def test_a_client_that_leaves_in_its_body_is_no_error(echo: Echo) -> None:
    for sent in (post(b"content-length: 5") + b"ab", post(CHUNKED) + b"5\r\nab", b"GET /"):
        with echo.connect() as client:
            client.send(sent)
            client.socket.shutdown(socket.SHUT_WR)
            assert client.ends() == b""
    until_s = time.monotonic() + 60
    while len(echo.visitors) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert len(echo.visitors) == 0


def test_half_of_a_second_head_has_its_time_too(serve: Serve) -> None:
    echo = serve(head_wait_s=0.3)
    with echo.connect() as client:
        assert client.send(GET + b"GET /b").echo()["path"] == "/a"
        began_s = time.monotonic()
        assert client.ends() == b""
        assert time.monotonic() - began_s < 60


def test_a_long_body_comes_whole(echo: Echo) -> None:
    body = bytes(range(256)) * 4_000
    parts = [body[at : at + 70_001] for at in range(0, len(body), 70_001)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    read = functools.partial(str.encode, encoding="latin-1")
    with echo.connect() as client:
        assert read(client.send(post(b"content-length: %d" % len(body)) + body).echo()["body"]) == body
        found = client.send(post(CHUNKED) + chunks + b"0\r\n\r\n" + GET).echo()
        assert read(found["body"]) == body
        assert client.echo()["path"] == "/a"
