"""Which log lines count as errors, in the format of each service."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compose import SERVICES
from tests.support.images import IMAGES
from tests.support.logs import Finding, is_error, load_allowed, unexpected

ERRORS = [
    "[2026-11-21 08:00:00,123] ERROR Error while reading checkpoint (kafka.server.LogDirFailureChannel)",
    "26/11/21 08:00:00 ERROR SparkContext: Error initializing",
    "2026-11-21T08:00:00.123Z\tERROR\tmain\tio.trino.server.Server\tfailed",
    '{"level":"ERROR","errKind":"ALL","time":"2026-11-21T08:00:00Z","message":"drive offline"}',
    '{"event": "commit failed", "level": "error", "table": "bronze.flights"}',
    "Traceback (most recent call last):",
    "FATAL: no data folder",
]
FINE = [
    "[2026-11-21 08:00:00,123] INFO log.level=ERROR (kafka.Kafka)",
    "26/11/21 08:00:00 WARN TaskSetManager: Lost task 0.0: ERROR in user code",
    '{"event": "retry after ERROR", "level": "warning"}',
    "2026-11-21T08:00:00.123Z\tINFO\tmain\tBootstrap\terror.log  ----  ERROR",
    "no errors",
    "",
]


@pytest.mark.parametrize("line", ERRORS)
def test_errors_are_seen(line: str) -> None:
    assert is_error(line)


@pytest.mark.parametrize("line", FINE)
def test_other_lines_are_not(line: str) -> None:
    assert not is_error(line)


def test_an_allowed_line_is_allowed_for_its_service_only(tmp_path: Path) -> None:
    file = tmp_path / "allow.toml"
    file.write_text(
        '[[allow]]\nservice = "kafka"\nregex = "reading checkpoint"\nreason = "pulled out on purpose"\n'
    )
    allowed = load_allowed(file)
    assert unexpected("kafka", [*FINE, ERRORS[0]], allowed) == []
    assert unexpected("kafka", [ERRORS[1]], allowed) == [Finding(service="kafka", line=ERRORS[1])]
    assert unexpected("spark", [ERRORS[0]], allowed) == [Finding(service="spark", line=ERRORS[0])]


@pytest.mark.parametrize(
    "body", ['service = "kafka"\nregex = "x"', 'service = "k"\nregex = "x"\nreason = "flaky"']
)
def test_an_entry_without_a_reason_is_refused(tmp_path: Path, body: str) -> None:
    file = tmp_path / "allow.toml"
    file.write_text(f"[[allow]]\n{body}\n")
    with pytest.raises(ValueError, match="reason"):
        load_allowed(file)


def test_the_real_file_is_short_and_names_real_services() -> None:
    allowed = load_allowed()
    assert len(allowed) <= 12
    assert {a.service for a in allowed} <= {*SERVICES, *IMAGES}
