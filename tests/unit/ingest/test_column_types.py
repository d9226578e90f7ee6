"""Types of columns: as a spec writes them, as a table's metadata does, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from tarn.core.column_types import (
    DEPTH_MAX,
    SCALARS,
    ColumnType,
    ListOf,
    MapOf,
    Primitive,
    Struct,
    iceberg_type,
    parse_type,
    type_text,
)

names = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,5}\Z")
primitives = st.sampled_from([*SCALARS, "decimal(9, 2)", "decimal(38, 0)"]).map(Primitive)


def nested(inner: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[ColumnType]:
    fields = st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=lambda f: f[0].lower())
    return st.one_of(
        inner.map(ListOf), inner.map(MapOf), fields.map(tuple[tuple[str, ColumnType], ...]).map(Struct)
    )


def depth(kind: ColumnType) -> int:
    if isinstance(kind, Struct):
        return 1 + max(depth(inner) for _, inner in kind.fields)
    if isinstance(kind, ListOf):
        return 1 + depth(kind.element)
    return 1 + depth(kind.value) if isinstance(kind, MapOf) else 0


types = st.recursive(primitives, nested, max_leaves=8).filter(lambda kind: depth(kind) <= DEPTH_MAX)


@pytest.mark.long
@given(kind=types)
def test_a_type_survives_its_text_and_its_metadata(kind: ColumnType) -> None:
    text = str(kind)
    assert parse_type(text) == kind
    loose = text.replace(", ", ",").replace(": ", ":").replace("<", "< ").replace(">", " >")
    assert parse_type(f" {loose} ") == kind
    ids = itertools.count(2)
    held = iceberg_type(kind, lambda: next(ids))
    assert type_text(held) == text
    schema = Schema(NestedField.model_validate({"id": 1, "name": "c", "type": held, "required": False}))
    assert schema.highest_field_id == next(ids) - 1, "ids are distinct, without gaps"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("strng", "'strng' is not a type (did you mean string?); allowed are boolean, int"),
        ("", "'' is not a type"),
        ("list", "'list' is not a type"),
        ("decimal(39, 2)", "precision is 1 to 38"),
        ("array<string>", "'array' is not a nested type (did you mean list?)"),
        ("strct<a: int>", "'strct' is not a nested type (did you mean struct?)"),
        ("list<string, int>", "a list has one type"),
        ("list<>", "'' is not a type"),
        ("map<string>", "a map has two types"),
        ("map<int, string>", "the keys are int; keys of a JSON object are string"),
        ("struct<>", "'' is not a field of a struct"),
        ("struct<a int>", "'a int' is not a field of a struct"),
        ("struct<a-b: int>", "'a-b: int' is not a field of a struct"),
        ("struct<a: int, A: long>", "a struct names A twice"),
        ("struct<a: int,>", "'' is not a field of a struct"),
        ("list<int>>", "'int>' is not a type"),
        ("list<list<int>", "'list<int' is not a type"),
        ("list<" * 9 + "int" + ">" * 9, "nested more than 8 levels deep"),
        ("struct<" + ", ".join(f"c{n}: int" for n in range(1_001)) + ">", "1001 fields, more than 1000"),
    ],
)
def test_what_is_no_type_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_type(text)
    assert reason in str(caught.value)


def test_the_greatest_depth_and_number_of_fields_are_taken() -> None:
    deep = "list<" * DEPTH_MAX + "int" + ">" * DEPTH_MAX
    wide = "struct<" + ", ".join(f"c{n}: int" for n in range(1_000)) + ">"
    assert str(parse_type(deep)) == deep
    assert str(parse_type(wide)) == wide


def test_the_fields_of_a_struct_are_numbered_before_their_parts() -> None:
    ids = itertools.count(10)
    held = iceberg_type(parse_type("struct<a: list<int>, b: map<string, long>, c: int>"), lambda: next(ids))
    assert isinstance(held, dict)
    assert [field["id"] for field in held["fields"]] == [10, 11, 12]
    assert held["fields"][0]["type"]["element-id"] == 13
    assert (held["fields"][1]["type"]["key-id"], held["fields"][1]["type"]["value-id"]) == (14, 15)
