"""The HTTP layer: responses per client, rejected requests and their messages."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.naming import POINTERS_PREFIX, TRANSACTIONS_PREFIX, WarehouseLayout, claim_key
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.testing.faulty_store import Fault, FaultyStore
from tarn_catalog.testing.server import Running, serving
from tests.support.stack import eventually

WITHIN_S = 60.0
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}


class World:
    def __init__(self, store: FaultyStore, running: Running) -> None:
        self.store = store
        self.running = running
        self.inside = httpx.Client(base_url=running.inside, timeout=WITHIN_S)
        self.published = httpx.Client(base_url=running.published, timeout=WITHIN_S)
        client_id, secret = running.credential.split(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        self.token = self.published.post("/v1/oauth/tokens", data=form).json()["access_token"]
        for client in (self.inside, self.published):
            client.headers["authorization"] = f"Bearer {self.token}"

    def close(self) -> None:
        self.inside.close()
        self.published.close()

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.published.post(path, json=body, headers=named)

    def table(self, name: str = "t", **more: Any) -> dict[str, Any]:
        self.post("/v1/namespaces", {"namespace": ["ns"]})
        answer = self.post("/v1/namespaces/ns/tables", {"name": name, "schema": SCHEMA, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def view(self, name: str = "v") -> httpx.Response:
        self.post("/v1/namespaces", {"namespace": ["ns"]})
        version = {
            "version-id": 1,
            "timestamp-ms": 1_000,
            "schema-id": 0,
            "summary": {},
            "representations": [{"type": "sql", "sql": "select 1", "dialect": "spark"}],
            "default-namespace": ["ns"],
        }
        body = {"name": name, "schema": SCHEMA, "view-version": version, "properties": {}}
        return self.post("/v1/namespaces/ns/views", body)

    def append(self, number: int) -> dict[str, Any]:
        meta = self.published.get("/v1/namespaces/ns/tables/t").json()["metadata"]
        head = meta["current-snapshot-id"]
        snapshot = {
            "snapshot-id": number,
            "sequence-number": meta["last-sequence-number"] + 1,
            "timestamp-ms": int(time.time() * 1000),
            "manifest-list": f"{meta['location']}/metadata/{number}.avro",
            "summary": {"operation": "append"},
            "schema-id": 0,
        }
        if head != -1:
            snapshot["parent-snapshot-id"] = head
        move = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
        answer = self.post(
            "/v1/namespaces/ns/tables/t",
            {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": snapshot}, move]},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    store = FaultyStore(MemoryStore())
    catalog = Catalog(
        store, WarehouseLayout(base="s3://tarn"), patience=RetryPolicy(attempts_max=2, sleep=lambda _: None)
    )
    with serving(catalog, tmp_path / "secrets") as running:
        world = World(store, running)
        yield world
        world.close()


def error(answer: httpx.Response, status: int, kind: str) -> str:
    assert answer.status_code == status, answer.text
    body = answer.json()["error"]
    assert (body["code"], body["type"]) == (status, kind)
    return body["message"]


def test_each_listener_tells_the_endpoint_of_its_side_whatever_the_headers_say(world: World) -> None:
    hints = {
        "host": "localhost:9000",
        "x-forwarded-host": "minio",
        "x-forwarded-port": "8181",
        "forwarded": "host=minio",
    }
    for client, endpoint in ((world.inside, "http://minio:9000"), (world.published, "http://127.0.0.1:9000")):
        for headers in ({}, hints):
            answer = client.get("/v1/config", params={"warehouse": "tarn"}, headers=headers).json()
            assert answer["defaults"] == {
                "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
                "s3.endpoint": endpoint,
                "s3.path-style-access": "true",
                "s3.region": "us-east-1",
                "client.region": "us-east-1",
            }
            assert answer["overrides"] == {}
            assert answer["idempotency-key-lifetime"] == "PT60M"


def test_config_advertises_what_is_there_and_only_that(world: World) -> None:
    world.table()
    world.view()
    listed = world.published.get("/v1/config").json()["endpoints"]
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in listed
    assert not [line for line in listed if re.search("plan|credentials", line)]
    names = {"{prefix}/": "", "{namespace}": "ns", "{table}": "t", "{view}": "v"}
    for line in listed:
        for placeholder, name in names.items():
            line = line.replace(placeholder, name)
        method, path = line.split()
        answer = world.published.request(method, path, content=b"{}")
        assert answer.status_code < 500, line
        assert answer.status_code not in (404, 405), line
        if method == "DELETE" and answer.status_code == 204:
            world.table() if "/tables/" in path else world.view()
    new = ("tables/rename", "namespaces/{namespace}/register", "transactions/commit")
    assert {f"POST /v1/{{prefix}}/{path}" for path in new} < set(listed)
    for method, path, words in (
        ("POST", "/v1/namespaces/ns/tables/t/plan", "not supported by this version"),
        ("GET", "/v1/namespaces/ns/tables/t/credentials", "This catalog vends no credentials"),
    ):
        message = error(world.published.request(method, path), 501, "UnsupportedOperationException")
        assert words in message


def test_no_answer_names_a_user_whom_trino_would_ask_as(world: World) -> None:
    """It would ask as that user without a credential; the stored file keeps what was written."""
    base, named = "/v1/namespaces/ns/views", {"trino.run-as-owner": "admin"}
    assert world.view().status_code == 200
    change = {"updates": [{"action": "set-properties", "updates": {**named, "a": "1"}}]}
    answers = [world.post(f"{base}/v", change), world.published.get(f"{base}/v")]
    location = answers[0].json()["metadata-location"]
    stored = world.store.inner.get(location.removeprefix("s3://tarn/"))
    assert stored is not None
    assert json.loads(stored.data)["properties"] == {**named, "a": "1"}
    assert world.published.delete(f"{base}/v").status_code == 204
    register = {"name": "w", "metadata-location": location}
    answers += [world.post("/v1/namespaces/ns/register-view", register), world.published.get(f"{base}/w")]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        found = answer.json()["metadata"]
        assert found["properties"] == {"a": "1"}
        assert len(found["versions"]) == 1


def test_a_view_over_http_from_its_create_to_its_drop(world: World) -> None:
    base = "/v1/namespaces/ns/views"
    made = world.view()
    assert made.status_code == 200, made.text
    found = world.published.get(f"{base}/v")
    assert found.json() == made.json()
    assert found.json()["metadata"]["versions"][0]["representations"][0]["sql"] == "select 1"
    assert (
        world.published.get(f"{base}/v", headers={"if-none-match": found.headers["etag"]}).status_code == 304
    )
    assert world.published.get(base).json()["identifiers"] == [{"namespace": ["ns"], "name": "v"}]
    assert world.published.get("/v1/namespaces/ns/tables").json()["identifiers"] == []
    assert error(world.view(), 409, "AlreadyExistsException") == "View already exists: ns.v"
    change = {"updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
    assert world.post(f"{base}/v", change).json()["metadata"]["properties"] == {"a": "1"}
    stale = {**change, "requirements": [{"type": "assert-view-uuid", "uuid": str(uuid.uuid4())}]}
    assert "view UUID does not match" in error(world.post(f"{base}/v", stale), 409, "CommitFailedException")
    other = {**change, "identifier": {"namespace": ["ns"], "name": "w"}}
    assert "the body names" in error(world.post(f"{base}/v", other), 400, "BadRequestException")
    rename = {
        "source": {"namespace": ["ns"], "name": "v"},
        "destination": {"namespace": ["ns"], "name": "w"},
    }
    assert world.post("/v1/views/rename", rename).status_code == 204
    assert world.published.head(f"{base}/v").status_code == 404
    assert world.published.head(f"{base}/w").status_code == 204
    location = made.json()["metadata-location"]
    assert world.published.delete(f"{base}/w").status_code == 204
    message = error(world.published.get(f"{base}/w"), 404, "NoSuchViewException")
    assert message == "View does not exist: ns.w"
    back = world.post("/v1/namespaces/ns/register-view", {"name": "u", "metadata-location": location})
    assert back.json()["metadata"] == made.json()["metadata"]
    bare = {"name": "x", "schema": SCHEMA, "properties": {}}
    assert "view-version" in error(world.post(base, bare), 400, "BadRequestException")
    for bad in ({"updates": "x"}, {}, {"updates": [], "identifier": {"namespace": 5, "name": "u"}}):
        error(world.post(f"{base}/u", bad), 400, "BadRequestException")
    assert world.post("/v1/namespaces/no/views", {**bare, "view-version": {}}).status_code == 404


def test_another_warehouse_is_refused_by_name(world: World) -> None:
    answer = world.published.get("/v1/config", params={"warehouse": "other"})
    assert error(answer, 404, "NoSuchWarehouseException") == (
        "Warehouse does not exist: other; this catalog has one warehouse, tarn"
    )


def test_every_route_wants_a_token(world: World) -> None:
    world.table()
    keys = {listed.key: listed.etag for listed in world.store.inner.list("")}
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    body = world.token.split(".")[1]
    routes = [
        line.replace("{prefix}/", "").split()
        for line in world.published.get("/v1/config").json()["endpoints"]
    ]
    routes += [["GET", "/v1/config"], ["POST", "/v1/views/rename"], ["POST", "/health/deep"]]
    tried = 0
    for method, template in routes:
        path = template.replace("{namespace}", "ns").replace("{table}", "t").replace("{view}", "v")
        for authorization in (
            None,
            "Basic eDp5",
            "Bearer x",
            f"Bearer {head}.{body}.",
            f"Bearer {world.token}x",
        ):
            headers = {} if authorization is None else {"authorization": authorization}
            answer = httpx.request(method, f"{world.running.published}{path}", headers=headers, content=b"{}")
            assert answer.status_code == 401, (method, path, authorization)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            if method != "HEAD":
                error(answer, 401, "NotAuthorizedException")
            tried += 1
    assert tried >= 5 * 16
    assert {listed.key: listed.etag for listed in world.store.inner.list("")} == keys
    deep = world.published.post("/health/deep")
    assert deep.status_code == 401, "a client's token does not open the probe's route"


def test_a_wrong_secret_says_what_to_do(world: World) -> None:
    form = {"grant_type": "client_credentials", "client_id": "tester", "client_secret": "wrong"}
    answer = world.published.post("/v1/oauth/tokens", data=form)
    assert answer.status_code == 401
    assert answer.json()["error"] == "invalid_client"
    assert "take the credential (client_id:client_secret)" in answer.json()["error_description"]
    basic = base64.b64encode(world.running.credential.encode()).decode()
    answer = httpx.post(
        f"{world.running.inside}/v1/oauth/tokens",
        data={"grant_type": "client_credentials", "scope": "catalog"},
        headers={"authorization": f"Basic {basic}"},
    )
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"


def test_a_revoked_principal_is_out_soon(world: World) -> None:
    """How soon is a matter of tests/unit/catalog/test_auth.py, by a clock of its own."""
    assert world.published.get("/v1/namespaces").status_code == 200
    path = world.running.secrets_dir / "principals.json"
    digest = hashlib.sha256(b"x").hexdigest()
    path.write_text(json.dumps({"other": {"name": "other", "secret_sha256": digest}}))

    def is_out() -> bool:
        return world.published.get("/v1/namespaces").status_code == 401

    eventually(is_out, timeout_s=WITHIN_S, what="it is out", pause_s=0.1)


def test_load_answers_not_modified_per_side_and_mode(world: World) -> None:
    world.table()
    path = "/v1/namespaces/ns/tables/t"
    etags = {
        client.get(path, params=params).headers["etag"]
        for client in (world.inside, world.published)
        for params in ({}, {"snapshots": "refs"})
    }
    assert len(etags) == 4
    etag = world.published.get(path).headers["etag"]
    answer = world.published.get(path, headers={"if-none-match": f'"x", {etag}'})
    assert (answer.status_code, answer.content) == (304, b"")
    answer = world.published.get(path, headers={"if-none-match": "*"})
    assert (answer.status_code, answer.content) == (304, b"")
    assert world.published.get(f"{path}x", headers={"if-none-match": "*"}).status_code == 404
    world.append(1)
    answer = world.published.get(path, headers={"if-none-match": etag})
    assert answer.status_code == 200
    assert answer.headers["etag"] != etag


def test_snapshots_refs_leaves_out_the_others(world: World) -> None:
    world.table()
    for number in (1, 2, 3):
        world.append(number)
    tag = {"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 1}
    world.post("/v1/namespaces/ns/tables/t", {"requirements": [], "updates": [tag]})
    whole = world.published.get("/v1/namespaces/ns/tables/t").json()["metadata"]
    part = world.published.get("/v1/namespaces/ns/tables/t", params={"snapshots": "refs"}).json()["metadata"]
    assert [s["snapshot-id"] for s in whole["snapshots"]] == [1, 2, 3]
    assert [s["snapshot-id"] for s in part["snapshots"]] == [1, 3]
    assert part["snapshot-log"] == whole["snapshot-log"]
    bad = world.published.get("/v1/namespaces/ns/tables/t", params={"snapshots": "some"})
    error(bad, 400, "BadRequestException")


def uuid7() -> str:
    raw = (int(time.time() * 1000) << 80) | (7 << 76) | (uuid.uuid4().int & ((1 << 76) - 1))
    return str(uuid.UUID(int=(raw & ~(3 << 62)) | (2 << 62)))


def test_idempotency_keys_over_http(world: World) -> None:
    world.table()
    path, key = "/v1/namespaces/ns/tables/t", uuid7()
    body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
    first = world.post(path, body, idempotency_key=key)
    other = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "2"}}]}
    assert world.post(path, other).status_code == 200
    again = world.post(path, body, idempotency_key=key)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["metadata"]["properties"]["a"] == "2"
    error(world.post(path, other, idempotency_key=key), 422, "UnprocessableEntityException")
    for bad in ("x", str(uuid.uuid4()), key.replace("-", ""), ""):
        assert "Idempotency-Key" in error(
            world.post(path, body, idempotency_key=bad), 400, "BadRequestException"
        )


def test_outcomes_as_statuses(world: World) -> None:
    world.table()
    path = "/v1/namespaces/ns/tables/t"
    change = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "1"}}]}
    stale = {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}],
        "updates": [],
    }
    assert error(world.post(path, stale), 409, "CommitFailedException") == (
        "Requirement failed: branch or tag main is missing, expected 7"
    )
    world.store.plan = lambda op: Fault.RESET if op.key.startswith(POINTERS_PREFIX) else None
    answer = world.published.get(path)
    error(answer, 503, "ServiceUnavailableException")
    assert answer.headers["retry-after"] == "1"
    error(world.post(path, change), 500, "CommitStateUnknownException")
    world.store.plan = lambda op: Fault.RESET if "/metadata/" in op.key and op.kind == "put" else None
    error(world.post(path, change), 503, "ServiceUnavailableException")
    world.store.plan = lambda op: Fault.DENIED if op.kind == "put" else None
    error(world.post(path, change), 403, "ForbiddenException")
    world.store.plan = lambda _: None
    assert world.post(path, change).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/namespaces", b"{", 400),
        ("POST", "/v1/namespaces", b"[]", 400),
        ("POST", "/v1/namespaces", b"{}", 400),
        ("POST", "/v1/namespaces", b'{"namespace": "ns"}', 400),
        ("POST", "/v1/namespaces", b'{"namespace": [1]}', 400),
        ("POST", "/v1/namespaces", b'{"namespace": []}', 400),
        ("POST", "/v1/namespaces", b'{"namespace": ["a", ""]}', 400),
        ("POST", "/v1/namespaces", b'{"namespace": ["x"], "properties": {"a": 1}}', 400),
        ("POST", "/v1/namespaces", b'{"namespace": ["a/b"]}', 400),
        ("GET", "/v1/namespaces/a%2Fb", None, 400),
        ("GET", "/v1/namespaces/a%1F", None, 400),
        ("GET", "/v1/namespaces/%FF", None, 400),
        ("GET", "/v1/namespaces/..%2f..%2fcatalog", None, 400),
        ("GET", "/v1/namespaces/%2e%2e", None, 400),
        ("GET", "/v1/namespaces?pageSize=0", None, 400),
        ("GET", "/v1/namespaces?pageSize=x", None, 400),
        ("GET", "/v1/namespaces?parent=nope", None, 404),
        ("POST", "/v1/namespaces/ns/tables", b'{"name": "t"}', 400),
        ("POST", "/v1/namespaces/ns/tables", b'{"name": "a*b", "schema": {}}', 400),
        ("POST", "/v1/namespaces/ns/tables", b'{"name": "u", "schema": {"type": "struct"}}', 400),
        ("POST", "/v1/namespaces/ns/tables/t", b'{"requirements": 1}', 400),
        ("POST", "/v1/namespaces/ns/tables/t", b'{"requirements": [1], "updates": []}', 400),
        ("POST", "/v1/namespaces/ns/tables/t", b'{"requirements": [{"type": "x"}], "updates": []}', 400),
        ("POST", "/v1/namespaces/ns/tables/t", b'{"requirements": [], "updates": [{"action": "x"}]}', 400),
        ("POST", "/v1/namespaces/ns/tables/t", b'{"identifier": {"namespace": ["ns"], "name": "u"}}', 400),
        ("POST", "/v1/namespaces/ns/properties", b'{"updates": {"a": "1"}, "removals": ["a"]}', 422),
        ("POST", "/v1/tables/rename", b"{}", 400),
        ("POST", "/v1/tables/rename", b'{"source": {"namespace": ["ns"], "name": "t"}}', 400),
        (
            "POST",
            "/v1/tables/rename",
            b'{"source": {"namespace": [], "name": "t"}, "destination": {"namespace": ["ns"], "name": "u"}}',
            400,
        ),
        (
            "POST",
            "/v1/tables/rename",
            b'{"source": {"namespace": ["ns"], "name": "t"},'
            b' "destination": {"namespace": ["ns"], "name": "/"}}',
            400,
        ),
        ("POST", "/v1/transactions/commit", b"{}", 400),
        ("POST", "/v1/transactions/commit", b'{"table-changes": [{"requirements": []}]}', 400),
        (
            "POST",
            "/v1/transactions/commit",
            b'{"table-changes": [{"identifier": {"namespace": ["ns"], "name": "u"}}]}',
            404,
        ),
        ("POST", "/v1/namespaces/ns/register", b'{"name": "u"}', 400),
        ("POST", "/v1/namespaces/ns/register", b'{"name": "u", "metadata-location": "x"}', 400),
        ("POST", "/v1/namespaces/nope/register", b'{"name": "u", "metadata-location": "x"}', 404),
        ("POST", "/v1/namespaces/ns/register", b'{"name": "t", "metadata-location": "x"}', 409),
        ("PUT", "/v1/namespaces", b"{}", 405),
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/", None, 404),
        ("GET", "/v1/namespaces/ns/tables/t/x/y", None, 404),
    ],
)
def test_bad_requests_are_worded_and_never_break(
    world: World, method: str, path: str, body, status: int
) -> None:
    world.table()
    before = {listed.key: listed.etag for listed in world.store.inner.list("")}
    answer = world.published.request(method, path, content=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    assert {listed.key: listed.etag for listed in world.store.inner.list("")} == before


def test_limits_of_body_and_headers(world: World) -> None:
    big = b'{"x": "' + b"a" * (17 * 1024 * 1024) + b'"}'
    error(world.published.post("/v1/namespaces", content=big), 413, "RequestTooLargeException")

    def chunks() -> Iterator[bytes]:
        for _ in range(18):
            yield b"a" * 1024 * 1024

    error(world.published.post("/v1/namespaces", content=chunks()), 413, "RequestTooLargeException")
    host, port = world.running.published.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WITHIN_S) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nx: " + b"a" * 200_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 4")


def test_namespace_pages(world: World) -> None:
    for number in range(12):
        world.post("/v1/namespaces", {"namespace": [f"n{number:02}"]})
    world.post("/v1/namespaces", {"namespace": ["n03", "child"]})
    found, token = [], ""
    while token is not None:
        page = world.published.get("/v1/namespaces", params={"pageToken": token, "pageSize": 5}).json()
        assert len(page["namespaces"]) <= 5
        found += page["namespaces"]
        token = page["next-page-token"]
        assert token is None or len(found) < 12, f"there is a page after the last one: {found}"
    assert found == [[f"n{number:02}"] for number in range(12)]
    answer = world.published.get("/v1/namespaces", params={"parent": "n03", "pageSize": 2**31 - 1}).json()
    assert answer["namespaces"] == [["n03", "child"]]
    query = {"parent": "n03", "pageToken": "catalog/v1/namespaces/n02.json"}
    error(world.published.get("/v1/namespaces", params=query), 400, "BadRequestException")
    query["pageToken"] = "catalog/v1/namespaces/n03.a.json"
    answer = world.published.get("/v1/namespaces", params=query).json()
    assert answer["namespaces"] == [["n03", "child"]], "also if the last one of the page is gone"
    assert world.published.head("/v1/namespaces/n03%1Fchild").status_code == 204
    assert world.published.head("/v1/namespaces/n03%1Fother").status_code == 404


BAD_TOKENS = [
    "a",
    "a//b",
    "..",
    "\0",
    "\ud7ff",
    "catalog/v1/pointers/ns/~zz.json",
    "catalog/v1/pointers/ns/.json",
]


@pytest.mark.parametrize("path", ["/v1/namespaces", "/v1/namespaces/ns/tables", "/v1/namespaces/ns/views"])
def test_a_page_token_that_no_page_had_is_refused(world: World, path: str) -> None:
    world.table()
    world.post("/v1/namespaces", {"namespace": ["ns", "child"]})
    tokens = [*BAD_TOKENS, "catalog/v1/pointers/other/t.json", "catalog/v1/namespaces/ns/../x.json"]
    tokens.append("catalog/v1/namespaces/ns.child.json")
    for token in tokens:
        answer = world.published.get(path, params={"pageToken": token, "pageSize": 5})
        assert "Invalid pageToken" in error(answer, 400, "BadRequestException"), token
        assert "give the next-page-token of the previous page" in answer.text
    for token in ("", None):
        assert world.published.get(path, params={"pageToken": token or ""}).status_code == 200


def test_pages_go_on_after_a_table_that_is_gone(world: World) -> None:
    for name in ("a", "b~", "c", "d"):
        world.table(name)
    path = "/v1/namespaces/ns/tables"
    token = world.published.get(path, params={"pageSize": 2}).json()["next-page-token"]
    world.published.delete(f"{path}/b~")
    page = world.published.get(path, params={"pageSize": 2, "pageToken": token}).json()
    assert [one["name"] for one in page["identifiers"]] == ["c", "d"]


@pytest.mark.parametrize("staged", [True, False])
def test_a_create_that_is_nested_too_deeply_is_refused(world: World, staged: bool) -> None:
    world.table()
    deep = json.loads("[" * 300 + "]" * 300)
    columns = {**SCHEMA, "fields": [{**SCHEMA["fields"][0], "extra": deep}]}
    body = {"name": "deep", "schema": columns, "stage-create": staged}
    answer = world.published.post("/v1/namespaces/ns/tables", content=json.dumps(body))
    assert error(answer, 400, "BadRequestException").endswith("make numbers smaller, or nest less")


def test_purge_leaves_the_files_to_the_reaper(world: World) -> None:
    made = world.table()
    location, table_uuid = made["metadata-location"], made["metadata"]["table-uuid"]
    path = "/v1/namespaces/ns/tables/t"
    bad = world.published.delete(path, params={"purgeRequested": "maybe"})
    assert "give true or false" in error(bad, 400, "BadRequestException")
    key = {"idempotency-key": uuid7()}
    for _ in range(2):
        answer = world.published.delete(path, params={"purgeRequested": "true"}, headers=key)
        assert (answer.status_code, answer.content) == (204, b"")
    answer = world.published.delete(path, params={"purgeRequested": "false"}, headers=key)
    error(answer, 422, "UnprocessableEntityException")
    error(world.published.delete(path, params={"purgeRequested": "true"}), 404, "NoSuchTableException")
    assert world.store.inner.get(location.removeprefix("s3://tarn/")) is not None
    deleted = [op.key for op in world.store.seen if op.kind == "delete"]
    assert len(deleted) == 1, deleted
    assert deleted[0].startswith(TRANSACTIONS_PREFIX), "the record goes, and nothing else"
    asked = json.loads(world.store.inner.get(claim_key(table_uuid)).data)["purge"]
    assert asked.pop("at-ms") == pytest.approx(time.time() * 1000, abs=60_000)
    assert asked == {
        "namespace": ["ns"],
        "name": "t",
        "location": made["metadata"]["location"],
        "metadata-location": location,
    }
    again = world.post("/v1/namespaces/ns/register", {"name": "t", "metadata-location": location})
    assert "dropped with purge" in error(again, 409, "CommitFailedException")


def test_a_rename_over_http(world: World) -> None:
    made = world.table()
    world.table("u")
    world.post("/v1/namespaces", {"namespace": ["other"]})

    def rename(source: list[str], target: list[str], **headers: str) -> httpx.Response:
        body = {
            "source": {"namespace": source[:-1], "name": source[-1]},
            "destination": {"namespace": target[:-1], "name": target[-1]},
        }
        return world.post("/v1/tables/rename", body, **headers)

    t, u = ["ns", "t"], ["ns", "u"]
    missing = rename(["ns", "nope"], t)
    assert error(missing, 404, "NoSuchTableException") == "Table does not exist: ns.nope"
    nowhere = rename(t, ["nowhere", "t"])
    assert error(nowhere, 404, "NoSuchNamespaceException") == "Namespace does not exist: nowhere"
    for target in (u, t):
        message = error(rename(t, target), 409, "AlreadyExistsException")
        assert message == f"Table already exists: {'.'.join(target)}"
    key = uuid7()
    for _ in range(2):
        answer = rename(t, ["other", "v"], idempotency_key=key)
        assert (answer.status_code, answer.content) == (204, b"")
    error(rename(t, ["other", "w"], idempotency_key=key), 422, "UnprocessableEntityException")
    error(rename(t, ["other", "w"]), 404, "NoSuchTableException")
    found = world.published.get("/v1/namespaces/other/tables/v").json()
    assert found["metadata-location"] == made["metadata-location"]
    assert world.published.head("/v1/namespaces/ns/tables/t").status_code == 404
    answer = world.published.delete("/v1/namespaces/ns/tables/u")
    assert answer.status_code == 204
    assert world.published.delete("/v1/namespaces/ns").status_code == 204, "nothing is left in it"
    error(world.published.delete("/v1/namespaces/other"), 409, "NamespaceNotEmptyException")


def test_a_commit_to_two_tables_over_http(world: World) -> None:
    world.table()
    world.table("u")

    def change(name: str, value: str, **requirement: Any) -> dict[str, Any]:
        return {
            "identifier": {"namespace": ["ns"], "name": name},
            "requirements": [requirement] if requirement else [],
            "updates": [{"action": "set-properties", "updates": {"x": value}}],
        }

    def found() -> list[str | None]:
        answers = (world.published.get(f"/v1/namespaces/ns/tables/{name}").json() for name in "tu")
        return [answer["metadata"]["properties"].get("x") for answer in answers]

    path, key = "/v1/transactions/commit", uuid7()
    for _ in range(2):
        answer = world.post(
            path, {"table-changes": [change("t", "1"), change("u", "1")]}, idempotency_key=key
        )
        assert (answer.status_code, answer.content) == (204, b"")
    assert found() == ["1", "1"]
    stale = change("u", "2", type="assert-current-schema-id", **{"current-schema-id": 7})
    refused = world.post(path, {"table-changes": [change("t", "2"), stale]})
    assert "current schema changed" in error(refused, 409, "CommitFailedException")
    assert found() == ["1", "1"]


def test_metrics_are_accepted(world: World) -> None:
    world.table()
    assert (
        world.post("/v1/namespaces/ns/tables/t/metrics", {"report-type": "commit-report"}).status_code == 204
    )


def test_health_sees_the_store(world: World) -> None:
    assert world.inside.get("/health").json() == {"status": "ok"}
    world.store.plan = lambda _: Fault.DENIED

    def ill() -> httpx.Response | None:
        answer = world.inside.get("/health")
        return answer if answer.status_code == 503 else None

    answer = eventually(ill, timeout_s=WITHIN_S, what="it is ill", pause_s=0.1)
    assert "may not read" in answer.json()["error"]["message"]


def test_secrets_stay_out_of_answers_and_logs(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    secret = world.running.credential.split(":")[1]
    form = {"grant_type": "client_credentials", "client_id": "tester", "client_secret": secret + "x"}
    texts = [world.published.post("/v1/oauth/tokens", data=form).text]
    texts.append(world.published.get(f"/v1/namespaces/{'a' * 300}").text)
    world.store.plan = lambda _: Fault.RESET
    texts.append(world.published.get("/v1/namespaces/ns").text)
    out = capfd.readouterr()
    assert "/v1/oauth/tokens" in out.out + out.err, "nothing was logged of it"
    for text in (*texts, out.out, out.err):
        assert secret not in text
        assert world.token not in text


@pytest.mark.parametrize(
    ("name", "written"),
    [("a b", "a+b"), ("a b", "a%20b"), ("a+b", "a%2Bb"), ("ä ö", "%C3%A4+%C3%B6"), ("a-b_c.d", "a-b_c.d")],
)
def test_names_arrive_as_every_client_writes_them(world: World, name: str, written: str) -> None:
    """The Java client up to Iceberg 1.11 encodes a space in a path as `+`, others as `%20`."""
    assert world.post("/v1/namespaces", {"namespace": [name]}).status_code == 200
    answer = world.post(f"/v1/namespaces/{written}/tables", {"name": name, "schema": SCHEMA})
    assert answer.status_code == 200, answer.text
    assert world.published.head(f"/v1/namespaces/{written}").status_code == 204
    assert world.published.get(f"/v1/namespaces/{written}/tables/{written}").status_code == 200
    listed = world.published.get(f"/v1/namespaces/{written}/tables").json()["identifiers"]
    assert listed == [{"namespace": [name], "name": name}]
    twice = written.replace("%", "%25").replace("+", "%2B")
    inner = {"namespace": [name, "inner"]}
    assert world.post("/v1/namespaces", inner).status_code == 200
    children = world.published.get(f"/v1/namespaces?parent={twice}").json()["namespaces"]
    assert children == [[name, "inner"]]
