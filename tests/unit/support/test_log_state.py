"""A test that configures logging, as the main function of a service does, changes nothing for the others."""

from __future__ import annotations

import logging

import pytest
import structlog
from structlog.testing import capture_logs

from tarn.adapters.logging import configure
from tests.support.log_state import as_it_was

log = structlog.get_logger()


@pytest.mark.parametrize("turn", [1, 2])
def test_what_one_test_configures_is_undone_for_the_next(turn: int) -> None:
    with capture_logs() as lines:
        log.info("heard")
    assert [line["event"] for line in lines] == ["heard"], turn
    configure("error", service="init")
    with capture_logs() as lines:
        log.warning("left out")
    assert lines == []


def test_handlers_and_level_are_those_of_before() -> None:
    root = logging.getLogger()
    level = root.level
    with as_it_was():
        configure("error", service="init")
        assert (root.level, len(root.handlers)) == (logging.ERROR, 1)
        (made,) = root.handlers
    assert root.level == level
    assert made not in root.handlers
