"""The offset chain (I5): verdicts, and a model with lost, late, duplicated and zombie requests."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarn.core.errors import CorruptStateError, SourceChangedError
from tarn.core.offsets import (
    PAIRS_MAX,
    OffsetMap,
    OffsetRange,
    TopicIdentity,
    check_offsets,
)
from tarn.core.outcome import AlreadyCommitted, Rejected

SOURCE = TopicIdentity(cluster="c1", topic="t", topic_id="id1")


def at(**next_offsets: int) -> OffsetMap:
    return OffsetMap(source=SOURCE, next={int(k[1:]): v for k, v in next_offsets.items()})


def ranges(*triples: tuple[int, int, int]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(partition=p, start=s, end=e) for p, s, e in triples)


def test_a_range_that_starts_where_the_table_ends_continues_the_chain_and_carries_the_rest_forward():
    verdict = check_offsets(at(p0=10, p1=5), SOURCE, ranges((0, 10, 12)))
    assert verdict == at(p0=12, p1=5)


def test_a_covered_range_is_already_done():
    assert check_offsets(at(p0=12, p1=5), SOURCE, ranges((0, 10, 12))) == AlreadyCommitted()


@pytest.mark.parametrize(("start", "kind"), [(11, "gap"), (9, "overlap")])
def test_a_range_that_starts_elsewhere_is_refused(start, kind):
    verdict = check_offsets(at(p0=10), SOURCE, ranges((0, start, 20)))
    assert verdict == Rejected(
        reason=f"partition 0: the batch starts at {start}, the table ends at 10 ({kind})"
    )


def test_a_batch_that_is_covered_in_one_partition_only_is_refused_as_a_whole():
    verdict = check_offsets(at(p0=20, p1=5), SOURCE, ranges((0, 10, 20), (1, 5, 9)))
    assert verdict == Rejected(reason="partition 0: the batch starts at 10, the table ends at 20 (overlap)")


def test_a_partition_the_table_does_not_know_starts_where_its_log_starts():
    fresh = frozenset({0, 1})
    assert check_offsets(at(p0=3), SOURCE, ranges((1, 57, 60)), fresh=fresh) == at(p0=3, p1=60)
    assert check_offsets(None, SOURCE, ranges((0, 7, 9)), fresh=fresh) == at(p0=9)


@pytest.mark.parametrize("table", [None, at(p1=5)])
def test_a_partition_that_the_table_forgot_is_a_gap(table):
    """Rolled back to before the stream's first commit: the rows before this batch are not in the table."""
    verdict = check_offsets(table, SOURCE, ranges((0, 10, 12)))
    assert verdict == Rejected(
        reason="partition 0: the batch starts at 10, the table does not know the partition (gap)"
    )


def test_a_fresh_partition_that_another_one_filled_meanwhile_is_fenced_like_any_other():
    verdict = check_offsets(at(p0=3), SOURCE, ranges((0, 0, 5)), fresh=frozenset({0}))
    assert verdict == Rejected(reason="partition 0: the batch starts at 0, the table ends at 3 (overlap)")


@pytest.mark.parametrize("field", ["cluster", "topic", "topic_id"])
def test_offsets_of_another_source_are_never_compared(field):
    other = TopicIdentity(**{"cluster": "c1", "topic": "t", "topic_id": "id1", field: "other"})
    with pytest.raises(SourceChangedError) as caught:
        check_offsets(at(p0=3), other, ranges((0, 0, 3)))
    assert f"{field} was" in caught.value.message
    assert "'other'" in caught.value.message


def test_two_ranges_of_one_partition_are_a_defect():
    with pytest.raises(ValueError, match="one range per partition"):
        check_offsets(None, SOURCE, ranges((0, 0, 1), (0, 1, 2)), fresh=frozenset({0}))


@pytest.mark.parametrize(("partition", "start", "end"), [(-1, 0, 1), (0, -1, 1), (0, 2, 1)])
def test_impossible_ranges_are_refused(partition, start, end):
    with pytest.raises(ValueError, match="not an offset range"):
        OffsetRange(partition=partition, start=start, end=end)


@pytest.mark.long
@given(st.dictionaries(st.integers(0, 999), st.integers(0, 2**62), max_size=20), st.integers(0, 120))
def test_a_map_survives_its_json(offsets, more):
    found = OffsetMap(source=SOURCE, next={**offsets, **{2_000 + p: p * p for p in range(more)}})
    assert OffsetMap.from_json(found.to_json()) == found


