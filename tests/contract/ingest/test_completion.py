"""Events about complete partitions: at least once, in the order of time, whatever is lost or killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarn.cli.ports import Offsets
from tarn.cli.rollback import RollbackPorts, roll_back
from tarn.core.completion import LATE_MAX, OPEN_MAX, Announced, OpenPartitions, TimeField, joined
from tarn.core.errors import CorruptStateError, InvalidSpecError, UnavailableError
from tarn.core.history import Retention
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_state import COMMIT_ID_KEY, TableState
from tarn.ingest import announcer
from tarn.ingest.batch_commit import offsets_in, open_in, watermark_in
from tarn.ingest.context import Limits
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.lake_ports import Clock
from tarn.ingest.status import StatusRegistry
from tarn.ingest.wiring import uuid7
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_faults import faulty_lake
from tests.support.lake import SPEC, TABLE, Lake
from tests.support.plays import seeds

SHORT = Retention(newest=5, steps=(), total_min=0)
HOUR = datetime(2023, 11, 14, 22, tzinfo=UTC)
"""An hour before the clock of a lake in memory, 22:30 of that day."""
EVENTS = "tarn.complete.orders"
RULE = f"{{column: at, completeTopic: {EVENTS}, idleTimeoutSeconds: 30}}"
LIMITS = Limits(check_interval_s=0.5, watermark_s=5.0, group_commit_interval_s=0.1, stopped_retry_s=1.0)


def announcing(rule: str = RULE, *, partitioning: str = "['hour(at)']", topics: str = "") -> IngestorSpec:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", partitioning)
    if topics:
        text = text.replace("topic: orders", f"topics: {topics}")
    return parse_spec(text + f"  eventTime: {rule}\n", file="orders.yaml")


def order(number: int, minutes: float | None) -> bytes:
    at = None if minutes is None else (HOUR + timedelta(minutes=minutes)).isoformat()
    return json.dumps({"id": number, "at": at}).encode()


class World:
    """A lake of one topic whose complete hours are announced."""

    def __init__(self, made: IngestorSpec | None = None, lake: Lake | None = None) -> None:
        self.topic = Topic("orders", 1)
        self.lake = lake or Lake(self.topic, retention=SHORT)
        self.lake.sources.topics["orders"] = self.topic
        self.lake.clock.now_s = 1_800.0 + (HOUR.timestamp() - 1_700_000_000) + 1_000
        self.spec = made or announcing()
        self.ingestor = self.lake.ingestor(self.spec)

    def send(self, *minutes: float | None) -> None:
        first = len(self.topic.logs[0])
        self.topic.send(0, *(order(first + n, at) for n, at in enumerate(minutes)))

    def work(self, turns: int = 100) -> None:
        self.lake.work(self.ingestor, turns=turns)

    def restart(self) -> None:
        self.ingestor = self.lake.ingestor(self.spec)

    def events(self) -> list[dict[str, Any]]:
        topic = self.lake.sources.topics.get(EVENTS)
        return [] if topic is None else [json.loads(value) for value in topic.logs[0]]  # type: ignore[arg-type]

    def hours(self) -> list[str]:
        return [event["partition"]["value"][-2:] for event in self.events()]

    def wait(self, seconds: float) -> None:
        """Let the clock run while the ingestor looks on."""
        self.lake.clock.now_s += seconds

        def pass_time() -> None:
            self.lake.clock.now_s += 0.1

        self.lake.sources.on_poll = pass_time
        self.work(150)
        self.lake.sources.on_poll = lambda: None

    def roll_back(self, to: TableState, *, end: int) -> None:
        """Bring a former version's rows back and keep the offsets; the topic has so many messages."""
        ports = RollbackPorts(
            catalog=self.lake.local,
            objects=self.lake.objects,
            bounds=lambda: {"orders": {0: (0, end)}},
            identity=lambda name: self.lake.sources.topics[name].identity,
            new_key=uuid7,
            new_snapshot_id=lambda: 10**15 + 1,
            clock=Clock(wait=lambda _: None),
        )
        roll_back(ports, self.ingestor.table, str(to.head_id), Offsets.KEEP)


