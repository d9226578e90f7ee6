"""Watermarks: carried in each commit of a stream, through restarts, faults, merges and rollbacks."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tarn.core import small_files
from tarn.core.errors import CorruptStateError, InvalidSpecError
from tarn.core.history import Retention
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.ingest.batch_commit import watermark_in
from tarn.ingest.ingestor import Ingestor
from tarn.ingest.metrics import to_metrics
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_faults import faulty_lake
from tests.contract.ingest.test_merge import MINUTE_S
from tests.support.lake import SPEC, Lake
from tests.support.plays import seeds

SHORT = Retention(newest=5, steps=(), total_min=0)
START = datetime.fromtimestamp(1_700_000_000, tz=UTC)
"""About the clock of a lake in memory."""


def timed(rule: str = "{column: at}", *, partitioning: str = "[]", merge: str = "false") -> IngestorSpec:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", partitioning)
    text = text.replace("maxLatencySeconds: 0.05", f"maxLatencySeconds: 0.05, mergeSmallFiles: {merge}")
    return parse_spec(text + (f"  eventTime: {rule}\n" if rule else ""), file="orders.yaml")


def order(number: int, minutes: float | None) -> bytes:
    at = None if minutes is None else (START + timedelta(minutes=minutes)).isoformat()
    return json.dumps({"id": number, "at": at}).encode()


class World:
    """A lake of one topic, and its stream's watermark."""

    def __init__(self, partitions: int = 1, made: IngestorSpec | None = None) -> None:
        self.topic = Topic("orders", partitions)
        self.lake = Lake(self.topic, retention=SHORT)
        self.spec = made or timed()

    def send(self, *minutes: float | None, partition: int = 0) -> None:
        first = len(self.topic.logs[partition])
        self.topic.send(partition, *(order(first + n, at) for n, at in enumerate(minutes)))

    def ingest(self, turns: int = 60) -> None:
        self.lake.work(self.lake.ingestor(self.spec), turns=turns)

    def minutes(self) -> float | None:
        """The watermark, in minutes after START."""
        mark = watermark_in(self.lake.table(), "orders")
        if mark is None or mark.at_us is None:
            return None
        return (datetime.fromtimestamp(mark.at_us / 1e6, tz=UTC) - START).total_seconds() / 60

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.lake.registry.get("orders").to_json()
        return found


def test_it_follows_the_latest_event_time_less_the_lateness() -> None:
    world = World(made=timed("{column: at, maxOutOfOrdernessSeconds: 120}"))
    world.send(3, 10, 7)
    world.ingest()
    assert world.minutes() == 8
    world.send(9, None)
    world.ingest()
    assert world.minutes() == 8, "a late row is a row, and does not take it back"
    assert len(world.lake.offsets()) == 5


def test_it_is_the_lowest_of_the_partitions_until_one_is_idle() -> None:
    world = World(2, timed("{column: at, idleTimeoutSeconds: 30}"))
    world.send(10)
    world.ingest()
    assert world.minutes() is None
    world.send(4, partition=1)
    world.ingest()
    assert world.minutes() == 4
    world.lake.clock.now_s += 31
    world.send(12)
    world.ingest()
    assert world.minutes() == 12
    world.send(5, partition=1)
    world.ingest()
    assert world.minutes() == 12


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_waited_for_its_first_message_waits_for_the_other_partitions_too(begun: bool) -> None:
    """They may have begun at the same moment: what is older is not late because nothing came before."""
    world = World(3, timed("{column: at, idleTimeoutSeconds: 30}"))
    if begun:
        world.ingest()
        world.lake.clock.now_s += 31
    world.send(10)
    world.ingest()
    assert world.minutes() is None
    world.send(4, partition=1)
    world.ingest()
    assert world.minutes() is None
    world.lake.clock.now_s += 31
    world.send(5, partition=1)
    world.ingest()
    assert world.minutes() == 5, "only once: what has none still is idle now"


def test_bad_records_and_times_far_ahead_of_the_clock_do_not_count() -> None:
    world = World(made=timed("{column: at, maxAheadSeconds: 600}"))
    world.topic.send(0, b"junk", json.dumps({"at": (START + timedelta(minutes=20)).isoformat()}).encode())
    world.send(3, 20, 60 * 24)
    world.ingest()
    assert 20 * 60 < world.lake.clock.now_s + 600 < 60 * 60
    assert world.lake.clock.now_s < 20 * 60, "20 minutes is ahead of the clock"
    assert world.minutes() == 20
    assert len(world.lake.offsets()) == 3, "the row itself is kept"


