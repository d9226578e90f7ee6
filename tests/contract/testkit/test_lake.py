"""The embedded lake: the product's catalog and ingest engine, with topics in memory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import requests
from pyiceberg.exceptions import CommitStateUnknownException, NoSuchNamespaceError, RESTError

from tarn.adapters.store import FileStore, S3Store
from tarn.controller import declaring
from tarn.core.errors import InvalidSpecError, UnavailableError
from tarn.core.naming import WarehouseLayout
from tarn.core.spec import parse_document
from tarn_catalog.operations.catalog import Catalog as Core
from tarn_catalog.testing.server import serving
from tarn_testkit import attached
from tarn_testkit.attached import AttachedLake
from tarn_testkit.embedded import EmbeddedLake
from tarn_testkit.environment import NAMES
from tarn_testkit.errors import (
    IngestorError,
    InvalidRowsError,
    KitError,
    NeedsStackError,
    SetupError,
    WaitError,
)
from tarn_testkit.lake import Lake, Namespace
from tarn_testkit.waiting import eventually

SPEC = """
apiVersion: tarn/v1
kind: Ingestor
metadata: {name: orders}
spec:
  source: {kafka: {topic: shop.orders, partitions: 3}}
  table: {namespace: bronze, name: orders}
  schema:
    fields:
      - {name: id, type: long, required: true}
      - {name: customer, type: string}
  batching: {maxLatencySeconds: 0.05}
