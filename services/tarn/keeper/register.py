"""The catalog's own state as of one moment, read while others write."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tarn.adapters.bulk import BulkStore
from tarn.adapters.store import Stored
from tarn.core.audit.model import Finding, Kind
from tarn.core.errors import CorruptStateError, UnavailableError
from tarn.core.naming import NAMESPACES_PREFIX, POINTERS_PREFIX, PROBE_PREFIX
from tarn.core.registered import (
    CATALOG_PREFIX,
    NamespaceValue,
    PointerValue,
    parse_namespace,
    parse_pointer,
)

SETTLE_MAX = 20
SETTLE_WAIT_S = 0.5
CATALOG_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """What the catalog's prefix held.

    Attributes:
        objects: key -> bytes, of everything below `catalog/v1/` but the probe's.
        pointers, namespaces: those that can be read.
        findings: those that cannot.
    """

    objects: Mapping[str, bytes]
    pointers: Sequence[PointerValue]
    namespaces: Mapping[tuple[str, ...], NamespaceValue]
    findings: Sequence[Finding]

    @property
    def live(self) -> list[PointerValue]:
        """The pointers of names that are in use."""
        return [pointer for pointer in self.pointers if pointer.live]


def read_register(
    store: BulkStore, pool: ThreadPoolExecutor, *, sleep: Callable[[float], None] = time.sleep
) -> Register:
    """Read every pointer, and all that pointers rest on.

    Pointers are read one after another while others rename and drop: a table could be met under both of its
    names, or under none. So all are read until two rounds name the same tables by the same names, and no
    transaction is under way. What a table holds may change meanwhile; of that, the last round counts.

    Raises:
        UnavailableError: the store does not answer, the catalog is too large, or names do not come to rest.
    """
    known: dict[str, Stored] = {}
    before: set[tuple[str, str]] | None = None
    for _ in range(SETTLE_MAX):
        known = _collect(store, pool, known)
        register = _parse({key: stored.data for key, stored in known.items()})
        names = {(pointer.uuid, pointer.key) for pointer in register.live}
        if names == before and not any(pointer.intent for pointer in register.pointers):
            break
        if before is not None:
            sleep(SETTLE_WAIT_S)
        before = names
    else:
        stuck = sorted(pointer.text for pointer in register.pointers if pointer.intent)
        if not stuck:
            raise UnavailableError(
                f"tables were made, renamed or dropped all the time in {SETTLE_MAX} rounds; try again later"
            )
    return _with_pages(store, register)


def _collect(store: BulkStore, pool: ThreadPoolExecutor, known: Mapping[str, Stored]) -> dict[str, Stored]:
    """One round; what has not changed since the last one is not read again."""
    listed = [entry for entry in store.list(CATALOG_PREFIX) if not entry.key.startswith(PROBE_PREFIX)]
    size = sum(entry.size_bytes for entry in listed)
    if size > CATALOG_BYTES_MAX:
        raise UnavailableError(
            f"the catalog's own state is {size} bytes; at most {CATALOG_BYTES_MAX} are held at once"
        )
    # Pointers first: what they name is older than they are.
    listed.sort(key=lambda entry: (not entry.key.startswith(POINTERS_PREFIX), entry.key))

    def read(number: int) -> Stored | None:
        entry = listed[number]
        found = known.get(entry.key)
        return found if found is not None and found.etag == entry.etag else store.get(entry.key)

    found = pool.map(read, range(len(listed)))
    return {entry.key: stored for entry, stored in zip(listed, found, strict=True) if stored is not None}


def _with_pages(store: BulkStore, register: Register) -> Register:
    """With the key pages that were written after the listing and are named by what was read after it."""
    objects = dict(register.objects)
    values: list[PointerValue | NamespaceValue] = [*register.pointers, *register.namespaces.values()]
    for page in [page for value in values for page in value.pages if page not in objects]:
        stored = store.get(page)
        if stored is not None:
            objects[page] = stored.data
    return Register(
        objects=objects,
        pointers=register.pointers,
        namespaces=register.namespaces,
        findings=register.findings,
    )


def _parse(objects: Mapping[str, bytes]) -> Register:
    pointers: list[PointerValue] = []
    namespaces: dict[tuple[str, ...], NamespaceValue] = {}
    findings: list[Finding] = []
    for key, data in sorted(objects.items()):
        try:
            if key.startswith(POINTERS_PREFIX):
                pointers.append(parse_pointer(key, data))
            elif key.startswith(NAMESPACES_PREFIX):
                value = parse_namespace(key, data)
                namespaces[value.levels] = value
        except CorruptStateError as error:
            pointer = key.startswith(POINTERS_PREFIX)
            findings.append(
                Finding(
                    kind=Kind.POINTER_UNREADABLE if pointer else Kind.NAMESPACE_UNREADABLE,
                    where=key,
                    what=f"{error.message} ({len(data)} bytes)",
                    fix="restore this object from a backup; a newer format needs a newer Tarn",
                )
            )
    return Register(objects=objects, pointers=pointers, namespaces=namespaces, findings=findings)
