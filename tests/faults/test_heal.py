"""Recovery of services that hang, are killed or run out of memory, without intervention or lost rows."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from kafka import KafkaProducer

from tarn.cli.canary import TABLE, TOPIC, CanaryRow
from tests.support.happened import DIE, HEALTHY, KILL, OOM, Happened, listening
from tests.support.stack import ENGINE_S, LONG_RUNNING, Stack, eventually, run

RUN_S_MIN = 120
ROWS = 200
ROWS_WITHIN_S = 240
PAUSED_S = 100
# Larger than every memory limit in docker-compose.yml: an allocation of this size never fits.
FILL_MIB = 4096
KILLED_EXIT_CODE = 137

MAIN = """
import os, signal, sys
sys.path.insert(0, '/opt/tarn/probe')
from runner import main_process
"""

SIGNAL = f"""{MAIN}
os.kill(main_process(), signal.Signals[sys.argv[1]])
"""

# Allocates memory until the container has none left and the OOM killer ends a process: the one named here. It
# stands still meanwhile: a JVM that goes on and cannot begin a thread ends by itself, with another exit code.
# By large requests that the kernel fills: a loop of small ones needs its own code, which the kernel drops and
# reads again as long as that gains a page; once it ended nobody for minutes.
FILL = f"""{MAIN}
import mmap, time
victim, mib_max = int(sys.argv[1] or main_process()), int(sys.argv[2])
with open(f'/proc/{{victim}}/oom_score_adj', 'w') as file:
    file.write('1000')

def runs():
    try:
        with open(f'/proc/{{victim}}/stat') as file:
            return file.read().rpartition(')')[2].split()[0] not in 'ZX'
    except OSError:
        return False

os.kill(victim, signal.SIGSTOP)
held = []
filled = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
while 64 * len(held) < mib_max and runs():
    held.append(mmap.mmap(-1, 64 << 20, flags=filled))
for _ in range(50):
    if runs():
        time.sleep(0.1)
if runs():
    os.kill(victim, signal.SIGCONT)
print('gone' if not runs() else f'still there after {{64 * len(held)}} MiB')
"""

FIND = """
import pathlib, sys
for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    try:
        words = path.read_bytes().split(bytes(1))
    except OSError:
        continue
    if any(sys.argv[1].encode() in word for word in words) and b'-c' not in words:
        print(path.parent.name)
"""


def starts(stack: Stack) -> dict[str, tuple[int, str]]:
    """Service -> number of restarts of its container by the engine, and the time of the last start."""
    found = stack.inspect_all()
    return {name: (found[name]["RestartCount"], found[name]["State"]["StartedAt"]) for name in LONG_RUNNING}


def await_age(stack: Stack, services: tuple[str, ...]) -> None:
    """Wait until the containers are two minutes old: before that the watch ends nothing."""

    def old_enough() -> bool:
        now, found = datetime.now(UTC), starts(stack)
        began = [datetime.fromisoformat(found[name][1][:19] + "+00:00") for name in services]
        return all((now - at).total_seconds() > RUN_S_MIN + 2 for at in began)

    eventually(old_enough, timeout_s=RUN_S_MIN + 30, what="containers older than two minutes", pause_s=2)


def signal_main(container: str, name: str) -> None:
    """Signal the service's own process; on SIGKILL the container ends before the reply arrives."""
    answer = run(["docker", "exec", container, "python3", "-I", "-c", SIGNAL, name], timeout_s=ENGINE_S)
    assert answer.code in (0, KILLED_EXIT_CODE), answer.text


def use_up_memory(container: str, process: str = "") -> None:
    """Fill a container to its memory limit, until the OOM killer ends `process`, or else the service's."""
    words = ["docker", "exec", container, "python3", "-I", "-c", FILL, process, str(FILL_MIB)]
    answer = run(words, timeout_s=120)
    # If it is the service's own process, the container ends as well, at times before the reply arrives.
    assert answer.code == KILLED_EXIT_CODE or answer.text.strip() == "gone", answer.text


def ends_told(container: str) -> list[dict[str, object]]:
    """Log lines in which the watch reports that it ended the process."""
    lines = run(["docker", "logs", container], timeout_s=ENGINE_S).text.splitlines()
    return [json.loads(line) for line in lines if "the process is ended" in line]