"""
ROW = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("customer", pa.string())])


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    made = Lake(EmbeddedLake(tmp_path_factory.mktemp("lake")), session="abc123", embedded=True)
    yield made
    made.close()


@pytest.fixture
def namespace(lake: Lake, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    with lake.namespace(request.node.name) as made:
        yield made


def test_rows_go_from_the_topic_into_the_table_and_bad_ones_beside_it(
    namespace: Namespace, lake: Lake
) -> None:
    orders = namespace.ingest(SPEC)
    assert (orders.topic, orders.table) == (f"{namespace}.shop.orders", f"{namespace}.orders")
    last = orders.produce([{"id": n, "customer": f"c{n % 2}"} for n in range(20)], key="customer")
    orders.wait_for(last)
    assert sorted(row["id"] for row in orders.rows()) == list(range(20))
    places: dict[str, set[int]] = {}
    for row in lake.rows(orders.table, trace=True):
        places.setdefault(row["customer"], set()).add(row["_tarn"]["partition"])
        assert abs(row["_tarn"]["time"].timestamp() - time.time()) < 120, "the time of the message is real"
    assert [len(found) for found in places.values()] == [1, 1], "one partition for all messages of a key"
    orders.wait_for(orders.produce(["not json", {"id": None}]))
    lake.eventually(lambda: len(lake.rows(orders.dead_letters)) == 2, what="two dead letters")
    assert len(orders.rows()) == 20


def test_a_file_is_taken_as_it_is_in_production(namespace: Namespace, tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(SPEC)
    for given in (file, str(file)):
        orders = namespace.ingest(given)
        orders.delete()
    file.write_text(SPEC.replace("long", "lng"))
    with pytest.raises(InvalidSpecError, match=r"^orders\.yaml: spec\.schema\.fields\.0\.type: 'lng' is not"):
        namespace.ingest(file)
    with pytest.raises(FileNotFoundError, match=r"missing\.yaml"):
        namespace.ingest(tmp_path / "missing.yaml")


def test_a_namespace_leaves_nothing_behind(lake: Lake) -> None:
    with lake.namespace("gone") as namespace:
        orders = namespace.ingest(SPEC)
        orders.wait_for(orders.produce([{"id": 1}]))
        other = namespace.produce("other", ["x"])
        assert other == {0: 0}
        assert len(lake.catalog.list_tables(namespace.name)) == 2
    with pytest.raises(NoSuchNamespaceError):
        lake.catalog.list_tables(namespace.name)
    assert declaring.gone(lake.backend.specs, orders.name)
    assert isinstance(lake.backend, EmbeddedLake)
    assert not [topic for topic in lake.backend.topics.client.topics if topic.startswith(namespace.name)]


def test_an_ingestor_without_a_namespace_ends_with_the_test(lake: Lake) -> None:
    found = lake.ingest(SPEC)
    assert (found.name, found.table) == ("orders", "bronze.orders")
    lake.end_of_test()
    assert declaring.gone(lake.backend.specs, "orders")


def test_an_ingestor_that_the_lake_has_is_neither_changed_nor_deleted(lake: Lake) -> None:
    specs = lake.backend.specs
    declaring.put(specs, parse_document(SPEC, file="own"), "own", take_over=False)
    before = declaring.one(specs, "orders").declared
    with pytest.raises(IngestorError, match="the lake has an ingestor orders") as caught:
        lake.ingest(SPEC.replace("orders}\n  table", "orders, partitions: 2}\n  table"))
    assert "namespace.ingest" in str(caught.value)
    lake.end_of_test()
    after = declaring.one(specs, "orders").declared
    assert (after.generation, after.document) == (before.generation, before.document)
    declaring.request_deletion(specs, "orders")
    lake.eventually(lambda: declaring.gone(specs, "orders"))
    assert lake.ingest(SPEC).name == "orders"
    assert lake.ingest(SPEC).name == "orders", "its own may be declared again"


def test_an_ingestor_as_it_stands_leaves_no_table_that_was_not_there_before(tmp_path: Path) -> None:
    """Else the next session on the same lake meets a table whose offsets are of a topic that was deleted."""
    folder, own = tmp_path / "lake", SPEC.replace("name: orders}\n  schema", "name: own}\n  schema")
    made = Lake(EmbeddedLake(folder), session="one", embedded=True)
    made.catalog.create_namespace("bronze")
    made.catalog.create_table("bronze.kept", ROW)
    try:
        found = made.ingest(own.replace("{name: orders}\nspec", "{name: own}\nspec"))
        assert found.table == "bronze.own"
        found.wait_for(found.produce([{"id": 1}]))
        made.end_of_test()
        assert found.rows() == [{"id": 1, "customer": None}], "until the end of the session"
    finally:
        made.close()
    again = Lake(EmbeddedLake(folder), session="two", embedded=True)
    try:
        assert again.catalog.list_tables("bronze") == [("bronze", "kept")]
        assert again.ingest(own, timeout_s=20).table == "bronze.own"
    finally:
        again.close()


def test_what_a_namespace_has_is_dropped_though_the_topics_cannot_be(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(lake.backend, EmbeddedLake)
    broken = [True]
    delete = lake.backend.topics.delete

    def refuses(topic: str) -> None:
        if broken and topic.endswith(".one"):
            raise UnavailableError("Kafka does not answer")
        delete(topic)

    monkeypatch.setattr(lake.backend.topics, "delete", refuses)
    block = lake.namespace("torn")
    namespace = block.__enter__()
    lake.catalog.create_table(namespace.table("daily"), ROW)
    for topic in ("two", "one", "three"):
        namespace.produce(topic, ["x"])
    with pytest.raises(UnavailableError):
        block.__exit__(None, None, None)
    with pytest.raises(NoSuchNamespaceError):
        lake.catalog.list_tables(namespace.name)
    topics = lake.backend.topics.client.topics
    assert [name for name in topics if name.startswith(namespace.name)] == [f"{namespace}.one"]
    broken.clear()
    lake._delete_topics(f"{namespace}.")
    assert f"{namespace}.one" not in topics, "the end of the session tries again"


def test_a_wait_for_another_topic_names_those_that_the_table_has(namespace: Namespace, lake: Lake) -> None:
    orders = namespace.ingest(SPEC)
    orders.wait_for(orders.produce([{"id": 1}]))
    with pytest.raises(WaitError) as found:
        lake.wait_for("shop.orders", 0, orders.table, timeout_s=0.2)
    assert f"The table has offsets of topic {orders.topic}." in str(found.value)


def test_keys_of_another_stack_are_named(tmp_path: Path) -> None:
    core = Core(store := FileStore(str(tmp_path / "lake")), WarehouseLayout(base=f"file://{store.root}"))
    with serving(core, tmp_path / "secrets") as running:
        values = dict.fromkeys(NAMES, "x") | {
            "TARN_CATALOG_URI": running.published,
            "TARN_CATALOG_CREDENTIAL": "cli:old",
        }
        with pytest.raises(SetupError) as found:
            AttachedLake(values, faults=False)
    assert f"the catalog at {running.published} refuses what TARN_CATALOG_CREDENTIAL" in str(found.value)
    assert "scripts/tarn env > FILE, gives those of now" in str(found.value)


@pytest.mark.parametrize(("said", "taken"), [({"TARN_S3_BUCKET": "other"}, "other"), ({}, "tarn")])
def test_declared_ingestors_are_in_the_bucket_of_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, str], taken: str
) -> None:
    monkeypatch.delenv("TARN_BUCKET", raising=False)
    buckets: list[str] = []

    class Store(S3Store):
        def __init__(self, *, bucket: str, **access: str) -> None:
            buckets.append(bucket)
            super().__init__(bucket=bucket, **access)

    monkeypatch.setattr(attached, "S3Store", Store)
    core = Core(store := FileStore(str(tmp_path / "lake")), WarehouseLayout(base=f"file://{store.root}"))
    with serving(core, tmp_path / "secrets") as running:
        values = dict.fromkeys(NAMES, "x") | said
        values |= {
            "TARN_CATALOG_URI": running.published,
            "TARN_CATALOG_CREDENTIAL": running.credential,
            "TARN_S3_ENDPOINT": running.published,
            "TARN_WAREHOUSE": "tarn",
        }
        AttachedLake(values, faults=False).close()
    assert buckets == [taken]


class FakeTrino(BaseHTTPRequestHandler):
    """Answers each statement with one row, and keeps the connections that clients keep."""

    protocol_version = "HTTP/1.1"
    opened: ClassVar[set[object]] = set()

    def setup(self) -> None:
        self.opened.add(self)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.opened.discard(self)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        column = {"name": "n", "type": "bigint", "typeSignature": {"rawType": "bigint", "arguments": []}}
        found = {"id": "q", "infoUri": "", "columns": [column], "data": [[1]], "stats": {"state": "FINISHED"}}
        data = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        return


def test_questions_to_trino_leave_no_connections_behind(tmp_path: Path) -> None:
    """`lake.eventually(lambda: lake.trino.query(…))` asks five times a second."""
    core = Core(store := FileStore(str(tmp_path / "lake")), WarehouseLayout(base=f"file://{store.root}"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeTrino)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with serving(core, tmp_path / "secrets") as running:
        lake = AttachedLake(
            dict.fromkeys(NAMES, "x")
            | {
                "TARN_CATALOG_URI": running.published,
                "TARN_CATALOG_CREDENTIAL": running.credential,
                "TARN_WAREHOUSE": "tarn",
                "TARN_TRINO_URI": f"http://127.0.0.1:{server.server_address[1]}",
                "TARN_TRINO_EXTRA_CREDENTIALS": "secret:x",
            },
            faults=False,
        )
        for _ in range(20):
            assert lake.query("SELECT 1;") == [[1]]
        eventually(lambda: not FakeTrino.opened, timeout_s=60, what="no connection is open")
        cursors = [lake.cursor() for _ in range(3)]
        for cursor in cursors:
            assert cursor.execute("SELECT 1").fetchall() == [[1]]
        eventually(lambda: len(FakeTrino.opened) == 3, timeout_s=60, what="one open for each cursor")
        lake.close()
        eventually(lambda: not FakeTrino.opened, timeout_s=60, what="no connection is open")
    server.shutdown()
    server.server_close()


def test_a_wait_that_is_too_long_says_how_far_the_table_is_and_how_its_ingestor_is(
    namespace: Namespace, lake: Lake
) -> None:
    orders = namespace.ingest(SPEC)
    orders.wait_for(orders.produce([{"id": 1}], key=lambda _: b"k"))
    (partition,) = [p for p, offset in lake.offsets(orders.topic, orders.table).items() if offset == 1]
    with pytest.raises(WaitError, match=r"is at 1, offset 1 is wanted \(1 behind\)"):
        orders.wait_for({partition: 1}, timeout_s=0.2)
    with pytest.raises(WaitError) as found:
        orders.wait_for({partition: 4}, timeout_s=0.5)
    assert isinstance(found.value, AssertionError), "a test that waits in vain has failed, and is not broken"
    said = str(found.value)
    assert f"not within 0.5 s: table {orders.table} passed the offsets of topic {orders.topic}" in said
    assert f"partition {partition} is at 1, offset 4 is wanted (4 behind)" in said
    assert f"Ingestor {orders.name}: ready (Running), lag " in said
    with pytest.raises(WaitError, match="No ingestor that writes it is declared"):
        lake.wait_for("none", 0, namespace.table("none"), timeout_s=0.1)


def test_an_ingestor_that_does_not_run_says_why(namespace: Namespace) -> None:
    with pytest.raises(IngestorError) as found:
        namespace.ingest(SPEC.replace("spec:\n", "spec:\n  runAs: bob\n", 1), timeout_s=20)
    assert "not ready" in str(found.value)
    assert "bob" in str(found.value)
    namespace.ingest(SPEC)
    clash = SPEC.replace("{name: orders}\nspec", "{name: other}\nspec")
    with pytest.raises(InvalidSpecError, match=r"the spec: .* brings .* into spec\.table .* already"):
        namespace.ingest(clash)


def test_rows_that_cannot_be_sent_are_not_sent_in_part(namespace: Namespace) -> None:
    with pytest.raises(InvalidRowsError, match="row 1"):
        namespace.produce("some", ["a", object()])  # type: ignore[list-item]
    assert namespace.produce("some", ["b"]) == {0: 0}


def test_a_reply_is_lost_and_the_commit_is_made(namespace: Namespace, lake: Lake) -> None:
    lake.catalog.create_table(namespace.table("daily"), ROW)
    with lake.faults.drop_next_reply() as proxy:
        daily = proxy.catalog.load_table(namespace.table("daily"))
        with pytest.raises(requests.ConnectionError):
            daily.append(pa.table({"id": [1], "customer": ["a"]}, schema=ROW))
        proxy.wait_for_broken(timeout_s=60)
        assert (proxy.broken, proxy.statuses) == (["reply"], [200])
        proxy.catalog.load_table(namespace.table("daily")).append(
            pa.table({"id": [2], "customer": ["b"]}, schema=ROW)
        )
    assert sorted(row["id"] for row in lake.rows(namespace.table("daily"))) == [1, 2]


def test_a_commit_that_is_cut_off_is_not_made(namespace: Namespace, lake: Lake) -> None:
    lake.catalog.create_table(namespace.table("daily"), ROW)
    with lake.faults.proxy() as proxy:
        proxy.fail_next("cut")
        with pytest.raises(requests.ConnectionError):
            proxy.catalog.load_table(namespace.table("daily")).append(
                pa.table({"id": [1], "customer": ["a"]}, schema=ROW)
            )
        with pytest.raises(KitError, match="no such fault: 'lose'; choose one of reply, cut"):
            proxy.fail_next("lose")
        with pytest.raises(
            WaitError, match="2 writes to catalog broken; 1 were: does the client under test use"
        ):
            proxy.wait_for_broken(2, timeout_s=0.2)
    assert lake.rows(namespace.table("daily")) == []


@pytest.mark.parametrize(("fault", "ids"), [("503", []), ("503-done", [1]), ("late", [1])])
def test_a_commit_with_an_error_for_an_answer_is_made_or_not_as_its_fault_says(
    namespace: Namespace, lake: Lake, fault: str, ids: list[int]
) -> None:
    lake.catalog.create_table(namespace.table("daily"), ROW)
    with lake.faults.proxy() as proxy:
        daily = proxy.catalog.load_table(namespace.table("daily"))
        proxy.fail_next(fault)
        with pytest.raises((RESTError, CommitStateUnknownException)):
            daily.append(pa.table({"id": [1], "customer": ["a"]}, schema=ROW))
        assert (proxy.broken, proxy.late) == ([fault], 0)
    assert [row["id"] for row in lake.rows(namespace.table("daily"))] == ids
    assert proxy.late == (fault == "late"), "a block ends when the late write is made"


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda lake: lake.trino.query("SELECT 1"), "lake.trino"),
        (lambda lake: lake.trino.cursor(), "lake.trino"),
        (lambda lake: lake.spark, "lake.spark"),
        (lambda lake: lake.faults.kill("ingest"), "lake.faults.kill('ingest')"),
        (lambda lake: lake.faults.freeze("catalog"), "lake.faults.freeze('catalog')"),
        (lambda lake: lake.faults.proxy("gateway").__enter__(), "a proxy before gateway"),
    ],
)
def test_what_needs_a_stack_says_so_and_what_to_do(lake: Lake, use: Any, what: str) -> None:
    with pytest.raises(NeedsStackError) as found:
        use(lake)
    assert str(found.value).startswith(f"{what} needs a running stack, and this lake is embedded")
    assert 'eval "$(scripts/tarn env)"' in str(found.value)


def test_a_lake_that_is_kept_is_left_as_it_is(tmp_path: Path) -> None:
    kept = Lake(EmbeddedLake(tmp_path), session="kept", embedded=True, keep=True)
    with kept.namespace("some") as namespace:
        orders = namespace.ingest(SPEC)
        orders.wait_for(orders.produce([{"id": 1}]))
    assert [row["id"] for row in kept.rows(orders.table)] == [1]
    assert not declaring.gone(kept.backend.specs, orders.name)
    kept.close()
    again = Lake(EmbeddedLake(tmp_path), session="again", embedded=True)
    assert [row["id"] for row in again.rows(orders.table)] == [1], "its folder is a lake like any other"
    again.close()


def test_readers_wait_for_messages_instead_of_turning(
    lake: Lake, namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lake that waits takes hardly any processor time: a reader polls four times a second."""
    namespace.ingest(SPEC)
    polls: list[float] = []
    assert isinstance(lake.backend, EmbeddedLake)
    monkeypatch.setattr(lake.backend.topics.client, "on_poll", lambda: polls.append(time.monotonic()))
    lake.eventually(lambda: polls, timeout_s=60, what="a reader that polls")
    began_s, before = time.monotonic(), len(polls)
    time.sleep(1)
    assert len(polls) - before < 30 * (time.monotonic() - began_s)


def test_nothing_found_is_waited_for(lake: Lake) -> None:
    looks = iter([None, False, [], 0, ["row"]])
    assert lake.eventually(lambda: next(looks), timeout_s=5, pause_s=0) == ["row"]
    with pytest.raises(WaitError, match=r"not within 0 s: a row of bronze; the last result was \[\]$"):
        lake.eventually(lambda: [], timeout_s=0, pause_s=0, what="a row of bronze")


def test_its_status_is_what_the_command_line_shows(namespace: Namespace) -> None:
    orders = namespace.ingest(SPEC)
    found = orders.status()
    assert json.loads(json.dumps(found)) == found
    assert found["status"]["table"] == orders.table
