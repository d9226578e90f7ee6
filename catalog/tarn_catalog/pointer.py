"""The two register values of the catalog: a table's pointer and a namespace's object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import orjson

from tarn.core.errors import CorruptStateError, UnavailableError
from tarn_catalog.memory import Done, Memory

FORMAT = 1


class PointerState(StrEnum):
    """Whether the name is in use."""

    LIVE = "live"
    DROPPED = "dropped"


class NamespaceState(StrEnum):
    """Whether the namespace is there, is being dropped, or is gone."""

    LIVE = "live"
    DROPPING = "dropping"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The pointer of a name: the one object whose conditional write is a commit (invariant I2).

    Attributes:
        kind: what the name names; `table`.
        state: live, or a tombstone.
        namespace: where the name lives.
        name: the name.
        uuid: of the table.
        version: counts the values of this key, over drops and creates too.
        metadata: the location of the table's metadata; None in a tombstone.
        memory: what was done lately.
        nonce: makes the bytes, and so the entity tag, unique.
        intent: the transaction record that a pending change of several objects names.
    """

    kind: str = "table"
    state: PointerState = PointerState.LIVE
    namespace: tuple[str, ...]
    name: str
    uuid: str
    version: int
    metadata: str | None
    memory: Memory = field(default_factory=Memory)
    nonce: str
    intent: Mapping[str, Any] | None = None

    @property
    def live(self) -> bool:
        """Whether the name is in use."""
        return self.state is PointerState.LIVE

    def next(
        self,
        *,
        nonce: str,
        now_ms: int,
        key: str | None = None,
        what: str | None = None,
        metadata: str | None,
        state: PointerState = PointerState.LIVE,
        uuid: str | None = None,
    ) -> Pointer:
        """The value that follows this one."""
        done = Done(nonce=nonce, version=self.version + 1, at_ms=now_ms, key=key, what=what)
        return replace(
            self,
            state=state,
            uuid=uuid or self.uuid,
            version=self.version + 1,
            metadata=metadata,
            memory=self.memory.add(done),
            nonce=nonce,
        )

    def dump(self) -> bytes:
        """As stored."""
        assert (self.metadata is None) == (self.state is PointerState.DROPPED), self
        return orjson.dumps(
            {
                "format": FORMAT,
                "kind": self.kind,
                "state": self.state.value,
                "namespace": self.namespace,
                "name": self.name,
                "table-uuid": self.uuid,
                "version": self.version,
                "metadata-location": self.metadata,
                **self.memory.to_json(),
                "nonce": self.nonce,
                "intent": self.intent,
            }
        )

    @staticmethod
    def load(data: bytes, key: str) -> Pointer:
        """From what was stored under `key`.

        Raises:
            UnavailableError: it carries an intent or a format that this version does not know.
            CorruptStateError: it is no pointer.
        """
        value = _parse(data, key)
        if value.get("intent") is not None:
            raise UnavailableError(
                f"{key} takes part in a transaction that this version of the catalog does not know; "
                "upgrade the catalog",
                key=key,
            )
        try:
            return Pointer(
                kind=value["kind"],
                state=PointerState(value["state"]),
                namespace=tuple(value["namespace"]),
                name=value["name"],
                uuid=value["table-uuid"],
                version=value["version"],
                metadata=value["metadata-location"],
                memory=Memory.from_json(value),
                nonce=value["nonce"],
            )
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise CorruptStateError(f"{key} is no pointer: {e!r}; restore it from a backup", key=key) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """The object of a namespace.

    Attributes:
        levels: its name.
        uuid: of this life of the namespace.
        state: live, dropping or dropped.
        properties: what clients set.
        version: counts the values of this key.
        memory: what was done lately.
        nonce: makes the bytes unique.
    """

    levels: tuple[str, ...]
    uuid: str
    state: NamespaceState = NamespaceState.LIVE
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int
    memory: Memory = field(default_factory=Memory)
    nonce: str

    @property
    def there(self) -> bool:
        """Whether it exists for clients; one that is being dropped still does."""
        return self.state is not NamespaceState.DROPPED

    def next(
        self,
        *,
        nonce: str,
        now_ms: int,
        state: NamespaceState,
        properties: Mapping[str, str] | None = None,
        key: str | None = None,
        what: str | None = None,
        uuid: str | None = None,
    ) -> Namespace:
        """The value that follows this one."""
        done = Done(nonce=nonce, version=self.version + 1, at_ms=now_ms, key=key, what=what)
        return replace(
            self,
            state=state,
            uuid=uuid or self.uuid,
            properties=self.properties if properties is None else properties,
            version=self.version + 1,
            memory=self.memory.add(done),
            nonce=nonce,
        )

    def dump(self) -> bytes:
        """As stored."""
        return orjson.dumps(
            {
                "format": FORMAT,
                "namespace": self.levels,
                "uuid": self.uuid,
                "state": self.state.value,
                "properties": dict(self.properties),
                "version": self.version,
                **self.memory.to_json(),
                "nonce": self.nonce,
            }
        )

    @staticmethod
    def load(data: bytes, key: str) -> Namespace:
        """From what was stored under `key`.

        Raises:
            UnavailableError: it has a format that this version does not know.
            CorruptStateError: it is no namespace.
        """
        value = _parse(data, key)
        try:
            return Namespace(
                levels=tuple(value["namespace"]),
                uuid=value["uuid"],
                state=NamespaceState(value["state"]),
                properties=value["properties"],
                version=value["version"],
                memory=Memory.from_json(value),
                nonce=value["nonce"],
            )
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise CorruptStateError(f"{key} is no namespace: {e!r}; restore it from a backup", key=key) from e


def _parse(data: bytes, key: str) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as e:
        raise CorruptStateError(f"{key} is no JSON: {e}; restore it from a backup", key=key) from e
    if not isinstance(value, dict):
        raise CorruptStateError(f"{key} is no JSON object; restore it from a backup", key=key)
    if value.get("format") != FORMAT:
        raise UnavailableError(
            f"{key} has format {value.get('format')}, this version of the catalog knows {FORMAT}; upgrade "
            "the catalog",
            key=key,
        )
    return value
