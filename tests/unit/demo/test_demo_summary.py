"""A glance at the flights: what is asked, how ages are counted, and how long is waited."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from tarn.cli.ports import Answer, Clock
from tarn.core.errors import UnavailableError
from tarn_demo.cli.demo_summary import (
    ANSWER_SQL,
    BRONZE,
    GOLD,
    SILVER,
    as_data,
    await_gold,
    newest_sql,
    summarize,
)
from tarn_demo.loading import LayerProgress

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
ANSWER = Answer(
    columns=("airline", "flights", "minutes_late"), rows=(("Frontier", 12, 20.2), ("ExpressJet", 842, 19.8))
)


def layers(
    bronze: int = 2_463, silver: int = 842, gold: int = 12, behind: int = 100
) -> dict[str, LayerProgress]:
    def layer(rows: int, offset: int) -> LayerProgress:
        return LayerProgress(rows=rows, next={0: offset, 1: offset + 7} if rows else {})

    return {
        BRONZE: layer(bronze, 5_000),
        SILVER: layer(silver, 5_000 - behind),
        **{name: layer(gold, 5_000 - 2 * behind) for name in GOLD},
    }


@dataclass
class Tables:
    """Tables that are as a script says, look by look; the last one stays."""

    script: list[dict[str, LayerProgress] | UnavailableError]

    def by_table(self) -> Mapping[str, LayerProgress]:
        found = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(found, UnavailableError):
            raise found
        return found


@dataclass
class Engine:
    """Answers both questions and remembers them."""

    newest: tuple[object, ...]
    asked: list[str] = field(default_factory=list)
    answer: Answer = ANSWER
    name: str = "trino"

    def query(self, sql: str, *, rows_max: int) -> Answer:
        self.asked.append(sql)
        return self.answer if sql == ANSWER_SQL else Answer(columns=("a", "b", "c"), rows=(self.newest,))


class Time:
    """A clock that only waits move."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def clock(self) -> Clock:
        return Clock(now_s=lambda: self.now_s, wait=self.wait)


def test_rows_and_ages_of_every_table_and_the_answer() -> None:
    newest = (NOW - timedelta(seconds=1.5), NOW - timedelta(seconds=9), NOW - timedelta(seconds=31))
    seen = summarize(Tables([layers()]), Engine(newest), now=NOW)
    assert [(t.table, t.rows, t.newest_s) for t in seen.tables] == [
        (BRONZE, 2_463, 1.5),
        (SILVER, 842, 9.0),
        *((name, 12, 31.0) for name in GOLD),
    ]
    assert seen.answer == ANSWER
    assert as_data(seen)["answer"] == [
        {"airline": "Frontier", "flights": 12, "minutes_late": 20.2},
        {"airline": "ExpressJet", "flights": 842, "minutes_late": 19.8},
    ]


def test_a_clock_that_is_behind_the_producers_gives_no_negative_age() -> None:
    seen = summarize(Tables([layers()]), Engine((NOW + timedelta(seconds=2), None, None)), now=NOW)
    assert [t.newest_s for t in seen.tables[:3]] == [0.0, None, None]


def test_the_newest_event_of_a_layer_is_the_newest_below_its_offsets() -> None:
    sql = newest_sql(layers())
    assert 'FILTER (WHERE (_tarn."partition" = 0 AND _tarn."offset" < 4900) OR' in sql
    assert 'FILTER (WHERE (_tarn."partition" = 0 AND _tarn."offset" < 4800) OR' in sql
    assert sql.endswith(
        'WHERE (_tarn."partition" = 0 AND _tarn."offset" >= 3800) OR '
        '(_tarn."partition" = 1 AND _tarn."offset" >= 3807)'
    ), "the last 1,000 offsets of the layer that is least far"


def test_an_empty_lake_is_asked_nothing() -> None:
    engine = Engine(())
    seen = summarize(Tables([layers(0, 0, 0)]), engine, now=NOW)
    assert engine.asked == []
    assert [(t.rows, t.newest_s) for t in seen.tables] == [(0, None)] * 6
    assert seen.answer is None


def test_gold_that_is_not_made_yet_gives_no_answer_and_breaks_nothing() -> None:
    engine = Engine((NOW, NOW, None))
    seen = summarize(Tables([layers(gold=0)]), engine, now=NOW)
    assert engine.asked == [newest_sql(layers(gold=0))]
    assert "FILTER (WHERE false)" in engine.asked[0]
    assert (seen.answer, seen.tables[2].newest_s) == (None, None)


def test_an_answer_without_rows_is_none() -> None:
    engine = Engine((NOW, NOW, NOW), answer=Answer(columns=("airline",), rows=()))
    assert summarize(Tables([layers()]), engine, now=NOW).answer is None


def test_waiting_ends_with_the_first_rows_of_gold_and_tells_how_far_it_is() -> None:
    time, told = Time(), list[str]()
    away = UnavailableError("the catalog is away")
    script: list[dict[str, LayerProgress] | UnavailableError] = [layers(0, 0, 0)] * 4
    script += [away, away, away, layers(gold=0), layers()]
    await_gold(Tables(script), time.clock(), wait_s=60, tell=told.append)
    assert time.now_s == 8.0
    assert told == ["   5 s  bronze 0 rows   silver 0 rows   gold 0 rows"]


def test_a_lake_that_is_filled_already_is_not_waited_for() -> None:
    time = Time()
    await_gold(Tables([layers()]), time.clock(), wait_s=60, tell=print)
    assert time.now_s == 0.0


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            layers(0, 0, 0),
            "bronze 0 rows   silver 0 rows   gold 0 rows; see docker compose logs replay ingest,",
        ),
        (layers(gold=0), "silver 842 rows   gold 0 rows; see docker compose logs pipeline,"),
        (UnavailableError("the catalog is away"), "could not be read for 60 s: the catalog is away"),
    ],
)
def test_what_does_not_come_is_told_with_what_to_look_at(
    script: dict[str, LayerProgress] | UnavailableError, said: str
) -> None:
    time = Time()
    with pytest.raises(UnavailableError) as told:
        await_gold(Tables([script]), time.clock(), wait_s=60, tell=lambda text: None)
    assert said in told.value.message
    assert time.now_s == 60.0
