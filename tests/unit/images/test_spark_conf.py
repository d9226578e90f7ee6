"""Settings of the Spark server that other files' numbers depend on."""

from __future__ import annotations

import re

from tarn_host.stack.project import COMPOSE_FILE, ROOT

SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
REGIONS, REGION_MIN = 2048, 1 << 20
"""G1 divides a heap by this many, and makes no smaller regions; half of one is an object of its own kind."""


def size(text: str) -> int:
    return int(text[:-1]) * SIZES[text[-1]]


def settings() -> dict[str, str]:
    lines = (ROOT / "spark/conf/spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(None, 1) for line in lines if line.strip() and not line.startswith("#")]
    return {name: value.strip() for name, value in pairs}


def test_the_block_of_a_small_broadcast_is_an_ordinary_object_in_the_heap() -> None:
    heap = re.search(
        r"TARN_SPARK_HEAP: \$\{TARN_SPARK_HEAP:-(\w+)\}", COMPOSE_FILE.read_text(encoding="utf-8")
    )
    assert heap is not None
    region = max(REGION_MIN, 1 << (size(heap[1]) // REGIONS).bit_length() - 1)
    assert size(settings()["spark.broadcast.blockSize"]) < region // 2
