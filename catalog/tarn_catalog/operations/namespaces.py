"""Namespaces: one register object each, with the states live, dropping and dropped.

Dropping takes two swaps, live -> dropping -> dropped, with a look for tables in between. Whoever makes a
table in a namespace first writes the intent to, then looks at the namespace, then commits. A namespace that
is being dropped is swapped back to live, so that the second swap of the drop is refused; one that is dropped
ends the attempt. The look of the drop settles every intent that it meets. So one of the two sees the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tarn.adapters.store import Listed
from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NoSuchNamespaceError,
    NotEmptyError,
    OutcomeUnknownError,
)
from tarn.core.naming import (
    NAMESPACES_PREFIX,
    encode_namespace,
    name_of_pointer_key,
    namespace_key,
    namespace_of_key,
    pointers_prefix,
)
from tarn.core.outcome import Committed, Conflict, Unknown
from tarn_catalog.state.context import MEMO_BYTES, CatalogContext, IdempotencyKey, Versioned
from tarn_catalog.state.pointer import Namespace, NamespaceState, Pointer
from tarn_catalog.state.register import Superseded
from tarn_catalog.state.transactions import Transactions

SWAP_ATTEMPTS_MAX = 10
LIST_READERS = 8

Levels = tuple[str, ...]


class UnprocessableError(InvalidError):
    """The parts of a request contradict each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertiesChanged:
    """What an update of properties did.

    Attributes:
        updated: names that were set.
        removed: names that were removed.
        missing: names that were to be removed and were not there.
    """

    updated: Sequence[str]
    removed: Sequence[str]
    missing: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A write that happened.

    Attributes:
        held: what is stored, to swap on; None if others have changed it since.
    """

    held: Versioned[Namespace] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a listing.

    Attributes:
        names: what was found, in key order.
        next_token: gives the next part; None at the end.
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
        held = self._held(levels)
        if held is None or not held.value.there:
            raise no_such_namespace(levels)
        return held

    def exists(self, levels: Levels) -> bool:
        """Whether it is there."""
        held = self._held(levels)
        return held is not None and held.value.there

    def load(self, levels: Levels) -> Mapping[str, str]:
        """Its properties.

        Raises:
            NoSuchNamespaceError: it is not there.
        """
        return self._there(levels).value.properties

    def create(
        self, levels: Levels, properties: Mapping[str, str], *, repeat: IdempotencyKey | None = None
    ) -> Mapping[str, str]:
        """Make it, and return its properties.

        Raises:
            AlreadyExistsError: it is there.
            NoSuchNamespaceError: the one above it is not there.
            OutcomeUnknownError: it may have been made.
        """
        key = namespace_key(levels)
        if len(levels) > 1:
            self._there(levels[:-1])
        for attempt in range(1, SWAP_ATTEMPTS_MAX + 1):
            if attempt > 1:
                self._core.patience.pause(attempt - 1)
            held = self._held(levels)
            if held is not None and self._core.repeated(held.value.memory, repeat):
                return held.value.properties
            if held is not None and held.value.there:
                raise AlreadyExistsError(
                    f"Namespace already exists: {'.'.join(levels)}", namespace=".".join(levels)
                )
            if len(levels) > 1:
                held = self._begun(levels, held)
                if held is None:
                    continue
            base = held.value if held else self._blank(levels)
            if self._write(
                key, base, held, NamespaceState.LIVE, properties, repeat, uuid=self._core.new_uuid()
            ):
                return properties
        raise self._lost(levels)

    def _begun(self, levels: Levels, held: Versioned[Namespace] | None) -> Versioned[Namespace] | None:
        """The object, marked as being made, below a namespace that is there; None if others were first.

        Who drops the one above takes the mark away, and so the last swap of the making is refused.
        """
        base = held.value if held else self._blank(levels)
        written = self._write(
            namespace_key(levels), base, held, NamespaceState.DROPPED, None, None, making=True
        )
        if written is None or written.held is None:
            return None
        self.enter(levels[:-1])
        return written.held

    def _blank(self, levels: Levels) -> Namespace:
        return Namespace(
            levels=levels, uuid="", state=NamespaceState.DROPPED, version=0, nonce=self._core.new_uuid()
        )

    def enter(self, levels: Levels) -> None:
        """Nothing, if the namespace is live, made so again if it was being dropped.

        Raises:
            NoSuchNamespaceError: it is not there.
        """
        for _ in range(SWAP_ATTEMPTS_MAX):
            # One look decides: between two the namespace may go, and the caller must hear of it.
            held = self._held(levels)
            if held is None or not held.value.there:
                raise no_such_namespace(levels)
            if held.value.state is NamespaceState.LIVE:
                return
            if self._write(namespace_key(levels), held.value, held, NamespaceState.LIVE, None, None):
                return
        raise self._lost(levels)

    def update(
        self,
        levels: Levels,
        *,
        updates: Mapping[str, str],
        removals: Sequence[str],
        repeat: IdempotencyKey | None = None,
    ) -> PropertiesChanged:
        """Set and remove properties.

        Raises:
            NoSuchNamespaceError: it is not there.
            UnprocessableError: a name is both set and removed.
        """
        both = sorted(set(updates).intersection(removals))
        if both:
            raise UnprocessableError(f"Invalid namespace update: cannot set and remove the same keys: {both}")
        for _ in range(SWAP_ATTEMPTS_MAX):
            held = self._there(levels)
            before = held.value.properties
            gone = [name for name in removals if name in before]
            changed = PropertiesChanged(
                updated=list(updates),
                removed=gone,
                missing=[name for name in removals if name not in before],
            )
            if self._core.repeated(held.value.memory, repeat):
                return PropertiesChanged(updated=list(updates), removed=list(removals), missing=[])
            after = {**{n: v for n, v in before.items() if n not in gone}, **updates}
            key = namespace_key(levels)
            if self._write(key, held.value, held, held.value.state, after, repeat):
                return changed
        raise self._lost(levels)

    def drop(self, levels: Levels, *, repeat: IdempotencyKey | None = None) -> None:
        """Drop it if nothing is in it.

        Raises:
            NoSuchNamespaceError: it is not there.
            NotEmptyError: it holds a table, a view or a namespace.
            ConflictError: something was made in it meanwhile.
        """
        key = namespace_key(levels)
        for _ in range(SWAP_ATTEMPTS_MAX):
            held = self._held(levels)
            if held is not None and self._core.repeated(held.value.memory, repeat):
                return
            if held is None or not held.value.there:
                raise no_such_namespace(levels)
            written = self._write(key, held.value, held, NamespaceState.DROPPING, None, None)
            if written is None or written.held is None:
                continue
            dropping = written.held
            child = self._child(levels)
            if child is not None:
                self._write(key, dropping.value, dropping, NamespaceState.LIVE, None, None)
                raise NotEmptyError(
                    f"Namespace {'.'.join(levels)} is not empty: it holds {child}; drop that first",
                    namespace=".".join(levels),
                    holds=child,
                )
            if self._write(key, dropping.value, dropping, NamespaceState.DROPPED, {}, repeat):
                return
        raise self._lost(levels)

    def _child(self, levels: Levels) -> str | None:
        """Something live in the namespace, or None."""
        for listed in self._core.store.list(pointers_prefix(levels)):
            held = self._transactions.read_to_write(listed.key, Pointer.load)
            if held is not None and held.value.live:
                return f"{held.value.kind} {'.'.join((*levels, held.value.name))}"
        for listed in self._below(levels):
            below = self._unmade(namespace_of_key(listed.key))
            if below is not None and below.value.there:
                return f"namespace {'.'.join(below.value.levels)}"
        return None

    def _unmade(self, levels: Levels) -> Versioned[Namespace] | None:
        """The object of a namespace, with no making of it under way any more."""
        for _ in range(SWAP_ATTEMPTS_MAX):
            held = self._held(levels)
            if held is None or not held.value.making:
                return held
            self._write(namespace_key(levels), held.value, held, NamespaceState.DROPPED, None, None)
        raise self._lost(levels)

    def _below(self, parent: Levels, after: str | None = None) -> Iterator[Listed]:
        """The objects of the namespaces right below another, or of the top ones; also of those dropped."""
        prefix = f"{NAMESPACES_PREFIX}{encode_namespace(parent)}." if parent else NAMESPACES_PREFIX
        for listed in self._core.store.list(NAMESPACES_PREFIX, after=after):
            encoded = listed.key.removesuffix(".json")
            if encoded.startswith(prefix) and "." not in encoded.removeprefix(prefix):
                yield listed

    def children(
        self, parent: Levels = (), *, token: str | None = None, page_size: int | None = None
    ) -> Page:
        """The namespaces right below another, or the top ones.

        Raises:
            NoSuchNamespaceError: the other is not there.
        """
        if parent:
            self._there(parent)

        def wanted(listed: Listed) -> tuple[bool, bool]:
            held = self._core.read(listed.key, Namespace.load)
            return held is not None and held.value.there, True

        found, last = self._live("namespace", self._below(parent, token or None), page_size, wanted)
        return Page(names=[namespace_of_key(key) for key in found], next_token=last)

    def list_tables(
        self, levels: Levels, *, kind: str, token: str | None = None, page_size: int | None = None
    ) -> Page:
        """The tables (or views) of a namespace.

        Raises:
            NoSuchNamespaceError: it is not there.
        """
        self._there(levels)

        def wanted(listed: Listed) -> tuple[bool, bool]:
            held = self._core.read(listed.key, Pointer.load)
            lasting = held is None or held.value.intent is None
            if not lasting:
                held = self._transactions.read(listed.key, Pointer.load)
            return held is not None and held.value.live and held.value.kind == kind, lasting

        listing = self._core.store.list(pointers_prefix(levels), after=token or None)
        found, last = self._live(kind, listing, page_size, wanted)
        return Page(names=[(*levels, name_of_pointer_key(key)) for key in found], next_token=last)

    def _live(
        self,
        kind: str,
        listing: Iterable[Listed],
        page_size: int | None,
        wanted: Callable[[Listed], tuple[bool, bool]],
    ) -> tuple[list[str], str | None]:
        """The keys whose value is wanted (a live one of this kind), and the last one if a page ended there.

        A value that has not changed since the last listing is not read again, if what it says lasts as long.
        """

        def is_wanted(listed: Listed) -> bool:
            memo = f"listed as {kind} {listed.key}"
            etag, known = self._core.cache.get(memo) or (None, False)
            if etag != listed.etag:
                known, lasting = wanted(listed)
                if lasting:
                    self._core.cache.put(memo, (listed.etag, known), MEMO_BYTES)
            return bool(known)

        found: list[str] = []
        candidates = list(listing)
        step = LIST_READERS * 4
        with ThreadPoolExecutor(max_workers=LIST_READERS) as readers:
            for start in range(0, len(candidates), step):
                batch = candidates[start : start + step]
                for listed, good in zip(batch, readers.map(is_wanted, batch), strict=True):
                    if not good:
                        continue
                    if page_size is not None and len(found) == page_size:
                        return found, found[-1]
                    found.append(listed.key)
        return found, None

    def _write(
        self,
        key: str,
        base: Namespace,
        over: Versioned[Namespace] | None,
        state: NamespaceState,
        properties: Mapping[str, str] | None,
        repeat: IdempotencyKey | None,
        *,
        uuid: str | None = None,
        making: bool = False,
    ) -> _Written | None:
        """None if somebody else was first."""
        wanted = base.next(
            nonce=self._core.new_uuid(),
            now_ms=self._core.now_ms(),
            state=state,
            properties=properties,
            key=repeat.key if repeat else None,
            what=repeat.what if repeat else None,
            uuid=uuid,
            making=making,
        )
        value, outcome = self._core.write(key, wanted, over=over)
        match outcome:
            case Superseded():
                return _Written(held=None)
            case Committed(etag=etag):
                return _Written(held=Versioned(value=value, etag=etag))
            case Conflict():
                return None
            case Unknown(reason=reason):
                raise OutcomeUnknownError(
                    f"Cannot tell whether namespace {'.'.join(base.levels)} was changed: {reason}; load it "
                    "and look",
                    namespace=".".join(base.levels),
                )

    def _lost(self, levels: Levels) -> ConflictError:
        return ConflictError(
            f"Cannot change namespace {'.'.join(levels)}: others changed it {SWAP_ATTEMPTS_MAX} times "
            "meanwhile; try again",
            namespace=".".join(levels),
        )


def no_such_namespace(levels: Levels) -> NoSuchNamespaceError:
    """The error if it is not there."""
    return NoSuchNamespaceError(f"Namespace does not exist: {'.'.join(levels)}", namespace=".".join(levels))
