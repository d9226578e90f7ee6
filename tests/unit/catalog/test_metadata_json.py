"""Metadata files: JSON, and JSON that gzip compressed."""

from __future__ import annotations

import gzip

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarn.core import metadata_json
from tarn.core.metadata_json import (
    PER_BYTE_MAX,
    TooLongError,
    check_kept,
    loads,
    packed,
    parsed_bytes,
    unpacked,
)

TEXT = b'{"a": [1, 2, 3]}'


@given(st.binary())
def test_what_is_packed_comes_back_and_any_gzip_reads_it(text: bytes) -> None:
    data = packed(text)
    assert unpacked(data) == gzip.decompress(data) == text
    assert packed(text) == data, "a repeated write of one file finds its own bytes"


@pytest.mark.parametrize(
    "data", [TEXT, packed(TEXT), gzip.compress(TEXT, 9)], ids=["plain", "ours", "theirs"]
)
def test_both_forms_are_parsed(data: bytes) -> None:
    assert loads(data) == {"a": [1, 2, 3]}


def test_a_damaged_file_is_an_error_wherever_it_is_cut() -> None:
    data = packed(TEXT * 100)
    for end in range(2, len(data)):
        with pytest.raises(ValueError, match="damaged gzip data"):
            unpacked(data[:end])
    with pytest.raises(ValueError, match="or more follows"):
        unpacked(data + b"x")
    with pytest.raises(ValueError, match=r"damaged gzip data: .*incorrect"):
        unpacked(data[:-8] + bytes(8))


def test_a_small_file_does_not_become_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_json, "JSON_BYTES_MAX", 3 * 1024**2)
    assert len(unpacked(packed(bytes(3 * 1024**2)))) == 3 * 1024**2
    with pytest.raises(ValueError, match="more than 3 MiB when decompressed"):
        unpacked(gzip.compress(bytes(3 * 1024**2 + 1)))


@pytest.mark.parametrize("data", [b"", b"[", b"\x1f", packed(b"no json")])
def test_what_is_no_json_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"line 1 column|damaged"):
        loads(data)


SNAPSHOT = orjson.dumps(
    {
        "snapshot-id": 1 << 62,
        "parent-snapshot-id": 1 << 62,
        "sequence-number": 10_000,
        "timestamp-ms": 1_764_000_000_000,
        "manifest-list": f"s3://tarn/warehouse/bronze/orders-{'0' * 32}/metadata/snap-{'0' * 60}.avro",
        "schema-id": 0,
        "summary": {"operation": "append", **{f"total-{n}": "12345" for n in range(16)}},
    }
)


def test_a_long_history_has_room() -> None:
    assert 600 < len(SNAPSHOT) < 720
    check_kept(b"[" + b",".join([SNAPSHOT] * 48_000) + b"]")
    with pytest.raises(TooLongError, match=r"its \d+ bytes may take 3\d\d MiB once parsed, at most 320 MiB"):
        check_kept(b"[" + b",".join([SNAPSHOT] * 60_000) + b"]")


def test_a_long_text_has_room_up_to_a_length() -> None:
    check_kept(b'"' + b"x" * (64 * 1024**2 - 2) + b'"')
    with pytest.raises(TooLongError, match="it has 67108865 bytes of JSON, at most 64 MiB are taken"):
        check_kept(b'"' + b"x" * (64 * 1024**2 - 1) + b'"')


@pytest.mark.parametrize("part", [b"{},", b"[],", b"1,", b'"":1,', b"[{}],", b'{"":{}},'])
def test_no_json_is_too_dense_to_be_counted(part: bytes) -> None:
    assert parsed_bytes(part * 1_000) <= PER_BYTE_MAX * len(part * 1_000)
