"""A table whose metadata files are compressed is written, read and registered like any other."""

from __future__ import annotations

from tests.integration.engines.clients import READERS, Clients
from tests.integration.engines.conftest import Lake

CODEC = "write.metadata.compression-codec"
TABLE = "packed.t"


def test_every_engine_writes_and_reads_a_table_with_compressed_metadata(clients: Clients, lake: Lake) -> None:
    clients.catalog.create_namespace("packed")
    clients.spark.sql(
        f"CREATE TABLE {TABLE} (id BIGINT) TBLPROPERTIES ('{CODEC}' = 'gzip', 'format-version' = '2')"
    )
    clients.spark.sql(f"INSERT INTO {TABLE} VALUES (1), (2)")
    clients.trino.rows(f"INSERT INTO {TABLE} VALUES 3, 4")
    table = clients.catalog.load_table(TABLE)
    assert table.metadata_location.endswith(".gz.metadata.json")
    assert lake.holds(table.metadata_location)
    table.append(table.scan(row_filter="id = 1").to_arrow())
    clients.trino.rows(f"DELETE FROM {TABLE} WHERE id = 4")
    clients.spark.sql(f"UPDATE {TABLE} SET id = 20 WHERE id = 2")
    for reader in READERS:
        assert sorted(row[0] for row in clients.read(reader, TABLE, ["id"])) == [1, 1, 3, 20], reader
    files = clients.spark.sql(f"SELECT file FROM {TABLE}.metadata_log_entries").collect()
    assert [row.file.endswith(".gz.metadata.json") for row in files] == [False, *[True] * 5]

    location = clients.catalog.load_table(TABLE).metadata_location
    clients.trino.rows("CALL tarn.system.unregister_table('packed', 't')")
    clients.catalog.register_table("packed.again", location)
    for reader in READERS:
        assert sorted(row[0] for row in clients.read(reader, "packed.again", ["id"])) == [1, 1, 3, 20], reader
    report = clients.tools.fsck()
    assert [finding for finding in report.damage if finding.where.startswith("packed.")] == []
