"""Ingest keeps freed memory for the next batch, and gives it back after a while (ADR 53)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.compose import SERVICES

BUFFERS, MIB = 64, 1 << 20
CODE = f"""
import threading
import time
import pyarrow as pa
from tarn.adapters.freed_memory import give_back_until

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

pool = pa.system_memory_pool()
held = [pa.allocate_buffer({MIB}, memory_pool=pool) for _ in range({BUFFERS})]
for buffer in held:
    memoryview(buffer).cast("B")[:] = bytes({MIB})
last = pa.allocate_buffer(1_000, memory_pool=pool)  # behind them: the heap does not end with what is freed
full = resident()
held.clear()
kept = resident()
stop = threading.Event()

def stop_when_it_is_given_back():
    late_s = time.monotonic() + 40
    while resident() > kept - {BUFFERS * MIB * 7 // 8} and time.monotonic() < late_s:
        time.sleep(0.02)
    stop.set()

threading.Thread(target=stop_when_it_is_given_back).start()
give_back_until(stop, every_s=0.1)
print(full - kept, kept - resident())
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_freed_buffers_are_kept_and_go_back_to_the_kernel_after_a_while() -> None:
    variables = SERVICES["ingest"]["environment"]
    stated = {name: str(value) for name, value in variables.items() if name.startswith("MALLOC_")}
    assert stated.keys() == {"MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=os.environ | stated, capture_output=True, check=True, text=True
    )
    at_once, after_a_while = (int(word) / MIB for word in done.stdout.split())
    assert at_once < BUFFERS / 4, "it is given back with each buffer: the next batch faults every page again"
    assert after_a_while > BUFFERS * 3 / 4
