"""A session that hands store keys to clients: what they load or create comes with vended credentials.

The keys are for exactly the table that was checked, and may write only if its principal may commit.
"""

from __future__ import annotations

from dataclasses import replace

from tarn.core.errors import AlreadyExistsError, InvalidError, TarnError, UnavailableError
from tarn_catalog.metadata.types import TableMetadata
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.rights import Operation, Place
from tarn_catalog.operations.session import Session
from tarn_catalog.operations.vending import Mode, Vended
from tarn_catalog.state.access import Privilege
from tarn_catalog.state.context import IdempotencyKey, Metadata


class DelegatingSession(Session):
    """A `Session` with the operations of a client that takes vended credentials."""

    def load_with_keys(self, slot: TableIdentifier) -> tuple[Metadata, Vended | None]:
        """Return the metadata of a table, and keys to its files if the catalog vends any.

        The keys may write if the caller may commit. They are for exactly the table of this metadata.

        Raises:
            ForbiddenError: the caller may not load it.
            UnavailableError: there are no keys now.
            TarnError: as `Tables.load`.
        """
        stored = self._catalog.tables.load(self._allowed(Operation.LOAD, slot))
        return stored, self._vend(slot, stored)

    def keys(self, slot: TableIdentifier) -> Vended | None:
        """Return keys to the files of a table, None if the catalog vends none; see `load_with_keys`.

        Raises:
            InvalidError: the catalog cannot vend keys to this table's location.
            TarnError: as `load_with_keys`.
        """
        stored = self._catalog.tables.load(self._allowed(Operation.VEND, slot))
        return self._vend(slot, stored, needed=True)

    def stage_with_keys(
        self, slot: TableIdentifier, wanted: CreateTableRequest
    ) -> tuple[TableMetadata, Vended | None]:
        """Return what `stage` does, and keys that write to the new location if the catalog vends any.

        Raises:
            UnavailableError: there are no keys now.
            TarnError: as `stage`.
        """
        staged = self.stage(slot, wanted)
        return staged, self._vend_at(slot, staged["location"], staged["table-uuid"], Mode.WRITE)

    def create_table_with_keys(
        self, slot: TableIdentifier, wanted: CreateTableRequest, *, repeat: IdempotencyKey | None = None
    ) -> tuple[Metadata, Vended | None]:
        """Create a table, and return keys to its files if the catalog vends any.

        The keys are issued first: without them nothing is created.

        Raises:
            UnavailableError: there are no keys now; this request created nothing.
            TarnError: as `create_table`.
        """
        self._allow(Operation.CREATE, {Place.NAMESPACE: slot.namespace})
        keys: Vended | None = None
        try:
            staged = self._catalog.tables.stage(slot, wanted)
        except AlreadyExistsError:
            pass  # a repeated request is answered below with what it made
        else:
            wanted = replace(wanted, table_uuid=staged["table-uuid"])
            keys = self._vend_at(slot, staged["location"], staged["table-uuid"], Mode.WRITE)
        made = self.create_table(slot, wanted, repeat=repeat)
        if wanted.table_uuid != made.parsed["table-uuid"]:
            keys = self._vend(slot, made)
        return made, keys

    def register_with_keys(
        self,
        slot: TableIdentifier,
        location: str,
        *,
        overwrite: bool = False,
        repeat: IdempotencyKey | None = None,
    ) -> tuple[Metadata, Vended | None]:
        """Register as `register` does, and return keys if the catalog vends any and has some now."""
        stored = self.register(slot, location, overwrite=overwrite, repeat=repeat)
        try:
            return stored, self._vend(slot, stored)
        except UnavailableError:
            return stored, None  # it is registered; the client gets keys when it loads the table

    # -- vending

    def _vend(self, slot: TableIdentifier, stored: Metadata, *, needed: bool = False) -> Vended | None:
        """Return keys to the files of a table that the caller may read, None if the catalog vends none.

        Args:
            slot: the name that the table was found under.
            stored: its metadata.
            needed: raise if the table's location allows no keys, instead of answering none: whoever loads the
                table may have keys of its own.

        Raises:
            TarnError: as `Vending.vend`.
        """
        if self._catalog.vending is None:
            return None
        table_uuid: str = stored.parsed["table-uuid"]
        mode = Mode.WRITE if self._may_write(slot, table_uuid) else Mode.READ
        return self._vend_at(slot, stored.parsed["location"], table_uuid, mode, needed=needed)

    def _vend_at(
        self, slot: TableIdentifier, location: str, table_uuid: str, mode: Mode, *, needed: bool = False
    ) -> Vended | None:
        self._asked.add(Operation.VEND)
        if self._catalog.vending is None or self.caller.client_id is None:
            return None
        try:
            vended = self._catalog.vending.vend(
                self.caller.client_id, location=location, table_uuid=table_uuid, mode=mode
            )
        except TarnError as e:
            self._audit.log(
                Operation.VEND, slot.described, outcome="failed", error=type(e).__name__, mode=mode.value
            )
            if isinstance(e, InvalidError) and not needed:
                return None
            raise
        if vended.fresh:
            self._audit.log(
                Operation.VEND,
                slot.described,
                outcome="done",
                mode=mode.value,
                access_key_id=vended.keys.access_key_id,
                expires_ms=vended.keys.expires_ms,
            )
        return vended

    def _may_write(self, slot: TableIdentifier, table_uuid: str) -> bool:
        """Return whether the caller may commit to the table of this uuid, found under this name."""
        if self.caller.admin:
            return True
        held, _ = self._held(slot.namespace, Privilege.WRITE)
        # After the namespace: a table that has the name by now is another one, and so may be its namespace.
        found = self._catalog.tables.find(slot)
        if found is None or found.uuid != table_uuid:
            return False
        return Privilege.WRITE in held | self.caller.on(found.uuid, found.owner)
