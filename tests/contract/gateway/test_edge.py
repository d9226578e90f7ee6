"""What clients send by mistake or on purpose: an error that says what to do, and nothing half done."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from tarn.gateway.app import AppLimits
from tarn.gateway.bodies import READERS, BodyLimits
from tarn.gateway.memory import Held
from tarn.gateway.openapi import DESCRIPTION, ERRORS
from tests.support.gateway import Gateway, World, row

DEEP = b'{"id": 1, "at": ' + b"[" * 40 + b"]" * 40 + b"}"
BAD: dict[str, tuple[str, bytes, dict[str, str], int, str]] = {
    "another format": ("text/csv", b"1,2", {}, 415, "application/x-ndjson"),
    "compressed": ("application/json", b"{}", {"content-encoding": "gzip"}, 415, "gzip"),
    "nothing": ("application/json", b"", {}, 400, "no JSON object"),
    "no row": ("application/json", b"[]", {}, 400, "has no row"),
    "a number": ("application/json", b"1", {}, 400, "no JSON object"),
    "half an object": ("application/json", b'{"id": 1', {}, 400, "not JSON"),
    "half an array": ("application/json", b'[{"id": 1},', {}, 400, "not JSON"),
    "an endless nesting": ("application/json", b"[" * 200_000, {}, 400, "not JSON"),
    "a deep row": ("application/json", DEEP, {}, 400, "row 0 is nested more than 32 deep"),
    "a deep line": ("application/x-ndjson", b'{"id": 1}\n' + DEEP, {}, 400, "row 1 is nested"),
    "no arrow": ("application/vnd.apache.arrow.stream", b"abc", {}, 400, "no Arrow stream"),
    "too many rows": ("application/x-ndjson", b"{}\n" * 10_001, {}, 413, "more rows than 10000"),
}


def error_of(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    assert found["code"] == answer.status_code
    return found


@pytest.mark.parametrize("what", BAD)
def test_a_body_that_cannot_be_read_is_refused_as_a_whole(world: World, what: str) -> None:
    kind, body, headers, status, words = BAD[what]
    answer = world.post(world.gateway(), body, kind=kind, headers=headers)
    assert answer.status_code == status, answer.text
    assert words in error_of(answer)["message"]
    assert world.ids() == []


def test_brackets_in_texts_are_no_nesting(world: World) -> None:
    body = json.dumps({"id": 1, "at": "[{" * 50 + '"'}).encode()
    assert "at:" in world.post(world.gateway(), body).json()["rejected"][0]["reason"]


@pytest.mark.parametrize(
    ("table", "query", "status", "words"),
    [
        ("bronze.nothing", "", 404, "bronze.nothing"),
        ("nothing.orders", "", 404, "nothing.orders"),
        ("orders", "", 400, "has no namespace"),
        ("bronze.or%2Fders", "", 400, "/ not allowed"),
        ("bronze..orders", "", 400, "it is empty"),
        ("a.b.c.d.e.f.g.h.i.orders", "", 400, "9 levels, at most 8 are allowed"),
        (f"bronze.{'x' * 201}", "", 400, "201 bytes once encoded, at most 200"),
        (f"{'%C3%A4' * 34}.orders", "", 400, "204 bytes once encoded, at most 200"),
        ("bronze.orders", "?durability=disk", 400, "lake or log"),
        ("bronze.orders", "?fast=yes", 400, "unknown parameter 'fast'"),
    ],
)
def test_what_is_named_wrongly_is_said(world: World, table: str, query: str, status: int, words: str) -> None:
    answer = world.post(world.gateway(), row(1), table=table, query=query)
    assert answer.status_code == status
    assert words in error_of(answer)["message"]


def test_other_paths_and_methods(world: World) -> None:
    url = world.gateway().url
    assert world.http.get(f"{url}/health").json() == {"status": "ok"}
    got = world.http.get(f"{url}/v1/tables/bronze.orders/rows")
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert world.http.post(f"{url}/health").status_code == 405
    assert world.http.get(f"{url}/v1/tables").status_code == 404
    assert world.http.get(f"{url}/health", headers={"host": "evil.example"}).status_code == 421


def test_the_description_is_served_and_names_every_status(world: World) -> None:
    found = world.http.get(f"{world.gateway().url}/openapi.json").json()
    assert found == json.loads(json.dumps(DESCRIPTION))
    responses = found["paths"]["/v1/tables/{table}/rows"]["post"]["responses"]
    assert set(responses) == {"200", "422", *map(str, ERRORS)}


def head(gateway: Gateway, token: str, *more: str) -> bytes:
    lines = [
        "POST /v1/tables/bronze.orders/rows HTTP/1.1",
        f"host: 127.0.0.1:{gateway.port}",
        f"authorization: Bearer {token}",
        "content-type: application/json",
        *more,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def received(connection: socket.socket) -> bytes:
    found = b""
    while part := connection.recv(65_536):
        found += part
        if b"\r\n\r\n" in found and b"}" in found:
            break
    return found


def test_half_a_body_writes_nothing(world: World) -> None:
    gateway = world.gateway()
    with gateway.connect() as connection:
        connection.sendall(head(gateway, world.tokens["admin"], "content-length: 100") + b'[{"id": 1}')
    assert world.post(gateway, row(2)).status_code == 200
    assert world.ids() == [2]


def test_a_slow_body_is_ended(world: World) -> None:
    gateway = world.gateway(app=AppLimits(body_s_max=0.5))
    with gateway.connect() as connection:
        connection.sendall(head(gateway, world.tokens["admin"], "content-length: 100") + b'[{"id": 1}')
        assert b" 408 " in received(connection)
    assert world.ids() == []


def test_a_slow_head_is_ended(world: World) -> None:
    gateway = world.gateway(head_wait_s=0.3)
    with gateway.connect() as connection:
        connection.sendall(b"POST /v1/tables/")
        assert connection.recv(100) == b""


def test_a_body_over_the_limit_is_refused_before_it_is_read(world: World) -> None:
    gateway = world.gateway()
    with gateway.connect() as connection:
        connection.sendall(head(gateway, world.tokens["admin"], "content-length: 900000000"))
        assert b" 413 " in received(connection)


def test_a_body_of_unknown_length_is_refused_where_the_limit_is(world: World) -> None:
    gateway = world.gateway(app=AppLimits(body=BodyLimits(bytes_max=1_000)))
    with gateway.connect() as connection:
        connection.sendall(head(gateway, world.tokens["admin"], "transfer-encoding: chunked"))
        connection.sendall(b"7d0\r\n" + b" " * 2_000 + b"\r\n")
        assert b" 413 " in received(connection)
    assert world.ids() == []


@pytest.mark.parametrize("token", ["nonsense", "e30.e30.e30"])
def test_nothing_of_a_strangers_body_is_waited_for(world: World, token: str) -> None:
    gateway = world.gateway(app=AppLimits(body_s_max=30))
    began_s = time.monotonic()
    with gateway.connect() as connection:
        connection.sendall(head(gateway, token, "content-length: 1000000") + b"[")
        assert b" 401 " in received(connection)
    assert time.monotonic() - began_s < 25


def test_no_client_brings_an_internal_error(world: World) -> None:
    gateway = world.gateway()
    odd = [
        b"\x00",
        b"\xff\xff\xff\xff",
        b'{"id": 1e400}',
        b'{"id": "\xed\xa0\x80"}',
        b'[{"id":1},{"id":NaN}]',
    ]
    odd += [
        b'{"id": 1, "id": 2}',
        b'{"": 1}',
        b'{"id": {"a": [1]}}',
        b"[[]]",
        b'["x"]',
        b"[null]",
        b"\xef\xbb\xbf{}",
    ]
    for body in odd:
        for kind in ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"):
            answer = world.post(gateway, body, kind=kind)
            assert answer.status_code in (200, 400, 422), (body, kind, answer.text)


def test_rows_of_arrow_are_held_with_their_schema(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    resize = Held.resize

    def seen(share: Held, size_bytes: int) -> None:
        held.append(size_bytes)
        resize(share, size_bytes)

    monkeypatch.setattr(Held, "resize", seen)
    table = pa.table({"id": pa.array(range(1_000), pa.int64())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    body = bytes(sink.getvalue())
    answer = world.post(world.gateway(), body, kind="application/vnd.apache.arrow.stream")
    assert answer.status_code in (200, 422), answer.text
    assert max(held) > 10 * len(body)


@pytest.mark.parametrize(
    ("kind", "rows", "on_the_loop"),
    [
        ("application/json", 1, True),
        ("application/x-ndjson", 1, True),
        ("application/json", 2_000, False),
        ("application/vnd.apache.arrow.stream", 1, False),
    ],
)
def test_a_body_that_may_take_long_is_not_taken_apart_where_all_are_served(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str, rows: int, on_the_loop: bool
) -> None:
    threads: list[str] = []
    split = READERS[kind]

    def seen(body: bytes, limits: BodyLimits) -> list[bytes]:
        threads.append(threading.current_thread().name)
        return split(body, limits)

    monkeypatch.setitem(READERS, kind, seen)
    monkeypatch.setattr("tarn.gateway.app.arrow_rows", READERS["application/vnd.apache.arrow.stream"])
    body = b"[" + b",".join([b"{}"] * rows) + b"]" if kind == "application/json" else b"{}"
    answer = world.post(world.gateway(), body, kind=kind)
    assert answer.status_code in (400, 422), answer.text
    assert ["worker" not in name for name in threads] == [on_the_loop], threads
