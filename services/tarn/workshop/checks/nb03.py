"""Exercises of notebook 03: latency of a batch, freshness, a spec, the choice of an acknowledgement."""

from __future__ import annotations

from math import isclose, isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any

from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import IngestorBody, parse_document, spec_of
from tarn.workshop.freshness import of_rows
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

TOLERANCE = 1e-6
SHARE = 0.95
MESSAGE = b'{"sensor": "hall-3", "at": "2026-11-25T08:00:00Z", "celsius": 21.5, "ok": true}'
"""What the notebook shows as a message of a sensor."""
TYPES = {
    "sensor": ("string",),
    "at": ("timestamptz",),
    "celsius": ("double", "float"),
    "ok": ("boolean",),
}
WHY = {
    "at": "a time with a zone, as the Z in the message is one",
    "celsius": "a number with a fraction",
    "ok": "true or false",
    "sensor": "text",
}
WAYS = {
    "a": ("lake", "she reads the table on the next page, so the row has to be there"),
    "b": ("log", "many small writes, and nobody reads a single one: waiting for commits buys nothing"),
    "c": ("lake", "the report starts right after the answer, and has to find the row"),
    "d": ("log", "acknowledged in the log is safe, and nobody has to wait for a commit"),
}


def exercise_1(_: Lab, answer: Any) -> Verdict:
    """The latency of a batch between two wishes."""
    if isinstance(answer, bool) or not isinstance(answer, Real):
        return wrong(f"answer is of type {type(answer).__name__}, asked for is a number of seconds")
    seconds = float(answer)
    if not isfinite(seconds):
        return wrong(f"{seconds:g} is no number of seconds")
    if seconds >= 1:
        return wrong(
            f"with {seconds:g} s a row may wait {seconds:g} s for others alone, and the commit comes on top",
            "below one second, with some room for the commit itself.",
        )
    if seconds < 0.5:
        return wrong(
            f"with {seconds:g} s there may be {1 / max(seconds, 0.001):,.0f} commits a second",
            "two commits a second are one every half second.",
        )
    return right(
        f"At most {1 / seconds:.1f} commits a second, and {1 - seconds:.2g} s are left for the commit."
    )


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """A function that returns the 95th percentile of how long rows waited."""
    if not callable(answer):
        return wrong(f"{answer!r} is no function", "write answer = fresh_within, without parentheses.")
    rows = of_rows(lab.catalog.load_table(lab.name("orders")), lab.ingestor("orders"))
    seconds = rows["seconds"]
    given = answer(rows.copy())
    if isinstance(given, bool) or not isinstance(given, Real):
        return wrong(
            f"it returned something of type {type(given).__name__}, asked for is a number of seconds",
            'rows["seconds"] is a series; it has methods for this.',
        )
    true = float(seconds.quantile(0.95))
    others = {
        "the mean": seconds.mean(),
        "the median": seconds.median(),
        "the longest wait": seconds.max(),
        "what 95 of 100 rows have exceeded": seconds.quantile(0.05),
        "the right number in milliseconds": true * 1_000,
    }
    if _separates(float(given), seconds):
        return right(f"95 of 100 of your {len(rows):,} orders were readable within {true:.2f} s.")
    for what, value in others.items():
        if isclose(float(given), float(value), rel_tol=TOLERANCE):
            return wrong(f"it returned {what}", 'rows["seconds"].quantile(…) takes a share, such as 0.5.')
    return wrong(
        f"it returned {float(given):.3g}, and 95 of 100 orders were readable within {true:.3g} s",
        "sort the seconds: 95 of 100 lie at or below it.",
    )


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """A spec for messages of sensors."""
    if not isinstance(answer, str | dict):
        return wrong(f"{answer!r} is no spec", "take the text of section 1, and change it.")
    try:
        document = parse_document(answer, file="your spec") if isinstance(answer, str) else answer
        spec = spec_of(document, file="your spec")
    except InvalidSpecError as e:
        return wrong(e.message, "ingest would say the same; the message has the field and what is allowed.")
    body = spec.spec
    topic = f"workshop.{lab.student}.readings"
    if body.source.kafka.names != (topic,):
        return wrong(f"it reads {body.source.kafka}, not {topic}", 'lab.topic("readings") is its name.')
    if str(body.table) != f"{lab.namespace}.readings":
        return wrong(f"its table is {body.table}, not {lab.namespace}.readings")
    if not spec.name.startswith(f"ws-{lab.student}-"):
        return wrong(
            f"its name is {spec.name!r}; a notebook may declare ingestors that begin with ws-{lab.student}-",
            'lab.ingestor("readings") is a good name.',
        )
    fields = {field.name: field for field in body.fields or ()}
    if missing := sorted(TYPES.keys() - fields.keys()):
        return wrong(f"the column {missing[0]} is missing", "schema.fields has one line per column.")
    for name, types in TYPES.items():
        found = fields[name].type
        exact = name == "celsius" and found.startswith("decimal(") and not found.endswith(", 0)")
        if found not in types and not exact:
            return wrong(f"{name} is {fields[name].type}; it has to be {types[0]}: {WHY[name]}")
    for name in ("sensor", "at"):
        if not fields[name].required:
            return wrong(f"{name} is not required: a message without it would become a row", "required: true")
    if reason := _refusal(body):
        return wrong(
            f"the message above would be a bad record: {reason}",
            "what is required, or allowed as a value, has to be in each message.",
        )
    return right("Ingest would take it.")


def exercise_4(_: Lab, answer: Any) -> Verdict:
    """Which acknowledgement for whom."""
    given = dict(answer)
    for letter, (way, why) in WAYS.items():
        if letter not in given:
            return wrong(f"{letter} is missing", 'a dict, as in {"a": "lake", "b": "log", …}')
        if given[letter] not in ("lake", "log"):
            return wrong(f"{letter}: {given[letter]!r} is no acknowledgement", '"lake" or "log"')
        if given[letter] != way:
            return wrong(f"{letter}: {why}")
    return right("Who reads at once waits for the lake; who only has to be sure waits for the log.")


def _separates(given: float, seconds: Any) -> bool:
    """Whether 95 of 100 lie at or below a number, and it is the least such but for a row.

    There are several ways to compute a percentile, which differ by where they look between two rows.
    """
    row = 1 / len(seconds)
    slack = TOLERANCE * max(abs(given), 1.0)
    at_or_below = float((seconds <= given + slack).mean())
    below = float((seconds < given - slack).mean())
    return at_or_below >= SHARE - row - TOLERANCE and below <= SHARE + row + TOLERANCE


def _refusal(body: IngestorBody) -> str:
    """Why the message of a sensor would be a bad record; empty if it is a row."""
    decoder = Decoder(
        body.fields or (),
        source="readings",
        trace=False,
        record_bytes_max=body.dead_letters.max_record_bytes,
        messages=body.source,
    )
    batch = RawBatch(partitions=[0], offsets=[0], times_ms=[0], keys=[None], values=[MESSAGE], ranges=())
    return next(iter(decoder.decode(batch).bad.values()), "")
