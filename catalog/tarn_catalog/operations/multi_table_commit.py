"""Atomic commits to several tables (REST specification: `CommitTransactionRequest`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tarn.core.errors import ConflictError, InvalidError, OutcomeUnknownError
from tarn_catalog.metadata import table_metadata
from tarn_catalog.metadata.types import TableRequirement, TableUpdate
from tarn_catalog.operations.identifiers import (
    TableIdentifier,
    check_locations,
    created_meanwhile,
    is_create,
    placed,
    pointer_change,
    staged,
)
from tarn_catalog.operations.lost_commit import check_not_lost
from tarn_catalog.operations.tables import Tables
from tarn_catalog.state.context import IdempotencyKey, Metadata, Versioned, lost
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.transactions import ParticipantChange

ATTEMPTS_MAX = 16
TABLES_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A commit to one table of a multi-table commit (REST specification: an entry of `table-changes`).

    Attributes:
        slot: the table's identifier.
        requirements: `TableRequirement` objects of the REST specification.
        updates: `TableUpdate` objects of the REST specification, in order.
    """

    slot: TableIdentifier
    requirements: Sequence[TableRequirement]
    updates: Sequence[TableUpdate]


class MultiTableCommit:
    """Atomic commits to several tables."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._core = tables.core
        self._namespaces = tables.namespaces
        self._transactions = tables.transactions

    def commit(self, changes: Sequence[Change], *, repeat: IdempotencyKey | None = None) -> None:
        """Apply all changes atomically if all requirements hold.

        Raises:
            InvalidError: there are none or too many changes, a table is named twice, or an update is invalid.
            NoSuchTableError: a table does not exist.
            NoSuchNamespaceError: the namespace of a new table does not exist.
            AlreadyExistsError: the name of a new table is in use.
            ConflictError: a requirement does not hold, or concurrent commits won every attempt.
            OutcomeUnknownError: the commit may have happened.
            UnavailableError: the commit did not happen.
        """
        if not 1 <= len(changes) <= TABLES_MAX:
            raise InvalidError(
                f"Cannot commit {len(changes)} tables at once: give at least 1 and at most {TABLES_MAX}"
            )
        names = [change.slot.text for change in changes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidError(f"Cannot commit: {', '.join(twice)} named twice; put its updates together")
        first: dict[str, Metadata] = {}
        for _ in self._core.patience.attempts(ATTEMPTS_MAX):
            held = {c.slot.key: self._transactions.read_to_write(c.slot.key, Pointer.load) for c in changes}
            if self._done(changes, held, repeat):
                return
            parts = [self._part(change, held[change.slot.key], first, repeat) for change in changes]
            new = {change.slot: first[change.slot.key] for change in changes if change.slot.key in first}

            def confirm(new: Mapping[TableIdentifier, Metadata] = new) -> None:
                for slot, stored in new.items():
                    self._tables.confirm_new(slot, stored.parsed["table-uuid"])

            done = self._transactions.run(parts, repeat=repeat, confirm=confirm)
            if done is not None:
                self._tables.remember(done)
                return
        raise lost(f"the commit to {', '.join(names)} at once", ATTEMPTS_MAX)

    def _done(
        self,
        changes: Sequence[Change],
        held: Mapping[str, Versioned[Pointer] | None],
        repeat: IdempotencyKey | None,
    ) -> bool:
        """Return whether this request was already carried out; one table's history decides for all."""
        if any(one is not None and self._core.repeated(one.value.memory, repeat) for one in held.values()):
            return True
        for change in changes:
            one = held[change.slot.key]
            if one is None or not one.value.live or one.value.kind != change.slot.kind:
                return False
            if not table_metadata.already_applied(change.updates, self._tables.current(one).parsed):
                return False
        return True

    def _part(
        self,
        change: Change,
        held: Versioned[Pointer] | None,
        first: dict[str, Metadata],
        repeat: IdempotencyKey | None,
    ) -> ParticipantChange:
        """Return the table's part of the transaction.

        A table whose updates change nothing takes part too: its requirements must hold at the commit.
        """
        slot = change.slot
        if is_create(change.requirements):
            if held is not None and held.value.live:
                raise created_meanwhile(slot)
            self._namespaces.load(slot.namespace)
            if slot.key not in first:
                fresh = staged(
                    change.requirements, change.updates, roots=self._core.roots, now_ms=self._core.now_ms()
                )
                first[slot.key] = self._tables.write_first(slot, fresh["table-uuid"], fresh)
            stored = first[slot.key]
            return pointer_change(slot, held, placed(slot, stored.parsed["table-uuid"], stored.location))
        held = self._tables.there(slot, held)
        current = self._tables.current(held)
        try:
            table_metadata.check_requirements(change.requirements, current.parsed)
            meta = table_metadata.commit(
                current.parsed,
                change.updates,
                now_ms=self._core.now_ms(),
                previous_location=current.location,
            )
        except ConflictError as e:
            if repeat is None and check_not_lost(self._core, slot, change.updates, current, e):
                raise OutcomeUnknownError(
                    f"The change of {slot.text} was carried out before, and the history of that time was "
                    "thinned; look for your rows in all tables of the commit, and delete nothing",
                    table=slot.text,
                ) from e
            raise
        location = current.location
        if meta is not None:
            check_locations(meta, current.parsed)
            location = self._tables.next_location(current)
            self._core.write_metadata(location, meta)
        return pointer_change(slot, held, placed(slot, current.parsed["table-uuid"], location))
