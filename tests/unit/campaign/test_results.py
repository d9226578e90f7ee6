"""Result files, their page, and what counts."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.campaign import page, results, simulate, sources
from tests.campaign.commands import numbers, readers
from tests.campaign.faults import FAULTS, NUMBERS
from tests.campaign.gateway_faults import GATEWAY_FAULTS
from tests.campaign.real_faults import NOT_REAL, REAL
from tests.campaign.real_gateway_faults import REAL_GATEWAY, REAL_HOW
from tests.campaign.results import Added, Counts, Kind, Result
from tests.campaign.runs import Chunk, Run
from tests.campaign.simulate import add, add_chunk

ISSUE_11 = {*range(1, 18), *range(19, 24), 25}
ISSUE_13 = {3, 4, 5, 6, 10, 11, 12, 16, 23, 24}
ISSUE_12 = {*range(1, 10), 15, 21, 24, 25}


SOURCES = {"services/tarn/a.py": "1", "tests/b.py": "2", "uv.lock": "3"}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started to say what it loads."""
    monkeypatch.setattr(simulate, "sources_of", lambda pool, through: dict(SOURCES))


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
    return results.begun(kind, seeds, Path("none"), sources=dict(SOURCES) if kind == "simulated" else None)


def gone_on(file: Path, **changes: object) -> Result:
    """What a call that has no time left makes of a file."""
    values = {"seeds": 5, "first": 0, "file": file, "processes": 1, "minutes": 0, **changes}
    return simulate.simulate([4], **values)  # type: ignore[arg-type]


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = begun()
    result.want([1, 3], [4], 3)
    result.counts[3][4] = Counts(fault=4, seeds=[1, 2], heal_s=[0.5])
    result.write(tmp_path / "a.json")
    assert results.read(tmp_path / "a.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def older(file: Path, form: int) -> Result:
    """Write a file of an older format; returns what it says."""
    result = begun()
    result.want([1], [4], 3)
    result.counts[1][4] = Counts(fault=4, seeds=[3, 5], without=1)
    result.write(file)
    data = json.loads(file.read_text())
    del data["sources"], data["digest"], data["commits"]
    data |= {"format": form, "commit": "0123456789ab", "changed": True}
    if form == 1:
        data |= {"replicas": 1, "counts": data["counts"]["1"], "next_seed": data["next_seed"]["1"]}
    file.write_text(json.dumps(data))
    result.sources, result.commits = {}, [Added(commit="0123456789ab", changed=True, runs=3)]
    return result


@pytest.mark.parametrize("form", [1, 2])
def test_a_file_of_an_older_format_is_of_one_commit_and_no_runs_are_added(form: int, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    result = older(file, form)
    assert results.read(file) == result
    with pytest.raises(ValueError, match="an older format, which does not say what ran; give another --out"):
        gone_on(file)


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    begun().write(file)
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 4}))
    with pytest.raises(ValueError, match="of another format than 3"):
        results.read(file)


def test_a_digest_that_is_not_that_of_the_sources_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    begun().write(file)
    data = json.loads(file.read_text())
    lines = "services/tarn/a.py 1\ntests/b.py 2\nuv.lock 3\n"
    assert data["digest"] == sources.digest(SOURCES) == hashlib.sha256(lines.encode()).hexdigest()
    data["sources"]["tests/b.py"] = "4"
    file.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="another digest than its sources"):
        results.read(file)


def test_what_is_short_and_what_failed_is_named() -> None:
    result = begun(seeds=2)
    result.want([1, 3], [4], 0)
    result.counts[1][4].seeds += [0, 1]
    result.counts[3][4].failed.append(7)
    result.counts[3][4].problems.append("seed 7: lost one")
    assert result.short() == ["4 (3 readers: 0)"]
    assert result.failures() == ["fault 4 with 3 readers failed with seeds [7]: ['seed 7: lost one']"]


