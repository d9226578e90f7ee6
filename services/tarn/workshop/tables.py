"""Figures of tables from their metadata alone, for notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot


def names(catalog: Catalog) -> list[tuple[str, ...]]:
    """Return the names of all tables, sorted."""
    return sorted(name for namespace in catalog.list_namespaces() for name in catalog.list_tables(namespace))


def overview(catalog: Catalog) -> pd.DataFrame:
    """Return one row per table, from metadata alone; prints and skips tables that pyiceberg cannot read."""
    lines = []
    for name in names(catalog):
        try:
            lines.append(describe(catalog.load_table(name)))
        except NoSuchTableError:
            continue  # dropped since it was listed
        except (ValueError, TypeError, NotImplementedError, KeyError) as error:
            # For example a column of type variant, which pyiceberg does not support.
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(f"left out: {'.'.join(name)}, which pyiceberg cannot read ({reason})")  # noqa: T201
    return pd.DataFrame(lines).set_index("table")


def describe(table: Table) -> dict[str, Any]:
    """Return the figures of a table's current snapshot: rows, data files, snapshots, last commit (UTC)."""
    snapshot = table.current_snapshot()
    summary = summary_of(snapshot)
    at = pd.Timestamp(snapshot.timestamp_ms, unit="ms", tz="UTC").floor("s") if snapshot else None
    return {
        "table": ".".join(table.name()),
        "rows": int(summary.get("total-records", 0)),
        "data files": int(summary.get("total-data-files", 0)),
        "snapshots": len(table.metadata.snapshots),
        "last commit": at,
    }


def summary_of(snapshot: Snapshot | None) -> dict[str, str]:
    """Return the summary of a snapshot; empty without one."""
    if snapshot is None or snapshot.summary is None:
        return {}
    return dict(snapshot.summary.additional_properties)


def rows_in(catalog: Catalog, table: str) -> int:
    """Return the number of rows of a table; 0 if it does not exist yet."""
    try:
        return int(describe(catalog.load_table(table))["rows"])
    except NoSuchTableError:
        return 0


def said(table: Table, snapshot: Snapshot | None, entry: str) -> dict[str, Any]:
    """Return the parsed entry of a snapshot's summary, or of its nearest ancestor that has one.

    Args:
        table: the table.
        snapshot: the snapshot to start from; None for a table without one.
        entry: the key in the summary; its value is a JSON object.

    Raises:
        KeyError: no kept ancestor has the entry.
    """
    for each in back_from(table, snapshot):
        if (text := summary_of(each).get(entry)) is not None:
            found: dict[str, Any] = json.loads(text)
            return found
    raise KeyError(f"no snapshot of {'.'.join(table.name())} has {entry}")


def offset_maps(table: Table, stream: str) -> list[dict[int, int]]:
    """Return the offset map of each kept commit of a stream, in order: partition to the next offset."""
    entry = f"tarn.offsets.{stream}"
    kept = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    texts = [text for one in kept if (text := summary_of(one).get(entry)) is not None]
    return [{int(p): int(o) for p, o in json.loads(text)["next"].items()} for text in texts]


def back_from(table: Table, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, newest first, as far as they are kept.

    Each once: a damaged table may have one that is its own ancestor.
    """
    seen: set[int] = set()
    while snapshot is not None and snapshot.snapshot_id not in seen:
        seen.add(snapshot.snapshot_id)
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)


def by_position(table: Table) -> dict[str, int]:
    """Return the last snapshot id of each stream position, in commit order.

    The position is JSON with the stream and its offsets; not with the snapshot that the rows were made from.
    """
    found = {}
    for snapshot in sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0):
        if (text := summary_of(snapshot).get("tarn.position")) is not None:
            stream = {key: value for key, value in json.loads(text).items() if key != "made-from"}
            found[json.dumps(stream)] = snapshot.snapshot_id
    return found


def at_one_position(tables: dict[str, Table]) -> dict[str, int]:
    """Return a snapshot id of each table, all at the newest common position; empty if there is none."""
    reached = {name: by_position(table) for name, table in tables.items()}
    last = list(reached.values())[-1]
    common = [p for p in last if all(p in positions for positions in reached.values())]
    return {name: positions[common[-1]] for name, positions in reached.items()} if common else {}


def a_while_ago(table: Table, *, seconds: float) -> Snapshot:
    """Return the newest snapshot at least `seconds` older than the current one, else the oldest kept one."""
    kept = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number or 0)
    older = [s for s in kept if s.timestamp_ms <= kept[-1].timestamp_ms - seconds * 1000]
    return older[-1] if older else kept[0]


def plain(frame: pd.DataFrame, key: str) -> list[tuple[Any, ...]]:
    """Return the rows as tuples sorted by `key`, null as None, so that engines can be compared exactly."""
    ordered = frame.sort_values(key)
    return [tuple(None if pd.isna(v) else v for v in row) for row in ordered.itertuples(index=False)]


def refused(attempt: Callable[[], Any]) -> bool:
    """Return whether the store denies the attempt for a missing permission."""
    try:
        attempt()
    except OSError as error:
        return "ACCESS_DENIED" in str(error) or "AccessDenied" in str(error)
    return False


def arrow(columns: dict[str, list[Any]], *, like: Table) -> pa.Table:
    """Return columns of values as Arrow data that can be appended to a table."""
    return pa.table(columns, schema=like.schema().as_arrow())
