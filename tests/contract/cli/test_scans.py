"""Tables of a real catalog, read by DuckDB and reported by status; catalog and store in this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.lake_scan import deletes_of
from tarn.cli.clients import scans
from tarn.cli.clients.catalog_facts import CatalogFacts
from tarn.cli.clients.duck import Duck
from tarn.cli.clients.scans import LakeScans
from tarn.cli.settings import Secrets, Settings
from tarn.core.errors import CorruptStateError, InvalidError, NoSuchTableError
from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn.core.table_catalog import TableName
from tarn_jobs.position import PROPERTY, Position
from tests.contract.catalog.conftest import open_lake

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "who": ["a", "b", None]})


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A catalog with its HTTP server, a client that writes, and the command line's own client."""

    client: Catalog
    lake: LakeScans
    told: CatalogFacts
    catalog: RestCatalog

    def query(self, sql: str) -> tuple[tuple[object, ...], ...]:
        return Duck(self.lake).query(sql).rows

    def table(self, name: str, rows: pa.Table = ROWS) -> Table:
        path = tuple(name.split("."))
        for depth in range(1, len(path)):
            self.client.create_namespace_if_not_exists(path[:depth])
        return self.client.create_table(path, schema=rows.schema)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        lake = open_lake("rest-file", tmp_path / "lake", stack)
        assert lake.running is not None
        settings = Settings(catalog_uri=lake.running.published)
        values = dict.fromkeys(Secrets.__dataclass_fields__, "x")
        secrets = Secrets(**{**values, "credential": lake.running.credential})
        asked = RestCatalog(settings.catalog_uri, warehouse="tarn", credential=lambda: secrets.credential)
        lake_scans = LakeScans(settings, secrets)
        yield World(client=lake.client, lake=lake_scans, told=CatalogFacts(asked), catalog=asked)


def test_rows_of_several_commits_come_back_and_deleted_ones_do_not(world: World) -> None:
    table = world.table("a.rows")
    for _ in range(scans.GROUP_FILES_MAX + 2):
        table.append(ROWS)
    table.delete("id = 2")
    assert world.query("SELECT count(*), count(who), min(id), max(id) FROM a.rows") == ((36, 18, 1, 3),)
    assert world.query("SELECT DISTINCT id FROM a.rows WHERE id = 2") == ()


def test_an_empty_table_has_its_columns(world: World) -> None:
    world.table("a.nothing")
    assert world.query("SELECT count(*) FROM a.nothing") == ((0,),)
    assert [row[0] for row in world.query("DESCRIBE a.nothing")] == ["id", "who"]


def test_a_table_that_changed_its_columns_is_read_as_it_is_now(world: World) -> None:
    table = world.table("a.rows", ROWS.set_column(0, "id", ROWS["id"].cast(pa.int32())))
    table.append(ROWS.set_column(0, "id", ROWS["id"].cast(pa.int32())))
    with table.update_schema() as update:
        update.update_column("id", LongType())
        update.rename_column("who", "name")
        update.add_column("late", DoubleType())
    table.append(pa.table({"id": pa.array([2**40], pa.int64()), "name": ["z"], "late": [0.5]}))
    assert world.query("SELECT id, name, late FROM a.rows ORDER BY id") == (
        (1, "a", None),
        (2, "b", None),
        (3, None, None),
        (2**40, "z", 0.5),
    )


def test_every_type_comes_through(world: World) -> None:
    schema = Schema(
        NestedField(1, "i", IntegerType()),
        NestedField(2, "dec", DecimalType(10, 2)),
        NestedField(3, "day", DateType()),
        NestedField(4, "tz", TimestamptzType()),
        NestedField(5, "local", TimestampType()),
        NestedField(6, "raw", BinaryType()),
        NestedField(7, "u", UUIDType()),
        NestedField(8, "tags", ListType(9, StringType(), element_required=False)),
        NestedField(10, "by_name", MapType(11, StringType(), 12, LongType(), value_required=False)),
        NestedField(13, "inner", StructType(NestedField(14, "x", LongType()))),
    )
    world.client.create_namespace("a")
    table = world.client.create_table("a.types", schema=schema)
    key = uuid.UUID(int=7)
    values = {
        "i": 1,
        "dec": Decimal("1.50"),
        "day": date(2026, 3, 1),
        "tz": datetime(2026, 3, 1, 1, tzinfo=UTC),
        "local": datetime(2026, 3, 1, 2),
        "raw": b"\x00\xff",
        "u": key.bytes,
        "tags": ["a", None],
        "by_name": {"k": 5},
        "inner": {"x": 9},
    }
    table.append(pa.Table.from_pylist([values, {}], schema=table.schema().as_arrow()))
    first, second = world.query("SELECT * FROM a.types ORDER BY i NULLS LAST")
    assert first[:6] == tuple(values.values())[:6]
    assert uuid.UUID(str(first[6])) == key
    assert first[7:] == (["a", None], {"k": 5}, {"x": 9})
    assert set(second) == {None}


