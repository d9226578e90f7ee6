"""Windows equal what pandas makes of the same messages: late, doubled, shuffled, and from stored states."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import orjson
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.core.errors import CorruptStateError, InvalidSettingError
from tarn_demo.flights import dataset
from tarn_demo.flights.data_files import folder
from tarn_demo.flights.events import PARTITIONS, NoiseRates, Stream
from tarn_demo.flights.events import TOPIC as PLAYED
from tarn_demo.flights.producer import partition_of
from tarn_demo.stream import partials, topics
from tarn_demo.stream.alerts import Limits
from tarn_demo.stream.merge import Complete, Merge
from tarn_demo.stream.names import read_names
from tarn_demo.stream.rows import Rows
from tarn_demo.stream.steps import MergeStep, Outgoing, Step, WindowsStep, read_state, state_message
from tarn_demo.stream.view import View
from tarn_demo.stream.windows import PartitionWindows, Rules
from tests.support import windows_oracle as oracle
from tests.support.turns import one_after_the_other

LIMITS = Limits(delay_minutes=30, departures=2, cancelled=1)
LIMITS_OF_ORACLE = {"delay": 30, "departures": 2, "cancelled": 1}
IDENTITY = "a1b2"
T0 = datetime(2013, 1, 1, 12, tzinfo=UTC)


# -- the service's steps without Kafka -----------------------------------------------------------------------


def steps(rules: Rules, partitions: int) -> tuple[dict[int, WindowsStep], MergeStep]:
    windows = {p: WindowsStep(IDENTITY, p, PartitionWindows(rules)) for p in range(partitions)}
    merge = Merge(rules, LIMITS, partitions)
    return windows, MergeStep(IDENTITY, merge, Rows(rules=rules, names={"EWR": "Newark Liberty Intl"}))


def restored(rules: Rules, partitions: int, step: Step) -> Step:
    """The step as another process has it, from its stored state."""
    state = read_state(state_message(IDENTITY, step), IDENTITY)
    assert state is not None
    if isinstance(step, WindowsStep):
        return WindowsStep(IDENTITY, step.partition, PartitionWindows.from_data(rules, state))
    merge = Merge.from_data(rules, LIMITS, partitions, state)
    return MergeStep(IDENTITY, merge, Rows(rules=rules, names={"EWR": "Newark Liberty Intl"}))


def outgoing(log: oracle.Log, rules: Rules, order: random.Random | None = None) -> list[Outgoing]:
    """What is sent for a log: partitions in turn, or in any order; then every step from a stored state on."""
    windows, merge = steps(rules, len(log))
    waiting = {p: list(values) for p, values in log.items() if values}
    sent: list[Outgoing] = []
    parts = 0
    while waiting:
        partition = order.choice(sorted(waiting)) if order else min(waiting)
        values = waiting[partition]
        step = windows[partition]
        for part in step.take(step.next_offset, values.pop(0)):
            sent += merge.take(parts, part.value)
            parts += 1
        if not values:
            del waiting[partition]
        if order and order.random() < 0.02:
            windows[partition] = restored(rules, len(log), step)  # type: ignore[assignment]
            merge = restored(rules, len(log), merge)  # type: ignore[assignment]
    return sent


def table(sent: Sequence[Outgoing]) -> pd.DataFrame:
    """The rows of flight-windows, by the columns of the oracle."""
    rows = [json.loads(one.value) for one in sent if one.topic == topics.WINDOWS]
    found = pd.DataFrame(rows, columns=[*oracle.KEY, "window_id", "window_end", *oracle.MEASURES])
    found["window_start"] = pd.to_datetime(found["window_start"], utc=True)
    return found


def alert_ids(sent: Sequence[Outgoing]) -> list[str]:
    return [json.loads(one.value)["alert_id"] for one in sent if one.topic == topics.ALERTS]


def rules_of(cut: oracle.Cut) -> Rules:
    return Rules.of(window_s=cut.window_s, hop_s=cut.hop_s, lateness_s=cut.lateness_s)


@cache
def flights(rows: int = 2_500, late: float = 0.1, duplicates: float = 0.1) -> dict[int, list[bytes]]:
    """The first days of the demo's stream, noisier than usual, by partition."""
    noise = NoiseRates(duplicates=duplicates, late=late, broken=0.02)
    stream = Stream(
        dataset.read_flights().slice(0, rows), dataset.read_reference("airports"), noise=noise, seed=5
    )
    log: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    for message in stream.messages(0, len(stream), now=datetime(2026, 1, 1, tzinfo=UTC)):
        log[partition_of(message.key, PARTITIONS)].append(message.value)
    return log


