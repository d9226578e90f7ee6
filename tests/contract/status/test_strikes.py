"""Faults by hand: real writers lose an answer or end, what follows is shown, and an audit counts the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tarn.core.control.model import Phase, WorkerId, WorkerSeen
from tarn.core.errors import UnavailableError
from tarn.core.table_catalog import CommitDone, TableName
from tarn.ingest.commit_ring import CommitKind, CommitOutcome, CommitSeen
from tarn.ingest.lost_replies import LostReply, TrappedCatalog, Traps, lost_of
from tarn.ingest.settings import Settings
from tarn.ingest.status import State, StatusRegistry
from tarn.ingest.strikes import StrikeKind, Strikes
from tarn.testing.memory_topic import Topic
from tests.support.lake import TABLE, Lake
from tests.support.plant import Plant
from tests.support.stack import eventually
from tests.support.status_api import check, schema_of, served
from tests.support.struck import ROOT, Struck, folder, struck


def healed(strike: Any) -> None:
    """Require that a strike struck, was healed, and that its audit found every row once."""
    assert strike["state"] == "done", strike["reason"]
    assert strike["reason"] is None
    assert strike["askedAt"] <= strike["struckAt"] <= strike["healedAt"] <= strike["endedAt"]
    assert 0 <= strike["healSeconds"] < 60
    audit = strike["audit"]
    assert (audit["whole"], audit["missing"], audit["doubled"], audit["findings"]) == (True, 0, 0, [])
    assert audit["accounted"] > 0


def rows_are_there_once(made: Struck) -> None:
    offsets = made.plant.lake.offsets()
    assert len(offsets) == len(set(offsets)) > 0


def dropped(made: Struck) -> None:
    reply = made.post("drop-reply")
    assert reply.status == 202, reply.body
    check(schema_of("/v1/faults/{kind}", 202, "post"), reply.json)
    assert (reply.json["state"], reply.json["table"]) == ("waiting", TABLE)
    strike = made.over()
    healed(strike)
    assert strike["outcome"] == "resolved"
    assert strike["snapshotId"] in strike["what"]
    commits = made.client.get("/v1/commits?limit=1000")["commits"]
    (mine,) = [one for one in commits if one["commitId"] == strike["commitId"]]
    assert (mine["outcome"], mine["snapshotId"]) == ("resolved", strike["snapshotId"])
    rows_are_there_once(made)


def killed(made: Struck, words: str) -> None:
    assert made.post("kill-writer").status == 202
    strike = made.over()
    healed(strike)
    assert words in strike["what"]
    assert "another writer" in strike["resolution"]
    commits = made.client.get("/v1/commits?limit=1000")["commits"]
    (mine,) = [one for one in commits if one["commitId"] == strike["commitId"]]
    assert mine["at"] >= strike["struckAt"]
    rows_are_there_once(made)


def test_threads_lose_an_answer_and_are_left_behind_and_no_row_is_lost_or_doubled() -> None:
    with struck() as made:
        dropped(made)
        ingestor = made.client.get("/v1/ingestors/orders")
        assert (ingestor["unknowns"], ingestor["unknownsResolved"]) == (1, 1)
        killed(made, "left behind")
        dropped(made)
        assert [one["id"] for one in made.client.get("/v1/faults")["strikes"]] == [3, 2, 1]


def test_processes_lose_an_answer_and_are_killed_and_no_row_is_lost_or_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT, str(tmp_path))
    monkeypatch.chdir(Path(__file__).parents[3])
    with struck(processes=folder(tmp_path)) as made:
        dropped(made)
        killed(made, "SIGKILL")


def test_a_strike_that_finds_no_commit_says_so_and_is_disarmed() -> None:
    with struck(strike_s_max=0.5) as made:
        made.rest()
        lake = made.plant.lake
        for kind in ("drop-reply", "kill-writer"):
            assert made.post(kind).status == 202
            strike = made.over()
            assert (strike["state"], strike["struckAt"], strike["audit"]) == ("failed", None, None)
            assert f"no commit to {TABLE} came" in strike["reason"]
        made.feeding = True
        before = lake.registry.get("orders").commits
        eventually(
            lambda: lake.registry.get("orders").commits >= before + 3,
            timeout_s=60,
            what="commits go on",
            pause_s=0.01,
        )
        status = lake.registry.get("orders")
        assert (status.unknowns, status.state.value) == (0, "Running")


def test_an_answer_of_another_table_is_not_that_of_the_strike() -> None:
    """A process may drop one for a strike that came to nothing, when the next one is under way."""
    with struck(heal_s_max=40) as made:
        made.rest()
        assert made.post("drop-reply").status == 202
        other = LostReply(table="bronze.other", at_ms=1, commit_ids=("theirs",), snapshot_id=7)
        made.strikes._traps.tell(other)
        made.feeding = True
        strike = made.over()
        healed(strike)
        assert strike["commitId"] != "theirs"


class Driven:
    """A driver whose writers are processes that run; it takes note of those that are ended."""

    def __init__(self, *ids: WorkerId) -> None:
        self.ids, self.ended = ids, list[WorkerId]()

    def list(self) -> list[WorkerSeen]:
        return [
            WorkerSeen(id=id_, phase=Phase.RUNNING, since_s=0, started_s=0, ready=True) for id_ in self.ids
        ]

    def is_process(self, id_: WorkerId) -> bool:
        return True

    def crash(self, id_: WorkerId) -> str:
        self.ended.append(id_)
        return f"{id_} was ended"


def struck_writer(ingestor: str, readers: dict[str, WorkerId]) -> None:
    """A writer of the ingestor is ended, and what the same reader commits next shows it healed."""
    registry, driver, now_ms = StatusRegistry(), Driven(*readers.values()), [1_000]
    for reader in readers:
        registry.update(reader, state=State.RUNNING, table=TABLE, replica_of=ingestor, replicas=len(readers))

    def commit(reader: str, at_ms: int) -> None:
        registry.commits.add(
            CommitSeen(
                at_ms=at_ms,
                ingestor=ingestor,
                reader=reader,
                table=TABLE,
                kind=CommitKind.BATCH,
                outcome=CommitOutcome.COMMITTED,
                commit_id=f"{reader}@{at_ms}",
                snapshot_id=1,
                attempts=1,
                took_ms=1,
            )
        )

    first, *others = readers
    coming = [*((other, 1_001) for other in others), (first, 999), (first, 1_002)]

    def sleep(_seconds: float) -> None:
        if driver.ended and coming:
            commit(*coming.pop(0))

    def audit(table: str) -> Any:
        raise UnavailableError(f"no audit of {table} here")

    strikes = Strikes(
        registry, cast("Any", driver), Traps(), audit=audit, now_ms=lambda: now_ms[0], sleep=sleep
    )
    strikes.begin(StrikeKind.KILL_WRITER, ingestor)
    eventually(lambda: not strikes.all()[0].running, timeout_s=60, what="it is over", pause_s=0.01)
    (strike,) = strikes.all()
    assert driver.ended == [readers[first]]
    assert (strike.reason, strike.commit_id) == (f"no audit of {TABLE} here", f"{first}@1002")


def test_an_ingestor_of_several_topics_is_struck_by_the_name_that_is_listed() -> None:
    id_ = WorkerId(ingestor="orders", topic="shop.eu", replica=0, revision="r")
    struck_writer("orders.shop.eu", {"orders.shop.eu": id_})


def test_a_commit_of_another_replica_heals_nothing() -> None:
    ids = [WorkerId(ingestor="orders", topic="shop", replica=n, revision="r") for n in range(3)]
    struck_writer("orders", {f"orders/{n}": id_ for n, id_ in enumerate(ids)})


def test_only_one_strike_at_a_time_and_only_of_what_runs() -> None:
    with struck() as made:
        made.rest()  # or a commit under way would be the one that is struck
        assert made.post("drop-reply").status == 202
        reply = made.post("kill-writer")
        assert reply.status == 409
        check(schema_of("/v1/faults/{kind}", 409, "post"), reply.json)
        assert made.client.get("/v1/faults")["running"] is True
        made.feeding = True
        healed(made.over())
        reply = made.post("drop-reply", "nobody")
        assert (reply.status, reply.json["error"]["field"]) == (404, "ingestor")
        assert made.post("burn-down").status == 404
        made.plant.lake.registry.update("waiting", table="a.b")
        assert made.post("drop-reply", "waiting").status == 409


def test_another_sites_page_strikes_nothing() -> None:
    with struck() as made:
        own = f"http://127.0.0.1:{made.client.port}"
        refused = {
            "no token": {"X_Tarn_Fault_Token": ""},
            "a wrong token": {"X_Tarn_Fault_Token": "x" * 32},
            "another origin": {"origin": "http://evil.example"},
            "another port": {"origin": "http://127.0.0.1:1"},
            "another site": {"sec_fetch_site": "cross-site"},
            "no origin": {"origin": "null"},
        }
        for name, headers in refused.items():
            reply = made.post("drop-reply", **headers)
            assert reply.status == 403, name
            check(schema_of("/v1/faults/{kind}", 403, "post"), reply.json)
        assert made.post("drop-reply", host="evil.example").status == 421
        for method in ("GET", "PUT", "OPTIONS"):
            reply = made.post("drop-reply", method=method)
            assert (reply.status, reply.headers["allow"]) == (405, "POST")
            assert "access-control-allow-origin" not in reply.headers
        assert made.client.get("/v1/faults")["strikes"] == []
        assert made.post("drop-reply", origin=own, sec_fetch_site="same-origin").status == 202
        healed(made.over())


def test_nothing_is_struck_unless_it_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARN_FAULTS", raising=False)
    assert Settings.model_fields["faults"].default == "off"
    with served(StatusRegistry()) as client:
        page = client.get("/v1/faults")
        assert (page["enabled"], page["token"], page["strikes"]) == (False, None, [])
        assert client.get("/v1/page")["faults"] is False
        reply = client.ask("/v1/faults/drop-reply?ingestor=orders", method="POST", X_Tarn_Fault_Token="")
        assert reply.status == 403
        assert "TARN_FAULTS=on" in reply.json["error"]["message"]
        assert client.ask("/v1/faults/drop-reply", method="POST").status == 400


class Answering:
    """A catalog that commits."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.commits = 0

    def commit(self, *_: Any, **__: Any) -> Any:
        self.commits += 1
        return CommitDone(state=self.state)


