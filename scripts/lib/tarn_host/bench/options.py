"""What the commands of scripts/bench have in common: how their options are added, read and checked."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields
from typing import Any, Protocol, TypeVar

from tarn_host.console import StopError

Verbs = Any
"""What `add_subparsers` returns."""


class Sizes(Protocol):
    """What one benchmark measures: the numbers that its command takes."""

    def words(self) -> str:
        """The options of the command that measures this."""


class Small(Sizes, Protocol):
    """Sizes of which there is a small version."""

    def small(self: S) -> S:
        """The same with everything small: whether it works, not what it costs."""


S = TypeVar("S", bound=Small)


def counts(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, such as `1,4`."""
    return tuple(int(word) for word in text.split(","))


def rates(text: str) -> tuple[float, ...]:
    """Numbers with commas between them, such as `0.5,1000`."""
    return tuple(float(word) for word in text.split(","))


def shown(value: object) -> str:
    """A value of an option as it is given in the command. Pure."""
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


class Adder:
    """A command of scripts/bench whose options are added one after the other.

    Args:
        verbs: the commands.
        name: the command.
        text: what it measures, for --help.
        sizes: the class of its sizes, which has the defaults.
        quick: whether it takes --quick.
    """

    def __init__(self, verbs: Verbs, name: str, text: str, sizes: type[Any], *, quick: bool = True) -> None:
        self._parser: argparse.ArgumentParser = verbs.add_parser(name, help=text)
        self._defaults = {one.name: one.default for one in fields(sizes) if one.default is not MISSING}
        if quick:
            self._parser.add_argument(
                "--quick", action="store_true", help="everything small; nothing is kept"
            )

    def number(self, name: str, kind: Any, text: str, *, field: str = "") -> Adder:
        """Add `--name`, whose default is that of a field of the sizes: of this name if no other is given."""
        default = self._defaults[field or name.replace("-", "_")]
        self._parser.add_argument(
            f"--{name}", type=kind, default=default, help=f"{text} (default {shown(default)})"
        )
        return self

    def flag(self, name: str, text: str) -> Adder:
        """Add `--name`, which takes no value."""
        self._parser.add_argument(f"--{name}", action="store_true", help=text)
        return self


def require(holds: bool, sizes: Sizes, fix: str) -> None:
    """Require that sizes make sense.

    Args:
        holds: whether they do.
        sizes: the sizes.
        fix: which ones to give.

    Raises:
        StopError: they do not.
    """
    if not holds:
        raise StopError(f"{sizes.words()}: no such benchmark", fix, 2)


def asked(sizes: S, found: argparse.Namespace) -> S:
    """The sizes, or their small version if that is asked for."""
    return sizes.small() if found.quick else sizes
