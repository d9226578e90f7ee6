"""What the service answers: the current windows of all partitions, the last alerts, and to whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tarn.core.hosts import Hosts
from tarn_demo.stream import partials
from tarn_demo.stream.partials import SHOWN_MAX
from tarn_demo.stream.view import ALERTS_MAX, PARTS_MAX, View
from tarn_demo.stream.web import Pages
from tarn_demo.stream.windows import PartitionWindows, Rules, Sums

HOUR = 3_600_000
RULES = Rules.of(window_s=7_200, hop_s=3_600, lateness_s=1_800)
NAMES = {"EWR": "Newark Liberty Intl"}
ROUTE = ("EWR", "BQN")
COUNTERS = {"counted": 5, "late": 2, "duplicates": 0, "refused": 0, "unscheduled": 0}


def running(partition: int, watermark: float, windows: dict[int, Sums]) -> partials.Running:
    return partials.Running(
        partition=partition,
        watermark_ms=int(watermark * HOUR),
        counters=COUNTERS,
        windows={hour * HOUR: {ROUTE: sums} for hour, sums in windows.items()},
    )


def view(partitions: int = 2) -> View:
    return View(RULES, partitions, NAMES)


def test_before_all_partitions_were_heard_nothing_is_known() -> None:
    seen = view()
    assert (seen.windows()["watermark"], seen.windows()["lateDropped"]) == (None, None)
    seen.heard(running(0, 10.5, {9: Sums(flights=1)}))
    assert (seen.windows()["watermark"], seen.windows()["routes"]) == (None, [])


def test_the_oldest_window_that_runs_is_shown_with_all_partitions() -> None:
    seen = view()
    seen.heard(running(0, 10.5, {8: Sums(flights=7), 9: Sums(flights=1, departures=1, departure_minutes=10)}))
    seen.heard(running(1, 10.9, {9: Sums(flights=2, departures=2, departure_minutes=5, cancelled=1)}))
    assert seen.windows() == {
        "windowSeconds": 7_200,
        "hopSeconds": 3_600,
        "latenessSeconds": 1_800,
        "watermark": "1970-01-01T10:30:00Z",
        "lateDropped": 4,
        "complete": True,
        "routes": [
            {
                "origin": "EWR",
                "destination": "BQN",
                "originName": "Newark Liberty Intl",
                "destinationName": None,
                "flights": 3,
                "meanDepartureDelayMinutes": 5.0,
                "meanArrivalDelayMinutes": None,
                "cancelled": 1,
                "windowStart": "1970-01-01T09:00:00Z",
                "windowEnd": "1970-01-01T11:00:00Z",
            }
        ],
    }


def test_a_partition_that_is_ahead_gives_its_closed_part_or_the_answer_says_that_one_is_missing() -> None:
    seen = view()
    seen.heard(running(0, 10.5, {9: Sums(flights=1)}))
    seen.heard(running(1, 20.5, {19: Sums(flights=5)}))
    assert (seen.windows()["complete"], seen.windows()["routes"][0]["flights"]) == (False, 1)
    seen.heard(
        partials.Part(partition=1, start_ms=9 * HOUR, previous_ms=None, routes={ROUTE: Sums(flights=4)})
    )
    assert (seen.windows()["complete"], seen.windows()["routes"][0]["flights"]) == (True, 5)


def test_parts_that_come_again_push_out_no_newer_ones() -> None:
    """As after a kill, when partitions are read again from their older states."""
    seen = view()
    seen.heard(part(0, 9))
    seen.heard(running(0, 13.9, {11: Sums(), 12: Sums()}))
    for partition in (0, 1):
        for hour in range(9 - 3 * PARTS_MAX, 9):
            seen.heard(part(partition, hour))
    seen.heard(running(1, 10.5, {8: Sums(), 9: Sums(flights=1)}))
    answer = seen.windows()
    assert (answer["complete"], answer["routes"][0]["flights"]) == (True, 3)


def part(partition: int, hour: int) -> partials.Part:
    return partials.Part(
        partition=partition,
        start_ms=hour * HOUR,
        previous_ms=(hour - 1) * HOUR,
        routes={ROUTE: Sums(flights=2)},
    )


def test_what_a_worker_says_that_lost_its_partition_is_passed_over() -> None:
    seen = view(1)
    seen.heard(running(0, 10.5, {9: Sums(flights=3)}))
    seen.heard(running(0, 10.2, {9: Sums(flights=1)}))
    assert seen.windows()["routes"][0]["flights"] == 3


def test_what_is_kept_has_limits() -> None:
    seen = view()
    for hour in range(PARTS_MAX + 9):
        seen.heard(partials.Part(partition=0, start_ms=hour * HOUR, previous_ms=None, routes={}))
    assert len(seen._parts[0]) == PARTS_MAX
    for number in range(ALERTS_MAX + 9):
        seen.alerted(alert(number))
    ids = [one["id"] for one in seen.alerts()["alerts"]]
    assert ids == [str(n) for n in range(ALERTS_MAX + 8, 8, -1)]


def alert(number: int, **changes: Any) -> bytes:
    found = {
        "alert_id": str(number),
        "at": "x",
        "kind": "delay",
        "route": "A-B",
        "message": "m",
        "value": 1.5,
    }
    return json.dumps(found | changes).encode()


def test_an_alert_that_comes_again_is_shown_once_and_a_broken_one_not() -> None:
    seen = view()
    for message in (alert(1), alert(2), alert(1), None, b"", b"[]", b'{"alert_id":"3"}'):
        seen.alerted(message)
    assert seen.alerts() == {
        "alerts": [
            {"id": str(n), "at": "x", "kind": "delay", "route": "A-B", "message": "m", "value": 1.5}
            for n in (2, 1)
        ]
    }


def test_what_a_partition_publishes_is_read_as_it_was() -> None:
    windows = PartitionWindows(RULES)
    assert partials.running_message("a", 3, RULES, windows) is None
    flight = {"time_hour": "2013-01-01T10:00:00Z", "carrier": "UA", "flight": 1, "event_id": "1"}
    for event in (
        {"event": "scheduled", "event_time": "2013-01-01T08:00:00Z", "origin": "EWR", "dest": "BQN"},
        {"event": "departed", "event_time": "2013-01-01T10:20:00Z", "dep_delay": 20},
    ):
        windows.add(windows.next_offset, json.dumps(flight | event).encode())
    message = partials.running_message("a", 3, RULES, windows)
    said = partials.read(message, "a")
    assert isinstance(said, partials.Running)
    assert (said.partition, said.watermark_ms) == (3, 1_357_035_600_000)
    start = 1_357_030_800_000
    assert said.windows == {start - HOUR: {}, start: {ROUTE: Sums(1, 1, 20)}}
    assert said.counters == windows.counters.as_dict()
    assert partials.read(message, "b") is None


@pytest.mark.parametrize(
    ("lateness_s", "minute", "shown"),
    [
        (0, 20, [9]),
        (1_800, 20, [8, 9]),
        (1_800, 40, [9]),
        (3_600, 20, [8, 9]),
        (4 * 3_600, 20, [5, 6, 7, 8, 9]),
        (99 * 3_600, 20, list(range(9 - SHOWN_MAX + 1, 10))),
    ],
)
def test_a_partition_says_what_it_knows_of_the_windows_that_are_not_closed(
    lateness_s: int, minute: int, shown: list[int]
) -> None:
    rules = Rules.of(window_s=7_200, hop_s=3_600, lateness_s=lateness_s)
    windows = PartitionWindows(rules)
    event = {
        "time_hour": "2013-01-01T10:00:00Z",
        "carrier": "UA",
        "flight": 1,
        "event_id": "1",
        "event": "scheduled",
        "event_time": f"2013-01-01T10:{minute}:00Z",
        "origin": "EWR",
        "dest": "BQN",
    }
    windows.add(0, json.dumps(event).encode())
    said = partials.read(partials.running_message("a", 3, rules, windows), "a")
    assert isinstance(said, partials.Running)
    day = 1_356_998_400_000
    assert [(start - day) // HOUR for start in said.windows] == shown


# -- HTTP ----------------------------------------------------------------------------------------------------

PAGE = "http://127.0.0.1:8091"


@pytest.fixture
def pages() -> Callable[..., Pages]:
    def made(faults: list[str] | None = None) -> Pages:
        return Pages(view, lambda: faults or [], Hosts.of("stream"), frozenset({PAGE}))

    return made


def get(pages: Pages, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
    answer = pages.respond(method, path, {"host": "127.0.0.1:8092", **headers})
    return answer.status, json.loads(answer.body)


def test_the_paths(pages: Callable[..., Pages]) -> None:
    assert get(pages(), "/v1/windows") == (200, view().windows())
    assert get(pages(), "/v1/alerts") == (200, {"alerts": []})
    assert get(pages(), "/health") == (200, {"healthy": True, "faults": []})
    assert get(pages(["no"]), "/health") == (503, {"healthy": False, "faults": ["no"]})
    for path in ("/", "/v1", "/v1/windows/"):
        status, body = get(pages(), path)
        assert (status, body["error"]["type"]) == (404, "NotFound")
    status, body = get(pages(), "/v1/windows", method="POST")
    assert (status, body["error"]["type"]) == (405, "MethodNotAllowed")


def test_another_name_is_refused(pages: Callable[..., Pages]) -> None:
    status, body = get(pages(), "/v1/windows", host="evil.example")
    assert (status, body["error"]["type"]) == (421, "Misdirected")
    status, body = get(pages(), "/v1/windows", method="POST", origin="http://evil.example")
    assert (status, body["error"]["type"]) == (403, "Forbidden")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (PAGE, True),
        ("http://localhost:8091", False),
        ("http://127.0.0.1:80", False),
        ("null", False),
        ("", False),
    ],
)
def test_only_the_page_of_the_lake_may_read_answers(
    pages: Callable[..., Pages], origin: str, allowed: bool
) -> None:
    headers = asyncio.run(answered(pages(), origin))
    assert headers.get(b"access-control-allow-origin") == (origin.encode() if allowed else None)
    assert (headers[b"vary"], headers[b"cache-control"]) == (b"origin", b"no-store")


async def answered(pages: Pages, origin: str) -> dict[bytes, bytes]:
    """The headers of an answer to a page of an origin."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("a body is not read")

    scope = {
        "method": "GET",
        "raw_path": b"/v1/windows",
        "headers": [(b"host", b"localhost"), (b"origin", origin.encode())],
    }
    await pages.asgi()(scope, receive, send)
    return dict(sent[0]["headers"])