def test_the_largest_offset_is_that_of_kafka():
    found = OffsetMap(source=SOURCE, next={0: 2**63 - 1})
    assert OffsetMap.from_json(found.to_json()) == found


def test_the_map_of_few_partitions_is_what_earlier_versions_read():
    text = OffsetMap(source=SOURCE, next=dict.fromkeys(range(PAIRS_MAX), 7)).to_json()
    value = json.loads(text)
    assert (value["v"], value["next"]) == (1, {str(p): 7 for p in range(PAIRS_MAX)})


def test_the_map_of_many_partitions_takes_less_than_half_the_bytes():
    known = {**{p: 1_000 + p for p in range(450)}, **{p: 2 * p for p in range(500, 950)}}
    text = OffsetMap(source=SOURCE, next=known).to_json()
    value = json.loads(text)
    assert value["v"] == 2
    assert value["next"] == [[0, *range(1_000, 1_450)], [500, *range(1_000, 1_900, 2)]]
    assert len(text) < len(json.dumps({str(p): o for p, o in known.items()}, separators=(",", ":"))) / 2


@given(
    st.dictionaries(st.integers(0, 99), st.tuples(st.integers(0, 2**62), st.none() | st.integers(0, 3))),
)
def test_epochs_survive_the_json_of_a_map(held):
    epochs = {p: epoch for p, (_, epoch) in held.items() if epoch is not None}
    found = OffsetMap(source=SOURCE, next={p: o for p, (o, _) in held.items()}, epochs=epochs)
    again = OffsetMap.from_json(found.to_json())
    assert (again, again.epochs) == (found, epochs)


@pytest.mark.parametrize(
    ("partitions", "epochs", "stored"),
    [
        (2, {0: 4, 1: 4}, 4),
        (2, {0: 4, 1: 6}, {"0": 4, "1": 6}),
        (2, {1: 4}, {"1": 4}),
        (2, {1: 4, 7: 4}, {"1": 4}),
        (2, {}, None),
        (900, dict.fromkeys(range(900), 4), 4),
        (900, {7: 4, 8: 6, 10: 6}, [[7, 4, 6], [10, 6]]),
    ],
)
def test_an_epoch_of_all_partitions_is_one_number(partitions, epochs, stored):
    text = OffsetMap(source=SOURCE, next=dict.fromkeys(range(partitions), 7), epochs=epochs).to_json()
    assert json.loads(text).get("epochs") == stored


def test_a_partition_has_the_epoch_of_its_last_range_or_none():
    first = OffsetMap(source=SOURCE, next={0: 10, 1: 5, 2: 7}, epochs={0: 2, 1: 2, 2: 2})
    after = first.advance(ranges((0, 10, 12), (1, 5, 6)), {0: 4, 2: 6})
    assert (after, after.epochs) == (at(p0=12, p1=6, p2=7), {0: 4, 2: 2})
    assert first.advance(ranges((0, 10, 12))).epochs == {1: 2, 2: 2}, "as a caller that knows none"
    checked = check_offsets(first, SOURCE, ranges((2, 7, 9)), epochs={2: 4})
    assert isinstance(checked, OffsetMap)
    assert checked.epochs == {0: 2, 1: 2, 2: 4}


TOO_LARGE = ("9223372036854775808", '"9223372036854775808"', f'"{10**30}"', "1e300", f'"{"9" * 5_000}"')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        '{"v":3,"cluster":"c","topic":"t","topic-id":"i","next":{}}',
        '{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":{"0":1}}',
        '{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":[1]}',
        '{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":[[]]}',
        '{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":[["0",1]]}',
        '{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":[[0,1,-1]]}',
        '{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":[[-1,1]]}',
        '{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":[[0,1,2],[1,3]]}',
        '{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":{"0":-1}}',
        '{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":{"x":1}}',
        '{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":[1]}',
        '{"v":1,"cluster":"c","topic":"t","next":{}}',
        '{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":{"0":1},"epochs":-1}',
        '{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":{"0":1},"epochs":{"0":-1}}',
        '{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":{"0":1},"epochs":[[0,1]]}',
        '{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":[[0,1]],"epochs":{"0":1}}',
        '{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":{"0":1},"epochs":"x"}',
        '{"v":1,"cluster":"c","topic":"t","topic-id":["i"],"next":{}}',
        '{"v":1,"cluster":"c","topic":1,"topic-id":"i","next":{}}',
        '{"v":1,"cluster":null,"topic":"t","topic-id":"i","next":{}}',
        *(f'{{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":{{"0":{o}}}}}' for o in TOO_LARGE),
        *(f'{{"v":2,"cluster":"c","topic":"t","topic-id":"i","next":[[0,{o}]]}}' for o in TOO_LARGE),
        '{"v":1,"cluster":"c","topic":"t","topic-id":"i","next":{"9223372036854775808":1}}',
    ],
)
def test_an_unreadable_map_stops(text):
    with pytest.raises(CorruptStateError, match="cannot be read"):
        OffsetMap.from_json(text)


