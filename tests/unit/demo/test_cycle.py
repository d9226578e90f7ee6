"""How far a cycle brings silver before it makes gold, while bronze grows; the steps are tested on Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn_jobs.pipeline import Pipeline, Step
from tarn_jobs.position import PROPERTY, Position, Range, Snapshot
from tarn_jobs.schema import ADDED, BRONZE, SILVER

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
        return [Snapshot(id=1, parent=None, value=value, current=True)]


@dataclass(slots=True, kw_only=True)
class Noted(Pipeline):
    """A pipeline whose steps are only noted."""

    noted: list[tuple[str, int]] = field(default_factory=list)

    def _silver_step(self, snapshot_id: int, piece: Range) -> Step:
        lake: Any = self.lake
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
    steps = cycle(Growing(bronze=[100, 2_600]))
    assert [name for name, _ in steps] == ["silver"] * 4 + ["gold"]
    assert steps[-1] == ("gold", 2_600)


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


def test_an_empty_bronze_is_no_work() -> None:
    lake = Growing(bronze=[0])
    steps = cycle(lake)
    assert steps == [("gold", 0)]
    assert lake.looks == 1
