"""Namespaces: one register value each, with the states live, dropping and dropped.

A drop takes two swaps, live -> dropping -> dropped, and lists the tables in between. A table create first
writes its intent, then reads the namespace, then commits. It swaps a namespace in state dropping back to
live, so that the second swap of the drop fails; a dropped namespace aborts the create. The drop's listing
resolves every intent that it finds. So at least one of two concurrent operations sees the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import orjson

from tarn.core.errors import (
    AlreadyExistsError,
    InvalidError,
    NoSuchNamespaceError,
    NotEmptyError,
)
from tarn.core.naming import (
    NAMESPACES_PREFIX,
    encode_namespace,
    name_of_pointer_key,
    namespace_key,
    namespace_of_key,
    pointer_key,
    pointers_prefix,
)
from tarn.core.object_store import Listed
from tarn_catalog.state.context import MEMO_BYTES, CatalogContext, H, IdempotencyKey, Versioned, lost
from tarn_catalog.state.namespace import Namespace, NamespaceState
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.state.register import happened
from tarn_catalog.state.transactions import Transactions

SWAP_ATTEMPTS_MAX = 10
# A transaction confirms its namespace by `enter` while it holds intents, which others abort after 2 s: all
# pauses between so many attempts are shorter than that.
ENTER_ATTEMPTS_MAX = 7
LIST_READERS = 8
PROPERTIES_BYTES_MAX = 1024 * 1024

Levels = tuple[str, ...]
Shown = Callable[[Levels, str, str | None], bool]
"""Whether a listing shows a thing: called with the levels of its name, its uuid and its owner."""


class UnprocessableError(InvalidError):
    """A request whose parts contradict each other (HTTP 422)."""


_Entry = tuple[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertiesChanged:
    """The result of a properties update (REST specification: `UpdateNamespacePropertiesResponse`).

    Attributes:
        updated: names that were set.
        removed: names that were removed.
        missing: names to remove that were absent.
    """

    updated: Sequence[str]
    removed: Sequence[str]
    missing: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing.

    Attributes:
        names: the names found, in key order.
        next_token: the token of the next page; None on the last one.
    """

    names: Sequence[Levels]
    next_token: str | None


