"""A table whose owner alters it, or rolls it back, between two writes: each write is answered, rows go on."""

from __future__ import annotations

import time

import pytest

from tarn.cli.ports import Offsets
from tarn.cli.rollback import RollbackPorts
from tarn.cli.rollback import roll_back as roll_back_by
from tarn.core.errors import CorruptStateError, OutcomeUnknownError
from tarn.core.producers import PROPERTY
from tarn.core.spec import parse_spec
from tarn.gateway.takes import InboxLimits
from tarn.gateway.writes import SequenceError
from tarn.ingest.batch_commit import offsets_in
from tarn.ingest.wiring import uuid7
from tarn.testing.memory_topic import Topic
from tests.contract.gateway.test_inbox import NAME, ids, inbox, lake_with_table, settle, write
from tests.support.gateway import World
from tests.support.gateway import row as sent
from tests.support.lake import SPEC, Lake, foreign_snapshot, order, replace_table
from tests.support.stack import eventually

QUOTA = "tarn.gateway.quota.rows-per-day"


def test_a_property_that_cannot_be_read_stops_no_inbox(world: World) -> None:
    """The catalog takes the next commit, as its base is the head; what it answers has the property."""
    gateway = world.gateway()
    assert world.post(gateway, sent(1)).status_code == 200
    world.property(QUOTA, "many")
    assert world.post(gateway, sent(2)).status_code == 200
    refused = world.post(gateway, sent(3))
    assert (refused.status_code, refused.json()["error"]["type"]) == (409, "TableTakesNoRows")
    world.property(QUOTA, "1000")
    assert world.post(gateway, sent(4)).status_code == 200
    assert world.ids() == [1, 2, 4]


def test_a_table_that_was_replaced_takes_no_rows_until_its_offsets_are_back(world: World) -> None:
    gateway = world.gateway()
    for number in range(3):
        assert world.post(gateway, sent(number), producer="p", sequence=number).status_code == 200
    replace_table(world.lake.local, NAME, 4_711)
    other = world.gateway()
    refused = world.post(other, sent(1), producer="p", sequence=1)
    assert (refused.status_code, refused.json()["error"]["type"]) == (409, "TableTakesNoRows")
    assert "--to main --offsets keep" in refused.json()["error"]["message"]
    ports = RollbackPorts(
        catalog=world.lake.catalog,
        objects=world.lake.objects,
        bounds=dict,
        identity=lambda _: Topic("orders", 1).identity,
        new_key=uuid7,
        new_snapshot_id=lambda: 10**15,
    )
    roll_back_by(ports, NAME, "4711", Offsets.KEEP)
    eventually(lambda: world.post(other, sent(9)).status_code == 200, timeout_s=30, what="rows are taken")
    for number in (1, 3):
        answer = world.post(other, sent(number), producer="p", sequence=number)
        assert (answer.status_code, answer.json()["repeated"]) == (200, number == 1)
    assert world.ids() == [0, 1, 2, 3, 9]


def test_rows_over_http_in_an_emptied_table_say_that_those_of_an_ingestor_are_gone(world: World) -> None:
    lake = world.lake
    lake.sources.topics["orders"].send(0, order(100))
    lake.work(lake.ingestor(), turns=30)
    replace_table(lake.local, NAME, 4_711, empty=True)
    assert world.post(world.gateway(), sent(1)).status_code == 200
    assert offsets_in(lake.table(), "orders").next == {}  # type: ignore[union-attr]
    lake.work(lake.ingestor(), turns=30)
    assert sorted(world.ids()) == [1, 100]


def test_what_a_table_states_and_nobody_can_read_is_said_and_no_internal_error(world: World) -> None:
    gateway = world.gateway()
    assert world.post(gateway, sent(1), producer="p").status_code == 200
    stated = world.lake.table().properties[PROPERTY]
    world.property(PROPERTY, '{"v": 9}')
    other = world.gateway()
    refused = world.post(other, sent(2), producer="p", sequence=1)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (409, "TableTakesNoRows")
    assert PROPERTY in error["message"]
    world.property(PROPERTY, stated)
    assert world.post(other, sent(2), producer="p", sequence=1).status_code == 200
    assert world.ids() == [1, 2]