CUTS = [
    oracle.Cut(window_s=10_800, hop_s=3_600, lateness_s=3_600),
    oracle.Cut(window_s=900, hop_s=900, lateness_s=0),
    oracle.Cut(window_s=7_200, hop_s=1_800, lateness_s=36_000),
]


TURN_OF = one_after_the_other(CUTS, "windows of one of three lengths differ from the oracle's", times=2)


@pytest.mark.long
@pytest.mark.parametrize("cut", [pytest.param(cut, id=str(cut), marks=TURN_OF[cut]) for cut in CUTS])
def test_the_windows_of_the_demos_stream_are_those_of_the_oracle(cut: oracle.Cut) -> None:
    sent = outgoing(flights(), rules_of(cut))
    wanted = oracle.expected(flights(), cut)
    assert len(wanted.rows) > 1_000
    assert oracle.differences(table(sent), wanted.rows) == []
    found = alert_ids(sent)
    assert len(found) == len(set(found)) > 5
    assert set(found) == oracle.alerts(wanted.rows, cut, **LIMITS_OF_ORACLE)


@pytest.mark.long
def test_what_does_not_count_is_counted_by_its_reason() -> None:
    cut = CUTS[0]
    windows, _ = steps(rules_of(cut), PARTITIONS)
    for partition, values in flights().items():
        for offset, value in enumerate(values):
            list(windows[partition].take(offset, value))
    counters = [step.windows.counters for step in windows.values()]
    wanted = oracle.expected(flights(), cut)
    assert sum(one.late for one in counters) == wanted.late > 100
    assert sum(one.duplicates for one in counters) == wanted.duplicates > 100
    assert sum(one.refused for one in counters) == wanted.refused > 100


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_shuffled_messages_and_stored_states_give_the_windows_of_the_oracle(seed: int) -> None:
    """Each message up to 200 places away, partitions in any order, states stored and loaded meanwhile."""
    rng, cut = random.Random(seed), CUTS[0]
    log = {p: shuffled(values, rng, 200) for p, values in flights(1_200).items()}
    assert log != flights(1_200)
    sent = outgoing(log, rules_of(cut), order=rng)
    wanted = oracle.expected(log, cut)
    assert len(wanted.rows) > 200
    assert oracle.differences(table(sent), wanted.rows) == []
    assert set(alert_ids(sent)) == oracle.alerts(wanted.rows, cut, **LIMITS_OF_ORACLE)


def shuffled(values: Sequence[bytes], rng: random.Random, distance: int) -> list[bytes]:
    keyed = sorted(enumerate(values), key=lambda one: one[0] + rng.random() * distance)
    return [value for _, value in keyed]


@pytest.mark.long
def test_windows_are_sent_in_order_and_each_once() -> None:
    sent = [one for one in outgoing(flights(), rules_of(CUTS[0])) if one.topic == topics.WINDOWS]
    starts = [json.loads(one.value)["window_start"] for one in sent]
    assert starts == sorted(starts)
    assert len({one.key for one in sent}) == len(sent)


# -- drawn messages ------------------------------------------------------------------------------------------


def event(flight: int, kind: str, minute: int, *, route: str = "EWR-ATL", delay: int | None = 0) -> bytes:
    """An event of a flight that is scheduled at noon, at a minute after noon."""
    about: dict[str, Any] = {
        "event_id": f"{flight}/{kind}",
        "event": kind,
        "event_time": f"{T0 + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}",
        "time_hour": f"{T0:%Y-%m-%dT%H:%M:%SZ}",
        "carrier": "UA",
        "flight": flight,
    }
    origin, _, dest = route.partition("-")
    more = {
        "scheduled": {"origin": origin, "dest": dest},
        "departed": {"dep_delay": delay},
        "arrived": {"arr_delay": delay},
        "cancelled": {},
    }
    return json.dumps(about | more[kind]).encode()


