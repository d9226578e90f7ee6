"""`durability=log` over sockets: rows of a topic that an ingestor brings into the table, each once."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarn.adapters import partitions
from tarn.client import Receipt, async_writer, writer
from tarn.core.errors import CorruptStateError, InvalidError, UnavailableError
from tarn.core.log_claims import KEY_MS, RECENT_MAX, topic_of
from tarn.core.offsets import OffsetMap
from tarn.core.quota import DAY_MS
from tarn.core.rejected_rows import RUNS_MAX
from tarn.core.spec import parse_spec
from tarn.core.table_state import TableState
from tarn.gateway import log_inbox, log_plan
from tarn.gateway.app import AppLimits
from tarn.gateway.log_judge import LogLimits
from tarn.gateway.log_plan import landing
from tarn.gateway.repeats import REASON_GONE
from tarn.gateway.room import Room
from tarn.ingest.batch_commit import streams_named
from tarn.testing.memory_log import STEPS
from tarn.testing.memory_topic import Hole, Topic
from tests.support.gateway import LOG_SPEC, NAME, TABLE, Gateway, LogWorld, row
from tests.support.stack import eventually

LOG = "?durability=log"
WITHIN_S = 60.0


class Died(SystemExit):
    """A gateway ends in the middle of what it does."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LogWorld]:
    with LogWorld.opened(tmp_path) as made:
        yield made


