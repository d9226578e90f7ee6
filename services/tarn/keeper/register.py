"""A consistent view of the catalog's own state, read while writers are active."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tarn.core.audit.model import Finding, Kind
from tarn.core.catalog_objects import (
    CATALOG_PREFIX,
    ClaimValue,
    NamespaceValue,
    PointerValue,
    check_grants,
    parse_claim,
    parse_namespace,
    parse_pointer,
)
from tarn.core.errors import CorruptStateError, UnavailableError
from tarn.core.naming import (
    CLAIMS_PREFIX,
    GRANTS_KEY,
    KEY_PAGES_PREFIX,
    NAMESPACES_PREFIX,
    POINTERS_PREFIX,
    PROBE_PREFIX,
)
from tarn.core.object_store import BulkStore, Listed, Stored

SETTLE_MAX = 20
SETTLE_WAIT_S = 0.5
STUCK_ROUNDS = 4
UNREADABLE = {
    "pointers/": Kind.POINTER_UNREADABLE,
    "namespaces/": Kind.NAMESPACE_UNREADABLE,
    "claims/": Kind.CLAIM_UNREADABLE,
    "grants.json/": Kind.GRANTS_UNREADABLE,
}
CATALOG_BYTES_MAX = 256 * 1024 * 1024
"""Largest state of a catalog that is held at once, without pages of request keys: these never change, and
busy tables have many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """Content of the catalog's prefix.

    Attributes:
        objects: key to content, of everything below `catalog/v1/` except probe objects and key pages.
        pages: keys of the key pages that there are.
        pointers: readable pointers.
        namespaces: readable namespaces, by levels.
        claims: readable claims, by table UUID.
        findings: unreadable objects.
    """

    objects: Mapping[str, bytes]
    pages: Collection[str]
    pointers: Sequence[PointerValue]
    namespaces: Mapping[tuple[str, ...], NamespaceValue]
    claims: Mapping[str, ClaimValue]
    findings: Sequence[Finding]

    @property
    def live(self) -> list[PointerValue]:
        """Pointers of names in use."""
        return [pointer for pointer in self.pointers if pointer.live]

    @property
    def needed(self) -> set[str]:
        """Keys of the key pages that an object names."""
        values: tuple[PointerValue | NamespaceValue | ClaimValue, ...] = (
            *self.pointers,
            *self.namespaces.values(),
            *self.claims.values(),
        )
        return {page for value in values for page in value.pages}

    @property
    def keys(self) -> Collection[str]:
        """All keys below `catalog/v1/` except those of probe objects."""
        return {*self.objects, *self.pages}


def read_register(
    store: BulkStore, pool: ThreadPoolExecutor, *, sleep: Callable[[float], None] = time.sleep
) -> Register:
    """Read every pointer, and all objects that pointers rely on, as of one moment.

    Pointers are read one after another while others rename, drop, and commit to several tables at once: a
    table could be seen under both of its names or under none, and a multi-table commit in only one of its
    tables. All are therefore read again, and the first read is valid if the second one shows that nothing of
    the kind happened between its first and last request. Single-table commits may happen: they are harmless.

    Args:
        store: object store of the lake.
        pool: executor for concurrent reads.
        sleep: waits, in seconds.

    Raises:
        UnavailableError: the store does not respond, the catalog is too large, or it keeps changing.
    """
    known: dict[str, Stored] = {}
    before: Register | None = None
    still = 0
    for _ in range(SETTLE_MAX):
        known, pages = _collect(store, pool, known)
        register = _parse({key: stored.data for key, stored in known.items()}, pages)
        if before is not None:
            still = still + 1 if _together(before, register) else 0
            # An intent that does not move belongs to a killed writer: it does not resolve without help.
            if still >= (STUCK_ROUNDS if _pending(before) else 1):
                return _with_pages(store, before)
            sleep(SETTLE_WAIT_S)
        before = register
    raise UnavailableError(
        f"several tables at once were changed, renamed or dropped in each of {SETTLE_MAX} looks; try later"
    )


