"""Completed requests: recent write nonces, and idempotency keys kept for four hours (invariants I3, I4).

The newest entries are inline in the register value. Older entries that carry a key go to immutable pages that
the value references; ten pages of a level are merged into one of the next, so that there are few (as in an
LSM tree). Keys expire by time only, never by count. `state.key_pages` has the pages' objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

INLINE_MAX = 96
INLINE_KEPT = 48
PAGE_FAN_IN = 10
LIFETIME_MS = 60 * 60 * 1000
REMEMBERED_MS = 4 * LIFETIME_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRequest:
    """One completed operation.

    Stored as a JSON array: nonce, version, at_ms and, if there is a key, key and what.

    Attributes:
        nonce: the nonce of the register value that it wrote.
        version: the version of the register value that it wrote.
        at_ms: time by the server's clock, milliseconds since the epoch.
        key: the client's idempotency key.
        what: the operation and a digest of its payload.
    """

    nonce: str
    version: int
    at_ms: int
    key: str | None = None
    what: str | None = None

    def to_json(self) -> list[Any]:
        """Return the stored JSON array."""
        row: list[Any] = [self.nonce, self.version, self.at_ms]
        return row if self.key is None else [*row, self.key, self.what]

    @staticmethod
    def from_json(row: list[Any]) -> CompletedRequest:
        """Parse the stored JSON array."""
        key, what = (row[3], row[4]) if len(row) > 3 else (None, None)
        return CompletedRequest(nonce=row[0], version=row[1], at_ms=row[2], key=key, what=what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Reference to an immutable object with older entries; stored as a JSON array of the three fields.

    Attributes:
        key: the object's key.
        level: how often its entries were merged; a level has fewer than ten pages.
        to_ms: the time of its newest entry, milliseconds since the epoch.
    """

    key: str
    level: int
    to_ms: int


PageEntries = Mapping[str, CompletedRequest]
"""The entries of a page by their key, oldest first."""
ReadPage = Callable[[str], PageEntries]


class Lookup(Protocol):
    """Looks for keys in pages, which are named by the key of their object."""

    def may_have(self, page: str, key: str) -> bool:
        """Return whether the page may have an entry of the key; False is certain."""
        ...

    def read(self, page: str) -> PageEntries:
        """Return the entries of the page."""
        ...


def page_of(entries: Iterable[CompletedRequest]) -> PageEntries:
    """Return the entries of a page by their key; those without one are left out."""
    return {done.key: done for done in entries if done.key is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHistory:
    """The completed requests of one register value.

    Stored as the fields `recent` (array of entries) and `key-pages` (array of page references) of that value.

    Attributes:
        inline: the newest entries, oldest first.
        pages: references to older entries that carry a key.
    """

    inline: tuple[CompletedRequest, ...] = ()
    pages: tuple[Page, ...] = ()

    def wrote(self, nonce: str, version: int) -> bool | None:
        """Return whether the value with this nonce and version is an ancestor; None if too old to decide."""
        if any(done.nonce == nonce for done in self.inline):
            return True
        oldest = self.inline[0].version if self.inline else 0
        return False if oldest <= version else None

    def add(self, done: CompletedRequest) -> RequestHistory:
        """Return the history with one more entry."""
        return replace(self, inline=(*self.inline, done))

    def overflow(self) -> bool:
        """Return whether `compact` is due."""
        return len(self.inline) > INLINE_MAX

    def find(self, key: str, pages: Lookup) -> CompletedRequest | None:
        """Return the entry of an idempotency key, or None; searches inline, then pages from the last."""
        for done in self.inline:
            if done.key == key:
                return done
        for page in reversed(self.pages):
            # Nearly every key is new, and old ones may be very many: no page is read for a new one.
            found = pages.read(page.key).get(key) if pages.may_have(page.key, key) else None
            if found is not None:
                return found
        return None

    def to_json(self) -> dict[str, Any]:
        """Return the stored JSON fields."""
        return {
            "recent": [done.to_json() for done in self.inline],
            "key-pages": [[page.key, page.level, page.to_ms] for page in self.pages],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RequestHistory:
        """Parse the stored JSON fields."""
        return RequestHistory(
            inline=tuple(CompletedRequest.from_json(row) for row in value["recent"]),
            pages=tuple(Page(key=row[0], level=row[1], to_ms=row[2]) for row in value["key-pages"]),
        )


def compact(
    memory: RequestHistory,
    *,
    now_ms: int,
    new_key: Callable[[], str],
    read_page: ReadPage,
    write_page: Callable[[str, tuple[CompletedRequest, ...]], None],
) -> RequestHistory:
    """Return `memory` with its older entries moved to pages and entries over four hours old removed.

    Args:
        memory: a history with too many inline entries.
        now_ms: the server's time, milliseconds since the epoch.
        new_key: returns a new object key.
        read_page: returns the entries of a page.
        write_page: writes a page; it is complete before the register value references it.
    """
    horizon_ms = now_ms - REMEMBERED_MS
    old, kept = memory.inline[:-INLINE_KEPT], memory.inline[-INLINE_KEPT:]
    moved = tuple(done for done in old if done.key is not None and done.at_ms >= horizon_ms)
    pages = [page for page in memory.pages if page.to_ms >= horizon_ms]
    if not moved:
        return RequestHistory(inline=kept, pages=tuple(pages))
    # Like an LSM compaction: when a level is full, its pages and the new entries make one of the next level.
    level = 0
    while True:
        same = [page for page in pages if page.level == level]
        if len(same) < PAGE_FAN_IN - 1:
            break
        entries = [done for page in same for done in read_page(page.key).values() if done.at_ms >= horizon_ms]
        moved = (*entries, *moved)
        pages = [page for page in pages if page.level != level]
        level += 1
    key = new_key()
    write_page(key, moved)
    pages.append(Page(key=key, level=level, to_ms=max(done.at_ms for done in moved)))
    # Oldest first, because `find` searches from the last page.
    pages.sort(key=lambda page: (-page.level, page.to_ms))
    return RequestHistory(inline=kept, pages=tuple(pages))
