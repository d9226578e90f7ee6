"""Arrow with `durability=log`: rows are records of JSON, and land as they would have with `lake`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tarn.client import RejectedRowsError, writer
from tarn.core.decode import Decoder
from tarn.core.row_parser import RowParser
from tarn.core.spec import FieldSpec
from tarn.gateway import log_records
from tarn.gateway.bodies import ARROW
from tarn.gateway.log_records import LogColumns, judged
from tarn.gateway.writes import Write
from tests.support.gateway import TABLE, LogWorld, row
from tests.support.messages import arrow

LOG = "?durability=log"
AT = datetime(2026, 11, 23, 8, 0, 0, 123_456, tzinfo=UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ns", "Europe/Berlin")), ("x", pa.float64())])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LogWorld]:
    with LogWorld.opened(tmp_path) as made:
        made.add_column("x", "double")
        yield made


def body(*rows: tuple[int | None, float | None]) -> bytes:
    return arrow(
        pa.RecordBatch.from_pylist([{"id": number, "at": AT, "x": x} for number, x in rows], schema=SCHEMA)
    )


def records(world: LogWorld) -> list[Any]:
    """The records of the log, by id."""
    found = [
        json.loads(value) for log in world.topic.logs.values() for value in log if isinstance(value, bytes)
    ]
    return sorted(found, key=lambda one: int(one["id"]))


def test_rows_are_records_of_json_and_land_as_with_lake(world: LogWorld) -> None:
    gateway = world.gateway()
    sent = body((2**62 + 1, 0.1), (2, math.nan), (None, 1.0), (3, None))
    answers = [world.post(gateway, sent, kind=ARROW, query=LOG, key="k").json() for _ in range(2)]
    assert [one.pop("repeated") for one in answers] == [False, True]
    assert answers[0] == answers[1]
    assert answers[0]["accepted"] == 2
    assert [(one["row"], one["reason"]) for one in answers[0]["rejected"]] == [
        (1, "x: nan has no form in JSON; send it with durability=lake"),
        (2, "id: required, but missing or null"),
    ]
    assert sum(run["last"] - run["first"] + 1 for run in answers[0]["offsets"]) == 2
    at = "2026-11-23T08:00:00.123456Z"
    assert records(world) == [{"id": 3, "at": at}, {"id": 2**62 + 1, "at": at, "x": 0.1}]
    world.land()
    assert world.post(gateway, body((2**62 + 1, 0.1), (3, None)), kind=ARROW).status_code == 200
    landed = sorted((r["id"], r["at"], r["x"]) for r in world.lake.rows() if r["id"] > 3)
    assert landed == [(2**62 + 1, AT, 0.1)] * 2
    assert world.ids() == [3, 3, 2**62 + 1, 2**62 + 1]


def test_rows_of_json_and_of_arrow_are_numbered_by_one_producer(world: LogWorld) -> None:
    gateway = world.gateway()
    for at, (sent, kind) in enumerate(
        [([row(1)], "application/json"), (body((2, 2.0)), ARROW), ([row(3)], "")]
    ):
        answer = world.post(
            gateway, sent, kind=kind or "application/json", query=LOG, producer="p", sequence=at
        )
        assert answer.status_code == 200, answer.text
    world.land()
    assert world.ids() == [1, 2, 3]


def columns_of(*fields: FieldSpec) -> LogColumns:
    parser = RowParser(fields)
    decoder = Decoder(
        fields, source="s", trace=False, record_bytes_max=1 << 20, parser=parser, limit_name="l"
    )
    return LogColumns(fields=fields, decoder=decoder, row_bytes_max=1 << 20)


def test_writes_of_one_turn_get_their_own_rows_and_reasons() -> None:
    fields = (FieldSpec(name="id", type="long", required=True), FieldSpec(name="x", type="double"))

    def sent(*values: bytes) -> Write:
        return Write(values=values, at_ms=0)

    def of_arrow(number: int | None, x: float | None = None) -> bytes:
        return arrow({"id": number, "x": x}, pa.schema([("id", pa.int64()), ("x", pa.float64())]))

    found = judged(
        columns_of(*fields),
        [
            sent(b'{"id":"y"}', b' {"id":1}'),
            sent(of_arrow(2, math.nan), of_arrow(3, 0.5), of_arrow(None)),
            sent(b'{"id": 4}'),
            sent(of_arrow(5)),
        ],
    )
    assert [one.records for one in found] == [
        {1: b' {"id":1}'},
        {1: b'{"id":3,"x":0.5}'},
        {0: b'{"id": 4}'},
        {0: b'{"id":5}'},
    ]
    reasons = [{at: reason.split(":")[0] for at, reason in one.bad.items()} for one in found]
    assert reasons == [{0: "id"}, {0: "x", 2: "id"}, {}, {}]
    assert [list(one.bad) for one in found] == [[0], [0, 2], [], []]


def test_rows_that_are_too_much_as_json_are_named_and_the_others_written(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_records, "BYTES_FREE", 0)
    monkeypatch.setattr(log_records, "BYTES_MAX", 100)
    answer = world.post(world.gateway(), body((1, 1.0), (2, 2.0)), kind=ARROW, query=LOG).json()
    assert answer["accepted"] == 1
    assert "send it in another body" in answer["rejected"][0]["reason"]


def test_json_is_not_many_times_as_large_as_what_was_sent() -> None:
    """Memory is shared by the size as sent: bits of truth values would be 48 times as large."""
    columns = columns_of(FieldSpec(name="v", type="list<boolean>"), FieldSpec(name="n", type="list<long>"))
    schema = pa.schema([("v", pa.list_(pa.bool_())), ("n", pa.list_(pa.int64()))])

    def of(**row: list[Any]) -> Write:
        return Write(values=[arrow(row, schema)], at_ms=0)

    few, many, numbers = judged(
        columns, [of(v=[False] * 9_000), of(v=[False] * 90_000), of(n=[-(2**63)] * 40_000)]
    )
    assert (list(few.records), list(many.records), list(numbers.records)) == ([0], [], [0])
    assert many.bad[0].endswith("send it in another body, or with durability=lake")


def test_what_is_no_arrow_is_refused_as_with_lake(world: LogWorld) -> None:
    answer = world.post(world.gateway(), b"x", kind=ARROW, query=LOG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequest")
    assert records(world) == []


def test_the_client_sends_arrow_data_through_the_log(world: LogWorld) -> None:
    own = {
        "gateway": world.gateway().url,
        "catalog": world.catalog_url,
        "credential": world.credentials["admin"],
    }
    data = pa.table({"id": [1, 2], "at": pa.array([AT, AT]), "x": [0.5, math.inf]})
    with writer(TABLE, durability="log", **own) as rows:
        receipt = rows.send(data)
        assert (receipt.accepted, list(receipt.rejected), len(receipt.offsets)) == (1, [1], 1)
        rows.write({"id": "x"})
        with pytest.raises(RejectedRowsError):
            rows.flush()
    world.land()
    assert world.ids() == [1]
