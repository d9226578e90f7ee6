"""HTTP in the tests' own process with less work and more patience; what is said on the wire is the same."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

TICK_S = 0.01
ANSWER_S = 60.0
"""How long a client waits for an answer if nobody gave it a limit; the library's 5 s are a short stall."""


def make_quick() -> None:
    """Let clients share the certificates of all authorities, and servers notice at once that they are to end.

    httpx reads those certificates for each client, 25 ms of processor time, and the tests speak plain HTTP.
    uvicorn looks ten times a second whether it is to end, and then whether its connections have ended.
    A limit that a test gives holds; a test that gives none does not fail because the machine stood still.
    """
    import httpx._config
    import httpx._transports.default
    import uvicorn.server

    clients: Any = httpx._transports.default
    if not hasattr(clients.create_ssl_context, "cache_info"):
        clients.create_ssl_context = functools.cache(clients.create_ssl_context)
    # One object, which all clients and functions of the library have as their default.
    patient = httpx._config.DEFAULT_TIMEOUT_CONFIG
    patient.connect = patient.read = patient.write = patient.pool = ANSWER_S
    servers: Any = uvicorn.server
    if servers.asyncio is asyncio:
        servers.asyncio = _Asyncio()


class _Asyncio:
    """asyncio as uvicorn's server sees it, whose sleeps are short."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, TICK_S))
