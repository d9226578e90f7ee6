"""Vended credentials: who gets which keys, what they open, and what happens when there are none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarn_catalog.operations.audit as audit_module
from tarn.bootstrap.policies import policies
from tarn.core.credentials import VENDING_USER
from tarn.core.errors import InvalidError, InvalidLocationError, TarnError, UnavailableError
from tarn.core.naming import WarehouseLayout
from tarn.core.temporary_keys import POLICY_CHARS_MAX, TemporaryKeys
from tarn_catalog.operations import token_gate
from tarn_catalog.operations.delegation import DelegatingSession
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.token_gate import ASKING_MAX, FAILURE_KEPT_S
from tarn_catalog.operations.vending import DURATION_S, KEPT_MAX, LEFT_S_MIN, Mode, Vending, policy
from tarn_catalog.rest.app import THREADS_MAX
from tests.contract.catalog.access_world import BEGAN_S, ROOTS, SCHEMA, World, error, world
from tests.contract.catalog.test_http import uuid7
from tests.support.policies import opens
from tests.support.stack import eventually
from tests.support.sts import FakeSts, fake_sts

VENDED = {"X-Iceberg-Access-Delegation": "vended-credentials"}
ACTIONS = ("get", "put", "list", "delete")
EXPIRES = "s3.session-token-expires-at-ms"
TABLES = "/v1/namespaces/ns/tables"
WAIT_S = 100.0
"""How long a request waits for the token service, in tests of who does not: clients wait for 60 s."""


@dataclass
class Lake:
    """A lake whose store has a token service, and whose clocks move together."""

    world: World
    sts: FakeSts

    def load(self, who: str, name: str, **headers: str) -> Any:
        return self.world.ask(who, "GET", f"{TABLES}/{name}", headers={**VENDED, **headers})

    def keys(self, who: str, name: str) -> dict[str, str]:
        """The keys that a load answers, read as the specification says."""
        answer = self.load(who, name)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        (one,) = body["storage-credentials"]
        assert one["prefix"] == f"{body['metadata']['location']}/"
        assert body["config"].items() >= one["config"].items()
        return one["config"]

    def may(self, keys: dict[str, str], location: str) -> set[str]:
        key = f"{location.removeprefix('s3://tarn/')}/data/x.parquet"
        tried = {action: key if action != "list" else key.rpartition("/")[0] + "/" for action in ACTIONS}
        return {action for action, what in tried.items() if self.sts.attempt(keys, action, what)}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with ExitStack() as stack:
        sts = stack.enter_context(fake_sts())
        tokens = sts.service(now_s=lambda: sts.now_s())
        found = Lake(stack.enter_context(world(tmp_path, tokens)), sts)
        sts.now_s = lambda: BEGAN_S + found.world.clock_s
        found.world.namespace()
        yield found


@pytest.fixture
def trail(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    class Log:
        def info(self, event: str, **fields: Any) -> None:
            if event == "audit":
                lines.append(fields)

    monkeypatch.setattr(audit_module, "log", Log())
    return lines


READS, WRITES = {"get", "list"}, {"get", "list", "put"}


def test_the_matrix_of_tables_and_operations(lake: Lake) -> None:
    """Three tables x get, put, list, delete, with the keys of each; every cross pair is refused."""
    lake.world.principal("ann", "bob")
    locations = {name: lake.world.table(name)["metadata"]["location"] for name in ("one", "two", "three")}
    cells = 0
    for name in locations:
        lake.world.grant("ann", f"table:ns.{name}", "WRITE")
        lake.world.grant("bob", f"table:ns.{name}", "READ")
    for who, own in (("ann", WRITES), ("bob", READS), ("admin", WRITES)):
        for name in locations:
            keys = lake.keys(who, name)
            for other, location in locations.items():
                assert lake.may(keys, location) == (own if other == name else set()), (who, name, other)
                cells += len(ACTIONS)
    assert cells == 108


def test_keys_write_no_table_metadata_and_delete_nothing(lake: Lake) -> None:
    made = lake.world.table("t")
    keys, location = lake.keys("admin", "t"), made["metadata"]["location"].removeprefix("s3://tarn/")
    current = made["metadata-location"].removeprefix("s3://tarn/")
    for key in (current, f"{location}/metadata/00001-x.metadata.json", f"{location}/data/x.metadata.json"):
        assert [lake.sts.attempt(keys, action, key) for action in ("get", "put", "delete")] == [
            *(True, False, False)
        ]
    assert lake.sts.attempt(keys, "put", f"{location}/metadata/snap-1.avro")
    assert lake.may(keys, made["metadata"]["location"]) == WRITES
    for key in (
        "catalog/v1/grants.json",
        "catalog/v1/pointers/ns/t.json",
        f"{location}x/data/y",
        "warehouse/y",
    ):
        assert not any(lake.sts.attempt(keys, action, key) for action in ("get", "put", "delete")), key
    assert not any(
        lake.sts.attempt(keys, "list", prefix) for prefix in ("", "warehouse/", "catalog/", location)
    )


def test_the_inline_policy_alone_keeps_the_metadata_too(lake: Lake) -> None:
    """Two locks: neither the rights of the store user nor the policy of the keys lets a client do it."""
    lake.world.table("t")
    lake.keys("admin", "t")
    (issued,) = lake.sts.issued.values()
    prefix = issued.policy["Statement"][0]["Resource"][0].removeprefix("arn:aws:s3:::tarn/").removesuffix("*")
    for one in (issued.policy, policies("tarn")[VENDING_USER]):
        assert opens(one, "tarn", "put", f"{prefix}data/x")
        assert not opens(one, "tarn", "put", f"{prefix}metadata/00000-x.metadata.json")
        assert not opens(one, "tarn", "delete", f"{prefix}data/x")


@pytest.mark.parametrize(
    ("grants", "mode"),
    [
        ((("table:ns.t", "READ"),), "read"),
        ((("table:ns.t", "WRITE"),), "write"),
        ((("table:ns.t", "MANAGE"),), "write"),
        ((("namespace:ns", "READ"),), "read"),
        ((("namespace:ns", "WRITE"),), "write"),
        ((("namespace:ns", "READ"), ("table:ns.t", "WRITE")), "write"),
        ((("warehouse", "READ"), ("warehouse", "CREATE")), "read"),
        ((("warehouse", "MANAGE"),), "write"),
        ((("namespace:ns", "CREATE"), ("table:ns.t", "READ")), "read"),
    ],
)
def test_keys_write_only_for_who_may_commit(
    lake: Lake, trail: list[dict[str, Any]], grants: tuple[tuple[str, str], ...], mode: str
) -> None:
    location = lake.world.table("t")["metadata"]["location"]
    lake.world.principal("eve")
    assert lake.load("eve", "t").status_code == 403
    assert lake.sts.requests == 0
    for on, privilege in grants:
        lake.world.grant("eve", on, privilege)
    assert lake.may(lake.keys("eve", "t"), location) == (WRITES if mode == "write" else READS)
    assert [line["mode"] for line in trail if line["action"] == "vend"] == [mode]


def test_a_role_is_enough_to_read_without_any_store_key(lake: Lake) -> None:
    location = lake.world.table("t")["metadata"]["location"]
    lake.world.principal("bob")
    lake.world.must("admin", "POST", "/tarn/v1/roles", {"name": "readers"})
    lake.world.must("admin", "PUT", "/tarn/v1/roles/readers/members/bob")
    lake.world.grant("readers", "namespace:ns", "READ")
    assert lake.may(lake.keys("bob", "t"), location) == READS


def test_the_owner_of_a_new_table_writes_to_it(lake: Lake) -> None:
    lake.world.principal("ann")
    lake.world.grant("ann", "namespace:ns", "CREATE")
    body = {"name": "t", "schema": SCHEMA}
    made = lake.world.ask("ann", "POST", TABLES, body, headers=VENDED).json()
    assert lake.may(made["config"], made["metadata"]["location"]) == WRITES
    assert lake.keys("ann", "t") == made["storage-credentials"][0]["config"]
    assert lake.sts.requests == 1


def test_a_staged_create_writes_its_files_before_the_table_is_there(lake: Lake) -> None:
    lake.world.principal("ann")
    lake.world.grant("ann", "namespace:ns", "CREATE")
    body = {"name": "t", "schema": SCHEMA, "stage-create": True}
    staged = lake.world.ask("ann", "POST", TABLES, body, headers=VENDED).json()
    location = staged["metadata"]["location"]
    assert lake.may(staged["config"], location) == WRITES
    assert lake.load("ann", "t").status_code == 404
    other = lake.world.ask("ann", "POST", TABLES, body, headers=VENDED).json()
    assert other["metadata"]["location"] != location
    assert lake.may(staged["config"], other["metadata"]["location"]) == set()


def test_a_repeated_create_gets_keys_to_the_table_that_the_first_one_made(lake: Lake) -> None:
    body, key = {"name": "t", "schema": SCHEMA}, uuid7()
    first, again = (
        lake.world.ask("admin", "POST", TABLES, body, key=key, headers=VENDED).json() for _ in range(2)
    )
    assert first["metadata-location"] == again["metadata-location"]
    assert lake.may(again["config"], first["metadata"]["location"]) == WRITES


def test_a_registered_table_comes_with_keys(lake: Lake) -> None:
    made = lake.world.table("t")
    lake.world.must("admin", "DELETE", f"{TABLES}/t")
    body = {"name": "back", "metadata-location": made["metadata-location"]}
    path = "/v1/namespaces/ns/register"
    sent = lake.sts
    sent.broken = lambda: (503, b"")
    registered = lake.world.ask("admin", "POST", path, body, headers=VENDED)
    assert (registered.status_code, registered.json()["config"]) == (200, {}), "it is registered all the same"
    sent.broken = None
    lake.world.clock_s += FAILURE_KEPT_S
    lake.world.must("admin", "DELETE", f"{TABLES}/back")
    registered = lake.world.ask("admin", "POST", path, body, headers=VENDED)
    assert lake.may(registered.json()["config"], made["metadata"]["location"]) == WRITES


def test_without_delegation_the_token_service_is_never_asked(lake: Lake) -> None:
    made = lake.world.table("t")
    lake.world.view("v")
    plain = lake.world.ask("admin", "GET", f"{TABLES}/t")
    body = {"name": "s", "schema": SCHEMA, "stage-create": True}
    lake.world.must("admin", "POST", TABLES, body)
    lake.world.must("admin", "POST", f"{TABLES}/t", {"requirements": [], "updates": []})
    for header in ("", "remote-signing", "vended", ",,"):
        answer = lake.world.ask(
            "admin", "GET", f"{TABLES}/t", headers={"X-Iceberg-Access-Delegation": header}
        )
        assert answer.json() == plain.json() == made
    # What has no files, or no such answer, needs no keys.
    for method, path in (("HEAD", f"{TABLES}/t"), ("GET", TABLES), ("GET", "/v1/namespaces/ns/views/v")):
        lake.world.ask("admin", method, path, headers=VENDED)
    lake.world.ask("admin", "POST", f"{TABLES}/t", {"requirements": [], "updates": []}, headers=VENDED)
    assert lake.sts.requests == 0
    both = {"X-Iceberg-Access-Delegation": "remote-signing, Vended-Credentials"}
    assert "storage-credentials" in lake.world.ask("admin", "GET", f"{TABLES}/t", headers=both).json()


def test_each_listener_gives_the_endpoint_of_its_side(lake: Lake) -> None:
    lake.world.table("t")
    client = lake.world.clients["admin"]
    for uri, endpoint in (
        (lake.world.running.inside, "http://minio:9000"),
        (lake.world.running.published, "http://127.0.0.1:9000"),
    ):
        found = client.get(f"{uri}{TABLES}/t", headers=VENDED)
        for config in (found.json()["config"], found.json()["storage-credentials"][0]["config"]):
            assert config["s3.endpoint"] == endpoint
            assert config["s3.path-style-access"] == "true"
            assert config["s3.region"] == config["client.region"] == "us-east-1"
            assert "io-impl" not in config
        assert found.headers["cache-control"] == "no-store"


def test_keys_are_renewed_where_the_table_says(lake: Lake) -> None:
    lake.world.namespace("odd ns")
    lake.world.namespace("odd ns.inner")
    ns, name = "odd%20ns%1Finner", "t%20%C3%BC"
    lake.world.must("admin", "POST", f"/v1/namespaces/{ns}/tables", {"name": "t \u00fc", "schema": SCHEMA})
    path = f"/v1/namespaces/{ns}/tables/{name}"
    found = lake.world.ask("admin", "GET", path, headers=VENDED).json()
    renewed_at = found["config"]["client.refresh-credentials-endpoint"]
    assert renewed_at == f"v1/namespaces/{ns}/tables/{name}/credentials"
    again = lake.world.ask("admin", "GET", f"/{renewed_at}")
    assert again.json() == {"storage-credentials": found["storage-credentials"]}
    assert again.headers["cache-control"] == "no-store"
    listed = lake.world.must("admin", "GET", "/v1/config")["endpoints"]
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials" in listed


def test_who_may_not_load_gets_no_keys(lake: Lake, trail: list[dict[str, Any]]) -> None:
    lake.world.table("t")
    lake.world.view("v")
    lake.world.principal("eve")
    for path in (f"{TABLES}/t", f"{TABLES}/t/credentials", f"{TABLES}/none/credentials"):
        answer = lake.world.ask("eve", "GET", path, headers=VENDED)
        assert "eve may not " in error(answer, 403, "ForbiddenException")
    assert [(line["action"], line["outcome"]) for line in trail[-2:]] == [("vend", "refused")] * 2
    for name in ("none", "v"):
        error(lake.world.ask("admin", "GET", f"{TABLES}/{name}/credentials"), 404, "NoSuchTableException")
    assert lake.sts.requests == 0


def test_the_same_keys_until_they_are_near_their_end(lake: Lake, trail: list[dict[str, Any]]) -> None:
    lake.world.table("t")
    lake.world.principal("bob")
    lake.world.grant("bob", "table:ns.t", "READ")
    first = lake.keys("admin", "t")
    assert all(lake.keys("admin", "t") == first for _ in range(20))
    bobs = lake.keys("bob", "t")
    assert bobs["s3.access-key-id"] != first["s3.access-key-id"], "another principal"
    assert lake.sts.requests == 2
    lake.world.grant("bob", "table:ns.t", "WRITE")
    assert lake.keys("bob", "t")["s3.access-key-id"] not in (
        bobs["s3.access-key-id"],
        first["s3.access-key-id"],
    ), "other rights"
    assert lake.sts.requests == 3
    lake.world.clock_s += 299
    assert lake.keys("admin", "t") == first
    lake.world.clock_s += 2
    second = lake.keys("admin", "t")
    assert second != first
    left_s = int(second[EXPIRES]) / 1000 - lake.sts.now_s()
    assert LEFT_S_MIN < left_s <= 900
    vended = [line for line in trail if line["action"] == "vend"]
    assert [(line["principal"], line["outcome"], line["mode"]) for line in vended] == [
        ("tester", "done", "write"),
        ("bob", "done", "read"),
        ("bob", "done", "write"),
        ("tester", "done", "write"),
    ], "one line for each set of keys, not for each load"
    assert {line["access_key_id"] for line in vended} == set(lake.sts.issued)
    text = str(trail)
    for issued in lake.sts.issued.values():
        assert issued.keys.secret_access_key not in text
        assert issued.keys.session_token not in text


def test_keys_that_either_clock_calls_old_are_not_vended(lake: Lake) -> None:
    """The monotonic clock stops while a laptop sleeps; the wall clock may be set back."""
    lake.world.table("t")
    ahead = {"wall_s": 0.0}
    tokens = lake.sts.service(now_s=lambda: lake.sts.now_s())
    vending = Vending(
        tokens,
        ROOTS,
        clock=lambda: lake.world.clock_s,
        now_ms=lambda: int((lake.sts.now_s() + ahead["wall_s"]) * 1000),
    )
    table_uuid = "11111111-2222-4333-8444-555555555555"
    location = f"s3://tarn/warehouse/ns/t-{table_uuid}"

    def fresh() -> bool:
        return vending.vend("a", location=location, table_uuid=table_uuid, mode=Mode.READ).fresh

    assert [fresh(), fresh()] == [True, False]
    ahead["wall_s"] = 301
    assert fresh(), "the wall clock says that they are near their end"
    ahead["wall_s"] = -3600
    assert not fresh()
    lake.world.clock_s += 301
    assert fresh(), "the monotonic clock says so"


def test_the_time_that_the_token_service_takes_counts_as_used(lake: Lake) -> None:
    """By the monotonic clock, whatever the service's own clock says about the end of its keys."""
    seconds = {"now": 0.0}

    class Slow:
        def assume(self, policy: str, *, duration_s: int) -> TemporaryKeys:
            seconds["now"] += 100
            return TemporaryKeys(
                access_key_id="a", secret_access_key="s", session_token="t", expires_ms=10**15
            )

    vending = Vending(Slow(), ROOTS, clock=lambda: seconds["now"], now_ms=lambda: 0)
    location = f"s3://tarn/warehouse/ns/t-{OWN}"

    def fresh() -> bool:
        return vending.vend("a", location=location, table_uuid=OWN, mode=Mode.READ).fresh

    assert fresh()
    seconds["now"] = DURATION_S - LEFT_S_MIN - 1
    assert not fresh()
    seconds["now"] += 1
    assert fresh()