def test_an_hour_is_announced_once_the_watermark_has_passed_its_end() -> None:
    world = World()
    world.send(1, 59)
    world.work()
    assert world.events() == []
    world.send(61)
    world.work()
    (event,) = world.events()
    head = world.lake.table().head
    assert head is not None
    assert event == {
        "v": 1,
        "table": TABLE,
        "stream": "orders",
        "partition": {"field": "at_hour", "value": "2023-11-14-22"},
        "start": "2023-11-14T22:00:00Z",
        "end": "2023-11-14T23:00:00Z",
        "completeThrough": "2023-11-14T23:00:00Z",
        "snapshotId": head["snapshot-id"],
        "sequenceNumber": head["sequence-number"],
        "commitId": head["summary"][COMMIT_ID_KEY],
    }
    assert world.lake.sources.keys[EVENTS] == [b"bronze.orders/at_hour=2023-11-14-22"]
    assert world.lake.registry.get("orders").events == 1
    world.send(62)
    world.work()
    world.restart()
    world.work()
    assert world.hours() == ["22"], "the next commit has recorded it"


def test_only_hours_with_rows_are_announced_in_their_order() -> None:
    world = World(announcing(RULE.replace("30}", "30, maxAheadSeconds: 864000}")))
    world.send(-600, 130, -60, None, 600)
    world.work()
    assert world.hours() == ["12", "21", "00"]


