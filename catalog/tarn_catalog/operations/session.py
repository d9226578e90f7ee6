"""The catalog as one principal sees it: every operation that a client can ask for, with its check.

Routes and the embedded catalog reach the operations only through a session. Each method checks first, by the
table `rights.RIGHTS`, then carries out the operation. Changes are logged as the audit trail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from tarn.core.errors import InvalidError, TarnError
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.metadata.types import TableMetadata, TableRequirement, TableUpdate
from tarn_catalog.operations.access import NewPrincipal, RotatedSecret
from tarn_catalog.operations.checks import Checks
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier, is_create
from tarn_catalog.operations.multi_table_commit import Change, check_tables
from tarn_catalog.operations.namespaces import Levels, Page, PropertiesChanged
from tarn_catalog.operations.rights import Need, Operation, Place, What, names_of, text_of
from tarn_catalog.operations.tables import MOVES_FOLLOWED_MAX
from tarn_catalog.operations.views import CreateViewRequest
from tarn_catalog.state.access import AccessState, Grant, Privilege
from tarn_catalog.state.context import IdempotencyKey, Metadata

log = structlog.get_logger()


class Session(Checks):
    """The operations of the catalog for one request of one principal; its arguments are those of `Checks`."""

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
        # Of a namespace that is the caller's by its name, nothing has to contain it.
        container = levels if self.caller.owns(levels) else levels[:-1]
        self._allow(Operation.CREATE_NAMESPACE, {Place.PARENT: container})
        with self._audit.change(Operation.CREATE_NAMESPACE, text_of(levels)):
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
        pin = self._pin_namespace(levels)
        self._allow(Operation.UPDATE_NAMESPACE, {Place.NAMESPACE: levels})
        with self._audit.change(Operation.UPDATE_NAMESPACE, text_of(levels)):
            return self._catalog.namespaces.update(
                levels, updates=updates, removals=removals, repeat=repeat, uuid=pin
            )

    def drop_namespace(self, levels: Levels, *, repeat: IdempotencyKey | None = None) -> None:
        """Drop an empty namespace; see `Namespaces.drop`."""
        pin = self._pin_namespace(levels)
        self._allow(Operation.DROP_NAMESPACE, {Place.NAMESPACE: levels})
        with self._audit.change(Operation.DROP_NAMESPACE, text_of(levels)):
            self._catalog.namespaces.drop(levels, repeat=repeat, uuid=pin)

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
        with self._audit.change(Operation.CREATE, slot.described):
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
        with self._audit.change(Operation.CREATE, slot.described):
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
        changes = [Change(slot=slot, requirements=requirements, updates=updates)]
        if is_create(requirements):
            with self._unless_carried_out(changes, repeat):
                self._allow(Operation.CREATE, {Place.NAMESPACE: slot.namespace})
            with self._audit.change(Operation.CREATE, slot.described):
                made = self._catalog.tables.commit(self._own(slot), requirements, updates, repeat=repeat)
                with self._unless_carried_out(changes, repeat):
                    self._made(slot, made)
                self._check_followed(slot, made)
            return made
        with self._unless_carried_out(changes, repeat):
            allowed = self._allowed(Operation.COMMIT, slot)
        with self._audit.change(Operation.COMMIT, slot.described):
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
        with self._audit.change(Operation.COMMIT, slot.described):
            done = self._catalog.views.commit(slot, requirements, updates, repeat=repeat)
            self._check_followed(slot, done)
        return done

    def commit_tables(self, changes: Sequence[Change], *, repeat: IdempotencyKey | None = None) -> None:
        """Commit to several tables, all or none; the rights on every one are checked first.

        Raises:
            ForbiddenError: the caller may not change one of them.
            OutcomeUnknownError: as `commit`.
            TarnError: as `MultiTableCommit.commit`.
        """
        check_tables(changes)  # each costs reads of the store before it is known to be allowed
        allowed: list[Change] = []
        with self._unless_carried_out(changes, repeat):
            for change in changes:
                if is_create(change.requirements):
                    self._allow(Operation.CREATE, {Place.NAMESPACE: change.slot.namespace})
                    slot = self._own(change.slot)
                else:
                    slot = self._allowed(Operation.COMMIT, change.slot)
                allowed.append(replace(change, slot=slot))
        self._asked.add(Operation.COMMIT)
        with self._audit.change(Operation.COMMIT, ", ".join(change.slot.described for change in changes)):
            self._catalog.together.commit(allowed, repeat=repeat)

    def drop(self, slot: TableIdentifier, *, repeat: IdempotencyKey | None = None) -> None:
        """Drop a table or view; see `Tables.drop`."""
        slot = self._allowed(Operation.DROP, slot)
        with self._audit.change(Operation.DROP, slot.described):
            self._catalog.tables.drop(slot, repeat=repeat)

    def purge(self, slot: TableIdentifier, *, repeat: IdempotencyKey | None = None) -> None:
        """Drop a table and mark its files for deletion; see `Names.purge`."""
        slot = self._allowed(Operation.DROP, slot)
        with self._audit.change(Operation.DROP, slot.described, purge=True):
            self._catalog.names.purge(slot, repeat=repeat)

    def rename(
        self, source: TableIdentifier, target: TableIdentifier, *, repeat: IdempotencyKey | None = None
    ) -> None:
        """Rename a table or view, which keeps its owner and the grants on it; see `Names.rename`."""
        places: Mapping[Place, What] = {Place.THING: source, Place.TARGET: target.namespace}
        source = self._pinned(self._allow(Operation.RENAME, places)[Place.THING])
        with self._audit.change(Operation.RENAME, source.described, to=target.text):
            self._catalog.names.rename(source, target, repeat=repeat)
        self._grants_follow(target)

    def _grants_follow(self, slot: TableIdentifier) -> None:
        """Note the name of a table or view in the grants on it: listings go by it.

        It may have another one already: by a rename since, if this is a repeat, or at another replica. So it
        is looked for once more after each note.
        """
        noted = None
        try:
            for _ in range(MOVES_FOLLOWED_MAX):
                found = self._catalog.tables.find(slot)
                if found is None or (not found.live and found.moved is None):
                    return
                if found.moved is not None:
                    slot = TableIdentifier.of(found.moved[:-1], found.moved[-1], slot.kind)
                elif noted == (found.uuid, slot.key):
                    return
                else:
                    self._catalog.access.renamed(found.uuid, (*slot.namespace, slot.name))
                    noted = found.uuid, slot.key
        except TarnError as e:
            log.info("grants keep the former name", object=slot.described, reason=e.message)

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
        with self._audit.change(Operation.REGISTER, slot.described):
            done = self._catalog.names.register(self._own(slot), location, overwrite=overwrite, repeat=repeat)
        self._grants_follow(slot)
        return done

    # -- access

    def whoami(self) -> list[Grant]:
        """Return the grants of the caller and its roles."""
        self._allow(Operation.WHOAMI, {})
        return self.caller.grants.of(self.caller.grantees)

    def grant(self, on: What, to: str, privileges: frozenset[Privilege]) -> frozenset[Privilege]:
        """Grant privileges on a thing; see `Access.grant`."""
        pin = self._pin_namespace(on)
        thing = self._allow(Operation.GRANT, {Place.OBJECT: on})[Place.OBJECT]
        with self._audit.change(Operation.GRANT, text_of(on), to=to, privileges=names_of(privileges)):
            return self._catalog.access.grant(self._securable(thing, pin)[0], to, privileges)

    def revoke(self, on: What, to: str, privileges: frozenset[Privilege]) -> frozenset[Privilege]:
        """Take back privileges on a thing; see `Access.revoke`."""
        pin = self._pin_namespace(on)
        thing = self._allow(Operation.REVOKE, {Place.OBJECT: on})[Place.OBJECT]
        with self._audit.change(Operation.REVOKE, text_of(on), to=to, privileges=names_of(privileges)):
            return self._catalog.access.revoke(self._securable(thing, pin)[0], to, privileges)

    def list_grants(self) -> list[Grant]:
        """Return all grants of the lake."""
        self._allow(Operation.LIST_GRANTS, {Place.OBJECT: ()})
        return list(self._catalog.access.grants().state.grants)

    def grants_on(self, on: What) -> tuple[list[Grant], str | None]:
        """Return the grants on exactly one thing, and its owner's name, or its client id if it is gone."""
        pin = self._pin_namespace(on)
        thing = self._allow(Operation.LIST_GRANTS, {Place.OBJECT: on})[Place.OBJECT]
        state = self._catalog.access.grants().state
        found, owner = self._securable(thing, pin)
        if owner is not None:
            owner = self._services.get(owner) or state.name_of(owner) or owner
        return [grant for grant in state.grants if grant.on.uuid == found.uuid], owner

    def change_owner(self, on: What, to: str) -> None:
        """Give a namespace, table or view to a principal, which may do everything with it from then on.

        The former owner keeps what was granted to it, and nothing else.

        Raises:
            ForbiddenError: the caller is neither the owner nor an admin, and has not MANAGE on it.
            InvalidError: the warehouse has no owner.
            NoSuchPrincipalError: no principal has the name; a role owns nothing.
            NotFoundError: the thing does not exist, and the caller may know that.
        """
        pin = self._pin_namespace(on)
        thing = self._allow(Operation.CHANGE_OWNER, {Place.OBJECT: on})[Place.OBJECT]
        with self._audit.change(Operation.CHANGE_OWNER, text_of(on), to=to):
            if not isinstance(thing, TableIdentifier) and not thing:
                raise InvalidError("The warehouse has no owner: make the principal an admin instead")
            owner = self._client_id(to)
            if isinstance(thing, TableIdentifier):
                self._catalog.tables.change_owner(thing, owner)
            else:
                self._catalog.namespaces.change_owner(thing, owner, uuid=pin)

    def _client_id(self, name: str) -> str:
        """Return the client id of the principal with this name, a service's or a stored one.

        Raises:
            NoSuchPrincipalError: there is no such principal.
        """
        for client_id, service in self._services.items():
            if service == name:
                return client_id
        found = self._catalog.access.named(name).client_id
        assert found is not None, name
        return found

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
        with self._audit.change(Operation.CREATE_PRINCIPAL, f"principal {name}"):
            return self._catalog.access.create_principal(
                name, by=self.caller.name, taken=self._services.values()
            )

    def drop_principal(self, name: str) -> None:
        """Remove a principal with its grants; see `Access.drop_principal`."""
        self._allow(Operation.DROP_PRINCIPAL, {Place.WAREHOUSE: ()})
        with self._audit.change(Operation.DROP_PRINCIPAL, f"principal {name}"):
            self._catalog.access.drop_principal(name)

    def rotate_secret(self, name: str, *, grace_s: int = 0) -> RotatedSecret:
        """Give a principal a new secret; see `Access.rotate_secret`."""
        self._allow(Operation.ROTATE_SECRET, {Place.WAREHOUSE: ()})
        with self._audit.change(Operation.ROTATE_SECRET, f"principal {name}", grace_s=grace_s):
            return self._catalog.access.rotate_secret(name, grace_s=grace_s, services=self._services.values())

    def create_role(self, name: str) -> None:
        """Create a role; see `Access.create_role`."""
        self._allow(Operation.CREATE_ROLE, {Place.WAREHOUSE: ()})
        with self._audit.change(Operation.CREATE_ROLE, f"role {name}"):
            self._catalog.access.create_role(name, taken=self._services.values())

    def drop_role(self, name: str) -> None:
        """Remove a role with its grants; see `Access.drop_role`."""
        self._allow(Operation.DROP_ROLE, {Place.WAREHOUSE: ()})
        with self._audit.change(Operation.DROP_ROLE, f"role {name}"):
            self._catalog.access.drop_role(name)

    def set_member(self, role: str, member: str, *, there: bool) -> None:
        """Give a role to a principal, or take it away; see `Access.set_member`."""
        self._allow(Operation.CHANGE_ROLE, {Place.WAREHOUSE: ()})
        with self._audit.change(Operation.CHANGE_ROLE, f"role {role}", member=member, there=there):
            self._catalog.access.set_member(role, member, there=there)
