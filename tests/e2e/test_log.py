"""`durability=log` on the whole stack: offsets that are true, and each row once whatever is killed."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.test_gateway import Doors, doors, ids, sql, usable
from tests.support.stack import ENGINE_S, Stack, eventually, run

__all__ = ("doors",)

WRITERS = 4
WRITES = 60
ROWS = 3
KILLS = 3
IDS_MAX = 1_000_000
AGAIN = (429, 503, 504)


@pytest.fixture
def table(stack: Stack, doors: Doors) -> str:
    """A new table with the column that says where a row came from, and an ingestor for its log."""
    sql(stack, doors, "CREATE SCHEMA IF NOT EXISTS gate")
    name = f"gate.l_{uuid.uuid4().hex[:12]}"
    place = 'ROW("source" varchar, "partition" integer, "offset" bigint, "time" timestamp(6) with time zone)'
    sql(stack, doors, f"CREATE TABLE {name} (id bigint, _tarn {place})")
    made = stack.script("tarn", "log", name, "--partitions", "2", "--wait", "180", timeout_s=300)
    assert made.code == 0, made.text
    return name


class Client:
    """Writes with `log`, and repeats what is not answered.

    Attributes:
        offsets: id of each row to its partition and offset, as answered.
        repeated: number of answers that say that the rows were there.
    """

    def __init__(self, doors: Doors, table: str, number: int) -> None:
        self._doors = doors
        self._table = table
        self._number = number
        self._token = doors.token(doors.credential)
        self.offsets: dict[int, tuple[int, int]] = {}
        self.repeated = 0

    def play(self, enough: threading.Event) -> None:
        """At least `WRITES` writes, and more until it is enough."""
        for at in itertools.count():
            if at >= WRITES and enough.is_set():
                return
            rows = [{"id": IDS_MAX * self._number + ROWS * at + i} for i in range(ROWS)]
            found = self._post(at, rows)
            self.repeated += found["repeated"]
            places = [
                (one["partition"], o)
                for one in found["offsets"]
                for o in range(one["first"], one["last"] + 1)
            ]
            self.offsets |= {row["id"]: place for row, place in zip(rows, places, strict=True)}

    def _post(self, at: int, rows: list[dict[str, int]]) -> dict[str, Any]:
        """Numbered rows from two of the clients, a key from the others."""
        headers = {"authorization": f"Bearer {self._token}"}
        if self._number % 2:
            headers |= {"tarn-producer": f"p{self._number}", "tarn-sequence": str(ROWS * at)}
        else:
            headers |= {"idempotency-key": f"{self._number}-{at}"}
        url = f"{self._doors.gateway}/v1/tables/{self._table}/rows?durability=log"
        until_s = time.monotonic() + 180
        while True:
            try:
                answer = httpx.post(url, json=rows, headers=headers, timeout=60)
                if answer.status_code == 200:
                    return dict(answer.json())
                assert answer.status_code in AGAIN, answer.text
            except httpx.HTTPError:
                pass  # the gateway is killed, or begins
            assert time.monotonic() < until_s, "no answer for three minutes"
            time.sleep(0.2)


def test_rows_land_at_the_offsets_of_the_answer(stack: Stack, doors: Doors, table: str) -> None:
    client = Client(doors, table, 0)
    found = client._post(0, [{"id": 1}, {"id": 2}])
    assert (found["durability"], found["accepted"], found["repeated"]) == ("log", 2, False)
    eventually(lambda: ids(stack, doors, table) == [1, 2], timeout_s=180, what="the rows landed")
    (one,) = found["offsets"]
    rows = sql(stack, doors, f"SELECT _tarn.source, _tarn.partition, _tarn.offset FROM {table} ORDER BY id")
    assert rows == [[found["topic"], one["partition"], offset] for offset in (one["first"], one["last"])]
    again = client._post(0, [{"id": 1}, {"id": 2}])
    assert again == {**found, "repeated": True}


@pytest.mark.timeout(1_500)
def test_each_row_is_there_once_when_the_gateway_is_killed_under_load(
    stack: Stack, doors: Doors, table: str
) -> None:
    clients = [Client(doors, table, number) for number in range(WRITERS)]
    enough = threading.Event()

    def kill() -> None:
        try:
            for _ in range(KILLS):
                time.sleep(2)
                assert run(["docker", "kill", stack.container("gateway")], timeout_s=ENGINE_S).code == 0
                assert run(["docker", "start", stack.container("gateway")], timeout_s=ENGINE_S).code == 0
                usable(stack, doors)
        finally:
            enough.set()

    with stack.fault(), ThreadPoolExecutor(WRITERS + 1) as pool:
        killing = pool.submit(kill)
        playing = [pool.submit(client.play, enough) for client in clients]
        killing.result(timeout=600)
        for one in playing:
            one.result(timeout=600)
        stack.await_healthy()
    wanted = {number: place for client in clients for number, place in client.offsets.items()}
    assert len(wanted) >= WRITERS * WRITES * ROWS
    eventually(
        lambda: len(ids(stack, doors, table)) >= len(wanted),
        timeout_s=240,
        what=lambda: f"all {len(wanted)} rows have landed; {len(ids(stack, doors, table))} have",
    )
    time.sleep(3)  # what would come twice has time to come
    rows = sql(stack, doors, f"SELECT id, _tarn.partition, _tarn.offset FROM {table}")
    assert sorted(row[0] for row in rows) == sorted(wanted)
    assert {row[0]: (row[1], row[2]) for row in rows} == wanted
    traced = stack.script("tarn", "audit", table, timeout_s=180)
    assert traced.code == 0, traced.text
