"""What is written and how, as data and SQL text: CREATE TABLE and the parts of each MERGE.

In a MERGE the target goes by its table's short name and the source by `s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarn_jobs.schema import KEY, KINDS, PROPERTIES, SILVER, Gold, Table, heard, told_by

SOURCE = "s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """A MERGE whose unmatched source rows are inserted.

    Attributes:
        table: the target.
        on: which rows are the same.
        updates: column to expression for matched rows; None takes all columns from the source.
    """

    table: str
    on: str
    updates: dict[str, str] | None


def create_table(table: Table, name: str) -> str:
    """CREATE TABLE for a table of ours, harmless if it is there."""
    columns = ", ".join(c.ddl for c in table.columns)
    partitioning = f" PARTITIONED BY ({table.partitioning})" if table.partitioning else ""
    comment = f" COMMENT '{table.comment}'" if table.comment else ""
    return (
        f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING iceberg{partitioning}{comment} "
        f"TBLPROPERTIES ({_pairs(PROPERTIES)})"
    )


def missing_properties(name: str, found: Mapping[str, str]) -> str | None:
    """ALTER TABLE for a table of an earlier version of ours; None if it says all that ours do.

    What a person set stays as it is.
    """
    wanted = {k: v for k, v in PROPERTIES.items() if k not in found and k != "format-version"}
    return f"ALTER TABLE {name} SET TBLPROPERTIES ({_pairs(wanted)})" if wanted else None


def _pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())


def merge_silver(hours_us: tuple[int, int]) -> Merge:
    """Brings changes into silver: what a flight already told stays, what it had not told is taken.

    Args:
        hours_us: first and last time_hour of the source, microseconds since the epoch; spares other months.
    """
    t = _short(SILVER)
    low, high = hours_us
    on = [f"{t}.{k} = {SOURCE}.{k}" for k in KEY]
    on += [f"{t}.time_hour >= timestamp_micros({low})", f"{t}.time_hour <= timestamp_micros({high})"]
    updates = {"_tarn": f"{SOURCE}._tarn"}
    for kind in KINDS:
        first = f"{t}.{heard(kind).name} IS NULL"
        for c in told_by(kind):
            updates[c.name] = f"CASE WHEN {first} THEN {SOURCE}.{c.name} ELSE {t}.{c.name} END"
    return Merge(table=SILVER.name, on=" AND ".join(on), updates=updates)


def merge_gold(gold: Gold) -> Merge:
    """Replaces the answers of the groups in the source, adds new groups, leaves the others."""
    t = _short(gold.table)
    return Merge(
        table=gold.table.name, on=" AND ".join(f"{t}.{k} <=> {SOURCE}.{k}" for k in gold.keys), updates=None
    )


def _short(table: Table) -> str:
    return table.name.rsplit(".", 1)[-1]
