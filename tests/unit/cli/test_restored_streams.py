"""What a restore says of streams: those that a new Kafka stops, and no others."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from tarn.cli import keeper
from tarn.keeper import restore
from tarn.keeper.archive import Begin, End


def stream(name: str, topic: str, cluster: str = "c-1") -> dict[str, Any]:
    return {
        "stream": name,
        "table": f"t.{name}",
        "cluster": cluster,
        "topic": topic,
        "topic_id": "id",
        "next": {"0": 7},
    }


BEGIN = Begin(id="x", bucket="tarn", warehouse="warehouse", at="2026-11-30T00:00:00+00:00", version="1")
ORDERS = stream("orders", "orders")
OF_ITS_NAME = stream("gateway", "gateway")
OVER_HTTP = stream("gateway", "gateway", cluster="tarn")
TRAIL = stream("tarn-audit", "_tarn_trail.audit")


@pytest.mark.parametrize(
    ("streams", "named"),
    [([OVER_HTTP, ORDERS, TRAIL, OF_ITS_NAME], ["orders", "gateway"]), ([OVER_HTTP, TRAIL], [])],
)
def test_a_restore_names_the_streams_that_a_new_kafka_stops(
    streams: list[dict[str, Any]],
    named: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    end = End(id="x", objects=1, bytes=1, tables=1, sha256="", streams=streams)
    done = restore.Restored(begin=BEGIN, end=end, present=0, seconds=1.0)
    monkeypatch.setattr(restore, "restore", lambda *_, **__: done)
    monkeypatch.setattr(keeper, "_store", lambda *_, **__: None)
    settings = SimpleNamespace(bucket="tarn", warehouse="warehouse")
    monkeypatch.setattr(keeper.Settings, "read", lambda: settings)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: False, buffer=io.BytesIO()))
    keeper.restore()
    out = capsys.readouterr().err
    assert [line.split()[1] for line in out.splitlines() if line.startswith("stream ")] == named
    assert ("SourceChanged" in out) is bool(named)