def _pending(register: Register) -> set[tuple[str, str]]:
    """(pointer key, nonce) of all undecided transactions."""
    return {(p.key, str(p.intent.get("nonce"))) for p in register.pointers if p.intent is not None}


def _names(register: Register) -> set[tuple[str, str]]:
    """(table UUID, pointer key) of all names in use."""
    return {(pointer.uuid, pointer.key) for pointer in register.live}


def _together(first: Register, second: Register) -> bool:
    """Whether everything in the first read existed at one moment, as the second read shows.

    It did not if a table has another name in the second read, or if a pointer has a transaction only there
    that another pointer already had in the first: that transaction was seen half-done.
    """
    if _names(first) != _names(second) or _pending(first) != _pending(second):
        return False
    seen: set[str] = set().union(*(pointer.done for pointer in first.pointers))
    earlier = {pointer.key: pointer.done for pointer in first.pointers}
    fresh = (pointer.done - earlier.get(pointer.key, frozenset()) for pointer in second.pointers)
    return not any(done & seen for done in fresh)


def _collect(
    store: BulkStore, pool: ThreadPoolExecutor, known: Mapping[str, Stored]
) -> tuple[dict[str, Stored], frozenset[str]]:
    """One round of reads: objects, of which unchanged ones are not read again, and the keys of key pages."""
    listed: list[Listed] = []
    pages: set[str] = set()
    for entry in store.list(CATALOG_PREFIX):
        if entry.key.startswith(KEY_PAGES_PREFIX):
            pages.add(entry.key)
        elif not entry.key.startswith(PROBE_PREFIX):
            listed.append(entry)
    size = sum(entry.size_bytes for entry in listed)
    if size > CATALOG_BYTES_MAX:
        raise UnavailableError(
            f"the catalog's own state is {size} bytes in {len(listed)} objects; at most {CATALOG_BYTES_MAX} "
            "are held at once. It has too many names, dropped ones among them: use another lake for new ones"
        )
    # Pointers first: the objects they reference are older, and what a record decides is decided once for all.
    listed.sort(key=lambda entry: (not entry.key.startswith(POINTERS_PREFIX), entry.key))

    def read(number: int) -> Stored | None:
        entry = listed[number]
        found = known.get(entry.key)
        return found if found is not None and found.etag == entry.etag else store.get(entry.key)

    found = pool.map(read, range(len(listed)))
    pairs = zip(listed, found, strict=True)
    return {entry.key: stored for entry, stored in pairs if stored is not None}, frozenset(pages)


def _with_pages(store: BulkStore, register: Register) -> Register:
    """Add the key pages that were written after the listing and are referenced by objects read after it."""
    later = register.needed.difference(register.pages)
    found = {page for page in later if store.open(page, bytes_max=0) is not None}
    return replace(register, pages=frozenset({*register.pages, *found}))


def _parse(objects: Mapping[str, bytes], pages: Collection[str]) -> Register:
    pointers: list[PointerValue] = []
    namespaces: dict[tuple[str, ...], NamespaceValue] = {}
    claims: dict[str, ClaimValue] = {}
    findings: list[Finding] = []
    for key, data in sorted(objects.items()):
        try:
            if key.startswith(POINTERS_PREFIX):
                pointers.append(parse_pointer(key, data, objects.get))
            elif key.startswith(NAMESPACES_PREFIX):
                value = parse_namespace(key, data)
                namespaces[value.levels] = value
            elif key.startswith(CLAIMS_PREFIX):
                claim = parse_claim(key, data, objects.get)
                claims[claim.uuid] = claim
            elif key == GRANTS_KEY:
                check_grants(key, data)
        except CorruptStateError as error:
            findings.append(
                Finding(
                    kind=UNREADABLE[f"{key.split('/')[2]}/"],
                    where=key,
                    what=f"{error.message} ({len(data)} bytes)",
                    fix="restore this object from a backup; a newer format needs a newer Tarn",
                )
            )
    return Register(
        objects=objects,
        pages=pages,
        pointers=pointers,
        namespaces=namespaces,
        claims=claims,
        findings=findings,
    )
