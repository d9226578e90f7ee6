"""An append that is prepared and not sent. No plots here: the writer of notebook 04 starts in a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyiceberg.table import CommitTableRequest, Table, TableIdentifier
from pyiceberg.table.update import AssertTableUUID


def prepare(table: Table, rows: pa.Table, properties: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Write the files of an append, and return the request that would commit it; nothing is sent.

    Args:
        table: the table, as it was loaded: the commit is based on that snapshot.
        rows: the rows to append.
        properties: what to add to the snapshot's summary.
    """
    transaction = table.transaction()
    transaction.append(rows, snapshot_properties=dict(properties or {}))
    request = CommitTableRequest(
        identifier=TableIdentifier(namespace=table.name()[:-1], name=table.name()[-1]),
        # pyiceberg has no public way to a commit that is not sent.
        requirements=(*transaction._requirements, AssertTableUUID(uuid=table.metadata.table_uuid)),
        updates=transaction._updates,
    )
    found: dict[str, Any] = json.loads(request.model_dump_json())
    return found
