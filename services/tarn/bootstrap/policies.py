"""Policies of the store users, made from the table of services, in the S3 policy language.

They are not trusted: `bootstrap` tries every right and every prohibition (`tarn.bootstrap.access`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tarn.core.credentials import STORE_RIGHTS
from tarn.core.errors import InvalidError
from tarn.core.services import AMONG_OTHERS, Action, Area, StoreRights

Policy = dict[str, object]

_OBJECTS: Mapping[Area, str] = {
    Area.CATALOG: "catalog/*",
    Area.HOLDS: "reaper/v1/holds/*",
    Area.MEASURED: "reaper/v1/measured/*",
    Area.REAPER: "reaper/*",
    Area.FSCK: "fsck/*",
    Area.CHECKPOINTS: "checkpoints/*",
    Area.TRAIL: "trail/*",
    Area.WORKSHOP_SPECS: "specs/v1/ingestors/ws-*",
    Area.SPECS: "specs/*",
    Area.CREDENTIALS: "credentials/*",
}
_INSIDE = {
    Area.REAPER: (Area.HOLDS, Area.MEASURED),
    Area.SPECS: (Area.WORKSHOP_SPECS,),
}
"""Areas with parts that have rights of their own."""
_TABLES = "warehouse/*"
_TABLE_METADATA = "warehouse/*.metadata.json"

_ACTIONS: Mapping[Action, tuple[str, ...]] = {
    Action.READ: ("s3:GetObject",),
    Action.WRITE: ("s3:PutObject",),
    Action.DELETE: ("s3:DeleteObject",),
}
_MULTIPART = ("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")


def policies(bucket: str) -> dict[str, Policy]:
    """Return {store user: policy} for this bucket."""
    return {user: policy(rights, bucket) for user, rights in STORE_RIGHTS.items()}


def policy(rights: StoreRights, bucket: str) -> Policy:
    """Return the policy that allows exactly these rights, and finding out the region of the bucket.

    Files of table metadata lie among the other files of a table, so they are an exception to those: what is
    allowed beyond is allowed by name, what is not allowed is denied by name.

    Raises:
        InvalidError: a part of an area has fewer rights than the rest of it.
    """
    held = {area: rights.get(area, frozenset()) for area in Area}
    statements = [_statement("Locate", ["s3:GetBucketLocation"], bucket)]
    prefixes = [prefix for area, prefix in _prefixes(held) if Action.LIST in held[area]]
    if prefixes:
        listing = _statement("ListByPrefix", ["s3:ListBucket"], bucket)
        statements.append({**listing, "Condition": {"StringLike": {"s3:prefix": prefixes}}})
    for area, pattern in _prefixes(held):
        if area is not Area.DATA:
            names = _names(held[area])
            statements += [_statement(_sid(area), names, bucket, pattern)] if names else []
    statements += _on_tables(held[Area.DATA], held[Area.METADATA], bucket)
    return {"Version": "2012-10-17", "Statement": statements}


def _prefixes(held: StoreRights) -> Iterator[tuple[Area, str]]:
    """Areas with their patterns; parts of an area only where they have more rights than the rest of it."""
    yield Area.CATALOG, _OBJECTS[Area.CATALOG]
    yield Area.DATA, _TABLES
    for whole in (Area.REAPER, Area.FSCK, Area.CHECKPOINTS, Area.TRAIL, Area.SPECS, Area.CREDENTIALS):
        for part in _INSIDE.get(whole, ()):
            listed = {Action.LIST} if part in AMONG_OTHERS else frozenset()
            if not held[part] >= held[whole] - listed:
                raise InvalidError(
                    f"{part.value} has fewer rights than {whole.value}; correct tarn.core.services: "
                    "no policy takes rights away there"
                )
            if held[part] - held[whole]:
                yield part, _OBJECTS[part]
        yield whole, _OBJECTS[whole]


def _on_tables(
    data: Collection[Action], metadata: Collection[Action], bucket: str
) -> Iterator[dict[str, object]]:
    names = _names(data)
    if names:
        more = list(_MULTIPART) if Action.WRITE in data else []
        yield _statement("Tables", [*names, *more], bucket, _TABLES)
    beyond = _names([action for action in metadata if action not in data])
    if beyond:
        more = list(_MULTIPART) if Action.WRITE in metadata and Action.WRITE not in data else []
        yield _statement("TableMetadata", [*beyond, *more], bucket, _TABLE_METADATA)
    denied = [action for action in data if action not in metadata and action is not Action.LIST]
    if Action.WRITE in denied and Action.DELETE not in metadata:
        denied = [*denied, Action.DELETE]  # allowed or not: who may not write it may not delete it either
    if denied:
        more = ["s3:DeleteObjectVersion"] if Action.DELETE in denied else []
        found = _statement("TableMetadataIsTheCatalogs", [*_names(denied), *more], bucket, _TABLE_METADATA)
        yield {**found, "Effect": "Deny"}


def _names(actions: Collection[Action]) -> list[str]:
    """Names of the actions on objects; LIST is an action on the bucket."""
    return [name for action, names in _ACTIONS.items() if action in actions for name in names]


def _sid(area: Area) -> str:
    return area.name.capitalize()


def _statement(sid: str, actions: list[str], bucket: str, pattern: str = "") -> dict[str, object]:
    resource = f"arn:aws:s3:::{bucket}/{pattern}" if pattern else f"arn:aws:s3:::{bucket}"
    return {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": [resource]}
