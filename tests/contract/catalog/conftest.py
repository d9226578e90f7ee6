"""One behaviour suite for every way to open the catalog and every store that needs no container.

With `TARN_REFERENCE` it runs against Apache's reference server instead. The variable is JSON: `properties` of
pyiceberg's REST catalog, and `state`, the server's SQLite file, which is emptied before each test
(tests/integration/catalog/test_reference.py).
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

import pytest
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import load_catalog

from tarn.adapters.store import FileStore, MemoryStore
from tarn.core.naming import WarehouseLayout
from tarn.core.object_store import ObjectStore
from tarn_catalog.embedded import EmbeddedCatalog
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.testing.server import Running, serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """The lake of one test.

    Attributes:
        kind: how it is opened.
        store: its object store.
        roots: its warehouse layout.
        core: the catalog without transport.
        open: returns another client of the same lake.
        running: the server, if there is one.
    """

    kind: str
    store: ObjectStore
    roots: WarehouseLayout
    core: Catalog
    open: Callable[[], PyIcebergCatalog]
    running: Running | None

    @property
    def client(self) -> PyIcebergCatalog:
        return self.open()


def stores(kind: str, folder: Path) -> ObjectStore:
    return MemoryStore() if kind.endswith("memory") else FileStore(folder)


def open_lake(kind: str, folder: Path, stack: ExitStack) -> Lake:
    store = stores(kind, folder)
    # Data files are written by pyiceberg itself, to the same folder even if the metadata is in memory.
    roots = WarehouseLayout(base=f"file://{folder.resolve()}")
    core = Catalog(store, roots)
    running: Running | None = None

    def embedded() -> PyIcebergCatalog:
        if isinstance(store, FileStore):
            return load_catalog(
                "lake",
                **{"py-catalog-impl": "tarn_catalog.embedded.EmbeddedCatalog", "uri": f"file://{store.root}"},
            )
        return EmbeddedCatalog("lake", core=core)

    def rest() -> PyIcebergCatalog:
        assert running is not None
        return load_catalog(
            "lake",
            **{
                "type": "rest",
                "uri": running.published,
                "oauth2-server-uri": f"{running.published}/v1/oauth/tokens",
                "credential": running.credential,
                "warehouse": "tarn",
            },
        )

    if kind.startswith("rest"):
        running = stack.enter_context(serving(core, folder / ".secrets"))
    return Lake(
        kind=kind,
        store=store,
        roots=roots,
        core=core,
        open=rest if running else embedded,
        running=running,
    )


class Hidden:
    """What a test of another server's behaviour cannot look at."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        pytest.fail(f"it looks at {self._what}.{name}, which is not part of the REST interface")


def reference_lake(properties: dict[str, str], state: str) -> Lake:
    """The lake of Apache's reference server, emptied; only its REST interface can be looked at."""
    with closing(sqlite3.connect(state, timeout=30)) as tables, tables:
        tables.execute("DELETE FROM iceberg_tables")
        tables.execute("DELETE FROM iceberg_namespace_properties")

    def rest() -> PyIcebergCatalog:
        return load_catalog("lake", **properties)

    return Lake(
        kind="reference",
        store=cast(ObjectStore, Hidden("lake.store")),
        roots=cast(WarehouseLayout, Hidden("lake.roots")),
        core=cast(Catalog, Hidden("lake.core")),
        open=rest,
        running=cast(Running, Hidden("lake.running")),
    )


REFERENCE = json.loads(os.environ.get("TARN_REFERENCE", "null"))
KINDS = ("reference",) if REFERENCE else ("embedded-memory", "embedded-file", "rest-memory", "rest-file")


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    if REFERENCE:
        yield reference_lake(**REFERENCE)
        return
    with ExitStack() as stack:
        yield open_lake(request.param, tmp_path / "lake", stack)


@pytest.fixture
def rest_lake(tmp_path: Path) -> Iterator[Lake]:
    if REFERENCE:
        yield reference_lake(**REFERENCE)
        return
    with ExitStack() as stack:
        yield open_lake("rest-memory", tmp_path / "lake", stack)
