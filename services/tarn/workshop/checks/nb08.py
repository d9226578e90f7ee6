"""Checkers of notebook 08: the answers are computed again from the tables, by pyiceberg and pandas."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pandas as pd

from tarn.workshop import scratch
from tarn.workshop.checks.frames import close, columns_of, rounded
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

FLIGHTS_MIN = 20
WORST = 5
WINDY = 15


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """Check the five destinations with the largest mean arrival delay."""
    found, problem = columns_of(answer, ("dest", "flights", "mean_delay"))
    if found is None:
        return problem
    by_dest = scratch.whole(lab, "timetable").groupby("dest")
    whole = by_dest.agg(flights=("flight", "size"), mean_delay=("arr_delay", "mean"))
    few = [dest for dest in found["dest"] if dest in whole.index and whole.loc[dest, "flights"] < FLIGHTS_MIN]
    if few:
        return wrong(
            f"{few[0]} has only {whole.loc[few[0], 'flights']} flights",
            f"HAVING count(*) >= {FLIGHTS_MIN} keeps the others.",
        )
    if len(found) != WORST:
        return wrong(f"you have {len(found)} rows, asked for are {WORST}: LIMIT 5 after ORDER BY")
    busy = whole[whole["flights"] >= FLIGHTS_MIN]
    worst = busy.sort_values("mean_delay", ascending=False).head(WORST)
    if set(found["dest"]) == set(busy.sort_values("mean_delay").head(WORST).index):
        return wrong("these are the five best: ORDER BY mean_delay DESC puts the worst first")
    if list(found["dest"]) != list(worst.index):
        if set(found["dest"]) == set(worst.index):
            return wrong("the right five, in another order: the worst first, ORDER BY mean_delay DESC")
        return wrong(
            f"{_first_missing(found['dest'], worst.index)} is missing; is it the arrival delay, arr_delay?"
        )
    if not all(map(close, found["flights"], worst["flights"])):
        return wrong(
            "the numbers of flights differ: count(*) counts cancelled flights too, count(arr_delay) does not"
        )
    if not all(rounded(*two, places=1) for two in zip(found["mean_delay"], worst["mean_delay"], strict=True)):
        return wrong("the right destinations with other delays: avg(arr_delay), without turning null into 0")
    return right(f"the worst is {worst.index[0]}, {worst['mean_delay'].iloc[0]:.0f} minutes late on average")


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Check the shares of cancelled flights in strong and in other wind."""
    found, problem = columns_of(answer, ("windy", "flights", "cancelled"))
    if found is None:
        return problem
    both = scratch.whole(lab, "timetable").merge(
        scratch.whole(lab, "weather"), on=["origin", "time_hour"], how="left", validate="many_to_one"
    )
    known = both[both["wind_speed"].notna()]
    groups = known.groupby(known["wind_speed"] > WINDY)
    truth = groups.agg(flights=("flight", "size"), cancelled=("dep_delay", lambda delay: delay.isna().mean()))
    if found["windy"].isna().any() or found["flights"].sum() == len(both):
        return wrong(
            "flights without a measured wind are in a group: leave them out with WHERE wind_speed IS NOT NULL"
        )
    if len(found) != 2 or set(found["windy"]) != {True, False}:
        return wrong(
            f"two rows are asked for, windy true and false; you have {len(found)}: GROUP BY wind_speed > 15"
        )
    mine = found.assign(windy=found["windy"].astype(bool)).set_index("windy")
    if any(
        isinstance(share, Decimal) and share.as_tuple().exponent in (0, -1) for share in mine["cancelled"]
    ):
        return wrong(
            "these shares have one digit after the point: 1.0 is a decimal number in SQL, and what is "
            "divided by it has no more digits",
            "1e0 is a number with as many digits as there are.",
        )
    if (mine["cancelled"].astype(float) == 0).all():
        return wrong("both shares are 0: whole numbers divided give a whole number; divide by 1e0 * count(*)")
    if (mine["cancelled"].astype(float) > 1).any():
        return wrong("a share is between 0 and 1; yours are counts, or percent")
    for windy in (True, False):
        if not close(mine.loc[windy, "flights"], truth.loc[windy, "flights"]):
            return wrong(
                f"with windy = {str(windy).lower()} you count {mine.loc[windy, 'flights']:,} flights, "
                f"there are {truth.loc[windy, 'flights']:,}",
                f"join on origin and time_hour; windy is wind_speed > {WINDY}.",
            )
        if not rounded(mine.loc[windy, "cancelled"], truth.loc[windy, "cancelled"], places=3):
            return wrong("the groups are right, the shares are not: cancelled flights have no dep_delay")
    return right(
        f"{truth.loc[True, 'cancelled']:.1%} in strong wind, {truth.loc[False, 'cancelled']:.1%} otherwise"
    )


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """Check the worst day of each origin."""
    found, problem = columns_of(answer, ("origin", "date", "mean_delay"))
    if found is None:
        return problem
    whole = scratch.whole(lab, "timetable")
    truth = _worst_days(whole, whole["date"])
    if len(found) != len(truth):
        return wrong(f"you have {len(found)} rows, one for each of the {len(truth)} airports is asked for")
    if set(found["origin"]) != set(truth.index):
        return wrong(f"the origins are {', '.join(truth.index)}")
    mine = found.set_index("origin")
    days = pd.to_datetime(mine["date"]).dt.date
    in_utc = _worst_days(whole, whole["time_hour"].dt.date)
    wrong_days = [origin for origin in truth.index if days[origin] != truth.loc[origin, "date"]]
    if wrong_days and all(days[origin] == in_utc.loc[origin, "date"] for origin in wrong_days):
        return wrong(
            "you took the day of time_hour, which is in UTC: an evening in New York is the next day there"
        )
    if wrong_days:
        origin = wrong_days[0]
        return wrong(
            f"{origin} had a worse day than {days[origin]}; are the means taken per origin and date?"
        )
    if not all(
        rounded(mine.loc[origin, "mean_delay"], truth.loc[origin, "mean_delay"], places=1)
        for origin in truth.index
    ):
        return wrong(
            "the days are right, their mean delays are not: mean_delay is avg(dep_delay) of that day"
        )
    return right(f"JFK's worst day was {truth.loc['JFK', 'date']:%d %B}")


def _worst_days(whole: pd.DataFrame, day: pd.Series[Any]) -> pd.DataFrame:
    means = (
        whole.groupby(["origin", day.rename("date")])["dep_delay"].mean().rename("mean_delay").reset_index()
    )
    return means.loc[means.groupby("origin")["mean_delay"].idxmax()].set_index("origin")


def _first_missing(found: Any, wanted: Any) -> Any:
    return next(one for one in wanted if one not in set(found))
