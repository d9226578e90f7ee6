"""Several readers, and one announces: each late row has an event that knows of it, whoever added it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tarn.core.completion import Announced, OpenPartitions
from tarn.core.errors import UnavailableError
from tarn.core.history import Retention
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest, TableState
from tarn.ingest.batch_commit import open_in, retired_in, watermark_in
from tarn.ingest.committer import Committer
from tarn.ingest.group import Member
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.mark_commit import MarkCommit
from tarn.ingest.status import StatusRegistry
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_completion import EVENTS, HOUR, LIMITS, RULE, order
from tests.contract.ingest.test_faults import faulty_lake
from tests.support.lake import SPEC, Lake
from tests.support.plays import seeds

FIRST = HOUR.timestamp() - 1_700_000_000
NUMBER = int(HOUR.timestamp()) // 3_600


def announcing(replicas: int, *, commit: str = "bookkeeper", more: str = "") -> IngestorSpec:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "['hour(at)']")
    return parse_spec(
        f"{text}  eventTime: {RULE}\n  replicas: {replicas}\n  commit: {commit}\n{more}", file="orders.yaml"
    )


class World:
    """A lake of one topic that several readers share; what each event's snapshot had of its hour is noted.

    Args:
        partitions: partitions of the topic.
        replicas: readers.
        processes: how many times the readers run, each time in a process of its own.
        commit: `spec.commit`.
        lake: the lake; a new one by default.
        apart: whether each reader has a status of its own, as writers that are processes have.
    """

    def __init__(
        self,
        *,
        partitions: int = 2,
        replicas: int = 2,
        processes: int = 1,
        commit: str = "bookkeeper",
        lake: Lake | None = None,
        more: str = "",
        apart: bool = False,
    ) -> None:
        self.apart = apart
        self.topic = Topic("orders", partitions)
        self.lake = lake or Lake(self.topic, retention=Retention(newest=8, steps=(), total_min=0))
        self.lake.sources.topics["orders"] = self.topic
        self.lake.clock.now_s = FIRST + 2_800.0
        self.spec = announcing(replicas, commit=commit, more=more)
        self.readers: list[Ingestor] = []
        self.processes = processes
        self.restart()
        self.known: dict[str, int] = {}
        self.fails: list[BaseException | None] = []
        self._send = self.lake.sources.send
        self.lake.sources.send = self.send_events  # type: ignore[method-assign]

    def restart(self) -> None:
        self.readers = []
        for _ in range(self.processes):
            context = self.lake.context(limits=LIMITS)
            for number in range(self.spec.spec.replicas):
                own = replace(context, registry=StatusRegistry(of_one=True)) if self.apart else context
                self.readers.append(Ingestor(self.spec, own, replica=number))

    def send(self, partition: int, *minutes: float) -> None:
        first = len(self.topic.logs[partition])
        self.topic.send(partition, *(order(first + n, at) for n, at in enumerate(minutes)))

    def send_events(self, topic: str, events: Sequence[tuple[bytes, bytes]]) -> None:
        failure = self.fails.pop() if self.fails else None
        if failure is None or len(self.fails) % 2:
            self._send(topic, events)
        if failure is not None:
            raise failure
        for _, value in events:
            event = json.loads(value)
            had = self.rows_by_hour(event["snapshotId"])
            hour = event["partition"]["value"]
            self.known[hour] = had[hour]

    def rows_by_hour(self, snapshot_id: int | None = None) -> Counter[str]:
        """Rows per hour, of a snapshot or of the table now."""
        state = self.lake.table()
        if snapshot_id is not None:
            refs = {"main": {"type": "branch", "snapshot-id": snapshot_id}}
            metadata = {**state.metadata, "refs": refs, "current-snapshot-id": snapshot_id}
            state = TableState(metadata, location=state.location)
        found: Counter[str] = Counter()
        for row in self.lake.rows(state=state):
            found[row["at"].strftime("%Y-%m-%d-%H")] += 1
        return found

    def work(self, *numbers: int, turns: int = 60) -> None:
        for number in numbers or range(len(self.readers)):
            self.lake.work(self.readers[number], turns=turns)

    def wait(self, seconds: float) -> None:
        """Let the clock run while the readers look on."""
        self.lake.clock.now_s += seconds

        def pass_time() -> None:
            self.lake.clock.now_s += 0.1

        self.lake.sources.on_poll = pass_time
        self.work(turns=120)
        self.lake.sources.on_poll = lambda: None

    def hours(self) -> list[str]:
        topic = self.lake.sources.topics.get(EVENTS)
        values: list[Any] = [] if topic is None else list(topic.logs[0])
        return [json.loads(value)["partition"]["value"][-2:] for value in values]

    def opened(self) -> OpenPartitions | None:
        return open_in(self.lake.table(), "orders")


def test_the_first_reader_announces_what_the_table_says_of_all() -> None:
    world = World()
    world.send(0, 10, 61)
    world.send(1, 20)
    world.work()
    world.work()
    assert world.hours() == [], "the other reader stands at twenty past"
    world.send(1, 65)
    world.work(1)
    assert world.hours() == [], "the second reader sends nothing"
    world.work(0)
    assert world.hours() == ["22"]
    readers = world.lake.registry.readers()
    assert (readers["orders/0"].events, readers["orders/1"].events) == (1, 0)
    assert set(readers) == {"orders/0", "orders/1"}


def test_the_second_reader_keeps_the_list_that_it_does_not_send() -> None:
    world = World()
    world.send(0, 10)
    world.work(0)
    assert world.opened() == OpenPartitions(field="at_hour", runs=((NUMBER, NUMBER + 1),))
    world.send(1, 65)
    world.work(1)
    assert world.opened() == OpenPartitions(field="at_hour", runs=((NUMBER, NUMBER + 2),))


def complete(world: World) -> None:
    """Both readers are beyond the hour 22, its event is sent and not recorded."""
    world.send(0, 10, 61)
    world.send(1, 20, 62)
    world.work()
    world.work(0)
    assert world.hours() == ["22"]
    opened = world.opened()
    assert opened is not None
    assert NUMBER in opened


def test_a_late_row_of_another_reader_announces_its_hour_again() -> None:
    """The event was sent, not recorded, when another reader added a row to its hour."""
    world = World()
    complete(world)
    world.send(1, 30)
    world.work(1)
    opened = world.opened()
    assert opened is not None
    assert opened.late == ((NUMBER, NUMBER + 1, world.lake.table().last_sequence),)
    world.send(0, 63)
    world.work(0)
    assert world.hours() == ["22", "22"]
    assert world.known == {"2023-11-14-22": 3}
    world.send(0, 64)
    world.work(0)
    opened = world.opened()
    assert opened is not None
    assert (opened.runs, opened.late) == (((NUMBER + 1, NUMBER + 2),), ())
    world.work()
    assert world.hours() == ["22", "22"], "recorded, so not sent again"


def test_a_late_row_that_overtakes_the_record_of_the_event_announces_its_hour_again() -> None:
    """The first reader's commit takes the hour off the list; before it lands another one adds a row."""
    world = World(commit="direct")
    complete(world)
    inner = world.lake.local.commit
    between = [True]

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if between and table.name == "orders":
            between.clear()
            world.send(1, 30)
            world.work(1)
        return inner(table, request, key=key)

    world.lake.local.commit = commit  # type: ignore[method-assign]
    world.send(0, 63)
    world.work(0)
    assert not between
    assert world.lake.registry.get("orders").conflicts == 1
    assert world.hours() == ["22", "22"]
    assert world.known == {"2023-11-14-22": 3}


