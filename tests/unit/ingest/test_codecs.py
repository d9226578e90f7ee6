"""Topics in every compression of Kafka: what producers write is read, other codecs give a clear error."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka import codec
    from kafka.record.default_records import DefaultRecordBatchBuilder
    from kafka.record.memory_records import MemoryRecords
    from kafka.structs import TopicPartition

import cramjam

from tarn.adapters.kafka import KafkaSource
from tarn.adapters.kafka_client import CODECS, KafkaConnection
from tarn.adapters.kafka_records import PythonConsumer
from tarn.core.errors import DataError

NUMBERS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
VALUES = [b'{"id": %d, "text": "%s"}' % (n, b"a" * 300) for n in range(400)]


def batch(name: str) -> bytes:
    """A record batch as a producer sends it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=NUMBERS[name],
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1_000_000,
    )
    for offset, value in enumerate(VALUES):
        assert builder.append(offset, timestamp=1_700_000_000_000, key=None, value=value, headers=[])
    return bytes(builder.build())


def read(data: bytes) -> list[bytes]:
    records = MemoryRecords(data)
    found: list[bytes] = []
    while records.has_next():
        found += [record.value for record in records.next_batch()]
    return found


def test_every_compression_of_kafka_is_named() -> None:
    assert set(CODECS) == set(NUMBERS)


@pytest.mark.parametrize("name", CODECS)
def test_a_compressed_batch_is_read(name: str) -> None:
    data = batch(name)
    assert len(data) < 0.5 * sum(map(len, VALUES)), "it is compressed"
    assert read(data) == VALUES


def test_snappy_without_frames_is_read_as_librdkafka_writes_it() -> None:
    text = b"".join(VALUES)
    assert codec.snappy_decode(bytes(cramjam.snappy.compress_raw(text))) == text


@pytest.mark.parametrize("name", ["snappy", "lz4", "zstd"])
def test_a_compression_whose_library_is_missing_stops_with_what_can_be_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batch(name)
    monkeypatch.setattr(codec, f"has_{name}", lambda: False)

    class Consumer:
        def poll(self, **_options: Any) -> dict[TopicPartition, list[Any]]:
            return {TopicPartition("orders", 0): read(data)}

    records = PythonConsumer.__new__(PythonConsumer)
    records._positions, records.consumer = {0: 5}, Consumer()
    source = KafkaSource.__new__(KafkaSource)
    source._topic, source._records = "orders", records
    source._connection = KafkaConnection(bootstrap="b:1", client_id="c")
    with pytest.raises(DataError) as caught:
        source.poll(records_max=10, timeout_s=0.0)
    assert caught.value.message == (
        "could not read topic orders at or after {0: 5}: it holds records in a compression that cannot be "
        f"read here: UnsupportedCodecError: Libraries for {name} compression codec not found; readable are "
        "gzip, snappy, lz4, zstd. Let producers and topic use one of these, or write to another topic"
    )
