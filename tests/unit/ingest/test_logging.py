"""One format for all log lines: JSON, with the same first keys, including those of libraries."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from tarn.adapters.logging import configure


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def test_our_lines_and_those_of_libraries_begin_alike(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", service="ingest")
    structlog.get_logger().warning("dependency", name="store", usable=False)
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
    logging.getLogger("uvicorn.error").debug("left out")
    ours, theirs = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert list(ours) == ["timestamp", "level", "event", "service", "name", "usable"]
    assert list(theirs) == ["timestamp", "level", "event", "service", "logger"]
    assert (ours["level"], ours["event"], ours["service"]) == ("warning", "dependency", "ingest")
    assert (theirs["event"], theirs["logger"]) == ("Started server process [7]", "uvicorn.error")
    assert ours["timestamp"].endswith("Z")


def test_a_line_may_name_another_service(capsys: pytest.CaptureFixture[str]) -> None:
    configure(service="cli")
    structlog.get_logger().info("seen", service="kafka")
    assert json.loads(capsys.readouterr().out)["service"] == "kafka"
