"""What `tarn demo show` prints for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from tarn.cli.ports import Answer
from tarn_demo.cli.demo import _print_summary, app
from tarn_demo.cli.demo_summary import DemoSummary, TableRow

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
