"""The state of table metadata during one commit, and typed access to the fields of an update. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from tarn.core.errors import InvalidError
from tarn_catalog.metadata.schemas import FORMAT_VERSION_MAX, Json
from tarn_catalog.metadata.types import TableMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBuilder:
    """Immutable table metadata under construction; each update returns a new builder.

    Attributes:
        meta: the current metadata; the same object as `base` while nothing has changed.
        base: the metadata before the commit.
        now_ms: the time of the commit, milliseconds since the epoch.
        updated_ms: the commit time taken from an added snapshot, milliseconds since the epoch.
        last_schema: the schema id that -1 refers to.
        last_spec: the partition spec id that -1 refers to.
        last_order: the sort order id that -1 refers to.
        added: ids of the snapshots that this commit added.
        was_main: ids that this commit made the current snapshot, in order.
        removed: whether this commit removed snapshots.
        schema_ids: the schema ids by `schema_key`, and the highest; None if not yet known. The builders of a
            commit follow each other and share the ids, to which each schema is added.
    """

    meta: TableMetadata
    base: TableMetadata
    now_ms: int
    updated_ms: int | None = None
    last_schema: int | None = None
    last_spec: int | None = None
    last_order: int | None = None
    added: tuple[int, ...] = ()
    was_main: tuple[int, ...] = ()
    removed: bool = False
    schema_ids: tuple[dict[bytes, int], int] | None = None

    def set(self, **values: Any) -> MetadataBuilder:
        """Return a builder with these metadata fields set (underscores in names stand for hyphens)."""
        return replace(self, meta=merged(self.meta, {k.replace("_", "-"): v for k, v in values.items()}))


def merged(meta: TableMetadata, values: Mapping[str, Any]) -> TableMetadata:
    """Return the metadata with these fields set."""
    return cast("TableMetadata", {**meta, **values})


_NEEDED: tuple[tuple[Literal["schemas", "partition-specs", "sort-orders"], str], ...] = (
    ("schemas", "schema"),
    ("partition-specs", "partition spec"),
    ("sort-orders", "sort order"),
)


def missing_part(meta: TableMetadata) -> str | None:
    """Return what a table must have but this one lacks: a schema, a partition spec or a sort order."""
    return next((what for name, what in _NEEDED if not meta[name]), None)


def check_format_version(value: Any) -> int:
    """Return the format version as an integer.

    Raises:
        InvalidError: the value is not a supported version.
    """
    try:
        version = int(value)
    except (TypeError, ValueError):
        version = 0
    if not 1 <= version <= FORMAT_VERSION_MAX:
        raise InvalidError(f"Unsupported format version: v{value} (supported: v1 to v{FORMAT_VERSION_MAX})")
    return version


def get(update: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return a field of an update, checked to be of type `kind`; a bool never passes.

    Args:
        update: JSON of the update.
        name: the field's name.
        kind: the required Python type.

    Raises:
        InvalidError: the field is missing or of another type.
    """
    value = update.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        what = update.get("action", "update")
        raise InvalidError(f"Cannot parse {what}: field {name} is missing or no {kind.__name__}")
    return value


def integer(update: Mapping[str, Any], name: str, *, bits: int = 64) -> int:
    """Return a field of an update that is an integer of at most so many bits.

    Raises:
        InvalidError: the field is missing or no such integer; readers could not parse the table.
    """
    value: int = get(update, name, int)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        what = update.get("action", "update")
        raise InvalidError(f"Cannot parse {what}: field {name} is {value}; give an integer of {bits} bits")
    return value


def without_nulls(part: Json) -> Json:
    """Return a part of an update without its fields that are null: readers refuse many, and all may lack."""
    return {name: value for name, value in part.items() if value is not None}


def numbers(update: Mapping[str, Any], name: str) -> set[int]:
    """Return a field of an update that is a list of ids, as a set.

    Raises:
        InvalidError: the field is missing or not a list of integers.
    """
    found = get(update, name, list)
    if not all(type(number) is int for number in found):
        raise InvalidError(f"Cannot parse {update.get('action')}: {name} holds something that is no number")
    return set(found)
