"""Data files follow the table: sort order, Bloom filters, codec and target size; statistics are complete."""

from __future__ import annotations

import io
import math
import random
import struct
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarn.adapters.files import encode_rows
from tarn.adapters.parquet_options import options_of
from tarn.adapters.sort_order import in_order
from tarn.adapters.statistics import Statistics
from tarn.core import dead_letter
from tarn.core.table_catalog import TableName
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_evolution import send, spec
from tests.support.lake import Lake

TABLE = TableName(("bronze",), "orders")
ID, NOTE = "{name: id, type: long, required: true}", "{name: note, type: string}"
SCORE = "{name: score, type: double}"


def update(lake: Lake, *updates: dict[str, Any], table: TableName = TABLE) -> None:
    lake.local.catalog.tables.commit(lake.local._slot(table), [], list(updates))


def sort_by(lake: Lake, *fields: tuple[str, str, str, str]) -> None:
    """Give the table a sort order of (column, transform, direction, null order)."""
    schema = lake.table().metadata["schemas"][-1]["fields"]
    ids = {field["name"]: field["id"] for field in schema}
    parts = [
        {"source-id": ids[name], "transform": how, "direction": way, "null-order": nulls}
        for name, how, way, nulls in fields
    ]
    order = {"order-id": 1 + len(lake.table().metadata["sort-orders"]), "fields": parts}
    update(
        lake,
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    )


def data(lake: Lake, path: str) -> bytes:
    found = lake.store.get(urlparse(path).path.lstrip("/"))
    assert found is not None
    return found.data


def files(lake: Lake) -> list[tuple[Any, pa.Table]]:
    """The manifest entries and the rows of the table's files, in the order in which they were added."""
    entries = sorted(lake.files(), key=lambda entry: entry.sequence_number or 0)
    return [
        (entry.data_file, pq.read_table(io.BytesIO(data(lake, entry.data_file.file_path))))
        for entry in entries
    ]


def test_rows_of_a_file_are_in_the_sort_order_of_the_table_and_the_manifest_says_so() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    columns = (ID, NOTE, "{name: score, type: float}")
    made = spec(*columns)
    send(topic, {"id": 2}, {"id": 1})
    lake.work(lake.ingestor(made), turns=30)
    sort_by(lake, ("note", "truncate[1]", "asc", "nulls-last"), ("id", "identity", "desc", "nulls-first"))
    order_id = lake.table().metadata["default-sort-order-id"]
    rows = [("b2", 1), ("a9", 2), (None, 3), ("a1", 4), ("b1", 5)]
    send(topic, *({"id": n} if note is None else {"id": n, "note": note} for note, n in rows))
    lake.work(lake.ingestor(made), turns=30)
    (before, unsorted), (after, ordered) = files(lake)
    assert (before.sort_order_id, unsorted["id"].to_pylist()) == (0, [2, 1])
    assert (after.sort_order_id, ordered["id"].to_pylist()) == (order_id, [4, 2, 5, 1, 3])
    assert [row["offset"] for row in ordered["_tarn"].to_pylist()] == [5, 3, 6, 2, 4]


@pytest.mark.parametrize("way", ["asc", "desc"])
@pytest.mark.parametrize("nulls", ["nulls-first", "nulls-last"])
def test_nan_is_above_all_numbers_and_null_where_the_order_says(way: str, nulls: str) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor(spec(ID, SCORE))
    lake.work(ingestor, turns=10)
    sort_by(lake, ("score", "identity", way, nulls))
    writer: Any = lake.ingestor(spec(ID, SCORE)).files.writer(lake.table())
    values = [1.0, None, math.nan, -math.inf, math.inf]
    rows = pa.table({"id": range(5), "score": values})
    found, _ = in_order(rows, writer._layout)
    order = [3, 0, 4, 2] if way == "asc" else [2, 4, 0, 3]
    assert found["id"].to_pylist() == ([1, *order] if nulls == "nulls-first" else [*order, 1])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("boolean", [True, False]),
        ("uuid", [b"2" * 16, b"1" * 16]),
        ("decimal(9, 2)", [2, 1]),
        ("binary", [b"b", b"a"]),
        ("date", [2, 1]),
        ("timestamptz", [2, 1]),
    ],
)
def test_every_type_can_be_sorted(kind: str, values: list[Any]) -> None:
    lake = Lake(Topic("orders", 1))
    made = spec(ID, f"{{name: v, type: '{kind}'}}")
    lake.work(lake.ingestor(made), turns=10)
    sort_by(lake, ("v", "identity", "asc", "nulls-first"))
    writer: Any = lake.ingestor(made).files.writer(lake.table())
    column = pa.array(values, writer._layout.arrow.field("v").type)
    found, order_id = in_order(pa.table({"id": [0, 1], "v": column}), writer._layout)
    assert (found["id"].to_pylist(), order_id > 0) == ([1, 0], True)


