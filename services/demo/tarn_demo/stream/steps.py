"""The two steps of the service, each a function of one partition's log: messages in, messages out, a state.

- `WindowsStep`: a partition of flight-events to its parts of windows
- `MergeStep`: the parts of all partitions to the messages of flight-windows and flight-alerts
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import orjson

from tarn.core.errors import CorruptStateError
from tarn_demo.stream import partials
from tarn_demo.stream.merge import Merge
from tarn_demo.stream.rows import Rows
from tarn_demo.stream.topics import ALERTS, PARTIALS, WINDOWS
from tarn_demo.stream.windows import PartitionWindows

STATE_BYTES_MAX = 64 << 20


class Outgoing(NamedTuple):
    """A message to send, to the first partition of its topic."""

    topic: str
    key: bytes
    value: bytes


class Step(Protocol):
    """A function of a log, as far as it has read."""

    @property
    def next_offset(self) -> int:
        """The offset of the message that it takes next."""

    def start_at(self, offset: int) -> None:
        """Take the message of this offset next; those before it that were not taken are gone from the log."""

    def take(self, offset: int, value: bytes | None) -> Iterator[Outgoing]:
        """Take the next message; yields what follows from it."""

    def to_data(self) -> dict[str, Any]:
        """The whole state, as JSON can hold it."""


class WindowsStep:
    """A partition of flight-events.

    Args:
        identity: what windows are made by.
        partition: its number.
        windows: its state.
    """

    def __init__(self, identity: str, partition: int, windows: PartitionWindows) -> None:
        self._identity = identity
        self.partition = partition
        self.windows = windows

    @property
    def next_offset(self) -> int:
        """See `Step`."""
        return self.windows.next_offset

    def start_at(self, offset: int) -> None:
        """See `Step`."""
        if offset > self.windows.next_offset:
            self.windows.lose_until(offset)

    def take(self, offset: int, value: bytes | None) -> Iterator[Outgoing]:
        """See `Step`."""
        for closed in self.windows.add(offset, value):
            yield Outgoing(
                PARTIALS,
                f"{self._identity}/{self.partition}/{closed.start_ms}".encode(),
                partials.part_message(self._identity, self.partition, closed),
            )

    def to_data(self) -> dict[str, Any]:
        """See `Step`."""
        return self.windows.to_data()


class MergeStep:
    """The topic of partials.

    Args:
        identity: what windows are made by.
        merge: its state.
        rows: makes messages.
    """

    def __init__(self, identity: str, merge: Merge, rows: Rows) -> None:
        self._identity = identity
        self.merge = merge
        self._rows = rows

    @property
    def next_offset(self) -> int:
        """See `Step`."""
        return self.merge.next_offset

    def start_at(self, offset: int) -> None:
        """See `Step`."""
        self.merge.next_offset = offset

    def take(self, offset: int, value: bytes | None) -> Iterator[Outgoing]:
        """See `Step`."""
        self.merge.next_offset = offset + 1
        said = partials.read(value, self._identity)
        if not isinstance(said, partials.Part):
            return
        for window in self.merge.add(said):
            for key, row in self._rows.windows(window):
                yield Outgoing(WINDOWS, key, row)
            for key, row in self._rows.alerts(window):
                yield Outgoing(ALERTS, key, row)

    def to_data(self) -> dict[str, Any]:
        """See `Step`."""
        return self.merge.to_data()


def state_message(identity: str, step: Step) -> bytes:
    """A step's state as the value of a record."""
    return zlib.compress(orjson.dumps({"identity": identity, "state": step.to_data()}), level=1)


def read_state(message: bytes | None, identity: str) -> Mapping[str, Any] | None:
    """The state in a record's value; None if there is none, or one of another identity.

    Raises:
        CorruptStateError: the record holds no state.
    """
    if message is None:
        return None
    try:
        unpacked = zlib.decompressobj().decompress(message, STATE_BYTES_MAX)
        found: Mapping[str, Any] = orjson.loads(unpacked)
        return found["state"] if found["identity"] == identity else None
    except (KeyError, TypeError, ValueError, zlib.error) as e:
        raise CorruptStateError(f"a stored state cannot be read: {type(e).__name__}: {e}") from e
