"""`python -m tarn_jobs run [--continuous]`, where Tarn's services are installed too."""

from __future__ import annotations

import sys

from tarn_demo.driver import main

if __name__ == "__main__":
    sys.exit(main())
