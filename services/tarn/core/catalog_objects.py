"""The catalog's stored objects as seen by an auditor: pointers, namespaces, claims, grants. Pure.

Deliberately shares no code with the catalog, so that its mistakes are not repeated here, and reads as much of
each value as possible: an auditor continues where a server must refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tarn.core.errors import CorruptStateError

CATALOG_PREFIX = "catalog/v1/"
RESTORE_MARKER = "catalog/v1/restore.json"
FORMATS = (1,)
TABLE = "table"
VIEW = "view"
COMMITTED = "committed"
LIVE = "live"
DROPPED = "dropped"

ReadObject = Callable[[str], bytes | None]
"""Content of an object of the catalog; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointerValue:
    """A table or view pointer.

    Attributes:
        key: object key.
        kind: `table` or `view`.
        state: `live`, or `dropped` for a tombstone.
        namespace: namespace stored in the object.
        name: name stored in the object.
        uuid: UUID of the table or view.
        version: number of writes of this key.
        metadata: metadata location; None in a tombstone.
        written_ms: write time by the catalog's clock, in milliseconds since the epoch; None if not stored.
        pages: keys of the pages of remembered idempotency keys.
        intent: intent of an undecided transaction, if any; one that is committed is applied in all fields.
        done: nonces of the latest writes; a multi-object transaction leaves the same nonce in each object.
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
        """The qualified name, for messages."""
        return ".".join((*self.namespace, self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceValue:
    """A namespace object; `state` is `live`, `dropping` or `dropped`."""

    key: str
    levels: tuple[str, ...]
    state: str
    pages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimValue:
    """The claim on a table.

    Attributes:
        key: object key.
        uuid: UUID of the table.
        holder: key of the pointer that last got the table; None if there was none.
        purge: what is known of a table whose files are to be deleted, among it its location; None otherwise.
        pages: as in `PointerValue`.
        settled: whether no transaction on it is undecided.
    """

    key: str
    uuid: str
    holder: str | None
    purge: Mapping[str, Any] | None
    pages: tuple[str, ...] = ()
    settled: bool = True

    @property
    def purged(self) -> bool:
        """Whether the table's files are to be deleted."""
        return self.purge is not None


def parse_pointer(key: str, data: bytes, read: ReadObject) -> PointerValue:
    """Parse a pointer, as readers of the catalog see it: with its intent applied if that is committed.

    Args:
        key: object key.
        data: content.
        read: reads the record of a transaction, later than the pointer was read.

    Raises:
        CorruptStateError: the data is not a pointer, or has an unknown format.
    """
    value = _parse(key, data)
    try:
        value = _decided(value, read)
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
    """Parse a namespace object.

    Raises:
        CorruptStateError: the data is not a namespace object, or has an unknown format.
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


def parse_claim(key: str, data: bytes, read: ReadObject) -> ClaimValue:
    """Parse the claim on a table; arguments and intent as in `parse_pointer`.

    Raises:
        CorruptStateError: the data is not a claim, or has an unknown format.
    """
    value = _parse(key, data)
    try:
        value = _decided(value, read)
        holder, purge = value["holder"], value["purge"]
        if purge is not None and not isinstance(purge, dict):
            raise TypeError(f"purge is {purge!r}")
        return ClaimValue(
            key=key,
            uuid=str(value["table-uuid"]),
            holder=None if holder is None else str(holder),
            purge=purge,
            pages=_pages(value),
            settled=value.get("intent") is None,
        )
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise CorruptStateError(f"it is no claim: {e!r}", key=key) from e


def check_grants(key: str, data: bytes) -> None:
    """Require that the data is a list of principals, roles and grants.

    Raises:
        CorruptStateError: the data is something else, or has an unknown format.
    """
    value = _parse(key, data)
    try:
        names = {
            str(one["name"]) for one in value["principals"].values() if bytes.fromhex(one["secret-sha256"])
        }
        for role, members in value["roles"].items():
            if not names.issuperset(members):
                raise ValueError(f"the role {role} has members that are no principals")
        names.update(value["roles"])
        for grant in value["grants"]:
            thing, to = grant["on"], grant["to"]
            if to not in names or not grant["privileges"]:
                raise ValueError(f"a grant to {to} on {thing['kind']} is to nobody or of nothing")
            if thing["kind"] != "warehouse" and not (thing["uuid"] and thing["name"]):
                raise ValueError(f"a grant to {to} is on nothing")
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptStateError(f"it is no list of grants: {e!r}", key=key) from e


def _decided(value: dict[str, Any], read: ReadObject) -> dict[str, Any]:
    """The fields of a pointer or claim, with its intent applied if the transaction of that is committed.

    The record decides. Who began the transaction, or else the next writer, applies it; if nobody does, the
    object stays as it is, however long.
    """
    intent = value.get("intent")
    record = intent.get("record") if isinstance(intent, dict) else None
    if not isinstance(intent, dict) or not isinstance(record, str) or not _is_committed(read(record)):
        return value
    then = intent["then"]
    # As of any write its nonce is remembered: a transaction leaves the same one in each of its objects.
    done = [intent["nonce"], value["version"], intent["at-ms"]]
    return {
        **value,
        **then,
        "kind": then.get("kind") or TABLE,
        "recent": [*(value.get("recent") or []), done],
        "intent": None,
    }


def _is_committed(record: bytes | None) -> bool:
    try:
        value = orjson.loads(record) if record is not None else None
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and value.get("format") in FORMATS and value.get("state") == COMMITTED


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