@st.composite
def logs(draw: st.DrawFn) -> dict[int, list[bytes]]:
    """Two partitions of events of a few flights on three routes, in any order, some of them twice."""
    log: dict[int, list[bytes]] = {0: [], 1: []}
    for flight in range(draw(st.integers(1, 8))):
        route = draw(st.sampled_from(["EWR-ATL", "EWR-BOS", "JFK-ATL"]))
        kinds = draw(st.lists(st.sampled_from(oracle.KINDS), max_size=6))
        for kind in kinds:
            delay = draw(st.one_of(st.none(), st.integers(-30, 300)))
            minute = draw(st.integers(-120, 4_500))
            log[flight % 2].append(event(flight, kind, minute, route=route, delay=delay))
    return {p: draw(st.permutations(values)) for p, values in log.items()}


@pytest.mark.long
@given(
    log=logs(),
    cut=st.sampled_from(
        [oracle.Cut(window_s=3_600, hop_s=h, lateness_s=s) for h in (1_200, 3_600) for s in (0, 9_000)]
    ),
    seed=st.integers(0, 999),
)
@settings(max_examples=12)
def test_any_messages_in_any_order_give_the_windows_of_the_oracle(
    log: dict[int, list[bytes]], cut: oracle.Cut, seed: int
) -> None:
    sent = outgoing(log, rules_of(cut), random.Random(seed))
    wanted = oracle.expected(log, cut)
    assert oracle.differences(table(sent), wanted.rows) == []
    assert set(alert_ids(sent)) == oracle.alerts(wanted.rows, cut, **LIMITS_OF_ORACLE)


@pytest.mark.long
@given(cut=st.integers(0, 400), again=st.integers(0, 100))
@settings(max_examples=20)
def test_a_process_that_begins_at_an_older_state_repeats_the_same_parts(cut: int, again: int) -> None:
    """Killed after `cut` messages, with a state that is `again` messages old: it repeats what was sent."""
    rules, values = rules_of(CUTS[0]), flights(1_200)[0][:600]
    step, _ = steps(rules, 1)[0][0], None
    whole: list[Outgoing] = []
    state: Step | None = None
    for offset, value in enumerate(values):
        if offset == max(0, cut - again):
            state = restored(rules, 1, step)
        whole += step.take(offset, value)
    assert state is not None
    second = [part for o in range(state.next_offset, len(values)) for part in state.take(o, values[o])]
    assert second == [part for part in whole if part in second]
    assert second == whole[len(whole) - len(second) :]
    assert state.to_data() == step.to_data()


@pytest.mark.long
def test_parts_that_come_again_change_nothing() -> None:
    rules = rules_of(CUTS[0])
    parts = list(parts_of(rules, flights(1_200)))
    _, once = steps(rules, PARTITIONS)
    _, twice = steps(rules, PARTITIONS)
    wanted = [row for n, part in enumerate(parts) for row in once.take(n, part)]
    repeated = [
        part for n in range(0, len(parts), 40) for part in [*parts[max(0, n - 60) : n], *parts[n : n + 40]]
    ]
    assert len(repeated) > 1.5 * len(parts)
    assert [row for n, part in enumerate(repeated) for row in twice.take(n, part)] == wanted
    assert len(wanted) > 100


def parts_of(rules: Rules, log: oracle.Log) -> Iterator[bytes]:
    """The parts of all partitions in the order in which their windows close."""
    windows, _ = steps(rules, len(log))
    found = [
        (json.loads(part.value)["start"], partition, part.value)
        for partition, values in log.items()
        for offset, value in enumerate(values)
        for part in windows[partition].take(offset, value)
    ]
    yield from (value for _, _, value in sorted(found))


@pytest.mark.long
def test_a_missing_part_makes_no_wrong_window() -> None:
    """Nothing is sent for windows of which a part was lost; what is sent is right."""
    rules, log = rules_of(CUTS[0]), flights(1_200)
    parts = list(parts_of(rules, log))
    lost = next(n for n, part in enumerate(parts) if n > 60 and json.loads(part)["routes"])
    _, merge = steps(rules, PARTITIONS)
    kept = [*parts[:lost], *parts[lost + 1 :]]
    sent = [row for n, part in enumerate(kept) for row in merge.take(n, part)]
    wanted = oracle.expected(log, CUTS[0]).rows
    found = table(sent)
    assert merge.merge.missing == 1
    gone = pd.to_datetime(json.loads(parts[lost])["start"], unit="ms", utc=True)
    assert gone not in set(found["window_start"])
    assert (wanted["window_start"] == gone).any()
    assert oracle.differences(found, wanted[wanted["window_start"].isin(found["window_start"])]) == []
    assert found["window_start"].max() == wanted["window_start"].max()


