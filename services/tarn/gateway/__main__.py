"""Runs the gateway: `python -m tarn.gateway`."""

from __future__ import annotations

import sys

from tarn.adapters.lean_process import without_pandas
from tarn.gateway.server import main

if __name__ == "__main__":
    without_pandas()
    sys.exit(main(sys.argv[1:]))
