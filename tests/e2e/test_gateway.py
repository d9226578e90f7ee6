"""Rows over HTTP on the whole stack: read by Trino once answered, each once whatever is killed."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import trino

from tarn.client import RowWriter, writer
from tests.support.flights import host_env
from tests.support.stack import ENGINE_S, Stack, eventually, run

WRITERS = 8
BATCHES = 100
ROWS = 4
KILLS = 3
PEAK = ("/sys/fs/cgroup/memory.peak", "/sys/fs/cgroup/memory/memory.max_usage_in_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Addresses on the host, and the credential of the command line."""

    gateway: str
    catalog: str
    credential: str
    http: httpx.Client

    def token(self, credential: str) -> str:
        client_id, secret = credential.split(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        answer = self.http.post(f"{self.catalog}/v1/oauth/tokens", data=form)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    def admin(self, method: str, path: str, body: object) -> dict[str, str]:
        headers = {"authorization": f"Bearer {self.token(self.credential)}"}
        answer = self.http.request(method, self.catalog + path, json=body, headers=headers)
        assert answer.status_code in (200, 204), answer.text
        found: dict[str, str] = answer.json() if answer.content else {}
        return found

    def post(self, table: str, rows: object, *, credential: str = "", key: str = "") -> httpx.Response:
        headers = {"authorization": f"Bearer {self.token(credential or self.credential)}"}
        headers |= {"idempotency-key": key} if key else {}
        return self.http.post(f"{self.gateway}/v1/tables/{table}/rows", json=rows, headers=headers)

    def writer(self, table: str) -> RowWriter:
        own = {"gateway": self.gateway, "catalog": self.catalog, "credential": self.credential}
        return writer(table, timeout_s=120, **own)


@pytest.fixture(scope="module")
def doors(stack: Stack) -> Iterator[Doors]:
    env = host_env(stack)
    with httpx.Client(timeout=180) as http:
        yield Doors(
            gateway=env["TARN_GATEWAY_URI"],
            catalog=env["TARN_CATALOG_URI"],
            credential=env["TARN_CATALOG_CREDENTIAL"],
            http=http,
        )


@pytest.fixture
def table(stack: Stack, doors: Doors) -> str:
    """A new table, made by Trino."""
    sql(stack, doors, "CREATE SCHEMA IF NOT EXISTS gate")
    name = f"gate.t_{uuid.uuid4().hex[:12]}"
    sql(stack, doors, f"CREATE TABLE {name} (id bigint, note varchar)")
    return name


def sql(stack: Stack, doors: Doors, text: str) -> list[list[Any]]:
    """What Trino answers the principal `cli`: with principals, nobody may ask without a secret."""
    connection = trino.dbapi.connect(
        host="127.0.0.1",
        port=int(stack.ports["TARN_PORT_TRINO"]),
        user="cli",
        catalog="tarn",
        extra_credential=[("secret", doors.credential.partition(":")[2])],
        request_timeout=180,
    )
    with contextlib.closing(connection):
        return list(connection.cursor().execute(text).fetchall())


def ids(stack: Stack, doors: Doors, table: str) -> list[int]:
    return sorted(number for (number,) in sql(stack, doors, f"SELECT id FROM {table}"))


def usable(stack: Stack, doors: Doors, *, all_healthy: bool = True) -> None:
    def answers() -> bool:
        try:
            return doors.http.get(f"{doors.gateway}/health?ready").status_code == 200
        except httpx.HTTPError:
            return False

    eventually(answers, timeout_s=180, what=lambda: f"the gateway answers; {stack.last_probe('gateway')}")
    if all_healthy:
        stack.await_healthy()


def test_rows_can_be_read_when_the_gateway_answers(stack: Stack, doors: Doors, table: str) -> None:
    for number in range(3):
        answer = doors.post(table, [{"id": number}, {"id": "x"}])
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["accepted"], [one["row"] for one in found["rejected"]]) == (1, [1])
        assert ids(stack, doors, table) == list(range(number + 1))
        schema, _, name = table.partition(".")
        listed = sql(stack, doors, f'SELECT snapshot_id FROM {schema}."{name}$snapshots"')
        assert found["snapshot-id"] in {snapshot for (snapshot,) in listed}


def test_a_repeat_doubles_nothing_also_after_a_restart(stack: Stack, doors: Doors, table: str) -> None:
    first = doors.post(table, [{"id": 1}], key="k")
    again = doors.post(table, [{"id": 1}], key="k")
    with stack.fault():
        assert run(["docker", "restart", stack.container("gateway")], timeout_s=ENGINE_S).code == 0
        usable(stack, doors)
    late = doors.post(table, [{"id": 1}], key="k")
    assert [one.status_code for one in (first, again, late)] == [200] * 3, late.text
    assert [one.json()["repeated"] for one in (first, again, late)] == [False, True, True]
    assert len({one.json()["snapshot-id"] for one in (first, again, late)}) == 1
    assert doors.post(table, [{"id": 2}], key="k").json()["error"]["type"] == "KeyReused"
    assert ids(stack, doors, table) == [1]


@pytest.fixture
def reader(doors: Doors) -> Iterator[tuple[str, str]]:
    """Name and credential of a principal that goes with the test: with one, Trino asks all to log in."""
    name = f"reader-{uuid.uuid4().hex[:8]}"
    made = doors.admin("POST", "/tarn/v1/principals", {"name": name})
    yield name, f"{made['client-id']}:{made['client-secret']}"
    doors.admin("DELETE", f"/tarn/v1/principals/{name}", None)


