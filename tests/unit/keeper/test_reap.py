"""What the reaper compares: which manifests can hold a file, and a sample that stays."""

from __future__ import annotations

from collections.abc import Iterator

from tarn.core.reap import ListedManifest, holders, sampled


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
