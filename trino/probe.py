"""Trino's health probe (see services/tarn/probe/runner.py)."""

from __future__ import annotations

import json
from urllib.parse import quote, urlsplit

from tarn.probe.lake import check_catalog, check_store
from tarn.probe.look import answers, http, own_host, secret

SERVICE = "trino"
SHALLOW_BUDGET_S = 6.0
DEEP_BUDGET_S = 30.0

SERVER = f"{own_host('TARN_TRINO_LISTEN')}:8080"
# Trino's own principal: in a lake with principals nobody else's statement would be accepted from here.
USER = "trino"
# A table that does not exist: the probe is independent of users' tables.
ABSENT_TABLE = "tarn.tarn_health.absent"


def alive() -> None:
    """Require that Trino answers, with any status."""
    answers(SERVER, "/v1/info", timeout_s=4.0)


def shallow() -> None:
    """Require that Trino has started, and that its catalog and its store accept its own keys.

    Raises:
        RuntimeError: Trino reports an error or is still starting.
    """
    status, _, body = http("GET", SERVER, "/v1/info", timeout_s=2.0)
    if status != 200:
        raise RuntimeError(f"Trino answers {status} to /v1/info")
    if json.loads(body)["starting"]:
        raise RuntimeError("Trino is still starting")
    check_store(timeout_s=2.0)
    check_catalog(timeout_s=2.0)


def deep() -> None:
    """Run a query, and one that makes Trino look up a table in its catalog.

    Raises:
        RuntimeError: a result is not the expected one.
    """
    rows = query("SELECT sum(n) FROM UNNEST(sequence(0, 99)) AS t(n)")
    if rows != [[4950]]:
        raise RuntimeError(f"the sum of 0 to 99 is {rows}, expected 4950")
    try:
        query(f"SELECT 1 FROM {ABSENT_TABLE}")  # noqa: S608 - a constant
    except RuntimeError as error:
        if not any(name in str(error) for name in ("TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND")):
            raise
    else:
        raise RuntimeError(f"the catalog has a table {ABSENT_TABLE}, which nobody makes")


def query(sql: str) -> list[list[object]]:
    """Return the rows of one query, by Trino's client protocol.

    Raises:
        RuntimeError: Trino rejects the query or it fails.
    """
    _, _, own_secret = secret("catalog_credential").partition(":")
    headers = {
        "x-trino-user": USER,
        "x-trino-extra-credential": f"secret={quote(own_secret)}",
        "x-trino-source": "health",
        "content-type": "text/plain",
    }
    status, _, body = http(
        "POST", SERVER, "/v1/statement", headers=headers, body=sql.encode(), timeout_s=10.0
    )
    rows: list[list[object]] = []
    while status == 200:
        page = json.loads(body)
        if "error" in page:
            raise RuntimeError(f"query failed: {page['error']['errorName']}: {page['error']['message']}")
        rows.extend(page.get("data", []))
        if "nextUri" not in page:
            return rows
        path = urlsplit(page["nextUri"]).path
        status, _, body = http("GET", SERVER, path, headers=headers, timeout_s=10.0)
    raise RuntimeError(f"Trino answers {status} to a query")
