"""The head of a request: which table, which promise, and how a repeat is known. Uses no sockets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from urllib.parse import parse_qsl, unquote

from tarn.core.errors import InvalidError, InvalidNameError, UnauthenticatedError
from tarn.core.naming import encode_name, encode_namespace
from tarn.core.table_catalog import TableName
from tarn.core.write_keys import KEY_CHARS_MAX

ROWS_PATH = re.compile(r"/v1/tables/([^/]{1,2000})/rows")
PRODUCER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,99}")
KEY = re.compile(rf"[\x21-\x7e]{{1,{KEY_CHARS_MAX}}}")
SEQUENCE_MAX = 2**62
TOKEN_CHARS_MAX = 8_192
PRODUCER_HEADER = "tarn-producer"
SEQUENCE_HEADER = "tarn-sequence"
KEY_HEADER = "idempotency-key"

Durability = Literal["lake", "log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """How a repeat of a request is known; without any field each request is a new one.

    Attributes:
        producer: id of the producer; None if it does not number its rows.
        sequence: number of the first row; 0 without a producer.
        key: the idempotency key.
    """

    producer: str | None = None
    sequence: int = 0
    key: str | None = None


def token_of(authorization: str | None) -> str:
    """The bearer token of a request.

    Raises:
        UnauthenticatedError: there is none.
    """
    kind, _, token = (authorization or "").partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token:
        raise UnauthenticatedError(
            "the request has no bearer token; get one from the catalog (POST /v1/oauth/tokens) and send it "
            "as Authorization: Bearer TOKEN"
        )
    if len(token) > TOKEN_CHARS_MAX or not token.isascii() or not token.isprintable():
        raise UnauthenticatedError("the bearer token is none of the catalog's; get one from it")
    return token


@lru_cache(maxsize=1_000)
def table_of(segment: str) -> TableName:
    """The table that a path names, as `namespace.table`, percent-encoded.

    Raises:
        InvalidNameError: it is no such name.
    """
    text = unquote(segment, errors="replace")
    *levels, name = text.split(".")
    if not levels:
        raise InvalidNameError(
            f"table {text[:100]!r} has no namespace; name it as namespace.table", name=text
        )
    encode_namespace(levels)  # the catalog has no other names either
    encode_name(name)
    return TableName(tuple(levels), name)


@lru_cache(maxsize=16)
def durability_of(query: str) -> Durability:
    """The promise that a query asks for; `lake` by default.

    Raises:
        InvalidError: there is no such promise, or an unknown parameter.
    """
    if not query:
        return "lake"
    wanted = dict(parse_qsl(query, keep_blank_values=True))
    found = wanted.pop("durability", "lake")
    if wanted:
        raise InvalidError(f"unknown parameter {next(iter(wanted))[:40]!r}; there is durability, lake or log")
    if found == "lake":
        return "lake"
    if found == "log":
        return "log"
    raise InvalidError(f"durability is {found[:40]!r}; it may be lake or log")


def repeat_of(headers: Mapping[str, str]) -> Repeat:
    """How a repeat of the request is known.

    Args:
        headers: headers by lower-case name.

    Raises:
        InvalidError: a header is not of its form, or they contradict each other.
    """
    producer, number, key = (headers.get(name) for name in (PRODUCER_HEADER, SEQUENCE_HEADER, KEY_HEADER))
    if (producer is None) != (number is None):
        raise InvalidError("Tarn-Producer and Tarn-Sequence belong together; send both, or neither")
    if producer is None or number is None:
        if key is not None and not KEY.fullmatch(key):
            raise InvalidError(
                f"Idempotency-Key {key[:40]!r} has to be 1 to {KEY_CHARS_MAX} visible characters of ASCII"
            )
        return Repeat(key=key)
    if key is not None:
        raise InvalidError("a write has Tarn-Producer or Idempotency-Key, not both; leave one out")
    if not PRODUCER.fullmatch(producer):
        raise InvalidError(
            f"Tarn-Producer {producer[:40]!r} has to be 1 to 100 letters, digits and _ . : @ - and to begin "
            "with a letter, a digit or _"
        )
    if not (number.isascii() and number.isdecimal() and len(number) < 20 and int(number) <= SEQUENCE_MAX):
        raise InvalidError(
            f"Tarn-Sequence {number[:40]!r} has to be the number of the first row in the body: "
            f"0 to {SEQUENCE_MAX}"
        )
    return Repeat(producer=producer, sequence=int(number))
