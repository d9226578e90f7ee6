"""Requests to the status API: bounded answers, pages, errors, and clients that keep nobody out."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest

from tarn.core.errors import InvalidSettingError
from tarn.ingest import server
from tarn.ingest.lake_look import LakeSeen
from tarn.ingest.status import State, StatusRegistry
from tarn.ingest.status_api import views
from tarn.ingest.status_api.shapes import Query
from tarn.ingest.status_api.views import Engine
from tarn.testing.memory_topic import Topic
from tests.support.lake import Lake, order
from tests.support.status_api import NOW_S, LakeTables, check, look_of, schema_of, served


def filled() -> Lake:
    """A lake whose ingestor has committed one row."""
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    lake.work(lake.ingestor(), turns=40)
    return lake


INGESTORS = 500
ANSWER_BYTES_MAX = 1_000_000
ANSWER_S_MAX = 1.0


def many() -> StatusRegistry:
    registry = StatusRegistry()
    figures = filled().registry.get("orders").figures
    for number in range(INGESTORS):
        registry.update(
            f"i{number:03}",
            state=State.WAITING,
            reason="Unavailable",
            message="m" * 300,
            table=f"bronze.t{number:03}",
            topic=f"t{number:03}",
            stream=f"i{number:03}",
            measured=True,
            committed=dict.fromkeys(range(12), 2**40),
            ends=dict.fromkeys(range(12), 2**41),
            commit_at_ms=1_700_000_000_000,
            figures=figures,
        )
    return registry


@pytest.mark.parametrize("path", ["/v1/ingestors", "/v1/tables", "/v1/storage", "/v1/ingestors/i499", "/v1"])
def test_five_hundred_ingestors_are_answered_in_bounded_time_and_bytes(path: str) -> None:
    registry = many()
    engine = Engine(
        registry=registry,
        lake=LakeSeen,
        clock=lambda: NOW_S,
        now_ms=lambda: 0,
        started_ms=0,
        version="1",
    )
    with served(registry) as client:
        body = client.ask(path).body
        client.get(path)
    assert len(body) < ANSWER_BYTES_MAX
    began_s = time.thread_time()
    views.ingestors(engine, Query()).model_dump_json()
    views.tables(engine, Query()).model_dump_json()
    assert time.thread_time() - began_s < ANSWER_S_MAX


def test_what_a_page_or_a_table_shows_is_worked_out_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the browser asks for five pages of tables every two seconds."""
    worked: list[int] = []
    newest = views.newest
    monkeypatch.setattr(views, "newest", lambda *found: (worked.append(1), newest(*found))[1])
    with served(many()) as client:
        for path, most in (
            ("/v1/tables?limit=7", 7),
            ("/v1/storage?limit=7", 7),
            ("/v1/tables/bronze.t250", 1),
        ):
            del worked[:]
            client.get(path)
            assert len(worked) == most, path


@pytest.mark.parametrize("limit", [1, 7, 499, 500, 501])
def test_pages_have_every_name_once(limit: int) -> None:
    registry = many()
    with served(registry) as client:
        for what in ("ingestors", "tables", "storage"):
            key, name = ("tables", "table") if what == "storage" else (what, "name")
            path = f"/v1/{what}?limit={limit}"
            names: list[str] = []
            after: str | None = ""
            while after is not None and len(names) <= INGESTORS:
                page = client.get(f"{path}&after={after}" if after else path)
                assert len(page[key]) <= limit
                assert page["total"] == INGESTORS
                names += [one[name] for one in page[key]]
                after = page["next"]
                if limit == 1 and len(names) == 5:
                    break
            expected = sorted(names)
            assert names == expected
            assert len(set(names)) == (5 if limit == 1 else INGESTORS)


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/commits?limit=0", "limit", "0"),
        ("/v1/commits?limit=1001", "limit", "1001"),
        ("/v1/commits?limit=", "limit", ""),
        ("/v1/commits?since=-1", "since", "-1"),
        ("/v1/commits?since=9007199254740992", "since", "9007199254740992"),
        ("/v1/commits?since=%D9%A1", "since", "\u0661"),
        ("/v1/commits?limit=1&limit=2", "limit", "2"),
        ("/v1/commits?after=x", "after", "x"),
        ("/v1/tables?after=", "after", ""),
        ("/v1/tables/a.b?limit=1", "limit", "1"),
        ("/v1/tables?after=%FF", "query", "after=%FF"),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value_and_what_to_do(path: str, field: str, value: str) -> None:
    with served(StatusRegistry()) as client:
        error = client.get(path, 400)["error"]
        assert (error["type"], error["code"], error["field"], error["value"]) == (
            "BadRequest",
            400,
            field,
            value,
        )
        assert error["fix"]
        assert error["fix"] in error["message"]


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("/v1/tables/a.b", "GET /v1/tables"),
        ("/v1/ingestors/x%2Fy", "GET /v1/ingestors"),
        ("/v1/ingestors/%FF", "GET /v1"),
        ("/v1/", "GET /v1"),
        ("/v1/tables/", "GET /v1"),
        ("/v1/tables/a/b", "GET /v1"),
    ],
)
def test_what_does_not_exist_is_said_to_be_so(path: str, fix: str) -> None:
    with served(StatusRegistry()) as client:
        error = client.get(path, 404)["error"]
        assert (error["type"], error["code"]) == ("NotFound", 404)
        assert error["fix"].startswith(fix)


