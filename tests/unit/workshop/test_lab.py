"""What a notebook says to its reader: facts, answers, waits, and where it stands."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from tarn.core.errors import InvalidError, NotFoundError, UnavailableError
from tarn.workshop import Lab, Verdict, right, wrong
from tarn.workshop import open as open_lab
from tarn.workshop.cleaning import Cleaned
from tarn.workshop.notebooks import NOTEBOOKS, notebook
from tarn.workshop.progress import progress, until
from tarn.workshop.settings import WorkshopSettings


class Page:
    """A lab whose lines are kept, with the exercises that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **exercises: Callable[[Lab, Any], Verdict]) -> None:
        self.lines: list[str] = []
        self.lab = Lab(notebook("03"), WorkshopSettings(), "ada", self.lines.append)
        module = types.ModuleType("tarn.workshop.checks.nb03")
        vars(module).update(exercises)
        monkeypatch.setitem(sys.modules, module.__name__, module)

    def said(self) -> str:
        return self.lines[-1]


def answers_seven(_: Lab, answer: Any) -> Verdict:
    if answer == 7:
        return right("Seven is the number of rows.")
    return wrong(f"{answer + 0} is not the number of rows", "count them again.")


def test_a_student_has_names_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Page(monkeypatch).lab
    assert lab.name("orders") == "ws_ada.orders"
    assert lab.topic("orders") == "workshop.ada.orders"
    assert lab.ingestor("orders") == "ws-ada-orders"


@pytest.mark.parametrize("name", ["", "Ada", "ada lovelace", "ada_l", "1ada", "a" * 21, "ada.b", "ada-b"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match=r"cannot be part of a namespace; take a lower-case letter"):
        open_lab("03", student=name)


def test_a_notebook_that_is_not_there_is_named() -> None:
    with pytest.raises(NotFoundError, match=r"there is no notebook '3'; open one of 00, 01"):
        open_lab("3")


def test_opening_says_what_for_how_long_and_who(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TARN_STUDENT", "bob")
    monkeypatch.setenv("TARN_WORKSHOP_SIZE", "small")
    lab = open_lab("03")
    assert (lab.student, lab.size) == ("bob", 0.1)
    assert capsys.readouterr().out == (
        f"03 · Streaming in · about {NOTEBOOKS['03'].minutes} minutes\n"
        f"Afterwards you {NOTEBOOKS['03'].aim}.\n"
        "You are bob; your tables are in ws_bob, your topics begin with workshop.bob.\n"
    )
    assert open_lab("03", student="eve").student == "eve"
    monkeypatch.delenv("TARN_WORKSHOP_SIZE")
    assert open_lab("03").size == 1.0


def test_a_reset_leaves_alone_what_other_notebooks_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def clean(_: Lab, names: list[str]) -> Cleaned:
        asked.extend(names)
        return Cleaned()

    monkeypatch.setattr("tarn.workshop.cleaning.clean", clean)
    lab = Page(monkeypatch).lab
    for name in (lab.name("departures"), lab.topic("payments"), lab.ingestor("events"), lab.name("mine")):
        assert "ada" in name
    lab.topic("orders")
    lab.reset()
    assert asked == sorted([*NOTEBOOKS["03"].names, "mine"])


def test_the_token_of_spark_in_the_address_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with_token = "sc://spark:15002/;authorization=Bearer%20t"
    monkeypatch.setenv("TARN_SPARK_REMOTE", with_token)
    open_lab("03")
    import os

    assert os.environ["TARN_SPARK_REMOTE"] == with_token


def test_a_fact_is_counted_and_a_wrong_one_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(monkeypatch)
    page.lab.fact("one is one", 1 == 1, "1")
    assert page.said() == "✓ one is one  (1)"
    with pytest.raises(AssertionError, match=r"not so: two is one \(2\)"):
        page.lab.fact("two is one", False, "2")
    page.lab.done()
    assert page.said() == "1 facts checked on this lake, all of them hold"


def test_answers_are_right_wrong_missing_or_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page(monkeypatch, exercise_1=answers_seven, exercise_2=answers_seven)
    page.lab.check("1", ...)
    assert page.said() == "○ exercise 1: not answered yet"
    page.lab.check("1", 8)
    assert page.said() == "✗ exercise 1: 8 is not the number of rows\n  Hint: count them again."
    page.lab.check("1", "seven")
    assert page.said().startswith("✗ exercise 1: the answer could not be checked: TypeError: ")
    assert "it is of type str" in page.said()
    page.lab.done()
    assert page.said().endswith("; 0 of 2 exercises solved")
    page.lab.check("1", 7)
    assert page.said() == "★ exercise 1: right. Seven is the number of rows."
    page.lab.check("3", 7)
    assert page.said() == ("✗ exercise 3: there is no exercise '3' in this notebook; its exercises are 1, 2")
    page.lab.done()
    assert page.said() == "0 facts checked on this lake, all of them hold; 1 of 2 exercises solved"
    page.lab.check("1", 8)
    page.lab.done()
    assert page.said().endswith("; 0 of 2 exercises solved"), "the last answer counts"


def test_a_lake_that_is_away_is_no_wrong_answer_of_a_kind_that_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: Lab, __: Any) -> Verdict:
        raise UnavailableError("the catalog does not answer")

    page = Page(monkeypatch, exercise_1=away)
    page.lab.check("1", 7)
    assert page.said() == "✗ exercise 1: the answer could not be checked: the catalog does not answer"


class Kept:
    """Keeps what a `Line` shows."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, float | None]] = []

    def show(self, text: str, share: float | None) -> None:
        self.shown.append((text, share))


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_waiting_ends_with_the_first_true_answer() -> None:
    clock, line = Clock(), Kept()
    answers = iter([[], [], ["there"]])
    found = until(lambda: next(answers), "a row", line=line, clock=clock, sleep=clock.sleep)
    assert found == ["there"]
    assert line.shown == [], "a short wait says nothing"


def test_a_long_wait_shows_that_it_waits_and_for_what() -> None:
    clock, line = Clock(), Kept()
    until(lambda: clock.now >= 103, "a row", seconds=10, line=line, clock=clock, sleep=clock.sleep)
    assert line.shown[0] == ("waiting for a row: 1 s", 0.1)
    assert line.shown[-1] == ("a row: after 3.0 s", 1.0)


def test_a_wait_that_is_over_says_what_is_missing_and_why() -> None:
    clock = Clock()
    arguments: Any = {"line": Kept(), "clock": clock, "sleep": clock.sleep, "seconds": 2}
    with pytest.raises(
        TimeoutError, match="waited 2 s for a row, and it did not come: the last answer was 0"
    ):
        until(lambda: 0, "a row", **arguments)

    def missing() -> bool:
        raise NotFoundError("there is no table ws_ada.orders")

    with pytest.raises(TimeoutError, match=r"NotFoundError: there is no table ws_ada\.orders"):
        until(missing, "a row", **arguments)


def test_progress_counts_what_is_done() -> None:
    clock, line = Clock(), Kept()
    for _ in progress(range(10), "commits", line=line, clock=clock):
        clock.now += 0.5
    assert line.shown[0] == ("1 of 10 commits", 0.1)
    assert line.shown[-1] == ("10 commits in 5.0 s", 1.0)
    assert list(progress(iter("ab"), "letters", line=line, clock=clock)) == ["a", "b"]
    assert line.shown[-1] == ("2 letters in 0.0 s", 1.0)
