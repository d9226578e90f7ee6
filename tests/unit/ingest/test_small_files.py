"""Which small files are merged, and when."""

from __future__ import annotations

from dataclasses import replace

from tarn.core.small_files import (
    BYTES_MAX,
    EVERY_S,
    FILE_BYTES_MAX,
    FILES_MAX,
    FIRST_LEVEL_MIN,
    LEVELS,
    NEXT_LEVEL_MIN,
    REMEMBERED_BYTES_MAX,
    REMEMBERED_MAX,
    ROWS_MAX,
    SORT_BYTES_MAX,
    SmallFiles,
)
from tarn.core.table_state import WrittenFile


def files(
    number: int, *, size: int = 1_000, partition: tuple[int, ...] = (), name: str = "f"
) -> list[WrittenFile]:
    return [
        WrittenFile(path=f"{name}{partition}{n}", partition=partition, spec_id=0, records=1, bytes=size)
        for n in range(number)
    ]


def test_a_minutes_files_are_due_after_a_minute_if_there_are_enough() -> None:
    held = SmallFiles()
    held.add(files(FIRST_LEVEL_MIN - 1))
    assert held.due(0.0) is None
    assert held.due(EVERY_S * 5) is None, "too few"
    held.add(files(1, name="g"))
    assert held.due(EVERY_S - 1) is None, "too soon"
    group = held.due(EVERY_S)
    assert group is not None
    assert (len(group.files), group.level) == (FIRST_LEVEL_MIN, 0)


def test_many_files_are_due_at_once() -> None:
    held = SmallFiles()
    held.add(files(FILES_MAX))
    group = held.due(0.0)
    assert group is not None
    assert len(group.files) == FILES_MAX


def test_a_merge_has_as_many_bytes_as_its_owner_allows() -> None:
    held = SmallFiles(bytes_max=5_500)
    held.add(files(FILES_MAX))
    group = held.due(0.0)
    assert group is not None
    assert len(group.files) == 5


def test_after_a_merge_a_minute_passes_before_the_next() -> None:
    held = SmallFiles()
    held.add(files(20))
    group = held.due(0.0) or held.due(EVERY_S)
    assert group is not None
    held.drop(group, now_s=EVERY_S)
    assert held.due(EVERY_S) is None
    held.add(files(20, name="g"))
    assert held.due(EVERY_S + 1) is None
    assert held.due(2 * EVERY_S) is not None


def test_every_partition_has_its_turn_before_the_minute_begins_again() -> None:
    held = SmallFiles()
    for partition in range(3):
        held.add(files(10, partition=(partition,)))
    held.due(0.0)
    seen = set()
    while (group := held.due(EVERY_S)) is not None:
        assert len({file.partition for file in group.files}) == 1
        seen.add(group.files[0].partition)
        held.drop(group, now_s=EVERY_S)
    assert seen == {(0,), (1,), (2,)}


def test_merged_files_are_merged_again_one_level_up_when_there_are_sixteen() -> None:
    held = SmallFiles()
    held.add(files(NEXT_LEVEL_MIN - 1), level=1)
    assert held.due(0.0) is None
    held.add(files(1, name="g"), level=1)
    group = held.due(0.0)
    assert group is not None
    assert (len(group.files), group.level) == (NEXT_LEVEL_MIN, 1)


def test_large_files_and_the_last_level_are_left_alone() -> None:
    held = SmallFiles()
    held.add(files(FILES_MAX, size=FILE_BYTES_MAX + 1))
    held.add(files(FILES_MAX), level=LEVELS)
    assert held.due(EVERY_S * 2) is None