def test_only_reading_is_served_and_only_known_hosts() -> None:
    with served(StatusRegistry()) as client:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
            reply = client.ask("/v1/tables", method=method)
            assert (reply.status, reply.headers["allow"]) == (405, "GET"), method
        for host in ("evil.example:8091", ""):
            reply = client.ask("/v1/tables", host=host)
            assert reply.status == 421
            check(schema_of("/v1/tables", 421), reply.json)
            assert "TARN_HOSTS" in reply.json["error"]["message"]
        reply = client.ask("/v1/tables", origin="http://evil.example")
        assert "access-control-allow-origin" not in reply.headers, "its page cannot read it"
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["x-content-type-options"] == "nosniff"


def test_nobody_waits_for_a_catalog_that_hangs() -> None:
    lake = filled()
    entered, go = threading.Event(), threading.Event()

    class Hanging(LakeTables):
        def tables(self) -> list[str]:
            entered.set()
            go.wait(110)
            return []

    look = look_of(lake, Hanging(lake))
    thread = threading.Thread(target=look.look, daemon=True)
    thread.start()
    try:
        assert entered.wait(60)
        with served(lake.registry, lake=look.seen) as client:
            began_s = time.monotonic()
            client.everything()
            assert time.monotonic() - began_s < 60
            assert thread.is_alive()
    finally:
        go.set()
        thread.join(60)


def test_a_deep_check_that_waits_holds_nobody_up() -> None:
    go, begun = threading.Event(), []

    def deep() -> list[str]:
        begun.append(1)
        go.wait(110)
        return []

    registry = StatusRegistry()
    for name in ("store", "catalog", "kafka"):
        registry.record_check(name, ok=True, message="answers", looked_s=NOW_S)
    with served(registry, deep=deep) as client:
        asking = [threading.Thread(target=client.ask, args=("/health?deep",)) for _ in range(5)]
        for thread in asking:
            thread.start()
        try:
            client.get("/v1/services")
            assert client.ask("/health").status == 200
        finally:
            go.set()
            for thread in asking:
                thread.join(60)
        assert begun == [1], "one look for all who ask"


def test_a_port_that_is_taken_is_named_with_its_variable() -> None:
    with served(StatusRegistry()) as client, pytest.raises(InvalidSettingError, match="TARN_INGEST_PORT"):
        server.StatusServer(StatusRegistry(), listen="127.0.0.1", port=client.port, clock=lambda: NOW_S)


def test_clients_that_are_idle_or_slow_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_WAIT_S", 0.5)
    with served(StatusRegistry()) as client:
        idle = [
            socket.create_connection(("127.0.0.1", client.port), timeout=60)
            for _ in range(server.CONNECTIONS_MAX + 20)
        ]
        slow = socket.create_connection(("127.0.0.1", client.port), timeout=60)
        try:
            slow.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            assert client.ask("/health").status == 503
            client.get("/v1")
            began_s = time.monotonic()
            with suppress(ConnectionResetError):  # closed before the server has read what it sent
                while slow.recv(1_000):
                    continue
            assert time.monotonic() - began_s < 50, "its head did not come in time"
        finally:
            for one in (*idle, slow):
                one.close()
