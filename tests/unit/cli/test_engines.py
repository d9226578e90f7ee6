"""Decisions of the engine adapters themselves, without a server."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.session import SparkSession
from trino.types import NamedRowTuple

from tarn.cli.clients import engines
from tarn.cli.clients.engines import Spark, Trino, _ours, is_statements_fault, spark_reason
from tarn.core.errors import InvalidError, InvalidSettingError, TarnError


class Session:
    """A Spark Connect session that answers, or fails."""

    def __init__(self, failure: BaseException | None) -> None:
        self.failure = failure
        self.stopped = 0
        self.client, self.conf = MagicMock(), MagicMock()

    def addTag(self, tag: str) -> None:
        self.tag = tag

    def interruptTag(self, tag: str) -> None:
        assert tag == self.tag

    def sql(self, statement: str, args: object = None) -> Any:
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(columns=[])

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (None, None),
        (AnalysisException("no such table. SQLSTATE: 42P01"), InvalidError),
        (SparkConnectGrpcException("the server is away"), TarnError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=["answered", "refused", "failed", "interrupted"],
)
def test_a_statement_has_a_session_of_its_own_that_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException | None, raised: type[BaseException] | None
) -> None:
    opened: list[Session] = []
    asked: list[str] = []

    def create() -> Session:
        opened.append(Session(failure))
        return opened[-1]

    def remote(address: str) -> Any:
        asked.append(address)
        return SimpleNamespace(create=create)

    monkeypatch.setattr(engines, "connect", lambda *_, **__: None)
    monkeypatch.setattr(SparkSession, "builder", SimpleNamespace(remote=remote))
    for _ in range(2):
        with pytest.raises(raised) if raised else nullcontext():
            Spark("sc://spark:15002/;token=x").query("SELECT 1")
    assert [session.stopped for session in opened] == [1, 1]
    assert asked == ["sc://spark:15002/;token=x"] * 2, "no name that another statement could have too"


@pytest.mark.parametrize("remote", ["spark:15002", "http://spark:15002", "sc://"])
def test_a_wrong_spark_address_is_refused(remote: str):
    with pytest.raises(InvalidSettingError, match="TARN_SPARK_REMOTE"):
        Spark(remote)


def test_a_wrong_trino_address_is_refused():
    with pytest.raises(InvalidSettingError, match="TARN_TRINO_URI"):
        Trino("http://")


def test_rows_inside_rows_become_plain_values():
    inner = NamedRowTuple([1, None], ["a", "b"], ["integer", "varchar"])
    doubled = NamedRowTuple([1, 2], ["a", "a"], ["integer", "integer"])
    nameless = NamedRowTuple([1], [None], ["integer"])
    outer = NamedRowTuple([inner, [inner], {"k": inner}], ["x", "y", "z"], ["row", "array", "map"])
    row = {"a": 1, "b": None}
    assert _ours(outer) == {"x": row, "y": [row], "z": {"k": row}}
    assert _ours(doubled) == (1, 2)
    assert _ours(nameless) == (1,)


class SparkError(Exception):
    def __init__(self, text: str, state: str | None = None) -> None:
        super().__init__(text)
        self.state = state

    def getSqlState(self) -> str | None:
        return self.state


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)\n\n"
            "== SQL ==\nSELEC 1\n^^^\n\nJVM stacktrace:\norg.apache.spark…",
            "[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. SQLSTATE: 42601 (line 1, pos 0)",
        ),
        (
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL (line 1, position 8) ==\n"
            "SELECT 1/0\n       ^^^\n\nJVM stacktrace:\njava.lang…",
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012 (line 1, position 8)",
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `a`.`b` cannot be found.\nTo tolerate the error "
            "use DROP TABLE. SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]\n+- 'UnresolvedRelation [a]",
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `a`.`b` cannot be found. To tolerate the error "
            "use DROP TABLE. SQLSTATE: 42P01; line 1 pos 14",
        ),
    ],
)
def test_sparks_reason_is_one_line_and_points_with_words(said: str, told: str):
    """Its caret, on one line with the statement, would point nowhere."""
    assert spark_reason(SparkError(said)) == told


@pytest.mark.parametrize(
    ("text", "state", "fault"),
    [
        ("no such column", "42703", True),
        ("Division by zero. SQLSTATE: 22012", None, True),
        ("[INTERNAL_ERROR] oops. SQLSTATE: XX000", None, False),
        ("out of memory", "53200", False),
        ("no state at all", None, False),
    ],
)
def test_a_wrong_statement_is_told_from_a_failing_spark(text: str, state: str | None, fault: bool):
    assert is_statements_fault(SparkError(text, state)) is fault
