"""All readers and writers on the lake of this folder, each used as its own users do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import SparkSession

from tests.integration.engines.conftest import Lake, Trino
from tests.integration.engines.ours import Ingesting, OwnTools

READERS = ("pyiceberg", "trino", "spark", "duckdb")


@dataclass(frozen=True, slots=True)
class Clients:
    """All readers and writers."""

    catalog: Catalog
    trino: Trino
    spark: SparkSession
    tools: OwnTools
    ingesting: Ingesting

    def read(self, reader: str, table: str, columns: Sequence[str]) -> Sequence[Sequence[Any]]:
        """All rows of a table, in any order."""
        sql = f"SELECT {', '.join(columns)} FROM {table}"
        match reader:
            case "pyiceberg":
                found = self.catalog.load_table(table).scan().to_arrow()
                return list(zip(*(found[name].to_pylist() for name in columns), strict=True))
            case "trino":
                return self.trino.rows(sql)
            case "spark":
                found = self.spark.sql(sql).toArrow()
                return list(zip(*(found[name].to_pylist() for name in columns), strict=True))
            case "duckdb":
                return self.tools.duck.query(sql).rows
            case _:
                raise AssertionError(reader)


def open_catalog(lake: Lake) -> Catalog:
    """The lake for pyiceberg on the host, with the rights that `scripts/tarn env` grants."""
    held = lake.secrets["cli"]
    return load_catalog(
        "tarn",
        type="rest",
        uri=lake.catalog,
        warehouse="tarn",
        credential=held["catalog_credential"],
        **{
            "oauth2-server-uri": f"{lake.catalog}/v1/oauth/tokens",
            "s3.access-key-id": held["s3_access_key_id"],
            "s3.secret-access-key": held["s3_secret_access_key"],
            "s3.region": "us-east-1",
        },
    )
