"""Trino's health probe (see services/tarn/health.py)."""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from tarn.health import http, own_host
from tarn.health_lake import check_catalog, check_store

SHALLOW_BUDGET_S = 6.0
DEEP_BUDGET_S = 30.0

SERVER = f"{own_host('TARN_TRINO_LISTEN')}:8080"
USER = "tarn-health"


def shallow() -> None:
    """Trino is up and answers, and its catalog and its store answer to its own keys."""
    status, _, body = http("GET", SERVER, "/v1/info", timeout_s=2.0)
    if status != 200:
        raise RuntimeError(f"Trino answers {status} to /v1/info")
    if json.loads(body)["starting"]:
        raise RuntimeError("Trino is still starting")
    check_store(timeout_s=2.0)
    check_catalog(timeout_s=2.0)


def deep() -> None:
    """A query goes through the Iceberg catalog, and one reads a table, if there is any, from the store."""
    query("SHOW SCHEMAS FROM tarn")
    tables = query(
        "SELECT table_schema, table_name FROM tarn.information_schema.tables "
        "WHERE table_schema <> 'information_schema' AND table_type = 'BASE TABLE' "
        "ORDER BY 1, 2 LIMIT 3"
    )
    # One broken table is its own matter; when none can be read, Trino is not usable.
    faults = []
    for schema, name in tables:
        try:
            query(f"SELECT 1 FROM tarn.{quoted(schema)}.{quoted(name)} LIMIT 1")  # noqa: S608 - quoted
        except RuntimeError as error:
            faults.append(str(error))
        else:
            return
    if faults:
        raise RuntimeError(f"no table can be read: {faults[0]}")


def quoted(name: object) -> str:
    """The name as an SQL identifier."""
    return '"' + str(name).replace('"', '""') + '"'


def query(sql: str) -> list[list[object]]:
    """The rows of one query, by Trino's client protocol.

    Raises:
        RuntimeError: Trino refuses it or it fails.
    """
    headers = {"x-trino-user": USER, "x-trino-source": "health", "content-type": "text/plain"}
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
