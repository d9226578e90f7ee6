"""The two kinds of ingest commit: a batch of a stream, and the registration of dead-letter files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tarn.adapters.files import WrittenFile
from tarn.core import dead_letter
from tarn.core.dead_letter import DeadLetterWatermark, PendingFile
from tarn.core.errors import CorruptStateError, OtherStreamError
from tarn.core.offsets import (
    SUMMARY_PREFIX,
    TAG_PREFIX,
    AlreadyDone,
    OffsetMap,
    OffsetMismatch,
    OffsetRange,
    TopicIdentity,
    check_offsets,
)
from tarn.core.source import OffsetBounds
from tarn.core.table_state import Json, TableState, marker_property
from tarn.ingest.committer import Covered, Fit, Unfit


def offsets_in(state: TableState, stream: str) -> OffsetMap | None:
    """The stream's offset map in this version of the table; None before its first commit.

    Raises:
        CorruptStateError: the map is unreadable, or it existed and was lost.
    """
    text = state.newest(SUMMARY_PREFIX + stream, tag=TAG_PREFIX + stream)
    return None if text is None else OffsetMap.from_json(text)


def streams_named(state: TableState) -> frozenset[str]:
    """Names of all streams that ever wrote the table, from its properties; cheap enough for every commit."""
    suffix = marker_property("")
    return frozenset(
        key[len(SUMMARY_PREFIX) : -len(suffix)]
        for key in state.properties
        if key.startswith(SUMMARY_PREFIX) and key.endswith(suffix)
    )


def require_only_stream(
    state: TableState, stream: str, source: TopicIdentity, bounds: Mapping[int, OffsetBounds], *, table: str
) -> None:
    """Require that the stream may begin in the table: no other stream has committed records it would read.

    Another stream does not count if:

    - it was rolled back together with its rows;
    - it read another topic of the same name (recreated, or in another cluster), whose offsets are unrelated;
    - all its offsets lie before the log start: no record is read twice, and whoever chooses a new stream name
      accepts the loss of the records in between.

    Args:
        state: version of the target table.
        stream: name of the stream that is about to begin.
        source: identity of the topic that it reads.
        bounds: partition to log start and end offsets.
        table: name of the table, for the error message.

    Raises:
        OtherStreamError: another stream has committed such records.
    """
    for other in sorted(_others(state, stream)):
        found = _map_of(state, other)
        if isinstance(found, OffsetMap) and (found.source.cluster, found.source.topic_id) != (
            source.cluster,
            source.topic_id,
        ):
            continue
        if found is None:
            continue
        if isinstance(found, OffsetMap) and all(
            p not in bounds or bounds[p].start >= offset for p, offset in found.next.items()
        ):
            continue
        stands = f"offsets {dict(found.next)}" if isinstance(found, OffsetMap) else "offsets unknown"
        raise OtherStreamError(
            f"table {table} holds stream {other!r} of topic {source.topic} ({stands}), and stream {stream!r} "
            "would put the same records in again. If this ingestor was renamed, say so in its spec: "
            f"metadata.stream: {other}; else write to another table",
            table=table,
            stream=stream,
            other=other,
        )


def _others(state: TableState, stream: str) -> frozenset[str]:
    tagged = {name[len(TAG_PREFIX) :] for name in state.refs if name.startswith(TAG_PREFIX)}
    return (streams_named(state) | tagged) - {stream}


def _map_of(state: TableState, stream: str) -> OffsetMap | Literal["unknown"] | None:
    """The newest offset map of another stream whose rows the current snapshot includes.

    Returns:
        The map; None if the current snapshot has no rows of the stream; "unknown" if the map is unreadable or
        was lost with expired snapshots.
    """
    key = SUMMARY_PREFIX + stream
    oldest: Json | None = None
    for snapshot in state.ancestors():
        text = (snapshot.get("summary") or {}).get(key)
        if text is not None:
            return _read(text)
        oldest = snapshot
    if oldest is None or oldest.get("parent-snapshot-id") is None:
        return None
    # Older snapshots have expired: the rows may predate the ancestry unless the stream began after its start.
    began = state.properties.get(marker_property(key), "")
    if began.isdecimal() and int(began) > int(oldest["timestamp-ms"]):
        return None
    texts = [t for s in state.metadata.get("snapshots") or [] if (t := (s.get("summary") or {}).get(key))]
    return _read(texts[-1]) if texts else "unknown"


def _read(text: str) -> OffsetMap | Literal["unknown"]:
    try:
        return OffsetMap.from_json(text)
    except CorruptStateError:
        return "unknown"


def pending_in(state: TableState, stream: str) -> tuple[PendingFile, ...]:
    """Dead-letter files that this version of the table lists as not yet registered.

    Raises:
        CorruptStateError: the list is unreadable.
    """
    key = dead_letter.PENDING_PREFIX + stream
    # Every batch commit writes both entries, so the snapshot with the newest offset map is authoritative.
    for snapshot in state.ancestors():
        summary = snapshot.get("summary", {})
        if SUMMARY_PREFIX + stream in summary:
            text = summary.get(key)
            return dead_letter.pending_from_json(text) if text else ()
    tagged = state.refs.get(TAG_PREFIX + stream)
    if tagged is None:
        return ()
    text = state.snapshot(int(tagged["snapshot-id"])).get("summary", {}).get(key)
    return dead_letter.pending_from_json(text) if text else ()


def markers_in(state: TableState) -> dict[str, DeadLetterWatermark]:
    """Watermark per stream in this version of the dead-letter table.

    Raises:
        CorruptStateError: the watermarks are unreadable, or they existed and were lost.
    """
    text = state.newest(dead_letter.MARKER_KEY, tag=dead_letter.MARKER_TAG)
    return {} if text is None else dead_letter.markers_from_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCommit:
    """One batch: its data files, offset ranges and dead letters commit atomically (invariants I5, I12).

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the planned table; a table recreated under the same name has another.
        stream: name of the stream.
        source: identity of the topic that was read.
        ranges: offset ranges that the batch covers.
        fresh: partitions missing from the table's offset map at planning time.
        files: data files of the good records.
        letters: the dead-letter file, if there are bad records; its sequence number is set per attempt.
        registered: watermark last seen in the dead-letter table; files it covers are not carried forward.
        beside: other streams in the table at planning time; any further stream requires a new plan.
    """

    commit_id: str
    table_uuid: str
    stream: str
    source: TopicIdentity
    ranges: tuple[OffsetRange, ...]
    fresh: frozenset[int] = frozenset()
    files: tuple[WrittenFile, ...] = ()
    letters: tuple[WrittenFile, ...] = ()
    registered: DeadLetterWatermark | None = None
    beside: frozenset[str] = frozenset()

    @property
    def tag(self) -> str:
        """See `Change.tag`."""
        return TAG_PREFIX + self.stream

    @property
    def since(self) -> str:
        """See `Change.since`."""
        return marker_property(SUMMARY_PREFIX + self.stream)

    def on(self, state: TableState) -> Covered | Unfit | Fit:
        """See `Change.on`.

        Raises:
            SourceChangedError: the table's offsets belong to another topic.
        """
        verdict = check_offsets(offsets_in(state, self.stream), self.source, self.ranges, fresh=self.fresh)
        if isinstance(verdict, AlreadyDone):
            return Covered()
        if isinstance(verdict, OffsetMismatch):
            return Unfit(reason=verdict.reason)
        new = streams_named(state) - {self.stream} - self.beside
        if new:
            return Unfit(reason=f"another stream began in the table meanwhile: {', '.join(sorted(new))}")
        carried = dead_letter.unregistered(
            pending_in(state, self.stream), self.registered, table_uuid=state.uuid
        )
        sequence = state.last_sequence + 1
        fresh = tuple(
            PendingFile(path=f.path, records=f.records, bytes=f.bytes, sequence=sequence)
            for f in self.letters
        )
        waiting = carried + fresh
        if len(waiting) > dead_letter.PENDING_FILES_MAX:
            return Unfit(
                reason=f"{len(carried)} dead-letter files wait to be registered, the limit is "
                f"{dead_letter.PENDING_FILES_MAX}; see why the dead-letter table takes none"
            )
        summary = {SUMMARY_PREFIX + self.stream: verdict.after.to_json()}
        if waiting:
            summary[dead_letter.PENDING_PREFIX + self.stream] = dead_letter.pending_to_json(waiting)
        return Fit(summary=summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterChange:
    """Appends dead-letter files to the dead-letter table and advances the watermark in the same commit.

    Each file is therefore registered exactly once.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table_uuid: UUID of the dead-letter table at planning time.
        stream: stream whose dead letters these are.
        ingested_uuid: UUID of the ingested table that lists the files.
        sequence: highest sequence number among the files.
        files: files to register.
        after: watermark against which the files were selected.
    """

    commit_id: str
    table_uuid: str
    stream: str
    ingested_uuid: str
    sequence: int
    files: tuple[WrittenFile, ...]
    after: DeadLetterWatermark | None

    @property
    def tag(self) -> str:
        """See `Change.tag`."""
        return dead_letter.MARKER_TAG

    @property
    def since(self) -> str:
        """See `Change.since`."""
        return marker_property(dead_letter.MARKER_KEY)

    def on(self, state: TableState) -> Covered | Unfit | Fit:
        """See `Change.on`."""
        markers = markers_in(state)
        found = markers.get(self.stream)
        if found is not None and found.table_uuid == self.ingested_uuid and found.sequence >= self.sequence:
            return Covered()
        if found != self.after:
            return Unfit(
                reason=f"the marker of {self.stream} is {found}, the files were chosen at {self.after}"
            )
        markers[self.stream] = DeadLetterWatermark(table_uuid=self.ingested_uuid, sequence=self.sequence)
        return Fit(summary={dead_letter.MARKER_KEY: dead_letter.markers_to_json(markers)})
