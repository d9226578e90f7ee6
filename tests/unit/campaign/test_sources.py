"""The sources of a result are files of this clone, or there is no result."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.campaign.sources import PRODUCT, ROOT, loaded


def module(name: str, path: Path | None) -> ModuleType:
    made = ModuleType(name)
    made.__file__ = None if path is None else str(path)
    return made


def test_files_of_this_clone_are_sources_and_libraries_are_none() -> None:
    modules = {
        "tarn.ingest": module("tarn.ingest", ROOT / "services/tarn/ingest/__init__.py"),
        "tarn_namespace": module("tarn_namespace", None),
        "pyarrow": module("pyarrow", Path(sys.prefix) / "lib/pyarrow/__init__.py"),
        "json": module("json", Path("/usr/lib/python3/json.py")),
    }
    assert loaded(modules) == {"services/tarn/ingest/__init__.py"}


@pytest.mark.parametrize("package", PRODUCT)
@pytest.mark.parametrize("folder", ["of another clone", "of this clone's libraries"])
def test_code_of_the_product_from_elsewhere_is_refused(package: str, folder: str, tmp_path: Path) -> None:
    elsewhere = (tmp_path if folder == "of another clone" else Path(sys.prefix)) / package / "a.py"
    with pytest.raises(
        ValueError, match=rf"^{package}\.a was loaded from {elsewhere}, not from {ROOT}: run "
    ):
        loaded({f"{package}.a": module(f"{package}.a", elsewhere)})
