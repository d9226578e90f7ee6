"""A table takes a topic's records once, whatever the ingestor's name; a lag is correct or absent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tarn.core.errors import OffsetGapError, OtherStreamError, UnavailableError
from tarn.core.history import Retention
from tarn.core.spec import IngestorSpec
from tarn.core.table_catalog import TableName
from tarn.ingest.batch_commit import offsets_in, streams_named
from tarn.ingest.metrics import to_metrics
from tarn.ingest.status import State
from tarn.testing.memory_topic import Topic
from tests.support.lake import Lake, order, spec

TABLE = TableName(("bronze",), "orders")


def named(name: str, *, stream: str | None = None, fields: dict[str, str] | None = None) -> IngestorSpec:
    body = spec().model_dump(by_alias=True)
    body["metadata"] = {"name": name, "stream": stream}
    for field in body["spec"]["schema"]["fields"]:
        field["type"] = (fields or {}).get(field["name"], field["type"])
    return IngestorSpec.model_validate(body)


def filled(rows: int = 15, **options: Any) -> tuple[Lake, Topic]:
    topic = Topic("orders", 1)
    topic.send(0, *[order(n) for n in range(rows)])
    lake = Lake(topic, **options)
    lake.work(lake.ingestor())
    assert len(lake.offsets()) == rows
    return lake, topic


def numbers(lake: Lake) -> list[int]:
    return [o for _, o in lake.offsets()]


def test_a_renamed_ingestor_is_refused_and_says_how_to_go_on() -> None:
    lake, topic = filled()
    topic.send(0, order(15))
    with pytest.raises(OtherStreamError) as caught:
        lake.work(lake.ingestor(named("renamed")))
    assert caught.value.message == (
        "table bronze.orders holds stream 'orders' of topic orders (offsets {0: 15}), and stream 'renamed' "
        "would put the same records in again. If this ingestor was renamed, say so in its spec: "
        "metadata.stream: orders; else write to another table"
    )
    assert numbers(lake) == list(range(15))
    lake.work(lake.ingestor(named("renamed", stream="orders")))
    assert numbers(lake) == list(range(16)), "it went on where the stream stood"
    assert lake.registry.get("renamed").rows == 1
    held = offsets_in(lake.table(), "orders")
    assert held is not None
    assert dict(held.next) == {0: 16}


def test_it_is_stopped_with_a_reason_and_shows_what_it_does_not_read(logged: list[Any]) -> None:
    lake, topic = filled()
    topic.send(0, order(15), order(16))
    rests = [0]
    world = lake.context()

    def sleep(_seconds: float) -> None:
        rests[0] += 1
        topic.send(0, order(17))
        lake.stop = rests[0] == 3

    object.__setattr__(world.ports, "sleep", sleep)
    from tarn.ingest.ingestor import Ingestor

    seen: list[tuple[State, str, int | None]] = []
    update = lake.registry.update

    def noted(name: str, **changes: Any) -> Any:
        found = update(name, **changes)
        if changes.get("state") is State.STOPPED:
            seen.append((found.state, found.reason, found.lag))
        return found

    lake.registry.update = noted  # type: ignore[method-assign]
    Ingestor(named("renamed"), world).run()
    assert seen == [
        (State.STOPPED, "OtherStream", 17),
        (State.STOPPED, "OtherStream", 18),
        (State.STOPPED, "OtherStream", 19),
    ]
    logged.clear()


def test_two_streams_that_begin_at_once_never_both_go_in() -> None:
    """Each saw an empty table when it planned; the commit checks again."""
    topic = Topic("orders", 1)
    topic.send(0, order(1), order(2))
    lake = Lake(topic)
    first, second = lake.ingestor(), lake.ingestor(named("second"))
    plan, planned = second._plan, []

    def first_is_quicker() -> Any:
        made = plan()
        if not planned:
            lake.work(first)
        planned.append(made)
        return made

    second._plan = first_is_quicker  # type: ignore[method-assign]
    with pytest.raises(OtherStreamError):
        lake.work(second, turns=60)
    assert len(planned) == 1, "it planned, and was refused at its commit and when it planned again"
    assert numbers(lake) == [0, 1]


@pytest.mark.parametrize("later", [0, 5])
def test_of_two_streams_that_began_at_the_same_offset_one_goes_on(later: int) -> None:
    """Both have only their start in the table: of an empty log, or of one that was read and has expired."""
    topic = Topic("orders", 2)
    topic.send(0, *[order(n) for n in range(later)])
    lake = Lake(topic)
    first, second = lake.ingestor(), lake.ingestor(named("second"))
    lake.work(first)
    topic.starts[0] = later
    lake.work(second)
    assert streams_named(lake.table()) == {"orders", "second"}
    topic.send(0, *[order(n) for n in range(later, later + 2)])
    lake.work(second)
    with pytest.raises(OtherStreamError, match=rf"holds stream 'second' .*\(offsets {{0: {later + 2}"):
        lake.work(first, turns=60)
    topic.send(0, order(later + 2))
    topic.send(1, order(later + 3))
    with pytest.raises(OtherStreamError):
        lake.work(first)
    lake.work(second)
    expected = [*((0, n) for n in range(later + 3)), (1, 0)]
    assert lake.offsets() == expected, "the loser does not take another partition's records either"


def test_a_stream_that_only_began_is_no_reason_against_a_new_name() -> None:
    lake = Lake(Topic("orders", 1))
    lake.work(lake.ingestor())
    lake.sources.topics["orders"].send(0, order(0), order(1))
    lake.work(lake.ingestor(named("second")))
    assert numbers(lake) == [0, 1]


def test_two_streams_of_a_topic_that_commit_in_turn_never_both_go_in() -> None:
    """Each plans again and again while the other begins: no plan accepts what the other will add."""
    topic = Topic("orders", 1)
    topic.send(0, order(1), order(2))
    lake = Lake(topic)
    first, second = lake.ingestor(), lake.ingestor(named("second"))
    plan, planned = second._plan, []

    def first_begins() -> Any:
        made = plan()
        if not planned:
            assert first._begun(first._plan()) is not None
        planned.append(made)
        return made

    second._plan = first_begins  # type: ignore[method-assign]
    lake.work(second)
    with pytest.raises(OtherStreamError):
        lake.work(first)
    lake.work(second)
    assert numbers(lake) == [0, 1]


@pytest.mark.parametrize("partition", [0, 1])
def test_a_stream_that_reads_does_not_go_in_behind_another_one_that_went_on(partition: int) -> None:
    """Also with records of a partition that the other one has not read: it would only take them from it."""
    topic = Topic("orders", 2)
    lake = Lake(topic)
    first, second = lake.ingestor(), lake.ingestor(named("second"))
    lake.work(first)
    lake.work(second)
    plan, planned = first._plan, []

    def second_goes_on() -> Any:
        made = plan()
        if not planned:
            topic.send(0, order(0))
            lake.work(second)
            topic.send(partition, order(1))
            made = replace(made, own={partition: 0})
        planned.append(made)
        return made

    first._plan = second_goes_on  # type: ignore[method-assign]
    with pytest.raises(OtherStreamError):
        lake.work(first, turns=60)
    assert len(planned) == 1, "it was refused at its commit, and when it planned again"
    assert lake.offsets() == [(0, 0)]


def test_a_topic_recreated_may_begin_under_a_new_name() -> None:
    lake, _ = filled()
    again = Topic("orders", 1, topic_id="id-2")
    again.send(0, order(100))
    lake.sources.topics["orders"] = again
    lake.work(lake.ingestor(named("second")))
    assert len(lake.rows()) == 16


def test_what_is_gone_from_the_log_is_accepted_by_a_new_name_and_nothing_comes_twice() -> None:
    lake, topic = filled()
    topic.send(0, *[order(n) for n in range(15, 40)])
    topic.starts[0] = 30
    with pytest.raises(
        OffsetGapError, match=r"starts at 30: 15 offsets .* accept the loss by a new metadata\.name"
    ):
        lake.work(lake.ingestor())
    lake.work(lake.ingestor(named("second")))
    assert numbers(lake) == [*range(15), *range(30, 40)]


def test_a_log_that_ends_before_the_table_is_no_reason_for_a_new_name() -> None:
    """The offsets in between would be reused for other records."""
    lake, topic = filled()
    topic.logs[0] = topic.logs[0][:10]
    with pytest.raises(OffsetGapError, match=r"ends at 10, before it: .* write to a new table"):
        lake.work(lake.ingestor())
    with pytest.raises(OtherStreamError):
        lake.work(lake.ingestor(named("second")))
    assert numbers(lake) == list(range(15))


def test_a_stream_that_was_rolled_back_does_not_count() -> None:
    """Also if expiry cut the history before the stream began."""
    lake, topic = filled(retention=Retention(newest=3, steps=(), total_min=0))
    for n in range(15, 25):
        topic.send(0, order(n))
        lake.work(lake.ingestor(), turns=12)
    good = lake.table().head_id
    # A table with duplicates, as a release before this check left it.
    state = lake.table()
    doubled = lake.ingestor(named("second"))
    import tarn.ingest.ingestor as ingestor_module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingestor_module, "require_only_stream", lambda seen, *_a, **_k: streams_named(seen))
        lake.work(doubled, turns=40)
    assert len(lake.rows()) == 50
    assert {s["parent-snapshot-id"] for s in state.metadata["snapshots"]} != {None}
    ref = {"ref-name": "main", "type": "branch", "snapshot-id": good}
    lake.local.catalog.tables.commit(lake.local._slot(TABLE), [], [{"action": "set-snapshot-ref", **ref}])
    topic.send(0, order(25))
    lake.work(lake.ingestor())
    assert numbers(lake) == list(range(26))
    with pytest.raises(OtherStreamError):
        lake.work(lake.ingestor(named("third")))


def test_a_stream_whose_snapshots_are_all_gone_but_the_tagged_one_still_counts() -> None:
    lake, _ = filled(retention=Retention(newest=2, steps=(), total_min=0))
    state = lake.table()
    assert state.head is not None
    foreign = {
        **state.head,
        "summary": {"operation": "append", "total-records": "15"},
    }
    parent, sequence = state.head_id, state.last_sequence
    for n in range(1, 6):
        foreign = {
            **foreign,
            "snapshot-id": 100 + n,
            "parent-snapshot-id": parent,
            "sequence-number": sequence + n,
            "timestamp-ms": int(state.metadata["last-updated-ms"]) + n,
        }
        parent = 100 + n
        lake.local.catalog.tables.commit(
            lake.local._slot(TABLE),
            [],
            [
                {"action": "add-snapshot", "snapshot": foreign},
                {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 100 + n},
            ],
        )
    gone = [s["snapshot-id"] for s in lake.table().metadata["snapshots"] if 100 < s["snapshot-id"] < 105]
    lake.local.catalog.tables.commit(
        lake.local._slot(TABLE), [], [{"action": "remove-snapshots", "snapshot-ids": gone}]
    )
    with pytest.raises(OtherStreamError, match=r"offsets \{0: 15\}"):
        lake.work(lake.ingestor(named("second")))


# -- lag ---------------------------------------------------------------------------------------------------


class Resting:
    """The registry's content at each pause of an ingestor that cannot work."""

    def __init__(self, lake: Lake, made: IngestorSpec | None = None, *, rests: int = 3) -> None:
        self.lake = lake
        self.seen: list[tuple[State, int | None, str]] = []
        self.on_rest = lambda: None
        ingestor = lake.ingestor(made)
        plain = ingestor._context.ports.sleep

        def sleep(seconds: float) -> None:
            status = lake.registry.get(ingestor.name)
            self.seen.append((status.state, status.lag, status.lag_reason))
            self.on_rest()
            lake.stop = len(self.seen) >= rests
            plain(seconds)

        object.__setattr__(ingestor._context.ports, "sleep", sleep)
        self.ingestor = ingestor


