"""Create, load, commit and drop tables; each is decided by one conditional write of the pointer (I2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptStateError,
    NotFoundError,
    OutcomeUnknownError,
    TarnError,
)
from tarn.core.metadata_json import GZIP_SUFFIX
from tarn.core.naming import check_path_properties, claim_key, pointer_key
from tarn_catalog.metadata import table_metadata
from tarn_catalog.metadata.types import TableMetadata, TableRequirement, TableUpdate, ViewMetadata
from tarn_catalog.operations.identifiers import (
    CreateTableRequest,
    TableIdentifier,
    check_locations,
    created_meanwhile,
    is_create,
    last_of,
    placed,
    pointer_change,
    staged,
    taken,
    uuid_meant,
)
from tarn_catalog.operations.lost_commit import check_not_lost
from tarn_catalog.operations.namespaces import Namespaces
from tarn_catalog.operations.uuids import Chosen, Uuids
from tarn_catalog.state.claim import Claim
from tarn_catalog.state.context import (
    CatalogContext,
    IdempotencyKey,
    KeyReusedError,
    Metadata,
    NoMetadataFileError,
    Versioned,
    dumped,
    lost,
)
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.register import happened
from tarn_catalog.state.transactions import Transactions

COMMIT_ATTEMPTS_MAX = 16
CREATE_ATTEMPTS_MAX = 4
MOVES_FOLLOWED_MAX = 8
POINTER_BYTES = 40_000  # with 96 inline commits that carry idempotency keys


class UnreadableError(CorruptStateError):
    """A load found no metadata file.

    Only a load: who commits takes "not found" for a refusal, and deletes files that a commit whose answer was
    lost has put into the table.
    """


class Tables:
    """Operations on tables.

    Args:
        core: the catalog context.
        namespaces: the operations on namespaces.
        transactions: transactions over the register.
    """

    def __init__(self, core: CatalogContext, namespaces: Namespaces, transactions: Transactions) -> None:
        self.core = core
        self.namespaces = namespaces
        self.transactions = transactions
        self.uuids = Uuids(core, transactions)

    # -- reading

    def pointer(self, slot: TableIdentifier) -> Versioned[Pointer]:
        """Return the pointer of an existing table or view.

        Raises:
            NotFoundError: it does not exist (`NoSuchTableError` or `NoSuchViewError`).
        """
        return self.there(slot, self.transactions.read(slot.key, Pointer.load))

    @staticmethod
    def there(slot: TableIdentifier, held: Versioned[Pointer] | None) -> Versioned[Pointer]:
        """Return the pointer itself, checked to be that of a live table or view, as the identifier says.

        Raises:
            NotFoundError: the pointer is absent, a tombstone, of another kind, or not the checked one.
        """
        if held is None or not slot.means(held.value):
            raise slot.missing()
        return held

    def find(self, slot: TableIdentifier) -> Pointer | None:
        """Return the pointer of a name as a reader sees it, or its tombstone; None if there never was one."""
        held = self.transactions.read(slot.key, Pointer.load)
        return None if held is None else held.value

    def exists(self, slot: TableIdentifier) -> bool:
        """Return whether the table or view exists."""
        try:
            self.pointer(slot)
        except NotFoundError:
            return False
        return True

    def check_free(self, slot: TableIdentifier) -> None:
        """Require that neither a table nor a view has the name.

        Raises:
            AlreadyExistsError: the name is in use.
        """
        held = self.transactions.read(slot.key, Pointer.load)
        if held is not None and held.value.live:
            raise taken(slot, held.value.kind)

    def load(self, slot: TableIdentifier) -> Metadata:
        """Return the current metadata of a table or view.

        In a lake in a folder its file is looked for, also if this process knows what is in it.

        Raises:
            NotFoundError: it does not exist (`NoSuchTableError` or `NoSuchViewError`).
            UnreadableError: its metadata file is missing.
        """
        held = self.pointer(slot)
        assert held.value.metadata is not None, held.value.name
        try:
            return self.core.metadata(held.value.metadata, looked_for=True)
        except NoMetadataFileError as e:
            raise UnreadableError(
                f"Failed to open input stream for file: {held.value.metadata}: the metadata file of "
                f"{slot.described} is missing; put it back, or give the name to an earlier file of its "
                "metadata folder by register",
                location=held.value.metadata,
            ) from e

    def current(self, held: Versioned[Pointer]) -> Metadata:
        """Return the metadata that a live pointer references."""
        assert held.value.metadata is not None, held.value.name
        return self.core.metadata(held.value.metadata)

    # -- creating

    def stage(self, slot: TableIdentifier, wanted: CreateTableRequest) -> TableMetadata:
        """Return the metadata that the table would have, with a newly assigned location. Nothing is stored.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            AlreadyExistsError: the name is in use.
            InvalidError: the request is not valid.
        """
        self.namespaces.load(slot.namespace)
        self.check_free(slot)
        meta = self._new(slot, wanted)
        dumped(meta)
        return meta

    def create(
        self, slot: TableIdentifier, wanted: CreateTableRequest, *, repeat: IdempotencyKey | None = None
    ) -> Metadata:
        """Create a table and return its metadata.

        Args:
            slot: the table's identifier.
            wanted: the create request.
            repeat: the request's idempotency key.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            AlreadyExistsError: the name is in use.
            InvalidError: the request is not valid.
            ConflictError: concurrent changes won every attempt.
            OutcomeUnknownError: the table may have been created.
        """

        def new() -> tuple[str, TableMetadata]:
            meta = self._new(slot, wanted)
            return meta["table-uuid"], meta

        return self.create_as(slot, new, repeat)

    def create_as(
        self,
        slot: TableIdentifier,
        new: Callable[[], tuple[str, TableMetadata | ViewMetadata]],
        repeat: IdempotencyKey | None,
    ) -> Metadata:
        """Create a table or view and return its metadata.

        Args:
            slot: its identifier.
            new: returns its UUID and its first metadata; called once the name is known to be free.
            repeat: the request's idempotency key.

        Raises:
            TarnError: as `create`; or what `new` raises.
        """
        self.namespaces.enter(slot.namespace)
        held = self.transactions.read_to_write(slot.key, Pointer.load)
        if held is not None:
            if self.core.repeated(held.value.memory, repeat):
                return self._again(slot, held)
            if held.value.live:
                raise taken(slot, held.value.kind)
        table_uuid, meta = new()
        return self._first(slot, held, table_uuid, meta, repeat)

    def _new(self, slot: TableIdentifier, wanted: CreateTableRequest) -> TableMetadata:
        table_uuid = wanted.table_uuid or self.core.new_uuid()
        location = self.core.roots.new_table(slot.namespace, slot.name, table_uuid, requested=wanted.location)
        meta = table_metadata.new_table(
            schema=wanted.schema,
            spec=wanted.spec,
            order=wanted.order,
            properties=wanted.properties,
            location=location,
            table_uuid=table_uuid,
            now_ms=self.core.now_ms(),
        )
        check_path_properties(meta["properties"], location)
        return meta

    def _again(self, slot: TableIdentifier, held: Versioned[Pointer]) -> Metadata:
        """Return the response of a request that was already carried out.

        Raises:
            NotFoundError: what it made is gone since; something of another kind may have the name.
        """
        return self.current(self.there(slot, held))

    def _first(
        self,
        slot: TableIdentifier,
        held: Versioned[Pointer] | None,
        table_uuid: str,
        meta: TableMetadata | ViewMetadata,
        repeat: IdempotencyKey | None,
        *,
        chosen: bool = False,
    ) -> Metadata:
        """Store the first metadata, then commit the pointer once the namespace is confirmed live.

        Args:
            slot: its identifier.
            held: its pointer, not live; None if there is none.
            table_uuid: its uuid.
            meta: its first metadata.
            repeat: the request's idempotency key.
            chosen: whether uuid and location come from a client.
        """
        if chosen:
            self.uuids.check_unused([Chosen(slot=slot, table_uuid=table_uuid, held=held)])
        stored = self.write_first(slot, table_uuid, meta, chosen=chosen)
        for _ in self.core.patience.attempts(CREATE_ATTEMPTS_MAX):

            def confirm(_: object, held: Versioned[Pointer] | None = held) -> None:
                self.confirm_new(slot, table_uuid)
                if chosen:
                    self.uuids.check_unused([Chosen(slot=slot, table_uuid=table_uuid, held=held)])

            done = self.transactions.run(
                [pointer_change(slot, held, placed(slot, table_uuid, stored.location))],
                repeat=repeat,
                confirm=confirm,
            )
            if done is not None:
                self.remember(done)
                return stored
            held = self.transactions.read_to_write(slot.key, Pointer.load)
            if held is not None and held.value.live:
                # Without a key, the same request is known by the uuid: its first metadata are the same too.
                same = chosen and held.value.uuid == table_uuid
                if same or self.core.repeated(held.value.memory, repeat):
                    return self._again(slot, held)
                raise taken(slot, held.value.kind)
        raise lost(f"the create of {slot.kind} {slot.text}", CREATE_ATTEMPTS_MAX)

    def write_first(
        self,
        slot: TableIdentifier,
        table_uuid: str,
        meta: TableMetadata | ViewMetadata,
        *,
        chosen: bool,
    ) -> Metadata:
        """Store the first metadata of a table or view; the arguments are those of `_first`.

        Raises:
            ConflictError: the location was used before.
        """
        if chosen:
            self.uuids.check_empty(slot, table_uuid, meta["location"])
        # The first file's name is fixed by the location, so only one writer can create it (I7).
        location = f"{meta['location']}/metadata/00000-{table_uuid}.metadata.json"
        try:
            return self.core.write_metadata(location, meta)
        except ConflictError as e:
            raise ConflictError(
                f"Cannot create {slot.text}: the location {meta['location']} was used before and locations "
                "are never reused; begin the create again",
                table=slot.text,
            ) from e

    def confirm_new(self, slot: TableIdentifier, table_uuid: str) -> None:
        """Require that a new table may get its name; called once its pointer carries the intent.

        Raises:
            NoSuchNamespaceError: the namespace was dropped.
            ConflictError: the table was registered under a name in the meantime.
        """
        self.namespaces.enter(slot.namespace)
        if self.core.register.read(claim_key(table_uuid)) is not None:
            raise ConflictError(
                f"Cannot create {slot.text}: the table {table_uuid} was registered meanwhile; begin the "
                "create again",
                table=slot.text,
            )

    # -- committing

    def commit(
        self,
        slot: TableIdentifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        *,
        repeat: IdempotencyKey | None = None,
    ) -> Metadata:
        """Apply updates if the requirements hold, and return the table's metadata afterwards.

        A conflicting write is retried here as long as the requirements hold on the new base too.

        Args:
            slot: the table's identifier.
            requirements: `TableRequirement` objects of the REST specification.
            updates: `TableUpdate` objects of the REST specification, in order.
            repeat: the request's idempotency key.

        Raises:
            NoSuchTableError: the table does not exist.
            ConflictError: a requirement does not hold, or concurrent commits won every attempt.
            InvalidError: an update cannot be applied.
            OutcomeUnknownError: the commit may have happened.
            UnavailableError: the commit did not happen.
        """
        if is_create(requirements):
            return self._commit_create(slot, requirements, updates, repeat)
        for number in self.core.patience.attempts(COMMIT_ATTEMPTS_MAX):
            # The pause between two attempts is outside: another writer of this process may win meanwhile.
            with self.core.turns.hold(slot.key):
                if number == 1:
                    done = self._on_known(slot, requirements, updates, repeat)
                    if done is not None:
                        return done
                held = self.transactions.read_to_write(slot.key, Pointer.load)
                moved = self.moved(slot, held, updates, repeat, meant=uuid_meant(requirements, updates))
                if moved is not None:
                    return moved
                if held is not None and not slot.means(held.value):
                    self.check_not_elsewhere(slot, held.value, requirements, updates, repeat)
                held = self.there(slot, held)
                done = self._attempt(slot, held, requirements, updates, repeat)
                if done is not None:
                    return done
        raise lost(f"the commit to {slot.text}", COMMIT_ATTEMPTS_MAX)

    def carried_out(
        self,
        slot: TableIdentifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        repeat: IdempotencyKey | None,
    ) -> bool:
        """Return whether a commit to a table was carried out before, also if the table was renamed since.

        Raises:
            OutcomeUnknownError: the idempotency key is old enough to have been forgotten, also if there is no
                such table: who may not know whether there is one does not learn it here. Or it was carried
                out, and that table was dropped, or another one has its name.
        """
        self.core.check_age(repeat)
        held = self.transactions.read(slot.key, Pointer.load)
        # Who may not commit there learns nothing but what the true snapshots show.
        if held is not None:
            self.check_not_elsewhere(slot, held.value, requirements, updates, repeat, thinned=False)
        try:
            if held is None or not slot.means(held.value):
                return self.moved(slot, held, updates, repeat, thinned=False) is not None
            remembered = self.core.repeated(held.value.memory, repeat)
        except KeyReusedError:
            return False
        return remembered or table_metadata.already_applied(updates, self.current(held).parsed)

    def moved(
        self,
        slot: TableIdentifier,
        held: Versioned[Pointer] | None,
        updates: Sequence[TableUpdate],
        repeat: IdempotencyKey | None,
        *,
        meant: str | None = None,
        thinned: bool = True,
    ) -> Metadata | None:
        """Return the table's metadata if this commit was carried out before the table was renamed; else None.

        Otherwise a client that lost the response would get "no such table", take its commit for rejected and
        delete files that the table references.

        Args:
            slot: the name.
            held: the pointer of the name.
            updates: as for `commit`.
            repeat: the request's idempotency key.
            meant: the uuid of the table that the commit is for, if the client says it.
            thinned: whether to look for it where the history was thinned, if it has no key.

        Raises:
            OutcomeUnknownError: it was carried out, and the table was dropped since: a later register brings
                it back with its files. Or its history was thinned, and that cannot be found out.
        """
        remembered = False
        for _ in range(MOVES_FOLLOWED_MAX):
            if held is None or held.value.live or slot.uuid not in (None, held.value.uuid):
                return None
            remembered = remembered or self.core.repeated(held.value.memory, repeat)
            if held.value.moved is None:
                break
            *levels, name = held.value.moved
            after = self.transactions.read(pointer_key(levels, name), Pointer.load)
            if after is None or after.value.uuid != held.value.uuid:
                break
            if after.value.live:
                if after.value.kind != slot.kind:
                    return None
                found = self.current(after)
                if remembered or table_metadata.already_applied(updates, found.parsed):
                    return found
                if not thinned or repeat is not None or meant not in (None, after.value.uuid):
                    return None
                return found if check_not_lost(self.core, slot, updates, found, slot.missing()) else None
            held = after
        if remembered and table_metadata.adds_snapshots(updates):
            raise OutcomeUnknownError(
                f"The commit to {slot.text} was carried out, and the {slot.kind} was dropped since; delete "
                "nothing: what was dropped can be registered again",
                table=slot.text,
            )
        return None

    def check_not_elsewhere(
        self,
        slot: TableIdentifier,
        found: Pointer,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        repeat: IdempotencyKey | None,
        *,
        thinned: bool = True,
    ) -> None:
        """Require that a commit was not carried out on a table that has another name now.

        Its claim knows the name. See `moved`, which does not find the table if something else got the former
        name, or if it was dropped and registered.

        Args:
            slot: the name.
            found: the pointer of the name.
            requirements: as for `commit`.
            updates: as for `commit`.
            repeat: the request's idempotency key.
            thinned: as for `moved`.

        Raises:
            OutcomeUnknownError: it was, or the history there was thinned and that cannot be found out.
        """
        meant = uuid_meant(requirements, updates)
        if meant is None or not table_metadata.adds_snapshots(updates):
            return
        if found.live and found.uuid == meant:
            return
        claim = self.transactions.read(claim_key(meant), Claim.load)
        if claim is None or claim.value.holder is None:
            return
        held = self.transactions.read(claim.value.holder, Pointer.load)
        if held is None or not replace(slot, uuid=meant).means(held.value):
            return
        current = self.current(held)
        done = table_metadata.already_applied(updates, current.parsed)
        # The pointer of the name has the keys of its time.
        if not done and thinned and repeat is None:
            done = check_not_lost(self.core, slot, updates, current, slot.missing())
        if done:
            raise OutcomeUnknownError(
                f"The commit to {slot.text} was carried out, and the {slot.kind} has another name now; look "
                "for your rows there, and delete nothing",
                table=slot.text,
            )

    def _on_known(
        self,
        slot: TableIdentifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        repeat: IdempotencyKey | None,
    ) -> Metadata | None:
        """Return the metadata after a commit on the cached pointer; None if that is not known to be current.

        A cached pointer may be stale. A successful swap proves that it was current; any other result, an
        error or "nothing to do", is decided on the stored pointer instead.
        """
        held = self.core.known(slot.key)
        if held is None or not slot.means(held.value) or held.value.intent is not None:
            return None
        try:
            return self._attempt(slot, held, requirements, updates, repeat, must_swap=True)
        except OutcomeUnknownError:
            raise
        except TarnError:
            return None

    def _attempt(
        self,
        slot: TableIdentifier,
        held: Versioned[Pointer],
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        repeat: IdempotencyKey | None,
        *,
        must_swap: bool = False,
    ) -> Metadata | None:
        """Return the metadata after the commit; None if another writer won, or if `must_swap` was not met.

        Args:
            slot: the table's identifier.
            held: the pointer to build on.
            requirements: as for `commit`.
            updates: as for `commit`.
            repeat: the request's idempotency key.
            must_swap: accept only a successful swap, because `held` comes from the cache.
        """
        if self.core.repeated(held.value.memory, repeat):
            return None if must_swap else self.current(held)
        base = self.current(held)
        if table_metadata.already_applied(updates, base.parsed):
            return None if must_swap else base
        now_ms = self.core.now_ms()
        try:
            table_metadata.check_requirements(requirements, base.parsed)
            meta = table_metadata.commit(base.parsed, updates, now_ms=now_ms, previous_location=base.location)
        except ConflictError as e:
            if not must_swap:
                self.check_not_elsewhere(slot, held.value, requirements, updates, repeat)
                here = uuid_meant(requirements, updates) in (None, held.value.uuid)
                if here and repeat is None and check_not_lost(self.core, slot, updates, base, e):
                    return base
            raise
        if meta is None:
            if repeat is None:
                return None if must_swap else base
            stored = base
        else:
            check_locations(meta, base.parsed)
            stored = self.core.write_metadata(self.next_location(base.location, meta), meta)
        wanted = replace(held.value, metadata=stored.location).next(self.core.stamp(repeat))
        written, outcome = self.core.write(slot.key, wanted, over=held)
        if written is None:
            self.core.cache.drop(slot.key)
        else:
            self.remember({slot.key: written})
        look = "load the table and look for your snapshot, and delete nothing"
        return stored if happened(outcome, f"the commit to {slot.text}", look=look) else None

    def remember(self, done: Mapping[str, Versioned[Pointer]]) -> None:
        """Cache pointers that were just written, for the next commit."""
        for key, held in done.items():
            self.core.remember(key, held, POINTER_BYTES)

    def next_location(self, location: str, meta: TableMetadata | None = None) -> str:
        """Return an unused location for the metadata file after the one at `location`.

        Args:
            location: of the current metadata file.
            meta: what the next one will hold; without it, that will be compressed if the current one is.

        Raises:
            InvalidError: the metadata asks for a compression that does not exist.
        """
        folder, name = location.rsplit("/", 1)
        # A registered file may have another name pattern; the uuid makes the next name unique anyway.
        number = name.split("-", 1)[0]
        version = int(number) + 1 if number.isascii() and number.isdigit() else 1
        if meta is None:
            gzipped = name.endswith(GZIP_SUFFIX)
        else:
            gzipped = table_metadata.is_gzipped(meta["properties"])
        return f"{folder}/{version:05}-{self.core.new_uuid()}{GZIP_SUFFIX if gzipped else '.metadata.json'}"

    def _commit_create(
        self,
        slot: TableIdentifier,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        repeat: IdempotencyKey | None,
    ) -> Metadata:
        """Complete a staged create and return the table's metadata."""
        table_uuid = str(last_of(updates, "assign-uuid", "uuid")).lower()
        held = self.transactions.read_to_write(slot.key, Pointer.load)
        # First: the namespace may be gone since the table was renamed into another one.
        done = self._created(slot, held, table_uuid, requirements, updates, repeat)
        if done is not None:
            return done
        self.namespaces.enter(slot.namespace)
        meta = staged(requirements, updates, roots=self.core.roots, now_ms=self.core.now_ms())
        try:
            return self._first(slot, held, table_uuid, meta, repeat, chosen=True)
        except (AlreadyExistsError, ConflictError) as e:
            # The same request, sent before, may have gone on meanwhile.
            held = self.transactions.read_to_write(slot.key, Pointer.load)
            done = self._created(slot, held, table_uuid, requirements, updates, repeat)
            if done is not None:
                return done
            if isinstance(e, AlreadyExistsError):
                raise created_meanwhile(slot) from e
            raise

    def _created(
        self,
        slot: TableIdentifier,
        held: Versioned[Pointer] | None,
        table_uuid: str,
        requirements: Sequence[TableRequirement],
        updates: Sequence[TableUpdate],
        repeat: IdempotencyKey | None,
    ) -> Metadata | None:
        """Return what a staged create has made before, None if it has not.

        Raises:
            AlreadyExistsError: it has not, and the name is in use.
            NotFoundError: what it made is gone since.
            OutcomeUnknownError: it has made a table that has another name, or was dropped since.
        """
        moved = self.moved(slot, held, updates, repeat, meant=table_uuid)
        if moved is not None or held is None:
            return moved
        if self.core.repeated(held.value.memory, repeat):
            return self._again(slot, held)
        self.check_not_elsewhere(slot, held.value, requirements, updates, repeat)
        if not held.value.live:
            return None
        if held.value.kind != slot.kind:
            raise taken(slot, held.value.kind)
        current = self.current(held)
        if held.value.uuid == table_uuid and (
            not table_metadata.adds_snapshots(updates)
            or table_metadata.already_applied(updates, current.parsed)
        ):
            return current
        refused = created_meanwhile(slot)
        same = held.value.uuid == table_uuid and repeat is None
        if same and check_not_lost(self.core, slot, updates, current, refused):
            return current
        raise refused

    # -- owners

    def change_owner(self, slot: TableIdentifier, owner: str) -> None:
        """Make the principal with this client id the owner of a table or view; nothing else changes.

        Raises:
            NotFoundError: it does not exist (`NoSuchTableError` or `NoSuchViewError`).
            ConflictError: concurrent commits won every attempt.
            OutcomeUnknownError: the owner may have been changed.
        """

        def changed(held: Versioned[Pointer] | None) -> Pointer | None:
            found = self.there(slot, held).value
            return None if found.owner == owner else replace(found, owner=owner)

        try:
            self.core.update(
                slot.key,
                lambda: self.transactions.read_to_write(slot.key, Pointer.load),
                changed,
                what=f"the change of owner of {slot.kind} {slot.text}",
                attempts_max=COMMIT_ATTEMPTS_MAX,
            )
        finally:
            self.core.cache.drop(slot.key)

    # -- dropping

    def drop(self, slot: TableIdentifier, *, repeat: IdempotencyKey | None = None) -> None:
        """Replace the pointer of a table or view with a tombstone. Its files stay (invariant I7).

        Raises:
            NotFoundError: it does not exist (`NoSuchTableError` or `NoSuchViewError`).
            ConflictError: concurrent commits won every attempt.
            OutcomeUnknownError: it may have been dropped.
        """
        try:
            self.core.update(
                slot.key,
                lambda: self.transactions.read_to_write(slot.key, Pointer.load),
                lambda held: self.there(slot, held).value.dropped(),
                what=f"the drop of {slot.kind} {slot.text}",
                attempts_max=COMMIT_ATTEMPTS_MAX,
                repeat=repeat,
            )
        finally:
            self.core.cache.drop(slot.key)
