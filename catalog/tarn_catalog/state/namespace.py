"""The register value of a namespace. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from tarn_catalog.state.request_history import RequestHistory
from tarn_catalog.state.value import Rule, VersionedValue


class NamespaceState(StrEnum):
    """Whether a namespace exists, is being dropped, or is dropped."""

    LIVE = "live"
    DROPPING = "dropping"
    DROPPED = "dropped"


_NEXT_STATES = {
    NamespaceState.LIVE: {NamespaceState.LIVE, NamespaceState.DROPPING},
    NamespaceState.DROPPING: set(NamespaceState),
    NamespaceState.DROPPED: {NamespaceState.DROPPED, NamespaceState.LIVE},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace(VersionedValue):
    """The register value of a namespace; each create assigns a uuid.

    Stored as a JSON object with `format`, `namespace`, `uuid`, `state`, `properties`, `version`, the fields
    of `RequestHistory`, `nonce`, during a nested create `making` and, if a client with a token created it,
    `owner`.

    Attributes:
        levels: the levels of its name.
        state: live, dropping or dropped.
        properties: properties set by clients.
        owner: the client id of the principal that created it, or was given it.
        making: still dropped, but a create is in progress that requires the parent namespace.
    """

    NOUN: ClassVar[str] = "namespace"
    RULES: ClassVar[tuple[Rule, ...]] = (
        *VersionedValue.RULES,
        ("its name never changes", lambda before, after: before.levels == after.levels),
        (
            "a drop goes from live by dropping to dropped",
            lambda before, after: after.state in _NEXT_STATES[before.state],
        ),
        (
            "a create assigns a uuid, nothing else does",
            lambda before, after: (before.uuid != after.uuid) == (after.there and not before.there),
        ),
        ("only a dropped namespace is being created", lambda _, after: not (after.making and after.there)),
        (
            "a nested create is announced first",
            lambda before, after: len(after.levels) == 1 or before.there or not after.there or before.making,
        ),
        (
            "an owner changes alone",
            lambda before, after: (
                before.uuid != after.uuid
                or before.owner == after.owner
                or (
                    after.owner is not None
                    and before.state == after.state
                    and before.properties == after.properties
                )
            ),
        ),
    )

    levels: tuple[str, ...]
    state: NamespaceState = NamespaceState.LIVE
    properties: Mapping[str, str] = field(default_factory=dict)
    making: bool = False
    owner: str | None = None

    @property
    def there(self) -> bool:
        """Whether the namespace exists for clients; true while it is being dropped."""
        return self.state is not NamespaceState.DROPPED

    @staticmethod
    def blank(levels: tuple[str, ...]) -> Namespace:
        """Return the blank value that the first value of a namespace derives from."""
        return Namespace(levels=levels, uuid="", state=NamespaceState.DROPPED, nonce="")

    def before_first(self) -> Namespace:
        """See `RegisterValue`."""
        return Namespace.blank(self.levels)

    def to_json(self) -> dict[str, Any]:
        """See `RegisterValue`."""
        return {
            "namespace": self.levels,
            "uuid": self.uuid,
            "state": self.state.value,
            "properties": dict(self.properties),
            "version": self.version,
            **self.memory.to_json(),
            "nonce": self.nonce,
            **({"making": True} if self.making else {}),
            **({"owner": self.owner} if self.owner else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Namespace:
        """See `RegisterValue`."""
        return Namespace(
            levels=tuple(value["namespace"]),
            uuid=value["uuid"],
            state=NamespaceState(value["state"]),
            properties=value["properties"],
            version=value["version"],
            memory=RequestHistory.from_json(value),
            nonce=value["nonce"],
            making=bool(value.get("making")),
            owner=value.get("owner"),
        )
