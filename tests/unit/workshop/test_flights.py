"""Flights without a replay."""

from __future__ import annotations

import pytest

from tarn.core.errors import InvalidError
from tarn.workshop.flights import events, reference


@pytest.mark.long
def test_the_events_of_a_day_are_in_order_and_of_that_day() -> None:
    found = events(days=1, start="2013-07-04")
    times = [one["event_time"] for one in found]
    assert len(found) > 1_500
    assert times == sorted(times)
    assert (times[0][:10], times[-1][:10]) == ("2013-07-04", "2013-07-04")
    assert {one["event"] for one in found} == {"scheduled", "departed", "arrived", "cancelled"}
    assert len({one["event_id"] for one in found}) == len(found)


@pytest.mark.long
def test_days_join_without_a_gap() -> None:
    both = [one["event_id"] for one in events(days=2, start="2013-12-30")]
    each = [one["event_id"] for day in ("2013-12-30", "2013-12-31") for one in events(days=1, start=day)]
    assert both == each


@pytest.mark.parametrize("start", ["July", "2014-01-01"])
def test_a_day_that_is_none_is_refused(start: str) -> None:
    with pytest.raises(InvalidError, match=start):
        events(days=1, start=start)


def test_what_flights_refer_to() -> None:
    assert set(reference("airports").columns) >= {"faa", "name", "lat", "lon"}
    with pytest.raises(InvalidError, match="choose one of airlines, airports, planes, weather"):
        reference("trains")
