"""What the benchmark of small writes counts and requires, on contenders made for the test."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from types import SimpleNamespace

import orjson
import pytest

from tarn.core.errors import DataError
from tarn.core.table_catalog import TableName
from tarn_demo.bench import producer
from tarn_demo.bench.producer import Producer, Tally
from tarn_demo.bench.small_writes import file_bytes, noise, peer_cell, require_all, summed
from tests.unit.demo.test_bench_commits import Table


def test_each_producer_that_failed_is_counted_though_the_reason_is_the_same() -> None:
    tallies = [Tally(times_ms=[1.0]), *(Tally(times_ms=[2.0], errors=["cut off"]) for _ in range(3))]
    found = summed(tallies, 2.0)
    assert (found["acked"], found["failed"], found["errors"]) == (4, 3, ["cut off"])
    assert (found["p50_ms"], found["p99_ms"], found["slowest"]) == (2.0, 2.0, 1)


def test_the_size_of_a_metadata_file_is_that_of_what_the_catalog_writes() -> None:
    metadata = {"format-version": 2, "properties": {"note": "é"}, "snapshots": [{"a": 1}, {"b": None}]}
    assert file_bytes(metadata) == len(orjson.dumps(metadata))


def test_percentiles_are_of_the_nearest_rank() -> None:
    found = summed([Tally(times_ms=[float(n) for n in range(100, 0, -1)])], 1.0)
    assert (found["p50_ms"], found["p99_ms"]) == (50.0, 99.0)
    assert summed([Tally()], 1.0)["p99_ms"] is None


def test_what_the_writers_of_a_peer_wrote_is_counted() -> None:
    found = peer_cell(Table(refuse=lambda number: number % 3 == 2), 2, seconds=0.1)
    assert found["wrong_rows"] == 0
    assert found["acked"] > 0
    assert found["refused"] > 0


@pytest.mark.long
@pytest.mark.parametrize(("copies", "wrong"), [(0, -50), (2, 50)])
def test_a_lost_or_doubled_write_ends_the_benchmark_or_is_a_peers_result(copies: int, wrong: int) -> None:
    def kept(number: int) -> int:
        return copies if number == 1 else 1

    with pytest.raises(DataError, match="something was lost or doubled"):
        peer_cell(Table(kept=kept), 1, seconds=0.1)
    assert peer_cell(Table(on_tarn=False, kept=kept), 1, seconds=0.1)["wrong_rows"] == wrong


@pytest.mark.parametrize(("rows", "failed"), [(9, 0), (11, 0), (9, 1), (12, 1)])
def test_a_row_too_few_or_too_many_ends_the_benchmark(rows: int, failed: int) -> None:
    name = TableName(("bench",), "t")
    with pytest.raises(DataError, match="something was lost or doubled"):
        require_all(name, rows, {"acked": 10, "failed": failed})
    require_all(name, 10 + failed, {"acked": 10, "failed": failed})
    require_all(name, 10, {"acked": 10, "failed": failed})


def answer(status: int, *fields: str, body: bytes = b"{}") -> bytes:
    lines = [f"HTTP/1.1 {status} Words", *fields, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def played(say: Callable[[int, bytes], bytes | None], requests: int = 8) -> tuple[Tally, list[bytes]]:
    """What a producer did at a server that says this to its requests, by number; None: it hangs up.

    Its time is over after so many requests.
    """
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                asked.append(head + await reader.readexactly(size))
                said = say(len(asked) - 1, asked[-1])
                if said is None:
                    break
                for at in range(0, len(said), 40):  # an answer may come in parts
                    writer.write(said[at : at + 40])
                    await writer.drain()
                    await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def play() -> Tally:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        rows = noise(1, 10, 20)
        one = Producer(server.sockets[0].getsockname()[:2], "a.b", "t", 3, lambda number: rows(3, number))
        async with server:
            await one.run(float(requests))
        return one.tally

    clock = SimpleNamespace(monotonic=lambda: float(len(asked)), perf_counter=time.perf_counter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer, "time", clock)
        return asyncio.run(play()), asked


@pytest.mark.long
def test_a_producer_numbers_its_rows_and_counts_what_was_answered() -> None:
    found, asked = played(lambda number, _: answer(200, *(["Tarn-Pressure: much"] if number == 1 else [])))
    assert len(found.times_ms) == len(asked) > 2
    assert (found.errors, found.refused, found.delayed) == ([], 0, 1)
    bodies = [one.split(b"\r\n\r\n")[1] for one in asked]
    assert found.bytes == sum(map(len, bodies))
    assert [json.loads(body)["id"] for body in bodies] == list(range(len(asked)))
    assert all(
        json.loads(body)["producer"] == 3 and 10 <= len(json.loads(body)["note"]) <= 20 for body in bodies
    )
    assert all(b"Tarn-Sequence: %d\r\n" % number in one for number, one in enumerate(asked))


@pytest.mark.long
@pytest.mark.parametrize("status", [429, 503])
def test_a_refused_write_is_repeated(status: int) -> None:
    found, asked = played(lambda number, _: answer(status, "Retry-After: 0") if number == 1 else answer(200))
    assert found.refused == 1
    assert asked[1] == asked[2]
    assert len(found.times_ms) == len(asked) - 1


def test_another_answer_or_none_ends_a_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    found, asked = played(lambda number, _: answer(400, body=b"no") if number == 1 else answer(200))
    assert (found.errors, len(found.times_ms), len(asked)) == (["400: no"], 1, 2)
    found, _ = played(lambda number, _: None)
    assert "ended before" in found.errors[0]
    found, _ = played(lambda number, _: b"HTTP/1.1 200 OK\r\n\r\n")
    assert "without its length" in found.errors[0]
    monkeypatch.setattr(producer, "ANSWER_S_MAX", 0.1)
    found, _ = played(lambda number, _: b"HTTP/1.1 200 OK\r\n")
    assert "no answer" in found.errors[0]