@pytest.mark.long
def test_a_merge_that_begins_in_the_middle_sends_whole_windows_only() -> None:
    rules, log = rules_of(CUTS[0]), flights(1_200)
    parts = list(parts_of(rules, log))
    _, merge = steps(rules, PARTITIONS)
    sent = [row for n, part in enumerate(parts[91:]) for row in merge.take(n, part)]
    found, wanted = table(sent), oracle.expected(log, CUTS[0]).rows
    assert 0 < len(found) < len(wanted)
    assert oracle.differences(found, wanted[wanted["window_start"] >= found["window_start"].min()]) == []


def whole(log: oracle.Log, lost: Mapping[int, tuple[int, int]]) -> list[Outgoing]:
    """What is sent if the messages of a partition from one offset to another are gone."""
    windows, merge = steps(rules_of(CUTS[0]), len(log))
    sent: list[Outgoing] = []
    parts = 0
    for partition, values in log.items():
        first, end = lost.get(partition, (0, 0))
        for offset, value in enumerate(values):
            if first <= offset < end:
                continue
            if offset == end > 0:
                windows[partition] = restored(rules_of(CUTS[0]), len(log), windows[partition])  # type: ignore[assignment]
                windows[partition].start_at(offset)
            for part in windows[partition].take(offset, value):
                sent += merge.take(parts, part.value)
                parts += 1
    return sent


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 500], ids=["of the beginning", "of the middle"])
def test_messages_that_are_gone_make_no_wrong_window(first: int) -> None:
    """Windows that may lack them are not sent; the others are, with all alerts but for the first window."""
    log = flights(7_000)
    wanted = oracle.expected(log, CUTS[0]).rows
    found = table(whole(log, {1: (first, first + 900), 2: (first, first + 300)}))
    later = wanted[wanted["window_start"] > wanted["window_start"].max() - pd.Timedelta(hours=24)]
    assert len(later) > 300
    assert set(later["window_start"]) <= set(found["window_start"])
    there = wanted["window_start"].isin(found["window_start"])
    assert oracle.differences(found, wanted[there]) == []
    assert not there.all()


def test_a_window_that_lacks_messages_is_not_shown_as_one_that_has_no_flights() -> None:
    windows = one_partition(event(1, "scheduled", 0))
    windows.lose_until(5)
    windows.add(5, event(1, "departed", 5))
    message = partials.running_message(IDENTITY, 0, rules_of(CUTS[0]), windows)
    said = partials.read(message, IDENTITY)
    assert isinstance(said, partials.Running)
    assert said.windows == {}


# -- single rules --------------------------------------------------------------------------------------------


def one_partition(
    *values: bytes | None, window_s: int = 3_600, hop_s: int = 3_600, lateness_s: int = 600
) -> PartitionWindows:
    windows = PartitionWindows(Rules.of(window_s=window_s, hop_s=hop_s, lateness_s=lateness_s))
    for offset, value in enumerate(values):
        windows.add(offset, value)
    return windows


def noon_sums(windows: PartitionWindows) -> tuple[int, ...]:
    return tuple(windows.window(int(T0.timestamp() * 1000)).get(("EWR", "ATL"), ()))


def test_an_event_exactly_as_late_as_allowed_counts_and_a_second_more_does_not() -> None:
    clock = event(2, "scheduled", 30)
    on_time = one_partition(event(1, "scheduled", 0), clock, event(1, "departed", 20, delay=20))
    assert (noon_sums(on_time), on_time.counters.late) == ((1, 1, 20, 0, 0, 0), 0)
    later = event(1, "departed", 20, delay=20).replace(b":20:00Z", b":19:59Z")
    late = one_partition(event(1, "scheduled", 0), clock, later)
    assert (noon_sums(late), late.counters.late) == ((), 1)


def test_a_departure_waits_for_the_schedule_of_its_flight() -> None:
    windows = one_partition(event(1, "departed", 20, delay=5))
    assert (noon_sums(windows), windows.counters.counted) == ((), 0)
    windows.add(1, event(1, "scheduled", 0))
    assert (noon_sums(windows), windows.counters.counted) == ((1, 1, 5, 0, 0, 0), 1)


def test_it_is_late_if_the_schedule_is() -> None:
    windows = one_partition(event(1, "departed", 20), event(2, "scheduled", 31), event(1, "scheduled", 0))
    assert (noon_sums(windows), windows.counters.late) == ((), 1)


