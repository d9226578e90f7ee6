"""Exercises of notebook 04: the audit, the order of two writes, the key of a repeat."""

from __future__ import annotations

import re
from types import CodeType
from typing import TYPE_CHECKING, Any

import pandas as pd

from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

# What is wrong, the offsets that are there by partition, the ends, and (missing, too many).
CASES: tuple[tuple[str, dict[int, list[int]], dict[int, int], tuple[int, int]], ...] = (
    ("everything is there once", {0: [0, 1, 2], 1: [0, 1]}, {0: 3, 1: 2}, (0, 0)),
    ("an offset in the middle is missing", {0: [0, 2], 1: [0, 1]}, {0: 3, 1: 2}, (1, 0)),
    ("the last one is missing", {0: [0, 1], 1: [0, 1]}, {0: 3, 1: 2}, (1, 0)),
    ("a whole partition is missing", {0: [0, 1, 2]}, {0: 3, 1: 2}, (2, 0)),
    ("a row is there three times", {0: [0, 1, 1, 1, 2], 1: [0, 1]}, {0: 3, 1: 2}, (0, 2)),
    ("one is missing and one is there twice", {0: [0, 0, 2], 1: [0, 1]}, {0: 3, 1: 2}, (1, 1)),
    ("the table is empty", {}, {0: 3, 1: 2}, (5, 0)),
)


BATCHES = 6
KEY = re.compile(r"[\x21-\x7e]{1,200}")
UNSTEADY = frozenset(
    (
        "hash",
        "id",
        "time",
        "time_ns",
        "monotonic",
        "now",
        "utcnow",
        "today",
        "uuid1",
        "uuid4",
        "random",
        "getpid",
    )
)
"""Names of functions whose result is another one at another time or in another process."""


def payments(size: float) -> int:
    """How many payments the notebook makes."""
    return max(240, round(2400 * size))


def exercise_1(_: Lab, answer: Any) -> Verdict:
    """A function that counts what is missing and what is too many."""
    if not callable(answer):
        return wrong(f"{answer!r} is no function", "write answer = audit, without parentheses.")
    for words, there, ends, wanted in CASES:
        places = [(p, o) for p, offsets in there.items() for o in offsets]
        rows = pd.DataFrame(places, columns=["partition", "offset"]).astype("int64")
        given = answer(rows, dict(ends))
        if not isinstance(given, tuple | list) or len(given) != 2:
            return wrong(f"it returned {given!r}", "return a pair: missing, too_many")
        if tuple(int(one) for one in given) != wanted:
            return wrong(
                f"in a case where {words} it says {tuple(given)} instead of {wanted}",
                "a missing message and a doubled one must not make up for each other: compare the places, "
                "not the numbers of rows.",
            )
    return right(f"{len(CASES)} cases, also those in which a lost and a doubled row cancel out.")


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Position before the commit: what is lost."""
    missing, too_many = answer
    if missing > 0 and too_many == 0:
        if missing != payments(lab.size) // BATCHES:
            return wrong(f"{missing} is not the size of the batch", "use BATCH.")
        return right("The next writer begins after a batch that was never committed: at most once.")
    if too_many > 0 and missing == 0:
        return wrong(
            "that is what happened when the position was stored after the commit",
            "the next writer begins where the file says: which messages does it never read?",
        )
    return wrong(f"{tuple(answer)} is not it", "the position says that the batch is in; the table lacks it.")


def exercise_3(_: Lab, answer: Any) -> Verdict:
    """The key of a sale."""
    if not callable(answer):
        return wrong(f"{answer!r} is no function", "write answer = key_of, without parentheses.")
    sale = {"till": 3, "number": 17, "cents": 250}
    key = answer(dict(sale))
    if not isinstance(key, str) or KEY.fullmatch(key) is None:
        return wrong(f"{key!r} cannot be a key", "a key is text: 1 to 200 visible characters of ASCII.")
    if answer(dict(sale)) != key:
        return wrong(
            "a repeat of the same sale has another key, so it would be a new sale",
            "make the key of what the sale is, not of chance or of the time.",
        )
    if names := _unsteady(answer):
        return wrong(
            f"it uses {names[0]}: after the till was switched on again, the same sale would have another key",
            "make the key of what the sale is; Python's hash of a text is another one in each process.",
        )
    for changed, words in (
        ({"number": 18}, "the next sale of the same till for the same amount"),
        ({"till": 4}, "a sale of another till with the same number"),
    ):
        if answer({**sale, **changed}) == key:
            return wrong(
                f"{words} has the same key, and would be taken for a repeat", "what makes a sale this one?"
            )
    if answer({"till": 1, "number": 11, "cents": 1}) == answer({"till": 11, "number": 1, "cents": 1}):
        return wrong(
            "sale 11 of till 1 and sale 1 of till 11 have the same key",
            "put something between the two numbers.",
        )
    return right("The same sale has the same key however often it is sent, and no other sale has it.")


def _unsteady(answer: Any) -> list[str]:
    """Names in a function of what is another one at another time or in another process, sorted."""
    found: set[str] = set()
    codes = [code] if isinstance(code := getattr(answer, "__code__", None), CodeType) else []
    while codes:
        code = codes.pop()
        found |= UNSTEADY.intersection(code.co_names)
        codes += [one for one in code.co_consts if isinstance(one, CodeType)]
    return sorted(found)
