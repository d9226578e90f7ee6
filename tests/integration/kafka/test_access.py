"""Authentication and authorization of the broker: the table of tarn.core.kafka_users, tried pair by pair."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from tarn.adapters.kafka_login import require_login
from tarn.core.errors import UnauthenticatedError
from tarn.core.kafka_users import USERS
from tarn.probe.kafka import SASL_HANDSHAKE, Reader, RefusedError
from tarn.probe.kafka import Broker as Bare
from tests.integration.kafka.conftest import OLD, Broker, eventually, running
from tests.support.healthy import ENDED_WITHIN_S, HEALTHY_WITHIN_S
from tests.support.images import image
from tests.support.inside import said_inside

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", OLD, DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import (
        ACL,
        ACLOperation,
        ACLPermissionType,
        KafkaAdminClient,
        NewTopic,
        ResourcePattern,
        ResourceType,
        UserScramCredentialUpsertion,
    )
    from kafka.errors import (
        AuthorizationError,
        ClusterAuthorizationFailedError,
        GroupIdNotFoundError,
        KafkaError,
        TopicAuthorizationFailedError,
        for_code,
    )
    from kafka.structs import OffsetAndMetadata

pytestmark = pytest.mark.filterwarnings(f"ignore:{OLD}:DeprecationWarning")

OTHER, OWN, HEALTH, INTERNAL = "somebody-elses", "flight-events", "_tarn_health", "__consumer_offsets"
LOG, CLAIMS = "tarn.log.a-table", "tarn.log.claims.a-table"
PARTIALS, WINDOWS, ALERTS = "flight-stream.partials", "flight-windows", "flight-alerts"
WORKSHOP = "workshop.ada.orders"
INVALID_RECORD = 87
ANSWER_S = 60
ROOT = Path(__file__).parents[3]
NEW_SETTINGS = ("authorizer.", "super.users", "allow.everyone", "config.providers")
METADATA_OF_ALL = (3, 1, b"\xff\xff\xff\xff")


# -- who gets in ---------------------------------------------------------------------------------------------


def address(broker: Broker, listener: str) -> tuple[str, int]:
    host, _, port = (broker.inside if listener == "inside" else broker.address).partition(":")
    return host, int(port)


@pytest.mark.parametrize("listener", ["inside", "published"])
def test_nothing_is_answered_before_a_log_in(broker: Broker, listener: str) -> None:
    closed = pytest.raises((RuntimeError, OSError), match=r"closed the connection|reset")
    with Bare(*address(broker, listener), timeout_s=ANSWER_S) as bare, closed:
        bare.ask(*METADATA_OF_ALL)


@pytest.mark.parametrize("listener", ["inside", "published"])
def test_passwords_are_not_taken_in_the_clear_from_outside(broker: Broker, listener: str) -> None:
    with Bare(*address(broker, listener), timeout_s=ANSWER_S) as bare:
        answer = bare.ask(SASL_HANDSHAKE, 1, b"\x00\x05PLAIN")
    assert answer[:2] == b"\x00\x21", "error 33: no such mechanism"
    assert b"SCRAM-SHA-512" in answer
    assert answer.count(b"SCRAM") == 1


@pytest.mark.parametrize("listener", ["inside", "published"])
@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("cli", "not its password"),
        ("ingest", "the password of cli"),
        ("nobody", "x"),
        ("kafka", "the admin's own"),
        ("ANONYMOUS", "x"),
    ],
)
def test_who_does_not_know_the_password_is_refused(
    broker: Broker, listener: str, user: str, password: str
) -> None:
    password = {
        "the password of cli": broker.secrets.passwords["cli"],
        "the admin's own": (broker.secrets.folder / "kafka_password").read_text(),
    }.get(password, password)
    refused = pytest.raises(RefusedError, match=f"refuses user {user}: .*invalid credentials")
    with Bare(*address(broker, listener), timeout_s=ANSWER_S) as bare, refused:
        bare.log_in(user, password)


def test_every_user_of_the_table_gets_in_with_its_own(broker: Broker) -> None:
    for listener in ("inside", "published"):
        for user in USERS:
            with Bare(*address(broker, listener), timeout_s=ANSWER_S) as bare:
                bare.log_in(user, broker.secrets.passwords[user])
                assert bare.ask(*METADATA_OF_ALL)


def test_the_loopback_of_the_container_is_no_back_door(broker: Broker) -> None:
    """The broker's own listeners are bound to the loopback, and require the admin's password there too."""
    code = (
        "import sys; sys.path.insert(0, '/opt/tarn/probe')\n"
        "from kafka import Broker\n"
        "for port in (9093, 9095):\n"
        "    for api, version, body in ((3, 1, b'\\xff' * 4), (60, 0, b'\\x00\\x00\\x00')):\n"
        "        try:\n"
        "            with Broker('127.0.0.1', port, timeout_s=20) as broker:\n"
        "                print(port, api, 'answered', broker.ask(api, version, body))\n"
        "        except (RuntimeError, OSError) as e:\n"
        "            print(port, api, 'closed', e)\n"
    )
    said = said_inside(broker.container, ["python3", "-c", code]).output.decode().splitlines()
    assert len(said) == 4, said
    assert all(" closed " in line and "timed out" not in line for line in said), said


def test_our_clients_say_at_once_what_is_wrong_and_what_to_do(broker: Broker) -> None:
    start_s = time.monotonic()
    with pytest.raises(UnauthenticatedError) as caught:
        require_login(broker.address, broker.options("cli", sasl_plain_password="wrong"))
    assert time.monotonic() - start_s < 15, "not after the time of a client that tries again and again"
    for part in (broker.address, "user cli", "invalid credentials", "docker compose restart kafka"):
        assert part in caught.value.message
    assert "wrong" not in caught.value.message
    require_login(broker.address, broker.options("cli"))


def test_the_command_line_tells_a_wrong_password(broker: Broker, tmp_path: Path) -> None:
    for name, content in (("kafka_user", "cli"), ("kafka_password", "wrong")):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o444)
    tmp_path.chmod(0o755)
    command = ["docker", "run", "--rm", f"--network=container:{broker.container.id}", "--user=10007:10007"]
    command += ["--no-healthcheck", "-v", f"{tmp_path}:/run/tarn/secrets:ro"]
    command += ["-e", "TARN_KAFKA_BOOTSTRAP=127.0.0.1:9092", image("services")]
    done = subprocess.run(
        [*command, "tarn", "demo", "replay", "--messages", "1"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "Kafka at 127.0.0.1:9092 does not let user cli in" in done.stderr
    assert "restart kafka" in done.stderr


# -- who may do what -----------------------------------------------------------------------------------------


class Clients:
    """One user's clients, and every action that it could try: an action returns, or is refused."""

    def __init__(self, broker: Broker, user: str) -> None:
        self.user = user
        self._options = broker.options(user)
        self.admin = KafkaAdminClient(**self._options)
        self._bare = Bare(*address(broker, "published"), timeout_s=ANSWER_S)
        self._bare.log_in(user, broker.secrets.passwords[user])

    def close(self) -> None:
        self.admin.close()
        self._bare.__exit__(None, None, None)

    # The library's consumer waits indefinitely for a topic that it may not see, and its producer requires
    # more rights than write: only the broker's response to the request itself counts.
    def read(self, topic: str) -> None:
        """One Fetch (version 4) of the topic's first record."""
        body = struct.pack(">iiiib", -1, 100, 1, 1_000_000, 0)
        body += one(text(topic) + one(struct.pack(">iqi", 0, 0, 1_000_000)))
        answer = Reader(self._bare.ask(1, 4, body))
        answer.take(">i")
        refuse(code_of_partition(answer))

    def write(self, topic: str) -> None:
        """One Produce (version 3) without a record: invalid, an error that only authorized users get."""
        body = struct.pack(">hhi", -1, -1, 5_000) + one(text(topic) + one(struct.pack(">ii", 0, 0)))
        code = code_of_partition(Reader(self._bare.ask(0, 3, body)))
        assert code in (TopicAuthorizationFailedError.errno, INVALID_RECORD), code
        refuse(0 if code == INVALID_RECORD else code)

    def configure(self, topic: str) -> None:
        """One AlterConfigs (version 0)."""
        body = one(struct.pack(">b", 2) + text(topic) + one(text("retention.ms") + text("3600000"))) + b"\0"
        answer = Reader(self._bare.ask(33, 0, body))
        answer.take(">i")
        assert answer.take(">i") == 1
        refuse(answer.take(">h"))

    def commit(self, group: str, topic: str = OWN) -> None:
        """Write a group's offset of a topic."""
        consumer = KafkaConsumer(**self._options, group_id=group, enable_auto_commit=False)
        try:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.commit({place: OffsetAndMetadata(0, "", -1)}, timeout_ms=60_000)
        finally:
            consumer.close()

    def transact(self, transactional_id: str) -> None:
        producer = KafkaProducer(**self._options, transactional_id=transactional_id, max_block_ms=60_000)
        try:
            producer.init_transactions()
        finally:
            producer.close(timeout=2)

    def make(self, topic: str) -> None:
        self.admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])

    def widen(self, topic: str) -> None:
        self.admin.create_partitions({topic: 5})

    def forget_group(self) -> None:
        self.admin.delete_groups(["no-such-group"])

    def grant(self) -> None:
        acl = ACL(
            f"User:{self.user}",
            "*",
            ACLOperation.ALL,
            ACLPermissionType.ALLOW,
            ResourcePattern(ResourceType.TOPIC, "*"),
        )
        failed = self.admin.create_acls([acl])["failed"]
        if failed:
            raise failed[0]

    def take_a_password(self) -> None:
        upsert = UserScramCredentialUpsertion("cli", "SCRAM-SHA-512", "x" * 20)
        told = self.admin.alter_user_scram_credentials([upsert])
        if told["cli"] is not None:
            raise ClusterAuthorizationFailedError(told["cli"])


