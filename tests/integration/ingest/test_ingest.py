"""Topic to table with Tarn's images: every record once, whatever is killed or frozen meanwhile."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest

from tests.integration.ingest.conftest import Ingest, eventually, init_of, one_shot
from tests.support.compose import SERVICES
from tests.support.healthy import await_health
from tests.support.images import image
from tests.support.turns import one_after_the_other

pytestmark = pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning")

PARTITIONS = 3


class Ledger:
    """Sent and acknowledged records: per partition and offset, the value, and whether it is good."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.sent: dict[tuple[int, int], tuple[bytes, bool]] = {}

    def feed(self, producer: Any, number: int, *, bad_every: int = 101) -> None:
        waiting = []
        for n in range(number):
            good = n % bad_every != bad_every - 1
            value = (
                json.dumps({"id": n, "at": "2026-11-21T08:00:00Z", "text": f"row {n} é"}).encode()
                if good
                else b"junk %d" % n
            )
            future = producer.send("orders", value, partition=self.chance.randrange(PARTITIONS))
            waiting.append((future, value, good))
        for future, value, good in waiting:
            meta = future.get(timeout=120)
            self.sent[meta.partition, meta.offset] = (value, good)

    def ends(self, start: dict[int, int]) -> dict[int, int]:
        found = dict(start)
        for p, o in self.sent:
            found[p] = max(found[p], o + 1)
        return found


def ends_now(ingest: Ingest) -> dict[int, int]:
    """The offsets up to which the table holds everything, as soon as ingest says them."""
    eventually("it says its offsets", lambda: "committedOffsets" in ingest.status(), timeout_s=60)
    return {int(p): o for p, o in ingest.status()["committedOffsets"].items()}


