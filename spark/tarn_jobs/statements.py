"""DDL and the parts of each MERGE, as data and SQL text.

In a MERGE the target's alias is its short table name, the source's is `s`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tarn_jobs.schema import KEY, KINDS, PROPERTIES, SILVER, Column, Table, columns_set_by, heard

SOURCE = "s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A MERGE that inserts unmatched source rows; a column of the target that it does not name becomes null.

    Attributes:
        table: the target.
        on: the join condition.
        when: which matched rows are updated; the others stay as they are.
        updates: column to expression for those rows.
        inserts: columns that an unmatched row sets, named alike in the source.
    """

    table: str
    on: str
    when: str
    updates: dict[str, str]
    inserts: tuple[str, ...]


def create_table(table: Table, name: str) -> str:
    """Return CREATE TABLE IF NOT EXISTS for a table of the jobs, under the qualified `name`."""
    columns = ", ".join(c.ddl for c in table.columns)
    partitioning = f" PARTITIONED BY ({table.partitioning})" if table.partitioning else ""
    comment = f" COMMENT '{table.comment}'" if table.comment else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg{partitioning}{comment} "
        f"TBLPROPERTIES ({_pairs(PROPERTIES)})"
    )


def add_columns(columns: Sequence[Column], name: str) -> str:
    """Return ALTER TABLE that adds the columns."""
    return f"ALTER TABLE {name} ADD COLUMNS ({', '.join(c.ddl for c in columns)})"


def missing_properties(name: str, found: Mapping[str, str]) -> str | None:
    """Return ALTER TABLE that adds the missing properties; None if there are none.

    Properties that are set, to any value, stay as they are.
    """
    wanted = {k: v for k, v in PROPERTIES.items() if k not in found and k != "format-version"}
    return f"ALTER TABLE {name} SET TBLPROPERTIES ({_pairs(wanted)})" if wanted else None


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())


def snapshots(tables: Sequence[tuple[str, str]], entry: str) -> str:
    """Return the query for branches, tags and snapshots of tables; a row is one of the three.

    One part per metadata table and no join: Spark plans and runs it as one stage.

    Args:
        tables: pairs of the name to report and the qualified name.
        entry: the key in the snapshots' summaries.

    Returns:
        SQL with the columns of_table, ref (null for a snapshot), snapshot_id, parent_id, value, at_us,
        delete_files, operation.
    """
    parts = []
    for table, name in tables:
        parts.append(
            f"SELECT '{table}' AS of_table, name AS ref, snapshot_id, CAST(NULL AS BIGINT) AS parent_id, "  # noqa: S608
            f"CAST(NULL AS STRING) AS value, CAST(NULL AS BIGINT) AS at_us, "
            f"CAST(NULL AS INT) AS delete_files, CAST(NULL AS STRING) AS operation FROM {name}.refs"
        )
    for table, name in tables:
        parts.append(
            f"SELECT '{table}' AS of_table, CAST(NULL AS STRING) AS ref, snapshot_id, parent_id, "  # noqa: S608
            f"summary['{entry}'] AS value, unix_micros(committed_at) AS at_us, "
            f"CAST(summary['total-delete-files'] AS INT) AS delete_files, operation FROM {name}.snapshots"
        )
    return " UNION ALL ".join(parts)


def merge_silver(hours_us: tuple[int, int]) -> Merge:
    """Return the MERGE of changes into silver: the first event of each kind wins, later ones are ignored.

    A flight of which no new kind of event has come is not updated.

    Args:
        hours_us: first and last time_hour of the source, microseconds since the epoch; prunes partitions.
    """
    t = _short(SILVER)
    low, high = hours_us
    on = [f"{t}.{k} = {SOURCE}.{k}" for k in KEY]
    on += [f"{t}.time_hour >= timestamp_micros({low})", f"{t}.time_hour <= timestamp_micros({high})"]
    updates = {"_tarn": f"{SOURCE}._tarn"}
    news = []
    for kind in KINDS:
        first = f"{t}.{heard(kind).name} IS NULL"
        news.append(f"{first} AND {SOURCE}.{heard(kind).name} IS NOT NULL")
        for c in columns_set_by(kind):
            updates[c.name] = f"CASE WHEN {first} THEN {SOURCE}.{c.name} ELSE {t}.{c.name} END"
    return Merge(
        table=SILVER.name,
        on=" AND ".join(on),
        when=" OR ".join(news),
        updates=updates,
        inserts=SILVER.names,
    )


def _short(table: Table) -> str:
    return table.name.rsplit(".", 1)[-1]
