"""Helpers of the tour notebook: checked facts, queries of table metadata, plots.

The image installs it on every kernel's path, so a copy of the tour in `work` runs as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.dates import ConciseDateFormatter
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#9aa0a6"  # safe for colour-blind readers
SECRETS = Path("/run/tarn/secrets")

plt.rcParams.update({"figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})


class Facts:
    """Statements about a lake, each checked when it is made."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    def check(self, fact: str, holds: bool, seen: str = "") -> None:
        """Print a fact with the observed values.

        Args:
            fact: the statement.
            holds: whether it is true.
            seen: the observed values, for the output.

        Raises:
            AssertionError: the fact does not hold.
        """
        assert holds, f"not so: {fact} ({seen})"
        self.checked.append(fact)
        print(f"✓ {fact}" + (f"  ({seen})" if seen else ""))  # noqa: T201 - this is the notebook's output


def secret(name: str) -> str:
    """Return the content of one of this container's secret files, without its trailing newlines."""
    return (SECRETS / name).read_text(encoding="utf-8").rstrip("\n")


def until(holds: Callable[[], Any], *, seconds: float, pause_s: float = 1.0) -> Any:
    """Call `holds` until its result is true or the time is over; return the last result.

    Args:
        holds: the condition.
        seconds: the longest wait.
        pause_s: the wait between two calls, seconds.
    """
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(pause_s)
    return found


# -- queries of metadata -------------------------------------------------------------------------------------


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
    summary = snapshot.summary.additional_properties if snapshot else {}
    at = pd.Timestamp(snapshot.timestamp_ms, unit="ms", tz="UTC").floor("s") if snapshot else None
    return {
        "table": ".".join(table.name()),
        "rows": int(summary.get("total-records", 0)),
        "data files": int(summary.get("total-data-files", 0)),
        "snapshots": len(table.metadata.snapshots),
        "last commit": at,
    }


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
        if (text := each.summary.additional_properties.get(entry)) is not None:
            found: dict[str, Any] = json.loads(text)
            return found
    raise KeyError(f"no snapshot of {'.'.join(table.name())} has {entry}")


def back_from(table: Table, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """Yield a snapshot and its ancestors, newest first, as far as they are kept."""
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)


def by_position(table: Table) -> dict[str, int]:
    """Return the last snapshot id of each stream position, in commit order."""
    found = {}
    for snapshot in sorted(table.metadata.snapshots, key=lambda s: s.sequence_number):
        if (text := snapshot.summary.additional_properties.get("tarn.position")) is not None:
            found[text] = snapshot.snapshot_id
    return found


def at_one_position(tables: dict[str, Table]) -> dict[str, int]:
    """Return a snapshot id of each table, all at the newest common position; empty if there is none."""
    reached = {name: by_position(table) for name, table in tables.items()}
    last = list(reached.values())[-1]
    common = [p for p in last if all(p in positions for positions in reached.values())]
    return {name: positions[common[-1]] for name, positions in reached.items()} if common else {}


def a_while_ago(table: Table, *, seconds: float) -> Snapshot:
    """Return the newest snapshot at least `seconds` older than the current one, else the oldest kept one."""
    kept = sorted(table.metadata.snapshots, key=lambda s: s.sequence_number)
    older = [s for s in kept if s.timestamp_ms <= kept[-1].timestamp_ms - seconds * 1000]
    return older[-1] if older else kept[0]


def plain(frame: pd.DataFrame, key: str) -> list[tuple[Any, ...]]:
    """Return the rows as tuples sorted by `key`, null as None, so that engines can be compared exactly."""
    ordered = frame.sort_values(key)
    return [tuple(None if pd.isna(v) else v for v in row) for row in ordered.itertuples(index=False)]


def trino_asker(address: str) -> Callable[[str], pd.DataFrame]:
    """Return a function that runs a query on Trino, as the principal `jupyter`, and returns a DataFrame."""
    import trino.dbapi

    where = urlsplit(address)
    _, _, own_secret = secret("catalog_credential").partition(":")
    connection = trino.dbapi.connect(
        host=where.hostname,
        port=where.port,
        user="jupyter",
        extra_credential=[("secret", own_secret)],
        catalog="tarn",
        timezone="UTC",
    )

    def ask(sql: str) -> pd.DataFrame:
        cursor = connection.cursor()
        rows = cursor.execute(sql).fetchall()
        return pd.DataFrame(rows, columns=[column[0] for column in cursor.description])

    return ask


def refused(attempt: Callable[[], Any]) -> bool:
    """Return whether the store denies the attempt for a missing permission."""
    try:
        attempt()
    except OSError as error:
        return "ACCESS_DENIED" in str(error) or "AccessDenied" in str(error)
    return False


