"""What the reaper compares: which manifests can hold a file, and a sample that stays."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tarn.core.errors import CorruptStateError
from tarn.core.metadata_json import packed
from tarn.core.reap import Full, ListedManifest, holders, read_full, sampled


class Counted(list[ListedManifest]):
    """Counts how often it is gone through."""

    gone_through = 0

    def __iter__(self) -> Iterator[ListedManifest]:
        self.gone_through += 1
        return super().__iter__()


def manifest(number: int, *, oldest: int | None = None) -> ListedManifest:
    return ListedManifest(f"m{number}", number, number if oldest is None else oldest)


def test_of_kept_snapshots_every_manifest_counts() -> None:
    """An older one too: what it has may have been added once more since."""
    dead = [manifest(5, oldest=3), manifest(6, oldest=4)]
    kept = [[manifest(2), manifest(3)], [manifest(3), manifest(9)]]
    assert [one.path for one in holders(kept, [], dead)] == ["m2", "m3", "m9"]
    assert [one.path for one in holders(kept, [], [])] == ["m2", "m3", "m9"]


def test_of_removed_snapshots_only_manifests_with_files_of_that_time_count() -> None:
    dead = [manifest(5, oldest=3), manifest(6, oldest=4)]
    waiting = [
        [manifest(2), manifest(3), manifest(6)],
        [manifest(7), manifest(8, oldest=7), manifest(9, oldest=6), manifest(10, oldest=1)],
    ]
    assert [one.path for one in holders([], waiting, dead)] == ["m3", "m6", "m9", "m10"]
    kept = [[manifest(7), manifest(11)]]
    found = [one.path for one in holders(kept, waiting, dead)]
    assert sorted(found) == ["m10", "m11", "m3", "m6", "m7", "m9"], "of the table's own snapshots all"


def test_the_dead_are_gone_through_twice_however_many_others_there_are() -> None:
    dead = Counted(manifest(number) for number in range(100))
    others = [[manifest(number, oldest=0)] for number in range(1_000)]
    assert len(holders(others[:500], others[500:], dead)) == 1_000
    assert dead.gone_through == 2


def test_a_sample_is_everything_while_that_is_little() -> None:
    paths = [f"p{number}" for number in range(100)]
    assert sampled(paths, 100) == paths
    assert sampled([], 100) == []


def test_a_sample_stays_while_others_come_and_go() -> None:
    paths = [f"p{number}" for number in range(4_000)]
    sizes = {count: len(sampled(paths[:count], 1_000)) for count in (1_001, 2_000, 2_001, 4_000)}
    assert 400 < sizes[1_001] < 600 < 900 < sizes[2_000] < 1_100
    assert 400 < sizes[2_001] < 600 < 900 < sizes[4_000] < 1_100
    half, quarter = set(sampled(paths[:2_000], 1_000)), set(sampled(paths[:2_001], 1_000))
    assert quarter - {paths[2_000]} < half


def metadata(count: int = 2, **changed: Any) -> dict[str, Any]:
    summary = {
        "operation": "append",
        "total-files-size": "77",
        **{f"some-other-total-{n}": str(n) for n in range(16)},
    }
    return {
        "table-uuid": "u",
        "location": "s3://tarn/t/",
        "current-snapshot-id": 1,
        "snapshots": [
            {"snapshot-id": number, "manifest-list": f"s3://tarn/t/metadata/{number:060}", "summary": summary}
            for number in range(1, count + 1)
        ],
        **changed,
    }


def test_what_the_reaper_reads_of_a_metadata_file() -> None:
    value = metadata(others=[{"a": 1.5}]) | {
        "current-snapshot-id": 2,
        "snapshots": [
            {"snapshot-id": 1, "manifests": ["m"], "summary": None},
            {"snapshot-id": 2, "manifest-list": "l2", "summary": {"total-files-size": "12"}},
        ],
        "metadata-log": [
            {"metadata-file": "m0", "timestamp-ms": 1},
            {"metadata-file": "m1", "timestamp-ms": 2},
        ],
        "statistics": [{"statistics-path": "s"}],
        "partition-statistics": [{"statistics-path": "p"}],
        "properties": {
            "write.metadata.delete-after-commit.enabled": "FALSE",
            "gc.enabled": "false",
            "a": "b",
        },
    }
    assert read_full(orjson.dumps(value), "w") == Full(
        uuid="u",
        root="s3://tarn/t",
        previous="m1",
        log=frozenset({"m0", "m1"}),
        log_begin="m0",
        snapshots={1: None, 2: "l2"},
        statistics=frozenset({"s", "p"}),
        keeps_metadata=True,
        keeps_files=True,
        live_bytes=12,
    )
    none = dict.fromkeys(("snapshots", "metadata-log", "statistics", "partition-statistics", "properties"))
    empty = read_full(orjson.dumps(value | none | {"current-snapshot-id": None}), "w")
    assert (empty.snapshots, empty.log, empty.statistics, empty.live_bytes) == (
        {},
        frozenset(),
        frozenset(),
        0,
    )
    assert (empty.keeps_metadata, empty.keeps_files, empty.has_keys, empty.previous) == (
        False,
        False,
        False,
        None,
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"current-snapshot-id": -1},
        {"snapshots": [{"snapshot-id": 1}]},
        {"snapshots": [{"snapshot-id": 1, "summary": None}]},
        {"snapshots": [{"snapshot-id": 1, "summary": {"total-files-size": "many"}}]},
    ],
)
def test_a_size_that_the_current_snapshot_does_not_state_is_unknown(changed: dict[str, Any]) -> None:
    assert read_full(orjson.dumps(metadata(**changed)), "w").live_bytes is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{}",
        orjson.dumps(metadata(location=None)),
        orjson.dumps(metadata(snapshots=[{"manifest-list": "l"}])),
        orjson.dumps(metadata(snapshots=[{"snapshot-id": 1, "manifest-list": 5}])),
        orjson.dumps(metadata(snapshots=[{"snapshot-id": 1, "summary": [1]}])),
        orjson.dumps(metadata(properties=["a"])),
        packed(orjson.dumps(metadata()))[:-9],
    ],
    ids=range(11),
)
def test_what_is_no_table_metadata_is_named(data: bytes) -> None:
    with pytest.raises(CorruptStateError, match=r"^the\.metadata\.json is no table metadata: "):
        read_full(data, "the.metadata.json")


def test_a_long_history_takes_less_memory_than_its_json() -> None:
    """Who may write a table chooses its length, and one that ends the reaper keeps it from all tables."""
    data = orjson.dumps(metadata(20_000))
    tracemalloc.start()
    try:
        assert len(read_full(data, "w").snapshots) == 20_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data), "as objects all of it is some five times as long"


def test_a_compressed_history_is_read_up_to_a_length() -> None:
    text = orjson.dumps(metadata(2_000))
    assert len(read_full(packed(text), "w", bytes_max=len(text)).snapshots) == 2_000
    with pytest.raises(CorruptStateError, match="more than 1 MiB when decompressed"):
        read_full(packed(text), "w", bytes_max=len(text) - 1)
