"""Which lake a test session gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tarn_testkit.choice import Choice, Wanted, choose

CLONE = Path("/src/tarn")


def wanted(
    *, embedded: bool = False, profile: str | None = None, address: str = "", home: Path | None = CLONE
) -> Wanted:
    return Wanted(embedded=embedded, profile=profile, address=address, home=home)


def no_look() -> str:
    raise AssertionError("the engine was asked although nothing depends on it")


@pytest.mark.parametrize(
    ("asked", "engine", "kind", "why"),
    [
        (wanted(), "", "started", "the small profile, started when a test first needs it, from /src/tarn"),
        (wanted(profile="full"), "", "started", "the full profile"),
        (wanted(profile="full", address="http://127.0.0.1:1"), "", "started", "a stack of its own"),
        (wanted(), "no engine answers", "embedded", "in this process, because no engine answers"),
        (wanted(home=None), "", "embedded", "no clone of Tarn is known"),
        (wanted(home=None), "there is no docker command", "embedded", "there is no docker command"),
    ],
)
def test_what_is_there_decides(asked: Wanted, engine: str, kind: str, why: str) -> None:
    found = choose(asked, lambda: engine)
    assert (found.kind, found.failure) == (kind, "")
    assert why in found.why


def test_what_was_asked_for_is_had_without_a_look_at_the_engine() -> None:
    assert choose(wanted(embedded=True, address="http://127.0.0.1:1"), no_look) == Choice(
        kind="embedded", asked=True, why="embedded in this process (--tarn-embedded)"
    )
    found = choose(wanted(address="http://127.0.0.1:8181"), no_look)
    assert found == Choice(
        kind="attached", asked=True, why="attached to the running stack at http://127.0.0.1:8181"
    )


@pytest.mark.parametrize(("home", "engine"), [(CLONE, "no engine answers"), (None, "")])
def test_a_stack_that_was_asked_for_is_never_replaced(home: Path | None, engine: str) -> None:
    found = choose(wanted(profile="small", home=home), lambda: engine)
    assert found.kind == "started"
    assert "--tarn-profile small asks for a stack, and it cannot be started" in found.failure
    assert (engine or "no clone of Tarn is known") in found.failure
    assert "--tarn-embedded" in found.failure


def test_an_embedded_lake_that_nobody_asked_for_says_so() -> None:
    assert choose(wanted(home=None), lambda: "").asked is False