def text(value: str) -> bytes:
    return struct.pack(f">h{len(value)}s", len(value), value.encode())


def one(item: bytes) -> bytes:
    """A list with one item."""
    return struct.pack(">i", 1) + item


def code_of_partition(answer: Reader) -> int:
    """The error code of the only partition of the only topic in a response to Fetch or Produce."""
    assert answer.take(">i") == 1
    answer.text()
    assert answer.take(">i") == 1
    answer.take(">i")
    return answer.take(">h")


def refuse(code: int) -> None:
    """Raise the exception of the broker's error code; nothing for 0."""
    if code:
        raise for_code(code)()


def actions(user: str) -> dict[str, Callable[[Clients], None]]:
    return {
        "read another topic": lambda c: c.read(OTHER),
        "write another topic": lambda c: c.write(OTHER),
        "read flight-events": lambda c: c.read(OWN),
        "write flight-events": lambda c: c.write(OWN),
        "read the health topic": lambda c: c.read(HEALTH),
        "write the health topic": lambda c: c.write(HEALTH),
        "read the broker's own topic": lambda c: c.read(INTERNAL),
        "write the broker's own topic": lambda c: c.write(INTERNAL),
        "make a topic": lambda c: c.make(f"made-by-{user}"),
        "delete a topic": lambda c: c.delete(f"for-{user}"),
        "add partitions": lambda c: c.widen(f"wide-{user}"),
        "change a topic's settings": lambda c: c.configure(f"wide-{user}"),
        "commit for a group of ingest": lambda c: c.commit("tarn-orders"),
        "commit for another group": lambda c: c.commit("mine"),
        "delete a group": Clients.forget_group,
        "begin transactions": lambda c: c.transact("somebody"),
        "read a table's log": lambda c: c.read(LOG),
        "write a table's log": lambda c: c.write(LOG),
        "begin transactions of a log": lambda c: c.transact(LOG),
        "make a table's log": lambda c: c.make(f"tarn.log.of-{user}"),
        "read claims": lambda c: c.read(CLAIMS),
        "write claims": lambda c: c.write(CLAIMS),
        "make claims": lambda c: c.make(f"tarn.log.claims.of-{user}"),
        "read partials": lambda c: c.read(PARTIALS),
        "write partials": lambda c: c.write(PARTIALS),
        "make topics of windows": lambda c: c.make(f"flight-stream.of-{user}"),
        "read windows": lambda c: c.read(WINDOWS),
        "write windows": lambda c: c.write(WINDOWS),
        "read alerts": lambda c: c.read(ALERTS),
        "write alerts": lambda c: c.write(ALERTS),
        "commit for the group of windows": lambda c: c.commit("flight-stream"),
        "read a topic of the workshop": lambda c: c.read(WORKSHOP),
        "write a topic of the workshop": lambda c: c.write(WORKSHOP),
        "make a topic of the workshop": lambda c: c.make(f"workshop.of-{user}"),
        "delete a topic of the workshop": lambda c: c.delete(f"workshop.for-{user}"),
        "commit for a group of the workshop": lambda c: c.commit("workshop.ada", WORKSHOP),
        "give rights": Clients.grant,
        "set a password": Clients.take_a_password,
    }


