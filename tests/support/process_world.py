"""A lake in a folder, for writers in processes of their own: store, catalog and topics are files.

The folder is named by the variable `PLANT_ROOT`.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tarn.adapters.files import FileIO
from tarn.adapters.store import FileStore
from tarn.adapters.table_files import IcebergFormat
from tarn.ingest.context import IngestContext, Limits, StoppedError
from tarn.ingest.lost_replies import TrappedCatalog, Traps
from tarn.ingest.status import StatusRegistry
from tarn.testing import lake
from tarn.testing.memory_topic import Topic
from tests.support.lake import BUCKET, Lake, LocalCatalog, order

ROOT = "PLANT_ROOT"


class FileTopic(Topic):
    """A topic whose partitions are files of lines.

    Args:
        name: name of the topic.
        root: folder of the lake.
        partitions: number of partitions; 0: those that there are.
    """

    def __init__(self, name: str, root: Path, partitions: int = 0) -> None:
        self._folder = root / "topics" / name
        self._folder.mkdir(parents=True, exist_ok=True)
        for partition in range(partitions):
            (self._folder / str(partition)).touch()
        super().__init__(name, len(list(self._folder.iterdir())), topic_id=f"id-{name}")

    @property
    def logs(self) -> Any:
        return _Logs(self._folder)

    @logs.setter
    def logs(self, _value: Any) -> None:
        """The files are the logs."""

    def send(self, partition: int, *values: Any) -> None:
        with (self._folder / str(partition)).open("ab") as file:
            file.write(b"".join(value + b"\n" for value in values))


class _Logs(dict[int, list[Any]]):
    def __init__(self, folder: Path) -> None:
        super().__init__((int(path.name), path.read_bytes().splitlines()) for path in _in_order(folder))


def _in_order(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.iterdir(), key=lambda path: int(path.name))


class FileLake(Lake):
    """The lake in a folder."""

    def __init__(self, root: Path) -> None:
        store: Any = FileStore(root / "store")
        self.local = LocalCatalog(store)
        names = sorted(path.name for path in (root / "topics").iterdir())
        lake.Lake.__init__(
            self, *(FileTopic(name, root) for name in names), store=store, catalog=self.local, bucket=BUCKET
        )


def make(registry: StatusRegistry, stop: threading.Event) -> IngestContext:
    """Dependencies of a writer in a process of its own."""
    found = FileLake(Path(os.environ[ROOT]))

    def sleep(seconds: float) -> None:
        if stop.wait(seconds):
            raise StoppedError

    def pause() -> None:
        time.sleep(0.01)

    def new_id() -> str:
        return uuid.uuid4().hex

    found.sources.on_poll = pause
    context = found.context(
        registry=registry, limits=Limits(check_interval_s=0.2, watermark_s=5.0, retry_s=0.05, retry_s_max=0.5)
    )
    numbers = random.SystemRandom()
    return replace(
        context,
        tables=IcebergFormat(FileIO(found.store, bucket=BUCKET, sleep=sleep), new_name=new_id),
        ports=replace(
            context.ports,
            sleep=sleep,
            now_ms=lambda: time.time_ns() // 1_000_000,
            new_snapshot_id=lambda: numbers.getrandbits(62) + 1,
            chance=random.Random(),
        ),
        new_id=new_id,
        clock=time.monotonic,
        stopping=stop.is_set,
    )


def greedy(registry: StatusRegistry, stop: threading.Event) -> IngestContext:
    """The same, of a writer that takes 400 MiB more."""
    held.append(bytearray(os.urandom(1 << 20)) * 400)
    return make(registry, stop)


held: list[bytearray] = []


def frozen(registry: StatusRegistry, stop: threading.Event) -> IngestContext:
    """The same, of a writer that writes down, at each look for records, how much of its heap is frozen."""
    context = make(registry, stop)
    sources: Any = context.sources
    pause = sources.on_poll

    def look() -> None:
        (Path(os.environ[ROOT]) / "frozen").write_text(str(gc.get_freeze_count()))
        pause()

    sources.on_poll = look
    return context


def telling(registry: StatusRegistry, stop: threading.Event) -> IngestContext:
    """The same, of a writer that writes down, at each look for records, the lag that it knows."""
    context = make(registry, stop)
    sources: Any = context.sources
    pause = sources.on_poll

    def look() -> None:
        (Path(os.environ[ROOT]) / f"lag-{os.getpid()}").write_text(str(registry.get("orders").lag))
        pause()

    sources.on_poll = look
    return context


def failing(_registry: StatusRegistry, _stop: threading.Event) -> IngestContext:
    """A writer that dies at once."""
    raise RuntimeError("no such world")


def stuck(_registry: StatusRegistry, _stop: threading.Event) -> IngestContext:
    """A writer that fails while one of its threads waits for an answer."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    raise RuntimeError("no such world")


def silent(_registry: StatusRegistry, _stop: threading.Event) -> IngestContext:
    """A writer that hangs before it reads."""
    time.sleep(600)
    raise AssertionError


def messages(root: Path, name: str, partitions: int, count: int) -> FileTopic:
    """A topic with so many messages in each partition."""
    made = FileTopic(name, root, partitions)
    for p in range(partitions):
        made.send(p, *(order(100 * p + n) for n in range(count)))
    return made


def trapped(registry: StatusRegistry, stop: threading.Event) -> IngestContext:
    """A writer whose catalog may lose an answer on purpose."""
    context, traps = make(registry, stop), Traps()
    return replace(context, catalog=TrappedCatalog(context.catalog, traps), traps=traps)
