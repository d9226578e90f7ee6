"""`python -m tarn_demo run [--continuous]`: the pipeline, as its service runs it."""

from __future__ import annotations

import sys

from tarn_demo.driver import main

if __name__ == "__main__":
    sys.exit(main())