STRANGER = "stranger"
MAY = {
    "ingest": {
        "read another topic",
        "read flight-events",
        "read the health topic",
        "make a topic",
        "commit for a group of ingest",
        "read a table's log",
        "make a table's log",
        "read claims",
        "make claims",
        "read partials",
        "make topics of windows",
        "read windows",
        "read alerts",
        "read a topic of the workshop",
        "make a topic of the workshop",
    },
    "gateway": {
        "write a table's log",
        "begin transactions of a log",
        "read claims",
        "write claims",
        "make claims",
    },
    "cli": {
        "read another topic",
        "write another topic",
        "read flight-events",
        "write flight-events",
        "read the health topic",
        "write the health topic",
        "make a topic",
        "delete a topic",
        "add partitions",
        "change a topic's settings",
        "commit for a group of ingest",
        "commit for another group",
        "delete a group",
        "begin transactions",
        "read a table's log",
        "write a table's log",
        "begin transactions of a log",
        "make a table's log",
        "read claims",
        "write claims",
        "make claims",
        "read partials",
        "write partials",
        "make topics of windows",
        "read windows",
        "write windows",
        "read alerts",
        "write alerts",
        "commit for the group of windows",
        "read a topic of the workshop",
        "write a topic of the workshop",
        "make a topic of the workshop",
        "delete a topic of the workshop",
        "commit for a group of the workshop",
    },
    "spark": {
        "read another topic",
        "read flight-events",
        "read the health topic",
        "read a table's log",
        "read claims",
        "read partials",
        "read windows",
        "read alerts",
        "read a topic of the workshop",
    },
    "jupyter": {
        "read a topic of the workshop",
        "write a topic of the workshop",
        "make a topic of the workshop",
        "delete a topic of the workshop",
        "commit for a group of the workshop",
    },
    "stream": {
        "read flight-events",
        "read partials",
        "write partials",
        "make topics of windows",
        "write windows",
        "read alerts",
        "write alerts",
        "commit for the group of windows",
    },
    "replay": {"read flight-events", "write flight-events"},
    "health": {"read the health topic", "write the health topic"},
}


