"""All probes: each has its three functions, queries no user-defined names, and detects its own faults."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import struct
import threading
import time
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tarn.probe.runner import budgets_of
from tests.support.compose import LONG_RUNNING, SERVICES, dockerfile_of, probe_of

ROOT = Path(__file__).parents[3]


def load(service: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"{service}_probe", probe_of(service))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def listener(answer: bytes | None) -> Iterator[tuple[str, int]]:
    """Sends `answer` to every client; with None it accepts connections silently, like a frozen process."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.2)

        def serve() -> None:
            peers = []
            while not done.is_set():
                try:
                    peer, _ = listening.accept()
                except TimeoutError:
                    continue
                peers.append(peer)
                if answer is not None:
                    peer.recv(4096)
                    peer.sendall(answer)
                    peer.close()
            for peer in peers:
                peer.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            done.set()
            thread.join(10)


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_each_probe_has_what_the_watch_uses(service: str) -> None:
    probe = load(service)
    assert service == probe.SERVICE
    assert all(callable(getattr(probe, level)) for level in ("alive", "shallow", "deep"))
    budgets = budgets_of(str(probe_of(service)))
    for level, seconds in budgets.items():
        assert getattr(probe, f"{level.upper()}_BUDGET_S", seconds) == seconds
    assert budgets["alive"] + budgets["shallow"] < 15


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_an_image_has_all_that_its_probe_imports(service: str) -> None:
    """The probes' folder is all that the child process finds as package `tarn`."""
    text = dockerfile_of(service).replace('["python"', '["python3"')
    assert "COPY --chmod=0755 services/tarn/probe /opt/tarn/probe\n" in text
    for path in (probe_of(service), *(ROOT / "services/tarn/probe").glob("*.py")):
        imported = re.findall(r"^from (tarn[\w.]*) import", path.read_text(), re.MULTILINE)
        assert {module.rpartition(".")[0] for module in imported} <= {"tarn.probe"}
    command = ["python3", "-I", "-S", "/opt/tarn/probe/runner.py"]
    own = SERVICES[service].get("healthcheck")
    if own:
        assert own["test"] == ["CMD", *command, service]
    else:
        assert f"CMD {json.dumps(command)}" in text


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_what_the_watch_ends_comes_back(service: str) -> None:
    """It ends the child of the engine's init, and the restart policy does the rest."""
    found = SERVICES[service]
    assert found["init"] is True
    assert found["restart"] == "unless-stopped"
    assert any(str(mount).startswith("/tmp:") for mount in found["tmpfs"]), "the watch keeps its state there"


