"""The stream: which messages, in which order, with which bytes; the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from functools import cache

import pytest

from tarn.core.errors import InvalidSettingError
from tarn_demo.flights import dataset
from tarn_demo.flights.events import DUPLICATE_LAG_MS_MAX, LATE_MS_MAX, Kind, Message, NoiseRates, Stream

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROWS = 2_000


@cache
def _stream(noise: NoiseRates, seed: int = 1, rows: int = ROWS) -> Stream:
    flights = dataset.read_flights().slice(0, rows)
    return Stream(flights, dataset.read_reference("airports"), noise=noise, seed=seed)


def _all(stream: Stream) -> list[Message]:
    return list(stream.messages(0, len(stream), now=NOW))


def _event(message: Message) -> dict[str, object]:
    event = json.loads(message.value)
    assert isinstance(event, dict)
    return event


@pytest.mark.long
def test_each_flight_makes_the_events_that_its_row_tells() -> None:
    stream = _stream(NoiseRates())
    rows = dataset.read_flights().slice(0, ROWS)
    departed = ROWS - rows["dep_time"].null_count
    expected = {
        Kind.SCHEDULED: ROWS,
        Kind.CANCELLED: ROWS - departed,
        Kind.DEPARTED: departed,
        Kind.ARRIVED: ROWS - rows["arr_time"].null_count,
    }
    found = Counter(str(_event(m)["event"]) for m in _all(stream))
    assert found == {kind.name.lower(): n for kind, n in expected.items() if n}
    assert stream.by_kind == expected
    assert stream.totals.messages == len(stream) == sum(expected.values())


def test_the_events_of_the_first_flight() -> None:
    first = [_event(m) for m in _all(_stream(NoiseRates())) if m.key == b"2013-01-01T10:00:00Z/UA/1545"]
    common = {
        "produced_at": "2026-01-02T03:04:05.000000Z",
        "time_hour": "2013-01-01T10:00:00Z",
        "carrier": "UA",
        "flight": 1545,
    }
    flight = "2013-01-01T10:00:00Z/UA/1545"
    assert first == [
        {
            "event_id": f"{flight}/scheduled",
            "event": "scheduled",
            "event_time": "2013-01-01T08:15:00Z",
            **common,
            "date": "2013-01-01",
            "sched_dep_time": 515,
            "sched_arr_time": 819,
            "tailnum": "N14228",
            "origin": "EWR",
            "dest": "IAH",
            "distance": 1400,
        },
        {
            "event_id": f"{flight}/departed",
            "event": "departed",
            "event_time": "2013-01-01T10:17:00Z",
            **common,
            "dep_time": 517,
            "dep_delay": 2,
        },
        {
            "event_id": f"{flight}/arrived",
            "event": "arrived",
            "event_time": "2013-01-01T14:30:00Z",
            **common,
            "arr_time": 830,
            "arr_delay": 11,
            "air_time": 227,
        },
    ]


def test_a_diverted_flight_arrives_without_a_delay() -> None:
    diverted = [e for m in _all(_stream(NoiseRates())) if (e := _event(m)).get("arr_delay", 0) is None]
    assert diverted, "the first days hold some"
    assert all(e["air_time"] is None and e["arr_time"] is not None for e in diverted)


def test_events_come_in_the_order_in_which_they_happened() -> None:
    messages = _all(_stream(NoiseRates()))
    times = [str(_event(m)["event_time"]) for m in messages]
    assert times == sorted(times)
    assert [m.due_ms for m in messages] == sorted(m.due_ms for m in messages)


def test_ids_and_keys_are_unique() -> None:
    messages = _all(_stream(NoiseRates()))
    assert len({_event(m)["event_id"] for m in messages}) == len(messages)
    assert len({m.key for m in messages}) == ROWS


@pytest.mark.long
def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    noise = NoiseRates(duplicates=0.02, late=0.05, broken=0.01)
    flights, airports = dataset.read_flights().slice(0, ROWS), dataset.read_reference("airports")
    one, two, three = (Stream(flights, airports, noise=noise, seed=s) for s in (7, 7, 8))
    assert _all(one) == _all(two)
    assert _all(one) != _all(three)
    assert one.fingerprint == two.fingerprint
    assert len({one.fingerprint, three.fingerprint, _stream(NoiseRates()).fingerprint}) == 3


@pytest.mark.long
def test_a_range_is_the_same_part_of_the_whole() -> None:
    stream = _stream(NoiseRates(duplicates=0.02, late=0.05, broken=0.01))
    assert list(stream.messages(1_234, 2_345, now=NOW)) == _all(stream)[1_234:2_345]


def test_shares_are_met_exactly() -> None:
    stream = _stream(NoiseRates(duplicates=0.02, late=0.05, broken=0.01))
    totals, messages = stream.totals, _all(stream)
    assert totals.duplicates == round(totals.events * 0.02)
    assert totals.late == round(totals.events * 0.05)
    assert totals.broken == round(totals.events * 0.01)
    readable = [e for m in messages if (e := _readable(m)) is not None]
    assert len(messages) - len(readable) == totals.broken
    ids = Counter(str(e["event_id"]) for e in readable)
    assert sum(ids.values()) - len(ids) == totals.duplicates
    assert len(ids) == totals.events


@pytest.mark.long
def test_late_events_are_sent_hours_later_and_duplicates_after_the_first() -> None:
    late = _stream(NoiseRates(late=0.05))
    delays = [m.due_ms - _happened_ms(m) for m in _all(late)]
    assert sum(d > 0 for d in delays) == late.totals.late
    assert 3_600_000 <= min(d for d in delays if d > 0) <= max(delays) <= LATE_MS_MAX

    doubled = _all(_stream(NoiseRates(duplicates=0.05)))
    first: dict[str, int] = {}
    lags = [m.due_ms - first.setdefault(str(_event(m)["event_id"]), m.due_ms) for m in doubled]
    assert 0 < max(lags) <= DUPLICATE_LAG_MS_MAX


@pytest.mark.long
def test_every_kind_of_broken_message_is_made() -> None:
    messages = [m.value for m in _all(_stream(NoiseRates(broken=0.05))) if _readable(m) is None]
    assert b"" in messages
    assert any(v.startswith(b"\xff") for v in messages)
    texts = [v.decode("latin-1") for v in messages]
    assert any(t.startswith("[") for t in texts)
    assert any('"flight": "four"' in t for t in texts)
    assert any('"carrier": null' in t for t in texts)
    assert any('"event_time": "yesterday"' in t for t in texts)
    assert any('"event": "teleported"' in t for t in texts)
    assert any(t.startswith("{") and '"event_id"' not in t for t in texts)
    assert any(t.startswith("{") and not t.endswith("}") for t in texts)


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InvalidSettingError, match=r"the share of late is .*; give a number from 0 to 1"):
        NoiseRates(late=share)


def _readable(message: Message) -> dict[str, object] | None:
    """The event, or None if bronze could not take it: written here again, not taken from the code."""
    try:
        event = json.loads(message.value)
        datetime.fromisoformat(event["event_time"])
        known = event["event"] in ("scheduled", "departed", "arrived", "cancelled")
        whole = known and event["event_id"] and event["carrier"] and isinstance(event["flight"], int)
        return event if whole else None
    except (ValueError, KeyError, TypeError):
        return None


def _happened_ms(message: Message) -> int:
    return int(datetime.fromisoformat(str(_event(message)["event_time"])).timestamp() * 1000)
