"""Writers go slower, then stop, and hear why: bytes that wait, the table's health, the owner's quota."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tarn.core import pressure
from tarn.core.pressure import DebtLimits, Pressure, Step, of_waiting
from tarn.core.quota import BYTES_PROPERTY, DAY_MS, ROWS_PROPERTY
from tarn.core.table_catalog import TableCatalog, TableName
from tarn.gateway.takes import InboxLimits
from tests.support.gateway import World, row
from tests.support.stack import eventually


class Held:
    """A catalog whose tables are loaded only once `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, catalog: TableCatalog) -> TableCatalog:
        self._inner = catalog
        return self  # type: ignore[return-value]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load(self, table: TableName) -> Any:
        self.go.wait(110)
        return self._inner.load(table)


def test_too_much_that_waits_is_refused_and_the_rest_is_written(world: World) -> None:
    held = Held()
    gateway = world.gateway(catalog=held, limits=InboxLimits(waiting_bytes_max=120))
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(world.post, gateway, row(n)) for n in range(8)]
        try:
            eventually(
                lambda: sum(one.done() for one in asked) >= 5, timeout_s=60, what="five answers", pause_s=0.05
            )
        finally:
            held.go.set()
        answers = [one.result() for one in asked]
    refused = [a for a in answers if a.status_code == 429]
    assert len(refused) == 5
    assert all(a.json()["error"]["type"] == "Busy" and a.headers["retry-after"] == "1" for a in refused)
    assert "120" in refused[0].json()["error"]["message"]
    assert len(world.ids()) == 3


def test_half_of_what_may_wait_is_free_and_then_each_write_is_delayed_the_longer() -> None:
    shares = [of_waiting(size, 100).share for size in (0, 49, 50, 75, 99, 100)]
    assert shares == [0, 0, 0.01, 0.5, 0.98, 1]
    assert [Pressure(share=s).delay_s for s in (0, 0.5)] == [0, pressure.SLOW_DELAY_S_MAX / 2]
    assert [Pressure(share=s).refused for s in (0.99, 1)] == [False, True]


@pytest.mark.parametrize("what", ["snapshots", "files"])
def test_the_tables_health_delays_then_stops_writers_until_it_is_better(world: World, what: str) -> None:
    debt = DebtLimits(**{what: Step(slow=2, stop=4)})
    gateway = world.gateway(limits=InboxLimits(debt=debt, look_s=0.2))
    kind = {"snapshots": "snapshots", "files": "data files"}[what]
    answers = [world.post(gateway, row(n)) for n in range(5)]
    refused = next(n for n, a in enumerate(answers) if a.status_code == 429)
    assert [a.status_code for a in answers[:refused]] == [200] * refused
    assert any("the table has" in a.headers.get("tarn-pressure", "") for a in answers[:refused])
    error = answers[refused].json()["error"]
    assert answers[refused].headers["retry-after"] == "30"
    assert f"{kind}; writers go slower from 2 on and stop at 4" in error["message"]
    if what == "snapshots":
        state = world.lake.table()
        named = {ref["snapshot-id"] for ref in state.refs.values()}
        old = [s["snapshot-id"] for s in state.metadata["snapshots"] if s["snapshot-id"] not in named]
        update = {"action": "remove-snapshots", "snapshot-ids": old}
        world.admin("POST", "/v1/namespaces/bronze/tables/orders", {"requirements": [], "updates": [update]})
        time.sleep(0.3)
        assert world.post(gateway, row(9)).status_code == 200


NOON_MS = 20_000 * DAY_MS + DAY_MS // 2


def at_noon() -> int:
    """A quota is that of a day, and midnight may come during a test."""
    return NOON_MS


def test_the_owners_quota_of_rows_holds_for_all_gateways_and_after_a_restart(world: World) -> None:
    world.property(ROWS_PROPERTY, "3")
    one, other = world.gateway(now_ms=at_noon), world.gateway(now_ms=at_noon)
    assert world.post(one, [row(1), {}]).json()["accepted"] == 1
    assert world.post(other, [row(2), row(3)]).status_code == 429
    assert world.post(other, row(2)).status_code == 200
    answer = world.post(one, row(3))
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (429, "QuotaUsedUp")
    assert f"4 rows in one day, and its property {ROWS_PROPERTY} allows 3" in error["message"]
    assert 0 < int(answer.headers["retry-after"]) <= DAY_MS / 1_000
    assert world.post(world.gateway(now_ms=at_noon), row(3)).status_code == 429
    world.property(ROWS_PROPERTY, "4")
    assert world.post(one, row(3)).status_code == 200
    assert world.ids() == [1, 2, 3]


def test_repeats_do_not_count_for_the_quota(world: World) -> None:
    world.property(ROWS_PROPERTY, "1")
    gateway = world.gateway(now_ms=at_noon)
    for _ in range(3):
        assert world.post(gateway, row(1), producer="p").status_code == 200
    assert world.post(gateway, row(1), producer="p", sequence=1).status_code == 429


def test_the_quota_of_bytes_begins_at_midnight_utc(world: World) -> None:
    now = [20_000 * DAY_MS - 1_000]
    world.property(BYTES_PROPERTY, "60")
    gateway = world.gateway(now_ms=lambda: now[0])
    assert world.post(gateway, row(1)).status_code == 200
    refused = world.post(gateway, row(2))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    now[0] += 1_000
    assert world.post(gateway, row(2)).status_code == 200


def test_a_write_by_a_clock_that_was_days_ahead_uses_up_no_quota_of_those_days(world: World) -> None:
    world.property(ROWS_PROPERTY, "2")
    now = [NOON_MS + 30 * DAY_MS]
    gateway = world.gateway(now_ms=lambda: now[0])
    assert world.post(gateway, [row(1), row(2)]).status_code == 200
    for day in range(3):
        now[0] = NOON_MS + day * DAY_MS
        assert world.post(gateway, [row(10 * day), row(10 * day + 1)]).status_code == 200
        assert world.post(gateway, row(10 * day + 2)).status_code == 429


def test_writes_at_once_do_not_exceed_the_quota_together(world: World) -> None:
    world.property(ROWS_PROPERTY, "5")
    gateways = [world.gateway(now_ms=at_noon), world.gateway(now_ms=at_noon)]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(world.post, gateways[n % 2], row(n)) for n in range(10)]
        statuses = sorted(one.result().status_code for one in asked)
    assert statuses == [200] * 5 + [429] * 5
    assert len(world.ids()) == 5


def test_a_quota_that_is_no_number_is_the_owners_to_correct(world: World) -> None:
    world.property(ROWS_PROPERTY, "many")
    answer = world.post(world.gateway(), row(1))
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "TableTakesNoRows")
    assert "'many'; its owner has to set a whole number" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (ROWS_PROPERTY, "2", f"3 rows in one day, and its property {ROWS_PROPERTY} allows 2"),
        (BYTES_PROPERTY, "100", f"its property {BYTES_PROPERTY} allows 100"),
        (ROWS_PROPERTY, "0", f"its property {ROWS_PROPERTY} allows 0"),
    ],
)
def test_a_write_larger_than_the_quota_of_a_day_is_no_matter_of_waiting(
    world: World, name: str, value: str, words: str
) -> None:
    world.property(name, value)
    gateway = world.gateway()
    answer = world.post(gateway, [row(1), row(2), row(3)])
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (413, "OverQuota")
    assert "retry-after" not in answer.headers
    assert words in error["message"]
    assert "it is never taken" in error["message"]
    if value != "0":
        assert world.post(gateway, row(1)).status_code == 200
        assert world.post(gateway, [row(1), row(2), row(3)]).status_code == 413
    world.property(name, "1000")
    assert world.post(gateway, [row(1), row(2), row(3)]).status_code == 200, "the owner allowed more"
