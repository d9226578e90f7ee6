"""Who may do what: every route for every principal and thing, compared with a table of this test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tarn.core.temporary_keys import TemporaryKeys
from tarn_catalog.operations.rights import Operation
from tarn_catalog.rest import routes
from tarn_catalog.rest.auth import Authenticator
from tarn_catalog.rest.request import ClientConfig, RestRequest
from tests.contract.catalog.access_world import SCHEMA, VERSION, World, thing, world

READ, WRITE, CREATE, MANAGE = "READ", "WRITE", "CREATE", "MANAGE"
ALL = {READ, WRITE, CREATE, MANAGE}
ANY, TOKEN, ADMIN, PROBE, PUBLIC = "any privilege", "a token", "the role admin", "the probe", "public"
NS, T, V = "v1/namespaces/{namespace}", "{table}", "{view}"
TABLE, VIEW = f"{NS}/tables/{T}", f"{NS}/views/{V}"
THING, SPACE, LAKE = "thing", "namespace", "warehouse"

# What each route needs, as (privilege, on what); written down a second time, apart from the code.
NEEDED: dict[tuple[str, str], tuple[tuple[str, str], ...] | str] = {
    ("GET", "health"): PUBLIC,
    ("POST", "health/deep"): PROBE,
    ("POST", "v1/oauth/tokens"): PUBLIC,
    ("GET", "v1/config"): TOKEN,
    ("GET", "v1/namespaces"): TOKEN,
    ("POST", "v1/namespaces"): ((CREATE, LAKE),),
    ("GET", NS): ((ANY, SPACE),),
    ("HEAD", NS): ((ANY, SPACE),),
    ("DELETE", NS): ((MANAGE, SPACE),),
    ("POST", f"{NS}/properties"): ((MANAGE, SPACE),),
    ("GET", f"{NS}/tables"): ((ANY, SPACE),),
    ("POST", f"{NS}/tables"): ((CREATE, SPACE),),
    ("GET", TABLE): ((READ, THING),),
    ("HEAD", TABLE): ((READ, THING),),
    ("POST", TABLE): ((WRITE, THING),),
    ("DELETE", TABLE): ((MANAGE, THING),),
    ("POST", f"{TABLE}/metrics"): ((READ, THING),),
    ("POST", f"{NS}/register"): ((MANAGE, LAKE),),
    ("POST", "v1/tables/rename"): ((MANAGE, THING), (CREATE, SPACE)),
    ("POST", "v1/transactions/commit"): ((WRITE, THING),),
    ("GET", f"{NS}/views"): ((ANY, SPACE),),
    ("POST", f"{NS}/views"): ((CREATE, SPACE),),
    ("GET", VIEW): ((READ, THING),),
    ("HEAD", VIEW): ((READ, THING),),
    ("POST", VIEW): ((WRITE, THING),),
    ("DELETE", VIEW): ((MANAGE, THING),),
    ("POST", f"{NS}/register-view"): ((MANAGE, LAKE),),
    ("POST", "v1/views/rename"): ((MANAGE, THING), (CREATE, SPACE)),
    ("GET", f"{TABLE}/credentials"): ((READ, THING),),
    ("POST", f"{TABLE}/plan"): TOKEN,
    ("POST", f"{TABLE}/tasks"): TOKEN,
    ("GET", "tarn/v1/whoami"): TOKEN,
    ("GET", "tarn/v1/principals"): ADMIN,
    ("POST", "tarn/v1/principals"): ADMIN,
    ("DELETE", "tarn/v1/principals/{principal}"): ADMIN,
    ("GET", "tarn/v1/roles"): ADMIN,
    ("POST", "tarn/v1/roles"): ADMIN,
    ("DELETE", "tarn/v1/roles/{role}"): ADMIN,
    ("PUT", "tarn/v1/roles/{role}/members/{principal}"): ADMIN,
    ("DELETE", "tarn/v1/roles/{role}/members/{principal}"): ADMIN,
    ("GET", "tarn/v1/grants"): ((MANAGE, THING),),
    ("POST", "tarn/v1/grants"): ((MANAGE, THING),),
    ("POST", "tarn/v1/grants/revoke"): ((MANAGE, THING),),
    ("POST", "tarn/v1/owner"): ((MANAGE, THING),),
    ("POST", "tarn/v1/principals/{principal}/secret"): ADMIN,
}
ROUTES = tuple((route.method, route.template) for route in routes._ROUTES)
TABLES, VIEWS = ("own", "shared", "third"), ("look",)
THINGS = (*TABLES, *VIEWS)

# What each principal holds, by thing; on the namespace and the warehouse what holds for all in them.
HELD: dict[str, dict[str, set[str]]] = {
    "ann": {SPACE: {CREATE}, "own": ALL, "shared": {READ, WRITE}},
    "bob": {SPACE: {READ}, "third": ALL},
    "eve": {"shared": {READ}},
    "mia": {LAKE: ALL},
    "cal": {LAKE: {CREATE}},
    "nil": {},
    "admin": {LAKE: ALL},
}


def held(who: str, on: str) -> set[str]:
    parts = {LAKE: (LAKE,), SPACE: (LAKE, SPACE)}.get(on, (LAKE, SPACE, on))
    return set().union(*(HELD[who].get(part, set()) for part in parts))


def allowed(who: str, route: tuple[str, str], on: str) -> bool:
    needed = NEEDED[route]
    if isinstance(needed, str):
        return who == "admin" or needed != ADMIN
    for privilege, place in needed:
        where = on if place == THING else place
        have = held(who, where)
        # A namespace with something that was granted is seen too.
        if privilege == ANY and not (have or HELD[who]):
            return False
        if privilege != ANY and privilege not in have:
            return False
    return True


SET = [{"action": "set-properties", "updates": {"a": "1"}}]
Request = tuple[Any, dict[str, str]]


def body_of(method: str, template: str, name: str, locations: dict[str, str]) -> Request:
    """The body and the query of a request that is well formed and, if allowed, carried out."""
    kind = "view" if name in VIEWS else "table"
    identifier = {"namespace": ["ns"], "name": name}
    on = thing(f"{kind}:ns.{name}")
    if (method, template) == ("GET", "tarn/v1/grants"):
        return None, {"kind": kind, "namespace": "ns", "name": name}
    if method in ("GET", "HEAD", "DELETE", "PUT"):
        return None, {}
    bodies: dict[str, Any] = {
        "health/deep": {},
        "v1/oauth/tokens": {},
        "v1/namespaces": {"namespace": ["new"]},
        f"{NS}/properties": {"updates": {"p": "1"}},
        f"{NS}/tables": {"name": "new", "schema": SCHEMA},
        f"{NS}/views": {"name": "new", "schema": SCHEMA, "view-version": VERSION, "properties": {}},
        TABLE: {"requirements": [], "updates": SET},
        VIEW: {"requirements": [], "updates": SET},
        f"{TABLE}/metrics": {"report-type": "scan-report"},
        f"{TABLE}/plan": {},
        f"{TABLE}/tasks": {},
        f"{NS}/register": {"name": "new", "metadata-location": locations[name]},
        f"{NS}/register-view": {"name": "new", "metadata-location": locations[name]},
        "v1/tables/rename": {"source": identifier, "destination": {"namespace": ["ns"], "name": "new"}},
        "v1/views/rename": {"source": identifier, "destination": {"namespace": ["ns"], "name": "new"}},
        "v1/transactions/commit": {"table-changes": [{"identifier": identifier, "updates": SET}]},
        "tarn/v1/principals": {"name": "new"},
        "tarn/v1/roles": {"name": "new"},
        "tarn/v1/grants": {"on": on, "to": "nil", "privileges": [READ]},
        "tarn/v1/grants/revoke": {"on": on, "to": "eve", "privileges": [READ]},
        "tarn/v1/owner": {"on": on, "to": "nil"},
        "tarn/v1/principals/{principal}/secret": {"grace-s": 60},
    }
    return bodies[template], {}


# What an allowed request answers if not 200 or 204.
ANSWERED = {
    ("DELETE", NS): 409,  # it holds tables
    ("POST", f"{NS}/register"): 409,  # the table has a name
    ("POST", f"{NS}/register-view"): 409,
    ("POST", f"{TABLE}/plan"): 501,
    ("POST", f"{TABLE}/tasks"): 501,
    ("POST", "health/deep"): 401,
    ("POST", "v1/oauth/tokens"): 400,
}


def things_of(template: str) -> tuple[str, ...]:
    """The things to try a route with; one is enough where it names none."""
    if T in template or template in ("v1/tables/rename", "v1/transactions/commit", f"{NS}/register"):
        return TABLES
    if V in template or template in ("v1/views/rename", f"{NS}/register-view"):
        return VIEWS
    return THINGS if template.startswith(("tarn/v1/grants", "tarn/v1/owner")) else TABLES[:1]


class Lake:
    """The lake of the matrix, with its objects as they were after it was set up."""

    def __init__(self, made: World) -> None:
        self.world = made
        made.namespace()
        made.principal("ann", "bob", "eve", "mia", "cal", "nil")
        made.must("admin", "POST", "/tarn/v1/roles", {"name": "readers"})
        made.must("admin", "PUT", "/tarn/v1/roles/readers/members/bob")
        made.grant("ann", "namespace:ns", CREATE)
        made.grant("readers", "namespace:ns", READ)
        made.grant("mia", "warehouse", MANAGE)
        made.grant("cal", "warehouse", CREATE)
        self.locations = {"own": made.table("own", "ann")["metadata-location"]}
        for name in ("shared", "third"):
            self.locations[name] = made.table(name)["metadata-location"]
        self.locations["look"] = made.view("look")["metadata-location"]
        made.grant("ann", "table:ns.shared", WRITE)
        made.grant("eve", "table:ns.shared", READ)
        made.grant("bob", "table:ns.third", MANAGE)
        self._objects = dict(made.store.inner._objects)

    def ask(self, who: str, route: tuple[str, str], name: str) -> Any:
        method, template = route
        body, query = body_of(method, template, name, self.locations)
        names = {"{namespace}": "ns", T: name, V: name, "{role}": "readers", "{principal}": "eve"}
        path = f"/{template}"
        for placeholder, text in names.items():
            path = path.replace(placeholder, text)
        return self.world.ask(who, method, path, body, params=query)

    def restore(self) -> None:
        self.world.store.inner._objects = dict(self._objects)
        self.world.clock_s += 60


class Tokens:
    """Issues keys to nothing."""

    def assume(self, policy: str, *, duration_s: int) -> TemporaryKeys:
        return TemporaryKeys(access_key_id="a", secret_access_key="b", session_token="c", expires_ms=1 << 50)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with world(tmp_path_factory.mktemp("matrix"), Tokens()) as made:
        yield Lake(made)


def test_every_route_is_in_the_matrix() -> None:
    assert set(ROUTES) == set(NEEDED)
    assert len(ROUTES) == len(NEEDED)


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
def test_a_route_is_open_to_whom_the_matrix_says_and_to_nobody_else(
    lake: Lake, route: tuple[str, str]
) -> None:
    for name in things_of(route[1]):
        for who in HELD:
            lake.restore()
            before = lake.world.objects()
            answer = lake.ask(who, route, name)
            cell = (who, *route, name, answer.text)
            if allowed(who, route, name):
                wanted = ANSWERED.get(route)
                assert answer.status_code in ((wanted,) if wanted else (200, 204)), cell
                continue
            assert answer.status_code == 403, cell
            assert lake.world.objects() == before, cell
            if route[0] != "HEAD":
                found = answer.json()["error"]
                assert found["type"] == "ForbiddenException", cell
                assert found["message"].startswith(f"{who} may not "), cell
    lake.restore()


def test_the_matrix_has_cells_of_both_kinds_for_every_principal() -> None:
    cells = [
        (who, allowed(who, route, name)) for route in ROUTES for name in things_of(route[1]) for who in HELD
    ]
    assert len(cells) > 300
    assert {who for who, may in cells if may} == set(HELD)
    assert {who for who, may in cells if not may} == set(HELD) - {"admin"}


Ask = Callable[[Lake, str], Any]
MISSING: tuple[tuple[str, Ask], ...] = tuple(
    (f"{method} {template}", lambda lake, who, route=(method, template): lake.ask(who, route, "nothing"))
    for method, template in ROUTES
    if T in template and NEEDED[(method, template)] != TOKEN
)


@pytest.mark.parametrize(("what", "ask"), MISSING, ids=[what for what, _ in MISSING])
def test_what_is_missing_is_404_for_who_may_know_and_403_for_others(lake: Lake, what: str, ask: Ask) -> None:
    """Any privilege on the namespace is enough to learn that a name is free."""
    lake.restore()
    lake.locations["nothing"] = lake.locations["own"]
    for who in ("ann", "bob", "mia", "cal", "admin"):
        found = ask(lake, who)
        assert found.status_code == 404 or what.endswith("/metrics"), (who, found.text)
    for who in ("eve", "nil"):
        assert ask(lake, who).status_code == 403, who


def test_a_route_that_asks_for_something_else_than_it_names_fails(lake: Lake) -> None:
    running = lake.world.running
    served = routes.Routes(lake.world.core, Authenticator(running.secrets_dir, access=lake.world.core.access))
    side = ClientConfig(name="inside", s3_endpoint="http://x", region="r", warehouse="tarn")

    def ask(path: str, asks: frozenset[Operation]) -> int:
        admitted = served.admit("GET", path, lake.world.clients["admin"].headers["authorization"])
        call = RestRequest(method="GET", path=path, query={}, headers={}, body=b"", side=side)
        return served.answer(call, replace(admitted, asks=asks)).status

    assert ask("/v1/namespaces/ns", frozenset({Operation.LOAD_NAMESPACE})) == 200
    assert ask("/v1/config", frozenset()) == 200
    for path, asks in (
        ("/v1/namespaces/ns", frozenset({Operation.LIST})),
        ("/v1/namespaces/ns", frozenset[Operation]()),
        ("/v1/config", frozenset({Operation.LOAD})),
    ):
        with pytest.raises(AssertionError, match=path):
            ask(path, asks)
