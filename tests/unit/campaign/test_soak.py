"""The soak of the campaign: what is drawn, what is written down, and what the page says of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaign.real_soak import drawn, memory_of, mib
from tests.campaign.soak_results import Interval, SoakResult, read, section


def result(**changes: object) -> SoakResult:
    found = SoakResult(
        commit="abc", changed=False, start="2026-01-02", end="2026-01-03", minutes=2, seed=7, rate=100
    )
    for number, (fault, behind) in enumerate([("store killed", 40), ("no fault", 3), ("store killed", 60)]):
        found.intervals.append(
            Interval(
                at_s=30.0 * number,
                fault=fault,
                times=number,
                behind=behind,
                rows_sent=100,
                memory_mib={"engine 0": 100.0 + number},
            )
        )
    found.sent, found.rows, found.heal_s = 12_000, 11_760, 4.6
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def test_each_fault_comes_once_before_one_comes_again() -> None:
    mix = {"a", "b", "c"}
    found = drawn(mix, 8, random.Random(3))
    assert set(found[:3]) == set(found[3:6]) == mix
    assert len(found) == 8
    assert found == drawn(sorted(mix), 8, random.Random(3)), "the seed decides"
    assert any(drawn(mix, 3, random.Random(seed)) != found[:3] for seed in range(9))


def test_memory_is_that_of_the_containers_asked_for() -> None:
    said = "tarn-engine-0 0123456789ab 130.5MiB / 512MiB\nother 0f 1GiB / 2GiB\n"
    said += "x fedcba9876543210 1.5GiB / 2GiB\n"
    names = {"tarn-engine-0": "engine 0", "fedcba987654": "minio"}
    assert memory_of(said + "broken\n-- -- -- / --\n", names) == {"engine 0": 130.5, "minio": 1_536.0}
    assert mib("512KiB") == 0.5
    with pytest.raises(ValueError, match="no size"):
        mib("12B")


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    made = result()
    made.write(tmp_path / "soak.json")
    assert read(tmp_path / "soak.json") == made
    (tmp_path / "old.json").write_text('{"format": 0}')
    with pytest.raises(ValueError, match="another format"):
        read(tmp_path / "old.json")


def test_the_page_has_the_counts_and_what_did_not_hold() -> None:
    text = section(result())
    assert "12,000 messages, 11,760 rows, 0 lost, 0 doubled; healed 5 s after the last." in text
    assert "| store killed | 2 | 2 | 50 | 60 |" in text
    assert "| engine 0 | 100 | 102 |" in text
    bad = section(result(lost=2, heal_s=None, problems=["2 lost, 0 doubled of 12000"]))
    assert "2 lost, 0 doubled; it never had everything." in bad
    assert "**2 lost, 0 doubled of 12000**" in bad
    assert section(None) == "## Soak\nThere is no recorded run yet."