# -- rows that must survive ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka(stack: Stack) -> dict[str, str]:
    """Settings by which users on the host reach the broker."""
    answer = stack.script("tarn", "env", "--json", timeout_s=120)
    assert answer.code == 0, answer.text
    found: dict[str, str] = json.loads(answer.text.splitlines()[-1])
    return found


def send_rows(kafka: dict[str, str]) -> list[str]:
    """Send rows and wait for the broker's acknowledgements; returns their ids."""
    producer = KafkaProducer(
        bootstrap_servers=kafka["TARN_KAFKA_BOOTSTRAP"],
        security_protocol=kafka["TARN_KAFKA_SECURITY_PROTOCOL"],
        sasl_mechanism=kafka["TARN_KAFKA_SASL_MECHANISM"],
        sasl_plain_username=kafka["TARN_KAFKA_USERNAME"],
        sasl_plain_password=kafka["TARN_KAFKA_PASSWORD"],
        acks="all",
    )
    ids = [uuid.uuid4().hex for _ in range(ROWS)]
    now = datetime.now(UTC)
    try:
        sent = [
            producer.send(TOPIC, CanaryRow(id=row, sent_at=now, note="before a fault").message())
            for row in ids
        ]
        for one in sent:
            one.get(timeout=120)
    finally:
        producer.close()
    return ids


def assert_whole(stack: Stack, ids: list[str]) -> None:
    """Require every acknowledged row exactly once in the table, and no damage found by `fsck`."""

    def missing() -> set[str]:
        found = Counter(str(row) for (row,) in stack.query(f"SELECT id FROM {TABLE}"))
        assert all(found[row] <= 1 for row in ids), "a row is in the table twice"
        return {row for row in ids if not found[row]}

    eventually(lambda: not missing(), timeout_s=ROWS_WITHIN_S, what=f"{ROWS} acknowledged rows in {TABLE}")
    answer = stack.script("tarn", "fsck", timeout_s=120)
    assert answer.code == 0, answer.text


