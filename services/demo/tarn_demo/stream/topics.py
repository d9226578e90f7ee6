"""The topics of the service, and the group of its workers."""

from __future__ import annotations

EVENTS = "flight-events"
PARTIALS = "flight-stream.partials"
STATE = "flight-stream.state"
WINDOWS = "flight-windows"
ALERTS = "flight-alerts"
GROUP = "flight-stream"


def state_partition(topic: str, partition: int) -> int:
    """The partition of `STATE` that holds the states of a partition: of `PARTIALS` the first one."""
    return partition + 1 if topic == EVENTS else 0
