"""Bodies of the gateway: what they take in memory and time is bounded by their size, whatever is in them."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable

import pyarrow as pa
import pytest

from tarn.core.errors import InvalidError
from tarn.gateway.bodies import (
    QUICK_BYTES,
    QUICK_MARKS,
    BodyLimits,
    TooLargeError,
    arrow_rows,
    is_quick,
    json_rows,
    ndjson_rows,
)

LIMITS = BodyLimits(rows_max=1_000)
SIZE = 1 << 20


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as made:
        made.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (ndjson_rows, b"12\n" * (SIZE // 3)),
        (json_rows, b"[" + b"1," * (SIZE // 2) + b"1]"),
        (json_rows, b"[" + b'"a",' * (SIZE // 4) + b"1]"),
        (json_rows, b"[" + b"{}," * (SIZE // 3) + b"1]"),
    ],
    ids=["lines", "numbers", "texts", "objects"],
)
def test_a_body_of_many_rows_is_refused_before_they_take_memory(
    read: Callable[[bytes, BodyLimits], list[bytes]], body: bytes
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError, match="more rows than 1000"):
            read(body, LIMITS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(body), f"{peak} bytes for a body of {len(body)}"


@pytest.mark.parametrize(("columns", "rows"), [(1, 300), (200, 300)])
def test_rows_of_an_arrow_stream_are_bounded_with_their_schema(columns: int, rows: int) -> None:
    width = 100_000 // columns
    table = pa.table({f"{n:03}{'x' * width}": pa.array(range(rows), pa.int32()) for n in range(columns)})
    body = stream(table)
    with pytest.raises(TooLargeError, match=r"each with the schema, of \d+ bytes; send fewer rows"):
        arrow_rows(body, LIMITS)
    assert len(arrow_rows(stream(table.slice(0, 10)), LIMITS)) == 10


@pytest.mark.parametrize("text", [b'"' + b'\\"' * (SIZE // 2), b'"' * 3 + b"\\" * SIZE])
def test_a_text_without_an_end_takes_no_longer_than_others(text: bytes) -> None:
    began_s = time.thread_time()
    with pytest.raises(InvalidError, match="nested more than 32"):
        ndjson_rows(b"[" * 33 + text, LIMITS)
    assert time.thread_time() - began_s < 5


def test_rows_with_many_commas_are_no_more_rows() -> None:
    rows = [{"id": n, "many": [[1, 2], {"a": ",],"}] * 12} for n in range(1_000)]
    assert [json.loads(row) for row in json_rows(json.dumps(rows).encode(), LIMITS)] == rows
    assert ndjson_rows(b'\n \r\n{"a": 1} \r\n\n  {"b": 2}', LIMITS) == [b'{"a": 1}', b'{"b": 2}']


def test_a_body_is_quick_by_its_size_and_by_what_takes_time_in_it() -> None:
    assert is_quick(b'{"note": "' + b"x" * (QUICK_BYTES - 12) + b'"}')
    assert not is_quick(b'{"note": "' + b"x" * QUICK_BYTES + b'"}')
    for mark in b"[{,\n":
        assert is_quick(bytes([mark]) * QUICK_MARKS)
        assert not is_quick(bytes([mark]) * (QUICK_MARKS + 1)), chr(mark)
    assert not is_quick(b"[" * 500 + b"{" * 501)
