"""Who may do what at Kafka: one table, from which the broker's users and rights are made at every start.

Stdlib only: the broker's image holds this file alone, without the package. Names of resources and operations
are Kafka's own. Allowing read, write, delete or alter allows describe too, as Kafka has it.

The admin is no user of this table: it logs in on the broker's loopback only, and may everything.
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
    """What a user may do with some resources.

    Attributes:
        resource: `TOPIC`, `GROUP`, `TRANSACTIONAL_ID` or `CLUSTER`.
        name: of the one resource, of all (`*`), or how names begin.
        operations: what it may do.
        prefixed: the name is how names begin.
        denied: nobody may, whatever else is allowed; but the admin.
    """

    resource: str
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False
    denied: bool = False


HEALTH = "health"
HEALTH_TOPIC = "_tarn_health"

RIGHTS: Mapping[str, tuple[Right, ...]] = {
    # Specs name the topics, and may ask for them to be made. A table remembers the cluster's id: the library
    # asks for the rights on the cluster with it, and their denial would be logged at each commit.
    "ingest": (
        Right(resource="TOPIC", name=ALL, operations=("READ", "CREATE")),
        Right(resource="GROUP", name="tarn-", prefixed=True, operations=("READ",)),
        Right(resource="CLUSTER", name="kafka-cluster", operations=("DESCRIBE",)),
    ),
    # A person's own tools, from the host too.
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
    # It reads where its topic ends, to go on from there.
    "replay": (Right(resource="TOPIC", name="flight-events", operations=("READ", "WRITE", "CREATE")),),
    # The broker's own health check; its password never leaves the broker.
    HEALTH: (Right(resource="TOPIC", name=HEALTH_TOPIC, operations=("READ", "WRITE", "CREATE")),),
    # Group offsets, transactions and the like are the broker's business.
    EVERYBODY: (Right(resource="TOPIC", name="__", prefixed=True, operations=("ALL",), denied=True),),
}
"""User to rights. A new service gets its own row here, and its files from `tarn.core.credentials`."""

USERS: tuple[str, ...] = tuple(user for user in RIGHTS if user != EVERYBODY)
"""Who logs in with a password of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Rule:
    """One rule as the broker keeps it (an ACL).

    Attributes:
        principal: `User:<name>`, or `User:*` for everybody.
        resource, name, pattern: what it is about; the pattern is `LITERAL` or `PREFIXED`.
        operation: one operation.
        permission: `ALLOW` or `DENY`.
        host: where from; `*` is anywhere.
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
    """What must be done so that a broker has exactly the users and rights of the table.

    Attributes:
        set_passwords: users whose password is set; all of them, as nobody can ask which one a broker has.
        remove_users: users that are not in the table.
        add, remove: rules.
    """

    set_passwords: tuple[str, ...]
    remove_users: tuple[str, ...]
    add: tuple[Rule, ...]
    remove: tuple[Rule, ...]


def rules(rights: Mapping[str, tuple[Right, ...]] = RIGHTS) -> frozenset[Rule]:
    """The table as the broker's rules."""
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
    """What to change at a broker that has these users and rules."""
    wanted = rules()
    return Changes(
        set_passwords=USERS,
        remove_users=tuple(sorted(set(found_users) - set(USERS))),
        add=tuple(sorted(wanted - set(found_rules))),
        remove=tuple(sorted(set(found_rules) - wanted)),
    )