def test_the_lag_of_a_stopped_ingestor_grows_with_the_topic(logged: list[Any]) -> None:
    lake, topic = filled()
    topic.send(0, *[order(n) for n in range(4)])
    story = Resting(lake, named("orders", fields={"id": "string"}))
    story.on_rest = lambda: topic.send(0, order(0))
    story.ingestor.run()
    assert [(state, lag) for state, lag, _ in story.seen] == [(State.STOPPED, lag) for lag in (4, 5, 6)]
    assert 'tarn_ingest_lag_offsets{ingestor="orders",table="bronze.orders"} 6' in to_metrics(lake.registry)
    logged.clear()


def test_a_lag_that_cannot_be_asked_for_is_not_there_and_says_why() -> None:
    lake, topic = filled()
    topic.send(0, order(1))

    def away(_topic: str, *, stream: str) -> Any:
        raise UnavailableError("no broker answers")

    lake.sources.open = away  # type: ignore[method-assign]
    story = Resting(lake)
    story.ingestor.run()
    assert [lag for _, lag, _ in story.seen] == [None] * 3
    assert story.seen[0][2] == "the table or the topic could not be asked: no broker answers"
    page = lake.registry.get("orders").to_json()
    assert (page["lag"], "no broker answers" in story.seen[-1][2]) == (None, True)
    assert "tarn_ingest_lag_offsets{" not in to_metrics(lake.registry)
    assert 'tarn_ingest_running{ingestor="orders",table="bronze.orders"} 0' in to_metrics(lake.registry)


def test_there_is_no_lag_before_anything_was_asked() -> None:
    lake = Lake(Topic("orders", 1))
    lake.ingestor()
    status = lake.registry.get("orders")
    assert (status.lag, status.lag_reason) == (None, "the table or the topic could not be asked: not yet")


def test_a_topic_recreated_has_no_lag_in_the_old_offsets(logged: list[Any]) -> None:
    lake, _ = filled()
    again = Topic("orders", 1, topic_id="id-2")
    again.send(0, order(1))
    lake.sources.topics["orders"] = again
    story = Resting(lake, rests=2)
    story.ingestor.run()
    assert [(s, lag) for s, lag, _ in story.seen] == [(State.STOPPED, None)] * 2
    logged.clear()
