"""The objects of a table: listed, described, drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.patches import Rectangle
from pyarrow import fs
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from tarn.workshop.plots import BLUE, GREEN, GREY, ORANGE, SKY, show

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

KINDS = {
    "table metadata": BLUE,
    "manifest list": SKY,
    "manifest": GREEN,
    "data": ORANGE,
    "other": GREY,
}
"""Kind of an object to its colour."""


def path_of(location: str) -> str:
    """The path of an s3:// location in the store: bucket and key."""
    return location.partition("://")[2]


def kind_of(path: str) -> str:
    """What an object is, by its name."""
    name = path.rpartition("/")[2]
    if ".metadata.json" in name:
        return "table metadata"
    if name.startswith("snap-"):
        return "manifest list"
    if name.endswith(".avro"):
        return "manifest"
    return "data" if name.endswith(".parquet") else "other"


def objects(lab: Lab, table: Table) -> pd.DataFrame:
    """Return every object below a table's location: name, kind, bytes, when it was written; oldest first."""
    root = path_of(table.location())
    found = [
        one
        for one in lab.store.get_file_info(fs.FileSelector(root, recursive=True))
        if one.type == fs.FileType.File
    ]
    lines = [
        {
            "object": one.path.removeprefix(f"{root}/"),
            "kind": kind_of(one.path),
            "bytes": one.size,
            "written": pd.Timestamp(one.mtime).floor("ms"),
        }
        for one in found
    ]
    return pd.DataFrame(lines).sort_values(["written", "object"], ignore_index=True)


def manifests(table: Table, snapshot: Snapshot | None = None) -> list[ManifestFile]:
    """Return the manifests of a snapshot, by its manifest list; of the current one if none is given."""
    snapshot = snapshot or table.current_snapshot()
    return [] if snapshot is None else list(snapshot.manifests(table.io))


def entries(table: Table, snapshot: Snapshot | None = None) -> Iterator[ManifestEntry]:
    """Yield the live entries of the manifests of a snapshot: one per data file."""
    for manifest in manifests(table, snapshot):
        yield from manifest.fetch_manifest_entry(table.io, discard_deleted=True)


def data_files(table: Table, snapshot: Snapshot | None = None) -> set[str]:
    """Return the locations of the data files of a snapshot, by its manifests."""
    return {entry.data_file.file_path for entry in entries(table, snapshot)}


def bounds(table: Table, column: str) -> pd.DataFrame:
    """Return, by data file, its rows and the least and greatest value of a column, from the manifests."""
    field = table.schema().find_field(column)

    def value(found: dict[int, bytes] | None) -> Any:
        data = (found or {}).get(field.field_id)
        return None if data is None else from_bytes(field.field_type, data)  # type: ignore[arg-type]

    lines = [
        {
            "file": entry.data_file.file_path,
            "rows": entry.data_file.record_count,
            "least": value(entry.data_file.lower_bounds),
            "greatest": value(entry.data_file.upper_bounds),
        }
        for entry in entries(table)
    ]
    return pd.DataFrame(lines).sort_values("least", ignore_index=True)


def draw_tree(table: Table) -> None:
    """Draw the objects of the current snapshot and what refers to what."""
    snapshot = table.current_snapshot()
    assert snapshot is not None, "a table without a snapshot has no tree"
    levels: list[list[tuple[str, str]]] = [
        [("pointer", "pointer\n(the catalog's)")],
        [("table metadata", "table metadata\n" + _short(table.metadata_location))],
        [("manifest list", "manifest list\n" + _short(snapshot.manifest_list))],
        [],
        [],
    ]
    lines = []
    for number, manifest in enumerate(manifests(table)):
        levels[3].append(("manifest", "manifest\n" + _short(manifest.manifest_path)))
        lines.append((2, 0, 3, number))
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            levels[4].append(("data", f"data\n{entry.data_file.record_count:,} rows"))
            lines.append((3, number, 4, len(levels[4]) - 1))
    lines += [(0, 0, 1, 0), (1, 0, 2, 0)]
    _, ax = plt.subplots(figsize=(10, 1.0 + 0.72 * max(len(level) for level in levels)))
    spots = {
        (depth, at): (2.4 * depth, -(at - (len(level) - 1) / 2))
        for depth, level in enumerate(levels)
        for at in range(len(level))
    }
    for from_depth, from_at, to_depth, to_at in lines:
        (x, y), (to_x, to_y) = spots[from_depth, from_at], spots[to_depth, to_at]
        ax.plot([x + 1.8, to_x], [y, to_y], color=GREY, linewidth=1, zorder=0)
    for (depth, at), (x, y) in spots.items():
        kind, label = levels[depth][at]
        ax.add_patch(Rectangle((x, y - 0.36), 1.8, 0.72, color=KINDS.get(kind, GREY), alpha=0.22))
        ax.text(x + 0.9, y, label, ha="center", va="center", fontsize=8)
    ax.set(title=f"What a reader of {'.'.join(table.name())} opens, from left to right")
    ax.autoscale_view()
    ax.axis("off")
    show()


def draw_bounds(table: Table, column: str, above: float) -> None:
    """Plot the range of a column in each data file, and which files a query above a limit has to open."""
    found = bounds(table, column)
    _, ax = plt.subplots(figsize=(9, 0.4 * len(found) + 1.5))
    ax.use_sticky_edges = False
    for at, (least, greatest) in enumerate(zip(found["least"], found["greatest"], strict=True)):
        opened = greatest > above
        ax.barh(at, greatest - least, left=least, color=ORANGE if opened else GREY, height=0.6)
        ax.text(greatest, at, "  has to be opened" if opened else "  skipped", va="center", fontsize=8)
    ax.axvline(above, color=BLUE, linestyle="--")
    ax.set(
        title=f"{column} > {above:g}: the manifests already say where no row can be",
        xlabel=f"{column}, least to greatest value in the file",
        yticks=range(len(found)),
        yticklabels=[f"{rows:,} rows" for rows in found["rows"]],
    )
    ax.margins(x=0.22)
    show()


def _short(location: str) -> str:
    name = location.rpartition("/")[2]
    return name if len(name) <= 20 else f"{name[:9]}…{name[-9:]}"
