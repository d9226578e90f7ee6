"""The processes that take rows do without pandas, which PyArrow would load with the first array of a list."""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys

import pytest

ARRAY = """
import sys
{before}
import pyarrow as pa
assert pa.array([1, None, 3], pa.int64()).to_pylist() == [1, None, 3]
print("pandas" in sys.modules)
"""
LEAN = "from tarn.adapters.lean_process import without_pandas; without_pandas()"


@pytest.mark.long
@pytest.mark.parametrize(("before", "loaded"), [("", True), (LEAN, False)])
def test_an_array_of_a_list_loads_pandas_only_where_nothing_was_said(before: str, loaded: bool) -> None:
    """The first case shows that the second is needed: with a PyArrow that does not, the function can go."""
    found = subprocess.run(
        [sys.executable, "-c", ARRAY.format(before=before)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"{loaded}\n"


@pytest.mark.parametrize(
    "module", ["tarn.gateway.__main__", "tarn.ingest.__main__", "tarn.ingest.worker", "tarn.keeper.reaping"]
)
def test_pandas_is_out_before_a_process_begins(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "argv", [module])
    begun: list[str] = []

    def begin(*_: object) -> None:
        begun.append(module)
        with pytest.raises(ModuleNotFoundError, match="not loaded in this process"):
            import pandas  # noqa: F401
        raise SystemExit(0)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", begin)
    with pytest.raises(SystemExit):
        runpy.run_module(module, run_name="__main__")
    assert begun == [module]
