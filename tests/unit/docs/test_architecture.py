"""docs/architecture.md and CONTRIBUTING.md: invariants, modules, tests and files that they name exist."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from tests.support.pages import ROOT, file_of, section, tables, text_of

ARCHITECTURE = text_of("docs/architecture.md")
CONTRIBUTING = text_of("CONTRIBUTING.md")
INVARIANTS = {row[""]: row for row in tables(section(ARCHITECTURE, "Invariants"))[0]}
NOT_BUILT = {"I10"}
QUOTED = re.compile(r"`([^`]+)`")


def modules(cell: str) -> list[str]:
    return [name for name in QUOTED.findall(cell) if re.fullmatch(r"tarn(_\w+)?(\.\w+)+", name)]


def paths(text: str) -> list[str]:
    return [name for name in QUOTED.findall(text) if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", name)]


def test_the_invariants_are_there_in_order() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in range(1, 14)]


@pytest.mark.parametrize("number", sorted({*INVARIANTS} - NOT_BUILT))
def test_an_invariant_names_code_and_tests_that_exist(number: str) -> None:
    row = INVARIANTS[number]
    named = modules(row["upheld by"]) + [p for p in QUOTED.findall(row["upheld by"]) if file_of(p)]
    assert named, "no code upholds it"
    assert not [name for name in named if file_of(name) is None]
    tests = QUOTED.findall(row["tested by"])
    assert tests, "no test holds it"
    for test in tests:
        path, _, function = test.partition("::")
        text = text_of(path)
        assert not function or re.search(rf"^def {function}\(", text, re.MULTILINE), test


def test_what_is_not_built_is_said_to_be_so() -> None:
    for number in NOT_BUILT:
        assert INVARIANTS[number]["upheld by"] == "not built yet"
        assert INVARIANTS[number]["tested by"] == "\u2013"


def test_the_parts_are_the_services_of_the_compose_file_with_their_folders() -> None:
    services = yaml.safe_load(text_of("docker-compose.yml"))["services"]
    rows = tables(section(ARCHITECTURE, "Parts"))[0]
    assert sorted(row["part"] for row in rows) == sorted(services)
    for row in rows:
        for folder in row["folder"].split(", "):
            assert (ROOT / folder).exists(), f"{row['part']}: {folder}"


def test_the_packages_that_the_layers_name_are_those_that_import_linter_knows() -> None:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    known = {
        module.strip()
        for contract in contracts
        for key in ("source_modules", "forbidden_modules", "layers")
        for entry in contract.get(key, [])
        for module in entry.split("|")
    }
    text = section(ARCHITECTURE, "Layers")
    named = set(modules(text))
    assert named, "the section names no module"
    assert named <= known
    flows = re.search(r"above flows \(([^)]*)\)", text)
    assert flows
    assert {f"tarn.{name}" for name in QUOTED.findall(flows[1])} <= known


@pytest.mark.parametrize("heading", ["Where things go", "Where to change what", "Add a service"])
def test_files_that_contributors_are_sent_to_exist(heading: str) -> None:
    named = paths(section(CONTRIBUTING, heading))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_rows_of_where_to_change_what_name_a_file_and_a_test() -> None:
    for row in tables(section(CONTRIBUTING, "Where to change what"))[0]:
        assert paths(row["open"]) or "README.md" in row["open"], row
        assert all(path.startswith("tests/") for path in paths(row["tests"])), row
        assert paths(row["tests"]), row
