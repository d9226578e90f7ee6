"""Principals, roles and grants: what follows a thing, what ends when, what is listed and logged."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError, UnauthorizedError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from structlog.testing import capture_logs

from tarn.core.errors import UnauthenticatedError, UnavailableError
from tarn.core.naming import GRANTS_KEY, pointer_key
from tarn_catalog.embedded import EmbeddedCatalog
from tarn_catalog.operations.access import BYTES_MAX, MAX_AGE_S, Access, _size
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.rest.auth import Authenticator
from tarn_catalog.rest.routes import Routes
from tarn_catalog.state.access import Privilege, Securable
from tarn_catalog.testing.faulty_store import Fault, Op
from tests.contract.catalog.access_world import ROOTS, SCHEMA, World, error, thing, world
from tests.contract.catalog.conftest import Lake
from tests.contract.catalog.test_http import uuid7

SET = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
T = "/v1/namespaces/ns/tables/t"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        made.namespace()
        made.principal("bob", "eve")
        yield made


def appended(lake: World, number: int, who: str = "bob", key: str | None = None) -> httpx.Response:
    meta = lake.must("admin", "GET", T)["metadata"]
    snapshot = {
        **{"snapshot-id": number, "sequence-number": meta["last-sequence-number"] + 1, "schema-id": 0},
        **{"timestamp-ms": meta["last-updated-ms"] + 1, "summary": {"operation": "append"}},
        "manifest-list": f"{meta['location']}/metadata/{number}.avro",
    }
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
    body = {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}, ref]}
    lake.last = body  # type: ignore[attr-defined]
    return lake.ask(who, "POST", T, body, key=key)


# -- principals and tokens


def test_a_secret_is_shown_once_and_only_its_hash_is_stored(lake: World) -> None:
    with capture_logs() as lines:
        answer = lake.ask("admin", "POST", "/tarn/v1/principals", {"name": "zoe"})
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    assert made["name"] == "zoe"
    assert re.fullmatch("zoe-[0-9a-f]{12}", made["client-id"])
    assert len(made["client-secret"]) >= 43
    stored = b"".join(lake.store.inner.get(key).data for key in lake.objects())
    assert made["client-secret"].encode() not in stored
    assert hashlib.sha256(made["client-secret"].encode()).hexdigest().encode() in stored
    assert made["client-secret"] not in str(lines)
    listed = lake.must("admin", "GET", "/tarn/v1/principals")["principals"]
    assert [(one["name"], one["built-in"]) for one in listed] == [
        ("tester", True),
        ("bob", False),
        ("eve", False),
        ("zoe", False),
    ]
    assert listed[-1]["created-by"] == "tester"
    assert made["client-secret"] not in str(listed)


def test_whoami_names_roles_and_grants(lake: World) -> None:
    lake.must("admin", "POST", "/tarn/v1/roles", {"name": "staff"})
    lake.must("admin", "PUT", "/tarn/v1/roles/staff/members/bob")
    lake.grant("staff", "namespace:ns", "READ")
    found = lake.must("bob", "GET", "/tarn/v1/whoami")
    assert found.pop("client-id") == lake.credentials["bob"].split(":")[0]
    (grant,) = found.pop("grants")
    assert grant["on"].pop("uuid")
    assert grant == {"on": thing("namespace:ns"), "to": "staff", "privileges": ["READ"]}
    assert found == {"principal": "bob", "roles": ["staff"]}
    assert lake.must("admin", "GET", "/tarn/v1/whoami")["roles"] == ["admin"]
    assert lake.must("eve", "GET", "/tarn/v1/whoami")["grants"] == []
    roles = lake.must("admin", "GET", "/tarn/v1/roles")["roles"]
    assert roles == [{"name": "admin", "members": []}, {"name": "staff", "members": ["bob"]}]


def test_a_principal_with_the_role_admin_may_do_everything_until_it_loses_it(lake: World) -> None:
    lake.must("admin", "PUT", "/tarn/v1/roles/admin/members/bob")
    lake.table("t", "bob")
    lake.must("bob", "POST", "/tarn/v1/roles", {"name": "staff"})
    lake.must("admin", "DELETE", "/tarn/v1/roles/admin/members/bob")
    assert lake.ask("bob", "POST", "/tarn/v1/roles", {"name": "more"}).status_code == 403
    assert lake.load("bob", "ns.t") == 200, "it is the owner"


def test_a_role_that_is_dropped_takes_its_grants_along(lake: World) -> None:
    lake.table("t")
    lake.must("admin", "POST", "/tarn/v1/roles", {"name": "staff"})
    lake.must("admin", "PUT", "/tarn/v1/roles/staff/members/bob")
    lake.grant("staff", "table:ns.t", "READ")
    assert lake.load("bob", "ns.t") == 200
    lake.must("admin", "DELETE", "/tarn/v1/roles/staff")
    assert lake.load("bob", "ns.t") == 403
    lake.must("admin", "POST", "/tarn/v1/roles", {"name": "staff"})
    lake.must("admin", "PUT", "/tarn/v1/roles/staff/members/bob")
    assert lake.load("bob", "ns.t") == 403
    assert "Cannot drop the role admin" in lake.ask("admin", "DELETE", "/tarn/v1/roles/admin").text


def test_dropping_a_principal_ends_its_tokens_its_grants_and_its_ownership(lake: World) -> None:
    lake.grant("bob", "namespace:ns", "CREATE")
    lake.table("t", "bob")
    lake.grant("bob", "table:ns.t", "READ")
    assert lake.load("bob", "ns.t") == 200
    token = lake.clients["bob"].headers["authorization"].split()[1]
    lake.must("admin", "DELETE", "/tarn/v1/principals/bob")
    for path in ("/v1/config", "/v1/namespaces", "/tarn/v1/whoami", T, "/health"):
        answer = lake.ask("bob", "GET", path)
        assert "gone or has a new secret" in error(answer, 401, "NotAuthorizedException"), path
    assert lake.login("bob").json()["error"] == "invalid_client"
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    swapped = httpx.post(f"{lake.running.published}/v1/oauth/tokens", data=form, timeout=60)
    assert (swapped.status_code, swapped.json()["error"]) == (401, "invalid_grant")
    old = lake.clients["bob"]
    lake.principal("bob")
    assert old.get("/v1/config").status_code == 401, "a token of the former bob"
    assert lake.load("bob", "ns.t") == 403
    assert lake.must("bob", "GET", "/tarn/v1/whoami")["grants"] == []
    answer = lake.ask("admin", "DELETE", "/tarn/v1/principals/nobody")
    assert error(answer, 404, "NotFoundException") == "Principal does not exist: nobody"


def test_a_token_of_a_stored_principal_can_be_exchanged(lake: World) -> None:
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": lake.clients["bob"].headers["authorization"].split()[1],
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    answer = httpx.post(f"{lake.running.published}/v1/oauth/tokens", data=form, timeout=60)
    assert answer.status_code == 200, answer.text
    lake.clients["bob"].headers["authorization"] = f"Bearer {answer.json()['access_token']}"
    assert lake.must("bob", "GET", "/tarn/v1/whoami")["principal"] == "bob"


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a/b", "-a", "a*", "ä", "a" * 65, "../a", "a\n"])
def test_names_of_principals_and_roles_are_checked(lake: World, name: str) -> None:
    for path in ("/tarn/v1/principals", "/tarn/v1/roles"):
        answer = lake.ask("admin", "POST", path, {"name": name})
        assert "use 1 to 64 letters, digits" in error(answer, 400, "BadRequestException")


@pytest.mark.parametrize("name", ["tester", "admin", "bob", "staff"])
def test_a_name_is_given_once(lake: World, name: str) -> None:
    lake.must("admin", "POST", "/tarn/v1/roles", {"name": "staff"})
    for path in ("/tarn/v1/principals", "/tarn/v1/roles"):
        answer = lake.ask("admin", "POST", path, {"name": name})
        message = error(answer, 409, "AlreadyExistsException")
        assert message == f"A principal or role has the name {name} already"


# -- grants


def test_grant_and_revoke_answer_with_what_is_granted(lake: World) -> None:
    lake.table("t")
    assert lake.grant("bob", "table:ns.t", "READ")["privileges"] == ["READ"]
    assert lake.grant("bob", "table:ns.t", "WRITE", "READ")["privileges"] == ["READ", "WRITE"]
    assert lake.grant("eve", "table:ns.t", "READ")["privileges"] == ["READ"]
    assert lake.grant("bob", "table:ns.t", "WRITE", revoke=True)["privileges"] == ["READ"]
    found = lake.must("admin", "GET", "/tarn/v1/grants?kind=table&namespace=ns&name=t")
    assert found["owner"] == "tester"
    assert [(one["to"], one["privileges"]) for one in found["grants"]] == [
        ("eve", ["READ"]),
        ("bob", ["READ"]),
    ]
    assert lake.grant("bob", "table:ns.t", "READ", "WRITE", revoke=True)["privileges"] == []
    assert lake.grant("bob", "table:ns.t", "READ", revoke=True)["privileges"] == []
    assert lake.load("bob", "ns.t") == 403
    assert lake.load("eve", "ns.t") == 200
    everything = lake.must("admin", "GET", "/tarn/v1/grants")
    assert "owner" not in everything
    assert [one["to"] for one in everything["grants"]] == ["eve"]


def test_an_owner_and_a_manager_may_grant_and_a_reader_may_not(lake: World) -> None:
    lake.grant("bob", "namespace:ns", "CREATE")
    lake.table("t", "bob")
    assert lake.load("eve", "ns.t") == 403
    lake.grant("eve", "table:ns.t", "READ", who="bob")
    assert lake.load("eve", "ns.t") == 200
    body = {"on": thing("table:ns.t"), "to": "eve", "privileges": ["WRITE"]}
    error(lake.ask("eve", "POST", "/tarn/v1/grants", body), 403, "ForbiddenException")
    lake.grant("eve", "table:ns.t", "MANAGE", who="bob")
    lake.grant("eve", "table:ns.t", "WRITE", who="eve")
    body = {"on": thing("namespace:ns"), "to": "eve", "privileges": ["READ"]}
    error(lake.ask("bob", "POST", "/tarn/v1/grants", body), 403, "ForbiddenException")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, "on is missing"),
        ({"on": {"kind": "cake"}, "to": "bob", "privileges": ["READ"]}, 400, "Invalid kind 'cake'"),
        ({"on": {"kind": "table"}, "to": "bob", "privileges": ["READ"]}, 400, "namespace is missing"),
        ({"on": {"kind": "table", "namespace": ["ns"]}, "to": "bob", "privileges": ["READ"]}, 400, "name is"),
        ({"on": {"kind": "namespace", "namespace": []}, "to": "bob", "privileges": ["READ"]}, 400, "no list"),
        (
            {"on": {"kind": "namespace", "namespace": [7]}, "to": "bob", "privileges": ["READ"]},
            400,
            "no list",
        ),
        ({"on": {"kind": "namespace", "namespace": ["a*"]}, "to": "bob", "privileges": ["READ"]}, 400, "\\*"),
        (
            {"on": {"kind": "table", "namespace": ["ns"], "name": "${x}"}, "to": "b", "privileges": []},
            400,
            "name",
        ),
        (
            {"on": {"kind": "warehouse"}, "to": "bob", "privileges": ["OWN"]},
            400,
            "give a list of READ, WRITE",
        ),
        ({"on": {"kind": "warehouse"}, "to": "bob", "privileges": []}, 400, "give a list of READ, WRITE"),
        ({"on": {"kind": "warehouse"}, "to": "bob", "privileges": [{}]}, 400, "give a list of READ, WRITE"),
        ({"on": {"kind": "warehouse"}, "to": "bob", "privileges": "READ"}, 400, "no list"),
        ({"on": {"kind": "warehouse"}, "to": 7, "privileges": ["READ"]}, 400, "to is missing or no str"),
        ({"on": {"kind": "warehouse"}, "to": "joe", "privileges": ["READ"]}, 404, "has the name joe"),
        ({"on": {"kind": "warehouse"}, "to": "tester", "privileges": ["READ"]}, 404, "need no grants"),
        ({"on": {"kind": "warehouse"}, "to": "admin", "privileges": ["READ"]}, 400, "may do everything"),
        (
            {
                "on": {"kind": "table", "namespace": ["ns"], "name": "t"},
                "to": "bob",
                "privileges": ["CREATE"],
            },
            400,
            "Cannot grant CREATE on a table: choose from MANAGE, READ, WRITE",
        ),
        (
            {"on": {"kind": "view", "namespace": ["ns"], "name": "t"}, "to": "bob", "privileges": ["READ"]},
            404,
            "View",
        ),
        (
            {"on": {"kind": "table", "namespace": ["ns"], "name": "u"}, "to": "bob", "privileges": ["READ"]},
            404,
            "Tab",
        ),
        (
            {"on": {"kind": "namespace", "namespace": ["no"]}, "to": "bob", "privileges": ["READ"]},
            404,
            "Names",
        ),
    ],
)
def test_a_bad_grant_says_what_is_wrong_and_changes_nothing(
    lake: World, body: dict[str, Any], status: int, words: str
) -> None:
    lake.table("t")
    before = lake.objects()
    answer = lake.ask("admin", "POST", "/tarn/v1/grants", body)
    assert answer.status_code == status, answer.text
    assert re.search(words, answer.json()["error"]["message"]), answer.text
    assert lake.objects() == before


def test_other_bad_requests(lake: World) -> None:
    for method, path, status in (
        ("POST", "/tarn/v1/principals", 400),
        ("POST", "/tarn/v1/roles", 400),
        ("DELETE", "/tarn/v1/roles/none", 404),
        ("PUT", "/tarn/v1/roles/none/members/bob", 404),
        ("PUT", "/tarn/v1/roles/admin/members/none", 404),
        ("PUT", "/tarn/v1/roles/admin/members/tester", 404),
        ("DELETE", "/tarn/v1/principals/tester", 404),
        ("GET", "/tarn/v1/grants?kind=cake", 400),
        ("GET", "/tarn/v1/grants?kind=table", 400),
        ("GET", "/tarn/v1/grants?kind=namespace&namespace=none", 404),
        ("PUT", "/tarn/v1/grants", 405),
        ("GET", "/tarn/v1/nothing", 404),
        ("GET", "/tarn/v2/whoami", 404),
    ):
        answer = lake.ask("admin", method, path, {} if method == "POST" else None)
        assert answer.status_code == status, (path, answer.text)
        assert answer.json()["error"]["message"]


# -- things, not names


def test_a_grant_follows_a_table_to_another_name_and_never_to_another_table(lake: World) -> None:
    lake.namespace("other")
    lake.table("t")
    lake.grant("bob", "table:ns.t", "READ")
    move = {
        "source": {"namespace": ["ns"], "name": "t"},
        "destination": {"namespace": ["other"], "name": "u"},
    }
    lake.must("admin", "POST", "/v1/tables/rename", move)
    assert lake.load("bob", "other.u") == 200
    assert lake.listed("bob", "/v1/namespaces") == ["other"], "the listing follows"
    lake.table("t")
    assert lake.load("bob", "ns.t") == 403, "another table with the former name"
    lake.must("admin", "DELETE", "/v1/namespaces/other/tables/u")
    lake.table("u", ns="other")
    assert lake.load("bob", "other.u") == 403


@pytest.mark.parametrize("how", ["repeated", "at another replica"])
def test_a_grant_follows_the_last_of_two_renames(
    lake: World, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b", "c"):
        lake.namespace(name)
    lake.table("t")
    lake.grant("bob", "table:ns.t", "READ")
    names = [{"namespace": [ns], "name": "t"} for ns in ("ns", "b", "c")]
    first, second = ({"source": a, "destination": b} for a, b in itertools.pairwise(names))
    noted, key = lake.core.access.renamed, uuid7()

    def late(uuid: str, name: tuple[str, ...]) -> None:
        monkeypatch.undo()
        lake.must("admin", "POST", "/v1/tables/rename", second)
        noted(uuid, name)

    if how == "at another replica":
        monkeypatch.setattr(lake.core.access, "renamed", late)
    lake.must("admin", "POST", "/v1/tables/rename", first, key=key)
    if how == "repeated":
        lake.must("admin", "POST", "/v1/tables/rename", second)
        lake.must("admin", "POST", "/v1/tables/rename", first, key=key)
    assert lake.listed("bob", "/v1/namespaces") == ["c"]
    assert lake.listed("bob", "/v1/namespaces/c/tables") == ["t"]


def test_a_table_that_is_registered_again_has_its_grants(lake: World) -> None:
    made = lake.table("t")
    lake.grant("bob", "table:ns.t", "READ")
    lake.must("admin", "DELETE", T)
    assert lake.load("bob", "ns.t") == 404, "it knows that table, which is gone"
    register = {"name": "v", "metadata-location": made["metadata-location"]}
    lake.must("admin", "POST", "/v1/namespaces/ns/register", register)
    assert lake.load("bob", "ns.v") == 200


def test_a_namespace_of_the_same_name_is_another_one(lake: World) -> None:
    lake.namespace("two")
    lake.grant("bob", "namespace:two", "MANAGE")
    lake.must("bob", "DELETE", "/v1/namespaces/two")
    lake.namespace("two")
    answer = lake.ask("bob", "GET", "/v1/namespaces/two/tables")
    assert lake.ask("bob", "DELETE", "/v1/namespaces/two").status_code == 403
    lake.table("t", ns="two")
    assert lake.load("bob", "two.t") == 403
    assert answer.status_code == 403


def test_a_damaged_table_hides_no_namespace_from_who_was_granted_something_on_it(lake: World) -> None:
    lake.table("t")
    lake.grant("bob", "table:ns.t", "READ")
    lake.store.put(pointer_key(("ns",), "t"), b"{")
    assert lake.listed("bob", "/v1/namespaces") == ["ns"]


@pytest.mark.parametrize("on", ["table:ns.t", "namespace:ns.deep"])
def test_a_grant_on_what_is_gone_shows_no_namespace_that_got_its_name(lake: World, on: str) -> None:
    lake.table("t")
    lake.namespace("ns.deep")
    lake.grant("bob", on, "READ")
    lake.must("bob", "GET", "/v1/namespaces/ns")
    assert lake.listed("bob", "/v1/namespaces") == ["ns"]
    for path in (T, "/v1/namespaces/ns%1Fdeep", "/v1/namespaces/ns"):
        lake.must("admin", "DELETE", path)
    lake.grant("eve", "warehouse", "CREATE")
    lake.must("eve", "POST", "/v1/namespaces", {"namespace": ["ns"], "properties": {"of": "eve"}})
    lake.table("t", who="eve")
    lake.namespace("ns.deep", who="eve")
    for path in ("/v1/namespaces/ns", "/v1/namespaces/ns/tables", "/v1/namespaces?parent=ns"):
        error(lake.ask("bob", "GET", path), 403, "ForbiddenException")
    assert lake.listed("bob", "/v1/namespaces") == []
    assert lake.listed("eve", "/v1/namespaces") == ["ns"]


def test_a_privilege_holds_for_everything_below(lake: World) -> None:
    lake.namespace("ns.in")
    lake.table("t", ns="ns%1Fin")
    lake.grant("bob", "namespace:ns", "WRITE")
    assert lake.load("bob", "ns.in.t") == 200
    lake.must("bob", "POST", "/v1/namespaces/ns%1Fin/tables/t", SET)
    lake.grant("eve", "namespace:ns.in", "READ")
    assert lake.load("eve", "ns.in.t") == 200
    assert lake.listed("eve", "/v1/namespaces") == ["ns"], "the way to it is seen"
    assert lake.listed("eve", "/v1/namespaces?parent=ns") == ["ns.in"]
    assert lake.listed("eve", "/v1/namespaces/ns/tables") == []


def test_who_creates_a_namespace_owns_it_and_what_others_create_in_it(lake: World) -> None:
    lake.grant("bob", "warehouse", "CREATE")
    lake.namespace("mine", "bob")
    lake.grant("bob", "warehouse", "CREATE", revoke=True)
    lake.grant("eve", "namespace:mine", "CREATE", who="bob")
    lake.table("t", "eve", ns="mine")
    assert lake.load("bob", "mine.t") == 200
    assert lake.must("bob", "GET", "/tarn/v1/grants?kind=namespace&namespace=mine")["owner"] == "bob"
    assert lake.must("bob", "GET", "/tarn/v1/grants?kind=table&namespace=mine&name=t")["owner"] == "eve"
    lake.must("bob", "DELETE", "/v1/namespaces/mine/tables/t")
    lake.must("bob", "DELETE", "/v1/namespaces/mine")


def test_an_owner_keeps_a_table_that_another_renames_or_that_is_rolled_back(lake: World) -> None:
    lake.grant("bob", "namespace:ns", "CREATE")
    made = lake.table("t", "bob")
    lake.grant("bob", "namespace:ns", "CREATE", revoke=True)
    lake.must("bob", "POST", T, SET)
    back = {"name": "t", "metadata-location": made["metadata-location"], "overwrite": True}
    lake.must("admin", "POST", "/v1/namespaces/ns/register", back)
    assert lake.load("bob", "ns.t") == 200
    move = {"source": {"namespace": ["ns"], "name": "t"}, "destination": {"namespace": ["ns"], "name": "u"}}
    lake.must("admin", "POST", "/v1/tables/rename", move)
    assert lake.load("bob", "ns.u") == 200
    change = {"identifier": {"namespace": ["ns"], "name": "u"}, **SET}
    lake.must("admin", "POST", "/v1/transactions/commit", {"table-changes": [change]})
    lake.must("bob", "DELETE", "/v1/namespaces/ns/tables/u")


# -- listings


def test_listings_show_what_may_be_read_also_page_by_page(lake: World) -> None:
    lake.namespace("hidden")
    names = [f"t{number:02}" for number in range(12)]
    for name in names:
        lake.table(name)
    lake.view("v1")
    lake.view("v2")
    mine = names[1::3]
    for name in mine:
        lake.grant("bob", f"table:ns.{name}", "READ")
    lake.grant("bob", "view:ns.v2", "WRITE")
    assert lake.listed("bob", "/v1/namespaces/ns/tables") == mine
    assert lake.listed("bob", "/v1/namespaces/ns/views") == ["v2"]
    assert lake.listed("bob", "/v1/namespaces") == ["ns"]
    assert lake.listed("eve", "/v1/namespaces") == []
    found, token = [], ""
    while token is not None:
        page = lake.must("bob", "GET", f"/v1/namespaces/ns/tables?pageToken={token}&pageSize=3")
        assert len(page["identifiers"]) <= 3
        found += [one["name"] for one in page["identifiers"]]
        token = page["next-page-token"]
        assert token is None or len(found) < len(mine), f"there is a page after the last one: {found}"
    assert found == mine
    assert lake.listed("admin", "/v1/namespaces/ns/tables") == names, "the memory of a listing is for all"
    lake.grant("eve", "namespace:ns", "CREATE")
    assert lake.listed("eve", "/v1/namespaces/ns/tables") == [], "to create is not to read"
    lake.grant("eve", "namespace:ns", "READ")
    assert lake.listed("eve", "/v1/namespaces/ns/tables") == names


# -- repeated and lost requests


def test_a_replayed_key_gives_no_rights(lake: World) -> None:
    lake.grant("bob", "namespace:ns", "CREATE")
    lake.grant("eve", "namespace:ns", "CREATE")
    create, commit, view = uuid7(), uuid7(), uuid7()
    body = {"name": "t", "schema": SCHEMA}
    assert lake.ask("bob", "POST", "/v1/namespaces/ns/tables", body, key=create).status_code == 200
    assert lake.ask("bob", "POST", T, SET, key=commit).status_code == 200
    again = lake.ask("bob", "POST", "/v1/namespaces/ns/tables", body, key=create)
    assert again.json()["metadata"]["properties"]["a"] == "1"
    before = lake.objects()
    stolen = lake.ask("eve", "POST", "/v1/namespaces/ns/tables", body, key=create)
    assert "eve may not create" in error(stolen, 403, "ForbiddenException")
    # The commit is known to have been carried out: a client that is refused deletes the files of a commit.
    answer = lake.ask("eve", "POST", T, SET, key=commit)
    message = error(answer, 500, "CommitStateUnknownException")
    assert "delete nothing" in message
    assert "metadata" not in answer.json()
    other = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "2"}}]}
    error(lake.ask("eve", "POST", T, other, key=commit), 403, "ForbiddenException")
    shape = {"name": "v", "schema": SCHEMA, "properties": {}, "view-version": _version()}
    assert lake.ask("bob", "POST", "/v1/namespaces/ns/views", shape, key=view).status_code == 200
    stolen = lake.ask("eve", "POST", "/v1/namespaces/ns/views", shape, key=view)
    error(stolen, 403, "ForbiddenException")
    assert {k: v for k, v in lake.objects().items() if k in before} == before
    lake.grant("bob", "warehouse", "CREATE")
    lake.grant("eve", "warehouse", "CREATE")
    space = {"namespace": ["new"], "properties": {"secret": "1"}}
    key = uuid7()
    assert lake.ask("bob", "POST", "/v1/namespaces", space, key=key).status_code == 200
    lake.grant("eve", "warehouse", "CREATE", revoke=True)
    error(lake.ask("eve", "POST", "/v1/namespaces", space, key=key), 403, "ForbiddenException")


def _version() -> dict[str, Any]:
    return {
        **{"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": []},
        "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
    }


def test_a_staged_create_gives_no_sight_of_a_table_that_exists(lake: World) -> None:
    """A create that was carried out is answered with the table; the uuid in it proves no right."""
    made = lake.table("t")["metadata"]
    lake.grant("eve", "namespace:ns", "CREATE")
    updates = [
        {"action": "assign-uuid", "uuid": made["table-uuid"]},
        {"action": "set-location", "location": made["location"]},
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    assert lake.ask("admin", "POST", T, body).status_code == 200
    answer = lake.ask("eve", "POST", T, body)
    error(answer, 403, "ForbiddenException")


def test_an_owner_repeats_its_drop(lake: World) -> None:
    lake.grant("bob", "namespace:ns", "CREATE")
    for purge in ("false", "true"):
        lake.table("t", "bob")
        key = uuid7()
        for _ in range(2):
            answer = lake.ask("bob", "DELETE", T, key=key, params={"purgeRequested": purge})
            assert answer.status_code == 204, answer.text
        assert lake.ask("eve", "DELETE", T, key=key).status_code == 403
        assert lake.ask("bob", "DELETE", T).status_code == 404


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_commit_that_was_carried_out_is_never_refused(lake: World, keyed: bool, together: bool) -> None:
    """The answer was lost, then the grant was revoked: 403 would have the client delete its files."""
    lake.table("t")
    lake.grant("bob", "table:ns.t", "WRITE")
    key = uuid7() if keyed else None
    assert appended(lake, 5, key=key).status_code == 200
    body, path = lake.last, T  # type: ignore[attr-defined]
    if together:
        change = {"identifier": {"namespace": ["ns"], "name": "t"}, **body}
        body, path, key = {"table-changes": [change]}, "/v1/transactions/commit", None
    lake.grant("bob", "table:ns.t", "WRITE", revoke=True)
    message = error(lake.ask("bob", "POST", path, body, key=key), 500, "CommitStateUnknownException")
    assert "carried out before: delete nothing" in message
    assert appended(lake, 6).status_code == 403


@pytest.mark.parametrize("together", [True, False])
def test_a_commit_carried_out_before_a_rename_and_a_revocation_is_unknown(
    lake: World, together: bool
) -> None:
    """The caller may know that the former name is gone, but 404 would have it delete files as well."""
    lake.table("t")
    lake.grant("bob", "namespace:ns", "READ")
    lake.grant("bob", "table:ns.t", "WRITE")
    assert appended(lake, 5).status_code == 200
    body, path = lake.last, T  # type: ignore[attr-defined]
    names = [{"namespace": ["ns"], "name": name} for name in ("t", "u")]
    if together:
        body, path = {"table-changes": [{"identifier": names[0], **body}]}, "/v1/transactions/commit"
    lake.must("admin", "POST", "/v1/tables/rename", {"source": names[0], "destination": names[1]})
    lake.grant("bob", "table:ns.u", "WRITE", revoke=True)
    message = error(lake.ask("bob", "POST", path, body), 500, "CommitStateUnknownException")
    assert "Table does not exist: ns.t. The commit was carried out before: delete nothing" in message
    error(lake.ask("bob", "POST", T, SET), 404, "NoSuchTableException")


def test_a_commit_carried_out_before_another_table_got_the_name_is_unknown(lake: World) -> None:
    """The grant is on the table, which has another name, and not on the one that has the name now."""
    uuid = lake.table("t")["metadata"]["table-uuid"]
    lake.grant("bob", "table:ns.t", "WRITE")
    assert appended(lake, 5).status_code == 200
    rows = lake.last  # type: ignore[attr-defined]
    body = {**rows, "requirements": [*rows["requirements"], {"type": "assert-table-uuid", "uuid": uuid}]}
    names = [{"namespace": ["ns"], "name": name} for name in ("t", "u")]
    lake.must("admin", "POST", "/v1/tables/rename", {"source": names[0], "destination": names[1]})
    lake.table("t")
    message = error(lake.ask("bob", "POST", T, body), 500, "CommitStateUnknownException")
    assert "the table has another name now; look for your rows there, and delete nothing" in message
    error(
        lake.ask("bob", "POST", T, {**SET, "requirements": body["requirements"][1:]}),
        403,
        "ForbiddenException",
    )


@pytest.mark.parametrize("turned", [False, True], ids=["rows first", "rows last"])
def test_a_commit_to_several_tables_that_was_carried_out_is_not_refused_for_one_of_them(
    lake: World, turned: bool
) -> None:
    for name in ("t", "u"):
        lake.table(name)
        lake.grant("bob", f"table:ns.{name}", "WRITE")
    assert appended(lake, 5).status_code == 200
    rows = lake.last  # type: ignore[attr-defined]
    changes = [
        {"identifier": {"namespace": ["ns"], "name": name}, **body}
        for name, body in (("t", rows), ("u", SET))
    ]
    body = {"table-changes": changes[::-1] if turned else changes}
    lake.grant("bob", "table:ns.u", "WRITE", revoke=True)
    answer = lake.ask("bob", "POST", "/v1/transactions/commit", body)
    assert "carried out before: delete nothing" in error(answer, 500, "CommitStateUnknownException")
    others = [{**changes[1]}, {**changes[0], "updates": SET["updates"]}]
    answer = lake.ask("bob", "POST", "/v1/transactions/commit", {"table-changes": others})
    error(answer, 403, "ForbiddenException")


@pytest.mark.parametrize("where", ["table", "namespace"])
def test_a_commit_carried_out_before_a_rename_out_of_sight_is_unknown(lake: World, where: str) -> None:
    """Its answer would be the table under the new name, which the caller may not see."""
    lake.namespace("hidden")
    lake.table("t")
    lake.grant("bob", f"{where}:ns" + (".t" if where == "table" else ""), "WRITE")
    assert appended(lake, 5).status_code == 200
    body = lake.last  # type: ignore[attr-defined]
    move = {
        "source": {"namespace": ["ns"], "name": "t"},
        "destination": {"namespace": ["hidden"], "name": "u"},
    }
    lake.must("admin", "POST", "/v1/tables/rename", move)
    answer = lake.ask("bob", "POST", T, body)
    if where == "table":
        assert answer.status_code == 200, "the grant went along"
        return
    message = error(answer, 500, "CommitStateUnknownException")
    assert "Delete nothing" in message
    assert "metadata" not in answer.json()
    assert lake.ask("bob", "POST", T, SET).status_code == 404


def test_a_change_of_a_view_before_a_rename_out_of_sight_is_unknown(lake: World) -> None:
    lake.namespace("hidden")
    lake.view("v")
    lake.grant("bob", "namespace:ns", "WRITE")
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
    path, key = "/v1/namespaces/ns/views/v", uuid7()
    assert lake.ask("bob", "POST", path, change, key=key).status_code == 200
    move = {
        "source": {"namespace": ["ns"], "name": "v"},
        "destination": {"namespace": ["hidden"], "name": "w"},
    }
    lake.must("admin", "POST", "/v1/views/rename", move)
    answer = lake.ask("bob", "POST", path, change, key=key)
    assert "the view has another name or is gone" in error(answer, 500, "CommitStateUnknownException")
    assert "metadata" not in answer.json()
    assert lake.must("admin", "POST", path, change, key=key)["metadata"]["properties"] == {"a": "1"}


def staged(lake: World) -> dict[str, Any]:
    """A staged create of ns.t by bob, with rows, that is still to be committed."""
    body = {"name": "t", "schema": SCHEMA, "stage-create": True}
    meta = lake.must("bob", "POST", "/v1/namespaces/ns/tables", body)["metadata"]
    snapshot = {
        **{"snapshot-id": 5, "sequence-number": 1, "schema-id": 0, "summary": {"operation": "append"}},
        **{"timestamp-ms": meta["last-updated-ms"] + 1},
        "manifest-list": f"{meta['location']}/metadata/5.avro",
    }
    updates = [
        {"action": "assign-uuid", "uuid": meta["table-uuid"]},
        {"action": "add-schema", "schema": meta["schemas"][0]},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": meta["partition-specs"][0]},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": meta["sort-orders"][0]},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": meta["location"]},
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 5},
    ]
    return {"requirements": [{"type": "assert-create"}], "updates": updates}


def test_a_create_with_rows_before_a_rename_out_of_sight_is_unknown(lake: World) -> None:
    """The creator is no owner any more, and may not see where the table is now."""
    lake.namespace("hidden")
    lake.grant("bob", "namespace:ns", "CREATE", "READ")
    create = staged(lake)
    lake.must("bob", "POST", T, create)
    move = {
        "source": {"namespace": ["ns"], "name": "t"},
        "destination": {"namespace": ["hidden"], "name": "u"},
    }
    lake.must("admin", "POST", "/v1/tables/rename", move)
    assert lake.ask("bob", "POST", T, create).status_code == 200, "it owns the table, wherever it is"
    lake.must("admin", "POST", "/tarn/v1/owner", {"on": thing("table:hidden.u"), "to": "eve"})
    answer = lake.ask("bob", "POST", T, create)
    assert "Delete nothing" in error(answer, 500, "CommitStateUnknownException")
    assert "metadata" not in answer.json()


@pytest.mark.parametrize("rename", ["here", "at another replica", "unfinished"])
@pytest.mark.parametrize("kind", ["view", "table", "table without a key"])
def test_a_former_owner_does_not_see_what_its_commit_went_to(lake: World, kind: str, rename: str) -> None:
    """It is still the owner in the tombstone of the former name."""
    lake.namespace("hidden")
    lake.grant("bob", "namespace:ns", "CREATE")
    key = None if kind == "table without a key" else uuid7()
    if kind == "view":
        lake.view("t", "bob")
        path, hidden, body = "/v1/namespaces/ns/views/t", "/v1/namespaces/hidden/views/u", SET
        assert lake.ask("bob", "POST", path, body, key=key).status_code == 200
    else:
        lake.table("t", "bob")
        path, hidden = T, "/v1/namespaces/hidden/tables/u"
        assert appended(lake, 5, key=key).status_code == 200
        body = lake.last  # type: ignore[attr-defined]
    what = kind.split()[0]
    there = lake.core if rename == "here" else lake.catalog()
    source, target = (TableIdentifier.of((ns,), name, what) for ns, name in (("ns", "t"), ("hidden", "u")))
    puts = 0

    def second(op: Op) -> Fault | None:
        nonlocal puts
        puts += op.kind == "put" and op.key == source.key
        return Fault.RESET if op.kind == "put" and op.key == source.key and puts > 1 else None

    lake.store.plan = second if rename == "unfinished" else lake.store.plan
    there.names.rename(source, target)
    if rename == "here":
        answer = lake.ask("bob", "POST", path, body, key=key)
        assert answer.status_code == 200, "it owns that, wherever it is"
    there.tables.change_owner(target, lake.credentials["eve"].split(":")[0])
    secret = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"secret": "1"}}]}
    lake.must("eve", "POST", hidden, secret)
    answer = lake.ask("bob", "POST", path, body, key=key)
    assert "Delete nothing" in error(answer, 500, "CommitStateUnknownException")
    assert "secret" not in answer.text
    lake.grant("bob", f"{what}:hidden.u", "READ")
    assert lake.ask("bob", "POST", path, body, key=key).status_code == 200


@pytest.mark.parametrize("how", ["owner", "grant"])
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_a_create_with_rows_that_was_carried_out_is_never_refused(
    lake: World, how: str, keyed: bool, together: bool
) -> None:
    """Its answer was lost, then the table was given away or the grant revoked."""
    lake.grant("bob", "namespace:ns", "CREATE")
    create, key = staged(lake), uuid7() if keyed else None

    def ask(name: str, key: str | None = None) -> httpx.Response:
        if not together:
            return lake.ask("bob", "POST", f"/v1/namespaces/ns/tables/{name}", create, key=key)
        change = {"identifier": {"namespace": ["ns"], "name": name}, **create}
        return lake.ask("bob", "POST", "/v1/transactions/commit", {"table-changes": [change]}, key=key)

    assert ask("t", key).status_code in (200, 204)
    if how == "owner":
        lake.must("admin", "POST", "/tarn/v1/owner", {"on": thing("table:ns.t"), "to": "eve"})
    else:
        lake.grant("bob", "namespace:ns", "CREATE", revoke=True)
        error(ask("other"), 403, "ForbiddenException")
    answer = ask("t", key)
    if together and how == "owner":
        assert answer.status_code == 204, "it shows nothing of the table"
        return
    assert "carried out before: delete nothing" in error(answer, 500, "CommitStateUnknownException")
    assert "metadata" not in answer.json()


# -- how soon


def test_a_change_is_in_effect_everywhere_within_the_stated_time(lake: World) -> None:
    lake.table("t")
    lake.grant("bob", "table:ns.t", "READ")
    here = lake.core.access
    there = lake.catalog().access
    bob = lake.credentials["bob"].split(":")[0]
    uuid = lake.must("admin", "GET", T)["metadata"]["table-uuid"]

    def may(access: Access) -> bool:
        return Privilege.READ in access.caller(bob).on(uuid, None)

    assert (may(here), may(there)) == (True, True)
    lake.grant("bob", "table:ns.t", "READ", revoke=True)
    assert (may(here), may(there)) == (False, True), "at once where it was made"
    lake.clock_s += MAX_AGE_S - 0.01
    assert may(there)
    lake.clock_s += 0.01
    assert not may(there)
    lake.must("admin", "DELETE", "/tarn/v1/principals/bob")
    assert there.stored(bob) is not None
    lake.clock_s += MAX_AGE_S
    assert there.stored(bob) is None
    with pytest.raises(UnauthenticatedError):
        there.caller(bob)


def test_grants_that_cannot_be_read_again_count_no_longer(lake: World) -> None:
    access = lake.catalog().access
    assert access.grants().state.principals
    lake.store.plan = lambda op: Fault.RESET if op.key == GRANTS_KEY else None
    lake.clock_s += MAX_AGE_S - 0.01
    assert access.grants().state.principals
    lake.clock_s += 0.01
    with pytest.raises(UnavailableError):
        access.grants()
    error(lake.ask("bob", "GET", "/v1/namespaces"), 503, "ServiceUnavailableException")
    assert lake.ask("admin", "GET", "/v1/namespaces").status_code == 200


def test_the_time_counts_from_before_the_read(lake: World) -> None:
    """What is stored during a slow read may be missing in it."""
    access = lake.catalog().access
    read = access._core.read

    def slow(*args: Any, **more: Any) -> Any:
        found = read(*args, **more)
        lake.clock_s += 3
        return found

    access._core.read = slow  # type: ignore[method-assign]
    access.grants()
    count = len(lake.store.seen)
    lake.clock_s += MAX_AGE_S - 3
    access.grants()
    assert len(lake.store.seen) == count + 1


# -- what it costs


def operations(lake: World, who: str, method: str, path: str, body: Any = None) -> list[tuple[str, str]]:
    start = len(lake.store.seen)
    lake.must(who, method, path, body)
    return [(op.kind, op.key) for op in lake.store.seen[start:]]


def test_a_services_principal_reads_no_grants_and_nobody_lists(lake: World) -> None:
    lake.table("t")
    lake.grant("bob", "namespace:ns", "WRITE")
    key = pointer_key(("ns",), "t")
    lake.must("admin", "POST", T, SET)
    lake.clock_s += 60
    assert operations(lake, "admin", "GET", T) == [("get", key)]
    kinds = [kind for kind, _ in operations(lake, "admin", "POST", T, {**SET, "updates": _properties("2")})]
    assert kinds == ["put", "put"]
    lake.clock_s += 60
    first = operations(lake, "bob", "GET", T)
    assert [key for _, key in first] == [GRANTS_KEY, "catalog/v1/namespaces/ns.json", key]
    again = operations(lake, "bob", "GET", T)
    assert [key for _, key in again] == ["catalog/v1/namespaces/ns.json", key]
    commit = operations(lake, "bob", "POST", T, {**SET, "updates": _properties("3")})
    # Judged twice: before its place in the table's line, and when its turn came.
    assert [kind for kind, _ in commit] == ["get", "get", "put", "put", "get"]
    lake.must("admin", "POST", "/tarn/v1/owner", {"on": thing("table:ns.t"), "to": "eve"})
    lake.must("eve", "POST", T, {**SET, "updates": _properties("4")})
    commit = operations(lake, "eve", "POST", T, {**SET, "updates": _properties("5")})
    assert [kind for kind, _ in commit] == ["get"] * 4 + ["put"] * 2, "an owner's answer takes no read"


def _properties(value: str) -> list[Any]:
    return [{"action": "set-properties", "updates": {"a": value}}]


# -- the audit trail


def test_changes_and_refusals_are_logged_one_line_each(lake: World) -> None:
    lake.grant("bob", "namespace:ns", "CREATE")

    def lines(who: str, method: str, path: str, body: Any = None, **more: Any) -> list[dict[str, Any]]:
        with capture_logs() as logged:
            lake.ask(who, method, path, body, **more)
        return [
            {name: value for name, value in line.items() if name not in ("event", "log_level")}
            for line in logged
            if line["event"] == "audit"
        ]

    bob = {"principal": "bob", "client_id": lake.credentials["bob"].split(":")[0]}
    eve = {"principal": "eve", "client_id": lake.credentials["eve"].split(":")[0]}
    one = {"object": "table ns.t", "outcome": "done"}
    table = {"name": "t", "schema": SCHEMA}
    assert lines("bob", "POST", "/v1/namespaces/ns/tables", table) == [{**bob, "action": "create", **one}]
    assert lines("bob", "POST", T, SET) == [{**bob, "action": "commit", **one}]
    assert lines("bob", "GET", T) == []
    assert lines("eve", "GET", T) == [{**eve, "action": "load", "object": "table ns.t", "outcome": "refused"}]
    grant = {"on": thing("table:ns.t"), "to": "eve", "privileges": ["READ"]}
    assert lines("bob", "POST", "/tarn/v1/grants", grant) == [
        {**bob, "action": "grant", **one, "to": "eve", "privileges": ["READ"]}
    ]
    stale = {**SET, "requirements": [{"type": "assert-current-schema-id", "current-schema-id": 7}]}
    assert lines("bob", "POST", T, stale) == [
        {**bob, "action": "commit", **one, "outcome": "failed", "error": "ConflictError"}
    ]
    move = {"source": {"namespace": ["ns"], "name": "t"}, "destination": {"namespace": ["ns"], "name": "u"}}
    assert lines("bob", "POST", "/v1/tables/rename", move) == [
        {**bob, "action": "rename", **one, "to": "ns.u"}
    ]
    gone = {**bob, "action": "drop", "object": "table ns.u", "outcome": "done", "purge": True}
    path = "/v1/namespaces/ns/tables/u"
    assert lines("bob", "DELETE", path, params={"purgeRequested": "true"}) == [gone]
    (line,) = lines("admin", "POST", "/tarn/v1/principals", {"name": "zoe"})
    assert (line["principal"], line["action"], line["object"]) == (
        "tester",
        "create-principal",
        "principal zoe",
    )
    lake.store.plan = lambda op: Fault.LOST_REPLY if op.kind == "put" else None
    answers = lines("admin", "POST", "/v1/namespaces", {"namespace": ["x"]})
    assert [line["outcome"] for line in answers] == ["done"], "a lost answer is looked up"


# -- limits


def test_grants_that_would_be_too_large_are_refused_and_dead_ones_make_room(
    lake: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = _size(lake.core.access.grants().state)
    monkeypatch.setattr("tarn_catalog.operations.access.BYTES_MAX", size + 700)
    assert BYTES_MAX == 1024 * 1024
    made = []
    for number in range(9):
        lake.table(f"t{number}")
        body = {"on": thing(f"table:ns.t{number}"), "to": "bob", "privileges": ["READ"]}
        answer = lake.ask("admin", "POST", "/tarn/v1/grants", body)
        if answer.status_code != 200:
            break
        made.append(number)
    message = error(answer, 400, "BadRequestException")
    assert re.search(rf"would take \d+ bytes, at most {size + 700} are allowed; grant on namespaces", message)
    assert 3 <= len(made) < 9
    lake.must("admin", "DELETE", "/v1/namespaces/ns/tables/t1")
    # Not by a session, so that the grant has the former name, which is another table's then.
    lake.core.names.rename(*(TableIdentifier.of(("ns",), name) for name in ("t0", "moved")))
    lake.table("t0")
    lake.must("admin", "DELETE", "/v1/namespaces/ns/tables/t2")
    lake.must("admin", "POST", "/tarn/v1/grants", body)
    assert lake.load("bob", "ns.moved") == 200
    kept = {one["on"]["name"] for one in lake.must("bob", "GET", "/tarn/v1/whoami")["grants"]}
    assert "t1" not in kept
    assert "t0" in kept, "the claim knows where the first table is"


# -- broken off and repeated


FAULTS = (Fault.LOST_REPLY, Fault.RESET, Fault.BUSY_DONE, Fault.CONFLICT)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_grant_under_faults_happened_or_did_not(lake: World, fault: Fault, number: int) -> None:
    lake.table("t")
    counted = 0

    def plan(op: Any) -> Fault | None:
        nonlocal counted
        counted += op.key == GRANTS_KEY
        return fault if op.key == GRANTS_KEY and counted == number else None

    lake.store.plan = plan
    body = {"on": thing("table:ns.t"), "to": "bob", "privileges": ["READ"]}
    answer = lake.ask("admin", "POST", "/tarn/v1/grants", body)
    lake.store.plan = lambda _: None
    found = lake.load("bob", "ns.t")
    if answer.status_code == 200:
        assert found == 200
    elif answer.status_code == 503:
        assert found == 403, answer.text
    else:
        error(answer, 500, "CommitStateUnknownException")


# -- in process


def test_in_process_everything_is_allowed_unless_a_principal_is_named(lake: World) -> None:
    lake.table("t")
    lake.table("hidden")
    lake.grant("bob", "table:ns.t", "READ")
    schema = Schema(NestedField(1, "x", LongType(), required=False))
    free = EmbeddedCatalog("lake", core=lake.core)
    free.create_table("ns.free", schema)
    assert free.table_exists("ns.hidden")
    bob: PyIcebergCatalog = EmbeddedCatalog("lake", core=lake.core, principal="bob")
    assert bob.list_tables("ns") == [("ns", "t")]
    assert bob.table_exists("ns.t")
    assert bob.load_table("ns.t").name() == ("ns", "t")
    for refused in (
        lambda: bob.load_table("ns.hidden"),
        lambda: bob.create_table("ns.new", schema),
        lambda: bob.drop_table("ns.t"),
        lambda: bob.rename_table("ns.t", "ns.u"),
        lambda: bob.create_namespace("new"),
        lambda: bob.load_table("ns.t").transaction().set_properties(a="1").commit_transaction(),
    ):
        with pytest.raises(ForbiddenError, match="bob may not"):
            refused()
    nobody = EmbeddedCatalog("lake", core=lake.core, principal="nobody")
    for asked in (
        lambda: nobody.list_tables("ns"),
        lambda: nobody.table_exists("ns.t"),
        lambda: nobody.view_exists("ns.t"),
        lambda: nobody.namespace_exists("ns"),
    ):
        with pytest.raises(UnauthorizedError, match="Principal does not exist: nobody"):
            asked()


def test_a_damaged_list_of_grants_stops_stored_principals_alone(lake: World) -> None:
    lake.store.inner.put(GRANTS_KEY, b"{}")
    lake.clock_s += MAX_AGE_S
    assert lake.ask("bob", "GET", "/v1/namespaces").status_code == 503
    assert lake.ask("admin", "GET", "/v1/namespaces").status_code == 200


def test_tokens_of_other_keys_do_not_make_a_stored_principal(lake: World, tmp_path: Path) -> None:
    access = Authenticator(lake.running.secrets_dir, access=lake.core.access)
    found = access.principal(lake.clients["bob"].headers["authorization"])
    assert (found.stored, access.caller(found).name, access.caller(found).admin) == (True, "bob", False)
    with pytest.raises(UnauthenticatedError, match="has a new secret"):
        access.caller(replace(found, mark="0" * 8))
    with pytest.raises(UnauthenticatedError):
        access.principal(lake.clients["bob"].headers["authorization"] + "x")


def test_a_create_whose_last_check_fails_is_unknown_not_undone(lake: World) -> None:
    """503 would say that nothing was changed."""
    lake.grant("bob", "namespace:ns", "CREATE")
    key, made = pointer_key(("ns",), "t"), False

    def plan(op: Any) -> Fault | None:
        nonlocal made
        made = made or (key in lake.objects() and b'"live"' in lake.store.inner.get(key).data)
        return Fault.RESET if made and op.kind == "get" and op.key == key else None

    lake.store.plan = plan
    answer = lake.ask("bob", "POST", "/v1/namespaces/ns/tables", {"name": "t", "schema": SCHEMA})
    lake.store.plan = lambda _: None
    message = error(answer, 500, "CommitStateUnknownException")
    assert "load it and look" in message
    assert lake.load("bob", "ns.t") == 200


IN_LINE = ("commit", "drop", "purge")
"""What waits in the table's line: it is judged before, and again when its turn has come."""
RACED = {
    "load": ("GET", T, None),
    "exists": ("HEAD", T, None),
    "commit": ("POST", T, SET),
    "drop": ("DELETE", T, None),
    "purge": ("DELETE", f"{T}?purgeRequested=true", None),
    "rename": (
        "POST",
        "/v1/tables/rename",
        {"source": {"namespace": ["ns"], "name": "t"}, "destination": {"namespace": ["ns"], "name": "u"}},
    ),
    "together": (
        "POST",
        "/v1/transactions/commit",
        {"table-changes": [{"identifier": {"namespace": ["ns"], "name": "t"}, **SET}]},
    ),
}


