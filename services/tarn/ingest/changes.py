"""The two kinds of commit that ingestion makes: a batch of a stream, and the registering of dead letters."""

from __future__ import annotations

from dataclasses import dataclass

from tarn.adapters.files import WrittenFile
from tarn.core import dead_letter
from tarn.core.dead_letter import Marker, PendingFile
from tarn.core.offsets import (
    SUMMARY_PREFIX,
    TAG_PREFIX,
    AlreadyDone,
    OffsetMap,
    OffsetRange,
    Refused,
    SourceId,
    judge,
)
from tarn.core.table import TableState, marker_property
from tarn.ingest.committer import Covered, Fit, Unfit


def offsets_in(state: TableState, stream: str) -> OffsetMap | None:
    """Where the stream stands in this version of the table; None before its first commit.

    Raises:
        CorruptStateError: the map is unreadable, or was there and is lost.
    """
    text = state.newest(SUMMARY_PREFIX + stream, tag=TAG_PREFIX + stream)
    return None if text is None else OffsetMap.from_json(text)


def pending_in(state: TableState, stream: str) -> tuple[PendingFile, ...]:
    """Dead-letter files that this version of the table names.

    Raises:
        CorruptStateError: the list is unreadable.
    """
    key = dead_letter.PENDING_PREFIX + stream
    # Each of our commits writes both entries: the newest map's snapshot is the one that counts.
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


def markers_in(state: TableState) -> dict[str, Marker]:
    """Every stream's marker in this version of the dead-letter table.

    Raises:
        CorruptStateError: they are unreadable, or were there and are lost.
    """
    text = state.newest(dead_letter.MARKER_KEY, tag=dead_letter.MARKER_TAG)
    return {} if text is None else dead_letter.markers_from_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """A batch: its files, its ranges and its dead letters are one fact (invariants I5, I12).

    Attributes:
        commit_id: one for all attempts.
        table_uuid: the table that the plan was made for; one of the same name made anew is another.
        stream: whose batch.
        source: what was read.
        ranges: what was read of it.
        fresh: partitions that the table did not know when the plan was made.
        files: the good records.
        letters: the dead-letter file, if there are bad ones; its sequence is filled in per attempt.
        registered: the marker last seen in the dead-letter table; files it covers are not carried on.
    """

    commit_id: str
    table_uuid: str
    stream: str
    source: SourceId
    ranges: tuple[OffsetRange, ...]
    fresh: frozenset[int] = frozenset()
    files: tuple[WrittenFile, ...] = ()
    letters: tuple[WrittenFile, ...] = ()
    registered: Marker | None = None

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
        verdict = judge(offsets_in(state, self.stream), self.source, self.ranges, fresh=self.fresh)
        if isinstance(verdict, AlreadyDone):
            return Covered()
        if isinstance(verdict, Refused):
            return Unfit(reason=verdict.reason)
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
    """Puts dead-letter files into the dead-letter table; the marker moves with them, so each goes in once.

    Attributes:
        commit_id: one for all attempts.
        table_uuid: the dead-letter table that the plan was made for.
        stream: whose dead letters.
        ingested_uuid: the ingested table that names them.
        sequence: the newest of them.
        files: what to register.
        after: the marker that they were chosen against.
    """

    commit_id: str
    table_uuid: str
    stream: str
    ingested_uuid: str
    sequence: int
    files: tuple[WrittenFile, ...]
    after: Marker | None

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
        markers[self.stream] = Marker(table_uuid=self.ingested_uuid, sequence=self.sequence)
        return Fit(summary={dead_letter.MARKER_KEY: dead_letter.markers_to_json(markers)})