def test_a_sort_order_by_what_is_not_known_here_is_not_claimed() -> None:
    lake = Lake(Topic("orders", 1))
    lake.work(lake.ingestor(spec(ID, NOTE)), turns=10)
    sort_by(lake, ("id", "identity", "desc", "nulls-last"))
    metadata = lake.table().metadata
    metadata["sort-orders"][-1]["fields"][0]["transform"] = "zorder"
    state = type(lake.table())(metadata)
    writer: Any = lake.ingestor(spec(ID, NOTE)).files.writer(state)
    rows = pa.table({"id": [1, 2], "note": ["a", "b"]})
    assert in_order(rows, writer._layout)[0]["id"].to_pylist() == [1, 2]
    assert in_order(rows, writer._layout)[1] == 0


def test_bloom_filters_and_codec_are_those_that_the_table_asks_for(tmp_path: Path) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    place = "{name: place, type: 'struct<city: string, zip: string>'}"
    send(topic, *({"id": n, "note": f"n{n}", "place": {"city": f"c{n}"}} for n in range(100)))
    lake.work(lake.ingestor(spec(ID, NOTE, place)), turns=10)
    lake.work(lake.ingestor(spec(ID, NOTE, place)), turns=3)
    wanted = {
        "write.parquet.bloom-filter-enabled.column.note": "true",
        "write.parquet.bloom-filter-enabled.column.place.city": "true",
        "write.parquet.bloom-filter-enabled.column.gone": "true",
        "write.parquet.bloom-filter-fpp.column.note": "0.001",
        "write.parquet.compression-codec": "snappy",
    }
    ingestor = lake.ingestor(spec(ID, NOTE, place))
    update(lake, {"action": "set-properties", "updates": wanted})
    send(topic, *({"id": n, "note": f"n{n}", "place": {"city": f"c{n}"}} for n in range(100, 200)))
    lake.work(ingestor, turns=20)
    entries = files(lake)
    before, after = tmp_path / "before.parquet", tmp_path / "after.parquet"
    before.write_bytes(data(lake, entries[0][0].file_path))
    after.write_bytes(data(lake, entries[-1][0].file_path))
    assert {path for path, offset, codec in filters(before) if offset} == set()
    found = filters(after)
    assert {path for path, offset, codec in found if offset} == {"note", "place, city"}
    assert {codec for _, _, codec in found} == {"SNAPPY"}
    probe = "SELECT bool_or(NOT bloom_filter_excludes) FROM parquet_bloom_probe(?, 'note', ?)"
    inside = entries[-1][1]["note"][0].as_py()
    assert duckdb.execute(probe, [str(after), inside]).fetchone() == (True,)
    assert duckdb.execute(probe, [str(after), "nowhere"]).fetchone() == (False,)


def filters(path: Path) -> list[tuple[str, int | None, str]]:
    return duckdb.execute(
        "SELECT path_in_schema, bloom_filter_offset, compression FROM parquet_metadata(?)", [str(path)]
    ).fetchall()


