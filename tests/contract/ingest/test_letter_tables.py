"""Dead letters outlive their table: it is dropped, purged, renamed, or another one is declared (I12)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarn.core import dead_letter
from tarn.core.errors import CorruptStateError, ForbiddenError, InvalidSpecError, UnavailableError
from tarn.core.outcome import Unknown
from tarn.core.spec import FieldSpec, IngestorSpec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn.ingest.ingestor import Ingestor
from tarn.testing.faulty_catalog import Faults, FaultyCatalog
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_merge import checked
from tests.support.lake import BUCKET, Lake, foreign_snapshot, order, spec
from tests.support.plays import seeds

LETTERS = TableName(("ops",), "dead_letters")
OTHER = TableName(("bob",), "letters")


def lake_with(*values: bytes | None) -> tuple[Lake, Topic]:
    topic = Topic("orders", 1)
    topic.send(0, *values)
    return Lake(topic), topic


def with_letters(table: TableName = LETTERS, *, name: str = "orders", replicas: int = 1) -> IngestorSpec:
    """The spec with this dead-letter table; of another name it has a topic and a table of its own."""
    body = spec().model_dump(by_alias=True)
    body["metadata"]["name"] = body["spec"]["table"]["name"] = name
    body["spec"]["source"]["kafka"]["topic"] = name
    body["spec"]["deadLetters"]["table"] = {"namespace": table.namespace[0], "name": table.name}
    body["spec"]["replicas"] = replicas
    return IngestorSpec.model_validate(body)


def purge(lake: Lake, root: str) -> int:
    """Delete all below a location, as the reaper does a while after a drop; the number of objects."""
    keys = [entry.key for entry in lake.store.list(root.removeprefix(f"s3://{BUCKET}/") + "/")]
    for key in keys:
        lake.store.delete(key)
    return len(keys)


def drop(lake: Lake, table: TableName = LETTERS) -> str:
    """Drop a table; its location."""
    root = lake.table(str(table)).root
    lake.local.drop(table)
    return root


def rename(lake: Lake, table: TableName, target: TableName) -> None:
    lake.local.create_namespace(target.namespace)
    lake.local.catalog.names.rename(lake.local._slot(table), lake.local._slot(target))


def values(lake: Lake, table: TableName = LETTERS) -> list[bytes]:
    """Values of the dead letters in a table, all of whose files lie in its own folder."""
    state = lake.table(str(table))
    assert all(entry.data_file.file_path.startswith(f"{state.root}/") for entry in lake.files(str(table)))
    return sorted(row["value"] for row in lake.rows(str(table)))


def killed(lake: Lake, made: IngestorSpec | None = None) -> None:
    """Run a process that ends between its commit and the registration of its dead letters."""
    ingestor = lake.ingestor(made)
    ingestor._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    lake.work(ingestor)


def during(lake: Lake, ingestor: Ingestor, *steps: Callable[[], object], turns: int = 40) -> None:
    """Run one cycle with a step after each so many turns."""
    turn = [0]

    def until() -> bool:
        turn[0] += 1
        number, rest = divmod(turn[0], turns)
        if not rest and number <= len(steps):
            steps[number - 1]()
        return turn[0] > turns * (len(steps) + 2)

    ingestor.cycle(until)


@pytest.mark.parametrize("pause_s", [0.0, 60.0])
def test_bad_records_after_a_drop_are_in_the_new_table_and_outlive_the_purge(pause_s: float) -> None:
    lake, topic = lake_with(b"first")
    roots = []

    def dropped() -> None:
        roots.append(drop(lake))
        lake.clock.now_s += pause_s
        topic.send(0, b"second", order(1))

    during(lake, lake.ingestor(), dropped)
    assert purge(lake, roots[0])
    assert b"second" in values(lake)
    lake.work(lake.ingestor())
    assert b"second" in values(lake)
    assert lake.offsets() == [(0, 2)]


def test_after_a_while_bad_records_are_not_written_into_the_folder_of_a_dropped_table() -> None:
    lake, topic = lake_with(b"first")
    roots = []

    def dropped() -> None:
        roots.append(drop(lake))
        purge(lake, roots[0])
        lake.clock.now_s += 60
        topic.send(0, b"second")

    during(lake, lake.ingestor(), dropped)
    assert purge(lake, roots[0]) == 0
    assert values(lake) == [b"second"]


def test_files_that_were_registered_before_a_drop_are_copied_while_they_are_there() -> None:
    """The marker went with the table, so it is not known that they were."""
    lake, _ = lake_with(b"first", order(1))
    lake.work(lake.ingestor())
    root = drop(lake)
    lake.work(lake.ingestor())
    assert values(lake) == [b"first"]
    purge(lake, root)
    head = lake.table("ops.dead_letters").head_id
    lake.work(lake.ingestor())
    assert values(lake) == [b"first"]
    assert lake.table("ops.dead_letters").head_id == head, "it is copied once"
    assert checked(lake).damage == []


def test_a_file_that_went_with_its_table_is_left_out_and_blocks_none(logged: list[Any]) -> None:
    lake, topic = lake_with(b"gone", order(1))
    lake.work(lake.ingestor())
    purge(lake, drop(lake))
    lake.work(lake.ingestor())
    assert values(lake) == []
    gone = [line for line in logged if line["event"] == "a dead-letter file is gone with its table"]
    assert [(line["log_level"], line["stream"], line["records"]) for line in gone] == [
        ("warning", "orders", 1)
    ]
    topic.send(0, b"later")
    for _ in range(2):
        lake.work(lake.ingestor())
    assert values(lake) == [b"later"]
    assert len([line for line in logged if line["event"] == gone[0]["event"]]) == 1


@pytest.mark.parametrize("how", ["declared", "renamed"])
def test_what_waits_follows_the_ingestor_into_another_dead_letter_table(how: str) -> None:
    lake, topic = lake_with(b"first", order(1))
    killed(lake)
    if how == "renamed":
        rename(lake, LETTERS, TableName(("ops",), "archive"))
        made, table, old = spec(), LETTERS, TableName(("ops",), "archive")
    else:
        made, table, old = with_letters(OTHER), OTHER, LETTERS
    lake.work(lake.ingestor(made))
    assert values(lake, table) == [b"first"]
    purge(lake, drop(lake, old))
    topic.send(0, b"second")
    lake.work(lake.ingestor(made))
    assert values(lake, table) == [b"first", b"second"]
    assert checked(lake).damage == []


@pytest.mark.parametrize("step", ["before the copy", "copied", "reply lost", "applied and ended"])
def test_a_process_that_ends_while_it_copies_loses_and_doubles_nothing(step: str) -> None:
    lake, topic = lake_with(b"first", order(1))
    killed(lake)
    root = drop(lake)
    commit, done = lake.local.commit, []

    def failing(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if table != LETTERS or done:
            return commit(table, request, key=key)
        done.append(step)
        if step == "copied":
            raise RuntimeError(step)
        commit(table, request, key=key)
        if step == "applied and ended":
            raise RuntimeError(step)
        return Unknown(reason="504: the reply was lost")

    lake.local.commit = failing  # type: ignore[method-assign]
    if step == "before the copy":
        done.append(step)
        lake.ingestor()._dead_letters.ensure()
    if step in ("copied", "applied and ended"):
        with pytest.raises(RuntimeError):
            lake.work(lake.ingestor())
    for _ in range(2):
        lake.work(lake.ingestor())
    assert done == [step]
    assert values(lake) == [b"first"]
    purge(lake, root)
    topic.send(0, b"second")
    lake.work(lake.ingestor())
    assert values(lake) == [b"first", b"second"]
    assert checked(lake).damage == []


def test_a_store_that_does_not_answer_is_no_file_that_is_gone() -> None:
    lake, _ = lake_with(b"first", order(1))
    killed(lake)
    root, get = drop(lake), lake.store.get

    def away(key: str, **options: Any) -> Any:
        if key.startswith(root.removeprefix(f"s3://{BUCKET}/")):
            raise UnavailableError("the store is away")
        return get(key, **options)

    lake.store.get = away  # type: ignore[method-assign]
    lake.work(lake.ingestor(), turns=20)
    assert values(lake) == []
    lake.store.get = get  # type: ignore[method-assign]
    lake.work(lake.ingestor())
    assert values(lake) == [b"first"]


def test_a_table_that_is_dropped_twice_gets_them_each_time() -> None:
    lake, topic = lake_with(b"first")
    dropped: list[str] = []

    def again() -> None:
        dropped.append(drop(lake))
        topic.send(0, b"more-%d" % len(dropped))

    def later() -> None:
        lake.clock.now_s += 6

    during(lake, lake.ingestor(), again, later, again, later)
    assert len(dropped) == len(set(dropped)) == 2
    for root in dropped:
        purge(lake, root)
    assert b"more-2" in values(lake)


def test_ingestors_that_share_the_table_each_bring_their_own_into_the_new_one() -> None:
    lake, topic = lake_with(b"o-1", order(1))
    returns = Topic("returns", 1)
    returns.send(0, b"r-1", order(1))
    lake.sources.topics["returns"] = returns
    made = (with_letters(), with_letters(name="returns"))
    for one in made:
        killed(lake, one)
    topic.send(0, b"o-2")
    returns.send(0, b"r-2")
    readers = [lake.ingestor(one) for one in made]
    for reader in readers:
        lake.work(reader)
    root = drop(lake)
    topic.send(0, b"o-3")
    returns.send(0, b"r-3")
    for reader in [*readers, *map(lake.ingestor, made)]:
        lake.work(reader)
    purge(lake, root)
    found = values(lake)
    assert len(found) == len(set(found))
    assert {b"o-3", b"r-3"} <= set(found)
    markers = json.loads(lake.table("ops.dead_letters").head["summary"][dead_letter.MARKER_KEY])
    assert markers.keys() == {"orders", "returns"}


def test_replicas_that_both_find_a_file_elsewhere_register_one_copy() -> None:
    topic = Topic("orders", 2)
    topic.send(0, b"a-1")
    topic.send(1, b"b-1")
    lake = Lake(topic)
    made = with_letters(replicas=2)
    readers = [Ingestor(made, lake.context(), replica=number) for number in range(2)]
    for reader in readers:
        during(lake, reader)
    root = drop(lake)
    topic.send(0, b"a-2")
    topic.send(1, b"b-2")
    # Both copy before either of them registers.
    state = lake.table()
    writers = [reader._dead_letters for reader in readers]
    for writer in writers:
        writer.ensure()
    commit, ahead = writers[0]._committer.commit, []

    def second_first(change: Any, writer: Any) -> Any:
        if not ahead:
            ahead.append(writers[1].register(state))
        return commit(change, writer)

    writers[0]._committer.commit = second_first  # type: ignore[method-assign]
    writers[0].register(state)
    assert ahead == [len(values(lake))]
    for reader in readers:
        during(lake, reader)
    purge(lake, root)
    found = values(lake)
    assert len(found) == len(set(found))
    assert {b"a-2", b"b-2"} <= set(found)


def test_copies_fit_a_table_that_somebody_made_with_the_columns_in_another_order() -> None:
    lake, _ = lake_with(b"first", order(1))
    killed(lake)
    lake.local.create_namespace(OTHER.namespace)
    fields = (*reversed(dead_letter.FIELDS), FieldSpec(name="note", type="string"))
    lake.local.create(OTHER, lake.context().tables.table("x", fields, trace=False).create_request())
    made = with_letters(OTHER)
    lake.work(lake.ingestor(made))
    (entry,) = lake.files(str(OTHER))
    ids = {f["name"]: f["id"] for f in lake.table(str(OTHER)).metadata["schemas"][-1]["fields"]}
    schema = pq.read_schema(pa.BufferReader(lake.objects.read(entry.data_file.file_path)))
    found = {one.name: int(one.metadata[b"PARQUET:field_id"]) for one in schema}
    assert found == {name: ids[name] for name in found}
    assert values(lake, OTHER) == [b"first"]
    assert entry.data_file.lower_bounds[ids["offset"]] == (0).to_bytes(8, "little")


def test_a_list_that_names_a_file_of_another_stream_gives_no_access_to_it() -> None:
    """Whoever may write a table may write its summaries; ingest reads the files that they name."""
    lake, _ = lake_with(b"first", order(1))
    killed(lake)
    victim = lake.table().head["summary"]["tarn.dead-letters.orders"]
    lake.sources.topics["mine"] = Topic("mine", 1)
    made = with_letters(OTHER, name="mine")
    lake.work(lake.ingestor(made))
    state = lake.table("bronze.mine")
    summary = dict(state.head["summary"])
    summary["tarn.dead-letters.mine"] = victim
    snapshot = {
        **state.head,
        "snapshot-id": 7,
        "parent-snapshot-id": state.head_id,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": int(state.metadata["last-updated-ms"]) + 1,
        "summary": summary,
    }
    at = {"ref-name": "main", "type": "branch", "snapshot-id": 7}
    lake.local.catalog.tables.commit(
        lake.local._slot(TableName(("bronze",), "mine")),
        [],
        [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **at}],
    )
    with pytest.raises(CorruptStateError, match="has records of another stream"):
        lake.ingestor(made).cycle(lambda: False)
    assert values(lake, OTHER) == []
    lake.work(lake.ingestor())
    assert values(lake) == [b"first"]


def test_a_listed_file_that_cannot_be_read_is_named() -> None:
    lake, _ = lake_with(b"first", order(1))
    killed(lake)
    ((path, *_),) = json.loads(lake.table().head["summary"]["tarn.dead-letters.orders"])
    drop(lake)
    lake.store.put(path.removeprefix(f"s3://{BUCKET}/"), b"no Parquet")
    with pytest.raises(CorruptStateError, match=f"dead-letter file {path}") as caught:
        lake.ingestor().cycle(lambda: False)
    assert caught.value.fields["path"] == path
    assert "Restore the object; or delete it" in str(caught.value)
    lake.store.delete(path.removeprefix(f"s3://{BUCKET}/"))
    lake.work(lake.ingestor())
    assert values(lake) == []
    assert lake.offsets() == [(0, 1)]


def test_a_listed_file_with_a_damaged_page_is_named() -> None:
    lake, _ = lake_with(b"first" * 100, order(1))
    killed(lake)
    ((path, *_),) = json.loads(lake.table().head["summary"]["tarn.dead-letters.orders"])
    drop(lake)
    key = path.removeprefix(f"s3://{BUCKET}/")
    data = bytearray(lake.objects.read(path))
    # Behind the magic number: pages, of which the footer knows only the places.
    data[4:200] = b"\xff" * 196
    lake.store.delete(key)
    lake.store.put(key, bytes(data))
    with pytest.raises(CorruptStateError, match=f"dead-letter file {path}"):
        lake.ingestor().cycle(lambda: False)


def test_a_registration_that_is_refused_leaves_one_copy_however_often_it_is_tried() -> None:
    """No history names a copy that no table lists, so nothing would delete it."""
    lake, topic = lake_with(b"first", order(1))
    killed(lake)
    drop(lake)
    inner, refused = lake.local.commit, [True]

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if table == LETTERS and refused:
            raise ForbiddenError("the principal may only read it")
        return inner(table, request, key=key)

    lake.local.commit = commit  # type: ignore[method-assign]
    ingestor = lake.ingestor()
    for _ in range(5):
        with pytest.raises(ForbiddenError):
            ingestor.cycle(lambda: False)
    refused.clear()
    copies = f"{lake.table('ops.dead_letters').root.removeprefix(f's3://{BUCKET}/')}/data/"
    assert len(list(lake.store.list(copies))) == 1
    lake.work(ingestor)
    assert values(lake) == [b"first"]
    topic.send(0, b"second")
    lake.work(ingestor)
    assert values(lake) == [b"first", b"second"]
    assert len(list(lake.store.list(copies))) == 2


def test_a_new_table_that_cannot_hold_them_stops_the_ingestor_and_loses_none() -> None:
    lake, _ = lake_with(b"first", order(1))
    killed(lake)
    lake.local.create_namespace(OTHER.namespace)
    fields = (FieldSpec(name="value", type="binary"),)
    lake.local.create(OTHER, lake.context().tables.table("x", fields, trace=False).create_request())
    with pytest.raises(InvalidSpecError):
        lake.ingestor(with_letters(OTHER)).cycle(lambda: False)
    lake.work(lake.ingestor())
    assert values(lake) == [b"first"]


def writing_to(name: str) -> IngestorSpec:
    body = spec().model_dump(by_alias=True)
    body["spec"]["table"]["name"] = name
    return IngestorSpec.model_validate(body)


def test_a_stream_that_goes_back_to_a_former_table_registers_nothing_twice() -> None:
    lake, topic = lake_with(b"first", order(1))
    for name in ("orders", "elsewhere", "orders"):
        lake.work(lake.ingestor(writing_to(name)))
    assert values(lake) == [b"first", b"first"], "of two tables, each read the topic"
    topic.send(0, b"second")
    for name in ("orders", "elsewhere", "orders"):
        lake.work(lake.ingestor(writing_to(name)))
    assert values(lake) == [b"first", b"first", b"second", b"second"]
    summary = lake.table("ops.dead_letters").head["summary"]
    (former,) = json.loads(summary[dead_letter.FORMER_KEY])["orders"]
    assert former[0] == lake.table().uuid
    assert json.loads(summary[dead_letter.MARKER_KEY])["orders"][0] == lake.table("bronze.elsewhere").uuid
    assert checked(lake).damage == []


def test_a_summary_of_a_version_without_former_watermarks_is_read() -> None:
    summary = {dead_letter.MARKER_KEY: '{"a":["u-1",7],"b":["u-1",3]}'}
    found = dead_letter.markers_from_json(summary)
    assert {stream: [(m.table_uuid, m.sequence) for m in marks] for stream, marks in found.items()} == {
        "a": [("u-1", 7)],
        "b": [("u-1", 3)],
    }
    assert dead_letter.markers_to_json(found) == summary


def test_watermarks_of_former_tables_are_kept_in_limited_number() -> None:
    marks: dead_letter.Watermarks = ()
    for number in range(30):
        mark = dead_letter.DeadLetterWatermark(table_uuid=f"u-{number}", sequence=number)
        marks = dead_letter.advanced(marks, mark)
    again = dead_letter.DeadLetterWatermark(table_uuid="u-28", sequence=40)
    marks = dead_letter.advanced(marks, again)
    assert [m.table_uuid for m in marks] == ["u-28", "u-29", *(f"u-{n}" for n in range(27, 20, -1))]
    assert dead_letter.watermark_of(marks, "u-28") == again
    assert dead_letter.watermark_of(marks, "u-20") is None
    written = dead_letter.markers_to_json({"a": marks, "b": marks[:1]})
    assert dead_letter.markers_from_json(written) == {"a": marks, "b": marks[:1]}
    with pytest.raises(CorruptStateError, match="the dead-letter marker"):
        dead_letter.markers_from_json({**written, dead_letter.FORMER_KEY: '{"a":[1]}'})


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(20))
def test_drops_under_faults_lose_and_double_nothing(seed: int) -> None:
    topic = Topic("orders", 2)
    lake = Lake(topic)
    chance = random.Random(seed)
    faults = Faults(random.Random(seed), 0.35)

    def foreign(table: TableName) -> None:
        foreign_snapshot(lake.local, table, faults.chance.getrandbits(62))

    lake.catalog = FaultyCatalog(lake.local, faults, foreign=foreign)
    sent: list[bytes] = []
    roots: list[str] = []
    for number in range(12):
        for _ in range(chance.randrange(4)):
            sent.append(b"bad-%d" % len(sent))
            topic.send(chance.randrange(2), sent[-1], order(number))
        lake.work(lake.ingestor(), turns=chance.randrange(20, 60))
        if number % 4 == 3:
            # What was registered is the owner's to drop; what waits is not.
            held = {row["value"] for row in lake.rows("ops.dead_letters")}
            sent = [one for one in sent if one not in held]
            roots.append(drop(lake))
        elif chance.random() < 0.5:
            roots = [root for root in roots if not purge(lake, root)]
    faults.land_all()
    faults.rate = 0.0
    for _ in range(2):
        lake.work(lake.ingestor())
    for root in roots:
        purge(lake, root)
    found = values(lake)
    assert len(found) == len(set(found))
    assert set(sent) <= set(found)
