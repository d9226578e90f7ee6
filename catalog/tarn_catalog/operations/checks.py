"""The checks of a session: whether its principal has the rights of an operation on the things of a request.

A table or view whose own grants or owner decided is pinned by its uuid: a table that gets the name meanwhile
is another one (`TableIdentifier.uuid`). Refusals are logged as the audit trail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from tarn.core.errors import (
    CorruptStateError,
    ForbiddenError,
    NoSuchNamespaceError,
    NotFoundError,
    OutcomeUnknownError,
    TarnError,
)
from tarn_catalog.operations.access import Caller
from tarn_catalog.operations.audit import Audit
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.namespaces import Levels, Shown
from tarn_catalog.operations.rights import RIGHTS, Need, Operation, Place, What, meets, text_of
from tarn_catalog.operations.tables import MOVES_FOLLOWED_MAX
from tarn_catalog.state.access import INCLUDED, NAMESPACE, THE_WAREHOUSE, Privilege, Securable
from tarn_catalog.state.context import IdempotencyKey, Metadata


class Checks:
    """What one principal may do in one request.

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
        self._audit = Audit(caller, catalog.trail, on=audited)
        self._asked: set[Operation] = set()

    @property
    def asked(self) -> frozenset[Operation]:
        """The operations whose rights were checked."""
        return frozenset(self._asked)

    def may_wait(self, operation: Operation, slot: TableIdentifier | None) -> bool:
        """Return whether the caller has the right, now, to what it would wait for; nothing is logged.

        The request itself is judged when its turn has come.

        Args:
            operation: a commit, which may create, or another operation on a table, a view or the warehouse.
            slot: the table or view; None for the warehouse.

        Raises:
            UnavailableError: the store did not answer.
        """
        if self.caller.admin:
            return True
        ((place, need),) = RIGHTS[operation]
        try:
            if slot is None:
                self._check_levels(operation, place, need, ())
            else:
                self._check_name(operation, place, need, slot)
        except (ForbiddenError, NotFoundError):
            if slot is None or operation is not Operation.COMMIT:
                return False
            found = self._catalog.tables.find(slot)
            creates = found is None or not found.live
            return creates and Privilege.CREATE in self._held(slot.namespace, Privilege.CREATE)[0]
        return True

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

    def _pin_namespace(self, thing: What) -> str | None:
        """Return the uuid of a namespace before its check, so that no other one is changed after it.

        None if any may be: for an admin, and for a table or view, which is pinned by its check. Empty for the
        warehouse and for a namespace that does not exist.
        """
        if self.caller.admin or isinstance(thing, TableIdentifier):
            return None
        found = self._catalog.namespaces.find(thing) if thing else None
        return found.uuid if found is not None else ""

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
            self._audit.log(operation, text_of(thing), outcome="refused")
            raise

    def _check_levels(
        self, operation: Operation, place: Place, need: Privilege | Need, levels: Levels
    ) -> Levels:
        held, there = self._held(levels, need)
        if meets(need, held) or (need is Need.ANY and self._leads_to_granted(levels)):
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
        if meets(need, held):
            return slot
        found = self._catalog.tables.find(slot)
        # A tombstone counts as what had the name: whoever could drop it may repeat the request.
        if found is not None and found.uuid and meets(need, self.caller.on(found.uuid, found.owner)):
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
        if self.caller.owns(levels):
            held |= INCLUDED[Privilege.MANAGE]
        for depth in range(1, len(levels) + 1):
            if need is not None and meets(need, held):
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
        inside = self._granted_inside(len(parent) + 1)
        return lambda levels, uuid, owner: (
            bool(self.caller.on(uuid, owner)) or any(self._is_there(on) for on in inside.get(levels, ()))
        )

    def _shown_names(self, levels: Levels) -> Shown | None:
        """Return which tables and views of a namespace the caller sees: those that it may read."""
        if self.caller.admin or Privilege.READ in self._held(levels, Privilege.READ)[0]:
            return None
        return lambda _, uuid, owner: Privilege.READ in self.caller.on(uuid, owner)

    def _granted_inside(self, size: int) -> dict[Levels, list[Securable]]:
        """Return the things in each namespace of so many levels that the caller was granted something on.

        A grant has the last name of its thing, which may be gone, and the namespace another one of its name.
        """
        found: dict[Levels, list[Securable]] = {}
        for grant in self.caller.grants.of(self.caller.grantees):
            if len(grant.on.name) > size:
                found.setdefault(grant.on.name[:size], []).append(grant.on)
        return found

    def _leads_to_granted(self, levels: Levels) -> bool:
        return any(self._is_there(on) for on in self._granted_inside(len(levels)).get(levels, ()))

    def _is_there(self, on: Securable) -> bool:
        """Return whether a thing has the name that a grant knows it by; a damaged one counts as there."""
        try:
            if on.kind == NAMESPACE:
                space = self._catalog.namespaces.find(on.name)
                return space is not None and space.uuid == on.uuid
            found = self._catalog.tables.find(TableIdentifier.of(on.name[:-1], on.name[-1], on.kind))
        except CorruptStateError:
            return True
        return found is not None and found.live and found.uuid == on.uuid

    def _forbidden(
        self, operation: Operation, place: Place, need: Privilege | Need, thing: What
    ) -> ForbiddenError:
        # The same for what exists and what does not.
        if need is Need.ADMIN:
            return ForbiddenError(f"{self.caller.name} may not {operation}: that takes {need}")
        return ForbiddenError(
            f"{self.caller.name} may not {operation} {text_of(thing)}: that takes {need} on {place}; ask its "
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
                f"Cannot tell whether the create of {text_of(thing)} happened: {e.message}; load it and look"
            ) from e

    @contextmanager
    def _unless_carried_out(self, changes: Sequence[Change], repeat: IdempotencyKey | None) -> Iterator[None]:
        """Refuse no commit, nor a create with rows, of which a table shows that it was carried out before.

        Raises:
            OutcomeUnknownError: it is refused, and it was carried out before.
        """
        try:
            yield
        except (ForbiddenError, NotFoundError) as e:
            for change in changes:
                if self._catalog.tables.carried_out(change.slot, change.requirements, change.updates, repeat):
                    raise OutcomeUnknownError(
                        f"{e.message}. The commit was carried out before: delete nothing",
                        table=change.slot.text,
                    ) from e
            raise

    def _check_followed(self, slot: TableIdentifier, done: Metadata) -> None:
        """Require that the caller may read the table or view whose metadata answers a commit.

        A commit that was carried out before a rename is answered with what it changed, under the new name.

        Raises:
            OutcomeUnknownError: the caller may not.
        """
        if self.caller.admin:
            return
        # A pin may come from a tombstone, whose owner may have lost the table since. Its check read the
        # pointer, and so did a commit that found the table elsewhere: the cached one has no other name.
        known = self._catalog.core.known(slot.key) if slot.uuid is not None else None
        if known is not None and known.value.intent is None and slot.means(known.value):
            return
        found = self._catalog.tables.find(slot)
        if found is not None and slot.means(found) and found.uuid == _uuid_of(done):
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
                f"The commit was carried out, and the {slot.kind} has another name or is gone: {e.message}. "
                "Delete nothing",
                table=slot.text,
            ) from e

    def _securable(self, thing: What, pin: str | None = None) -> tuple[Securable, str | None]:
        """Return a thing with its uuid, and the client id of its owner, None for nobody.

        Args:
            thing: the thing.
            pin: see `_pin_namespace`.

        Raises:
            NotFoundError: it does not exist, or is not the namespace that was checked.
        """
        if isinstance(thing, TableIdentifier):
            pointer = self._catalog.tables.pointer(thing).value
            name = (*thing.namespace, thing.name)
            return Securable(kind=thing.kind, uuid=pointer.uuid, name=name), pointer.owner
        if not thing:
            return THE_WAREHOUSE, None
        found = self._catalog.namespaces.find(thing)
        if found is None or pin not in (None, found.uuid):
            raise NoSuchNamespaceError(
                f"Namespace does not exist: {'.'.join(thing)}", namespace=".".join(thing)
            )
        return Securable(kind=NAMESPACE, uuid=found.uuid, name=thing), found.owner


def _uuid_of(found: Metadata) -> str:
    """Return the uuid in the metadata of a table or view."""
    meta = cast("Mapping[str, str]", found.parsed)
    return meta["view-uuid"] if "view-uuid" in meta else meta["table-uuid"]
