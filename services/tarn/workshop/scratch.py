"""Tables of the student's own: recreated, filled, read as a whole."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa
from pyiceberg.exceptions import NoSuchTableError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from tarn.workshop.lab import Lab


def recreate(lab: Lab, name: str, columns: pa.Schema) -> Table:
    """Return an empty table of the student's, in place of an earlier one of that name.

    Args:
        lab: the notebook.
        name: the table's name within the namespace.
        columns: its columns.
    """
    with suppress(NoSuchTableError):
        lab.catalog.drop_table(lab.name(name))
    return lab.catalog.create_table(lab.name(name), columns)


def put(lab: Lab, name: str, rows: pa.Table | pd.DataFrame) -> Table:
    """Return a table of the student's with these rows, in place of an earlier one of that name."""
    if isinstance(rows, pd.DataFrame):
        rows = pa.Table.from_pandas(rows, preserve_index=False)
    table = recreate(lab, name, rows.schema)
    table.append(rows)
    return table


def files(table: Table, row_filter: str | None = None) -> list[str]:
    """Return the paths of the data files that a reader of some rows opens; of all rows without a filter."""
    scan = table.scan() if row_filter is None else table.scan(row_filter=row_filter)
    return [task.file.file_path for task in scan.plan_files()]


def whole(lab: Lab, name: str) -> pd.DataFrame:
    """Return all rows of a table of the student's, read by pyiceberg."""
    return lab.catalog.load_table(lab.name(name)).scan().to_pandas()
