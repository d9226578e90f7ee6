"""Rows of an ingested table by offset, through pyiceberg: from any catalog, with deletes applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import exceptions as vendor
from pyiceberg import expressions
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import And, BooleanExpression, Or
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.types import PrimitiveType

from tarn.adapters.lake_scan import LakeScan
from tarn.core.errors import (
    CorruptStateError,
    ForbiddenError,
    InvalidError,
    NoSuchTableError,
    TarnError,
    UnavailableError,
)
from tarn.core.offsets import TRACE_COLUMN
from tarn.core.reading import FileSpans, Place, Range, Seen, Window
from tarn.core.table_state import TableState

SOURCE, PARTITION, OFFSET, TIME = (
    f"{TRACE_COLUMN}.{part}" for part in ("source", "partition", "offset", "time")
)

# The constructors' types do not describe how the library's own documentation calls them.
_equal: Any = expressions.EqualTo
_from: Any = expressions.GreaterThanOrEqual
_below: Any = expressions.LessThan


class FilesGoneError(UnavailableError):
    """A file of the snapshot is no longer in the store: its rows are elsewhere; look at the table again."""


@contextmanager
def _vendor(what: str) -> Iterator[None]:
    """Raise pyiceberg's and the store's errors as Tarn's."""
    try:
        yield
    except TarnError:
        raise
    except (vendor.NoSuchTableError, vendor.NoSuchNamespaceError) as e:
        if str(e).startswith("NotFoundException:"):  # the table exists, its metadata file is missing
            raise UnavailableError(f"could not {what}: {e}") from e
        raise NoSuchTableError(f"could not {what}: {e}; name a table that exists") from e
    except (vendor.UnauthorizedError, vendor.ForbiddenError, PermissionError) as e:
        raise ForbiddenError(f"may not {what}: {e}; check the credentials") from e
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as e:
        raise CorruptStateError(
            f"could not {what}: a file cannot be decoded ({e}); scripts/tarn fsck says what else is damaged"
        ) from e
    except FileNotFoundError as e:
        raise FilesGoneError(f"could not {what}: {e}; look at the table again") from e
    except (vendor.RESTError, vendor.ServiceUnavailableError, vendor.CommitFailedException, OSError) as e:
        raise UnavailableError(f"could not {what}: {e}; wait and read on") from e


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable:
    """One version of a table.

    Attributes:
        state: its metadata.
        table: the same for pyiceberg.
    """

    state: TableState
    table: Table

    @property
    def seen(self) -> Seen | None:
        """The current snapshot; None without one, or if the format has no sequence numbers (version 1)."""
        head = self.state.head
        if head is None or self.state.format_version == 1:
            return None
        return Seen(snapshot_id=int(head["snapshot-id"]), sequence=int(head["sequence-number"]))


