"""The pointer of a name: the one object whose conditional write is a commit (invariant I2). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from tarn_catalog.state.request_history import RequestHistory
from tarn_catalog.state.value import Intent, Participant, Rule

TABLE = "table"
VIEW = "view"


class PointerState(StrEnum):
    """Whether a name is in use."""

    LIVE = "live"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer(Participant):
    """The pointer of a name.

    Stored as a JSON object with `format`, `kind`, `state`, `namespace`, `name`, `table-uuid`, `version`,
    `metadata-location`, the fields of `RequestHistory`, `nonce`, `intent`, after a rename `moved` and, if a
    client with a token created it, `owner`.
    Its uuid is that of the table or view, its version counts drops and creates too.

    Attributes:
        kind: the kind of object that the name refers to, `table` or `view`; `table` in every tombstone, so
            that a release that knows no views can use the name again.
        state: live, or dropped for a tombstone.
        namespace: the levels of the name's namespace.
        name: the name.
        metadata: the location of its metadata; None in a tombstone.
        moved: in the tombstone of a rename, the new namespace and name.
        owner: the client id of the principal that created the table or view, or was given it; it stays with
            the table.
    """

    NOUN: ClassVar[str] = "pointer"
    RULES: ClassVar[tuple[Rule, ...]] = (
        *Participant.RULES,
        (
            "namespace and name never change",
            lambda before, after: (before.namespace, before.name) == (after.namespace, after.name),
        ),
        (
            "a live name changes its kind with its uuid only",
            lambda before, after: (
                before.kind == after.kind or not before.live or not after.live or before.uuid != after.uuid
            ),
        ),
        ("a tombstone is that of a table", lambda _, after: after.live or after.kind == TABLE),
        ("metadata is set exactly while live", lambda _, after: after.live == (after.metadata is not None)),
        ("a live pointer has a uuid", lambda _, after: bool(after.uuid) or not after.live),
        ("only a tombstone leads to a new name", lambda _, after: after.moved is None or not after.live),
        (
            "a live name gets another table or view by an intent only",
            lambda before, after: not before.live or before.intent is not None or before.uuid == after.uuid,
        ),
        (
            "an owner changes alone",
            lambda before, after: (
                not before.live
                or not after.live
                or before.uuid != after.uuid
                or before.owner == after.owner
                or (after.owner is not None and before.metadata == after.metadata and after.intent is None)
            ),
        ),
    )

    kind: str = TABLE
    state: PointerState = PointerState.LIVE
    namespace: tuple[str, ...]
    name: str
    metadata: str | None
    moved: tuple[str, ...] | None = None
    owner: str | None = None

    @property
    def live(self) -> bool:
        """Whether the name is in use."""
        return self.state is PointerState.LIVE

    def dropped(self) -> Pointer:
        """Return the fields of its tombstone."""
        return replace(self, kind=TABLE, state=PointerState.DROPPED, metadata=None)

    @staticmethod
    def blank(namespace: tuple[str, ...], name: str) -> Pointer:
        """Return the blank pointer that the first value of a name derives from."""
        return Pointer(
            state=PointerState.DROPPED, namespace=namespace, name=name, uuid="", metadata=None, nonce=""
        )

    def before_first(self) -> Pointer:
        """See `RegisterValue`."""
        return Pointer.blank(self.namespace, self.name)

    def applied(self, then: Mapping[str, Any]) -> Pointer:
        """See `Participant`."""
        moved = then.get("moved")
        # An intent that names no kind is a table's or leaves a tombstone, as did all before there were views.
        return replace(
            self,
            kind=then.get("kind") or TABLE,
            state=PointerState(then["state"]),
            uuid=then["table-uuid"],
            metadata=then["metadata-location"],
            moved=tuple(moved) if moved else None,
            # An intent of the same table that names no owner keeps it; those of former releases never do.
            owner=then.get("owner") or (self.owner if then["table-uuid"] == self.uuid else None),
        )

    def to_json(self) -> dict[str, Any]:
        """See `RegisterValue`."""
        return {
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
            **({"owner": self.owner} if self.owner else {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Pointer:
        """See `RegisterValue`."""
        moved = value.get("moved")
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
            owner=value.get("owner"),
        )
