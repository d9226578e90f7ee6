"""Pace, resuming and sending: nothing skipped, nothing repeated, memory bounded."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.adapters.kafka_client import vendor
from tarn.core.errors import CorruptStateError, DataError, InvalidSettingError
from tarn_demo.flights import dataset
from tarn_demo.flights.events import NoiseRates, Stream
from tarn_demo.flights.pace import AllAtOnce, HeadStart, Rate, Speed
from tarn_demo.flights.producer import (
    CHUNK_MESSAGES,
    CHUNKS_IN_FLIGHT_MAX,
    Player,
    ends_in,
    partition_of,
)
from tarn_demo.flights.resume import HEADER, ReplayMarker, ReplayPass, is_finished, is_of_another_stream, plan

PARTITIONS = 4


@cache
def _stream(rows: int = 300) -> Stream:
    noise = NoiseRates(duplicates=0.02, late=0.05, broken=0.001)
    flights = dataset.read_flights().slice(0, rows)
    return Stream(flights, dataset.read_reference("airports"), noise=noise, seed=1)


@dataclass
class Sent:
    """What KafkaProducer.send gives back."""

    fails: bool = False
    settled: bool = False

    def succeeded(self) -> bool:
        return False

    def get(self, timeout: float) -> None:
        assert timeout > 0
        self.settled = True
        if self.fails:
            raise vendor.KafkaError("gone")


@dataclass
class Broker:
    """A topic: what was sent to each partition, until the broker dies."""

    dies_after: int | None = None
    log: dict[int, list[tuple[ReplayMarker, bytes]]] = field(default_factory=lambda: defaultdict(list))
    unsettled: deque[Sent] = field(default_factory=deque)
    most_unsettled: int = 0

    def send(self, topic: str, *, key: bytes, value: bytes, headers: Any, partition: int) -> Sent:
        assert topic == "flight-events"
        assert partition == partition_of(key, PARTITIONS)
        if self.dies_after is not None and sum(map(len, self.log.values())) >= self.dies_after:
            raise ConnectionError("killed")
        self.log[partition].append((ReplayMarker.decode(dict(headers)[HEADER]), value))
        self.unsettled.append(Sent())
        while self.unsettled[0].settled:
            self.unsettled.popleft()
        self.most_unsettled = max(self.most_unsettled, len(self.unsettled))
        return self.unsettled[-1]

    def tails(self) -> dict[int, ReplayMarker | None]:
        return {p: self.log[p][-1][0] if self.log[p] else None for p in range(PARTITIONS)}


def _player(broker: Broker) -> Player:
    return Player(send=broker.send, topic="flight-events", partitions=PARTITIONS)


def _planned(broker: Broker, *, again: bool = False) -> ReplayPass:
    ends = ends_in(_stream(), PARTITIONS)
    return plan(broker.tails(), ends, fingerprint=_stream().fingerprint, again=again)


@pytest.mark.long
def test_everything_is_sent_once_in_order() -> None:
    broker, stream = Broker(), _stream(16_000)
    play = ReplayPass(fingerprint=stream.fingerprint, round=1, next=(0,) * PARTITIONS)
    assert _player(broker).play(stream, AllAtOnce(), play) == len(stream)
    indexes = sorted(mark.index for sent in broker.log.values() for mark, _ in sent)
    assert indexes == list(range(len(stream)))
    for sent in broker.log.values():
        assert [m.index for m, _ in sent] == sorted(m.index for m, _ in sent)
    bound = (CHUNKS_IN_FLIGHT_MAX + 1) * CHUNK_MESSAGES
    assert broker.most_unsettled <= bound < len(stream), "what waits to be acknowledged is bounded"


@pytest.mark.long
@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(min_value=0, max_value=950), min_size=1, max_size=4))
def test_killed_anywhere_and_resumed_sends_each_message_once(kills: list[int]) -> None:
    broker = Broker()
    for kill in sorted(kills):
        broker.dies_after = kill
        try:
            _player(broker).play(_stream(), AllAtOnce(), _planned(broker))
        except ConnectionError:
            continue
    broker.dies_after = None
    _player(broker).play(_stream(), AllAtOnce(), _planned(broker))

    indexes = sorted(mark.index for sent in broker.log.values() for mark, _ in sent)
    assert indexes == list(range(len(_stream())))
    assert is_finished(_planned(broker), ends_in(_stream(), PARTITIONS))


@pytest.mark.long
@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(min_value=0, max_value=950), min_size=PARTITIONS, max_size=PARTITIONS))
def test_partitions_cut_at_different_places_are_filled_up(cuts: list[int]) -> None:
    whole = Broker()
    _player(whole).play(_stream(), AllAtOnce(), _planned(whole))
    broker = Broker()
    for partition, cut in enumerate(cuts):
        broker.log[partition] = [m for m in whole.log[partition] if m[0].index < cut]
    _player(broker).play(_stream(), AllAtOnce(), _planned(broker))
    assert {p: [m.index for m, _ in sent] for p, sent in broker.log.items()} == {
        p: [m.index for m, _ in sent] for p, sent in whole.log.items()
    }


def test_a_finished_play_is_repeated_only_when_asked() -> None:
    broker = Broker()
    _player(broker).play(_stream(), AllAtOnce(), _planned(broker))
    ends = ends_in(_stream(), PARTITIONS)
    assert is_finished(_planned(broker), ends)
    assert _player(broker).play(_stream(), AllAtOnce(), _planned(broker)) == 0
    once_more = _planned(broker, again=True)
    assert (once_more.round, once_more.next) == (2, (0,) * PARTITIONS)

    broker.dies_after = len(_stream()) + 300
    with pytest.raises(ConnectionError):
        _player(broker).play(_stream(), AllAtOnce(), once_more)
    resumed = _planned(broker, again=True)
    assert resumed.round == 2, "a round that was begun is gone on with"
    assert sum(resumed.next) > 0


def test_another_stream_in_the_topic_is_not_gone_on_with() -> None:
    tails = {0: ReplayMarker(fingerprint="another", round=3, index=70), 1: None}
    assert plan(tails, (9, 9), fingerprint="mine", again=False) == ReplayPass(
        fingerprint="mine", round=1, next=(0, 0)
    )


def test_a_message_that_is_not_taken_is_told() -> None:
    def send(*_: object, **__: object) -> Sent:
        return Sent(fails=True)

    player = Player(send=send, topic="flight-events", partitions=PARTITIONS)
    with pytest.raises(DataError, match=r"did not take a message of flight-events .*demo load --again"):
        player.play(_stream(), AllAtOnce(), _planned(Broker()))


@pytest.mark.parametrize("value", [b"", b"abc", b"a.1", b"a.1/x", b"a.b/1", b"\xff.1/1", b"a.1/1/1"])
def test_a_header_of_somebody_else_is_told(value: bytes) -> None:
    with pytest.raises(CorruptStateError, match="the header tarn-play of a message is"):
        ReplayMarker.decode(value)


@given(st.integers(1, 10_000), st.integers(0, 10**9))
def test_a_mark_is_read_as_it_was_written(round_: int, index: int) -> None:
    mark = ReplayMarker(fingerprint="0123456789ab", round=round_, index=index)
    assert ReplayMarker.decode(mark.encode()) == mark


class Line:
    """Ten messages, one each second of the data."""

    def __len__(self) -> int:
        return 10

    def due(self, index: int) -> int:
        return 1_000 * index

    def index_of(self, due_ms: int) -> int:
        return max(0, min(10, -(-due_ms // 1_000)))


@pytest.mark.parametrize(
    ("pace", "start", "elapsed_s", "target"),
    [
        (AllAtOnce(), 0, 0.0, 10),
        (Rate(2.0), 0, 0.0, 0),
        (Rate(2.0), 0, 1.6, 3),
        (Rate(2.0), 4, 1.0, 6),
        (Rate(2.0), 4, 99.0, 10),
        (Speed(1.0), 0, 0.0, 1),
        (Speed(1.0), 0, 2.5, 3),
        (Speed(2.0), 0, 2.5, 6),
        (Speed(2.0), 3, 1.0, 6),
        (Speed(600.0), 0, 1.0, 10),
        (Speed(1.0), 10, 0.0, 10),
        (Speed(1e308), 0, 30.0, 10),
        (Rate(1e308), 4, 30.0, 10),
        (HeadStart(1e305, Speed(1.0)), 0, 0.0, 10),
    ],
)
def test_how_far_a_pace_is(pace: Any, start: int, elapsed_s: float, target: int) -> None:
    assert pace.target(Line(), start, elapsed_s) == target


@pytest.mark.parametrize(("pace", "word"), [(Rate, "rate"), (Speed, "speed")])
def test_a_pace_that_gets_nowhere_is_refused(pace: Any, word: str) -> None:
    with pytest.raises(InvalidSettingError, match=f"the {word} is 0; give more than 0"):
        pace(0)


def test_a_paced_play_waits_for_what_is_due() -> None:
    broker, now = Broker(), [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    seen: list[tuple[float, int]] = []
    play = _planned(broker)
    sent = _player(broker).play(
        _stream(),
        Rate(200.0),
        play,
        end=500,
        monotonic=lambda: now[0],
        sleep=sleep,
        on_progress=lambda at: seen.append((now[0], at)),
    )
    assert sent == 500
    assert 2.4 <= now[0] <= 2.7
    assert all(at <= 200 * now_s + 1 for now_s, at in seen)


def test_a_head_start_is_due_at_once_and_the_pace_counts_from_its_end() -> None:
    stream = _stream()
    head = stream.index_of(stream.due(0) + 6 * 3_600_000)
    assert 0 < head < len(stream)
    pace = HeadStart(6, Rate(10))
    assert pace.target(stream, 0, 0.0) == head
    assert pace.target(stream, 5, 0.0) == head, "a replay stopped within its head start gets the rest at once"
    assert pace.target(stream, 0, 2.0) == head + 20
    assert pace.target(stream, head + 7, 2.0) == head + 27, "one stopped later goes on at the pace alone"
    assert pace.target(stream, len(stream), 0.0) == len(stream)


def test_no_head_start_is_the_pace_itself() -> None:
    stream = _stream()
    for elapsed_s in (0.0, 1.0, 100.0):
        assert HeadStart(0, Speed(600)).target(stream, 0, elapsed_s) == Speed(600).target(
            stream, 0, elapsed_s
        )


def test_a_negative_head_start_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="the head start is -1 hours; give 0 or more"):
        HeadStart(-1, Rate(10))


@pytest.mark.parametrize(
    ("fingerprints", "others"),
    [((None, None), False), (("mine", None), False), (("mine", "theirs"), True), (("theirs", None), True)],
)
def test_a_topic_that_ends_with_another_play_is_known(
    fingerprints: tuple[str | None, ...], others: bool
) -> None:
    tails = {
        p: None if name is None else ReplayMarker(fingerprint=name, round=1, index=9)
        for p, name in enumerate(fingerprints)
    }
    assert is_of_another_stream(tails, fingerprint="mine") is others
