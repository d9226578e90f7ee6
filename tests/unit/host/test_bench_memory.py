"""Parsing of the engine's memory figures, and the table made from them."""

from __future__ import annotations

from typing import Any

import pytest
from tarn_host import shell
from tarn_host.bench import command, memory
from tarn_host.bench.memory import MIB, Watch, bytes_of, sample
from tarn_host.stack.project import Project


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("0B", 0), ("512KiB", 524_288), ("12.5MiB", 13_107_200), ("1.5GiB", 1_610_612_736), ("1.2kB", None)],
)
def test_sizes_of_the_engine(text: str, wanted: int | None) -> None:
    if wanted is None:
        with pytest.raises(ValueError, match="no size"):
            bytes_of(text)
    else:
        assert bytes_of(text) == wanted


def test_a_sample_has_use_and_limit_of_each_container() -> None:
    assert sample("a\t1MiB / 2GiB\nb\t3MiB / 4MiB\nc\t--\nd\t0B / 0B\n") == {
        "a": (MIB, 2048 * MIB),
        "b": (3 * MIB, 4 * MIB),
    }


def test_a_watch_sums_up_at_one_moment_and_keeps_median_and_peak() -> None:
    watch = Watch()
    for a, b in ((10, 100), (30, 50), (20, 60)):
        watch.add({"a": (a * MIB, 512 * MIB), "b": (b * MIB, 1024 * MIB)})
    watch.add({})
    found = watch.summary()
    assert found["services"]["a"] == {"median_mib": 20, "max_mib": 30, "limit_mib": 512}
    assert found["all"] == {"median_mib": 80, "max_mib": 110}, "not the sum of peaks at different moments"
    assert found["samples"] == 3


def stage(**services: int) -> dict[str, Any]:
    each = {n: {"median_mib": v, "max_mib": v + 5, "limit_mib": 512} for n, v in services.items()}
    total = sum(services.values())
    return {"samples": 9, "services": each, "all": {"median_mib": total, "max_mib": total + 5}}


def test_the_page_shows_every_service_at_every_stage_and_the_aims() -> None:
    stages = {
        "small": stage(minio=200),
        "idle": stage(minio=220, trino=700),
        "load": stage(minio=400, trino=900),
    }
    facts = {"command": "c", "commit": "abc", "date": "2026-01-02", "machine": "2 cores", "engine": "20"}
    text = command.report([{"bench": "memory", **facts, "runs": [{"stages": stages}]}])
    assert "| MiB | limit | small, idle | idle | peak in a load |" in text
    assert "| trino | 512 | \u2013 | 700 | 905 |" in text
    assert "| **all at once** | | **200** | **920** | **1305** |" in text
    assert f"small, idle: 200 of {memory.AIM_MIB['small']} MiB aimed at" in text


def test_a_measured_stack_is_whole_whatever_profile_this_clone_remembers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = Project(name="tarn-1", base="b", own_base=True, settings={"TARN_PROFILE": "small"})
    monkeypatch.setattr(memory.project, "load", lambda: small)
    monkeypatch.setattr(memory.checks, "free_block", lambda names: {"TARN_PORT_S3": "20000"})
    monkeypatch.setattr(memory.shell, "capture", lambda *words, **more: shell.Result(0, "", ""))
    with memory.own_stack() as own:
        assert own.env["TARN_PROFILE"] == "full"
