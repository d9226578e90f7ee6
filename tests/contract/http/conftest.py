"""Servers that echo."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.echo import Echo, Serve


@pytest.fixture
def serve(caplog: pytest.LogCaptureFixture) -> Iterator[Serve]:
    """Start servers; none of them may log an error."""
    started: list[Echo] = []

    def start(**how: Any) -> Echo:
        started.append(Echo(**how))
        return started[-1]

    with caplog.at_level(logging.WARNING):
        yield start
        for one in started:
            one.stop()
    broken = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert not broken, broken[0].getMessage()


@pytest.fixture(scope="module")
def one_for_all() -> Iterator[Echo]:
    started = Echo()
    yield started
    started.stop()


@pytest.fixture
def echo(serve: Serve) -> Echo:
    return serve()