def test_a_renamed_table_keeps_its_keys_and_the_old_name_gives_none(lake: Lake) -> None:
    """The files stay where they are, and so does what opens them; a new table of the name has others."""
    location = lake.world.table("t")["metadata"]["location"]
    lake.world.principal("bob")
    lake.world.grant("bob", "table:ns.t", "READ")
    before = lake.keys("bob", "t")
    names = [{"namespace": ["ns"], "name": name} for name in ("t", "moved")]
    lake.world.must("admin", "POST", "/v1/tables/rename", {"source": names[0], "destination": names[1]})
    assert lake.keys("bob", "moved") == before
    renewed_at = lake.load("bob", "moved").json()["config"]["client.refresh-credentials-endpoint"]
    assert renewed_at == "v1/namespaces/ns/tables/moved/credentials"
    for path in (f"{TABLES}/t", f"{TABLES}/t/credentials"):
        assert lake.world.ask("bob", "GET", path, headers=VENDED).status_code in (403, 404)
        assert lake.world.ask("admin", "GET", path, headers=VENDED).status_code == 404
    other = lake.world.table("t")["metadata"]["location"]
    assert lake.load("bob", "t").status_code == 403
    assert lake.may(before, location) == READS
    assert lake.may(lake.keys("admin", "t"), location) == set()
    assert lake.may(before, other) == set()