# -- faults --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault, and how to verify that it really happened.

    Attributes:
        name: the property of the report that holds the seconds.
        provoke: applies it to the main process of a service, given the container.
        back_within_s: maximum time in seconds until the service is healthy again.
        ended_by_kernel: whether the kernel's OOM killer ends the process.
        ended_by_watch: whether the watch ends the process, and logs it.
    """

    name: str
    provoke: Callable[[str], None]
    back_within_s: float
    ended_by_kernel: bool = False
    ended_by_watch: bool = False


# The watch needs 100 s at most to end a hanging process; the rest is its start, on a busy machine.
FROZEN = Fault(
    name="back_after_freeze_s",
    provoke=lambda container: signal_main(container, "SIGSTOP"),
    back_within_s=300,
    ended_by_watch=True,
)
OUT_OF_MEMORY = Fault(
    name="back_after_oom_s",
    provoke=use_up_memory,
    back_within_s=300,
    ended_by_kernel=True,
)
KILLED = Fault(
    name="back_after_kill_s",
    provoke=lambda container: signal_main(container, "SIGKILL"),
    back_within_s=300,
)

# Together, so that starts overlap and one pass also shows services whose dependencies are down too.
# Services not in a group keep running: over all groups every service loses each of its dependencies once.
# A service that is named in no first group is in the second.
FIRST = (
    (OUT_OF_MEMORY, ("minio", "spark", "ingest", "jupyter")),
    (KILLED, ("minio", "kafka", "trino", "jupyter")),
)
GROUPS = tuple(
    (fault, group)
    for fault, first in FIRST
    for group in (first, tuple(name for name in LONG_RUNNING if name not in first))
)
FROZEN_WHILE_THE_STORE_IS_AWAY = ("kafka", "jupyter")
FROZEN_TOGETHER = tuple(name for name in LONG_RUNNING if name not in FROZEN_WHILE_THE_STORE_IS_AWAY)


def strike(
    stack: Stack, fault: Fault, services: tuple[str, ...], during: Callable[[], None]
) -> dict[str, float]:
    """Provoke a fault in these services, and require that each recovers with exactly one restart.

    Args:
        stack: the stack, healthy.
        fault: the fault.
        services: the affected services.
        during: runs after the fault was provoked, before waiting for recovery.

    Returns:
        Seconds until the service was healthy, from the end of the process or the moment it was frozen.
    """
    before = starts(stack)
    container = {name: str(found["Id"]) for name, found in stack.inspect_all().items()}
    told = {service: len(ends_told(container[service])) for service in services}
    begun: dict[str, float] = {}
    with stack.fault(), listening(stack) as events:
        for service in services:
            begun[service] = time.time()
            fault.provoke(container[service])
        during()
        took: dict[str, float] = {}

        def all_back() -> bool:
            took.update(seconds_until_healthy(events(), begun, by_end=not fault.ended_by_watch))
            return set(took) == set(services)

        def still_away() -> str:
            late = {name: stack.health().get(name) for name in services if name not in took}
            return f"back: {', '.join(services)}; back are {took}; late are {late}; seen was {events()}"

        eventually(all_back, timeout_s=fault.back_within_s, what=still_away)
        stack.await_healthy()
        seen = events()
    after = starts(stack)
    for service in LONG_RUNNING:
        if service not in services:
            assert after[service] == before[service], f"{service} was ended, too"
            continue
        assert after[service][0] == before[service][0] + 1, f"{service} was ended more than once"
        mine = [event for event in seen if event.service == service]
        codes = [event.exit_code for event in mine if event.what == DIE]
        assert codes == [KILLED_EXIT_CODE], f"{service}: {mine}"
        assert not [event for event in mine if event.what == KILL], f"the engine was used to end {service}"
        assert any(event.what == OOM for event in mine) == fault.ended_by_kernel, f"{service}: {mine}"
        lines = ends_told(container[service])[told[service] :]
        assert len(lines) == int(fault.ended_by_watch), f"{service}: {lines}"
        assert all(line["service"] == service and int(str(line["silent_s"])) >= 60 for line in lines), lines
    return took


def seconds_until_healthy(
    events: list[Happened], begun: dict[str, float], *, by_end: bool
) -> dict[str, float]:
    """Seconds until each service that ended was healthy again, by the engine's clock."""
    took = {}
    for service, begun_s in begun.items():
        mine = [event for event in events if event.service == service]
        ends = [event.at_s for event in mine if event.what == DIE]
        healthy = [event.at_s for event in mine if ends and event.what == HEALTHY and event.at_s > ends[-1]]
        if healthy:
            took[service] = round(healthy[0] - (ends[-1] if by_end else begun_s), 1)
    return took


def nothing() -> None:
    """Do nothing else meanwhile."""