class LakeReader:
    """Reads one table.

    Args:
        catalog: catalog of the table.
        name: qualified name of the table.
        columns: columns to return; None for all.
    """

    def __init__(self, catalog: Catalog, name: str, *, columns: Sequence[str] | None = None) -> None:
        self._catalog = catalog
        self.name = name
        self._columns = None if columns is None else list(columns)
        self._tasks: dict[str, FileScanTask] = {}

    def load(self) -> LoadedTable:
        """The table as it is now.

        Raises:
            NoSuchTableError: it does not exist.
            InvalidError: its rows do not name their messages, or a column does not exist.
            UnavailableError: the catalog does not respond.
        """
        with _vendor(f"load table {self.name}"):
            table = self._catalog.load_table(self.name)
            state = TableState(orjson.loads(table.metadata.model_dump_json()))
        names = table.schema().column_names
        if not {SOURCE, PARTITION, OFFSET} <= set(names):
            raise InvalidError(
                f"rows of table {self.name} do not name their messages: it has no column {TRACE_COLUMN} with "
                "source, partition and offset (trace: false in the spec?); read it by a query",
                table=self.name,
            )
        unknown = [name for name in self._columns or () if name not in names]
        if unknown:
            raise InvalidError(
                f"table {self.name} has no column {', '.join(unknown)}; it has "
                f"{', '.join(field.name for field in table.schema().fields)}",
                table=self.name,
            )
        return LoadedTable(state=state, table=table)

    def plan(self, loaded: LoadedTable, open_: Mapping[Place, Range], *, seen: int | None) -> list[FileSpans]:
        """The files that may hold rows of these offsets, and which.

        Manifests and files that are not newer than `seen` are not read. What a file holds is known from the
        manifest if it is of one partition; otherwise three columns of it are read.

        Args:
            loaded: version of the table.
            open_: wanted offsets by place; not empty.
            seen: sequence number up to which nothing is left to read; None if unknown.

        Raises:
            FilesGoneError: a file is gone; look at the table again.
            InvalidError: the table has equality deletes.
            UnavailableError: the store does not respond.
        """
        lowest = min(start for start, _ in open_.values())
        with _vendor(f"read table {self.name}"):
            tasks = self._scan(loaded, _from(OFFSET, lowest), seen=seen)
            self._tasks = {task.file.file_path: task for task in tasks}
            return [
                FileSpans(
                    path=task.file.file_path,
                    records=task.file.record_count,
                    spans=self._spans(loaded, task, open_, lowest),
                )
                for task in tasks
            ]

    def read(self, loaded: LoadedTable, window: Window) -> pa.Table:
        """The live rows of a window, in the order of topic, partition and offset.

        Raises:
            FilesGoneError: a file is gone; look at the table again.
            UnavailableError: the store does not respond.
        """
        schema = loaded.table.schema()
        wanted = [field.name for field in schema.fields] if self._columns is None else self._columns
        columns = schema.select(*dict.fromkeys([*wanted, SOURCE, PARTITION, OFFSET]))
        parts = []
        with _vendor(f"read table {self.name}"):
            for file in window.files:
                places = {p: r for p, r in window.ranges.items() if file.first(p, r) is not None}
                task = self._tasks[file.path]
                parts.append(_rows(loaded.table, task, columns, _offsets(places)))
        if not parts:
            return _rows(loaded.table, None, columns, None).select(_top(schema, wanted))
        rows = pa.concat_tables(parts)
        trace = rows[TRACE_COLUMN]
        places = pa.table({n: pc.struct_field(trace, n) for n in ("source", "partition", "offset")})
        order = pc.sort_indices(places, sort_keys=[(name, "ascending") for name in places.column_names])
        return rows.take(order).select(_top(schema, wanted))

    def first_offsets(self, loaded: LoadedTable, at: datetime) -> dict[Place, int]:
        """The lowest offset by place of all live rows whose message has this time or a later one."""
        found: dict[Place, int] = {}
        if TIME not in loaded.table.schema().column_names:
            raise InvalidError(
                f"{TRACE_COLUMN} of table {self.name} has no time; start at 'earliest' or 'latest'",
                table=self.name,
            )
        wanted = _from(TIME, at.isoformat())
        with _vendor(f"read table {self.name}"):
            columns = loaded.table.schema().select(SOURCE, PARTITION, OFFSET)
            for task in self._scan(loaded, wanted, seen=None):
                for place, (first, _) in _extent(_rows(loaded.table, task, columns, wanted)).items():
                    found[place] = min(first, found.get(place, first))
        return found

    def _scan(
        self, loaded: LoadedTable, wanted: BooleanExpression, *, seen: int | None
    ) -> list[FileScanTask]:
        snapshot = loaded.table.current_snapshot()
        if snapshot is None:
            return []
        # Deletes apply to rows that are not newer than they are: files beyond `seen` need no earlier ones.
        manifests = [
            manifest
            for manifest in snapshot.manifests(loaded.table.io)
            if seen is None or (manifest.sequence_number or 0) > seen
        ]
        planner = ManifestGroupPlanner(loaded.table.metadata, loaded.table.io, row_filter=wanted)
        try:
            return list(
                planner.plan_files(
                    manifests, lambda entry: seen is None or (entry.sequence_number or 0) > seen
                )
            )
        except ValueError as e:
            if "equality deletes" not in str(e):
                raise
            raise InvalidError(
                f"table {self.name} has rows that are deleted by their values (equality deletes), which "
                "pyiceberg cannot apply; rewrite it first, with Trino: ALTER TABLE … EXECUTE optimize",
                table=self.name,
            ) from e

    def _spans(
        self, loaded: LoadedTable, task: FileScanTask, open_: Mapping[Place, Range], lowest: int
    ) -> dict[Place, tuple[int, int]]:
        known = _bounds(loaded.table.schema(), task.file, open_)
        if known is not None:
            return known
        columns = loaded.table.schema().select(SOURCE, PARTITION, OFFSET)
        return _extent(_rows(loaded.table, task, columns, _from(OFFSET, lowest)))