@pytest.fixture(scope="module")
def topics(broker: Broker) -> None:
    """Create the objects of all actions; the broker's own topic appears once a group wrote an offset."""
    cli = Clients(broker, "cli")
    about = (
        OTHER,
        OWN,
        LOG,
        CLAIMS,
        PARTIALS,
        WINDOWS,
        ALERTS,
        WORKSHOP,
        *(f"{kind}-{user}" for kind in ("for", "wide", "workshop.for") for user in (*USERS, STRANGER)),
    )
    cli.admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1) for topic in about])
    cli.commit("mine")
    cli.close()


def allowed(broker: Broker, user: str) -> set[str]:
    """The actions that a user may do, by trying each; any error but a refusal is a fault of the test."""
    clients = Clients(broker, user)
    found = set()
    try:
        for name, action in actions(user).items():
            with contextlib.suppress(AuthorizationError):
                with contextlib.suppress(GroupIdNotFoundError):  # it was looked up, so it was allowed
                    action(clients)
                found.add(name)
    finally:
        clients.close()
    return found


@pytest.mark.parametrize("user", USERS)
def test_everybody_may_do_what_the_table_says_and_nothing_else(
    broker: Broker, topics: None, user: str
) -> None:
    assert allowed(broker, user) == MAY[user]


