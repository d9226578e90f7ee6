"""What the catalog says about tables, read from their metadata as it stands: no table library, no file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from tarn.adapters.catalog_client import RestCatalog
from tarn.cli.ports import TableFacts
from tarn.core.errors import NotFoundError, UnavailableError
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap
from tarn.core.position import PROPERTY as POSITION
from tarn.core.position import Position
from tarn.core.table_catalog import TableName
from tarn.core.table_state import TableState
from tarn.core.years import moment_of

T = TypeVar("T")


class CatalogFacts:
    """`ports.Tables` and `ports.StateOfTables` over the REST catalog; safe for several threads.

    Args:
        catalog: asked in every call.
    """

    def __init__(self, catalog: RestCatalog) -> None:
        self._catalog = catalog

    def tables(self) -> list[str]:
        """Return the full names of all tables; see `Tables`."""
        return _reported(self._tables)

    def facts(self, table: str) -> TableFacts:
        """Return what the metadata of a table says; see `Tables`."""
        return facts_of(table, self.state(table))

    def state(self, table: str) -> TableState:
        """Return the metadata of a table; see `StateOfTables`."""
        *namespace, name = table.split(".")
        return _reported(lambda: self._catalog.load(TableName(tuple(namespace), name)))

    def _tables(self) -> list[str]:
        found: list[str] = []
        waiting = self._catalog.namespaces()
        while waiting:
            namespace = waiting.pop()
            # One that was dropped a moment ago has no tables, and the others have.
            with contextlib.suppress(NotFoundError):
                found += [str(table) for table in self._catalog.tables(namespace)]
                waiting += self._catalog.namespaces(namespace)
        return sorted(found)


def facts_of(name: str, state: TableState) -> TableFacts:
    """Return what the metadata of a table says.

    Raises:
        CorruptStateError: offsets in a summary cannot be read.
    """
    head = state.head
    summary: Mapping[str, str] = (head or {}).get("summary") or {}

    def number(key: str) -> int | None:
        text = summary.get(key, "")
        return 0 if head is None else int(text) if text.isdecimal() else None

    streams: dict[str, OffsetMap] = {}
    position: str | None = None
    for snapshot in state.ancestors():
        entries: Mapping[str, str] = snapshot.get("summary") or {}
        for key, text in entries.items():
            stream = key.removeprefix(SUMMARY_PREFIX)
            if stream != key and stream not in streams:
                streams[stream] = OffsetMap.from_json(text)
        position = position or entries.get(POSITION)
    for tag, ref in state.refs.items():
        # Where the history is thinned before a stream's map, the tag that moves with its commits has it.
        stream = tag.removeprefix(TAG_PREFIX)
        if stream != tag and stream not in streams:
            entries = state.snapshot(int(ref["snapshot-id"])).get("summary") or {}
            if SUMMARY_PREFIX + stream in entries:
                streams[stream] = OffsetMap.from_json(entries[SUMMARY_PREFIX + stream])
    return TableFacts(
        name=name,
        format_version=state.format_version,
        rows=number("total-records"),
        data_files=number("total-data-files"),
        delete_files=number("total-delete-files"),
        snapshots=len(state.metadata.get("snapshots") or ()),
        last_commit=None if head is None else moment_of(int(head["timestamp-ms"])),
        streams=streams,
        position=None if position is None else Position.from_json(position),
        location=state.root,
    )


def _reported(work: Callable[[], T]) -> T:
    try:
        return work()
    except UnavailableError as error:
        raise UnavailableError(
            f"{error.message.removesuffix('; wait')}; is the service catalog running and healthy? "
            "see docker compose logs catalog",
            **error.fields,
        ) from error