def post(world: LogWorld, gateway: Gateway, body: Any, **more: Any) -> Any:
    answer = world.post(gateway, body, query=LOG, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_rows_of_more_partitions_than_a_commit_may_have_land(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "PARTITIONS_PER_BATCH_MAX", 3)
    field = {"source-id": 1, "field-id": 1000, "name": "id", "transform": "identity"}
    updates = [
        {"action": "add-spec", "spec": {"spec-id": 1, "fields": [field]}},
        {"action": "set-default-spec", "spec-id": -1},
    ]
    world.admin("POST", "/v1/namespaces/bronze/tables/orders", {"requirements": [], "updates": updates})
    found = post(world, world.gateway(), [row(n) for n in range(25)])
    assert found["accepted"] == 25
    world.land()
    assert world.ids() == list(range(25))
    assert len(world.lake.files()) == 25


def at_offsets(world: LogWorld, found: Any) -> list[int]:
    """Ids of the rows in the topic at the offsets of an answer."""
    log = world.topic.logs
    values = [
        log[run["partition"]][o] for run in found["offsets"] for o in range(run["first"], run["last"] + 1)
    ]
    return [json.loads(value)["id"] for value in values if isinstance(value, bytes)]


def test_rows_are_answered_with_their_offsets_and_land_once(world: LogWorld) -> None:
    gateway = world.gateway()
    found = post(world, gateway, [row(1), row(2)])
    assert found == {
        "durability": "log",
        "accepted": 2,
        "rejected": [],
        "topic": topic_of(world.uuid),
        "offsets": found["offsets"],
        "repeated": False,
    }
    assert at_offsets(world, found) == [1, 2]
    assert world.ids() == []
    world.land()
    assert world.ids() == [1, 2]
    (run,) = found["offsets"]
    traced = {r["id"]: (r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in world.lake.rows()}
    assert traced == {1: (run["partition"], run["first"]), 2: (run["partition"], run["last"])}
    assert {r["_tarn"]["source"] for r in world.lake.rows()} == {topic_of(world.uuid)}


def test_bad_rows_are_named_before_anything_is_written(world: LogWorld) -> None:
    gateway = world.gateway()
    found = post(world, gateway, [row(1), {"id": "x"}, row(3), {**row(4), "idd": 1}])
    assert found["accepted"] == 2
    assert [one["row"] for one in found["rejected"]] == [1, 3]
    assert at_offsets(world, found) == [1, 3]
    answer = world.post(gateway, [{"id": "x"}], query=LOG)
    assert (answer.status_code, answer.json()["offsets"]) == (422, [])
    world.land()
    assert world.ids() == [1, 3]
    assert world.lake.rows("ops.dead_letters") == []


@pytest.mark.parametrize("by", [{"key": "k"}, {"producer": "p", "sequence": 0}])
def test_a_repeat_is_answered_as_the_first_time_also_by_another_gateway(
    world: LogWorld, by: dict[str, Any]
) -> None:
    first, second = world.gateway(), world.gateway()
    body = [row(1), {"id": "x"}, row(2)]
    found = post(world, first, body, **by)
    for gateway in (first, second, first, world.gateway()):
        again = post(world, gateway, body, **by)
        assert again == {**found, "repeated": True}
    world.land()
    assert world.ids() == [1, 2]


def test_a_repeat_is_answered_by_what_was_judged_the_first_time(world: LogWorld) -> None:
    gateway = world.gateway(log=LogLimits(look_s=0.0))
    body = [row(1), {**row(2), "more": "x"}]
    found = post(world, gateway, body, key="k")
    assert [one["row"] for one in found["rejected"]] == [1]
    world.add_column("more")
    again = post(world, gateway, body, key="k")
    assert again["rejected"] == [{"row": 1, "reason": REASON_GONE}]
    assert (again["accepted"], again["offsets"], again["repeated"]) == (1, found["offsets"], True)


def test_a_repeat_without_room_has_its_answer_all_the_same(world: LogWorld) -> None:
    gateway = world.gateway()
    body = [row(1), {}]
    found = post(world, gateway, body, key="k")
    box = gateway.logs.inbox(NAME)
    box._room = Room(10, wait_s_max=0.05)
    with box._room.hold(10):
        again = post(world, gateway, body, key="k")
    assert again == {**found, "rejected": [{"row": 1, "reason": REASON_GONE}], "repeated": True}


def test_what_is_not_remembered_of_a_repeat_is_null(world: LogWorld) -> None:
    gateway = world.gateway()
    for at in range(RECENT_MAX + 1):
        post(world, gateway, [row(at)], producer="p", sequence=at)
    again = post(world, gateway, [row(0)], producer="p", sequence=0)
    assert (again["accepted"], again["rejected"], again["offsets"], again["repeated"]) == (
        None,
        None,
        [],
        True,
    )
    assert post(world, gateway, [row(1)], producer="p", sequence=1)["accepted"] == 1


def test_a_key_with_another_body_is_refused(world: LogWorld) -> None:
    gateway = world.gateway()
    post(world, gateway, [row(1)], key="k")
    answer = world.post(gateway, [row(2)], key="k", query=LOG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "KeyReused")


def test_a_key_is_forgotten_after_its_window_and_its_record_removed(world: LogWorld) -> None:
    now_ms = [1_800_000_000_000]
    gateway = world.gateway(now_ms=lambda: now_ms[0])
    post(world, gateway, [row(1)], key="k")
    now_ms[0] += KEY_MS
    assert post(world, gateway, [row(1)], key="k")["repeated"]
    now_ms[0] += 1
    assert not post(world, gateway, [row(1)], key="k")["repeated"]
    now_ms[0] += KEY_MS + 1
    post(world, gateway, [row(2)])
    keys = {
        key: value for key, value in world.logs.held(topic_of(world.uuid)).claims if key.startswith(b"k/")
    }
    assert list(keys.values()) == [None]


def test_a_producer_goes_on_and_gaps_overlaps_and_strangers_are_refused(world: LogWorld) -> None:
    gateway = world.gateway()
    post(world, gateway, [row(0), row(1)], producer="p")
    assert not post(world, gateway, [row(2)], producer="p", sequence=2)["repeated"]
    for sequence, body, words in (
        (4, [row(4)], "rows before it are missing"),
        (2, [row(2), row(3)], "part of it is in the log"),
    ):
        answer = world.post(gateway, body, producer="p", sequence=sequence, query=LOG)
        assert (answer.status_code, answer.json()["error"]["expected"]) == (409, 3)
        assert words in answer.json()["error"]["message"]
    answer = world.post(gateway, [row(9)], producer="q", sequence=9, query=LOG)
    assert (answer.status_code, answer.json()["error"]["expected"]) == (409, 0)
    assert "does not know this producer" in answer.json()["error"]["message"]
    world.land()
    assert world.ids() == [0, 1, 2]


def test_a_producer_that_moves_to_another_gateway_goes_on_there(world: LogWorld) -> None:
    first, second = world.gateway(), world.gateway()
    for number in range(6):
        gateway = (first, second)[number % 2]
        assert not post(world, gateway, [row(number)], producer="p", sequence=number)["repeated"]
    world.land()
    assert world.ids() == list(range(6))


def test_writes_that_overtake_each_other_wait_for_the_rows_before_them(world: LogWorld) -> None:
    gateway = world.gateway(log=LogLimits(gap_s_max=60))
    late = threading.Thread(target=lambda: post(world, gateway, [row(1)], producer="p", sequence=1))
    late.start()
    inbox = gateway.logs.inbox(NAME)
    eventually(lambda: inbox.waiting[0] == 1, timeout_s=WITHIN_S, what="the later rows", pause_s=0.01)
    post(world, gateway, [row(0)], producer="p", sequence=0)
    late.join(timeout=WITHIN_S)
    world.land()
    assert world.ids() == [0, 1]


def test_a_table_without_an_ingestor_for_its_log_says_what_to_do(world: LogWorld) -> None:
    other = world.other_table()
    answer = world.post(world.gateway(), [row(1)], table=other, query=LOG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "TableTakesNoRows")
    assert f"scripts/tarn log {other}" in answer.json()["error"]["message"]


def test_only_the_offsets_of_the_tables_own_log_prove_that_it_lands(world: LogWorld) -> None:
    state = world.lake.table()
    assert {"orders", "orders-log"} <= streams_named(state)
    (found,) = landing(state)
    assert found.source.topic == topic_of(world.uuid)


def test_a_topic_that_was_recreated_or_deleted_takes_no_rows(world: LogWorld) -> None:
    name = topic_of(world.uuid)
    world.lake.sources.topics[name] = Topic(name, 2, topic_id="another")
    answer = world.post(world.gateway(), [row(1)], query=LOG)
    assert answer.status_code == 409
    assert "deleted and created again" in answer.json()["error"]["message"]
    del world.lake.sources.topics[name]
    answer = world.post(world.gateway(), [row(1)], query=LOG)
    assert answer.status_code == 409
    assert "does not exist any more" in answer.json()["error"]["message"]


def declared_as(world: LogWorld, name: str) -> None:
    """Another ingestor brings the log in from now on; the former one is deleted."""
    text = LOG_SPEC.replace("NAME", name).replace("TOPIC", topic_of(world.uuid))
    world._spec = parse_spec(text, file="log.yaml")


@pytest.mark.parametrize("name", ["a-log", "orders-log-2"])
def test_a_topic_that_was_created_again_takes_rows_once_a_new_ingestor_has_begun(
    world: LogWorld, name: str
) -> None:
    post(world, world.gateway(), [row(1), row(2)])
    world.land()
    topic = topic_of(world.uuid)
    world.lake.sources.topics[topic] = Topic(topic, 2, topic_id="another")
    gateway = world.gateway(log=LogLimits(lag_slow=2, lag_stop=3, look_s=0.0))
    assert world.post(gateway, [row(3)], query=LOG).status_code == 409
    declared_as(world, name)
    world.land(turns=3)
    for number in range(3, 9):
        post(world, gateway, [row(number)])
        world.land()
    assert world.ids() == list(range(1, 9))


@pytest.mark.parametrize("name", ["a-log", "orders-log-2"])
def test_what_has_landed_is_what_the_stream_that_goes_on_has(world: LogWorld, name: str) -> None:
    """After a gap in the log a new name accepts the loss; the offsets of the former stream stand still."""
    gateway = world.gateway(log=LogLimits(lag_slow=2, lag_stop=3, look_s=0.0))
    post(world, gateway, [row(1), row(2)])
    world.topic.starts.update({p: len(log) for p, log in world.topic.logs.items()})
    declared_as(world, name)
    world.land()
    for number in range(3, 9):
        post(world, gateway, [row(number)])
        world.land()
    assert world.ids() == list(range(3, 9))


def test_offsets_of_others_that_cannot_be_read_stop_no_log(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = world.lake.table()
    before = log_plan.offsets_in

    def broken(found: TableState, stream: str) -> OffsetMap | None:
        if stream == "orders":
            raise CorruptStateError("the offset map cannot be read")
        return before(found, stream)

    monkeypatch.setattr(log_plan, "offsets_in", broken)
    assert [one.source.topic for one in landing(state)] == [topic_of(world.uuid)]
    assert world.post(world.gateway(), [row(1)], query=LOG).status_code == 200
    monkeypatch.setattr(log_plan, "streams_named", lambda _: {"orders"})
    with pytest.raises(CorruptStateError):
        landing(state)


def test_who_may_not_write_is_refused(world: LogWorld) -> None:
    world.principal("reader", "READ")
    assert world.post(world.gateway(), [row(1)], who="reader", query=LOG).status_code == 403
    assert world.topic.logs == {0: [], 1: []}


def test_a_write_opens_the_inbox_of_its_own_durability_only(world: LogWorld) -> None:
    gateway = world.gateway()
    post(world, gateway, [row(1)])
    assert gateway.tables.waiting() == {}
    gateway = world.gateway()
    assert world.post(gateway, [row(2)]).status_code == 200
    assert gateway.tables.waiting() == {TABLE: (0, 0)}
    assert gateway.logs._inboxes.all() == {}


def test_the_quota_counts_rows_of_both_ways_and_repeats_do_not(world: LogWorld) -> None:
    world.property("tarn.gateway.quota.rows-per-day", "4")
    gateway = world.gateway()
    assert world.post(gateway, [row(1)]).status_code == 200
    post(world, gateway, [row(2), {"id": "x"}], key="k")
    assert post(world, gateway, [row(2), {"id": "x"}], key="k")["repeated"]
    answer = world.post(gateway, [row(3), row(4)], query=LOG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "QuotaUsedUp")
    assert int(answer.headers["retry-after"]) > 0
    post(world, world.gateway(), [row(3)])
    assert world.post(gateway, [row(4)], query=LOG).status_code == 429


@pytest.mark.parametrize("ahead", ["log", "lake"])
def test_a_write_by_a_clock_that_was_days_ahead_uses_up_no_quota_of_those_days(
    world: LogWorld, ahead: str
) -> None:
    world.property("tarn.gateway.quota.rows-per-day", "2")
    noon_ms = 20_000 * DAY_MS + DAY_MS // 2
    now_ms = [noon_ms + 30 * DAY_MS]
    gateway = world.gateway(log=LogLimits(look_s=0.0), now_ms=lambda: now_ms[0])
    query = LOG if ahead == "log" else ""
    assert world.post(gateway, [row(1), row(2)], query=query).status_code == 200
    for day in range(3):
        now_ms[0] = noon_ms + day * DAY_MS
        post(world, gateway, [row(10 * day), row(10 * day + 1)])
        assert world.post(gateway, [row(10 * day + 2)], query=LOG).status_code == 429


def test_a_write_beyond_the_quota_of_a_whole_day_is_never_taken(world: LogWorld) -> None:
    world.property("tarn.gateway.quota.rows-per-day", "2")
    gateway = world.gateway()
    for query in (LOG, ""):
        answer = world.post(gateway, [row(1), row(2), row(3)], query=query)
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "OverQuota")
    post(world, gateway, [row(1), row(2)])
    assert world.topic.logs != {0: [], 1: []}


def test_lake_counts_what_lake_took_and_log_what_both_did(world: LogWorld) -> None:
    """As docs/gateway.md states it: at most twice the quota in a day, by `log` first and then by `lake`."""
    world.property("tarn.gateway.quota.rows-per-day", "2")
    gateway = world.gateway(log=LogLimits(look_s=0.0))
    post(world, gateway, [row(1)])
    assert world.post(gateway, [row(2), row(3)]).status_code == 200
    assert world.post(gateway, [row(4)]).status_code == 429
    assert world.post(gateway, [row(5)], query=LOG).status_code == 429


def test_rows_that_nobody_lands_hold_writers_back(world: LogWorld) -> None:
    gateway = world.gateway(log=LogLimits(lag_slow=2, lag_stop=5, look_s=0.0))
    post(world, gateway, [row(number) for number in range(4)])
    slow = world.post(gateway, [row(4)], query=LOG)
    assert "not in the table" in slow.headers["tarn-pressure"]
    answer = world.post(gateway, [row(5)], query=LOG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "Busy")
    assert answer.headers["retry-after"] == "10"
    world.land()
    post(world, gateway, [row(5)])
    world.land()
    assert world.ids() == list(range(6))


def test_a_broker_that_is_away_takes_nothing_and_says_so(world: LogWorld) -> None:
    gateway = world.gateway()
    post(world, gateway, [row(1)])

    def away(step: str) -> None:
        raise UnavailableError("Kafka does not answer")

    world.logs.at = away
    answer = world.post(gateway, [row(2)], key="k", query=LOG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Unavailable")
    assert "durability=lake needs no Kafka" in answer.json()["error"]["message"]
    assert "retry-after" in answer.headers
    assert world.post(gateway, [row(3)]).status_code == 200
    world.logs.at = lambda step: None
    assert not post(world, gateway, [row(2)], key="k")["repeated"]
    world.land()
    assert world.ids() == [1, 2, 3]


def once(step: str, error: BaseException) -> Callable[[str], None]:
    left = [error]

    def at(found: str) -> None:
        if found == step and left:
            raise left.pop()

    return at


@pytest.mark.parametrize("step", ["commit", "committed"])
@pytest.mark.parametrize("by", [{}, {"key": "k"}, {"producer": "p", "sequence": 0}])
def test_an_unknown_outcome_is_found_out_before_the_answer(
    world: LogWorld, step: str, by: dict[str, Any]
) -> None:
    gateway = world.gateway()
    world.logs.at = once(step, UnavailableError("gone"))
    found = post(world, gateway, [row(1), row(2)], **by)
    assert not found["repeated"]
    assert at_offsets(world, found) == [1, 2]
    world.land()
    assert world.ids() == [1, 2]


class LostAndAway:
    """The answer to a transaction is lost, and its gateway cannot open the log until `back` is set."""

    def __init__(self) -> None:
        self.asked, self.back = threading.Event(), threading.Event()
        self._who: threading.Thread | None = None

    def __call__(self, step: str) -> None:
        own = threading.current_thread()
        if step == "committed" and self._who is None:
            self._who = own
            raise UnavailableError("gone")
        if step == "open" and own is self._who and not self.back.is_set():
            self.asked.set()
            raise UnavailableError("away")


def test_what_another_gateway_wrote_over_a_transaction_of_unknown_outcome_is_known(world: LogWorld) -> None:
    world.property("tarn.gateway.quota.rows-per-day", "6")
    first, second = world.gateway(), world.gateway()

    def write(gateway: Gateway, number: int) -> bool:
        return bool(post(world, gateway, [row(number)], producer="p", sequence=number)["repeated"])

    assert not write(first, 0)
    lost = world.logs.at = LostAndAway()
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(write(first, 1)))
    waiting.start()
    assert lost.asked.wait(WITHIN_S)
    assert write(second, 1)
    assert not write(second, 2)
    assert not write(second, 3)
    lost.back.set()
    waiting.join(timeout=WITHIN_S)
    assert found == [False]
    assert write(first, 2)
    assert not write(first, 4)
    assert not write(first, 5)
    assert world.post(first, [row(6)], producer="p", sequence=6, query=LOG).status_code == 429
    world.land()
    assert world.ids() == list(range(6))


def test_a_gateway_with_a_wrong_clock_does_not_remove_the_mark_that_another_one_looks_for(
    world: LogWorld,
) -> None:
    first = world.gateway()
    second = world.gateway(now_ms=lambda: time.time_ns() // 1_000_000 + 30 * 86_400_000)
    post(world, first, [row(0)])
    lost = world.logs.at = LostAndAway()
    waiting = threading.Thread(target=lambda: post(world, first, [row(1)]))
    waiting.start()
    assert lost.asked.wait(WITHIN_S)
    post(world, second, [row(2)])
    lost.back.set()
    waiting.join(timeout=WITHIN_S)
    world.land()
    assert world.ids() == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("by", [{"key": "k"}, {"producer": "p", "sequence": 1}])
def test_a_gateway_that_dies_between_two_steps_leaves_all_or_nothing(
    world: LogWorld, step: str, by: dict[str, Any]
) -> None:
    first = world.gateway(app=AppLimits(answer_s_max=1))
    post(world, world.gateway(), [row(0)], producer="p")
    died = threading.Event()

    def die(found: str) -> None:
        if found == step and not died.is_set():
            died.set()
            raise Died

    world.logs.at = die
    # A busy machine may not even begin with it within the second: then it is sent again.
    until = time.monotonic() + WITHIN_S
    while not died.is_set():
        assert time.monotonic() < until, "no write has come as far as to the log"
        lost = world.post(first, [row(1), row(2)], query=LOG, **by)
        assert lost.status_code in (503, 504)
    world.logs.at = lambda step: None
    held = world.logs.held(topic_of(world.uuid))
    assert (held.open is not None) == (step in ("rows", "claimed", "commit"))
    found = post(world, world.gateway(), [row(1), row(2)], **by)
    assert found["repeated"] == (step == "committed")
    assert at_offsets(world, found) == [1, 2]
    world.land()
    assert world.ids() == [0, 1, 2]
    assert (world.logs.aborted > 0) == (step in ("rows", "claimed", "commit"))


def test_an_aborted_transaction_leaves_offsets_without_records(world: LogWorld) -> None:
    gateway = world.gateway()
    world.logs.at = once("commit", UnavailableError("gone"))
    found = post(world, gateway, [row(1)])
    (run,) = found["offsets"]
    before = world.topic.logs[run["partition"]][: run["first"]]
    assert len(before) in (0, 2)  # the second partition is next, if the first one has the aborted rows
    assert all(isinstance(one, Hole) for one in before)
    world.land()
    assert world.ids() == [1]


def test_two_gateways_at_once_take_turns_and_double_nothing(world: LogWorld) -> None:
    gateways = [world.gateway(), world.gateway()]

    def client(number: int) -> None:
        for at in range(8):
            body = [row(100 * number + at)]
            for gateway in (gateways[(number + at) % 2], gateways[number % 2]):
                answer = world.post(gateway, body, producer=f"p{number}", sequence=at, query=LOG)
                assert answer.status_code == 200, answer.text

    clients = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(timeout=60)
    world.land()
    assert world.ids() == sorted(100 * number + at for number in range(4) for at in range(8))


def test_a_write_and_its_repeat_in_one_turn_are_written_once(world: LogWorld) -> None:
    gateway = world.gateway()
    post(world, gateway, [row(0)])
    writes: list[dict[str, Any]] = [
        {"body": [row(1)]},
        *[{"body": [row(2)], "key": "k"}] * 2,
        *[{"body": [row(3)], "producer": "p"}] * 2,
    ]
    answers = in_one_turn(world, gateway, writes)
    assert [answer.status_code for answer in answers] == [200] * 5
    assert sorted(answer.json()["repeated"] for answer in answers) == [False, False, False, True, True]
    world.land()
    assert world.ids() == [0, 1, 2, 3]


def test_writes_of_one_turn_do_not_exceed_the_quota_together(world: LogWorld) -> None:
    world.property("tarn.gateway.quota.rows-per-day", "3")
    gateway = world.gateway()
    post(world, gateway, [row(0)])
    answers = in_one_turn(world, gateway, [{"body": [row(number)]} for number in (1, 2, 3)])
    assert sorted(answer.status_code for answer in answers) == [200, 200, 429]
    world.land()
    assert len(world.ids()) == 3


def in_one_turn(world: LogWorld, gateway: Gateway, writes: list[dict[str, Any]]) -> list[httpx.Response]:
    """Answers to writes that wait together, behind the first one of them."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(step: str) -> None:
        if step == "begin":
            begun.set()
            assert go_on.wait(WITHIN_S)

    world.logs.at = hold
    found: list[httpx.Response] = []
    inbox = gateway.logs.inbox(NAME)
    sending = []
    for number, write in enumerate(writes):
        sending.append(
            threading.Thread(
                target=lambda own: found.append(world.post(gateway, **own, query=LOG)), args=(write,)
            )
        )
        sending[-1].start()
        if not number:
            assert begun.wait(WITHIN_S)  # the first is taken at once, and holds the others up
        eventually(
            lambda number=number: inbox.waiting[0] >= number,
            timeout_s=WITHIN_S,
            what=f"{number} that wait",
            pause_s=0.01,
        )
    go_on.set()
    for one in sending:
        one.join(timeout=WITHIN_S)
    return found


def test_a_gateway_that_stops_answers_what_it_took(world: LogWorld) -> None:
    gateway = world.gateway()
    post(world, gateway, [row(1)])
    gateway.stop()
    world.land()
    assert world.ids() == [1]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_client_writes_to_the_log_and_says_where_its_rows_are(
    world: LogWorld, asynchronous: bool
) -> None:
    own = {
        "gateway": world.gateway().url,
        "catalog": world.catalog_url,
        "credential": world.credentials["admin"],
    }

    async def sent() -> Receipt:
        async with async_writer(TABLE, durability="log", **own) as rows:
            return await rows.send([row(1), {"id": "x"}, row(2)], key="k")

    with writer(TABLE, durability="log", **own) as rows:
        found = asyncio.run(sent()) if asynchronous else rows.send([row(1), {"id": "x"}, row(2)], key="k")
        assert rows.send([row(1), {"id": "x"}, row(2)], key="k").offsets == found.offsets
    assert (found.accepted, list(found.rejected), found.snapshot_id) == (2, [1], None)
    world.land()
    places = {r["id"]: (r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in world.lake.rows()}
    assert found.topic == topic_of(world.uuid)
    assert found.offsets == (places[1], places[2])
    with pytest.raises(InvalidError, match="Invalid durability 'disk'"):
        writer(TABLE, durability="disk", **own)  # type: ignore[arg-type]


def test_too_many_rejected_rows_are_not_remembered(world: LogWorld) -> None:
    gateway = world.gateway()
    body = [row(at) if at % 2 else {"id": "x"} for at in range(2 * RUNS_MAX + 2)]
    found = post(world, gateway, body, key="k")
    assert found["accepted"] == RUNS_MAX + 1
    again = post(world, gateway, body, key="k")
    assert (again["accepted"], again["rejected"], again["offsets"]) == (None, None, found["offsets"])


def refused(world: LogWorld, gateway: Gateway, body: Any) -> str:
    answer = world.post(gateway, body, query=LOG)
    assert answer.status_code == 409, answer.text
    return str(answer.json()["error"]["message"])


def landed(world: LogWorld) -> tuple[int, int]:
    """The only partition that has rows, and the table's offset in it."""
    (found,) = landing(world.lake.table())
    ((partition, offset),) = ((p, o) for p, o in found.next.items() if o)
    return partition, offset


@pytest.mark.parametrize("restarted", [False, True])
def test_rows_are_refused_while_a_truncated_log_ends_before_the_table(
    world: LogWorld, restarted: bool
) -> None:
    gateway = world.gateway(log=LogLimits(look_s=0.0))
    post(world, gateway, [row(n) for n in range(5)], producer="p", sequence=0)
    world.land()
    partition, offset = landed(world)
    kept, epochs = list(world.topic.logs[partition]), copy.deepcopy(world.topic.epochs)
    world.topic.truncate(partition, 3)
    if restarted:
        gateway = world.gateway(log=LogLimits(look_s=0.0))
    for _ in range(3):
        said = refused(world, gateway, [row(9)])
        assert f"ended at 3, and the table has its rows before {offset}" in said
        assert world.topic.logs[partition][3:] == [], "nothing was written"
    world.topic.logs[partition], world.topic.epochs = kept, epochs  # restored
    post(world, gateway, [row(9)])
    world.land()
    assert world.ids() == [0, 1, 2, 3, 4, 9]


@pytest.mark.parametrize(("look_s", "restart_s"), [(0.0, 60.0), (60.0, -1.0)])
def test_rows_that_got_offsets_which_the_table_has_are_not_committed(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch, look_s: float, restart_s: float
) -> None:
    """The log is truncated after the gateway has looked, and takes the rows of a transaction under way.

    If that took as long as a broker needs to start, the table is asked once more.
    """
    monkeypatch.setattr(log_inbox, "RESTART_S", restart_s)
    gateway = world.gateway(log=LogLimits(look_s=look_s))
    post(world, gateway, [row(n) for n in range(5)], producer="p", sequence=0)
    world.land()
    post(world, gateway, [row(5)], producer="p", sequence=5)
    partition, _ = landed(world)

    def at(step: str) -> None:
        if step == "begin":
            world.topic.truncate(partition, 3)
            world.logs.at = lambda step: None

    world.logs.at = at
    answer = world.post(gateway, [row(6)], query=LOG, producer="p", sequence=6)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "TableTakesNoRows")
    assert not [one for one in world.topic.logs[partition][3:] if not isinstance(one, Hole)]
