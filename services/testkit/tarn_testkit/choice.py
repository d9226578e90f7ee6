"""Which lake a test session gets: options first, then what is there. Pure, but for what is passed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["embedded", "attached", "started"]
PROFILES = ("small", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for.

    Attributes:
        embedded: whether `--tarn-embedded` was given.
        profile: what `--tarn-profile` says; None: it was not given.
        address: the catalog's address in the environment, or in the file of `--tarn-env`; empty: there is
            none.
        home: a clone of Tarn; None: none is known.
        problem: what is wrong with the clone that was named; empty: nothing.
    """

    embedded: bool
    profile: str | None
    address: str
    home: Path | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The lake of a session.

    Attributes:
        kind: running in the test's process, running before, or to be started.
        asked: whether it was asked for by an option or a variable.
        why: what the header line says.
        failure: why it cannot be had; empty: it can.
    """

    kind: Kind
    asked: bool
    why: str
    failure: str = ""


def choose(wanted: Wanted, no_engine: Callable[[], str]) -> Choice:
    """The lake of a session.

    Args:
        wanted: what was asked for.
        no_engine: returns why no container can be started; empty if one can. Asked only if it matters.
    """
    if wanted.embedded:
        return Choice(kind="embedded", asked=True, why="embedded in this process (--tarn-embedded)")
    if wanted.address and wanted.profile is None:
        return Choice(kind="attached", asked=True, why=f"attached to the running stack at {wanted.address}")
    if wanted.problem:
        return Choice(kind="started", asked=True, why=f"none: {wanted.problem}", failure=wanted.problem)
    profile = wanted.profile or "small"
    missing = no_engine()
    if not missing and wanted.home is None:
        missing = (
            "no clone of Tarn is known, from which a stack could be started: install the kit from a clone, "
            "or "
            "set TARN_HOME to one"
        )
    starting = f"a stack of its own, the {profile} profile, started when a test first needs it"
    if not missing:
        return Choice(kind="started", asked=wanted.profile is not None, why=f"{starting}, from {wanted.home}")
    if wanted.profile is not None:
        failure = (
            f"--tarn-profile {profile} asks for a stack, and it cannot be started: {missing}. Start the "
            "engine "
            "(Docker), attach to a running stack with --tarn-env, or use --tarn-embedded"
        )
        return Choice(kind="started", asked=True, why=f"{starting}; but {missing}", failure=failure)
    return Choice(kind="embedded", asked=False, why=f"embedded in this process, because {missing}")
