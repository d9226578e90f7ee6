"""The reaper's probe: a file that its use of the store touches."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[3] / "services" / "reaper" / "probe.py"


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reaper_probe", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_reaper_that_uses_the_store_is_well_and_one_that_stopped_is_not(
    probe: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "alive"
    with pytest.raises(RuntimeError, match="has not used the store yet"):
        probe.check_alive(path, now_s=1_000.0)
    path.touch()
    os.utime(path, (1_000, 1_000))
    probe.check_alive(path, now_s=1_150.0)
    with pytest.raises(RuntimeError, match=r"for 151 s \(limit 150 s\)"):
        probe.check_alive(path, now_s=1_151.0)
