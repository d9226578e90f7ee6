"""Kafka as the stack relies on it: no accidental topics, no acknowledged record lost, accurate health."""

from __future__ import annotations

import re
import time
import warnings

import pytest

from tests.integration.kafka.conftest import OLD, Broker
from tests.support.healthy import ENDED_WITHIN_S
from tests.support.inside import said_inside

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", OLD, DeprecationWarning)
    from kafka import KafkaProducer
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD}:DeprecationWarning")

UNHEALTHY_WITHIN_S = 60.0
STOP_S = 60
"""Compose gives it 15 s on a machine of its own; here the tiers beside it keep all cores busy."""
RECORDS = 2_000


def pid_of(broker: Broker) -> str:
    found = said_inside(broker.container, ["sh", "-c", "grep -lx java /proc/[0-9]*/comm"]).output.decode()
    return re.findall(r"\d+", found)[0]


def test_what_is_sent_is_read(broker: Broker) -> None:
    broker.make_topic("sent")
    records = [f"row {number}".encode() for number in range(RECORDS)]
    assert broker.send("sent", records) == RECORDS
    assert sorted(broker.read("sent")) == sorted(records)


def test_no_topic_is_made_by_naming_it(broker: Broker) -> None:
    producer = KafkaProducer(**broker.options(), max_block_ms=2_000)
    with pytest.raises(KafkaError):
        producer.send("a-typing-mistake", b"x").get(timeout=5)
    producer.close(timeout=1)
    admin = KafkaAdminClient(**broker.options())
    assert "a-typing-mistake" not in admin.list_topics()
    admin.close()


def test_it_runs_as_nobody_special_on_a_root_it_cannot_write(broker: Broker) -> None:
    assert said_inside(broker.container, ["id"]).output.decode().startswith("uid=10002(kafka)")
    code, said = said_inside(broker.container, ["sh", "-c", "echo x > /opt/kafka/x"])
    assert code != 0
    assert b"Read-only file system" in said


def test_it_uses_the_archive_of_classes_of_its_image(broker: Broker) -> None:
    look = "cat /proc/[0-9]*/maps | grep -o '[^ ]*classes.jsa' | sort -u"
    assert (
        "/opt/kafka/classes.jsa" in said_inside(broker.container, ["sh", "-c", look]).output.decode().split()
    )


def test_the_controller_listens_for_nobody_else(broker: Broker) -> None:
    listening = set()
    for table in ("tcp", "tcp6"):
        rows = said_inside(broker.container, ["cat", f"/proc/net/{table}"]).output.decode().splitlines()[1:]
        for row in rows:
            fields = row.split()
            if fields[3] == "0A":
                host, _, port = fields[1].rpartition(":")
                listening.add((int(port, 16), host.endswith("0100007F")))
    assert {(9092, False), (9094, False), (9093, True), (9095, True)} <= listening
    assert {port for port, local in listening if not local} == {9092, 9094}


@pytest.mark.in_turn(3, "a frozen broker alone stays healthy")
def test_a_frozen_broker_is_unhealthy_in_time_and_healthy_again(broker: Broker) -> None:
    pid = pid_of(broker)
    assert broker.container.exec_run(["sh", "-c", f"kill -STOP {pid}"]).exit_code == 0
    broker.await_health("unhealthy", UNHEALTHY_WITHIN_S)
    assert broker.health_line() == "shallow: no metadata from port 9092 within 4 s"
    assert broker.container.exec_run(["sh", "-c", f"kill -CONT {pid}"]).exit_code == 0
    broker.await_health("healthy")


def test_a_kill_loses_no_acknowledged_record_and_keeps_the_log(broker: Broker) -> None:
    before = said_inside(broker.container, ["cat", "/data/log/meta.properties"]).output
    broker.make_topic("killed")
    records = [f"row {number}".encode() for number in range(RECORDS)]
    assert broker.send("killed", records) == RECORDS
    broker.container.kill("SIGKILL")
    broker.container.start()
    broker.await_health("healthy")
    assert said_inside(broker.container, ["cat", "/data/log/meta.properties"]).output == before
    assert sorted(broker.read("killed")) == sorted(records)


def test_a_stop_is_clean(broker: Broker) -> None:
    broker.container.stop(timeout=STOP_S)
    said = broker.container.logs(tail=20).decode()
    assert "Terminating process due to signal SIGTERM" in said
    assert "Shutdown complete" in said
    stopped_s = time.time()
    broker.container.start()
    broker.await_health("healthy")
    said = broker.container.logs(since=stopped_s).decode()
    assert re.search(
        r"Skipping recovery of \d+ logs from /data/log since clean shutdown file was found", said
    )


def test_a_log_without_its_name_is_left_alone(broker: Broker) -> None:
    broker.container.exec_run(["mv", "/data/log/meta.properties", "/data/kept"])
    broker.container.stop(timeout=STOP_S)
    broker.container.start()
    assert broker.container.wait(timeout=ENDED_WITHIN_S)["StatusCode"] == 65
    assert "nothing was changed" in broker.container.logs(tail=2).decode()
