"""The OpenAPI description against the catalog at work: each status and each header, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tarn.core.errors import TarnError
from tarn.core.hosts import MISDIRECTED
from tarn_catalog.rest import openapi
from tarn_catalog.rest.auth import Authenticator
from tarn_catalog.rest.request import RestRequest
from tarn_catalog.rest.response import _STATUS, NOT_MODIFIED
from tarn_catalog.rest.routes import SERVED, Routes
from tarn_catalog.rest.server import sides
from tarn_catalog.settings import Settings
from tests.contract.catalog.access_world import SCHEMA, World, world
from tests.contract.catalog.test_access_matrix import body_of
from tests.contract.catalog.test_http import uuid7
from tests.contract.catalog.test_vending import VENDED
from tests.support.sts import FakeSts, fake_sts

DESCRIBED: dict[str, Any] = openapi.description()
ROUTES = [(method, template) for method, template, _ in SERVED]
OF_HTTP = {"content-length", "content-type", "date", "connection"}
"""Headers that the server adds, or that the description has in another form."""
NS = "v1/namespaces/{namespace}"
STRANGE = {"v1/oauth/tokens", "health", "health/deep"}
"""Paths with a body or a token of another kind."""


def operation(method: str, template: str) -> dict[str, Any]:
    found: dict[str, Any] = DESCRIBED["paths"][f"/{template}"][method.lower()]
    return found


def path_of(template: str) -> str:
    names = {"namespace": "ns", "table": "t", "view": "look", "role": "readers", "principal": "bob"}
    return "/" + re.sub(r"{(\w+)}", lambda found: names[found[1]], template)


class Place:
    """A lake with a table, a view, and whatever else the routes are about; what it answers is compared."""

    def __init__(self, made: World, sts: FakeSts | None) -> None:
        self.world, self.sts = made, sts
        self.seen: set[tuple[str, str, int]] = set()
        self.tagged: set[tuple[str, str]] = set()
        made.namespace()
        self.locations = {"t": made.table("t")["metadata-location"]}
        self.locations["look"] = made.view("look")["metadata-location"]
        for name in ("bob", "nil", "eve"):
            made.must("admin", "POST", "/tarn/v1/principals", {"name": name})
        made.must("admin", "POST", "/tarn/v1/roles", {"name": "readers"})

    def body(self, method: str, template: str) -> tuple[Any, dict[str, str]]:
        body, query = body_of(method, template, "look" if "view" in template else "t", self.locations)
        return body, query

    def check(self, method: str, template: str, answer: httpx.Response) -> httpx.Response:
        """An answer has a status and headers that are described, and a body where one is."""
        where = (method, template, answer.status_code)
        responses = operation(method, template)["responses"]
        assert str(answer.status_code) in responses, (where, answer.text)
        found = responses[str(answer.status_code)]
        headers = {name.lower() for name in found.get("headers", {})}
        assert set(answer.headers) - OF_HTTP <= headers, where
        assert bool(answer.content) == ("content" in found), where
        self.seen.add(where)
        if "etag" in answer.headers:
            self.tagged.add((method, template))
        if answer.status_code in (401, 503):
            assert headers & {*answer.headers}, where
        return answer

    def ask(self, method: str, template: str, who: str = "admin", **more: Any) -> httpx.Response:
        body, query = self.body(method, template)
        more = {"body": body, "params": query, **more}
        answer = self.world.ask(who, method, more.pop("path", path_of(template)), **more)
        return self.check(method, template, answer)


@pytest.fixture(params=["with STS", "without"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        sts = stack.enter_context(fake_sts()) if request.param == "with STS" else None
        made = stack.enter_context(world(tmp_path, sts.service() if sts else None))
        yield Place(made, sts)


def test_what_is_answered_is_described(place: Place) -> None:
    """Each route as it is meant, without a token, by who may not, by a wrong host, malformed, of nothing."""
    made = place.world
    made.principal("stranger")
    for method, template in ROUTES:
        if template in STRANGE:
            continue
        stranger = httpx.request(method, f"{made.running.published}{path_of(template)}")
        assert place.check(method, template, stranger).status_code == 401
        misled = made.ask("admin", method, path_of(template), headers={"host": "evil.example"})
        assert place.check(method, template, misled).status_code == 421
        place.ask(method, template, who="stranger")
        nothing = path_of(template).replace("/t", "/none").replace("look", "none").replace("bob", "none")
        place.ask(method, template, path=nothing)
        if method == "POST":
            assert place.ask(method, template, body=[]).status_code == 400
        if method == "GET":
            found = place.ask(method, template, headers=VENDED)
            again = {**VENDED, "if-none-match": found.headers.get("etag", '"x"')}
            place.ask(method, template, headers=again)
            plain = place.ask(method, template).headers.get("etag", "")
            place.ask(method, template, headers={"if-none-match": plain})
        elif "principals" not in template and method == "POST" and place.sts is not None:
            place.sts.broken = lambda: (503, b"")
            place.ask(method, template, headers=VENDED)
            made.clock_s += 1
            place.sts.broken = None
        if method in ("POST", "PUT") and "rename" not in template:
            place.ask(method, template, headers=VENDED)
    staged = {"name": "s", "schema": SCHEMA, "stage-create": True}
    place.ask("POST", f"{NS}/tables", body=staged, headers=VENDED)
    view, _ = place.body("POST", f"{NS}/views")
    place.ask("POST", f"{NS}/views", body={**view, "name": "other"})
    for method, template in reversed(ROUTES):
        if method == "DELETE" and "{namespace}" not in template.rpartition("/")[2]:
            assert place.ask(method, template).status_code == 204
    for template, name in ((f"{NS}/register", "t2"), (f"{NS}/register-view", "v2")):
        body, _ = place.body("POST", template)
        assert place.ask("POST", template, body={**body, "name": name}, headers=VENDED).status_code == 200
    form = {"grant_type": "client_credentials"}
    for data, who in (
        (form, None),
        ({"grant_type": "x"}, None),
        (form, made.credentials["admin"].split(":")),
    ):
        url = f"{made.running.published}/v1/oauth/tokens"
        more = {"auth": (who[0], who[1])} if who else {}
        place.check("POST", "v1/oauth/tokens", httpx.post(url, data=data, **more))  # type: ignore[arg-type]
    place.check("GET", "health", httpx.get(f"{made.running.published}/health"))
    place.check("POST", "health/deep", httpx.post(f"{made.running.published}/health/deep"))

    for method, template in ROUTES:
        responses = operation(method, template)["responses"]
        if "304" in responses:
            assert (method, template, NOT_MODIFIED) in place.seen
        if "501" in responses:
            assert ((method, template, 501) in place.seen) == (place.sts is None)
        described = any("ETag" in one.get("headers", {}) for one in responses.values())
        assert described == ((method, template) in place.tagged), (method, template)


def test_each_status_that_errors_have_is_described_and_no_other() -> None:
    """405 is no answer of an operation: it is what a path answers to a method that is none."""
    described = {
        int(status) for method, template in ROUTES for status in operation(method, template)["responses"]
    }
    assert described == {200, 204, NOT_MODIFIED, MISDIRECTED, *(status for _, status, _ in _STATUS)} - {405}


class Headers(dict[str, str]):
    """The headers of a request, and which of them were looked for."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return super().__getitem__(name)


def test_the_headers_that_routes_read_are_described(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        place = Place(made, None)
        routes = Routes(made.core, Authenticator(made.running.secrets_dir, access=made.core.access))
        token = made.clients["admin"].headers["authorization"]
        for method, template in ROUTES:
            if template in STRANGE:
                continue
            headers = Headers({"authorization": token, "idempotency-key": uuid7()})
            body, query = place.body(method, template)
            call = RestRequest(
                method=method,
                path=path_of(template),
                query=query,
                headers=headers,
                body=orjson.dumps(body),
                side=sides(Settings())[0],
            )
            with suppress(TarnError):  # some are about what an earlier one removed
                routes.answer(call, routes.admit(method, call.path, token))
            parameters = operation(method, template)["parameters"]
            described = {one["name"].lower() for one in parameters if one["in"] == "header"}
            assert headers.read == described, (method, template)
