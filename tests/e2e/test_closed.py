"""Closed by default: listening ports, logins, connections between services, and no secret in the open."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from minio import Minio, MinioAdmin
from minio.credentials import StaticProvider
from minio.error import MinioAdminException, S3Error

from tests.support.compose import SERVICES
from tests.support.flights import host_env
from tests.support.needs import needs
from tests.support.secrets import secret_values
from tests.support.stack import ENGINE_S, LONG_RUNNING, Stack, run

LISTENING = """
import json, pathlib
found = set()
for name in ("tcp", "tcp6"):
    for row in pathlib.Path("/proc/net", name).read_text().splitlines()[1:]:
        words = row.split()
        address, _, port = words[1].partition(":")
        # Bytes in the kernel's order: all of 127.0.0.0/8, plain or mapped, ends so; then ::1.
        own = address.endswith("7F") or address == "0" * 24 + "01000000"
        if words[3] == "0A" and not own:
            found.add(int(port, 16))
print(json.dumps(sorted(found)))
"""
CONNECT = """
import concurrent.futures, json, socket, sys
def reached(target):
    try:
        socket.create_connection(target, timeout=2).close()
        return True
    except OSError:
        return False
targets = [tuple(one) for one in json.loads(sys.argv[1])]
with concurrent.futures.ThreadPoolExecutor(64) as pool:
    print(json.dumps([one for one, found in zip(targets, pool.map(reached, targets)) if found]))
"""
ALL_SECRETS = """
import json, pathlib
print(json.dumps({f"{p.parent.name}/{p.name}": p.read_text() for p in pathlib.Path("/secrets").glob("*/*")}))
"""
IDS = ("root_user", "s3_access_key_id", "vending_access_key_id", "kafka_user")
DEFAULTS = [("minioadmin", "minioadmin"), ("admin", "password"), ("admin", "admin"), ("root", "s3cr3t")]


def get(url: str, method: str = "GET", body: bytes | None = None) -> int:
    """The status of a response, errors included."""
    request = urllib.request.Request(url, method=method, data=body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def listeners(port: int) -> set[str]:
    """Local addresses on which a process listens at a port, in the kernel's notation."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            words = row.split()
            address, _, number = words[1].partition(":")
            if words[3] == "0A" and int(number, 16) == port:
                found.add(address)
    return found


@pytest.mark.may_skip("the kernel's tables of sockets are Linux's")
def test_nothing_of_ours_listens_beyond_this_machine(stack: Stack) -> None:
    if not Path("/proc/net/tcp").exists():
        pytest.skip("no /proc/net/tcp")
    loopback = "0100007F"
    for name, port in stack.ports.items():
        assert listeners(int(port)) == {loopback}, name


@pytest.fixture(scope="module")
def doors(stack: Stack) -> dict[tuple[str, int], tuple[str, int]]:
    """Each (address, port) at which a container of the stack could be reached -> its service and the port.

    These are all ports on which a service listens beyond its own loopback, each at every address that it has:
    a closed port has to be closed in all networks.
    """
    found = {}
    for service in LONG_RUNNING:
        listening = json.loads(stack.said_inside(service, "python3", "-c", LISTENING).splitlines()[-1])
        networks = stack.inspect(service)["NetworkSettings"]["Networks"]
        for network in networks.values():
            for port in listening:
                found[network["IPAddress"], port] = (service, port)
    return found