def test_a_table_of_an_ingestor_with_the_name_of_the_stream_takes_no_rows(world: World) -> None:
    """Each write was a 504 that said the rows may be there, and left a file."""
    world.lake.sources.topics["orders"].send(0, order(100))
    text = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
    named = parse_spec(text.replace("{name: orders}", "{name: gateway}", 1), file="gateway.yaml")
    world.lake.work(world.lake.ingestor(named), turns=30)
    before = data_files(world.lake)
    refused = world.post(world.gateway(), sent(1), key="k")
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (409, "TableTakesNoRows")
    assert (
        "an ingestor named 'gateway', as their stream is, has filled it from topic orders" in error["message"]
    )
    assert data_files(world.lake) == before
    assert world.ids() == [100]


def data_files(lake: Lake) -> list[str]:
    return [one.key for one in lake.store.list("") if "/data/" in one.key]


def test_a_commit_that_meets_what_nobody_can_read_may_have_landed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = lake_with_table()
    box = inbox(lake)
    answer = box.submit(write(1))
    prepared = box.prepare()
    assert prepared is not None

    def corrupt(*_: object) -> None:
        raise CorruptStateError("the table property cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(box._commits, "commit", corrupt)
        box.commit(prepared)
    with pytest.raises(OutcomeUnknownError, match=r"cannot be read.*may be there"):
        answer.result(0)
    again = box.submit(write(1))
    settle(box)
    assert again.result(0).accepted == 1


def broken(*_: object) -> None:
    raise RuntimeError("a fault of the code")


def test_a_commit_that_breaks_is_answered_and_the_inbox_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = world.gateway()
    assert world.post(gateway, sent(1)).status_code == 200
    (opened,) = gateway.tables._inboxes._open.values()
    with monkeypatch.context() as patch:
        patch.setattr(opened.inbox, "commit", broken)
        began_s = time.monotonic()
        assert world.post(gateway, sent(2), key="k").status_code == 504
        assert time.monotonic() - began_s < 25
    assert world.post(gateway, sent(2), key="k").status_code == 200
    assert opened.thread.is_alive()
    assert world.ids() == [1, 2]


def test_an_inbox_that_breaks_answers_what_it_has_and_another_one_takes_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = world.gateway()
    assert world.post(gateway, sent(1)).status_code == 200
    (opened,) = gateway.tables._inboxes._open.values()
    monkeypatch.setattr(opened.inbox, "prepare", broken)
    began_s = time.monotonic()
    assert world.post(gateway, sent(2), key="k").status_code == 503
    assert time.monotonic() - began_s < 25
    opened.thread.join(timeout=60)
    assert world.post(gateway, sent(2), key="k").status_code == 200
    assert world.ids() == [1, 2]


@pytest.mark.parametrize("producer", [None, "p"])
def test_rows_go_on_after_a_rollback_to_before_the_first_of_them(producer: str | None) -> None:
    lake = lake_with_table()
    box = inbox(lake, limits=InboxLimits(gap_s_max=0.2))
    assert foreign_snapshot(lake.local, NAME, 7) or lake.table().head_id is None
    earlier = box.submit(write(0, producer="earlier"))
    settle(box)
    assert earlier.result(0).accepted == 1
    before = lake.table().head_id
    first = box.submit(write(1, 2, producer=producer))
    settle(box)
    assert first.result(0).accepted == 2
    roll_back(lake, before)
    assert ids(lake) == [0]
    second = box.submit(write(3, producer=producer, sequence=2 if producer else 0))
    settle(box)
    if producer is not None:
        with pytest.raises(SequenceError) as refused:
            second.result(0)
        assert refused.value.fields["expected"] == 0
        second = box.submit(write(3, producer=producer))
        settle(box)
    assert second.result(0).accepted == 1
    assert ids(lake) == [0, 3]


def roll_back(lake: Lake, snapshot_id: int | None) -> None:
    at = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    lake.local.catalog.tables.commit(lake.local._slot(NAME), [], [{"action": "set-snapshot-ref", **at}])