def test_rows_beyond_the_target_size_are_several_files_with_ranges_of_the_sort_order() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    made = spec(ID, NOTE)
    made = made.model_copy(
        update={
            "spec": made.spec.model_copy(
                update={"batching": made.spec.batching.model_copy(update={"max_records": 5_000})}
            )
        }
    )
    lake.work(lake.ingestor(made), turns=10)
    sort_by(lake, ("id", "identity", "asc", "nulls-last"))
    update(lake, {"action": "set-properties", "updates": {"write.target-file-size-bytes": "65536"}})
    random.seed(7)
    send(topic, *({"id": n * 7919 % 3_000, "note": f"{random.getrandbits(800):x}"} for n in range(3_000)))
    lake.work(lake.ingestor(made), turns=30)
    found = files(lake)
    assert len(found) > 3
    assert all(entry.file_size_in_bytes < 80_000 for entry, _ in found)
    ends = sorted((min(rows["id"].to_pylist()), max(rows["id"].to_pylist())) for _, rows in found)
    assert all(high < low for (_, high), (low, _) in pairwise(ends))
    assert sorted(row["id"] for row in lake.rows()) == list(range(3_000))
    lake.history_is_a_chain()


def test_the_bad_records_of_a_batch_are_one_file_whatever_the_target_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a batch of many has more files than a commit may list, and is read again without end."""
    monkeypatch.setattr(dead_letter, "PENDING_FILES_MAX", 2)
    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(), turns=10)
    letters = TableName(("ops",), "dead_letters")
    wanted = {"write.target-file-size-bytes": "65536"}
    update(lake, {"action": "set-properties", "updates": wanted}, table=letters)
    random.seed(7)
    topic.send(0, *(f"{random.getrandbits(400_000):x}".encode() for _ in range(8)))
    lake.work(lake.ingestor(), turns=30)
    assert len(lake.rows("ops.dead_letters")) == 8
    assert len(lake.files("ops.dead_letters")) == 1


def test_statistics_count_values_nulls_and_nan() -> None:
    lake = Lake(Topic("orders", 1))
    lake.work(lake.ingestor(spec(ID, SCORE)), turns=10)
    writer: Any = lake.ingestor(spec(ID, SCORE)).files.writer(lake.table())
    layout = writer._layout
    rows = pa.table(
        {
            "id": [1, 2, 3, 4],
            "score": [1.5, None, math.nan, -2.0],
            "_tarn": pa.nulls(4, layout.arrow.field("_tarn").type),
        }
    )
    (file,) = encode_rows(layout, "s3://tarn/x", rows, new_name=lambda: "n")
    stats, score = file.file.statistics, 2
    counts = [stats[name][score] for name in ("value_counts", "null_value_counts", "nan_value_counts")]
    assert counts == [4, 1, 1]
    ends = stats["lower_bounds"][score] + stats["upper_bounds"][score]
    assert struct.unpack("<2d", ends) == (-2.0, 1.5)


@pytest.mark.parametrize(
    ("chunks", "bounded"),
    [
        ([["00", "7f"]], True),
        ([["80", "ff"], [None]], True),
        ([["01", "81"]], False),
        ([["01", "02"], ["81", "82"]], False),
        ([["02" + 7 * "00" + "7f", "02" + 7 * "00" + "80"]], False),
        ([[None]], False),
    ],
)
def test_uuids_have_bounds_only_if_java_compares_them_as_others_do(
    chunks: list[list[str | None]], bounded: bool
) -> None:
    """Iceberg's Java library, by which Spark and Trino choose files, takes a UUID for two signed numbers."""
    lake = Lake(Topic("orders", 1))
    columns = (ID, "{name: u, type: uuid}", "{name: s, type: 'struct<u: uuid, n: long>'}")
    lake.work(lake.ingestor(spec(*columns)), turns=10)
    writer: Any = lake.ingestor(spec(*columns)).files.writer(lake.table())
    layout, statistics = writer._layout, Statistics()
    rows: list[pa.Table] = []
    for chunk in chunks:
        values = [None if text is None else bytes.fromhex(text.ljust(32, "0")) for text in chunk]
        part = pa.table(
            {
                "id": pa.array(range(len(values)), pa.int64()),
                "u": pa.array(values, pa.binary(16)),
                "s": pa.array([{"u": value, "n": 1} for value in values], layout.arrow.field("s").type),
                "_tarn": pa.nulls(len(values), layout.arrow.field("_tarn").type),
            }
        )
        rows.append(part.cast(layout.arrow))
        statistics.add(rows[-1])
    (file,) = encode_rows(layout, "s3://tarn/x", pa.concat_tables(rows), new_name=lambda: "n")
    footer = pq.ParquetFile(io.BytesIO(file.data)).metadata
    known = [v for row in rows for v in row["u"].to_pylist() if v is not None]
    inner = next(f for f in layout.schema.find_type("s").fields if f.name == "u").field_id
    for found in (file.file.statistics, statistics.of(footer)):
        for number in (2, inner):
            ends = [found[name].get(number) for name in ("lower_bounds", "upper_bounds")]
            assert ends == ([min(known), max(known)] if bounded else [None, None])
            assert found["value_counts"][number] == sum(map(len, rows))
    group = footer.row_group(0)
    stated = {group.column(n).path_in_schema for n in range(footer.num_columns) if group.column(n).statistics}
    assert stated == {"id", "s.n", *(f"_tarn.{part}" for part in ("source", "partition", "offset", "time"))}


