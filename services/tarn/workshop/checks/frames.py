"""What checkers look at first when an answer should be a DataFrame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from tarn.workshop.verdict import Verdict, wrong

TOLERANCE = 1e-6


def columns_of(answer: Any, columns: Sequence[str]) -> tuple[pd.DataFrame, Verdict] | tuple[None, Verdict]:
    """Return the answer if it is a DataFrame with these columns and a row; else None and what is wrong."""
    if not isinstance(answer, pd.DataFrame):
        return None, wrong(
            f"answer is of type {type(answer).__name__}, asked for is a DataFrame",
            "lab.trino(…) returns one.",
        )
    missing = [name for name in columns if name not in answer.columns]
    if missing:
        return None, wrong(
            f"the column {missing[0]} is missing; yours are {', '.join(map(str, answer.columns))}",
            "a column gets its name by AS in SQL, and by alias in PySpark.",
        )
    if answer.empty:
        return None, wrong("the answer has no rows")
    return answer, wrong("")


def rounded(mine: Any, truth: Any, *, places: int) -> bool:
    """Return whether a number is another one, or that rounded to so many places or more."""
    if close(mine, truth):
        return True
    if pd.isna(mine) or pd.isna(truth):
        return False
    return bool(abs(float(mine) - float(truth)) <= 0.5 * 10**-places + 1e-9)


def close(mine: Any, truth: Any) -> bool:
    """Return whether two numbers are the same but for rounding; null is the same as null only."""
    if pd.isna(mine) or pd.isna(truth):
        return bool(pd.isna(mine) and pd.isna(truth))
    return math.isclose(float(mine), float(truth), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