class Namespaces:
    """Operations on namespaces."""

    def __init__(self, core: CatalogContext, transactions: Transactions) -> None:
        self._core = core
        self._transactions = transactions

    def _held(self, levels: Levels) -> Versioned[Namespace] | None:
        return self._core.read(namespace_key(levels), Namespace.load)

    def _there(self, levels: Levels) -> Versioned[Namespace]:
        return _existing(levels, self._held(levels))

    def find(self, levels: Levels) -> Namespace | None:
        """Return the register value of an existing namespace, or None."""
        held = self._core.read(namespace_key(levels), Namespace.load, keep=True)
        return held.value if held is not None and held.value.there else None

    def exists(self, levels: Levels) -> bool:
        """Return whether the namespace exists."""
        return self.find(levels) is not None

    def load(self, levels: Levels) -> Mapping[str, str]:
        """Return the properties of a namespace.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
        """
        return self._there(levels).value.properties

    def create(
        self,
        levels: Levels,
        properties: Mapping[str, str],
        *,
        repeat: IdempotencyKey | None = None,
        owner: str | None = None,
    ) -> Mapping[str, str]:
        """Create a namespace and return its properties.

        Args:
            levels: the levels of its name; the parent must exist.
            properties: its properties.
            repeat: the request's idempotency key.
            owner: the client id of the principal that owns it; None for nobody.

        Raises:
            AlreadyExistsError: the namespace exists.
            InvalidError: the name is not allowed, or the properties are too large.
            NoSuchNamespaceError: the parent does not exist, or what a repeated request made is gone since.
            ConflictError: concurrent changes won every attempt.
            OutcomeUnknownError: the namespace may have been created.
        """
        namespace_key(levels)  # a name that is not allowed is rejected before its parent is looked up
        _check_size(levels, properties)
        if len(levels) > 1:
            self.load(levels[:-1])
        for _ in self._core.patience.attempts(SWAP_ATTEMPTS_MAX):
            held = self._held(levels)
            if held is not None and self._core.repeated(held.value.memory, repeat):
                return _existing(levels, held).value.properties
            if held is not None and held.value.there:
                raise AlreadyExistsError(
                    f"Namespace already exists: {'.'.join(levels)}", namespace=".".join(levels)
                )
            if len(levels) > 1:
                held = self._begun(levels, held)
                if held is None:
                    continue
            wanted = replace(
                held.value if held else Namespace.blank(levels),
                state=NamespaceState.LIVE,
                properties=properties,
                uuid=self._core.new_uuid(),
                making=False,
                owner=owner,
            )
            _, done = self._write(wanted, held, repeat)
            if done:
                return properties
        raise lost(_changing(levels), SWAP_ATTEMPTS_MAX)

    def _begun(self, levels: Levels, held: Versioned[Namespace] | None) -> Versioned[Namespace] | None:
        """Mark a nested namespace as being created and require its parent; None if another writer won.

        A drop of the parent removes the mark, so that the last swap of the create fails.

        Raises:
            NoSuchNamespaceError: the parent does not exist.
        """
        base = held.value if held else Namespace.blank(levels)
        marked, _ = self._write(replace(base, making=True), held)
        if marked is not None:
            self.enter(levels[:-1])
        return marked

    def enter(self, levels: Levels) -> None:
        """Require a live namespace; cancels a drop in progress.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            ConflictError: concurrent changes won every attempt.
        """

        # A single read decides: the namespace could be dropped between two of them, unnoticed.
        def live(held: Versioned[Namespace]) -> Namespace | None:
            found = held.value
            return None if found.state is NamespaceState.LIVE else replace(found, state=NamespaceState.LIVE)

        self._update(levels, self._there, live, attempts_max=ENTER_ATTEMPTS_MAX)

    def update(
        self,
        levels: Levels,
        *,
        updates: Mapping[str, str],
        removals: Sequence[str],
        repeat: IdempotencyKey | None = None,
        uuid: str | None = None,
    ) -> PropertiesChanged:
        """Set and remove properties.

        Args:
            levels: the levels of the namespace's name.
            updates: properties to set.
            removals: names of properties to remove.
            repeat: the request's idempotency key.
            uuid: the uuid of the namespace that is meant; another one that got the name does not count.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            UnprocessableError: a name is both set and removed.
            InvalidError: the properties would be too large.
            ConflictError: concurrent changes won every attempt.
            OutcomeUnknownError: the properties may have been changed.
        """
        both = sorted(set(updates).intersection(removals))
        if both:
            raise UnprocessableError(f"Invalid namespace update: cannot set and remove the same keys: {both}")
        gone = frozenset(removals)
        # The answer if the request was already carried out: what was missing then is not recorded.
        removed, missing = list(removals), list[str]()

        def changed(held: Versioned[Namespace]) -> Namespace:
            nonlocal removed, missing
            found = _meant(levels, held, uuid).value
            removed = [name for name in removals if name in found.properties]
            missing = [name for name in removals if name not in found.properties]
            kept = {name: value for name, value in found.properties.items() if name not in gone}
            wanted = {**kept, **updates}
            _check_size(levels, wanted, before=found.properties)
            return replace(found, properties=wanted)

        self._update(levels, self._there, changed, repeat)
        return PropertiesChanged(updated=list(updates), removed=removed, missing=missing)

    def change_owner(self, levels: Levels, owner: str, *, uuid: str | None = None) -> None:
        """Make the principal with this client id the owner; what is in the namespace keeps its own.

        Args:
            levels: the levels of the namespace's name.
            owner: the client id.
            uuid: the uuid of the namespace that is meant; another one that got the name does not count.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            TarnError: as `update`.
        """

        def changed(held: Versioned[Namespace]) -> Namespace | None:
            found = _meant(levels, held, uuid).value
            return None if found.owner == owner else replace(found, owner=owner)

        self._update(levels, self._there, changed)

    def drop(self, levels: Levels, *, repeat: IdempotencyKey | None = None, uuid: str | None = None) -> None:
        """Drop an empty namespace.

        Args:
            levels: the levels of the namespace's name.
            repeat: the request's idempotency key.
            uuid: the uuid of the namespace that is meant; another one that got the name does not count.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            NotEmptyError: the namespace contains a table, a view or a namespace.
            ConflictError: concurrent changes won every attempt.
            OutcomeUnknownError: the namespace may have been dropped.
        """
        for _ in self._core.patience.attempts(SWAP_ATTEMPTS_MAX):
            held = self._held(levels)
            if held is not None and self._core.repeated(held.value.memory, repeat):
                return
            held = _meant(levels, _existing(levels, held), uuid)
            dropping, _ = self._write(replace(held.value, state=NamespaceState.DROPPING), held)
            if dropping is None:
                continue
            child = self._child(levels)
            if child is not None:
                self._write(replace(dropping.value, state=NamespaceState.LIVE), dropping)
                raise NotEmptyError(
                    f"Namespace {'.'.join(levels)} is not empty: it holds {child}; drop that first",
                    namespace=".".join(levels),
                    holds=child,
                )
            dropped = replace(dropping.value, state=NamespaceState.DROPPED, properties={})
            _, done = self._write(dropped, dropping, repeat)
            if done:
                return
        raise lost(_changing(levels), SWAP_ATTEMPTS_MAX)

    def _child(self, levels: Levels) -> str | None:
        """Return a description of one live table, view or namespace in the namespace, or None."""
        for listed in self._core.store.list(pointers_prefix(levels)):
            held = self._transactions.read_to_write(listed.key, Pointer.load)
            if held is not None and held.value.live:
                return f"{held.value.kind} {'.'.join((*levels, held.value.name))}"
        for listed in self._below(levels):
            below = namespace_of_key(listed.key)
            if self._exists_for_good(below):
                return f"namespace {'.'.join(below)}"
        return None

    def _exists_for_good(self, levels: Levels) -> bool:
        """Return whether a namespace exists; cancels a create in progress."""
        there = False

        def cancelled(held: Versioned[Namespace] | None) -> Namespace | None:
            nonlocal there
            there = held is not None and held.value.there
            return replace(held.value, making=False) if held is not None and held.value.making else None

        self._update(levels, self._held, cancelled)
        return there

    def _below(self, parent: Levels, after: str | None = None) -> Iterator[Listed]:
        """Yield the objects of the direct child namespaces, or of the top level; dropped ones included."""
        prefix = f"{NAMESPACES_PREFIX}{encode_namespace(parent)}." if parent else NAMESPACES_PREFIX
        for listed in self._core.store.list(NAMESPACES_PREFIX, after=after):
            encoded = listed.key.removesuffix(".json")
            if encoded.startswith(prefix) and "." not in encoded.removeprefix(prefix):
                yield listed

    def children(
        self,
        parent: Levels = (),
        *,
        token: str | None = None,
        page_size: int | None = None,
        shown: Shown | None = None,
    ) -> Page:
        """Return the direct child namespaces, or the top-level ones for an empty `parent`.

        Args:
            parent: the levels of the parent's name.
            token: the page token of the previous page.
            page_size: the maximum number of names; None for all.
            shown: whether the listing shows a namespace; None for all.

        Raises:
            NoSuchNamespaceError: the parent does not exist.
            InvalidError: the token is not one of a page.
        """
        if parent:
            self._there(parent)

        def read(listed: Listed) -> tuple[_Entry | None, bool]:
            held = self._core.read(listed.key, Namespace.load)
            there = held is not None and held.value.there
            return (held.value.uuid, held.value.owner) if held is not None and there else None, True

        def wanted(listed: Listed, entry: _Entry) -> bool:
            return shown is None or shown(namespace_of_key(listed.key), *entry)

        after = _after(token, lambda key: namespace_key((*parent, namespace_of_key(key)[-1])))
        found, last = self._live("namespace", self._below(parent, after), page_size, read, wanted)
        return Page(names=[namespace_of_key(key) for key in found], next_token=last)

    def list_tables(
        self,
        levels: Levels,
        *,
        kind: str,
        token: str | None = None,
        page_size: int | None = None,
        shown: Shown | None = None,
    ) -> Page:
        """Return the tables (or views) of a namespace.

        Args:
            levels: the levels of the namespace's name.
            kind: `table` or `view`.
            token: the page token of the previous page.
            page_size: the maximum number of names; None for all.
            shown: whether the listing shows a table or view; None for all.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            InvalidError: the token is not one of a page.
        """
        self._there(levels)

        def read(listed: Listed) -> tuple[_Entry | None, bool]:
            held = self._core.read(listed.key, Pointer.load)
            lasting = held is None or held.value.intent is None
            if not lasting:
                held = self._transactions.read(listed.key, Pointer.load)
            there = held is not None and held.value.live and held.value.kind == kind
            return (held.value.uuid, held.value.owner) if held is not None and there else None, lasting

        def wanted(listed: Listed, entry: _Entry) -> bool:
            return shown is None or shown((*levels, name_of_pointer_key(listed.key)), *entry)

        after = _after(token, lambda key: pointer_key(levels, name_of_pointer_key(key)))
        listing = self._core.store.list(pointers_prefix(levels), after=after)
        found, last = self._live(kind, listing, page_size, read, wanted)
        return Page(names=[(*levels, name_of_pointer_key(key)) for key in found], next_token=last)

    def _live(
        self,
        kind: str,
        listing: Iterable[Listed],
        page_size: int | None,
        read: Callable[[Listed], tuple[_Entry | None, bool]],
        wanted: Callable[[Listed, _Entry], bool],
    ) -> tuple[list[str], str | None]:
        """Return the keys of the live values of one kind, and the last key if the page is full.

        A value that has not changed since the last listing is not read again, unless it carried an intent.

        Args:
            kind: names the listing in the cache.
            listing: the candidates, in key order.
            page_size: the maximum number of keys; None for all.
            read: reads a value and returns (uuid and owner, None if it is not live or of another kind;
                whether that may be cached).
            wanted: whether the listing shows a live value.
        """
        found: list[str] = []
        candidates = list(listing)
        # In batches: a page that fills early must not cost reads of all remaining candidates.
        step = LIST_READERS * 4
        for start in range(0, len(candidates), step):
            for listed, entry in self._read(kind, candidates[start : start + step], read):
                if entry is None or not wanted(listed, entry):
                    continue
                if page_size is not None and len(found) == page_size:
                    return found, found[-1]
                found.append(listed.key)
        return found, None

    def _read(
        self, kind: str, batch: Sequence[Listed], read: Callable[[Listed], tuple[_Entry | None, bool]]
    ) -> list[tuple[Listed, _Entry | None]]:
        """Pair each candidate with what `read` returned for it; changed ones are read in parallel."""

        def memo(listed: Listed) -> str:
            return f"listed as {kind} {listed.key}"

        def fresh(listed: Listed) -> _Entry | None:
            entry, lasting = read(listed)
            if lasting:
                self._core.cache.put(memo(listed), (listed.etag, entry), MEMO_BYTES)
            return entry

        entries: dict[str, _Entry | None] = {}
        for listed in batch:
            etag, entry = self._core.cache.get(memo(listed)) or (None, None)
            if etag == listed.etag:
                entries[listed.key] = entry
        unread = [listed for listed in batch if listed.key not in entries]
        if len(unread) > 1:  # starting a thread takes longer than looking at what is known
            with ThreadPoolExecutor(max_workers=min(LIST_READERS, len(unread))) as readers:
                answers = list(readers.map(fresh, unread))
        else:
            answers = [fresh(listed) for listed in unread]
        entries.update(zip((listed.key for listed in unread), answers, strict=True))
        return [(listed, entries[listed.key]) for listed in batch]

    def _update(
        self,
        levels: Levels,
        read: Callable[[Levels], H],
        mutate: Callable[[H], Namespace | None],
        repeat: IdempotencyKey | None = None,
        *,
        attempts_max: int = SWAP_ATTEMPTS_MAX,
    ) -> None:
        """Change a namespace by one swap; see `CatalogContext.update`."""
        self._core.update(
            namespace_key(levels),
            lambda: read(levels),
            mutate,
            what=_changing(levels),
            attempts_max=attempts_max,
            repeat=repeat,
        )

    def _write(
        self, wanted: Namespace, over: Versioned[Namespace] | None, repeat: IdempotencyKey | None = None
    ) -> tuple[Versioned[Namespace] | None, bool]:
        """Swap in one value of an operation that takes several swaps.

        Args:
            wanted: the value with other fields; its version, nonce and history are still those before.
            over: the stored value to replace; None to create the key.
            repeat: the request's idempotency key.

        Returns:
            The stored value, to build on, None if it was replaced since or another writer won; and whether
            the write was committed.

        Raises:
            OutcomeUnknownError: the write may have happened.
        """
        stored, outcome = self._core.write(
            namespace_key(wanted.levels), wanted.next(self._core.stamp(repeat)), over=over
        )
        return stored, happened(outcome, _changing(wanted.levels))


