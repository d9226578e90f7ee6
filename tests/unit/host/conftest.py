"""Tests of the host's scripts leave the clone's own state alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tarn_host.stack import base, images


@pytest.fixture(autouse=True)
def own_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The logs of this clone's last build are what scripts/doctor goes by."""
    monkeypatch.setattr(base, "LOG", tmp_path / "own" / "base.log")
    monkeypatch.setattr(images, "LOG", tmp_path / "own" / "build.log")
