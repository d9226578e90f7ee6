"""The command lines of the scripts: an option is taken as it is written out, or not at all."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

LIKE = 0.6
"""How alike two words must be for the one to be proposed, from 0 to 1."""


class Parser(argparse.ArgumentParser):
    """argparse without its guesses: `--smal` is refused and `--small` proposed. Subcommands inherit it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "allow_abbrev": False})

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """The options; what is none of them ends the program with 2."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}{meant(rest, self._known())}")
        return found

    def _known(self) -> list[str]:
        """Every option of this command line, those of subcommands included."""
        found: list[str] = []
        for action in self._actions:
            found += action.option_strings
            for inner in action.choices.values() if isinstance(action.choices, dict) else ():
                found += inner._known() if isinstance(inner, Parser) else []
        return found

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; nothing was done yet, the exit code is 2."""
        self.print_usage()
        self.exit(2, f"error: {message}\n  -> {self.prog} --help lists the options; nothing was done\n")


def meant(rest: Iterable[str], known: Sequence[str]) -> str:
    """` (did you mean --small?)` for words that are nearly an option, else nothing. Pure."""
    near = []
    for word in rest:
        name = word.partition("=")[0]
        begun = [one for one in known if name.startswith("--") and one.startswith(name)]
        near += (begun or difflib.get_close_matches(name, known, n=1, cutoff=LIKE))[:2]
    return f" (did you mean {' or '.join(dict.fromkeys(near))}?)" if near else ""
