"""Looks for old rows among many files that stay: each look is bounded, and together they see every file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyroaring import BitMap64

from tarn.core.audit.accounts import Origins, Tally
from tarn.core.audit.model import FileEntry
from tarn.core.table_state import TableState, WrittenFile
from tarn.ingest import retirement
from tarn.ingest.retirement import Retirement
from tests.contract.ingest.test_retention import LIMITS, World, listed
from tests.support.lake import BUCKET


class Old:
    """The old files of a table, and whose they are; those named `own…` are the stream's."""

    def __init__(self, *paths: str, records: int = 1) -> None:
        self.paths = list(paths)
        self.records = records
        self.read: list[str] = []
        self.on_read: Callable[[], None] = lambda: None

    def old_files(self, _state: TableState, _column: str, _before_us: int) -> Iterator[WrittenFile]:
        for path in self.paths:
            yield WrittenFile(path=path, partition=(), spec_id=0, records=self.records, bytes=1)

    def rows(self, file: FileEntry, _deleted: BitMap64) -> Origins:
        self.read.append(file.path)
        self.on_read()
        tally = Tally()
        tally.add(BitMap64([len(self.read)]))
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