@pytest.mark.parametrize("what", RACED)
def test_what_was_checked_is_what_is_changed(lake: World, what: str) -> None:
    """Between check and operation another table gets the name: the grant was on the first one."""
    lake.table("t")
    lake.grant("bob", "table:ns.t", "MANAGE")
    method, path, body = RACED[what]
    if what == "rename":
        lake.namespace("mine")
        lake.grant("bob", "namespace:mine", "CREATE")
        body = {**body, "destination": {"namespace": ["mine"], "name": "u"}}
    key, slot = pointer_key(("ns",), "t"), TableIdentifier.of(("ns",), "t")
    other = Catalog(lake.store.inner, ROOTS)
    reads, swapped = 0, ""

    def plan(op: Any) -> None:
        nonlocal reads, swapped
        if reads == (2 if what in IN_LINE else 1) and not swapped:
            other.tables.drop(slot)
            made = other.tables.create(slot, CreateTableRequest(schema=SCHEMA, properties={}))
            swapped = made.parsed["table-uuid"]
        reads += op.kind == "get" and op.key == key

    lake.store.plan = plan
    answer = lake.ask("bob", method, path, body)
    lake.store.plan = lambda _: None
    assert swapped
    assert answer.status_code == 404, answer.text
    found = lake.must("admin", "GET", T)["metadata"]
    assert found["table-uuid"] == swapped
    assert "a" not in found["properties"], "what the commit sets"


