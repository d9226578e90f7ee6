"""Several replicas behind the one published port, as `TARN_CATALOG_REPLICAS=2` starts them by Compose."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tests.integration.catalog.conftest import REPOSITORY
from tests.support.containers import KEEPER
from tests.support.images import image, tag
from tests.support.stack import eventually, free_ports

pytestmark = pytest.mark.in_turn(4, "the front in Compose sends a request twice, or fails with one replica")

PROJECT = f"{os.environ.get('TARN_TEST_PROJECT', 'tarn-dev-test')}-replicas"
FRONT = f"tarn/catalog-front:{PROJECT}"
BUILD_TIMEOUT_S = 600
WRITERS = 16
MORE = 48
WAIT_S_MAX = 180.0
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}
TABLE = "/v1/namespaces/ns/tables/t"
UNKNOWN = {502, 503, 504}


def docker(*words: str, env: Mapping[str, str] | None = None, timeout_s: float = 180) -> str:
    done = subprocess.run(
        ["docker", *words],
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stdout[-2_000:]}{done.stderr[-3_000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def front() -> str:
    base = os.environ.get("TARN_BASE", "debian:trixie-slim")
    command = ["build", "--quiet", "--build-arg", f"BASE={base}", "--tag", FRONT]
    docker(*command, "-f", "catalog/replicas/Dockerfile", ".", env={"DOCKER_BUILDKIT": "1"}, timeout_s=600)
    return FRONT


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The store, two replicas of the catalog and the front, by Compose.

    Attributes:
        uri: the published port of the catalog.
        token: header of a principal that may do everything.
        env: variables of Compose.
    """

    uri: str
    token: dict[str, str]
    env: dict[str, str]

    def compose(self, *words: str) -> str:
        return docker("compose", *words, env=self.env)

    def replicas(self) -> list[str]:
        """The ids of the replicas' containers, running or not."""
        return sorted(self.compose("ps", "--all", "--quiet", "catalog").split())

    def services(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.compose("ps", "--format", "json").splitlines()]


def health(container: str) -> str:
    return docker("inspect", "--format", "{{.State.Health.Status}}", container).strip()


