"""Random plays: tests that draw their steps from a seed. `scripts/test nightly` runs more of them."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("TARN_TEST_TIMES", "1"))
"""How many times the usual number of seeds is run."""


def seeds(usual: int) -> range:
    """The seeds of a test marked `plays`: `usual` of them, or a multiple (TARN_TEST_TIMES)."""
    return range(usual * TIMES)
