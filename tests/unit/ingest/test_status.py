"""The registry, its health verdict, and its pages."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import fields
from http.client import HTTPConnection

import pytest

from tarn.core.errors import InvalidSettingError
from tarn.core.hosts import parse_names
from tarn.ingest.figures import TableFigures
from tarn.ingest.health import CONTROLLER, faults, hanging
from tarn.ingest.metrics import to_metrics
from tarn.ingest.server import StatusServer
from tarn.ingest.settings import Settings
from tarn.ingest.status import IngestorStatus, State, StatusRegistry

NOW = 1_000.0


def figures(**changes: object) -> TableFigures:
    found: dict[str, object] = {name.name: None for name in fields(TableFigures)}
    return TableFigures(**(found | {"uuid": "u", "sequence": 1, "updated_ms": 1} | changes))  # type: ignore[arg-type]


def registry(**changes: object) -> StatusRegistry:
    found = StatusRegistry()
    for name in ("store", "catalog", "kafka"):
        found.record_check(name, ok=True, message="answers", looked_s=NOW - 1)
    status = {"state": State.RUNNING, "beat_s": NOW - 1, "progress_s": NOW - 1, "table": "a.b"} | changes
    found.update("orders", **status)
    return found


def test_it_is_healthy_when_everything_answers_and_every_loop_turns():
    assert faults(registry(), now_s=NOW) == []


@pytest.mark.parametrize("state", [State.STOPPED, State.INVALID, State.FINISHED])
def test_what_waits_for_a_person_is_no_fault_of_the_service(state):
    assert faults(registry(state=state, beat_s=0.0), now_s=NOW) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"state": State.WAITING, "message": "the catalog is away"}, "Waiting: the catalog is away"),
        ({"state": State.STARTING}, "Starting: not ready yet"),
        ({"beat_s": NOW - 61}, "no sign of life for 61 s"),
    ],
)
def test_an_ingestor_that_cannot_work_is_a_fault(changes, told):
    (fault,) = faults(registry(**changes), now_s=NOW)
    assert fault == f"ingestor orders: {told}"


@pytest.mark.parametrize(
    "changes",
    [
        {"state": State.STOPPED, "reason": "InvalidSpec", "message": "column id is long"},
        {"state": State.INVALID, "reason": "InvalidSpec", "message": "unknown field"},
        {"state": State.WAITING, "reason": "NoSuchTopic", "message": "topic orders does not exist"},
        {"state": State.WAITING, "reason": "CrashLoop", "message": "writer ended 3 times in a row"},
    ],
)
def test_what_waits_for_a_person_is_told_and_is_no_fault_of_the_service(changes):
    found = registry(**changes)
    assert faults(found, now_s=NOW, deep=True) == []
    assert found.get("orders").to_json()["conditions"][0]["status"] is False
    assert 'tarn_ingest_running{ingestor="orders",table="a.b"} 0' in to_metrics(found)


def test_a_dependency_that_fails_or_does_not_answer_is_a_fault():
    found = registry()
    found.record_check("store", ok=False, message="may not read", looked_s=NOW)
    found.record_check("kafka", ok=True, message="answers", looked_s=NOW - 30)
    assert faults(found, now_s=NOW) == ["kafka: no answer for 30 s", "store: may not read"]


def test_without_a_look_nothing_is_proven():
    assert faults(StatusRegistry(), now_s=NOW) == ["no dependency was looked at yet"]


def test_the_deep_look_asks_that_lag_is_worked_off():
    stuck = registry(committed={0: 5}, ends={0: 9}, measured=True, progress_s=NOW - 121)
    assert faults(stuck, now_s=NOW) == []
    assert faults(stuck, now_s=NOW, deep=True) == ["ingestor orders: 4 behind, no commit for 121 s"]
    assert (
        faults(registry(committed={0: 9}, ends={0: 9}, measured=True, progress_s=0.0), now_s=NOW, deep=True)
        == []
    )


def test_an_ingestor_hangs_only_where_nothing_is_in_its_way():
    found = registry(beat_s=NOW - 301)
    assert hanging(found, now_s=NOW) == ["ingestor orders hangs: no sign of life for 301 s"]
    assert hanging(registry(beat_s=NOW - 299), now_s=NOW) == []
    assert hanging(registry(beat_s=NOW - 301, state=State.WAITING), now_s=NOW) == []
    found.record_check("catalog", ok=False, message="no answer", looked_s=NOW)
    assert hanging(found, now_s=NOW) == []
    found.record_check("catalog", ok=True, message="answers", looked_s=NOW - 30)
    assert hanging(found, now_s=NOW) == [], "the last look at the catalog has not come back"


def test_metrics_are_in_the_text_form_of_prometheus():
    found = registry(committed={0: 5, 1: 2}, ends={0: 9, 1: 2}, measured=True)
    found.add("orders", rows=7, bad_records=1, commits=2)
    text = to_metrics(found)
    assert "# TYPE tarn_ingest_rows_total counter" in text
    assert 'tarn_ingest_rows_total{ingestor="orders",table="a.b"} 7' in text
    assert 'tarn_ingest_lag_offsets{ingestor="orders",table="a.b"} 4' in text
    assert 'tarn_ingest_running{ingestor="orders",table="a.b"} 1' in text
    assert text.endswith("\n")


def test_each_metric_is_the_value_of_its_name():
    found = registry(committed={0: 5}, ends={0: 9}, measured=True, commit_ms=1_500.0)
    amounts = {"rows": 11, "bad_records": 12, "bytes": 13, "commits": 14, "merges": 15}
    found.add("orders", **amounts, snapshots=18, conflicts=16, unknowns=17, resolved=19, retries=20)
    found.add("orders", events=26, events_failed=27, retired_rows=28, retired_files=29)
    found.update("orders", figures=figures(files=21, bytes=22, snapshots=23, manifests=24, metadata_bytes=25))
    found.observe("orders", 0.1)
    found.observe("orders", 4_000.0)
    said = dict(
        line.removeprefix("tarn_ingest_").rsplit(" ", 1)
        for line in to_metrics(found).splitlines()
        if not line.startswith("#")
    )
    labels = '{ingestor="orders",table="a.b"}'
    buckets = {name: value for name, value in said.items() if name.startswith("freshness_seconds_bucket")}
    assert {name.removesuffix(labels): value for name, value in said.items() if name not in buckets} == {
        "rows_total": "11",
        "bad_records_total": "12",
        "bytes_total": "13",
        "commits_total": "14",
        "snapshots_total": "18",
        "merges_total": "15",
        "conflicts_total": "16",
        "unknown_outcomes_total": "17",
        "unknown_outcomes_resolved_total": "19",
        "retries_total": "20",
        "table_manifests": "24",
        "table_metadata_bytes": "25",
        "events_total": "26",
        "events_failed_total": "27",
        "retired_rows_total": "28",
        "retired_files_total": "29",
        "lag_offsets": "4",
        "last_commit_seconds": "1.5",
        "running": "1",
        "ready_replicas": "1",
        "table_data_files": "21",
        "table_bytes": "22",
        "table_snapshots": "23",
        "freshness_seconds_sum": "4000.1",
        "freshness_seconds_count": "2",
    }
    assert list(buckets.values()) == ["1"] * 12 + ["2"], "a bound belongs to its bucket, +Inf holds all"


def get(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=50) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read()


def test_the_pages():
    found = registry()
    deep: list[str] = []
    server = StatusServer(found, listen="127.0.0.1", port=0, clock=lambda: NOW, deep=lambda: deep)
    server.start()
    try:
        assert get(server.port, "/health") == (200, b'{"healthy":true,"faults":[],"hanging":[]}')
        deep.append("store: cannot be written")
        assert get(server.port, "/health")[0] == 200
        status, body = get(server.port, "/health?deep")
        assert (status, json.loads(body)["faults"]) == (503, ["store: cannot be written"])
        found.update("orders", committed={0: 5}, ends={0: 9}, measured=True, progress_s=NOW - 121)
        assert (get(server.port, "/health")[0], get(server.port, "/health?lag")[0]) == (200, 503)
        found.update("orders", state=State.WAITING, message="no broker")
        assert get(server.port, "/health")[0] == 503
        status, body = get(server.port, "/status")
        page = json.loads(body)
        assert status == 200
        assert page["ingestors"]["orders"]["conditions"][0]["message"] == "no broker"
        assert page["dependencies"]["store"] == {"ok": True, "message": "answers", "ageSeconds": 1.0}
        assert get(server.port, "/metrics")[0] == 200
        assert get(server.port, "/else")[0] == 404
    finally:
        server.stop()


ASKED = 100
DELAYED_ACK_MS_MIN = 40


def test_answers_do_not_wait_for_an_acknowledgement():
    server = StatusServer(registry(), listen="127.0.0.1", port=0, clock=lambda: NOW)
    server.start()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=50)
    try:
        times_ms = []
        for _ in range(ASKED):
            began = time.perf_counter()
            connection.request("GET", "/health")
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            times_ms.append((time.perf_counter() - began) * 1000)
    finally:
        connection.close()
        server.stop()
    # A kernel acknowledges the first 16 segments at once; a delayed ACK would slow most of the others.
    assert sorted(times_ms)[ASKED // 4] < DELAYED_ACK_MS_MIN, sorted(times_ms)


def ask(port: int, path: str, **headers: str) -> tuple[int, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=50)
    try:
        connection.request("GET", path, headers={n.replace("_", "-"): v for n, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_only_known_hosts_are_answered_and_another_sites_page_makes_nothing_happen():
    asked: list[int] = []

    def deep() -> list[str]:
        asked.append(1)
        return []

    hosts = Settings(hosts="lake.example", ingest_listen="ingest.own").own_hosts
    server = StatusServer(registry(), listen="127.0.0.1", port=0, clock=lambda: NOW, deep=deep, hosts=hosts)
    server.start()
    try:
        for host in ("localhost:8091", "127.0.0.1", "[::1]:1", "ingest:8091", "ingest.own:1", "lake.example"):
            for path in ("/health", "/status", "/metrics"):
                assert ask(server.port, path, host=host)[0] == 200, (host, path)
        for host in ("evil.example:8091", "ingest.evil.example", "catalog:8091", "[::1", ""):
            for path in ("/health", "/status", "/metrics", "/health?deep", "/else"):
                status, body = ask(server.port, path, host=host)
                assert status == 421, (host, path)
                assert "TARN_HOSTS" in json.loads(body)["error"]
        for page in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}):
            assert ask(server.port, "/health?deep", **page)[0] == 403
            assert ask(server.port, "/health", **page)[0] == 200, "a link to it may be followed"
        assert asked == []
        assert ask(server.port, "/health?deep")[0] == 200
        assert asked == [1]
    finally:
        server.stop()


@pytest.mark.parametrize("text", ["http://a.lan", "a.lan:80", "*", "a b", "-a"])
def test_a_bad_list_of_hosts_is_named(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("TARN_HOSTS", text)
    with pytest.raises(InvalidSettingError, match=r"TARN_HOSTS is .* allowed: host names or addresses"):
        Settings.read()


def test_a_list_of_hosts_is_taken_without_its_spaces():
    assert parse_names(" A.lan, [::2],10.0.0.7 ,") == ("a.lan", "::2", "10.0.0.7")


def crew(*changes: dict[str, object]) -> StatusRegistry:
    """Readers of one ingestor, each with partitions of its own."""
    found = registry()
    found.remove("orders")
    for number, change in enumerate(changes):
        status = {
            "state": State.RUNNING,
            "beat_s": NOW - 1,
            "progress_s": NOW - 1,
            "measured": True,
            "table": "a.b",
            "replica_of": "orders",
            "replicas": len(changes),
            "committed": {number: 5},
            "ends": {number: 7},
        }
        found.update(f"orders/{number}", **(status | change))
    return found


def test_readers_of_an_ingestor_are_shown_as_one():
    found = crew(
        {"commit_at_ms": 8, "snapshot_id": 8, "watermark_us": 30, "complete_us": 30},
        {
            "commit_at_ms": 9,
            "snapshot_id": 9,
            "figures": figures(files=4),
            "watermark_us": 20,
            "complete_us": 20,
        },
        {"commit_at_ms": 7, "snapshot_id": 7},
    )
    for number in range(3):
        counts = {"bad_records": 2, "bytes": 3, "commits": 4, "snapshots": 1, "merges": 5, "conflicts": 6}
        found.add(f"orders/{number}", rows=10 ** (number + 1), unknowns=7, **counts)
        found.observe(f"orders/{number}", 0.2)
    (name,) = found.ingestors()
    assert name == "orders"
    status = found.get("orders")
    assert (status.rows, status.bad_records, status.bytes) == (1_110, 6, 9)
    assert (status.commits, status.snapshots, status.merges) == (12, 3, 15)
    assert (status.conflicts, status.unknowns, sum(status.freshness.counts)) == (18, 21, 3)
    assert (dict(status.committed), status.lag) == ({0: 5, 1: 5, 2: 5}, 6)
    assert (status.snapshot_id, status.figures) == (9, figures(files=4)), "of the last commit"
    assert (status.watermark_us, status.complete_us) == (30, 30), (
        "it never goes back, so the highest is the newest"
    )
    assert (status.replicas, status.ready) == (3, 3)
    assert 'tarn_ingest_rows_total{ingestor="orders",table="a.b"} 1110' in to_metrics(found)
    assert 'tarn_ingest_ready_replicas{ingestor="orders",table="a.b"} 3' in to_metrics(found)
    assert found.get("orders/1").rows == 100


@pytest.mark.parametrize("state", [State.INVALID, State.STOPPED, State.WAITING, State.STARTING])
def test_the_worst_state_of_the_readers_is_that_of_the_ingestor(state):
    found = crew({}, {"state": state, "reason": "OffsetGap", "message": "gone", "measured": False}, {})
    page = found.get("orders").to_json()
    assert (page["state"], page["readyReplicas"], page["replicas"]) == (state.value, 2, 3)
    condition = page["conditions"][0]
    assert (condition["status"], condition["reason"], condition["message"]) == (False, "OffsetGap", "gone")
    assert page["lag"] is None, "what one of them has left is unknown"


def test_what_a_reader_has_left_that_died_is_unknown():
    """A writer that dies again and again is away for minutes, and nobody reads its partitions."""
    found = crew({}, {}, {})
    found.remove("orders/1")
    status = found.ingestors()["orders"]
    page = status.to_json()
    assert (page["state"], page["readyReplicas"], page["replicas"]) == ("Starting", 2, 3)
    assert (page["lag"], page["lagReason"]) == (None, "1 of 3 readers does not run")
    assert 'tarn_ingest_running{ingestor="orders",table="a.b"} 0' in to_metrics(found)
    assert "tarn_ingest_lag_offsets{" not in to_metrics(found)
    found.remove("orders/2")
    assert found.ingestors()["orders"].lag_reason == "2 of 3 readers do not run"
    found.update("orders/0", state=State.STOPPED, reason="OffsetGap", message="gone")
    assert found.ingestors()["orders"].to_json()["conditions"][0]["reason"] == "OffsetGap"


@pytest.mark.parametrize(
    ("name", "shown"),
    [('my "own".yaml', r"my \"own\".yaml"), ("a\\b.yaml", r"a\\b.yaml"), ("a\nb.yaml", r"a\nb.yaml")],
)
def test_a_file_of_any_name_leaves_the_metrics_readable(name: str, shown: str):
    """One line that Prometheus cannot read, and it takes none of them."""
    found = registry()
    found.update(name, state=State.INVALID, reason="InvalidSpec")
    found.update_audit(name, at_ms=1)
    lines = to_metrics(found).splitlines()
    assert f'tarn_ingest_running{{ingestor="{shown}",table=""}} 0' in lines
    assert f'tarn_ingest_audit_findings{{table="{shown}"}} 0' in lines
    assert f'tarn_ingest_freshness_seconds_count{{ingestor="{shown}",table=""}} 0' in lines


def test_what_is_so_already_makes_no_new_status():
    found = StatusRegistry()
    assert found.update("orders") == IngestorStatus()
    assert found.readers() == {"orders": IngestorStatus()}
    running = found.update("orders", state=State.RUNNING, ends={0: 7})
    assert (running.ready, running.ends) == (1, {0: 7})
    assert found.update("orders", state=State.RUNNING, ends={0: 7}) is running
    assert found.update("orders") is running
    waiting = found.update("orders", state=State.WAITING)
    assert (waiting.state, waiting.ready, waiting.ends) == (State.WAITING, 0, {0: 7})
    found.put("orders", IngestorStatus(state=State.RUNNING))
    assert found.update("orders", rows=1) == IngestorStatus(state=State.RUNNING, rows=1, ready=1)


def test_each_reader_gives_its_own_signs_of_life():
    found = crew({}, {"beat_s": NOW - 301}, {"state": State.WAITING, "message": "no answer"})
    assert faults(found, now_s=NOW) == [
        "ingestor orders/1: no sign of life for 301 s",
        "ingestor orders/2: Waiting: no answer",
    ]
    assert hanging(found, now_s=NOW) == ["ingestor orders/1 hangs: no sign of life for 301 s"]


def test_the_counters_of_an_ingestor_are_those_of_all_its_readers():
    counters = {
        field.name
        for field in fields(IngestorStatus)
        if field.type == "int"
        and field.name not in {"since_ms", "commit_at_ms", "replicas", "ready", "missing"}
    }
    assert {"rows", "commits", "events", "retired_rows", "retries"} <= counters
    found = StatusRegistry()
    for n in range(2):
        found.update(f"orders/{n}", replica_of="orders", replicas=2)
        found.add(f"orders/{n}", **{name: 10 ** (n + 1) + at for at, name in enumerate(sorted(counters))})
    sums = found.get("orders")
    assert {name: getattr(sums, name) for name in counters} == {
        name: 110 + 2 * at for at, name in enumerate(sorted(counters))
    }


def test_a_wake_is_for_programs_and_for_nothing_else():
    woken: list[int] = []
    server = StatusServer(
        registry(), listen="127.0.0.1", port=0, clock=lambda: NOW, wake=lambda: woken.append(1)
    )
    server.start()

    def post(path: str, **headers: str) -> int:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=50)
        try:
            connection.request("POST", path, headers={n.replace("_", "-"): v for n, v in headers.items()})
            return connection.getresponse().status
        finally:
            connection.close()

    try:
        assert post("/wake", origin="http://evil.example") == 403
        assert post("/wake", sec_fetch_site="cross-site") == 403
        assert post("/wake", host="evil.example") == 421
        assert post("/status") == 404
        assert ask(server.port, "/wake")[0] == 404
        assert woken == []
        assert post("/wake") == 202
        assert woken == [1]
    finally:
        server.stop()


def test_a_controller_that_makes_no_pass_is_a_fault_and_hides_no_reader_that_hangs() -> None:
    found = registry(beat_s=NOW - 301)
    found.record_check(CONTROLLER, ok=True, message="looks", looked_s=NOW - 26)
    assert "controller: no answer for 26 s" in faults(found, now_s=NOW)
    assert hanging(found, now_s=NOW) == ["ingestor orders hangs: no sign of life for 301 s"]
    found = registry()
    found.record_check(CONTROLLER, ok=True, message="looks", looked_s=NOW - 301)
    assert hanging(found, now_s=NOW) == ["controller hangs: no pass for 301 s"]
    found.record_check(CONTROLLER, ok=False, message="KeyError: 'x'", looked_s=NOW)
    assert "controller: KeyError: 'x'" in faults(found, now_s=NOW)
    assert hanging(found, now_s=NOW) == []