# -- what a start does to the users --------------------------------------------------------------------------

AS_ADMIN = """
import json, logging, pathlib, sys
sys.path.insert(0, "/opt/tarn/lib")
from kafka.admin import *
logging.disable(logging.CRITICAL)
password = pathlib.Path("/run/tarn/secrets/kafka_password").read_text()
admin = KafkaAdminClient(
    bootstrap_servers="127.0.0.1:9095", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
    sasl_plain_username="kafka", sasl_plain_password=password)
"""
A_STRANGER = """
upsert = UserScramCredentialUpsertion({user!r}, "SCRAM-SHA-512", {password!r})
print(admin.alter_user_scram_credentials([upsert]))
"""
ITS_RIGHTS = """
everything = ResourcePattern(ResourceType.TOPIC, "*")
acl = ACL("User:" + {user!r}, "*", ACLOperation.ALL, ACLPermissionType.ALLOW, everything)
print(admin.create_acls([acl]))
"""


def as_admin(broker: Broker, code: str) -> None:
    """Run Python in the broker's container, which has the admin's password."""
    code, said = broker.container.exec_run(["python3", "-c", AS_ADMIN + code])
    assert code == 0, said.decode()


@pytest.mark.in_turn(6, "a renewed password needs a new log")
def test_a_start_takes_renewed_passwords_and_removes_who_is_not_in_the_table(
    broker: Broker, topics: None
) -> None:
    broker.make_topic("kept")
    records = [f"row {number}".encode() for number in range(200)]
    assert broker.send("kept", records) == len(records)
    password = broker.secrets.passwords[STRANGER] = "a password of 32 characters, xxx"
    as_admin(broker, A_STRANGER.format(user=STRANGER, password=password))
    assert allowed(broker, STRANGER) == set()
    as_admin(broker, ITS_RIGHTS.format(user=STRANGER))
    assert "write another topic" in allowed(broker, STRANGER)

    old, strangers = broker.options("cli"), broker.options(STRANGER)
    del broker.secrets.passwords[STRANGER]
    broker.secrets.write(cli="a renewed password, 32 characters")
    require_login(broker.address, old)
    started_s = time.time()
    broker.restart()
    for options, user in ((old, "cli"), (strangers, STRANGER)):
        with pytest.raises(UnauthenticatedError, match=f"user {user}"):
            require_login(broker.address, options)
    assert sorted(broker.read("kept")) == sorted(records)
    said = broker.container.logs(since=started_s).decode()
    assert f"0 rules added, 1 removed, users removed: {STRANGER}" in said
    said = broker.container.logs().decode()
    assert [user for user, secret in broker.secrets.passwords.items() if secret in said] == []


