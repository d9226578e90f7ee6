"""Every container has a memory limit that includes swap."""

from __future__ import annotations

import re

from tarn_host.stack.project import COMPOSE_FILE


def test_swap_is_inside_the_limit_of_memory() -> None:
    """Compose allows the same amount of swap by default: a growing service would go unnoticed and thrash."""
    text = COMPOSE_FILE.read_text(encoding="utf-8")
    limits = re.findall(r"^    mem_limit: (\S+)\n(?:    memswap_limit: (\S+)\n)?", text, re.MULTILINE)
    images = re.findall(r"^  [a-z]+:\n    <<: ", text, re.MULTILINE)
    assert len(limits) == len(images) > 10, "each service has a limit"
    assert [memory for memory, both in limits if both != memory] == []
