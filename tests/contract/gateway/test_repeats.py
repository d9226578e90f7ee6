"""Repeats over HTTP: each row once, with the answer of the first time, whichever gateway is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tarn.cli.ports import Clock, Offsets
from tarn.cli.rollback import RollbackPorts, roll_back
from tarn.core.errors import ForbiddenError, OffsetGapError
from tarn.core.outcome import Unknown
from tarn.core.producers import source_of
from tarn.core.rejected_rows import RUNS_MAX
from tarn.core.table_catalog import CommitOutcome, TableCatalog, TableName
from tarn.core.table_state import CommitRequest
from tarn.core.write_keys import WINDOW_S, KeyEntry
from tarn.gateway.app import AppLimits
from tarn.gateway.key_memory import SKEW_S
from tarn.gateway.repeats import REASON_GONE
from tarn.gateway.takes import InboxLimits
from tarn.ingest.wiring import uuid7
from tests.support.gateway import World, row

KEYS = "tarn.write-keys.gateway"


def test_a_numbered_write_is_answered_as_the_first_time_by_every_gateway(world: World) -> None:
    one, other = world.gateway(), world.gateway()
    first = world.post(one, [row(1), {}], producer="p").json()
    for gateway in (one, other):
        again = world.post(gateway, [row(1), {}], producer="p").json()
        assert again == {**first, "repeated": True}
    assert world.post(other, row(2), producer="p", sequence=2).json()["accepted"] == 1
    assert world.post(one, row(3), producer="p", sequence=3).json()["accepted"] == 1
    assert world.ids() == [1, 2, 3]


@pytest.mark.parametrize(
    ("producer", "sequence", "expected", "words"),
    [
        ("p", 5, 2, "rows before it are missing"),
        ("p", 1, 2, "part of it is in the table already"),
        ("new", 3, 0, "does not know this producer"),
    ],
)
def test_a_gap_an_overlap_and_an_unknown_producer_are_refused(
    world: World, producer: str, sequence: int, expected: int, words: str
) -> None:
    gateway = world.gateway(limits=InboxLimits(gap_s_max=0.2))
    assert world.post(gateway, [row(1), row(2)], producer="p").status_code == 200
    answer = world.post(gateway, [row(8), row(9)], producer=producer, sequence=sequence)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["expected"]) == (409, "OutOfSequence", expected)
    assert words in error["message"]
    assert world.ids() == [1, 2]


def test_keys_are_known_beyond_a_rollback_that_keeps_the_offsets(world: World) -> None:
    """A repeat of a row that is in the table was a new write, and there twice."""
    gateway = world.gateway()
    world.post(gateway, row(1), key="k-1")
    middle = world.lake.table().head_id
    world.post(gateway, row(2), key="k-2")
    ports = RollbackPorts(
        catalog=world.lake.catalog,
        objects=world.lake.objects,
        bounds=dict,
        identity=lambda _: source_of(""),
        new_key=uuid7,
        new_snapshot_id=lambda: 10**15,
        clock=Clock(wait=lambda _: None),
    )
    with pytest.raises(OffsetGapError, match=r"rows came over HTTP since then \(stream gateway\).* keep"):
        roll_back(ports, TableName(("bronze",), "orders"), str(middle), Offsets.REWIND)
    roll_back(ports, TableName(("bronze",), "orders"), str(middle), Offsets.KEEP)
    for other in gateway, world.gateway():
        for number in 1, 2:
            assert world.post(other, row(number), key=f"k-{number}").json()["repeated"] is True
        assert world.post(other, row(3), key="k-2").json()["error"]["type"] == "KeyReused"
    assert world.post(gateway, row(3), key="k-3").json()["repeated"] is False
    assert world.ids() == [1, 3], "what was rolled back stays away"


def test_a_principal_has_its_own_producers_and_keys(world: World) -> None:
    gateway = world.gateway()
    world.principal("bob", "WRITE")
    for number, who in enumerate(("admin", "bob")):
        assert world.post(gateway, row(number), producer="p", who=who).status_code == 200
        assert world.post(gateway, row(10 + number), key="k", who=who).status_code == 200
    assert world.ids() == [0, 1, 10, 11]


def test_a_key_is_known_again_in_this_gateway_another_one_and_after_a_restart(world: World) -> None:
    one, other = world.gateway(), world.gateway()
    first = world.post(one, [row(1), {}], key="k-1").json()
    assert (first["accepted"], first["repeated"]) == (1, False)
    one.stop()
    for gateway in (other, world.gateway()):
        again = world.post(gateway, [row(1), {}], key="k-1").json()
        assert again == {**first, "repeated": True}
    assert world.post(other, row(2), key="k-2").json()["repeated"] is False
    assert world.ids() == [1, 2]


def test_a_key_with_another_body_is_refused(world: World) -> None:
    gateway = world.gateway()
    world.post(gateway, row(1), key="k")
    answer = world.post(gateway, row(2), key="k")
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "KeyReused")
    assert world.ids() == [1]


def test_a_commit_without_keys_does_not_lose_those_before(world: World) -> None:
    one = world.gateway()
    world.post(one, row(1), key="k")
    world.post(one, row(2))
    world.post(one, row(3), producer="p")
    assert world.post(world.gateway(), row(1), key="k").json()["repeated"]
    assert world.ids() == [1, 2, 3]


@pytest.mark.parametrize("how", ["key", "producer"])
def test_the_same_write_at_once_at_two_gateways_is_in_once(world: World, how: str) -> None:
    gateways = [world.gateway(), world.gateway()]
    for turn in range(4):
        more: dict[str, Any] = {"key": f"k-{turn}"} if how == "key" else {"producer": "p", "sequence": turn}
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(world.post, gateways[n % 2], row(turn), **more) for n in range(4)]
            answers = [one.result() for one in asked]
        assert [a.status_code for a in answers] == [200] * 4, [a.text for a in answers]
        assert sorted(a.json()["repeated"] for a in answers) == [False, True, True, True]
    assert world.ids() == [0, 1, 2, 3]


def test_keys_beyond_one_index_are_known_to_a_new_gateway(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tarn.gateway.key_memory.KeyMemory.__init__.__kwdefaults__", {"inline_max": 3})
    gateway = world.gateway()
    for number in range(8):
        world.post(gateway, row(number), key=f"k-{number}")
    again = world.gateway()
    assert all(world.post(again, row(number), key=f"k-{number}").json()["repeated"] for number in range(8))
    assert world.ids() == list(range(8))
    segments = [key for key in world.lake.store.list("") if "segment" in str(key)]
    assert len(segments) == 2


def test_a_key_is_remembered_for_its_window(world: World) -> None:
    now = [1_800_000_000_000]
    first = world.gateway(now_ms=lambda: now[0])
    world.post(first, row(1), key="k")
    now[0] += WINDOW_S * 1_000
    assert world.post(world.gateway(now_ms=lambda: now[0]), row(1), key="k").json()["repeated"]
    now[0] += (SKEW_S + 1) * 1_000
    assert not world.post(world.gateway(now_ms=lambda: now[0]), row(1), key="k").json()["repeated"]
    assert world.ids() == [1, 1]


def test_a_key_object_that_is_missing_within_the_window_takes_no_write(world: World) -> None:
    world.post(world.gateway(), row(1), key="k")
    entry = KeyEntry.from_json(world.lake.table().head["summary"][KEYS])  # type: ignore[index]
    key = entry.path.removeprefix("s3://tarn/")
    held = world.lake.store.get(key)
    assert held is not None
    world.lake.store.delete(key)
    other = world.gateway()
    answer = world.post(other, row(1), key="k")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Unavailable")
    world.lake.store.put(key, held.data)
    assert world.post(other, row(1), key="k").json()["repeated"]
    assert world.ids() == [1]


def test_a_missing_key_object_that_the_store_knows_to_be_old_shuts_no_table(world: World) -> None:
    """The gateway that wrote it was 20 minutes ahead, and the reaper has deleted it since."""
    minute_ms, begun_ms = 60_000, time.time_ns() // 1_000_000
    world.post(world.gateway(now_ms=lambda: begun_ms + 20 * minute_ms), row(1), key="k")
    entry = KeyEntry.from_json(world.lake.table().head["summary"][KEYS])  # type: ignore[index]
    world.lake.store.delete(entry.path.removeprefix("s3://tarn/"))
    within = world.gateway(now_ms=lambda: begun_ms + 15 * minute_ms)
    assert world.post(within, row(2)).status_code == 200, "it is from the future there"
    later = world.gateway(now_ms=lambda: begun_ms + 31 * minute_ms)
    assert world.post(later, row(3), key="k-3").status_code == 200
    assert world.ids() == [1, 2, 3]


def test_too_many_keys_in_one_window_have_to_wait(world: World) -> None:
    gateway = world.gateway(limits=InboxLimits(keys_max=2))
    assert [world.post(gateway, row(n), key=f"k-{n}").status_code for n in range(3)] == [200, 200, 429]
    assert world.post(gateway, row(1), key="k-1").json()["repeated"]
    assert world.ids() == [0, 1]


class Cut:
    """A catalog whose answer to a commit is lost, and which is gone after that: the gateway dies."""

    def __init__(self, inner: TableCatalog, *, landed: bool) -> None:
        self._inner = inner
        self._landed = landed
        self.reached = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if self._landed and not self.reached.is_set():
            self._inner.commit(table, request, key=key)
        self.reached.set()
        return Unknown(reason="no answer")

    def load(self, table: TableName) -> Any:
        if self.reached.is_set():
            threading.Event().wait(30)
        return self._inner.load(table)


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("how", ["key", "producer"])
def test_a_gateway_that_dies_between_commit_and_answer(world: World, how: str, landed: bool) -> None:
    made: list[Cut] = []

    def cut(catalog: TableCatalog) -> TableCatalog:
        made.append(Cut(catalog, landed=landed))
        return made[0]  # type: ignore[return-value]

    more: dict[str, Any] = {"key": "k"} if how == "key" else {"producer": "p"}
    dying = world.gateway(catalog=cut, app=AppLimits(answer_s_max=1.0))
    answer = world.post(dying, row(1), **more)
    until = time.monotonic() + 60
    while answer.status_code == 503:  # a busy machine did not begin with it within the second
        assert time.monotonic() < until, "no write has come as far as to the catalog"
        answer = world.post(dying, row(1), **more)
    assert (answer.status_code, answer.json()["error"]["type"]) == (504, "OutcomeUnknown")
    assert "repeat it with the same headers" in answer.json()["error"]["message"]
    assert made[0].reached.wait(60)
    dying.stop(drain=False)
    again = world.post(world.gateway(), row(1), **more)
    assert (again.status_code, again.json()["repeated"]) == (200, landed)
    assert world.ids() == [1]


class Locked:
    """A catalog that does not answer a commit, and lets the gateway in no more for a while."""

    def __init__(self, inner: TableCatalog, *, landed: bool) -> None:
        self._inner = inner
        self._landed = landed
        self.sent = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self, table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        if self._landed:
            self._inner.commit(table, request, key=key)
        self.sent = True
        return Unknown(reason="no answer")

    def load(self, table: TableName) -> Any:
        if self.sent:
            raise ForbiddenError("the secret of the gateway was renewed")
        return self._inner.load(table)


@pytest.mark.parametrize("landed", [True, False])
def test_a_denial_after_a_commit_without_answer_is_no_proof(world: World, landed: bool) -> None:
    locked = world.gateway(catalog=lambda catalog: Locked(catalog, landed=landed))  # type: ignore[arg-type,return-value]
    answer = world.post(locked, row(1), key="k")
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (504, "OutcomeUnknown"), error
    assert "the secret of the gateway was renewed; before that a commit" in error["message"]
    again = world.post(world.gateway(), row(1), key="k")
    assert (again.status_code, again.json()["repeated"]) == (200, landed)
    assert world.ids() == [1]


def test_a_write_that_was_not_taken_in_time_is_taken_back(world: World) -> None:
    back = threading.Event()

    def late(catalog: TableCatalog) -> TableCatalog:
        class Away:
            def __getattr__(self, name: str) -> Any:
                return getattr(catalog, name)

            def load(self, table: TableName) -> Any:
                assert back.wait(60)
                return catalog.load(table)

        return Away()  # type: ignore[return-value]

    gateway = world.gateway(catalog=late, app=AppLimits(answer_s_max=0.5))
    answer = world.post(gateway, row(1))
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Unavailable")
    assert "nothing of it was written" in answer.json()["error"]["message"]
    back.set()
    gateway.stop()
    assert world.ids() == []


CONTRADICTIONS: list[tuple[dict[str, str], str]] = [
    ({"tarn-producer": "p"}, "belong together"),
    ({"tarn-sequence": "1"}, "belong together"),
    ({"tarn-producer": "p q", "tarn-sequence": "1"}, "Tarn-Producer 'p q'"),
    ({"tarn-producer": "p", "tarn-sequence": "-1"}, "Tarn-Sequence '-1'"),
    ({"tarn-producer": "p", "tarn-sequence": str(2**62 + 1)}, f"row in the body: 0 to {2**62}"),
    ({"tarn-producer": "p", "tarn-sequence": str(2**63)}, "Tarn-Sequence"),
    ({"tarn-producer": "p", "tarn-sequence": "1", "idempotency-key": "k"}, "not both"),
    ({"idempotency-key": "a b"}, "Idempotency-Key 'a b'"),
    ({"idempotency-key": "k" * 201}, "Idempotency-Key"),
]


@pytest.mark.parametrize(("headers", "words"), CONTRADICTIONS)
def test_headers_that_say_nothing_clear_are_refused(
    world: World, headers: dict[str, str], words: str
) -> None:
    answer = world.post(world.gateway(), row(1), headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]
    assert world.ids() == []


def with_columns(world: World, change: Callable[[list[Any], int], list[Any]]) -> None:
    """The owner changes the columns of the table."""
    metadata = world.lake.table().metadata
    current = next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
    fields = change(list(current["fields"]), metadata["last-column-id"])
    updates = [
        {"action": "add-schema", "schema": {**current, "schema-id": 90, "fields": fields}},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    world.admin("POST", "/v1/namespaces/bronze/tables/orders", {"requirements": [], "updates": updates})


def note_added(fields: list[Any], last: int) -> list[Any]:
    return [*fields, {"id": last + 1, "name": "note", "type": "string", "required": False}]


def note_dropped(fields: list[Any], _: int) -> list[Any]:
    return [field for field in fields if field["name"] != "note"]


HOW: dict[str, dict[str, Any]] = {"key": {"key": "k"}, "producer": {"producer": "p"}}


@pytest.mark.parametrize("how", HOW)
def test_a_row_that_was_rejected_stays_so_though_a_column_for_it_was_added(world: World, how: str) -> None:
    sent = [row(1), {**row(2), "note": "n"}, {}, row(3)]
    first = world.post(world.gateway(), sent, **HOW[how]).json()
    assert [one["row"] for one in first["rejected"]] == [1, 2]
    with_columns(world, note_added)
    again = world.post(world.gateway(), sent, **HOW[how]).json()
    assert (again["accepted"], again["repeated"]) == (2, True)
    reasons = {one["row"]: one["reason"] for one in again["rejected"]}
    assert reasons == {1: REASON_GONE, 2: first["rejected"][1]["reason"]}
    assert world.ids() == [1, 3]


@pytest.mark.parametrize("how", HOW)
def test_a_row_that_is_in_the_table_is_never_called_rejected(world: World, how: str) -> None:
    with_columns(world, note_added)
    sent = [{**row(n), "note": "n"} for n in range(3)]
    assert world.post(world.gateway(), sent, **HOW[how]).json()["accepted"] == 3
    with_columns(world, note_dropped)
    fresh = world.gateway()
    assert world.post(fresh, row(9)).status_code == 200
    again = world.post(fresh, sent, **HOW[how])
    assert again.status_code == 200
    found = again.json()
    assert (found["accepted"], found["rejected"], found["repeated"]) == (3, [], True)
    assert world.ids() == [0, 1, 2, 9]


@pytest.mark.parametrize("how", HOW)
def test_what_is_not_known_any_more_is_null_and_not_guessed(world: World, how: str) -> None:
    sent = [one for n in range(RUNS_MAX + 1) for one in (row(n), {})]
    first = world.post(world.gateway(), sent, **HOW[how]).json()
    assert (first["accepted"], len(first["rejected"])) == (RUNS_MAX + 1, RUNS_MAX + 1)
    again = world.post(world.gateway(), sent, **HOW[how])
    assert again.status_code == 200
    found = again.json()
    assert (found["accepted"], found["rejected"], found["repeated"]) == (None, None, True)
    assert world.ids() == list(range(RUNS_MAX + 1))


def test_rows_are_known_in_parts_and_after_more_of_their_producer(world: World) -> None:
    one = world.gateway()
    world.post(one, [row(0), {}, {}], producer="p")
    world.post(one, [{}, row(1)], producer="p", sequence=3)
    world.post(one, row(2), producer="q")
    for first, sent, rejected in ((0, [row(0), {}], [1]), (2, [{}, {}, row(1)], [0, 1]), (4, [row(1)], [])):
        found = world.post(world.gateway(), sent, producer="p", sequence=first).json()
        assert [each["row"] for each in found["rejected"]] == rejected
        assert found["accepted"] == len(sent) - len(rejected)


def test_a_repeat_whose_rows_were_all_rejected_is_422_like_the_first(world: World) -> None:
    for gateway in (world.gateway(), world.gateway()):
        answer = world.post(gateway, [{}, {}], producer="p")
        assert (answer.status_code, answer.json()["accepted"]) == (422, 0)
    assert answer.json()["repeated"]


@pytest.mark.parametrize("headers", [{}, {"idempotency-key": "k"}])
def test_a_write_of_bad_rows_alone_makes_no_commit_and_its_key_is_free(
    world: World, headers: dict[str, str]
) -> None:
    gateway = world.gateway()
    assert world.post(gateway, row(1)).status_code == 200
    before = world.lake.table()
    for _ in range(2):
        answer = world.post(gateway, [{}, {}], headers=headers)
        found = answer.json()
        assert (answer.status_code, found["accepted"], found["repeated"]) == (422, 0, False)
        assert [one["row"] for one in found["rejected"]] == [0, 1]
        assert found["snapshot-id"] == before.head_id
    after = world.lake.table()
    assert (after.head_id, after.properties) == (before.head_id, before.properties)
    assert world.post(gateway, row(2), headers=headers).json()["repeated"] is False
    assert world.ids() == [1, 2]


def test_a_numbered_write_of_bad_rows_alone_is_kept_as_the_next_rows_follow_it(world: World) -> None:
    one, other = world.gateway(), world.gateway()
    assert world.post(one, [{}, {}], producer="p").status_code == 422
    assert world.post(other, row(1), producer="p", sequence=2).json()["accepted"] == 1
    assert world.ids() == [1]


def test_the_same_bytes_read_as_other_rows_are_no_repeat(world: World) -> None:
    gateway = world.gateway()
    body = b'[{"id": 1}, {"id": 2}, {"id": 3}, {}]'
    assert world.post(gateway, body, key="k").json()["accepted"] == 3
    again = world.post(gateway, body, key="k", kind="application/x-ndjson")
    assert (again.status_code, again.json()["error"]["type"]) == (422, "KeyReused")
    same = world.post(gateway, body, key="k", kind="Application/JSON; charset=utf-8").json()
    assert (same["accepted"], same["repeated"]) == (3, True)