def test_a_trap_takes_one_answer_of_its_table_in_its_time() -> None:
    with struck() as made:
        state = made.plant.lake.table()
    now_s, lost = 0.0, []
    traps = Traps(clock=lambda: now_s, now_ms=lambda: 7)
    traps.on_lost(lost.append)
    inner: Any = Answering(state)
    catalog = TrappedCatalog(inner, traps)
    table, request = TableName(("bronze",), "orders"), Any

    def commit(name: TableName = table) -> bool:
        return isinstance(catalog.commit(name, request, key="k"), CommitDone)  # type: ignore[arg-type]

    assert commit()
    traps.drop_next(TABLE, within_s=10.0)
    assert commit(TableName(("bronze",), "others"))
    assert not commit()
    assert (commit(), inner.commits) == (True, 4), "the catalog had applied each of them"
    assert [(one.table, one.at_ms, one.snapshot_id) for one in lost] == [(TABLE, 7, state.head_id)]
    traps.drop_next(TABLE, within_s=10.0)
    now_s = 10.0
    assert commit(), "too late"
    traps.drop_next(TABLE, within_s=10.0)
    traps.disarm(TABLE)
    assert commit()


def test_an_answer_that_a_process_lost_is_read_back() -> None:
    lost = LostReply(table=TABLE, at_ms=1, commit_ids=("a", "b"), snapshot_id=None)
    value = {"table": TABLE, "at_ms": 1, "commit_ids": ["a", "b"], "snapshot_id": None}
    assert lost_of(value) == lost
    for wrong in ({}, value | {"commit_ids": None}, value | {"snapshot_id": "1"}, value | {"at_ms": "x"}):
        with pytest.raises((ValueError, KeyError, TypeError)):
            lost_of(wrong)


def test_a_writer_that_was_left_behind_stays_dead_for_that_reason() -> None:
    plant = Plant(Lake(Topic("orders", 1)))
    try:
        plant.apply(replicas=1)
        plant.until(plant.only_running)
        plant.until(lambda: len(plant.seen()) == 1)
        (one,) = plant.seen()
        driver: Any = plant.driver
        thread = driver._writers[one.id].thread
        driver.crash(one.id)
        thread.join(30)
        assert not thread.is_alive()
        (dead,) = plant.seen()
        assert (dead.phase, dead.reason) == (Phase.ENDED, "Killed")
        with pytest.raises(UnavailableError, match="has ended meanwhile"):
            driver.crash(one.id)
        plant.until(lambda: plant.workers() == ["orders/orders/0 Running"])
    finally:
        plant.close()