@pytest.mark.long
def test_structs_within_maps_and_lists_of_lists_are_read_beyond_the_first_batch_of_a_row_group(
    world: World,
) -> None:
    """131,072 rows are a batch of pyarrow's scanner."""
    count = 140_000
    struct = pa.struct([("n", pa.int64())])
    rows = pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "by_name": pa.array(([("k", {"n": n})] for n in range(count)), pa.map_(pa.string(), struct)),
            "lists": pa.array(([[{"n": n}]] for n in range(count)), pa.list_(pa.list_(struct))),
        }
    )
    world.table("a.rows", rows).append(rows)
    sums = "sum(id), sum(by_name['k'].n), sum(lists[1][1].n)"
    total = count * (count - 1) // 2
    assert world.query(f"SELECT {sums} FROM a.rows") == ((total, total, total),)


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "PLAIN"])
def test_position_deletes_are_read_whatever_their_paths_are_encoded_as(world: World, encoding: str) -> None:
    table = world.table("a.rows")
    rows = pa.table(
        {"file_path": ["s3://a/1", "s3://a/2", "s3://a/1"], "pos": pa.array([4, 0, 7], pa.int64())}
    )
    path = f"{table.location()}/data/deletes.parquet"
    with table.io.new_output(path).create() as out:
        pq.write_table(rows, out, use_dictionary=False, column_encoding={"file_path": encoding})
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=path, file_format=FileFormat.PARQUET
    )
    found = deletes_of(table.io, file)
    assert {path: positions.to_pylist() for path, positions in found.items()} == {
        "s3://a/1": [4, 7],
        "s3://a/2": [0],
    }


def test_a_file_that_is_gone_or_broken_is_named_and_the_store_is_not_blamed(
    world: World, tmp_path: Path
) -> None:
    world.table("a.rows").append(ROWS)
    (file,) = [path for path in (tmp_path / "lake").rglob("*.parquet") if "a/rows" in str(path)]
    file.write_bytes(b"no Parquet at all")
    with pytest.raises(CorruptStateError, match=r"a file of a\.rows cannot be decoded.*scripts/tarn fsck"):
        world.query("SELECT count(who) FROM a.rows")
    file.unlink()
    with pytest.raises(CorruptStateError, match=r"a\.rows names a file that is not in the store"):
        world.query("SELECT count(who) FROM a.rows")


