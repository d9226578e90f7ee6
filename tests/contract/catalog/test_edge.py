"""What clients send by mistake or on purpose: the specification's error, never a 500, nothing half done."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.hosts import Hosts
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.rest.app import Limits, make_app
from tarn_catalog.rest.auth import Authenticator
from tarn_catalog.rest.request import ClientConfig
from tarn_catalog.rest.response import _STATUS
from tarn_catalog.rest.routes import SERVED, Routes
from tarn_catalog.testing.server import write_secrets
from tests.contract.catalog.test_commits import NEW, ROOTS, SLOT, append
from tests.contract.catalog.test_transactions import VIEW
from tests.support.turns import one_after_the_other

TABLE = "/v1/namespaces/ns/tables/t"
VIEW_SLOT = TableIdentifier.of(("ns",), "v", "view")
KINDS = {(status, kind) for _, status, kind in _STATUS if status < 500} | {(413, "RequestTooLargeException")}

FIELDS = [
    {"id": 1, "name": "x", "type": "long", "required": True, "doc": "d"},
    {
        **{"id": 2, "name": "s", "required": False},
        "type": {
            "type": "struct",
            "fields": [{"id": 3, "name": "y", "type": "decimal(9,2)", "required": False}],
        },
    },
    {
        **{"id": 4, "name": "l", "required": False},
        "type": {"type": "list", "element-id": 5, "element": "fixed[3]", "element-required": False},
    },
    {
        **{"id": 6, "name": "m", "required": False},
        "type": {
            **{"type": "map", "key-id": 7, "key": "string", "value-id": 8, "value": "timestamptz"},
            "value-required": False,
        },
    },
]
SCHEMA = {"type": "struct", "schema-id": 0, "identifier-field-ids": [1], "fields": FIELDS}
SPEC = {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "b", "transform": "bucket[4]"}]}
ORDER = {
    "order-id": 1,
    "fields": [
        {"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"},
    ],
}
UPDATES: list[dict[str, Any]] = [
    {"action": "upgrade-format-version", "format-version": 3},
    {"action": "add-schema", "schema": {**SCHEMA, "schema-id": 1}, "last-column-id": 8},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": SPEC},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": ORDER},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {"action": "set-properties", "updates": {"a": "1", "tarn.history": "40, 30s for 15m"}},
    {"action": "remove-properties", "removals": ["a"]},
    {
        "action": "set-statistics",
        "statistics": {
            **{"snapshot-id": 1, "statistics-path": "s3://tarn/x", "file-size-in-bytes": 1},
            **{"file-footer-size-in-bytes": 1, "blob-metadata": []},
        },
    },
    {"action": "remove-statistics", "snapshot-id": 1},
    {
        "action": "set-partition-statistics",
        "partition-statistics": {"snapshot-id": 1, "statistics-path": "s3://x", "file-size-in-bytes": 1},
    },
    {"action": "remove-partition-statistics", "snapshot-id": 1},
    {"action": "remove-partition-specs", "spec-ids": [0]},
    {"action": "remove-schemas", "schema-ids": [0]},
    {
        "action": "add-encryption-key",
        "encryption-key": {"key-id": "k", "encrypted-key-metadata": "aGk=", "encrypted-by-id": "m"},
    },
    {"action": "remove-encryption-key", "key-id": "k"},
    {"action": "remove-snapshot-ref", "ref-name": "b"},
    {"action": "remove-snapshots", "snapshot-ids": [7]},
    {"action": "set-location", "location": "s3://tarn/warehouse/ns/t"},
    {"action": "assign-uuid", "uuid": "6f6a1d4e-7f53-4a9e-9c7c-1b5f9a5d9d10"},
]
REQUIREMENTS = [
    {"type": "assert-table-uuid", "uuid": "6f6a1d4e-7f53-4a9e-9c7c-1b5f9a5d9d10"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
    {"type": "assert-create"},
]
NAMED = {"namespace": ["ns"], "name": "t"}
VERSION = {
    **{"version-id": 2, "timestamp-ms": 1_000, "schema-id": -1, "summary": {"a": "b"}},
    **{"default-namespace": ["ns"], "default-catalog": "tarn"},
    "representations": [{"type": "sql", "sql": "select 2", "dialect": "spark"}],
}
VIEW_UPDATES = [
    {"action": "add-schema", "schema": SCHEMA, "last-column-id": 8},
    {"action": "add-view-version", "view-version": VERSION},
    {"action": "set-current-view-version", "view-version-id": -1},
    {"action": "set-properties", "updates": {"a": "1"}},
    {"action": "remove-properties", "removals": ["a"]},
]
SNAPSHOT_REQUIREMENTS, SNAPSHOT_UPDATES = append(1, None, 1)
GRANT = {"on": {"kind": "table", **NAMED}, "to": "tester", "privileges": ["READ"]}

BODIES: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/v1/namespaces", {"namespace": ["new", "below"], "properties": {"a": "1"}}),
    ("POST", "/v1/namespaces/ns/properties", {"removals": ["a"], "updates": {"b": "1"}}),
    (
        "POST",
        "/v1/namespaces/ns/tables",
        {
            **{"name": "new", "schema": SCHEMA, "partition-spec": SPEC, "write-order": ORDER},
            **{"properties": {"format-version": "2"}, "location": "s3://tarn/warehouse/ns"},
            "stage-create": False,
        },
    ),
    *(("POST", TABLE, {"requirements": [], "updates": [update]}) for update in UPDATES),
    *(
        ("POST", TABLE, {"identifier": NAMED, "requirements": [one], "updates": UPDATES[7:8]})
        for one in REQUIREMENTS
    ),
    ("POST", TABLE, {"requirements": SNAPSHOT_REQUIREMENTS, "updates": SNAPSHOT_UPDATES}),
    ("POST", f"{TABLE}/metrics", {"report-type": "scan-report", "table-name": "t"}),
    (
        "POST",
        "/v1/transactions/commit",
        {"table-changes": [{"identifier": NAMED, "requirements": REQUIREMENTS[:1], "updates": UPDATES[7:8]}]},
    ),
    ("POST", "/v1/tables/rename", {"source": NAMED, "destination": {"namespace": ["ns"], "name": "u"}}),
    (
        "POST",
        "/v1/namespaces/ns/register",
        {"name": "r", "metadata-location": "s3://tarn/warehouse/ns/t/metadata/x.json", "overwrite": True},
    ),
    (
        "POST",
        "/v1/namespaces/ns/views",
        {"name": "new", "schema": SCHEMA, "view-version": VERSION, "properties": {}, "location": None},
    ),
    *(
        ("POST", "/v1/namespaces/ns/views/v", {"requirements": [], "updates": [update]})
        for update in VIEW_UPDATES
    ),
    ("POST", "/v1/views/rename", {"source": NAMED, "destination": {"namespace": ["ns"], "name": "u"}}),
    ("POST", "/v1/namespaces/ns/register-view", {"name": "r", "metadata-location": "s3://tarn/x.json"}),
    ("POST", "/tarn/v1/principals", {"name": "bob"}),
    ("POST", "/tarn/v1/principals/bob/secret", {"grace-s": 60}),
    ("POST", "/tarn/v1/owner", {"on": GRANT["on"], "to": "bob"}),
    ("POST", "/tarn/v1/roles", {"name": "readers"}),
    ("POST", "/tarn/v1/grants", GRANT),
    ("POST", "/tarn/v1/grants/revoke", GRANT),
]
WRONG: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        2**31,
        2**63,
        2**70,
        1.5,
        1e308,
        "",
        "x",
        "\x00",
        "a" * 300,
        "../..",
        "{}",
        "\ud7ff",
    ),
    *([], [None], [[]], [{}], ["x"], [-1], {}, {"": None}, {"x": {}}, {"type": "struct"}),
)
DEEP = '{"updates":' + "[" * 5_000 + "]" * 5_000 + "}"
NOT_JSON = (
    *(b"", b"{", b"null", b"[]", b'"x"', b"1", b"\xff\xfe", b'{"a":NaN}', b'{"a":1e999}', b"{'a':1}"),
    *(b'{"a":"\\ud800"}', b'{"a":1}{"a":2}', DEEP.encode(), b'{"updates":' + b"9" * 5_000 + b"}"),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value within a body."""
    if path:
        yield path
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield from places(inner, (*path, step))


