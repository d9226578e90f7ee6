"""What has a uuid: a uuid is that of one table, view or namespace, and stays that (invariant I7).

Grants, claims and locations go by it. The catalog chooses it, but the request that completes a staged create
sends it back, so there it is a client's word.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain

import structlog

from tarn.core.errors import ConflictError, CorruptStateError
from tarn.core.metadata_json import GZIP_SUFFIX
from tarn.core.naming import NAMESPACES_PREFIX, POINTERS_PREFIX
from tarn.core.object_store import Listed
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.namespaces import LIST_READERS
from tarn_catalog.state.context import MEMO_BYTES, CatalogContext, Versioned
from tarn_catalog.state.namespace import Namespace
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.transactions import Transactions

Found = tuple[str, str, bool]
"""What a register value is about: a uuid, a dotted name, and whether the name is in use."""
NOTHING: Found = ("", "", False)
POOLS_MAX = 4
"""Scans that read with several threads at one time; others read one value after the other."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A uuid that a client chose for a new table.

    Attributes:
        slot: the name that is to get it.
        table_uuid: the uuid, in lower case.
        held: the pointer of the name before it does; None if there was none.
    """

    slot: TableIdentifier
    table_uuid: str
    held: Versioned[Pointer] | None


class Uuids:
    """Looks for what has a uuid, in the values of all names.

    Args:
        core: the catalog context.
        transactions: transactions over the register.
    """

    def __init__(self, core: CatalogContext, transactions: Transactions) -> None:
        self._core = core
        self._transactions = transactions
        self._pools = threading.BoundedSemaphore(POOLS_MAX)

    def name_of(self, table_uuid: str, *, besides: str) -> str | None:
        """Return the dotted name of a table or view that has the uuid or is about to, or None.

        Reads every pointer, each value once per process. Call it while a transaction has its intent on the
        pointer or claim of the uuid: of two that give the uuid to two names, each then sees the other.

        Args:
            table_uuid: the uuid.
            besides: the key of a pointer to leave out.

        Raises:
            CorruptStateError: a pointer cannot be read.
        """
        wanted = table_uuid.lower()
        read = partial(self._pointer, wanted=frozenset([wanted]))
        for uuid, name, live in self._values(POINTERS_PREFIX, read, besides=frozenset([besides])):
            if live and uuid.lower() == wanted:
                return name
        return None

    def check_unused(self, chosen: Sequence[Chosen]) -> None:
        """Require that no table, view or namespace has or had one of the uuids. See `name_of`.

        What cannot be read is passed over: it is not the client's, and no create would be possible any more.

        Raises:
            ConflictError: something has or had it. The message names nothing that the client may not know.
        """
        if not chosen:
            return
        by_uuid = {one.table_uuid: one for one in chosen}
        known = [one.held.value.uuid for one in chosen if one.held is not None]
        read = partial(self._pointer, wanted=frozenset(by_uuid))
        # Their own pointers may have the intents of this very transaction, which nobody may wait for.
        own = frozenset(one.slot.key for one in chosen)
        pointers = self._values(POINTERS_PREFIX, partial(_lenient, read), besides=own)
        namespaces = self._values(NAMESPACES_PREFIX, partial(_lenient, self._namespace))
        for uuid in chain(known, (uuid for uuid, _, _ in chain(pointers, namespaces))):
            found = by_uuid.get(uuid.lower())
            if found is not None:
                raise self._used(found.slot, f"the uuid {found.table_uuid}")

    def check_empty(self, slot: TableIdentifier, table_uuid: str, location: str) -> None:
        """Require that no other table keeps or kept its metadata at a location that a client chose.

        The first file of a table alone does not show it: the reaper deletes that when there are many others.

        Raises:
            ConflictError: there are metadata files.
        """
        own = f"/00000-{table_uuid}.metadata.json"
        for file in self._core.store.list(f"{self._core.roots.key(location)}/metadata/"):
            if file.key.endswith((".metadata.json", GZIP_SUFFIX)) and not file.key.endswith(own):
                raise self._used(slot, f"the location {location}")

    @staticmethod
    def _used(slot: TableIdentifier, what: str) -> ConflictError:
        return ConflictError(
            f"Cannot create {slot.text}: {what} was used before, and is never given twice; begin the create "
            "again",
            table=slot.text,
        )

    def _values(
        self,
        prefix: str,
        read: Callable[[str], tuple[Found, bool]],
        *,
        besides: frozenset[str] = frozenset(),
    ) -> Iterator[Found]:
        """Yield what every value below a prefix is about: first what is remembered.

        Args:
            prefix: the prefix.
            read: returns what the value of a key is about, and whether it says so for good.
            besides: keys to leave out.
        """
        unread: list[Listed] = []
        for listed in self._core.store.list(prefix):
            if listed.key in besides:
                continue
            seen, known = self._core.cache.get(_memo(listed.key)) or (None, NOTHING)
            if seen == listed.etag:
                yield known
            else:
                unread.append(listed)

        def found(listed: Listed) -> Found:
            value, lasting = read(listed.key)
            if lasting:
                self._core.cache.put(_memo(listed.key), (listed.etag, value), MEMO_BYTES)
            return value

        if len(unread) > 1 and self._pools.acquire(blocking=False):
            try:
                with ThreadPoolExecutor(max_workers=min(LIST_READERS, len(unread))) as readers:
                    yield from readers.map(found, unread)
            finally:
                self._pools.release()
        else:
            yield from map(found, unread)

    def _pointer(self, key: str, *, wanted: frozenset[str]) -> tuple[Found, bool]:
        held = self._core.read(key, Pointer.load)
        intent = held.value.intent if held is not None else None
        if held is not None and intent is not None:
            # One that is about something else is not waited for.
            about = (held.value.uuid, str(intent.then.get("table-uuid")))
            if wanted.isdisjoint(uuid.lower() for uuid in about):
                return NOTHING, False
            held = self._transactions.read_to_write(key, Pointer.load)
        if held is None:
            return NOTHING, False
        name = ".".join((*held.value.namespace, held.value.name))
        return (held.value.uuid, name, held.value.live), intent is None

    def _namespace(self, key: str) -> tuple[Found, bool]:
        held = self._core.read(key, Namespace.load)
        if held is None:
            return NOTHING, False
        return (held.value.uuid, ".".join(held.value.levels), held.value.there), True


def _memo(key: str) -> str:
    return f"uuid {key}"


def _lenient(read: Callable[[str], tuple[Found, bool]], key: str) -> tuple[Found, bool]:
    try:
        return read(key)
    except CorruptStateError as e:
        log.warning("a value cannot be read; the uuid in it is not known", key=key, reason=e.message)
        return NOTHING, False
