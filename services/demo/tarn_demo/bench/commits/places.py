"""Where the contenders of `scripts/bench commit` write, what they append, and what each of them offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType, S3FileSystem

ROWS = 1_000
NAMESPACE = "bench"
DAY_US = 86_400_000_000
FIRST_US = 1_760_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys of the store."""

    access: str
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Addresses and keys, all as reached from where the benchmark runs.

    Attributes:
        bucket: bucket of the lake.
        region: region of the store.
        endpoint: address of the store.
        catalog: address of Tarn's catalog.
        warehouse: name of Tarn's warehouse.
        credential: `client_id:client_secret` of a principal of Tarn's catalog.
        client: keys of a client of Tarn's catalog; they cannot write table metadata.
        root: keys that may write everything: the others' clients write table metadata or logs themselves.
        reference: address of Apache's reference server; empty if there is none.
        nessie: address of Nessie; empty if there is none.
        folder: folder for the SQLite file.
    """

    bucket: str
    region: str
    endpoint: str
    catalog: str
    warehouse: str
    credential: str
    client: Keys
    root: Keys
    reference: str
    nessie: str
    folder: Path

    @staticmethod
    def of(value: Mapping[str, Any]) -> Places:
        """The places described by a JSON object with the attributes' names."""
        return Places(
            **{
                **value,
                "client": Keys(**value["client"]),
                "root": Keys(**value["root"]),
                "folder": Path(value["folder"]),
            }
        )

    def files(self) -> S3FileSystem:
        """The store as root."""
        return S3FileSystem(
            access_key=self.root.access,
            secret_key=self.root.secret,
            region=self.region,
            endpoint_override=self.endpoint,
        )

    def sizes(self, location: str) -> dict[str, int]:
        """Name -> bytes of each file below a location `s3://bucket/key`, read with the root keys."""
        selector = FileSelector(location.removeprefix("s3://"), allow_not_found=True, recursive=True)
        found = self.files().get_file_info(selector)
        return {each.path: int(each.size) for each in found if each.type == FileType.File}


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """What became of one append.

    Attributes:
        acked: whether the contender says that the rows are in the table.
        conflicts: number of attempts that another writer's commit overtook; the client itself repeats.
        refused: number of attempts that ended otherwise: the client gave up, or the server had no room.
        unknown: number of appends whose outcome the client does not know.
    """

    acked: bool
    conflicts: int = 0
    refused: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A table as it stands.

    Attributes:
        snapshots: number of snapshots that the current metadata hold (Delta: versions in the log).
        metadata_bytes: size of the current metadata file (Delta: newest checkpoint and the log after it).
        metadata_files: number of metadata files ever written and still there (Delta: log entries).
    """

    snapshots: int
    metadata_bytes: int
    metadata_files: int


class Writer(Protocol):
    """One writer of one table, with connections of its own. Not thread-safe."""

    def append(self, rows: pa.Table) -> Appended:
        """Append rows as one commit; whether to repeat a refused one is the caller's decision."""


class Contender(Protocol):
    """A table format with its catalog and client."""

    @property
    def name(self) -> str:
        """Name in the results."""

    @property
    def on_tarn(self) -> bool:
        """Whether it commits to Tarn's catalog: then a lost row ends the benchmark."""

    def create(self, table: str) -> None:
        """Create an empty table."""

    def lay(self, table: str, commits: int) -> None:
        """Bring a table to the state after so many commits; it exists only if commits is not 0 before."""

    def open(self, table: str, writer: int, writers: int) -> Writer:
        """A writer of the table.

        Args:
            table: name of the table.
            writer: number of this writer, from 0.
            writers: number of writers of the table.
        """

    def facts(self, table: str) -> Facts:
        """The table as it stands."""

    def rows(self, table: str) -> int:
        """Number of rows, counted from the data files that the table lists."""


class Named:
    """A contender whose tables have a prefix, as another one has tables in the same catalog.

    Args:
        prefix: put before the names of tables.
        inner: the contender.
    """

    def __init__(self, prefix: str, inner: Contender) -> None:
        self._prefix, self._inner = prefix, inner

    @property
    def name(self) -> str:
        """See `Contender.name`."""
        return self._inner.name

    @property
    def on_tarn(self) -> bool:
        """See `Contender.on_tarn`."""
        return self._inner.on_tarn

    def create(self, table: str) -> None:
        """See `Contender.create`."""
        self._inner.create(f"{self._prefix}_{table}")

    def lay(self, table: str, commits: int) -> None:
        """See `Contender.lay`."""
        self._inner.lay(f"{self._prefix}_{table}", commits)

    def open(self, table: str, writer: int, writers: int) -> Writer:
        """See `Contender.open`."""
        return self._inner.open(f"{self._prefix}_{table}", writer, writers)

    def facts(self, table: str) -> Facts:
        """See `Contender.facts`."""
        return self._inner.facts(f"{self._prefix}_{table}")

    def rows(self, table: str) -> int:
        """See `Contender.rows`."""
        return self._inner.rows(f"{self._prefix}_{table}")


def rows_of(number: int) -> pa.Table:
    """1,000 rows of four columns, different for each number."""
    ids = range(number * ROWS, (number + 1) * ROWS)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([FIRST_US + i * 997 % DAY_US for i in ids], pa.timestamp("us", tz="UTC")),
            "name": pa.array([f"name {i % 97}" for i in ids], pa.string()),
            "value": pa.array([i * 0.25 for i in ids], pa.float64()),
        }
    )