def _top(schema: Schema, wanted: Sequence[str]) -> list[str]:
    """The top-level columns of these, each once; a column's own name may have dots."""
    names = {field.name for field in schema.fields}
    return list(dict.fromkeys(n if n in names else schema.select(n).fields[0].name for n in wanted))


def _rows(
    table: Table, task: FileScanTask | None, columns: Schema, wanted: BooleanExpression | None
) -> pa.Table:
    """The live rows of a file that satisfy the expression; none without a file."""
    scan = LakeScan(table.metadata, table.io, columns, wanted or _from(OFFSET, 0))
    rows = scan.to_table([] if task is None else [task])
    # A file may have the type that a column had before it was widened.
    return rows.cast(schema_to_pyarrow(columns, include_field_ids=False))


def _offsets(places: Mapping[Place, Range]) -> BooleanExpression:
    """Rows of these offsets."""
    parts: list[BooleanExpression] = [
        And(
            _equal(SOURCE, source),
            _equal(PARTITION, partition),
            _from(OFFSET, start),
            _below(OFFSET, end),
        )
        for (source, partition), (start, end) in sorted(places.items())
    ]
    return parts[0] if len(parts) == 1 else Or(*parts)


def _bounds(
    schema: Schema, file: DataFile, open_: Mapping[Place, Range]
) -> dict[Place, tuple[int, int]] | None:
    """What a file of one partition may hold, from its statistics; None if they do not say."""
    topics = {topic for topic, _ in open_}
    low, high = ((_bound(schema, side, PARTITION), _bound(schema, side, OFFSET)) for side in _sides(file))
    if len(topics) != 1 or None in (*low, *high) or low[0] != high[0]:
        return None
    return {(next(iter(topics)), int(low[0])): (int(low[1]), int(high[1]))}


def _sides(file: DataFile) -> tuple[dict[int, bytes], dict[int, bytes]]:
    return file.lower_bounds or {}, file.upper_bounds or {}


def _bound(schema: Schema, side: Mapping[int, bytes], column: str) -> Any:
    found = schema.find_field(column)
    data = side.get(found.field_id)
    if data is None or not isinstance(found.field_type, PrimitiveType):
        return None
    return from_bytes(found.field_type, data)


def _extent(rows: pa.Table) -> dict[Place, tuple[int, int]]:
    """(first, last) offset of the rows by place."""
    trace = rows[TRACE_COLUMN]
    columns = pa.table({name: pc.struct_field(trace, name) for name in ("source", "partition", "offset")})
    found = columns.group_by(["source", "partition"]).aggregate([("offset", "min"), ("offset", "max")])
    return {
        (row["source"], row["partition"]): (row["offset_min"], row["offset_max"])
        for row in found.to_pylist()
        if row["source"] is not None and row["partition"] is not None and row["offset_min"] is not None
    }
