"""Entry point: `python -m tarn.ingest` runs the service; with `--check` it only validates the specs."""

from __future__ import annotations

import sys

from tarn.adapters.lean_process import without_pandas
from tarn.ingest.service import main

if __name__ == "__main__":
    without_pandas()
    sys.exit(main(sys.argv[1:]))
