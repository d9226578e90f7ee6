"""Test tiers: one folder each under tests/, named like the marker that its tests get."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TESTS_DIR = Path(__file__).resolve().parent.parent

TIMEOUT_S_BY_TIER = {
    "unit": 60,
    "contract": 120,
    "spark": 600,
    "integration": 600,
    "e2e": 900,
    "faults": 1200,
    "notebooks": 1200,
    "rck": 1200,
}
"""The tiers in execution order -> timeout of one test, in seconds."""

CONTAINER_TIERS = ("spark", "integration", "e2e", "faults", "notebooks", "rck")


def tier_of(path: Path) -> str | None:
    """The tier of a test file, from its folder; None outside every tier."""
    try:
        first = path.resolve().relative_to(TESTS_DIR).parts[0]
    except (ValueError, IndexError):
        return None
    return first if first in TIMEOUT_S_BY_TIER else None


def last_in_their_folders(items: list[pytest.Item]) -> list[pytest.Item]:
    """Order tests so that those marked `runs_last` come after the others of their folder."""
    folders = {item.path.parent: n for n, item in reversed(list(enumerate(items)))}
    return sorted(
        items, key=lambda item: (folders[item.path.parent], item.get_closest_marker("runs_last") is not None)
    )
