"""What a service does not load although its image has it."""

from __future__ import annotations

import sys
from typing import Any


class _Without:
    """A finder of modules that says of one that it is not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not loaded in this process", name=name)


def without_pandas() -> None:
    """Have pandas not be installed for this process.

    PyArrow imports it, where it is installed, with the first array that is made from a list: it takes memory
    in each process, and time just when the first row comes. The image has it for other commands. For
    processes of Tarn's own alone: call it where one starts, before anything else.
    """
    sys.meta_path.insert(0, _Without())