class Model:
    """A catalog as the protocol sees it: a chain of snapshots, and a compare-and-swap on the head."""

    def __init__(self) -> None:
        self.snapshots: list[tuple[OffsetMap | None, tuple[OffsetRange, ...]]] = [(None, ())]

    @property
    def head(self) -> int:
        return len(self.snapshots) - 1

    def deliver(self, base: int, after: OffsetMap, batch: tuple[OffsetRange, ...]) -> bool:
        if base != self.head:
            return False
        self.snapshots.append((after, batch))
        return True

    def rows(self) -> list[tuple[int, int]]:
        return [(r.partition, o) for _, batch in self.snapshots for r in batch for o in range(r.start, r.end)]


steps = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "deliver", "deliver", "again", "lose", "plan", "grow"]),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    min_size=10,
    max_size=120,
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(steps, st.integers(1, 3))
def test_no_interleaving_of_lost_late_doubled_and_zombie_commits_loses_or_doubles_a_row(plan, partitions):
    """Four writers with stale views; requests arrive in any order, any number of times, or never."""
    model = Model()
    log_ends = dict.fromkeys(range(partitions), 6)
    views: dict[int, OffsetMap | None] = dict.fromkeys(range(4))
    cut: dict[int, tuple[OffsetRange, ...]] = {}
    wire: list[tuple[int, OffsetMap, tuple[OffsetRange, ...]]] = []

    def cut_batch(writer: int, size: int) -> tuple[OffsetRange, ...]:
        view = views[writer]
        known = view.next if view is not None else {}
        found = []
        for p, end in log_ends.items():
            start = known.get(p, 0)
            if start < end:
                found.append(OffsetRange(partition=p, start=start, end=min(end, start + size)))
        return tuple(found)

    def send(writer: int, size: int) -> None:
        batch = cut.setdefault(writer, cut_batch(writer, size))
        if not batch:
            cut.pop(writer)
            return
        base = model.head
        held = model.snapshots[base][0]
        view = views[writer]
        fresh = frozenset(p for p in log_ends if view is None or p not in view.next)
        verdict = check_offsets(held, SOURCE, batch, fresh=fresh)
        if isinstance(verdict, OffsetMap):
            wire.append((base, verdict, batch))
        else:
            views[writer] = held
            del cut[writer]

    for step, writer, size in plan:
        if step == "send":
            send(writer, size)
        elif step == "plan":
            views[writer] = model.snapshots[model.head][0]
            cut.pop(writer, None)
        elif step == "grow":
            log_ends[writer % partitions] += size
        elif wire:
            request = wire[(writer * 7 + size) % len(wire)]
            if step in ("deliver", "again"):
                model.deliver(*request)
            if step in ("deliver", "lose"):
                wire.remove(request)

    # All requests still in flight arrive, then one honest writer processes the rest.
    for request in list(wire):
        model.deliver(*request)
    wire.clear()
    cut.clear()
    views[0] = model.snapshots[model.head][0]
    for _ in range(200):
        send(0, 3)
        if not wire:
            if not cut_batch(0, 3):
                break
            continue
        assert model.deliver(*wire.pop())
        views[0] = model.snapshots[model.head][0]
        cut.clear()
    rows = model.rows()
    assert len(rows) == len(set(rows)), "a row is in the table twice"
    assert sorted(rows) == [(p, o) for p in range(partitions) for o in range(log_ends[p])], "a row is lost"


def test_the_model_finds_the_fault_that_a_check_against_the_head_only_has():
    """Control: without the shared base, the very same batch is committed twice."""
    model = Model()
    batch = ranges((0, 0, 3))
    model.deliver(model.head, at(p0=3), batch)
    model.deliver(model.head, at(p0=3), batch)
    assert len(model.rows()) != len(set(model.rows()))
