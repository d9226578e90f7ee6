"""The session's stack with a few thousand flight events, replayed and processed to gold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.stack import Stack, eventually

MESSAGES = 4_000
GOLD_WITHIN_S = 300


def layers(stack: Stack) -> dict[str, Any]:
    """Output of `tarn pipeline status`: `topic`, and rows and offsets behind per layer."""
    answer = stack.script("tarn", "pipeline", "status", "--json", timeout_s=120)
    assert answer.code == 0, answer.text
    found: dict[str, Any] = json.loads(answer.text.splitlines()[-1])
    return found


@pytest.fixture(scope="session")
def flights(stack: Stack) -> Stack:
    """The stack once gold holds flights: from an earlier tier, from the replay of `up`, or replayed now."""
    if layers(stack)["topic"] == 0:
        answer = stack.script(
            *("tarn", "demo", "replay", "--rate", "1000", "--messages", str(MESSAGES)), timeout_s=300
        )
        assert answer.code == 0, answer.text
    eventually(
        lambda: layers(stack)["layers"]["gold"]["rows"] > 0,
        timeout_s=GOLD_WITHIN_S,
        what=lambda: f"flights in gold, by the pipeline service; there are {layers(stack)}",
        pause_s=2,
    )
    return stack
