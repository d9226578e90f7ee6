"""The reference tables of the flights, loaded once per version of the data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tarn_jobs.lake import Lake
from tarn_jobs.position import newest
from tarn_jobs.schema import REFERENCE

if TYPE_CHECKING:
    import pyarrow as pa

VERSION_ENTRY = "tarn.reference"


def ensure(lake: Lake, tables: Mapping[str, pa.Table], *, version: str) -> list[str]:
    """Load the reference tables that are missing or of another version; return the names of those written.

    Args:
        lake: the tables.
        tables: airlines, airports, planes and weather, by name.
        version: version of the data, stored in the snapshot summary with the rows.
    """
    lake.ensure_namespaces(("ref",))
    written = []
    for table in REFERENCE:
        lake.ensure_table(table)
        _, found = newest(lake.snapshots(table.name, VERSION_ENTRY))
        if found == version:
            continue
        rows = lake.spark.createDataFrame(tables[table.name.removeprefix("ref.")].select(list(table.names)))
        lake.replace(table.name, rows.to(lake.table(table.name).schema), {VERSION_ENTRY: version})
        written.append(table.name)
    return written
