"""The reaper's probe: files that its store access touches."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
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


@pytest.mark.parametrize(
    "use",
    [lambda store: store.get("k"), lambda store: store.delete("k"), lambda store: store.delete_many(["k"])],
    ids=["get", "delete", "delete_many"],
)
def test_the_service_touches_the_one_before_and_the_other_after_each_use(
    tmp_path: Path, use: Callable[[Alive], object]
) -> None:
    tried, alive = tmp_path / "tried", tmp_path / "alive"

    class Away(MemoryStore):
        def away(self, *_: object, **__: object) -> None:
            raise TimeoutError

        get = delete = delete_many = away  # type: ignore[assignment]

    with pytest.raises(TimeoutError):
        use(Alive(Away(), tried, alive))
    assert tried.exists()
    assert not alive.exists()
    use(Alive(MemoryStore(), tried, alive))
    assert alive.exists()
