"""docs/status.md: its endpoints, errors, outcomes and limits are those of the code."""

from __future__ import annotations

import re

import pytest

from tarn.core import fsck_record
from tarn.core.errors import InvalidError
from tarn.ingest import deep_look, fsck_look, health, lake_look, server, table_look, wiring, worker
from tarn.ingest.commit_ring import COMMITS_MAX, CommitOutcome
from tarn.ingest.status_api import app, fsck_view, models, shapes
from tarn.ingest.status_api.openapi import DESCRIPTION, ERRORS
from tarn.ingest.status_api.routes import ROUTES, query_of
from tests.support.pages import section, tables, text_of

PAGE = text_of("docs/status.md")
FLAT = " ".join(PAGE.split())
QUOTED = re.compile(r"`([^`]+)`")


def test_the_endpoints_are_those_that_are_served() -> None:
    documented = {
        row["path"].strip("`"): QUOTED.findall(row["parameters"])
        for row in tables(section(PAGE, "Endpoints"))[0]
    }
    assert documented == {route.path: [one.name for one in route.parameters] for route in ROUTES}
    assert [*documented] == [*DESCRIPTION["paths"]], "in the order of the description"


def test_the_errors_are_those_that_are_answered() -> None:
    documented = {int(row["status"]): row["type"].strip("`") for row in tables(section(PAGE, "Errors"))[0]}
    assert documented == {status: kind for status, (kind, _) in ERRORS.items()}
    changes = {403, 409}
    for route in ROUTES:
        described = DESCRIPTION["paths"][route.path][route.method.lower()]["responses"]
        found = set(documented) - (changes if route.method == "GET" else set())
        assert set(described) == {"200" if route.method == "GET" else "202", *map(str, found)}


def test_the_example_of_an_error_is_one() -> None:
    (commits,) = [route for route in ROUTES if route.path == "/v1/commits"]
    with pytest.raises(InvalidError) as found:
        query_of("limit=0", commits.parameters)
    error, shown = found.value, section(PAGE, "Errors")
    assert f'"message": "{error.message}"' in shown
    for name in ("field", "value", "fix"):
        assert f'"{name}": "{error.fields[name]}"' in shown


def test_the_outcomes_are_those_of_the_code() -> None:
    rows = tables(section(PAGE, "Commits"))[0]
    assert [row["outcome"].strip("`") for row in rows] == [one.value for one in CommitOutcome]


def test_the_limits_are_those_of_the_code() -> None:
    for text in (
        f"({shapes.LIMIT_MAX:,} at most, and by default; ",
        f"commits, snapshots and files: {shapes.LIMIT} by default)",
        f"The last {COMMITS_MAX:,} commits of the ingestors",
        f"Messages are cut at {models.MESSAGE_CHARS_MAX:,} characters",
        f"partitions and readers of one ingestor at {models.PARTS_SHOWN_MAX:,}",
        f"the look pauses for {lake_look.PAUSE_S:.0f} s and rests nine times as long",
        f"{lake_look.REST_S_MAX:.0f} s at most",
        f"The first {lake_look.TABLES_MAX:,} tables by name",
        f"checks every {health.LOOK_EVERY_S:.0f} s",
        f"At most {server.CONNECTIONS_MAX} connections are open",
        f"may take {server.REQUEST_WAIT_S:.0f} s and {server.HEAD_BYTES_MAX >> 10} KiB",
        f"{('', 'One', 'Two')[app.LOOKS_AT_ONCE]} look at once, {app.LOOKS_WAITING_MAX} may wait",
        f"may take {wiring.LOOK_TIMEOUT_MS // 1_000} s. Metadata hold for {table_look.KEPT_S:.0f} s",
        f"at most {table_look.MANIFESTS_MAX} manifests of {table_look.MANIFEST_BYTES_MAX >> 20} MiB each",
        f"its result holds for {deep_look.DEEP_KEPT_S:.0f} s",
    ):
        assert text in FLAT, text
    for text in (
        f"`running` (it says so every {fsck_record.SAYS_EVERY_S:.0f} s)",
        f"silent for {fsck_record.SILENT_MS_MAX // 1_000} s)",
        f"the first {fsck_record.FINDINGS_MAX} findings, damage first, with texts of at most "
        f"{fsck_record.TEXT_CHARS_MAX} characters",
        f"`old`: that is more than {fsck_view.OLD_S / 3_600:.0f} hours ago",
        f"| read every {fsck_look.EVERY_S:.0f} s; `ageSeconds`",
        *(f"`{one.value}`" for one in (*models.FsckVerdict, *models.FsckRunState)),
    ):
        assert text in FLAT, text
    assert worker.STATUS_S == 1.0, "`at once; 1 s`"
    assert round(1 / lake_look.SHARE) - 1 == 9
    assert health.LOOK_AGAIN_S == 1.0
