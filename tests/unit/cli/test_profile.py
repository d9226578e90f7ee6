"""The small profile: Trino and Spark are not checked, and users who query them learn how to get them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tarn.cli import wiring
from tarn.cli.canary import Limits
from tarn.cli.settings import Settings
from tarn.core.credentials import files_of
from tarn.core.errors import InvalidSettingError, UnavailableError

LEFT_OUT = {"trino", "spark"}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    for name in files_of("cli"):
        (tmp_path / name).write_text("some:thing")
    return tmp_path


def test_status_looks_at_what_is_there() -> None:
    full = {look.service for look in wiring.looks(Settings())}
    small = {look.service for look in wiring.looks(Settings(profile="small"))}
    assert full - small == LEFT_OUT
    assert {"minio", "catalog", "kafka", "ingest", "gateway"} <= small


def test_the_canary_is_read_back_by_pyiceberg_alone_and_says_so(secrets: Path) -> None:
    told: list[str] = []
    small = wiring.flight(Settings(profile="small", secrets_dir=secrets), Limits(), told.append)
    assert [reader.name for reader in small.readers] == ["pyiceberg"]
    assert any("pyiceberg alone" in text for text in told)
    full = wiring.flight(Settings(secrets_dir=secrets), Limits(), told.append)
    assert {reader.name for reader in full.readers} == LEFT_OUT | {"pyiceberg"}


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_an_engine_that_is_left_out_is_told_with_both_ways_on(name: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        wiring.engine(Settings(profile="small"), name)
    assert "--engine duckdb" in caught.value.message
    assert "scripts/up --full" in caught.value.message


def test_a_profile_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARN_PROFILE", "tiny")
    with pytest.raises(InvalidSettingError, match="TARN_PROFILE"):
        Settings.read()
