"""What each operation of the catalog needs, and on what: one table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.namespaces import Levels
from tarn_catalog.state.access import WAREHOUSE, Privilege


class Operation(StrEnum):
    """What a client can ask for; the names are those of the audit trail."""

    LIST_NAMESPACES = "list-namespaces"
    LOAD_NAMESPACE = "load-namespace"
    CREATE_NAMESPACE = "create-namespace"
    UPDATE_NAMESPACE = "update-namespace"
    DROP_NAMESPACE = "drop-namespace"
    LIST = "list"
    LOAD = "load"
    VEND = "vend"
    REPORT = "report"
    CREATE = "create"
    COMMIT = "commit"
    RENAME = "rename"
    DROP = "drop"
    REGISTER = "register"
    WHOAMI = "whoami"
    GRANT = "grant"
    REVOKE = "revoke"
    LIST_GRANTS = "list-grants"
    CHANGE_OWNER = "change-owner"
    LIST_PRINCIPALS = "list-principals"
    CREATE_PRINCIPAL = "create-principal"
    DROP_PRINCIPAL = "drop-principal"
    ROTATE_SECRET = "rotate-secret"  # noqa: S105 - the name of an operation
    CREATE_ROLE = "create-role"
    DROP_ROLE = "drop-role"
    CHANGE_ROLE = "change-role"


class Place(StrEnum):
    """What of a request a privilege is needed on."""

    WAREHOUSE = "the warehouse"
    NAMESPACE = "the namespace"
    PARENT = "the namespace or warehouse that contains it"
    THING = "the table or view"
    TARGET = "the namespace of the new name"
    OBJECT = "what is granted on or given away"


class Need(StrEnum):
    """A requirement that is no privilege."""

    ANY = "any privilege"
    ADMIN = "the role admin"


Rights = tuple[tuple[Place, Privilege | Need], ...]

ANYBODY: Rights = ()
ADMINS: Rights = ((Place.WAREHOUSE, Need.ADMIN),)
RIGHTS: Mapping[Operation, Rights] = {
    Operation.LIST_NAMESPACES: ANYBODY,
    Operation.LOAD_NAMESPACE: ((Place.NAMESPACE, Need.ANY),),
    Operation.CREATE_NAMESPACE: ((Place.PARENT, Privilege.CREATE),),
    Operation.UPDATE_NAMESPACE: ((Place.NAMESPACE, Privilege.MANAGE),),
    Operation.DROP_NAMESPACE: ((Place.NAMESPACE, Privilege.MANAGE),),
    Operation.LIST: ((Place.NAMESPACE, Need.ANY),),
    Operation.LOAD: ((Place.THING, Privilege.READ),),
    Operation.VEND: ((Place.THING, Privilege.READ),),
    Operation.REPORT: ((Place.THING, Privilege.READ),),
    Operation.CREATE: ((Place.NAMESPACE, Privilege.CREATE),),
    Operation.COMMIT: ((Place.THING, Privilege.WRITE),),
    Operation.RENAME: ((Place.THING, Privilege.MANAGE), (Place.TARGET, Privilege.CREATE)),
    Operation.DROP: ((Place.THING, Privilege.MANAGE),),
    Operation.REGISTER: ((Place.WAREHOUSE, Privilege.MANAGE),),
    Operation.WHOAMI: ANYBODY,
    Operation.GRANT: ((Place.OBJECT, Privilege.MANAGE),),
    Operation.REVOKE: ((Place.OBJECT, Privilege.MANAGE),),
    Operation.LIST_GRANTS: ((Place.OBJECT, Privilege.MANAGE),),
    Operation.CHANGE_OWNER: ((Place.OBJECT, Privilege.MANAGE),),
    Operation.LIST_PRINCIPALS: ADMINS,
    Operation.CREATE_PRINCIPAL: ADMINS,
    Operation.DROP_PRINCIPAL: ADMINS,
    Operation.ROTATE_SECRET: ADMINS,
    Operation.CREATE_ROLE: ADMINS,
    Operation.DROP_ROLE: ADMINS,
    Operation.CHANGE_ROLE: ADMINS,
}
"""Operation -> what its caller needs, and on what; a privilege on what contains a thing counts for it too."""

What = Levels | TableIdentifier
"""A thing: the levels of a namespace, none for the warehouse; or the identifier of a table or view."""


def meets(need: Privilege | Need, held: frozenset[Privilege]) -> bool:
    """Return whether privileges, with what they include, meet a need."""
    return bool(held) if need is Need.ANY else need in held


def names_of(privileges: frozenset[Privilege]) -> list[str]:
    """Return the names of privileges, in order."""
    return sorted(privilege.value for privilege in privileges)


def text_of(thing: What) -> str:
    """Return the kind and the dotted name of a thing, for messages."""
    if isinstance(thing, TableIdentifier):
        return thing.described
    return f"namespace {'.'.join(thing)}" if thing else WAREHOUSE