# -- plots ---------------------------------------------------------------------------------------------------


def draw_arrival(table: Table) -> None:
    """Plot the number of rows of a table over its known commits."""
    history = pd.DataFrame(
        {
            "at": pd.Timestamp(s.timestamp_ms, unit="ms", tz="UTC"),
            "rows": int(s.summary.additional_properties["total-records"]),
        }
        for s in table.metadata.snapshots
    ).sort_values("at")
    _, ax = plt.subplots(figsize=(8, 3.2))
    ax.step(history["at"], history["rows"], where="post", color=BLUE)
    ax.plot(history["at"], history["rows"], ".", color=BLUE, markersize=4)
    ax.set(
        title=f"The stream arrives: {len(history)} commits to {'.'.join(table.name())}",
        xlabel="time of the commit (UTC)",
    )
    ax.set_ylabel("rows in the table")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.xaxis.set_major_formatter(ConciseDateFormatter(ax.xaxis.get_major_locator()))
    ax.margins(y=0.1)
    _show()


def draw_hours(hours: pd.DataFrame) -> None:
    """Plot mean delays (minutes) and the number of flights by hour of the scheduled departure."""
    hours = hours.sort_values("hour")
    _, (top, bottom) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=(3, 1))
    top.plot(hours["hour"], hours["mean_dep_delay"], "o-", color=BLUE, label="departure")
    top.plot(hours["hour"], hours["mean_arr_delay"], "s--", color=ORANGE, label="arrival")
    top.axhline(0, color=GREY, linewidth=0.8)
    title = f"Delay by hour of the scheduled departure ({hours['flights'].sum():,} flights)"
    top.set(title=title, ylabel="mean delay (minutes)")
    top.legend(frameon=False)
    bottom.bar(hours["hour"], hours["flights"], color=GREY)
    bottom.set(
        xlabel="hour of the scheduled departure (New York time)",
        ylabel="flights",
        xticks=range(0, 24, 2),
        xlim=(-0.5, 23.5),
    )
    bottom.yaxis.set_major_formatter("{x:,.0f}")
    _show()


def draw_carriers(carriers: pd.DataFrame) -> None:
    """Plot the mean arrival delay (minutes) and the share of punctual flights (%) by carrier."""
    shown = carriers.dropna(subset=["mean_arr_delay"]).sort_values("mean_arr_delay")
    labels = [f"{row['name'] or carrier}  ({row['flights']:,})" for carrier, row in shown.iterrows()]
    size = (10, 0.34 * len(shown) + 1.4)
    _, (left, right) = plt.subplots(1, 2, figsize=size, sharey=True, width_ratios=(3, 2))
    colors = [ORANGE if delay > 0 else BLUE for delay in shown["mean_arr_delay"]]
    left.barh(labels, shown["mean_arr_delay"], color=colors)
    left.axvline(0, color="black", linewidth=0.8)
    left.set(
        title="Delay by carrier (number of flights)",
        xlabel="mean arrival delay (minutes; below 0 is early)",
    )
    right.barh(labels, shown["on_time_rate"] * 100, color=GREY)
    right.set(title="On time", xlabel="arrived less than 15 min late (%)", xlim=(0, 100))
    _show()


def draw_store(sizes: dict[str, int]) -> None:
    """Plot the store's content by table and kind of file (MB).

    Args:
        sizes: bytes by path, as in `bucket/warehouse/namespace/table-<uuid>/…`.
    """
    parts = {path: path.split("/") for path in sizes}
    objects = pd.DataFrame(
        {
            "table": f"{at[2]}.{at[3].rpartition('-')[0].rsplit('-', 4)[0]}",
            "kind": _kind(path),
            "MB": sizes[path] / 1e6,
        }
        for path, at in parts.items()
        if len(at) > 4
    )
    held = objects.pivot_table(index="table", columns="kind", values="MB", aggfunc="sum", fill_value=0)
    held = held.loc[held.sum(axis=1).sort_values().index].tail(12)
    size = (8, 0.34 * len(held) + 1.4)
    ax = held.plot.barh(stacked=True, figsize=size, color=[BLUE, GREY, ORANGE], width=0.75)
    ax.set(
        title=f"What the store holds: {len(objects):,} objects, {objects['MB'].sum():,.1f} MB",
        xlabel="size (MB)",
        ylabel="",
    )
    ax.legend(title="", frameon=False)
    _show()


def _kind(path: str) -> str:
    if path.endswith(".parquet"):
        return "data (Parquet)"
    return "table metadata (JSON)" if ".metadata.json" in path else "manifests (Avro) and others"


def _show() -> None:
    plt.tight_layout()
    plt.show()
