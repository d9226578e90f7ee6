"""Metadata in the course of one commit, and how fields of an update are read. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tarn.core.errors import InvalidError
from tarn_catalog.metadata.schemas import FORMAT_VERSION_MAX, Json


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBuilder:
    """Metadata in the course of one commit.

    Attributes:
        meta: as it is now; the very object `base` as long as nothing has changed.
        base: as it was.
        now_ms: the time of the commit.
        updated_ms: the time that an added snapshot gives the commit.
        last_schema: the schema id that -1 means.
        last_spec: the spec id that -1 means.
        last_order: the sort order id that -1 means.
        added: ids of snapshots that this commit added.
        was_main: ids that this commit made the current snapshot, in order.
        removed: whether this commit removed snapshots.
    """

    meta: Json
    base: Json
    now_ms: int
    updated_ms: int | None = None
    last_schema: int | None = None
    last_spec: int | None = None
    last_order: int | None = None
    added: tuple[int, ...] = ()
    was_main: tuple[int, ...] = ()
    removed: bool = False

    def set(self, **values: Any) -> MetadataBuilder:
        """With these fields of the metadata (underscores for hyphens)."""
        return replace(self, meta={**self.meta, **{k.replace("_", "-"): v for k, v in values.items()}})


def check_format_version(value: Any) -> int:
    """The format version as a number.

    Raises:
        InvalidError: it is none that the catalog knows.
    """
    try:
        version = int(value)
    except (TypeError, ValueError):
        version = 0
    if not 1 <= version <= FORMAT_VERSION_MAX:
        raise InvalidError(f"Unsupported format version: v{value} (supported: v1 to v{FORMAT_VERSION_MAX})")
    return version


def get(update: Json, name: str, kind: type) -> Any:
    """A field of an update (no kind of field is a bool).

    Raises:
        InvalidError: it is missing or of another kind.
    """
    value = update.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        what = update.get("action", "update")
        raise InvalidError(f"Cannot parse {what}: field {name} is missing or no {kind.__name__}")
    return value


def numbers(update: Json, name: str) -> set[int]:
    """A field of an update that is a list of ids.

    Raises:
        InvalidError: it is not.
    """
    found = get(update, name, list)
    if not all(type(number) is int for number in found):
        raise InvalidError(f"Cannot parse {update.get('action')}: {name} holds something that is no number")
    return set(found)
