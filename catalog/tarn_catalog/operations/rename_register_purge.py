"""Rename, register, and drop with purge. Each changes several register values atomically.

All of them first take the table's claim (its key sorts before every pointer's). So no two of them can give a
table two names, and none can give a name to a table whose files are marked for deletion.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from tarn.core.errors import AlreadyExistsError, ConflictError, InvalidLocationError
from tarn.core.naming import claim_key
from tarn.core.object_store import StoreTooLargeError
from tarn_catalog.metadata import validate_file, view_metadata
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.operations.identifiers import TableIdentifier, gone, placed, pointer_change, taken
from tarn_catalog.operations.tables import Tables
from tarn_catalog.state.claim import Claim
from tarn_catalog.state.context import IdempotencyKey, Metadata, Versioned, lost
from tarn_catalog.state.pointer import TABLE, VIEW, Pointer
from tarn_catalog.state.transactions import ParticipantChange

ATTEMPTS_MAX = 16


class Names:
    """Operations that change the name of a table."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._core = tables.core
        self._namespaces = tables.namespaces
        self._transactions = tables.transactions
        self._one_file = threading.Lock()

    # -- rename

    def rename(
        self, source: TableIdentifier, target: TableIdentifier, *, repeat: IdempotencyKey | None = None
    ) -> None:
        """Rename a table or view, optionally into another namespace. Its files stay where they are.

        Args:
            source: the current identifier.
            target: the new identifier, of the same kind.
            repeat: the request's idempotency key.

        Raises:
            NotFoundError: the source does not exist (`NoSuchTableError` or `NoSuchViewError`).
            NoSuchNamespaceError: the target namespace does not exist.
            AlreadyExistsError: the target name is in use.
            ConflictError: concurrent changes won every attempt.
            OutcomeUnknownError: it may have been renamed.
        """
        for _ in self._core.patience.attempts(ATTEMPTS_MAX):
            with self._core.turns.hold(source.key):
                before = self._transactions.read_to_write(source.key, Pointer.load)
                if before is not None and self._core.repeated(before.value.memory, repeat):
                    return
                before = self._tables.there(source, before)
                self._namespaces.load(target.namespace)
                after = self._transactions.read_to_write(target.key, Pointer.load)
                if source.key == target.key or (after is not None and after.value.live):
                    by = source.kind if after is None else after.value.kind
                    if source.kind == by == TABLE:
                        raise taken(target, by)
                    raise AlreadyExistsError(
                        f"Cannot rename {source.text} to {target.text}. {by.title()} already exists",
                        **{by: target.text},
                    )
                table_uuid, metadata = before.value.uuid, before.value.metadata
                assert metadata is not None, source
                claim = self._claim(table_uuid)
                done = self._transactions.run(
                    [
                        self._hold(claim, table_uuid, target),
                        pointer_change(source, before, gone(table_uuid, moved=target)),
                        pointer_change(
                            target,
                            after,
                            placed(replace(target, owner=before.value.owner), table_uuid, metadata),
                        ),
                    ],
                    repeat=repeat,
                    confirm=lambda _: self._namespaces.enter(target.namespace),
                )
                if done is not None:
                    return
        raise lost(f"the rename of {source.text} to {target.text}", ATTEMPTS_MAX)

    # -- register

    def register(
        self,
        slot: TableIdentifier,
        location: str,
        *,
        overwrite: bool = False,
        repeat: IdempotencyKey | None = None,
    ) -> Metadata:
        """Give a name to a table or view from its metadata file, for example after a drop.

        Args:
            slot: the identifier to register.
            location: the location of the metadata file.
            overwrite: replace the table that has this name; its files stay, unreferenced. A name never
                passes from a table to a view or back.
            repeat: the request's idempotency key.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            AlreadyExistsError: the name is in use, or what the file describes already has a name.
            InvalidError: the file does not exist or is not valid.
            ConflictError: the table's files are marked for deletion, or concurrent changes won every attempt.
            OutcomeUnknownError: the table may have been registered.
        """
        self._namespaces.load(slot.namespace)
        for _ in self._core.patience.attempts(ATTEMPTS_MAX):
            held = self._transactions.read_to_write(slot.key, Pointer.load)
            if held is not None and self._core.repeated(held.value.memory, repeat):
                return self._tables.current(self._tables.there(slot, held))
            if held is not None and held.value.live and (not overwrite or held.value.kind != slot.kind):
                raise taken(slot, held.value.kind)
            table_uuid = self._checked(slot, location)
            hold = self._hold(self._claim(table_uuid), table_uuid, slot)
            # A rollback of the table that has the name leaves its owner.
            same = held is not None and held.value.live and held.value.uuid == table_uuid

            def confirm(_: object, table_uuid: str = table_uuid) -> None:
                self._namespaces.enter(slot.namespace)
                self._check_nameless(table_uuid, slot)

            done = self._transactions.run(
                [
                    hold,
                    pointer_change(
                        slot, held, placed(replace(slot, owner=None) if same else slot, table_uuid, location)
                    ),
                ],
                repeat=repeat,
                confirm=confirm,
            )
            if done is not None:
                return self._core.metadata(location)
        raise lost(f"the registration of {slot.text}", ATTEMPTS_MAX)

    def _checked(self, slot: TableIdentifier, location: str) -> str:
        """Return the UUID in the metadata file to register, after its validation.

        Raises:
            InvalidLocationError: the location is not allowed, or there is no file.
            InvalidError: the metadata is not valid.
        """
        key = validate_file.check_file(location, self._core.roots)
        try:
            stored = self._core.store.get(key)
        except StoreTooLargeError as e:
            raise InvalidLocationError(f"Invalid metadata-location {location}: {e.message}") from e
        if stored is None:
            raise InvalidLocationError(
                f"Invalid metadata-location {location}: there is no such file; give the one that a load of "
                f"the {slot.kind} answered, or the newest in its metadata folder",
                location=location,
            )
        # Each may take most of the memory that there is.
        with self._one_file:
            if slot.kind == VIEW:
                return view_metadata.check_file(stored.data, location, self._core.roots)["view-uuid"]
            return validate_file.check_metadata(stored.data, location, self._core.roots)["table-uuid"]

    def _check_nameless(self, table_uuid: str, slot: TableIdentifier) -> None:
        """Require that no other name references the table or is about to.

        This transaction's intent on the claim keeps other writers from naming the table during the scan.

        Raises:
            AlreadyExistsError: another name references the table.
        """
        name = self._tables.uuids.name_of(table_uuid, besides=slot.key)
        if name is not None:
            kind = slot.kind
            raise AlreadyExistsError(
                f"{kind.title()} already exists: {table_uuid} is {name}, and a {kind} has one name; rename "
                "it, or drop it without purge and register it then",
                **{kind: name},
                uuid=table_uuid,
            )

    # -- drop with purge

    def purge(self, slot: TableIdentifier, *, repeat: IdempotencyKey | None = None) -> None:
        """Drop a table and mark its files for deletion; nothing is deleted here (invariant I7).

        A table whose files may be shared (`gc.enabled` is false) is dropped without the mark.

        Args:
            slot: the table's identifier.
            repeat: the request's idempotency key.

        Raises:
            NoSuchTableError: the table does not exist.
            ConflictError: concurrent commits won every attempt.
            OutcomeUnknownError: the table may have been dropped.
        """
        for _ in self._core.patience.attempts(ATTEMPTS_MAX):
            with self._core.turns.hold(slot.key):
                held = self._transactions.read_to_write(slot.key, Pointer.load)
                if held is not None and self._core.repeated(held.value.memory, repeat):
                    return
                held = self._tables.there(slot, held)
                current = self._tables.current(held)
                if current.parsed["properties"].get("gc.enabled", "true").lower() == "false":
                    self._tables.drop(slot, repeat=repeat)
                    return
                table_uuid = held.value.uuid
                claim = self._claim(table_uuid)
                # Of a damaged lake, where the files of a live name are to be deleted, the first purge stays.
                purge = (claim.value.purge if claim else None) or {
                    "namespace": slot.namespace,
                    "name": slot.name,
                    "location": current.parsed["location"],
                    "metadata-location": current.location,
                    "at-ms": self._core.now_ms(),
                }
                done = self._transactions.run(
                    [
                        self._claimed(claim, table_uuid, {"holder": None, "purge": purge}),
                        pointer_change(slot, held, gone(table_uuid)),
                    ],
                    repeat=repeat,
                )
                if done is not None:
                    return
        raise lost(f"the drop of table {slot.text}", ATTEMPTS_MAX)

    # -- parts

    def _claim(self, table_uuid: str) -> Versioned[Claim] | None:
        return self._transactions.read_to_write(claim_key(table_uuid), Claim.load)

    def _hold(
        self, claim: Versioned[Claim] | None, table_uuid: str, slot: TableIdentifier
    ) -> ParticipantChange:
        if claim is not None and claim.value.purge is not None:
            raise ConflictError(
                f"Cannot give table {table_uuid} the name {slot.text}: it was dropped with purge, its files "
                "are to be deleted; restore it from a backup",
                uuid=table_uuid,
            )
        return self._claimed(claim, table_uuid, {"holder": slot.key, "purge": None})

    def _claimed(self, claim: Versioned[Claim] | None, table_uuid: str, then: Json) -> ParticipantChange:
        return ParticipantChange(
            key=claim_key(table_uuid), held=claim, blank=Claim.blank(table_uuid), then=then
        )
