"""The token of Spark Connect is added to its address, and does not appear in messages; sessions end once."""

from __future__ import annotations

import gc
import re
import weakref
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.connect.client import SparkConnectClient
from pyspark.sql.connect.client.reattach import ExecutePlanResponseReattachableIterator
from pyspark.sql.connect.session import SparkSession

from tarn.adapters import spark_remote
from tarn.adapters.spark_remote import session, with_token
from tarn.cli.clients.engines import Spark
from tarn.core.errors import InvalidSettingError

ROOT = Path(__file__).resolve().parents[3]


def test_the_token_joins_an_address_that_has_none(tmp_path: Path) -> None:
    assert with_token("sc://spark:15002", tmp_path) == "sc://spark:15002", "no file: a Spark of one's own"
    (tmp_path / "spark_token").write_text("t-_x\n")
    for address in ("sc://spark:15002", "sc://spark:15002/"):
        assert with_token(address, tmp_path) == "sc://spark:15002/;authorization=Bearer%20t-_x"
    own = "sc://other:443/;use_ssl=true;token=mine"
    assert with_token(own, tmp_path) == own


def test_the_client_sends_it_with_every_call(tmp_path: Path) -> None:
    from pyspark.sql.connect.client import DefaultChannelBuilder

    (tmp_path / "spark_token").write_text("t-_x")
    builder = DefaultChannelBuilder(with_token("sc://spark:15002", tmp_path))
    assert ("authorization", "Bearer t-_x") in list(builder.metadata())
    assert not builder.secure, "the client would ask for TLS"


def test_a_wrong_address_is_named_without_its_token() -> None:
    with pytest.raises(InvalidSettingError) as caught:
        Spark("http://spark:15002/;authorization=Bearer%20t-_x")
    assert "t-_x" not in str(caught.value)


@pytest.mark.long
def test_a_closed_session_does_nothing_when_it_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its finalizer would stop the thread pool of all sessions, at a moment that nobody chose."""
    gc.collect()  # the sessions of other tests
    monkeypatch.setattr(SparkConnectClient, "release_session", lambda client: None)
    # pyspark calls this at the end of the process, with retries of ten minutes.
    monkeypatch.setattr(SparkConnectClient, "_cleanup_ml_cache", lambda client: None)
    with session("sc://127.0.0.1:1", {}) as closed:
        left_alone = SparkSession.builder.remote("sc://127.0.0.1:1").create()
    assert closed.is_stopped
    client = weakref.ref(closed.client)
    stops: list[str] = []
    monkeypatch.setattr(
        ExecutePlanResponseReattachableIterator, "shutdown", classmethod(lambda cls: stops.append("pool"))
    )
    del closed
    gc.collect()
    assert stops == []
    assert client() is None, "each session would stay in memory until the end of the process"
    del left_alone
    gc.collect()
    assert stops == ["pool"], "pyspark's finalizer is another one: see tarn.adapters.spark_remote.close"


def test_a_spark_that_does_not_answer_is_an_error_and_no_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where warnings are errors, as here, the client's own would come instead of the error to be caught."""
    monkeypatch.setattr(spark_remote, "RETRIES_MAX", 1)
    monkeypatch.setattr(SparkConnectClient, "_cleanup_ml_cache", lambda client: None)
    with pytest.raises(PySparkException), session("sc://127.0.0.1:1", {}) as opened:
        opened.sql("SELECT 1").collect()


def test_no_other_code_opens_sessions_one_after_the_other() -> None:
    """`create()` makes one more session; `getOrCreate()` has one per process, as users write it."""
    close_their_own = {"spark/train.py", "spark/probe.py"}
    found = {
        str(path.relative_to(ROOT))
        for folder in ("catalog", "notebooks", "scripts", "services", "spark", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"\.remote\([^\n]*\)\.create\(", path.read_text())
    }
    ours = {"services/tarn/adapters/spark_remote.py", str(Path(__file__).relative_to(ROOT))}
    assert found == close_their_own | ours
