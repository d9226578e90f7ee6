"""The register value of access control: the principals, roles and grants of a lake. Pure.

A grant belongs to a thing, not to its name: it names the uuid of a namespace, table or view, so that it
follows a rename and never passes to another thing that gets the name. The name beside it is the one at the
time of the grant or of the last rename, for people and listings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from tarn_catalog.state.pointer import TABLE, VIEW
from tarn_catalog.state.request_history import RequestHistory
from tarn_catalog.state.value import Rule, VersionedValue

ADMIN = "admin"
"""The role that may do everything; the principals of the lake's own services have it."""
WAREHOUSE = "warehouse"
NAMESPACE = "namespace"
KINDS = (WAREHOUSE, NAMESPACE, TABLE, VIEW)


class Privilege(StrEnum):
    """What a grant allows, on a thing and on everything in it."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    MANAGE = "MANAGE"


INCLUDED: Mapping[Privilege, frozenset[Privilege]] = {
    Privilege.READ: frozenset({Privilege.READ}),
    Privilege.WRITE: frozenset({Privilege.READ, Privilege.WRITE}),
    Privilege.CREATE: frozenset({Privilege.CREATE}),
    Privilege.MANAGE: frozenset(Privilege),
}
"""Each privilege with those that it includes."""

FITTING: Mapping[str, frozenset[Privilege]] = {
    WAREHOUSE: frozenset(Privilege),
    NAMESPACE: frozenset(Privilege),
    TABLE: frozenset(Privilege) - {Privilege.CREATE},
    VIEW: frozenset(Privilege) - {Privilege.CREATE},
}
"""The privileges that can be granted on each kind of thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Securable:
    """A thing that privileges are granted on.

    Stored as a JSON object with `kind` and, except for the warehouse, `uuid` and `name`.

    Attributes:
        kind: `warehouse`, `namespace`, `table` or `view`.
        uuid: its uuid; empty for the warehouse.
        name: the levels of its name when it was last known; empty for the warehouse.
    """

    kind: str
    uuid: str = ""
    name: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Kind and dotted name, for messages."""
        return " ".join((self.kind, ".".join(self.name))).rstrip()

    def to_json(self) -> dict[str, Any]:
        """Return the stored JSON object."""
        if self.kind == WAREHOUSE:
            return {"kind": self.kind}
        return {"kind": self.kind, "uuid": self.uuid, "name": self.name}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Securable:
        """Parse the stored JSON object."""
        if value["kind"] not in KINDS:
            raise ValueError(f"kind is {value['kind']!r}")
        if value["kind"] == WAREHOUSE:
            return THE_WAREHOUSE
        return Securable(kind=value["kind"], uuid=value["uuid"], name=tuple(value["name"]))


THE_WAREHOUSE = Securable(kind=WAREHOUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The privileges of one grantee on one thing; stored as `{"on": …, "to": …, "privileges": […]}`.

    Attributes:
        on: the thing.
        to: the name of a principal or role.
        privileges: as granted, without those that they include.
    """

    on: Securable
    to: str
    privileges: frozenset[Privilege]

    def to_json(self) -> dict[str, Any]:
        """Return the stored JSON object."""
        return {"on": self.on.to_json(), "to": self.to, "privileges": sorted(self.privileges)}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Grant:
        """Parse the stored JSON object."""
        return Grant(
            on=Securable.from_json(value["on"]),
            to=value["to"],
            privileges=frozenset(Privilege(name) for name in value["privileges"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerSecret:
    """The secret before a rotation, for as long as it is still accepted.

    Stored as `{"secret-sha256": …, "ends-ms": …}`.

    Attributes:
        secret_sha256: its SHA-256, hex.
        ends_ms: when it ends, milliseconds since the epoch.
    """

    secret_sha256: str = field(repr=False)
    ends_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPrincipal:
    """A principal that an admin created; stored by its client id.

    Stored as `{"name": …, "secret-sha256": …, "at-ms": …, "by": …}`, and `former` if its secret
    was rotated with a grace.

    Attributes:
        client_id: the id that it authenticates with; never used for another principal.
        name: its name, as in grants.
        secret_sha256: the SHA-256 of its random secret, hex.
        at_ms: when it was created, milliseconds since the epoch.
        by: the name of the principal that created it.
        former: the secret before the last rotation, if that one left it valid for a while.
    """

    client_id: str
    name: str
    secret_sha256: str = field(repr=False)
    at_ms: int
    by: str
    former: FormerSecret | None = None

    def secrets(self, now_ms: int) -> tuple[str, ...]:
        """Return the SHA-256 of each secret that is accepted now, hex, the newest first."""
        if self.former is None or now_ms >= self.former.ends_ms:
            return (self.secret_sha256,)
        return self.secret_sha256, self.former.secret_sha256

    def to_json(self) -> dict[str, Any]:
        """Return the stored JSON object."""
        former = self.former
        kept = {"secret-sha256": former.secret_sha256, "ends-ms": former.ends_ms} if former else None
        return {
            "name": self.name,
            "secret-sha256": self.secret_sha256,
            "at-ms": self.at_ms,
            "by": self.by,
            **({"former": kept} if kept else {}),
        }

    @staticmethod
    def from_json(client_id: str, value: Mapping[str, Any]) -> StoredPrincipal:
        """Parse the stored JSON object."""
        kept = value.get("former")
        for one in (value, *([kept] if kept else [])):
            if len(bytes.fromhex(one["secret-sha256"])) != 32:
                raise ValueError(f"the secret-sha256 of {client_id} is not a SHA-256")
        return StoredPrincipal(
            client_id=client_id,
            name=value["name"],
            secret_sha256=value["secret-sha256"],
            at_ms=value["at-ms"],
            by=value["by"],
            former=FormerSecret(secret_sha256=kept["secret-sha256"], ends_ms=kept["ends-ms"])
            if kept
            else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessState(VersionedValue):
    """The principals, roles and grants of a lake.

    Stored as a JSON object with `format`, `uuid`, `principals`, `roles`, `grants`, `version`, the fields of
    `RequestHistory` and `nonce`.

    Attributes:
        principals: those that an admin created.
        roles: name of each role to the names of its members, which are principals; `admin` if it has any.
        grants: at most one per thing and grantee.
    """

    NOUN: ClassVar[str] = "list of grants"
    RULES: ClassVar[tuple[Rule, ...]] = (
        *VersionedValue.RULES,
        (
            "its uuid never changes",
            lambda before, after: before.uuid in ("", after.uuid) and after.uuid != "",
        ),
        (
            "a client id belongs to one name",
            lambda before, after: _one_name_each((*before.principals, *after.principals)),
        ),
        (
            "a name is that of one principal or role",
            lambda _, after: len(set(after.names)) == len(after.names),
        ),
        (
            "members of roles are principals",
            lambda _, after: (
                {one for members in after.roles.values() for one in members}
                <= {principal.name for principal in after.principals}
            ),
        ),
        (
            "grants go to principals and roles that exist",
            lambda _, after: {grant.to for grant in after.grants} <= {*after.names} - {ADMIN},
        ),
        (
            "a grantee has one grant on a thing, of privileges that fit",
            lambda _, after: (
                len({(grant.on.uuid, grant.to) for grant in after.grants}) == len(after.grants)
                and all(
                    grant.privileges and grant.privileges <= FITTING[grant.on.kind] for grant in after.grants
                )
            ),
        ),
    )

    principals: tuple[StoredPrincipal, ...] = ()
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all principals and roles."""
        return (*(principal.name for principal in self.principals), *self.roles)

    @staticmethod
    def blank() -> AccessState:
        """Return the blank value that the first one derives from: no principal, no role, no grant."""
        return AccessState(uuid="", nonce="")

    def before_first(self) -> AccessState:
        """See `RegisterValue`."""
        return AccessState.blank()

    def name_of(self, client_id: str) -> str | None:
        """Return the name of a principal, or None."""
        return next((one.name for one in self.principals if one.client_id == client_id), None)

    def granted(self, on: Securable, to: str) -> frozenset[Privilege]:
        """Return the privileges that were granted to exactly this grantee on exactly this thing."""
        return next(
            (grant.privileges for grant in self.grants if grant.on.uuid == on.uuid and grant.to == to),
            frozenset(),
        )

    def with_grant(self, on: Securable, to: str, privileges: frozenset[Privilege]) -> AccessState:
        """Return the value with exactly these privileges of a grantee on a thing; none removes the grant."""
        others = tuple(grant for grant in self.grants if grant.on.uuid != on.uuid or grant.to != to)
        new = (Grant(on=on, to=to, privileges=privileges),) if privileges else ()
        return replace(self, grants=(*others, *new))

    def without(self, name: str) -> AccessState:
        """Return the value without a principal or role, its memberships and its grants."""
        return replace(
            self,
            principals=tuple(principal for principal in self.principals if principal.name != name),
            roles={
                role: tuple(member for member in members if member != name)
                for role, members in self.roles.items()
                if role != name
            },
            grants=tuple(grant for grant in self.grants if grant.to != name),
        )

    def to_json(self) -> dict[str, Any]:
        """See `RegisterValue`."""
        return {
            "uuid": self.uuid,
            "principals": {principal.client_id: principal.to_json() for principal in self.principals},
            "roles": {role: list(members) for role, members in self.roles.items()},
            "grants": [grant.to_json() for grant in self.grants],
            "version": self.version,
            **self.memory.to_json(),
            "nonce": self.nonce,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AccessState:
        """See `RegisterValue`."""
        return AccessState(
            uuid=value["uuid"],
            principals=tuple(
                StoredPrincipal.from_json(client_id, one)
                for client_id, one in dict(value["principals"]).items()
            ),
            roles={role: tuple(members) for role, members in dict(value["roles"]).items()},
            grants=tuple(Grant.from_json(one) for one in value["grants"]),
            version=value["version"],
            memory=RequestHistory.from_json(value),
            nonce=value["nonce"],
        )


def _one_name_each(principals: tuple[StoredPrincipal, ...]) -> bool:
    """Return whether no two of these have the same client id and different names."""
    names = {(one.client_id, one.name) for one in principals}
    return len(names) == len({client_id for client_id, _ in names})