@pytest.mark.long
@pytest.mark.parametrize("service", ["minio", "trino", "ingest", "jupyter", "catalog", "gateway", "stream"])
@pytest.mark.parametrize("status", [b"200 OK", b"401 Unauthorized", b"500 Oh", b"503 Busy"])
def test_any_answer_shows_that_the_process_gets_on(
    service: str, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is down, a revoked key: the process reports it itself, and must not be ended for it."""
    probe = load(service)
    with listener(b"HTTP/1.1 " + status + b"\r\nContent-Length: 3\r\n\r\noh!") as (host, port):
        for name in ("ADDRESS", "PUBLISHED", "SERVER"):
            if hasattr(probe, name):
                monkeypatch.setattr(probe, name, f"{host}:{port}")
        assert probe.alive() is None
    with pytest.raises(RuntimeError):
        probe.alive()


@pytest.mark.long
@pytest.mark.parametrize(
    "service", ["minio", "trino", "ingest", "jupyter", "catalog", "kafka", "spark", "gateway", "stream"]
)
def test_a_frozen_process_behind_an_open_port_is_not_alive(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = load(service)
    short = {"timeout_s": 0.2}
    for name in ("answers", "http", "check_connect"):
        if hasattr(probe, name):
            real = getattr(probe, name)
            monkeypatch.setattr(probe, name, lambda *a, real=real, **more: real(*a, **(more | short)))
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2, raising=False)
    with listener(None) as (host, port):
        for name in ("ADDRESS", "PUBLISHED", "SERVER"):
            if hasattr(probe, name):
                monkeypatch.setattr(probe, name, f"{host}:{port}")
        for name in ("INSIDE", "CONNECT"):
            if hasattr(probe, name):
                monkeypatch.setattr(probe, name, (host, port))
        with pytest.raises(RuntimeError, match=r"no answer|timed out"):
            probe.alive()


@pytest.mark.long
def test_kafka_is_asked_without_a_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load("kafka")
    answer = struct.pack(">ihi", 1, 0, 0)
    with listener(struct.pack(">i", len(answer)) + answer) as address:
        monkeypatch.setattr(probe, "INSIDE", address)
        assert probe.alive() is None
    with pytest.raises((RuntimeError, OSError)):
        probe.alive()


def test_an_ingestor_that_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load("ingest")
    body = json.dumps({"healthy": False, "faults": ["x"], "hanging": ["ingestor a hangs"]}).encode()
    sent: list[dict[str, str]] = []

    def http(*_: object, headers: dict[str, str], **more: object) -> tuple[int, dict[str, str], bytes]:
        sent.append(headers)
        return 503, {}, body

    monkeypatch.setattr(probe, "http", http)
    with pytest.raises(RuntimeError, match=r"^ingestor a hangs$"):
        probe.alive()
    assert sent == [{"host": "localhost"}], "to another name the service says nothing about its ingestors"


# -- names that users chose ----------------------------------------------------------------------------------


class Session:
    """A lake with namespace names that SQL must quote; it answers only fixed queries."""

    def __init__(self, total: int = 4950) -> None:
        self.asked: list[str] = []
        self.total = total
        self.catalog = self

    def sql(self, text: str) -> Session:
        raise AssertionError(f"the lake's names are no matter of health: {text}")

    def range(self, n: int) -> Session:
        return self

    def groupBy(self) -> Session:
        return self

    def sum(self, name: str) -> Session:
        return self

    def collect(self) -> list[tuple[int]]:
        return [(self.total,)]

    def tableExists(self, name: str) -> bool:
        self.asked.append(name)
        return False


def test_sparks_deep_look_asks_for_no_name_of_a_user() -> None:
    """SHOW NAMESPACES quotes `a-team` itself: quoted twice, it made Spark permanently unhealthy."""
    session = Session()
    load("spark").use(session)
    assert session.asked == ["tarn.tarn_health.absent"]
    with pytest.raises(RuntimeError, match="expected 4950"):
        load("spark").use(Session(total=1))


def test_sparks_session_does_nothing_more_once_it_is_closed() -> None:
    done: list[str] = []
    client = types.SimpleNamespace(close=lambda: done.append("closed by the finalizer"))
    load("spark").close(types.SimpleNamespace(stop=lambda: done.append("stopped"), client=client))
    client.close()
    assert done == ["stopped"]


def test_trinos_deep_look_asks_for_no_name_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = load("trino")
    asked: list[str] = []
    refusal = "query failed: SCHEMA_NOT_FOUND: line 1:15: Schema 'tarn_health' does not exist"

    def query(sql: str) -> list[list[object]]:
        asked.append(sql)
        if "FROM tarn." in sql:
            raise RuntimeError(refusal)
        return [[4950]]

    monkeypatch.setattr(probe, "query", query)
    probe.deep()
    assert asked[1:] == ["SELECT 1 FROM tarn.tarn_health.absent"]
    refusal = "query failed: ICEBERG_CATALOG_ERROR: no answer"
    with pytest.raises(RuntimeError, match="ICEBERG_CATALOG_ERROR"):
        probe.deep()


def test_trinos_deep_look_logs_in_as_trino(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a lake with principals, nothing else is accepted."""
    probe = load("trino")
    sent: list[Mapping[str, str]] = []

    def http(*_: object, headers: Mapping[str, str], **__: object) -> tuple[int, dict[str, str], bytes]:
        sent.append(headers)
        return 200, {}, b'{"data": [[1]]}'

    monkeypatch.setattr(probe, "http", http)
    monkeypatch.setattr(probe, "secret", lambda name: {"catalog_credential": "trino-1:a b"}[name])
    assert probe.query("SELECT 1") == [[1]]
    assert (sent[0]["x-trino-user"], sent[0]["x-trino-extra-credential"]) == ("trino", "secret=a%20b")


@pytest.mark.parametrize("service", LONG_RUNNING)
def test_no_probe_lists_what_users_made(service: str) -> None:
    text = probe_of(service).read_text()
    assert not re.search(r"SHOW (SCHEMAS|TABLES|NAMESPACES)|information_schema|listTables|/namespaces", text)


# -- the pipeline --------------------------------------------------------------------------------------------


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    probe = load("pipeline")
    monkeypatch.setattr(probe, "BEAT_PATH", tmp_path / "beat.json")
    monkeypatch.setattr(probe, "main_process", lambda: 7)
    monkeypatch.setattr(probe, "stat_of", lambda process: ["S"])
    monkeypatch.setattr(probe, "check_connect", lambda address, timeout_s: None)
    return probe


def beat(probe: types.ModuleType, *, age_s: float, fault: str = "") -> None:
    probe.BEAT_PATH.write_text(json.dumps({"at": time.time() - age_s, "fault": fault}))


def test_a_pipeline_with_a_fault_is_alive_and_not_usable(pipeline: types.ModuleType) -> None:
    beat(pipeline, age_s=5, fault="Spark failed")
    pipeline.alive()
    with pytest.raises(RuntimeError, match=r"^Spark failed$"):
        pipeline.shallow()


def test_a_stopped_pipeline_is_seen_at_once(
    pipeline: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(pipeline, age_s=1)
    monkeypatch.setattr(pipeline, "stat_of", lambda process: ["T"])
    for look in (pipeline.shallow, pipeline.alive):
        with pytest.raises(RuntimeError, match=r"^process 7 is stopped$"):
            look()


def test_a_pipeline_hangs_after_ten_minutes_without_a_beat(pipeline: types.ModuleType) -> None:
    beat(pipeline, age_s=590)
    pipeline.alive()
    beat(pipeline, age_s=605)
    with pytest.raises(RuntimeError, match=r"no beat for 60\d s, while Spark answers"):
        pipeline.alive()


def test_a_pipeline_that_waits_for_spark_does_not_hang(
    pipeline: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(address: tuple[str, int], timeout_s: float) -> None:
        raise RuntimeError("Spark Connect at spark:15002: no answer within 3 s")

    beat(pipeline, age_s=5000)
    with pytest.raises(RuntimeError, match="while Spark answers"):
        pipeline.alive()
    monkeypatch.setattr(pipeline, "check_connect", away)
    assert pipeline.alive() is None


@pytest.mark.long
@pytest.mark.parametrize("service", ["gateway", "ingest"])
@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", None),
        (
            b'HTTP/1.1 503 x\r\nContent-Length: 39\r\n\r\n{"faults": ["store: away", "and that"]}',
            "status 503: store: away; and that",
        ),
        (b"HTTP/1.1 500 x\r\nContent-Length: 4\r\n\r\noops", "status 500: oops"),
        (b'HTTP/1.1 503 x\r\nContent-Length: 13\r\n\r\n{"faults": 1}', 'status 503: {"faults": 1}'),
    ],
)
def test_a_service_that_says_it_cannot_work_is_quoted(
    service: str, answer: bytes, fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = load(service)
    for level in (probe.shallow, probe.deep):
        with listener(answer) as (host, port):
            monkeypatch.setattr(probe, "ADDRESS", f"{host}:{port}")
            if fault is None:
                level()
                continue
            with pytest.raises(RuntimeError) as raised:
                level()
            assert str(raised.value) == fault
