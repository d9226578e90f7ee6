"""Records of a backup: what is in them is bounded, so that a restore can read every one."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tarn.keeper import archive
from tarn.keeper.archive import RECORD_BYTES_MAX, Begin, End, Writer, read

BEGIN = Begin(id="i", bucket="tarn", warehouse="tarn", at="now", version="0")


def closed(missing: list[str], streams: list[dict[str, Any]] | None = None) -> tuple[bytes, End]:
    out = io.BytesIO()
    writer = Writer(out, BEGIN)
    writer.add("warehouse/x", 3, iter((b"abc",)))
    end = writer.close(tables=1, missing=missing, streams=streams or [])
    return out.getvalue(), end


def ended(data: bytes) -> End:
    def all_parts(_: str, __: int, parts: Iterator[bytes]) -> None:
        list(parts)

    return read(io.BytesIO(data), on_begin=lambda _: None, on_object=all_parts)


def record_bytes(data: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmember("tarn-backup-end.json").size


@pytest.mark.long
def test_a_backup_that_lacks_half_a_million_files_can_be_read() -> None:
    missing = [f"s3://tarn/warehouse/{n:0118}" for n in range(520_000)]
    data, end = closed(missing)
    assert record_bytes(data) < RECORD_BYTES_MAX
    assert ended(data) == end
    assert end.missing_count == 520_000
    assert end.missing[:-1] == missing[: len(end.missing) - 1]
    assert 20_000 < len(end.missing) < 40_000


def test_missing_locations_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MISSING_BYTES_MAX", 36)
    data, end = closed(["s3://tarn/a", "s3://tarn/long", "s3://tarn/b", "s3://tarn/c"])
    assert ended(data) == end
    assert end.missing == ["s3://tarn/a", "s3://tarn/b", "and 2 more"]
    assert end.missing_count == 4


@pytest.mark.parametrize("missing", [[], ["s3://tarn/a"], ["s3://tarn/a", "s3://tarn/b"]])
def test_missing_locations_within_the_limit_are_all_named(missing: list[str]) -> None:
    data, end = closed(missing)
    assert ended(data).missing == end.missing == missing
    assert end.missing_count == len(missing)


def test_a_stream_that_takes_all_the_room_does_not_keep_out_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archive, "STREAMS_BYTES_MAX", 200)
    streams = [{"stream": name, "next": {"0": 1}} for name in ("a", "b" * 300, "c")]
    data, end = closed([], streams)
    assert ended(data) == end
    assert [stream["stream"] for stream in end.streams] == ["a", "c"]


@pytest.mark.long
def test_a_longer_closing_record_of_a_former_release_is_read() -> None:
    """It named every location; releases that wrote it did not read it."""
    data, end = closed([])
    former = orjson.loads(data[data.index(b"tarn-backup-end.json") + 512 :].partition(b"\n")[0])
    former["missing"] = [f"s3://tarn/warehouse/{n:0118}" for n in range(520_000)]
    record = orjson.dumps(former) + b"\n"
    assert len(record) > RECORD_BYTES_MAX
    info = tarfile.TarInfo("tarn-backup-end.json")
    info.size = len(record)
    head = data[: data.index(b"tarn-backup-end.json")]
    found = ended(head + info.tobuf() + record + bytes(-len(record) % 512 + 1024))
    assert (found.sha256, found.missing_count) == (end.sha256, 520_000)
