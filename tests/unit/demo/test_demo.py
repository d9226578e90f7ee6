"""What `tarn demo show` prints for people."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

import pytest
from typer.testing import CliRunner

from tarn.adapters.kafka_login import ANONYMOUS
from tarn.cli.ports import Answer
from tarn_demo.cli.demo import _print_summary, app
from tarn_demo.cli.demo_summary import DemoSummary, TableRow
from tarn_demo.flights import dataset
from tarn_demo.flights.events import NoiseRates, Stream
from tarn_demo.flights.resume import ReplayMarker, ReplayPass

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
TABLES = (
    TableRow(table="bronze.flight_events", rows=16_598, newest_s=1.4),
    TableRow(table="silver.flights", rows=0, newest_s=None),
)


def test_rows_ages_and_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    answer = Answer(columns=("airline", "minutes_late"), rows=(("ExpressJet Airlines Inc.", 40.9),))
    _print_summary(DemoSummary(at=AT, tables=TABLES, answer=answer))
    text = capsys.readouterr().out
    assert re.search(r"^bronze\.flight_events \W+16,598 \W+1 s ago$", text, re.MULTILINE)
    assert re.search(r"^silver\.flights \W+0 \W+$", text, re.MULTILINE)
    assert "The three airlines that leave latest, so far (Trino, gold.delays_by_carrier):" in text
    assert re.search(r"^ExpressJet Airlines Inc\. \W+40\.9\s*$", text, re.MULTILINE)


def test_no_answer_yet_says_what_brings_one(capsys: pytest.CaptureFixture[str]) -> None:
    _print_summary(DemoSummary(at=AT, tables=TABLES, answer=None))
    text = " ".join(capsys.readouterr().out.split())
    assert "Gold holds no answer yet: scripts/tarn demo replay or demo load plays the flights." in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["replay", "--speed", "0"], "the speed is 0"),
        (["replay", "--speed", "nan"], "the speed is nan"),
        (["replay", "--rate", "inf"], "the rate is inf"),
        (["replay", "--speed", "2", "--rate", "2"], "choose one"),
        (["replay", "--speed", "600"], ""),
        (["load"], ""),
    ],
)
def test_options_are_looked_at_before_anything_is_asked_or_stopped(words: list[str], said: str) -> None:
    told = CliRunner().invoke(app, [*words, "--check"])
    assert said in str(told.exception or "")
    assert (told.exit_code == 0) is (said == "")


@cache
def _stream() -> Stream:
    flights = dataset.read_flights().slice(0, 50)
    return Stream(flights, dataset.read_reference("airports"), noise=NoiseRates(), seed=1)


@dataclass
class Topic:
    """A topic of four partitions: the last message of each, and the first offset that Kafka still has."""

    tails_: dict[int, ReplayMarker | None]
    firsts: dict[int, int]
    plays: list[ReplayPass] = field(default_factory=list)

    def ensure(self) -> int:
        return len(self.tails_)

    def tails(self) -> dict[int, ReplayMarker | None]:
        return self.tails_

    def first_offsets(self) -> dict[int, int]:
        return self.firsts

    def play(self, stream: Stream, pace: object, play: ReplayPass, **_: object) -> int:
        self.plays.append(play)
        return len(stream) - play.start


def _replayed(monkeypatch: pytest.MonkeyPatch, topic: Topic, *words: str) -> str:
    monkeypatch.setattr("tarn_demo.cli.demo._stream", lambda *_: _stream())
    monkeypatch.setattr("tarn_demo.flights.producer.Topic", lambda **_: topic)
    monkeypatch.setattr("tarn_demo.cli.demo._interrupt_on_sigterm", lambda: None)
    monkeypatch.setattr("tarn.adapters.kafka_login.KafkaSettings.kafka_login", lambda _: ANONYMOUS)
    result = CliRunner().invoke(app, ["replay", *words])
    assert result.exit_code == 0, result.exception
    return " ".join(result.output.split())


def _mark(index: int) -> ReplayMarker:
    return ReplayMarker(fingerprint=_stream().fingerprint, round=1, index=index)


NONE_OF_FOUR: dict[int, ReplayMarker | None] = dict.fromkeys(range(4))


@pytest.mark.long
@pytest.mark.parametrize("gone", [{0: 30, 1: 20, 2: 30, 3: 20}, {0: 0, 1: 20, 2: 0, 3: 0}])
def test_a_year_whose_last_messages_are_gone_is_not_begun_once_more_unasked(
    monkeypatch: pytest.MonkeyPatch, gone: dict[int, int]
) -> None:
    """As Kafka deletes what is older than a week, on a lake that was switched off meanwhile."""
    tails = {p: None if first else _mark(7) for p, first in gone.items()}
    topic = Topic(tails, gone)
    assert "nobody knows how far the year was played" in _replayed(monkeypatch, topic, "--only-own")
    assert topic.plays == []
    assert "Sent" in _replayed(monkeypatch, topic, "--again")
    assert [play.next for play in topic.plays] == [(0, 0, 0, 0)], "all of it, as was asked for"


def test_a_year_is_begun_and_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Topic(NONE_OF_FOUR, dict.fromkeys(range(4), 0))
    assert f"Sent {len(_stream())}" in _replayed(monkeypatch, fresh, "--only-own")
    # The first messages are gone, and the last ones are there.
    begun = Topic({p: _mark(7) for p in range(4)}, dict.fromkeys(range(4), 2))
    assert f"Sent {len(_stream()) - 8}" in _replayed(monkeypatch, begun, "--only-own")
