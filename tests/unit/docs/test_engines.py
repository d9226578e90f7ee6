"""docs/engines.md lists what the tests of the engines provoke, with the versions that are pinned."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.integration.engines.limits import PYARROW, PYICEBERG, SPARK, TRINO, as_table

ROOT = Path(__file__).parents[3]


def test_the_limits_are_those_that_tests_provoke():
    text = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    assert re.findall(r"^\|.*$", text, re.MULTILINE) == as_table()


@pytest.mark.long
def test_they_name_the_versions_that_run_here():
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    versions = {package["name"]: package.get("version", "") for package in locked}
    assert f"pyiceberg {versions['pyiceberg']}" == PYICEBERG
    assert f"pyarrow {versions['pyarrow']}" == PYARROW
    lines = (ROOT / "versions.env").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    assert f"Trino {pinned['TRINO_VERSION']}" == TRINO
    assert f"Iceberg {pinned['SPARK_ICEBERG_VERSION']} for Spark {pinned['SPARK_VERSION']}" == SPARK


def test_trino_writes_delete_files_that_pyiceberg_reads():
    lines = (ROOT / "trino" / "etc" / "catalog" / "tarn.properties").read_text(encoding="utf-8").splitlines()
    assert "parquet.writer.delta-length-byte-array-encoding-enabled=false" in lines
    assert not any(line.startswith("iceberg.format-version") for line in lines)
