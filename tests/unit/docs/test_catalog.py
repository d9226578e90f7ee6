"""docs/catalog.md: its endpoints, errors and rooms are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tarn_catalog.operations.rights import RIGHTS, Need
from tarn_catalog.rest import response, routes
from tarn_catalog.state.access import FITTING, INCLUDED, Privilege
from tests.integration.catalog.test_register_race import ROUNDS
from tests.rck.test_rck import KNOWN, TESTS
from tests.support.pages import ROOT, section, tables, text_of

PAGE = text_of("docs/catalog.md")
PACKAGE = ROOT / "catalog" / "tarn_catalog"
ROOMS = {row["room"].strip("`"): row["modules of `tarn_catalog`"] for row in tables(PAGE)[0]}
QUOTED = re.compile(r"`([^`]+)`")


def test_the_endpoints_are_those_that_are_served() -> None:
    documented = []
    for row in tables(section(PAGE, "Endpoints"))[0]:
        *methods, path = row["endpoint"].replace(",", "").split()
        documented += [f"{method} {path}" for method in methods]
    served = [
        f"{route.method} /{route.template}"
        for route in routes._ROUTES
        if route.function is not routes.Handlers.not_supported
    ]
    assert sorted(documented) == sorted(served)


def test_the_errors_are_those_that_are_answered() -> None:
    rows = tables(section(PAGE, "Errors"))[0]
    documented = {
        (int(row["status"]), kind) for row in rows for kind in re.findall(r"\w+Exception", row["type"])
    }
    assert {(status, kind) for _, status, kind in response._STATUS} <= documented
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (PACKAGE / "rest").glob("*.py"))
    assert {kind for _, kind in documented} == set(re.findall(r'"(\w+Exception)"', sources))
    assert len({row["status"] for row in rows}) == len(rows), "one row per status"


def test_every_test_of_the_kit_that_does_not_pass_is_named() -> None:
    rows = tables(section(PAGE, "Apache's REST Compatibility Kit"))[0]
    documented = {name: row["outcome"] for row in rows for name in QUOTED.findall(row["test"])}
    expected = {name: outcome == "skipped" for name, (outcome, _) in KNOWN.items()}
    assert {name: outcome == "skipped" for name, outcome in documented.items()} == expected
    assert f"{TESTS} tests {TESTS - len(KNOWN)} pass" in section(
        PAGE, "Apache's REST Compatibility Kit"
    ).replace("\n", " ")


def test_the_recorded_races_are_those_that_the_page_tells_of() -> None:
    (name,) = re.findall(r"\(results/(register-[\d-]+\.json)\)", PAGE)
    found = json.loads((ROOT / "docs" / "results" / name).read_text(encoding="utf-8"))
    assert f"Of {found['racers']} writers" in PAGE
    assert f"in the {found['rounds']:,} of" in PAGE
    assert (found["winners"], found["changed"]) == (found["rounds"], False)
    assert f"each of {ROUNDS} rounds in every run of CI" in PAGE.replace("\n", " ")


def modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py") if path.stem != "__init__"}


@pytest.mark.parametrize(
    "room", sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
)
def test_a_room_has_the_modules_that_the_page_names(room: str) -> None:
    assert set(QUOTED.findall(ROOMS[room])) == modules(PACKAGE / room)


def test_the_modules_outside_of_rooms_are_named_too() -> None:
    assert set(QUOTED.findall(ROOMS[""])) == modules(PACKAGE)


def test_the_rights_are_those_that_are_checked() -> None:
    privileges, operations, *_ = tables(section(PAGE, "Access"))
    documented = {
        name: (row["needs"].split(", "), [] if row["on"] == "\u2013" else row["on"].split(", "))
        for row in operations
        for name in QUOTED.findall(row["operation"])
    }
    checked = {
        operation.value: (
            [need.value for _, need in rights] or ["a token"],
            [place.value for place, _ in rights],
        )
        for operation, rights in RIGHTS.items()
    }
    assert documented == checked
    assert [row["privilege"] for row in privileges] == [privilege.value for privilege in Privilege]
    of_tables = {row["privilege"]: row["on a table or view"] for row in privileges}
    assert of_tables["WRITE"].startswith("READ, ")
    assert INCLUDED[Privilege.WRITE] == {Privilege.READ, Privilege.WRITE}
    assert of_tables["MANAGE"].startswith("everything")
    assert INCLUDED[Privilege.MANAGE] == set(Privilege)
    unfit = {name for name, text in of_tables.items() if text == "cannot be granted there"}
    assert unfit == {privilege.value for privilege in set(Privilege) - FITTING["table"]}
    assert FITTING["view"] == FITTING["table"]
    assert Need.ADMIN.value == "the role admin"
