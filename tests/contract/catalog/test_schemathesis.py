"""Schemathesis over the OpenAPI description, against the real server: no server error, no answer that the
description does not have, no way past authentication.

Every run has the same few requests per operation; `scripts/test nightly` has 20 times as many.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks

from tarn.adapters.store import MemoryStore
from tarn.core.errors import TarnError
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.vending import Vending
from tarn_catalog.rest.openapi import description
from tarn_catalog.testing.server import Running, serving
from tests.contract.catalog.test_commits import NEW, ROOTS, SLOT
from tests.contract.catalog.test_contention import Client
from tests.contract.catalog.test_transactions import VIEW
from tests.support.described import play, wrong_with
from tests.support.sts import fake_sts

EXAMPLES = 5
ANSWER_S_MAX = 120.0
VIEW_SLOT = TableIdentifier.of(("ns",), "v", "view")
NAMES = {"namespace": "ns", "table": "t", "view": "v", "principal": "bob", "role": "readers"}
# What a name, an id or an update may be, JSON Schema cannot say: a 400 is an answer to what fits the schema.
MAY_REFUSE = {400, 413, 422}
# An unknown query parameter is ignored, as the specification wants it; the token is added to every request.
IGNORED = re.compile(
    r"query: violates `additionalProperties`|query - violates `additionalProperties`|"
    r"violates `required` \(was Authorization\)"
)
PUBLIC = ("GET /health", "POST /v1/oauth/tokens")
WITHOUT_TOKEN = "POST /health/deep"
"""Open to the container's own check, by a secret of its own."""
REFERRING = ("GET /v1/namespaces/{namespace}/tables/{table}", "GET /v1/namespaces/{namespace}/views/{view}")
SCHEMA = schemathesis.openapi.from_dict(description())
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}


class World:
    """A lake with a namespace, a table and a view, made again when a request removed them."""

    def __init__(self, catalog: Catalog, running: Running) -> None:
        self.catalog = catalog
        self.uri = running.published
        client = Client(running)
        self.token = client.token
        client.close()

    def restore(self) -> None:
        for make in (
            lambda: self.catalog.namespaces.create(("ns",), {}),
            lambda: self.catalog.tables.create(SLOT, NEW),
            lambda: self.catalog.views.create(VIEW_SLOT, VIEW),
        ):
            try:
                make()
            except TarnError:
                continue


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    load_all_checks()
    with fake_sts() as sts:
        catalog = Catalog(MemoryStore(), ROOTS, vending=Vending(sts.service(), ROOTS))
        with serving(catalog, tmp_path_factory.mktemp("schemathesis")) as running:
            yield World(catalog, running)


def fresh_key() -> str:
    """A UUID version 7 of now: one of another time is refused as unknown, with a 500, and that is right."""
    at_ms = time.time_ns() // 1_000_000
    return str(uuid.UUID(int=(at_ms << 80) | (7 << 76) | (2 << 62) | (uuid.uuid4().int & (1 << 62) - 1)))


def is_key(text: Any) -> bool:
    try:
        return uuid.UUID(str(text)).version == 7
    except ValueError:
        return False


def only_ignored(failure: str) -> bool:
    """Whether all that was wrong with a request is what the catalog ignores."""
    wrong = [line for line in failure.splitlines() if "violates" in line]
    return bool(wrong) and all(IGNORED.search(line) for line in wrong)


def forgiven(failure: Exception, status: int) -> bool:
    name = type(failure).__name__
    return (name == "RejectedPositiveData" and status in MAY_REFUSE) or (
        name == "AcceptedNegativeData" and only_ignored(str(failure))
    )


@pytest.mark.plays
@pytest.mark.parametrize("known", [True, False], ids=["known names", "any names"])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fits", "wrong"])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_one_that_is_described(
    world: World, label: str, mode: GenerationMode, known: bool, record_property
) -> None:
    statuses: Counter[int] = Counter()

    def send(case: Any) -> list[str]:
        world.restore()
        if known and case.path_parameters:
            case.path_parameters = {name: NAMES[name] for name in case.path_parameters}
        if case.headers and is_key(case.headers.get("Idempotency-Key")):
            case.headers["Idempotency-Key"] = fresh_key()
        return wrong_with(case, world.uri, statuses, forgiven, headers=world.token, answer_s_max=ANSWER_S_MAX)

    play(OPERATIONS[label], mode, send, examples=EXAMPLES)
    record_property("statuses", dict(statuses))
    if mode is GenerationMode.POSITIVE and label not in (*PUBLIC, WITHOUT_TOKEN):
        assert 401 not in statuses, "the token is not taken: nothing behind it was asked"


@pytest.mark.parametrize("label", REFERRING)
def test_an_answer_that_refers_to_an_earlier_one_is_described(world: World, label: str) -> None:
    world.restore()
    first = OPERATIONS[label].Case(path_parameters=NAMES).call(base_url=world.uri, headers=world.token)
    assert first.status_code == 200
    head = {"If-None-Match": first.headers["etag"][0]}
    case = OPERATIONS[label].Case(path_parameters=NAMES, headers=head)
    again = case.call(base_url=world.uri, headers=world.token)
    assert again.status_code == 304
    case.validate_response(again, headers=world.token)


@pytest.mark.parametrize("label", OPERATIONS)
def test_without_a_valid_token_nothing_but_the_public_routes_answers(world: World, label: str) -> None:
    operation = OPERATIONS[label]
    path = operation.path.format_map(NAMES)
    for head in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic dDp0"}):
        answer = requests.request(
            operation.method, f"{world.uri}{path}", json={}, headers=head, timeout=ANSWER_S_MAX
        )
        assert label in PUBLIC or answer.status_code == 401, (label, head, answer.status_code)