def test_a_flight_that_leaves_and_lands_in_one_window_is_one_flight() -> None:
    windows = one_partition(
        event(1, "scheduled", 0), event(1, "departed", 5, delay=5), event(1, "arrived", 50, delay=-10)
    )
    assert noon_sums(windows) == (1, 1, 5, 1, -10, 0)


def test_an_unknown_delay_is_no_delay_of_zero_minutes() -> None:
    windows = one_partition(event(1, "scheduled", 0), event(1, "arrived", 50, delay=None))
    assert noon_sums(windows) == (1, 0, 0, 0, 0, 0)
    (row,) = windows.window(int(T0.timestamp() * 1000)).values()
    assert (row.mean_arrival_delay, row.mean_departure_delay) == (None, None)


def test_a_window_closes_when_the_watermark_is_the_lateness_past_its_end() -> None:
    windows = one_partition(event(1, "scheduled", 0), event(1, "departed", 5, delay=5))
    windows.add(2, event(2, "scheduled", 11))
    almost = event(3, "scheduled", 70).replace(b"13:10:00Z", b"13:09:59Z")
    assert windows.add(3, almost) == []
    (closed,) = windows.add(4, event(4, "scheduled", 70))
    assert closed.start_ms == int(T0.timestamp() * 1000)
    assert closed.routes == {("EWR", "ATL"): (1, 1, 5, 0, 0, 0)}
    assert noon_sums(windows) == ()


def test_after_a_long_pause_one_part_says_that_all_empty_windows_are_closed() -> None:
    windows = one_partition(event(1, "scheduled", 0), event(1, "departed", 5))
    closed = windows.add(2, event(2, "scheduled", 60 * 24))
    first_ms = closed[0].start_ms
    assert [(len(one.routes), one.previous_ms) for one in closed] == [
        (1, first_ms - 2 * 3_600_000),
        (0, first_ms),
    ]
    assert closed[1].start_ms == closed[0].start_ms + 22 * 3_600_000


def test_the_first_event_of_a_partition_closes_the_windows_before_it() -> None:
    """Else a partition with one event would hold back the windows of all."""
    windows = PartitionWindows(rules_of(oracle.Cut(window_s=3_600, hop_s=3_600, lateness_s=3_600)))
    (closed,) = windows.add(0, event(1, "scheduled", 0))
    assert (closed.start_ms, closed.previous_ms, closed.routes) == (
        int(T0.timestamp() * 1000) - 7_200_000,
        None,
        {},
    )
    assert windows.add(1, event(2, "scheduled", 59)) == []


def test_a_flight_is_forgotten_after_two_days_and_its_events_are_late() -> None:
    windows = one_partition(event(1, "scheduled", 0), event(2, "departed", 0))
    assert len(windows.to_data()["flights"]) == 2
    windows.add(2, event(3, "scheduled", 48 * 60 + 1))
    assert len(windows.to_data()["flights"]) == 0
    assert (windows.counters.late, windows.counters.unscheduled) == (1, 1)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xff",
        b"[]",
        b"{}",
        event(1, "departed", 0).replace(b'"departed"', b'"teleported"', 1).replace(b'"departed"', b"7"),
        event(1, "departed", 0).replace(b'"flight": 1', b'"flight": true'),
        event(1, "departed", 0).replace(b'"flight": 1', b'"flight": 1.5'),
        event(1, "departed", 0).replace(b'"UA"', b"null"),
        event(1, "departed", 0).replace(b'"dep_delay": 0', b'"dep_delay": "0"'),
        event(1, "departed", 0).replace(b"T12:00:00Z", b"T12:00:00", 1),
        event(1, "departed", 0).replace(b"2013-01-01T12:00:00Z", b"yesterday", 1),
        event(1, "scheduled", 0).replace(b'"EWR"', b"null"),
        event(1, "scheduled", 0).replace(b'"event_id": ', b'"id": '),
        event(1, "departed", 72 * 60 + 1),
        event(1, "departed", -72 * 60 - 1),
        event(1, "departed", 0).replace(b"2013-01-01", b"9999-12-31"),
        event(1, "departed", 0).replace(b"2013-01-01", b"0001-01-01"),
        event(1, "scheduled", 0, route=f"{'E' * 17}-ATL"),
        event(1, "departed", 0).replace(b'"UA"', b'"UAUAUAUAUAUAUAUAUA"'),
        event(1, "departed", 0).replace(b'"UA"', b'""'),
    ],
)
def test_a_message_that_is_no_event_is_refused_and_moves_nothing(value: bytes | None) -> None:
    windows = one_partition(value)
    assert (windows.counters.refused, windows.watermark_ms, windows.next_offset) == (1, None, 1)


