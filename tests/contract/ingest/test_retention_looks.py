"""Looks for old rows among many files that stay: each look is bounded, and together they see every file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from pyroaring import BitMap64

from tarn.adapters import manifests
from tarn.adapters.files import FileIO
from tarn.adapters.recent_files import RecentFiles
from tarn.core import retired
from tarn.core.audit.accounts import Origins, Tally, ranges
from tarn.core.audit.model import FileEntry
from tarn.core.retired import PREFIX, RUNS_MAX, Retired, few
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.ingest import retirement, upkeep
from tarn.ingest.batch_commit import offsets_in
from tarn.ingest.changes import Done
from tarn.ingest.health import hanging
from tarn.ingest.retirement import Retirement
from tarn.testing.memory_topic import HOLE
from tests.contract.ingest.test_retention import LIMITS, NOW, World, listed, order
from tests.support.lake import BUCKET


class Old:
    """The old files of a table, and whose they are; those named `own…` are the stream's."""

    def __init__(self, *paths: str, records: int = 1) -> None:
        self.paths = list(paths)
        self.records = records
        self.read: list[str] = []
        self.on_read: Callable[[], None] = lambda: None
        self.offsets: Callable[[], list[int]] = lambda: [len(self.read)]

    def old_files(self, _state: TableState, _column: str, _before_us: int) -> Iterator[WrittenFile]:
        for path in self.paths:
            yield WrittenFile(path=path, partition=(), spec_id=0, records=self.records, bytes=1)

    def rows(self, file: FileEntry, _deleted: BitMap64) -> Origins:
        self.read.append(file.path)
        self.on_read()
        tally = Tally()
        tally.add(BitMap64(self.offsets()))
        topic = "orders" if file.path.startswith("own") else "other"
        return Origins(rows={(topic, 0): tally}, deleted={})


@pytest.fixture(scope="module")
def state() -> TableState:
    world = World()
    world.send(1)
    return world.lake.table()


def looks(old: Old, state: TableState, found: Retirement | None = None, **options: Any) -> Retirement:
    """Look until a pass is over, and drop what is found."""
    origins: Any = old
    made = found or Retirement(
        "orders", stream="orders", topic="orders", column="at", age_s=1, origins=origins
    )
    files: Any = old
    for _ in range(100):
        change = made.change(state, files, now_ms=0, new_id=lambda: "x", **options)
        if change is not None:
            gone = {file.path for file in change.removed}
            old.paths = [path for path in old.paths if path not in gone]
        if not made.more:
            return made
    raise AssertionError("no pass ends")


def names(kind: str, count: int) -> list[str]:
    return [f"{kind}{n}" for n in range(count)]


@pytest.mark.parametrize("left_max", [0, 1, 3, 7, 100])
def test_own_files_behind_many_that_stay_go_however_many_are_remembered(
    left_max: int, state: TableState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retirement, "FILES_MAX", 2)
    monkeypatch.setattr(retirement, "LEFT_MAX", left_max)
    old = Old(*names("a", 8), "own1", *names("b", 5), "own2", "own3", "own4")
    made = looks(old, state)
    assert old.paths == [*names("a", 8), *names("b", 5)]
    assert len(old.read) == len(set(old.read)) == 17, "each is read once per pass"
    assert len(made._left) == min(left_max, 13)
    old.read.clear()
    old.paths.append("own5")
    looks(old, state, made)
    assert old.read == [*[*names("a", 8), *names("b", 5)][left_max:], "own5"], "and what is remembered never"
    assert "own5" not in old.paths


def test_what_is_no_longer_there_is_forgotten(state: TableState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retirement, "FILES_MAX", 2)
    monkeypatch.setattr(retirement, "LEFT_MAX", 5)
    old = Old(*names("a", 5))
    made = looks(old, state)
    old.paths = names("b", 5)
    for _ in range(2):
        looks(old, state, made)
    assert made._left == set(names("b", 5))
    old.read.clear()
    looks(old, state, made)
    assert old.read == []


def test_a_pass_whose_place_is_lost_begins_again(state: TableState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retirement, "FILES_MAX", 2)
    monkeypatch.setattr(retirement, "LEFT_MAX", 0)
    old = Old(*names("a", 4), "own1")
    origins: Any = old
    made = Retirement("orders", stream="orders", topic="orders", column="at", age_s=1, origins=origins)
    assert made.change(state, origins, now_ms=0, new_id=lambda: "x") is None
    assert made.more
    old.paths.remove("a1")
    looks(old, state, made)
    assert old.paths == ["a0", "a2", "a3"]


