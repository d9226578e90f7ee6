"""A reader closes its batch early if the memory that all readers of a process share asks for it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tarn.core.batch import RECORD_BYTES
from tarn.core.spec import parse_spec
from tarn.ingest.batch_memory import BatchMemory
from tarn.ingest.ingestor import Ingestor
from tarn.testing.memory_topic import Topic
from tests.support.lake import SPEC, Lake

TEXT = SPEC.replace("FORMAT", "2").replace("PARTITIONING", "[]")
SPEC_OF_LARGE = TEXT.replace("maxRecords: 10,", "maxRecords: 100000,")


@pytest.mark.parametrize(("memory_mib", "alone"), [(64, True), (4, False)])
def test_a_batch_is_closed_before_it_takes_what_the_next_one_needs(memory_mib: int, alone: bool) -> None:
    """4 MiB that wait, 2 KiB for a message; by its own `maxBytes` the reader takes all at once."""
    topic = Topic("orders", 1)
    text = "x" * (2_024 - RECORD_BYTES)
    topic.send(0, *(json.dumps({"id": n, "text": text}).encode() for n in range(1_000, 3_048)))
    assert set(map(len, topic.logs[0])) == {2_048 - RECORD_BYTES}
    lake = Lake(topic)
    memory = BatchMemory(memory_mib << 20)
    context = replace(lake.context(), memory=memory)
    lake.work(Ingestor(parse_spec(SPEC_OF_LARGE, file="x"), context), turns=60)
    assert lake.offsets() == [(0, n) for n in range(2_048)]
    largest = max(entry.data_file.record_count for entry in lake.files()) * 2_048
    assert largest <= memory.batch_bytes_max
    assert (largest == 4 << 20) == alone
    assert memory.held == 0, "it is given back"
