"""Schemathesis over the gateway's OpenAPI description, against the real server beside the real catalog: no
server error, no answer that the description does not have, no way past authentication.

Every run has the same few requests per operation; `scripts/test nightly` has 20 times as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks

from tarn.gateway.openapi import DESCRIPTION
from tarn.gateway.takes import InboxLimits
from tests.support.described import play, wrong_with
from tests.support.gateway import TABLE, Gateway, World, a_world, row

EXAMPLES = 10
ANSWER_S_MAX = 60.0
ROWS = "POST /v1/tables/{table}/rows"
# What a name, a header or a row may be, JSON Schema cannot say: these are answers to what fits the schema.
MAY_REFUSE = {400, 404, 409, 413, 415, 422}
NOT_SERVED = 501
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def as_it_is(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """The description has these bodies as texts; what is none makes a wrong one."""
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Gateway]]:
    load_all_checks()
    with a_world(tmp_path_factory.mktemp("schemathesis")) as world:
        yield world, world.gateway(limits=InboxLimits(gap_s_max=0.02))


def forgiven(failure: Exception, status: int) -> bool:
    name = type(failure).__name__
    return (name == "RejectedPositiveData" and status in MAY_REFUSE) or (
        name == "ServerError" and status == NOT_SERVED
    )


def judged(case: Any, url: str, token: dict[str, str], statuses: Counter[int]) -> list[str]:
    """Send a request; what is wrong with the answer."""
    return wrong_with(case, url, statuses, forgiven, headers=token)


@pytest.mark.plays
@pytest.mark.parametrize("known", [True, False], ids=["known table", "any table"])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fits", "wrong"])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_one_that_is_described(
    serving: tuple[World, Gateway], label: str, mode: GenerationMode, known: bool, record_property: Any
) -> None:
    world, gateway = serving
    token = {"authorization": f"Bearer {world.tokens['admin']}"}
    statuses: Counter[int] = Counter()

    def send(case: Any) -> list[str]:
        if known and case.path_parameters:
            case.path_parameters = {"table": TABLE}
        return judged(case, gateway.url, token, statuses)

    play(OPERATIONS[label], mode, send, examples=EXAMPLES)
    record_property("statuses", dict(statuses))
    if mode is GenerationMode.POSITIVE:
        assert 401 not in statuses, "the token is not taken: nothing behind it was asked"


def test_rows_of_every_described_kind_are_taken(serving: tuple[World, Gateway]) -> None:
    """What fits the schema is hardly ever a row of the table: one that is shows the answer to a write."""
    world, gateway = serving
    token = {"authorization": f"Bearer {world.tokens['admin']}"}
    statuses: Counter[int] = Counter()
    for number, (kind, body) in enumerate(
        [
            ("application/json", row(1)),
            ("application/json", [row(2), {}]),
            ("application/x-ndjson", '{"id": 3, "at": "2026-11-23T08:00:00Z"}\n'),
        ]
    ):
        for _ in range(2):
            case = OPERATIONS[ROWS].Case(
                path_parameters={"table": TABLE},
                headers={"Idempotency-Key": f"k-{number}"},
                query={"durability": "lake"},
                body=body,
                media_type=kind,
            )
            assert judged(case, gateway.url, token, statuses) == []
    assert statuses == {200: 6}
    assert {1, 2, 3} <= set(world.ids())


@pytest.mark.parametrize("label", OPERATIONS)
def test_without_a_valid_token_nothing_but_health_and_description_answers(
    serving: tuple[World, Gateway], label: str
) -> None:
    world, gateway = serving
    before = world.ids()
    operation = OPERATIONS[label]
    url = gateway.url + operation.path.format_map({"table": TABLE})
    for head in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic dDp0"}):
        body = row(99) if label == ROWS else None
        answer = httpx.request(operation.method, url, json=body, headers=head, timeout=ANSWER_S_MAX)
        assert answer.status_code == (401 if label == ROWS else 200), (label, head)
    assert world.ids() == before
