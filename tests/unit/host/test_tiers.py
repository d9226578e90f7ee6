"""Test counts: no outcome may be lost, and a crash is never a pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tarn_host import shell
from tarn_host.console import StopError
from tarn_host.stack.project import ROOT
from tarn_host.testing import tiers
from tarn_host.testing.tiers import Outcome, counted, existing, job, planned, selected, split, table, times

REPORT = """<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>"""


@pytest.mark.parametrize(
    ("words", "own", "rest"),
    [
        (["unit"], ["unit"], []),
        (["unit", "--", "-k", "x"], ["unit"], ["-k", "x"]),
        (["--", "--", "y"], [], ["--", "y"]),
    ],
)
def test_split(words: list[str], own: list[str], rest: list[str]) -> None:
    assert split(words) == (own, rest)


def test_existing_needs_a_test_file(tmp_path: Path) -> None:
    (tmp_path / "unit/part").mkdir(parents=True)
    (tmp_path / "unit/part/test_a.py").write_text("")
    (tmp_path / "e2e").mkdir()
    (tmp_path / "e2e/helper.py").write_text("")
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults/test_b.py").write_text("")
    assert existing(tmp_path) == ["unit", "faults"]


def test_counted_reads_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    found = counted(report, "unit", 1, 2.0)
    assert (found.passed, found.failed, found.skipped, found.seconds) == (5, 2, 2, 2.0)


def test_a_failed_run_without_a_failed_test_counts_as_one(tmp_path: Path) -> None:
    assert counted(tmp_path / "none.xml", "e2e", -9, 1.0).failed == 1
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="3" failures="0" errors="0" skipped="0"/></testsuites>')
    found = counted(report, "e2e", 1, 1.0)
    assert (found.passed, found.failed, found.skipped) == (3, 1, 0)
    assert found.broken == ("exit code 1 without a failed test; the reason is above and in artifacts/e2e",)
    (tmp_path / "unexpected-errors.txt").write_text("kafka: ERROR no\n")
    assert counted(report, "e2e", 1, 1.0).broken[1:] == ("unexpected: kafka: ERROR no",)
    (tmp_path / "unended.txt").write_text("tests/e2e/test_a.py::test_b\n")
    assert counted(report, "e2e", 124, 1.0).broken[1:] == (
        "had not ended: tests/e2e/test_a.py::test_b",
        "unexpected: kafka: ERROR no",
    )
    assert counted(report, "e2e", 0, 1.0).broken == ()


def test_what_failed_is_told_again_at_the_end(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="3" failures="1" errors="1" skipped="0">'
        '<testcase classname="tests.a" name="test_b"><failure message="assert 1 == 2&#10;more">x</failure>'
        '</testcase><testcase classname="tests.a" name="test_c"><error message="no">x</error></testcase>'
        '<testcase classname="tests.a" name="test_d"/></testsuite></testsuites>'
    )
    rows = table([counted(report, "e2e", 1, 1.0)])
    assert rows[-5:] == [
        "failed:",
        "  e2e: tests.a.test_b: assert 1 == 2",
        "  e2e: tests.a.test_c: no",
        "",
        "1 passed, 2 failed",
    ]
    assert "failed:" not in table([Outcome("unit", 5, 0, 0, 1.0)])


def test_table_ends_in_the_plain_closing_line() -> None:
    rows = table([Outcome("unit", 5, 0, 0, 1.0), Outcome("e2e", 2, 1, 0, 60.0)])
    assert rows[-1] == "7 passed, 1 failed"
    assert rows[1].split() == ["unit", "5", "5", "0", "0", "1.0s"]


def test_tiers_without_the_whole_stack_run_side_by_side_and_the_others_alone() -> None:
    assert planned(["unit", "contract", "spark", "integration", "e2e", "faults", "rck"]) == [
        [["unit", "contract", "spark"], ["integration", "rck"]],
        [["e2e"]],
        [["faults"]],
    ]
    assert planned(["unit"]) == [[["unit"]]]
    assert planned(["faults", "integration"]) == [[["integration"]], [["faults"]]]
    assert planned(["e2e"]) == [[["e2e"]]]


def test_tests_of_other_turns_are_counted_and_named_at_the_end(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="1" failures="0" errors="0" skipped="0"/></testsuites>')
    (tmp_path / tiers.OTHER_TURNS).write_text("tests/a.py::test_b\ntests/a.py::test_c\n")
    found = counted(report, "e2e", 0, 1.0)
    assert (found.passed, found.other_turns) == (1, 2)
    assert table([found])[-2:] == [
        "2 tests of other turns were not run; scripts/test --all runs them too",
        "1 passed, 0 failed",
    ]


@pytest.mark.parametrize(
    ("arguments", "turn"),
    [([], "2"), (["--all"], ""), (["unit"], ""), (["--", "-k", "spec"], ""), (["unit", "--all"], "")],
)
def test_only_a_run_of_everything_has_a_turn(
    arguments: list[str], turn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def run(wanted: list[str], *_: object, turn: str, **__: object) -> list[Outcome]:
        found.append(turn)
        return [Outcome(wanted[-1], 1, 0, 0, 2.0)]

    monkeypatch.setattr(tiers, "ARTIFACTS", tmp_path)
    monkeypatch.setattr(tiers, "TIMES", tmp_path / "times.json")
    monkeypatch.setattr(tiers, "run", run)
    monkeypatch.setattr(tiers, "_checked_out", lambda: ("abc", False))
    monkeypatch.setenv("TARN_TEST_TURN", "2")
    assert tiers.main(arguments) == 0
    assert found == [turn]


def test_the_turn_goes_on_with_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARN_TEST_TURN", raising=False)
    turns = []
    for commits in (10, 11, 12, 13):
        counted_commits = shell.Result(0, f"{commits}\n", "")
        monkeypatch.setattr(tiers.shell, "capture", lambda *_, found=counted_commits, **__: found)
        turns.append(tiers.turn())
    assert turns == ["5", "6", "1", "2"]
    monkeypatch.setattr(tiers.shell, "capture", lambda *_, **__: shell.Result(127, "", "git: not found"))
    assert tiers.turn() == "1"
    monkeypatch.setenv("TARN_TEST_TURN", "7")
    with pytest.raises(StopError, match="TARN_TEST_TURN is '7'"):
        tiers.turn()


def test_times_name_each_tier_and_the_commit() -> None:
    found = times(
        [Outcome("unit", 5, 1, 2, 1.5, other_turns=4)],
        commit="abc",
        changed=True,
        at="2026-11-22T10:00:00+00:00",
    )
    assert found == {
        "commit": "abc",
        "changed": True,
        "at": "2026-11-22T10:00:00+00:00",
        "tiers": [
            {
                "tier": "unit",
                "tests": 8,
                "passed": 5,
                "failed": 1,
                "skipped": 2,
                "other_turns": 4,
                "seconds": 1.5,
            }
        ],
    }


def test_each_run_writes_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "ARTIFACTS", tmp_path)
    monkeypatch.setattr(tiers, "TIMES", tmp_path / "times.json")
    monkeypatch.setattr(tiers, "run", lambda wanted, *_, **__: [Outcome(wanted[-1], 1, 0, 0, 2.0)])
    monkeypatch.setattr(tiers, "_checked_out", lambda: ("abc", False))
    assert tiers.main(["contract"]) == 0
    found = json.loads((tmp_path / "times.json").read_text())
    assert (found["commit"], found["changed"], found["at"][-6:]) == ("abc", False, "+00:00")
    assert [(row["tier"], row["tests"], row["seconds"]) for row in found["tiers"]] == [("contract", 1, 2.0)]


def test_the_commit_is_empty_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers.shell, "capture", lambda *_, **__: shell.Result(127, "", "git: not found"))
    assert tiers._checked_out() == ("", False)


def test_whole_tiers_run_in_several_processes_and_selected_tests_in_one() -> None:
    two = ["-n", "2", "--dist", "worksteal"]
    assert selected("unit", [], 2) == ["tests/unit", "-m", "not long", *two]
    assert selected("contract", [], 64)[-4:] == ["-n", "4", "--dist", "worksteal"]
    assert selected("unit", [], 1) == ["tests/unit", "-m", "not long"]
    assert selected("unit", ["-k", "x"], 2) == ["tests/unit", "-k", "x"]
    assert selected("integration", [], 2) == ["tests/integration"]
    plays = ["tests/unit", "tests/contract", "-m", "plays or nightly"]
    assert selected("nightly", [], 2) == [*plays, *two]
    assert selected("nightly-stack", [], 2)[-2:] == ["-m", "nightly"]


def test_the_long_tests_of_unit_run_with_contract_and_each_test_once() -> None:
    long = ["tests/contract", "tests/unit", "-m", "contract or long"]
    assert selected("contract", [], 1) == long
    assert selected("contract", ["-k", "x"], 1) == ["tests/contract", "-k", "x"]


def test_nightly_runs_only_if_named_and_alone() -> None:
    assert planned(["unit", "nightly"]) == [[["unit"]], [["nightly"]]]
    assert job("nightly", [], {}).env["TARN_TEST_TIMES"] == "20"
    for tier in ("nightly", "nightly-stack"):
        assert tier not in existing(ROOT / "tests")
        assert job(tier, [], {}).env["TARN_TEST_NIGHTLY"] == "1"
    assert not {"TARN_TEST_TIMES", "TARN_TEST_NIGHTLY"} & set(job("contract", [], {}).env)
