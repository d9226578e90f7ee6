"""Where a view lies: in a folder of its own, which is in the folder that its properties may name. Pure.

Metadata is all that a view consists of. So `write.metadata.path` asks for what the location asks for, the
folder that the view gets its own in, and a view has one place for all its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tarn.core.errors import InvalidLocationError
from tarn.core.naming import check_path_properties

METADATA_PATH = "write.metadata.path"


def where_asked(
    properties: Mapping[str, str], location: str, *, before: str | None, placed: Callable[[str], str]
) -> str:
    """Return the location of a view with these properties.

    The property goes before a requested location, as in Iceberg's Java library. A path within where the view
    lies asks for nothing.

    Args:
        properties: the properties of the view.
        location: where it would lie without them.
        before: where it lies so far; None for a new one.
        placed: returns its location in a requested folder.

    Raises:
        InvalidLocationError: the folder is outside the warehouse or inside the location of a table or view.
    """
    asked = properties.get(METADATA_PATH)
    if asked is None:
        return location
    if before is not None and _is_within(asked, before):
        return location
    if before is not None and asked.rstrip("/") == _folder(before):
        return before  # also after a rename, which leaves the view's folder its name
    try:
        return placed(asked)
    except InvalidLocationError as e:
        raise InvalidLocationError(f"Invalid {METADATA_PATH}: {e.message}", **e.fields) from e


def check_paths(properties: Mapping[str, str], location: str) -> None:
    """Require that every path property is within the location, or asks for the folder that it is in.

    Raises:
        InvalidLocationError: a property points elsewhere.
    """
    kept = dict(properties)
    if kept.get(METADATA_PATH, "").rstrip("/") == _folder(location):
        del kept[METADATA_PATH]
    check_path_properties(kept, location)


def _is_within(path: str, location: str) -> bool:
    return f"{path}/".startswith(f"{location}/")


def _folder(location: str) -> str:
    """Return the folder that a view's own folder is in."""
    return location.rpartition("/")[0]
