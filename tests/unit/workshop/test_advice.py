"""A notebook out of order, twice, or on half a lake: IPython says what is wrong and what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    ParseException,
    SparkConnectGrpcException,
    SparkException,
)

from tarn.core.errors import ForbiddenError, UnavailableError
from tarn.core.object_store import StoreRefusedError
from tarn.workshop.advice import AWAY, BEFORE, CLOSED, ENDED, PERHAPS_TWICE, TWICE, advice
from tarn.workshop.lab import Lab
from tarn.workshop.progress import until

CELLS = {
    "open": "from tarn import workshop\nlab = workshop.open('02')",
    "out of order": "table.refresh()",
    "twice": "from pyiceberg.exceptions import TableAlreadyExistsError\n"
    "raise TableAlreadyExistsError('Table ws_ada.counter already exists')",
    "no catalog": "lab.catalog",
    "no store": "lab.reset()",
    "no catalog for the checker": "lab.check('2', 7)",
    "an error of one's own": "1 / 0",
    "goes on": "print('goes on')",
}


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address of which nothing answers: it is bound, and nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{one.getsockname()[1]}"


SHELL = """
import contextlib, io, json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
found = {}
for name, text in json.loads(sys.argv[1]).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        error = shell.run_cell(text).error_in_exec
    found[name] = ("" if error is None else f"{type(error).__name__}: {error}", out.getvalue())
print(json.dumps(found))
"""


@pytest.fixture
def said(tmp_path: Path, nobody: str) -> dict[str, list[str]]:
    """Cell to its error and what was printed, on a lake of which nothing answers."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in ("catalog_credential", "s3_access_key_id", "s3_secret_access_key"):
        (secrets / name).write_text("jupyter:none")
    environment = os.environ | {
        "TARN_SECRETS_DIR": str(secrets),
        "TARN_CATALOG_URI": nobody,
        "TARN_S3_ENDPOINT": nobody,
        "TARN_INGEST_URI": nobody,
        "TARN_STUDENT": "ada",
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    command = [sys.executable, "-c", SHELL, json.dumps(CELLS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
def test_each_error_says_what_is_wrong_and_what_to_do(said: dict[str, list[str]]) -> None:
    error, text = said["out of order"]
    assert error == "NameError: name 'table' is not defined"
    assert text.endswith(f"\n→ What to do: {BEFORE}\n")
    error, text = said["twice"]
    assert error.startswith("TableAlreadyExistsError")
    assert text.endswith(f"\n→ What to do: {TWICE}\n")
    for name, service in {
        "no catalog": "the catalog",
        "no store": "could not read specs/v1/ingestors",
    }.items():
        error, text = said[name]
        assert "UnavailableError: " in error, name
        assert service in error
        assert "scripts/tarn status" in error + text, name
    error, text = said["no catalog for the checker"]
    assert error == "", "a checker stops nothing"
    assert "scripts/doctor" in text
    error, text = said["an error of one's own"]
    assert error == "ZeroDivisionError: division by zero"
    assert "What to do" not in text
    assert said["goes on"] == ["", "goes on\n"]


class TrinoUserError(Exception):
    error_name = "TABLE_ALREADY_EXISTS"


class TrinoExternalError(Exception):
    def __init__(self, error_name: str, message: str) -> None:
        super().__init__(message)
        self.error_name = error_name


def of_spark(kind: type[SparkConnectGrpcException], condition: str, message: str) -> Exception:
    """An error of Spark Connect as its client raises it; without a condition none that Spark answered."""
    return kind(message, errorClass=condition or None, messageParameters={} if condition else None)


class Http503Error(Exception):
    pass


def timed_out() -> BaseException:
    """What a wait of the lab raises for something that does not come."""
    with pytest.raises(TimeoutError) as caught:
        until(lambda: False, "the 20th row", seconds=0)
    return caught.value


def not_so() -> BaseException:
    """What a fact raises that does not hold."""
    with pytest.raises(AssertionError) as caught:
        Lab.fact(Lab.__new__(Lab), "the list is as it was", False)
    return caught.value


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TrinoUserError("line 1:14: Table 'tarn.ws_ada.prices' already exists"), TWICE),
        (of_spark(AnalysisException, "TABLE_OR_VIEW_NOT_FOUND", "The table or view `prices`"), BEFORE),
        (of_spark(AnalysisException, "UNRESOLVED_COLUMN.WITH_SUGGESTION", "A column `delay` cannot"), ""),
        (of_spark(ParseException, "PARSE_SYNTAX_ERROR", "Syntax error at or near 'SELEC'"), ""),
        (of_spark(SparkException, "", "Job aborted"), ""),
        (of_spark(SparkException, "INVALID_HANDLE.SESSION_CLOSED", "Session was closed."), ENDED),
        (of_spark(SparkConnectGrpcException, "", "failed to connect to all addresses"), AWAY),
        (Http503Error("error 503"), AWAY),
        (ForbiddenError("user jupyter may not create topic flight-events"), CLOSED),
        (TrinoExternalError("ICEBERG_CATALOG_ERROR", "Failed to create transaction"), CLOSED),
        (TrinoExternalError("ICEBERG_COMMIT_ERROR", "Failed to commit: Forbidden: jupyter may not"), CLOSED),
        (TrinoExternalError("ICEBERG_COMMIT_ERROR", "Failed to commit: conflict"), ""),
        (UnavailableError("Kafka does not answer at kafka:9092"), AWAY),
        (ConnectionResetError(104, "reset by peer"), AWAY),
        (UnavailableError("the catalog does not answer; scripts/tarn status says whether it runs"), ""),
        (ValueError("invalid literal"), ""),
        (ValueError("Cannot add column, name already exists: weight"), TWICE),
        (StoreRefusedError("object a/b is there"), PERHAPS_TWICE),
        (timed_out(), PERHAPS_TWICE),
        (not_so(), PERHAPS_TWICE),
        (AssertionError("of a cell of one's own"), ""),
        (TimeoutError("timed out"), ""),
    ],
)
def test_errors_of_the_engines_are_known_by_their_codes(error: BaseException, text: str) -> None:
    assert advice(error) == text
