"""Isolation of the host script tests from the clone's own state."""

from __future__ import annotations

from pathlib import Path

import pytest
from tarn_host.stack import base, images


@pytest.fixture(autouse=True)
def own_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Redirect the build logs, which scripts/doctor reads, away from this clone's own."""
    monkeypatch.setattr(base, "LOG", tmp_path / "own" / "base.log")
    monkeypatch.setattr(images, "LOG", tmp_path / "own" / "build.log")
