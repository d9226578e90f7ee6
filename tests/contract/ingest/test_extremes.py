"""Whatever a value is, its record becomes a row or a dead letter and the stream goes on (I12)."""

from __future__ import annotations

import io
import json
import struct
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, PrimitiveType, TimestampNanoType, TimestamptzNanoType

from tarn.adapters import files as files_adapter
from tarn.adapters.avro_files import MemoryInput
from tarn.adapters.manifest_audit import file_entries
from tarn.adapters.manifests import Manifests, read_entries, read_list
from tarn.adapters.parquet_options import options_of
from tarn.adapters.partitions import survives_manifests
from tarn.adapters.write_schema import OptionalSpec, WriteSchema, create_request, layout_of
from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.spec import FieldSpec, IngestorSpec, PartitionRule
from tarn.core.table_catalog import TableName
from tarn.core.table_state import WrittenFile
from tarn.core.transforms import fits
from tarn.core.years import MICROS_MAX
from tarn.ingest.batch_commit import Made, decode, encode
from tarn.ingest.status import State
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.extremes import KINDS, Kind, partition_value
from tests.support.lake import BUCKET, Lake, order, spec

TABLE = TableName(("bronze",), "extremes")
RULES = ("identity(v)", "year(v)", "month(v)", "day(v)", "hour(v)", "bucket(7, v)", "truncate(10, v)")
CASES = [
    (name, rule)
    for name, kind in KINDS.items()
    for rule in ("", *RULES)
    if not rule
    or (fits(PartitionRule.parse(rule).transform, kind.type) and kind.type not in ("float", "double"))
]


class Writer:
    """A table of one column, and the path of a batch into its files, without an ingestor."""

    def __init__(self, kind: Kind, rule: str) -> None:
        self.kind = kind
        self.lake = Lake()
        field = FieldSpec(name="v", type=kind.type, encoding=kind.encoding)  # type: ignore[arg-type]
        rules = [PartitionRule.parse(rule)] if rule else []
        self.lake.local.create_namespace(TABLE.namespace)
        self.state = self.lake.local.create(TABLE, create_request([field], trace=True, partitioning=rules))
        self.layout: WriteSchema = layout_of(self.state, [field], trace=True, table=str(TABLE))
        self.writer = self.lake.context().tables.table(str(TABLE), [field], trace=True).writer(self.state)
        self.decoder = Decoder([field], source="t", trace=True, record_bytes_max=100_000)

    def make(self, values: list[bytes | None]) -> Made:
        n = len(values)
        batch = RawBatch(
            partitions=[0] * n,
            offsets=list(range(n)),
            times_ms=[0] * n,
            keys=[None] * n,
            values=values,
            ranges=(),
        )
        return encode(decode(self.decoder, batch), self.writer)

    def entries(self, made: Made) -> dict[str, Any]:
        """Manifest entries of the files as a reader sees them, by path."""
        manifests = Manifests(self.lake.objects, new_name=self.lake.new_id)
        files = self.writer.put(made.files)
        begun = manifests.begin_manifest(self.layout, "s3://tarn/t", files, snapshot_id=1)
        if begun is None:
            return {}
        begun.finish()
        manifest = begun.file
        data = self.lake.objects.read(manifest.manifest_path)
        found = read_entries(data, manifest, self.layout.spec, self.layout.schema)
        return {e.data_file.file_path: e.data_file for e in found}


