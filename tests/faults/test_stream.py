"""Live windows of the stack: right in topic and table, though the service and the broker are killed."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import pytest

from tarn.adapters.kafka_login import Login
from tarn_demo.flights.events import PARTITIONS
from tarn_demo.stream.topics import ALERTS, EVENTS, WINDOWS
from tests.support import windows_oracle as oracle
from tests.support.flights import host_env
from tests.support.kafka_logs import ends, read
from tests.support.stack import Stack, eventually
from tests.support.windows_played import FIRST_DAY, Played, once, table

FLIGHTS = 3_000
CUT = oracle.Cut(window_s=10_800, hop_s=3_600, lateness_s=3_600)
LIMITS = {"delay": 60, "departures": 3, "cancelled": 3}
PIECES, PIECE_S = 20, 0.5
DAYS_AFTER = 7
"""From what other tests have played to what this one plays: all windows of theirs are closed."""
BACK_S = 240
ROWS_S = 180


def shown(stack: Stack) -> dict[str, Any]:
    """The answer of /v1/windows; empty while there is none."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{stack.ports['TARN_PORT_STREAM']}/v1/windows", timeout=5
        ) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except OSError:
        return {}


def days_after(stack: Stack) -> int:
    """By how many days what is played now must be later than the year, so that it is not late."""
    seen: list[Any] = [object(), object()]

    def rests() -> bool:
        seen.append(shown(stack).get("watermark", object()))
        return bool(seen[-1] == seen[-2] == seen[-3])

    what = "all that was played before is read"
    eventually(rests, timeout_s=BACK_S, what=lambda: f"{what}; its watermarks were {seen[-3:]}", pause_s=3)
    if seen[-1] is None:
        return 0
    return max(0, (datetime.fromisoformat(seen[-1]) - FIRST_DAY).days + DAYS_AFTER)


def kafka_options(stack: Stack) -> dict[str, Any]:
    """Settings of a client of kafka-python on the host."""
    env = host_env(stack)
    login = Login(user=env["TARN_KAFKA_USERNAME"], password=env["TARN_KAFKA_PASSWORD"])
    return {"bootstrap_servers": env["TARN_KAFKA_BOOTSTRAP"], **login.options()}


def kill(stack: Stack, service: str) -> None:
    """End the main process of a service with SIGKILL; return when the engine has started it again."""
    before = stack.inspect(service)["State"]["StartedAt"]
    stack.signal_application(service, "SIGKILL")
    eventually(
        lambda: stack.inspect(service)["State"]["StartedAt"] != before,
        timeout_s=BACK_S,
        what=f"{service} runs again",
    )


def rows_of(stack: Stack, name: str, columns: str, first: int) -> list[list[Any]]:
    """Rows of a table in live, from an offset of its topic on."""
    return stack.query(f"SELECT {columns} FROM live.{name} WHERE _tarn.offset >= {first}")


@pytest.mark.in_turn(5, "rows of live windows are wrong, or too many, after a kill in Compose")
@pytest.mark.timeout(1_800)
def test_windows_are_right_though_the_service_and_the_broker_are_killed(
    stack: Stack, record_property: Callable[[str, object], None]
) -> None:
    stack.await_healthy()
    began_s, options = time.monotonic(), kafka_options(stack)
    first = {topic: ends(options, topic, 1)[0] for topic in (WINDOWS, ALERTS)}
    events_first = ends(options, EVENTS, PARTITIONS)
    days = days_after(stack)
    played, since = Played(options, FLIGHTS, days=days), FIRST_DAY + timedelta(days=days - 1)
    failed: list[BaseException] = []

    def play() -> None:
        try:
            for piece in range(PIECES):
                played.send((piece + 1) / PIECES)
                time.sleep(PIECE_S)
        except Exception as e:  # noqa: BLE001 - of any kind: the test says which
            failed.append(e)

    def written() -> int:
        return ends(options, WINDOWS, 1)[0]

    def says(what: str) -> Callable[[], str]:
        return lambda: (
            f"{what}; written are {written() - first[WINDOWS]}, {stack.health()}; {shown(stack)!r:.300}"
        )

    player = threading.Thread(target=play)
    with stack.fault():
        player.start()
        try:
            eventually(
                lambda: written() > first[WINDOWS], timeout_s=BACK_S, what=says("it writes"), pause_s=0.1
            )
            kill(stack, "stream")
            at = written()
            eventually(lambda: written() > at, timeout_s=BACK_S, what=says("it writes again"), pause_s=0.1)
            kill(stack, "kafka")
        finally:
            player.join(BACK_S)
        stack.await_healthy()
    assert not player.is_alive()
    assert failed == []
    played.close()

    log = read(options, EVENTS, PARTITIONS, first=events_first)
    assert {partition: len(values) for partition, values in log.items()} == {
        partition: len(values) for partition, values in played.log.items()
    }
    wanted = oracle.expected(log, CUT)
    assert len(wanted.rows) > 2_000

    def sent() -> list[bytes]:
        return read(options, WINDOWS, 1, first={0: first[WINDOWS]})[0]

    def of_this_play(rows: pd.DataFrame) -> pd.DataFrame:
        """Without the last windows of an earlier play, which this one closes."""
        return rows[rows["window_start"] >= since]

    eventually(
        lambda: len(of_this_play(table(once(sent(), "window_id")))) >= len(wanted.rows),
        timeout_s=BACK_S,
        what=says(f"all {len(wanted.rows)} windows"),
        pause_s=2,
    )
    messages = sent()
    assert oracle.differences(of_this_play(table(once(messages, "window_id"))), wanted.rows) == []

    columns = ["window_id", *oracle.KEY, *oracle.MEASURES]
    eventually(
        lambda: rows_of(stack, "route_delays", "count(*)", first[WINDOWS]) == [[len(messages)]],
        timeout_s=ROWS_S,
        what=f"{len(messages)} rows in live.route_delays",
        pause_s=1,
    )
    found = rows_of(stack, "route_delays", f"DISTINCT {', '.join(columns)}", first[WINDOWS])
    assert len({row[0] for row in found}) == len(found), "a window that was sent again is the same"
    in_table = table([dict(zip(columns, row, strict=True)) for row in found])
    assert oracle.differences(of_this_play(in_table), wanted.rows) == []

    alerts = once(read(options, ALERTS, 1, first={0: first[ALERTS]})[0], "alert_id")
    ids = oracle.alerts(wanted.rows, CUT, **LIMITS)
    in_topic = {one["alert_id"] for one in alerts}
    of_now = {one["alert_id"] for one in alerts if datetime.fromisoformat(one["window_start"]) >= since}
    assert of_now == ids
    assert len(ids) > 1
    eventually(
        lambda: {row[0] for row in rows_of(stack, "alerts", "DISTINCT alert_id", first[ALERTS])} == in_topic,
        timeout_s=ROWS_S,
        what=f"{len(in_topic)} alerts in live.alerts",
        pause_s=1,
    )
    assert wanted.watermark is not None
    assert pd.Timestamp(shown(stack)["watermark"]) == wanted.watermark
    record_property("rows", len(wanted.rows))
    record_property("rows_sent_again", len(messages) - len(once(messages, "window_id")))
    record_property("seconds", round(time.monotonic() - began_s, 1))
