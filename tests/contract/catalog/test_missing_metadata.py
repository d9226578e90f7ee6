"""A metadata file that somebody removed: a load says so where looking costs no request; nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog import load_catalog

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.lake_reader import LakeReader
from tarn.adapters.store import FileStore, MemoryStore, S3Store
from tarn.core.errors import CorruptStateError, NoSuchTableError, NotFoundError, TarnError, UnavailableError
from tarn.core.naming import WarehouseLayout
from tarn.core.object_store import LocalStore
from tarn.core.table_catalog import TableName
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.state.context import Metadata
from tarn_catalog.testing.faulty_store import FaultyStore
from tarn_catalog.testing.server import Running, serving
from tests.contract.catalog.test_commits import NEW, SLOT, append
from tests.contract.catalog.test_http import error
from tests.contract.catalog.test_views import V, replaced, wanted

TABLE = "/v1/namespaces/ns/tables/t"
SET = [{"action": "set-properties", "updates": {"a": "b"}}]


class Folder:
    """A lake in a folder, with a table of two commits and a view; `catalog` has both in its memory."""

    def __init__(self, root: Path) -> None:
        self.store = FileStore(root)
        self.roots = WarehouseLayout(base=f"file://{self.store.root}")
        self.catalog = self.another()
        self.catalog.namespaces.create(("ns",), {})
        self.catalog.tables.create(SLOT, NEW)
        self.first = self.append(1, None, 1)
        self.append(2, 1, 2)
        self.catalog.views.create(V, wanted())

    def append(self, number: int, parent: int | None, sequence: int) -> Metadata:
        requirements, updates = append(number, parent, sequence)
        location = self.catalog.tables.current(self.catalog.tables.pointer(SLOT)).parsed["location"]
        updates[0]["snapshot"]["manifest-list"] = f"{location}/metadata/snap-{number}.avro"
        return self.catalog.tables.commit(SLOT, requirements, updates)

    def another(self) -> Catalog:
        """A catalog that has nothing in its memory."""
        return Catalog(self.store, self.roots)

    def file(self, slot: TableIdentifier = SLOT) -> Path:
        """The newest metadata file."""
        location = self.another().tables.load(slot).location
        return self.store.root / self.roots.key(location)

    def pointer(self) -> bytes:
        stored = self.store.get(SLOT.key)
        assert stored is not None
        return stored.data


@pytest.fixture
def lake(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "lake")


def snapshots(found: Metadata) -> list[int]:
    return [one["snapshot-id"] for one in found.parsed["snapshots"]]


@pytest.mark.parametrize("slot", [SLOT, V])
def test_a_load_says_that_the_file_is_missing_until_it_is_back(lake: Folder, slot: TableIdentifier) -> None:
    before = lake.catalog.tables.load(slot)
    file = lake.file(slot)
    file.rename(file.with_suffix(".away"))
    for catalog in (lake.catalog, lake.another()):
        with pytest.raises(CorruptStateError, match="Failed to open input stream for file: ") as raised:
            catalog.tables.load(slot)
        assert raised.value.fields["location"] == before.location
        assert f"the metadata file of {slot.described} is missing; put it back" in raised.value.message
        assert not isinstance(raised.value, NotFoundError), "the name exists: nobody may create it again"
        assert catalog.tables.exists(slot)
    file.with_suffix(".away").rename(file)
    assert lake.catalog.tables.load(slot) == before
    assert lake.another().tables.load(slot) == before


def test_what_is_no_file_is_missing_too(lake: Folder) -> None:
    file = lake.file()
    file.unlink()
    file.mkdir()
    with pytest.raises(CorruptStateError, match="Failed to open input stream for file: "):
        lake.catalog.tables.load(SLOT)


def test_the_next_commit_of_a_catalog_that_knows_it_writes_a_whole_file(lake: Folder) -> None:
    lake.file().unlink()
    done = lake.append(3, 2, 3)
    assert snapshots(done) == [1, 2, 3]
    assert lake.catalog.tables.load(SLOT) == done
    assert snapshots(lake.another().tables.load(SLOT)) == [1, 2, 3]
    lake.file(V).unlink()
    lake.catalog.views.commit(V, [], replaced("select 2"))
    assert len(lake.another().tables.load(V).parsed["versions"]) == 2


@pytest.mark.parametrize("together", [False, True])
def test_a_commit_of_a_catalog_that_does_not_know_it_changes_nothing_and_is_no_refusal(
    lake: Folder, together: bool
) -> None:
    lake.file().unlink()
    before, catalog = lake.pointer(), lake.another()

    def commit() -> None:
        if together:
            catalog.together.commit([Change(slot=SLOT, requirements=[], updates=SET)])
        else:
            catalog.tables.commit(SLOT, [], SET)

    with pytest.raises(CorruptStateError, match=r"The metadata file .* is missing; restore it") as raised:
        commit()
    assert "Failed to open" not in raised.value.message
    assert lake.pointer() == before


def test_an_earlier_file_gets_the_name_or_the_name_is_dropped(lake: Folder) -> None:
    lake.file().unlink()
    back = lake.another().names.register(SLOT, lake.first.location, overwrite=True)
    assert snapshots(back) == snapshots(lake.catalog.tables.load(SLOT)) == [1]
    lake.append(3, 1, 3)
    assert snapshots(lake.another().tables.load(SLOT)) == [1, 3]
    lake.file().unlink()
    lake.another().tables.drop(SLOT)
    with pytest.raises(NoSuchTableError):
        lake.catalog.tables.load(SLOT)


def test_a_store_over_a_network_is_not_asked_for_a_file_that_is_known() -> None:
    memory = MemoryStore()
    store, roots = FaultyStore(memory), WarehouseLayout(base="s3://tarn")
    catalog = Catalog(store, roots)
    catalog.namespaces.create(("ns",), {})
    catalog.tables.create(SLOT, NEW)
    known = catalog.tables.load(SLOT)
    memory.delete(roots.key(known.location))
    del store.seen[:]
    assert catalog.tables.load(SLOT) == known
    assert [(op.kind, op.key) for op in store.seen] == [("get", SLOT.key)]
    with pytest.raises(CorruptStateError, match="Failed to open input stream for file: "):
        Catalog(store, roots).tables.load(SLOT)


def test_only_a_folder_is_looked_into(tmp_path: Path) -> None:
    folder = FileStore(tmp_path)
    folder.put("a/b", b"1")
    assert (folder.exists("a/b"), folder.exists("a"), folder.exists("a/b/c"), folder.exists("b")) == (
        True,
        False,
        False,
        False,
    )
    bucket = S3Store(
        bucket="b", endpoint="http://127.0.0.1:9", region="x", access_key_id="x", secret_access_key="x"
    )
    local = [isinstance(store, LocalStore) for store in (folder, MemoryStore(), bucket)]
    assert local == [True, False, False]


# -- as clients see it


@pytest.fixture
def running(lake: Folder, tmp_path: Path) -> Iterator[Running]:
    with serving(lake.catalog, tmp_path / "secrets") as running:
        yield running


@pytest.fixture
def web(running: Running) -> Iterator[httpx.Client]:
    client_id, secret = running.credential.split(":")
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
    with httpx.Client(base_url=running.published, timeout=60) as client:
        token = client.post("/v1/oauth/tokens", data=form).json()["access_token"]
        client.headers["authorization"] = f"Bearer {token}"
        yield client


@pytest.mark.parametrize("path", [TABLE, f"{TABLE}?snapshots=refs", "/v1/namespaces/ns/views/v"])
def test_over_http_a_load_is_404_and_never_not_modified(lake: Folder, web: httpx.Client, path: str) -> None:
    whole = web.get(path)
    assert whole.status_code == 200
    have = {"if-none-match": whole.headers["etag"]}
    assert web.get(path, headers=have).status_code == 304
    lake.file(V if "/views/" in path else SLOT).unlink()
    for headers in ({}, have):
        message = error(web.get(path, headers=headers), 404, "NotFoundException")
        assert f"file: {whole.json()['metadata-location']}:" in message
    assert web.head(path).status_code == 204
    posted = {"requirements": [], "updates": SET}
    assert web.post(path.partition("?")[0], json=posted).status_code == 200
    assert web.get(path).json()["metadata"]["properties"]["a"] == "b"


def test_over_http_a_commit_is_never_404_for_it(lake: Folder, tmp_path: Path) -> None:
    lake.file().unlink()
    with serving(lake.another(), tmp_path / "secrets") as running:
        catalog = RestCatalog(running.published, warehouse="tarn", credential=lambda: running.credential)
        status, answer = catalog._ask("POST", TABLE, body={"requirements": [], "updates": SET}, what="commit")
    assert (status, b'"InternalServerException"' in answer) == (500, True)


def client(running: Running) -> PyIcebergCatalog:
    properties: dict[str, Any] = {
        "type": "rest",
        "uri": running.published,
        "oauth2-server-uri": f"{running.published}/v1/oauth/tokens",
        "credential": running.credential,
        "warehouse": "tarn",
    }
    return load_catalog("lake", **properties)


def test_tarns_own_clients_wait_for_it_and_do_not_take_the_table_for_dropped(
    lake: Folder, running: Running
) -> None:
    catalog = RestCatalog(running.published, warehouse="tarn", credential=lambda: running.credential)
    reader = LakeReader(client(running), "ns.t")
    lake.file().unlink()
    asked = (lambda: catalog.load(TableName(("ns",), "t")), reader.load)
    for ask in asked:
        with pytest.raises(UnavailableError, match="Failed to open input stream for file: "):
            ask()
    lake.catalog.tables.drop(SLOT)
    for ask in asked:
        with pytest.raises(TarnError) as raised:
            ask()
        assert isinstance(raised.value, NoSuchTableError)
