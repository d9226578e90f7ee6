"""Iceberg's sink of Kafka Connect for `scripts/bench peers`: a connector, by the worker's REST interface.

The worker is a container of the benchmark (scripts/lib/tarn_host/bench/connect). Keys in a connector are
references that the worker resolves: no secret goes through the REST interface.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog

from tarn.cli.settings import Settings
from tarn.core.errors import InvalidError, UnavailableError

HOST, PORT = "connect", 8083
REQUEST_S_MAX = 60.0
READY_S_MAX = 90.0
STALL_S_MAX = 90.0
"""Longer than a group's session, so that a task that is replaced may go on."""
LOOK_S = 0.5
TASKS = 2
COMMIT_EVERY_MS = 1_000
"""As often as the loop and ingest commit; its default is 5 minutes."""
FIX = "its own words are at the end of .tarn/logs/bench-ingest.log"


def control_topic(table: str) -> str:
    """The topic by which the tasks of a table's connector agree on commits. Pure."""
    return f"{table}.control"


def letters_topic(table: str) -> str:
    """The topic of the messages that are no JSON. Pure."""
    return f"{table}.letters"


def connector(topic: str, table: str, settings: Settings) -> dict[str, str]:
    """The connector that drains a topic into a table, as the sink's documents describe it. Pure.

    What is no JSON goes to a dead letter topic. Iceberg's writer ends the task at a row that lacks a required
    column, which no option of the sink turns into a dead letter; its routing drops the rows without an `id`.
    """
    secrets = f"${{directory:{settings.secrets_dir}:"
    catalog_uri = settings.catalog_uri.rstrip("/")
    catalog = {
        "type": "rest",
        "uri": catalog_uri,
        "oauth2-server-uri": f"{catalog_uri}/v1/oauth/tokens",
        "rest.auth.type": "oauth2",
        "credential": f"{secrets}catalog_credential}}",
        "token-exchange-enabled": "false",
        "warehouse": settings.warehouse,
        "rest-metrics-reporting-enabled": "false",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": settings.region,
        "s3.endpoint": settings.s3_endpoint,
        "s3.path-style-access": "true",
        "s3.access-key-id": f"{secrets}s3_access_key_id}}",
        "s3.secret-access-key": f"{secrets}s3_secret_access_key}}",
    }
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": str(TASKS),
        "topics": topic,
        "transforms": "place",
        "transforms.place.type": "org.apache.kafka.connect.transforms.InsertField$Value",
        "transforms.place.partition.field": "partition",
        "transforms.place.offset.field": "offset",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": letters_topic(table),
        "errors.deadletterqueue.topic.replication.factor": "1",
        "iceberg.tables": table,
        "iceberg.tables.auto-create-enabled": "false",
        "iceberg.tables.route-field": "id",
        f"iceberg.table.{table}.route-regex": ".+",
        "iceberg.control.topic": control_topic(table),
        "iceberg.control.commit.interval-ms": str(COMMIT_EVERY_MS),
        "iceberg.catalog": "tarn",
        **{f"iceberg.catalog.{name}": value for name, value in catalog.items()},
    }


def drain(catalog: Catalog, settings: Settings, topic: str, table: str, rows: int) -> dict[str, Any]:
    """Run a connector until the table holds so many rows; seconds are from its creation to its last commit.

    Raises:
        InvalidError: the worker refuses the connector.
        UnavailableError: the worker does not answer, a task failed, or no row came for `STALL_S_MAX`.
    """
    name = table.replace(".", "-")
    _await_worker()
    began = time.time()
    _ask("PUT", f"/connectors/{name}/config", connector(topic, table, settings))
    try:
        at, commits = _await_rows(catalog, name, table, rows)
    finally:
        with contextlib.suppress(InvalidError, UnavailableError):  # the container is removed anyway
            _ask("DELETE", f"/connectors/{name}")
    return {"seconds": at - began, "commits": commits}


def _await_rows(catalog: Catalog, name: str, table: str, rows: int) -> tuple[float, int]:
    """Wait for the rows; the Unix time of the commit that completed them, and the number of commits."""
    held, moved = 0, time.monotonic()
    while True:
        snapshot, found = catalog.load_table(table).current_snapshot(), 0
        if snapshot is not None and snapshot.summary is not None:
            found = int(snapshot.summary["total-records"] or 0)
            if found >= rows:
                return snapshot.timestamp_ms / 1_000, snapshot.sequence_number or 0
        if found != held:
            held, moved = found, time.monotonic()
        elif time.monotonic() > moved + STALL_S_MAX:
            raise UnavailableError(
                f"{table} has {held:,} rows of {rows:,}, and got none in {STALL_S_MAX:.0f} s; {FIX}"
            )
        if fault := failure(_ask("GET", f"/connectors/{name}/status", missing={})):
            raise UnavailableError(f"Kafka Connect's sink into {table} failed: {fault}; {FIX}")
        time.sleep(LOOK_S)


def failure(status: Mapping[str, Any]) -> str:
    """Why a connector or a task of it failed, by the worker's word; empty if none did. Pure."""
    for part in (status.get("connector", {}), *status.get("tasks", ())):
        if part.get("state") == "FAILED":
            words = str(part.get("trace", "")).strip().splitlines()
            causes = [word for word in words if word.startswith("Caused by: ")]
            return (causes or words or ["no reason is given"])[-1 if causes else 0][:500]
    return ""


def _await_worker() -> None:
    """Wait until the worker takes connectors; before that its interface has no such path.

    Raises:
        UnavailableError: it does not within `READY_S_MAX`.
    """
    until = time.monotonic() + READY_S_MAX
    while True:
        try:
            _ask("GET", "/connectors")
            return
        except UnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_S)


def _ask(method: str, path: str, body: Mapping[str, str] | None = None, *, missing: Any = None) -> Any:
    """One request to the worker; returns what it says, or `missing`, if given, for a 404.

    Raises:
        InvalidError: it refuses the request.
        UnavailableError: it does not answer, or cannot do it now.
    """
    connection = http.client.HTTPConnection(HOST, PORT, timeout=REQUEST_S_MAX)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"Kafka Connect does not answer {method} {path}: {error}; {FIX}") from error
    finally:
        connection.close()
    if answer.status == http.client.NOT_FOUND and missing is not None:
        return missing
    if answer.status >= 500 or answer.status in (http.client.CONFLICT, http.client.NOT_FOUND):
        raise UnavailableError(f"Kafka Connect: {method} {path}: {answer.status} {said[:500]}; {FIX}")
    if answer.status >= 400:
        raise InvalidError(f"Kafka Connect: {method} {path}: {answer.status} {said[:500]}")
    return json.loads(said) if said else None
