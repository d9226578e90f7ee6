"""The embedded lake: Tarn's catalog and ingest engine in the test's process, over a local folder.

Catalog, controller, decoding, batches, files and commits are the product's own; only the log is a double,
topics in memory. What needs a server of its own (Trino, Spark, the gateway, a service to kill) is not there.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tarn.adapters.bulk import PlainBulk
from tarn.adapters.origins import ParquetOrigins
from tarn.adapters.spec_store import SpecStore
from tarn.adapters.table_files import IcebergFormat
from tarn.core.errors import InvalidLocationError
from tarn.ingest.committer import Ports
from tarn.ingest.context import IngestContext, Limits
from tarn.ingest.effects import new_id, new_snapshot_id, stoppable_sleep, uuid7
from tarn.ingest.service import Loaded, Service
from tarn.ingest.status import StatusRegistry
from tarn.ingest.thread_driver import ThreadDriver
from tarn.testing.folder_files import FolderFiles
from tarn_catalog.embedded import EmbeddedCatalog, folder_store
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.testing.in_process import InProcessCatalog
from tarn_catalog.testing.server import serving
from tarn_testkit.errors import NeedsStackError
from tarn_testkit.memory import MemoryTopics
from tarn_testkit.proxy import Proxy, proxy_before

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_S = 0.1
LIMITS = Limits(check_interval_s=0.5, watermark_s=1.0, group_commit_interval_s=1.0, stopped_retry_s=1.0)


class EmbeddedLake:
    """A `Backend` in this process.

    Args:
        folder: where the lake is; created if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        store, layout = folder_store(folder / "lake")
        self._core = Catalog(store, layout)
        self._stop = threading.Event()
        self.catalog = EmbeddedCatalog("tarn", core=self._core, uri=layout.base)
        self.topics = MemoryTopics()
        self.specs = SpecStore(
            store, now_ms=lambda: time.time_ns() // 1_000_000, new_id=lambda: uuid.uuid4().hex
        )
        sleep = stoppable_sleep(self._stop)

        def key_of(location: str) -> str | None:
            try:
                return layout.key(location)
            except InvalidLocationError:
                return None

        registry = StatusRegistry(since_ms=time.time_ns() // 1_000_000)
        context = IngestContext(
            sources=self.topics.client,
            catalog=InProcessCatalog(self._core),
            tables=IcebergFormat(FolderFiles(store, layout), new_name=new_id),
            ports=Ports(sleep=sleep, new_key=uuid7, new_snapshot_id=new_snapshot_id),
            new_id=new_id,
            registry=registry,
            stopping=self._stop.is_set,
            origins=ParquetOrigins(PlainBulk(store), key_of),
            limits=LIMITS,
        )
        self._service = Service(
            Loaded(specs={}, errors={}),
            context,
            registry,
            self._stop,
            specs=self.specs,
            driver=ThreadDriver(context, sleeps=stoppable_sleep),
            poll_s=POLL_S,
        )
        self._service.start()

    @property
    def env(self) -> Mapping[str, str]:
        """There are no addresses."""
        raise NeedsStackError("lake.env")

    def wake(self) -> None:
        """See `Backend.wake`."""
        self._service.controller.wake()

    def query(self, sql: str) -> list[list[Any]]:
        """Trino is not here."""
        raise NeedsStackError("lake.trino")

    def cursor(self) -> Any:
        """Trino is not here."""
        raise NeedsStackError("lake.trino")

    def spark(self) -> SparkSession:
        """Spark is not here."""
        raise NeedsStackError("lake.spark")

    def kill(self, service: str, *, timeout_s: float) -> None:
        """No service has a process of its own here."""
        raise NeedsStackError(f"lake.faults.kill({service!r})")

    def freeze(self, service: str, *, timeout_s: float) -> AbstractContextManager[None]:
        """No service has a process of its own here."""
        raise NeedsStackError(f"lake.faults.freeze({service!r})")

    @contextmanager
    def proxy(self, service: str) -> Iterator[Proxy]:
        """A proxy before the catalog's own server, which is started over the same folder for the block.

        Raises:
            NeedsStackError: the service is another one.
        """
        if service != "catalog":
            raise NeedsStackError(f"a proxy before {service}")
        with (
            serving(self._core, self._folder / f"secrets-{uuid.uuid4().hex}") as running,
            proxy_before(service, running.published, client={"credential": running.credential}) as proxy,
        ):
            yield proxy

    def close(self) -> None:
        """See `Backend.close`."""
        self._stop.set()
        self._service.drain()