@pytest.fixture(scope="module")
def stack(front: str, request: pytest.FixtureRequest) -> Iterator[Stack]:
    tags = [f"tarn/{name}:{PROJECT}" for name in ("minio", "services", "catalog")]
    for one in tags:
        docker("tag", image(one.partition(":")[0].removeprefix("tarn/")), one)
    ports = free_ports(["TARN_PORT_CATALOG", "TARN_PORT_S3"])
    env = {
        **ports,
        "COMPOSE_PROJECT_NAME": PROJECT,
        "COMPOSE_FILE": "docker-compose.yml:catalog/replicas/compose.yml",
        "TARN_BASE": "unused",
    }
    try:
        docker(
            *(
                "compose",
                "up",
                "--detach",
                "--no-build",
                "--pull",
                "never",
                "--wait",
                "--wait-timeout",
                "240",
            ),
            *("--scale", "catalog=2", "catalog-front"),
            env=env,
            timeout_s=360,
        )
        volume = f"{PROJECT}_secrets-cli:/secrets:ro"
        run = ["run", "--rm", "--network=none", "--user=10007", "--volume", volume]
        credential = docker(*run, tags[1], "cat", "/secrets/catalog_credential").strip()
        client_id, _, secret = credential.partition(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        uri = f"http://127.0.0.1:{ports['TARN_PORT_CATALOG']}"
        answer = httpx.post(f"{uri}/v1/oauth/tokens", data=form, timeout=30).raise_for_status()
        yield Stack(uri=uri, token={"authorization": f"Bearer {answer.json()['access_token']}"}, env=env)
    finally:
        keeper = request.config.stash[KEEPER]
        for container in docker("compose", "ps", "--all", "--quiet", env=env).split():
            name = docker("inspect", "--format", "{{.Name}}", container).strip().lstrip("/")
            if "-catalog-1" in name or "-catalog-2" in name:
                keeper.expect_errors(name)  # killed on purpose
            logs = subprocess.run(["docker", "logs", container], capture_output=True, timeout=60, check=False)
            keeper.keep("catalog", name, (logs.stdout + logs.stderr).decode(errors="replace"))
        docker("compose", "down", "--volumes", "--timeout", "5", env=env)
        docker("image", "rm", *tags)


def fresh_key() -> str:
    """A UUID version 7 of now."""
    at_ms = time.time_ns() // 1_000_000
    return str(uuid.UUID(int=(at_ms << 80) | (7 << 76) | (2 << 62) | (uuid.uuid4().int & (1 << 62) - 1)))


@dataclass
class Writers:
    """Clients that set a property of their own to 1, 2, 3, …, each after the answer to the one before.

    A request without an answer, or with one that leaves it open, is repeated under the same key.

    Attributes:
        done: number of the last commit that was answered, by writer.
        answers: how often each status came; `cut` for a connection that ended without one.
        longest_s: the longest time without any commit.
    """

    stack: Stack
    done: dict[str, int] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _last_s: float = 0.0

    def write(self, name: str) -> None:
        with httpx.Client(base_url=self.stack.uri, headers=self.stack.token, timeout=WAIT_S_MAX) as client:
            while not self._stop.is_set():
                body = {
                    "requirements": [],
                    "updates": [{"action": "set-properties", "updates": {name: str(self.done[name] + 1)}}],
                }
                key = fresh_key()
                deadline = time.monotonic() + WAIT_S_MAX
                while True:
                    assert time.monotonic() < deadline, self.answers
                    try:
                        answer = client.post(TABLE, json=body, headers={"idempotency-key": key})
                    except httpx.TransportError:
                        self.answers["cut"] += 1
                        continue
                    self.answers[str(answer.status_code)] += 1
                    if answer.status_code == 200:
                        break
                    assert answer.status_code in UNKNOWN, answer.text
                    time.sleep(0.2)
                now = time.monotonic()
                self.longest_s = max(self.longest_s, now - (self._last_s or now))
                self._last_s = now
                self.done[name] += 1

    def more(self, running: list[Future[None]]) -> None:
        """Wait until some more commits are done.

        Raises:
            Exception: what ended a writer.
        """
        wanted = sum(self.done.values()) + MORE

        def enough() -> bool:
            for one in running:
                if one.done():
                    one.result()
            return sum(self.done.values()) >= wanted

        eventually(enough, timeout_s=WAIT_S_MAX, what="commits go on")

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.timeout(1_200)
def test_writers_lose_and_double_nothing_while_replicas_are_killed_and_restarted(
    stack: Stack, record_property
) -> None:
    with httpx.Client(base_url=stack.uri, headers=stack.token, timeout=30) as client:
        client.post("/v1/namespaces", json={"namespace": ["ns"]}).raise_for_status()
        made = client.post("/v1/namespaces/ns/tables", json={"name": "t", "schema": SCHEMA})
        before = made.raise_for_status().json()["metadata"]["properties"]
    writers = Writers(stack, done={f"w{number}": 0 for number in range(WRITERS)})
    one, other = stack.replicas()
    with ThreadPoolExecutor(WRITERS) as pool:
        running = [pool.submit(writers.write, name) for name in writers.done]
        try:
            writers.more(running)
            docker("kill", one)
            writers.more(running)
            states = sorted(row["State"] for row in stack.services() if row["Service"] == "catalog")
            assert states == ["running"], "the killed one is not shown as running"
            alone_s = writers.longest_s
            docker("start", one)
            eventually(lambda: health(one) == "healthy", timeout_s=WAIT_S_MAX, what="it is healthy")
            for container in (other, one):
                docker("restart", container)
                eventually(
                    lambda c=container: health(c) == "healthy", timeout_s=WAIT_S_MAX, what="it is healthy"
                )
                writers.more(running)
        finally:
            writers.stop()
        for each in running:
            each.result(timeout=WAIT_S_MAX)
    record_property("answers", dict(writers.answers))
    record_property("longest without a commit, killed (s)", round(alone_s, 1))
    record_property("longest without a commit (s)", round(writers.longest_s, 1))
    found = httpx.get(f"{stack.uri}{TABLE}", headers=stack.token, timeout=30).json()
    written = {k: int(v) for k, v in found["metadata"]["properties"].items() if k not in before}
    assert written == writers.done
    version = int(found["metadata-location"].rpartition("/")[2].partition("-")[0])
    assert version == sum(writers.done.values()), "one version per commit: none was carried out twice"
    assert {row["Health"] for row in stack.services()} <= {"healthy", ""}, "all are well afterwards"
    served = [docker("logs", container) for container in (one, other)]
    assert all("catalog starts" in log for log in served)


def test_without_a_healthy_replica_the_front_says_so_and_recovers(stack: Stack) -> None:
    replicas = stack.replicas()
    for container in replicas:
        docker("pause", container)
    try:

        def refused() -> httpx.Response | None:
            try:
                answer = httpx.get(f"{stack.uri}{TABLE}", headers=stack.token, timeout=3)
            except httpx.TransportError:
                return None  # a replica that is frozen has it
            return answer if answer.status_code == 503 else None

        answer = eventually(refused, timeout_s=120, what="it is refused")
    finally:
        for container in replicas:
            docker("unpause", container)
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["type"] == "ServiceUnavailableException"

    def served() -> bool:
        return httpx.get(f"{stack.uri}/health", timeout=60).status_code == 200

    eventually(served, timeout_s=WAIT_S_MAX, what="it is served again")


FAKE = """
import asyncio, sys

async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode()
            path = head.split()[1]
            _, _, length = head.lower().partition("content-length:")
            await reader.readexactly(int(length.split()[0]) if length else 0)
            if path == "/health":
                print("health", flush=True)
                writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n")
                continue
            print("got", path, flush=True)
            if path == "/busy":
                writer.write(b"HTTP/1.1 503 Busy\\r\\nretry-after: 7\\r\\ncontent-length: 0\\r\\n\\r\\n")
                continue
            if path == "/hold":
                try:
                    await reader.read(1)
                except ConnectionError:
                    pass
                print("gone", path, flush=True)
            writer.transport.abort()
            return
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    async with await asyncio.start_server(serve, "0.0.0.0", 8182) as server:
        await server.serve_forever()

asyncio.run(main())
"""


@dataclass(frozen=True, kw_only=True)
class Behind:
    """Two servers that count what they get, behind the front.

    Attributes:
        port: the front's port.
        front: its container.
        servers: their containers.
    """

    port: int
    front: DockerContainer
    servers: list[DockerContainer]

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def has(self, line: str, number: int) -> bool:
        """Whether a line was logged so often, and not more; the engine shows it a little later."""
        what = f"{number} times {line!r}"
        eventually(
            lambda: self.got(line) >= number, timeout_s=60, what=lambda: f"{what}, not {self.got(line)}"
        )
        return self.got(line) == number

    def got(self, line: str) -> int:
        return sum(self.by_server(line))

    def by_server(self, line: str) -> list[int]:
        """How often each server logged a line."""
        return [b"".join(one.get_logs()).decode().splitlines().count(line) for one in self.servers]


@pytest.fixture
def behind(front: str) -> Iterator[Behind]:
    with ExitStack() as running:
        network = running.enter_context(Network())
        servers = []
        for _ in range(2):
            server = DockerContainer(f"tarn/catalog:{tag()}").with_network(network)
            server.with_network_aliases("catalog").with_command(["python", "-c", FAKE])
            servers.append(running.enter_context(server))
        passes = DockerContainer(front).with_network(network)
        passes.with_kwargs(
            init=True,
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges:true"],
            mem_limit="160m",
            memswap_limit="160m",
            pids_limit=64,
        )
        passes.ports["8182/tcp"] = ("127.0.0.1", None)  # type: ignore[assignment]
        running.enter_context(passes)
        behind = Behind(port=int(passes.get_exposed_port(8182)), front=passes, servers=servers)

        def ready() -> bool:
            try:
                return httpx.get(f"{behind.uri}/health", timeout=10).status_code == 200
            except httpx.TransportError:
                return False

        eventually(ready, timeout_s=120, what="the front passes on")
        # It checks a server once it knows its name's address; the question above was one of these at most.
        eventually(
            lambda: min(behind.by_server("health")) >= 2,
            timeout_s=120,
            what=lambda: f"both servers are known; they were asked {behind.by_server('health')} times",
        )
        yield behind


def test_a_request_that_was_sent_is_never_sent_again(behind: Behind) -> None:
    for number in range(1, 5):
        answer = httpx.post(f"{behind.uri}/cut", json={"a": 1}, timeout=30)
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "CommitStateUnknownException")
        assert "retry-after" not in answer.headers
        assert behind.has("got /cut", number)


