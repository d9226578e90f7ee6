"""What the readers of a process share."""

from __future__ import annotations

from typing import cast

import pytest

from tarn.adapters.store import MemoryStore
from tarn.core.table_catalog import TableCatalog
from tarn.ingest.context import BATCH_BYTES_MIN
from tarn.ingest.status import IngestorStatus, StatusRegistry
from tarn.testing.lake import Lake


@pytest.mark.parametrize(
    ("readers", "bytes_max", "share"),
    [(0, 16, 16), (1, 16, 16), (1, 64, 48), (4, 16, 12), (6, 16, 8), (6, 2, 2), (100, 16, 1)],
)
def test_open_batches_have_an_equal_share_of_the_memory(readers: int, bytes_max: int, share: int) -> None:
    context = Lake(store=MemoryStore(), catalog=cast(TableCatalog, None)).context()
    for number in range(readers):
        context.registry.update(f"reader-{number}")
    assert context.share_of_batches(bytes_max << 20) == share << 20
    assert BATCH_BYTES_MIN == 1 << 20


def test_readers_of_other_processes_take_no_share() -> None:
    """Each of those has the whole for itself."""
    registry = StatusRegistry()
    context = Lake(store=MemoryStore(), catalog=cast(TableCatalog, None)).context(registry=registry)
    registry.update("here")
    for number in range(3):
        registry.put(f"elsewhere-{number}", IngestorStatus())
    assert context.share_of_batches(64 << 20) == 48 << 20
    registry.remove("elsewhere-0")
    registry.update("elsewhere-0")
    assert context.share_of_batches(64 << 20) == 24 << 20, "it is a thread now"
