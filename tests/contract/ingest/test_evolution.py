"""A table is altered to have the columns of a spec that says `evolution: evolve`, and in no other way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarn.adapters.manifests import read_list
from tarn.core.errors import InvalidSpecError, OtherStreamError, UnavailableError
from tarn.core.outcome import Conflict, Unknown
from tarn.core.spec import IngestorSpec, parse_spec
from tarn.core.table_catalog import CommitOutcome, TableName
from tarn.core.table_state import CommitRequest
from tarn.ingest.wiring import uuid7
from tarn.testing.memory_topic import Topic
from tests.support.lake import SPEC, Lake, LocalCatalog

TABLE = TableName(("bronze",), "orders")
BEFORE = ("{name: id, type: int, required: true}", "{name: price, type: 'decimal(6, 2)'}")


def spec(
    *columns: str,
    evolution: str = "evolve",
    stream: str = "orders",
    trace: bool = True,
    version: int = 2,
    partitioning: str = "[]",
) -> IngestorSpec:
    whole = SPEC.replace("FORMAT", str(version)).replace("PARTITIONING", partitioning)
    head, _, tail = whole.partition("    fields:\n")
    tail = tail[tail.index("  deadLetters") :]
    fields = "".join(f"      - {column}\n" for column in columns)
    text = f"{head}    evolution: {evolution}\n    fields:\n{fields}{tail}  trace: {str(trace).lower()}\n"
    return parse_spec(text.replace("{name: orders}", f"{{name: {stream}}}"), file="orders.yaml")


def send(topic: Topic, *messages: dict[str, Any]) -> None:
    topic.send(0, *(json.dumps(message).encode() for message in messages))


def columns(lake: Lake) -> dict[str, tuple[str, bool]]:
    metadata = lake.table().metadata
    (schema,) = [s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]]
    ids = [column["id"] for column in schema["fields"]]
    assert len(ids) == len(set(ids))
    return {
        c["name"]: (c["type"] if isinstance(c["type"], str) else "struct", c["required"])
        for c in schema["fields"]
    }


def test_columns_are_added_widened_and_made_optional_between_two_batches() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, {"id": 1, "price": "1.50"})
    lake.work(lake.ingestor(spec(*BEFORE)), turns=30)
    ingestor = lake.ingestor(
        spec(
            "{name: id, type: long}",
            "{name: price, type: 'decimal(9, 2)'}",
            "{name: note, type: string, required: true}",
        )
    )
    big = 2**40
    send(topic, {"id": big, "price": "1234567.50", "note": "a"}, {"price": "2.00", "note": "b"}, {"id": 3})
    with capture_logs() as logged:
        lake.work(ingestor, turns=30)
    (altered,) = [entry["changes"] for entry in logged if entry["event"] == "table altered"]
    assert altered == [
        "id widened from int to long",
        "id made optional",
        "price widened from decimal(6, 2) to decimal(9, 2)",
        "note (string) added",
    ]
    assert columns(lake) == {
        "id": ("long", False),
        "price": ("decimal(9, 2)", False),
        "_tarn": ("struct", False),
        "note": ("string", False),
    }
    found = {row["_tarn"]["offset"]: row for row in lake.rows()}
    assert (found[0]["id"], str(found[0]["price"]), found[0].get("note")) == (1, "1.50", None)
    assert (found[1]["id"], str(found[1]["price"]), found[1]["note"]) == (big, "1234567.50", "a")
    assert (found[2]["id"], found[2]["note"]) == (None, "b")
    assert sorted(found) == [0, 1, 2]
    (letter,) = lake.rows("ops.dead_letters")
    assert letter["offset"] == 3, "the spec's own `required` holds for what comes now"
    schemas = len(lake.table().metadata["schemas"])
    lake.work(lake.ingestor(ingestor.spec), turns=30)
    assert len(lake.table().metadata["schemas"]) == schemas == 2, "what fits is left alone"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("rule", ["id", "'bucket(3, id)'", "'truncate(10, id)'"])
def test_the_source_of_a_partition_is_widened_and_old_manifests_are_merged_with_new_ones(
    version: int, rule: str
) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    numbers = [*range(12), *(2**33 + n for n in range(12))]
    for kind, part in (("int", numbers[:12]), ("long", numbers[12:])):
        made = spec(f"{{name: id, type: {kind}}}", partitioning=f"[{rule}]", version=version)
        ingestor = lake.ingestor(made)
        for number in part:
            send(topic, {"id": number})
            lake.work(ingestor, turns=12)
    head = lake.table().head
    assert head is not None
    assert len(read_list(lake.objects.read(head["manifest-list"]))) < len(numbers), "some were merged"
    assert sorted(row["id"] for row in lake.rows()) == numbers
    partitions = {entry.data_file.partition[0] for entry in lake.files()}
    assert len(partitions) == {"id": 24, "'bucket(3, id)'": 3}.get(rule, len({n // 10 for n in numbers}))


def test_a_strict_spec_alters_nothing() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(spec(*BEFORE)), turns=10)
    with pytest.raises(InvalidSpecError, match=r"column note \(string\) is missing .* `evolution: evolve`"):
        lake.work(lake.ingestor(spec(*BEFORE, "{name: note, type: string}", evolution="strict")))
    assert "note" not in columns(lake)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("{name: id, type: string}", "column id is int in the table, string in the spec"),
        ("{name: price, type: 'decimal(9, 3)'}", r"column price is decimal\(6, 2\) in the table"),
        ("{name: price, type: 'decimal(5, 2)'}", r"column price is decimal\(6, 2\) in the table"),
        ("{name: price, type: double}", r"column price is decimal\(6, 2\) in the table"),
        ("{name: ID, type: int}", "column ID of the spec is id in table bronze.orders"),
    ],
)
def test_what_cannot_be_done_is_refused_as_a_whole(changed: str, message: str) -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(spec(*BEFORE)), turns=10)
    before = columns(lake)
    kept = [c for c in BEFORE if c.split(",")[0] != changed.lower().split(",")[0]]
    with pytest.raises(InvalidSpecError, match=message):
        lake.work(lake.ingestor(spec(*kept, changed, "{name: note, type: string}")))
    with pytest.raises(InvalidSpecError) as caught:
        lake.work(lake.ingestor(spec(*kept, changed, evolution="strict")))
    assert "evolve" not in str(caught.value), "it would not help"
    assert columns(lake) == before, "nor is the column added that could have been"


@pytest.mark.parametrize("former", [False, True])
def test_a_column_that_was_renamed_is_not_added_again_under_the_name_of_its_partitions(former: bool) -> None:
    """Spark and Trino could not open the table."""
    topic = Topic("orders", 1)
    lake = Lake(topic)
    partitioning = "[id, 'bucket(2, price)']"
    send(topic, {"id": 1, "price": "1.50"})
    lake.work(lake.ingestor(spec(*BEFORE, partitioning=partitioning)), turns=30)
    schema = json.loads(json.dumps(lake.table().metadata["schemas"][-1]))
    schema["fields"][0] |= {"name": "number", "required": False}
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    if former:
        updates += [
            {"action": "add-spec", "spec": {"fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
        ]
    lake.local.catalog.tables.commit(lake.local._slot(TABLE), [], updates)
    before = columns(lake)
    made = spec(*BEFORE, "{name: note, type: string}", partitioning=partitioning)
    with pytest.raises(InvalidSpecError, match="column id of the spec has the name of a partition field"):
        lake.work(lake.ingestor(made))
    with pytest.raises(InvalidSpecError, match=r"partition field of table bronze\.orders"):
        lake.work(lake.ingestor(spec("{name: number, type: int}", "{name: price_bucket, type: int}")))
    assert columns(lake) == before


def test_a_table_without_the_trace_column_gets_it() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(spec(*BEFORE, trace=False)), turns=10)
    send(topic, {"id": 1})
    lake.work(lake.ingestor(spec(*BEFORE)), turns=30)
    assert lake.offsets() == [(0, 0)]
    metadata = lake.table().metadata
    (struct,) = [c for c in metadata["schemas"][-1]["fields"] if c["name"] == "_tarn"]
    assert metadata["last-column-id"] == max(inner["id"] for inner in struct["type"]["fields"]) == 7


def test_a_required_column_that_the_spec_does_not_have_becomes_optional_unless_it_identifies_rows() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(spec(*BEFORE)), turns=10)
    send(topic, {"price": "1.00"})
    lake.work(lake.ingestor(spec(BEFORE[1])), turns=30)
    assert columns(lake)["id"] == ("int", False)
    assert lake.offsets() == [(0, 0)]

    lake = Lake(Topic("orders", 1))
    lake.work(lake.ingestor(spec(*BEFORE)), turns=10)
    table = lake.table()
    schema = {**table.metadata["schemas"][0], "schema-id": 1, "identifier-field-ids": [1]}
    updates = [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]
    lake.local.commit(
        TableName(("bronze",), "orders"), CommitRequest(requirements=[], updates=updates), key=uuid7()
    )
    with pytest.raises(InvalidSpecError, match="column id is required in the table and not in the spec"):
        lake.work(lake.ingestor(spec(BEFORE[1])))


class Answering(LocalCatalog):
    """Answers requests that alter columns with these outcomes; `applied` ones reach the table before."""

    def __init__(self, lake: Lake, *outcomes: tuple[Conflict | Unknown, bool]) -> None:
        self.__dict__ = lake.local.__dict__
        self.outcomes = list(outcomes)
        self.altered = 0

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if request.snapshot_id is None:
            self.altered += 1
            if self.outcomes:
                outcome, applied = self.outcomes.pop(0)
                if applied:
                    super().commit(table, request, key=key)
                return outcome
        return super().commit(table, request, key=key)


def test_a_lost_answer_and_a_conflict_alter_the_table_once() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    lake.work(lake.ingestor(spec(*BEFORE)), turns=10)
    lake.catalog = catalog = Answering(
        lake, (Conflict(reason="409"), False), (Unknown(reason="504"), False), (Unknown(reason="504"), True)
    )
    send(topic, {"id": 1, "note": "a"})
    wanted = spec(*BEFORE, "{name: note, type: string}")
    with pytest.raises(UnavailableError, match=r"bronze\.orders could not be altered: 409"):
        lake.ingestor(wanted).cycle(lambda: False)
    lake.work(lake.ingestor(wanted), turns=40)
    assert catalog.altered == 3, "the third was there, though its answer was lost"
    assert len(lake.table().metadata["schemas"]) == 2
    assert [row["note"] for row in lake.rows()] == ["a"]


def test_a_stream_that_may_not_begin_alters_nothing() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    send(topic, {"id": 1})
    lake.work(lake.ingestor(spec(*BEFORE)), turns=30)
    with pytest.raises(OtherStreamError):
        lake.work(lake.ingestor(spec(*BEFORE, "{name: note, type: string}", stream="other")))
    assert "note" not in columns(lake)


def test_an_ingestor_of_the_former_spec_goes_on_beside_one_that_added_a_column() -> None:
    topic, more = Topic("orders", 1), Topic("more", 1, topic_id="id-2")
    lake = Lake(topic, more)
    former = lake.ingestor(spec(*BEFORE, evolution="strict"))
    send(topic, {"id": 1})
    lake.work(former, turns=30)
    wider = spec(*BEFORE, "{name: note, type: string}", stream="more").model_dump(by_alias=True)
    wider["spec"]["source"]["kafka"]["topic"] = "more"
    send(more, {"id": 2, "note": "b"})
    lake.work(lake.ingestor(IngestorSpec.model_validate(wider)), turns=30)
    send(topic, {"id": 3})
    lake.work(former, turns=30)
    assert sorted((row["id"], row.get("note")) for row in lake.rows()) == [(1, None), (2, "b"), (3, None)]