@pytest.mark.parametrize("purge", ["false", "true"])
def test_a_dropped_table_gives_no_keys_and_another_of_its_name_has_its_own(lake: Lake, purge: str) -> None:
    location = lake.world.table("t")["metadata"]["location"]
    before = lake.keys("admin", "t")
    lake.world.must("admin", "DELETE", f"{TABLES}/t", params={"purgeRequested": purge})
    for path in (f"{TABLES}/t", f"{TABLES}/t/credentials"):
        error(lake.world.ask("admin", "GET", path, headers=VENDED), 404, "NoSuchTableException")
    assert lake.sts.requests == 1
    other = lake.world.table("t")["metadata"]["location"]
    after = lake.keys("admin", "t")
    assert (lake.may(before, other), lake.may(after, location)) == (set(), set())
    assert lake.may(after, other) == WRITES


def test_who_may_not_create_gets_no_keys_by_trying(lake: Lake) -> None:
    lake.world.principal("eve")
    lake.world.grant("eve", "namespace:ns", "READ")
    for more in ({}, {"stage-create": True}):
        body = {"name": "new", "schema": SCHEMA, **more}
        error(lake.world.ask("eve", "POST", TABLES, body, headers=VENDED), 403, "ForbiddenException")
    register = {"name": "new", "metadata-location": "s3://tarn/warehouse/x/metadata/y.metadata.json"}
    path = "/v1/namespaces/ns/register"
    error(lake.world.ask("eve", "POST", path, register, headers=VENDED), 403, "ForbiddenException")
    assert lake.sts.requests == 0


