"""Rows of a topic that is gone go by their age, too: another reader of the ingestor drops them."""

from __future__ import annotations

from typing import Any

import pytest

from tarn.adapters.origins import ParquetOrigins
from tarn.core.errors import UnavailableError
from tarn.core.offsets import SUMMARY_PREFIX
from tarn.core.retired import PREFIX, Retired
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.ingest.batch_commit import offsets_in, pending_in, retired_in
from tarn.ingest.status import State
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_replaced import update
from tests.contract.ingest.test_retention import LIMITS, order
from tests.contract.ingest.test_retention_beside import clean
from tests.support.lake import SPEC, Lake

DAYS = ("day1", "day2", "day3")
GONE = Retired(rows=1, runs={0: ((0, 1),)})


def spec(topic: str) -> IngestorSpec:
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    text = text.replace("{topic: orders, create: true, partitions: 2}", '{topicPattern: "day.*"}')
    whole = parse_spec(text + "  retention: {age: 48h, column: at}\n", file="orders.yaml")
    (one,) = whole.per_topic([topic])
    return one


class World:
    """A table of a topic a day; each has one old row, one bad record, and the last one a young row."""

    def __init__(self) -> None:
        self.lake = Lake(*(Topic(name, 1, topic_id=f"id-{name}") for name in DAYS))
        self.readers = {name: self.lake.ingestor(spec(name), limits=LIMITS) for name in DAYS}
        for name in DAYS:
            self.send(name, order(1, 60), b"bad")
        self.send(DAYS[-1], order(2, 1))

    def send(self, name: str, *values: Any) -> None:
        self.lake.sources.topics[name].send(0, *values)
        self.lake.work(self.readers[name], turns=20)

    def wait(self, name: str, turns: int = 120) -> None:
        def pass_time() -> None:
            self.lake.clock.now_s += 0.1

        self.lake.sources.on_poll = pass_time
        self.lake.work(self.readers[name], turns=turns)
        self.lake.sources.on_poll = lambda: None

    def end(self, name: str) -> None:
        """The topic is deleted, and its reader ends."""
        del self.lake.sources.topics[name]
        self.lake.registry.remove(f"orders.{name}")

    def retired(self, name: str) -> Retired | None:
        return retired_in(self.lake.table(), f"orders.{name}")


def test_old_rows_of_topics_that_are_gone_go_and_are_stated_of_their_streams() -> None:
    world = World()
    world.end("day1")
    world.end("day2")

    def stated() -> dict[str, Any]:
        state = world.lake.table()
        return {s: (offsets_in(state, s), pending_in(state, s)) for s in ("orders.day1", "orders.day2")}

    before = stated()
    assert all(len(pending) == 1 for _, pending in before.values())
    world.wait("day3")
    assert [world.retired(name) for name in DAYS] == [GONE] * 3
    assert world.lake.offsets() == [(0, 2)]
    assert stated() == before
    assert clean(world.lake) == []


def test_files_of_several_topics_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit drops those of one stream; the next one need not read again what is for it."""
    world = World()
    world.end("day1")
    world.end("day2")
    read: list[str] = []
    rows = ParquetOrigins.rows

    def counting(self: ParquetOrigins, file: Any, seen: Any) -> Any:
        read.append(file.path)
        return rows(self, file, seen)

    monkeypatch.setattr(ParquetOrigins, "rows", counting)
    world.wait("day3")
    assert [world.retired(name) for name in DAYS] == [GONE] * 3
    assert len(read) == len(set(read)) >= 3


def test_a_topic_that_goes_while_its_files_are_known_to_stay_is_looked_at_again() -> None:
    world = World()
    world.lake.registry.remove("orders.day2")
    world.wait("day3")
    assert world.retired("day1") is None
    world.end("day1")
    world.wait("day3")
    assert world.retired("day1") is not None


def test_a_topic_that_is_there_is_left_to_its_own_reader() -> None:
    world = World()
    world.lake.registry.remove("orders.day1")
    world.end("day2")
    waits = {"table": "bronze.orders", "stream": "orders.day2", "state": State.WAITING}
    world.lake.registry.update("orders.day2", **waits)
    world.wait("day3")
    assert world.retired("day1") is None, "its reader runs elsewhere, or was stopped"
    assert world.retired("day2") is not None, "a reader that waits for its topic drops nothing"


def test_one_reader_of_an_ingestor_does_it() -> None:
    world = World()
    world.end("day2")
    world.lake.registry.update("orders.day1", state=State.RUNNING)
    world.wait("day3")
    assert world.retired("day2") is None
    world.wait("day1")
    assert world.retired("day2") is not None


def test_nothing_is_dropped_while_kafka_does_not_say_which_topics_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.end("day1")

    def fails() -> list[str]:
        raise UnavailableError("no broker")

    monkeypatch.setattr(world.lake.sources, "list_topics", fails)
    world.wait("day3")
    assert world.retired("day1") is None
    assert world.retired("day3") is not None, "its own rows go"


@pytest.mark.parametrize("damaged", [SUMMARY_PREFIX, PREFIX])
def test_a_stream_whose_state_cannot_be_read_stops_no_other(damaged: str, logged: list[Any]) -> None:
    world = World()
    world.end("day1")
    world.end("day2")
    state = world.lake.table()
    (head, held) = state.head, offsets_in(state, "orders.day1")
    assert head is not None
    assert held is not None
    summary = {**head["summary"], "tarn.offsets.orders.day1": held.to_json(), f"{damaged}orders.day1": "{"}
    snapshot = {
        **head,
        "snapshot-id": 4_711,
        "parent-snapshot-id": state.head_id,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": int(state.metadata["last-updated-ms"]) + 1,
        "summary": summary,
    }
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 4_711}
    update(world.lake, {"action": "add-snapshot", "snapshot": snapshot}, main)
    world.wait("day3")
    assert (world.retired("day2"), world.retired("day3")) == (GONE, GONE)
    assert world.lake.registry.get("orders.day3").state is State.RUNNING
    left = [line for line in logged if line.get("event") == "old rows of a topic that is gone are left"]
    assert [line["stream"] for line in left] == ["orders.day1"]
    logged.clear()
