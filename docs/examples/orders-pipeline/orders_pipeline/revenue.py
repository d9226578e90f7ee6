"""The revenue of each day, made again from the orders whenever those changed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import requests
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.table import Table

SOURCE = "orders-pipeline.source-snapshot"
"""Property of a snapshot of the revenue: the snapshot of the orders that it was made from."""
ATTEMPTS_MAX = 5
SCHEMA = pa.schema([("day", pa.date32()), ("orders", pa.int64()), ("revenue", pa.decimal128(38, 2))])


def refresh(catalog: Catalog, orders: str, revenue: str) -> bool:
    """Bring the revenue up to date.

    A commit whose answer is lost is neither taken for done nor repeated blindly: the table is loaded again,
    and its newest snapshot says which orders it was made from.

    Args:
        catalog: the catalog of both tables.
        orders: qualified name of the table of orders.
        revenue: qualified name of the table of revenue; created if it is not there.

    Returns:
        Whether this call changed it.

    Raises:
        RuntimeError: it could not be written in five attempts.
    """
    for attempt in range(ATTEMPTS_MAX):
        source = catalog.load_table(orders)
        snapshot = source.current_snapshot()
        if snapshot is None:
            return False
        target = _table(catalog, revenue)
        if made_from(target) == str(snapshot.snapshot_id):
            return attempt > 0
        try:
            target.overwrite(
                by_day(source.scan(snapshot_id=snapshot.snapshot_id).to_arrow()),
                snapshot_properties={SOURCE: str(snapshot.snapshot_id)},
            )
        except (CommitFailedException, CommitStateUnknownException, requests.ConnectionError):
            continue
        return True
    raise RuntimeError(f"{revenue} could not be written in {ATTEMPTS_MAX} attempts; is the catalog running?")


def by_day(orders: pa.Table) -> pa.Table:
    """Number of orders and revenue of each day, in UTC."""
    days = pc.cast(pc.floor_temporal(orders["ordered_at"], unit="day"), pa.date32())
    grouped = pa.table({"day": days, "amount": orders["amount"]}).group_by("day")
    summed = grouped.aggregate([("amount", "count"), ("amount", "sum")])
    columns = [summed["day"], summed["amount_count"], summed["amount_sum"]]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA).sort_by("day")


def made_from(revenue: Table) -> str | None:
    """Id of the snapshot of the orders that the newest revenue was made from."""
    for entry in reversed(revenue.history()):
        snapshot = revenue.snapshot_by_id(entry.snapshot_id)
        if (
            snapshot is not None
            and snapshot.summary is not None
            and SOURCE in snapshot.summary.additional_properties
        ):
            return snapshot.summary.additional_properties[SOURCE]
    return None


def _table(catalog: Catalog, name: str) -> Table:
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        return catalog.create_table_if_not_exists(name, SCHEMA)
