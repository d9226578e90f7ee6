"""Delta Lake by its Rust library: a table without a catalog, whose log entries are put if absent."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from tarn_demo.bench.commits.places import NAMESPACE, Appended, Facts, Places, rows_of

LOG_WRITERS = 8
_ENTRY = re.compile(r"/_delta_log/(\d{20})\.(json|checkpoint\.parquet)$")


class DeltaWriter:
    """A table object of deltalake.

    Args:
        uri: location of the table.
        options: options of its store.
    """

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        from deltalake import DeltaTable, write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError

        self._table = DeltaTable(uri, storage_options=options)
        self._write = write_deltalake
        self._refusals = (CommitFailedError, DeltaError)

    def append(self, rows: pa.Table) -> Appended:
        """See `Writer.append`."""
        try:
            self._write(self._table, rows, mode="append")
        except self._refusals:
            self._table.update_incremental()
            return Appended(acked=False, refused=1)
        return Appended(acked=True)


class DeltaPeer:
    """deltalake on the store.

    Args:
        places: addresses and keys.
    """

    name = "deltalake"
    on_tarn = False

    def __init__(self, places: Places) -> None:
        self._places = places
        self._options = {
            "AWS_ENDPOINT_URL": places.endpoint,
            "AWS_ACCESS_KEY_ID": places.root.access,
            "AWS_SECRET_ACCESS_KEY": places.root.secret,
            "AWS_REGION": places.region,
            "AWS_ALLOW_HTTP": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
            "aws_conditional_put": "etag",
        }

    def _uri(self, table: str) -> str:
        return f"s3://{self._places.bucket}/warehouse/delta/{NAMESPACE}/{table}"

    def create(self, table: str) -> None:
        """See `Contender.create`."""
        from deltalake import DeltaTable

        schema = rows_of(0).schema
        DeltaTable.create(self._uri(table), schema=schema, storage_options=self._options)

    def lay(self, table: str, commits: int) -> None:
        """See `Contender.lay`. One append is real; the other entries are like its own."""
        from deltalake import DeltaTable

        self.create(table)
        if commits == 0:
            return
        uri, files = self._uri(table), self._places.files()
        DeltaWriter(uri, self._options).append(rows_of(0))
        folder = f"{uri.removeprefix('s3://')}/_delta_log"
        with files.open_input_file(f"{folder}/{1:020}.json") as file:
            entry = file.read().decode()

        def put(version: int) -> None:
            with files.open_output_stream(f"{folder}/{version:020}.json") as out:
                out.write(like(entry, version).encode())

        if commits > 1:
            with ThreadPoolExecutor(LOG_WRITERS) as pool:
                list(pool.map(put, range(2, commits + 1)))
            DeltaTable(uri, storage_options=self._options).create_checkpoint()

    def open(self, table: str, writer: int, writers: int) -> DeltaWriter:
        """See `Contender.open`."""
        return DeltaWriter(self._uri(table), self._options)

    def facts(self, table: str) -> Facts:
        """See `Contender.facts`."""
        return facts_of(self._places.sizes(f"{self._uri(table)}/_delta_log"))

    def rows(self, table: str) -> int:
        """See `Contender.rows`."""
        from deltalake import DeltaTable

        opened = DeltaTable(self._uri(table), storage_options=self._options)
        return sum(pa.table(opened.get_add_actions()).column("num_records").to_pylist())


def like(entry: str, version: int) -> str:
    """A log entry like another one, that adds a file of another name. Pure."""
    rows = [json.loads(row) for row in entry.splitlines()]
    for row in rows:
        if "add" in row:
            row["add"]["path"] = f"laid-{version:05}.parquet"
    return "".join(json.dumps(row) + "\n" for row in rows)


def facts_of(sizes: dict[str, int]) -> Facts:
    """What a listing of a Delta log says: versions, and the bytes that a reader needs. Pure."""
    found: dict[str, dict[int, int]] = {"json": {}, "checkpoint.parquet": {}}
    for path, size in sizes.items():
        match = _ENTRY.search(path)
        if match is not None:
            found[match[2]][int(match[1])] = size
    entries, checkpoints = found["json"], found["checkpoint.parquet"]
    newest = max(checkpoints, default=-1)
    read = sum(size for version, size in entries.items() if version > newest)
    return Facts(
        snapshots=len(entries),
        metadata_bytes=read + checkpoints.get(newest, 0),
        metadata_files=len(entries),
    )
