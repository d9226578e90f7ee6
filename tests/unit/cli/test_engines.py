"""What the engines' adapters decide by themselves, without a server."""

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
from tarn.cli.clients.engines import Spark, Trino, _ours
from tarn.core.errors import InvalidError, InvalidSettingError, TarnError


class Session:
    """A session of Spark Connect that answers, or fails."""

    def __init__(self, failure: BaseException | None) -> None:
        self.failure = failure
        self.stopped = 0
        self.client, self.conf = MagicMock(), MagicMock()

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
        (AnalysisException("no such table"), InvalidError),
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
