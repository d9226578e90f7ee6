"""One pass of the reaper over a lake in a folder: the same rules, where no service runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog as PyIcebergCatalog

from tarn.core.exit_codes import OK
from tarn.core.reap import folder_of, key_within, same_name
from tarn.keeper.reaping import main, of_folder
from tarn_catalog.embedded import EmbeddedCatalog

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
PROPERTIES = {"tarn.history": "2", "write.metadata.previous-versions-max": "1"}
HOUR_S = 3_600


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a lake"


@pytest.fixture
def catalog(root: Path) -> PyIcebergCatalog:
    catalog = EmbeddedCatalog("lake", uri=root.as_uri())
    catalog.create_namespace("ns")
    return catalog


def aged(root: Path) -> None:
    """Make every file an hour older."""
    for path in root.rglob("*"):
        os.utime(path, (time.time(), path.stat().st_mtime - HOUR_S))


def fresh(root: Path) -> None:
    """Make every file one of now: this machine may have been slow."""
    for path in root.rglob("*"):
        os.utime(path)


def count(root: Path, pattern: str) -> int:
    return len(list((root / "warehouse").rglob(pattern)))


def test_what_no_snapshot_needs_goes_after_its_grace_and_a_purged_table_too(
    root: Path, catalog: PyIcebergCatalog
) -> None:
    table = catalog.create_table("ns.t", ROWS.schema, properties=PROPERTIES)
    for _ in range(30):
        table.append(ROWS)
    table.overwrite(ROWS)
    table.append(ROWS)
    catalog.create_table("ns.purged", ROWS.schema).append(ROWS)
    catalog.purge_table("ns.purged")
    before = count(root, "*.*")
    fresh(root)
    assert of_folder(root).run_once().deleted == 0, "all of it is young"
    assert count(root, "*.*") == before
    done = []
    for _ in range(2):
        aged(root)
        done.append(of_folder(root).run_once())
        assert done[-1].failed == {}
    assert done[0].purged == 5
    assert done[1].data == 30
    assert count(root, "purged-*/**/*.*") == 0
    assert (count(root, "*.metadata.json"), count(root, "snap-*"), count(root, "*.parquet")) == (2, 2, 2)
    assert catalog.load_table("ns.t").scan().to_arrow().num_rows == 4
    table.append(ROWS)
    assert EmbeddedCatalog("lake", uri=root.as_uri()).load_table("ns.t").scan().to_arrow().num_rows == 6


def test_no_data_file_is_read(root: Path, catalog: PyIcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lake may be large, and a pass costs what is new."""
    table = catalog.create_table("ns.t", ROWS.schema, properties=PROPERTIES)
    table.append(ROWS)
    for _ in range(3):
        table.overwrite(ROWS)
    catalog.create_table("ns.purged", ROWS.schema).append(ROWS)
    catalog.purge_table("ns.purged")
    read: list[str] = []
    read_bytes: Callable[[Path], bytes] = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: (read.append(path.name), read_bytes(path))[1])
    for _ in range(2):
        aged(root)
        of_folder(root).run_once()
    assert count(root, "purged-*/**/*.*") == 0
    assert any(name.endswith(".metadata.json") for name in read)
    assert not any(name.endswith(".parquet") for name in read)


def test_a_command_makes_a_pass_and_makes_no_lake(
    root: Path, catalog: PyIcebergCatalog, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog.create_table("ns.t", ROWS.schema)
    assert main(["--folder", str(root)]) == OK
    assert json.loads(capsys.readouterr().out)["tables"] == 1
    missing = root.parent / "missing"
    assert main(["--folder", str(missing)]) != OK
    assert "there is no lake" in capsys.readouterr().out
    assert not missing.exists()


@pytest.mark.parametrize("spelling", ["file:///tmp/lake", "file:/tmp/lake", "/tmp/lake"])
def test_a_file_of_a_folder_is_one_file_whichever_spelling_names_it(spelling: str) -> None:
    lake = "file:///tmp/lake"
    assert same_name(f"{spelling}/warehouse/t-u/x", lake) == f"{lake}/warehouse/t-u/x"
    assert key_within(f"{spelling}/warehouse/t-u/x", bucket=lake, root=f"{lake}/warehouse/t-u") == (
        "warehouse/t-u/x"
    )
    assert folder_of(f"{spelling}/warehouse/t-u", bucket=lake, uuid="u") == "warehouse/t-u/"
    for other in (
        "file:///tmp/lakes/warehouse/x",
        "s3://tmp/lake/warehouse/x",
        "file://tmp/lake/warehouse/x",
    ):
        assert same_name(other, lake) == other
