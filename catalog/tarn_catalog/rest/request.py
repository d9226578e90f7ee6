"""A request as the routes see it, and how its parts are read. No sockets here."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tarn.core.errors import InvalidError, InvalidNameError
from tarn_catalog.operations.namespaces import Levels
from tarn_catalog.state.context import IdempotencyKey

SEPARATOR = "\x1f"
PAGE_SIZE_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """One listener, and what its clients are told.

    Attributes:
        name: `inside` or `published`.
        s3_endpoint: the store as these clients reach it.
        region: of the store.
        warehouse: the one warehouse.
    """

    name: str
    s3_endpoint: str
    region: str
    warehouse: str

    def defaults(self) -> dict[str, str]:
        """Client properties that let Spark, Trino and pyiceberg work without flags of their own."""
        return {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": self.s3_endpoint,
            "s3.path-style-access": "true",
            "s3.region": self.region,
            "client.region": self.region,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RestRequest:
    """One request.

    Attributes:
        method: the HTTP method.
        path: still percent-encoded.
        query: decoded.
        headers: lower-case names.
        body: the bytes.
        side: the listener that it came in by.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    side: ClientConfig

    def json(self) -> dict[str, Any]:
        """The body as a JSON object.

        Raises:
            InvalidError: it is none.
        """
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError as e:
            raise InvalidError(f"Cannot parse the request body as JSON: {e}") from e
        if not isinstance(value, dict):
            raise InvalidError("Cannot parse the request body: it is no JSON object")
        return value

    def repeat(self, what: str) -> IdempotencyKey | None:
        """The idempotency key, bound to this operation and payload.

        Raises:
            InvalidError: it is no UUID version 7.
        """
        text = self.headers.get("idempotency-key")
        if text is None:
            return None
        try:
            key = uuid.UUID(text)
        except ValueError:
            key = None
        if key is None or key.version != 7 or len(text) != 36:
            raise InvalidError(f"Invalid Idempotency-Key {text[:64]!r}: give a UUID version 7 (RFC 9562)")
        digest = hashlib.sha256(b"\0".join((self.path.encode(), self.body))).hexdigest()[:16]
        return IdempotencyKey(key=str(key), what=f"{what}:{digest}")

    def page(self) -> tuple[str | None, int | None]:
        """The page token and size.

        Raises:
            InvalidError: the size is no number above 0.
        """
        size = self.query.get("pageSize")
        if size is None:
            return self.query.get("pageToken"), None
        if not re.fullmatch("[1-9][0-9]{0,8}", size):
            raise InvalidError(f"Invalid pageSize {size!r}: give a number above 0")
        return self.query.get("pageToken"), min(int(size), PAGE_SIZE_MAX)


def get(value: Mapping[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """A field of a body; `default` if it is absent or null.

    Raises:
        InvalidError: it is not.
    """
    found = value.get(name)
    if found is None and default is not ...:
        return default
    if not isinstance(found, kind):
        raise InvalidError(f"Cannot parse the request body: {name} is missing or no {kind.__name__}")
    return found


def strings(value: Mapping[str, Any], name: str) -> dict[str, str]:
    """A field that maps names to strings.

    Raises:
        InvalidError: it is not.
    """
    found = get(value, name, dict, {})
    for key, item in found.items():
        if not isinstance(item, str):
            raise InvalidError(f"Cannot parse the request body: {name}.{key} is no string")
    return dict(found)


def objects(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """A field that is a list of JSON objects.

    Raises:
        InvalidError: it is not.
    """
    found = get(value, name, list, [])
    if not all(isinstance(item, dict) for item in found):
        raise InvalidError(f"Cannot parse the request body: {name} holds something that is no JSON object")
    return list(found)


def levels_of(text: str) -> Levels:
    """The levels of a namespace in a path or query.

    Raises:
        InvalidError: it is not.
    """
    levels = tuple(text.split(SEPARATOR))
    if not all(levels):
        raise InvalidNameError(f"Invalid namespace {text!r}: it has an empty level", namespace=text)
    return levels