def audit(ingest: Ingest, ledger: Ledger) -> dict[str, int]:
    """Compare the ledger with the tables, read by pyiceberg; returns the counts."""
    lake = ingest.stack.open()
    rows = lake.load_table("bronze.orders").scan().to_arrow().to_pylist()
    letters = lake.load_table("ops.dead_letters").scan().to_arrow().to_pylist()
    found = Counter((r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in rows)
    good = {place for place, (_, ok) in ledger.sent.items() if ok}
    bad = {place for place, (_, ok) in ledger.sent.items() if not ok}
    counts = {
        "sent": len(ledger.sent),
        "rows": len(rows),
        "lost": len(good - set(found)),
        "doubled": sum(n - 1 for n in found.values()),
        "foreign": len(set(found) - good),
    }
    expected = {"sent": len(ledger.sent), "rows": len(good), "lost": 0, "doubled": 0, "foreign": 0}
    assert counts == expected
    for row in rows:
        value = json.loads(ledger.sent[row["_tarn"]["partition"], row["_tarn"]["offset"]][0])
        assert (row["id"], row["text"]) == (value["id"], value["text"])
    dead = Counter((r["partition"], r["offset"]) for r in letters)
    assert dead == Counter(bad)
    assert all(r["value"] == ledger.sent[r["partition"], r["offset"]][0] for r in letters)
    return counts | {"dead letters": len(letters)}


def test_every_record_is_in_the_table_once_however_often_ingest_is_killed(
    ingest: Ingest, record_property: Any
) -> None:
    """kill -9 at random while records keep arriving; then stopped gracefully, and restarted once more."""
    start = ends_now(ingest)
    ledger = Ledger(seed=1)
    producer = ingest.stack.producer()
    feeding = threading.Thread(target=ledger.feed, args=(producer, 20_000))
    feeding.start()
    chance = random.Random(2)
    kills = 0
    for _ in range(6):
        time.sleep(chance.uniform(0.2, 1.5))
        ingest.wrapped.kill(signal="SIGKILL")
        ingest.wrapped.start()
        kills += 1
        ingest.await_running()
    feeding.join(240)
    assert not feeding.is_alive()
    producer.close()
    ingest.await_caught_up(ledger.ends(start))

    began = time.monotonic()
    ingest.wrapped.stop(timeout=30)
    took_s = time.monotonic() - began
    ingest.wrapped.reload()
    assert ingest.wrapped.attrs["State"]["ExitCode"] == 0
    grace_s = float(SERVICES["ingest"]["stop_grace_period"].removesuffix("s"))
    assert took_s < grace_s, f"SIGTERM to the end took {took_s:.1f} s; Compose would have killed it"
    ingest.wrapped.start()
    ingest.await_running()
    counts = audit(ingest, ledger)
    record_property("counts", counts | {"kills": kills})
    sys.stderr.write(f"{counts}, {kills} kills, stopped in {took_s:.1f} s\n")


FROZEN = one_after_the_other(
    ("minio", "catalog", "kafka"), "ingest loses or doubles rows when one of three dependencies hangs"
)


@pytest.mark.parametrize("frozen", [pytest.param(name, marks=mark) for name, mark in FROZEN.items()])
def test_a_frozen_dependency_is_waited_for_and_nothing_is_lost(frozen: str, ingest: Ingest) -> None:
    """Frozen with its port open: unhealthy, with the reason, and recovers unaided with the dependency."""
    named = {"minio": "store", "catalog": "catalog", "kafka": "kafka"}[frozen]
    ingest.await_health()
    start = ends_now(ingest)
    ledger = Ledger(seed=3)
    producer = ingest.stack.producer()
    ledger.feed(producer, 500)
    ingest.stack.wrapped(frozen).pause()
    try:
        if frozen != "kafka":
            ledger.feed(producer, 500)
        ingest.await_health("unhealthy", timeout_s=60)
        status, body = ingest.get("/health")
        assert status == 503
        assert any(fault.startswith(f"{named}:") for fault in json.loads(body)["faults"]), body
    finally:
        ingest.stack.wrapped(frozen).unpause()
    ledger.feed(producer, 500)
    producer.close()
    ingest.await_caught_up(ledger.ends(start))
    ingest.await_health()
    rows = ingest.stack.open().load_table("bronze.orders").scan().to_arrow().to_pylist()
    found = Counter((r["_tarn"]["partition"], r["_tarn"]["offset"]) for r in rows)
    assert max(found.values()) == 1
    assert {place for place, (_, ok) in ledger.sent.items() if ok} <= set(found)


@pytest.mark.in_turn(4, "ingest needs a restart after a refused log-in")
def test_a_password_that_kafka_does_not_take_shows_and_heals_with_the_broker(ingest: Ingest) -> None:
    """Renewed while both run: the broker reads it when it starts, ingest without a restart."""
    ingest.await_health()
    start, ledger = ends_now(ingest), Ledger(seed=5)
    producer = ingest.stack.producer()
    ledger.feed(producer, 200)
    one_shot(init_of(ingest.stack.secrets, "--renew-kafka", "ingest"))
    ingest.await_health("unhealthy", timeout_s=60)
    faults = json.loads(ingest.get("/health")[1])["faults"]
    (told,) = [fault for fault in faults if fault.startswith("kafka:")]
    assert "does not let user ingest in" in told
    assert "docker compose restart kafka" in told
    kafka = ingest.stack.wrapped("kafka")
    kafka.stop(timeout=15)
    kafka.start()
    await_health(kafka, what="the broker")
    ledger.feed(producer, 200)
    producer.close()
    ingest.await_caught_up(ledger.ends(start))
    ingest.await_health()


def test_its_pages_tell_where_it_stands(ingest: Ingest) -> None:
    start = ends_now(ingest)
    ledger = Ledger(seed=4)
    producer = ingest.stack.producer()
    ledger.feed(producer, 300)
    producer.close()
    ingest.await_caught_up(ledger.ends(start))
    found = ingest.status()
    assert found["state"] == "Running"
    assert found["conditions"][0]["status"] is True
    assert found["table"] == "bronze.orders"
    assert found["topic"] == "orders"
    assert found["partitions"] == [0, 1, 2]
    assert found["rows"] + found["badRecords"] >= 300
    assert found["lastCommit"]["snapshotId"] == (
        ingest.stack.open().load_table("bronze.orders").metadata.current_snapshot_id
    )
    assert found["lastCommit"]["durationMs"] > 0
    eventually("no lag is shown", lambda: ingest.status().get("lag") == 0, timeout_s=90)
    status, body = ingest.get("/metrics")
    assert status == 200
    assert (
        f'tarn_ingest_rows_total{{ingestor="orders",table="bronze.orders"}} {found["rows"]}' in body.decode()
    )
    assert ingest.get("/nothing")[0] == 404


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Ingestr", "kind: 'Ingestr' is not allowed"),
        ("a: [1", "bad.yaml, line"),
    ],
)
def test_check_tells_what_is_wrong_with_a_spec(tmp_path: Any, text: str, told: str) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "bad.yaml").write_text(text)
    done = subprocess.run(
        [
            *(
                "docker",
                "run",
                "--rm",
                "--network=none",
                "--read-only",
                "--cap-drop=ALL",
                "--user=10006:10006",
            ),
            *("-v", f"{tmp_path}:/specs:ro", image("services")),
            *("python", "-m", "tarn.ingest", "--check", "--specs", "/specs"),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


@pytest.mark.in_turn(3, "ingest writes nulls for a column that somebody renamed")
def test_a_column_renamed_by_somebody_stops_ingest_until_it_is_put_back(ingest: Ingest) -> None:
    """Through the catalog as a notebook does it: a clear error, no commit meanwhile, nothing lost after."""
    start = ends_now(ingest)
    ledger = Ledger(seed=5)
    producer = ingest.stack.producer()
    ledger.feed(producer, 200)
    ingest.await_caught_up(ledger.ends(start))
    table = ingest.stack.open().load_table("bronze.orders")
    before = table.metadata.current_snapshot_id
    with table.update_schema() as change:
        change.rename_column("text", "words")
    ledger.feed(producer, 200)
    producer.close()
    eventually("it stops", lambda: ingest.status().get("state") == "Stopped", timeout_s=90)
    condition = ingest.status()["conditions"][0]
    assert (condition["status"], condition["reason"]) == (False, "InvalidSpec")
    assert condition["message"] == (
        "table bronze.orders cannot take what the spec says: column text (string) is missing in the table; "
        "alter the table or the spec, or let ingest alter the table: `evolution: evolve` in the spec's schema"
    )
    assert table.refresh().metadata.current_snapshot_id == before
    assert ingest.get("/health")[0] == 200, "a restart would not help"
    with table.update_schema() as change:
        change.rename_column("words", "text")
    ingest.await_caught_up(ledger.ends(start))  # by itself
    rows = {
        (r["_tarn"]["partition"], r["_tarn"]["offset"]): r["text"]
        for r in table.refresh().scan().to_arrow().to_pylist()
    }
    good = {place: json.loads(value)["text"] for place, (value, ok) in ledger.sent.items() if ok}
    assert {place: rows.get(place) for place in good} == good
