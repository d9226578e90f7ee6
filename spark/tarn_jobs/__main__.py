"""Entry point `python -m tarn_jobs run [--continuous]`; needs the package `tarn`."""

from __future__ import annotations

import sys

from tarn.flights.driver import main

if __name__ == "__main__":
    sys.exit(main())