def test_runs_of_another_commit_with_the_same_sources_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    for at in (("one", False), ("two", True), ("two", True), ("one", False)):
        monkeypatch.setattr(results, "commit", lambda sources: ("without runs", False))
        gone_on(file)
        monkeypatch.setattr(results, "commit", lambda sources, at=at: at)
        result = gone_on(file)
        add_chunk(result, Chunk(runs=[run(), run(seed=8, happened=0)], sources=dict(SOURCES), beside=[]))
        result.write(file)
    found = results.read(file)
    assert [(one.commit, one.changed, one.runs) for one in found.commits] == [
        ("one", False, 2),
        ("two", True, 4),
        ("one", False, 2),
    ]
    assert (len(found.counts[1][4].seeds), found.counts[1][4].without) == (4, 4)


def test_counts_of_other_sources_are_not_added_and_five_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    result = begun()
    result.sources["tests/b.py"] = "another"
    result.write(file)
    with pytest.raises(
        ValueError, match=r"a\.json is of other sources \(\w{12}, now \w{12}\): tests/b\.py differ"
    ):
        gone_on(file)
    result.sources = {f"tests/{n}.py": "1" for n in range(4)} | {"uv.lock": "3"}
    result.write(file)
    with pytest.raises(
        ValueError, match=r": services/tarn/a\.py, tests/0\.py, .*, tests/3\.py and 1 more differ"
    ):
        gone_on(file)


def test_runs_of_a_process_that_loaded_other_code_are_not_added() -> None:
    result = begun()
    result.want([1], [4], 0)
    changed = Chunk(runs=[run()], sources=SOURCES | {"tests/b.py": "another"}, beside=[])
    with pytest.raises(
        ValueError, match=r"when the files changed: it ran other sources .* tests/b\.py differ"
    ):
        add_chunk(result, changed)
    late = Chunk(runs=[run()], sources=dict(SOURCES), beside=["services/tarn/late.py"])
    with pytest.raises(
        ValueError, match=r"not among the sources of the result: services/tarn/late\.py; load"
    ):
        add_chunk(result, late)
    assert (result.counts[1][4], result.commits[-1].runs) == (Counts(fault=4), 0)


def test_real_counts_of_two_commits_are_not_added(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    result = begun("real")
    result.write(file)
    assert results.begun("real", 7, file).commits == result.commits
    result.commits[0].commit = "another"
    result.write(file)
    with pytest.raises(ValueError, match=r"is of commit another.* counts of two versions are not added"):
        results.begun("real", 7, file)


def test_a_source_that_is_not_tracked_is_a_change() -> None:
    assert results.commit({"tests/campaign/none.py": "1"})[1]


def test_counts_of_real_and_simulated_runs_are_not_added(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    begun("real").write(file)
    with pytest.raises(ValueError, match=r"is of real runs"):
        gone_on(file)


def test_counts_of_gateways_and_of_engines_are_not_added(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    begun().write(file)
    with pytest.raises(ValueError, match=r"through ingest.*through gateway"):
        gone_on(file, through="gateway")


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


def test_the_page_says_what_ran_and_at_which_commits_runs_were_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    result = begun()
    result.counts[1] = {4: Counts(fault=4, seeds=[1])}
    result.commits = [Added(commit="aaa", changed=False, runs=20), Added(commit="bbb", changed=True, runs=7)]
    result.commits.append(Added(commit="ccc", changed=False))
    result.write(tmp_path / "faults-simulated-1.json")
    digest = sources.digest(SOURCES)[:12]
    commits = "20 at aaa; 7 at bbb, with changes that were not committed"
    assert f"Sources {digest} (3 files), runs by commit: {commits}, 20" in page.page()
    older(tmp_path / "faults-simulated-1.json", 2)
    assert "\nCommit 0123456789ab, with changes that were not committed, 20" in page.page()


def test_a_list_of_numbers_is_one_line_of_a_file_and_reads_as_before() -> None:
    data = {
        "seeds": list(range(1_000)),
        "heal_s": [0.5, -1e-07, 2],
        "problems": ["[\n 1,\n 2]", "x"],
        "none": [],
    }
    text = results.in_lines(data)
    assert json.loads(text) == data
    assert text.count("\n") == 8
    assert '"heal_s": [0.5, -1e-07, 2]' in text
