"""The register values of the catalog: a name's pointer, a namespace's object, the claim on a table. Pure.

A pointer or a claim may carry an intent, a change not decided yet: until it is, the other fields hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, Self

import orjson

from tarn.core.errors import CorruptStateError, UnavailableError
from tarn_catalog.state.request_history import CompletedRequest, RequestHistory

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


class Value(Protocol):
    """What every register value has."""

    @property
    def uuid(self) -> str:
        """What its pages of keys lie under."""

    @property
    def version(self) -> int:
        """Counts the values of its key."""

    @property
    def memory(self) -> RequestHistory:
        """What was done lately."""

    @property
    def nonce(self) -> str:
        """Makes its bytes unique."""

    def with_memory(self, memory: RequestHistory) -> Self:
        """With another memory."""

    def dump(self) -> bytes:
        """As stored."""

    @staticmethod
    def load(data: bytes, key: str) -> Any:
        """From what was stored under `key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A change of one object that is not decided yet.

    Attributes:
        record: the key of the transaction record that decides; None: the next value of the object itself.
        nonce: of the transaction.
        then: what the fields are once it is committed, JSON.
        at_ms: when it began, milliseconds since the epoch.
        key: the client's idempotency key, remembered with the change.
        what: the operation and a digest of its payload.
    """

    record: str | None
    nonce: str
    then: Mapping[str, Any]
    at_ms: int
    key: str | None = None
    what: str | None = None

    def done(self, version: int) -> CompletedRequest:
        """What is remembered once it is committed."""
        return CompletedRequest(
            nonce=self.nonce, version=version, at_ms=self.at_ms, key=self.key, what=self.what
        )

    def to_json(self) -> dict[str, Any]:
        """As stored."""
        return {
            "record": self.record,
            "nonce": self.nonce,
            "then": dict(self.then),
            "at-ms": self.at_ms,
            "key": self.key,
            "what": self.what,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any] | None) -> Intent | None:
        """From what was stored."""
        if value is None:
            return None
        return Intent(
            record=value["record"],
            nonce=value["nonce"],
            then=dict(value["then"]),
            at_ms=value["at-ms"],
            key=value["key"],
            what=value["what"],
        )


class Participant(Value, Protocol):
    """A register value that may carry an intent."""

    @property
    def intent(self) -> Intent | None:
        """The pending change."""

    def touched(self, *, nonce: str, now_ms: int, intent: Intent | None = None) -> Self:
        """The next value, with the same fields and this intent."""

    def settled(self, *, committed: bool) -> Self:
        """What the value means once its intent is decided."""


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
        intent: a change that is not decided yet.
        moved: in a tombstone that a rename left: where the table went, namespace and name.
    """

    kind: str = "table"
    state: PointerState = PointerState.LIVE
    namespace: tuple[str, ...]
    name: str
    uuid: str
    version: int
    metadata: str | None
    memory: RequestHistory = field(default_factory=RequestHistory)
    nonce: str
    intent: Intent | None = None
    moved: tuple[str, ...] | None = None

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
        assert self.intent is None, self
        done = CompletedRequest(nonce=nonce, version=self.version + 1, at_ms=now_ms, key=key, what=what)
        return replace(
            self,
            state=state,
            uuid=uuid or self.uuid,
            version=self.version + 1,
            metadata=metadata,
            memory=self.memory.add(done),
            nonce=nonce,
            moved=None,
        )

    def with_memory(self, memory: RequestHistory) -> Pointer:
        """See `Value`."""
        return replace(self, memory=memory)

    def touched(self, *, nonce: str, now_ms: int, intent: Intent | None = None) -> Pointer:
        """See `Participant`."""
        assert self.intent is None, self
        done = CompletedRequest(nonce=nonce, version=self.version + 1, at_ms=now_ms)
        return replace(
            self, version=self.version + 1, memory=self.memory.add(done), nonce=nonce, intent=intent
        )

    def settled(self, *, committed: bool) -> Pointer:
        """See `Participant`."""
        intent, clean = self.intent, replace(self, intent=None)
        if intent is None or not committed:
            return clean
        then = intent.then
        moved = then.get("moved")
        return replace(
            clean,
            state=PointerState(then["state"]),
            uuid=then["table-uuid"],
            metadata=then["metadata-location"],
            moved=tuple(moved) if moved else None,
            memory=self.memory.add(intent.done(self.version)),
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
                "intent": self.intent.to_json() if self.intent else None,
                **({"moved": self.moved} if self.moved else {}),
            }
        )

    @staticmethod
    def load(data: bytes, key: str) -> Pointer:
        """From what was stored under `key`.

        Raises:
            UnavailableError: it has a format that this version does not know.
            CorruptStateError: it is no pointer.
        """
        value = parse(data, key)
        moved = value.get("moved")
        try:
            return Pointer(
                kind=value["kind"],
                state=PointerState(value["state"]),
                namespace=tuple(value["namespace"]),
                name=value["name"],
                uuid=value["table-uuid"],
                version=value["version"],
                metadata=value["metadata-location"],
                memory=RequestHistory.from_json(value),
                nonce=value["nonce"],
                intent=Intent.from_json(value.get("intent")),
                moved=tuple(moved) if moved else None,
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
        making: dropped still, but somebody is about to make it live, if the namespace above is there.
    """

    levels: tuple[str, ...]
    uuid: str
    state: NamespaceState = NamespaceState.LIVE
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int
    memory: RequestHistory = field(default_factory=RequestHistory)
    nonce: str
    making: bool = False

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
        making: bool = False,
    ) -> Namespace:
        """The value that follows this one."""
        done = CompletedRequest(nonce=nonce, version=self.version + 1, at_ms=now_ms, key=key, what=what)
        return replace(
            self,
            state=state,
            uuid=uuid or self.uuid,
            properties=self.properties if properties is None else properties,
            version=self.version + 1,
            memory=self.memory.add(done),
            nonce=nonce,
            making=making,
        )

    def with_memory(self, memory: RequestHistory) -> Namespace:
        """See `Value`."""
        return replace(self, memory=memory)

    def dump(self) -> bytes:
        """As stored."""
        assert not (self.making and self.there), self
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
                **({"making": True} if self.making else {}),
            }
        )

    @staticmethod
    def load(data: bytes, key: str) -> Namespace:
        """From what was stored under `key`.

        Raises:
            UnavailableError: it has a format that this version does not know.
            CorruptStateError: it is no namespace.
        """
        value = parse(data, key)
        try:
            return Namespace(
                levels=tuple(value["namespace"]),
                uuid=value["uuid"],
                state=NamespaceState(value["state"]),
                properties=value["properties"],
                version=value["version"],
                memory=RequestHistory.from_json(value),
                nonce=value["nonce"],
                making=bool(value.get("making")),
            )
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise CorruptStateError(f"{key} is no namespace: {e!r}; restore it from a backup", key=key) from e


def parse(data: bytes, key: str) -> dict[str, Any]:
    """The JSON object of a register value in the format of this version.

    Raises:
        UnavailableError: it has another format.
        CorruptStateError: it is none.
    """
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