def test_a_look_that_found_only_files_that_stay_is_followed_by_another_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retirement, "FILES_MAX", 2)
    world = World()
    world.ingestor = world.lake.ingestor(world.spec, limits=replace(LIMITS, retire_s=600))
    world.send(60)
    for number in range(5):
        listed(world, f"s3://{BUCKET}/foreign{number}", 70)
    assert world.lake.table().total("data-files") == 6
    world.lake.work(world.ingestor, turns=3)
    world.lake.clock.now_s += 601
    world.wait(turns=80)
    assert world.retired().rows == 1


def test_looks_that_find_nothing_do_not_put_off_offsets_without_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retirement, "FILES_MAX", 1)
    monkeypatch.setattr(retirement, "LEFT_MAX", 0)
    monkeypatch.setattr(upkeep, "RETIRE_PAUSE_S", 0.5)
    world = World()
    world.ingestor = world.lake.ingestor(world.spec, limits=replace(LIMITS, retire_s=600))
    world.send(1)
    for number in range(40):
        listed(world, f"s3://{BUCKET}/foreign{number}", 70)
    world.lake.work(world.ingestor, turns=3)
    world.lake.clock.now_s += 601
    world.wait(turns=20)
    keep = world.ingestor._upkeep._retirement
    assert keep is not None
    assert keep.more, "looks follow each other"
    world.topic.send(0, HOLE)
    world.wait(turns=80)
    assert keep.more
    held = offsets_in(world.lake.table(), "orders")
    assert held is not None
    assert held.next == {0: 2}


def test_a_table_whose_files_cannot_go_by_now_is_not_looked_at_again_and_again(
    state: TableState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retirement, "FILES_MAX", 2)
    old: Any = Old(*names("a", 5))
    made = Retirement("orders", stream="orders", topic="orders", column="at", age_s=1, origins=old)
    assert made.change(state, old, now_ms=0, new_id=lambda: "x") is None
    assert made.more
    assert state.head is not None
    monkeypatch.setitem(state.head["summary"], "total-delete-files", "1")
    assert made.change(state, old, now_ms=0, new_id=lambda: "x") is None
    assert not made.more, "the next look is an interval away"


def scattered(count: int, seed: int) -> list[tuple[int, int]]:
    """Runs of offsets as a file of one bucket has them: many, with gaps of any width."""
    offsets = BitMap64(random.Random(seed).sample(range(8 * count), count))
    return list(ranges(offsets))


@pytest.mark.timeout(30)
def test_the_offsets_of_a_table_with_buckets_are_stated_in_a_moment_and_the_widest_gaps_stay() -> None:
    runs = scattered(60_000, 1)
    stated = Retired().plus({0: runs}, rows=60_000)
    gaps = sorted(after[0] - before[1] for before, after in pairwise(runs))
    assert stated.joined == sum(gaps[: len(runs) - RUNS_MAX])
    kept = [after[0] - before[1] for before, after in pairwise(stated.runs[0])]
    assert sorted(kept) == gaps[len(runs) - RUNS_MAX :]
    assert (stated.runs[0][0][0], stated.runs[0][-1][1]) == (runs[0][0], runs[-1][1])


@pytest.mark.parametrize("seed", range(3))
def test_few_of_very_many_runs_are_held_and_what_is_stated_is_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retired, "HELD_MAX", 2 * RUNS_MAX)
    runs = [
        (start * (seed + 1) + start % 7, start * (seed + 1) + start % 7 + 1)
        for start, _ in scattered(5_000, seed)
    ]
    runs = sorted({run[0]: run for run in runs}.values())
    held, joined = few(iter(runs))
    assert len(held) == 2 * RUNS_MAX
    assert joined > 0
    whole = Retired().plus({0: runs}, rows=1)
    part = Retired().plus({0: held}, rows=1, joined=joined)
    assert part.joined == whole.joined
    assert all(any(a <= start and end <= b for a, b in part.runs[0]) for start, end in runs), "none is lost"
    assert few(runs[:RUNS_MAX]) == (tuple(runs[:RUNS_MAX]), 0)


def test_a_drop_names_few_runs_and_counts_what_they_join(
    state: TableState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retired, "HELD_MAX", 3)
    old = Old(*names("own", 5))
    places = iter([0, 10, 11, 30, 100])
    old.offsets = lambda: [next(places)]
    origins: Any = old
    made = Retirement("orders", stream="orders", topic="orders", column="at", age_s=1, origins=origins)
    change = made.change(state, origins, now_ms=0, new_id=lambda: "x")
    assert change is not None
    assert change.dropped == {0: ((0, 12), (30, 31), (100, 101))}
    assert change.joined == 9
    verdict = change.on(state)
    assert isinstance(verdict, Append)
    stated = Retired.from_json(verdict.summary[PREFIX + "orders"])
    assert (stated.rows, stated.joined) == (5, 9)


