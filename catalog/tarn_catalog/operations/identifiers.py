"""Identifiers of tables and views, create requests and their validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tarn.core.errors import (
    AlreadyExistsError,
    InvalidError,
    InvalidLocationError,
    NoSuchTableError,
    NoSuchViewError,
)
from tarn.core.naming import WarehouseLayout, check_path_properties, pointer_key
from tarn_catalog.metadata import table_metadata
from tarn_catalog.metadata.builder import check_format_version
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.metadata.snapshots import STATISTICS
from tarn_catalog.metadata.types import TableMetadata, TableRequirement, TableUpdate
from tarn_catalog.metadata.validate_file import plain
from tarn_catalog.operations.namespaces import Levels
from tarn_catalog.state.context import Versioned
from tarn_catalog.state.pointer import TABLE, VIEW, Pointer, PointerState
from tarn_catalog.state.transactions import ParticipantChange


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentifier:
    """The identifier of a table or view (REST specification: `TableIdentifier`) and the key of its pointer.

    Attributes:
        namespace: the levels of its namespace.
        name: its name.
        key: the pointer's key in the store; tables and views share their names.
        kind: `table` or `view`: what the request expects there.
        uuid: the only table or view that the request may mean, because its rights were checked; None for any.
        owner: the client id of the principal that owns what the request creates there; None for nobody.
    """

    namespace: Levels
    name: str
    key: str
    kind: str = TABLE
    uuid: str | None = None
    owner: str | None = None

    @staticmethod
    def of(namespace: Levels, name: str, kind: str = TABLE) -> TableIdentifier:
        """Return the identifier of a user's table or view.

        Raises:
            InvalidNameError: a name is not allowed.
        """
        return TableIdentifier(namespace=namespace, name=name, key=pointer_key(namespace, name), kind=kind)

    @property
    def text(self) -> str:
        """The dotted name, for messages."""
        return ".".join((*self.namespace, self.name))

    @property
    def described(self) -> str:
        """The kind and the dotted name, for messages."""
        return f"{self.kind} {self.text}"

    def means(self, pointer: Pointer) -> bool:
        """Return whether a pointer is that of a live table or view as the identifier says."""
        return pointer.live and pointer.kind == self.kind and self.uuid in (None, pointer.uuid)

    def missing(self) -> NoSuchTableError | NoSuchViewError:
        """Return the error for a table or view that does not exist."""
        if self.kind == VIEW:
            return NoSuchViewError(f"View does not exist: {self.text}", view=self.text)
        return NoSuchTableError(f"Table does not exist: {self.text}", table=self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTableRequest:
    """The content of a create-table request (REST specification: `CreateTableRequest`).

    Attributes:
        schema: JSON of the schema.
        spec: JSON of the partition spec; None for unpartitioned.
        order: JSON of the sort order; None for unsorted.
        properties: table properties.
        location: the requested parent folder; the catalog appends a name that ends in the table's uuid.
        table_uuid: the uuid to use; None for a new one. Never a client's.
    """

    schema: Json
    spec: Json | None = None
    order: Json | None = None
    properties: Mapping[str, str]
    location: str | None = None
    table_uuid: str | None = None


def taken(slot: TableIdentifier, by: str) -> AlreadyExistsError:
    """Return the error for a name that is in use; clients match on its text.

    Args:
        slot: the identifier.
        by: the kind of what has the name.
    """
    same = "" if by == slot.kind else "with same name "
    return AlreadyExistsError(f"{by.title()} {same}already exists: {slot.text}", **{by: slot.text})


def created_meanwhile(slot: TableIdentifier) -> AlreadyExistsError:
    """Return the error for a create transaction whose table exists; clients match on its text."""
    return AlreadyExistsError(f"Requirement failed: table already exists: {slot.text}", table=slot.text)


def pointer_change(slot: TableIdentifier, held: Versioned[Pointer] | None, then: Json) -> ParticipantChange:
    """Return the part of a table or view in a transaction.

    Args:
        slot: its identifier.
        held: its pointer, without an intent; None if there is none.
        then: the fields of the pointer after the commit: `placed` or `gone`.
    """
    blank = Pointer.blank(slot.namespace, slot.name)
    return ParticipantChange(key=slot.key, held=held, blank=blank, then=then)


def placed(slot: TableIdentifier, table_uuid: str, location: str) -> Json:
    """Return the fields of a live pointer, as an intent's `then`; a table's does not name its kind.

    Without an owner, a table or view that has the name already keeps its own.
    """
    fields = {"state": PointerState.LIVE.value, "table-uuid": table_uuid, "metadata-location": location}
    if slot.owner is not None:
        fields["owner"] = slot.owner
    return fields if slot.kind == TABLE else {"kind": slot.kind, **fields}


def gone(table_uuid: str, moved: TableIdentifier | None = None) -> Json:
    """Return the tombstone fields of a pointer, as an intent's `then`; `moved` is the target of a rename."""
    return {
        "state": PointerState.DROPPED.value,
        "table-uuid": table_uuid,
        "metadata-location": None,
        "moved": [*moved.namespace, moved.name] if moved else None,
    }