def test_rows_that_cannot_be_written_do_not_count() -> None:
    world = World(made=timed(partitioning="['truncate(10, id)']"))
    world.topic.send(0, order(-(2**63), 10), order(5, 3))
    world.ingest()
    assert [offset for _, offset in world.lake.offsets()] == [1]
    assert world.minutes() == 3


def test_without_a_rule_there_is_none_and_one_that_is_removed_goes() -> None:
    world = World(made=timed(""))
    world.send(3)
    world.ingest()
    assert world.minutes() is None
    assert world.status()["eventTime"] is None
    assert "watermark" not in str(world.lake.table().metadata)
    world.spec = timed()
    world.send(5)
    world.ingest()
    assert world.minutes() == 5
    world.spec = timed("")
    world.send(6)
    world.ingest()
    assert watermark_in(world.lake.table(), "orders") is None


def test_another_process_goes_on_with_it() -> None:
    world = World(2, timed("{column: at, idleTimeoutSeconds: 3600}"))
    world.send(10)
    world.send(8, partition=1)
    world.ingest()
    for _ in range(8):
        world.send(9)
        world.ingest()
    assert len(world.lake.table().metadata["snapshots"]) < 8, "and the first snapshots are gone"
    assert world.minutes() == 8
    world.send(9, partition=1)
    world.ingest()
    assert world.minutes() == 9


def test_a_merge_of_small_files_carries_it() -> None:
    world = World(made=timed(merge="true"))
    ingestor, turn = world.lake.ingestor(world.spec), [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] % 12 == 0 and turn[0] <= 144:
            world.send(turn[0] / 12)
        if turn[0] == 160:
            world.lake.clock.now_s += MINUTE_S
        return turn[0] > 190

    ingestor.cycle(until)
    head = world.lake.table().head
    assert head is not None
    assert head["summary"]["operation"] == "replace"
    assert "tarn.watermark.orders" in head["summary"], "the batches' own snapshots may be thinned"
    assert world.minutes() == 12


def test_a_rollback_takes_it_back_with_the_rows() -> None:
    world = World()
    world.send(5)
    world.ingest()
    first = world.lake.table().head_id
    world.send(9)
    world.ingest()
    assert world.minutes() == 9
    slot = world.lake.local._slot(world.lake.ingestor().table)
    update = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": first}
    world.lake.local.catalog.tables.commit(slot, [], [update])
    assert world.minutes() == 5
    world.ingest()
    assert world.minutes() == 9, "from the rows that are read again"


def test_commits_of_others_leave_it() -> None:
    topic = Topic("orders", 1)
    lake, _ = faulty_lake(topic, 1, rate=0.0)
    topic.send(0, order(0, 5))
    lake.work(lake.ingestor(timed()), turns=60)
    for _ in range(3):
        lake.catalog._foreign(lake.ingestor().table)  # type: ignore[attr-defined]
    mark = watermark_in(lake.table(), "orders")
    assert mark is not None
    topic.send(0, order(1, 3))
    lake.work(lake.ingestor(timed()), turns=60)
    after = watermark_in(lake.table(), "orders")
    assert after is not None
    assert after.at_us == mark.at_us


def test_an_unreadable_one_stops_the_stream() -> None:
    world = World()
    world.send(5)
    world.ingest()
    summary = world.lake.table().head["summary"]  # type: ignore[index]
    inner = world.lake.local.load

    def load(table: Any) -> Any:
        state = inner(table)
        for snapshot in state.metadata["snapshots"]:
            if "tarn.watermark.orders" in snapshot["summary"]:
                snapshot["summary"]["tarn.watermark.orders"] = "{}"
        return state

    world.lake.local.load = load  # type: ignore[method-assign]
    with pytest.raises(CorruptStateError, match="the watermark in the snapshot summary cannot be read"):
        world.lake.ingestor(world.spec).cycle(lambda: True)
    assert summary


