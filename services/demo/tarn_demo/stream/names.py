"""Names of airports by code, from the demo's data set."""

from __future__ import annotations

import csv
from pathlib import Path


def read_names(path: Path) -> dict[str, str]:
    """Code to name.

    Args:
        path: airports.csv of the data set.
    """
    with path.open(encoding="utf-8", newline="") as file:
        return {row["faa"]: row["name"] for row in csv.DictReader(file)}