def test_a_repeated_commit_does_not_follow_another_table(lake: World) -> None:
    """The name remembers the key, whichever table it leads to."""
    lake.namespace("hidden")
    lake.table("t")
    lake.grant("bob", "table:ns.t", "WRITE")
    repeat = uuid7()
    assert lake.ask("bob", "POST", T, SET, key=repeat).status_code == 200
    key, slot = pointer_key(("ns",), "t"), TableIdentifier.of(("ns",), "t")
    other = Catalog(lake.store.inner, ROOTS)
    reads, moved = 0, False

    def plan(op: Any) -> None:
        nonlocal reads, moved
        if reads == 2 and not moved:  # judged before the line, and in its turn
            moved = True
            other.tables.drop(slot)
            other.tables.create(slot, CreateTableRequest(schema=SCHEMA, properties={}))
            other.names.rename(slot, TableIdentifier.of(("hidden",), "u"))
        reads += op.kind == "get" and op.key == key

    lake.store.plan = plan
    answer = lake.ask("bob", "POST", T, SET, key=repeat)
    lake.store.plan = lambda _: None
    assert moved
    assert answer.status_code == 404, answer.text


@pytest.mark.parametrize("who", ["bob", "admin"])
def test_a_commit_to_too_many_tables_is_refused_before_any_right_is_looked_for(lake: World, who: str) -> None:
    lake.table("t")
    lake.grant("bob", "table:ns.t", "WRITE")
    lake.load("bob", "ns.t")
    change = {"identifier": {"namespace": ["ns"], "name": "t"}, **SET}
    answers = []
    with capture_logs() as lines:
        del lake.store.seen[:]
        for count in (0, 101, 5_000):
            changes = {"table-changes": [change] * count}
            answers.append(lake.ask(who, "POST", "/v1/transactions/commit", changes))
    for answer in answers:
        assert "give at least 1 and at most 100" in error(answer, 400, "BadRequestException")
    assert pointer_key(("ns",), "t") not in {op.key for op in lake.store.seen}
    assert all(len(str(line.get("object", ""))) < 2_000 for line in lines)


