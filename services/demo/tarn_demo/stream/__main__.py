"""`python -m tarn_demo.stream`: the service stream."""

from __future__ import annotations

import sys

from tarn_demo.stream.service import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