@pytest.mark.nightly("a watch that ends a service because one that it uses hangs for minutes")
def test_a_dependency_that_hangs_ends_nobody_else(
    stack: Stack, kafka: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    """The store is paused for longer than any watch waits: its users become unhealthy but keep running.

    Broker and notebooks, which do not depend on the store, are frozen meanwhile and recover.
    """
    stack.await_healthy()
    await_age(stack, LONG_RUNNING)
    ids = send_rows(kafka)
    minio = stack.container("minio")

    def await_unhealthy() -> None:
        begin = time.monotonic()
        eventually(
            lambda: stack.health().get("trino") == "unhealthy" and time.monotonic() - begin > PAUSED_S,
            timeout_s=PAUSED_S + 80,
            what=f"trino unhealthy, and {PAUSED_S} s gone",
            pause_s=2,
        )
        assert run(["docker", "unpause", minio], timeout_s=ENGINE_S).code == 0

    assert run(["docker", "pause", minio], timeout_s=ENGINE_S).code == 0
    try:
        took = strike(stack, FROZEN, FROZEN_WHILE_THE_STORE_IS_AWAY, await_unhealthy)
    finally:
        # Already unpaused if all went well; then the engine refuses it.
        run(["docker", "unpause", minio], timeout_s=ENGINE_S)
    assert_whole(stack, ids)
    record_property(FROZEN.name, took)


@pytest.mark.in_turn(6, "a watch in a container no longer ends a process that hangs")
@pytest.mark.runs_last  # the containers are two minutes old by then
def test_what_hangs_is_ended_and_comes_back(
    stack: Stack, kafka: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    stack.await_healthy()
    await_age(stack, FROZEN_TOGETHER)
    ids = send_rows(kafka)
    took = strike(stack, FROZEN, FROZEN_TOGETHER, nothing)
    assert_whole(stack, ids)
    record_property(FROZEN.name, took)


def test_a_kernel_of_a_notebook_that_uses_up_all_memory_ends_alone(stack: Stack) -> None:
    """JupyterLab goes on and restarts the kernel."""
    stack.await_healthy()
    before, container = starts(stack), stack.container("jupyter")
    token = stack.inside("jupyter", "cat", "/run/tarn/secrets/jupyter_token").text.strip()

    def ask(method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            "127.0.0.1", int(stack.ports["TARN_PORT_JUPYTER"]), timeout=120
        )
        try:
            connection.request(method, path, headers={"Authorization": f"token {token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    status, body = ask("POST", "/api/kernels")
    assert status == 201, body
    kernel = json.loads(body)["id"]
    try:
        (process,) = processes(stack, "jupyter", kernel)
        with stack.fault(), listening(stack) as events:
            use_up_memory(container, process)
            eventually(
                lambda: (now := processes(stack, "jupyter", kernel)) and process not in now,
                timeout_s=180,
                what=lambda: (
                    f"another kernel than {process}; there are {processes(stack, 'jupyter', kernel)}"
                ),
            )

            def happened() -> list[str]:
                return [event.what for event in events() if event.service == "jupyter"]

            eventually(lambda: OOM in happened(), timeout_s=60, what=lambda: f"an oom event; {happened()}")
            seen = happened()
        assert DIE not in seen
        assert ask("GET", f"/api/kernels/{kernel}")[0] == 200
    finally:
        ask("DELETE", f"/api/kernels/{kernel}")
    deep = stack.inside(
        "jupyter", "python3", "-I", "-S", "/opt/tarn/probe/runner.py", "--once", "deep", timeout_s=90
    )
    assert deep.code == 0, deep.text
    assert starts(stack) == before


def test_a_watch_that_the_kernel_ends_for_memory_ends_no_service(stack: Stack) -> None:
    """The interrupted check counts as failed; the next, two seconds later, finds the service usable."""
    service = "catalog"
    stack.await_healthy()
    before, container = starts(stack), stack.container(service)
    told = ends_told(container)
    (watch,) = processes(stack, service, "/opt/tarn/probe/runner.py")[:1]
    with stack.fault(), listening(stack) as events:
        use_up_memory(container, watch)

        def healed() -> bool:
            seen = [event.what for event in events() if event.service == service]
            return OOM in seen and seen[-1] == HEALTHY

        eventually(healed, timeout_s=180, what=lambda: f"{service} healthy after an oom event; {events()}")
    assert starts(stack) == before
    assert ends_told(container) == told


def processes(stack: Stack, service: str, word: str) -> list[str]:
    """The processes in a service's container with this in their command line, oldest first."""
    answer = stack.inside(service, "python3", "-I", "-c", FIND, word)
    assert answer.code == 0, answer.text
    return sorted(answer.text.split(), key=int)


def name_of(value: Fault | tuple[str, ...]) -> str:
    return value.name if isinstance(value, Fault) else ", ".join(value)


@pytest.mark.in_turn(3, "a killed service, or one out of memory, does not come back by itself, or loses rows")
@pytest.mark.parametrize(("fault", "services"), GROUPS, ids=name_of)
def test_what_ends_at_once_comes_back(
    stack: Stack,
    kafka: dict[str, str],
    fault: Fault,
    services: tuple[str, ...],
    record_property: Callable[[str, object], None],
) -> None:
    stack.await_healthy()
    ids = send_rows(kafka)
    took = strike(stack, fault, services, nothing)
    assert_whole(stack, ids)
    record_property(fault.name, took)


def test_every_service_is_struck_by_every_fault_once() -> None:
    for fault in (OUT_OF_MEMORY, KILLED):
        struck = [service for one, services in GROUPS if one is fault for service in services]
        assert sorted(struck) == sorted(LONG_RUNNING)
    assert sorted((*FROZEN_TOGETHER, *FROZEN_WHILE_THE_STORE_IS_AWAY)) == sorted(LONG_RUNNING)