@pytest.mark.parametrize("year", [b"1900", b"2199"])
def test_any_event_that_is_taken_can_be_told(year: bytes) -> None:
    """Else one message would end the service again and again: its window has a start and an end."""
    rules = Rules.of(window_s=86_400, hop_s=86_400, lateness_s=43_200)
    step, merge = steps(rules, 1)
    days = [f"{year.decode()}-{day}".encode() for day in ("01-01", "01-05", "12-28", "12-31")]
    values = [
        event(n, kind, 0).replace(b"2013-01-01", day)
        for n, day in enumerate(days)
        for kind in ("scheduled", "departed")
    ]
    parts = [part for offset, value in enumerate(values) for part in step[0].take(offset, value)]
    sent = [row for n, part in enumerate(parts) for row in merge.take(n, part.value)]
    assert len(table(sent)) == 3
    view = View(rules, 1, {})
    said = partials.read(partials.running_message(IDENTITY, 0, rules, step[0].windows), IDENTITY)
    assert said is not None
    view.heard(said)
    assert view.windows()["routes"][0]["windowEnd"] > "1900"


def test_an_alert_is_sent_when_a_route_passes_the_limit_and_again_after_it_was_below() -> None:
    rules = Rules.of(window_s=3_600, hop_s=3_600, lateness_s=0)
    merge = Merge(rules, LIMITS, 1)
    beyond = {("EWR", "ATL"): one_partition_sums(3)}
    below = {("EWR", "ATL"): one_partition_sums(0)}
    found: list[Complete] = []
    before = None
    for hour, routes in enumerate([below, beyond, beyond, below, beyond]):
        found += merge.add(
            partials.Part(partition=0, start_ms=hour * 3_600_000, previous_ms=before, routes=routes)
        )
        before = hour * 3_600_000
    assert [[a.kind.value for a in one.alerts] for one in found] == [
        [],
        ["cancellations"],
        [],
        [],
        ["cancellations"],
    ]


def one_partition_sums(cancelled: int) -> Any:
    from tarn_demo.stream.windows import Sums

    return Sums(flights=5, cancelled=cancelled)


def test_a_state_of_another_identity_is_none_and_a_broken_one_is_reported() -> None:
    step = steps(rules_of(CUTS[0]), 1)[0][0]
    assert read_state(None, IDENTITY) is None
    assert read_state(state_message("other", step), IDENTITY) is None
    for broken in (b"", b"x", state_message(IDENTITY, step)[:-9]):
        with pytest.raises(CorruptStateError):
            read_state(broken, IDENTITY)
    with pytest.raises(CorruptStateError):
        PartitionWindows.from_data(rules_of(CUTS[0]), {"version": 0})
    with pytest.raises(CorruptStateError):
        Merge.from_data(rules_of(CUTS[0]), LIMITS, 1, {"version": 1})


def test_a_window_must_be_a_whole_number_of_hops() -> None:
    for window_s, hop_s in ((3_600, 1_000), (86_400, 60), (600, 1_200)):
        with pytest.raises(
            InvalidSettingError, match=f"TARN_STREAM_HOP_S is {hop_s} and TARN_STREAM_WINDOW_S"
        ):
            Rules.of(window_s=window_s, hop_s=hop_s, lateness_s=0)


def test_partials_of_others_and_broken_ones_are_passed_over() -> None:
    _, merge = steps(rules_of(CUTS[0]), 1)
    other = orjson.dumps({"identity": "other", "type": "part"})
    for n, message in enumerate((None, b"", b"[]", other, b'{"identity":"a1b2","type":"part"}')):
        assert list(merge.take(n, message)) == []
    assert merge.next_offset == 5


def test_names_of_airports_are_those_of_the_data_set() -> None:
    names = read_names(folder() / "airports.csv")
    reference = dataset.read_reference("airports")
    assert names == dict(zip(reference["faa"].to_pylist(), reference["name"].to_pylist(), strict=True))
    assert (names["EWR"], names.get("BQN")) == ("Newark Liberty Intl", None)


def test_it_reads_the_topic_that_is_played() -> None:
    assert topics.EVENTS == PLAYED
