"""Checkers of notebook 09: rules of windows, tried on times and windows that the student does not see."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import TYPE_CHECKING, Any

from tarn.workshop import scratch
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

DAY = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
LIMIT = 30.0


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """Check the smallest whole number of hours with which no event is late."""
    if isinstance(answer, bool) or not isinstance(answer, Integral):
        return wrong(f"answer is of type {type(answer).__name__}, asked for is a whole number of hours")
    rows = scratch.whole(lab, "departures")
    if rows["id"].duplicated().any():
        return wrong(
            "the events were sent more than once, so most of them are late", "lab.reset(), and from the top."
        )
    rows = rows.assign(offset=[trace["offset"] for trace in rows["_tarn"]]).sort_values("offset")
    behind = (rows["at"].cummax() - rows["at"]).max()
    needed = math.ceil(behind / HOUR)
    if answer < needed:
        late = int((rows["at"].cummax() - rows["at"] > answer * HOUR).sum())
        return wrong(
            f"with {answer} hours, {late} events are late",
            "how far behind the watermark is the last of them?",
        )
    if answer > needed:
        return wrong(f"{answer} hours are enough, and more than is needed: each makes all results later")
    return right(f"the latest event came {behind.total_seconds() / 3600:.1f} hours behind the watermark")


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Check a function that returns the starts of the overlapping windows of a time."""
    del lab
    if not callable(answer):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for is a function",
            "answer = starts, without brackets.",
        )
    for at, what in (
        (DAY + timedelta(hours=9, minutes=30), "in the middle of an hour"),
        (DAY + timedelta(hours=9), "exactly at a start"),
        (DAY + timedelta(minutes=10), "just after midnight"),
        (
            DAY + timedelta(hours=9, minutes=59, seconds=59, microseconds=999_999),
            "a microsecond before the next start",
        ),
    ):
        newest = at.replace(minute=0, second=0, microsecond=0)
        wanted = [newest - HOUR, newest]
        found = answer(at)
        if not isinstance(found, list):
            return wrong(
                f"the function returns a {type(found).__name__}, asked for is a list",
                "does it end with return?",
            )
        if len(found) != len(wanted):
            return wrong(
                f"{at:%H:%M:%S}, {what}, is in {len(wanted)} windows, you have {len(found)}",
                "two hours, one every hour: two windows, always. The end does not belong to a window.",
            )
        if found != wanted:
            if any(isinstance(one, datetime) and one.tzinfo is None for one in found):
                return wrong(
                    f"{at:%H:%M:%S}, {what}: your starts have no time zone, and the event's time has one",
                    "at.replace(…) keeps it.",
                )
            hint = (
                "the earlier first." if sorted(found) == wanted else "round the time down to its hour first."
            )
            return wrong(
                f"{at:%H:%M:%S}, {what}: your first start is {_shown(found[0])}, not {_shown(wanted[0])}",
                hint,
            )
    return right("each time is in two windows, also at midnight")


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """Check a function from closed windows to alerts."""
    del lab
    if not callable(answer):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for is a function",
            "answer = alerts, without brackets.",
        )
    for what, hint, windows, wanted in _CASES:
        found = answer(list(windows))
        if found is None:
            return wrong("the function returns nothing", "does it end with return?")
        given = [tuple(one) for one in found]
        if given != wanted:
            other = next((one for one in given if one not in wanted), None)
            if len(given) == len(wanted) and other is not None:
                return wrong(f"{what}: {_told(other)} is none of the alerts asked for", hint)
            return wrong(f"{what}: asked for are {len(wanted)} alerts, you have {len(found)}", hint)
    return right("each begins once, and may begin again")


def _window(hour: int, origin: str, delay: float) -> tuple[datetime, str, int, float]:
    return (DAY + hour * HOUR, origin, 10, delay)


_CASES = (
    (
        "a delay that stays",
        "an alert is for the first window only: remember the mean delay of the window before.",
        [_window(8, "JFK", 5), _window(10, "JFK", 40), _window(12, "JFK", 50), _window(14, "JFK", 45)],
        [(DAY + 10 * HOUR, "JFK")],
    ),
    (
        "exactly 30 minutes",
        "30 or more: >=.",
        [_window(8, "JFK", 29.9), _window(10, "JFK", LIMIT)],
        [(DAY + 10 * HOUR, "JFK")],
    ),
    (
        "two airports at one time",
        "remember what was before for each airport by itself: a dictionary.",
        [_window(8, "EWR", 40), _window(8, "JFK", 40), _window(10, "EWR", 45), _window(10, "JFK", 5)],
        [(DAY + 8 * HOUR, "EWR"), (DAY + 8 * HOUR, "JFK")],
    ),
    (
        "late, better, and late again",
        "what gets better is over, and may begin again.",
        [_window(8, "JFK", 40), _window(10, "JFK", 5), _window(12, "JFK", 40)],
        [(DAY + 8 * HOUR, "JFK"), (DAY + 12 * HOUR, "JFK")],
    ),
    (
        "late, then no window, then late",
        "the window before begins two hours earlier; if there is none, that counts as less than 30.",
        [_window(8, "JFK", 40), _window(12, "JFK", 40)],
        [(DAY + 8 * HOUR, "JFK"), (DAY + 12 * HOUR, "JFK")],
    ),
)


def _told(alert: tuple[Any, ...]) -> str:
    return ", ".join(_shown(one) if isinstance(one, datetime) else str(one) for one in alert)


def _shown(value: Any) -> str:
    return f"{value:%H:%M:%S}" if isinstance(value, datetime) else repr(value)
