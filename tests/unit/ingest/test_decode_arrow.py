"""Messages in Arrow: a row or a bad record each, whatever the bytes are, and exact values."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.core import convert
from tarn.core.arrow_parser import ArrowParser
from tarn.core.decode import Decoded, Decoder
from tarn.core.spec import FieldSpec, MessageFormat
from tarn.core.typed_values import convert_typed
from tests.support.messages import arrow
from tests.unit.ingest.test_decode import batch, every_type

FORMAT = MessageFormat(format="arrow")


def decode(values: list[bytes | None], *fields: FieldSpec, size: int = 100_000) -> Decoded:
    decoder = Decoder(fields, source="t", trace=True, record_bytes_max=size, messages=FORMAT)
    return decoder.decode(batch(values))


def one(kind: str, array: pa.Array, **more: Any) -> tuple[list[Any], dict[int, str]]:
    """The values of a column of one type, one message each, and the bad ones."""
    messages = [arrow(pa.record_batch([array.slice(i, 1)], names=["v"])) for i in range(len(array))]
    found = decode([*messages], FieldSpec(name="v", type=kind, **more))
    return found.rows["v"].to_pylist(), found.bad


def test_every_type_is_read() -> None:
    at = datetime(2026, 11, 21, 8, 0, 0, 500_000, tzinfo=UTC)
    row = {
        **{"b": True, "i": 7, "l": -(2**63), "f": 0.5, "d": 0.1, "s": "ä", "day": date(2026, 11, 21)},
        **{
            "at": at,
            "local": at.replace(tzinfo=None),
            "price": Decimal("12.50"),
            "u": b"0" * 16,
            "raw": b"\0",
        },
        **{"legs": [{"n": 1, "x": "y"}, None], "m": [("k", 1)]},
    }
    schema = pa.schema(
        [
            *(
                ("b", pa.bool_()),
                ("i", pa.int8()),
                ("l", pa.int64()),
                ("f", pa.float16()),
                ("d", pa.float64()),
            ),
            *(("s", pa.large_string()), ("day", pa.date32()), ("at", pa.timestamp("ms", "Europe/Berlin"))),
            *(("local", pa.timestamp("us")), ("price", pa.decimal256(40, 3)), ("u", pa.binary(16))),
            *(
                ("raw", pa.large_binary()),
                ("legs", pa.list_(pa.struct([("n", pa.int16()), ("x", pa.string())]))),
            ),
            ("m", pa.map_(pa.string(), pa.int32())),
        ]
    )
    fields = every_type(map_of="long")
    found = decode([arrow(row, schema)], *fields)
    assert found.bad == {}
    wanted = row | {"legs": [{"n": 1}, None]}
    assert {name: found.rows[name][0].as_py() for name in row} == wanted
    assert found.rows["_tarn"].to_pylist()[0]["offset"] == 100


@pytest.mark.parametrize(
    ("kind", "array", "rows", "reason"),
    [
        ("int", pa.array([2**31 - 1, 2**31, -(2**31)], pa.int64()), [2**31 - 1, -(2**31)], "2147483648"),
        ("long", pa.array([2**63 - 1, 2**63], pa.uint64()), [2**63 - 1], "9223372036854775808"),
        ("double", pa.array([2**53, 2**53 + 1], pa.int64()), [2.0**53], "9007199254740993"),
        (
            "double",
            pa.array([2**60, 2**60 + 1, 2**63 - 1], pa.int64()),
            [2.0**60],
            "is no double: a double does",
        ),
        ("double", pa.array([2**63, 2**64 - 1, None], pa.uint64()), [2.0**63, None], "18446744073709551615"),
        ("float", pa.array([2**24, 2**24 + 1, -(2**24) - 2]), [2.0**24, -(2.0**24) - 2], "v: 16777217 is no"),
        ("float", pa.array([0.1, None, 2.0**62 + 2.0**38]), [pytest.approx(0.1), None, 2.0**62], ""),
        ("float", pa.array([2**63 - 1, -(2**63), 2**62 + 2**38]), [-(2.0**63)], "is no float: a float does"),
        ("list<float>", pa.array([[1, 2**24 + 1], [2**25]]), [[2.0**25]], "v[]: 16777217 is no float"),
        ("float", pa.array([3.4e38, 3.5e38, float("inf")]), [pytest.approx(3.4e38), float("inf")], "largest"),
        (
            "decimal(4, 2)",
            pa.array([Decimal("1.230"), Decimal("1.234")], pa.decimal128(9, 3)),
            [Decimal("1.23")],
            "1.234",
        ),
        ("decimal(4, 2)", pa.array([99, 100]), [Decimal("99.00")], "100"),
        ("decimal(20, 0)", pa.array([2**64 - 1], pa.uint64()), [Decimal(2**64 - 1)], ""),
        ("decimal(4, 2)", pa.array(["1.23", "1.234"]), [Decimal("1.23")], "1.234"),
        ("date", pa.array([0, -(10**6)], pa.date32()), [date(1970, 1, 1)], "years 1 to 9999"),
        ("date", pa.array(["2026-11-21", "2026-11-31"]), [date(2026, 11, 21)], "2026-11-31"),
        (
            "date",
            pa.array([86_400_000, 10**16 * 864], pa.int64()).view(pa.date64()),
            [date(1970, 1, 2)],
            "v: ",
        ),
        ("timestamp", pa.array([0, 2**62], pa.timestamp("s")), [datetime(1970, 1, 1)], "v: "),
        ("timestamp", pa.array([-62_135_596_800_001], pa.timestamp("ms")), [], "years 1 to 9999"),
        ("timestamp", pa.array([0], pa.timestamp("ms", "UTC")), [], "expected timestamp, found timestamp"),
        ("timestamptz", pa.array([0], pa.timestamp("ms")), [], "expected timestamptz"),
        ("timestamptz", pa.array([0], pa.int64()), [], "encoding"),
        ("uuid", pa.array([b"1" * 15], pa.binary()), [], "15 bytes"),
        ("binary", pa.array(["AAAA"]), [], "expected binary, found string"),
        ("string", pa.array([b"a"], pa.binary()), [], "expected string, found binary"),
        ("string", pa.array([1]), [], "expected string, found int64"),
        ("long", pa.array([1.0]), [], "expected long, found double"),
        ("boolean", pa.array([1]), [], "expected boolean, found int64"),
        ("long", pa.array([True]), [], "expected long, found bool"),
        ("list<long>", pa.array([1]), [], "expected a list"),
        ("struct<a: long>", pa.array([[1]]), [], "expected a struct"),
        ("map<string, long>", pa.array([[1]]), [], "expected a map"),
        ("list<int>", pa.array([[1, 2**31], [None]], pa.list_(pa.int64())), [[None]], "v[]: 2147483648"),
        (
            "map<string, long>",
            pa.array([[("a", 1), ("a", 2)], [("a", 1)]], pa.map_(pa.string(), pa.int64())),
            [[("a", 1)]],
            "a key twice",
        ),
    ],
)
def test_values_at_the_limits_are_exact_or_bad(
    kind: str, array: pa.Array, rows: list[Any], reason: str
) -> None:
    found, bad = one(kind, array)
    assert found == rows
    assert len(bad) == len(array) - len(rows)
    assert all(reason in why for why in bad.values()), bad


def test_nanoseconds_are_cut_downwards() -> None:
    found, bad = one("timestamp", pa.array([-1, 1_999, -1_000], pa.timestamp("ns")))
    epoch = datetime(1970, 1, 1)
    assert bad == {}
    assert [(value - epoch).total_seconds() for value in found] == [-1e-6, 1e-6, -1e-6]


def test_numbers_are_times_by_their_encoding() -> None:
    found, bad = one("timestamptz", pa.array([1_000, 2**62]), encoding="epoch-millis")
    assert found == [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]
    assert list(bad) == [1]


def test_dictionaries_extensions_and_nulls_are_their_values() -> None:
    assert one("string", pa.array(["a", None]).dictionary_encode()) == (["a", None], {})
    assert one("long", pa.nulls(1)) == ([None], {})
    assert (
        one("uuid", pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"1" * 16], pa.binary(16))))[1] == {}
    )
    assert one("long", pa.RunEndEncodedArray.from_arrays([1], pa.array([5])))[0] == [5]


@pytest.mark.parametrize(
    ("kind", "values", "first"),
    [
        ("string", pa.array(["a" * 20, "b"], pa.string_view()), "a" * 20),
        ("binary", pa.array([b"a" * 20, b"b"], pa.binary_view()), b"a" * 20),
        ("uuid", pa.array(["0" * 32, "b"], pa.string_view()), bytes(16)),
        ("string", pa.array(["a", None]), "a"),
    ],
)
def test_a_dictionary_of_views_or_with_a_null_is_its_values(kind: str, values: pa.Array, first: Any) -> None:
    """Each message has a dictionary of its own, which may differ from that of the others."""
    place = pa.array([0], pa.uint32())
    more = pa.concat_arrays([pa.nulls(1).cast(values.type), values])
    columns = [
        pa.DictionaryArray.from_arrays(place, values),
        pa.DictionaryArray.from_arrays(pa.array([None], pa.uint32()), values),
        pa.DictionaryArray.from_arrays(pa.array([1], pa.uint32()), more),
    ]
    messages = [arrow(pa.record_batch([column], names=["v"])) for column in columns]
    parsed = ArrowParser([FieldSpec(name="v", type=kind)]).parse(messages)
    assert (parsed.columns[0].to_pylist(), parsed.bad) == ([first, None, first], {})


def test_nulls_of_lists_hide_what_is_below_them() -> None:
    held = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([2**40]), mask=pa.array([True]))
    assert one("list<int>", held) == ([None], {})


def test_maps_in_lists_are_read_also_behind_what_a_null_hides() -> None:
    maps = pa.array([[("hidden", 9)], [("a", 1)], None, []], pa.map_(pa.string(), pa.int32()))
    offsets = pa.array([0, 1, 4], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, maps, mask=pa.array([True, False]))
    found, bad = one("list<map<string, long>>", lists)
    assert (found, bad) == ([None, [[("a", 1)], None, []]], {})


def test_maps_that_are_not_there_need_no_offset() -> None:
    """An array of no elements may have no offsets at all, instead of one."""
    kind = pa.map_(pa.string(), pa.int32())
    entries = pa.array([], pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.int32())]))
    none = pa.Array.from_buffers(kind, 0, [None, pa.py_buffer(b"")], children=[entries])
    lists = pa.ListArray.from_arrays(pa.array([0, 0], pa.int32()), none)
    column, reasons = convert_typed(FieldSpec(name="v", type="list<map<string, long>>"), lists)
    assert (column.to_pylist(), reasons) == ([[]], {})


def test_required_values_and_paths() -> None:
    fields = (
        FieldSpec(name="id", type="long", required=True, source="a.b"),
        FieldSpec(name="kind", type="string", values=("x",)),
        FieldSpec(name="gone", type="string"),
    )
    values: list[bytes | None] = [
        arrow({"a": {"b": 1}, "kind": "x"}),
        arrow(
            {"a": {"b": None}, "kind": "x"},
            pa.schema([("a", pa.struct([("b", pa.int64())])), ("kind", pa.string())]),
        ),
        arrow({"a": 5, "kind": "x"}),
        arrow({"a": {"b": 2}, "kind": "y"}),
        arrow({"a": {"b": 3}}),
        arrow(pa.record_batch([pa.array([1]), pa.array([2])], names=["kind", "kind"])),
    ]
    found = decode(values, *fields)
    assert found.rows.drop_columns("_tarn").to_pylist() == [
        {"id": 1, "kind": "x", "gone": None},
        {"id": 3, "kind": None, "gone": None},
    ]
    assert list(found.index) == [0, 4]
    assert found.bad[1] == "id: required, but missing or null"
    assert found.bad[2] == "a: expected a struct, found int64"
    assert "none of the spec's values" in found.bad[3]
    assert list(found.bad) == [1, 2, 3, 5]
    assert "twice" in found.bad[5] or "required" in found.bad[5]


GOOD = arrow({"id": 1})
LONG_TEXT = pa.array(["a" * 20_000])
MANY_TIMES = pa.ListArray.from_arrays([0, 50], pa.DictionaryArray.from_arrays(pa.array([0] * 50), LONG_TEXT))
"""A list of one text, again and again: its dictionary holds it once."""
ID = FieldSpec(name="id", type="long", required=True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "no Arrow stream"),
        (b'{"id": 1}', "no Arrow stream"),
        (b"ARROW1\0\0", "an Arrow file"),
        (GOOD[: len(GOOD) // 2], "no Arrow stream"),
        (GOOD[:-9], "no Arrow stream"),
        (GOOD + GOOD, f"{len(GOOD)} bytes after the end"),
        (GOOD + b"x", "1 bytes after the end"),
        (arrow(pa.record_batch({"id": [1, 2]})), "an Arrow stream of 2 rows"),
        (arrow(pa.record_batch({"id": pa.array([], pa.int64())})), "an Arrow stream of 0 rows"),
        (arrow({"id": 1}, compression="zstd"), "compressed"),
        (
            arrow(pa.record_batch({"id": pa.array(["a" * 999]).dictionary_encode()}), compression="lz4"),
            "compressed",
        ),
        (arrow(pa.record_batch({"id": pa.array([[None] * 1_000_000])})), "elements"),
        (arrow(pa.record_batch({"id": MANY_TIMES})), "elements"),
        (None, "tombstone"),
    ],
)
def test_a_message_that_is_no_row_says_why_and_its_neighbours_are_rows(
    value: bytes | None, reason: str
) -> None:
    found = decode([GOOD, value, GOOD], ID)
    assert list(found.index) == [0, 2]
    assert found.rows["id"].to_pylist() == [1, 1]
    assert reason in found.bad[1]


def test_an_uncompressed_dictionary_is_read_and_a_stream_may_lack_its_end() -> None:
    dictionary = arrow(pa.record_batch({"id": pa.array(["a"]).dictionary_encode()}))
    assert decode([dictionary, GOOD[:-8]], FieldSpec(name="id", type="string")).index[0] == 0
    assert decode([GOOD[:-8]], ID).bad == {}


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_whatever_the_bytes_are_the_neighbours_are_rows(data: st.DataObject) -> None:
    schemas = [
        pa.schema([("id", pa.int64()), ("t", pa.list_(pa.string()))]),
        pa.schema([("id", pa.int32()), ("t", pa.string()), ("at", pa.timestamp("ns", "UTC"))]),
        pa.schema([("t", pa.dictionary(pa.int8(), pa.string())), ("id", pa.uint64())]),
    ]
    rows = [
        {"id": 1, "t": ["a", None], "at": 1},
        {"id": 2, "t": None},
        {"id": None, "t": None},
    ]
    good = st.tuples(st.sampled_from(schemas), st.sampled_from(rows[1:])).map(lambda p: arrow(p[1], p[0]))
    whole = good.map(lambda value: (value, True))

    def broken(value: bytes) -> st.SearchStrategy[tuple[bytes | None, bool]]:
        spot = st.integers(0, len(value) - 1)
        flipped = st.tuples(spot, st.integers(1, 255)).map(
            lambda p: value[: p[0]] + bytes([value[p[0]] ^ p[1]]) + value[p[0] + 1 :]
        )
        cut, twice = spot.map(lambda at: value[:at]), st.just(value + value)
        other = st.sampled_from([None, b"", b"{}", b"x" * 100_001])
        return st.one_of(flipped, cut, twice, other, st.binary(max_size=80)).map(lambda v: (v, False))

    drawn = data.draw(st.lists(st.one_of(whole, good.flatmap(broken)), max_size=12))
    fields = (FieldSpec(name="id", type="long"), FieldSpec(name="t", type="string"))
    found = decode([value for value, _ in drawn], *fields)
    assert sorted([*found.index, *found.bad]) == list(range(len(drawn)))
    assert [t["offset"] - 100 for t in found.rows["_tarn"].to_pylist()] == list(found.index)
    alone = {i: decode([value], *fields) for i, (value, _) in enumerate(drawn)}
    for row, i in enumerate(found.index):
        expected = alone[i].rows.drop_columns("_tarn").to_pylist()
        assert [found.rows.drop_columns("_tarn").slice(row, 1).to_pylist()[0]] == expected
    for i, (value, is_good) in enumerate(drawn):
        if is_good and b"list" not in (value or b""):
            assert i in found.index or "expected string, found list" in found.bad[i]


def test_a_time_zone_that_nobody_knows_is_a_bad_record_where_the_time_does_not_fit() -> None:
    column = pa.array([0, 2**62], pa.timestamp("s", "Nowhere/Land"))
    messages = [arrow(pa.record_batch([column.slice(i, 1)], names=["v"])) for i in range(2)]
    parsed = ArrowParser([FieldSpec(name="v", type="timestamptz")]).parse(messages)
    assert parsed.columns[0].to_pylist() == [datetime(1970, 1, 1, tzinfo=UTC)]
    assert "4611686018427387904 as timestamp[s, tz=Nowhere/Land]" in parsed.bad[1]


TAGS = [f"tag {n % 20}" for n in range(400)]


@pytest.mark.parametrize("tags", [pa.array(TAGS, pa.string_view()), pa.array(TAGS).dictionary_encode()])
def test_a_list_of_views_or_of_a_dictionary_is_its_texts(tags: pa.Array) -> None:
    held = pa.ListArray.from_arrays(pa.array([0, len(tags)], pa.int32()), tags)
    assert one("list<string>", held) == ([TAGS], {})
    inside = pa.ListArray.from_arrays(pa.array([0, 100], pa.int32()), tags.slice(100, 100))
    assert one("list<string>", inside) == ([TAGS[100:200]], {})


def test_views_that_repeat_a_text_again_and_again_are_refused() -> None:
    text = "a" * 20_000
    view = struct.pack("<i4sii", len(text), b"aaaa", 0, 0)
    buffers = [None, pa.py_buffer(view * 50), pa.py_buffer(text.encode())]
    views = pa.Array.from_buffers(pa.string_view(), 50, buffers)
    found, bad = one("list<string>", pa.ListArray.from_arrays(pa.array([0, 50], pa.int32()), views))
    assert (found, list(bad)) == ([], [0])
    assert "elements" in bad[0]


def test_dictionaries_of_lists_are_read_from_many_messages() -> None:
    arrays = [pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([[n, 2]])) for n in range(3)]
    messages = [arrow(pa.record_batch([array], names=["v"])) for array in arrays]
    parsed = ArrowParser([FieldSpec(name="v", type="list<long>")]).parse([*messages, b"x", messages[0]])
    assert parsed.columns[0].to_pylist() == [[0, 2], [1, 2], [2, 2], [0, 2]]
    assert (parsed.index, list(parsed.bad)) == ([0, 1, 2, 4], [3])


NULLS = pa.ListArray.from_arrays(pa.array([0, 10_000_000], pa.int32()), pa.nulls(10_000_000))
"""A list that takes no bytes for its elements."""
ONE_OF_NULLS = pa.DictionaryArray.from_arrays(pa.array([0]), NULLS)
TWICE_NULLS = pa.DictionaryArray.from_arrays(pa.array([0, 0]), NULLS)
RUN_OF_NULLS = pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), NULLS)


@pytest.mark.parametrize(
    ("kind", "array"),
    [
        ("list<long>", NULLS),
        ("list<long>", ONE_OF_NULLS),
        ("list<long>", RUN_OF_NULLS),
        ("struct<a: list<long>>", pa.StructArray.from_arrays([ONE_OF_NULLS], names=["a"])),
        ("list<list<long>>", pa.ListArray.from_arrays([0, 1], RUN_OF_NULLS)),
        ("list<list<long>>", pa.ListArray.from_arrays([0, 2], TWICE_NULLS)),
    ],
)
def test_a_short_message_does_not_stand_for_millions_of_elements(kind: str, array: pa.Array) -> None:
    message = arrow(pa.record_batch([array], names=["v"]))
    assert len(message) < 1_000
    found, bad = one(kind, array)
    assert (found, list(bad)) == ([], [0])
    assert "elements in" in bad[0]


def test_bad_texts_are_each_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of bad records would else take minutes: the halves of the halves were converted again."""
    calls: list[int] = []
    cast = convert._cast

    def seen(field: FieldSpec, column: pa.Array, target: pa.DataType) -> pa.Array:
        calls.append(len(column))
        return cast(field, column, target)

    monkeypatch.setattr(convert, "_cast", seen)
    values, bad = one("timestamptz", pa.array(["2026-13-45"] * 64))
    assert values == []
    assert len(bad) == 64
    assert bad[0].startswith("v: '2026-13-45' is no timestamptz: Failed to parse string")
    assert len(calls) == 2 * 64 - 1
    assert one("date", pa.array(["2026-11-21", "10000-01-01"]))[0] == [date(2026, 11, 21)]


def test_messages_whose_schemas_differ_in_metadata_only_are_converted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []
    rows = ArrowParser._rows

    def seen(self: ArrowParser, schema: pa.Schema, held: Any) -> Any:
        counts.append(len(held))
        return rows(self, schema, held)

    monkeypatch.setattr(ArrowParser, "_rows", seen)
    schema = pa.schema([("v", pa.int64())])
    sent = [arrow({"v": n}, schema.with_metadata({"number": str(n)})) for n in range(5)]
    found = decode([*sent], FieldSpec(name="v", type="long"))
    assert found.rows["v"].to_pylist() == list(range(5))
    assert counts == [5]
