"""The reaper's process: how much it reads whole, by the memory that it may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tarn.core.object_store import GET_BYTES_MAX
from tarn.keeper import reaping
from tarn.keeper.reaping import Settings, made, read_bytes_max

MIB = 1024 * 1024


def limited(cgroup: Path, name: str, text: str) -> Path:
    path = cgroup / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return cgroup


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("text", "read"),
    [
        (f"{192 * MIB}\n", 32 * MIB),
        (f"{256 * MIB}\n", 64 * MIB),
        (f"{64 * MIB}\n", 8 * MIB),
        (f"{140 * MIB}\n", 8 * MIB),
        (f"{384 * MIB}\n", GET_BYTES_MAX),
        (f"{4096 * MIB}\n", GET_BYTES_MAX),
        ("max\n", GET_BYTES_MAX),
        ("9223372036854771712\n", GET_BYTES_MAX),
        ("-1\n", GET_BYTES_MAX),
    ],
)
def test_it_reads_what_its_memory_limit_leaves_room_for(
    tmp_path: Path, name: str, text: str, read: int
) -> None:
    assert read_bytes_max(limited(tmp_path, name, text)) == read


def test_without_a_memory_limit_it_reads_what_every_process_does(tmp_path: Path) -> None:
    assert read_bytes_max(tmp_path) == GET_BYTES_MAX
    assert read_bytes_max(tmp_path / "missing") == GET_BYTES_MAX


def test_of_both_kinds_of_control_groups_the_newer_one_counts(tmp_path: Path) -> None:
    limited(tmp_path, "memory/memory.limit_in_bytes", f"{256 * MIB}\n")
    assert read_bytes_max(limited(tmp_path, "memory.max", f"{192 * MIB}\n")) == 32 * MIB


def test_its_store_and_what_it_decompresses_have_this_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def store(*, get_bytes_max: int, **_: object) -> None:
        found.append(get_bytes_max)

    monkeypatch.setattr(reaping, "S3Bulk", store)
    monkeypatch.setattr(reaping, "read_bytes_max", lambda: 9 * MIB)
    for name in ("s3_access_key_id", "s3_secret_access_key"):
        (tmp_path / name).write_text("x")
    reaper = made(Settings(secrets_dir=tmp_path))
    assert [*found, reaper._json_bytes_max] == [9 * MIB] * 2
