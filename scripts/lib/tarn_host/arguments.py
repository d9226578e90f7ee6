"""Command-line parsing of the scripts: options must be spelled out in full; abbreviations are rejected."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

LIKE = 0.6
"""Minimum similarity, 0 to 1, at which a known option is proposed for an unknown word."""


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations: `--smal` is rejected and `--small` proposed. Subcommands inherit it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "allow_abbrev": False})

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse the options; an unknown argument ends the program with exit code 2."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{meant(rest, self._known())}")
        return found

    def _known(self) -> list[str]:
        """Every option of this command line, including those of subcommands."""
        found: list[str] = []
        for action in self._actions:
            found += action.option_strings
            for inner in action.choices.values() if isinstance(action.choices, dict) else ():
                found += inner._known() if isinstance(inner, Parser) else []
        return found

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where to find help, and exit with 2; nothing has been done yet."""
        self.print_usage()
        self.exit(2, f"error: {message}\n  -> {self.prog} --help lists the options; nothing was done\n")


def meant(rest: Iterable[str], known: Sequence[str]) -> str:
    """` (did you mean --small?)` for words close to a known option, else an empty string. Pure."""
    near = []
    for word in rest:
        name = word.partition("=")[0]
        begun = [one for one in known if name.startswith("--") and one.startswith(name)]
        near += (begun or difflib.get_close_matches(name, known, n=1, cutoff=LIKE))[:2]
    return f" (did you mean {' or '.join(dict.fromkeys(near))}?)" if near else ""
