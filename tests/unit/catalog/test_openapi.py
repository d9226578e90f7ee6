"""The OpenAPI description has exactly what is served, and what the catalog's own tables know."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tarn_catalog.metadata.table_metadata import _EQUALITIES
from tarn_catalog.metadata.updates import _UPDATES
from tarn_catalog.rest import openapi
from tarn_catalog.rest.routes import ENDPOINTS, SERVED

DESCRIBED: dict[str, Any] = openapi.description()
ROUTES = [f"{method} {template}" for method, template, _ in SERVED]


def test_it_has_the_routes_that_are_served_and_all_that_are_advertised() -> None:
    described = [
        f"{method.upper()} {path.removeprefix('/')}"
        for path, methods in DESCRIBED["paths"].items()
        for method in methods
    ]
    assert sorted(described) == sorted(ROUTES)
    advertised = {re.sub(r"/v1/{prefix}/", "v1/", endpoint) for endpoint in ENDPOINTS}
    assert advertised <= set(described)


@pytest.mark.parametrize(
    "table",
    ["BODIES", "QUERIES", "ANSWERS", "UNKEYED", "CONDITIONAL", "DELEGATING", "NOT_EVERYWHERE", "SECRET"],
)
def test_its_tables_name_routes_that_are_served(table: str) -> None:
    assert set(getattr(openapi, table)) <= set(ROUTES)


def test_a_route_that_takes_a_body_or_answers_with_one_is_described_with_it() -> None:
    no_body = {"POST health/deep", "POST v1/oauth/tokens"}
    assert {route for route in ROUTES if route.startswith("POST")} - no_body == set(openapi.BODIES)
    silent = {route for route in ROUTES if route.startswith(("HEAD", "DELETE", "PUT"))}
    silent |= {route for route in ROUTES if route.endswith(("/metrics", "/rename", "/commit"))}
    assert set(ROUTES) - silent == set(openapi.ANSWERS)


def test_only_public_routes_need_no_token() -> None:
    for method, template, public in SERVED:
        security = DESCRIBED["paths"][f"/{template}"][method.lower()]["security"]
        assert (security == []) == public, template


def test_every_update_and_requirement_is_described() -> None:
    schemas = DESCRIBED["components"]["schemas"]

    def names(of: str, field: str) -> set[str]:
        return {one["properties"][field]["enum"][0] for one in schemas[of]["anyOf"]}

    assert names("TableUpdate", "action") == set(_UPDATES)
    others = {"assert-create", "assert-table-uuid", "assert-ref-snapshot-id"}
    assert names("TableRequirement", "type") == set(_EQUALITIES) | others


def test_all_references_lead_somewhere() -> None:
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DESCRIBED)))
    assert named == set(DESCRIBED["components"]["schemas"])


@pytest.mark.long
def test_it_is_printed_as_json() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "tarn_catalog.rest.openapi"], capture_output=True, check=True, timeout=60
    )
    assert json.loads(printed.stdout) == json.loads(json.dumps(DESCRIBED))


def test_a_type_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="no JSON schema for"):
        openapi.schema_of(bytes)