def test_a_merged_file_stays_within_its_size_and_the_oldest_go_first() -> None:
    held = SmallFiles()
    size = FILE_BYTES_MAX
    held.add(files(FILES_MAX, size=size))
    group = held.due(0.0)
    assert group is not None
    assert sum(file.bytes for file in group.files) <= BYTES_MAX
    assert [file.path for file in group.files] == [f"f(){n}" for n in range(BYTES_MAX // size)]


def test_a_merged_file_has_a_limit_of_rows_too() -> None:
    held = SmallFiles()
    many = [
        WrittenFile(path=f"f{n}", partition=(), spec_id=0, records=ROWS_MAX // 4, bytes=10)
        for n in range(FILES_MAX)
    ]
    held.add(many)
    group = held.due(0.0)
    assert group is not None
    assert len(group.files) == 4


def remembered(held: SmallFiles) -> list[WrittenFile]:
    return [file for kept in held._held.values() for file in kept]


def test_leftovers_of_old_partitions_do_not_keep_later_files_from_being_merged() -> None:
    """A backlog in order of time leaves one file in each of many hours, and none of them gets another."""
    held = SmallFiles()
    for hour in range(REMEMBERED_MAX + 100):
        held.add(files(1, partition=(hour,)))
    held.due(0.0)
    held.add(files(60, partition=(-1,)))
    group = held.due(EVERY_S)
    assert group is not None
    assert {file.partition for file in group.files} == {(-1,)}
    assert len(group.files) == 60


def test_what_is_remembered_is_bounded_in_number() -> None:
    held = SmallFiles()
    held.add(files(REMEMBERED_MAX + 100))
    assert held._count == len(remembered(held)) == REMEMBERED_MAX
    assert remembered(held)[0].path == "f()100", "the oldest were forgotten"
    held.clear()
    assert (held._count, held._memory) == (0, 0)
    held.add(files(FILES_MAX))
    assert held.due(0.0) is not None


def test_what_is_remembered_is_bounded_in_memory() -> None:
    held = SmallFiles()
    long = "n" * 2_000
    held.add(files(REMEMBERED_MAX // 2, name=long))
    held.add(files(1, partition=(1,), name=long))
    assert REMEMBERED_BYTES_MAX - 3_000 < held._memory <= REMEMBERED_BYTES_MAX
    assert sum(len(file.path) for file in remembered(held)) < REMEMBERED_BYTES_MAX
    assert held._count == len(remembered(held)) < REMEMBERED_MAX // 4


def test_the_oldest_file_of_what_grew_longest_ago_is_forgotten_first() -> None:
    held = SmallFiles()
    held.add(files(5, partition=(1,)))
    held.add(files(5, partition=(2,)))
    held.add(files(1, partition=(1,), name="g"))
    held.add(files(REMEMBERED_MAX - 8, partition=(3,)))
    left = {at[2]: [file.path for file in kept] for at, kept in held._held.items()}
    assert left[(2,)] == ["f(2,)3", "f(2,)4"]
    assert len(left[(1,)]) == 6
    assert len(left[(3,)]) == REMEMBERED_MAX - 8
    held.add(files(1, partition=(1,)), level=1)
    held.add(files(1, partition=(1,)), level=2)
    assert not any(at == (0, 0, (2,)) for at in held._held)


def test_what_is_counted_is_what_is_held_whatever_goes() -> None:
    held = SmallFiles()
    for partition in range(3):
        held.add(files(10, partition=(partition,)))
    held.due(0.0)
    group = held.due(EVERY_S)
    assert group is not None
    held.drop(group, now_s=EVERY_S)
    held.forget(frozenset({"f(1,)0", "no such file"}))
    assert held._count == len(remembered(held)) == 19
    held.forget(frozenset(file.path for file in remembered(held)))
    assert (held._count, held._memory, len(held._held)) == (0, 0, 0)


def test_statistics_of_files_are_not_remembered() -> None:
    """Those of a file with forty columns take ten times what a merge needs to know of it."""
    held = SmallFiles()
    held.add([replace(file, statistics={"value_counts": {1: 1}}) for file in files(FIRST_LEVEL_MIN)])
    assert [file.statistics for file in remembered(held)] == [{}] * FIRST_LEVEL_MIN


def test_files_of_a_table_that_sorts_are_merged_as_far_as_their_rows_can_be_sorted() -> None:
    held = SmallFiles()
    held.add([replace(file, sort_bytes=SORT_BYTES_MAX // 20) for file in files(60)])
    held.due(0.0)
    group = held.due(EVERY_S)
    assert group is not None
    assert len(group.files) == 20
    held.drop(group, now_s=EVERY_S)
    rest = held.due(EVERY_S)
    assert rest is not None, "the others are not forgotten"
    assert len(rest.files) == 20


def test_a_merge_has_as_many_rows_as_its_writer_allows() -> None:
    held = SmallFiles()
    held.add([replace(file, records=60_000) for file in files(NEXT_LEVEL_MIN)], level=1)
    assert held.due(0.0, rows_max=60_000 * NEXT_LEVEL_MIN - 1) is not None
    assert len(held.due(0.0, rows_max=60_000 * NEXT_LEVEL_MIN - 1).files) == NEXT_LEVEL_MIN - 1  # type: ignore[union-attr]
    group = held.due(0.0, rows_max=60_000 * NEXT_LEVEL_MIN)
    assert group is not None
    assert len(group.files) == NEXT_LEVEL_MIN


def test_a_file_that_is_too_large_to_go_with_the_next_does_not_keep_the_others() -> None:
    held = SmallFiles()
    large, *others = [
        replace(file, records=n) for file, n in zip(files(17), (60_000, *[50_000] * 16), strict=True)
    ]
    held.add([large, *others], level=1)
    assert held.due(0.0) is None
    group = held.due(0.0)
    assert group is not None
    assert large not in group.files
    assert len(group.files) == 2