def mark(world: World, state: TableState, announced: Announced) -> MarkCommit:
    rule = world.readers[0]._event_time
    assert rule is not None
    return MarkCommit(
        commit_id="mark",
        table_uuid=state.uuid,
        stream="orders",
        event_time=rule,
        now_ms=int(world.lake.clock.now_s * 1_000) + 1_700_000_000_000,
        announced=announced,
    )


def test_a_late_row_in_the_same_snapshot_as_the_record_of_the_event_keeps_its_hour_open() -> None:
    world = World()
    complete(world)
    state = world.lake.table()
    announced = world.readers[0]._upkeep.announced
    assert announced is not None
    assert announced.numbers == {NUMBER: state.last_sequence}
    # As if 23 had been announced as well, so that the record has something to take off the list.
    announced = replace(announced, numbers={**announced.numbers, NUMBER + 1: state.last_sequence})
    taken: list[Member] = []
    keeper = world.readers[1]._commits._bookkeeper  # type: ignore[attr-defined]
    real = keeper._committer.commit_all

    def commit_all(members: list[Member], **options: Any) -> None:
        if members[0].change.files:
            writer = world.readers[0].files.writer(state)
            members = [*members, Member(change=mark(world, state, announced), writer=writer)]
            taken.extend(members)
        real(members, **options)

    keeper._committer.commit_all = commit_all
    world.send(1, 30)
    world.work(1)
    assert len(taken) == 2
    snapshot = world.lake.table().head
    assert snapshot is not None
    assert snapshot["summary"]["tarn.commit-ids"].split()[1] == "mark"
    opened = world.opened()
    assert opened is not None
    assert opened.runs == ((NUMBER, NUMBER + 1),)
    world.work(0)
    assert world.hours() == ["22", "22"]


