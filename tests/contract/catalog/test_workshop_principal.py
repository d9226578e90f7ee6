"""The principal of the notebooks: it reads everything, and writes in namespaces of the workshop only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tarn.core.services import SERVICES
from tarn_catalog.rest.lines import Lines, Place
from tests.contract.catalog.access_world import SCHEMA, World, error, world
from tests.support.stack import eventually

SECRET = "a-secret-of-the-notebooks"
ADD = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"who": "jupyter"}}]}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A lake with gold.flights of an admin, and with the principal jupyter, which has ws_ada.orders."""
    with world(tmp_path_factory.mktemp("lake")) as found:
        path = found.running.secrets_dir / "principals.json"
        principals = json.loads(path.read_text())
        digest = hashlib.sha256(SECRET.encode()).hexdigest()
        principals["jupyter-1"] = {"name": "jupyter", "secret_sha256": digest}
        path.write_text(json.dumps(principals))
        found.credentials["jupyter"] = f"jupyter-1:{SECRET}"
        # The server looks for new principals once a second.
        eventually(lambda: found.login("jupyter").status_code == 200, timeout_s=60, what="the principal")
        found.open("jupyter")
        found.namespace("gold")
        found.table("flights", ns="gold")
        found.namespace("ws_ada", who="jupyter")
        found.table("orders", who="jupyter", ns="ws_ada")
        yield found


def test_it_may_do_everything_in_its_own_namespaces(lake: World) -> None:
    lake.namespace("ws_bob", who="jupyter")
    lake.namespace("ws_bob.deep", who="jupyter")
    lake.table("orders", who="jupyter", ns="ws_bob")
    lake.view("look", who="jupyter", ns="ws_bob")
    lake.must("jupyter", "POST", "/v1/namespaces/ws_bob/tables/orders", ADD)
    rename = {
        "source": {"namespace": ["ws_bob"], "name": "orders"},
        "destination": {"namespace": ["ws_bob"], "name": "sales"},
    }
    lake.must("jupyter", "POST", "/v1/tables/rename", rename)
    lake.must("jupyter", "DELETE", "/v1/namespaces/ws_bob/tables/sales")
    lake.must("jupyter", "DELETE", "/v1/namespaces/ws_bob/views/look")
    lake.must("jupyter", "DELETE", "/v1/namespaces/ws_bob%1Fdeep")
    lake.must("jupyter", "DELETE", "/v1/namespaces/ws_bob")


def test_what_ingest_creates_there_is_its_too(lake: World) -> None:
    lake.table("landed", who="admin", ns="ws_ada")
    lake.must("jupyter", "POST", "/v1/namespaces/ws_ada/tables/landed", ADD)
    lake.must("jupyter", "DELETE", "/v1/namespaces/ws_ada/tables/landed")


def test_elsewhere_it_reads(lake: World) -> None:
    assert lake.load("jupyter", "gold.flights") == 200
    assert lake.listed("jupyter", "/v1/namespaces") == ["gold", "ws_ada"]
    assert lake.listed("jupyter", "/v1/namespaces/gold/tables") == ["flights"]
    assert lake.load("jupyter", "gold.nothing") == 404


TABLES = "/v1/namespaces/gold/tables"
MOVE = {
    "source": {"namespace": ["ws_ada"], "name": "orders"},
    "destination": {"namespace": ["gold"], "name": "orders"},
}
TAKE = {
    "source": {"namespace": ["gold"], "name": "flights"},
    "destination": {"namespace": ["ws_ada"], "name": "flights"},
}
MIXED = {
    "table-changes": [
        {"identifier": {"namespace": ["ws_ada"], "name": "orders"}, **ADD},
        {"identifier": {"namespace": ["gold"], "name": "flights"}, **ADD},
    ]
}
REGISTER = {"name": "mine", "metadata-location": "s3://tarn/warehouse/gold/flights/metadata/1.metadata.json"}
REFUSED: list[tuple[str, str, Any]] = [
    ("POST", "/v1/namespaces", {"namespace": ["bronze"]}),
    ("POST", "/v1/namespaces", {"namespace": ["gold", "ws_ada"]}),
    ("POST", "/v1/namespaces", {"namespace": ["ws"]}),
    ("DELETE", "/v1/namespaces/gold", None),
    ("POST", "/v1/namespaces/gold/properties", {"updates": {"a": "b"}, "removals": []}),
    ("POST", TABLES, {"name": "ws_orders", "schema": SCHEMA}),
    ("POST", f"{TABLES}/flights", ADD),
    ("DELETE", f"{TABLES}/flights", None),
    ("POST", "/v1/tables/rename", MOVE),
    ("POST", "/v1/tables/rename", TAKE),
    ("POST", "/v1/transactions/commit", MIXED),
    ("POST", "/v1/namespaces/ws_ada/register", REGISTER),
    ("GET", "/tarn/v1/principals", None),
    ("POST", "/tarn/v1/principals", {"name": "zoe"}),
    ("POST", "/tarn/v1/owner", {"on": {"kind": "namespace", "namespace": ["gold"]}, "to": "jupyter"}),
]


@pytest.mark.parametrize(("method", "path", "body"), REFUSED)
def test_it_writes_and_rules_nowhere_else(lake: World, method: str, path: str, body: Any) -> None:
    before = lake.objects()
    message = error(lake.ask("jupyter", method, path, body), 403, "ForbiddenException")
    assert "jupyter may not" in message
    assert lake.objects() == before


def test_it_takes_no_place_in_the_line_of_what_it_may_not_change(
    lake: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[str] = []
    hold = Lines.hold

    def held(lines: Lines, place: Place, *more: Any, **named: Any) -> Any:
        places.append(place.what)
        return hold(lines, place, *more, **named)

    monkeypatch.setattr(Lines, "hold", held)
    error(lake.ask("jupyter", "POST", f"{TABLES}/flights", ADD), 403, "ForbiddenException")
    error(lake.ask("jupyter", "DELETE", f"{TABLES}/nothing"), 404, "NoSuchTableException")
    error(lake.ask("jupyter", "POST", "/v1/namespaces/gold/register", REGISTER), 403, "ForbiddenException")
    assert places == []
    lake.must("jupyter", "POST", "/v1/namespaces/ws_ada/tables/orders", ADD)
    lake.must("admin", "POST", f"{TABLES}/flights", ADD)
    assert places == ["ws_ada.orders", "gold.flights"]


def test_admins_are_told_who_is_none(lake: World) -> None:
    listed = lake.must("admin", "GET", "/tarn/v1/principals")["principals"]
    assert {one["name"]: one["admin"] for one in listed} == {"tester": True, "jupyter": False}
    assert lake.must("jupyter", "GET", "/tarn/v1/whoami")["roles"] == []


def test_of_the_services_only_the_notebooks_are_limited() -> None:
    assert {name for name, row in SERVICES.items() if row.catalog_own is not None} == {"jupyter"}
    assert SERVICES["jupyter"].catalog_own == "ws_"
