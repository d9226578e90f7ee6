"""Output of commands in containers: one that says nothing is asked again, but not without an end."""

from __future__ import annotations

from typing import Any

from tests.support.inside import TIMES_MAX, said_inside


class Container:
    """A container whose commands print these, one after the other; then nothing."""

    def __init__(self, *outputs: bytes) -> None:
        self._outputs = list(outputs)
        self.asked: list[list[str]] = []

    def exec_run(self, command: list[str]) -> tuple[int, bytes]:
        self.asked.append(command)
        return len(self.asked), self._outputs.pop(0) if self._outputs else b""


def test_what_was_lost_is_asked_for_again() -> None:
    container: Any = Container(b"", b"uid=1", b"uid=2")
    assert said_inside(container, ("id",)) == (2, b"uid=1")
    assert container.asked == [["id"]] * 2


def test_a_command_that_says_nothing_is_not_asked_without_an_end() -> None:
    container: Any = Container()
    assert said_inside(container, ["true"]).output == b""
    assert len(container.asked) == TIMES_MAX
