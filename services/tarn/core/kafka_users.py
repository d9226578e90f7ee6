"""Kafka users and their ACLs, from the table of services; the broker's are set to them at each start.

Stdlib only, except for that table: the broker's image has these two files alone, without the package.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tarn.core.services import ALL, SERVICES, Right

ADMIN = "kafka"
MECHANISM = "SCRAM-SHA-512"

EVERYBODY = ALL

HEALTH = "health"
HEALTH_TOPIC = "_tarn_health"

RIGHTS: Mapping[str, tuple[Right, ...]] = {
    **{name: service.kafka for name, service in SERVICES.items() if service.kafka},
    # The broker's own health check; its password never leaves the broker.
    HEALTH: (Right(resource="TOPIC", name=HEALTH_TOPIC, operations=("READ", "WRITE", "CREATE")),),
    # Group offsets, transactions and similar topics are internal to the broker.
    EVERYBODY: (Right(resource="TOPIC", name="__", prefixed=True, operations=("ALL",), denied=True),),
}
"""User to privileges: the services' own, and two that belong to no service."""

USERS: tuple[str, ...] = tuple(user for user in RIGHTS if user != EVERYBODY)
"""Users that log in with a password of their own."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rule:
    """One ACL of the broker.

    Attributes:
        principal: `User:<name>`, or `User:*` for everyone.
        resource: resource type.
        name: resource name.
        pattern: `LITERAL` or `PREFIXED`.
        operation: one operation.
        permission: `ALLOW` or `DENY`.
        host: client host; `*` is any.
    """

    principal: str
    resource: str
    name: str
    pattern: str
    operation: str
    permission: str
    host: str = ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes that give a broker exactly the users and ACLs of the table.

    Attributes:
        set_passwords: users whose password is set; all of them, as a broker's passwords cannot be read back.
        remove_users: users that are not in the table.
        add: ACLs to create.
        remove: ACLs to delete.
    """

    set_passwords: tuple[str, ...]
    remove_users: tuple[str, ...]
    add: tuple[Rule, ...]
    remove: tuple[Rule, ...]


def rules(rights: Mapping[str, tuple[Right, ...]] = RIGHTS) -> frozenset[Rule]:
    """The table as the broker's ACLs."""
    return frozenset(
        Rule(
            principal=f"User:{user}",
            resource=right.resource,
            name=right.name,
            pattern="PREFIXED" if right.prefixed else "LITERAL",
            operation=operation,
            permission="DENY" if right.denied else "ALLOW",
        )
        for user, held in rights.items()
        for right in held
        for operation in right.operations
    )


def changes(found_users: Collection[str], found_rules: Collection[Rule]) -> Changes:
    """What to change at a broker that has these users and ACLs."""
    wanted = rules()
    return Changes(
        set_passwords=USERS,
        remove_users=tuple(sorted(set(found_users) - set(USERS))),
        add=tuple(sorted(wanted - set(found_rules))),
        remove=tuple(sorted(set(found_rules) - wanted)),
    )
