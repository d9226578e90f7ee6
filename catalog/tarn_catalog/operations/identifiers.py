"""Places for tables, what a client asks for, and what is checked about both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tarn.core.errors import (
    AlreadyExistsError,
    InvalidError,
    InvalidLocationError,
    NoSuchTableError,
)
from tarn.core.naming import WarehouseLayout, check_path_properties, pointer_key
from tarn_catalog.metadata import table_metadata
from tarn_catalog.metadata.builder import check_format_version
from tarn_catalog.metadata.schemas import Json
from tarn_catalog.operations.namespaces import Levels
from tarn_catalog.state.pointer import Pointer, PointerState


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentifier:
    """A place for a table: its name and the key of its pointer.

    Attributes:
        namespace: where it lives.
        name: its name.
        key: of its pointer.
    """

    namespace: Levels
    name: str
    key: str

    @staticmethod
    def of(namespace: Levels, name: str) -> TableIdentifier:
        """The place of a table of a user.

        Raises:
            InvalidNameError: a name is not allowed.
        """
        return TableIdentifier(namespace=namespace, name=name, key=pointer_key(namespace, name))

    @property
    def text(self) -> str:
        """For messages."""
        return ".".join((*self.namespace, self.name))

    def missing(self) -> NoSuchTableError:
        """The error if there is no table."""
        return NoSuchTableError(f"Table does not exist: {self.text}", table=self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTableRequest:
    """What a client asks for when it creates a table.

    Attributes:
        schema: JSON.
        spec: JSON of the partition spec.
        order: JSON of the sort order.
        properties: of the table.
        location: a folder it should lie in; the catalog appends a name that ends in the uuid.
    """

    schema: Json
    spec: Json | None = None
    order: Json | None = None
    properties: Mapping[str, str]
    location: str | None = None


def taken(slot: TableIdentifier) -> AlreadyExistsError:
    """The error if there is a table."""
    return AlreadyExistsError(f"Table already exists: {slot.text}", table=slot.text)


def created_meanwhile(slot: TableIdentifier) -> AlreadyExistsError:
    """The error if there is a table at the end of a staged create; clients look for these words."""
    return AlreadyExistsError(f"Requirement failed: table already exists: {slot.text}", table=slot.text)


def blank(slot: TableIdentifier, nonce: str) -> Pointer:
    """What the first value of a name is built on."""
    return Pointer(
        state=PointerState.DROPPED,
        namespace=slot.namespace,
        name=slot.name,
        uuid="",
        version=0,
        metadata=None,
        nonce=nonce,
    )


def placed(table_uuid: str, location: str) -> Json:
    """The fields of a pointer, once the table has this name."""
    return {"state": PointerState.LIVE.value, "table-uuid": table_uuid, "metadata-location": location}


def gone(table_uuid: str, moved: TableIdentifier | None = None) -> Json:
    """The fields of a pointer, once the table has this name no more."""
    return {
        "state": PointerState.DROPPED.value,
        "table-uuid": table_uuid,
        "metadata-location": None,
        "moved": [*moved.namespace, moved.name] if moved else None,
    }


def check_locations(meta: Json, base: Json) -> None:
    """Nothing, if a commit leaves the table and its files where they are.

    Raises:
        InvalidLocationError: it moves them.
    """
    if meta["location"] != base["location"]:
        raise InvalidLocationError(
            f"Invalid location {meta['location']}: the table lies at {base['location']} and stays there; "
            "make a new table and copy the rows",
            location=meta["location"],
        )
    if meta["properties"] is not base["properties"]:
        check_path_properties(meta["properties"], meta["location"])


def is_create(requirements: Sequence[Json]) -> bool:
    """Whether a commit ends a staged create."""
    return any(requirement.get("type") == "assert-create" for requirement in requirements)


def staged(
    requirements: Sequence[Json], updates: Sequence[Json], *, roots: WarehouseLayout, now_ms: int
) -> Json:
    """The first metadata of a table whose create was staged.

    Raises:
        InvalidError: an update is missing or cannot be applied.
        InvalidLocationError: the location is not the one that was handed out.
        ConflictError: a requirement asks for a table.
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
    return meta


def last_of(updates: Sequence[Json], action: str, field: str) -> object:
    """The text that the last update of this kind gives.

    Raises:
        InvalidError: there is none.
    """
    values = [update.get(field) for update in updates if update.get("action") == action]
    if not values or not isinstance(values[-1], str):
        raise InvalidError(
            f"Cannot create a table without the update {action}: stage the create and send back what it "
            "answers"
        )
    return values[-1]
