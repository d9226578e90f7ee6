"""Settings of the Spark server that nothing else would notice the loss of."""

from __future__ import annotations

import re

from tarn_host.stack.project import ROOT


def test_the_parallel_collector_is_the_one_that_is_named() -> None:
    lines = (ROOT / "spark/conf/jvm.options").read_text(encoding="utf-8").splitlines()
    assert [
        line for line in lines if re.match(r"-XX:.Use(Serial|Parallel|G1|Z|Shenandoah|Epsilon)GC$", line)
    ] == ["-XX:+UseParallelGC"]
