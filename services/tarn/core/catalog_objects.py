"""The catalog's own objects as an auditor reads them: pointers, namespaces, claims. Pure.

This is no part of the catalog. It shares no code with it, so that a mistake there is not repeated here, and
it reads every value as far as it can be read: an auditor goes on where a server must refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tarn.core.errors import CorruptStateError

CATALOG_PREFIX = "catalog/v1/"
RESTORE_MARKER = "catalog/v1/restore.json"
FORMATS = (1,)
LIVE = "live"
DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerValue:
    """What a pointer says.

    Attributes:
        key: where it is.
        kind: `table` or `view`.
        state: `live`, or `dropped` for a tombstone.
        namespace, name: the name it is the pointer of, by its own words.
        uuid: of the table.
        version: counts the values of the key.
        metadata: the location of the metadata; None in a tombstone.
        written_ms: when this value was written, by the catalog's clock; None if it does not say.
        pages: keys of the pages of remembered idempotency keys.
        intent: what a pending change of several objects left in it.
        done: the nonces of its latest changes; a change of several objects has the same one in each.
    """

    key: str
    kind: str
    state: str
    namespace: tuple[str, ...]
    name: str
    uuid: str
    version: int
    metadata: str | None
    written_ms: int | None
    pages: tuple[str, ...] = ()
    intent: Mapping[str, Any] | None = None
    done: frozenset[str] = frozenset()

    @property
    def live(self) -> bool:
        """Whether the name is in use."""
        return self.state == LIVE

    @property
    def text(self) -> str:
        """The name, for people."""
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceValue:
    """What a namespace's object says: `state` is `live`, `dropping` or `dropped`."""

    key: str
    levels: tuple[str, ...]
    state: str
    pages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimValue:
    """What the claim on a table says.

    Attributes:
        key: where it is.
        uuid: of the table.
        holder: the key of the pointer that the table was given to last; None if none was.
        purged: whether its files are to go.
        pages: as in a pointer.
        settled: whether no change of it is pending.
    """

    key: str
    uuid: str
    holder: str | None
    purged: bool
    pages: tuple[str, ...] = ()
    settled: bool = True


def parse_pointer(key: str, data: bytes) -> PointerValue:
    """Read a pointer.

    Raises:
        CorruptStateError: it is none, or has a format that this version does not know.
    """
    value = _parse(key, data)
    try:
        recent = value.get("recent") or []
        metadata = value["metadata-location"]
        if metadata is not None and not isinstance(metadata, str):
            raise TypeError(f"metadata-location is {metadata!r}")
        intent = value.get("intent")
        return PointerValue(
            key=key,
            kind=str(value["kind"]),
            state=str(value["state"]),
            namespace=tuple(str(level) for level in value["namespace"]),
            name=str(value["name"]),
            uuid=str(value["table-uuid"]),
            version=int(value["version"]),
            metadata=metadata,
            written_ms=int(recent[-1][2]) if recent else None,
            pages=_pages(value),
            intent=intent if isinstance(intent, dict) else None,
            done=frozenset(str(row[0]) for row in recent),
        )
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise CorruptStateError(f"it is no pointer: {e!r}", key=key) from e


def parse_namespace(key: str, data: bytes) -> NamespaceValue:
    """Read a namespace's object.

    Raises:
        CorruptStateError: it is none, or has a format that this version does not know.
    """
    value = _parse(key, data)
    try:
        return NamespaceValue(
            key=key,
            levels=tuple(str(level) for level in value["namespace"]),
            state=str(value["state"]),
            pages=_pages(value),
        )
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise CorruptStateError(f"it is no namespace: {e!r}", key=key) from e


def parse_claim(key: str, data: bytes) -> ClaimValue:
    """Read the claim on a table.

    Raises:
        CorruptStateError: it is none, or has a format that this version does not know.
    """
    value = _parse(key, data)
    try:
        holder = value["holder"]
        return ClaimValue(
            key=key,
            uuid=str(value["table-uuid"]),
            holder=None if holder is None else str(holder),
            purged=value["purge"] is not None,
            pages=_pages(value),
            settled=value.get("intent") is None,
        )
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise CorruptStateError(f"it is no claim: {e!r}", key=key) from e


def _pages(value: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(page[0]) for page in value.get("key-pages") or [])


def _parse(key: str, data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as e:
        raise CorruptStateError(f"it is no JSON: {e}", key=key) from e
    if not isinstance(value, dict):
        raise CorruptStateError("it is no JSON object", key=key)
    if value.get("format") not in FORMATS:
        raise CorruptStateError(
            f"it has format {value.get('format')!r}, this version knows {', '.join(map(str, FORMATS))}",
            key=key,
        )
    return value