@pytest.mark.in_turn(4, "a log of the first releases loses records")
def test_a_log_from_before_there_were_users_keeps_its_records(tmp_path: Path) -> None:
    """The previous version's settings, on the current image: no authentication, no authorization."""
    client = docker.from_env()
    volume = client.volumes.create(f"tarn-test-{uuid.uuid4().hex[:8]}")
    kept = (ROOT / "services/kafka/server.properties").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for line in kept.splitlines() if "sasl" not in line and not line.startswith(NEW_SETTINGS)]
    before = "\n".join(lines).replace("SASL_PLAINTEXT", "PLAINTEXT")
    (tmp_path / "server.properties").write_text(before)
    (tmp_path / "users.py").write_text("")
    tmp_path.chmod(0o755)
    over = {str(tmp_path / "server.properties"): "/opt/kafka/server.properties"}
    over[str(tmp_path / "users.py")] = "/opt/tarn/users.py"
    records = [f"row {number}".encode() for number in range(1_000)]
    place = TopicPartition("old", 0)
    try:
        with running(tmp_path / "before", volume.name, over=over, healthy=False) as broker:
            options = {"bootstrap_servers": broker.address}
            eventually(
                "it answers",
                lambda: cluster_of(options, wait_ms=2_000) is not None,
                timeout_s=HEALTHY_WITHIN_S,
            )
            admin = KafkaAdminClient(**options)
            admin.create_topics([NewTopic("old", num_partitions=2, replication_factor=1)])
            producer = KafkaProducer(**options, acks="all")
            for number, record in enumerate(records):
                producer.send("old", record, partition=number % 2)
            producer.close()
            consumer = KafkaConsumer(**options, group_id="tarn-old", enable_auto_commit=False)
            consumer.assign([place])
            consumer.commit({place: OffsetAndMetadata(7, "", -1)})
            consumer.close()
            topic_id, cluster = admin.describe_topics(["old"])[0]["topic_id"], cluster_of(options)
            admin.close()
            broker.container.stop(timeout=15)
        with running(tmp_path / "after", volume.name) as broker:
            assert sorted(broker.read("old")) == sorted(records)
            options = broker.options("cli")
            admin = KafkaAdminClient(**options)
            assert admin.describe_topics(["old"])[0]["topic_id"] == topic_id
            admin.close()
            assert cluster_of(options) == cluster
            consumer = KafkaConsumer(
                **broker.options("ingest"), group_id="tarn-old", enable_auto_commit=False
            )
            assert consumer.committed(place) == 7
            consumer.close()
            assert allowed_only_to_log_in(broker)
    finally:
        volume.remove(force=True)
        client.close()


def cluster_of(options: dict[str, Any], *, wait_ms: int = 60_000) -> str | None:
    """The cluster's id; None while the broker does not answer."""
    try:
        admin = KafkaAdminClient(**options, bootstrap_timeout_ms=wait_ms)
    except KafkaError:
        return None
    try:
        return str(admin.describe_cluster()["cluster_id"])
    finally:
        admin.close()


def allowed_only_to_log_in(broker: Broker) -> bool:
    """Whether the listener that was open to all no longer answers without a login."""
    with Bare(*address(broker, "published"), timeout_s=ANSWER_S) as bare:
        try:
            bare.ask(*METADATA_OF_ALL)
        except TimeoutError:
            return False
        except (RuntimeError, OSError):
            return True
    return False


@pytest.mark.parametrize("missing", ["kafka_password", "kafka_users.json"])
def test_without_its_secrets_it_does_not_start_and_says_why(tmp_path: Path, missing: str) -> None:
    with running(tmp_path / "secrets", healthy=False, without=missing) as broker:
        assert broker.container.wait(timeout=ENDED_WITHIN_S)["StatusCode"] == 64
        said = broker.container.logs().decode()
    assert f"/run/tarn/secrets/{missing} is missing" in said
    assert "docker compose up init" in said
