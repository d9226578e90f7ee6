"""HTTP of the tests' own process: certificates are read once, servers look often, all else is as it is."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpx
import pytest
import uvicorn.server

from tests.support import quick_http


def context_of(client: httpx.Client) -> ssl.SSLContext:
    transport: Any = client._transport
    found: ssl.SSLContext = transport._pool._ssl_context
    return found


def test_clients_share_the_certificates_and_check_them_unless_told_otherwise() -> None:
    with httpx.Client() as one, httpx.Client() as other, httpx.Client(verify=False) as careless:
        assert context_of(one) is context_of(other)
        assert context_of(one).verify_mode == ssl.CERT_REQUIRED
        assert context_of(one).check_hostname
        assert context_of(careless).verify_mode == ssl.CERT_NONE


def test_a_server_looks_often_whether_it_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    async def sleep(seconds: float) -> None:
        seen.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    server = uvicorn.Server(uvicorn.Config("none:none"))
    ticks = iter([False, False, True])

    async def on_tick(_: int) -> bool:
        return next(ticks)

    monkeypatch.setattr(server, "on_tick", on_tick)
    asyncio.run(server.main_loop())
    assert seen == [quick_http.TICK_S] * 2


def test_only_who_says_no_limit_waits_long_for_an_answer() -> None:
    with httpx.Client() as one, httpx.Client(timeout=3) as other:
        assert one.timeout == httpx.Timeout(quick_http.ANSWER_S)
        assert other.timeout == httpx.Timeout(3)
    assert httpx.AsyncClient().timeout == httpx.Timeout(quick_http.ANSWER_S)


def test_made_quick_twice_is_made_quick_once() -> None:
    servers: Any = uvicorn.server
    before = servers.asyncio
    quick_http.make_quick()
    assert servers.asyncio is before
    assert before.wait_for is asyncio.wait_for
