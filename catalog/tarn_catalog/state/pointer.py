"""Register values of the catalog: the pointer of a name and the namespace, with their protocols. Pure.

A pointer or a claim (claim.py) may carry an intent, an undecided change: until it is decided, the other
fields are current.
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
    """Whether a name is in use."""

    LIVE = "live"
    DROPPED = "dropped"


class NamespaceState(StrEnum):
    """Whether a namespace exists, is being dropped, or is dropped."""

    LIVE = "live"
    DROPPING = "dropping"
    DROPPED = "dropped"


class Value(Protocol):
    """The interface of all register values."""

    @property
    def uuid(self) -> str:
        """The prefix of its history pages."""

    @property
    def version(self) -> int:
        """Number of the value, increased by each write of its key."""

    @property
    def memory(self) -> RequestHistory:
        """The completed requests."""

    @property
    def nonce(self) -> str:
        """Makes the stored bytes unique."""

    def with_memory(self, memory: RequestHistory) -> Self:
        """Return the value with another history."""

    def dump(self) -> bytes:
        """Return the stored JSON."""

    @staticmethod
    def load(data: bytes, key: str) -> Any:
        """Parse the JSON stored under `key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """An undecided change of one object.

    Stored as a JSON object with `record`, `nonce`, `then`, `at-ms`, `key` and `what`.

    Attributes:
        record: the key of the transaction record that decides; None: the object's own next value decides.
        nonce: the transaction's nonce.
        then: the object's fields after a commit, JSON.
        at_ms: start of the transaction, milliseconds since the epoch.
        key: the request's idempotency key, recorded with the change.
        what: the operation and a digest of the payload.
    """

    record: str | None
    nonce: str
    then: Mapping[str, Any]
    at_ms: int
    key: str | None = None
    what: str | None = None

    def done(self, version: int) -> CompletedRequest:
        """Return the history entry of the committed change; `version` is that of the value with intent."""
        return CompletedRequest(
            nonce=self.nonce, version=version, at_ms=self.at_ms, key=self.key, what=self.what
        )

    def to_json(self) -> dict[str, Any]:
        """Return the stored JSON object."""
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
        """Parse the stored JSON object; None for null."""
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
        """The undecided change, or None."""

    def touched(self, *, nonce: str, now_ms: int, intent: Intent | None = None) -> Self:
        """Return the next value with the same fields and this intent.

        Args:
            nonce: a new nonce.
            now_ms: milliseconds since the epoch.
            intent: the undecided change; None for none.
        """

    def settled(self, *, committed: bool) -> Self:
        """Return the value with its intent applied or discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """The pointer of a name: the one object whose conditional write is a commit (invariant I2).

    Stored as a JSON object with `format`, `kind`, `state`, `namespace`, `name`, `table-uuid`, `version`,
    `metadata-location`, the fields of `RequestHistory`, `nonce`, `intent` and, after a rename, `moved`.

    Attributes:
        kind: the kind of object that the name refers to; `table`.
        state: live, or dropped for a tombstone.
        namespace: the levels of the name's namespace.
        name: the name.
        uuid: the table's uuid.
        version: number of the value, increased by each write of this key, drops and creates included.
        metadata: the location of the table's metadata; None in a tombstone.
        memory: the completed requests.
        nonce: makes the bytes, and so the entity tag, unique.
        intent: an undecided change.
        moved: in the tombstone of a rename, the table's new namespace and name.
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
        """Return the next value of the pointer.

        Args:
            nonce: a new nonce.
            now_ms: milliseconds since the epoch.
            key: the request's idempotency key.
            what: the operation and a digest of the payload.
            metadata: the location of the table's metadata; None for a tombstone.
            state: the next state.
            uuid: the table's uuid; None keeps it.
        """
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
        """Return the stored JSON."""
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
        """Parse the JSON stored under `key`.

        Raises:
            UnavailableError: the value's format version is unknown.
            CorruptStateError: the value is not a valid pointer.
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
    """The register value of a namespace.

    Stored as a JSON object with `format`, `namespace`, `uuid`, `state`, `properties`, `version`, the fields
    of `RequestHistory`, `nonce` and, during a nested create, `making`.

    Attributes:
        levels: the levels of its name.
        uuid: a uuid that each create assigns.
        state: live, dropping or dropped.
        properties: properties set by clients.
        version: number of the value, increased by each write of this key.
        memory: the completed requests.
        nonce: makes the bytes unique.
        making: still dropped, but a create is in progress that requires the parent namespace.
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
        """Whether the namespace exists for clients; true while it is being dropped."""
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
        """Return the next value of the namespace.

        Args:
            nonce: a new nonce.
            now_ms: milliseconds since the epoch.
            state: the next state.
            properties: the next properties; None keeps them.
            key: the request's idempotency key.
            what: the operation and a digest of the payload.
            uuid: the next uuid; None keeps it.
            making: whether to mark the namespace as being created.
        """
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
        """Return the stored JSON."""
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
        """Parse the JSON stored under `key`.

        Raises:
            UnavailableError: the value's format version is unknown.
            CorruptStateError: the value is not a valid namespace.
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
    """Parse the JSON object of a register value in this version's format.

    Raises:
        UnavailableError: the value has another format version.
        CorruptStateError: the value is not a JSON object.
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