def physical(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_timestamp(kind):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_decimal(kind) or kind == pa.uuid():
        return [None if v is None else unscaled(v) for v in column.to_pylist()]
    return column.to_pylist()


def unscaled(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    if not isinstance(value, Decimal):
        return value
    sign, digits, _ = value.as_tuple()
    return int("".join(map(str, digits))) * (-1 if sign else 1)


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b) if isinstance(a, float) else a == b


def check(writer: Writer, rule: str, values: list[Any]) -> int:
    """Require that every record is a right row (value, bounds, partition) or bad by its value; count both."""
    kind = writer.kind
    transform = ""
    if rule:
        parsed = PartitionRule.parse(rule)
        transform = parsed.transform + (f"[{parsed.width}]" if parsed.width else "")
    expected: dict[int, tuple[Any, Any]] = {}
    for i, value in enumerate(values):
        stored = None if value is None else kind.stored(value)
        good = value is None or stored is not None
        if good and rule:
            good, part = partition_value(transform, kind.type, stored)
        else:
            part = None
        if good:
            expected[i] = (stored, part)
    made = writer.make([json.dumps({"v": value}).encode() for value in values])
    assert sorted(made.bad) == [i for i in range(len(values)) if i not in expected], made.bad
    assert all(reason.startswith("v: ") for reason in made.bad.values()), made.bad
    assert made.rows == len(expected)
    entries = writer.entries(made)
    seen: dict[int, tuple[Any, Any]] = {}
    for encoded in made.files:
        entry = entries[encoded.file.path]
        table = pq.read_table(io.BytesIO(writer.lake.objects.read(encoded.file.path)))
        held = physical(table.column("v").combine_chunks())
        part = unscaled(entry.partition[0]) if rule else None
        for value, trace in zip(held, table.column("_tarn").to_pylist(), strict=True):
            seen[trace["offset"]] = (value, part)
        assert entry.record_count == len(held)
        check_bounds(
            kind, entry, held, next(f.field_id for f in writer.layout.schema.fields if f.name == "v")
        )
        assert all(len(level) <= 255 for level in encoded.file.path.split("/"))
    assert seen.keys() == expected.keys()
    for i, (stored, part) in expected.items():
        assert same(seen[i][0], stored), (values[i], seen[i], stored)
        assert same(seen[i][1], part), (values[i], seen[i], part)
    return len(seen) + len(made.bad)


def check_bounds(kind: Kind, entry: Any, held: list[Any], field_id: int) -> None:
    known = [v for v in held if v is not None]
    assert entry.value_counts[field_id] == len(held)
    assert entry.null_value_counts[field_id] == len(held) - len(known)
    lower, upper = entry.lower_bounds.get(field_id), entry.upper_bounds.get(field_id)
    if not known:
        assert (lower, upper) == (None, None)
        return
    if kind.type == "uuid" and any(len({v[half] < 0x80 for v in known}) == 2 for half in (0, 8)):
        assert (lower, upper) == (None, None), "Java has another order"
        return
    low, high = min(known), max(known)
    if kind.type in ("string", "binary"):
        assert lower == kind.bound(low[:16])
        assert upper == kind.bound(high) if len(high) <= 16 else upper is None or upper > kind.bound(high)
        assert upper is None or len(upper.decode() if kind.type == "string" else upper) <= 16
        return
    if isinstance(low, float):
        low, high = low if low != 0 else -0.0, high if high != 0 else 0.0
    assert (lower, upper) == (kind.bound(low), kind.bound(high))


@pytest.mark.parametrize(("name", "rule"), CASES)
def test_a_value_of_any_size_is_a_right_row_or_a_bad_record(name: str, rule: str) -> None:
    kind = KINDS[name]
    writer = Writer(kind, rule)
    assert check(writer, rule, [*kind.extremes, None]) == len(kind.extremes) + 1
    assert [check(writer, rule, [value]) for value in kind.extremes] == [1] * len(kind.extremes)

    @settings(max_examples=10, suppress_health_check=list(HealthCheck))
    @given(st.lists(kind.any | st.sampled_from(kind.extremes) | st.none(), max_size=8))
    def tried(values: list[Any]) -> None:
        assert check(writer, rule, values) == len(values)

    tried()


# -- a whole stream ----------------------------------------------------------------------------------------


class MemoryIO(FileIO):
    """pyiceberg's FileIO on a store in memory."""

    lake: Lake

    def new_input(self, location: str) -> InputFile:
        return MemoryInput(self.lake.objects.read(location))

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError

    def delete(self, location: Any) -> None:
        raise NotImplementedError


def read_by_pyiceberg(lake: Lake, name: str, monkeypatch: pytest.MonkeyPatch) -> StaticTable:
    monkeypatch.setattr(MemoryIO, "lake", lake, raising=False)
    namespace, _, table = name.rpartition(".")
    found = lake.local.catalog.tables.load(lake.local._slot(TableName(tuple(namespace.split(".")), table)))
    return StaticTable.from_metadata(found.location, {"py-io-impl": f"{__name__}.MemoryIO"})


def of_kind(kind: Kind, rule: str) -> IngestorSpec:
    body = spec().model_dump(by_alias=True)
    body["spec"]["schema"]["fields"] = (
        {"name": "id", "type": "long", "required": True},
        {"name": "v", "type": kind.type, "encoding": kind.encoding},
    )
    body["spec"]["table"]["partitioning"] = [rule] if rule else []
    return IngestorSpec.model_validate(body)


@pytest.mark.parametrize(
    ("name", "rule"),
    [(n, r) for n, r in CASES if r in ("", "day(v)", "truncate(10, v)", "identity(v)")],
)
def test_a_stream_goes_on_whatever_its_values_are(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]
    topic = Topic("orders", 1)
    for i, value in enumerate(kind.extremes):
        topic.send(0, json.dumps({"id": i, "v": value}).encode())
    topic.send(0, b'{"id": 99}')
    lake = Lake(topic)
    lake.work(lake.ingestor(of_kind(kind, rule)), turns=20)
    letters = {r["offset"] for r in lake.rows("ops.dead_letters")}
    rows = {o for _, o in lake.offsets()}
    assert not letters & rows
    assert sorted(letters | rows) == list(range(len(kind.extremes) + 1))
    status = lake.registry.get("orders")
    assert (status.state, status.lag) == (State.RUNNING, 0)

    read = read_by_pyiceberg(lake, "bronze.orders", monkeypatch).scan().to_arrow()
    found = dict(zip(read.column("id").to_pylist(), physical(read.column("v").combine_chunks()), strict=True))
    expected = {i: kind.stored(v) for i, v in enumerate(kind.extremes) if i in rows} | {99: None}
    assert found.keys() == expected.keys()
    for i, stored in expected.items():
        assert same(found[i], stored), (i, found[i], stored)


def test_a_record_time_that_no_engine_can_read_is_left_out_and_the_row_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic("orders", 1)
    micros = 1_763_712_000_000_000
    times = [micros, 2**63 - 1, -1, -(2**63), MICROS_MAX // 1_000, MICROS_MAX // 1_000 + 1, 0]
    topic.times_ms = dict(enumerate(times * 2))
    topic.send(0, *[order(i) for i in range(len(times))], *[b"junk"] * len(times))
    lake = Lake(topic)
    lake.work(lake.ingestor(), turns=20)
    kept = [None, None, None, None, "9999-12-31T23:59:59.999000+00:00", None, "1970-01-01T00:00:00+00:00"]

    def text(value: Any) -> str | None:
        return None if value is None else value.isoformat()

    rows = {r["_tarn"]["offset"]: text(r["_tarn"]["time"]) for r in lake.rows()}
    assert [rows[o] for o in range(len(times))] == kept
    letters = {r["offset"]: text(r["time"]) for r in lake.rows("ops.dead_letters")}
    assert [letters[o] for o in range(len(times), 2 * len(times))] == kept
    assert read_by_pyiceberg(lake, "bronze.orders", monkeypatch).scan().to_arrow().num_rows == len(times)


# -- unforeseen errors -------------------------------------------------------------------------------------


def breaking_encoder(monkeypatch: pytest.MonkeyPatch, breaks: Any) -> list[int]:
    """An encoder that fails on some rows as a library would; returns the batch sizes it was called with."""
    asked: list[int] = []
    plain = files_adapter._encode

    def failing(rows: pa.Table, layout: WriteSchema) -> Any:
        asked.append(rows.num_rows)
        breaks(rows)
        return plain(rows, layout)

    monkeypatch.setattr(files_adapter, "_encode", failing)
    return asked


def test_a_row_that_breaks_the_writer_is_a_dead_letter_and_its_neighbours_are_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poison = {7, 500, 501, 999}

    def breaks(rows: pa.Table) -> None:
        if "id" in rows.column_names and poison & set(rows.column("id").to_pylist()):
            raise OverflowError("date value out of range \ud800")

    asked = breaking_encoder(monkeypatch, breaks)
    topic = Topic("orders", 1)
    topic.send(0, *[order(i) for i in range(1_000)])
    lake = Lake(topic)
    body = spec().model_dump(by_alias=True)
    body["spec"]["batching"] = {"maxRecords": 1_000, "maxBytes": 10_000_000, "maxLatencySeconds": 5.0}
    lake.work(lake.ingestor(IngestorSpec.model_validate(body)), turns=600)
    letters = {r["offset"]: r["reason"] for r in lake.rows("ops.dead_letters")}
    assert letters.keys() == poison
    assert set(letters.values()) == {"could not write it: OverflowError: date value out of range \\ud800"}
    assert sorted(o for _, o in lake.offsets()) == [i for i in range(1_000) if i not in poison]
    assert lake.registry.get("orders").state is State.RUNNING
    assert len(lake.files()) == lake.registry.get("orders").commits, "one file a batch, not one for each gap"
    assert sum(asked) < 20 * 1_000


def test_a_record_that_breaks_the_decoder_is_a_dead_letter_and_its_neighbours_are_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Decoder.decode

    def failing(self: Decoder, batch: RawBatch) -> Any:
        if b"poison" in batch.values:
            raise RecursionError("too deep")
        return plain(self, batch)

    monkeypatch.setattr(Decoder, "decode", failing)
    topic = Topic("orders", 1)
    topic.send(0, order(1), b"poison", order(2), b"junk", b"poison", order(3))
    lake = Lake(topic)
    lake.work(lake.ingestor(), turns=30)
    letters = {r["offset"]: r["reason"] for r in lake.rows("ops.dead_letters")}
    assert letters[1] == letters[4] == "could not decode it: RecursionError: too deep"
    assert "not JSON" in letters[3]
    assert lake.offsets() == [(0, 0), (0, 2), (0, 5)]


def test_a_defect_that_no_record_is_to_blame_for_stops_the_stream_and_moves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def breaks(_rows: pa.Table) -> None:
        raise RuntimeError("the library is broken")

    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(), turns=5)
    topic.send(0, order(1), order(2))
    breaking_encoder(monkeypatch, breaks)
    with pytest.raises(RuntimeError, match="the library is broken"):
        lake.work(lake.ingestor(), turns=30)
    assert lake.rows("ops.dead_letters") == []
    monkeypatch.undo()
    lake.work(lake.ingestor(), turns=30)
    assert lake.offsets() == [(0, 0), (0, 1)]


def test_manifests_whose_partition_values_would_not_come_back_are_not_merged() -> None:
    """Ingest rejects such a partition spec; a table created by others may have one."""
    for name, merged in (("double", False), ("date", True)):
        layout = Writer(KINDS[name], "identity(v)").layout
        assert survives_manifests(layout.spec, layout.schema) is merged
    read = CythonBinaryDecoder(struct.pack("<d", 0.1)).read_double()
    assert read != 0.1, "pyiceberg reads doubles now: let them be merged"


@pytest.mark.parametrize("kind", [TimestampNanoType(), TimestamptzNanoType()])
def test_partition_values_in_nanoseconds_come_back_from_a_manifest(kind: PrimitiveType) -> None:
    """Another client may partition a table so: ingest commits to it, and reaper and audit read it."""
    lake, values = Lake(), [-1, None, 1_795_000_000_000_000_001]
    schema = Schema(NestedField(1, "at", kind, required=False))
    spec = OptionalSpec(PartitionField(1, 1_000, IdentityTransform(), "at"), spec_id=0)
    plain = options_of({}, pa.schema([]))
    layout = WriteSchema(pa.schema([]), schema, spec, UNSORTED_SORT_ORDER, plain, format_version=3)
    files = [
        WrittenFile(path=f"{n}.parquet", partition=(value,), spec_id=0, records=1, bytes=1)
        for n, value in enumerate(values)
    ]
    writer = Manifests(lake.objects, new_name=iter("abc").__next__)
    begun = writer.begin_manifest(layout, f"s3://{BUCKET}/t", files, snapshot_id=1)
    assert begun is not None
    begun.finish()
    found = begun.file.partitions[0]
    assert (found.lower_bound, found.upper_bound, found.contains_null) == (
        struct.pack("<q", -1),
        struct.pack("<q", 1_795_000_000_000_000_001),
        True,
    )
    data = lake.objects.read(begun.file.manifest_path)
    entries = read_entries(data, begun.file, spec, schema)
    assert [entry.data_file.partition[0] for entry in entries] == values
    again = file_entries(data, added_snapshot_id=1, trace=None)
    assert [entry.path for entry in again] == [file.path for file in files]


def test_the_range_of_partitions_of_uuids_is_not_stated_where_java_takes_it_for_another() -> None:
    kind = KINDS["uuid"]
    writer = Writer(kind, "identity(v)")
    for values, stated in ((kind.extremes[:2], False), (kind.extremes[:1], True)):
        made = writer.make([json.dumps({"v": value}).encode() for value in values])
        manifests = Manifests(writer.lake.objects, new_name=lambda: uuid4().hex)
        files = [encoded.file for encoded in made.files]
        begun = manifests.begin_manifest(writer.layout, writer.state.root, files, snapshot_id=1)
        assert begun is not None
        listed = manifests.write_manifest_list(
            writer.state, begun.file, snapshot_id=1, schema=writer.layout.schema
        )
        (entry,) = read_list(writer.lake.objects.read(listed.path))
        assert (entry.partitions is not None) is stated
