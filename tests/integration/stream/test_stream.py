"""The service on a real broker: killed twice and rebalanced, it sends the windows that pandas makes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tarn_demo.flights.events import PARTITIONS
from tarn_demo.stream.topics import ALERTS, EVENTS, STATE, WINDOWS
from tests.integration.kafka.conftest import Broker, eventually, free_port, running
from tests.support import windows_oracle as oracle
from tests.support.windows_played import Played, once, table

ROOT = Path(__file__).parents[3]
FLIGHTS = 15_000
CUT = oracle.Cut(window_s=10_800, hop_s=3_600, lateness_s=3_600)
LIMITS = {"delay": 60, "departures": 3, "cancelled": 3}
STATES_FROM_S = 10
MOVES_WITHIN_S = 180


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A healthy broker of its own: the workers' topics are fixed."""
    with running(tmp_path_factory.mktemp("broker") / "secrets") as found:
        yield found


@dataclass(frozen=True)
class Worker:
    """A process of the service, as the container runs it."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return json.load(answer)

    def assigned(self) -> list[Mapping[str, int]]:
        """What it was given, each time: place to the offset that it went on from."""
        rows = (json.loads(row) for row in self.log.read_text().splitlines() if row.startswith("{"))
        return [row["next"] for row in rows if row["event"] == "partitions assigned"]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)


@contextmanager
def workers(broker: Broker, folder: Path) -> Iterator[Callable[[], Worker]]:
    """Starts workers; all end with the block."""
    for name, content in (("kafka_user", "stream"), ("kafka_password", broker.secrets.passwords["stream"])):
        (folder / name).write_text(content)
    started: list[Worker] = []

    def start() -> Worker:
        port, log = free_port(), folder / f"{len(started)}.log"
        env = {
            **os.environ,
            "TARN_KAFKA_BOOTSTRAP": broker.address,
            "TARN_SECRETS_DIR": str(folder),
            "TARN_STREAM_LISTEN": "127.0.0.1",
            "TARN_STREAM_PORT": str(port),
            "TARN_STREAM_WINDOW_S": str(CUT.window_s),
            "TARN_STREAM_HOP_S": str(CUT.hop_s),
            "TARN_STREAM_LATENESS_S": str(CUT.lateness_s),
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tarn_demo.stream"], cwd=ROOT, env=env, stdout=out, stderr=out
            )
        started.append(Worker(process, port, log))
        return started[-1]

    try:
        yield start
    finally:
        for worker in started:
            if worker.process.poll() is None:
                worker.kill()
            sys.stdout.write(f"-- {worker.log.name}\n{worker.log.read_text()}")


@pytest.mark.in_turn(2, "windows on a real broker are wrong after kills and a rebalance")
@pytest.mark.timeout(1_200)
def test_windows_equal_the_oracle_after_two_kills_and_a_rebalance(
    broker: Broker, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    broker.make_topic(EVENTS, PARTITIONS)
    played = Played(broker.options(), FLIGHTS)
    began_s = time.monotonic()

    def is_at_the_end(worker: Worker) -> Callable[[], bool]:
        """Whether it shows all that was sent."""
        watermark = f"{oracle.expected(played.log, CUT).watermark:%Y-%m-%dT%H:%M:%SZ}"

        def look() -> bool:
            assert worker.process.poll() is None, "it ended"
            try:
                return bool(worker.get("/v1/windows")["watermark"] == watermark)
            except OSError:
                return False

        return look

    with workers(broker, tmp_path) as start:
        first = start()
        played.send(0.3)
        eventually("the first third", is_at_the_end(first), timeout_s=MOVES_WITHIN_S)
        time.sleep(max(0.0, STATES_FROM_S - first_assigned_s(first)))
        played.send(0.5)  # its states are stored among these
        eventually("states", lambda: len(broker.read(STATE, 1 + PARTITIONS)) > 0, timeout_s=MOVES_WITHIN_S)
        first.kill()

        played.send(0.7)  # more than Faust's queue holds: they come while it is full
        second = start()
        eventually("another", lambda: bool(second.assigned()), timeout_s=MOVES_WITHIN_S)
        third = start()
        eventually("two share", lambda: bool(third.assigned()), timeout_s=MOVES_WITHIN_S)
        played.send(0.9)

        def shares() -> list[set[str]]:
            return [set(worker.assigned()[-1]) for worker in (second, third)]

        def each_has_its_own() -> bool:
            """One worker may have written down what the group has agreed on before the other has."""
            one, other = shares()
            return not one & other and len(one | other) == PARTITIONS + 1

        eventually("each has its own", each_has_its_own, timeout_s=MOVES_WITHIN_S)
        eventually("both have read", is_at_the_end(third), timeout_s=MOVES_WITHIN_S)
        third.kill()

        played.send(1.0)
        wanted = oracle.expected(played.log, CUT)
        eventually(
            "all windows",
            lambda: (
                len({json.loads(row)["window_id"] for row in broker.read(WINDOWS, 1)}) >= len(wanted.rows)
            ),
            timeout_s=MOVES_WITHIN_S,
        )
        assert any(at > 0 for at in second.assigned()[0].values()), "it went on from a stored state"
        eventually("the view", is_at_the_end(second), timeout_s=MOVES_WITHIN_S)
        eventually("all of it", lambda: second.get("/v1/windows")["complete"], timeout_s=MOVES_WITHIN_S)
        shown, health = second.get("/v1/windows"), second.get("/health")
        alerts_shown = [one["id"] for one in second.get("/v1/alerts")["alerts"]]
        second.process.terminate()
        assert second.process.wait(60) == 0
    played.close()

    sent = broker.read(WINDOWS, 1)
    rows = once(sent, "window_id")
    assert len(wanted.rows) > 3_000
    assert oracle.differences(table(rows), wanted.rows) == []
    alerts = [one["alert_id"] for one in once(broker.read(ALERTS, 1), "alert_id")]
    assert set(alerts) == oracle.alerts(wanted.rows, CUT, **LIMITS)
    assert len(alerts) > 2
    assert set(alerts_shown) == set(alerts)
    assert (shown["lateDropped"], shown["complete"], health["healthy"]) == (wanted.late, True, True)
    record_property("rows", len(rows))
    record_property("rows_sent_again", len(sent) - len(rows))
    record_property("seconds", round(time.monotonic() - began_s, 1))


def first_assigned_s(worker: Worker) -> float:
    """How long ago the worker was given partitions for the first time, in seconds."""
    for row in worker.log.read_text().splitlines():
        if '"partitions assigned"' in row:
            return time.time() - datetime.fromisoformat(json.loads(row)["timestamp"]).timestamp()
    return 0.0
