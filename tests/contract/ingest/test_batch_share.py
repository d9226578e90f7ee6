"""A reader closes its batch at its share of the memory that the readers of a process have together."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tarn.core.spec import parse_spec
from tarn.ingest.ingestor import Ingestor
from tarn.testing.memory_topic import Topic
from tests.support.lake import SPEC, Lake

TEXT = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
SPEC_OF_LARGE = TEXT.replace("maxRecords: 10,", "maxRecords: 100000,")


@pytest.mark.parametrize(
    ("batch_mib", "neighbours", "limit_mib"), [(64, 0, 16), (1, 0, 1), (64, 31, 2), (64, 99, 1)]
)
def test_a_batch_is_closed_at_the_share_of_its_reader(
    batch_mib: int, neighbours: int, limit_mib: int
) -> None:
    """4 MiB that wait, in messages of 2 KiB; by its own `maxBytes` the reader takes all at once."""
    topic = Topic("orders", 1)
    topic.send(0, *(json.dumps({"id": n, "text": "x" * 2_024}).encode() for n in range(1_000, 3_048)))
    assert set(map(len, topic.logs[0])) == {2_048}
    lake = Lake(topic)
    for number in range(neighbours):
        lake.registry.update(f"neighbour-{number}")
    context = replace(lake.context(), batch_bytes=batch_mib << 20)
    lake.work(Ingestor(parse_spec(SPEC_OF_LARGE, file="x"), context), turns=60)
    assert lake.offsets() == [(0, n) for n in range(2_048)]
    largest = max(entry.data_file.record_count for entry in lake.files()) * 2_048
    assert largest <= limit_mib << 20
    assert largest > min(4, limit_mib) * 3 << 18, "nearly full"