def test_two_processes_that_both_announce_lose_no_late_row() -> None:
    world = World(replicas=1, processes=2)
    first, other = world.readers
    world.send(0, 10, 61)
    world.send(1, 20, 62)
    world.lake.work(first, turns=60)
    assert world.hours() == ["22"]
    world.send(1, 30)
    world.lake.work(other, turns=60)
    assert world.hours() == ["22", "22"], "the other process sends it for its own row"
    world.lake.clock.now_s += LIMITS.watermark_s
    world.wait(10)
    assert world.known["2023-11-14-22"] == 3
    assert world.lake.offsets() == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize("through", ["rewind", "other"])
def test_an_event_that_a_rollback_voided_is_not_recorded(through: str) -> None:
    """The record must not take an hour off a version that does not build on the one of the event."""
    world = World()
    world.send(0, 10, 61)
    world.send(1, 20)
    world.work()
    before = world.lake.table()
    world.send(1, 62)
    world.work(1)
    world.work(0)
    assert world.hours() == ["22"]
    announced = world.readers[0]._upkeep.announced
    assert announced is not None
    update: dict[str, Any] = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch"}
    catalog = world.lake.local.catalog
    table = world.lake.local._slot(world.readers[0].table)
    catalog.tables.commit(table, [], [{**update, "snapshot-id": before.head_id}])
    if through == "other":
        world.send(1, 40)
        world.work(1)
    state = world.lake.table()
    assert announced.holding(state, "hour") == {}
    change = mark(world, state, announced)
    writer = world.readers[0].files.writer(state)
    context = world.lake.context()
    Committer(world.lake.catalog, world.readers[0].table, ports=context.ports).commit(change, writer)
    opened = world.opened()
    assert opened is not None
    assert NUMBER in opened
    world.send(0, 70)
    world.work()
    world.work()
    assert world.hours() == ["22", "22"]
    assert world.known["2023-11-14-22"] == world.rows_by_hour()["2023-11-14-22"]


@pytest.mark.parametrize("apart", [False, True], ids=["threads", "processes"])
def test_the_last_hour_of_a_stream_that_stopped_is_announced(apart: bool) -> None:
    world = World(apart=apart)
    world.send(0, 10)
    world.send(1, 20)
    world.work()
    world.wait(3_700)
    world.wait(40)
    world.wait(10)
    assert world.hours() == ["22"]
    assert world.known == {"2023-11-14-22": 2}


def test_while_a_reader_has_messages_before_it_the_stream_has_not_stopped() -> None:
    world = World()
    world.send(0, 10)
    world.send(1, 20)
    world.work()
    world.send(1, 21)
    world.lake.clock.now_s = FIRST + 3_700.0
    world.lake.registry.update("orders/1", ends={1: 2})
    world.lake.sources.on_poll = lambda: setattr(world.lake.clock, "now_s", world.lake.clock.now_s + 0.1)
    world.work(0, turns=150)
    assert world.hours() == [], "the other reader is behind"
    found = watermark_in(world.lake.table(), "orders")
    assert found is not None
    assert found.at_us == (HOUR.timestamp() + 600) * 1e6
    world.lake.sources.on_poll = lambda: None
    world.work(1)
    world.wait(40)
    world.wait(10)
    assert world.hours() == ["22"]
    assert world.known == {"2023-11-14-22": 3}


def test_only_the_first_reader_moves_the_watermark_of_a_stream_that_stopped() -> None:
    world = World()
    world.send(0, 10)
    world.send(1, 20)
    world.work()
    commits = world.lake.local.commits
    world.lake.clock.now_s = FIRST + 3_700.0
    world.lake.sources.on_poll = lambda: setattr(world.lake.clock, "now_s", world.lake.clock.now_s + 0.1)
    world.work(1, turns=150)
    assert (world.lake.local.commits, world.hours()) == (commits, [])
    world.work(0, turns=150)
    assert world.lake.local.commits > commits
    assert world.hours() == ["22"]