def check_locations(meta: TableMetadata, base: TableMetadata) -> None:
    """Require that a commit does not move the table or its files, and adds none from elsewhere.

    Raises:
        InvalidLocationError: the location or a path property changes, or statistics lie outside of it.
    """
    if meta["location"] != base["location"]:
        raise InvalidLocationError(
            f"Invalid location {meta['location']}: the table lies at {base['location']} and stays there; "
            "make a new table and copy the rows",
            location=meta["location"],
        )
    if meta["properties"] is not base["properties"]:
        check_path_properties(meta["properties"], meta["location"])
    _check_statistics(meta, base)


def _check_statistics(meta: TableMetadata, base: TableMetadata | None) -> None:
    """Require that files of statistics which a commit adds lie under the table's own location.

    Engines write them there. The reaper deletes no others, and vended credentials open none. What the table
    has elsewhere, from another catalog or a former release, stays.

    Raises:
        InvalidLocationError: one lies elsewhere.
    """
    folder = f"{plain(meta['location'])}/"
    for name in STATISTICS:
        before = base.get(name) if base is not None else None
        known = {file.get("statistics-path") or "" for file in before or []}
        for file in meta.get(name) or []:
            path: str = file.get("statistics-path") or ""
            if path not in known and not plain(path).startswith(folder):
                raise InvalidLocationError(
                    f"Invalid statistics-path {path[:300]}: files of a table lie under its own location "
                    f"{meta['location']}; write the file there",
                    location=path[:300],
                )


def is_create(requirements: Sequence[TableRequirement]) -> bool:
    """Return whether a commit completes a staged create (it requires `AssertCreate`)."""
    return any(requirement.get("type") == "assert-create" for requirement in requirements)


def uuid_meant(requirements: Sequence[TableRequirement], updates: Sequence[TableUpdate]) -> str | None:
    """Return the uuid of the table that a client says it commits to or creates; None if it says none."""
    parts: Sequence[Mapping[str, Any]] = updates if is_create(requirements) else requirements
    name, kind = ("action", "assign-uuid") if is_create(requirements) else ("type", "assert-table-uuid")
    said = [part.get("uuid") for part in parts if part.get(name) == kind]
    try:
        return str(UUID(said[-1])) if said and isinstance(said[-1], str) else None
    except ValueError:
        return None


def staged(
    requirements: Sequence[TableRequirement],
    updates: Sequence[TableUpdate],
    *,
    roots: WarehouseLayout,
    now_ms: int,
) -> TableMetadata:
    """Return the first metadata of a table whose create was staged.

    Args:
        requirements: `TableRequirement` objects of the REST specification.
        updates: `TableUpdate` objects of the REST specification, in order.
        roots: the mapping between keys and locations.
        now_ms: milliseconds since the epoch.

    Raises:
        InvalidError: an update is missing or cannot be applied.
        InvalidLocationError: the location is not the one that staging assigned.
        ConflictError: a requirement needs an existing table.
    """
    table_uuid = str(last_of(updates, "assign-uuid", "uuid")).lower()
    roots.check_table(str(last_of(updates, "set-location", "location")).rstrip("/"), table_uuid)
    table_metadata.check_requirements(requirements, None)
    versions = [u.get("format-version") for u in updates if u.get("action") == "upgrade-format-version"]
    version = check_format_version(versions[0] if versions else table_metadata.FORMAT_VERSION_DEFAULT)
    meta = table_metadata.commit(
        table_metadata.empty(table_uuid=table_uuid, format_version=version),
        updates,
        now_ms=now_ms,
        previous_location=None,
    )
    assert meta is not None, table_uuid
    check_path_properties(meta["properties"], meta["location"])
    _check_statistics(meta, None)
    return meta


def last_of(updates: Sequence[TableUpdate], action: str, field: str) -> object:
    """Return the string in a field of the last update with an action.

    Args:
        updates: `TableUpdate` objects of the REST specification, in order.
        action: the action to look for.
        field: the field's name.

    Raises:
        InvalidError: there is no such update, or the value is not a string.
    """
    values = [update.get(field) for update in updates if update.get("action") == action]
    if not values or not isinstance(values[-1], str):
        raise InvalidError(
            f"Cannot create a table without the update {action}: stage the create and send back what it "
            "answers"
        )
    return values[-1]
