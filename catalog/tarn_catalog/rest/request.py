"""A request as the routes see it, and parsing of its parts. Uses no sockets."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tarn.core.errors import InvalidError, InvalidNameError
from tarn_catalog.operations.delegation import DelegatingSession
from tarn_catalog.operations.namespaces import Levels
from tarn_catalog.state.context import IdempotencyKey

SEPARATOR = "\x1f"
PAGE_SIZE_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The client configuration of one listener, served by `/v1/config`.

    Attributes:
        name: `inside` or `published`.
        s3_endpoint: the store's endpoint as the listener's clients reach it.
        region: the store's region.
        warehouse: the name of the only warehouse.
    """

    name: str
    s3_endpoint: str
    region: str
    warehouse: str

    def defaults(self) -> dict[str, str]:
        """Return default client properties, so that Spark, Trino and pyiceberg need none of their own."""
        return {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": self.s3_endpoint,
            "s3.path-style-access": "true",
            "s3.region": self.region,
            "client.region": self.region,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RestRequest:
    """One HTTP request.

    Attributes:
        method: the HTTP method.
        path: the path, still percent-encoded.
        query: the decoded query parameters.
        headers: the headers, with lower-case names.
        body: the body.
        side: the client configuration of the listener that received it.
        opened: the operations as its principal may use them; None for a public route.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    side: ClientConfig
    opened: DelegatingSession | None = None

    @property
    def session(self) -> DelegatingSession:
        """The operations as the principal of the request may use them."""
        assert self.opened is not None, self.path
        return self.opened

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object.

        Raises:
            InvalidError: the body is not a JSON object.
        """
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError as e:
            raise InvalidError(f"Cannot parse the request body as JSON: {e}") from e
        if not isinstance(value, dict):
            raise InvalidError("Cannot parse the request body: it is no JSON object")
        return value

    def repeat(self, what: str) -> IdempotencyKey | None:
        """Return the idempotency key, bound to the operation `what` and the payload; None without the header.

        Raises:
            InvalidError: the header is not a UUID version 7.
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
        """Return the page token and the page size (at most 1,000); None for an absent one.

        Raises:
            InvalidError: the size is not a number above 0.
        """
        size = self.query.get("pageSize")
        if size is None:
            return self.query.get("pageToken"), None
        if not re.fullmatch("[1-9][0-9]{0,18}", size):
            raise InvalidError(f"Invalid pageSize {size!r}: give a number above 0")
        return self.query.get("pageToken"), min(int(size), PAGE_SIZE_MAX)


def get(value: Mapping[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """Return a field of a body; `default`, if given, for an absent or null field.

    Args:
        value: the JSON object.
        name: the field's name.
        kind: the required Python type.
        default: returned for an absent or null field.

    Raises:
        InvalidError: the field is missing or of another type.
    """
    found = value.get(name)
    if found is None and default is not ...:
        return default
    if not isinstance(found, kind):
        raise InvalidError(f"Cannot parse the request body: {name} is missing or no {kind.__name__}")
    return found


def strings(value: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return a field that maps names to strings; empty if it is absent.

    Raises:
        InvalidError: the field is not such a map.
    """
    found = get(value, name, dict, {})
    for key, item in found.items():
        if not isinstance(item, str):
            raise InvalidError(f"Cannot parse the request body: {name}.{key} is no string")
    return dict(found)


def objects(value: Mapping[str, Any], name: str) -> list[Any]:
    """Return a field that is a list of JSON objects; empty if it is absent.

    Raises:
        InvalidError: the field is not such a list.
    """
    found = get(value, name, list, [])
    if not all(isinstance(item, dict) for item in found):
        raise InvalidError(f"Cannot parse the request body: {name} holds something that is no JSON object")
    return list(found)


def levels_of(text: str) -> Levels:
    """Return the levels of a namespace in a path or query, which are separated by U+001F.

    Raises:
        InvalidNameError: a level is empty.
    """
    levels = tuple(text.split(SEPARATOR))
    if not all(levels):
        raise InvalidNameError(f"Invalid namespace {text!r}: it has an empty level", namespace=text)
    return levels
