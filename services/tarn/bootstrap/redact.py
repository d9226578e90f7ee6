"""`python -m tarn.bootstrap.redact`: take every secret of this copy out of texts; the secrets stay in here.

Reads a JSON object (name -> text) on stdin and writes `{"texts": {name: text}, "replaced": n, "files": n}` on
stdout. Runs as root with the secret volumes mounted read only and without a network, for
`scripts/doctor --bundle`. Exit codes: `tarn.core.exit_codes`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tarn.core.credentials import UIDS
from tarn.core.exit_codes import INVALID, OK
from tarn.core.redaction import redact_all

FILE_BYTES_MAX = 1 << 20


def read_secrets(root: Path) -> list[str]:
    """Content of every file below `root`, whatever its name: everything in a secret volume is a secret."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_BYTES_MAX:
            found.append(path.read_bytes().decode("utf-8", "replace"))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Redact stdin to stdout and return the exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m tarn.bootstrap.redact", description=__doc__
    )
    parser.add_argument("--root", type=Path, default=Path("/secrets"), help="folder of the secret volumes")
    options = parser.parse_args(argv)
    try:
        texts = json.load(sys.stdin)
        if not isinstance(texts, dict):
            raise TypeError(f"expected an object, got {type(texts).__name__}")
    except (ValueError, TypeError) as error:
        print(f"redact: stdin is not a JSON object of texts: {error}", file=sys.stderr)  # noqa: T201
        return INVALID
    contents = read_secrets(options.root)
    cleaned, count = redact_all(texts, contents, spared=UIDS)
    json.dump({"texts": cleaned, "replaced": count, "files": len(contents)}, sys.stdout)
    return OK


if __name__ == "__main__":
    sys.exit(main())