def test_so_many_events_are_sent_at_once_and_the_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "EVENTS_MAX", 2)
    world = World()
    sent: list[int] = []
    inner = world.lake.sources.send

    def send(topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        sent.append(len(events))
        inner(topic, events)

    world.lake.sources.send = send  # type: ignore[method-assign]
    world.send(*(60 * n - 600 for n in range(6)))
    world.work()
    world.wait(40)
    assert world.hours() == ["12", "13", "14", "15", "16", "17"]
    assert max(sent) == 2


def test_a_stream_that_stopped_completes_by_one_commit_for_the_watermark_alone() -> None:
    world = World()
    world.send(10)
    world.work()
    commits = world.lake.local.commits
    world.wait(31)
    assert world.lake.clock.now_s + 1_700_000_000 < (HOUR + timedelta(hours=1)).timestamp()
    assert (world.events(), world.lake.local.commits) == ([], commits), "the hour is not over"
    world.lake.clock.now_s = (HOUR + timedelta(hours=1)).timestamp() - 1_700_000_000
    world.wait(10)
    assert world.hours() == ["22"]
    mark = watermark_in(world.lake.table(), "orders")
    assert mark is not None
    assert mark.at_us == (HOUR + timedelta(hours=1)).timestamp() * 1e6
    world.wait(10)
    assert open_in(world.lake.table(), "orders") == OpenPartitions(field="at_hour")
    after = world.lake.local.commits
    assert after == commits + 2, "one for the watermark, one that records the event"
    for _ in range(5):
        world.wait(60)
    assert world.lake.local.commits == after, "nothing moves any more"
    world.restart()
    world.wait(60)
    assert (world.hours(), world.lake.local.commits) == (["22"], after)
    assert len(world.lake.offsets()) == 1


def test_the_lateness_holds_for_a_stream_that_stopped_too() -> None:
    world = World(announcing(RULE.replace("30}", "30, maxOutOfOrdernessSeconds: 600}")))
    world.send(10)
    world.work()
    world.lake.clock.now_s = (HOUR + timedelta(minutes=69)).timestamp() - 1_700_000_000
    world.wait(10)
    assert world.events() == []
    world.wait(60)
    assert world.hours() == ["22"]


def test_a_table_without_hours_moves_its_watermark_once_and_announces_nothing() -> None:
    world = World(announcing(partitioning="[]"))
    world.send(3, 10)
    world.work()
    world.wait(40)
    commits = world.lake.local.commits
    world.wait(100)
    assert world.lake.local.commits == commits
    assert world.events() == []


class Away:
    """A sender that fails, before or after the events are in the log."""

    def __init__(self, lake: Lake, *, landed: bool) -> None:
        self.inner = lake.sources
        self.landed = landed
        self.times = 1

    def send(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        self.times -= 1
        if self.times >= 0:
            if self.landed:
                type(self.inner).send(self.inner, topic, events)
            raise UnavailableError("no broker answers")
        type(self.inner).send(self.inner, topic, events)


@pytest.mark.parametrize("landed", [False, True])
def test_ingestion_goes_on_where_events_cannot_be_sent_and_they_follow(
    landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    away = Away(world.lake, landed=landed)
    monkeypatch.setattr(world.lake.sources, "send", away.send)
    world.send(10, 61)
    world.work()
    assert world.lake.registry.get("orders").events_failed == 1
    world.send(62, 63)
    world.work(60)
    assert len(world.lake.offsets()) == 4
    assert world.hours() == ["22"] * landed
    world.wait(31)
    assert world.hours() == ["22"] * (1 + landed), "at least once"
    assert world.lake.registry.get("orders").events == 1


def test_a_topic_of_events_that_somebody_deleted_is_created_again() -> None:
    world = World()
    world.send(10, 61)
    world.work()
    assert world.hours() == ["22"]
    del world.lake.sources.topics[EVENTS]
    world.lake.clock.now_s += 3_600
    world.send(121)
    world.work()
    assert world.lake.registry.get("orders").events_failed == 1
    world.wait(31)
    assert world.hours() == ["23"]


def test_a_process_that_ends_before_it_sent_leaves_the_event_to_the_next() -> None:
    world = World()

    def killed(topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        raise KeyboardInterrupt

    send, world.lake.sources.send = world.lake.sources.send, killed  # type: ignore[method-assign]
    world.send(10, 61)
    with pytest.raises(KeyboardInterrupt):
        world.work()
    world.lake.sources.send = send  # type: ignore[method-assign]
    world.restart()
    world.work()
    assert world.hours() == ["22"]


def test_a_process_that_ends_before_the_event_was_recorded_sends_it_again() -> None:
    world = World()
    world.send(10, 61)
    world.work()
    world.restart()
    world.work()
    assert world.hours() == ["22", "22"]


def test_a_late_row_announces_its_hour_again() -> None:
    world = World()
    world.send(10, 61)
    world.work()
    world.send(11)
    world.work()
    assert world.hours() == ["22", "22"]
    assert world.events()[1]["snapshotId"] == world.lake.table().head_id
    world.send(62)
    world.work()
    world.restart()
    world.work()
    assert world.hours() == ["22", "22"]


def test_a_row_that_was_under_way_when_its_hour_was_announced_announces_it_again() -> None:
    world = World()
    world.send(10, 61)
    world.work(60)
    sent = len(world.hours())
    held = [True]
    world.lake.commits_now = lambda: not held[0]
    world.send(12)
    world.ingestor._upkeep._announcer._sent = Announced()  # type: ignore[union-attr]
    polls = [0]

    def later() -> None:
        polls[0] += 1
        if len(world.hours()) > sent:
            held[0] = False

    world.lake.sources.on_poll = later
    world.work(200)
    assert len(world.hours()) == sent + 2
    assert world.events()[-1]["snapshotId"] == world.lake.table().head_id
    assert len(world.lake.offsets()) == 3


def test_an_event_of_an_older_version_that_is_sent_last_has_a_lower_number() -> None:
    """A process froze after it read the table: the consumer takes the event with the highest number."""
    world = World()
    world.send(10, 61)
    world.work()
    old = world.lake.table()
    frozen = world.ingestor._upkeep._announcer
    assert frozen is not None
    world.restart()
    world.send(11)
    world.work()
    before = len(world.events())
    frozen._sent = Announced()
    frozen.look(old, now_s=world.lake.clock(), now_ms=0)
    assert len(world.events()) == before + 1
    numbers = [event["sequenceNumber"] for event in world.events()]
    newest = world.events()[numbers.index(max(numbers))]
    assert newest["snapshotId"] == world.lake.table().head_id
    assert world.events()[-1]["snapshotId"] == old.head_id
    assert numbers[-1] < max(numbers)


@pytest.mark.parametrize("recorded", [True, False])
def test_after_a_rollback_the_hour_is_announced_again_when_it_is_complete_again(recorded: bool) -> None:
    world = World()
    world.send(10)
    world.work()
    before = world.lake.table()
    world.send(61)
    world.work()
    if recorded:
        world.send(62)
        world.work()
    assert world.hours() == ["22"]
    catalog = world.lake.local.catalog
    update: dict[str, Any] = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
    update["snapshot-id"] = before.head_id
    catalog.tables.commit(world.lake.local._slot(world.ingestor.table), [], [update])
    world.work()
    world.work()
    assert world.hours() == ["22", "22"]
    first, last = (event["sequenceNumber"] for event in world.events())
    assert first < last == world.lake.table().last_sequence, "a rollback does not lower it"
    assert len(world.lake.offsets()) == 2 + recorded


def test_a_rollback_that_keeps_the_offsets_opens_what_either_version_had_open() -> None:
    """The hour of the event lost a row, which is not read again: who computed it must hear of it."""
    world = World()
    world.send(10)
    world.work()
    before = world.lake.table()
    world.send(11, 61)
    world.work()
    world.send(62)
    world.work()
    assert world.hours() == ["22"]
    world.roll_back(before, end=4)
    opened = open_in(world.lake.table(), "orders")
    assert opened is not None
    ((start, end),) = opened.runs
    assert end - start == 2, "22 of the former version, 23 of the present one"
    world.work()
    assert world.hours() == ["22", "22"]
    assert world.events()[1]["snapshotId"] == 10**15 + 1


def two_topics(world: World, registry: StatusRegistry) -> tuple[Ingestor, Ingestor]:
    other = Topic("returns", 1, topic_id="id-2")
    world.lake.sources.topics["returns"] = other
    specs = announcing(topics="[orders, returns]").per_topic(["orders", "returns"])
    context = world.lake.context(registry=registry, limits=LIMITS)
    first, second = (Ingestor(one, context) for one in specs)
    return first, second


def test_of_several_topics_the_slowest_decides() -> None:
    world = World()
    registry = StatusRegistry()
    first, second = two_topics(world, registry)
    world.send(10, 61)
    world.lake.sources.topics["returns"].send(0, order(1, 30))
    world.lake.work(first, turns=60)
    assert world.events() == [], "the other topic was not read yet"
    world.lake.work(second, turns=60)
    world.lake.work(first, turns=60)
    assert world.events() == [], "the other stands at half past"
    world.lake.sources.topics["returns"].send(0, order(2, 65))
    world.lake.work(second, turns=60)
    assert [event["stream"] for event in world.events()] == ["orders.returns"]
    world.lake.work(first, turns=60)
    assert [event["stream"] for event in world.events()] == ["orders.returns", "orders.orders"]
    assert set(world.hours()) == {"22"}


def test_a_topic_that_stopped_does_not_hold_the_others_back_once_it_was_read_to_its_end() -> None:
    world = World()
    registry = StatusRegistry()
    first, second = two_topics(world, registry)
    returns = world.lake.sources.topics["returns"]
    returns.send(0, order(1, 30))
    world.lake.work(second, turns=60)
    world.lake.clock.now_s += 31
    world.send(10, 61)
    registry.update("orders.returns", ends={0: 2})
    world.lake.work(first, turns=60)
    assert world.events() == [], "it is idle, but behind"
    registry.update("orders.returns", ends={0: 1})
    world.lake.work(first, turns=60)
    assert world.hours() == ["22"]


def test_a_topic_that_never_had_a_message_holds_the_others_back_until_it_is_idle() -> None:
    world = World()
    registry = StatusRegistry()
    first, second = two_topics(world, registry)
    world.lake.work(second, turns=20)
    world.send(10, 61)
    world.lake.work(first, turns=60)
    assert world.hours() == []
    world.lake.clock.now_s += 31
    world.lake.work(second, turns=20)
    world.lake.work(first, turns=60)
    assert world.hours() == ["22"]


def without_returns(world: World) -> tuple[Ingestor, Topic]:
    """Orders alone after both topics ran: the stream of returns has an hour open, and nobody runs it."""
    second = two_topics(world, StatusRegistry())[1]
    returns = world.lake.sources.topics["returns"]
    returns.send(0, order(1, 30))
    world.lake.work(second, turns=60)
    (spec, _) = announcing(topics="[orders, returns]").per_topic(["orders", "returns"])
    return Ingestor(spec, world.lake.context(registry=StatusRegistry(), limits=LIMITS)), returns


def lines(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [entry for entry in logs if "holds completion events back" in entry["event"]]


def test_a_stream_that_does_not_run_here_holds_events_back_until_it_has_read_its_topic() -> None:
    world = World()
    alone, returns = without_returns(world)
    returns.send(0, order(2, 40))
    world.send(10, 61)
    world.lake.clock.now_s += 31
    with capture_logs() as logs:
        world.lake.work(alone, turns=60)
        world.lake.work(alone, turns=60)
    assert world.events() == [], "a row of this hour is in the other topic"
    (line,) = lines(logs)
    assert line["stream"] == "orders.returns"
    assert "tarn.ended.orders.returns" in line["do"]
    assert "partitions [0] of returns" in line["reason"]
    status = alone._context.registry.get("orders.orders")
    assert status.held_by == ("orders.returns",)
    # Another process reads it, and the stream is idle again.
    _, spec = announcing(topics="[orders, returns]").per_topic(["orders", "returns"])
    other = Ingestor(spec, world.lake.context(registry=StatusRegistry(), limits=LIMITS))
    world.lake.work(other, turns=60)
    world.lake.clock.now_s += 31
    world.lake.work(alone, turns=60)
    assert world.hours() == ["22"]
    assert len(world.lake.offsets()) == 4
    assert alone._context.registry.get("orders.orders").held_by == ()


@pytest.mark.parametrize("how", ["idle", "topic deleted", "topic recreated"])
def test_a_stream_that_does_not_run_here_and_can_bring_nothing_does_not_hold_events_back(how: str) -> None:
    world = World()
    alone, returns = without_returns(world)
    world.send(10, 61)
    world.lake.work(alone, turns=60)
    assert world.events() == [], "it had a message a moment ago"
    if how != "idle":
        returns.send(0, order(2, 40))
    if how == "topic deleted":
        del world.lake.sources.topics["returns"]
    if how == "topic recreated":
        returns.topic_id = "id-3"
    world.lake.clock.now_s += 31
    world.lake.work(alone, turns=60)
    assert world.hours() == ["22"]


def test_a_rollback_behind_the_first_commit_takes_away_all_that_the_stream_stated() -> None:
    """The tag still names the commit that was rolled back, and nothing of it holds."""
    lake = Lake(Topic("orders", 1), Topic("returns", 1, topic_id="id-2"))
    specs = announcing(topics="[orders, returns]")
    one, other = (lake.ingestor(made) for made in specs.per_topic(["orders", "returns"]))
    lake.sources.topics["orders"].send(0, order(0, 10))
    lake.work(one, turns=60)
    first = lake.table().head_id
    lake.sources.topics["returns"].send(0, order(1, 10), b"junk")
    lake.work(other, turns=60)
    found = lake.table()
    assert watermark_in(found, "orders.returns") is not None
    assert open_in(found, "orders.returns") is not None
    update = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first}
    lake.local.catalog.tables.commit(lake.local._slot(one.table), [], [update])
    state = lake.table()
    assert "tarn-offsets-orders.returns" in state.refs
    assert offsets_in(state, "orders.returns") is None
    assert watermark_in(state, "orders.returns") is None
    assert open_in(state, "orders.returns") is None
    assert watermark_in(state, "orders.orders") is not None


@pytest.mark.parametrize(("gone", "times"), [(True, 1), (False, 4)])
def test_topics_that_are_gone_are_seldom_asked_for(
    gone: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be many: each look of each stream would open a connection for each of them."""
    world = World()
    alone, _ = without_returns(world)
    world.send(10, 61)
    world.lake.work(alone, turns=60)
    if gone:
        del world.lake.sources.topics["returns"]
    opened, asked = world.lake.sources.open, list[str]()

    def seen(topic: str, *, stream: str) -> Any:
        asked.append(topic)
        return opened(topic, stream=stream)

    monkeypatch.setattr(world.lake.sources, "open", seen)
    for _ in range(4):
        world.lake.clock.now_s += 31
        world.lake.work(alone, turns=60)
    assert world.hours() == ["22"]
    assert asked.count("returns") == times
    world.lake.clock.now_s += 600
    world.lake.work(alone, turns=60)
    assert asked.count("returns") == times + 1


@pytest.mark.parametrize("ended", ["true", "TRUE"])
def test_a_stream_that_a_person_ended_does_not_hold_events_back(ended: str) -> None:
    world = World()
    alone, returns = without_returns(world)
    returns.send(0, order(2, 40))
    world.send(10, 61)
    world.lake.clock.now_s += 31
    world.lake.work(alone, turns=60)
    assert world.events() == []
    update = {"action": "set-properties", "updates": {"tarn.ended.orders.returns": ended}}
    world.lake.local.catalog.tables.commit(world.lake.local._slot(world.ingestor.table), [], [update])
    world.send(62)
    world.lake.work(alone, turns=60)
    assert world.hours() == ["22"]


def test_a_topic_that_cannot_be_asked_holds_events_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    alone, _ = without_returns(world)
    world.send(10, 61)
    world.lake.clock.now_s += 31
    opened = world.lake.sources.open

    def away(topic: str, *, stream: str) -> Any:
        if topic == "returns":
            raise UnavailableError("no broker answers")
        return opened(topic, stream=stream)

    monkeypatch.setattr(world.lake.sources, "open", away)
    world.lake.work(alone, turns=60)
    assert world.events() == []
    monkeypatch.undo()
    world.lake.work(alone, turns=60)
    assert world.events() == [], "it is asked every 30 s"
    world.lake.clock.now_s += 31
    world.lake.work(alone, turns=60)
    assert world.hours() == ["22"]


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(12))
def test_whatever_is_lost_killed_or_repeated_each_hour_with_rows_is_announced(seed: int) -> None:
    chance = random.Random(seed)
    lake, faults = faulty_lake(Topic("orders", 1), seed, 0.4)
    world = World(lake=lake)
    send = lake.sources.send
    fails = [True]

    def sometimes(topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        if fails[0] and chance.random() < 0.4:
            if chance.random() < 0.5:
                send(topic, events)
            raise chance.choice([UnavailableError("no answer"), KeyboardInterrupt()])
        send(topic, events)

    lake.sources.send = sometimes  # type: ignore[method-assign]
    minutes = 0.0
    for _ in range(12):
        minutes += chance.choice([1, 20, 70])
        world.send(minutes, max(0.0, minutes - chance.choice([0, 0, 90])))
        lake.clock.now_s = max(lake.clock.now_s, (HOUR + timedelta(minutes=minutes)).timestamp() - 1.7e9)
        try:
            world.work(40)
        except KeyboardInterrupt:
            world.restart()
        if chance.random() < 0.3:
            world.restart()
    faults.rate, fails[0] = 0.0, False
    faults.land_all()
    world.restart()
    lake.clock.now_s += 7_200
    world.wait(40)
    world.wait(40)
    world.wait(40)
    assert lake.offsets() == [(0, offset) for offset in range(24)]
    state = lake.table()
    assert open_in(state, "orders") == OpenPartitions(field="at_hour")
    wanted = {row["at"].strftime("%Y-%m-%d-%H") for row in lake.rows()}
    assert {event["partition"]["value"] for event in world.events()} == wanted


@pytest.mark.parametrize(
    ("unit", "number", "text", "start", "end"),
    [
        ("hour", 498680, "2026-11-21-08", "2026-11-21T08:00:00", "2026-11-21T09:00:00"),
        ("day", 20778, "2026-11-21", "2026-11-21T00:00:00", "2026-11-22T00:00:00"),
        ("month", 682, "2026-11", "2026-11-01T00:00:00", "2026-12-01T00:00:00"),
        ("month", -1, "1969-12", "1969-12-01T00:00:00", "1970-01-01T00:00:00"),
        ("year", 56, "2026", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
        ("hour", -1, "1969-12-31-23", "1969-12-31T23:00:00", "1970-01-01T00:00:00"),
        ("year", -1500, "0470", "0470-01-01T00:00:00", "0471-01-01T00:00:00"),
    ],
)
def test_a_unit_of_time_has_a_text_and_bounds(
    unit: str, number: int, text: str, start: str, end: str
) -> None:
    field = TimeField(name="at", unit=unit, source_id=1, index=0, spec_id=0)
    assert field.text(number) == text
    epoch = datetime(1970, 1, 1)
    bounds = tuple((datetime.fromisoformat(at) - epoch) // timedelta(microseconds=1) for at in (start, end))
    assert field.bounds_us(number) == bounds
    assert field.number(bounds[0]) == field.number(bounds[1] - 1) == number


def after(
    opened: OpenPartitions,
    *,
    added: Iterable[int] = (),
    announced: Mapping[int, int] | None = None,
    below: int | None = None,
    at: int = 1,
) -> OpenPartitions:
    return opened.after(added=added, announced=announced or {}, complete_below=below, sequence=at)


def test_the_open_partitions_are_runs_and_bounded() -> None:
    opened = after(OpenPartitions(field="h"), added=[5, 3, 4, 9])
    assert opened.runs == ((3, 6), (9, 10))
    assert OpenPartitions.from_json(opened.to_json()) == opened
    assert list(opened.numbers(5)) == [3, 4]
    left = after(opened, added=[9], announced={4: 1, 9: 1})
    assert left.runs == ((3, 4), (5, 6), (9, 10)), "rows that came with the commit open it again"
    assert (5 in left, 4 in left) == (True, False)
    many = joined((2 * n, 2 * n + 1) for n in reversed(range(OPEN_MAX + 10)))
    assert (len(many), many[0]) == (OPEN_MAX, (0, 1))
    week = '{"v":1,"field":"h","unit":"week","runs":[]}'
    for text in ("{", '{"v":2}', '{"v":1,"field":"h","runs":[[1]]}', week):
        with pytest.raises(CorruptStateError, match="completeTopic"):
            OpenPartitions.from_json(text)


def test_a_partition_with_a_late_row_stays_open_until_an_event_is_newer() -> None:
    opened = after(OpenPartitions(field="h"), added=[1, 2, 3, 7], below=None, at=4)
    assert opened.late == (), "nothing was complete, so nothing was announced"
    late = after(opened, added=[2, 3, 7], below=7, at=9)
    assert late.late == ((2, 4, 9),)
    assert [late.late_at(n) for n in (1, 2, 3, 4, 7)] == [0, 9, 9, 0, 0]
    assert OpenPartitions.from_json(late.to_json()) == late
    left = after(late, announced={1: 8, 2: 8, 3: 9}, at=10)
    assert (left.runs, left.late) == (((2, 3), (7, 8)), ((2, 3, 9),)), "2 got a row after its event"
    again = after(left, added=[2], announced={2: 9}, below=7, at=11)
    assert (again.runs, again.late) == (((2, 3), (7, 8)), ((2, 3, 11),)), "the row came with the record"
    both = late.union(after(OpenPartitions(field="h"), added=[3, 5], below=7, at=12))
    assert (both.runs, both.late) == (((1, 4), (5, 6), (7, 8)), ((2, 3, 9), (3, 4, 12), (5, 6, 12)))


def test_late_rows_in_many_partitions_cost_an_event_too_many_never_one_too_few() -> None:
    opened = after(OpenPartitions(field="h"), added=range(3 * LATE_MAX))
    for n in range(LATE_MAX + 50):
        opened = after(opened, added=[2 * n], below=10_000, at=1_000 + n)
        assert opened.late_at(2 * n) == 1_000 + n
    assert len(opened.late) == LATE_MAX
    assert opened.late[0] == (0, 101, 1_050)
    assert all(opened.late_at(2 * n) >= 1_000 + n for n in range(LATE_MAX + 50))
    assert after(opened, announced={4: 1_049}).runs == opened.runs


def test_ingest_writes_topics_of_one_prefix_only_and_reads_none_of_them_by_a_pattern() -> None:
    with pytest.raises(InvalidSpecError, match=r"completeTopic: 'gold\.events' is not allowed"):
        announcing("{column: at, completeTopic: gold.events}")
    text = SPEC.replace("topic: orders, create: true, partitions: 2", 'topicPattern: ".*"')
    kafka = parse_spec(
        text.replace("PARTITIONING", "[]").replace("FORMAT", "2"), file="a.yaml"
    ).spec.source.kafka
    assert kafka.matches("orders")
    assert not kafka.matches(EVENTS)
