"""Limitations of engines and libraries, each with its error message; docs/engines.md lists the same.

A test provokes each of them and fails as soon as the library supports it: then the entry is removed.
"""

from __future__ import annotations

from dataclasses import dataclass

PYICEBERG = "pyiceberg 0.12.0"
PYARROW = "pyarrow 26.0.1"
TRINO = "Trino 483"
SPARK = "Iceberg 1.12.0 for Spark 4.1.4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limitation.

    Attributes:
        who: the engine or library, with its version.
        cannot: what it cannot do.
        says: part of its error message.
        instead: the workaround.
    """

    who: str
    cannot: str
    says: str
    instead: str


LIMITS = {
    "write v3": Limit(
        who=PYICEBERG,
        cannot="write rows to a table of format version 3",
        says="Cannot write manifest for table version: 3",
        instead="keep version 2, the default of every maker here, or write by Trino, Spark or ingest",
    ),
    "delta-length deletes": Limit(
        who=f"{PYICEBERG} with {PYARROW}",
        cannot="read position deletes whose paths have the encoding DELTA_LENGTH_BYTE_ARRAY",
        says="Not yet implemented: DecodeArrow of DictAccumulator for DeltaLengthByteArrayDecoder",
        instead="nothing: our Trino does not write them; those from elsewhere or from before are read by all "
        "others, and `ALTER TABLE … EXECUTE optimize` rewrites them",
    ),
    "variant": Limit(
        who=PYICEBERG,
        cannot="open a table that has a `variant` column, not even for its other columns",
        says="Unsupported field type: 'variant'",
        instead="read it by Trino or Spark",
    ),
    "unknown": Limit(
        who=TRINO,
        cannot="open a table that has a column of type `unknown` (`void` in Spark)",
        says="Cannot convert from Iceberg type 'unknown' (UNKNOWN) to Trino type",
        instead="give the column a type, or read the table by Spark or pyiceberg",
    ),
    "geometry by Trino": Limit(
        who=TRINO,
        cannot="open a table that has a `geometry` column",
        says="Unknown type: Geometry",
        instead="keep shapes as WKB in `binary`",
    ),
    "geometry by Spark": Limit(
        who=SPARK,
        cannot="read a `geometry` column; the table's other columns it reads",
        says="Geospatial feature is disabled",
        instead="keep shapes as WKB in `binary`",
    ),
    "time": Limit(
        who=SPARK,
        cannot="open a table that has a `time` column",
        says="Spark does not support time fields",
        instead="keep the time of day as a number or text",
    ),
    "nanoseconds": Limit(
        who=SPARK,
        cannot="open a table that has a `timestamp_ns` column",
        says="Cannot convert unsupported type to Spark: timestamp_ns",
        instead="microseconds: `timestamp` and `timestamptz`",
    ),
    "default values": Limit(
        who=SPARK,
        cannot="add a column with a default value; it reads those that Trino added",
        says="setting default values in Spark is currently unsupported",
        instead="add the column by Trino",
    ),
    "Avro data": Limit(
        who=PYICEBERG,
        cannot="read data files in Avro",
        says="Unsupported file format: FileFormat.AVRO",
        instead="keep Parquet, the default; ORC works too",
    ),
    "Avro deletes": Limit(
        who=PYICEBERG,
        cannot="read position deletes in Avro",
        says="Delete file format not supported: FileFormat.AVRO",
        instead="keep Parquet, the default; ORC works too",
    ),
}


def as_table() -> list[str]:
    """The limitations as the lines of a Markdown table, as in docs/engines.md."""
    head = ["| who | cannot | says | instead |", "|---|---|---|---|"]
    return head + [f"| {one.who} | {one.cannot} | `{one.says}` | {one.instead} |" for one in LIMITS.values()]
