"""What is known of a table whose log is written: its columns, its quota, and how far its log has landed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tarn.core.decode import Decoder
from tarn.core.errors import CorruptStateError, InvalidSpecError
from tarn.core.log_claims import topic_of
from tarn.core.offsets import OffsetMap, TopicIdentity
from tarn.core.producers import STREAM
from tarn.core.quota import Quota, Used, quota_in
from tarn.core.row_parser import RowParser
from tarn.core.table_catalog import TableName
from tarn.core.table_columns import columns_of
from tarn.core.table_state import TableState
from tarn.gateway.log_records import LogColumns
from tarn.gateway.rows_commit import book_in
from tarn.ingest.batch_commit import offsets_in, streams_named


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """What is known of a version of the table.

    Attributes:
        state: that version.
        asked_s: when it was asked for, on the monotonic clock.
        landed: offsets of the streams that bring a topic with the log's name into the table, or brought one.
        quota: what the table's owner allows in a day.
        used: what was written with `lake`.
        columns: its columns.
    """

    state: TableState
    asked_s: float
    landed: Sequence[OffsetMap]
    quota: Quota
    used: Used
    columns: LogColumns

    def landed_of(self, source: TopicIdentity) -> OffsetMap | None:
        """How far this topic has landed: by partition, the offset of the stream that came furthest.

        A stream keeps its offsets when its ingestor is deleted and another one goes on under a new name: of
        the same topic, or of one that was created again.

        Returns:
            None if no stream is of this topic.
        """
        found = [one.next for one in self.landed if one.source == source]
        if not found:
            return None
        ends = {p: max(one.get(p, 0) for one in found) for p in sorted({p for one in found for p in one})}
        return OffsetMap(source=source, next=ends)


def looked(
    state: TableState, asked_s: float, *, table: TableName, known: LogColumns | None, row_bytes_max: int
) -> LogPlan:
    """What a version of the table says.

    Args:
        state: that version.
        asked_s: when it was asked for, on the monotonic clock.
        table: its name, for messages.
        known: its columns when it was asked for last, which are kept if they are the same.
        row_bytes_max: a longer record is a bad row.

    Raises:
        InvalidSpecError: nobody lands its log, or it takes no rows.
    """
    landed = landing(state)
    if not landed:
        raise InvalidSpecError(
            f"table {table} has no ingestor that brings its log, topic {topic_of(state.uuid)}, into it; run "
            f"scripts/tarn log {table}, wait until it is ready, and send the rows again",
            table=str(table),
        )
    fields = columns_of(state, table=str(table)).fields
    if known is None or known.fields != fields:
        decoder = Decoder(
            fields,
            source=STREAM,
            trace=False,
            record_bytes_max=row_bytes_max,
            parser=RowParser(fields),
            limit_name="the limit of a row",
        )
        known = LogColumns(fields=fields, decoder=decoder, row_bytes_max=row_bytes_max)
    return LogPlan(
        state=state,
        asked_s=asked_s,
        landed=landed,
        quota=quota_in(state.properties, table=str(table)),
        used=book_in(state).used,
        columns=known,
    )


def landing(state: TableState) -> list[OffsetMap]:
    """The offsets of the streams that bring a topic with the name of a table's log into it, or brought one.

    Raises:
        CorruptStateError: there is no such stream, and the offsets of another one cannot be read.
    """
    topic, found = topic_of(state.uuid), []
    unreadable: CorruptStateError | None = None
    for stream in sorted(streams_named(state)):
        try:
            offsets = offsets_in(state, stream)
        except CorruptStateError as e:
            unreadable = unreadable or e
            continue
        if offsets is not None and offsets.source.topic == topic:
            found.append(offsets)
    if not found and unreadable is not None:
        raise unreadable
    return found