def test_answers_with_keys_are_not_to_be_stored(lake: Lake) -> None:
    made = lake.world.table("t")
    body = {"name": "new", "schema": SCHEMA}
    answers = [
        lake.load("admin", "t"),
        lake.world.ask("admin", "GET", f"{TABLES}/t/credentials"),
        lake.world.ask("admin", "POST", TABLES, body, headers=VENDED),
        lake.world.ask("admin", "POST", TABLES, {**body, "name": "s", "stage-create": True}, headers=VENDED),
    ]
    lake.world.must("admin", "DELETE", f"{TABLES}/t")
    again = {"name": "t", "metadata-location": made["metadata-location"]}
    answers.append(lake.world.ask("admin", "POST", "/v1/namespaces/ns/register", again, headers=VENDED))
    for answer in answers:
        assert answer.json()["storage-credentials"]
        assert answer.headers["cache-control"] == "no-store"


def test_not_modified_only_with_keys_that_would_be_vended_again(lake: Lake) -> None:
    lake.world.table("t")
    lake.world.principal("bob")
    lake.world.grant("bob", "table:ns.t", "WRITE")
    found = lake.load("admin", "t")
    etag = {"if-none-match": found.headers["etag"]}
    assert lake.load("admin", "t", **etag).status_code == 304
    assert lake.load("bob", "t", **etag).status_code == 200, "another principal"
    plain = lake.world.ask("admin", "GET", f"{TABLES}/t", headers=etag)
    assert plain.status_code == 200, "without delegation"
    assert lake.load("admin", "t", **{"if-none-match": plain.headers["etag"]}).status_code == 200
    lake.world.clock_s += 301
    assert lake.load("admin", "t", **etag).status_code == 200, "the keys are near their end"
    plain_of_bob = lake.world.ask("bob", "GET", f"{TABLES}/t").headers["etag"]
    assert plain_of_bob != plain.headers["etag"], "the principal, without keys too"


