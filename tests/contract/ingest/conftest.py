"""Logs of the service are captured; an ERROR that the test did not expect fails it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarn.ingest import service


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """The lines logged so far; a test that expects an ERROR checks it and clears the list."""
    with capture_logs() as lines:
        yield lines
    errors = [line for line in lines if line["log_level"] == "error"]
    assert not errors, errors


@pytest.fixture(autouse=True)
def long_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to end a service; eight seconds are those of a container."""
    monkeypatch.setattr(service, "DRAIN_S_MAX", 60.0)
