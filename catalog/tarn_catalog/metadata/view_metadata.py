"""View metadata as parsed JSON: new views, commit requirements, applying a commit. Pure.

Follows the Iceberg view specification (https://iceberg.apache.org/view-spec/), sections "View Metadata",
"Versions", "Representations" and "Version log", and the REST specification (`CreateViewRequest`,
`CommitViewRequest`, `ViewUpdate`, `ViewRequirement`). Metadata is never changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

from tarn.core import metadata_json
from tarn.core.errors import ConflictError, InvalidError, InvalidLocationError
from tarn.core.naming import WarehouseLayout
from tarn_catalog.metadata.builder import get
from tarn_catalog.metadata.field_types import INT_MAX, LONG_MAX
from tarn_catalog.metadata.schemas import FORMAT_VERSION_MAX, Json, check_schema, same_schema, stored_schema
from tarn_catalog.metadata.types import ViewMetadata, ViewVersion
from tarn_catalog.metadata.view_location import check_paths, where_asked

FORMAT_VERSION = 1
LAST_ADDED = -1
ID_MAX = INT_MAX  # Java's int
TIME_MAX = LONG_MAX
UPDATES_MAX = 1_000  # each goes through the versions, schemas or properties of the view
VERSIONS_KEPT = "version.history.num-entries"
VERSIONS_KEPT_DEFAULT = 10
DIALECTS_MAY_GO = "replace.drop-dialect.allowed"
REPRESENTATION = "sql"


class InvalidVersionError(InvalidError):
    """A view version that cannot be used; Iceberg's Java client expects its own exception type for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A view between two updates of a commit.

    Attributes:
        meta: its metadata so far.
        now_ms: the time of the commit, milliseconds since the epoch.
        placed: returns the view's location in a requested folder.
        schema: id of the schema that the commit added last.
        version: id of the version that the commit added last.
        added: ids of all versions that the commit added.
    """

    meta: ViewMetadata
    now_ms: int
    placed: Callable[[str], str]
    schema: int | None = None
    version: int | None = None
    added: frozenset[int] = frozenset()

    def with_meta(self, **fields: Any) -> _Draft:
        """Return the draft with other metadata fields; `_` in a name stands for `-`."""
        values = {name.replace("_", "-"): value for name, value in fields.items()}
        return replace(self, meta=cast("ViewMetadata", {**self.meta, **values}))


def new_view(
    *,
    schema: Json,
    version: Json,
    properties: Mapping[str, str],
    location: str,
    view_uuid: str,
    now_ms: int,
    placed: Callable[[str], str],
) -> ViewMetadata:
    """Return the metadata of a new view. Field ids stay as given; the schema gets the id 0.

    Args:
        schema: JSON of the schema of its result.
        version: JSON of its first version.
        properties: its properties.
        location: the location that the catalog assigned.
        view_uuid: a new UUID.
        now_ms: milliseconds since the epoch.
        placed: returns the view's location in a requested folder.

    Raises:
        InvalidError: an argument is invalid.
    """
    empty: ViewMetadata = {
        "view-uuid": view_uuid,
        "format-version": FORMAT_VERSION,
        "location": location,
        "schemas": [],
        "current-version-id": LAST_ADDED,
        "versions": [],
        "version-log": [],
        "properties": dict(properties),
    }
    draft = _Draft(meta=empty, now_ms=now_ms, placed=placed)
    draft = _add_schema(draft, {"schema": schema})
    draft = _add_version(draft, {"view-version": {**version, "schema-id": LAST_ADDED}})
    draft = _set_current(draft, {"view-version-id": LAST_ADDED})
    return _finish(_where_asked(draft), None)


def check_requirements(requirements: Sequence[Json], meta: ViewMetadata) -> None:
    """Require that all requirements of a commit hold (REST specification: `AssertViewUUID`).

    Raises:
        ConflictError: the view is another one.
        InvalidError: a requirement's type is unknown, or its UUID is missing or no string.
    """
    for requirement in requirements:
        if requirement.get("type") != "assert-view-uuid":
            raise InvalidError(f"Unknown requirement type: {requirement.get('type')}")
        expected = requirement.get("uuid")
        if not isinstance(expected, str):
            raise InvalidError("Cannot parse requirement assert-view-uuid: field uuid is missing or no str")
        if expected.lower() != meta["view-uuid"]:
            raise ConflictError(
                f"Requirement failed: view UUID does not match: expected {meta['view-uuid']} != {expected}"
            )


def commit(
    base: ViewMetadata, updates: Sequence[Json], *, now_ms: int, placed: Callable[[str], str]
) -> ViewMetadata | None:
    """Return the metadata after the updates; None if they change nothing.

    Args:
        base: the current metadata.
        updates: `ViewUpdate` objects of the REST specification, in order.
        now_ms: milliseconds since the epoch.
        placed: returns the view's location in a requested folder, as at its create.

    Raises:
        InvalidError: an update is unknown or cannot be applied, or there are too many.
    """
    if len(updates) > UPDATES_MAX:
        raise InvalidError(
            f"Cannot apply {len(updates)} updates of a view at once: at most {UPDATES_MAX}; send them in "
            "several changes"
        )
    draft = _Draft(meta=base, now_ms=now_ms, placed=placed)
    for update in updates:
        apply = _UPDATES.get(str(update.get("action")))
        if apply is None:
            raise InvalidError(f"Unknown update of a view: {update.get('action')}")
        draft = apply(draft, update)
    draft = _where_asked(draft, base["location"])
    return None if draft.meta == base else _finish(draft, base)


def _assign_uuid(draft: _Draft, update: Json) -> _Draft:
    if str(update.get("uuid")).lower() != draft.meta["view-uuid"]:
        raise InvalidError("Cannot reassign uuid")
    return draft


def _upgrade_format_version(draft: _Draft, update: Json) -> _Draft:
    if update.get("format-version") != FORMAT_VERSION:
        raise InvalidError(
            f"Unsupported format version: v{update.get('format-version')} (views: v{FORMAT_VERSION})"
        )
    return draft


def _set_location(draft: _Draft, update: Json) -> _Draft:
    """Apply `SetLocationUpdate`: the requested folder gets the view's own below it, as at its create.

    Unlike a table a view may move: its later metadata files are all that goes there.
    """
    wanted = get(update, "location", str).rstrip("/")
    return draft if wanted == draft.meta["location"] else draft.with_meta(location=draft.placed(wanted))


def _where_asked(draft: _Draft, before: str | None = None) -> _Draft:
    """Return the draft with its location where its properties ask for it; `before` is the one so far."""
    location = where_asked(
        draft.meta["properties"], draft.meta["location"], before=before, placed=draft.placed
    )
    return draft if location == draft.meta["location"] else draft.with_meta(location=location)


def _set_properties(draft: _Draft, update: Json) -> _Draft:
    wanted = update.get("updates", update.get("updated"))
    if not isinstance(wanted, dict) or not all(isinstance(value, str) for value in wanted.values()):
        raise InvalidError("Cannot parse update set-properties: field updates must map names to strings")
    return draft.with_meta(properties={**draft.meta["properties"], **wanted})


def _remove_properties(draft: _Draft, update: Json) -> _Draft:
    gone = update.get("removals", update.get("removed"))
    if not isinstance(gone, list) or not all(isinstance(name, str) for name in gone):
        raise InvalidError("Cannot parse remove-properties: field removals must be a list of names")
    names = frozenset(gone)
    kept = {name: value for name, value in draft.meta["properties"].items() if name not in names}
    return draft.with_meta(properties=kept)


def _add_schema(draft: _Draft, update: Json) -> _Draft:
    """Apply `AddSchemaUpdate`: equal schemas share an id, a new one gets the next."""
    schema = get(update, "schema", dict)
    check_schema(schema, FORMAT_VERSION_MAX, new=False)
    schema = stored_schema(schema)
    schemas = draft.meta["schemas"]
    for known in schemas:
        if same_schema(known, schema):
            return replace(draft, schema=known["schema-id"])
    number = max((known["schema-id"] + 1 for known in schemas), default=0)
    added = {**schema, "schema-id": number}
    return replace(draft.with_meta(schemas=[*schemas, added]), schema=number)


def _add_version(draft: _Draft, update: Json) -> _Draft:
    """Apply `AddViewVersionUpdate`: equal versions share an id, a new one gets the next free one."""
    version = _checked_version(get(update, "view-version", dict))
    if version["schema-id"] == LAST_ADDED:
        if draft.schema is None:
            raise InvalidError("Cannot set last schema id: no schema has been added")
        version = cast("ViewVersion", {**version, "schema-id": draft.schema})
    if version["schema-id"] not in {schema["schema-id"] for schema in draft.meta["schemas"]}:
        raise InvalidError(f"Cannot add version with unknown schema: {version['schema-id']}")
    versions = draft.meta["versions"]
    for known in versions:
        if _same_version(known, version):
            return replace(draft, version=known["version-id"])
    number = max([version["version-id"], *(known["version-id"] + 1 for known in versions)])
    if number > ID_MAX:
        raise InvalidVersionError(f"Cannot add a version after {ID_MAX}: drop the view and make it again")
    added = cast("ViewVersion", {**version, "version-id": number})
    draft = replace(draft, version=number, added=draft.added | {number})
    return draft.with_meta(versions=[*versions, added])


def _set_current(draft: _Draft, update: Json) -> _Draft:
    """Apply `SetCurrentViewVersionUpdate`; the version log gets an entry."""
    number = get(update, "view-version-id", int)
    if number == LAST_ADDED:
        if draft.version is None:
            raise InvalidError("Cannot set last version id: no current version id has been set")
        number = draft.version
    if number == draft.meta["current-version-id"]:
        return draft
    version = next((one for one in draft.meta["versions"] if one["version-id"] == number), None)
    if version is None:
        raise InvalidError(f"Cannot set current version to unknown version: {number}")
    at_ms = version["timestamp-ms"] if number in draft.added else draft.now_ms
    log = [*draft.meta["version-log"], {"version-id": number, "timestamp-ms": at_ms}]
    return draft.with_meta(current_version_id=number, version_log=log)


_UPDATES: Mapping[str, Callable[[_Draft, Json], _Draft]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "add-schema": _add_schema,
    "add-view-version": _add_version,
    "set-current-view-version": _set_current,
}


def _checked_version(version: Json) -> ViewVersion:
    """Return a version of a request if it is complete (view specification: "Versions")."""
    for name, least, most in (
        ("version-id", 0, ID_MAX),
        ("timestamp-ms", 0, TIME_MAX),
        ("schema-id", LAST_ADDED, ID_MAX),
    ):
        value = version.get(name)
        if type(value) is not int or not least <= value <= most:
            raise InvalidVersionError(
                f"Invalid view version: field {name} is missing or no number from {least} to {most}"
            )
    summary, space = version.get("summary"), version.get("default-namespace")
    if not isinstance(summary, dict) or not all(isinstance(value, str) for value in summary.values()):
        raise InvalidVersionError("Invalid view version: summary must map names to strings")
    if not isinstance(space, list) or not all(isinstance(level, str) for level in space):
        raise InvalidVersionError("Invalid view version: default-namespace must be a list of names")
    if not isinstance(version.get("default-catalog", ""), str | None):
        raise InvalidVersionError("Invalid view version: default-catalog is no text")
    found = version.get("representations")
    if not isinstance(found, list) or not found:
        raise InvalidVersionError(
            "Invalid view version: it has no representations; give the query of one dialect"
        )
    dialects: set[str] = set()
    for one in found:
        dialect = one.get("dialect") if isinstance(one, dict) else None
        if not isinstance(dialect, str) or not dialect or not isinstance(one.get("sql"), str):
            raise InvalidVersionError("Invalid view version: a representation has no dialect or no sql")
        if one.get("type") != REPRESENTATION:
            raise InvalidVersionError(
                f"Invalid view version: a representation of type {one.get('type')!r}; give {REPRESENTATION}"
            )
        if dialect.lower() in dialects:
            raise InvalidVersionError(
                f"Invalid view version: Cannot add multiple queries for dialect {dialect}"
            )
        dialects.add(dialect.lower())
    return cast("ViewVersion", version)


def _same_version(a: ViewVersion, b: ViewVersion) -> bool:
    """Return whether two versions differ in id and time only."""
    own = ("version-id", "timestamp-ms")
    return {k: v for k, v in a.items() if k not in own and v is not None} == {
        k: v for k, v in b.items() if k not in own and v is not None
    }


def _finish(draft: _Draft, base: ViewMetadata | None) -> ViewMetadata:
    """Return the metadata to store: old versions expired, no dialect lost, all parts consistent."""
    meta = draft.meta
    check_paths(meta["properties"], meta["location"])
    kept = _versions_kept(meta["properties"])
    if base is not None:
        _check_dialects(base, meta)
    current = meta["current-version-id"]
    count = max(kept, len(draft.added | {current}))
    if len(meta["versions"]) <= count:
        return meta
    newest = sorted(one["version-id"] for one in meta["versions"] if one["version-id"] != current)
    ids = {current, *newest[len(newest) - (count - 1) :]}
    log = meta["version-log"]
    # An entry of an expired version would be unreadable: it and everything before it goes.
    first = next((n + 1 for n in reversed(range(len(log))) if log[n]["version-id"] not in ids), 0)
    versions = [one for one in meta["versions"] if one["version-id"] in ids]
    return draft.with_meta(versions=versions, version_log=log[first:]).meta


def _versions_kept(properties: Mapping[str, str]) -> int:
    kept = properties.get(VERSIONS_KEPT, str(VERSIONS_KEPT_DEFAULT))
    if not (kept.isascii() and kept.isdigit() and len(kept) < 10 and int(kept) > 0):
        raise InvalidError(f"{VERSIONS_KEPT} must be positive but was {kept[:64]}")
    return int(kept)


def _check_dialects(base: ViewMetadata, meta: ViewMetadata) -> None:
    """Require that the current version has every dialect of the one before."""
    if meta["properties"].get(DIALECTS_MAY_GO, "false").lower() == "true":
        return
    before, after = _dialects(base), _dialects(meta)
    if not before <= after:
        raise InvalidError(
            f"Cannot replace view due to loss of view dialects ({DIALECTS_MAY_GO}=false):\n"
            f"Previous dialects: {sorted(before)}\nNew dialects: {sorted(after)}"
        )


def _dialects(meta: ViewMetadata) -> set[str]:
    current = next(one for one in meta["versions"] if one["version-id"] == meta["current-version-id"])
    return {one["dialect"].lower() for one in current["representations"]}


def check_file(raw: bytes, location: str, roots: WarehouseLayout) -> ViewMetadata:
    """Return the parsed metadata of a file to register, if the catalog can commit on top of it.

    Args:
        raw: the content of the file.
        location: its location.
        roots: the mapping between keys and locations.

    Raises:
        InvalidError: the content is not complete, consistent view metadata ("View Metadata").
        InvalidLocationError: the file lies outside the view's location, or that location is not one that the
            catalog assigns.
    """
    try:
        meta = metadata_json.loads_kept(raw)
        if (
            not isinstance(meta, dict)
            or meta.get("format-version") is True
            or (meta.get("format-version") != FORMAT_VERSION)
        ):
            raise _bad(location, f"it is no object with format-version {FORMAT_VERSION}")
        view_uuid = meta["view-uuid"]
        if str(UUID(view_uuid)) != view_uuid:
            raise _bad(location, "its view-uuid is not written in lower case with hyphens")
        schemas = {schema["schema-id"] for schema in meta["schemas"]}
        for schema in meta["schemas"]:
            check_schema(schema, FORMAT_VERSION_MAX, new=False)
        versions = {_checked_version(one)["version-id"] for one in meta["versions"]}
        if meta["current-version-id"] not in versions:
            raise _bad(
                location, f"its current version {meta['current-version-id']} is not among its versions"
            )
        if any(one["schema-id"] not in schemas for one in meta["versions"]):
            raise _bad(location, "a version's schema is not among its schemas")
        fields = ("version-id", "timestamp-ms")
        if any(type(entry[name]) is not int for entry in meta["version-log"] for name in fields):
            raise _bad(location, "its version log has an entry without a version or a time")
        if not all(isinstance(meta[name], list) for name in ("schemas", "versions", "version-log")):
            raise _bad(location, "its schemas, versions or version log are no list")
        if any(type(number) is not int for number in (*schemas, meta["current-version-id"])):
            raise _bad(location, "the id of a schema or of its current version is no number")
        properties = meta.get("properties") or {}
        if not all(isinstance(value, str) for value in properties.values()):
            raise _bad(location, "its properties do not map names to strings")
        try:
            _versions_kept(properties)
        except InvalidError as e:
            raise _bad(location, f"{e.message}, and every later change would be refused") from e
        roots.check_table(meta["location"], view_uuid)
        check_paths(properties, meta["location"])
    except metadata_json.TooLongError as e:
        raise _bad(location, str(e)) from e
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise _bad(location, f"a part of it is missing or cannot be read ({e!r})") from e
    if not location.startswith(f"{meta['location']}/metadata/"):
        raise InvalidLocationError(
            f"Invalid metadata-location {location}: the view in it lies at {meta['location']}; a view's "
            "files stay in its own location",
            location=location,
        )
    return cast("ViewMetadata", meta)


def _bad(location: str, why: str) -> InvalidError:
    return InvalidError(
        f"Cannot register {location}: {why}; give the metadata file of an Iceberg view", location=location
    )