def looked_at(old: Old, state: TableState, **options: Any) -> tuple[int, bool]:
    """How many files one look drops, and whether it says that there are more."""
    origins: Any = old
    made = Retirement("orders", stream="orders", topic="orders", column="at", age_s=1, origins=origins)
    change = made.change(state, origins, now_ms=0, new_id=lambda: "x", **options)
    return (0 if change is None else len(change.removed)), made.more


@pytest.mark.parametrize(("rows", "files"), [(1, 6), (25, 4), (26, 3), (51, 1), (101, 1)])
def test_a_look_reads_so_many_rows_at_most_and_one_file_at_least(
    rows: int, files: int, state: TableState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retirement, "ROWS_MAX", 100)
    old = Old(*names("own", 6), records=rows)
    assert looked_at(old, state) == (files, files < 6)
    assert len(old.read) == files, "what is not dropped is not read"
    old = Old(*names("other", 6), records=rows)
    assert looked_at(old, state) == (0, files < 6)
    assert len(old.read) == files, "nor is more read because it stays"


def test_a_look_gives_a_sign_of_life_before_each_file_and_ends_early_if_a_batch_is_due(
    state: TableState,
) -> None:
    old, beats = Old(*names("own", 6)), [0]

    def beat() -> None:
        beats[0] += 1

    assert looked_at(old, state, beat=beat) == (6, False)
    assert beats == [6]
    old.read.clear()
    assert looked_at(old, state, urgent=lambda: len(old.read) >= 2) == (2, True)
    assert looked_at(old, state, urgent=lambda: True) == (1, True), "one at least, or none would ever go"


def test_a_drop_that_takes_long_is_alive_and_makes_way_for_a_batch() -> None:
    """Ten files of a minute each: a batch that is due waits for one of them, not for ten."""
    world = World()
    world.ingestor = world.lake.ingestor(world.spec, limits=replace(LIMITS, retire_s=3_600))
    for _ in range(10):
        world.send(60)
    retire, registry = world.ingestor._upkeep._retirement, world.lake.registry
    assert retire is not None
    origins, ages = retire._origins, list[float]()

    class Slow:
        def rows(self, file: FileEntry, deleted: BitMap64) -> Origins | None:
            ages.append(world.lake.clock.now_s - registry.get("orders").beat_s)
            world.lake.clock.now_s += 60
            return origins.rows(file, deleted)

    slow: Any = Slow()
    retire._origins = slow
    world.ingestor._upkeep._retired_s = -1e9
    # A commit is under way until somebody waits for it.
    world.lake.commits_now = lambda: False
    world.topic.send(0, order(0, 1))
    world.wait(turns=30)
    removed = [s["summary"].get("deleted-data-files") for s in world.lake.table().ancestors()][::-1]
    assert removed[11:13] == ["1", None], "a drop of one file, and the batch"
    world.lake.commits_now = lambda: True
    world.ingestor._upkeep._retired_s = -1e9
    world.wait(turns=30)
    assert world.offsets() == [10]
    assert (len(ages), max(ages)) == (10, 0.0), "a sign of life before each"
    assert hanging(registry, now_s=world.lake.clock()) == []


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_drop_reads_the_manifests_of_its_files_unless_they_were_rewritten_since(
    rewritten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "MERGE_COUNT", 1_000)
    monkeypatch.setattr(RecentFiles, "keep", lambda *_: None)  # as if others had written the manifests
    world = World()
    world.ingestor = world.lake.ingestor(world.spec, limits=replace(LIMITS, retire_s=3_600))
    for hours in (47.5, *[1] * 12):
        world.send(hours)
    keep, files = world.ingestor._upkeep, world.ingestor.files
    assert keep._retirement is not None
    look = partial(keep._retirement.change, world.lake.table(), files, new_id=world.lake.new_id)
    now_ms = round(NOW.timestamp() * 1_000)
    read: list[str] = []
    inner = FileIO.read

    def seen(self: FileIO, location: str) -> bytes:
        read.append(location)
        return inner(self, location)

    monkeypatch.setattr(FileIO, "read", seen)
    assert look(now_ms=now_ms) is None
    assert len(read) == 14, "the list, and each manifest once"
    read.clear()
    change = look(now_ms=now_ms + 3_600_000)
    assert change is not None
    assert len(read) == 2, "the list, and the manifest of the old file"
    (old,) = change.removed
    assert old.manifest == read[1]
    if rewritten:
        change = replace(change, removed=(replace(old, manifest="s3://elsewhere/m0.avro"),))
    read.clear()
    assert isinstance(world.ingestor._commits.commit(change, files.writer(world.lake.table())), Done)
    assert len([path for path in read if path.endswith("-m0.avro")]) == (13 if rewritten else 1)
    assert 0 not in world.offsets()
    assert len(world.offsets()) == 12
