"""Readers of a lake in memory: pyiceberg on the embedded catalog, and subscriptions on both."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from tarn.adapters import manifest_audit
from tarn.adapters.lake_reader import LakeReader
from tarn.adapters.manifests import _MemoryOutput, _Sink, _Writer, read_list
from tarn.client.group import Group, group_key
from tarn.client.subscription import Limits, Start, Subscription
from tarn.core.object_store import ObjectStore
from tarn.core.table_catalog import TableName
from tarn.keeper.reaper import Graces, Reaper
from tarn_catalog.embedded import EmbeddedCatalog
from tests.support.lake import BUCKET, TABLE, Lake

_LAKES: dict[str, Lake] = {}
_NUMBERS = itertools.count(1)


class LakeIO(FileIO):
    """pyiceberg's FileIO on the store of a lake; a missing file is an error as of pyarrow's file systems."""

    @property
    def lake(self) -> Lake:
        return _LAKES[self.properties["lake"]]

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self.lake)

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self.lake)

    def delete(self, location: Any) -> None:
        """Only the reaper deletes."""


class _Input(InputFile):
    def __init__(self, location: str, lake: Lake) -> None:
        super().__init__(location)
        self._lake = lake

    def _data(self) -> bytes:
        found = self._lake.store.get(self.location.removeprefix(f"s3://{BUCKET}/"))
        if found is None:
            raise FileNotFoundError(self.location)
        return found.data

    def __len__(self) -> int:
        return len(self._data())

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._data())


class _Output(OutputFile):
    def __init__(self, location: str, lake: Lake) -> None:
        super().__init__(location)
        self._lake = lake

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return False

    def create(self, overwrite: bool = False) -> Any:
        key = self.location.removeprefix(f"s3://{BUCKET}/")
        return _Sink(lambda data: self._lake.store.put(key, data))

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._lake)


class Client:
    """A user of a lake: pyiceberg tables, subscriptions, and the reaper beside them.

    Attributes:
        waits: pauses of subscriptions, in seconds.
        on_wait: called at each of them.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        name = f"lake-{next(_NUMBERS)}"
        _LAKES[name] = lake
        where = {"py-io-impl": f"{__name__}.LakeIO", "lake": name}
        self.catalog = EmbeddedCatalog("lake", core=lake.local.catalog, **where)
        lake.store._now_ms = self.now_ms
        self.waits: list[float] = []
        self.on_wait: Callable[[], object] = lambda: None
        self._reaper = Reaper(
            lake.store,
            manifest_audit,
            bucket=BUCKET,
            graces=Graces(metadata_ms=1_000, files_ms=2_000),
            mono_ms=lambda: int(lake.clock.now_s * 1_000),
            wall_ms=self.now_ms,
            new_id=lake.new_id,
        )

    def now_ms(self) -> int:
        return int(self.lake.clock.now_s * 1_000) + 1_700_000_000_000

    def table(self, name: str = TABLE) -> Table:
        """The table for pyiceberg."""
        return self.catalog.load_table(name)

    def reap(self) -> int:
        """Let every grace pass, and return the number of deleted files."""
        deleted = 0
        for _ in range(3):
            deleted += self._reaper.run_once().deleted
            self.lake.clock.now_s += 5
        return deleted + self._reaper.run_once().deleted

    def group(self, name: str = "g", *, store: ObjectStore | None = None, table: str = TABLE) -> Group:
        prefix = self.lake.table(table).root.removeprefix(f"s3://{BUCKET}/")
        return Group(
            name=name,
            store=store or self.lake.store,
            key=group_key(prefix, name),
            reader=self.lake.new_id(),
            new_nonce=self.lake.new_id,
            sleep=lambda _: None,
        )

    def subscribe(
        self,
        group: str | None = "g",
        *,
        start: Start = "earliest",
        position: Start | None = None,
        table: str = TABLE,
        store: ObjectStore | None = None,
        auto_commit: bool = True,
        columns: list[str] | None = None,
        **limits: Any,
    ) -> Subscription:
        found = Subscription(
            reader=LakeReader(self.catalog, table, columns=columns),
            group=None if group is None else self.group(group, store=store, table=table),
            limits=Limits(**{"timeout_s": 0.0, **limits}),
            auto_commit=auto_commit,
            clock=self.lake.clock,
            sleep=self._sleep,
        )
        found.open(start, position)
        return found

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.lake.clock.now_s += seconds
        self.on_wait()


class _Deletes(_Writer):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


def delete_positions(client: Client, path: str, positions: list[int]) -> None:
    """Commit a position delete file, as Trino and Spark do and pyiceberg cannot."""
    table = client.table()
    state = client.lake.table()
    assert state.head is not None
    deletes = pa.table({"file_path": [path] * len(positions), "pos": pa.array(positions, pa.int64())})
    at = f"{state.root}/data/{client.lake.new_id()}-deletes.parquet"
    with table.io.new_output(at).create() as out:
        pq.write_table(deletes, out)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=at,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(positions),
        file_size_in_bytes=1,
    )
    number, sequence = client.lake.numbers.getrandbits(60), state.last_sequence + 1
    sink = _MemoryOutput(f"{state.root}/metadata/{client.lake.new_id()}-m0.avro")
    writer = _Deletes(table.spec(), table.schema(), sink, number, 2)
    with writer:
        entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=number, data_file=file)
        writer.add_entry(entry)
    client.lake.objects.write_new(sink.location, sink.data)
    added = writer.to_manifest_file()
    added._data[4] = added._data[5] = sequence
    held = [added, *read_list(client.lake.objects.read(state.head["manifest-list"]))]
    listed = _MemoryOutput(f"{state.root}/metadata/snap-{number}-{client.lake.new_id()}.avro")
    with AvroOutputFile[ManifestFile](
        output_file=listed,
        record_schema=MANIFEST_LIST_FILE_SCHEMAS[3],
        file_schema=MANIFEST_LIST_FILE_SCHEMAS[2],
        schema_name="manifest_file",
        metadata={},
    ) as out_list:
        out_list.write_block([ManifestFile(*([*one._data] + [None] * 16)[:16]) for one in held])
    client.lake.objects.write_new(listed.location, listed.data)
    snapshot = {
        "snapshot-id": number,
        "parent-snapshot-id": state.head_id,
        "sequence-number": sequence,
        "timestamp-ms": max(client.now_ms(), int(state.metadata["last-updated-ms"])),
        "manifest-list": listed.location,
        "summary": {"operation": "delete", "total-delete-files": "1"},
        "schema-id": state.metadata["current-schema-id"],
    }
    client.lake.local.catalog.tables.commit(
        client.lake.local._slot(TableName(("bronze",), "orders")),
        [{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": state.head_id}],
        [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number},
        ],
    )


def places(batch: Any) -> list[tuple[int, int]]:
    """(partition, offset) of the rows of a batch, in order."""
    return [(row["partition"], row["offset"]) for row in batch.rows["_tarn"].to_pylist()]
