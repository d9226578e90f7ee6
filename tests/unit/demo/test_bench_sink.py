"""Iceberg's sink in `scripts/bench peers`: its connector, and how the end of its work is seen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.catalog import Catalog

from tarn.cli.settings import Settings
from tarn.core.errors import InvalidError, UnavailableError
from tarn_demo.bench import sink
from tarn_demo.bench.peers import SCHEMA

RUNNING = {"connector": {"state": "RUNNING"}, "tasks": [{"id": 0, "state": "RUNNING"}]}


class Worker:
    """A worker's REST interface: what it was asked, and what it answers."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.statuses: list[Any] = [RUNNING]
        self.put = (201, "{}")
        self.refused: list[int] = []

    def answer(self, method: str, path: str, body: Any) -> tuple[int, str]:
        self.asked.append((method, path, body))
        if self.refused:
            return self.refused.pop(), "starting"
        if method == "PUT":
            return self.put
        if path.endswith("/status"):
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            return (404, "no status") if status is None else (200, json.dumps(status))
        return (204, "") if method == "DELETE" else (200, "[]")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    fake = Worker()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, text = fake.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_PUT = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_words: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(sink, "HOST", "127.0.0.1")
    monkeypatch.setattr(sink, "PORT", server.server_port)
    monkeypatch.setattr(sink, "LOOK_S", 0.001)
    yield fake
    server.shutdown()
    server.server_close()


def lake(*held: tuple[int, float]) -> Catalog:
    """A catalog whose table has at each look so many rows, committed at that Unix time; then the last."""
    looks = list(held)

    def load_table(_name: str) -> Any:
        rows, at = looks.pop(0) if len(looks) > 1 else looks[0]
        made = SimpleNamespace(
            summary={"total-records": str(rows)}, timestamp_ms=int(at * 1_000), sequence_number=7
        )
        return SimpleNamespace(current_snapshot=lambda: made if rows else None)

    return cast(Catalog, SimpleNamespace(load_table=load_table))


def test_the_connector_names_its_table_and_keeps_no_secret() -> None:
    found = sink.connector("bench-200-0", "bench.connect_200_0", Settings())
    assert found["topics"] == "bench-200-0"
    assert found["iceberg.tables"] == "bench.connect_200_0"
    assert found["iceberg.tables.route-field"] == "id"
    assert found["iceberg.table.bench.connect_200_0.route-regex"] == ".+"
    assert found["iceberg.tables.auto-create-enabled"] == "false"
    assert found["iceberg.control.commit.interval-ms"] == "1000"
    assert (found["errors.tolerance"], found["errors.deadletterqueue.topic.name"]) == (
        "all",
        sink.letters_topic("bench.connect_200_0"),
    )
    secrets = {key: value for key, value in found.items() if value.startswith("${")}
    assert set(secrets) == {
        "iceberg.catalog.credential",
        "iceberg.catalog.s3.access-key-id",
        "iceberg.catalog.s3.secret-access-key",
    }
    assert all(value.startswith("${directory:/run/tarn/secrets:") for value in secrets.values())


def test_the_sink_fills_the_columns_that_the_others_have() -> None:
    found = sink.connector("topic", "bench.t", Settings())
    places = {found["transforms.place.partition.field"], found["transforms.place.offset.field"]}
    assert places == {SCHEMA.names[0], SCHEMA.names[1]}
    assert found["iceberg.tables.route-field"] in [one.name for one in SCHEMA if not one.nullable]


def test_each_table_has_topics_of_its_own() -> None:
    made = {kind(table) for table in ("a.b", "a.c") for kind in (sink.control_topic, sink.letters_topic)}
    assert len(made) == 4


@pytest.mark.long
def test_a_drain_ends_with_the_commit_that_completes_the_rows(worker: Worker) -> None:
    worker.refused = [503, 404]
    worker.statuses = [None, RUNNING]
    began = time.time()
    found = sink.drain(lake((0, 0), (40, began + 1), (98, began + 500)), Settings(), "t", "bench.t", 98)
    assert found["commits"] == 7
    assert found["seconds"] == pytest.approx(500, abs=50), "from the request, to the snapshot's own time"
    methods = [(method, path) for method, path, _ in worker.asked]
    assert methods[:3] == [("GET", "/connectors")] * 3, "it waits until the worker is ready"
    assert methods[3] == ("PUT", "/connectors/bench-t/config")
    assert methods[-1] == ("DELETE", "/connectors/bench-t")
    assert worker.asked[3][2] == sink.connector("t", "bench.t", Settings())


@pytest.mark.long
def test_a_task_that_failed_ends_the_drain_with_its_cause(worker: Worker) -> None:
    trace = "ConnectException: Exiting\n\tat a.b\nCaused by: x.DataException: offset: 50\nCaused by: y.Null\n"
    failed = {"connector": {"state": "RUNNING"}, "tasks": [{"state": "FAILED", "trace": trace}]}
    worker.statuses = [RUNNING, failed]
    with pytest.raises(UnavailableError, match=r"into bench\.t failed: Caused by: y\.Null; its own words"):
        sink.drain(lake((1, 1)), Settings(), "t", "bench.t", 98)
    assert worker.asked[-1][:2] == ("DELETE", "/connectors/bench-t")


def test_a_drain_that_stands_still_ends(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "STALL_S_MAX", 0.05)
    with pytest.raises(UnavailableError, match=r"bench\.t has 40 rows of 98, and got none"):
        sink.drain(lake((40, 1)), Settings(), "t", "bench.t", 98)
    assert worker.asked[-1][0] == "DELETE"


@pytest.mark.long
def test_a_connector_that_is_refused_says_why(worker: Worker) -> None:
    worker.put = (400, '{"message": "Must specify table name(s)"}')
    with pytest.raises(InvalidError, match=r"400 .*Must specify table name"):
        sink.drain(lake((0, 0)), Settings(), "t", "bench.t", 98)


@pytest.mark.long
def test_a_connector_that_was_not_taken_is_not_waited_for(worker: Worker) -> None:
    worker.put = (404, "not found")
    with pytest.raises(UnavailableError, match=r"PUT /connectors/bench-t/config: 404"):
        sink.drain(lake((0, 0)), Settings(), "t", "bench.t", 98)
    assert worker.asked[-1][0] == "PUT"


def test_a_worker_that_is_not_there_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "HOST", "127.0.0.1")
    monkeypatch.setattr(sink, "PORT", 1)
    monkeypatch.setattr(sink, "LOOK_S", 0.001)
    monkeypatch.setattr(sink, "READY_S_MAX", 0.05)
    with pytest.raises(UnavailableError, match="does not answer GET /connectors"):
        sink.drain(lake((0, 0)), Settings(), "t", "bench.t", 98)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (RUNNING, ""),
        ({}, ""),
        ({"connector": {"state": "FAILED", "trace": "ConfigException: no\n\tat x"}}, "ConfigException: no"),
        ({"connector": {"state": "RUNNING"}, "tasks": [{"state": "FAILED"}]}, "no reason is given"),
    ],
)
def test_a_failure_is_the_deepest_cause(status: dict[str, Any], said: str) -> None:
    assert sink.failure(status) == said
