"""User errors: a missing topic, columns that do not match, a table changed under the running ingestor.

Each time: a dead letter or a clear error, matching counts, nothing left half-done, and the rest goes on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tarn.adapters.manifests import read_list
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import TableName
from tarn.core.table_state import Json
from tarn.ingest.metrics import to_metrics
from tarn.ingest.status import State
from tarn.testing.memory_topic import HOLE, Topic
from tests.support.lake import SPEC, Lake, order, spec

TABLE = TableName(("bronze",), "orders")
Logged = list[Any]


def changed(**kafka: Any) -> IngestorSpec:
    """The usual spec with another source."""
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    return parse_spec(
        text.replace("create: true", f"create: {json.dumps(kafka['create'])}"), file="orders.yaml"
    )


def alter(lake: Lake, change: Callable[[list[Json]], list[Json]]) -> None:
    """Change the columns as a notebook would: a new schema, and no snapshot."""
    metadata = lake.table().metadata
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    fields = change([dict(f) for f in current["fields"]])
    schema = {
        "type": "struct",
        "schema-id": 1 + max(s["schema-id"] for s in metadata["schemas"]),
        "fields": fields,
    }
    lake.local.catalog.tables.commit(
        lake.local._slot(TABLE),
        [],
        [
            {"action": "add-schema", "schema": schema, "last-column-id": metadata["last-column-id"] + 1},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    )


def without(name: str) -> Callable[[list[Json]], list[Json]]:
    return lambda fields: [f for f in fields if f["name"] != name]


def renamed(old: str, new: str) -> Callable[[list[Json]], list[Json]]:
    return lambda fields: [{**f, "name": new if f["name"] == old else f["name"]} for f in fields]


def with_again(lake: Lake, name: str, kind: str) -> Callable[[list[Json]], list[Json]]:
    number = lake.table().metadata["last-column-id"] + 1
    return lambda fields: [*fields, {"id": number, "name": name, "type": kind, "required": False}]


class Story:
    """A running ingestor, with hooks at some of its polls and pauses."""

    def __init__(self, lake: Lake, made: IngestorSpec | None = None, *, turns: int = 400) -> None:
        self.lake = lake
        self.seen: list[tuple[State, str]] = []
        self.messages: list[str] = []
        self.on_rest: Callable[[], None] = lambda: None
        self.on_turn: dict[int, Callable[[], None]] = {}
        self._turns = turns
        self._at = 0
        self.ingestor = lake.ingestor(made)
        ports = self.ingestor._context.ports
        plain = ports.sleep

        def sleep(seconds: float) -> None:
            status = lake.registry.get("orders")
            self.seen.append((status.state, status.reason))
            self.messages.append(status.message)
            self.on_rest()
            self._turn()
            plain(seconds)

        object.__setattr__(ports, "sleep", sleep)
        lake.sources.on_poll = self._turn

    def _turn(self) -> None:
        self._at += 1
        self.on_turn.get(self._at, lambda: None)()
        self.lake.stop = self._at >= self._turns

    def run(self) -> None:
        self.ingestor.run()


def stops(logged: Logged) -> list[tuple[str, str]]:
    """Reasons and messages of the logged ERROR lines, which are then cleared."""
    found = [(line["reason"], line["message"]) for line in logged if line["log_level"] == "error"]
    logged.clear()
    return found


# -- the topic ---------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_waited_for_and_read_when_it_is_made() -> None:
    lake = Lake()
    story = Story(lake, changed(create=False), turns=60)
    rests = [0]

    def made_late() -> None:
        rests[0] += 1
        if rests[0] == 5:
            topic = Topic("orders", 2)
            topic.send(1, order(1), order(2))
            lake.sources.topics["orders"] = topic

    story.on_rest = made_late
    story.run()
    assert story.seen[:5] == [(State.WAITING, "NoSuchTopic")] * 5
    assert "orders" in story.messages[0]
    assert lake.offsets() == [(1, 0), (1, 1)]
    assert lake.registry.get("orders").lag == 0


def test_a_topic_is_made_where_the_spec_says_so_and_only_there() -> None:
    lake = Lake()
    lake.work(lake.ingestor(changed(create=True)))
    assert len(lake.sources.topics["orders"].logs) == 2
    other = Lake()
    Story(other, changed(create=False), turns=10).run()
    assert other.sources.topics == {}
    with pytest.raises(Exception, match="orders"):
        other.table()


# -- the record --------------------------------------------------------------------------------------------


def test_a_record_without_a_key_is_a_row_like_any_other() -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    lake.work(lake.ingestor())
    assert lake.offsets() == [(0, 0)], "the topics of these tests have no keys at all"


def test_every_kind_of_bad_record_is_counted_and_the_log_is_covered() -> None:
    body = spec().model_dump(by_alias=True)
    body["spec"]["schema"]["fields"] = (
        *body["spec"]["schema"]["fields"],
        {"name": "kind", "type": "string", "required": True, "values": ("new", "paid")},
    )
    made = IngestorSpec.model_validate(body)
    bad: dict[bytes | None, str] = {
        b"\xff\xfe": "not JSON",
        b'{"id": 1, "kind": "n': "not JSON",
        b'["id"]': "not an object",
        b"": "not JSON",
        None: "tombstone",
        b'{"id": "one", "kind": "new"}': "id: expected a whole number, found text 'one'",
        b'{"id": null, "kind": "new"}': "id: required, but missing or null",
        b'{"id": 1}': "kind: required, but missing or null",
        b'{"id": 1, "kind": "teleported"}': "kind: 'teleported' is none of the spec's values: new, paid",
        b'{"id": 1, "kind": "new", "at": "yesterday"}': "at: 'yesterday' is no timestamptz",
    }
    good = b'{"id": 7, "kind": "paid"}'
    topic = Topic("orders", 1)
    for value in bad:
        topic.send(0, good, value, HOLE)
    lake = Lake(topic)
    lake.work(lake.ingestor(made))

    letters = {r["offset"]: (r["value"], r["reason"]) for r in lake.rows("ops.dead_letters")}
    assert len(lake.rows()) == len(letters) == len(bad)
    for (value, why), at in zip(bad.items(), sorted(letters), strict=True):
        assert letters[at][0] == value
        assert why in letters[at][1]
    status = lake.registry.get("orders")
    assert (status.rows, status.bad_records, status.lag, status.state) == (10, 10, 0, State.RUNNING)
    assert 'tarn_ingest_bad_records_total{ingestor="orders",table="bronze.orders"} 10' in to_metrics(
        lake.registry
    )


# -- the table ---------------------------------------------------------------------------------------------


def test_a_spec_that_does_not_fit_the_table_is_refused_and_nothing_is_made(logged: Logged) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    lake.work(lake.ingestor())
    topic.send(0, order(2))
    body = spec().model_dump(by_alias=True)
    body["spec"]["schema"]["fields"][0]["type"] = "string"
    before = (lake.table().metadata, set(lake.store.list("")))

    story = Story(lake, IngestorSpec.model_validate(body), turns=6)
    story.run()

    (reason, message), *rest = stops(logged)
    assert (reason, rest) == ("InvalidSpec", []), "told once, not at every look"
    assert "column id is long in the table, string in the spec; alter the table or the spec" in message
    assert set(story.seen) == {(State.STOPPED, "InvalidSpec")}
    assert (lake.table().metadata, set(lake.store.list(""))) == before
    lake.stop = False
    lake.work(lake.ingestor())
    assert lake.offsets() == [(0, 0), (0, 1)], "with the right spec it goes on"


@pytest.mark.parametrize(
    ("change", "back", "told"),
    [
        (without("at"), None, "column at (timestamptz) is missing in the table"),
        (renamed("at", "when"), renamed("when", "at"), "column at (timestamptz) is missing in the table"),
    ],
    ids=["dropped", "renamed"],
)
@pytest.mark.parametrize("busy", [True, False], ids=["records come", "idle"])
def test_columns_changed_under_a_running_ingestor_stop_it_until_they_are_back(
    change: Any, back: Any, told: str, busy: bool, logged: Logged
) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    story = Story(lake, turns=500)
    held: list[int] = []

    def take_away() -> None:
        alter(lake, change)
        held.append(len(lake.table().metadata["snapshots"]))
        if busy:
            topic.send(0, order(2), order(3))

    def put_back() -> None:
        if story.seen.count((State.STOPPED, "InvalidSpec")) == 3:
            held.append(len(lake.table().metadata["snapshots"]))
            alter(lake, back or with_again(lake, "at", "timestamptz"))
            topic.send(0, order(4))

    story.on_turn[40] = take_away
    story.on_rest = put_back
    story.run()

    found = stops(logged)
    assert [reason for reason, _ in found] == ["InvalidSpec"]
    assert told in found[0][1]
    assert held[0] == held[1], "nothing was committed while the columns did not fit"
    expected = [1, 2, 3, 4] if busy else [1, 4]
    assert sorted(r["id"] for r in lake.rows()) == expected
    fitting = [r for r in lake.rows() if r["id"] != 1]
    assert all(r["at"] is not None for r in fitting), "no value went into a column that was gone"


def test_a_column_added_by_somebody_else_is_no_reason_to_stop(logged: Logged) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    story = Story(lake, turns=200)

    def add() -> None:
        alter(lake, with_again(lake, "note", "string"))
        topic.send(0, order(2))

    story.on_turn[40] = add
    story.run()
    assert stops(logged) == []
    assert lake.offsets() == [(0, 0), (0, 1)]
    assert lake.table().head is not None
    assert lake.table().head["schema-id"] == lake.table().metadata["current-schema-id"]  # type: ignore[index]


def test_a_widened_column_stops_it_with_both_types_named(logged: Logged) -> None:
    body = spec().model_dump(by_alias=True)
    body["spec"]["schema"]["fields"][0]["type"] = "int"
    made = IngestorSpec.model_validate(body)
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    story = Story(lake, made, turns=100)

    def widen() -> None:
        alter(
            lake, lambda fields: [{**f, "type": "long" if f["name"] == "id" else f["type"]} for f in fields]
        )
        topic.send(0, order(2))

    story.on_turn[40] = widen
    story.run()
    ((_, message),) = stops(logged)
    assert message == (
        "table bronze.orders cannot take what the spec says: column id is long in the table, int in the "
        "spec; alter the table or the spec"
    )
    lake.stop = False
    lake.work(lake.ingestor())
    assert lake.offsets() == [(0, 0), (0, 1)]


def test_a_table_dropped_under_a_running_ingestor_is_made_again_and_filled(logged: Logged) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1), order(2))
    lake = Lake(topic)
    story = Story(lake, turns=300)
    story.on_turn[40] = lambda: lake.local.drop(TABLE)
    story.run()
    found = stops(logged)
    assert [reason for reason, _ in found] in ([], ["NoSuchTable"])
    assert lake.offsets() == [(0, 0), (0, 1)]


def test_a_table_recreated_with_other_columns_is_refused(logged: Logged) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    story = Story(lake, turns=120)

    def recreate() -> None:
        lake.local.drop(TABLE)
        request = story.ingestor.files.create_request()
        request["schema"]["fields"] = [
            {**f, "type": "string" if f["name"] == "id" else f["type"]} for f in request["schema"]["fields"]
        ]
        lake.local.create(TABLE, request)
        topic.send(0, order(2))

    story.on_turn[40] = recreate
    story.run()
    found = stops(logged)
    assert [reason for reason, _ in found] == ["InvalidSpec"]
    assert "column id is string in the table, long in the spec" in found[0][1]
    assert lake.table().head is None, "nothing of the old table's batch went in"


def test_a_table_rolled_back_under_a_running_ingestor_is_filled_again(logged: Logged) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1))
    lake = Lake(topic)
    story = Story(lake, turns=400)
    early: list[int] = []

    def more() -> None:
        head = lake.table().head_id
        assert head is not None
        early.append(head)
        topic.send(0, order(2), order(3))

    def roll_back() -> None:
        assert len(lake.rows()) == 3
        ref = {"ref-name": "main", "type": "branch", "snapshot-id": early[0]}
        lake.local.catalog.tables.commit(lake.local._slot(TABLE), [], [{"action": "set-snapshot-ref", **ref}])
        assert len(lake.rows()) == 1

    story.on_turn[40] = more
    story.on_turn[120] = roll_back
    story.run()
    assert stops(logged) == []
    assert sorted(r["id"] for r in lake.rows()) == [1, 2, 3]


def test_a_dead_letter_table_that_lost_a_column_stops_the_batch_and_loses_nothing(logged: Logged) -> None:
    topic = Topic("orders", 1)
    topic.send(0, order(1), b"junk")
    lake = Lake(topic)
    name = TableName(("ops",), "dead_letters")
    lake.work(lake.ingestor())
    metadata = lake.table("ops.dead_letters").metadata
    fields = metadata["schemas"][-1]["fields"]
    kept = [f for f in fields if f["name"] != "key"]

    def put(now: list[Json], number: int) -> None:
        schema = {"type": "struct", "schema-id": number, "fields": now}
        updates = [
            {"action": "add-schema", "schema": schema, "last-column-id": 99},
            {"action": "set-current-schema", "schema-id": -1},
        ]
        lake.local.catalog.tables.commit(lake.local._slot(name), [], updates)

    put(kept, 1)
    topic.send(0, b"more junk", order(2))
    story = Story(lake, turns=300)

    def heal() -> None:
        if story.seen.count((State.STOPPED, "InvalidSpec")) == 2:
            put([*kept, {"id": 100, "name": "key", "type": "binary", "required": False}], 2)

    story.on_rest = heal
    story.run()
    found = stops(logged)
    assert [reason for reason, _ in found] == ["InvalidSpec"]
    assert "table ops.dead_letters cannot take" in found[0][1]
    assert sorted(r["value"] for r in lake.rows("ops.dead_letters")) == [b"junk", b"more junk"]
    assert lake.offsets() == [(0, 0), (0, 3)]


def test_a_partitioning_whose_field_and_column_are_gone_does_not_stop_the_merging_of_manifests() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    old = lake.ingestor(spec(partitioning="[day(at)]"))
    for n in range(16):  # due to be merged by the next commit
        topic.send(0, order(n))
        lake.work(old, turns=12)
    commit = lake.local.catalog.tables.commit
    empty = {"action": "add-spec", "spec": {"spec-id": 1, "fields": []}}
    commit(lake.local._slot(TABLE), [], [empty, {"action": "set-default-spec", "spec-id": -1}])
    alter(lake, without("at"))
    body = spec().model_dump(by_alias=True)
    body["spec"]["schema"]["fields"] = body["spec"]["schema"]["fields"][:1]
    now = lake.ingestor(IngestorSpec.model_validate(body))
    for n in range(16, 50):
        topic.send(0, order(n))
        lake.work(now, turns=12)
    head = lake.table().head
    assert head is not None
    assert int(head["summary"]["total-records"]) == 50
    listed = read_list(lake.objects.read(head["manifest-list"]))
    assert sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in listed) == 50
    assert len(listed) <= 32, "those of the new partitioning are merged"
