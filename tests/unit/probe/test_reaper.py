"""The reaper's probe: files that its store access touches."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from tarn.adapters.store import MemoryStore
from tarn.keeper import reaping
from tarn.keeper.reaping import Alive

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
    path = tmp_path / "reaper-alive"
    with pytest.raises(RuntimeError, match="the store was not used yet"):
        probe.check_age(path, 150.0, now_s=1_000.0)
    path.touch()
    os.utime(path, (1_000, 1_000))
    probe.check_age(path, 150.0, now_s=1_150.0)
    with pytest.raises(RuntimeError, match=r"reaper-alive: nothing for 151 s \(limit 150 s\)"):
        probe.check_age(path, 150.0, now_s=1_151.0)


def test_the_service_touches_what_the_probe_looks_at(probe: ModuleType, tmp_path: Path) -> None:
    assert (probe.TRIED_PATH, probe.ALIVE_PATH) == (reaping.TRIED_PATH, reaping.ALIVE_PATH)
    tried, alive = tmp_path / "tried", tmp_path / "alive"

    class Away(MemoryStore):
        def get(self, key: str, *, known: object = None) -> None:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        Alive(Away(), tried, alive).get("k")
    assert tried.exists()
    assert not alive.exists()
    Alive(MemoryStore(), tried, alive).get("k")
    assert alive.exists()
