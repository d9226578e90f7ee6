"""Result files, their page, and what counts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.campaign import page, results, simulate
from tests.campaign.__main__ import numbers, readers
from tests.campaign.faults import FAULTS, NUMBERS
from tests.campaign.gateway_faults import GATEWAY_FAULTS
from tests.campaign.real_faults import NOT_REAL, REAL
from tests.campaign.real_gateway_faults import REAL_GATEWAY, REAL_HOW
from tests.campaign.results import Counts, Kind, Result
from tests.campaign.simulate import Run, add

ISSUE_11 = {*range(1, 18), *range(19, 24), 25}
ISSUE_13 = {3, 4, 5, 6, 10, 11, 12, 16, 23, 24}
ISSUE_12 = {*range(1, 10), 15, 21, 24, 25}


def run(**changes: object) -> Run:
    values = {
        **{
            "fault": 4,
            "replicas": 1,
            "seed": 7,
            "happened": 2,
            "turns": 300,
            "groups": 0,
            "reads": 30,
            "rows": 25,
            "lost": 0,
            "doubled": 0,
        },
        **{"problems": (), "heal_s": 1.5, "seconds": 0.1, "cpu_s": 0.1},
    }
    return Run(**{**values, **changes})  # type: ignore[arg-type]


def test_the_faults_of_the_issues_are_there() -> None:
    assert {n for n, fault in FAULTS.items() if 11 in fault.issues} == ISSUE_11
    assert {n for n, fault in FAULTS.items() if 12 in fault.issues} == ISSUE_12
    assert set(NUMBERS) == ISSUE_11 | ISSUE_12


def test_the_faults_of_the_gateway_are_there() -> None:
    assert set(GATEWAY_FAULTS) == ISSUE_13 == set(REAL_HOW)
    assert all(number == fault.number for number, fault in GATEWAY_FAULTS.items())
    assert set(REAL_HOW) - set(REAL_GATEWAY) == {24}


def test_each_fault_is_real_or_has_a_reason_why_not() -> None:
    assert set(REAL) | set(NOT_REAL) == set(NUMBERS)
    assert not set(REAL) & set(NOT_REAL)
    named = re.findall(r"tests/[a-z_/]+(?:\.py)?", " ".join(NOT_REAL.values()))
    assert named
    assert not [path for path in named if not (results.ROOT / path).exists()]


def test_only_runs_in_which_the_fault_happened_count() -> None:
    counts = Counts(fault=4)
    add(counts, run())
    add(counts, run(seed=8, happened=0, heal_s=None))
    add(counts, run(seed=9, lost=1, problems=("lost one",)))
    assert (counts.seeds, counts.without, counts.faults, counts.rows) == ([7, 9], 1, 4, 50)
    assert (counts.lost, counts.failed, counts.problems) == (1, [9], ["seed 9: lost one"])
    assert counts.heal_s == [1.5, 1.5]


def test_a_run_that_fails_without_its_fault_is_reported_too() -> None:
    counts = Counts(fault=4)
    add(counts, run(happened=0, problems=("doubled one",)))
    assert (counts.seeds, counts.failed) == ([], [7])


def begun(kind: Kind = "simulated", seeds: int = 5) -> Result:
    """A new result."""
    return results.begun(kind, seeds, Path("none"))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = begun()
    result.want([1, 3], [4], 3)
    result.counts[3][4] = Counts(fault=4, seeds=[1, 2], heal_s=[0.5])
    result.write(tmp_path / "a.json")
    assert results.read(tmp_path / "a.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_of_the_first_format_is_one_of_one_reader(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    result = begun()
    result.want([1], [4], 3)
    result.write(file)
    data = json.loads(file.read_text())
    data |= {"format": 1, "replicas": 1, "counts": data["counts"]["1"], "next_seed": data["next_seed"]["1"]}
    file.write_text(json.dumps(data))
    assert results.read(file) == result
    file.write_text(json.dumps({**data, "format": 3}))
    with pytest.raises(ValueError, match="of another format than 2"):
        results.read(file)


def test_what_is_short_and_what_failed_is_named() -> None:
    result = begun(seeds=2)
    result.want([1, 3], [4], 0)
    result.counts[1][4].seeds += [0, 1]
    result.counts[3][4].failed.append(7)
    result.counts[3][4].problems.append("seed 7: lost one")
    assert result.short() == ["4 (3 readers: 0)"]
    assert result.failures() == ["fault 4 with 3 readers failed with seeds [7]: ['seed 7: lost one']"]


def test_counts_of_two_commits_are_not_added(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    result = begun()
    result.commit = "another"
    result.write(file)
    with pytest.raises(ValueError, match=r"is of commit another .* counts of two versions are not added"):
        simulate.simulate([4], seeds=5, first=0, file=file, processes=1, minutes=0)


def test_counts_of_real_and_simulated_runs_are_not_added(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    begun("real").write(file)
    with pytest.raises(ValueError, match=r"\(real"):
        simulate.simulate([4], seeds=5, first=0, file=file, processes=1, minutes=0)


def test_counts_of_gateways_and_of_engines_are_not_added(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    begun().write(file)
    with pytest.raises(ValueError, match=r"through ingest.*through gateway"):
        simulate.simulate([4], seeds=5, first=0, file=file, processes=1, minutes=0, through="gateway")


def test_a_fault_is_run_with_the_gateways_with_which_it_can_happen(tmp_path: Path) -> None:
    result = simulate.simulate(
        [4, 11],
        seeds=5,
        first=0,
        file=tmp_path / "a.json",
        processes=1,
        minutes=0,
        replicas=(1, 2),
        through="gateway",
    )
    assert {count: set(by_fault) for count, by_fault in result.counts.items()} == {1: {4}, 2: {4, 11}}
    assert result.short() == ["4 (1 gateways: 0)", "4 (2 gateways: 0)", "11 (2 gateways: 0)"]
    assert results.read(tmp_path / "a.json").through == "gateway"
    assert list(simulate._work(result, [1], [11], 5)) == []


def test_the_fault_with_the_fewest_seeds_is_next_until_all_have_enough() -> None:
    result = begun(seeds=30)
    result.want([1, 3], [2], 100)
    work = simulate._work(result, [1, 3], [2], 30)
    found = [
        (replicas, fault, seeds[0], len(seeds)) for replicas, fault, seeds in (next(work) for _ in "abc")
    ]
    assert found == [(1, 2, 100, 20), (3, 2, 100, 20), (1, 2, 120, 20)]
    for replicas in (1, 3):
        result.counts[replicas][2].seeds += range(30)
    assert list(work) == []


def test_a_fault_that_does_not_happen_is_given_up() -> None:
    result = begun(seeds=10)
    result.want([1], [1], 0)
    result.counts[1][1].without = 31
    assert list(simulate._work(result, [1], [1], 10)) == []


def test_all_means_all_and_an_unknown_number_is_refused() -> None:
    assert numbers("all") == list(NUMBERS)
    assert numbers("12,3") == [12, 3]
    with pytest.raises(Exception, match=r"no faults \[18\]; there are 1, 2"):
        numbers("18")
    assert readers("1,3") == [1, 3]
    with pytest.raises(Exception, match=r"\[2\]: engines have 1 or 3 readers"):
        readers("2")
    assert numbers("all", "gateway") == sorted(ISSUE_13)
    with pytest.raises(Exception, match=r"no faults \[1\]; there are 3, 4"):
        numbers("1", "gateway")
    with pytest.raises(Exception, match=r"\[3\]: there are 1 or 2 gateways"):
        readers("3", "gateway")


def test_the_page_is_what_the_result_files_say() -> None:
    assert page.FILE.read_text(encoding="utf-8") == page.page(), "run: python -m tests.campaign page"


def test_simulated_and_real_counts_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    kinds: tuple[tuple[Kind, int], ...] = (("simulated", 70_001), ("real", 90_002))
    for kind, rows in kinds:
        for replicas in (1, 3):
            result = begun(kind)
            result.counts[replicas] = {4: Counts(fault=4, seeds=[1], rows=rows + replicas * 1_000)}
            result.write(tmp_path / f"faults-{kind}-{replicas}.json")
    text = page.page()
    simulated, real = (text.index("## Simulated"), text.index("## Real"))
    for part, rows in ((text[simulated:real], 70_001), (text[real:], 90_002)):
        one, three = part.split("### Engines with 3 readers")
        assert f"{rows + 1_000} rows" in one
        assert f"{rows + 3_000} rows" in three
        assert f" {2 * rows + 4_000} rows" not in part
    assert "164003" not in text


def test_counts_through_gateways_have_sections_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    assert page.page().count("There is no recorded run yet.") >= 4
    for kind, rows in (("simulated", 70_001), ("real", 90_002)):
        result = results.begun(kind, 5, tmp_path / "none", through="gateway")  # type: ignore[arg-type]
        result.counts[2] = {4: Counts(fault=4, seeds=[1], rows=rows)}
        result.write(tmp_path / f"faults-gateway-{kind}-1.json")
    text = page.page()
    simulated = text.index("## Simulated, through the gateway")
    real = text.index("## Real, through the gateway")
    assert "70001 rows" in text[simulated:real]
    assert "90002 rows" in text[real:]
    assert "70001" not in text[:simulated]
    assert "### 2 gateways" in text
    assert page.latest("simulated") == {}
