"""Runs the gateway: `python -m tarn.gateway`."""

from __future__ import annotations

import sys

from tarn.gateway.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
