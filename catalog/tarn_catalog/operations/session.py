"""The catalog as one principal sees it: every operation that a client can ask for, with its check.

Routes and the embedded catalog reach the operations only through a session. Each method checks first, by the
table `RIGHTS`, then carries out the operation. A table or view whose own grants or owner decided is pinned by
its uuid: a table that gets the name meanwhile is another one (`TableIdentifier.uuid`). Changes and refusals
are logged as the audit trail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Any

import structlog

from tarn.core.errors import ForbiddenError, NoSuchNamespaceError, OutcomeUnknownError, TarnError
from tarn.core.trail import TABLES as TRAIL_TABLES
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.metadata.types import TableMetadata, TableRequirement, TableUpdate
from tarn_catalog.operations.access import Caller, NewPrincipal
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier, is_create
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.namespaces import Levels, Page, PropertiesChanged, Shown
from tarn_catalog.operations.tables import MOVES_FOLLOWED_MAX
from tarn_catalog.operations.views import CreateViewRequest
from tarn_catalog.state.access import (
    NAMESPACE,
    THE_WAREHOUSE,
    WAREHOUSE,
    AccessState,
    Grant,
    Privilege,
    Securable,
)
from tarn_catalog.state.context import IdempotencyKey, Metadata
from tarn_catalog.state.pointer import TABLE

log = structlog.get_logger()


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
    LIST_PRINCIPALS = "list-principals"
    CREATE_PRINCIPAL = "create-principal"
    DROP_PRINCIPAL = "drop-principal"
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
    OBJECT = "what is granted on"


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
    Operation.LIST_PRINCIPALS: ADMINS,
    Operation.CREATE_PRINCIPAL: ADMINS,
    Operation.DROP_PRINCIPAL: ADMINS,
    Operation.CREATE_ROLE: ADMINS,
    Operation.DROP_ROLE: ADMINS,
    Operation.CHANGE_ROLE: ADMINS,
}
"""Operation -> what its caller needs, and on what; a privilege on what contains a thing counts for it too."""

TRAIL_WRITER = "ingest"
"""The service that makes tables of the trail."""
_TRAIL_TABLES = frozenset(f"{TABLE} {'.'.join(name)}" for name in TRAIL_TABLES)

What = Levels | TableIdentifier
"""A thing: the levels of a namespace, none for the warehouse; or the identifier of a table or view."""


class Session:
    """The operations of the catalog for one request of one principal.

    Args:
        catalog: the catalog.
        caller: the principal.
        services: client id to name of the principals outside of the store, which have the role `admin`.
        audited: whether changes and refusals are logged.
    """

    def __init__(
        self,
        catalog: Catalog,
        caller: Caller,
        *,
        services: Mapping[str, str] | None = None,
        audited: bool = True,
    ) -> None:
        self.caller = caller
        self._catalog = catalog
        self._services = services or {}
        self._audited = audited
        self._asked: set[Operation] = set()

    @property
    def asked(self) -> frozenset[Operation]:
        """The operations whose rights were checked."""
        return frozenset(self._asked)

    # -- namespaces

    def list_namespaces(self, parent: Levels, *, token: str | None, page_size: int | None) -> Page:
        """Return the child namespaces that the caller may see; see `Namespaces.children`.

        Raises:
            ForbiddenError: the caller may not see the parent.
            TarnError: as `Namespaces.children`.
        """
        self._allow(Operation.LIST_NAMESPACES, {})
        if parent:
            self._check(Operation.LIST_NAMESPACES, Place.NAMESPACE, Need.ANY, parent)
        return self._catalog.namespaces.children(
            parent, token=token, page_size=page_size, shown=self._shown_children(parent)
        )

    def load_namespace(self, levels: Levels) -> Mapping[str, str]:
        """Return the properties of a namespace.

        Raises:
            ForbiddenError: the caller has no privilege on it or on anything in it.
            TarnError: as `Namespaces.load`.
        """
        self._allow(Operation.LOAD_NAMESPACE, {Place.NAMESPACE: levels})
        return self._catalog.namespaces.load(levels)

    def create_namespace(
        self, levels: Levels, properties: Mapping[str, str], *, repeat: IdempotencyKey | None = None
    ) -> Mapping[str, str]:
        """Create a namespace that the caller owns; return its properties.

        Raises:
            ForbiddenError: the caller may not, or repeats the request of another principal.
            TarnError: as `Namespaces.create`.
        """
        self._allow(Operation.CREATE_NAMESPACE, {Place.PARENT: levels[:-1]})
        with self._audit(Operation.CREATE_NAMESPACE, _text(levels)):
            made = self._catalog.namespaces.create(
                levels, properties, repeat=repeat, owner=self.caller.client_id
            )
            self._check_made(Operation.CREATE_NAMESPACE, Place.NAMESPACE, Need.ANY, levels)
        return made

    def update_namespace(
        self,
        levels: Levels,
        *,
        updates: Mapping[str, str],
        removals: Sequence[str],
        repeat: IdempotencyKey | None = None,
    ) -> PropertiesChanged:
        """Set and remove properties of a namespace; see `Namespaces.update`."""
        self._allow(Operation.UPDATE_NAMESPACE, {Place.NAMESPACE: levels})
        with self._audit(Operation.UPDATE_NAMESPACE, _text(levels)):
            return self._catalog.namespaces.update(levels, updates=updates, removals=removals, repeat=repeat)

    def drop_namespace(self, levels: Levels, *, repeat: IdempotencyKey | None = None) -> None:
        """Drop an empty namespace; see `Namespaces.drop`."""
        self._allow(Operation.DROP_NAMESPACE, {Place.NAMESPACE: levels})
        with self._audit(Operation.DROP_NAMESPACE, _text(levels)):
            self._catalog.namespaces.drop(levels, repeat=repeat)

    # -- tables and views

    def list_names(self, levels: Levels, kind: str, *, token: str | None, page_size: int | None) -> Page:
        """Return the tables (or views) of a namespace that the caller may read.

        Raises:
            ForbiddenError: the caller has no privilege on the namespace or on anything in it.
            TarnError: as `Namespaces.list_tables`.
        """
        self._allow(Operation.LIST, {Place.NAMESPACE: levels})
        return self._catalog.namespaces.list_tables(
            levels, kind=kind, token=token, page_size=page_size, shown=self._shown_names(levels)
        )

    def load(self, slot: TableIdentifier) -> Metadata:
        """Return the metadata of a table or view; see `Tables.load`."""
        return self._catalog.tables.load(self._allowed(Operation.LOAD, slot))

    def check_exists(self, slot: TableIdentifier) -> None:
        """Require that a table or view exists; see `Tables.pointer`."""
        self._catalog.tables.pointer(self._allowed(Operation.LOAD, slot))

    def report(self, slot: TableIdentifier, report: Mapping[str, Any]) -> None:
        """Keep a metrics report of a table, if the caller may report any and the catalog keeps them."""
        self._allowed(Operation.REPORT, slot)
        if self._catalog.trail is not None:
            self._catalog.trail.report(self.caller.name, slot.text, report)

    def stage(self, slot: TableIdentifier, wanted: CreateTableRequest) -> TableMetadata:
        """Return the metadata that a new table would have; see `Tables.stage`."""
        self._allow(Operation.CREATE, {Place.NAMESPACE: slot.namespace})
        return self._catalog.tables.stage(slot, wanted)

    def create_table(
        self, slot: TableIdentifier, wanted: CreateTableRequest, *, repeat: IdempotencyKey | None = None
    ) -> Metadata:
        """Create a table that the caller owns; see `Tables.create`.

        Raises:
            ForbiddenError: the caller may not, or repeats the request of another principal.
            TarnError: as `Tables.create`.
        """
        self._allow(Operation.CREATE, {Place.NAMESPACE: slot.namespace})
        with self._audit(Operation.CREATE, slot.described):
            return self._made(slot, self._catalog.tables.create(self._own(slot), wanted, repeat=repeat))

    def create_view(
        self, slot: TableIdentifier, wanted: CreateViewRequest, *, repeat: IdempotencyKey | None = None
    ) -> Metadata:
        """Create a view that the caller owns; see `Views.create`.

        Raises:
            ForbiddenError: the caller may not, or repeats the request of another principal.
            TarnError: as `Views.create`.
        """
        self._allow(Operation.CREATE, {Place.NAMESPACE: slot.namespace})
        with self._audit(Operation.CREATE, slot.described):
            return self._made(slot, self._catalog.views.create(self._own(slot), wanted, repeat=repeat))

    def commit(
        self,
        slot: TableIdentifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        *,
        repeat: IdempotencyKey | None = None,
    ) -> Metadata:
        """Commit to a table, or complete a staged create; see `Tables.commit`.

        Raises:
            ForbiddenError: the caller may not, and the commit was not carried out before.
            OutcomeUnknownError: also if the caller may not any more, and the commit was carried out before: a
                client deletes the files of a refused commit, and the table has them.
            TarnError: as `Tables.commit`.
        """
        if is_create(requirements):
            self._allow(Operation.CREATE, {Place.NAMESPACE: slot.namespace})
            with self._audit(Operation.CREATE, slot.described):
                made = self._catalog.tables.commit(self._own(slot), requirements, updates, repeat=repeat)
                return self._made(slot, made)
        allowed = self._allowed_commit(Change(slot=slot, requirements=requirements, updates=updates), repeat)
        with self._audit(Operation.COMMIT, slot.described):
            done = self._catalog.tables.commit(allowed, requirements, updates, repeat=repeat)
            self._check_followed(allowed, done)
        return done

    def commit_view(
        self,
        slot: TableIdentifier,
        requirements: Sequence[Json],
        updates: Sequence[Json],
        *,
        repeat: IdempotencyKey | None = None,
    ) -> Metadata:
        """Change a view; see `Views.commit`."""
        slot = self._allowed(Operation.COMMIT, slot)
        with self._audit(Operation.COMMIT, slot.described):
            return self._catalog.views.commit(slot, requirements, updates, repeat=repeat)

    def commit_tables(self, changes: Sequence[Change], *, repeat: IdempotencyKey | None = None) -> None:
        """Commit to several tables, all or none; the rights on every one are checked first.

        Raises:
            ForbiddenError: the caller may not change one of them.
            OutcomeUnknownError: as `commit`.
            TarnError: as `MultiTableCommit.commit`.
        """
        allowed: list[Change] = []
        for change in changes:
            if is_create(change.requirements):
                self._allow(Operation.CREATE, {Place.NAMESPACE: change.slot.namespace})
                allowed.append(replace(change, slot=self._own(change.slot)))
            else:
                allowed.append(replace(change, slot=self._allowed_commit(change, repeat)))
        self._asked.add(Operation.COMMIT)
        with self._audit(Operation.COMMIT, ", ".join(change.slot.described for change in changes)):
            self._catalog.together.commit(allowed, repeat=repeat)

    def drop(self, slot: TableIdentifier, *, repeat: IdempotencyKey | None = None) -> None:
        """Drop a table or view; see `Tables.drop`."""
        slot = self._allowed(Operation.DROP, slot)
        with self._audit(Operation.DROP, slot.described):
            self._catalog.tables.drop(slot, repeat=repeat)

    def purge(self, slot: TableIdentifier, *, repeat: IdempotencyKey | None = None) -> None:
        """Drop a table and mark its files for deletion; see `Names.purge`."""
        slot = self._allowed(Operation.DROP, slot)
        with self._audit(Operation.DROP, slot.described, purge=True):
            self._catalog.names.purge(slot, repeat=repeat)

    def rename(
        self, source: TableIdentifier, target: TableIdentifier, *, repeat: IdempotencyKey | None = None
    ) -> None:
        """Rename a table or view, which keeps its owner and the grants on it; see `Names.rename`."""
        places: Mapping[Place, What] = {Place.THING: source, Place.TARGET: target.namespace}
        source = self._pinned(self._allow(Operation.RENAME, places)[Place.THING])
        with self._audit(Operation.RENAME, source.described, to=target.text):
            self._catalog.names.rename(source, target, repeat=repeat)
        try:
            found = self._catalog.tables.find(target)
            if found is not None:
                self._catalog.access.renamed(found.uuid, (*target.namespace, target.name))
        except TarnError as e:
            # The grants follow the uuid; the name in them is for people and listings.
            log.info("grants keep the former name", object=source.described, reason=e.message)

    def register(
        self,
        slot: TableIdentifier,
        location: str,
        *,
        overwrite: bool = False,
        repeat: IdempotencyKey | None = None,
    ) -> Metadata:
        """Give a name to a table or view from its metadata file; see `Names.register`."""
        self._allow(Operation.REGISTER, {Place.WAREHOUSE: ()})
        with self._audit(Operation.REGISTER, slot.described):
            return self._catalog.names.register(self._own(slot), location, overwrite=overwrite, repeat=repeat)

    # -- access

    def whoami(self) -> list[Grant]:
        """Return the grants of the caller and its roles."""
        self._allow(Operation.WHOAMI, {})
        return self.caller.grants.of(self.caller.grantees)

    def grant(self, on: What, to: str, privileges: frozenset[Privilege]) -> frozenset[Privilege]:
        """Grant privileges on a thing; see `Access.grant`."""
        thing = self._allow(Operation.GRANT, {Place.OBJECT: on})[Place.OBJECT]
        with self._audit(Operation.GRANT, _text(on), to=to, privileges=_names(privileges)):
            return self._catalog.access.grant(self._securable(thing), to, privileges)

    def revoke(self, on: What, to: str, privileges: frozenset[Privilege]) -> frozenset[Privilege]:
        """Take back privileges on a thing; see `Access.revoke`."""
        thing = self._allow(Operation.REVOKE, {Place.OBJECT: on})[Place.OBJECT]
        with self._audit(Operation.REVOKE, _text(on), to=to, privileges=_names(privileges)):
            return self._catalog.access.revoke(self._securable(thing), to, privileges)

    def list_grants(self, on: What | None) -> list[Grant]:
        """Return the grants on exactly one thing, or all grants of the lake."""
        thing = self._allow(Operation.LIST_GRANTS, {Place.OBJECT: on or ()})[Place.OBJECT]
        grants = self._catalog.access.grants().state.grants
        if on is None:
            return list(grants)
        uuid = self._securable(thing).uuid
        return [grant for grant in grants if grant.on.uuid == uuid]

    def owner_of(self, on: What) -> str | None:
        """Return the name of the owner of what `list_grants` was asked about, its client id if it is gone."""
        if isinstance(on, TableIdentifier):
            owner = self._catalog.tables.pointer(on).value.owner
        else:
            found = self._catalog.namespaces.find(on) if on else None
            owner = found.owner if found is not None else None
        if owner is None:
            return None
        return self._services.get(owner) or self._catalog.access.grants().state.name_of(owner) or owner

    def list_principals(self) -> AccessState:
        """Return the stored principals and roles."""
        self._allow(Operation.LIST_PRINCIPALS, {Place.WAREHOUSE: ()})
        return self._catalog.access.grants().state

    @property
    def services(self) -> Mapping[str, str]:
        """Client id to name of the principals outside of the store."""
        return self._services

    def create_principal(self, name: str) -> NewPrincipal:
        """Create a principal without any right; see `Access.create_principal`."""
        self._allow(Operation.CREATE_PRINCIPAL, {Place.WAREHOUSE: ()})
        with self._audit(Operation.CREATE_PRINCIPAL, f"principal {name}"):
            return self._catalog.access.create_principal(
                name, by=self.caller.name, taken=self._services.values()
            )

    def drop_principal(self, name: str) -> None:
        """Remove a principal with its grants; see `Access.drop_principal`."""
        self._allow(Operation.DROP_PRINCIPAL, {Place.WAREHOUSE: ()})
        with self._audit(Operation.DROP_PRINCIPAL, f"principal {name}"):
            self._catalog.access.drop_principal(name)

    def create_role(self, name: str) -> None:
        """Create a role; see `Access.create_role`."""
        self._allow(Operation.CREATE_ROLE, {Place.WAREHOUSE: ()})
        with self._audit(Operation.CREATE_ROLE, f"role {name}"):
            self._catalog.access.create_role(name, taken=self._services.values())

    def drop_role(self, name: str) -> None:
        """Remove a role with its grants; see `Access.drop_role`."""
        self._allow(Operation.DROP_ROLE, {Place.WAREHOUSE: ()})
        with self._audit(Operation.DROP_ROLE, f"role {name}"):
            self._catalog.access.drop_role(name)

    def set_member(self, role: str, member: str, *, there: bool) -> None:
        """Give a role to a principal, or take it away; see `Access.set_member`."""
        self._allow(Operation.CHANGE_ROLE, {Place.WAREHOUSE: ()})
        with self._audit(Operation.CHANGE_ROLE, f"role {role}", member=member, there=there):
            self._catalog.access.set_member(role, member, there=there)

    # -- checking

    def _allow(self, operation: Operation, places: Mapping[Place, What]) -> Mapping[Place, What]:
        """Require the rights of an operation; return the things, tables and views pinned where it matters.

        Args:
            operation: the operation.
            places: what each place of its rights is in this request.

        Raises:
            ForbiddenError: the caller lacks a right.
            NotFoundError: a thing does not exist, and the caller may know that.
            UnavailableError: the store did not answer.
        """
        self._asked.add(operation)
        rights = RIGHTS[operation]
        assert {place for place, _ in rights} == set(places), operation
        if self.caller.admin:
            return places
        return {place: self._check(operation, place, need, places[place]) for place, need in rights}

    def _allowed(self, operation: Operation, slot: TableIdentifier) -> TableIdentifier:
        """Return the identifier, once the operation on a table or view is allowed; see `_allow`."""
        return self._pinned(self._allow(operation, {Place.THING: slot})[Place.THING])

    @staticmethod
    def _pinned(thing: What) -> TableIdentifier:
        assert isinstance(thing, TableIdentifier), thing
        return thing

    def _check(self, operation: Operation, place: Place, need: Privilege | Need, thing: What) -> What:
        """Require one right; see `_allow`."""
        if self.caller.admin:
            return thing
        try:
            if isinstance(thing, TableIdentifier):
                return self._check_name(operation, place, need, thing)
            return self._check_levels(operation, place, need, thing)
        except ForbiddenError:
            self._log(operation, _text(thing), outcome="refused")
            raise

    def _check_levels(
        self, operation: Operation, place: Place, need: Privilege | Need, levels: Levels
    ) -> Levels:
        held, there = self._held(levels, need)
        if _meets(need, held) or (need is Need.ANY and levels in self._known_namespaces()):
            return levels
        if held and not there:
            raise NoSuchNamespaceError(
                f"Namespace does not exist: {'.'.join(levels)}", namespace=".".join(levels)
            )
        raise self._forbidden(operation, place, need, levels)

    def _check_name(
        self, operation: Operation, place: Place, need: Privilege | Need, slot: TableIdentifier
    ) -> TableIdentifier:
        held, _ = self._held(slot.namespace, need)
        if _meets(need, held):
            return slot
        found = self._catalog.tables.find(slot)
        # A tombstone counts as what had the name: whoever could drop it may repeat the request.
        if found is not None and found.uuid and _meets(need, self.caller.on(found.uuid, found.owner)):
            return replace(slot, uuid=found.uuid)
        if held and (found is None or not found.live):
            raise slot.missing()
        raise self._forbidden(operation, place, need, slot)

    def _held(
        self, levels: Levels, need: Privilege | Need | None = None
    ) -> tuple[frozenset[Privilege], bool]:
        """Return the privileges on a namespace and what contains it, and whether it exists.

        Stops early, as if it existed, where what is needed is found.
        """
        held = self.caller.on(THE_WAREHOUSE.uuid, None)
        for depth in range(1, len(levels) + 1):
            if need is not None and _meets(need, held):
                break
            found = self._catalog.namespaces.find(levels[:depth])
            if found is None:
                return held, False
            held |= self.caller.on(found.uuid, found.owner)
        return held, True

    def _shown_children(self, parent: Levels) -> Shown | None:
        """Return which child namespaces the caller sees: any privilege on what contains them shows all."""
        if self.caller.admin or self._held(parent, Need.ANY)[0]:
            return None
        known = self._known_namespaces()
        return lambda levels, uuid, owner: bool(self.caller.on(uuid, owner)) or levels in known

    def _shown_names(self, levels: Levels) -> Shown | None:
        """Return which tables and views of a namespace the caller sees: those that it may read."""
        if self.caller.admin or Privilege.READ in self._held(levels, Privilege.READ)[0]:
            return None
        return lambda _, uuid, owner: Privilege.READ in self.caller.on(uuid, owner)

    def _known_namespaces(self) -> frozenset[Levels]:
        """Return the namespaces that contain something that the caller was granted something on."""
        names = (grant.on.name for grant in self.caller.grants.of(self.caller.grantees))
        return frozenset(name[:size] for name in names for size in range(1, len(name)))

    def _forbidden(
        self, operation: Operation, place: Place, need: Privilege | Need, thing: What
    ) -> ForbiddenError:
        # The same for what exists and what does not.
        if need is Need.ADMIN:
            return ForbiddenError(f"{self.caller.name} may not {operation}: that takes {need}")
        return ForbiddenError(
            f"{self.caller.name} may not {operation} {_text(thing)}: that takes {need} on {place}; ask its "
            "owner or an admin for a grant",
            principal=self.caller.name,
        )

    def _own(self, slot: TableIdentifier) -> TableIdentifier:
        return replace(slot, owner=self.caller.client_id)

    def _made(self, slot: TableIdentifier, made: Metadata) -> Metadata:
        """Return what a create made, once it is known that the caller may read it; see `_check_made`."""
        self._check_made(Operation.CREATE, Place.THING, Privilege.READ, slot)
        return made

    def _check_made(self, operation: Operation, place: Place, need: Privilege | Need, thing: What) -> None:
        """Require that the caller may see what its create is answered with.

        A repeated create is answered with what is there, which may be another principal's.

        Raises:
            ForbiddenError: the caller may not: this is not what it made.
            OutcomeUnknownError: that could not be found out; the create may have happened.
        """
        try:
            self._check(operation, place, need, thing)
        except ForbiddenError:
            raise
        except TarnError as e:
            raise OutcomeUnknownError(
                f"Cannot tell whether the create of {_text(thing)} happened: {e.message}; load it and look"
            ) from e

    def _allowed_commit(self, change: Change, repeat: IdempotencyKey | None) -> TableIdentifier:
        """Return the identifier for a commit that is allowed.

        Raises:
            ForbiddenError: it is not, and it was not carried out before.
            OutcomeUnknownError: it is not, and it was carried out before.
        """
        try:
            return self._allowed(Operation.COMMIT, change.slot)
        except ForbiddenError as e:
            if not self._catalog.tables.carried_out(change.slot, change.updates, repeat):
                raise
            raise OutcomeUnknownError(
                f"{e.message}. The commit was carried out before: delete nothing", table=change.slot.text
            ) from e

    def _check_followed(self, slot: TableIdentifier, done: Metadata) -> None:
        """Require that the caller may read the table whose metadata answers a commit.

        A commit that was carried out before a rename is answered with the table under its new name.

        Raises:
            OutcomeUnknownError: the caller may not.
        """
        if self.caller.admin or slot.uuid is not None:
            return
        found = self._catalog.tables.find(slot)
        if found is not None and slot.means(found) and found.uuid == done.parsed["table-uuid"]:
            return
        for _ in range(MOVES_FOLLOWED_MAX):
            if found is None or found.live or found.moved is None:
                break
            slot = TableIdentifier.of(found.moved[:-1], found.moved[-1], slot.kind)
            found = self._catalog.tables.find(slot)
        try:
            self._check(Operation.COMMIT, Place.THING, Privilege.READ, slot)
        except TarnError as e:
            raise OutcomeUnknownError(
                f"The commit was carried out, and the table has another name or is gone: {e.message}. Delete "
                "nothing",
                table=slot.text,
            ) from e

    def _securable(self, thing: What) -> Securable:
        """Return a thing with its uuid.

        Raises:
            NotFoundError: it does not exist.
        """
        if isinstance(thing, TableIdentifier):
            pointer = self._catalog.tables.pointer(thing).value
            return Securable(kind=thing.kind, uuid=pointer.uuid, name=(*thing.namespace, thing.name))
        if not thing:
            return THE_WAREHOUSE
        found = self._catalog.namespaces.find(thing)
        if found is None:
            raise NoSuchNamespaceError(
                f"Namespace does not exist: {'.'.join(thing)}", namespace=".".join(thing)
            )
        return Securable(kind=NAMESPACE, uuid=found.uuid, name=thing)

    # -- the audit trail

    @contextmanager
    def _audit(self, operation: Operation, thing: str, **more: object) -> Iterator[None]:
        """Log the outcome of a change: done, unknown, or failed with the type of the error."""
        try:
            yield
        except OutcomeUnknownError:
            self._log(operation, thing, outcome="unknown", **more)
            raise
        except TarnError as e:
            self._log(operation, thing, outcome="failed", error=type(e).__name__, **more)
            raise
        self._log(operation, thing, outcome="done", **more)

    def _log(self, operation: Operation, thing: str, **more: object) -> None:
        if not self._audited:
            return
        event = {
            "principal": self.caller.name,
            "client_id": self.caller.client_id,
            "action": operation.value,
            "object": thing,
            **more,
        }
        log.info("audit", **event)
        trail = self._catalog.trail
        own = operation is Operation.COMMIT and thing in _TRAIL_TABLES and self.caller.name == TRAIL_WRITER
        # Each of ingest's own commits to them would cause the next.
        if trail is not None and not (own and more.get("outcome") == "done"):
            trail.audit(event)


def _meets(need: Privilege | Need, held: frozenset[Privilege]) -> bool:
    """Return whether privileges, with what they include, meet a need."""
    return bool(held) if need is Need.ANY else need in held


def _names(privileges: frozenset[Privilege]) -> list[str]:
    return sorted(privilege.value for privilege in privileges)


def _text(thing: What) -> str:
    """Return the kind and the dotted name of a thing, for messages."""
    if isinstance(thing, TableIdentifier):
        return thing.described
    return f"namespace {'.'.join(thing)}" if thing else WAREHOUSE