def test_bytes_of_uuids_are_annotated_in_the_file_and_merged_with_those_of_former_releases() -> None:
    """Java's readers that go by the file, and DuckDB, take other ones for plain bytes."""
    lake = Lake(Topic("orders", 1))
    nested = "{name: s, type: 'struct<u: uuid, l: list<uuid>, m: map<string, uuid>>'}"
    columns = (ID, "{name: u, type: uuid}", nested)
    lake.work(lake.ingestor(spec(*columns)), turns=10)
    writer: Any = lake.ingestor(spec(*columns)).files.writer(lake.table())
    arrow = writer._layout.arrow
    one, two = b"\x01" * 16, b"\xf2" * 16
    values = [
        {"id": 1, "u": one, "s": {"u": two, "l": [one, None], "m": [("k", two)]}, "_tarn": None},
        {"id": 2, "u": None, "s": {"u": None, "l": None, "m": []}, "_tarn": None},
        {"id": 3, "u": two, "s": None, "_tarn": None},
    ]
    rows = pa.Table.from_pylist(values, schema=arrow)
    (file,) = writer.encode(rows)
    found = pq.ParquetFile(io.BytesIO(file.data)).schema
    kinds = {found.column(n).path: found.column(n).logical_type.type for n in range(len(found))}
    places = ("u", "s.u", "s.l.list.element", "s.m.key_value.value")
    assert [path for path, kind in kinds.items() if kind == "UUID"] == list(places)
    former = io.BytesIO()
    pq.write_table(rows, former, store_schema=False)
    old = replace(file.file, path=f"{file.file.path}.old")
    for path, content in ((file.file.path, file.data), (old.path, former.getvalue())):
        lake.objects.write_new(path, content)
    (merged,) = writer.merge((old, file.file))
    again = pq.ParquetFile(io.BytesIO(merged.data))
    assert again.schema.equals(found)
    assert again.read().cast(arrow).to_pylist() == rows.to_pylist() * 2


@pytest.mark.parametrize(
    ("properties", "codec", "level", "target"),
    [
        ({}, "zstd", 1, 512 * 1024 * 1024),
        (
            {"write.parquet.compression-codec": "GZIP", "write.parquet.compression-level": "9"},
            "gzip",
            9,
            None,
        ),
        (
            {"write.parquet.compression-codec": "gzip", "write.parquet.compression-level": "12"},
            "gzip",
            None,
            None,
        ),
        (
            {"write.parquet.compression-codec": "brotli", "write.parquet.compression-level": "12"},
            "brotli",
            None,
            None,
        ),
        ({"write.parquet.compression-codec": "nope"}, "zstd", 1, None),
        ({"write.parquet.compression-codec": "uncompressed"}, "none", None, None),
        ({"write.target-file-size-bytes": "1"}, "zstd", 1, 65_536),
        ({"write.target-file-size-bytes": "many"}, "zstd", 1, 512 * 1024 * 1024),
    ],
)
def test_options_that_are_not_understood_are_the_defaults(
    properties: dict[str, str], codec: str, level: int | None, target: int | None
) -> None:
    found = options_of(properties, pa.schema([("a", pa.string())]))
    assert (found.codec, found.level) == (codec, level)
    assert target is None or found.target_bytes == target


