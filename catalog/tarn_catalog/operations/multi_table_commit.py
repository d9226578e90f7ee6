"""Atomic commits to several tables (REST specification: `CommitTransactionRequest`).

All tables are read, judged and written before the transaction takes their pointers. A pointer that another
writer changed meanwhile is taken first and judged then: its table is the only one to be judged and written
again, and from then on other writers wait for it. So a commit to many tables does not starve beside writers
of one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
    OutcomeUnknownError,
    TarnError,
)
from tarn_catalog.metadata import table_metadata
from tarn_catalog.metadata.types import TableMetadata, TableRequirement, TableUpdate
from tarn_catalog.operations.identifiers import (
    TableIdentifier,
    check_locations,
    created_meanwhile,
    is_create,
    last_of,
    placed,
    pointer_change,
    staged,
    uuid_meant,
)
from tarn_catalog.operations.lost_commit import check_not_lost
from tarn_catalog.operations.tables import Tables
from tarn_catalog.operations.uuids import Chosen
from tarn_catalog.state.context import IdempotencyKey, Metadata, Versioned, lost
from tarn_catalog.state.parallel import WORKERS_MAX, in_parallel
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.transactions import ParticipantChange, Renew, StartOverError

ATTEMPTS_MAX = 16
TABLES_MAX = 100
UPDATES_MAX = 10_000  # of a commit to several tables; of one table alone what they go through counts


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


@dataclass(slots=True, kw_only=True)
class _Made:
    """What a commit has made so far, by the key of the table; kept when it has to start over.

    Attributes:
        first: the first metadata of new tables.
        before: the pointers of their names before they had them.
        next: the location of the metadata that was built on, and what was built: itself if nothing changed.
        late: tables whose pointers are taken and still to be judged: the change, the pointer that was taken,
            and the location of its next metadata.
    """

    first: dict[str, Metadata] = field(default_factory=dict)
    before: dict[str, Versioned[Pointer] | None] = field(default_factory=dict)
    next: dict[str, tuple[str, Metadata]] = field(default_factory=dict)
    late: dict[str, tuple[Change, Versioned[Pointer], str]] = field(default_factory=dict)


def check_tables(changes: Sequence[Change]) -> None:
    """Require that a commit names no more tables than it may, each once, and has not too many updates in all.

    Raises:
        InvalidError: there are none or too many changes or updates, or a table is named twice.
    """
    if not 1 <= len(changes) <= TABLES_MAX:
        raise InvalidError(
            f"Cannot commit {len(changes)} tables at once: give at least 1 and at most {TABLES_MAX}"
        )
    places = [change.slot.key for change in changes]
    twice = sorted({change.slot.text for change in changes if places.count(change.slot.key) > 1})
    if twice:
        raise InvalidError(f"Cannot commit: {', '.join(twice)} named twice; put its updates together")
    updates = [update for change in changes for update in change.updates]
    table_metadata.check_counts(updates)
    if len(changes) > 1 and len(updates) > UPDATES_MAX:
        raise InvalidError(
            f"Cannot apply {len(updates)} updates to {len(changes)} tables at once: at most {UPDATES_MAX}; "
            "send them in several commits"
        )


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
        check_tables(changes)
        names = [change.slot.text for change in changes]
        made = _Made()
        for _ in self._core.patience.attempts(ATTEMPTS_MAX):
            made.late.clear()
            held = self._read(changes)
            if self._done(changes, held, repeat):
                return

            def part(
                change: Change, held: Mapping[str, Versioned[Pointer] | None] = held
            ) -> ParticipantChange:
                return self._part(change, held[change.slot.key], made, repeat)

            try:
                self._check_chosen(changes, held, made)
                parts = in_parallel(part, changes)
                done = self._transactions.run(
                    parts, repeat=repeat, confirm=partial(self._confirm, changes, made)
                )
            except (AlreadyExistsError, ConflictError, InvalidError, NotFoundError) as e:
                # The same request, sent before, may have gone on meanwhile.
                held = self._read(changes)
                if self._done(changes, held, repeat):
                    return
                if repeat is None:
                    self._check_not_lost(changes, held, e)
                raise
            if done is not None:
                self._tables.remember(done)
                return
        raise lost(f"the commit to {', '.join(names)} at once", ATTEMPTS_MAX)

    def _read(self, changes: Sequence[Change]) -> dict[str, Versioned[Pointer] | None]:
        """Return the pointers of all tables, by key."""
        keys = [change.slot.key for change in changes]
        read = in_parallel(lambda key: self._transactions.read_to_write(key, Pointer.load), keys)
        return dict(zip(keys, read, strict=True))

    def _done(
        self,
        changes: Sequence[Change],
        held: Mapping[str, Versioned[Pointer] | None],
        repeat: IdempotencyKey | None,
    ) -> bool:
        """Return whether this request was already carried out, also if a table was renamed since.

        One table's history decides for all. Without a key it is the snapshots that are added: those of one
        table show that the whole commit was carried out. What adds none shows nothing.

        Raises:
            OutcomeUnknownError: it was carried out in one table, and not all of its snapshots are to be
                found.
        """
        if any(one is not None and self._core.repeated(one.value.memory, repeat) for one in held.values()):
            return True
        done: list[TableIdentifier] = []
        moved = None
        missing = False
        for change in changes:
            one = held[change.slot.key]
            if one is not None and one.value.live and one.value.kind == change.slot.kind:
                found = table_metadata.already_applied(change.updates, self._tables.current(one).parsed)
            else:
                meant = uuid_meant(change.requirements, change.updates)
                found = self._tables.moved(change.slot, one, change.updates, repeat, meant=meant) is not None
                moved = change.slot if found else moved
            if found:
                done.append(change.slot)
            missing = missing or (not found and table_metadata.adds_snapshots(change.updates))
        if done and missing:
            slot, since = (moved, ", which has another name now,") if moved is not None else (done[0], "")
            raise OutcomeUnknownError(
                f"The change of {slot.text}{since} was carried out before, and not all of this commit is to "
                "be found; look for your rows in all its tables, and delete nothing",
                table=slot.text,
            )
        return bool(done)

    def _check_not_lost(
        self, changes: Sequence[Change], held: Mapping[str, Versioned[Pointer] | None], refused: TarnError
    ) -> None:
        """Require that a refused commit was not carried out before, and history thinned or a table renamed.

        All are looked at: which one refuses the commit says nothing about the others.

        Raises:
            OutcomeUnknownError: it was, or that cannot be found out.
            UnavailableError: the store did not answer.
        """
        for change in changes:
            slot, one = change.slot, held[change.slot.key]
            if one is not None:
                self._tables.check_not_elsewhere(slot, one.value, change.requirements, change.updates, None)
            if one is None or not slot.means(one.value):
                continue
            if uuid_meant(change.requirements, change.updates) not in (None, one.value.uuid):
                continue
            if check_not_lost(self._core, slot, change.updates, self._tables.current(one), refused):
                raise OutcomeUnknownError(
                    f"The change of {slot.text} was carried out before, and the history of that time was "
                    "thinned; look for your rows in all tables of the commit, and delete nothing",
                    table=slot.text,
                ) from refused

    def _check_chosen(
        self, changes: Sequence[Change], held: Mapping[str, Versioned[Pointer] | None], made: _Made
    ) -> None:
        """Require that the uuids of new tables, which the client sends, are unused and differ.

        Before anything is written at their locations; looked for again once the pointers are taken.
        """
        chosen: list[Chosen] = []
        for change in changes:
            before = held[change.slot.key]
            if is_create(change.requirements) and not (before is not None and before.value.live):
                table_uuid = str(last_of(change.updates, "assign-uuid", "uuid")).lower()
                chosen.append(Chosen(slot=change.slot, table_uuid=table_uuid, held=before))
        uuids = [one.table_uuid for one in chosen]
        if len(set(uuids)) < len(uuids):
            raise InvalidError(
                f"Cannot commit: new tables have one uuid, {max(uuids, key=uuids.count)}; stage each create"
            )
        self._tables.uuids.check_unused([one for one in chosen if one.slot.key not in made.first])

    def _part(
        self,
        change: Change,
        held: Versioned[Pointer] | None,
        made: _Made,
        repeat: IdempotencyKey | None,
    ) -> ParticipantChange:
        """Return the table's part of the transaction; its new metadata is written.

        A table whose updates change nothing takes part too: its requirements must hold at the commit.
        """
        slot = change.slot
        again = partial(self._again, change, made, repeat)
        if is_create(change.requirements):
            if held is not None and held.value.live:
                raise created_meanwhile(slot)
            self._namespaces.load(slot.namespace)
            if slot.key not in made.first:
                fresh = staged(
                    change.requirements, change.updates, roots=self._core.roots, now_ms=self._core.now_ms()
                )
                made.first[slot.key] = self._tables.write_first(slot, fresh["table-uuid"], fresh, chosen=True)
            made.before[slot.key] = held
            stored = made.first[slot.key]
            then = placed(slot, stored.parsed["table-uuid"], stored.location)
            return replace(pointer_change(slot, held, then), again=again)
        held = self._tables.there(slot, held)
        if made.next.get(slot.key, ("",))[0] != held.value.metadata:
            current = self._tables.current(held)
            meta = self._judged(change, current)
            stored = current
            if meta is not None:
                stored = self._core.write_metadata(self._tables.next_location(current.location, meta), meta)
            made.next[slot.key] = current.location, stored
        stored = made.next[slot.key][1]
        return replace(
            pointer_change(slot, held, placed(slot, held.value.uuid, stored.location)), again=again
        )

    def _judged(self, change: Change, current: Metadata) -> TableMetadata | None:
        """Return the table's next metadata; None if the updates change nothing.

        Raises:
            ConflictError: a requirement does not hold.
            InvalidError: an update is invalid.
        """
        table_metadata.check_requirements(change.requirements, current.parsed)
        meta = table_metadata.commit(
            current.parsed, change.updates, now_ms=self._core.now_ms(), previous_location=current.location
        )
        if meta is not None:
            check_locations(meta, current.parsed)
        return meta

    def _again(
        self, change: Change, made: _Made, repeat: IdempotencyKey | None, renew: Renew
    ) -> ParticipantChange:
        """Return the table's part on its newest pointer; what that names is judged once it is taken."""
        slot = change.slot
        held = self._transactions.read_to_write(slot.key, Pointer.load, renew=renew)
        if held is not None and self._core.repeated(held.value.memory, repeat):
            raise StartOverError  # a repeat of this request was carried out meanwhile
        if is_create(change.requirements):
            stored = made.first[slot.key]
            if held is not None and held.value.live:
                if held.value.uuid == stored.parsed["table-uuid"]:
                    raise StartOverError  # so was one without a key
                raise created_meanwhile(slot)
            made.before[slot.key] = held
            return pointer_change(slot, held, placed(slot, stored.parsed["table-uuid"], stored.location))
        held = self._tables.there(slot, held)
        assert held.value.metadata is not None, slot
        if held.value.metadata == made.next[slot.key][0]:
            # Only the pointer was written again, as by a transaction that was given up.
            made.late.pop(slot.key, None)
            return pointer_change(slot, held, placed(slot, held.value.uuid, made.next[slot.key][1].location))
        location = self._tables.next_location(held.value.metadata)
        made.late[slot.key] = change, held, location
        return pointer_change(slot, held, placed(slot, held.value.uuid, location))

    def _confirm(self, changes: Sequence[Change], made: _Made, renew: Renew) -> None:
        """Require that new tables may get their names, and write what is late.

        Raises:
            TarnError: as `commit`.
            StartOverError: what is late was carried out before.
        """
        for change in changes:
            if change.slot.key in made.first:
                renew()
                self._tables.confirm_new(change.slot, made.first[change.slot.key].parsed["table-uuid"])
        chosen = [
            Chosen(
                slot=change.slot,
                table_uuid=made.first[change.slot.key].parsed["table-uuid"],
                held=made.before[change.slot.key],
            )
            for change in changes
            if change.slot.key in made.first
        ]
        self._tables.uuids.check_unused(chosen)

        def write(key: str) -> None:
            change, held, location = made.late[key]
            current = self._tables.current(held)
            if table_metadata.already_applied(change.updates, current.parsed):
                raise StartOverError
            # The pointer names this location already, so it is written even if nothing changes.
            meta = self._judged(change, current) or current.parsed
            made.next[key] = current.location, self._core.write_metadata(location, meta)

        keys = sorted(made.late)
        for start in range(0, len(keys), WORKERS_MAX):
            renew()
            in_parallel(write, keys[start : start + WORKERS_MAX])
        renew()
