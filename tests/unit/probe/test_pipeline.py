"""The pipeline's probe: its verdict on the driver's heartbeat file."""

from __future__ import annotations

import importlib.util
import json
import time
from pathlib import Path
from types import ModuleType

import pytest

from tarn_demo import driver

FILE = Path(__file__).parents[3] / "services" / "pipeline" / "probe.py"
AT_S = 1_800_000_000.0


@pytest.fixture
def probe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipeline_probe", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def beat(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "beat.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_drivers_own_beat_is_understood(
    probe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "beat.json"
    monkeypatch.setattr(driver, "HEARTBEAT_PATH", path)
    driver.write_heartbeat("")
    probe.check_beat(path, now_s=time.time())
    driver.write_heartbeat("Spark is away")
    with pytest.raises(RuntimeError, match=r"^Spark is away$"):
        probe.check_beat(path, now_s=time.time())


def test_both_use_the_same_file(probe: ModuleType) -> None:
    assert probe.BEAT_PATH == driver.HEARTBEAT_PATH
    assert probe.BEAT_AGE_S_MAX >= 3 * driver.IDLE_PAUSE_S_MAX, "a pause between two cycles is no fault"


def test_a_beat_counts_for_ninety_seconds(probe: ModuleType, tmp_path: Path) -> None:
    path = beat(tmp_path, json.dumps({"at": AT_S, "fault": ""}))
    probe.check_beat(path, now_s=AT_S + 90)
    with pytest.raises(RuntimeError, match=r"has not looked at bronze or committed for 91 s \(limit 90 s\)"):
        probe.check_beat(path, now_s=AT_S + 91)


def test_no_beat_yet_is_said(probe: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="has not looked at bronze yet"):
        probe.check_beat(tmp_path / "beat.json", now_s=AT_S)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": "now", "fault": ""}', '{"fault": ""}'])
def test_a_beat_that_cannot_be_understood_is_a_fault(probe: ModuleType, tmp_path: Path, text: str) -> None:
    with pytest.raises(RuntimeError, match="cannot be understood"):
        probe.check_beat(beat(tmp_path, text), now_s=AT_S)


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("sc://spark:15002", ("spark", 15002)),
        ("sc://10.0.0.7:1/;user_id=x", ("10.0.0.7", 1)),
        ("sc://s", ("s", 15002)),
    ],
)
def test_the_address_of_spark(probe: ModuleType, remote: str, address: tuple[str, int]) -> None:
    assert probe.spark_address(remote) == address


@pytest.mark.parametrize("remote", ["spark:15002", "http://spark", "sc://"])
def test_what_is_no_address_names_the_setting(probe: ModuleType, remote: str) -> None:
    with pytest.raises(RuntimeError, match=r"TARN_SPARK_REMOTE is .*; write it like sc://host:port"):
        probe.spark_address(remote)