def test_a_bloom_filter_has_a_limit_and_none_is_of_truth_values() -> None:
    enabled = {
        f"write.parquet.bloom-filter-enabled.column.{name}": "true" for name in ("a", "b", "l.element")
    }
    columns = pa.schema([("a", pa.string()), ("b", pa.bool_()), ("l", pa.list_(pa.string()))])
    found = options_of({**enabled, "write.parquet.bloom-filter-fpp.column.a": "7"}, columns)
    assert found.bloom_filters(10) == {
        "a": {"ndv": 10, "fpp": 0.01},
        "l.list.element": {"ndv": 10, "fpp": 0.01},
    }
    limited = found.bloom_filters(10**9)
    assert limited is not None
    assert 0.99 * 2**20 < filter_bytes(limited["a"]) <= 2**20
    smaller = options_of({**enabled, "write.parquet.bloom-filter-max-bytes": "4096"}, columns)
    limited = smaller.bloom_filters(10**9)
    assert limited is not None
    assert 0.99 * 4096 < filter_bytes(limited["a"]) <= 4096


@pytest.mark.parametrize("share", ["0.9999999999999999", "1e-40", "1e-60", "5e-324"])
def test_a_bloom_filter_has_that_limit_whatever_share_is_asked_for(share: str) -> None:
    properties = {
        "write.parquet.bloom-filter-enabled.column.a": "true",
        "write.parquet.bloom-filter-fpp.column.a": share,
        "write.parquet.bloom-filter-max-bytes": "4096",
    }
    found = options_of(properties, pa.schema([("a", pa.string())]))
    for rows in (1, 10**9):
        limited = found.bloom_filters(rows)
        assert limited is not None
        assert filter_bytes(limited["a"]) <= 4096.001


def filter_bytes(wanted: dict[str, Any]) -> float:
    """The size of a split-block filter: Parquet specification, "Bloom Filter"."""
    return -float(wanted["ndv"]) / math.log(1 - float(wanted["fpp"]) ** (1 / 8))


def test_a_bloom_filter_is_of_the_column_that_the_property_names(tmp_path: Path) -> None:
    """The path of a nested column in Parquet is longer than its path in the table."""
    columns = pa.schema(
        [
            ("m", pa.map_(pa.string(), pa.string())),
            ("l", pa.list_(pa.string())),
            ("s", pa.struct({"a": pa.string()})),
        ]
    )
    names = ("m.key", "m.value", "l.element", "s.a")
    enabled = {f"write.parquet.bloom-filter-enabled.column.{name}": "true" for name in names}
    found = options_of(enabled, columns).bloom_filters(1)
    file = tmp_path / "nested.parquet"
    row = {"m": [("k", "v")], "l": ["e"], "s": {"a": "b"}}
    pq.write_table(pa.Table.from_pylist([row], columns), file, bloom_filter_options=found)
    leaves = {"m, key_value, key", "m, key_value, value", "l, list, element", "s, a"}
    assert {path for path, offset, _ in filters(file) if offset} == leaves


def test_a_file_has_no_dictionary_of_values_that_never_repeat() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, *({"id": n, "note": f"note {n % 5}"} for n in range(10_000)))
    made = spec(ID, NOTE)
    batching = made.spec.batching.model_copy(update={"max_records": 20_000})
    made = made.model_copy(update={"spec": made.spec.model_copy(update={"batching": batching})})
    lake.work(lake.ingestor(made), turns=30)
    entry = max(lake.files(), key=lambda one: one.data_file.record_count).data_file
    group = pq.ParquetFile(io.BytesIO(data(lake, entry.file_path))).metadata.row_group(0)
    found = [group.column(at) for at in range(group.num_columns)]
    assert {c.path_in_schema for c in found if c.has_dictionary_page} == {
        "note",
        "_tarn.source",
        "_tarn.partition",
    }
    (rows,) = [table for one, table in files(lake) if one.file_path == entry.file_path]
    assert rows.column("id").to_pylist() == list(range(10_000))
