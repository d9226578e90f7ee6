"""Nested columns that ingest writes are read by every engine, before and after the columns evolved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.engines.clients import READERS, Clients

TABLE = "nested.flights"
COLUMNS = {
    "id": "long",
    "place": "struct<lat: double, city: string>",
    "legs": "list<struct<carrier: string, n: int>>",
    "tags": "map<string, int>",
}
WIDER = {
    **COLUMNS,
    "place": "struct<lat: double, city: string, country: string>",
    "legs": "list<struct<carrier: string, n: long, seats: list<string>>>",
    "tags": "map<string, long>",
}
BIG = 2**40
FIRST = (
    {"id": 1, "place": {"lat": 1.5, "city": "Oslo"}, "legs": [{"carrier": "SK", "n": 7}], "tags": {"k": 1}},
    {"id": 2, "place": {"lat": 60, "city": None}, "legs": [], "tags": {}},
    {"id": 3},
    {"id": 4, "legs": [{"n": "x"}]},
)
SECOND = (
    {
        "id": 5,
        "place": {"lat": 70.5, "city": "Bodø", "country": "NO"},
        "legs": [{"carrier": "DY", "n": BIG, "seats": ["1A", "1B"]}, {}],
        "tags": {"k": BIG, "other": None},
    },
)
PARTS = {
    "trino": "id, place.lat, place.city, cardinality(legs), element_at(legs, 1).n, element_at(tags, 'k')",
    "spark": "id, place.lat, place.city, if(legs IS NULL, NULL, size(legs)), get(legs, 0).n, tags['k']",
    "duckdb": "id, place.lat, place.city, len(legs), legs[1].n, tags['k']",
}
WIDE_PARTS = {
    "trino": "place.country, element_at(element_at(legs, 1).seats, 2)",
    "spark": "place.country, get(get(legs, 0).seats, 1)",
    "duckdb": "place.country, legs[1].seats[2]",
}
ROWS = [
    (1, 1.5, "Oslo", 1, 7, 1),
    (2, 60.0, None, 0, None, None),
    (3, None, None, None, None, None),
]


def seen_by(reader: str, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows as an engine reads them; DuckDB reads through pyiceberg, to which a null list is empty."""
    return [(*row[:3], row[3] or 0, *row[4:]) for row in rows] if reader == "duckdb" else rows


@pytest.fixture(scope="module")
def ingested(clients: Clients) -> Clients:
    clients.catalog.create_namespace("nested")
    clients.ingesting.send(TABLE, COLUMNS, [json.dumps(message).encode() for message in FIRST])
    return clients


def read(clients: Clients, reader: str, parts: str, where: str = "true") -> list[tuple[Any, ...]]:
    sql = f"SELECT {parts} FROM {TABLE} WHERE {where} ORDER BY id"
    if reader == "trino":
        return [tuple(row) for row in clients.trino.rows(sql)]
    if reader == "duckdb":
        return [tuple(row) for row in clients.tools.duck.query(sql).rows]
    return [tuple(row) for row in clients.spark.sql(sql).collect()]


@pytest.mark.parametrize("reader", PARTS)
def test_an_engine_reads_every_part(ingested: Clients, reader: str) -> None:
    assert read(ingested, reader, PARTS[reader]) == seen_by(reader, ROWS)
    assert read(ingested, reader, "id", "place.lat > 50") == [(2,)]


def test_an_engine_writes_beside_ingest_which_then_widens_the_columns(ingested: Clients) -> None:
    ingested.spark.sql(
        f"INSERT INTO {TABLE} SELECT 4, named_struct('lat', 2D, 'city', 'Bergen'), "
        "array(named_struct('carrier', 'WF', 'n', 1)), map('k', 4)"
    )
    messages = [json.dumps(message).encode() for message in SECOND]
    ingested.ingesting.send(TABLE, WIDER, messages, evolution="evolve")
    more = [(4, 2.0, "Bergen", 1, 1, 4), (5, 70.5, "Bodø", 2, BIG, BIG)]
    wide = [(None, None)] * 4 + [("NO", "1B")]
    for reader in PARTS:
        assert read(ingested, reader, PARTS[reader]) == seen_by(reader, [*ROWS, *more]), reader
        assert read(ingested, reader, WIDE_PARTS[reader]) == wide, reader
    ingested.trino.rows(f"DELETE FROM {TABLE} WHERE place.country = 'NO'")
    ingested.trino.rows(f"ALTER TABLE {TABLE} EXECUTE optimize")
    for reader in READERS:
        assert sorted(row[0] for row in ingested.read(reader, TABLE, ["id"])) == [1, 2, 3, 4], reader
    report = ingested.tools.fsck()
    assert [finding for finding in report.damage if finding.where.startswith("nested.")] == []
