"""Who may write is the catalog's to say, with the caller's own token, which the gateway does not keep."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref

import pytest

from tarn.adapters.catalog_rights import CatalogRights
from tarn.core.errors import ForbiddenError
from tarn.core.table_catalog import TableName
from tarn.gateway import access
from tarn.gateway.writes import BusyError
from tests.support.gateway import NAME, World, row


def test_only_who_may_write_the_table_writes_it(world: World) -> None:
    gateway = world.gateway()
    world.principal("writer", "WRITE")
    world.principal("reader", "READ")
    world.principal("nobody")
    url = f"{gateway.url}/v1/tables/bronze.orders/rows"
    assert world.post(gateway, row(1), who="writer").status_code == 200
    for who in ("reader", "nobody"):
        answer = world.post(gateway, row(2), who=who)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "Forbidden"), who
    missing = world.http.post(url, json=row(3))
    wrong = world.http.post(url, json=row(3), headers={"authorization": "Bearer abc.def.ghi"})
    basic = world.http.post(url, json=row(3), headers={"authorization": "Basic YTpi"})
    for answer in (missing, wrong, basic):
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="tarn"')
    assert world.ids() == [1]


def test_a_foreign_table_is_refused_whether_it_exists_or_not(world: World) -> None:
    gateway = world.gateway()
    world.principal("writer", "WRITE")
    assert world.post(gateway, row(1), who="writer", table="ops.dead_letters").status_code == 403
    assert world.post(gateway, row(1), who="writer", table="ops.nothing").status_code == 403


def test_a_revocation_holds_after_the_time_that_an_answer_counts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "ALLOWED_S", 0.3)
    gateway = world.gateway()
    world.principal("writer", "WRITE")
    assert world.post(gateway, row(1), who="writer").status_code == 200
    world.revoke("writer", "WRITE")
    time.sleep(0.4)
    assert world.post(gateway, row(2), who="writer").status_code == 403
    assert world.ids() == [1]


def test_a_grant_holds_soon_after_a_refusal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "REFUSED_S", 0.2)
    gateway = world.gateway()
    world.principal("bob")
    assert world.post(gateway, row(1), who="bob").status_code == 403
    world.admin(
        "POST",
        "/tarn/v1/grants",
        {
            "on": {"kind": "table", "namespace": ["bronze"], "name": "orders"},
            "to": "bob",
            "privileges": ["WRITE"],
        },
    )
    time.sleep(0.3)
    assert world.post(gateway, row(1), who="bob").status_code == 200


def test_a_table_that_is_asked_about_changes_by_nothing(world: World) -> None:
    gateway = world.gateway()
    before = world.lake.table().metadata
    assert world.post(gateway, b"", who="admin").status_code == 400
    assert world.lake.table().metadata == before


def test_the_token_is_not_kept(world: World) -> None:
    gateway = world.gateway()
    world.post(gateway, row(1))
    known = gateway.gate._known
    assert [table for _, table in known] == [NAME]
    assert world.tokens["admin"] not in repr(known)
    assert world.tokens["admin"].encode() not in b"".join(digest for digest, _ in known)
    assert not gateway.gate._asking


class Slow:
    """Rights whose answer takes a while."""

    def __init__(self) -> None:
        self.asked = 0

    def writer(self, token: str, table: TableName) -> str:
        self.asked += 1
        time.sleep(0.2)
        return token


def test_one_question_serves_all_who_wait_for_it_and_strangers_are_few_at_a_time() -> None:
    async def ask() -> list[object]:
        gate = access.Gate(Slow())
        same = [gate.writer("same", NAME) for _ in range(10)]
        others = [gate.writer(f"t{n}", NAME) for n in range(access.STRANGERS_MAX)]
        return list(await asyncio.gather(*same, *others, return_exceptions=True))

    found = asyncio.run(ask())
    assert found[:10] == ["same"] * 10
    refused = [one for one in found if isinstance(one, Exception)]
    assert [type(one).__name__ for one in refused] == ["BusyError"]


class Quick:
    """Rights that allow those whose token begins with `a`, and refuse others."""

    def writer(self, token: str, table: TableName) -> str:
        if not token.startswith("a"):
            raise ForbiddenError(f"may not write {table}")
        return token


class Request:
    """What a caller's request holds in memory."""


def test_a_refusal_that_counts_for_a_while_keeps_no_request_in_memory() -> None:
    """Whoever has no valid token could fill the gateway's memory otherwise."""
    held = weakref.WeakSet[Request]()

    async def refused(gate: access.Gate) -> str:
        request = Request()
        held.add(request)
        try:
            return await gate.writer("bob", NAME)
        except ForbiddenError as e:
            return str(e)

    async def ask() -> set[str]:
        gate = access.Gate(Quick(), clock=lambda: 0.0)
        said = {await refused(gate)}
        waiting = await asyncio.gather(*(gate.writer("ben", NAME) for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in waiting] == [ForbiddenError] * 3
        del waiting
        said |= {await refused(gate) for _ in range(5)}
        gc.collect()
        assert not held
        assert [one.error.__traceback__ for one in gate._known.values() if one.error] == [None, None]
        return said

    assert asyncio.run(ask()) == {f"may not write {NAME}"}


@pytest.mark.parametrize(("token", "busy"), [("bob-{}", 1), ("alice-{}", 0)])
def test_who_was_refused_is_a_stranger_again_and_who_was_allowed_is_not(token: str, busy: int) -> None:
    now_s = 0.0
    names = [token.format(n) for n in range(access.STRANGERS_MAX + 1)]

    async def ask() -> list[object]:
        nonlocal now_s
        gate = access.Gate(Quick(), clock=lambda: now_s)
        for name in names:
            await asyncio.gather(gate.writer(name, NAME), return_exceptions=True)
        now_s += access.ALLOWED_S + access.REFUSED_S
        return list(await asyncio.gather(*(gate.writer(one, NAME) for one in names), return_exceptions=True))

    found = asyncio.run(ask())
    assert sum(isinstance(one, BusyError) for one in found) == busy


def test_answers_for_so_many_callers_are_kept_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "KNOWN_MAX", 3)

    async def ask() -> access.Gate:
        gate = access.Gate(Quick(), clock=lambda: 0.0)
        for name in ("a1", "a2", "a3", "a4", "a5"):
            assert await gate.writer(name, NAME) == name
        return gate

    assert [one.client_id for one in asyncio.run(ask())._known.values()] == ["a3", "a4", "a5"]


def test_a_catalog_that_is_away_is_said(world: World) -> None:
    gateway = world.gateway()
    gateway.gate._rights = CatalogRights("http://127.0.0.1:9")
    answer = world.post(gateway, row(1))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "does not say who may write" in answer.json()["error"]["message"]


def test_what_the_gateways_own_principal_may_not_is_not_the_callers_fault(world: World) -> None:
    world.principal("weak", "READ")
    gateway = world.gateway(own="weak")
    answer = world.post(gateway, row(1))
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Unavailable")
    assert "the gateway may not write table bronze.orders" in answer.json()["error"]["message"]
    assert world.ids() == []
