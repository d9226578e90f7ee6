"""What writers share outlives each of them: the bookkeeper of a table, and the one of dead letters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tarn.core.errors import UnavailableError
from tarn.core.outcome import Conflict
from tarn.core.table_catalog import TableName
from tests.contract.control.test_controller import topic
from tests.support.lake import Lake, order
from tests.support.plant import Plant


@pytest.fixture
def plant() -> Iterator[Plant]:
    made = Plant(Lake(topic(), topic("sales")))
    yield made
    made.close()


def refuse(plant: Plant, monkeypatch: pytest.MonkeyPatch, table: str, times: int) -> list[int]:
    """Refuse the next commits to a table, as if others had been faster; one item per refusal to come."""
    commit, left = plant.lake.local.commit, list(range(times))

    def refused(slot: TableName, *args: Any, **options: Any) -> Any:
        if str(slot) == table and left:
            left.pop()
            return Conflict(reason="another writer was faster")
        return commit(slot, *args, **options)

    monkeypatch.setattr(plant.lake.local, "commit", refused)
    return left


def died(logged: list[Any]) -> list[Any]:
    return [line for line in logged if line["event"] in ("writer died", "writer failed")]


def test_the_bookkeeper_of_a_table_outlives_the_writer_that_made_it(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    plant.apply()
    plant.until(lambda: plant.running(1))
    plant.scale(2)
    plant.until(lambda: plant.running(2) and plant.all_in())
    before = [(one.id, one.started_s) for one in plant.seen()]
    left = refuse(plant, monkeypatch, "bronze.orders", 3)
    plant.lake.sources.topics["orders"].send(0, *(order(n) for n in range(20)))
    plant.until(lambda: not left and plant.all_in())
    assert [(one.id, one.started_s) for one in plant.seen()] == before, "a conflict ended a writer"
    assert not died(logged)
    plant.exact()


def test_dead_letters_go_on_when_the_ingestor_that_wrote_the_first_ones_is_deleted(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    plant.apply()
    plant.until(lambda: plant.running(1))
    plant.apply("sales")
    plant.until(lambda: plant.running(1, "sales") and plant.all_in("sales"))
    plant.delete()
    plant.until(lambda: plant.workers() == ["sales/sales/0 Running"])
    before = [(one.id, one.started_s) for one in plant.seen()]
    left = refuse(plant, monkeypatch, "ops.dead_letters", 3)
    plant.lake.sources.topics["sales"].send(0, b"no json")
    plant.until(lambda: not left and plant.lake.registry.get("sales").bad_records == 1)
    time.sleep(0.2)
    plant.controller.step()
    assert [(one.id, one.started_s) for one in plant.seen()] == before, "a conflict ended a writer"
    assert not died(logged)


def test_a_writer_that_waits_for_the_catalog_ends_when_it_is_asked_to(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, logged: list[Any]
) -> None:
    plant.apply()
    plant.until(lambda: plant.running(1) and plant.all_in())
    asked = []
    commit = plant.lake.local.commit

    def away(*_args: Any, **_options: Any) -> Any:
        asked.append(1)
        time.sleep(0.01)
        raise UnavailableError("the catalog is away")

    monkeypatch.setattr(plant.lake.local, "commit", away)
    plant.lake.sources.topics["orders"].send(0, *(order(n) for n in range(20)))
    plant.until(lambda: len(asked) > 2)
    (former,) = plant.seen()
    plant.scale(2)
    plant.until(lambda: former.id not in {one.id for one in plant.seen()})
    assert not plant.all_in(), "it ended although its rows were not in"
    assert not died(logged), "it died instead"
    assert "a thread that does not end is left behind" not in {line["event"] for line in logged}
    monkeypatch.setattr(plant.lake.local, "commit", commit)
    plant.until(lambda: plant.running(2) and plant.all_in())
    plant.exact()
