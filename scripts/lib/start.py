"""Run one module of tarn_host: `python3 -I -B start.py <module> [arguments]`.

Isolated, Python imports nothing from the folder that somebody stands in, nor from what PYTHONPATH names; the
one folder that is added is this file's own.
"""

import importlib
import os
import sys

CALLED = {"cli": "scripts/tarn", "test": "scripts/test", "ci": ".ci/run"}
MODULES = {
    "bench": "bench.command",
    "doctor": "doctor.command",
    "sbom": "sbom.command",
    "test": "testing.tiers",
    "ci": "testing.ci",
}
"""The modules of commands that have a package of their own, or another name."""

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    module = sys.argv[1]
    sys.argv[:2] = [CALLED.get(module, f"scripts/{module}")]
    sys.exit(importlib.import_module(f"tarn_host.{MODULES.get(module, module)}").main())
