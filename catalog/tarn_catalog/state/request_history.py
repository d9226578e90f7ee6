"""What was done lately: commit nonces, and idempotency keys by time (invariants I3 and I4).

The newest entries live in the register's value itself. Entries with a key that do not fit there go to
immutable pages that the value names; pages are merged by tens so that they stay few. Keys are forgotten
by time only, never by count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

INLINE_MAX = 96
INLINE_KEPT = 48
PAGE_FAN_IN = 10
LIFETIME_MS = 60 * 60 * 1000
REMEMBERED_MS = 4 * LIFETIME_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRequest:
    """One finished operation.

    Attributes:
        nonce: of the register value that it wrote.
        version: of the register value that it wrote.
        at_ms: when, milliseconds since the epoch by the server's clock.
        key: the client's idempotency key.
        what: the operation and a digest of its payload.
    """

    nonce: str
    version: int
    at_ms: int
    key: str | None = None
    what: str | None = None

    def to_json(self) -> list[Any]:
        """As stored."""
        row: list[Any] = [self.nonce, self.version, self.at_ms]
        return row if self.key is None else [*row, self.key, self.what]

    @staticmethod
    def from_json(row: list[Any]) -> CompletedRequest:
        """From what was stored."""
        key, what = (row[3], row[4]) if len(row) > 3 else (None, None)
        return CompletedRequest(nonce=row[0], version=row[1], at_ms=row[2], key=key, what=what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """An immutable object with entries that did not fit.

    Attributes:
        key: where it is.
        level: how often its entries were merged; at most ten pages of one level exist.
        to_ms: the time of its newest entry.
    """

    key: str
    level: int
    to_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHistory:
    """The finished operations that one register value remembers.

    Attributes:
        inline: the newest, oldest first.
        pages: where older ones with a key are.
    """

    inline: tuple[CompletedRequest, ...] = ()
    pages: tuple[Page, ...] = ()

    def wrote(self, nonce: str, version: int) -> bool | None:
        """Whether the value with this nonce and version is an ancestor; None if too long ago to tell."""
        if any(done.nonce == nonce for done in self.inline):
            return True
        oldest = self.inline[0].version if self.inline else 0
        return False if oldest <= version else None

    def add(self, done: CompletedRequest) -> RequestHistory:
        """With one more."""
        return replace(self, inline=(*self.inline, done))

    def overflow(self) -> bool:
        """Whether `compact` is due."""
        return len(self.inline) > INLINE_MAX

    def find(
        self, key: str, read_page: Callable[[str], tuple[CompletedRequest, ...]]
    ) -> CompletedRequest | None:
        """What was done under this idempotency key, newest pages first."""
        for done in self.inline:
            if done.key == key:
                return done
        for page in reversed(self.pages):
            for done in read_page(page.key):
                if done.key == key:
                    return done
        return None

    def to_json(self) -> dict[str, Any]:
        """As stored."""
        return {
            "recent": [done.to_json() for done in self.inline],
            "key-pages": [[page.key, page.level, page.to_ms] for page in self.pages],
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> RequestHistory:
        """From what was stored."""
        return RequestHistory(
            inline=tuple(CompletedRequest.from_json(row) for row in value["recent"]),
            pages=tuple(Page(key=row[0], level=row[1], to_ms=row[2]) for row in value["key-pages"]),
        )


def compact(
    memory: RequestHistory,
    *,
    now_ms: int,
    new_key: Callable[[], str],
    read_page: Callable[[str], tuple[CompletedRequest, ...]],
    write_page: Callable[[str, tuple[CompletedRequest, ...]], None],
) -> RequestHistory:
    """`memory` with its older entries moved to pages, and what is older than the window forgotten.

    Args:
        memory: with too many entries in line.
        now_ms: the server's time.
        new_key: gives a fresh object key.
        read_page: gives a page's entries.
        write_page: writes a page; it is complete before the value that names it.
    """
    horizon_ms = now_ms - REMEMBERED_MS
    old, kept = memory.inline[:-INLINE_KEPT], memory.inline[-INLINE_KEPT:]
    moved = tuple(done for done in old if done.key is not None and done.at_ms >= horizon_ms)
    pages = [page for page in memory.pages if page.to_ms >= horizon_ms]
    if not moved:
        return RequestHistory(inline=kept, pages=tuple(pages))
    level = 0
    while True:
        same = [page for page in pages if page.level == level]
        if len(same) < PAGE_FAN_IN - 1:
            break
        entries = [done for page in same for done in read_page(page.key) if done.at_ms >= horizon_ms]
        moved = (*entries, *moved)
        pages = [page for page in pages if page.level != level]
        level += 1
    key = new_key()
    write_page(key, moved)
    pages.append(Page(key=key, level=level, to_ms=max(done.at_ms for done in moved)))
    pages.sort(key=lambda page: (-page.level, page.to_ms))
    return RequestHistory(inline=kept, pages=tuple(pages))
