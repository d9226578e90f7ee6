from __future__ import annotations

import time
from contextlib import suppress

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.core.http_heads import Frame, HeadError, frame_of, is_hopeless, parts_of

HOST = b"host: localhost\r\n"


def head(*fields: bytes, first: bytes = b"POST /a HTTP/1.1") -> bytes:
    return b"\r\n".join([first, b"Host: localhost", *fields, b"", b""])


@pytest.mark.parametrize(
    ("fields", "body_bytes"),
    [
        ((), 0),
        ((b"Content-Length: 0",), 0),
        ((b"CONTENT-LENGTH:\t17 ",), 17),
        ((b"content-length: 007",), 7),
        ((b"Transfer-Encoding: Chunked",), None),
        ((b"x-content-length: 5",), 0),
        ((b"x: transfer-encoding: chunked",), 0),
    ],
)
def test_a_head_says_how_long_its_body_is(fields: tuple[bytes, ...], body_bytes: int | None) -> None:
    assert frame_of(head(*fields)) == Frame(head(*fields), body_bytes, False)


@pytest.mark.parametrize(
    "fields",
    [
        (b"content-length: 5", b"transfer-encoding: chunked"),
        (b"transfer-encoding: chunked", b"Content-Length: 5"),
        (b"transfer-encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"content-length: 5", b"Content-Length: 5"),
        (b"content-length: 5", b"content-length: 6"),
        (b"content-length: 5, 5",),
        (b"content-length:",),
        (b"transfer-encoding: gzip, chunked",),
    ],
)
def test_a_body_of_two_lengths_or_of_none_is_refused(fields: tuple[bytes, ...]) -> None:
    # Here, not on a socket: the parser would refuse some of them too.
    with pytest.raises(HeadError, match=r"Transfer-Encoding|Content-Length"):
        frame_of(head(*fields))


def test_an_older_version_is_said() -> None:
    sent = head(first=b"GET / HTTP/1.0")
    assert frame_of(sent) == Frame(sent, 0, True)


def test_an_upgrade_is_taken_out_and_nothing_else() -> None:
    found = frame_of(head(b"x-upgrade: 1", b"UpGrade: h2c", b"upgrade:", b"connection: upgrade"))
    assert found.head == head(b"x-upgrade: 1", b"connection: upgrade")


@pytest.mark.parametrize("start", [b"\r", b"\n", b" ", b"\x16\x03", b"GET / HTTP/1.1\n", b"GET /\r\nx\n"])
def test_what_cannot_become_a_head_is_known_early(start: bytes) -> None:
    assert is_hopeless(start)


@pytest.mark.parametrize("size", range(1, len(head(b"content-length: 5"))))
def test_every_beginning_of_a_head_may_become_one(size: int) -> None:
    assert not is_hopeless(head(b"content-length: 5")[:size])


@given(st.binary(max_size=40), st.integers(0, 60))
def test_any_bytes_are_a_head_or_an_error(noise: bytes, at: int) -> None:
    whole = head(b"content-length: 5")
    mixed = whole[:at] + noise + whole[at:]
    try:
        found = frame_of(mixed)
    except HeadError:
        return
    assert found.head.endswith(b"\r\n\r\n")
    assert found.head.count(b"\n") == found.head.count(b"\r") == found.head.count(b"\r\n")
    assert b"\0" not in found.head


@pytest.mark.parametrize(
    "odd",
    [
        head(first=b"GET /" + b"a" * 60_000 + b" x HTTP/1.1"),
        head(b"a:" + b" " * 60_000 + b"\0"),
        head(b"content-length:" + b" " * 60_000 + b"x"),
        head(b"transfer-encoding:" + b"\t" * 60_000 + b"x"),
        head(*[b"a: b"] * 10_000, b"x"),
        head(b"upgrade:" * 7_000),
    ],
)
def test_a_long_head_takes_little_time(odd: bytes) -> None:
    began_s = time.thread_time()
    with suppress(HeadError):
        frame_of(odd)
    assert time.thread_time() - began_s < 0.1


@pytest.mark.parametrize("start", [b"\r\n", b"GET / HTTP/1.1\r\nx: y\r\n", b"G\r\r\n", b"G\n", b"G\r\nx\ny"])
def test_a_start_is_judged_by_what_is_new_of_it(start: bytes) -> None:
    for looked in range(len(start) + 1):
        if not is_hopeless(start[:looked]):
            assert is_hopeless(start, looked=looked) is is_hopeless(start)


def test_what_was_looked_at_is_not_looked_at_once_more() -> None:
    assert not is_hopeless(b"G\nx: y\r\n", looked=2)


NAMES = st.text("abcXYZ019!#$%&'*+.^_`|~-", min_size=1, max_size=12).map(str.encode)
VALUES = st.text("".join(map(chr, [9, *range(32, 127), *range(128, 256)])), max_size=20)


class Parsed:
    """What the parser of the server makes of a head."""

    def __init__(self, sent: bytes) -> None:
        self.target = b""
        self.fields: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(sent)
        self.method = self._parser.get_method()

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name.lower(), value.rstrip(b" \t")))


@pytest.mark.long
@given(
    st.lists(st.tuples(NAMES, VALUES.map(lambda text: text.encode("latin-1"))), max_size=6),
    st.text("/abc?=&%25:@!$'()*+,;.~-", max_size=20).map(str.encode),
)
def test_a_head_is_split_as_the_parser_of_the_server_does_it(
    fields: list[tuple[bytes, bytes]], target: bytes
) -> None:
    lines = [name + b":" + value for name, value in fields if name.lower() != b"upgrade"]
    try:
        frame = frame_of(head(*lines, first=b"POST /" + target + b" HTTP/1.1"))
    except HeadError:
        return
    found = Parsed(frame.head)
    method, path, parts = parts_of(frame.head)
    assert (method.encode(), path.encode()) == (found.method, found.target)
    wanted = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(found.fields)}
    assert parts == wanted