def _check_size(
    levels: Levels, properties: Mapping[str, str], *, before: Mapping[str, str] | None = None
) -> None:
    """Require that every listing of namespaces can read the properties.

    Args:
        levels: the levels of the namespace's name.
        properties: the properties.
        before: those that it has, which may be too large: a former release had no limit.

    Raises:
        InvalidError: they are too large, and larger than before.
    """
    size = len(orjson.dumps(properties))
    if size > PROPERTIES_BYTES_MAX and (before is None or size > len(orjson.dumps(before))):
        raise InvalidError(
            f"Invalid properties of namespace {'.'.join(levels)}: {size} bytes in all, at most "
            f"{PROPERTIES_BYTES_MAX} are allowed; remove some, or make them shorter",
            bytes=size,
        )


def _changing(levels: Levels) -> str:
    return f"the change of namespace {'.'.join(levels)}"


def _existing(levels: Levels, held: Versioned[Namespace] | None) -> Versioned[Namespace]:
    """Return the value itself, checked to be that of an existing namespace.

    Raises:
        NoSuchNamespaceError: the namespace does not exist.
    """
    if held is None or not held.value.there:
        raise _missing(levels)
    return held


def _meant(levels: Levels, held: Versioned[Namespace], uuid: str | None) -> Versioned[Namespace]:
    """Return a namespace if it has the uuid; None stands for any.

    Raises:
        NoSuchNamespaceError: another one has the name.
    """
    if uuid not in (None, held.value.uuid):
        raise _missing(levels)
    return held


def _missing(levels: Levels) -> NoSuchNamespaceError:
    name = ".".join(levels)
    return NoSuchNamespaceError(f"Namespace does not exist: {name}", namespace=name)


def _after(token: str | None, again: Callable[[str], str]) -> str | None:
    """Return the key that a page token names, None for the first page; stores take nothing that is no key.

    Args:
        token: the page token, empty or None for the first page.
        again: makes the key again from the name in it.

    Raises:
        InvalidError: the token is not the key of a name in the listing.
    """
    if not token:
        return None
    try:
        good = again(token) == token
    except InvalidError:
        good = False
    if not good:
        raise InvalidError(
            f"Invalid pageToken {token[:200]!r}: give the next-page-token of the previous page of this "
            "listing, or none for the first page"
        )
    return token
