"""Run one module of tarn_host: `python3 -I -B start.py <module> [arguments]`.

In isolated mode (`-I`) Python ignores the working directory and PYTHONPATH; this file's own folder is the
only one added to the import path.
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
"""Commands whose module has another name or lives in a package of its own."""


def write_anything(stream):
    """Have a stream escape what its encoding lacks: a name in Latin-1, a sign that a service prints."""
    if stream is not None and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    write_anything(sys.stdout)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    module = sys.argv[1]
    sys.argv[:2] = [CALLED.get(module, f"scripts/{module}")]
    sys.exit(importlib.import_module(f"tarn_host.{MODULES.get(module, module)}").main())
