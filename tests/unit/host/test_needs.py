"""The memory that `up` requires is the measured one, and the documentation agrees."""

from __future__ import annotations

from typing import Any

from tarn_host.stack import needs
from tarn_host.stack.project import ROOT


def stage(total: int, **services: int) -> dict[str, Any]:
    return {"all": {"max_mib": total}, "services": {n: {"max_mib": v} for n, v in services.items()}}


def hour(cache: int, **services: float) -> dict[str, Any]:
    held = {n: {"anon_mib": v - 10, "shmem_mib": 10.0, "working_mib": v + cache} for n, v in services.items()}
    return {"all": {"max_mib": sum(services.values()) + cache}, "services": held}


MEMORY = {
    "stages": {
        "small": stage(500, minio=300, kafka=190),
        "idle": stage(2_300, minio=400, kafka=200, spark=900),
        "load": stage(3_000, minio=350, kafka=580, spark=1_700, replay=300, trino=400),
    }
}


def test_the_largest_moment_of_any_measurement_counts_and_of_hours_no_cache() -> None:
    assert needs.peak_mib({"memory": MEMORY}) == 3_000
    hours = {"records": [hour(9_000, spark=2_000, trino=900), hour(10, spark=2_333, trino=1_000)]}
    assert needs.peak_mib({"memory": MEMORY, "soak": hours}) == 3_333
    assert needs.peak_mib({"soak": hours}) == 3_333
    assert needs.peak_mib({}) == 0


def test_the_small_profile_needs_the_peaks_of_its_own_services() -> None:
    assert needs.peak_small_mib({"memory": MEMORY}) == 400 + 580


def test_the_figure_has_a_margin_and_is_round() -> None:
    assert [needs._rounded(mib) for mib in (0, 950, 1_000, 3_333)] == [0, 1_100, 1_100, 3_700]


def test_the_page_says_what_is_asked_for() -> None:
    full, small = needs.memory_mib(), needs.memory_mib(small=True)
    assert 1_000 < small < full
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert f"`scripts/up` asks for {full:,} MiB of memory" in page
    assert f"With `--small` it asks for {small:,} MiB" in page
