"""A lake over HTTP with several principals, for the tests of access."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tarn.adapters.store import MemoryStore
from tarn.core.naming import WarehouseLayout
from tarn.core.temporary_keys import TokenService
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.vending import Vending
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import FaultyStore
from tarn_catalog.testing.server import serving

SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}
ROOTS = WarehouseLayout(base="s3://tarn")
BEGAN_S = time.time() - 1_000
VERSION = {
    **{"version-id": 1, "timestamp-ms": 1_000, "schema-id": 0, "summary": {}, "default-namespace": ["ns"]},
    "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
}


class World:
    """One lake behind a server with a clock of the test's own, and a client for each principal.

    Attributes:
        store: the store of the lake.
        clock_s: what the catalog takes for the monotonic clock, seconds.
        clients: name of each principal -> its client; `admin` is the service's own principal.
        credentials: name of each principal -> `client_id:client_secret`.
    """

    def __init__(self, folder: Path, stack: ExitStack, tokens: TokenService | None = None) -> None:
        self.store = FaultyStore(MemoryStore())
        self.clock_s = 1_000.0
        self.tokens = tokens
        self.core = self.catalog()
        self.running = stack.enter_context(serving(self.core, folder / "secrets"))
        self.stack = stack
        self.credentials = {"admin": self.running.credential}
        self.clients: dict[str, httpx.Client] = {}
        self.open("admin")

    def catalog(self) -> Catalog:
        """Another replica."""

        def sleep(seconds: float) -> None:
            self.clock_s += seconds

        patience = RetryPolicy(attempts_max=3, clock=lambda: self.clock_s, sleep=sleep, chance=lambda: 0.5)
        vending = None
        if self.tokens is not None:
            vending = Vending(self.tokens, ROOTS, clock=lambda: self.clock_s, now_ms=self.now_ms)
        return Catalog(self.store, ROOTS, patience=patience, vending=vending)

    def now_ms(self) -> int:
        """The wall clock, of which the other one is a copy that began at 1,000."""
        return int((BEGAN_S + self.clock_s) * 1000)

    def login(self, name: str) -> httpx.Response:
        client_id, secret = self.credentials[name].split(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        return httpx.post(f"{self.running.published}/v1/oauth/tokens", data=form, timeout=60)

    def open(self, name: str) -> None:
        answer = self.login(name)
        assert answer.status_code == 200, answer.text
        client = self.stack.enter_context(httpx.Client(base_url=self.running.published, timeout=60))
        client.headers["authorization"] = f"Bearer {answer.json()['access_token']}"
        self.clients[name] = client

    def principal(self, *names: str) -> None:
        for name in names:
            made = self.must("admin", "POST", "/tarn/v1/principals", {"name": name})
            self.credentials[name] = f"{made['client-id']}:{made['client-secret']}"
            self.open(name)

    def ask(
        self,
        who: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        params: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> httpx.Response:
        headers = {**(headers or {}), **({"idempotency-key": key} if key else {})}
        content = None if body is None else json.dumps(body).encode()
        return self.clients[who].request(method, path, content=content, headers=headers, params=params)

    def must(self, who: str, method: str, path: str, body: Any = None, **more: Any) -> Any:
        answer = self.ask(who, method, path, body, **more)
        assert answer.status_code in (200, 204), (who, method, path, answer.text)
        return answer.json() if answer.content else None

    def namespace(self, name: str = "ns", who: str = "admin") -> None:
        self.must(who, "POST", "/v1/namespaces", {"namespace": name.split(".")})

    def table(self, name: str, who: str = "admin", ns: str = "ns") -> dict[str, Any]:
        return self.must(who, "POST", f"/v1/namespaces/{ns}/tables", {"name": name, "schema": SCHEMA})

    def view(self, name: str, who: str = "admin", ns: str = "ns") -> dict[str, Any]:
        body = {"name": name, "schema": SCHEMA, "view-version": VERSION, "properties": {}}
        return self.must(who, "POST", f"/v1/namespaces/{ns}/views", body)

    def grant(self, to: str, on: str, *privileges: str, who: str = "admin", revoke: bool = False) -> Any:
        body = {"on": thing(on), "to": to, "privileges": list(privileges)}
        return self.must(who, "POST", "/tarn/v1/grants" + ("/revoke" if revoke else ""), body)

    def load(self, who: str, name: str, **more: Any) -> int:
        """The status of a load of a table, given as `ns.t`."""
        ns, _, table = name.rpartition(".")
        path = f"/v1/namespaces/{ns.replace('.', '%1F')}/tables/{table}"
        return self.ask(who, "GET", path, **more).status_code

    def listed(self, who: str, path: str) -> list[str]:
        found = self.must(who, "GET", path)
        if "identifiers" in found:
            return [one["name"] for one in found["identifiers"]]
        return [".".join(levels) for levels in found["namespaces"]]

    def objects(self) -> dict[str, str]:
        return {listed.key: listed.etag for listed in self.store.inner.list("")}


def thing(text: str) -> dict[str, Any]:
    """What a grant is on, from `warehouse`, `namespace:ns`, `table:ns.t` or `view:ns.v`."""
    kind, _, name = text.partition(":")
    if kind == "warehouse":
        return {"kind": kind}
    levels = name.split(".")
    if kind == "namespace":
        return {"kind": kind, "namespace": levels}
    return {"kind": kind, "namespace": levels[:-1], "name": levels[-1]}


@contextmanager
def world(folder: Path, tokens: TokenService | None = None) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(folder, stack, tokens)


def error(answer: httpx.Response, status: int, kind: str) -> str:
    assert answer.status_code == status, answer.text
    found = answer.json()["error"]
    assert (found["code"], found["type"]) == (status, kind)
    message: str = found["message"]
    return message
