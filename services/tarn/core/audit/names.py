"""Audit of the catalog's registry: every name, its namespace, and the target of its pointer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tarn.core.audit.model import Finding, Kind
from tarn.core.catalog_objects import (
    CATALOG_PREFIX,
    DROPPED,
    LIVE,
    RESTORE_MARKER,
    ClaimValue,
    NamespaceValue,
    PointerValue,
)
from tarn.core.errors import TarnError
from tarn.core.naming import namespace_key, pointer_key

FROM_BACKUP = "restore this object from a backup, or make the table again from what is left of it"


def judge_names(
    pointers: Sequence[PointerValue],
    namespaces: Mapping[tuple[str, ...], NamespaceValue],
    claims: Mapping[str, ClaimValue],
    keys: Collection[str],
) -> Iterator[Finding]:
    """Yield the findings about names and namespaces.

    Args:
        pointers: every readable pointer, including tombstones.
        namespaces: every readable namespace.
        claims: every readable claim, by table UUID.
        keys: every key below `catalog/v1/`.
    """
    yield from _twice(pointers)
    for pointer in pointers:
        yield from _place(pointer.key, lambda p=pointer: pointer_key(p.namespace, p.name), pointer.text)
        yield from _pages(pointer.text, pointer.pages, keys)
        yield from _intent(pointer, keys)
        if pointer.live:
            yield from _namespace(pointer, namespaces)
            yield from _claim(pointer, claims.get(pointer.uuid))
        elif pointer.metadata is not None:
            yield Finding(
                kind=Kind.TOMBSTONE,
                where=pointer.text,
                what=f"the name is dropped and its pointer still names {pointer.metadata}",
                fix=f"{FROM_BACKUP} ({pointer.key})",
            )
    for value in namespaces.values():
        where = ".".join(value.levels)
        yield from _place(value.key, lambda v=value: namespace_key(v.levels), where)
        yield from _pages(where, value.pages, keys)
        parent = namespaces.get(value.levels[:-1])
        if value.state == LIVE and len(value.levels) > 1 and (parent is None or parent.state == DROPPED):
            yield Finding(
                kind=Kind.NAMESPACE_MISSING if parent is None else Kind.NAMESPACE_DROPPED,
                where=where,
                what=f"it is live and the namespace above it, {'.'.join(value.levels[:-1])}, is not",
                fix="make the namespace above it again: CREATE SCHEMA, or the catalog's API",
            )
    if RESTORE_MARKER in keys:
        yield Finding(
            kind=Kind.RESTORE,
            where=RESTORE_MARKER,
            what="a restore began and did not end; what is here is a part of a backup",
            fix="run scripts/tarn restore again with the same file",
        )


def _twice(pointers: Sequence[PointerValue]) -> Iterator[Finding]:
    first: dict[str, PointerValue] = {}
    for pointer in pointers:
        # A rename leaves both names for a moment, each with the intent that determines which is valid.
        if not pointer.live or pointer.intent is not None:
            continue
        for what in {pointer.uuid, pointer.metadata or pointer.uuid}:
            other = first.setdefault(what, pointer)
            if other is not pointer:
                yield Finding(
                    kind=Kind.TABLE_TWICE,
                    where=pointer.text,
                    what=f"{what} is also that of {other.text}: a commit to one is unknown to the other",
                    fix="stop who writes to either; drop one of the names without purge, keep the newer one",
                )
                break


def _place(key: str, expected: object, where: str) -> Iterator[Finding]:
    try:
        found = expected() if callable(expected) else ""
    except TarnError as error:
        found = error.message
    if found != key:
        yield Finding(
            kind=Kind.POINTER_MISPLACED,
            where=where,
            what=f"the object at {key} says that it belongs at {found}",
            fix=f"{FROM_BACKUP} ({key})",
        )


def _pages(where: str, pages: Sequence[str], keys: Collection[str]) -> Iterator[Finding]:
    missing = [page for page in pages if page not in keys]
    if missing:
        yield Finding(
            kind=Kind.KEY_PAGE,
            where=where,
            what=f"{len(missing)} of {len(pages)} pages of remembered request keys are gone: {missing[0]}",
            fix="no rows are lost; a request of the last hours that is repeated may be refused as unknown",
        )


def _intent(pointer: PointerValue, keys: Collection[str]) -> Iterator[Finding]:
    if pointer.intent is None:
        return
    record = pointer.intent.get("record")
    if record is None:
        purpose = "a change of it alone"
    elif record in keys:
        purpose = f"the transaction {record}"
    else:
        purpose = f"the transaction {record}, which is gone and so counts as aborted"
    yield Finding(
        kind=Kind.PENDING,
        where=pointer.text,
        what=f"its pointer carries an intent: {purpose}",
        fix="nothing: the next writer of the name settles it",
    )


def _claim(pointer: PointerValue, claim: ClaimValue | None) -> Iterator[Finding]:
    if claim is None or not claim.settled or pointer.intent is not None:
        return
    if claim.purged:
        yield Finding(
            kind=Kind.CLAIM,
            where=pointer.text,
            what=f"the name is live, and the files of its table {pointer.uuid} are claimed to be purged",
            fix="copy the table to a new one at once (CREATE TABLE AS), then drop this name; and report it",
        )
    elif claim.holder not in (None, pointer.key):
        yield Finding(
            kind=Kind.CLAIM,
            where=pointer.text,
            what=f"its pointer {pointer.key} names table {pointer.uuid}, which was given to {claim.holder}",
            fix="stop who writes to either name, keep the newer one, drop the other without purge",
        )


def _namespace(
    pointer: PointerValue, namespaces: Mapping[tuple[str, ...], NamespaceValue]
) -> Iterator[Finding]:
    above = ".".join(pointer.namespace)
    found = namespaces.get(pointer.namespace)
    if found is None:
        yield Finding(
            kind=Kind.NAMESPACE_MISSING,
            where=pointer.text,
            what=f"it is live and there is no object of its namespace {above}",
            fix=f"make the namespace {above} again: the table shows again with all its rows",
        )
    elif found.state == DROPPED:
        yield Finding(
            kind=Kind.NAMESPACE_DROPPED,
            where=pointer.text,
            what=f"it is live and its namespace {above} is dropped",
            fix=f"make the namespace {above} again: the table shows again with all its rows",
        )


def keys_to_copy(keys: Sequence[str]) -> list[str]:
    """The catalog's keys in the order in which a copy is written: an object follows those it references."""
    order = ("keys/", "namespaces/", "transactions/", "pointers/")

    def rank(key: str) -> tuple[int, str]:
        rest = key.removeprefix(CATALOG_PREFIX)
        found = next((n for n, prefix in enumerate(order) if rest.startswith(prefix)), 0)
        return found, key

    return sorted(keys, key=rank)
