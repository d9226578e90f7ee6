"""The table that a stream fills: its columns, the decoder of the messages, and the writer of its files."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from tarn.core.decode import Decoder
from tarn.core.errors import InvalidSpecError, NoSuchTableError
from tarn.core.spec import FieldSpec, IngestorSpec
from tarn.core.table_catalog import TableName
from tarn.core.table_columns import columns_of
from tarn.core.table_files import TableFiles, TableWriter
from tarn.core.table_state import TableState
from tarn.ingest.changes import TableCommits
from tarn.ingest.context import IngestContext

log = structlog.get_logger()


class StreamTable:
    """The table of one ingestor. Its columns are those of the spec, or the table's own if the spec has none.

    Args:
        spec: ingestor spec.
        context: dependencies and limits.

    Attributes:
        name: identifier of the table.
        files: files of the table; without a schema in the spec, not before `open`.
        decoder: decoder of the messages, likewise.
    """

    files: TableFiles
    decoder: Decoder

    def __init__(self, spec: IngestorSpec, context: IngestContext) -> None:
        self._ingestor = spec.name
        self._topic = spec.topic
        self._body = spec.spec
        self._context = context
        self._fields: Sequence[FieldSpec] = ()
        self._writer: TableWriter | None = None
        self.name = TableName(self._body.table.levels, self._body.table.name)
        if self._body.columns is not None:
            self._take(self._body.columns.fields)

    @property
    def own_columns(self) -> bool:
        """Whether the columns are the table's own, as the spec has no schema."""
        return self._body.columns is None

    @property
    def writer(self) -> TableWriter:
        """The current writer; there is one after `open`."""
        if self._writer is None:
            raise AssertionError("no writer before the first plan")
        return self._writer

    def ensure(self, committer: TableCommits) -> TableState:
        """Load the table; create it, with its namespace, if it does not exist and the spec has a schema.

        Raises:
            InvalidSpecError: it does not exist, and the spec has no schema.
            UnavailableError: the catalog does not respond.
        """
        if not self.own_columns:
            committer.ensure(self.files.create_request())
        try:
            return committer.load()
        except NoSuchTableError as e:
            if not self.own_columns:
                raise
            raise InvalidSpecError(
                f"table {self.name} does not exist, and the spec of {self._ingestor} has no schema to create "
                "it with; create the table, or name the columns in the spec",
                table=str(self.name),
            ) from e

    def evolve(self, state: TableState, committer: TableCommits) -> TableState:
        """Alter the table to have the spec's columns, if the spec says so.

        Raises:
            InvalidSpecError: no such change suffices.
            UnavailableError: the catalog does not respond, or another commit came first.
        """
        if self._body.columns is None or self._body.columns.evolution == "strict":
            return state
        request = self.files.evolution(state)
        if request is None:
            return state
        altered = committer.alter(request)
        log.info(
            "table altered",
            ingestor=self._ingestor,
            table=str(self.name),
            changes=list(self.files.changes(state, altered)),
        )
        return altered

    def open(self, state: TableState) -> None:
        """Take the columns, if they are the table's own, and the writer of this version of the table.

        Raises:
            InvalidSpecError: the table cannot take the columns, or has none that messages can fill.
        """
        if self.own_columns:
            found = columns_of(state, table=str(self.name))
            if found.fields != self._fields:
                self._take(found.fields)
                log.info(
                    "columns taken from the table",
                    ingestor=self._ingestor,
                    columns=[f"{field.name} {field.type}" for field in found.fields],
                    left_out=list(found.left_out),
                )
        self._writer = self.files.writer(state)

    def follow(self, state: TableState) -> None:
        """Take the writer of this version of the table, whose columns changed.

        If the stream's columns are the table's own, the former writer stays: the next commit then finds that
        it is out of date, and the stream is planned again.

        Raises:
            InvalidSpecError: the table can no longer take the spec's columns.
        """
        if not self.own_columns:
            self._writer = self.files.writer(state)

    def _take(self, fields: Sequence[FieldSpec]) -> None:
        body = self._body
        self._fields = tuple(fields)
        self.files = self._context.tables.table(
            str(self.name),
            self._fields,
            trace=body.trace,
            partitioning=body.table.partitioning,
            properties=body.table.properties,
            format_version=body.table.format_version,
        )
        self.decoder = Decoder(
            self._fields,
            source=self._topic,
            trace=body.trace,
            record_bytes_max=body.dead_letters.max_record_bytes,
            messages=body.source,
        )