def test_the_canarys_own_reader_does_not_blame_the_store_for_a_broken_file(
    world: World, tmp_path: Path
) -> None:
    sent = pa.array([datetime(2026, 3, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    rows = pa.table({"id": ["x"], "sent_at": sent, "note": ["n"]})
    world.table("ops.canary", rows).append(rows)
    assert len(world.lake.find("ops.canary", "x", timeout_s=30.0)) == 1
    (file,) = [path for path in (tmp_path / "lake").rglob("*.parquet") if "ops/canary" in str(path)]
    file.write_bytes(b"no Parquet at all")
    with pytest.raises(CorruptStateError, match=r"a file of ops\.canary cannot be decoded") as told:
        world.lake.find("ops.canary", "x", timeout_s=30.0)
    assert "minio" not in told.value.message


def test_a_table_that_the_library_cannot_open_is_named_and_the_others_are_read(world: World) -> None:
    world.table("a.rows").append(ROWS)
    fields = [
        {"id": 1, "name": "id", "type": "long", "required": False},
        {"id": 2, "name": "v", "type": "variant", "required": False},
    ]
    world.catalog.create(
        TableName(("a",), "odd"),
        {
            "schema": {"type": "struct", "schema-id": 0, "fields": fields},
            "partition-spec": {"spec-id": 0, "fields": []},
            "write-order": {"order-id": 0, "fields": []},
            "properties": {"format-version": "3"},
        },
    )
    with pytest.raises(InvalidError, match=r"cannot read a\.odd .*Unsupported field type: 'variant'") as told:
        world.query("SELECT id FROM a.odd")
    assert "minio" not in told.value.message
    assert world.query("SELECT count(*) FROM a.rows") == ((3,),)
    assert world.told.facts("a.odd").format_version == 3


def test_tables_of_deeper_namespaces_are_joined(world: World) -> None:
    world.table("a.b.left").append(ROWS)
    world.table("c.right").append(ROWS.slice(1))
    assert world.query("SELECT count(*) FROM a.b.left JOIN c.right USING (id)") == ((2,),)


def test_a_table_that_does_not_exist_is_named(world: World) -> None:
    with pytest.raises(NoSuchTableError, match=r"a\.nothing.*scripts/tarn status lists"):
        world.query("SELECT * FROM a.nothing")


def test_more_than_fits_is_refused_by_the_columns_that_are_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = pa.table({"id": pa.array(range(5_000), pa.int64()), "text": [uuid.uuid4().hex] * 5_000})
    table = world.table("a.wide", wide)
    table.append(wide)
    sizes = next(iter(table.scan().plan_files())).file.column_sizes
    monkeypatch.setattr(scans, "FILE_BYTES_MAX", sizes[1] + 10)
    monkeypatch.setattr(scans, "READ_BYTES_MAX", sizes[1] + 10)
    assert world.query("SELECT sum(id) FROM a.wide") == ((12_497_500,),)
    with pytest.raises(InvalidError, match=r"one file of a\.wide holds.*--engine trino"):
        world.query("SELECT max(text), max(id) FROM a.wide")
    monkeypatch.setattr(scans, "FILE_BYTES_MAX", 10**9)
    with pytest.raises(InvalidError, match=r"^a\.wide holds"):
        world.query("SELECT max(text), max(id) FROM a.wide")


def test_facts_tell_how_far_streams_and_jobs_are_whoever_committed_last(world: World) -> None:
    source = TopicIdentity(cluster="c", topic="t", topic_id="i")
    first = OffsetMap(source=source, next={0: 3})
    second = OffsetMap(source=source, next={0: 5, 1: 2})
    other = OffsetMap(source=TopicIdentity(cluster="c", topic="u", topic_id="j"), next={0: 1})
    table = world.table("a.fed")
    for summary in (
        {"tarn.offsets.s": first.to_json()},
        {"tarn.offsets.o": other.to_json()},
        {"tarn.offsets.s": second.to_json()},
        {},
    ):
        table.append(ROWS, snapshot_properties=summary)
    facts = world.told.facts("a.fed")
    assert facts.streams == {"s": second, "o": other}
    assert (facts.position, facts.rows, facts.snapshots) == (None, 12, 4)
    derived = world.table("a.derived")
    position = Position(source=(("topic", "t"),), next=((0, 4), (1, 2)))
    derived.append(ROWS, snapshot_properties={PROPERTY: position.to_json()})
    derived.append(ROWS)
    told = world.told.facts("a.derived").position
    assert told is not None
    assert (told.topic, told.next) == ("t", {0: 4, 1: 2})
    assert world.told.facts("a.derived").streams == {}
    world.table("a.empty")
    assert world.told.facts("a.empty").last_commit is None


def test_all_tables_are_listed_also_those_of_deeper_namespaces(world: World) -> None:
    for name in ("a.one", "a.b.two", "a.b.c.three", "z.four"):
        world.table(name)
    world.client.create_namespace("empty")
    assert world.told.tables() == ["a.b.c.three", "a.b.two", "a.one", "z.four"]


def test_a_table_that_is_gone_is_told(world: World) -> None:
    world.client.create_namespace("a")
    with pytest.raises(NoSuchTableError, match=r"a\.gone does not exist"):
        world.told.facts("a.gone")


def test_counts_are_those_of_the_current_snapshot(world: World) -> None:
    table = world.table("a.rows")
    table.append(ROWS)
    table.append(ROWS)
    table.delete("id = 1")
    facts = world.told.facts("a.rows")
    assert (facts.rows, facts.data_files, facts.delete_files) == (4, 2, 0)
    assert facts.snapshots == len(table.refresh().metadata.snapshots) >= 3
    assert facts.last_commit is not None
    assert abs((datetime.now(UTC) - facts.last_commit).total_seconds()) < 60
