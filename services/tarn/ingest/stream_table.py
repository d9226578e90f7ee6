"""The table that a stream fills: its columns, the decoder of the messages, and the writer of its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from tarn.core.creation import columns_for, needs_messages, sampled
from tarn.core.decode import Decoder
from tarn.core.errors import InvalidSpecError, NoSuchTableError
from tarn.core.spec import FieldSpec, IngestorSpec
from tarn.core.spec.fields import FIELDS_MAX
from tarn.core.table_catalog import TableName
from tarn.core.table_columns import columns_of, mapped, names_taken
from tarn.core.table_files import TableFiles, TableWriter
from tarn.core.table_state import TableState
from tarn.ingest.changes import TableCommits
from tarn.ingest.context import IngestContext
from tarn.ingest.sampling import Sampler

log = structlog.get_logger()

NOTES_SHOWN_MAX = 50
"""Notes about a sample that are logged; it can have as many as the sample has keys."""


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
        self._said_over = False
        self._said_taken = frozenset[str]()
        self.name = TableName(self._body.table.levels, self._body.table.name)
        if not self.own_columns:
            self._take(self._body.fields or ())

    @property
    def own_columns(self) -> bool:
        """Whether the columns are the table's own, as the spec names none."""
        return self._body.columns is None or self._body.infers

    @property
    def writer(self) -> TableWriter:
        """The current writer; there is one after `open`."""
        if self._writer is None:
            raise AssertionError("no writer before the first plan")
        return self._writer

    def ensure(self, committer: TableCommits, sampler: Sampler) -> TableState:
        """Load the table; create it, with its namespace, if it does not exist and the spec has a schema.

        Args:
            committer: commits to the table.
            sampler: takes samples of the topic, if the columns are inferred.

        Raises:
            InvalidSpecError: it does not exist, and the spec has no schema, or one that messages do not fit.
            NoMessagesError: it does not exist, and there is no message to infer its columns from.
            UnavailableError: the catalog or the topic does not respond.
        """
        if not self.own_columns:
            committer.ensure(self.files.create_request())
        elif self._body.infers:
            try:
                return committer.load()
            except NoSuchTableError:
                self._create(committer, sampler)
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

    def evolve(
        self, state: TableState, committer: TableCommits, sampler: Sampler, positions: Mapping[int, int]
    ) -> TableState:
        """Alter the table to have the spec's columns, or those of the next messages, if the spec says so.

        Args:
            state: version of the table.
            committer: commits to the table.
            sampler: takes samples of the topic, if the columns are inferred.
            positions: next offset of each partition.

        Raises:
            InvalidSpecError: no such change suffices.
            UnavailableError: the catalog or topic does not respond, or another commit came first.
        """
        if self._body.columns is None or self._body.columns.evolution == "strict":
            return state
        files = self._with_more(state, sampler, positions) if self._body.infers else self.files
        request = files.evolution(state) if files is not None else None
        if request is None or files is None:
            return state
        altered = committer.alter(request)
        log.info(
            "table altered",
            ingestor=self._ingestor,
            table=str(self.name),
            changes=list(files.changes(state, altered)),
        )
        return altered

    def open(self, state: TableState) -> None:
        """Take the columns, if they are the table's own, and the writer of this version of the table.

        Raises:
            InvalidSpecError: the table cannot take the columns, or has none that messages can fill.
        """
        if self.own_columns:
            found = columns_of(state, table=str(self.name))
            fields = mapped(found.fields, self._body, table=str(self.name))
            if fields != self._fields:
                self._take(fields)
                log.info(
                    "columns taken from the table",
                    ingestor=self._ingestor,
                    columns=[f"{field.name} {field.type}" for field in fields],
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

    def _create(self, committer: TableCommits, sampler: Sampler) -> None:
        """Create the table with the columns of the first messages, if nobody else was faster."""
        body = self._body
        sample = sampler.first() if needs_messages(body) else sampled(body, ())
        try:
            found = columns_for(body, sample)
        except ValueError as e:
            raise InvalidSpecError(
                f"table {self.name} cannot be created with the columns of the first messages of topic "
                f"{self._topic}: {e}",
                table=str(self.name),
            ) from e
        if not found.fields:
            raise InvalidSpecError(
                f"table {self.name} cannot be created: the first messages of topic {self._topic} have no "
                f"value that a column could hold{': ' if found.notes else ''}"
                f"{'; '.join(_shown(found.notes))}; name the columns in the spec",
                table=str(self.name),
            )
        committer.ensure(self._files(found.fields).create_request())
        log.info(
            "columns inferred",
            ingestor=self._ingestor,
            table=str(self.name),
            columns=[f"{field.name} {field.type}" for field in found.fields],
            left_out=_shown(found.notes),
        )

    def _with_more(
        self, state: TableState, sampler: Sampler, positions: Mapping[int, int]
    ) -> TableFiles | None:
        """Files of the table with the columns of the next messages too; None if there are none."""
        body, own = self._body, columns_of(state, table=str(self.name)).fields
        sample = sampler.next(positions) if needs_messages(body) else sampled(body, ())
        if sample is None:
            return None
        try:
            found = columns_for(body, sample, known=own, taken=names_taken(state))
            files = self._files(found.fields)
        except ValueError as e:
            raise InvalidSpecError(
                f"table {self.name} and the next messages of topic {self._topic}: {e}", table=str(self.name)
            ) from e
        if found.over and not self._said_over:
            self._said_over = True
            log.warning(
                "keys of the messages get no column, as there are too many; mapping.rest keeps their values",
                ingestor=self._ingestor,
                table=str(self.name),
                keys=found.over,
                columns_max=FIELDS_MAX,
            )
        if not self._said_taken.issuperset(found.taken):
            self._said_taken |= set(found.taken)
            log.warning(
                "keys of the messages get no column, as the table has their names for something else; "
                "mapping.rename gives them others",
                ingestor=self._ingestor,
                table=str(self.name),
                keys=_shown(found.taken),
            )
        return files

    def _files(self, fields: Sequence[FieldSpec]) -> TableFiles:
        table = self._body.table
        return self._context.tables.table(
            str(self.name),
            fields,
            trace=self._body.trace,
            partitioning=table.partitioning,
            properties=table.properties,
            format_version=table.format_version,
        )

    def _take(self, fields: Sequence[FieldSpec]) -> None:
        body = self._body
        self._fields = tuple(fields)
        self.files = self._files(self._fields)
        self.decoder = Decoder(
            self._fields,
            source=self._topic,
            trace=body.trace,
            record_bytes_max=body.dead_letters.max_record_bytes,
            messages=body.source,
        )


def _shown(notes: Sequence[str]) -> list[str]:
    """The first of the notes, and how many more there are."""
    more = len(notes) - NOTES_SHOWN_MAX
    return [*notes[:NOTES_SHOWN_MAX], *([f"{more:,} more"] if more > 0 else [])]