def test_a_stopped_token_service_is_a_503_and_changes_nothing(
    lake: Lake, trail: list[dict[str, Any]]
) -> None:
    lake.world.table("t")
    lake.sts.broken = lambda: None
    before = lake.world.objects()
    body = {"name": "new", "schema": SCHEMA}
    for answer in (
        lake.load("admin", "t"),
        lake.world.ask("admin", "GET", f"{TABLES}/t/credentials"),
        lake.world.ask("admin", "POST", TABLES, body, headers=VENDED),
        lake.world.ask("admin", "POST", TABLES, {**body, "stage-create": True}, headers=VENDED),
    ):
        said = error(answer, 503, "ServiceUnavailableException")
        assert "the token service (STS) of the store" in said
        assert answer.headers["retry-after"] == "1"
    assert lake.world.objects() == before
    assert {line["outcome"] for line in trail if line["action"] == "vend"} == {"failed"}
    assert lake.world.load("admin", "ns.t") == 200, "without delegation it is not asked"
    lake.sts.broken = None
    lake.world.clock_s += FAILURE_KEPT_S
    assert lake.load("admin", "t").status_code == 200


def test_a_token_service_that_refuses_is_the_servers_failure_and_nothing_is_half_done(lake: Lake) -> None:
    """Policy and duration are the catalog's own choice: no mistake of the client, no table without keys."""
    made = lake.world.table("t")
    body = {"name": "new", "schema": SCHEMA}
    said = "<E><Error><Code>InvalidParameterValue</Code><Message>no</Message></Error></E>"
    lake.sts.broken = lambda: (400, said.encode())
    before = lake.world.objects()
    for answer in (
        lake.load("admin", "t"),
        lake.world.ask("admin", "GET", f"{TABLES}/t/credentials"),
        lake.world.ask("admin", "POST", TABLES, body, headers=VENDED),
        lake.world.ask("admin", "POST", TABLES, {**body, "stage-create": True}, headers=VENDED),
    ):
        assert "says InvalidParameterValue: no" in error(answer, 503, "ServiceUnavailableException")
    assert lake.world.objects() == before
    assert lake.sts.requests == 4, "another request may be granted: what it answered is not kept"
    lake.world.must("admin", "DELETE", f"{TABLES}/t")
    again = {"name": "t", "metadata-location": made["metadata-location"]}
    registered = lake.world.ask("admin", "POST", "/v1/namespaces/ns/register", again, headers=VENDED)
    assert (registered.status_code, registered.json()["config"]) == (200, {})


