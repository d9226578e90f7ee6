"""Two catalogs in processes of their own behind one port: what a client sees is one catalog."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarn_catalog.testing.server import write_secrets
from tests.contract.catalog.test_commits import SCHEMA, key_of
from tests.support.replicas import GRANTS_MAX_AGE_S, Front, Replica, replicas

WAIT_S_MAX = 60.0
TABLE = "/v1/namespaces/ns/tables/t"


class Lake:
    """Two replicas over one folder.

    Attributes:
        one, other: the replicas.
        front: the port in front of them.
        token: the header of a principal that may do everything; made by the first replica.
    """

    def __init__(self, running: list[Replica], front: Front, credential: str) -> None:
        self.one, self.other = running
        self.front = front
        self.token = self.login(self.one.uri, credential)

    @staticmethod
    def login(uri: str, credential: str) -> dict[str, str]:
        client_id, _, secret = credential.partition(":")
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        answer = httpx.post(f"{uri}/v1/oauth/tokens", data=form, timeout=WAIT_S_MAX)
        return {"authorization": f"Bearer {answer.raise_for_status().json()['access_token']}"}

    def ask(self, uri: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """One request on a connection of its own."""
        heads = {**self.token, "connection": "close", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return httpx.request(method, f"{uri}{path}", json=body, headers=heads, timeout=WAIT_S_MAX)

    def table(self) -> None:
        assert self.ask(self.one.uri, "POST", "/v1/namespaces", {"namespace": ["ns"]}).status_code == 200
        new = {"name": "t", "schema": SCHEMA}
        assert self.ask(self.other.uri, "POST", "/v1/namespaces/ns/tables", new).status_code == 200


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    credential = write_secrets(tmp_path / "secrets")
    with (
        replicas(tmp_path / "lake", tmp_path / "secrets") as running,
        closing(Front([one.port for one in running])) as front,
    ):
        yield Lake(running, front, credential)


def change(**properties: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": properties}]}


def test_every_request_may_go_to_another_replica_and_each_reads_what_was_written(lake: Lake) -> None:
    lake.table()
    for number in range(20):
        done = lake.ask(lake.front.uri, "POST", TABLE, change(number=str(number)))
        assert done.status_code == 200
        for uri in (lake.front.uri, lake.one.uri, lake.other.uri):
            found = lake.ask(uri, "GET", TABLE).json()
            assert found["metadata"]["properties"]["number"] == str(number)
            assert found["metadata-location"] == done.json()["metadata-location"]
    tag = lake.ask(lake.one.uri, "GET", TABLE).headers["etag"]
    assert lake.ask(lake.other.uri, "GET", TABLE, if_none_match=tag).status_code == 304
    assert lake.ask(lake.one.uri, "DELETE", TABLE).status_code == 204
    assert lake.ask(lake.other.uri, "GET", TABLE).status_code == 404


def test_a_repeated_request_is_done_once_whichever_replica_it_comes_to(lake: Lake) -> None:
    lake.table()
    key = key_of(1, time.time_ns() // 1_000_000)
    first = lake.ask(lake.one.uri, "POST", TABLE, change(a="1"), idempotency_key=key)
    again = lake.ask(lake.other.uri, "POST", TABLE, change(a="1"), idempotency_key=key)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["metadata-location"] == again.json()["metadata-location"]
    assert lake.ask(lake.other.uri, "POST", TABLE, change(a="2"), idempotency_key=key).status_code == 422
    key = key_of(2, time.time_ns() // 1_000_000)
    for uri in (lake.one.uri, lake.other.uri):
        made = lake.ask(uri, "POST", "/v1/namespaces", {"namespace": ["new"]}, idempotency_key=key)
        assert made.status_code == 200, made.text
    key = key_of(3, time.time_ns() // 1_000_000)
    for uri in (lake.other.uri, lake.one.uri):
        assert lake.ask(uri, "DELETE", "/v1/namespaces/new", idempotency_key=key).status_code == 204


def test_grants_hold_on_the_other_replica_within_the_stated_time(lake: Lake) -> None:
    lake.table()
    made = lake.ask(lake.one.uri, "POST", "/tarn/v1/principals", {"name": "bob"}).json()

    def within(uri: str, status: int) -> float:
        began = time.monotonic()
        while httpx.get(f"{uri}{TABLE}", headers=bob, timeout=WAIT_S_MAX).status_code != status:
            assert time.monotonic() - began < GRANTS_MAX_AGE_S + 5, "not within the stated time"
            time.sleep(0.05)
        return time.monotonic() - began

    deadline = time.monotonic() + GRANTS_MAX_AGE_S + 5
    while True:
        try:
            bob = lake.login(lake.other.uri, f"{made['client-id']}:{made['client-secret']}")
            break
        except httpx.HTTPStatusError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    within(lake.other.uri, 403)
    grant = {
        "on": {"kind": "table", "namespace": ["ns"], "name": "t"},
        "to": "bob",
        "privileges": ["READ"],
    }
    assert lake.ask(lake.one.uri, "POST", "/tarn/v1/grants", grant).status_code == 200
    assert httpx.get(f"{lake.one.uri}{TABLE}", headers=bob, timeout=WAIT_S_MAX).status_code == 200, (
        "at once where it was made"
    )
    within(lake.other.uri, 200)
    assert lake.ask(lake.one.uri, "POST", "/tarn/v1/grants/revoke", grant).status_code == 200
    within(lake.other.uri, 403)
    assert lake.ask(lake.one.uri, "DELETE", "/tarn/v1/principals/bob").status_code == 204
    within(lake.other.uri, 401)


def test_a_replica_that_is_killed_among_writers_loses_and_doubles_nothing(
    lake: Lake, record_property
) -> None:
    """Each writer sets properties of its own, and repeats a request that broke with the same key."""
    lake.table()
    at_first = lake.ask(lake.one.uri, "GET", TABLE).json()["metadata"]["properties"]
    seen: Counter[str] = Counter()
    killed = threading.Event()

    def write(writer: int) -> list[str]:
        done: list[str] = []
        for number in range(12):
            name = f"w{writer}.{number}"
            key = key_of(100 * writer + number, time.time_ns() // 1_000_000)
            deadline = time.monotonic() + WAIT_S_MAX
            while True:
                assert time.monotonic() < deadline
                try:
                    answer = lake.ask(
                        lake.front.uri, "POST", TABLE, change(**{name: "1"}), idempotency_key=key
                    )
                except httpx.TransportError:
                    seen["broken"] += 1
                    continue
                seen[str(answer.status_code)] += 1
                if answer.status_code == 200:
                    break
            done.append(name)
            if len(done) == 4 and writer == 0 and not killed.is_set():
                killed.set()
                lake.one.kill()
        return done

    with ThreadPoolExecutor(8) as pool:
        done = [name for names in pool.map(write, range(8)) for name in names]
    record_property("answers", dict(seen))
    assert killed.is_set()
    found = lake.ask(lake.front.uri, "GET", TABLE).json()
    assert {name for name in found["metadata"]["properties"] if name not in at_first} == set(done)
    assert len(done) == 8 * 12
    version = int(found["metadata-location"].rpartition("/")[2].partition("-")[0])
    assert version == len(done), "one version for each commit: none was carried out twice"
    assert set(seen) <= {"200", "broken", "409"}, seen
