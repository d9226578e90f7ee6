"""What `scripts/test nightly` runs: more seeds of tests that draw their steps, and long tests."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("TARN_TEST_TIMES", "1"))
"""How many times the usual number of seeds is run."""
NIGHTLY = os.environ.get("TARN_TEST_NIGHTLY") == "1"
"""Whether tests marked `nightly` are run; they are left out otherwise."""


def seeds(usual: int) -> range:
    """The seeds of a test marked `plays`: `usual` of them, or a multiple (TARN_TEST_TIMES)."""
    return range(usual * TIMES)
