"""A transform that does not fit its column's type is rejected wherever a table could get it."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tarn.core.errors import InvalidError
from tarn.core.transforms import fits, fitting, transforms_for, types_for
from tarn_catalog.metadata import table_metadata

UUID = "e12f474e-2f6f-4e1a-9a83-8a46a0d45098"
NOW_MS = 1_795_000_000_000
NAMED = [
    BinaryType(),
    BooleanType(),
    DateType(),
    DecimalType(9, 2),
    DoubleType(),
    FixedType(4),
    FloatType(),
    IntegerType(),
    LongType(),
    StringType(),
    TimestampNanoType(),
    TimestampType(),
    TimestamptzNanoType(),
    TimestamptzType(),
    TimeType(),
    UUIDType(),
]
OTHER = ["variant", "geometry", "geography", "geometry(srid:3857)"]
NESTED: list[Any] = [
    {"type": "struct", "fields": [{"id": 2, "name": "x", "type": "int", "required": False}]},
    {"type": "list", "element-id": 2, "element": "int", "element-required": False},
    {"type": "map", "key-id": 2, "key": "int", "value-id": 3, "value": "int", "value-required": False},
]
TRANSFORMS = ["identity", "year", "month", "day", "hour", "bucket[16]", "truncate[4]", "void"]
CASES: list[tuple[str, Any, bool]] = [
    *(
        (t, str(kind), t == "void" or parse_transform(t).can_transform(kind))
        for t in TRANSFORMS
        for kind in NAMED
    ),
    *((t, kind, t == "void") for t in TRANSFORMS for kind in [*OTHER, *NESTED]),
]


def schema(kind: Any) -> dict[str, Any]:
    fields = [{"id": 1, "name": "v", "type": kind, "required": False}]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def table(kind: Any, **more: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"schema": schema(kind), "spec": None, "order": None, **more}
    return table_metadata.new_table(
        **arguments,
        properties={"format-version": "3"},
        location=f"s3://tarn/warehouse/ns/t-{UUID}",
        table_uuid=UUID,
        now_ms=NOW_MS,
    )


def commit(meta: dict[str, Any], *updates: dict[str, Any]) -> Any:
    return table_metadata.commit(
        meta, list(updates), now_ms=NOW_MS + 1, previous_location="s3://x/00001-a.metadata.json"
    )


@pytest.mark.parametrize(("transform", "kind", "allowed"), CASES)
def test_each_transform_takes_the_types_of_the_specification(
    transform: str, kind: Any, allowed: bool
) -> None:
    assert fits(transform, kind) is allowed
    partition = {"source-id": 1, "name": "p", "transform": transform}
    sort = {"source-id": 1, "transform": transform, "direction": "asc", "null-order": "nulls-first"}
    spec, order = {"fields": [partition]}, {"order-id": 1, "fields": [sort]}
    meta = table(kind)

    def tries() -> list[Any]:
        return [
            lambda: table(kind, spec=spec),
            lambda: table(kind, order=order),
            lambda: commit(meta, {"action": "add-spec", "spec": spec}),
            lambda: commit(meta, {"action": "add-sort-order", "sort-order": order}),
        ]

    for attempt in tries():
        if allowed:
            assert attempt() is not None
            continue
        with pytest.raises(InvalidError, match="Invalid source type") as caught:
            attempt()
        assert f"{transform} of v" in caught.value.message
        assert f"takes {types_for(transform)}; for " in caught.value.message
        assert caught.value.message.endswith(fitting(kind))


def test_a_column_cannot_become_of_a_type_that_its_partition_does_not_take() -> None:
    meta = table("timestamp", spec={"fields": [{"source-id": 1, "name": "p", "transform": "day"}]})
    use = {"action": "set-current-schema", "schema-id": -1}
    with pytest.raises(
        InvalidError, match=r"Invalid source type string for transform: day of v in partition field p"
    ):
        commit(meta, {"action": "add-schema", "schema": schema("string"), "last-column-id": 1}, use)


def test_what_fits_is_named() -> None:
    assert transforms_for("string") == ["identity", "truncate", "bucket"]
    assert transforms_for("date") == ["identity", "year", "month", "day", "bucket"]
    assert transforms_for("boolean") == ["identity"]
    assert fitting("string") == "use identity, truncate or bucket instead"
    assert fitting("boolean") == "use identity instead"
    assert fitting("variant").endswith("leave it out")
