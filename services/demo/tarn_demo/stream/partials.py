"""What partitions publish for each other, as messages of the topic flight-stream.partials.

A route's flights are spread over all partitions of flight-events, as its messages are keyed by flight. So
each partition publishes its part: a window once it is closed (`Part`), and about once a second what runs
(`Running`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tarn_demo.stream.windows import (
    Closed,
    PartitionWindows,
    Route,
    Routes,
    Rules,
    Sums,
    routes_from_data,
    routes_to_data,
)

PART, RUNNING = "part", "running"
SHOWN_MAX = 8
"""Windows that a partition says the state of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A partition's part of a window, closed there.

    Attributes:
        partition: the partition of flight-events.
        start_ms: start of the window.
        previous_ms: start of the partition's part before; None for its first.
        routes: the sums.
    """

    partition: int
    start_ms: int
    previous_ms: int | None
    routes: Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What runs in a partition: for people, not for results.

    Attributes:
        partition: the partition of flight-events.
        watermark_ms: its watermark.
        counters: its counters.
        windows: start to sums: the oldest window that ends after the watermark, and the one before, but for
            those that lack messages which are gone.
    """

    partition: int
    watermark_ms: int
    counters: Mapping[str, int]
    windows: Mapping[int, dict[Route, Sums]]


def part_message(identity: str, partition: int, closed: Closed) -> bytes:
    """The message of a part.

    Args:
        identity: what the windows are made by: rules and topic; parts of another identity are passed over.
        partition: the partition of flight-events.
        closed: the window.
    """
    return orjson.dumps(
        {
            "type": PART,
            "identity": identity,
            "partition": partition,
            "start": closed.start_ms,
            "previous": closed.previous_ms,
            "routes": routes_to_data(closed.routes),
        }
    )


def running_message(identity: str, partition: int, rules: Rules, windows: PartitionWindows) -> bytes | None:
    """The message of what runs in a partition; None before its first event."""
    if windows.watermark_ms is None:
        return None
    # Those that ended and are not closed too: a partition that is behind may be in them still.
    first, last = rules.first_open(windows.watermark_ms), rules.first_running(windows.watermark_ms)
    whole_from_ms = windows.whole_from_ms
    shown = [
        one
        for one in range(max(first, last - (SHOWN_MAX - 1) * rules.hop_ms), last + 1, rules.hop_ms)
        if whole_from_ms is None or one >= whole_from_ms
    ]
    return orjson.dumps(
        {
            "type": RUNNING,
            "identity": identity,
            "partition": partition,
            "watermark": windows.watermark_ms,
            "counters": windows.counters.as_dict(),
            "windows": [[one, routes_to_data(windows.window(one))] for one in shown],
        }
    )


def read(message: bytes | None, identity: str) -> Part | Running | None:
    """What a message says; None if it is of another identity, or cannot be read.

    Only the service may write to the topic. If a part of its own were broken, the next one would show that it
    is missing.
    """
    try:
        data: Mapping[str, Any] = orjson.loads(message or b"")
        if data["identity"] != identity:
            return None
        if data["type"] == PART:
            return Part(
                partition=data["partition"],
                start_ms=data["start"],
                previous_ms=data["previous"],
                routes=routes_from_data(data["routes"]),
            )
        return Running(
            partition=data["partition"],
            watermark_ms=data["watermark"],
            counters=data["counters"],
            windows={start: routes_from_data(routes) for start, routes in data["windows"]},
        )
    except (KeyError, TypeError, ValueError):
        return None
