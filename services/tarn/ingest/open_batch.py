"""The batch that an ingestor is reading: its records, and the rows of those that are decoded already."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tarn.core.batch import BatchBuilder, RawBatch, RawRecords
from tarn.core.decode import Decoded, Decoder, joined
from tarn.core.offsets import OffsetRange
from tarn.ingest.batch_commit import decode
from tarn.ingest.batch_memory import SMALL_BYTES, Account


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBatch:
    """A closed batch.

    Attributes:
        records: its records as they were read.
        decoded: its rows and bad records, by index in `records`.
        decode_s: how long decoding took, in seconds.
    """

    records: RawBatch
    decoded: Decoded
    decode_s: float

    def halves(self) -> tuple[DecodedBatch, DecodedBatch]:
        """Two batches for this one, see `RawBatch.halves`; the time of decoding counts with the first."""
        (first, before), (rest, after) = self.records.halves()
        return (
            DecodedBatch(records=before, decoded=self.decoded.picked(first), decode_s=self.decode_s),
            DecodedBatch(records=after, decoded=self.decoded.picked(rest), decode_s=0.0),
        )


class OpenBatch:
    """Collects records until a limit is reached. While many arrive they are decoded in parts, as they come.

    Decoding holds the interpreter's lock, encoding and sending a file hardly do: so a busy stream decodes
    where it reads, beside the commit of the batch before. `close` decodes what remains, in whichever thread.

    Args:
        builder: limits of the batch; nothing was added yet.
        decoder: decoder of the stream.
        memory: the reader's account of what its batches hold.
        decode_records: number of waiting records from which on they are decoded while reading.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        decoder: Decoder,
        *,
        memory: Account,
        decode_records: int,
        clock: Callable[[], float],
    ) -> None:
        self._builder = builder
        self._memory = memory
        self._refused = False
        self._decoder = decoder
        self._decode_records = decode_records
        self._clock = clock
        self._parts: list[RawBatch] = []
        self._decoded: list[tuple[int, Decoded]] = []
        self._count = 0
        self._decode_s = 0.0

    @property
    def opened_s(self) -> float | None:
        """When the first record was added, in seconds; None before."""
        return self._builder.opened_s

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until the batch must be closed; see `BatchBuilder.wait_s`. Now if it cannot grow."""
        wait_s = self._builder.wait_s(now_s)
        return 0.0 if wait_s is not None and self._refused and self._memory.is_large() else wait_s

    def ranges(self) -> tuple[OffsetRange, ...]:
        """Offset range per partition; see `BatchBuilder.ranges`."""
        return self._builder.ranges()

    def borrow(self) -> int:
        """Borrow memory for the next poll: the number of records that it may return, 0 if it has to wait."""
        room = max(1, self._builder.room)
        least = self._memory.record_bytes
        granted = self._memory.borrow(
            room * least if self._builder.records else min(room * least, SMALL_BYTES), least=least
        )
        self._refused = not granted
        return min(room, granted // least)

    def settle(self) -> None:
        """The poll is over: from now on as much is borrowed as the batch holds."""
        self._memory.settle(self._builder.held_bytes, records=self._builder.records)

    def add(self, polled: RawRecords) -> None:
        """Add a part of a poll, and decode what waits if it is much.

        Raises:
            Exception: as `decode`.
        """
        self._builder.add(polled, now_s=self._clock())
        if self._builder.waiting >= self._decode_records:
            self._decode()

    def close(self) -> DecodedBatch:
        """Decode the rest, and hold nothing any more. Nothing may be added afterwards.

        Raises:
            Exception: as `decode`.
        """
        self._decode()
        parts, decoded, self._parts, self._decoded = self._parts, self._decoded, [], []
        return DecodedBatch(records=RawBatch.joined(parts), decoded=joined(decoded), decode_s=self._decode_s)

    def _decode(self) -> None:
        part = self._builder.take()
        if self._parts and not len(part):
            # Nothing but ranges is new: positions also move without records.
            self._parts.append(part)
            return
        started_s = self._clock()
        self._decoded.append((self._count, decode(self._decoder, part)))
        self._parts.append(part)
        self._count += len(part)
        self._decode_s += self._clock() - started_s
