"""Rows that somebody sent to a table on purpose: a field without a column is an error, at any depth."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tarn.core.row_parser import NAMES_SHOWN_MAX, RowParser
from tarn.core.spec import FieldSpec

FIELDS = (
    FieldSpec(name="id", type="long"),
    FieldSpec(name="place", type="struct<city: string, at: struct<lat: double>>"),
    FieldSpec(name="items", type="list<struct<sku: string>>"),
    FieldSpec(name="prices", type="map<string, struct<net: double>>"),
    FieldSpec(name="tags", type="map<string, string>"),
)
GOOD: dict[str, Any] = {
    "id": 1,
    "place": {"city": "Ulm", "at": {"lat": 48.4}},
    "items": [{"sku": "a"}, {"sku": "b"}],
    "prices": {"a": {"net": 1.5}},
    "tags": {"any": "key"},
}
WRONG: dict[str, dict[str, Any]] = {
    "ID": {"ID": 2},
    "town": {"place": {"town": "Ulm"}},
    "lon": {"place": {"at": {"lat": 1.0, "lon": 2.0}}},
    "SKU": {"items": [{"sku": "a"}, {"SKU": "b"}]},
    "gross": {"prices": {"a": {"gross": 2.0}}},
}
PRICES = pa.map_(pa.string(), pa.struct([("net", pa.float64())]))
ARROW: dict[str, tuple[dict[str, Any], pa.Schema | None]] = {
    "ID": ({"ID": [2]}, None),
    "town": ({"place": [{"town": "Ulm"}]}, None),
    "lon": ({"place": [{"city": "x", "at": {"lat": 1.0, "lon": 2.0}}]}, None),
    "SKU": ({"items": [[{"SKU": "b"}]]}, None),
    "gross": (
        {"prices": [[("a", {"gross": 2.0})]]},
        pa.schema([("prices", pa.map_(pa.string(), pa.struct([("gross", pa.float64())])))]),
    ),
}


def stream(columns: dict[str, Any], schema: pa.Schema | None = None) -> bytes:
    table = pa.table(columns, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def test_rows_of_json_and_arrow_are_side_by_side_and_in_order() -> None:
    arrow = stream(
        {"id": [2], "prices": [[("a", {"net": 2.5})]]}, pa.schema([("id", "int64"), ("prices", PRICES)])
    )
    found = RowParser(FIELDS).parse([json.dumps(GOOD).encode(), arrow, b'{"id": 3}', arrow])
    assert found.bad == {}
    rows = dict(zip(found.index, found.columns[0].to_pylist(), strict=True))
    assert rows == {0: 1, 1: 2, 2: 3, 3: 2}
    prices = dict(zip(found.index, found.columns[3].to_pylist(), strict=True))
    assert prices[0] == [("a", {"net": 1.5})]
    assert prices[1] == prices[3] == [("a", {"net": 2.5})]


@pytest.mark.parametrize("name", WRONG)
def test_a_field_without_a_column_is_named_at_any_depth(name: str) -> None:
    good = json.dumps(GOOD).encode()
    found = RowParser(FIELDS).parse([good, json.dumps({**GOOD, **WRONG[name]}).encode(), good])
    assert sorted(found.index) == [0, 2], "its neighbours are rows"
    assert found.bad.keys() == {1}
    assert f"`{name}`" in found.bad[1]
    assert "the columns are id, place, items, prices, tags" in found.bad[1]


@pytest.mark.parametrize("name", ARROW)
def test_a_field_of_arrow_without_a_column_is_named_at_any_depth(name: str) -> None:
    columns, schema = ARROW[name]
    found = RowParser(FIELDS).parse([b'{"id": 1}', stream(columns, schema)])
    assert (list(found.index), found.bad.keys()) == ([0], {1})
    assert f"`{name}`" in found.bad[1]


WRAPPED: dict[str, Callable[[pa.Array], pa.Array]] = {
    "dictionary": lambda values: pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), values),
    "run ends": lambda values: pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), values),
    "extension": lambda values: pa.ExtensionArray.from_storage(pa.opaque(values.type, "t", "v"), values),
    "two": lambda values: WRAPPED["dictionary"](WRAPPED["extension"](values)),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_field_without_a_column_is_named_in_every_encoding(wrapped: str) -> None:
    wrap, city = WRAPPED[wrapped], {"city": "Ulm"}
    good = {"place": wrap(pa.array([city])), "items": wrap(pa.array([[{"sku": "a"}]]))}
    items = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), wrap(pa.array([{"sku": "a", "SKU": "b"}])))
    wrong = {
        "town": {"place": wrap(pa.array([{**city, "town": "Ulm"}]))},
        "lon": {"place": wrap(pa.array([{**city, "at": {"lat": 1.0, "lon": 2.0}}]))},
        "SKU": {"items": items},
        "Sku": {"items": wrap(pa.array([[{"sku": "a", "Sku": "b"}]]))},
    }
    found = RowParser(FIELDS).parse([stream(good), *map(stream, wrong.values())])
    assert list(found.index) == [0]
    assert [column.to_pylist() for column in found.columns[1:3]] == [[{**city, "at": None}], [[{"sku": "a"}]]]
    for number, name in enumerate(wrong, start=1):
        assert f"`{name}`" in found.bad[number]


def test_what_is_no_object_keeps_the_reason_of_the_parser() -> None:
    found = RowParser(FIELDS).parse([b"7", b"{", b'{"id": "x"}', b'{"id": 4}'])
    assert list(found.index) == [3]
    assert found.bad.keys() == {0, 1, 2}
    assert not any("unknown field" in reason for reason in found.bad.values())


def test_a_reason_names_a_dozen_columns_and_counts_the_others() -> None:
    fields = [FieldSpec(name=f"c{n}", type="long") for n in range(NAMES_SHOWN_MAX + 3)]
    found = RowParser(fields).parse([b'{"x": 1}'])
    assert found.bad[0].endswith("c10, c11 and 3 more")
