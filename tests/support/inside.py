"""What a command in a container of testcontainers prints: of one that is quick the engine can lose it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from docker.models.containers import Container

TIMES_MAX = 5


class Said(NamedTuple):
    """Exit code and output of a command, stdout and stderr."""

    exit_code: int
    output: bytes


def said_inside(container: Container, command: Sequence[str]) -> Said:
    """What a command printed that changes nothing and has something to say: a silent one is run again.

    Args:
        container: the container.
        command: the program and its arguments.
    """
    found = Said(0, b"")
    for _ in range(TIMES_MAX):
        found = Said(*container.exec_run(list(command)))
        if found.output:
            break
    return found