def test_only_the_first_reader_drops_old_rows_and_the_others_keep_the_statement() -> None:
    world = World(more="  retention: 1d\n")
    world.send(0, -3_000, 5)
    world.send(1, -3_000, 6)
    world.work()
    for reader in world.readers:
        reader._upkeep._retired_s = -1e9
    world.work(1)
    assert len(world.lake.offsets()) == 4
    world.work(0)
    assert world.lake.offsets() == [(0, 1), (1, 1)]
    world.send(1, 7)
    world.work(1)
    found = retired_in(world.lake.table(), "orders")
    assert found is not None
    assert (found.rows, dict(found.runs)) == (2, {0: ((0, 1),), 1: ((0, 1),)})
    readers = world.lake.registry.readers()
    assert (readers["orders/0"].retired_rows, readers["orders/1"].retired_rows) == (2, 0)
    assert world.lake.registry.get("orders").retired_rows == 2


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(8))
def test_the_last_event_of_each_hour_was_sent_with_all_of_its_rows(seed: int) -> None:
    """Late rows, readers that work inside each other's turns and commits, lost answers, kills, processes."""
    chance = random.Random(seed)
    lake, faults = faulty_lake(Topic("orders", 3), seed, 0.25)
    lake.retention = Retention(newest=30, steps=(), total_min=0)
    direct = seed % 3 == 0
    world = World(
        partitions=3,
        replicas=(2, 3)[seed % 2],
        processes=1 + seed % 2,
        commit="direct" if direct else "bookkeeper",
        lake=lake,
    )
    minutes = [0.0]
    busy: set[int] = set()

    def messages() -> None:
        minutes[0] += chance.choice([0, 1, 20, 70])
        for partition in range(3):
            if chance.random() < 0.6:
                late = chance.choice([0, 0, 0, 50, 90, 200])
                world.send(partition, max(0.0, minutes[0] - late), minutes[0])
        now = FIRST + 60 * minutes[0]
        lake.clock.now_s = max(lake.clock.now_s, now)

    def somebody(rate: float) -> None:
        """Another reader works now, inside the turn or the commit of the one that does."""
        if len(busy) > 1 or chance.random() >= rate:
            return
        number = chance.choice([n for n in range(len(world.readers)) if n not in busy])
        if chance.random() < 0.5:
            messages()
        turn(number, chance.randrange(5, 30))

    def turn(number: int, turns: int) -> None:
        busy.add(number)
        left = [turns]

        def until() -> bool:
            left[0] -= 1
            somebody(0.05)
            return left[0] < 0

        try:
            while left[0] > 0:
                left[0] -= 1
                try:
                    world.readers[number].cycle(until)
                except UnavailableError:
                    continue
        finally:
            busy.discard(number)

    inner = lake.local.commit

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if direct and table.name == "orders":
            somebody(0.1)
        return inner(table, request, key=key)

    lake.local.commit = commit  # type: ignore[method-assign]
    for _ in range(10):
        messages()
        if chance.random() < 0.3:
            world.fails = [chance.choice([UnavailableError("no answer"), KeyboardInterrupt()])]
        try:
            for number in chance.sample(range(len(world.readers)), len(world.readers)):
                turn(number, 25)
        except KeyboardInterrupt:
            busy.clear()
            world.restart()
        if chance.random() < 0.15:
            world.restart()
    lake.local.commit = inner  # type: ignore[method-assign]
    faults.rate, world.fails = 0.0, []
    faults.land_all()
    world.restart()
    lake.clock.now_s += 7_200
    for _ in range(3):
        world.wait(40)
    wanted = [(p, offset) for p in range(3) for offset in range(len(world.topic.logs[p]))]
    assert lake.offsets() == wanted
    opened = world.opened()
    assert opened is not None
    assert (opened.runs, opened.late) == ((), ())
    assert world.known == dict(world.rows_by_hour())


def test_an_event_stays_valid_while_others_commit_more_than_history_keeps() -> None:
    """The first reader looks at the table in between, so it always knows a version that is still there."""
    world = World()
    complete(world)
    sent_on = world.readers[0]._upkeep.announced
    assert sent_on is not None
    for minute in range(20):
        world.send(1, 70 + minute / 10)
        world.work(1, turns=20)
        if minute % 4 == 3:
            world.readers[0]._upkeep.announce(world.lake.table())
    assert sent_on.at is not None
    assert not world.lake.table().is_ancestor(sent_on.at), "expired"
    world.send(0, 63)
    world.work(0)
    opened = world.opened()
    assert opened is not None
    assert NUMBER not in opened
    assert world.hours() == ["22"]


def test_an_event_whose_version_has_expired_is_sent_again_rather_than_recorded() -> None:
    world = World()
    complete(world)
    for minute in range(20):
        world.send(1, 70 + minute / 10)
        world.work(1, turns=20)
    world.send(0, 63)
    world.work(0)
    opened = world.opened()
    assert opened is not None
    assert NUMBER in opened
    assert world.hours() == ["22", "22"]
    world.send(0, 64)
    world.work(0)
    assert world.hours() == ["22", "22"]
