"""Create, load and replace views. A view shares its namespace's names, pointer protocol and drop with tables.

Its state is a pointer of the kind `view` and an immutable metadata file per change, as a table's (I2); a
commit is one conditional write of the pointer. Rename, register and drop are those of `Names` and `Tables`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import orjson

from tarn_catalog.metadata import view_metadata
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.metadata.types import TableMetadata, ViewMetadata
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.tables import COMMIT_ATTEMPTS_MAX, Tables
from tarn_catalog.state.context import IdempotencyKey, Metadata, lost
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.register import happened

RUN_AS = "trino.run-as-owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateViewRequest:
    """The content of a create-view request (REST specification: `CreateViewRequest`).

    Attributes:
        schema: JSON of the schema of its result.
        version: JSON of its first version.
        properties: its properties.
        location: the requested parent folder; the catalog appends a name that ends in the view's uuid.
    """

    schema: Json
    version: Json
    properties: Mapping[str, str]
    location: str | None = None


class Views:
    """Operations on views that tables do not have."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._core = tables.core

    def create(
        self, slot: TableIdentifier, wanted: CreateViewRequest, *, repeat: IdempotencyKey | None = None
    ) -> Metadata:
        """Create a view and return its metadata.

        Args:
            slot: the view's identifier.
            wanted: the create request.
            repeat: the request's idempotency key.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            AlreadyExistsError: a table or view has the name.
            InvalidError: the request is not valid.
            ConflictError: concurrent changes won every attempt.
            OutcomeUnknownError: the view may have been created.
        """

        def new() -> tuple[str, ViewMetadata]:
            view_uuid = self._core.new_uuid()
            placed = partial(self._placed, slot, view_uuid)
            return view_uuid, view_metadata.new_view(
                schema=wanted.schema,
                version=wanted.version,
                properties=wanted.properties,
                location=placed(wanted.location),
                view_uuid=view_uuid,
                now_ms=self._core.now_ms(),
                placed=placed,
            )

        return self._tables.create_as(slot, new, repeat)

    def _placed(self, slot: TableIdentifier, view_uuid: str, requested: str | None) -> str:
        """Return the location of a view in a requested folder, or in its namespace's."""
        return self._core.roots.new_table(slot.namespace, slot.name, view_uuid, requested=requested)

    def commit(
        self,
        slot: TableIdentifier,
        requirements: Sequence[Json],
        updates: Sequence[Json],
        *,
        repeat: IdempotencyKey | None = None,
    ) -> Metadata:
        """Apply updates if the requirements hold, and return the view's metadata afterwards.

        A conflicting write is retried here as long as the requirements hold on the new base too.

        Args:
            slot: the view's identifier.
            requirements: `ViewRequirement` objects of the REST specification.
            updates: `ViewUpdate` objects of the REST specification, in order.
            repeat: the request's idempotency key.

        Raises:
            NoSuchViewError: the view does not exist.
            ConflictError: a requirement does not hold, or concurrent commits won every attempt.
            InvalidError: an update cannot be applied.
            OutcomeUnknownError: the commit may have happened.
            UnavailableError: the commit did not happen.
        """
        for _ in self._core.patience.attempts(COMMIT_ATTEMPTS_MAX):
            with self._core.turns.hold(slot.key):
                found = self._tables.transactions.read_to_write(slot.key, Pointer.load)
                moved = self._tables.moved(slot, found, (), repeat)
                if moved is not None:
                    return moved
                held = self._tables.there(slot, found)
                base = self._tables.current(held)
                if self._core.repeated(held.value.memory, repeat):
                    return base
                before = parsed(base)
                view_metadata.check_requirements(requirements, before)
                meta = view_metadata.commit(
                    before,
                    updates,
                    now_ms=self._core.now_ms(),
                    placed=partial(self._placed, slot, before["view-uuid"]),
                )
                if meta is None and repeat is None:
                    return base
                # A request with a key is remembered even if it changes nothing.
                meta = meta or before
                name = self._tables.next_location(base.location).rpartition("/")[2]
                stored = self._core.write_metadata(f"{meta['location']}/metadata/{name}", meta)
                wanted = replace(held.value, metadata=stored.location).next(self._core.stamp(repeat))
                written, outcome = self._core.write(slot.key, wanted, over=held)
                if written is None:
                    self._core.cache.drop(slot.key)
                else:
                    self._tables.remember({slot.key: written})
                if happened(outcome, f"the change of view {slot.text}", look="load the view and look"):
                    return stored
        raise lost(f"the change of view {slot.text}", COMMIT_ATTEMPTS_MAX)


def answered(found: Metadata) -> Metadata:
    """Return a view as it is answered: without the user that Trino would ask as: it asks as the reader.

    `CREATE VIEW` in Trino stores its user in `trino.run-as-owner`, unless it says SECURITY INVOKER. Nobody
    has proven to be that user when another one reads the view, and who may change the view could name any.
    """
    properties = found.parsed.get("properties") or {}
    if RUN_AS not in properties:
        return found
    kept = {name: value for name, value in properties.items() if name != RUN_AS}
    seen = cast("TableMetadata", {**found.parsed, "properties": kept})
    return replace(found, raw=orjson.dumps(seen), parsed=seen)


def parsed(found: Metadata) -> ViewMetadata:
    """Return the metadata of a view as parsed; the context has one type for both kinds.

    The specification makes `properties` optional: a registered file may lack them.
    """
    meta = cast("ViewMetadata", found.parsed)
    return meta if meta.get("properties") else {**meta, "properties": {}}
