"""Specs that are valid alone but exclude each other, and which of them may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarn.core.errors import InvalidSpecError
from tarn.core.spec.ingestor import IngestorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Specs that are valid alone but exclude each other: they share a name, a stream, a table or its log.

    Attributes:
        files: file names, sorted; the order implies no precedence.
        about: what they share, for messages.
    """

    files: tuple[str, ...]
    about: str

    def refusal(self, file: str, *, why: str) -> InvalidSpecError:
        """The error of one of the files."""
        others = ", ".join(f for f in self.files if f != file)
        return InvalidSpecError(f"{file}: {self.about}; {why}. The other: {others}", file=file)


def clashes(specs: Mapping[str, IngestorSpec]) -> list[Clash]:
    """Groups of files of which at most one can be used; files without conflicts are in none."""
    wants: dict[str, list[str]] = {}
    for file, spec in sorted(specs.items()):
        wants.setdefault(f"metadata.name {spec.name!r} is used twice", []).append(file)
        wants.setdefault(f"stream {spec.stream!r} is used twice", []).append(file)
        for part in sorted(spec.spec.source.kafka.fills):
            whose = "" if part == "rows" else "the log of "
            wants.setdefault(f"{whose}spec.table {str(spec.spec.table)!r} is written by two", []).append(file)
    groups: list[tuple[set[str], list[str]]] = []
    for about, files in wants.items():
        if len(files) < 2:
            continue
        joined: tuple[set[str], list[str]] = (set(files), [about])
        apart = []
        for group in groups:
            if group[0] & joined[0]:
                joined = (group[0] | joined[0], [*group[1], *joined[1]])
            else:
                apart.append(group)
        groups = [*apart, joined]
    return [Clash(files=tuple(sorted(files)), about=" and ".join(about)) for files, about in groups]


def settle(clash: Clash, holders: frozenset[str]) -> tuple[str | None, dict[str, InvalidSpecError]]:
    """Decide which file of a clash may be used.

    Args:
        clash: the conflicting files.
        holders: files whose table already has their stream.

    Returns:
        The file that may be used, and the errors of the others. It is the only holder, so that a new file
        never stops a working ingestor; None if there is no holder or more than one.
    """
    winner = next(iter(holders)) if len(holders) == 1 else None
    if winner is not None:
        why = f"{winner} goes on, as its table holds its stream already; change or remove this one"
    elif holders:
        why = f"the tables of {', '.join(sorted(holders))} hold their streams already; remove all but one"
    else:
        why = "neither has begun, so neither begins; change or remove one"
    return winner, {file: clash.refusal(file, why=why) for file in clash.files if file != winner}
