"""What the command line applies beside what is declared already."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tarn.adapters.spec_store import SpecStore
from tarn.adapters.store import MemoryStore
from tarn.controller import declaring
from tarn.core.errors import AlreadyExistsError, InvalidSpecError
from tarn.core.spec import parse_document
from tests.support.lake import SPEC

LOG = "tarn.log.0b9c6b0e-0000-4000-8000-000000000000"
OF_LOG = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: log-orders}
spec:
  source: {kafka: {topic: TOPIC, create: true}}
  table: {namespace: bronze, name: orders}
""".replace("TOPIC", LOG)


@pytest.fixture
def specs() -> SpecStore:
    numbers = itertools.count(1)
    return SpecStore(
        MemoryStore(), now_ms=lambda: 7, new_id=lambda: f"id-{next(numbers)}", sleep=lambda _s: None
    )


def put(specs: SpecStore, document: dict[str, Any]) -> str:
    _, what = declaring.put(specs, document, "x", take_over=False)
    return what


def orders(**metadata: str) -> dict[str, Any]:
    found = parse_document(SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]"), file="x")
    return {**found, "metadata": {**found["metadata"], **metadata}}


def test_the_log_of_a_table_is_declared_beside_its_ingestor(specs: SpecStore) -> None:
    log = parse_document(OF_LOG, file="x")
    assert [put(specs, orders()), put(specs, log), put(specs, log)] == ["created", "created", "unchanged"]
    other = {**log, "metadata": {"name": "another-log"}}
    with pytest.raises(InvalidSpecError, match="log-orders"):
        put(specs, other)


def test_the_log_of_a_table_has_no_columns_of_its_own(specs: SpecStore) -> None:
    log = parse_document(OF_LOG, file="x")
    log["spec"]["mapping"] = {"drop": ["note"]}
    with pytest.raises(InvalidSpecError, match=r"x: spec\.mapping is for other messages"):
        put(specs, log)
    assert specs.get("log-orders") is None


def test_a_new_name_is_taken_once_the_former_ingestor_has_ended(specs: SpecStore) -> None:
    put(specs, orders())
    renamed = orders(name="sales", stream="orders")
    with pytest.raises(InvalidSpecError, match="delete it first"):
        put(specs, renamed)
    going = declaring.request_deletion(specs, "orders")
    with pytest.raises(AlreadyExistsError, match="being deleted"):
        put(specs, renamed)
    specs.finalize("orders", going.uid)
    assert put(specs, renamed) == "created"