@pytest.mark.parametrize("granted", ["t", "u"])
def test_a_commit_to_several_tables_needs_rights_on_every_one(lake: World, granted: str) -> None:
    lake.table("t")
    lake.table("u")
    lake.grant("bob", f"table:ns.{granted}", "WRITE")
    changes = [{"identifier": {"namespace": ["ns"], "name": name}, **SET} for name in ("t", "u")]
    before = lake.objects()
    answer = lake.ask("bob", "POST", "/v1/transactions/commit", {"table-changes": changes})
    assert "bob may not commit" in error(answer, 403, "ForbiddenException")
    assert lake.objects() == before
    lake.grant("bob", f"table:ns.{'u' if granted == 't' else 't'}", "WRITE")
    lake.must("bob", "POST", "/v1/transactions/commit", {"table-changes": changes})
    updates = lake.must(
        "admin", "POST", "/v1/namespaces/ns/tables", {"name": "v", "schema": SCHEMA, "stage-create": True}
    )
    meta = updates["metadata"]
    new = {
        "identifier": {"namespace": ["ns"], "name": "v"},
        "requirements": [{"type": "assert-create"}],
        "updates": [
            {"action": "assign-uuid", "uuid": meta["table-uuid"]},
            {"action": "add-schema", "schema": meta["schemas"][0]},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": meta["partition-specs"][0]},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": meta["sort-orders"][0]},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": meta["location"]},
        ],
    }
    both = {"table-changes": [changes[0], new]}
    error(lake.ask("bob", "POST", "/v1/transactions/commit", both), 403, "ForbiddenException")
    lake.grant("bob", "namespace:ns", "CREATE")
    lake.must("bob", "POST", "/v1/transactions/commit", both)
    assert lake.load("bob", "ns.v") == 200, "it owns what it created"


