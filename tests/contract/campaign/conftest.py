"""The product's log is left out: each run provokes what is logged as an error."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture(scope="session")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=2) as found:
        yield found
