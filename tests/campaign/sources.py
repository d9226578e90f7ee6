"""Which files of this repository a process runs, and how two sets of them differ.

Results of simulated runs are kept by what ran, not by the commit: other files may change meanwhile.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = "uv.lock"
"""The versions of all libraries; counted among the sources."""
NAMED_MAX = 5
PRODUCT = ("tarn", "tarn_catalog", "tarn_demo")
"""Packages whose code the campaign judges."""

Sources = dict[str, str]
"""Path in the repository -> SHA-256 of the file."""


def loaded(modules: Mapping[str, object] = sys.modules) -> set[str]:
    """Paths of all files of this repository that this process has imported.

    Raises:
        ValueError: code of the product came from elsewhere, as with the .venv of another clone: then what ran
            is not what the result would name.
    """
    prefix = Path(sys.prefix)
    found = set()
    for module, value in list(modules.items()):
        name = getattr(value, "__file__", None)
        if name is None:
            continue
        path = Path(name).absolute()
        if path.is_relative_to(ROOT) and not path.is_relative_to(prefix):
            found.add(path.relative_to(ROOT).as_posix())
        elif module.partition(".")[0] in PRODUCT:
            raise ValueError(
                f"{module} was loaded from {path}, not from {ROOT}: run the campaign with this clone's .venv "
                "(scripts/test lint makes it)"
            )
    return found


def hashed() -> Sources:
    """The loaded files and the locked versions, with their hashes; called right after the imports."""
    names = sorted({*loaded(), LOCK})
    return {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in names}


def digest(sources: Mapping[str, str]) -> str:
    """SHA-256 over paths and hashes, sorted by path: one line each, `<path> <hash>`."""
    lines = "".join(f"{path} {content}\n" for path, content in sorted(sources.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Paths that are in one of them only, or with other content."""
    return sorted(path for path in {*one, *other} if one.get(path) != other.get(path))


def named(paths: list[str]) -> str:
    """Some files in words: the first five, and how many more there are."""
    more = len(paths) - NAMED_MAX
    return ", ".join(paths[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
