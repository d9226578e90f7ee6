"""Checkers of notebook 11, whose answers are the student's own.

They look at how events, spec, question and chart go together, and know no right answer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pandas as pd

from tarn.core.batch import RawBatch
from tarn.core.creation import columns_for, sampled
from tarn.core.decode import Decoder
from tarn.core.errors import InvalidSpecError
from tarn.core.spec import FieldSpec, IngestorBody, IngestorSpec, spec_of
from tarn.workshop.checks.frames import columns_of
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

EVENTS_MIN = 100
SHOWN_AS = "your spec"


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """Check events: enough of them, alike, with an id and a time. Remembers them for the other exercises."""
    problem = _events_problem(answer)
    if problem is not None:
        return problem
    identity, moment = _identity(answer), _moment(answer)
    if moment is None:
        almost = _moment(answer, with_offset=False)
        if almost is not None:
            return wrong(
                f"the times in {almost!r} do not say in which time zone they are",
                "datetime.now(UTC).isoformat() ends with +00:00; a text may also end with Z.",
            )
        return wrong(
            "no key has a time in each event", "as text in ISO 8601, such as 2026-03-02T08:15:00+00:00."
        )
    if identity is None:
        return wrong(
            "no key distinguishes the events: each has a value that is there twice, or missing",
            'number them: {"id": f"order-{number}", …}.',
        )
    return right(f"{len(answer):,} events; {identity!r} distinguishes them, {moment!r} says when")


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Check a spec by decoding the topic's messages with it, as ingest would."""
    if not isinstance(answer, Mapping):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for is a spec", 'spec_of("infer") returns one.'
        )
    try:
        spec = spec_of(dict(answer), file=SHOWN_AS)
    except InvalidSpecError as error:
        return wrong(f"ingest would refuse it: {error.message}")
    where = _where_problem(lab, spec)
    if where is not None:
        return where
    messages = _messages(lab)
    if not messages:
        return wrong("the topic has no events yet", "run the cells above from the top.")
    body = spec.spec
    fields = body.fields or columns_for(body, sampled(body, messages)).fields
    bad = _bad(body, fields, messages)
    if bad:
        reason, _ = bad.most_common(1)[0]
        return wrong(
            f"{sum(bad.values()):,} of {len(messages):,} events would be bad records, most often: {reason}",
            "change the column's type, or leave required and values out; or mend the events.",
        )
    keys = {key for message in messages for key in json.loads(message)}
    read = {field.path[0] for field in fields}
    unread = sorted(keys - read)
    if body.mapping.rest is None and len(unread) > len(keys) / 2:
        return wrong(
            f"most of what your events say goes nowhere: no column reads {', '.join(unread[:5])}",
            "a column reads the key of its own name; another one with from: or mapping.",
        )
    left = f"; unread: {', '.join(unread)}" if unread else ""
    return right(f"{len(messages):,} events become rows with {len(fields)} columns{left}")


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """Check that an answer sums something up, whatever was asked."""
    found, problem = columns_of(answer, ())
    if found is None:
        return problem
    events = lab.rows(lab.name("events"))
    if len(found.columns) < 2:
        return wrong(
            "one column alone answers nothing",
            "what is counted, and for what: SELECT item, count(*) … GROUP BY 1.",
        )
    if len(found) < 2:
        return wrong(
            "one row alone cannot be compared with anything",
            "GROUP BY makes one for each kind, hour or place.",
        )
    if len(found) >= events:
        return wrong(
            f"your answer has {len(found):,} rows for {events:,} events: it copies, and does not sum up",
            "GROUP BY, and count(*), sum(…), avg(…) or max(…).",
        )
    figures = [name for name in found.columns if pd.to_numeric(found[name], errors="coerce").notna().any()]
    if not figures:
        return wrong("no column has a number", "count(*) is one, and avg of a column of numbers another.")
    if all(found[name].nunique(dropna=False) == 1 for name in figures):
        return wrong(
            "the numbers are the same in every row: there is nothing to see", "ask for another grouping."
        )
    return right(f"{len(found)} rows, made of {events:,} events")


