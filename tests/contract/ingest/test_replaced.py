"""A table that another client replaced: no row twice, and no stop where none of the former rows are left."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.cli.ports import Clock, Offsets
from tarn.cli.rollback import RollbackPorts, RolledBack, roll_back
from tarn.cli.tables import rollback_lines
from tarn.core.audit.model import Kind
from tarn.core.errors import CorruptStateError, InvalidError, OtherStreamError
from tarn.core.history import Retention
from tarn.core.table_catalog import TableName
from tarn.core.table_state import WrittenFile
from tarn.ingest.batch_commit import offsets_in, pending_in
from tarn.ingest.wiring import uuid7
from tarn.keeper.fsck import fsck
from tarn.testing.memory_topic import Topic
from tests.support.lake import BUCKET, Lake, foreign_snapshot, order, replace_table, spec

NAME = TableName(("bronze",), "orders")
REPLACED = 4_711
ROWS = 20


def filled(version: int = 2, **options: Any) -> tuple[Lake, Topic]:
    topic = Topic("orders", 1)
    lake = Lake(topic, **options)
    send(lake, topic, ROWS, version=version)
    return lake, topic


def send(lake: Lake, topic: Topic, number: int, *, version: int = 2) -> None:
    first = len(topic.logs[0])
    topic.send(0, *(order(first + n) for n in range(number)))
    work(lake, version)


def work(lake: Lake, version: int = 2) -> None:
    lake.work(lake.ingestor(spec(format_version=version)), turns=60)


def two_streams(**options: Any) -> tuple[Lake, Topic, Topic]:
    """A table of two streams: `orders`, which had its last message before those of `others`."""
    lake, topic = filled(**options)
    other = Topic("others", 1, topic_id="id-2")
    lake.sources.topics["others"] = other
    send_others(lake, 30)
    return lake, topic, other


def send_others(lake: Lake, number: int) -> None:
    other = lake.sources.topics["others"]
    first = 1_000 + len(other.logs[0])
    other.send(0, *(order(first + n) for n in range(number)))
    text = spec(stream="others").model_dump(by_alias=True, mode="json")
    text["spec"]["source"]["kafka"]["topic"] = "others"
    lake.work(lake.ingestor(type(spec()).model_validate(text)), turns=60)


def ids(lake: Lake) -> list[int]:
    return sorted(row["id"] for row in lake.rows())


def advised(error: pytest.ExceptionInfo[Any], offsets: str) -> str:
    """The snapshot that the message advises to go to."""
    found = re.search(rf"scripts/tarn rollback TABLE --to (\S+) --offsets {offsets}", str(error.value))
    assert found is not None, str(error.value)
    return found[1]


def back(lake: Lake, ref: str, offsets: Offsets) -> RolledBack:
    topics, numbers = lake.sources.topics, itertools.count(lake.table().last_sequence + 10**15)
    ports = RollbackPorts(
        catalog=lake.catalog,
        objects=lake.objects,
        bounds=lambda: {name: {0: (one.starts[0], len(one.logs[0]))} for name, one in topics.items()},
        identity=lambda name: topics[name].identity,
        new_key=uuid7,
        new_snapshot_id=lambda: next(numbers),
        clock=Clock(wait=lambda _: None),
    )
    return roll_back(ports, NAME, ref, offsets)


def found(lake: Lake) -> list[int]:
    return [offset for _, offset in lake.offsets()]


def update(lake: Lake, *updates: dict[str, Any]) -> None:
    lake.local.catalog.tables.commit(lake.local._slot(NAME), [], list(updates))


def deletes_all(lake: Lake, number: int) -> None:
    """As DELETE FROM of an engine: a snapshot without files."""
    assert foreign_snapshot(lake.local, NAME, number)
    state = lake.table()
    writer = lake.ingestor().files.writer(state)
    removed = tuple(_written(entry) for entry in lake.files())
    listed = writer.snapshot((), snapshot_id=number + 1, removed=removed).write_manifest_list(state)
    snapshot = {
        **state.head,  # type: ignore[dict-item]
        "snapshot-id": number + 1,
        "parent-snapshot-id": state.head_id,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": int(state.metadata["last-updated-ms"]) + 1,
        "manifest-list": listed.path,
        "summary": {"operation": "delete", "total-records": "0", "total-data-files": "0"},
    }
    at = {"ref-name": "main", "type": "branch", "snapshot-id": number + 1}
    update(lake, {"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **at})


def _written(entry: Any) -> WrittenFile:
    file = entry.data_file
    return WrittenFile(
        path=file.file_path,
        partition=(),
        spec_id=0,
        records=file.record_count,
        bytes=file.file_size_in_bytes,
    )


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("tagged", [True, False], ids=["tagged", "tag dropped"])
def test_rows_that_were_kept_are_not_added_again(version: int, tagged: bool) -> None:
    lake, topic = filled(version)
    replace_table(lake.local, NAME, REPLACED)
    if not tagged:
        update(lake, {"action": "remove-snapshot-ref", "ref-name": "tarn-offsets-orders"})
    topic.send(0, order(ROWS))
    with pytest.raises(CorruptStateError, match=f"was replaced: its history begins with snapshot {REPLACED}"):
        work(lake, version)
    assert foreign_snapshot(lake.local, NAME, REPLACED + 1), "also after what others add"
    with pytest.raises(CorruptStateError) as stopped:
        work(lake, version)
    assert found(lake) == list(range(ROWS))
    ways = ("--offsets rewind", "--to main --offsets keep", "delete all its rows")
    assert [way in str(stopped.value) for way in ways] == [tagged, tagged, True]
    assert ("The tag tarn-offsets-orders is gone" in str(stopped.value)) is not tagged
    if not tagged:
        with pytest.raises(CorruptStateError, match="was replaced"):
            back(lake, "main", Offsets.KEEP)


def test_a_table_that_is_replaced_under_a_running_ingestor_stops_it() -> None:
    lake, topic = filled()
    ingestor, turn = lake.ingestor(spec()), [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] == 5:
            replace_table(lake.local, NAME, REPLACED)
            topic.send(0, *(order(ROWS + n) for n in range(3)))
        return turn[0] > 60

    with pytest.raises(CorruptStateError, match="was replaced"):
        ingestor.cycle(until)
    assert turn[0] < 60
    assert found(lake) == list(range(ROWS))


def test_a_stream_under_another_name_does_not_add_them_either() -> None:
    lake, _ = filled()
    replace_table(lake.local, NAME, REPLACED)
    with pytest.raises(OtherStreamError, match="holds stream 'orders' of topic orders"):
        lake.work(lake.ingestor(spec(stream="other")), turns=60)
    assert found(lake) == list(range(ROWS))


@pytest.mark.parametrize("version", [2, 3])
def test_the_rows_stay_and_reading_goes_on_after_a_rollback_to_the_replacement_itself(version: int) -> None:
    lake, topic = filled(version)
    replace_table(lake.local, NAME, REPLACED)
    topic.send(0, *(order(ROWS + n) for n in range(5)))
    back(lake, str(REPLACED), Offsets.KEEP)
    state = lake.table()
    assert state.head is not None
    assert state.head["parent-snapshot-id"] == REPLACED
    work(lake, version)
    assert found(lake) == list(range(ROWS + 5))
    with pytest.raises(InvalidError, match="is at snapshot"):
        back(lake, str(lake.table().head_id), Offsets.KEEP)


@pytest.mark.parametrize(("changed", "thinned"), [(False, False), (True, False), (True, True)])
def test_the_former_rows_of_all_streams_come_back_by_the_rollback_that_is_advised(
    changed: bool, thinned: bool
) -> None:
    lake, topic, _ = two_streams()
    send(lake, topic, 5)
    send_others(lake, 5)
    whole = ids(lake)
    if changed:
        assert foreign_snapshot(lake.local, NAME, REPLACED - 2)
        assert foreign_snapshot(lake.local, NAME, REPLACED - 1)
        if thinned:
            update(lake, {"action": "remove-snapshots", "snapshot-ids": [REPLACED - 2]})
    former = lake.table().head_id
    replace_table(lake.local, NAME, REPLACED)
    # Rows of none but the table before: it needs no log.
    for one in lake.sources.topics.values():
        one.topic_id += "-recreated"
    done = back(lake, str(former), Offsets.REWIND)
    assert {stream: was == now for stream, (was, now) in done.streams.items()} == {
        "orders": True,
        "others": True,
    }
    for one in lake.sources.topics.values():
        one.topic_id = one.topic_id.removesuffix("-recreated")
    replace_table(lake.local, NAME, REPLACED + 1)
    with pytest.raises(CorruptStateError) as stopped:
        send(lake, topic, 5)
    assert advised(stopped, "rewind") == str(former)
    done = back(lake, str(former), Offsets.REWIND)
    assert ids(lake) == whole
    (tag,) = [line for line in rollback_lines(done) if line.startswith("Tag")]
    assert tag.endswith("They state no offsets, so no rollback goes back to them: query them by the tag.")
    work(lake)
    send_others(lake, 5)
    assert len(ids(lake)) == len(set(ids(lake))) == len(whole) + 10


def test_what_another_stream_committed_is_not_lost_with_the_tag_of_one() -> None:
    lake, _, _ = two_streams()
    whole = ids(lake)
    replace_table(lake.local, NAME, REPLACED)
    with pytest.raises(InvalidError, match=r"may lack rows that its streams committed.*--offsets rewind"):
        back(lake, "tarn-offsets-orders", Offsets.KEEP)
    back(lake, "tarn-offsets-orders", Offsets.REWIND)
    assert len(ids(lake)) == ROWS
    send_others(lake, 0)
    assert ids(lake) == whole


def test_a_snapshot_that_was_staged_is_not_advised() -> None:
    lake, topic = filled()
    former = lake.table().head_id
    assert foreign_snapshot(lake.local, NAME, REPLACED - 1)
    staged = lake.table().snapshot(REPLACED - 1)
    summary = {**staged["summary"], "wap.id": "audit"}
    update(
        lake,
        {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": former},
        {"action": "remove-snapshots", "snapshot-ids": [REPLACED - 1]},
    )
    update(lake, {"action": "add-snapshot", "snapshot": _again(lake, staged) | {"summary": summary}})
    replace_table(lake.local, NAME, REPLACED)
    with pytest.raises(CorruptStateError) as stopped:
        send(lake, topic, 5)
    assert advised(stopped, "rewind") == str(former)


def _again(lake: Lake, snapshot: dict[str, Any]) -> dict[str, Any]:
    return {**snapshot, "sequence-number": lake.table().last_sequence + 1}


def test_all_streams_read_on_after_a_rollback_to_main() -> None:
    lake, topic, _ = two_streams()
    whole = ids(lake)
    replace_table(lake.local, NAME, REPLACED)
    assert foreign_snapshot(lake.local, NAME, REPLACED + 1)
    with pytest.raises(CorruptStateError) as stopped:
        work(lake)
    back(lake, advised(stopped, "keep"), Offsets.KEEP)
    assert REPLACED + 1 in [snapshot["snapshot-id"] for snapshot in lake.table().ancestors()]
    send(lake, topic, 5)
    send_others(lake, 5)
    assert len(ids(lake)) == len(set(ids(lake))) == len(whole) + 10


def test_an_engine_that_goes_back_to_the_replacement_stops_the_streams_again() -> None:
    lake, topic, _ = two_streams()
    replace_table(lake.local, NAME, REPLACED)
    back(lake, str(REPLACED), Offsets.KEEP)
    send(lake, topic, 5)
    whole = ids(lake)
    at = {"ref-name": "main", "type": "branch", "snapshot-id": REPLACED}
    update(lake, {"action": "set-snapshot-ref", **at})
    with pytest.raises(CorruptStateError, match="was replaced") as stopped:
        work(lake)
    assert "--offsets keep" not in str(stopped.value), "it would lose the rows that came since"
    with pytest.raises(CorruptStateError, match="was replaced"):
        back(lake, "main", Offsets.KEEP)
    back(lake, advised(stopped, "rewind"), Offsets.REWIND)
    assert ids(lake) == whole
    send(lake, topic, 5)
    send_others(lake, 5)
    assert len(ids(lake)) == len(set(ids(lake))) == len(whole) + 10


@pytest.mark.parametrize("offsets", list(Offsets))
def test_no_rollback_goes_back_to_the_replacement(offsets: Offsets) -> None:
    lake, topic = filled()
    former = lake.table().head_id
    replace_table(lake.local, NAME, REPLACED)
    done = back(lake, str(former), Offsets.REWIND)
    before = lake.table().metadata
    with pytest.raises((CorruptStateError, InvalidError), match="was replaced"):
        back(lake, str(done.tag), offsets)
    assert lake.table().metadata == before
    send(lake, topic, 5)
    assert found(lake) == list(range(ROWS + 5))


def test_a_tag_that_went_back_does_not_say_how_much_the_replacement_has() -> None:
    lake, topic = filled()
    older = lake.table().head_id
    send(lake, topic, 10)
    replace_table(lake.local, NAME, REPLACED)
    back(lake, str(older), Offsets.REWIND)
    at = {"ref-name": "main", "type": "branch", "snapshot-id": REPLACED}
    update(lake, {"action": "set-snapshot-ref", **at})
    with pytest.raises(CorruptStateError, match="was replaced") as stopped:
        back(lake, "main", Offsets.KEEP)
    back(lake, advised(stopped, "rewind"), Offsets.REWIND)
    work(lake)
    assert found(lake) == list(range(ROWS + 10))


def test_the_former_rows_come_back_and_reading_goes_on_after_a_rollback_to_the_tag() -> None:
    lake, topic = filled()
    former = lake.table().head_id
    replace_table(lake.local, NAME, REPLACED)
    topic.send(0, *(order(ROWS + n) for n in range(5)))
    back(lake, "tarn-offsets-orders", Offsets.REWIND)
    assert former in [snapshot["snapshot-id"] for snapshot in lake.table().ancestors()]
    work(lake)
    assert found(lake) == list(range(ROWS + 5))


def test_what_was_read_before_stays_away_after_a_rollback_to_an_older_snapshot() -> None:
    lake, topic = filled()
    older = lake.table().head_id
    send(lake, topic, 10)
    former = lake.table().head_id
    replace_table(lake.local, NAME, REPLACED)
    with pytest.raises(InvalidError, match=f"go to {former} with --offsets rewind first"):
        back(lake, str(older), Offsets.KEEP)
    back(lake, str(former), Offsets.REWIND)
    back(lake, str(older), Offsets.KEEP)
    assert found(lake) == list(range(ROWS))
    send(lake, topic, 5)
    assert found(lake) == [*range(ROWS), *range(ROWS + 10, ROWS + 15)]


def test_the_offsets_cannot_go_back_to_a_replacement_that_states_none() -> None:
    lake, _ = filled()
    replace_table(lake.local, NAME, REPLACED)
    with pytest.raises(CorruptStateError, match="was replaced"):
        back(lake, str(REPLACED), Offsets.REWIND)


def test_dead_letters_that_wait_are_not_forgotten_with_it() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    topic.send(0, b"junk", *(order(n) for n in range(1, ROWS)))
    killed = lake.ingestor(spec())
    killed._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    killed._dead_letters.due = lambda: False  # type: ignore[method-assign]
    lake.work(killed, turns=60)
    assert pending_in(lake.table(), "orders")
    replace_table(lake.local, NAME, REPLACED)
    back(lake, str(REPLACED), Offsets.KEEP)
    assert pending_in(lake.table(), "orders")
    work(lake)
    assert [row["value"] for row in lake.rows("ops.dead_letters")] == [b"junk"]


@pytest.mark.parametrize("emptied", ["by the replacement", "afterwards"])
def test_a_table_without_rows_is_filled_from_the_log(emptied: str) -> None:
    lake, topic = filled()
    replace_table(lake.local, NAME, REPLACED, empty=emptied == "by the replacement")
    if emptied == "afterwards":
        deletes_all(lake, REPLACED + 1)
    assert found(lake) == []
    send(lake, topic, 5)
    assert found(lake) == list(range(ROWS + 5))
    send(lake, topic, 5)
    assert found(lake) == list(range(ROWS + 10))


SHORT = Retention(newest=2, steps=(), total_min=0)


def is_whole(lake: Lake) -> None:
    bulk = PlainBulk(lake.store)
    report = fsck(bulk, manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None)
    assert report.damage == []
    assert not [one for one in report.findings if one.kind in {Kind.STREAMS_SAME, Kind.STREAMS_DOUBLED}]


def is_cut(lake: Lake) -> bool:
    *_, oldest = lake.table().ancestors()
    return "parent-snapshot-id" in oldest


@pytest.mark.parametrize("emptied", ["by the replacement", "afterwards"])
def test_a_stream_that_comes_once_the_history_was_thinned_fills_it_as_well(emptied: str) -> None:
    lake, topic, _ = two_streams(retention=SHORT)
    replace_table(lake.local, NAME, REPLACED, empty=emptied == "by the replacement")
    if emptied == "afterwards":
        deletes_all(lake, REPLACED + 1)
    for _ in range(6):
        send_others(lake, 5)
    assert is_cut(lake)
    assert ids(lake) == list(range(1_000, 1_060))
    assert offsets_in(lake.table(), "orders").next == {}  # type: ignore[union-attr]
    send(lake, topic, 5)
    assert ids(lake) == [*range(ROWS + 5), *range(1_000, 1_060)]
    for _ in range(6):
        send(lake, topic, 5)
    send_others(lake, 5)
    assert ids(lake) == [*range(ROWS + 35), *range(1_000, 1_065)]
    is_whole(lake)


def test_the_former_stream_of_a_topic_does_not_stop_the_one_that_fills_it_again() -> None:
    lake, topic = filled(retention=SHORT)
    send(lake, topic, 40)
    replace_table(lake.local, NAME, REPLACED, empty=True)
    other = lake.ingestor(spec(stream="other"))
    lake.work(other, turns=200)
    assert is_cut(lake)
    assert found(lake) == list(range(ROWS + 40))
    is_whole(lake)
    with pytest.raises(OtherStreamError, match="holds stream 'other' of topic orders"):
        work(lake)
    assert found(lake) == list(range(ROWS + 40))


def test_the_former_rows_come_back_after_another_stream_began_in_the_replacement() -> None:
    lake, topic, _ = two_streams()
    whole, former = ids(lake), lake.table().head_id
    replace_table(lake.local, NAME, REPLACED, empty=True)
    send_others(lake, 5)
    done = back(lake, str(former), Offsets.REWIND)
    assert "stream orders: reads again from 20 in partition 0 (it was at the beginning of its topic)." in (
        rollback_lines(done)
    )
    assert ids(lake) == whole
    send(lake, topic, 5)
    send_others(lake, 0)
    assert ids(lake) == [*range(ROWS + 5), *range(1_000, 1_035)]
    back(lake, str(done.tag), Offsets.REWIND)
    send(lake, topic, 0)
    send_others(lake, 0)
    assert ids(lake) == [*range(ROWS + 5), *range(1_000, 1_035)]


def test_streams_that_stopped_stay_so_when_another_one_begins() -> None:
    lake, topic = filled()
    replace_table(lake.local, NAME, REPLACED)
    lake.sources.topics["others"] = Topic("others", 1, topic_id="id-2")
    send_others(lake, 5)
    with pytest.raises(CorruptStateError, match="was replaced"):
        send(lake, topic, 5)


def test_a_table_that_is_replaced_again_once_it_was_filled_stops_too() -> None:
    lake, topic = filled()
    replace_table(lake.local, NAME, REPLACED, empty=True)
    work(lake)
    replace_table(lake.local, NAME, REPLACED + 1)
    with pytest.raises(CorruptStateError, match=str(REPLACED + 1)):
        send(lake, topic, 5)
    assert found(lake) == list(range(ROWS))


@pytest.mark.parametrize("emptied", ["by the replacement", "afterwards"])
def test_one_stream_does_not_take_the_rows_of_the_other_for_those_of_a_replacement(emptied: str) -> None:
    """Two ingestors of one table, which was replaced and is empty: whoever comes second finds rows."""
    lake, topic = filled()
    other = Topic("others", 1, topic_id="id-2")
    lake.sources.topics["others"] = other
    text = spec(stream="others").model_dump(by_alias=True, mode="json")
    text["spec"]["source"]["kafka"]["topic"] = "others"
    second = type(spec()).model_validate(text)
    other.send(0, *(order(1_000 + n) for n in range(4)))
    lake.work(lake.ingestor(second), turns=60)
    replace_table(lake.local, NAME, REPLACED, empty=emptied == "by the replacement")
    if emptied == "afterwards":
        deletes_all(lake, REPLACED + 1)
    lake.work(lake.ingestor(second), turns=60)
    assert len(lake.rows()) == 4
    send(lake, topic, 5)
    assert len(lake.rows()) == ROWS + 5 + 4
    state = lake.table()
    assert [offsets_in(state, name).next for name in ("orders", "others")] == [{0: ROWS + 5}, {0: 4}]  # type: ignore[union-attr]


@pytest.mark.parametrize("tool", ["an engine", "scripts/tarn rollback"])
def test_a_table_that_had_rows_before_the_stream_and_went_back_to_them_is_filled_again(tool: str) -> None:
    lake, topic = filled()
    # What stood there first: the rows of a table that ingest did not write.
    replace_table(lake.local, NAME, REPLACED)
    update(
        lake,
        {"action": "remove-snapshot-ref", "ref-name": "tarn-offsets-orders"},
        {"action": "remove-properties", "removals": ["tarn.offsets.orders.since"]},
    )
    send(lake, topic, 5)
    assert len(lake.rows()) == 2 * ROWS + 5, "that table was no stream's"
    if tool == "an engine":
        at = {"ref-name": "main", "type": "branch", "snapshot-id": REPLACED}
        update(lake, {"action": "set-snapshot-ref", **at})
    else:
        back(lake, str(REPLACED), Offsets.REWIND)
    assert len(lake.rows()) == ROWS
    assert foreign_snapshot(lake.local, NAME, REPLACED + 1), "and others may add to it"
    work(lake)
    assert len(lake.rows()) == 2 * ROWS + 5


def test_a_thinned_history_does_not_stop_a_stream() -> None:
    lake, topic = filled(retention=Retention(newest=2, steps=(), total_min=0))
    for number in range(6):
        send(lake, topic, 5)
        assert foreign_snapshot(lake.local, NAME, REPLACED + number)
    assert found(lake) == list(range(ROWS + 30))
