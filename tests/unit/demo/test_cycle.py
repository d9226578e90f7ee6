"""How far a cycle brings silver, and which gold it makes; the steps are tested on Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn_jobs.pipeline import Pipeline, Step
from tarn_jobs.position import PROPERTY, Position, Range, Snapshot
from tarn_jobs.schema import ADDED, BRONZE, GOLD, SILVER

SOURCE = TopicIdentity(cluster="c", topic="flight-events", topic_id="t")
ENOUGH = 40


@dataclass
class Growing:
    """A lake whose bronze holds the next of these numbers of offsets whenever silver has moved."""

    bronze: list[int]
    silver: Position | None = None
    looks: int = 0

    def exists(self, table: str) -> bool:
        return True

    def require_columns(self, table: str, columns: object) -> None:
        pass

    def ensure_namespaces(self, names: object) -> None:
        pass

    def ensure_table(self, table: object) -> None:
        pass

    def columns(self, table: str) -> frozenset[str]:
        return frozenset(c.name for c in ADDED)

    def location(self, table: str) -> str:
        return "s3://tarn/x"

    def snapshots(self, table: str, entry: str, *, tag: str = "") -> list[Snapshot]:
        if table == SILVER.name:
            assert entry == PROPERTY
            value = None if self.silver is None else self.silver.to_json()
        else:
            assert table == BRONZE
            self.looks += 1
            value = OffsetMap(source=SOURCE, next={0: self.bronze[0]}).to_json()
            return [Snapshot(id=self.looks, parent=None, value=value, current=True)]
        return [Snapshot(id=1, parent=None, value=value, current=True)]


@dataclass(slots=True, kw_only=True)
class Noted(Pipeline):
    """A pipeline whose steps are only noted."""

    noted: list[tuple[str, int]] = field(default_factory=list)

    def _silver_step(self, snapshot_id: int, piece: Range) -> Step:
        lake: Any = self.lake
        assert snapshot_id == lake.looks, "of bronze only the snapshot looked at last is there"
        lake.silver = piece.after
        if len(lake.bronze) > 1:
            lake.bronze.pop(0)
        self.noted.append(("silver", piece.after.offset(0)))
        assert len(self.noted) < ENOUGH, "it goes on for ever"
        return Step(table=SILVER.name, offsets=piece.offsets, seconds=0)

    def _all_gold(self) -> int:
        lake: Any = self.lake
        self.noted.append(("gold", lake.silver.offset(0) if lake.silver is not None else 0))
        return 1


def cycle(lake: Growing) -> list[tuple[str, int]]:
    untyped: Any = lake
    pipeline = Noted(lake=untyped, offsets_max=1_000)
    pipeline.cycle()
    return pipeline.noted


def test_gold_is_made_when_silver_holds_what_came_meanwhile() -> None:
    lake = Growing(bronze=[140, 900, 1_000])
    steps = cycle(lake)
    assert steps == [("silver", 140), ("silver", 900), ("gold", 900)], "100 more are merged by the next cycle"
    assert lake.looks == 3


def test_it_waits_for_the_last_piece_of_what_came() -> None:
    lake = Growing(bronze=[100, 2_600])
    steps = cycle(lake)
    assert [name for name, _ in steps] == ["silver"] * 4 + ["gold"]
    assert steps[-1] == ("gold", 2_600)
    assert lake.looks == 3 + 2, "bronze is looked at again for the second piece of one look and the third"


def test_a_cycle_of_little_looks_at_bronze_once() -> None:
    lake = Growing(bronze=[1_000, 1_100, 1_200])
    assert cycle(lake) == [("silver", 1_000), ("gold", 1_000)]
    lake.looks = 0
    assert cycle(lake) == [("silver", 1_100), ("gold", 1_100)]
    assert lake.looks == 1


def test_what_always_comes_does_not_keep_gold_waiting() -> None:
    """A stream that keeps its rate is half new only while it is young."""
    steps = cycle(Growing(bronze=[number * 500 for number in range(1, 40)]))
    assert steps == [("silver", 500), ("silver", 1_000), ("gold", 1_000)]


def test_a_bronze_rolled_back_below_the_next_piece_ends_the_cycle() -> None:
    lake = Growing(bronze=[3_000, 1_500])
    assert cycle(lake) == [("silver", 1_000), ("gold", 1_000)]
    assert cycle(lake) == [("silver", 1_500), ("gold", 1_500)]


def test_a_bronze_that_was_exchanged_between_two_pieces_ends_the_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = Growing(bronze=[3_000, 5_000])
    monkeypatch.setattr(lake, "location", lambda _: f"s3://tarn/{lake.looks}")
    assert cycle(lake) == [("silver", 1_000), ("gold", 1_000)]


def test_an_empty_bronze_is_no_work() -> None:
    lake = Growing(bronze=[0])
    steps = cycle(lake)
    assert steps == [("gold", 0)]
    assert lake.looks == 1


@dataclass
class Made:
    """Tables of a lake: silver as it is, and every gold table at one position, with commits after it."""

    silver: list[Snapshot]
    gold: Position
    after: tuple[str, ...] = ()

    def snapshots_of(self, tables: list[str], entry: str) -> dict[str, list[Snapshot]]:
        value = self.gold.to_json()
        gold = [Snapshot(id=100, parent=None, value=value, current=not self.after, operation="overwrite")]
        gold += [
            Snapshot(id=n, parent=n - 1, value=None, current=n == 100 + len(self.after), operation=operation)
            for n, operation in enumerate(self.after, start=101)
        ]
        return {SILVER.name: self.silver, **{table.table.name: gold for table in GOLD}}


@dataclass(slots=True, kw_only=True)
class Gilded(Pipeline):
    """A pipeline that notes since which snapshot of silver it would bring gold up."""

    since: list[int | None] = field(default_factory=list)

    def _gold_since(self, since: int | None, tables: Any, available: Position) -> None:
        assert len(tables) == len(GOLD)
        self.since.append(since)


def _at(offset: int, made_from: int | None = None) -> Position:
    source = (("cluster", "c"), ("table", "s3://tarn/x"), ("topic", "flight-events"), ("topic-id", "t"))
    return Position(source=source, next=((0, offset),), made_from=made_from)


def _silver(*commits: tuple[int, int | None, int | None], deletes: int = 0) -> list[Snapshot]:
    """Snapshots of silver by id, parent and offset; the last one is the current one."""
    return [
        Snapshot(
            id=id_,
            parent=parent,
            value=None if offset is None else _at(offset).to_json(),
            current=number == len(commits),
            delete_files=deletes,
        )
        for number, (id_, parent, offset) in enumerate(commits, start=1)
    ]


@pytest.mark.parametrize(
    ("silver", "gold", "since"),
    [
        (_silver((1, None, 90), (2, 1, 100)), _at(100, 2), []),
        (_silver((1, None, 90), (2, 1, 100)), _at(90, 1), [1]),
        # A commit of maintenance, or by hand, waits for the next offsets.
        (_silver((2, None, 100), (3, 2, None)), _at(100, 2), []),
        (_silver((2, None, 100), (3, 2, None), deletes=1), _at(100, 2), []),
        # Dropped and made again; while it is made, gold stays as it is.
        (_silver((7, None, 60)), _at(100, 2), []),
        (_silver((7, None, 60), (8, 7, 100)), _at(100, 2), [None]),
        # Rolled back to before a commit, and brought up again.
        (_silver((1, None, 90), (2, 1, 100), (3, 1, 100)), _at(100, 2), [None]),
        # Looked at before another pipeline had moved both.
        (_silver((1, None, 90)), _at(100, 2), []),
        # Of an earlier version, which did not note what it was made from.
        (_silver((1, None, 100)), _at(100), []),
    ],
)
def test_gold_is_of_the_silver_that_there_is(
    silver: list[Snapshot], gold: Position, since: list[int | None]
) -> None:
    untyped: Any = Made(silver=silver, gold=gold)
    pipeline = Gilded(lake=untyped)
    assert pipeline._all_gold() == len(since) * len(GOLD)
    assert pipeline.since == since


@pytest.mark.parametrize(
    ("silver", "gold", "after", "since"),
    [
        # Changed by hand: at once, whether or not a message comes, and not by what changed in silver.
        (_silver((1, None, 90), (2, 1, 100)), _at(90, 1), ("delete",), [None]),
        (_silver((2, None, 100)), _at(100, 2), ("delete",), [None]),
        (_silver((2, None, 100)), _at(100, 2), ("replace", "overwrite", "replace"), [None]),
        (_silver((2, None, 100)), _at(100), ("append",), [None]),
        # Compacted: the same rows.
        (_silver((1, None, 90), (2, 1, 100)), _at(90, 1), ("replace", "replace"), [1]),
        (_silver((2, None, 100)), _at(100, 2), ("replace",), []),
        # Silver that is made again, or was looked at before another pipeline's commits, lacks rows of gold.
        (_silver((7, None, 60)), _at(100, 2), ("delete",), []),
    ],
)
def test_gold_that_somebody_changed_is_made_from_all_of_silver(
    silver: list[Snapshot], gold: Position, after: tuple[str, ...], since: list[int | None]
) -> None:
    untyped: Any = Made(silver=silver, gold=gold, after=after)
    pipeline = Gilded(lake=untyped)
    assert pipeline._all_gold() == len(since) * len(GOLD)
    assert pipeline.since == since
