"""Reading the records of assigned partitions: the interface that two client libraries implement.

`kafka-python` is `PythonConsumer` here, librdkafka is `tarn.adapters.kafka_librdkafka.LibrdkafkaConsumer`.
Both raise kafka-python's errors, which `KafkaConnection` maps to Tarn's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tarn.adapters.kafka_client import KafkaConnection, TopicPartition, vendor
from tarn.core.batch import RawRecords

FETCH_WAIT_MS_MAX = 250
FETCH_BYTES_MAX = 16 * 1024 * 1024
PARTITION_FETCH_BYTES_MAX = 4 * 1024 * 1024
METADATA_AGE_MS_MAX = 60_000
CALL_TIMEOUT_MS = 10_000


def known_epoch(epoch: int | None) -> int | None:
    """The leader epoch of a record; None for -1, which stands for an unknown one."""
    return epoch if epoch is not None and epoch >= 0 else None


class RecordConsumer(Protocol):
    """Reads the committed records of assigned partitions, and reports the position reached."""

    @property
    def positions(self) -> Mapping[int, int]:
        """Next offset of each assigned partition."""

    def assign(self, positions: Mapping[int, int]) -> None:
        """Read these partitions from exactly these offsets on; what was fetched before is discarded."""

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """Records per partition that moved; see `TopicReader.poll`.

        Raises:
            KafkaError: kafka-python's, whichever library reads: OffsetOutOfRangeError for a position outside
                the log, CorruptRecordError or UnsupportedCodecError for a log that cannot be read.
        """

    def close(self) -> None:
        """Close all connections."""


class PythonConsumer:
    """A `RecordConsumer` over kafka-python.

    Args:
        connection: where the cluster is, and who connects.
        topic: the topic.
        group: consumer group, which the broker's access control asks for; it is not joined.

    Attributes:
        consumer: the library's own, which also commits group offsets.
    """

    def __init__(self, connection: KafkaConnection, topic: str, *, group: str) -> None:
        self._topic = topic
        self._positions: dict[int, int] = {}
        self.consumer: Any = connection.consumer(
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            check_crcs=True,
            allow_auto_create_topics=False,
            fetch_max_wait_ms=FETCH_WAIT_MS_MAX,
            fetch_max_bytes=FETCH_BYTES_MAX,
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES_MAX,
            metadata_max_age_ms=METADATA_AGE_MS_MAX,
        )

    @property
    def positions(self) -> Mapping[int, int]:
        """See `RecordConsumer.positions`."""
        return self._positions

    def assign(self, positions: Mapping[int, int]) -> None:
        """See `RecordConsumer.assign`."""
        wanted = {TopicPartition(self._topic, p): offset for p, offset in positions.items()}
        self.consumer.assign(list(wanted))
        for tp, offset in wanted.items():
            self.consumer.seek(tp, offset)
        self._positions = dict(positions)

    def poll(self, *, records_max: int, timeout_s: float) -> list[RawRecords]:
        """See `RecordConsumer.poll`."""
        polled = self.consumer.poll(timeout_ms=max(0, int(timeout_s * 1_000)), max_records=records_max)
        found = []
        for partition, start in sorted(self._positions.items()):
            tp = TopicPartition(self._topic, partition)
            records = polled.get(tp) or []
            end = self.consumer.position(tp, timeout_ms=CALL_TIMEOUT_MS)
            if end is None or end < start:
                raise vendor.OffsetOutOfRangeError(
                    f"the position in partition {partition} went from {start} to {end}; the log was cut"
                )
            if end > start:
                found.append(
                    RawRecords(
                        partition=partition,
                        offsets=[r.offset for r in records],
                        times_ms=[r.timestamp if r.timestamp is not None else -1 for r in records],
                        keys=[r.key for r in records],
                        values=[r.value for r in records],
                        start=start,
                        end=end,
                        epoch=known_epoch(records[-1].leader_epoch) if records else None,
                    )
                )
                self._positions[partition] = end
        return found

    def close(self) -> None:
        """See `RecordConsumer.close`."""
        self.consumer.close()