def test_pyiceberg_as_a_principal_with_a_few_grants(rest_lake: Lake) -> None:
    """What a real client does on its way: config, listings, create, append, read, and what it may not."""
    free, access, running = rest_lake.client, rest_lake.core.access, rest_lake.running
    assert running is not None
    rows = pa.table({"x": pa.array([1, 2], pa.int64())})
    free.create_namespace("ns")
    free.create_table("ns.t", rows.schema).append(rows)
    free.create_table("ns.hidden", rows.schema)
    made = access.create_principal("bob", by="test")
    bob = load_catalog(
        "bob",
        **{
            "type": "rest",
            "uri": running.published,
            "oauth2-server-uri": f"{running.published}/v1/oauth/tokens",
            "credential": f"{made.client_id}:{made.secret}",
            "warehouse": "tarn",
        },
    )
    assert bob.list_namespaces() == []
    with pytest.raises(ForbiddenError, match=r"bob may not load table ns\.t"):
        bob.load_table("ns.t")
    space = rest_lake.core.namespaces.find(("ns",))
    table = rest_lake.core.tables.find(TableIdentifier.of(("ns",), "t"))
    assert space is not None
    assert table is not None
    on = Securable(kind="table", uuid=table.uuid, name=("ns", "t"))
    access.grant(on, "bob", frozenset({Privilege.READ}))
    assert (bob.list_namespaces(), bob.list_tables("ns")) == ([("ns",)], [("ns", "t")])
    assert bob.load_table("ns.t").scan().to_arrow()["x"].to_pylist() == [1, 2]
    with pytest.raises(ForbiddenError, match=r"bob may not commit table ns\.t"):
        bob.load_table("ns.t").append(rows)
    access.grant(on, "bob", frozenset({Privilege.WRITE}))
    bob.load_table("ns.t").append(rows)
    assert free.load_table("ns.t").scan().count() == 4
    access.grant(
        Securable(kind="namespace", uuid=space.uuid, name=("ns",)), "bob", frozenset({Privilege.CREATE})
    )
    own = bob.create_table_if_not_exists("ns.own", rows.schema)
    own.append(rows)
    with bob.create_table_transaction("ns.staged", rows.schema) as made_at_once:
        made_at_once.append(rows)
    assert bob.list_tables("ns") == [("ns", "own"), ("ns", "staged"), ("ns", "t")]
    bob.rename_table("ns.own", "ns.mine")
    bob.drop_table("ns.mine")
    assert not bob.table_exists("ns.mine")
    for refused in (lambda: bob.drop_table("ns.hidden"), lambda: bob.purge_table("ns.t")):
        with pytest.raises(ForbiddenError, match="bob may not drop"):
            refused()
    assert free.list_tables("ns") == [("ns", "hidden"), ("ns", "staged"), ("ns", "t")]


def test_whoever_has_to_be_looked_up_waits_on_a_thread(lake: World) -> None:
    """The event loop must not wait for the store: the config of a service needs nothing of it."""
    routes = Routes(lake.core, Authenticator(lake.running.secrets_dir, access=lake.core.access))
    for who, waits in (("admin", False), ("bob", True)):
        count = len(lake.store.seen)
        admitted = routes.admit("GET", "/v1/config", lake.clients[who].headers["authorization"])
        assert (admitted.waits, len(lake.store.seen)) == (waits, count)
