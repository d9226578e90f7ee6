"""The watermark of a stream: the lowest of its partitions, idle ones aside, and never lower than before."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tarn.core.errors import CorruptStateError, InvalidSpecError
from tarn.core.spec import parse_spec
from tarn.core.table_state import TableState
from tarn.core.watermark import (
    EventTimeRule,
    PartitionTime,
    Watermark,
    advanced,
    as_text,
    complete_through,
    idle,
    latest_times,
    require_event_time,
)
from tests.support.lake import SPEC

RULE = EventTimeRule(column="at", late_us=5, idle_ms=1_000)
BOTH = frozenset({0, 1})


def after(
    latest: dict[int, int],
    before: Watermark | None = None,
    *,
    now_ms: int = 10_000,
    rule: EventTimeRule = RULE,
    partitions: frozenset[int] = BOTH,
) -> Watermark:
    return advanced(before, rule, partitions=partitions, latest=latest, now_ms=now_ms)


def test_it_is_the_lowest_latest_time_of_a_partition_less_the_lateness() -> None:
    assert after({0: 100, 1: 70}).at_us == 65


def test_a_partition_without_event_times_holds_it_back_until_it_is_idle() -> None:
    first = after({0: 100})
    assert first.at_us is None
    assert after({0: 120}, first, now_ms=11_000).at_us is None, "idle for exactly the time-out"
    assert after({0: 130}, first, now_ms=11_001).at_us == 125


def test_partitions_that_wait_for_the_first_event_time_are_idle_until_it_comes() -> None:
    begun = after({}, after({}), now_ms=12_000)
    assert idle(begun, RULE, now_ms=12_000), "commits without event times keep nobody awake"
    first = after({0: 100}, begun, now_ms=13_000)
    assert first.at_us is None
    assert after({0: 120}, first, now_ms=14_001).at_us == 115


def test_an_idle_partition_does_not_hold_it_back_and_comes_back() -> None:
    first = after({0: 100, 1: 70})
    later = after({0: 200}, first, now_ms=12_000)
    assert later.at_us == 195
    back = after({0: 210, 1: 80}, later, now_ms=12_500)
    assert back.at_us == 195, "a late partition does not take it back"
    assert after({0: 300, 1: 290}, back, now_ms=12_600).at_us == 285


def test_if_all_are_idle_it_stays() -> None:
    first = after({0: 100, 1: 70})
    assert after({}, first, now_ms=99_000).at_us == 65


def test_a_clock_that_goes_back_makes_nothing_idle() -> None:
    first = after({0: 100, 1: 70}, now_ms=50_000)
    second = after({0: 200}, first, now_ms=10_000)
    assert second.at_us == 65
    assert second.partitions[0] == PartitionTime(latest_us=200, active_ms=50_000)


def test_times_of_another_column_do_not_count() -> None:
    first = after({0: 100, 1: 70})
    other = EventTimeRule(column="sent", late_us=0, idle_ms=1_000)
    assert after({0: 3, 1: 2}, first, rule=other).at_us == 2


def test_it_never_goes_back_whatever_comes() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        mark, now_ms = None, 10_000
        for _ in range(30):
            now_ms += chance.randrange(-300, 900)
            latest = {p: chance.randrange(1_000) for p in range(3) if chance.random() < 0.5}
            found = after(latest, mark, now_ms=now_ms, partitions=frozenset({0, 1, 2}))
            if mark is not None and mark.at_us is not None:
                assert found.at_us is not None
                assert found.at_us >= mark.at_us
            known = [one.latest_us for one in found.partitions.values() if one.latest_us is not None]
            assert found.at_us is None or found.at_us <= max(known) - 5
            mark = Watermark.from_json(found.to_json())


@pytest.mark.parametrize(
    "mark",
    [
        Watermark(column="at"),
        Watermark(column="at", at_us=-5, partitions={3: PartitionTime(latest_us=None, active_ms=7)}),
    ],
)
def test_it_survives_json(mark: Watermark) -> None:
    assert Watermark.from_json(mark.to_json()) == mark


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"v":2,"column":"a","at-us":1,"partitions":{}}',
        '{"v":1,"column":"a","at-us":"x","partitions":{}}',
        '{"v":1,"column":"a","at-us":1,"partitions":{"0":[1]}}',
    ],
)
def test_what_is_no_watermark_is_refused(text: str) -> None:
    with pytest.raises(CorruptStateError, match="the watermark in the snapshot summary cannot be read"):
        Watermark.from_json(text)


def test_the_latest_time_of_each_partition_up_to_a_limit() -> None:
    times = pa.chunked_array(
        [pa.array([5, None, 9], pa.timestamp("us", "UTC")), pa.array([7, 3, 100], pa.timestamp("us", "UTC"))]
    )
    assert latest_times(times, pa.array([0, 1, 0, 2, 2, 1]), limit_us=50) == {0: 9, 2: 7}
    assert latest_times(times.slice(0, 0), pa.array([], pa.int32()), limit_us=50) == {}


# -- complete through --------------------------------------------------------------------------------------


def table(*transforms: str, kind: str = "timestamptz") -> TableState:
    fields = [
        {"name": f"f{n}", "source-id": 2, "field-id": 1_000 + n, "transform": transform}
        for n, transform in enumerate(transforms)
    ]
    metadata: dict[str, Any] = {
        "current-schema-id": 0,
        "schemas": [{"schema-id": 0, "fields": [{"id": 2, "name": "at", "type": kind, "required": False}]}],
        "default-spec-id": 1,
        "partition-specs": [{"spec-id": 0, "fields": []}, {"spec-id": 1, "fields": fields}],
    }
    return TableState(metadata)


@pytest.mark.parametrize(
    ("transforms", "expected"),
    [
        (("hour",), "2026-11-21T13:00:00Z"),
        (("day",), "2026-11-21T00:00:00Z"),
        (("month",), "2026-11-01T00:00:00Z"),
        (("year",), "2026-01-01T00:00:00Z"),
        (("year", "hour", "day"), "2026-11-21T13:00:00Z"),
        (("bucket[4]",), ""),
        ((), ""),
    ],
)
def test_complete_through_is_the_start_of_the_partition(transforms: tuple[str, ...], expected: str) -> None:
    at = datetime(2026, 11, 21, 13, 59, 59, 999_999, tzinfo=UTC)
    mark = Watermark(column="at", at_us=round(at.timestamp()) * 1_000_000 - 1)
    assert as_text(complete_through(table(*transforms), mark)) == expected
    assert complete_through(table(*transforms), Watermark(column="at")) is None
    assert complete_through(table(*transforms), Watermark(column="other", at_us=1)) is None


def test_before_the_epoch_it_is_floored_too() -> None:
    mark = Watermark(column="at", at_us=-1)
    assert as_text(complete_through(table("hour"), mark)) == "1969-12-31T23:00:00Z"
    assert as_text(complete_through(table("month"), mark)) == "1969-12-01T00:00:00Z"
    assert as_text(2**63 - 1) == "", "beyond the year 9999"


@pytest.mark.parametrize("transform", ["month", "year"])
def test_before_the_year_1_nothing_is_complete_and_no_commit_fails(transform: str) -> None:
    first = round(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    assert complete_through(table(transform), Watermark(column="at", at_us=first)) == first
    assert complete_through(table(transform), Watermark(column="at", at_us=first - 1)) is None


# -- the spec ----------------------------------------------------------------------------------------------


def spec_with(event_time: str) -> Any:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    return parse_spec(text + f"  eventTime: {event_time}\n", file="orders.yaml").spec.event_time


def test_the_defaults_of_the_spec() -> None:
    found = spec_with("{column: at}")
    assert (found.max_out_of_orderness_seconds, found.idle_timeout_seconds, found.max_ahead_seconds) == (
        0,
        60,
        3_600,
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{column: att}", "eventTime names column 'att', which schema.fields lacks \\(did you mean at"),
        ("{column: id}", "eventTime: column id is long; it must be a timestamp or timestamptz"),
        ("{column: at, idleTimeoutSeconds: 0}", "idleTimeoutSeconds"),
        ("{column: at, maxOutOfOrdernessSeconds: -1}", "maxOutOfOrdernessSeconds"),
        ("{column: at, lateness: 1}", "lateness"),
        ("{}", "column"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidSpecError, match=why):
        spec_with(text)


def test_the_table_must_have_the_column() -> None:
    require_event_time(table(), "at", table="t")
    with pytest.raises(InvalidSpecError, match="table t has no such column"):
        require_event_time(table(), "when", table="t")
    with pytest.raises(InvalidSpecError, match="is date; it must be a timestamp"):
        require_event_time(table(kind="date"), "at", table="t")
