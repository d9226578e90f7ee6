"""How a measuring process answers: lines of JSON on stdout, and a reason on stderr if it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tarn.core.errors import TarnError
from tarn.core.exit_codes import OK, exit_code


def say(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def printed(rows: Callable[[], Iterable[Mapping[str, Any]]]) -> int:
    """Print each row as a line as soon as it is there; returns the exit code.

    Args:
        rows: makes the results; a TarnError is printed as the reason why there are no more.
    """
    try:
        for row in rows():
            print(json.dumps(row), flush=True)  # noqa: T201
    except TarnError as error:
        say(error.message)
        return exit_code(error)
    return OK
