"""python -m tests.support.trace_files: the product's files that one batch and its commit pass through.

An ingestor, the catalog's client, HTTP and the catalog run in this process, over a topic and a store in
memory. One batch is committed first. The next (8 good records of 2 partitions) is traced from the poll that
returns its records until the swap of the table's pointer. The adapters of Kafka and MinIO have no part in it.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import structlog

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.files import FileIO
from tarn.adapters.store import MemoryStore
from tarn.core.naming import WarehouseLayout
from tarn.testing.memory_topic import Topic
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.testing.server import serving
from tests.support.lake import BUCKET, Lake, order

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("catalog/tarn_catalog/", "services/tarn/")
NOT_PRODUCT = "/testing/"
RECORDS, PARTITIONS = 8, 2
POINTER = "catalog/v1/pointers/bronze/orders.json"
TURNS_MAX = 50


@dataclass(slots=True)
class Passed:
    """Calls of one process.

    Attributes:
        files: distinct files of the product, in the order of the first call.
        moves: distinct pairs (from, to) of files with a call between them.
    """

    files: list[str] = field(default_factory=list)
    moves: list[tuple[str, str]] = field(default_factory=list)

    def called(self, file: str, caller: str) -> None:
        """Record a call; `caller` is the file of the nearest caller in the product, or empty."""
        if file not in self.files:
            self.files.append(file)
        if caller not in ("", file) and (caller, file) not in self.moves:
            self.moves.append((caller, file))


@dataclass(slots=True)
class Trace:
    """What is called while it is on: ingest runs in the main thread, the catalog in others.

    Attributes:
        ingest: calls of the ingestor.
        catalog: calls of the catalog.
        on: whether calls are recorded now.
    """

    ingest: Passed = field(default_factory=Passed)
    catalog: Passed = field(default_factory=Passed)
    on: bool = False
    _known: dict[str, str] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """A trace function for `sys.settrace` that looks at calls only."""
        file = self._file(frame) if self.on else ""
        if not file:
            return
        caller = frame.f_back
        while caller is not None and not self._file(caller):
            caller = caller.f_back
        main = threading.current_thread() is threading.main_thread()
        (self.ingest if main else self.catalog).called(file, self._file(caller) if caller else "")

    def _file(self, frame: FrameType) -> str:
        """The path of a product's file below the repository, else empty; an import is not a call."""
        name = frame.f_code.co_filename
        if name not in self._known:
            found = name.removeprefix(f"{ROOT}/")
            counts = found.startswith(PRODUCT) and NOT_PRODUCT not in found
            self._known[name] = found if counts else ""
        return "" if frame.f_code.co_name == "<module>" else self._known[name]


class TracedStore(MemoryStore):
    """A store in memory that ends the trace with the swap of the table's pointer."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace
        self.swaps = 0

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        etag = super().put(key, data, if_absent=if_absent, if_match=if_match)
        if key == POINTER and if_match is not None:
            self._trace.on, self.swaps = False, self.swaps + 1
        return etag


def traced_batch() -> Trace:
    """Commit two batches; the calls of the second one, from its poll to the swap of the pointer."""
    trace = Trace()
    store = TracedStore(trace)
    catalog = Catalog(store, WarehouseLayout(base=f"s3://{BUCKET}"))
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        with tempfile.TemporaryDirectory() as folder, serving(catalog, Path(folder)) as server:
            client = RestCatalog(server.inside, warehouse=BUCKET, credential=lambda: server.credential)
            try:
                _two_batches(store, catalog, client, trace)
            finally:
                client._http.close()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return trace


def _two_batches(store: TracedStore, catalog: Catalog, client: RestCatalog, trace: Trace) -> None:
    topic = Topic("orders", PARTITIONS)
    lake = Lake(topic, catalog=client)
    lake.store, lake.local.catalog = store, catalog
    lake.objects = FileIO(store, bucket=BUCKET, sleep=lambda _s: None)
    sent, turns, made = 0, 0, -1

    def turn_on() -> None:
        trace.on = store.swaps == made + 1

    def until() -> bool:
        nonlocal sent, turns, made
        turns += 1
        made = store.swaps if made < 0 else made  # the table was created before the first batch
        if store.swaps < made + sent and turns < TURNS_MAX:
            return False
        if sent == 2 or turns >= TURNS_MAX:
            return True
        if sent == 1:
            lake.sources.on_poll = turn_on
        for at in range(RECORDS):
            topic.send(at % PARTITIONS, order(sent * RECORDS + at))
        sent += 1
        return False

    lake.ingestor().cycle(until)
    rows = len(lake.offsets())
    assert rows == 2 * RECORDS, f"{rows} rows in the table, expected {2 * RECORDS}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the files and the figures."""
    found = argparse.ArgumentParser(prog="python -m tests.support.trace_files", description=__doc__)
    found.add_argument("--moves", action="store_true", help="print each move from file to file too")
    options = found.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    trace = traced_batch()
    for title, part in (
        ("one batch, in ingest", trace.ingest),
        ("its commit, in the catalog", trace.catalog),
    ):
        print(f"{title}: {len(part.files)} files, {len(part.moves)} moves between them")
        for file in part.files:
            print(f"    {file}")
        for caller, file in part.moves if options.moves else ():
            print(f"    {caller} -> {file}")
    moves = len(trace.ingest.moves) + len(trace.catalog.moves)
    print(f"in all: {len({*trace.ingest.files, *trace.catalog.files})} files, {moves} moves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