def connected(stack: Stack, service: str, targets: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """To which of these a container of the service could connect."""
    if service in LONG_RUNNING:
        answer = stack.inside(service, "python3", "-c", CONNECT, json.dumps(targets), timeout_s=120)
    else:
        code = CONNECT.replace("sys.argv[1]", repr(json.dumps(targets)))
        answer = stack.one_shot(service, code)
    assert answer.code == 0, answer.text
    return [(host, port) for host, port in json.loads(answer.text.splitlines()[-1])]


# The demo's replay is not started here.
@pytest.mark.parametrize("service", sorted({n for n, s in SERVICES.items() if "networks" in s} - {"replay"}))
def test_a_service_reaches_what_it_needs_and_nothing_else(
    stack: Stack, doors: dict[tuple[str, int], tuple[str, int]], service: str
) -> None:
    table = needs()
    asked = {(one, port) for one in table[service].servers for port in table[one].ports}
    named = [list(address.split(":")) for address in table[service].uses]
    targets = [*doors, *((name, int(port)) for name, port in named)]
    targets = [target for target in targets if doors.get(target, ("", 0))[0] != service]

    def is_needed(target: tuple[str, int]) -> bool:
        return doors[target] in asked if target in doors else True

    reached = connected(stack, service, targets)
    if missed := [target for target in targets if is_needed(target) and target not in reached]:
        # Once more, for a name that the engine was slow to say or a service that stood still.
        reached += connected(stack, service, missed)
    assert {doors[target] for target in reached if target in doors} == asked
    assert {f"{host}:{port}" for host, port in reached if (host, port) not in doors} == table[service].uses


def test_every_service_listens_where_the_table_says(
    stack: Stack, doors: dict[tuple[str, int], tuple[str, int]]
) -> None:
    """A listening port missing from the table would be reachable by anything on the same network."""
    table = needs()
    for service in LONG_RUNNING:
        assert {port for _, (name, port) in doors.items() if name == service} == table[service].ports, service


def test_no_default_credential_is_accepted_anywhere(stack: Stack) -> None:
    store = f"127.0.0.1:{stack.ports['TARN_PORT_S3']}"
    tokens = f"http://127.0.0.1:{stack.ports['TARN_PORT_CATALOG']}/v1/oauth/tokens"
    jupyter = f"http://127.0.0.1:{stack.ports['TARN_PORT_JUPYTER']}/api/contents"
    for user, password in DEFAULTS:
        with pytest.raises(S3Error) as refused:
            Minio(store, user, password, secure=False, region="us-east-1").list_buckets()
        assert refused.value.code == "InvalidAccessKeyId", user
        form = f"grant_type=client_credentials&client_id={user}&client_secret={password}&scope=catalog"
        assert get(tokens, "POST", form.encode()) == 401, user
        for token in ("", user, password):
            assert get(f"{jupyter}?token={token}") == 403, token


def test_the_store_gives_nothing_to_nobody(stack: Stack) -> None:
    store = f"http://127.0.0.1:{stack.ports['TARN_PORT_S3']}"
    for path in (
        *("/", "/tarn", "/tarn/?list-type=2", "/tarn/catalog/v1/", "/tarn/?policy"),
        *("/minio/admin/v3/info", "/minio/v2/metrics/cluster", "/minio/metrics/v3", "/minio/console"),
    ):
        assert get(store + path) == 403, path
    assert get(f"{store}/tarn/warehouse/x", "PUT", b"x") == 403
    assert get(f"{store}/tarn/warehouse/x", "DELETE") == 403


def test_a_services_key_administers_nothing(stack: Stack) -> None:
    env = host_env(stack)
    keys = StaticProvider(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"])
    admin = MinioAdmin(
        endpoint=f"127.0.0.1:{stack.ports['TARN_PORT_S3']}",
        credentials=keys,
        secure=False,
        region="us-east-1",
    )
    for name, ask in (("users", admin.user_list), ("info", admin.info), ("policies", admin.policy_list)):
        with pytest.raises(MinioAdminException) as refused:
            ask()
        assert "AccessDenied" in str(refused.value), name


def test_no_secret_is_seen_where_it_does_not_belong(stack: Stack) -> None:
    answer = stack.one_shot("init", ALL_SECRETS)
    assert answer.code == 0, answer.text
    files: dict[str, str] = json.loads(answer.text.splitlines()[-1])
    secrets = {
        name: secret_values(text)
        for name, text in files.items()
        if name.rpartition("/")[2] not in IDS and text
    }
    everything = set().union(*secrets.values())
    assert len(everything) >= 15, "too few secrets were found to mean anything"
    assert all(len(secret) >= 20 for secret in everything)
    for service in (*LONG_RUNNING, "init", "bootstrap"):
        shown = json.dumps(stack.inspect(service))
        shown += run(["docker", "logs", stack.container(service)], timeout_s=ENGINE_S).text
        assert not [s for s in everything if s in shown], f"{service}: docker inspect or its log"
        if service in ("init", "bootstrap"):
            continue
        own = set().union(*(found for name, found in secrets.items() if name.startswith(f"{service}/")))
        lives = stack.said_inside(
            service, "sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null"
        )
        assert not [s for s in everything - own if s in lives], f"{service}: another's secret in a process"
    pages = [f"http://127.0.0.1:{stack.ports['TARN_PORT_INGEST']}/status"]
    pages.append(f"http://127.0.0.1:{stack.ports['TARN_PORT_TRINO']}/v1/info")
    pages.append(f"http://127.0.0.1:{stack.ports['TARN_PORT_SPARK_UI']}/environment/")
    for page in pages:
        with urllib.request.urlopen(page, timeout=60) as opened:
            told = opened.read().decode(errors="replace")
        assert not [s for s in everything if s in told], page