def test_a_table_without_the_column_is_refused() -> None:
    world = World(made=timed(""))
    world.send(5)
    world.ingest()
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    start, end = text.index("  schema:"), text.index("  deadLetters")
    made = parse_spec(text[:start] + text[end:] + "  eventTime: {column: sent}\n", file="orders.yaml")
    with pytest.raises(InvalidSpecError, match=r"table bronze\.orders has no such column"):
        world.lake.ingestor(made).cycle(lambda: True)


def test_no_commit_is_made_for_it_alone() -> None:
    world = World(2, timed("{column: at, idleTimeoutSeconds: 30}"))
    world.send(10)
    world.send(4, partition=1)
    ingestor: Ingestor = world.lake.ingestor(world.spec)
    world.lake.work(ingestor, turns=60)
    before = world.lake.table().head_id
    world.lake.clock.now_s += 3_600
    world.lake.work(ingestor, turns=60)
    assert world.lake.table().head_id == before


# -- where it is shown -------------------------------------------------------------------------------------


def test_status_metrics_and_properties_show_it_floored_to_the_partition_too() -> None:
    world = World(made=timed(partitioning="['hour(at)']"))
    world.send(10)
    world.ingest()
    assert world.status()["eventTime"] == {
        "column": "at",
        "watermark": "2023-11-14T22:23:20Z",
        "completeThrough": "2023-11-14T22:00:00Z",
        "heldBackBy": [],
    }
    properties = world.lake.table().properties
    assert properties["tarn.watermark.orders"] == "2023-11-14T22:23:20Z"
    assert properties["tarn.complete-through.orders"] == "2023-11-14T22:00:00Z"
    lines = to_metrics(world.lake.registry).splitlines()
    labels = 'ingestor="orders",table="bronze.orders"'
    assert f"tarn_ingest_watermark_timestamp_seconds{{{labels}}} 1700000600.0" in lines
    assert f"tarn_ingest_complete_through_timestamp_seconds{{{labels}}} 1699999200" in lines


def test_a_new_process_shows_it_before_its_first_batch() -> None:
    world = World()
    world.send(10)
    world.ingest()
    world.lake.registry.remove("orders")
    world.lake.ingestor(world.spec).cycle(lambda: True)
    assert world.status()["eventTime"] == {
        "column": "at",
        "watermark": "2023-11-14T22:23:20Z",
        "completeThrough": None,
        "heldBackBy": [],
    }
    assert "complete_through_timestamp_seconds{" not in to_metrics(world.lake.registry)


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(25))
def test_it_never_goes_back_and_is_never_ahead_of_the_rows(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost, late and doubled requests, foreign commits, merges and new processes."""
    monkeypatch.setattr(small_files, "EVERY_S", 0.2)
    monkeypatch.setattr(small_files, "FIRST_LEVEL_MIN", 2)
    topic = Topic("orders", 2)
    lake, faults = faulty_lake(topic, seed, rate=0.35)
    lake.retention = SHORT
    chance = random.Random(seed)
    made = timed("{column: at, maxOutOfOrdernessSeconds: 60, idleTimeoutSeconds: 3600}", merge="true")
    marks: list[int] = []
    for turn in range(12):
        for partition in (0, 1):
            times = [turn + chance.uniform(-3, 1) for _ in range(chance.randrange(6))]
            topic.send(partition, *(order(n, at) for n, at in enumerate(times)))
        lake.work(lake.ingestor(made), turns=40)
        faults.land_some()
        if lake.table().head is None:
            continue
        mark, rows = watermark_in(lake.table(), "orders"), lake.rows()
        held = [
            [r["at"] for r in rows if r["_tarn"]["partition"] == p and r["at"] is not None] for p in (0, 1)
        ]
        if mark is not None and mark.at_us is not None:
            lowest = min(max(times) for times in held) - timedelta(minutes=1)
            assert mark.at_us <= round(lowest.timestamp() * 1e6)
            marks.append(mark.at_us)
    faults.land_all()
    faults.rate = 0.0
    lake.work(lake.ingestor(made), turns=300)
    mark = watermark_in(lake.table(), "orders")
    assert mark is not None
    assert marks == sorted(marks)
    latest = [
        max((r["at"] for r in lake.rows() if r["_tarn"]["partition"] == p), default=None) for p in (0, 1)
    ]
    if None not in latest:
        assert mark.at_us == max([*marks[-1:], round((min(latest) - timedelta(minutes=1)).timestamp() * 1e6)])
