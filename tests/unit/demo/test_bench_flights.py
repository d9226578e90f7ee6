"""What `scripts/bench flights` notes of a load, and of the cycles of the pipeline between its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tarn.core.errors import CorruptStateError, NoSuchTableError, UnavailableError
from tarn.core.table_state import TableState
from tarn_demo.bench import flights, ingest
from tarn_demo.bench.flights import FirstSeen, in_steps, require_whole, step_of
from tarn_demo.flights.events import Kind
from tarn_demo.flights.resume import ReplayMarker
from tarn_demo.loading import LayerProgress, LoadProgress
from tarn_jobs.pipeline import Step

SIZE = 1_000


def progress(*, sent: int = 100, **offsets: int) -> LoadProgress:
    layers = {name: LayerProgress(next={0: offsets[name]}) for name in ("bronze", "silver", "gold")}
    return LoadProgress(phase="", sent=sent, messages=100, begun=0, goal=100, layers=layers)


def test_a_layer_is_complete_at_the_first_look_that_shows_all_of_it() -> None:
    now = [5.0]
    seen = FirstSeen(lambda: now[0])
    seen.show(progress(sent=99, bronze=100, silver=0, gold=0))
    assert seen.at_s == {}, "not everything was sent"
    seen.show(progress(bronze=100, silver=99, gold=0))
    now[0] = 7.0
    seen.show(progress(bronze=100, silver=100, gold=99))
    now[0] = 8.0
    seen.show(progress(bronze=100, silver=100, gold=100))
    assert seen.at_s == {"bronze": 5.0, "silver": 7.0, "gold": 8.0}


def test_the_seconds_of_a_cycle_are_silvers_and_those_of_all_gold_tables() -> None:
    made = [
        Step(table="silver.flights", offsets=700, seconds=2.0),
        Step(table="silver.flights", offsets=300, seconds=1.5),
        Step(table="gold.delays_by_hour", offsets=1_000, seconds=0.25),
        Step(table="gold.delays_by_route", offsets=1_000, seconds=0.5),
    ]
    assert step_of(made) == {"offsets": 1_000, "silver_s": 3.5, "gold_s": 0.75}
    assert step_of([]) == {"offsets": 0, "silver_s": 0, "gold_s": 0}


@dataclass
class World:
    """A topic, tables and a pipeline that are never behind, unless `lag` says so."""

    stream: Any
    sent: int = 0
    lag: int = 0
    lost: int = 0
    cycles: list[int] = field(default_factory=list)

    def ensure(self) -> int:
        return 1

    def end_offsets(self) -> dict[int, int]:
        return {0: self.sent}

    def tails(self) -> dict[int, ReplayMarker | None]:
        if not self.sent:
            return {0: None}
        return {0: ReplayMarker(fingerprint=self.stream.fingerprint, round=1, index=self.sent - 1)}

    def play(self, stream: Any, pace: Any, play: Any, *, end: int) -> int:
        before, self.sent = self.sent, end
        assert play.start == before
        return end - before

    def layers(self) -> dict[str, LayerProgress]:
        held = LayerProgress(rows=self.stream.flights, next={0: self.sent - self.lag})
        return dict.fromkeys(("bronze", "silver", "gold"), held)

    def event_counts(self) -> Mapping[Kind, int]:
        return cast("Mapping[Kind, int]", self.stream.by_kind)

    def load(self, table: Any) -> TableState:
        if str(table) == "ops.dead_letters":
            raise NoSuchTableError("none")
        totals = {"total-records": str(self.sent - self.lost), "total-data-files": "7"}
        snapshot = {"snapshot-id": 1, "summary": totals}
        return TableState({"current-snapshot-id": 1, "snapshots": [snapshot]})

    @contextmanager
    def opened(self, on_step: Callable[[Step], None]) -> Iterator[Any]:
        def cycle() -> int:
            self.cycles.append(self.sent)
            on_step(Step(table="silver.flights", offsets=self.sent, seconds=2.0))
            on_step(Step(table="gold.delays_by_hour", offsets=self.sent, seconds=1.0))
            return 2

        yield SimpleNamespace(cycle=cycle)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    class Played:
        fingerprint, flights, by_kind = "f", 400, {Kind.SCHEDULED: 400}

        def __len__(self) -> int:
            return SIZE

    monkeypatch.setattr(flights, "ends_in", lambda stream, partitions: (SIZE,))
    monkeypatch.setattr(ingest, "REGISTER_S_MAX", 0.0)
    return World(stream=Played())


def stepped(world: World, steps: int) -> list[dict[str, Any]]:
    context = cast("Any", SimpleNamespace(topic=world, catalog=world))
    lake = cast("Any", world)
    return list(in_steps(context, lake, world.stream, world.opened, steps=steps))


def test_every_step_has_an_equal_part_and_one_cycle(world: World) -> None:
    rows = stepped(world, 4)
    assert world.cycles == [250, 500, 750, 1_000]
    assert [row["messages"] for row in rows] == [250, 250, 250, 250]
    assert rows[-1]["silver_rows"] == 1_000
    assert rows[-1]["silver_files"] == 7
    assert (rows[1]["silver_s"], rows[1]["gold_s"], rows[1]["offsets"]) == (2.0, 1.0, 500)


def test_a_lost_row_is_no_result(world: World) -> None:
    world.lost = 1
    with pytest.raises(CorruptStateError, match="999 rows and 0 dead letters of 1000 offsets"):
        stepped(world, 2)


def test_an_event_that_silver_lacks_is_no_result(world: World) -> None:
    short = SimpleNamespace(flights=401, by_kind=world.stream.by_kind)
    with pytest.raises(CorruptStateError, match="silver holds 400 of 401 flights"):
        require_whole(cast("Any", short), cast("Any", world), {"rows": 1, "dead_letters": 0, "offsets": 1})


def test_a_bronze_that_stays_behind_is_said() -> None:
    times = iter([0.0, 1.0, 61.0])
    with pytest.raises(UnavailableError, match="did not take everything within 60 s; see the logs of ingest"):
        ingest.await_bronze(lambda: False, clock=lambda: next(times))


def test_a_step_waits_for_bronze(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.lag = 1
    monkeypatch.setattr(ingest, "STALL_S_MAX", 0.0)
    with pytest.raises(UnavailableError, match="did not take everything"):
        stepped(world, 2)
    assert world.cycles == []
