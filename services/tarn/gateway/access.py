"""Whether the caller may write a table: the catalog is asked with the caller's own token.

An answer counts for some seconds, as everywhere in the lake. What is kept is a fingerprint of the token, made
with a key of this process; the token itself is in memory only while its request is.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import anyio.to_thread

from tarn.core.errors import AccessError, NotFoundError, TarnError
from tarn.core.table_catalog import TableName
from tarn.gateway.writes import BusyError

ALLOWED_S = 5.0
REFUSED_S = 2.0
KNOWN_MAX = 10_000
STRANGERS_MAX = 16
"""Questions to the catalog at one time for callers that it has not allowed before."""

Key = tuple[bytes, TableName]


class Rights(Protocol):
    """Asks the catalog. Thread-safe."""

    def writer(self, token: str, table: TableName) -> str:
        """The client id of the token's principal, which may write the table.

        Raises:
            UnauthenticatedError: the token is not valid.
            ForbiddenError: the principal may not write it.
            NoSuchTableError: there is no such table.
            UnavailableError: the catalog does not respond.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An answer of the catalog.

    Attributes:
        client_id: client id of the principal; empty if it was refused.
        error: why it was refused, to be raised as a copy; None if it may write.
        until_s: until when it counts, on the monotonic clock.
    """

    client_id: str = ""
    error: TarnError | None = None
    until_s: float


class Gate:
    """Lets callers through that may write a table. On the event loop.

    Args:
        rights: asks the catalog.
        clock: monotonic time in seconds.
    """

    def __init__(self, rights: Rights, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rights = rights
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._known: OrderedDict[Key, Known] = OrderedDict()
        self._asking: dict[Key, asyncio.Task[str]] = {}
        self._strangers = 0

    async def writer(self, token: str, table: TableName) -> str:
        """The client id of the caller, who may write the table.

        Raises:
            AccessError, NotFoundError: the caller may not, or there is no such table.
            UnavailableError: the catalog does not respond; `BusyError` if too many are asked about.
        """
        key = self._key(token, table)
        known = self._known.get(key)
        if known is not None and known.until_s > self._clock():
            if known.error is not None:
                raise copy(known.error)
            return known.client_id
        task = self._asking.get(key)
        if task is None:
            stranger = known is None or known.error is not None
            if stranger and self._strangers >= STRANGERS_MAX:
                raise BusyError(
                    f"the catalog is being asked about {self._strangers} new callers; send it again "
                    "in a moment",
                    retry_after_s=1.0,
                )
            self._strangers += stranger
            task = asyncio.ensure_future(self._ask(key, token))
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done, stranger=stranger))
        return await asyncio.shield(task)

    def known(self, token: str, table: TableName) -> str | None:
        """The client id of a caller of whom it is known that it may write the table; None if it is not."""
        known = self._known.get(self._key(token, table))
        if known is None or known.error is not None or known.until_s <= self._clock():
            return None
        return known.client_id

    def _key(self, token: str, table: TableName) -> Key:
        return hashlib.blake2b(token.encode(), key=self._secret, digest_size=32).digest(), table

    async def _ask(self, key: Key, token: str) -> str:
        try:
            client_id = await anyio.to_thread.run_sync(self._rights.writer, token, key[1])
        except (AccessError, NotFoundError) as e:
            # A copy that is never raised: an error holds on to all calls that it passed, and so to requests.
            self._keep(key, Known(error=copy(e), until_s=self._clock() + REFUSED_S))
            raise
        self._keep(key, Known(client_id=client_id, until_s=self._clock() + ALLOWED_S))
        return client_id

    def _keep(self, key: Key, known: Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _asked(self, key: Key, done: asyncio.Task[str], *, stranger: bool) -> None:
        self._strangers -= stranger
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever waited has it; nobody may be left