def test_only_who_may_write_the_table_does(
    stack: Stack, doors: Doors, table: str, reader: tuple[str, str]
) -> None:
    name, credential = reader
    on = {"kind": "table", "namespace": ["gate"], "name": table.partition(".")[2]}
    refused = doors.post(table, [{"id": 1}], credential=credential)
    assert refused.status_code == 403, refused.text
    doors.admin("POST", "/tarn/v1/grants", {"on": on, "to": name, "privileges": ["READ"]})

    def status(wanted: int) -> bool:
        answer = doors.post(table, [{"id": 1}], credential=credential)
        assert answer.status_code in (403, wanted), answer.text
        return answer.status_code == wanted

    assert status(403), "READ is not WRITE"
    assert ids(stack, doors, table) == []
    wrong = {"authorization": "Bearer wrong"}
    for headers in ({}, wrong):
        answer = doors.http.post(f"{doors.gateway}/v1/tables/{table}/rows", json=[{"id": 1}], headers=headers)
        assert answer.status_code == 401, answer.text
    doors.admin("POST", "/tarn/v1/grants", {"on": on, "to": name, "privileges": ["WRITE"]})
    eventually(lambda: status(200), timeout_s=90, what="the grant holds")
    assert ids(stack, doors, table) == [1]


@pytest.mark.timeout(1_200)
def test_writers_with_retries_lose_and_double_nothing_while_the_gateway_is_killed(
    stack: Stack,
    doors: Doors,
    table: str,
    record_property: Callable[[str, object], None],
) -> None:
    wanted = list(range(WRITERS * BATCHES * ROWS))
    done = [threading.Event() for _ in range(KILLS)]
    answered: list[int] = []

    def write(number: int) -> int:
        repeats = 0
        with doors.writer(table) as rows:
            for batch in range(BATCHES):
                first = (number * BATCHES + batch) * ROWS
                found = rows.send([{"id": first + n} for n in range(ROWS)])
                assert (found.accepted, found.rejected) == (ROWS, {})
                repeats += found.repeated
                answered.append(first)
                for at, event in enumerate(done):
                    if len(answered) >= (at + 1) * WRITERS * BATCHES // (KILLS + 1):
                        event.set()
        return repeats

    with ExitStack() as held:
        held.enter_context(stack.fault())
        pool = held.enter_context(ThreadPoolExecutor(WRITERS))
        running = [pool.submit(write, number) for number in range(WRITERS)]
        for event in done:
            assert event.wait(240)
            count = stack.inspect("gateway")["RestartCount"]
            stack.signal_application("gateway", "SIGKILL")
            # The next kill must meet a gateway that writes again, not one that is still down.
            eventually(
                lambda count=count: stack.inspect("gateway")["RestartCount"] > count,
                timeout_s=120,
                what="the gateway starts again",
            )
            usable(stack, doors, all_healthy=False)
        repeats = sum(one.result(300) for one in running)
        usable(stack, doors)
    assert ids(stack, doors, table) == wanted
    record_property("repeats", repeats)
    assert stack.inspect("gateway")["RestartCount"] >= KILLS


@pytest.mark.timeout(1_200)
def test_large_bodies_to_many_tables_do_not_fill_its_memory(
    stack: Stack, doors: Doors, record_property: Callable[[str, object], None]
) -> None:
    """As many bodies of the largest size as connections are likely to be: taken, or refused to come again."""
    sql(stack, doors, "CREATE SCHEMA IF NOT EXISTS gate")
    tables = [f"gate.large_{number}_{uuid.uuid4().hex[:8]}" for number in range(6)]
    for name in tables:
        sql(stack, doors, f"CREATE TABLE {name} (id bigint, note varchar)")
    before = stack.inspect("gateway")["RestartCount"]
    rows = [{"id": number, "note": "ab" * 400} for number in range(4_700)]
    body = json.dumps(rows).encode()
    assert 3 << 20 < len(body) < 4 << 20
    headers = {"authorization": f"Bearer {doors.token(doors.credential)}", "content-type": "application/json"}

    def send(number: int) -> tuple[str, int]:
        name = tables[number % len(tables)]
        answer = doors.http.post(f"{doors.gateway}/v1/tables/{name}/rows", content=body, headers=headers)
        return name, answer.status_code

    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(send, range(48)))
    assert {200} <= {status for _, status in found} <= {200, 429, 503}, found
    for name in tables:
        taken = sum(status == 200 for table, status in found if table == name)
        ((count,),) = sql(stack, doors, f"SELECT count(*) FROM {name}")
        assert count == taken * len(rows), name
    assert stack.inspect("gateway")["RestartCount"] == before
    assert doors.http.get(f"{doors.gateway}/health?ready").status_code == 200
    peak = stack.inside("gateway", "sh", "-c", f"cat {PEAK[0]} 2>/dev/null || cat {PEAK[1]}")
    record_property("memory_peak_mib", round(int(peak.text) / 2**20))
    record_property("answers", {status: sum(one == status for _, one in found) for status in (200, 429, 503)})


def test_status_and_the_page_of_the_api(stack: Stack, doors: Doors) -> None:
    answer = stack.script("tarn", "status", "--json", timeout_s=120)
    states = {
        one["service"]: one["ok"] for one in json.loads(answer.text[answer.text.index("{") :])["services"]
    }
    assert states["gateway"] is True
    page = doors.http.get(f"{doors.gateway}/openapi.json").json()
    assert "/v1/tables/{table}/rows" in page["paths"]