def test_an_answer_is_passed_on_as_it_is(behind: Behind) -> None:
    answer = httpx.post(f"{behind.uri}/busy", json={"a": 1}, timeout=30)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
    assert behind.has("got /busy", 1)


def test_a_connection_that_is_refused_goes_to_the_other_replica(behind: Behind) -> None:
    behind.servers[0].get_wrapped_container().kill()
    slowest_s = 0.0
    for number in range(1, 31):
        began = time.monotonic()
        assert httpx.post(f"{behind.uri}/busy", json={}, timeout=30).headers.get("retry-after") == "7"
        slowest_s = max(slowest_s, time.monotonic() - began)
        assert behind.has("got /busy", number)
    assert slowest_s < 10


def test_a_client_that_leaves_is_gone_for_the_replica_too(behind: Behind) -> None:
    client = socket.create_connection(("127.0.0.1", behind.port), timeout=30)
    client.sendall(b"POST /hold HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
    eventually(lambda: behind.got("got /hold") == 1, timeout_s=60, what="the replica has it")
    client.close()
    eventually(lambda: behind.got("gone /hold") == 1, timeout_s=60, what="the replica learns it")
    assert behind.got("got /hold") == 1, "the front sent it once"


def test_a_thousand_slow_clients_end_and_take_bounded_memory(behind: Behind, record_property) -> None:
    head = b"POST /busy HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 28_000
    slow = []
    try:
        for _ in range(1_000):
            client = socket.create_connection(("127.0.0.1", behind.port), timeout=30)
            client.sendall(head)
            slow.append(client)
        assert httpx.post(f"{behind.uri}/busy", json={}, timeout=30).headers.get("retry-after") == "7"
        used = docker("stats", "--no-stream", "--format", "{{.MemUsage}}", behind.front._container.id)
        record_property("memory with 1,000 slow clients", used.strip())
        slow[0].settimeout(30)
        assert slow[0].recv(100).startswith(b"HTTP/1.1 408")
    finally:
        for client in slow:
            client.close()
    state = json.loads(docker("inspect", "--format", "{{json .State}}", behind.front._container.id))
    assert (state["Running"], state["OOMKilled"]) == (True, False)


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", b"nonsense\r\n\r\n"],
    ids=["a head of 40 kB", "no HTTP"],
)
def test_what_is_no_request_is_refused_by_the_front(behind: Behind, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", behind.port), timeout=30) as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    assert httpx.post(f"{behind.uri}/busy", json={}, timeout=30).headers.get("retry-after") == "7"
    assert behind.has("got /busy", 1)
