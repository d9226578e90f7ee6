"""What a simulation keeps from one process to the next, and how it draws whose turn it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tarn.adapters import table_files
from tarn.adapters.write_schema import create_request, layout_of
from tarn.core import decode
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import IngestorSpec, MessageFormat
from tarn.core.table_state import TableState
from tests.campaign.kept import kept, layout, parser
from tests.contract.catalog.schedule import Schedule
from tests.support.lake import spec


def state(made: IngestorSpec, **changes: Any) -> TableState:
    """A table of a spec."""
    request = create_request(made.spec.columns.fields, trace=True)
    schema, part = request["schema"], request["partition-spec"]
    metadata = {
        **{"format-version": 2, "table-uuid": "u", "location": "s3://tarn/x", "snapshots": []},
        **{"current-schema-id": 0, "schemas": [schema], "default-spec-id": 0, "partition-specs": [part]},
        "properties": request["properties"],
    }
    return TableState({**metadata, **changes})


def of(made: IngestorSpec, table: TableState, act: Callable[..., Any] = layout) -> Any:
    """A table's layout."""
    return act(table, made.spec.columns.fields, trace=True, table="t")


def test_a_kept_layout_is_that_of_the_table() -> None:
    made = spec()
    first = of(made, state(made))
    assert first == of(made, state(made), layout_of)
    assert of(made, state(made, location="s3://tarn/y", snapshots=[])) is first


@pytest.mark.parametrize(
    "changes",
    [
        {"format-version": 3},
        {"properties": {"write.parquet.compression-codec": "gzip"}},
        {"sort-orders": [{"order-id": 1, "fields": []}], "default-sort-order-id": 1},
    ],
)
def test_a_layout_is_made_again_for_another_table(changes: dict[str, Any]) -> None:
    made = spec()
    other = of(made, state(made, **changes))
    assert other is not of(made, state(made))
    assert other == of(made, state(made, **changes), layout_of)


def test_a_table_that_cannot_take_the_spec_is_refused_each_time() -> None:
    made = spec()
    table = state(made, schemas=[{"type": "struct", "schema-id": 0, "fields": []}])
    for _ in range(2):
        with pytest.raises(InvalidSpecError, match="column id"):
            of(made, table)


def test_they_are_kept_within_the_block_only() -> None:
    fields = spec().spec.columns.fields
    with kept():
        assert decode.parser_of(fields, MessageFormat()) is parser(fields, MessageFormat())
        assert table_files.layout_of is layout
    assert decode.parser_of(fields, MessageFormat()) is not parser(fields, MessageFormat())
    assert table_files.layout_of is layout_of


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_turns_are_drawn_as_the_random_numbers_of_python_draw(count: int) -> None:
    """What a seed of an older result file did, it does again."""
    schedule = Schedule(7, fault_share=0.0)
    found: list[str] = []

    def act(name: str) -> None:
        for _ in range(9):
            found.append(name)
            schedule.sleep(0.0)

    names = [f"actor-{number}" for number in range(count)]
    schedule.run({name: (lambda name=name: act(name)) for name in names}, crash_at={})  # type: ignore[misc]
    chance, left, wanted = random.Random(7), dict.fromkeys(names, 9), []
    while left:
        name = chance.choice(sorted(left))
        if left[name] == 0:
            del left[name]
            continue
        left[name] -= 1
        wanted.append(name)
    assert found == wanted
    assert schedule.steps == 10 * count
