"""Trino's image: table operations of a user, messages when it cannot start, and secrets that stay secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.engines.conftest import Lake, Trino, hardened, state
from tests.integration.minio.conftest import eventually, write_secrets
from tests.support.healthy import ENDED_WITHIN_S
from tests.support.images import image


@pytest.fixture(scope="module")
def orders(trino_server: Trino) -> str:
    """A table of the 15,000 generated orders."""
    trino_server.rows("CREATE SCHEMA tarn.trino_own")
    trino_server.rows("CREATE TABLE tarn.trino_own.orders AS SELECT * FROM tpch.tiny.orders")
    return "tarn.trino_own.orders"


def test_every_way_to_change_a_table(trino_server: Trino, orders: str) -> None:
    rows = trino_server.rows
    assert rows(f"SELECT count(*), min(orderkey), max(orderkey) FROM {orders}") == [[15_000, 1, 60_000]]
    assert rows(f"INSERT INTO {orders} (orderkey, comment) VALUES (60001, 'a'), (60002, 'b')") == [[2]]
    assert rows(f"UPDATE {orders} SET comment = 'c' WHERE orderkey = 60001") == [[1]]
    assert rows(f"DELETE FROM {orders} WHERE orderkey = 60002") == [[1]]
    merge = (
        f"MERGE INTO {orders} t USING (VALUES (60001, 'd'), (60003, 'e')) s (k, c) ON t.orderkey = s.k "
        "WHEN MATCHED THEN UPDATE SET comment = s.c "
        "WHEN NOT MATCHED THEN INSERT (orderkey, comment) VALUES (s.k, s.c)"
    )
    assert rows(merge) == [[2]]
    tail = [[60_001, "d"], [60_003, "e"]]
    ask = f"SELECT orderkey, comment FROM {orders} WHERE orderkey > 60000 ORDER BY 1"
    assert rows(ask) == tail
    rows(f"ALTER TABLE {orders} EXECUTE optimize")
    assert rows('SELECT count(*), sum(record_count) FROM tarn.trino_own."orders$files"') == [[1, 15_002]]
    assert rows(ask) == tail
    first = rows('SELECT min_by(snapshot_id, committed_at) FROM tarn.trino_own."orders$snapshots"')[0][0]
    assert rows(f"SELECT count(*) FROM {orders} FOR VERSION AS OF {first}") == [[15_000]]


def test_version_3_and_nested_types(trino_server: Trino, orders: str) -> None:
    rows = trino_server.rows
    rows(
        "CREATE TABLE tarn.trino_own.nested (id bigint, day date, m map(varchar, double), "
        "r row(a integer, b varchar)) WITH (format_version = 3, partitioning = ARRAY['month(day)'])"
    )
    rows(
        "INSERT INTO tarn.trino_own.nested VALUES (1, DATE '2026-01-31', MAP(ARRAY['x'], ARRAY[1.5]), "
        "ROW(7, 'y')), (2, DATE '2026-02-01', NULL, NULL)"
    )
    rows("DELETE FROM tarn.trino_own.nested WHERE id = 2")
    assert rows("SELECT id, m['x'], r.a FROM tarn.trino_own.nested") == [[1, 1.5, 7]]


def test_a_schema_below_a_schema(trino_server: Trino, orders: str) -> None:
    rows = trino_server.rows
    rows('CREATE SCHEMA tarn."trino_own.below"')
    rows('CREATE TABLE tarn."trino_own.below".t AS SELECT 1 a')
    assert ["trino_own.below"] in rows("SHOW SCHEMAS FROM tarn")
    listed = rows(
        "SELECT table_schema, table_name FROM tarn.information_schema.tables WHERE table_name = 't'"
    )
    assert listed == [["trino_own.below", "t"]]
    rows('DROP TABLE tarn."trino_own.below".t')
    rows('DROP SCHEMA tarn."trino_own.below"')
    assert ["trino_own.below"] not in rows("SHOW SCHEMAS FROM tarn")


def test_the_engine_shows_no_secret(trino_server: Trino, lake: Lake) -> None:
    attrs = json.dumps(trino_server.container.get_wrapped_container().attrs)
    out, err = trino_server.container.get_logs()
    logs = (out + err).decode()
    for name in ("catalog_credential", "s3_secret_access_key"):
        assert lake.secrets["trino"][name] not in attrs
        assert lake.secrets["trino"][name] not in logs


@pytest.mark.parametrize("engine", ["trino", "spark"])
def test_a_missing_secret_is_named(tmp_path: Path, engine: str) -> None:
    write_secrets(tmp_path, s3_access_key_id="k", s3_secret_access_key="s")
    with hardened(image(engine), tmp_path) as container:
        eventually("it gave up", lambda: state(container)["Status"] == "exited", timeout_s=ENDED_WITHIN_S)
        assert state(container)["ExitCode"] == 78
        said = container.get_logs()[1].decode()
    assert said.startswith(
        f"{engine} cannot start: secret /run/tarn/secrets/catalog_credential cannot be read"
    )
    assert said.endswith("run the init service first\n")


@pytest.mark.parametrize(("engine", "heap"), [("trino", "much"), ("spark", "1"), ("trino", "1gb")])
def test_a_heap_that_is_no_size_is_named(tmp_path: Path, engine: str, heap: str) -> None:
    write_secrets(tmp_path, s3_access_key_id="k", s3_secret_access_key="s", catalog_credential="a:b")
    variable = f"TARN_{engine.upper()}_HEAP"
    with hardened(image(engine), tmp_path).with_env(variable, heap) as container:
        eventually("it gave up", lambda: state(container)["Status"] == "exited", timeout_s=ENDED_WITHIN_S)
        assert state(container)["ExitCode"] == 78
        said = container.get_logs()[1].decode()
    assert said == f"{engine} cannot start: {variable} is '{heap}'; write it like 1g or 768m\n"
