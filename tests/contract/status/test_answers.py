"""The status API over a lake in memory: exact figures, and answers that are as they are described."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import orjson
import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.manifests import read_list
from tarn.core.errors import UnavailableError
from tarn.core.outcome import Unknown
from tarn.core.table_catalog import CommitDone, CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn.ingest.lake_look import LakeSeen
from tarn.ingest.status import State, StatusRegistry
from tarn.keeper.reaper import Reaper
from tarn.testing.memory_topic import Topic
from tests.contract.ingest import test_merge as merging
from tests.contract.ingest import test_retention as retention
from tests.support.lake import BUCKET, TABLE, Lake, LocalCatalog, foreign_snapshot, order, spec
from tests.support.status_api import NOW_S, LakeTables, into, look_of, now_of, served

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
    """Applies the first commit of the orders and loses its answer; then somebody else commits."""

    def __init__(self, lake: Lake) -> None:
        self.__dict__ = lake.local.__dict__
        self.losses = 1

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        done = super().commit(table, request, key=key)
        if table.name == "orders" and self.losses and isinstance(done, CommitDone):
            self.losses -= 1
            assert foreign_snapshot(self, table, 1)
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
        head = lake.table().head
        assert head is not None
        assert one["snapshotId"] == str(head["parent-snapshot-id"]), "not that of the other one"
        last = client.get("/v1/ingestors/orders")["lastCommit"]
        assert (last["snapshotId"], last["at"]) == (one["snapshotId"], one["at"])
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
        table = client.get(f"/v1/tables/{TABLE}")
        assert (table["files"], table["seenAt"]) == (len(lake.files()), merge["at"]), "as it left them"
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
    with served(lake.registry, lake=look.seen, look=into(lake, LakeTables(lake))) as client:
        answers = client.everything(looks=True)
        assert f"/v1/tables/{TABLE}/files" in answers
        for path, value in answers.items():
            assert SECRET not in str(value), path
        assert client.get("/v1/ingestors/orders")["badRecords"] == 2


ODD: dict[str, dict[str, Any]] = {
    "an id below zero": {"snapshot-id": -7},
    "a time that no calendar has": {"timestamp-ms": 2**63 - 1},
    "a time in microseconds": {"timestamp-ms": 1_795_000_000_000_000},
    "totals of thousands of digits": {"summary": {"operation": "append", "total-records": "9" * 5_000}},
    "a number below zero": {"sequence-number": -3, "parent-snapshot-id": None},
}


@pytest.mark.parametrize("what", ODD)
def test_a_snapshot_as_only_others_write_it_hides_no_table(what: str) -> None:
    """The catalog takes what the specification allows; one such table must not end the page of all others."""
    lake = lake_with([order(1)])
    state = lake.table()
    assert state.head is not None
    snapshot = {
        **state.head,
        "snapshot-id": 77,
        "parent-snapshot-id": state.head_id,
        "sequence-number": state.last_sequence + 1,
        **ODD[what],
    }
    at = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **at}]
    lake.local.catalog.tables.commit(lake.local._slot(TableName(("bronze",), "orders")), [], updates)
    tables = LakeTables(lake, TABLE, "ops.dead_letters")
    look = look_of(lake, tables)
    look.look()
    assert look.seen().fault == ""
    with served(lake.registry, lake=look.seen, now_ms=now_of(lake), look=into(lake, tables)) as client:
        found = client.everything(looks=True)
        shown = {one["name"]: one for one in found["/v1/tables"]["tables"]}
        assert shown.keys() == {TABLE, "ops.dead_letters"}
        if snapshot["sequence-number"] > 0:  # or the versions of the table are not in the order of these
            assert shown[TABLE]["snapshotId"] == str(snapshot["snapshot-id"])
        far = snapshot["timestamp-ms"] > 10**15
        assert (shown[TABLE]["lastCommitAt"] is None) == far, "no calendar has it"
        page = found[f"/v1/tables/{TABLE}/snapshots"]
        first = client.get(f"/v1/tables/{TABLE}/snapshots?limit=1")
        rest = client.get(f"/v1/tables/{TABLE}/snapshots?after={first['next']}")
        assert [*first["snapshots"], *rest["snapshots"]] == page["snapshots"]
        newest = next(one for one in page["snapshots"] if one["current"])
        assert (newest["snapshotId"], newest["at"] is None) == (str(snapshot["snapshot-id"]), far)
        if "totals" in what:
            assert (shown[TABLE]["rows"], newest["rows"]) == (None, None)
