"""The status API over a lake in memory: exact figures, and answers that are as they are described."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import orjson
import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.manifests import read_list
from tarn.core.errors import InvalidSettingError, UnavailableError
from tarn.core.outcome import Unknown
from tarn.core.table_catalog import CommitDone, CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn.ingest import server
from tarn.ingest.lake_look import LakeSeen
from tarn.ingest.status import State, StatusRegistry
from tarn.ingest.status_api import views
from tarn.ingest.status_api.views import Engine, Query
from tarn.keeper.reaper import Reaper
from tarn.testing.memory_topic import Topic
from tests.contract.ingest import test_merge as merging
from tests.contract.ingest import test_retention as retention
from tests.support.lake import BUCKET, TABLE, Lake, LocalCatalog, order, spec
from tests.support.status_api import NOW_S, LakeTables, check, look_of, now_of, schema_of, served

SECRET = "sesame-of-a-row"


def lake_with(*batches: list[bytes], partitions: int = 1) -> Lake:
    """A lake whose ingestor has committed these batches, one by one."""
    topic = Topic("orders", partitions)
    lake = Lake(topic)
    ingestor = lake.ingestor()
    for batch in batches:
        topic.send(0, *batch)
        lake.work(ingestor, turns=40)
    return lake


def test_a_commit_is_shown_with_exact_counts() -> None:
    lake = lake_with([order(1), b"junk", order(2)], [order(3)])
    head = lake.table().head
    assert head is not None
    with served(lake.registry, now_ms=now_of(lake)) as client:
        page = client.get("/v1/commits")
        first, last = page["commits"]
        assert [one["rows"] for one in page["commits"]] == [2, 1]
        assert [one["badRecords"] for one in page["commits"]] == [1, 0]
        assert last["snapshotId"] == str(head["snapshot-id"])
        assert first["snapshotId"] == str(head["parent-snapshot-id"])
        assert last["commitId"] == head["summary"]["tarn.commit-id"]
        sizes = [entry.data_file.file_size_in_bytes for entry in lake.files()]
        assert sorted(one["bytes"] for one in page["commits"]) == sorted(sizes)
        assert {(one["kind"], one["outcome"], one["attempts"]) for one in page["commits"]} == {
            ("batch", "committed", 1)
        }
        assert {(one["ingestor"], one["reader"], one["table"]) for one in page["commits"]} == {
            ("orders", "orders", TABLE)
        }
        assert all(one["milliseconds"] > 0 for one in page["commits"])
        assert page["next"] == last["number"] > first["number"]
        assert client.get(f"/v1/commits?since={first['number']}")["commits"] == [last]
        assert client.get("/v1/commits?limit=1")["commits"] == [last]
        assert client.get("/v1/commits?since=0&limit=1") == page | {
            "commits": [first],
            "next": first["number"],
        }
        assert client.get(f"/v1/commits?since={page['next']}")["commits"] == []


class Silent(LocalCatalog):
    """Applies the first commit of the orders and loses its answer."""

    def __init__(self, lake: Lake) -> None:
        self.__dict__ = lake.local.__dict__
        self.losses = 1

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        done = super().commit(table, request, key=key)
        if table.name == "orders" and self.losses and isinstance(done, CommitDone):
            self.losses -= 1
            return Unknown(reason="the answer is lost")
        return done


def test_a_commit_whose_answer_was_lost_is_shown_once_and_as_resolved() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor()
    lake.work(ingestor, turns=5)
    lake.catalog = Silent(lake)
    ingestor = lake.ingestor()
    topic.send(0, order(1))
    lake.work(ingestor, turns=60)
    with served(lake.registry, now_ms=now_of(lake)) as client:
        (one,) = client.get("/v1/commits")["commits"]
        assert (one["outcome"], one["rows"], one["attempts"]) == ("resolved", 1, 1)
        shown = client.get("/v1/ingestors/orders")
        assert (shown["unknowns"], shown["unknownsResolved"], shown["commits"]) == (1, 1, 1)


def test_the_age_of_the_oldest_record_is_that_of_its_time_in_the_log() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    topic.times_ms = {0: now_of(lake)() - 5_000}
    topic.send(0, order(1))
    lake.work(lake.ingestor(), turns=40)
    topic.times_ms = {0: -1}
    with served(lake.registry, now_ms=now_of(lake)) as client:
        (one,) = client.get("/v1/commits")["commits"]
        shown = client.get("/v1/ingestors/orders")
        age_s = one["oldestAgeSeconds"]
        assert 5.0 <= age_s < 10.0
        assert shown["lastCommit"]["freshnessSeconds"] == age_s
        assert client.get(f"/v1/tables/{TABLE}")["freshnessSeconds"] == age_s
        assert (shown["freshness"]["batches"], shown["freshness"]["sumSeconds"]) == (1, age_s)
        within = [b["atMostSeconds"] for b in shown["freshness"]["buckets"] if b["batches"]]
        assert within == [10.0]


def test_merges_are_commits_too() -> None:
    lake, topic = merging.lake_with()
    merging.commits(lake, topic, lake.ingestor(merging.spec()), 9)
    with served(lake.registry, now_ms=now_of(lake)) as client:
        page = client.get("/v1/commits")["commits"]
        (merge,) = [one for one in page if one["kind"] == "merge"]
        assert merge["snapshotId"] == str(lake.table().head_id)
        assert (merge["rows"], merge["badRecords"], merge["oldestAgeSeconds"]) == (0, 0, None)
        assert merge["bytes"] in {entry.data_file.file_size_in_bytes for entry in lake.files()}
        assert client.get("/v1/ingestors/orders")["merges"] == 1
        assert sum(one["rows"] for one in page) == 45 == len(lake.rows())


def test_rows_that_are_dropped_because_of_their_age_are_a_commit_too() -> None:
    world = retention.World()
    world.send(60, 50)
    world.wait()
    lake = world.lake
    with served(lake.registry, now_ms=now_of(lake)) as client:
        batch, drop = client.get("/v1/commits")["commits"]
        assert (batch["kind"], batch["rows"], batch["rowsRemoved"]) == ("batch", 2, 0)
        assert (drop["kind"], drop["rows"], drop["rowsRemoved"], drop["bytes"]) == ("retirement", 0, 2, 0)
        assert drop["snapshotId"] == str(lake.table().head_id)
        assert client.get("/v1/ingestors/orders")["retiredRows"] == 2


def test_a_table_is_shown_as_its_files_are() -> None:
    lake = lake_with([order(1), order(2)], [order(3)])
    state, files = lake.table(), lake.files()
    assert state.head is not None
    listed = lake.objects.read(state.head["manifest-list"])
    manifests = read_list(listed)
    sizes = [len(lake.objects.read(manifest.manifest_path)) for manifest in manifests]
    wanted = {
        "name": TABLE,
        "rows": 3,
        "files": 2,
        "deleteFiles": 0,
        "bytes": sum(entry.data_file.file_size_in_bytes for entry in files),
        "snapshots": len(state.metadata["snapshots"]),
        "manifests": len(manifests),
        "metadataBytes": len(listed) + sum(sizes) + len(orjson.dumps(state.metadata)),
        "snapshotId": str(state.head_id),
        "ingestors": ["orders"],
    }
    look = look_of(lake, LakeTables(lake, TABLE, "ops.dead_letters"))
    for seen in (LakeSeen, look.seen):
        with served(lake.registry, lake=seen, now_ms=now_of(lake)) as client:
            (shown,) = client.get("/v1/tables")["tables"]
            assert wanted.items() <= shown.items(), "from the commit alone"
            detail = client.get(f"/v1/tables/{TABLE}")
            assert shown.items() <= detail.items()
            assert (detail["uuid"], detail["formatVersion"]) == (state.uuid, 2)


def test_what_others_write_is_shown_after_a_look_and_the_newest_version_wins() -> None:
    lake = lake_with([order(1)])
    tables = LakeTables(lake, TABLE)
    look = look_of(lake, tables)
    look.look()
    old = look.seen()
    topic = lake.sources.topics["orders"]
    topic.send(0, order(2))
    lake.clock.now_s += 60
    lake.work(lake.ingestor(registry=StatusRegistry()), turns=40)  # another process
    with served(lake.registry, lake=look.seen, now_ms=now_of(lake)) as client:
        assert client.get(f"/v1/tables/{TABLE}")["rows"] == 1, "nobody has looked"
        look.look()
        shown = client.get(f"/v1/tables/{TABLE}")
        assert (shown["rows"], shown["files"]) == (2, 2)
        assert shown["manifests"] == 2
        topic.send(0, order(3))
        lake.clock.now_s += 60
        lake.work(lake.ingestor(), turns=40)
        assert client.get(f"/v1/tables/{TABLE}")["rows"] == 3, "from the commit, before any look"
    with served(StatusRegistry(), lake=lambda: old) as client:
        assert client.get(f"/v1/tables/{TABLE}")["rows"] == 1
        assert client.get(f"/v1/tables/{TABLE}")["ingestors"] == []


def test_storage_is_what_the_reaper_measured() -> None:
    lake = lake_with([order(1)], [order(2)])
    look = look_of(lake, LakeTables(lake, TABLE))
    look.look()
    with served(lake.registry, lake=look.seen, now_ms=now_of(lake)) as client:
        page = client.get("/v1/storage")
        assert page["lookedAt"] is not None, "there is no measurement, and that is known"
        assert (page["measuredTables"], page["storedBytes"], page["waitingBytes"]) == (0, None, None)
        (shown,) = page["tables"]
        assert shown["dataBytes"] == sum(e.data_file.file_size_in_bytes for e in lake.files())
        assert (shown["storedBytes"], shown["waitingBytes"], shown["measuredAt"]) == (None, None, None)
        Reaper(lake.store, manifest_audit, bucket=BUCKET).run_once()
        look.look()
        page = client.get("/v1/storage")
        folder = lake.table().root.removeprefix(f"s3://{BUCKET}/")
        objects = list(lake.store.list(f"{folder}/"))
        (shown,) = [one for one in page["tables"] if one["table"] == TABLE]
        assert (shown["objects"], shown["storedBytes"]) == (
            len(objects),
            sum(one.size_bytes for one in objects),
        )
        assert shown["storedBytes"] == shown["dataBytes"] + shown["historyBytes"] + shown["waitingBytes"]
        assert page["storedBytes"] == sum(one["storedBytes"] or 0 for one in page["tables"])
        assert client.get(f"/v1/tables/{TABLE}")["storage"] == shown


def starting() -> tuple[StatusRegistry, Callable[[], LakeSeen]]:
    return StatusRegistry(since_ms=1_700_000_000_000), LakeSeen


def running() -> tuple[StatusRegistry, Callable[[], LakeSeen]]:
    lake = lake_with([order(1), b"junk"], [order(2)])
    look = look_of(lake, LakeTables(lake, TABLE, "ops.dead_letters"))
    look.look()
    lake.registry.record_check("catalog", ok=True, message="answers", looked_s=NOW_S - 1)
    lake.registry.update_audit(TABLE, at_ms=1_700_000_000_000, files=2, read=2, findings=("row lost",))
    return lake.registry, look.seen


def failed() -> tuple[StatusRegistry, Callable[[], LakeSeen]]:
    registry, seen = running()
    registry.update("orders", state=State.STOPPED, reason="OffsetGap", message="x" * 5_000, measured=False)
    registry.update("broken.yaml", state=State.INVALID, reason="InvalidSpec", message="unknown field")
    registry.update(
        "odd name/\u00e9",
        state=State.WAITING,
        reason="NoSuchTopic",
        table="bronze.\u00e9t\u00e9",
        topic="t",
        event_column="at",
        watermark_us=2**62,
        held_by=("s",),
    )
    registry.update_audit("bronze.\u00e9t\u00e9", reason="not finished", failures=3)
    registry.update("many/0", replica_of="many", replicas=2, committed={0: 5}, ends={0: 9, 1: 4})
    registry.update("many/1", replica_of="many", replicas=2, state=State.RUNNING, committed={1: 5})
    return registry, seen


def away() -> tuple[StatusRegistry, Callable[[], LakeSeen]]:
    lake = lake_with([order(1)])
    tables = LakeTables(lake, TABLE)

    def sizes() -> Any:
        raise UnavailableError("the store does not respond")

    look = look_of(lake, tables, sizes=sizes)
    look.look()
    tables.fault = UnavailableError("the catalog does not respond; wait")
    look.look()
    lake.registry.record_check("catalog", ok=False, message="no answer", looked_s=NOW_S - 1)
    return lake.registry, look.seen


@pytest.mark.parametrize("situation", [starting, running, failed, away])
def test_every_answer_is_as_it_is_described(
    situation: Callable[[], tuple[StatusRegistry, Callable[[], LakeSeen]]],
) -> None:
    registry, seen = situation()
    with served(registry, lake=seen) as client:
        found = client.everything()
        assert len(found) >= 7
        for status, path in ((404, "/v1/tables/a.b"), (404, "/v1/else"), (400, "/v1/tables?limit=0")):
            client.get(path, status)


def test_what_is_not_known_is_null_and_never_zero() -> None:
    registry, _ = starting()
    registry.update("orders", table="bronze.new", topic="orders", stream="orders")
    registry.update_audit("bronze.new", reason="not finished", failures=1)
    with served(registry) as client:
        shown = client.get("/v1/tables/bronze.new")
        counts = "rows files deleteFiles bytes snapshots manifests metadataBytes snapshotId lastCommitAt"
        for name in (*counts.split(), "freshnessSeconds", "seenAt", "uuid", "formatVersion"):
            assert shown[name] is None, name
        storage = shown["storage"]
        assert {name for name, value in storage.items() if value is not None} == {"table"}
        assert {name for name, value in shown["audit"].items() if value is not None} == {
            "findings",
            "reason",
            "failures",
        }
        ingestor = client.get("/v1/ingestors/orders")
        assert (ingestor["lag"], ingestor["lastCommit"], ingestor["since"]) == (None, None, None)
        assert ingestor["lagReason"].startswith("the table or the topic could not be asked")
        tables = client.get("/v1/tables")
        assert (tables["lookedAt"], tables["fault"]) == (None, None)
        assert client.get("/v1/storage")["lookedAt"] is None
        assert client.get("/v1/services")["services"] == []


def test_while_the_catalog_is_away_what_was_seen_is_shown_with_its_time() -> None:
    registry, seen = away()
    with served(registry, lake=seen) as client:
        page = client.get("/v1/tables")
        assert (page["fault"], page["tables"][0]["rows"]) == ("the catalog does not respond; wait", 1)
        assert page["lookedAt"] == page["tables"][0]["seenAt"], "of the look that was complete"
        storage = client.get("/v1/storage")
        assert (storage["fault"], storage["lookedAt"]) == ("the store does not respond", None)
        page = client.get("/v1/services")
        (service,) = page["services"]
        assert (service["name"], service["ok"], service["message"]) == ("catalog", False, "no answer")
        age = datetime.fromisoformat(page["at"]) - datetime.fromisoformat(service["lookedAt"])
        assert age == timedelta(seconds=1)
        index = client.get("/v1")
        assert (index["healthy"], index["faults"]) == (False, ["catalog: no answer"])


def test_a_failed_ingestor_says_why_and_its_readers_are_named() -> None:
    registry, seen = failed()
    with served(registry, lake=seen) as client:
        by_name = {one["name"]: one for one in client.get("/v1/ingestors")["ingestors"]}
        assert by_name["orders"]["state"] == "Stopped"
        assert by_name["orders"]["reason"] == "OffsetGap"
        assert len(by_name["orders"]["message"]) == 1_000
        assert by_name["broken.yaml"]["table"] is None
        assert by_name["many"]["state"] == "Starting"
        assert (by_name["many"]["replicas"], by_name["many"]["readyReplicas"]) == (2, 1)
        many = client.get("/v1/ingestors/many")
        assert [one["name"] for one in many["readers"]] == ["many/0", "many/1"]
        assert [(p["partition"], p["committedOffset"], p["endOffset"]) for p in many["partitions"]] == [
            (0, 5, 9),
            (1, 5, 4),
        ]
        assert {p["lag"] for p in many["partitions"]} == {None}, "no reader has measured"
        odd = client.get("/v1/ingestors/odd%20name%2F%C3%A9")
        assert odd["eventTime"] == {
            "column": "at",
            "watermark": None,
            "completeThrough": None,
            "heldBackBy": ["s"],
        }
        assert client.get("/v1/tables/bronze.%C3%A9t%C3%A9")["audit"]["reason"] == "not finished"
        audit = client.get(f"/v1/tables/{TABLE}")["audit"]
        assert (audit["whole"], audit["findings"], audit["filesRead"]) == (False, ["row lost"], 2)


INGESTORS = 500
ANSWER_BYTES_MAX = 1_000_000
ANSWER_S_MAX = 1.0


def many() -> StatusRegistry:
    registry = StatusRegistry()
    figures = lake_with([order(1)]).registry.get("orders").figures
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


def test_nothing_of_a_row_and_no_credential_is_in_any_answer() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    made = spec()
    topic.send(
        0,
        orjson.dumps({"id": 1, "at": "2026-11-21T08:00:00Z", "name": SECRET}),
        orjson.dumps({"id": SECRET}),
        SECRET.encode(),
    )
    lake.work(lake.ingestor(made), turns=40)
    assert SECRET in str(lake.rows("ops.dead_letters")), "the rows have it"
    look = look_of(lake, LakeTables(lake, TABLE, "ops.dead_letters"))
    look.look()
    with served(lake.registry, lake=look.seen) as client:
        for path, value in client.everything().items():
            assert SECRET not in str(value), path
        assert client.get("/v1/ingestors/orders")["badRecords"] == 2


def test_nobody_waits_for_a_catalog_that_hangs() -> None:
    lake = lake_with([order(1)])
    entered, go = threading.Event(), threading.Event()

    class Hanging(LakeTables):
        def tables(self) -> list[str]:
            entered.set()
            go.wait(30)
            return []

    look = look_of(lake, Hanging(lake))
    thread = threading.Thread(target=look.look, daemon=True)
    thread.start()
    try:
        assert entered.wait(10)
        with served(lake.registry, lake=look.seen) as client:
            began_s = time.monotonic()
            client.everything()
            assert time.monotonic() - began_s < 10
            assert thread.is_alive()
    finally:
        go.set()
        thread.join(10)


def test_a_deep_check_that_waits_holds_nobody_up() -> None:
    go, begun = threading.Event(), []

    def deep() -> list[str]:
        begun.append(1)
        go.wait(30)
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
                thread.join(10)
        assert begun == [1], "one look for all who ask"


def test_a_port_that_is_taken_is_named_with_its_variable() -> None:
    with served(StatusRegistry()) as client, pytest.raises(InvalidSettingError, match="TARN_INGEST_PORT"):
        server.StatusServer(StatusRegistry(), listen="127.0.0.1", port=client.port, clock=lambda: NOW_S)


def test_clients_that_are_idle_or_slow_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_WAIT_S", 0.5)
    with served(StatusRegistry()) as client:
        idle = [
            socket.create_connection(("127.0.0.1", client.port), timeout=10)
            for _ in range(server.CONNECTIONS_MAX + 20)
        ]
        slow = socket.create_connection(("127.0.0.1", client.port), timeout=10)
        try:
            slow.sendall(b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            assert client.ask("/health").status == 503
            client.get("/v1")
            began_s = time.monotonic()
            while slow.recv(1_000):
                continue
            assert time.monotonic() - began_s < 5, "its head did not come in time"
        finally:
            for one in (*idle, slow):
                one.close()