def exercise_4(lab: Lab, answer: Any) -> Verdict:
    """Check that a chart shows something and says what."""
    del lab
    if not all(hasattr(answer, name) for name in ("get_title", "get_xlabel", "get_ylabel", "has_data")):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for are the axes",
            "_, ax = plt.subplots() makes them; answer = ax.",
        )
    if not answer.has_data():
        return wrong("nothing is drawn in them yet", "ax.bar, ax.plot or ax.scatter.")
    title = next(
        (text for text in (answer.get_title(loc) for loc in ("left", "center", "right")) if text), ""
    )
    for what, text in (("title", title), ("xlabel", answer.get_xlabel()), ("ylabel", answer.get_ylabel())):
        if not text.strip():
            return wrong(f"the chart has no {what}", f'ax.set({what}="…") gives it one.')
    return right(f"it is called {title!r}")


def _events_problem(answer: Any) -> Verdict | None:
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for is a list",
            "list(…) makes one of a generator.",
        )
    if len(answer) < EVENTS_MIN:
        return wrong(f"these are {len(answer)} events, asked for are {EVENTS_MIN} at least")
    for number, event in enumerate(answer):
        if not isinstance(event, Mapping):
            return wrong(f"event {number} is of type {type(event).__name__}, and should be a dictionary")
        if set(event) != set(answer[0]):
            other = sorted(set(event) ^ set(answer[0]), key=str)
            return wrong(
                f"event {number} and the first one differ in {other[0]!r}", "a value that is missing is None."
            )
        try:
            json.dumps(event, allow_nan=False)
        except (TypeError, ValueError) as error:
            return wrong(
                f"event {number} cannot be written as JSON: {error}", "a time is sent as text: .isoformat()."
            )
    return None


def _identity(events: Sequence[Mapping[str, Any]]) -> str | None:
    """The first key whose values are all there and all different, and no numbers with fractions or times."""
    for key in events[0]:
        values = [event[key] for event in events]
        plain = all(isinstance(value, str | int) and not isinstance(value, bool) for value in values)
        if plain and len(set(values)) == len(values) and not all(_instant(value) for value in values):
            return key
    return None


def _moment(events: Sequence[Mapping[str, Any]], *, with_offset: bool = True) -> str | None:
    """The first key with a time in every event."""
    for key in events[0]:
        found = [_instant(event[key]) for event in events]
        if all(one is not None and (one.tzinfo is not None or not with_offset) for one in found):
            return key
    return None


def _instant(value: Any) -> datetime | None:
    # A day alone is no time. Ingest takes a space for the T, as Python's str() of a time has it.
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d[T ]\d\d:", value):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _where_problem(lab: Lab, spec: IngestorSpec) -> Verdict | None:
    table, topic = lab.name("events"), lab.topic("events")
    if spec.name != lab.ingestor("events"):
        return wrong(
            f"its name is {spec.name}, and should be {lab.ingestor('events')}", "spec_of puts it in."
        )
    if str(spec.spec.table) != table:
        return wrong(f"it fills {spec.spec.table}, and should fill {table}", "spec_of puts it in.")
    if tuple(spec.spec.source.kafka.names) != (topic,):
        return wrong(
            f"it reads {', '.join(spec.spec.source.kafka.names)}, and should read {topic}",
            "spec_of puts it in.",
        )
    if not spec.spec.trace:
        return wrong("it has trace: false, and the proof below needs the column _tarn")
    return None


def _messages(lab: Lab) -> list[bytes]:
    """The topic's messages that are JSON objects with the keys of the first one."""
    values = [value for _, value in lab.topics.read(lab.topic("events")) if isinstance(value, dict)]
    return [json.dumps(value).encode() for value in values if set(value) == set(values[0])]


def _bad(body: IngestorBody, fields: Sequence[FieldSpec], messages: Sequence[bytes]) -> Counter[str]:
    """Reasons of the bad records, each with their number."""
    decoder = Decoder(
        fields,
        source="events",
        trace=False,
        record_bytes_max=body.dead_letters.max_record_bytes,
        messages=body.source,
    )
    count = len(messages)
    batch = RawBatch(
        partitions=[0] * count,
        offsets=list(range(count)),
        times_ms=[0] * count,
        keys=[None] * count,
        values=list(messages),
        ranges=(),
    )
    return Counter(decoder.decode(batch).bad.values())
