"""Schemathesis over the description of the status API, against the real server over a lake in memory: no
server error, and no answer that the description does not have.

Every run has the same few requests per operation; `scripts/test nightly` has 20 times as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks

from tarn.ingest.status_api.openapi import DESCRIPTION
from tarn.testing.memory_topic import Topic
from tests.support.described import play, wrong_with
from tests.support.lake import TABLE, Lake, order
from tests.support.status_api import Client, LakeTables, into, look_of, now_of, served

EXAMPLES = 10
SCHEMA = schemathesis.openapi.from_dict(DESCRIPTION)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
FILES = "/v1/tables/{table}/files"
NAMES = {"name": "orders", "table": TABLE, "kind": "drop-reply"}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    load_all_checks()
    lake = Lake(Topic("orders", 1))
    lake.sources.topics["orders"].send(0, order(1), b"junk")
    lake.work(lake.ingestor(), turns=40)
    look = look_of(lake, LakeTables(lake, TABLE, "ops.dead_letters"))
    look.look()
    tables = into(lake, LakeTables(lake))
    with served(lake.registry, lake=look.seen, now_ms=now_of(lake), look=tables) as made:
        yield made


@pytest.mark.plays
@pytest.mark.parametrize("known", [True, False], ids=["known name", "any name"])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fits", "wrong"])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_is_one_that_is_described(
    client: Client, label: str, mode: GenerationMode, known: bool, record_property: Any
) -> None:
    if known and "{" not in label:
        return  # the same requests as without a known name
    statuses: Counter[int] = Counter()

    def forgiven(failure: Exception, status: int) -> bool:
        """A name that fits the schema need not be that of anything."""
        return type(failure).__name__ == "RejectedPositiveData" and status == 404

    def send(case: Any) -> list[str]:
        if known:
            case.path_parameters = {name: NAMES[name] for name in case.path_parameters}
        return wrong_with(case, f"http://127.0.0.1:{client.port}", statuses, forgiven)

    play(OPERATIONS[label], mode, send, examples=EXAMPLES)
    record_property("statuses", dict(statuses))
    if mode is GenerationMode.POSITIVE and (known or "{" not in label):
        # A place in a list that fits the schema need not be one in the list of this table; faults are off.
        usual = 403 if label.startswith("POST ") else 200
        assert set(statuses) - ({404} if label == f"GET {FILES}" else set()) == {usual}
