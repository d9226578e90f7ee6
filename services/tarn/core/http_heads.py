"""What the head of an HTTP request must be like, so that it can be read in one way only. Pure.

A parser that is fast is lenient here and there, and what two programs read differently hides a request in
another one's body. So a head is checked as a whole before any parser gets it, and says itself how long the
body is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

END = b"\r\n\r\n"
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
# No fragment, no proxy's form and no `*` as a target; no folded line, no bare CR or LF, no control character.
# Nothing is tried twice: the time is linear in the head.
_HEAD = re.compile(
    rb"[A-Z-]{1,32} /[!\"$-~]*+ HTTP/1\.([01])\r\n(?:" + _TOKEN + rb"++:[\t\x20-\x7e\x80-\xff]*+\r\n)*+\r\n"
)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n")
_UPGRADE = re.compile(rb"(?<=\r\n)upgrade:[^\r]*\r\n", re.IGNORECASE)


class HeadError(ValueError):
    """A head that is refused; the text says why, for the client."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A request's head, and what its body is.

    Attributes:
        head: the head for the parser, with the empty line at its end.
        body_bytes: length of the body; None if it comes in chunks.
        old: whether it is HTTP/1.0.
    """

    head: bytes
    body_bytes: int | None
    old: bool


def is_hopeless(start: bytes, *, looked: int = 0) -> bool:
    """Whether no head can begin like this, so that there is nothing to wait for.

    Args:
        start: what has come of a head that is not complete.
        looked: so many bytes of it have been found not to be hopeless before.
    """
    since = looked - start.endswith(b"\r", 0, looked)
    return start[:1] <= b" " or start.count(b"\n", since) > start.count(b"\r\n", since)


def frame_of(head: bytes) -> Frame:
    """Check a head.

    Args:
        head: all of it, to the empty line.

    Raises:
        HeadError: it is not of the one form that is taken.
    """
    found = _HEAD.fullmatch(head)
    if found is None:
        raise HeadError(
            "the request does not begin as RFC 9112 has it: METHOD /PATH HTTP/1.1, lines of NAME: VALUE, an "
            "empty line, each ended by CR LF"
        )
    old = found[1] == b"0"
    plain = head.lower()
    hosts = plain.count(b"\r\nhost:")
    if hosts > 1 or not (hosts or old):
        raise HeadError(f"the request has {hosts} Host fields; send one")
    if b"\r\nupgrade:" in plain:
        # Nothing is upgraded to, and the field may be ignored; the parser would stop after the request.
        head = _UPGRADE.sub(b"", head)
    return Frame(head, _body_bytes(plain, old=old), old)


def parts_of(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, target and fields by lower-case name of a head that was checked; of several the first."""
    line, *fields = head[: -len(END)].decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    found: dict[str, str] = {}
    for field in fields:
        name, _, value = field.partition(":")
        found.setdefault(name.lower(), value.strip(" \t"))
    return method, target, found


def is_plain(fields: Mapping[str, str]) -> bool:
    """Whether the fields of a head, by lower-case name, leave the exchange as HTTP/1.1 has it.

    Many clients say `Connection: keep-alive`, which changes nothing.
    """
    return "expect" not in fields and fields.get("connection", "keep-alive").lower() == "keep-alive"


def _body_bytes(plain: bytes, *, old: bool) -> int | None:
    """Length of the body that a head in lower case announces; None for chunks.

    Raises:
        HeadError: it says more than one thing, or what is not served.
    """
    lengths = plain.count(b"\r\ncontent-length:")
    codings = plain.count(b"\r\ntransfer-encoding:")
    if codings:
        if lengths or codings > 1 or old or not _CHUNKED.search(plain):
            raise HeadError(
                "Transfer-Encoding may be chunked, once, in HTTP/1.1 and without Content-Length; send one of "
                "them"
            )
        return None
    if not lengths:
        return 0
    length = _LENGTH.search(plain)
    if lengths > 1 or length is None:
        raise HeadError("Content-Length has to be one number of bytes, once")
    return int(length[1])
