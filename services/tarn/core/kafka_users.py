"""Kafka users and their privileges: one table, from which the broker's users and ACLs are set at each start.

Stdlib only: the broker's image has this file alone, without the package. Names of resources and operations
are Kafka's own. Allowing read, write, delete or alter implies describe, as in Kafka.

The admin is not in this table: it logs in over the broker's loopback only and has all privileges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

ADMIN = "kafka"
MECHANISM = "SCRAM-SHA-512"

ALL = "*"
EVERYBODY = ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A privilege of a user on some resources.

    Attributes:
        resource: `TOPIC`, `GROUP`, `TRANSACTIONAL_ID` or `CLUSTER`.
        name: name of the resource, `*` for all, or a name prefix.
        operations: operations allowed.
        prefixed: whether the name is a prefix.
        denied: deny instead, to everyone but the admin, whatever else is allowed.
    """

    resource: str
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False
    denied: bool = False


HEALTH = "health"
HEALTH_TOPIC = "_tarn_health"

RIGHTS: Mapping[str, tuple[Right, ...]] = {
    # Specs name the topics, and may request their creation. A table stores the cluster id: the library asks
    # for the privileges on the cluster along with it, and their denial would be logged at each commit.
    "ingest": (
        Right(resource="TOPIC", name=ALL, operations=("READ", "CREATE")),
        Right(resource="GROUP", name="tarn-", prefixed=True, operations=("READ",)),
        Right(resource="CLUSTER", name="kafka-cluster", operations=("DESCRIBE",)),
    ),
    # A person's tools, also from the host.
    "cli": (
        Right(
            resource="TOPIC",
            name=ALL,
            operations=(
                "READ",
                "WRITE",
                "CREATE",
                "DELETE",
                "ALTER",
                "DESCRIBE_CONFIGS",
                "ALTER_CONFIGS",
            ),
        ),
        Right(resource="GROUP", name=ALL, operations=("READ", "DELETE")),
        Right(resource="TRANSACTIONAL_ID", name=ALL, operations=("WRITE",)),
        Right(resource="CLUSTER", name="kafka-cluster", operations=("DESCRIBE",)),
    ),
    # It reads the end of its topic, to resume there.
    "replay": (Right(resource="TOPIC", name="flight-events", operations=("READ", "WRITE", "CREATE")),),
    # The broker's own health check; its password never leaves the broker.
    HEALTH: (Right(resource="TOPIC", name=HEALTH_TOPIC, operations=("READ", "WRITE", "CREATE")),),
    # Group offsets, transactions and similar topics are internal to the broker.
    EVERYBODY: (Right(resource="TOPIC", name="__", prefixed=True, operations=("ALL",), denied=True),),
}
"""User to privileges. A new service gets a row here, and its files from `tarn.core.credentials`."""

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
