"""A running program whose lines are taken slowly: all of them are heard."""

from __future__ import annotations

import sys
import threading

from tarn_host import shell


def test_lines_that_are_taken_slowly_are_all_heard_after_the_end() -> None:
    go, heard = threading.Event(), list[str]()

    def slow(text: str) -> None:
        assert go.wait(30)
        heard.append(text)

    running = shell.Running([sys.executable, "-I", "-c", "print('one'); print('two')"], on_line=slow)
    running.process.wait(30)
    running.hear_out(0.1)
    assert heard == [], "it returns after the timeout"
    go.set()
    running.hear_out(30)
    assert heard == ["one", "two"]
