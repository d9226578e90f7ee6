"""Files of Iceberg metadata are read and written as by pyiceberg, by decoders and encoders built once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from pyiceberg.avro.file import AvroFile, AvroOutputFile
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField, StructType

from tarn.adapters import avro_files
from tarn.adapters.avro_files import MemoryInput, Written
from tarn.adapters.manifest_audit import list_entries
from tarn.adapters.manifests import _WRITTEN_LISTS, _MemoryOutput, _written_entries, read_list
from tarn.core.errors import CorruptStateError
from tarn.testing.memory_topic import Topic
from tests.support.lake import Lake, order


@pytest.fixture(scope="module")
def lists() -> list[bytes]:
    """The manifest lists of twenty commits."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor()
    for n in range(20):
        topic.send(0, order(n))
        lake.work(ingestor, turns=12)
    _begin, *snapshots = lake.table().metadata["snapshots"]
    found = [lake.objects.read(one["manifest-list"]) for one in snapshots]
    assert len(found) > 10
    return found


def by_pyiceberg(data: bytes) -> list[ManifestFile]:
    with AvroFile[ManifestFile](
        MemoryInput(data),
        MANIFEST_LIST_FILE_SCHEMAS[3],
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as reader:
        return list(reader)


def test_what_is_read_is_what_pyiceberg_reads(lists: list[bytes]) -> None:
    for data in lists:
        ours, theirs = read_list(data), by_pyiceberg(data)
        assert [repr(one) for one in ours] == [repr(one) for one in theirs] != []
        assert {type(one) for one in ours} == {ManifestFile}


def test_one_decoder_reads_all_files_of_a_schema_in_any_thread(lists: list[bytes]) -> None:
    avro_files._decoder.cache_clear()
    wanted = [repr(read_list(data)) for data in lists]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda data: repr(read_list(data)), lists * 5))
    assert found == wanted * 5
    assert avro_files._decoder.cache_info().misses == 1


def test_files_of_another_schema_get_a_decoder_of_their_own(lists: list[bytes]) -> None:
    """A list of format version 1 has fewer fields."""
    one, *_ = read_list(lists[-1])
    old = _MemoryOutput("memory")
    with AvroOutputFile[ManifestFile](
        old,
        MANIFEST_LIST_FILE_SCHEMAS[1],
        "manifest_file",
        record_schema=MANIFEST_LIST_FILE_SCHEMAS[3],
        metadata={},
    ) as writer:
        writer.write_block([one])
    (read,) = read_list(old.data)
    assert (read.manifest_path, read.manifest_length) == (one.manifest_path, one.manifest_length)
    assert repr(read_list(lists[-1])[0]) == repr(one)


def both(
    written: Written, metadata: dict[str, str], records: list[Any], monkeypatch: pytest.MonkeyPatch
) -> list[bytes]:
    """A file of these records, by Tarn and by pyiceberg, with the same sync marker."""
    monkeypatch.setattr(os, "urandom", lambda size: bytes(range(size)))
    ours, theirs = _MemoryOutput("memory"), _MemoryOutput("memory")
    with avro_files.Output(ours, written, metadata) as writer:
        writer.write_block(records)
    with AvroOutputFile[Any](
        theirs, written.schema, written.name, record_schema=written.records, metadata=metadata
    ) as writer:
        writer.write_block(records)
    return [ours.data, theirs.data]


@pytest.mark.parametrize("version", [2, 3])
def test_a_list_has_the_same_bytes_as_pyiceberg_writes(
    lists: list[bytes], version: Literal[2, 3], monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = {"avro.codec": "deflate", "snapshot-id": "1", "format-version": str(version)}
    ours, theirs = both(_WRITTEN_LISTS[version], meta, read_list(lists[-1]), monkeypatch)
    assert ours == theirs


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "partition",
    [StructType(), StructType(NestedField(1000, "day", DateType()), NestedField(1001, "n", LongType()))],
)
def test_a_manifest_has_the_same_bytes_as_pyiceberg_writes(
    partition: StructType, version: Literal[2, 3], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = (19_000, 7)[: len(partition.fields)]
    entries = [
        ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=n,
            data_file=DataFile.from_args(
                _table_format_version=3,
                content=DataFileContent.DATA,
                file_path=f"s3://tarn/{n}.parquet",
                file_format=FileFormat.PARQUET,
                partition=Record(*values),
                record_count=n,
                file_size_in_bytes=10 * n,
                lower_bounds={1: b"a"},
            ),
        )
        for n in (1, 2, 3)
    ]
    meta = {"avro.codec": "deflate", "format-version": str(version)}
    ours, theirs = both(_written_entries(partition, version), meta, entries, monkeypatch)
    assert ours == theirs


@pytest.mark.parametrize("data", [b"", b"Obj\x01", b"no Avro at all"])
def test_other_bytes_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match="it is no manifest list"):
        list_entries(data)
