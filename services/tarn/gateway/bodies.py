"""Rows of a body: a JSON object or array of objects, lines of JSON, or an Arrow IPC stream. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import msgspec

from tarn.core.arrow_parser import NoRowError, RowsTooLargeError, split_rows
from tarn.core.errors import InvalidError

BODY_BYTES_MAX = 4 << 20
ROWS_MAX = 10_000
SPLIT_BYTES_MAX = 16 << 20
DEPTH_MAX = 32
ARROW = "application/vnd.apache.arrow.stream"
# A text that does not end takes the rest, and nothing is tried twice: the time is linear in the body.
_TEXT = rb'"(?:[^"\\]++|\\.)*+"?'
_BRACKETS = re.compile(_TEXT + rb"|[\[\]{}]", re.DOTALL)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_LINE = re.compile(rb"\S[^\n]*")
_MARKS = re.compile(_TEXT + rb"|[\[\]{},]", re.DOTALL)
COMMAS_PER_ROW = 20
"""With more commas for each row that is allowed, the rows are counted before they are taken apart."""
QUICK_BYTES = 64 << 10
QUICK_MARKS = 1_000
_VALUE = msgspec.json.Decoder(msgspec.Raw)


class TooLargeError(InvalidError):
    """A body over a limit of size or of rows (HTTP 413)."""


class MediaError(InvalidError):
    """A body in a format that the gateway does not take (HTTP 415)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Bounds of a request.

    Attributes:
        bytes_max: size of the body.
        rows_max: number of rows.
        split_bytes_max: size of the rows of an Arrow stream, each with its schema.
        depth_max: how deep objects and lists may be nested in a row of JSON.
    """

    bytes_max: int = BODY_BYTES_MAX
    rows_max: int = ROWS_MAX
    split_bytes_max: int = SPLIT_BYTES_MAX
    depth_max: int = DEPTH_MAX


def reader_of(content_type: str | None, encoding: str | None) -> Callable[[bytes, BodyLimits], list[bytes]]:
    """What reads the rows of a body with these headers.

    Args:
        content_type: the header Content-Type; None if it is missing.
        encoding: the header Content-Encoding; None if it is missing.

    Raises:
        MediaError: there is none.
    """
    if encoding not in (None, "", "identity"):
        raise MediaError(f"Content-Encoding {encoding[:40]!r} is not taken; send the body as it is")
    kind = media_type(content_type)
    found = READERS.get(kind)
    if found is None:
        raise MediaError(f"Content-Type {kind[:80]!r} is not taken; send one of {', '.join(READERS)}")
    return found


def media_type(content_type: str | None) -> str:
    """The media type of a header Content-Type, in lower case and without parameters."""
    return (content_type or "").split(";")[0].strip().lower()


def is_quick(body: bytes) -> bool:
    """Whether the rows of a body of JSON are found in less than a millisecond, whatever it says.

    Then it is done on the event loop: to hand it to a thread costs more. 64 KiB of text take 0.1 to 0.5 ms, a
    thousand brackets or lines 0.2 to 0.8 ms (measured on 2026-11-24).
    """
    # To leave all marks out is one pass, to count each is four.
    return len(body) <= QUICK_BYTES and len(body) - len(body.translate(None, b"[{,\n")) <= QUICK_MARKS


def json_rows(body: bytes, limits: BodyLimits) -> list[bytes]:
    """The rows of one JSON object, or of an array of them.

    Raises:
        InvalidError: the body is not JSON, or neither of both, or nested too deep.
        TooLargeError: it has too many rows.
    """
    start = body[:64].lstrip()[:1] or body.lstrip()[:1]
    try:
        if start == b"[":
            if body.count(b",") > COMMAS_PER_ROW * limits.rows_max:
                _count_elements(body, limits.rows_max)
            rows = [bytes(raw).strip() for raw in _ELEMENTS.decode(body)]
        elif start == b"{":
            rows = [bytes(_VALUE.decode(body)).strip()]
        else:
            raise InvalidError("the body is no JSON object and no array of objects; send one of them")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidError(f"the body is not JSON: {e}; nothing of it was written") from e
    return _checked(rows, limits)


def ndjson_rows(body: bytes, limits: BodyLimits) -> list[bytes]:
    """The rows of a body with one JSON object per line; empty lines are passed over.

    Raises:
        InvalidError: there is no row, or one is nested too deep.
        TooLargeError: it has too many rows.
    """
    # One more than there may be: a body of bytes that are lines each takes a hundred times its size.
    lines = islice(_LINE.finditer(body), limits.rows_max + 1)
    return _checked([found.group().strip() for found in lines], limits)


def arrow_rows(body: bytes, limits: BodyLimits) -> list[bytes]:
    """The rows of an Arrow IPC stream.

    Raises:
        InvalidError: it is none, or has no row.
        TooLargeError: it has too many rows.
    """
    try:
        rows = split_rows(body, rows_max=limits.rows_max, bytes_max=limits.split_bytes_max)
    except RowsTooLargeError as e:
        raise TooLargeError(f"the body is {e}; nothing of it was written") from e
    except NoRowError as e:
        kind = TooLargeError if "at most" in str(e) else InvalidError
        raise kind(f"the body is {e}; nothing of it was written") from e
    return _counted(rows, limits)


READERS: dict[str, Callable[[bytes, BodyLimits], list[bytes]]] = {
    "application/json": json_rows,
    "application/x-ndjson": ndjson_rows,
    ARROW: arrow_rows,
}


def _counted(rows: list[bytes], limits: BodyLimits) -> list[bytes]:
    if not rows:
        raise InvalidError("the body has no row; send at least one")
    if len(rows) > limits.rows_max:
        raise TooLargeError(
            f"the body has more rows than {limits.rows_max}, the most that are allowed; send several bodies"
        )
    return rows


def _count_elements(body: bytes, rows_max: int) -> None:
    """Require that an array has no more elements than there may be rows; what is no JSON is left to others.

    Raises:
        TooLargeError: it has more.
    """
    depth = commas = 0
    for found in _MARKS.finditer(body):
        mark = found.group()
        if mark == b",":
            commas += depth == 1
            if commas >= rows_max:
                raise TooLargeError(
                    f"the body has more rows than {rows_max}, the most that are allowed; send several bodies"
                )
        elif mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1


def _checked(rows: list[bytes], limits: BodyLimits) -> list[bytes]:
    for number, row in enumerate(_counted(rows, limits)):
        if row.count(b"{") + row.count(b"[") > limits.depth_max and _depth(row) > limits.depth_max:
            raise InvalidError(
                f"row {number} is nested more than {limits.depth_max} deep; nothing of the body was written, "
                "send flatter rows"
            )
    return rows


def _depth(row: bytes) -> int:
    """How deep objects and lists are nested."""
    depth = deepest = 0
    for found in _BRACKETS.finditer(row):
        mark = found.group()
        if mark in b"{[":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in b"}]":
            depth -= 1
    return deepest