def variants(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The body with one value wrong, missing, or one more field."""
    for path in places(body):
        for wrong in (*WRONG, ...):
            found = deepcopy(body)
            at: Any = found
            for step in path[:-1]:
                at = at[step]
            if wrong is ...:
                del at[path[-1]]
            else:
                at[path[-1]] = wrong
            yield found
    yield {**body, "unknown": {"x": [1]}, "\x00": None}


class Edge:
    """The catalog's application without a socket, over a lake that is new for each body."""

    def __init__(self, folder: Path) -> None:
        self.credential = write_secrets(folder)
        self.folder = folder
        self.seen: Counter[int] = Counter()

    def open(self) -> None:
        self.store = MemoryStore()
        self.catalog = Catalog(self.store, ROOTS)
        self.catalog.namespaces.create(("ns",), {"a": "1"})
        self.catalog.tables.create(SLOT, NEW)
        self.catalog.views.create(VIEW_SLOT, VIEW)
        access = Authenticator(self.folder, access=self.catalog.access)
        side = ClientConfig(name="inside", s3_endpoint="http://s3", region="r", warehouse="tarn")
        hosts = Hosts.of("catalog", "127.0.0.1")
        self.app = make_app(Routes(self.catalog, access), side, Limits(), hosts)
        client_id, _, secret = self.credential.partition(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        self.head = {"authorization": f"Bearer {access.token(form, None)['access_token']}"}

    def state(self) -> dict[str, str]:
        """What the register holds."""
        return {found.key: found.etag for found in self.store.list("catalog/")}

    async def check(self, client: httpx.AsyncClient, method: str, path: str, data: bytes) -> int:
        before = self.state()
        answer = await client.request(method, path, content=data, headers=self.head)
        what = (method, path, data[:2_000], answer.status_code, answer.text[:500])
        self.seen[answer.status_code] += 1
        if answer.status_code >= 400:
            error = answer.json()["error"]
            assert (error["code"], error["type"]) in KINDS, what
            assert error["code"] == answer.status_code, what
            assert len(error["message"]) > 10, what
            assert self.state() == before, what
        else:
            assert answer.status_code in (200, 204), what
            self.open()
        return answer.status_code

    def run(self, requests: Iterator[tuple[str, str, bytes]]) -> None:
        async def script() -> None:
            self.open()
            for method, path, data in requests:
                transport = httpx.ASGITransport(self.app)
                async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                    await self.check(client, method, path, data)

        asyncio.run(script())


TURN_OF = one_after_the_other(
    range(len(BODIES)),
    "a body that is wrong somewhere is an error of the server, for half of the requests",
    times=3,
)


@pytest.mark.parametrize("number", [pytest.param(number, marks=mark) for number, mark in TURN_OF.items()])
def test_a_body_with_anything_wrong_is_refused_in_words_and_changes_nothing(
    number: int, tmp_path: Path, record_property
) -> None:
    method, path, body = BODIES[number]
    edge = Edge(tmp_path)
    edge.run((method, path, json.dumps(one).encode()) for one in variants(body))
    record_property("statuses", dict(edge.seen))
    assert edge.seen[400] or path.endswith("/metrics"), "nothing was wrong at all"


def test_what_is_no_json_is_refused_everywhere(tmp_path: Path, record_property) -> None:
    edge = Edge(tmp_path)
    routes = dict.fromkeys((method, path) for method, path, _ in BODIES)
    edge.run((*route, data) for route in routes for data in NOT_JSON)
    record_property("statuses", dict(edge.seen))
    assert edge.seen == {400: len(routes) * len(NOT_JSON)}


def test_every_route_with_a_body_is_tried() -> None:
    tried = {path.strip("/").replace("/ns", "/{namespace}") for _, path, _ in BODIES}
    tried = {path.replace("tables/t", "tables/{table}").replace("views/v", "views/{view}") for path in tried}
    tried = {path.replace("principals/bob", "principals/{principal}") for path in tried}
    posted = {template for method, template, _ in SERVED if method == "POST"}
    assert posted - tried == {"v1/oauth/tokens", "health/deep"}
