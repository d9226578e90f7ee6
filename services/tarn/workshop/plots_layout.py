"""Plots of a table's files: which rows each of them spans, by the layout with which it was written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import matplotlib.pyplot as plt
from matplotlib.dates import date2num
from matplotlib.patches import Patch
from pyiceberg.conversions import from_bytes
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from tarn.workshop.plots import BLUE, GREEN, GREY, ORANGE, PINK, concise, show

COLORS = (GREY, BLUE, ORANGE, GREEN, PINK)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def layout(table: Table, column: str = "at") -> None:
    """Plot which time each data file spans, one bar for each file, coloured by partition spec.

    Args:
        table: the table.
        column: a timestamp column; where a file's bounds stand in its manifest.
    """
    field = table.schema().find_field(column)
    kind = field.field_type
    assert isinstance(kind, PrimitiveType), f"{column} is no timestamp"
    files = sorted(
        (task.file for task in table.scan().plan_files()), key=lambda file: (file.spec_id, file.file_path)
    )
    _, ax = plt.subplots(figsize=(9, 0.3 * len(files) + 1.2))
    for row, file in enumerate(files):
        low, high = (
            EPOCH + timedelta(microseconds=int(from_bytes(kind, bounds[field.field_id])))
            for bounds in (file.lower_bounds, file.upper_bounds)
        )
        start, end = date2num(low), date2num(high)  # type: ignore[no-untyped-call]
        color = COLORS[file.spec_id % len(COLORS)]
        ax.barh(row, max(end - start, 0.02), left=start, color=color, height=0.7)
        ax.annotate(
            f"{file.record_count:,} rows", (end, row), xytext=(5, -3), textcoords="offset points", fontsize=8
        )
    ax.xaxis_date()
    ax.xaxis.set_major_formatter(concise(ax))
    ax.set(title="Each file, and the time that it spans", xlabel=column, yticks=[], ylabel="files")
    ax.margins(x=0.12)
    specs = {
        spec.spec_id: ", ".join(f"{f.name}" for f in spec.fields) or "not partitioned"
        for spec in table.specs().values()
    }
    used = sorted({file.spec_id for file in files})
    handles = [Patch(color=COLORS[spec % len(COLORS)], label=f"spec {spec}: {specs[spec]}") for spec in used]
    ax.legend(handles=handles[::-1], frameon=False, loc="lower right")
    show()