def test_a_hung_token_service_holds_few_threads_and_nobody_queues_up_behind_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More clients than threads, each for another table: requests without delegation go on all the same."""
    monkeypatch.setattr(token_gate, "WAIT_S_MAX", WAIT_S)
    names = [f"t{number}" for number in range(THREADS_MAX + 2)]
    for name in (*names, "kept"):
        lake.world.table(name)
    kept = lake.keys("admin", "kept")
    answer, go = lake.sts.answer, threading.Event()

    def hang(headers: Any, body: bytes) -> tuple[int, bytes]:
        assert go.wait(110)
        return 503, b""

    lake.sts.answer = hang  # type: ignore[method-assign]
    before = lake.sts.requests
    found: list[tuple[int, str | None]] = []
    token = dict(lake.world.clients["admin"].headers)

    def load(name: str) -> None:
        url = f"{lake.world.running.published}{TABLES}/{name}"
        one = httpx.get(url, headers={**token, **VENDED}, timeout=110)
        found.append((one.status_code, one.headers.get("retry-after")))

    threads = [threading.Thread(target=load, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    eventually(lambda: lake.sts.requests - before == ASKING_MAX, timeout_s=60, what="they ask", pause_s=0.01)

    # Requests without delegation, and with keys that are kept, take what they always take.
    assert lake.world.load("admin", "ns.t0") == 200
    lake.world.must("admin", "POST", f"{TABLES}/t0", {"requirements": [], "updates": []})
    assert lake.keys("admin", "kept") == kept

    # It was silent for too long: whoever comes now does not wait.
    lake.world.clock_s += WAIT_S
    for _ in range(3):
        said = error(lake.load("admin", names[-1]), 503, "ServiceUnavailableException")
        assert f"has not answered other requests for {WAIT_S:.0f} s" in said
    go.set()
    for thread in threads:
        thread.join(60)
    assert found == [(503, "1")] * len(names)
    assert lake.sts.requests - before == ASKING_MAX
    lake.sts.answer = answer  # type: ignore[method-assign]
    lake.world.clock_s += FAILURE_KEPT_S
    assert lake.load("admin", "t0").status_code == 200


def test_after_a_revocation_no_new_keys_and_the_old_ones_end(lake: Lake) -> None:
    location = lake.world.table("t")["metadata"]["location"]
    lake.world.principal("bob")
    lake.world.grant("bob", "table:ns.t", "WRITE")
    keys = lake.keys("bob", "t")
    lake.world.grant("bob", "table:ns.t", "WRITE", revoke=True)
    assert lake.load("bob", "t").status_code == 403
    assert lake.world.ask("bob", "GET", f"{TABLES}/t/credentials").status_code == 403
    assert lake.may(keys, location) == WRITES, "as documented: until they end"
    lake.world.clock_s += 899
    assert lake.may(keys, location) == WRITES
    lake.world.clock_s += 2
    assert lake.may(keys, location) == set()


@pytest.mark.parametrize("failing", [False, True])
def test_many_clients_at_once_ask_the_token_service_once(
    lake: Lake, failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_gate, "WAIT_S_MAX", WAIT_S)
    lake.world.table("t")
    answer, go = lake.sts.answer, threading.Event()

    def slow(headers: Any, body: bytes) -> tuple[int, bytes]:
        assert go.wait(110)
        return (503, b"") if failing else answer(headers, body)

    lake.sts.answer = slow  # type: ignore[method-assign]
    vending = lake.world.core.vending
    assert vending is not None
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(lake.load("admin", "t").status_code)) for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    # All wait for the one that asks.
    eventually(lambda: vending._tokens._waiting == 11, timeout_s=60, what="they wait", pause_s=0.01)
    go.set()
    for thread in threads:
        thread.join(60)
    assert found == [503 if failing else 200] * 12
    assert lake.sts.requests == 1
    assert vending._asked == {}


def test_what_is_kept_is_bounded(lake: Lake) -> None:
    vending = lake.world.core.vending
    assert vending is not None
    table_uuid = "11111111-2222-4333-8444-555555555555"
    location = f"s3://tarn/warehouse/ns/t-{table_uuid}"
    vending.vend("first", location=location, table_uuid=table_uuid, mode=Mode.READ)
    (kept,) = vending._kept.values()
    for number in range(KEPT_MAX):
        vending._kept[(str(number), location, Mode.READ)] = kept
    vending.vend("last", location=location, table_uuid=table_uuid, mode=Mode.READ)
    assert len(vending._kept) == KEPT_MAX
    assert vending.vend("first", location=location, table_uuid=table_uuid, mode=Mode.READ).fresh


def test_keys_that_were_renewed_are_kept_longer_than_older_ones(lake: Lake) -> None:
    vending = lake.world.core.vending
    assert vending is not None
    table_uuid = "11111111-2222-4333-8444-555555555555"
    location = f"s3://tarn/warehouse/ns/t-{table_uuid}"

    def fresh(who: str) -> bool:
        return vending.vend(who, location=location, table_uuid=table_uuid, mode=Mode.READ).fresh

    assert fresh("renewed")
    lake.world.clock_s += 200
    assert fresh("older")
    lake.world.clock_s += 101
    assert fresh("renewed")
    kept = next(iter(vending._kept.values()))
    for number in range(KEPT_MAX - 2):
        vending._kept[(str(number), location, Mode.READ)] = kept
    assert fresh("last")
    assert not fresh("renewed")
    assert fresh("older")


def test_without_a_token_service_the_answer_is_clear(tmp_path: Path) -> None:
    with world(tmp_path) as plain:
        plain.namespace()
        made = plain.table("t")
        assert plain.ask("admin", "GET", f"{TABLES}/t", headers=VENDED).json() == made
        said = error(
            plain.ask("admin", "GET", f"{TABLES}/t/credentials"), 501, "UnsupportedOperationException"
        )
        assert "vends no credentials" in said
        assert "TARN_STS_ENDPOINT" in said
        assert not any("/credentials" in one for one in plain.must("admin", "GET", "/v1/config")["endpoints"])
        body = {"name": "new", "schema": SCHEMA}
        for more in ({}, {"stage-create": True, "name": "staged"}):
            answer = plain.ask("admin", "POST", TABLES, {**body, **more}, headers=VENDED)
            assert (answer.status_code, answer.json()["config"]) == (200, {})
    for base in ("file:///tmp/lake", "s3://", "s3://bucket/folder"):
        with pytest.raises(InvalidError, match="only to a bucket"):
            Vending(None, WarehouseLayout(base=base))  # type: ignore[arg-type]


def test_a_location_too_long_for_a_policy_gets_none_and_the_words(lake: Lake) -> None:
    location = "s3://tarn/warehouse/" + "/".join(["x" * 200] * 4)
    body = {"name": "t", "schema": SCHEMA, "location": location}
    made = lake.world.ask("admin", "POST", TABLES, body, headers=VENDED)
    assert (made.status_code, made.json()["config"]) == (200, {}), made.text
    assert lake.load("admin", "t").json()["config"] == {}
    said = error(lake.world.ask("admin", "GET", f"{TABLES}/t/credentials"), 400, "BadRequestException")
    assert "at most 2048 are possible; use store keys" in said
    assert lake.sts.requests == 0


OWN, OTHER = "11111111-2222-4333-8444-555555555555", "99999999-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    "location",
    [
        "s3://tarn/catalog/v1",
        "s3://tarn/warehouse",
        f"s3://tarn/catalog/v1/t-{OWN}",
        f"s3://other/warehouse/ns/t-{OWN}",
        f"s3://tarn/warehouse/ns/t-{OTHER}",
        f"s3://tarn/warehouse/ns/t-{OTHER}/data/t-{OWN}",
        f"s3://tarn/warehouse/../catalog/t-{OWN}",
        f"s3://tarn/warehouse/ns/t-{OWN}/..",
        f"s3://tarn/warehouse//t-{OWN}",
        f"s3://tarn/warehouse/n*/t-{OWN}",
    ],
)
def test_a_location_that_is_not_the_tables_own_gets_no_keys(lake: Lake, location: str) -> None:
    vending = lake.world.core.vending
    assert vending is not None
    with pytest.raises(InvalidLocationError):
        vending.vend("a", location=location, table_uuid=OWN, mode=Mode.READ)
    assert lake.sts.requests == 0


def test_a_table_that_takes_the_name_meanwhile_does_not_lend_its_rights(lake: Lake) -> None:
    """The metadata of a table that the caller may read, the pointer of one that it owns."""
    lake.world.principal("eve")
    lake.world.grant("eve", "namespace:ns", "READ", "CREATE")
    read = lake.world.table("t")
    lake.world.table("own", "eve")
    core = lake.world.core
    session = DelegatingSession(core, core.access.named("eve"))
    stored = core.tables.load(TableIdentifier.of(("ns",), "t"))
    assert session._vend(TableIdentifier.of(("ns",), "own"), stored).mode is Mode.READ  # type: ignore[union-attr]
    own = core.tables.load(TableIdentifier.of(("ns",), "own"))
    assert session._vend(TableIdentifier.of(("ns",), "own"), own).mode is Mode.WRITE  # type: ignore[union-attr]
    assert session._vend(TableIdentifier.of(("ns",), "none"), stored).mode is Mode.READ  # type: ignore[union-attr]
    assert read["metadata"]["table-uuid"] == stored.parsed["table-uuid"]


ODD = [
    *("a b", "a'b", 'a"b', "a\\b", "a&b", "a+b", "a=b", "a,b", "a:b", "a@b", "a#b", "a%b", "a;b", "a~2Ab"),
    *(
        "a|b",
        "a<b>",
        "(a)",
        "[a]",
        "!a",
        "^a",
        "`a`",
        "a.b",
        "\u00e4\u00f6",
        "\U0001f985",
        "\u202ea",
        "-",
        "~",
    ),
]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_open_their_own_table_and_nothing_else(lake: Lake, name: str) -> None:
    lake.world.must("admin", "POST", "/v1/namespaces", {"namespace": [name]})
    levels = "".join(f"%{byte:02X}" for byte in name.encode())
    path = f"/v1/namespaces/{levels}/tables"
    locations = [
        lake.world.must("admin", "POST", path, {"name": one, "schema": SCHEMA})["metadata"]["location"]
        for one in (name, f"{name}x")
    ]
    found = lake.world.ask("admin", "GET", f"{path}/{levels}", headers=VENDED).json()
    assert lake.may(found["config"], locations[0]) == WRITES
    assert lake.may(found["config"], locations[1]) == set()


@pytest.mark.parametrize("name", ["a*", "a?", "${a}", "a/b", "..", "a%2Fb", "a\nb", "{a}", "$"])
def test_names_that_mean_something_in_a_policy_are_refused(lake: Lake, name: str) -> None:
    answer = lake.world.ask("admin", "POST", TABLES, {"name": name, "schema": SCHEMA}, headers=VENDED)
    error(answer, 400, "BadRequestException")
    assert lake.sts.requests == 0


UUIDS = st.uuids(version=4).map(str)
SEGMENTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@given(
    segments=st.lists(SEGMENTS, max_size=3),
    table_uuid=UUIDS,
    other=UUIDS,
    mode=st.sampled_from(Mode),
    key=st.text(max_size=60),
)
def test_whatever_the_location_the_policy_opens_it_alone_or_there_is_none(
    segments: list[str], table_uuid: str, other: str, mode: Mode, key: str
) -> None:
    """A location from a metadata file that nobody checked: keys to exactly that prefix, or no keys."""

    class Tokens:
        asked: str | None = None

        def assume(self, policy: str, *, duration_s: int) -> Any:
            self.asked = policy
            raise UnavailableError("enough")

    tokens = Tokens()
    location = "/".join(["s3://tarn/warehouse", *segments, f"t-{table_uuid}"])
    with pytest.raises(TarnError):
        Vending(tokens, ROOTS).vend("a", location=location, table_uuid=table_uuid, mode=mode)
    if tokens.asked is None:
        return
    found = json.loads(tokens.asked)
    assert len(tokens.asked) <= POLICY_CHARS_MAX
    inside = f"{location.removeprefix('s3://tarn/')}/"
    for one in (f"warehouse/t-{other}/x", f"warehouse/{key}", key, inside[:-1], f"{inside[:-1]}x/y"):
        if not one.startswith(inside):
            assert not any(opens(found, "tarn", action, one) for action in ACTIONS), one
    assert opens(found, "tarn", "get", f"{inside}x")
    assert opens(found, "tarn", "put", f"{inside}x") == (mode is Mode.WRITE)
    assert opens(found, "tarn", "list", inside)


@pytest.mark.parametrize(
    "prefix", ["w/t", "w/*/", "w/?/", "w/$x/", 'w/"/', "w/\\/", "w/{a}/", "w/\u00e4/", ""]
)
def test_a_prefix_that_means_something_makes_no_policy(prefix: str) -> None:
    with pytest.raises(InvalidLocationError):
        policy("tarn", prefix, Mode.READ)
