"""What is given to another owner, and what a new secret ends."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from tarn.core.errors import UnauthenticatedError
from tarn.core.naming import GRANTS_KEY, namespace_key, pointer_key
from tarn_catalog.operations.access import GRACE_S_MAX, MAX_AGE_S, Caller
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.session import Session
from tarn_catalog.rest.auth import Authenticator, OAuthError
from tarn_catalog.state.access import AccessState
from tarn_catalog.state.pointer import Pointer
from tarn_catalog.testing.faulty_store import Fault
from tests.contract.catalog.access_world import World, error, thing, world

T = "/v1/namespaces/ns/tables/t"
SET = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
SECRET = "/tarn/v1/principals/bob/secret"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        made.namespace()
        made.principal("bob", "eve")
        yield made


def give(lake: World, who: str, on: str, to: str) -> httpx.Response:
    return lake.ask(who, "POST", "/tarn/v1/owner", {"on": thing(on), "to": to})


def owner(lake: World, on: str) -> str | None:
    named = thing(on)
    query = {"kind": named["kind"], "namespace": "\x1f".join(named["namespace"])}
    if "name" in named:
        query["name"] = named["name"]
    found: str | None = lake.must("admin", "GET", "/tarn/v1/grants", params=query)["owner"]
    return found


# -- owners


@pytest.mark.parametrize("on", ["table:ns.t", "view:ns.v", "namespace:ns.own"])
def test_the_new_owner_may_everything_and_the_former_one_what_was_granted_to_it(lake: World, on: str) -> None:
    lake.grant("bob", "namespace:ns", "CREATE")
    lake.table("t", "bob")
    lake.view("v", "bob")
    lake.namespace("ns.own", "bob")
    path = {
        "table:ns.t": T,
        "view:ns.v": "/v1/namespaces/ns/views/v",
        "namespace:ns.own": "/v1/namespaces/ns%1Fown",
    }[on]
    assert lake.ask("eve", "GET", path).status_code == 403
    answer = give(lake, "bob", on, "eve")
    assert (answer.status_code, answer.json()) == (200, {"on": thing(on), "owner": "eve"})
    assert owner(lake, on) == "eve"
    assert lake.ask("eve", "GET", path).status_code == 200
    if not on.startswith("namespace"):
        assert lake.ask("bob", "GET", path).status_code == 403
        lake.grant("bob", on, "READ", who="eve")
        assert lake.ask("bob", "GET", path).status_code == 200
    assert give(lake, "bob", on, "bob").status_code == 403
    assert lake.ask("bob", "DELETE", path).status_code == 403
    assert lake.ask("eve", "DELETE", path).status_code == 204


def test_who_may_give_what(lake: World) -> None:
    lake.table("t")
    assert owner(lake, "table:ns.t") == "tester"
    for privilege, status in (("READ", 403), ("WRITE", 403), ("MANAGE", 200)):
        lake.grant("bob", "table:ns.t", privilege)
        assert give(lake, "bob", "table:ns.t", "eve").status_code == status, privilege
    assert give(lake, "admin", "table:ns.t", "tester").status_code == 200
    assert owner(lake, "table:ns.t") == "tester"
    lake.grant("eve", "namespace:ns", "MANAGE")
    assert give(lake, "eve", "table:ns.t", "bob").status_code == 200
    assert give(lake, "eve", "namespace:ns", "bob").status_code == 200
    assert owner(lake, "namespace:ns") == "bob"


@pytest.mark.parametrize(
    ("on", "to", "status", "says"),
    [
        ("warehouse", "bob", 400, "has no owner"),
        ("table:ns.t", "staff", 404, "Principal does not exist: staff"),
        ("table:ns.t", "nobody", 404, "Principal does not exist: nobody"),
        ("table:ns.none", "bob", 404, "Table does not exist"),
        ("view:ns.t", "bob", 404, "View does not exist"),
        ("namespace:none", "bob", 404, "Namespace does not exist"),
    ],
)
def test_what_cannot_be_given_is_named_and_stays(
    lake: World, on: str, to: str, status: int, says: str
) -> None:
    lake.table("t")
    lake.must("admin", "POST", "/tarn/v1/roles", {"name": "staff"})
    before = lake.objects()
    answer = give(lake, "admin", on, to)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]
    assert lake.objects() == before


def test_giving_it_twice_writes_once(lake: World) -> None:
    lake.table("t")
    for on in ("table:ns.t", "namespace:ns"):
        assert give(lake, "admin", on, "bob").status_code == 200
        before = lake.objects()
        assert give(lake, "admin", on, "bob").status_code == 200
        assert lake.objects() == before


def test_nothing_but_the_owner_changes_and_writers_go_on(lake: World) -> None:
    made = lake.table("t")
    lake.must("admin", "POST", T, SET)  # the pointer is cached from here on
    before = lake.must("admin", "GET", T)
    assert give(lake, "admin", "table:ns.t", "bob").status_code == 200
    assert lake.must("admin", "GET", T) == before
    assert lake.must("bob", "POST", T, SET)["metadata"]["table-uuid"] == made["metadata"]["table-uuid"]
    body = {
        "source": {"namespace": ["ns"], "name": "t"},
        "destination": {"namespace": ["ns"], "name": "u"},
    }
    lake.must("admin", "POST", "/v1/tables/rename", body)
    assert owner(lake, "table:ns.u") == "bob"


def test_a_namespace_that_changes_hands_keeps_its_properties(lake: World) -> None:
    lake.must("admin", "POST", "/v1/namespaces/ns/properties", {"updates": {"p": "1"}})
    assert give(lake, "admin", "namespace:ns", "bob").status_code == 200
    assert lake.must("bob", "GET", "/v1/namespaces/ns")["properties"]["p"] == "1"
    assert lake.load("eve", "ns.t") == 403


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.LOST_REPLY, Fault.BUSY_DONE])
@pytest.mark.parametrize("on", ["table:ns.t", "namespace:ns"])
def test_a_change_of_owner_under_faults_happened_or_did_not(lake: World, fault: Fault, on: str) -> None:
    lake.table("t")
    key = pointer_key(("ns",), "t") if on.startswith("table") else namespace_key(("ns",))
    times = 0

    def plan(op: Any) -> Fault | None:
        nonlocal times
        times += op.key == key and op.kind == "put"
        return fault if op.key == key and op.kind == "put" and times == 1 else None

    lake.store.plan = plan
    answer = give(lake, "admin", on, "bob")
    lake.store.plan = lambda _: None
    assert times, "the fault hit nothing"
    assert answer.status_code in (200, 500, 503), answer.text
    if answer.status_code != 500:
        assert owner(lake, on) == ("bob" if answer.status_code == 200 else "tester")


def test_another_replica_knows_the_new_owner_at_once(lake: World) -> None:
    lake.table("t")
    there = lake.catalog()
    bob = lake.credentials["bob"].split(":")[0]
    assert give(lake, "admin", "table:ns.t", "bob").status_code == 200
    held = there.core.read(pointer_key(("ns",), "t"), Pointer.load)
    assert held is not None
    assert held.value.owner == bob


def test_the_table_that_was_checked_is_the_one_that_is_given(lake: World) -> None:
    """Another table gets the name between the check and the change."""
    lake.grant("bob", "namespace:ns", "CREATE")
    lake.table("t", "bob")
    raced = False

    def plan(op: Any) -> Fault | None:
        nonlocal raced
        if op.kind == "put" and not raced and op.key == pointer_key(("ns",), "t"):
            raced = True
            lake.store.plan = lambda _: None
            lake.must("admin", "DELETE", T)
            lake.table("t")
        return None

    lake.store.plan = plan
    answer = give(lake, "bob", "table:ns.t", "eve")
    assert raced
    assert answer.status_code == 404, answer.text
    assert owner(lake, "table:ns.t") == "tester"


def test_the_namespace_that_was_checked_is_the_one_that_is_given(lake: World) -> None:
    """Another namespace gets the name between the check and the change."""
    lake.grant("bob", "namespace:ns", "CREATE")
    lake.namespace("ns.own", "bob")
    raced = False

    def plan(op: Any) -> Fault | None:
        nonlocal raced
        if op.kind == "put" and not raced and op.key == namespace_key(("ns", "own")):
            raced = True
            lake.store.plan = lambda _: None
            lake.must("admin", "DELETE", "/v1/namespaces/ns%1Fown")
            lake.namespace("ns.own")
        return None

    lake.store.plan = plan
    answer = give(lake, "bob", "namespace:ns.own", "eve")
    assert raced
    assert answer.status_code == 404, answer.text
    assert owner(lake, "namespace:ns.own") == "tester"


OF_A_NAMESPACE = {
    "grant": (
        "POST",
        "/tarn/v1/grants",
        {"privileges": ["MANAGE"], "to": "bob", "on": thing("namespace:ns.own")},
    ),
    "revoke": (
        "POST",
        "/tarn/v1/grants/revoke",
        {"privileges": ["READ"], "to": "eve", "on": thing("namespace:ns.own")},
    ),
    "properties": ("POST", "/v1/namespaces/ns%1Fown/properties", {"updates": {"p": "bob"}}),
    "drop": ("DELETE", "/v1/namespaces/ns%1Fown", None),
    "list": ("GET", "/tarn/v1/grants?kind=namespace&namespace=ns%1Fown", None),
}


@pytest.mark.parametrize("what", OF_A_NAMESPACE)
def test_the_namespace_that_was_checked_is_the_one_that_is_changed(lake: World, what: str) -> None:
    """Bob drops his own at the right moment, and another one gets the name."""
    lake.grant("bob", "namespace:ns", "CREATE")
    lake.namespace("ns.own", "bob")
    method, path, body = OF_A_NAMESPACE[what]
    for reads_before in range(1, 4):
        reads, swapped = 0, False

        def plan(op: Any, at: int = reads_before) -> Fault | None:
            nonlocal reads, swapped
            reads += op.kind == "get" and op.key == namespace_key(("ns", "own"))
            if reads > at and not swapped:
                swapped = True
                lake.must("admin", "DELETE", "/v1/namespaces/ns%1Fown")
                lake.namespace("ns.own")
                lake.grant("eve", "namespace:ns.own", "READ")
            return None

        lake.store.plan = plan
        answer = lake.ask("bob", method, path, body)
        lake.store.plan = lambda _: None
        if not swapped:
            break
        assert answer.status_code in (403, 404), (reads_before, answer.text)
        found = lake.must("admin", "GET", "/v1/namespaces/ns%1Fown")
        assert "p" not in found["properties"]
        query = {"kind": "namespace", "namespace": "ns\x1fown"}
        grants = lake.must("admin", "GET", "/tarn/v1/grants", params=query)["grants"]
        assert [(one["to"], one["privileges"]) for one in grants] == [("eve", ["READ"])]
        lake.must("admin", "DELETE", "/v1/namespaces/ns%1Fown")
        lake.namespace("ns.own", "bob")
    assert reads_before > 1, "the namespace was read once only: nothing was tried"


def test_a_grant_follows_a_rename_on_a_replica_that_has_not_read_it(lake: World) -> None:
    lake.namespace("other")
    lake.table("t")
    there = lake.catalog()
    bob = there.access.named("bob")
    lake.grant("bob", "table:ns.t", "READ")
    source = TableIdentifier.of(("ns",), "t")
    session = Session(there, Caller(name="tester", client_id=None, admin=True))
    session.rename(source, TableIdentifier.of(("other",), "u"))
    assert bob.grants.state.grants == (), "it had not read the grant"
    assert lake.listed("bob", "/v1/namespaces") == ["other"]


# -- secrets


def rotate(lake: World, grace_s: int | None = None, who: str = "admin") -> httpx.Response:
    return lake.ask(who, "POST", SECRET, {} if grace_s is None else {"grace-s": grace_s})


def taken(lake: World, answer: httpx.Response) -> None:
    made = answer.json()
    lake.credentials["bob"] = f"{made['client-id']}:{made['client-secret']}"


def test_a_new_secret_ends_the_old_one_and_its_tokens_at_once(lake: World) -> None:
    lake.table("t")
    lake.grant("bob", "table:ns.t", "READ")
    with capture_logs() as lines:
        answer = rotate(lake)
    made = answer.json()
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert made["former-ends-ms"] is None
    assert made["client-id"] == lake.credentials["bob"].split(":")[0]
    assert made["client-secret"] != lake.credentials["bob"].split(":")[1]
    stored = b"".join(lake.store.inner.get(key).data for key in lake.objects())
    assert made["client-secret"].encode() not in stored
    assert made["client-secret"] not in str(lines)
    assert [(one["action"], one["object"], one["outcome"]) for one in lines if one["event"] == "audit"] == [
        ("rotate-secret", "principal bob", "done")
    ]
    error(lake.ask("bob", "GET", T), 401, "NotAuthorizedException")
    assert lake.login("bob").status_code == 401
    taken(lake, answer)
    lake.open("bob")
    assert lake.load("bob", "ns.t") == 200, "its grants stay"


def test_with_a_grace_both_secrets_and_their_tokens_are_good_until_its_end(lake: World) -> None:
    old, old_token = lake.credentials["bob"], lake.clients["bob"].headers["authorization"]
    answer = rotate(lake, 600)
    ends_s = answer.json()["former-ends-ms"] / 1000
    taken(lake, answer)
    new = lake.credentials["bob"]
    now_s = time.time()
    doors = Authenticator(lake.running.secrets_dir, access=lake.core.access, now_s=lambda: now_s)

    def login(credential: str) -> str:
        client_id, secret = credential.split(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        return f"Bearer {doors.token(form, None)['access_token']}"

    def exchanged(token: str) -> str:
        kind = "urn:ietf:params:oauth:grant-type:token-exchange"
        return f"Bearer {doors.token({'grant_type': kind, 'subject_token': token[7:]}, None)['access_token']}"

    late, swapped, fresh = login(old), exchanged(old_token), login(new)
    now_s = ends_s - 0.001
    for token in (old_token, late, swapped, fresh):
        assert doors.caller(doors.principal(token)).name == "bob"
    now_s = ends_s
    for token in (old_token, late, swapped):
        with pytest.raises(UnauthenticatedError, match="has a new secret"):
            doors.caller(doors.principal(token))
    with pytest.raises(OAuthError):
        login(old)
    with pytest.raises(OAuthError):
        exchanged(old_token)
    assert doors.caller(doors.principal(fresh)).name == "bob"
    assert login(new)


def test_at_most_two_secrets_are_good(lake: World) -> None:
    first = lake.credentials["bob"]
    taken(lake, rotate(lake, 600))
    second = lake.credentials["bob"]
    taken(lake, rotate(lake, 600))
    third = lake.credentials["bob"]
    for credential, status in ((first, 401), (second, 200), (third, 200)):
        lake.credentials["bob"] = credential
        assert lake.login("bob").status_code == status
    assert rotate(lake).status_code == 200
    for credential in (first, second, third):
        lake.credentials["bob"] = credential
        assert lake.login("bob").status_code == 401, "without a grace, a former one ends as well"


def test_replicas_agree_within_the_stated_time(lake: World) -> None:
    there = Authenticator(lake.running.secrets_dir, access=lake.catalog().access)
    token = lake.clients["bob"].headers["authorization"]
    assert there.caller(there.principal(token)).name == "bob"
    assert rotate(lake).status_code == 200
    assert there.caller(there.principal(token)).name == "bob"
    lake.clock_s += MAX_AGE_S
    with pytest.raises(UnauthenticatedError):
        there.caller(there.principal(token))


@pytest.mark.parametrize("grace", [-1, GRACE_S_MAX + 1, "10", True, 1.5])
def test_a_bad_grace_is_refused_and_changes_nothing(lake: World, grace: Any) -> None:
    before = lake.objects()
    answer = lake.ask("admin", "POST", SECRET, {"grace-s": grace})
    assert answer.status_code == 400, answer.text
    assert lake.objects() == before
    assert lake.login("bob").status_code == 200


def test_who_has_no_secret_in_the_store_gets_none(lake: World) -> None:
    answer = lake.ask("admin", "POST", "/tarn/v1/principals/tester/secret", {})
    assert "is a service of the lake" in error(answer, 400, "BadRequestException")
    answer = lake.ask("admin", "POST", "/tarn/v1/principals/nobody/secret", {})
    assert answer.status_code == 404
    assert rotate(lake, who="bob").status_code == 403, "not even one's own: an admin hands secrets out"


def test_a_stored_grace_is_read_back_and_a_damaged_one_stops(lake: World) -> None:
    old = lake.credentials["bob"].split(":")[1]
    assert rotate(lake, 600).status_code == 200
    value = orjson.loads(lake.store.inner.get(GRANTS_KEY).data)
    (bob,) = [one for one in value["principals"].values() if one["name"] == "bob"]
    assert bob["former"]["secret-sha256"] == hashlib.sha256(old.encode()).hexdigest()
    state = AccessState.from_json(value)
    assert AccessState.from_json(state.to_json()) == state
    bob["former"]["secret-sha256"] = "ab"
    with pytest.raises(ValueError, match="not a SHA-256"):
        AccessState.from_json(value)
