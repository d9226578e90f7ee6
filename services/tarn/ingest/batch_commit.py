"""A batch of a stream: its files and bad records, and the commit of both.

Every record ends in exactly one of the two (I12).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import pyarrow as pa

from tarn.core import completion, dead_letter, watermark
from tarn.core.batch import RawBatch
from tarn.core.completion import Announced, OpenPartitions
from tarn.core.dead_letter import DeadLetterWatermark, PendingFile
from tarn.core.decode import Decoded, Decoder, joined
from tarn.core.errors import CorruptStateError, OtherStreamError
from tarn.core.history import STAGED_KEY
from tarn.core.isolate import isolate
from tarn.core.offsets import (
    SUMMARY_PREFIX,
    TAG_PREFIX,
    OffsetMap,
    OffsetRange,
    TopicIdentity,
    check_offsets,
)
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.retired import PREFIX as RETIRED_PREFIX
from tarn.core.retired import Retired
from tarn.core.table_files import EncodedFile, TableWriter
from tarn.core.table_state import (
    Append,
    Json,
    TableState,
    WrittenFile,
    marker_property,
    sequence,
    stated_at,
)
from tarn.core.watermark import EventTimeRule, Watermark

STATED = (SUMMARY_PREFIX, dead_letter.PENDING_PREFIX, watermark.PREFIX, completion.PREFIX, RETIRED_PREFIX)
"""What each commit of a stream states: properties of the snapshot summary, each followed by its name."""


def offsets_in(state: TableState, stream: str) -> OffsetMap | None:
    """The stream's offset map in this version of the table; None before its first commit.

    Raises:
        CorruptStateError: the map is unreadable, or it existed and was lost: with expired snapshots, or as
            the table was replaced, so that the log would be added to the rows that it has.
    """
    text = state.newest(SUMMARY_PREFIX + stream, tag=TAG_PREFIX + stream)
    if text is not None:
        return OffsetMap.from_json(text)
    first = replaced_by(state, stream)
    if first is not None:
        raise CorruptStateError(
            f"table {state.uuid} was replaced: its history begins with snapshot {first}, which has rows and "
            f"came after the first commit of stream {stream}, and none of it states the stream's offsets. "
            f"{_ways_on(state, stream)}",
            table=state.uuid,
            stream=stream,
        )
    return None


def _ways_on(state: TableState, stream: str) -> str:
    """What to do about a table that was replaced, and loses or doubles no row of any stream."""
    former, tag = former_head(state), TAG_PREFIX + stream
    ways = []
    if former is not None:
        ways.append(f"For the former rows: scripts/tarn rollback TABLE --to {former} --offsets rewind.")
    if left_off(state, stream):
        ways.append(
            "To keep these rows and read on from where the stream was: scripts/tarn rollback TABLE --to main "
            "--offsets keep; what was committed while they were selected then stays away."
        )
    if tag not in state.refs:
        ways.append(f"The tag {tag} is gone: with it on the stream's last commit there are other ways.")
    ways.append(
        "To fill the table from what the log contains, delete all its rows; those that came over HTTP and "
        "are in no log do not come back"
    )
    return " ".join(ways)


def former_head(state: TableState) -> int | None:
    """The newest snapshot outside the history that has all that a replaced table's streams committed.

    The tags say what that is. A stream that has none does not count.

    Returns:
        The snapshot; None if none is known.

    Raises:
        CorruptStateError: a tagged snapshot is missing.
    """
    last = {
        stream: state.snapshot(int(state.refs[TAG_PREFIX + stream]["snapshot-id"]))
        for stream in streams_named(state)
        if TAG_PREFIX + stream in state.refs and replaced_by(state, stream) is not None
    }
    oldest = max((stated_at(one, SUMMARY_PREFIX + s) for s, one in last.items()), default=None)
    if oldest is None:
        return None
    apart = {snapshot["snapshot-id"] for snapshot in state.ancestors()}
    for snapshot in sorted(state.metadata.get("snapshots") or [], key=sequence, reverse=True):
        if sequence(snapshot) < oldest:
            break
        if snapshot["snapshot-id"] in apart or STAGED_KEY in (snapshot.get("summary") or {}):
            continue
        then = state.at(snapshot["snapshot-id"])
        if all(
            stated(then, s).get(SUMMARY_PREFIX + s) == one["summary"].get(SUMMARY_PREFIX + s)
            for s, one in last.items()
        ):
            return int(snapshot["snapshot-id"])
    return None


def left_off(state: TableState, stream: str) -> bool:
    """Whether a stream's tag says where it was when another client replaced the table.

    It does not if it is newer than the replacement, nor if it went back since: then a snapshot that states
    the stream is newer.
    """
    first, tagged = replaced_by(state, stream), state.refs.get(TAG_PREFIX + stream)
    if first is None or tagged is None:
        return False
    key = SUMMARY_PREFIX + stream
    stating = [s for s in state.metadata.get("snapshots") or [] if key in (s.get("summary") or {})]
    newest = max(stating, key=sequence, default=None)
    return (
        newest is not None
        and newest["snapshot-id"] == tagged["snapshot-id"]
        and stated_at(newest, key) < sequence(state.snapshot(first))
    )


def replaced_by(state: TableState, stream: str) -> int | None:
    """Id of the first snapshot, if with it another client replaced the table that the stream had written.

    Raises:
        CorruptStateError: the stream's tagged snapshot is missing.
    """
    return state.replaced_after(SUMMARY_PREFIX + stream, tag=TAG_PREFIX + stream)


def streams_named(state: TableState) -> frozenset[str]:
    """Names of all streams that ever wrote the table, from its properties; cheap enough for every commit."""
    suffix = marker_property("")
    return frozenset(
        key[len(SUMMARY_PREFIX) : -len(suffix)]
        for key in state.properties
        if key.startswith(SUMMARY_PREFIX) and key.endswith(suffix)
    )


def require_only_stream(
    state: TableState, stream: str, source: TopicIdentity, positions: Mapping[int, int], *, table: str
) -> frozenset[str]:
    """Require that no other stream has committed records that this one would read.

    Another stream does not count if:

    - it was rolled back together with its rows;
    - it read another topic of the same name (recreated, or in another cluster), whose offsets are unrelated;
    - all its offsets lie at or before the positions: no record is read twice. A stream that begins where
      the log does thereby accepts the loss of the records in between;
    - its offsets are unknown, and this stream has begun already.

    Args:
        state: version of the target table.
        stream: name of the stream.
        source: identity of the topic that it reads.
        positions: partition to the offset that the stream is about to read.
        table: name of the table, for the error message.

    Returns:
        Other streams that commits of this one need not look at. One of the same topic is none of them: it
        may have been at the same offsets, and go on.

    Raises:
        OtherStreamError: another stream has committed such records.
    """
    own, apart = offsets_in(state, stream), set[str]()
    began = own is not None and bool(own.next)
    for other in sorted(_others(state, stream)):
        found = _map_of(state, other)
        if found == "unknown" and began:
            apart.add(other)
        elif _is_ahead(found, source, positions):
            stands = f"offsets {dict(found.next)}" if isinstance(found, OffsetMap) else "offsets unknown"
            raise OtherStreamError(
                f"table {table} holds stream {other!r} of topic {source.topic} ({stands}), and stream "
                f"{stream!r} would put the same records in again. {_way_out(other, stream, source.topic)}; "
                "else write to another table",
                table=table,
                stream=stream,
                other=other,
            )
        elif isinstance(found, OffsetMap) and not _may_overlap(found, source):
            apart.add(other)
    return frozenset(apart)


def _is_ahead(
    found: OffsetMap | Literal["unknown"] | None, source: TopicIdentity, positions: Mapping[int, int]
) -> bool:
    """Whether a stream with this map has committed records that one at these positions would read."""
    if isinstance(found, OffsetMap) and _may_overlap(found, source):
        return any(p in positions and offset > positions[p] for p, offset in found.next.items())
    return _may_overlap(found, source)


def _may_overlap(found: OffsetMap | Literal["unknown"] | None, source: TopicIdentity) -> bool:
    """Whether a stream with this map may have read records of the topic; not if it has no rows here."""
    if isinstance(found, OffsetMap):
        return (found.source.cluster, found.source.topic_id) == (source.cluster, source.topic_id)
    return found is not None


def _way_out(other: str, stream: str, topic: str) -> str:
    """What to do about another stream of the topic, which may be one of several topics."""
    first, dot, last = other.partition(f".{topic}")
    if dot and not last:
        return (
            "If this ingestor was renamed, or read several topics, say so in its spec: metadata.stream: "
            f"{first}, and the topic in topics"
        )
    if stream.endswith(f".{topic}"):
        return f"An ingestor of one topic cannot become one of several: keep topic: {topic}"
    return f"If this ingestor was renamed, say so in its spec: metadata.stream: {other}"


def _others(state: TableState, stream: str) -> frozenset[str]:
    tagged = {name[len(TAG_PREFIX) :] for name in state.refs if name.startswith(TAG_PREFIX)}
    return (streams_named(state) | tagged) - {stream}


def _map_of(state: TableState, stream: str) -> OffsetMap | Literal["unknown"] | None:
    """The newest offset map of another stream whose rows the current snapshot includes.

    Returns:
        The map; None if the current snapshot has no rows of the stream; "unknown" if the map is unreadable or
        was lost with expired snapshots. If the table was replaced by one with rows, they may be the stream's.
    """
    key = SUMMARY_PREFIX + stream
    oldest: Json | None = None
    for snapshot in state.ancestors():
        text = (snapshot.get("summary") or {}).get(key)
        if text is not None:
            return _read(text)
        oldest = snapshot
    if oldest is None:
        return None
    if oldest.get("parent-snapshot-id") is None:
        if replaced_by(state, stream) is None:
            return None
    else:
        # Older snapshots have expired: the rows may predate the ancestry unless the stream began after it.
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
    text = stated(state, stream).get(dead_letter.PENDING_PREFIX + stream)
    return dead_letter.pending_from_json(text) if text else ()


def watermark_in(state: TableState, stream: str) -> Watermark | None:
    """The stream's watermark in this version of the table; None if its last commit stated none.

    Raises:
        CorruptStateError: it is unreadable.
    """
    text = stated(state, stream).get(watermark.PREFIX + stream)
    return Watermark.from_json(text) if text else None


def retired_text(state: TableState, stream: str) -> str | None:
    """What the stream states of rows that retention dropped, as it is; None if nothing."""
    return stated(state, stream).get(RETIRED_PREFIX + stream)


def retired_in(state: TableState, stream: str) -> Retired | None:
    """The stream's rows that retention dropped; None if there are none.

    Raises:
        CorruptStateError: the statement is unreadable.
    """
    text = retired_text(state, stream)
    return Retired.from_json(text) if text else None


def open_in(state: TableState, stream: str) -> OpenPartitions | None:
    """The stream's partitions that are not announced as complete; None if its last commit stated none.

    Raises:
        CorruptStateError: the list is unreadable.
    """
    text = stated(state, stream).get(completion.PREFIX + stream)
    return OpenPartitions.from_json(text) if text else None


def opened_by(
    state: TableState,
    stream: str,
    files: Iterable[WrittenFile],
    *,
    column: str,
    announced: Announced,
) -> OpenPartitions | None:
    """The stream's open partitions after a commit on this version; None if it never had any by time.

    While the table is not partitioned by time, the list stays as it is.

    Args:
        state: version of the table that the commit builds on.
        stream: name of the stream.
        files: data files that the commit adds.
        column: column of the event time.
        announced: partitions whose event was sent.
    """
    found, before = completion.time_field(state, column), open_in(state, stream)
    if found is None:
        return before
    mark = watermark_in(state, stream)
    through_us = None if mark is None or mark.column != column else watermark.complete_through(state, mark)
    return completion.followed(before, state, found).after(
        added=completion.touched(files, found),
        announced=announced.holding(state, found.unit),
        complete_below=None if through_us is None else found.number(through_us),
        sequence=state.last_sequence + 1,
    )


def next_mark(
    state: TableState,
    stream: str,
    rule: EventTimeRule,
    *,
    partitions: frozenset[int],
    latest: Mapping[int, int],
    now_ms: int,
) -> Watermark:
    """The stream's watermark after a commit on this version; see `watermark.advanced`."""
    return watermark.advanced(
        watermark_in(state, stream),
        rule,
        partitions=partitions,
        latest=latest,
        now_ms=now_ms,
        end_us=watermark.partition_end(state, rule.column),
    )


def stated(state: TableState, stream: str) -> Mapping[str, str]:
    """The summary of the stream's last commit. It states everything, so what is not there does not hold."""
    return state.newest_summary(SUMMARY_PREFIX + stream, tag=TAG_PREFIX + stream) or {}


def stream_append(
    files: tuple[WrittenFile, ...],
    *,
    commit_id: str,
    stream: str,
    offsets: OffsetMap,
    pending: tuple[PendingFile, ...],
    mark: Watermark | None = None,
    complete_us: int | None = None,
    opened: OpenPartitions | None = None,
    retired: str | None = None,
    removed: tuple[WrittenFile, ...] = (),
) -> Append:
    """The snapshot of a stream's commit, with all that the stream states in every snapshot of its own.

    Args:
        files: files to add.
        commit_id: identifies the commit.
        stream: name of the stream.
        offsets: the offset map that holds after the commit.
        pending: dead-letter files that are not yet registered after it.
        mark: the watermark after it.
        complete_us: the same, floored to the table's partitions, in microseconds since the epoch.
        opened: partitions that are not announced as complete.
        retired: what retention dropped, as stored.
        removed: files to remove.
    """
    summary = {SUMMARY_PREFIX + stream: offsets.to_json()}
    if pending:
        summary[dead_letter.PENDING_PREFIX + stream] = dead_letter.pending_to_json(pending)
    if opened is not None:
        summary[completion.PREFIX + stream] = opened.to_json()
    if retired is not None:
        summary[RETIRED_PREFIX + stream] = retired
    shown: dict[str, str] = {}
    if mark is not None:
        summary[watermark.PREFIX + stream] = mark.to_json()
        for key, at_us in ((watermark.PREFIX, mark.at_us), (watermark.COMPLETE_PREFIX, complete_us)):
            if at_us is not None:
                shown[key + stream] = watermark.as_text(at_us)
    return Append.of(
        files,
        commit_id=commit_id,
        summary=summary,
        tag=TAG_PREFIX + stream,
        since=marker_property(SUMMARY_PREFIX + stream),
        removed=removed,
        properties=shown,
        restated=frozenset(key + stream for key in STATED),
    )


def with_absent(state: TableState, append: Append, stream: str) -> Append:
    """The append; of a table that was replaced and is or was empty, with the streams whose rows went with it.

    It states that they have no offsets, and moves their tags. Else the tags would count again once the first
    snapshot of the new history is thinned: a stream that comes later would read on from where it was.

    Args:
        state: version of the table that the commit builds on.
        append: the commit.
        stream: name of its stream.

    Raises:
        CorruptStateError: a tagged snapshot is missing.
    """
    others = sorted(streams_named(state) - {stream})
    if not others:
        return append
    *_, first = (None, *state.ancestors())
    if first is not None and first.get("parent-snapshot-id") is not None:
        return append
    absent: dict[str, str] = {}
    for other in others:
        key, tagged = SUMMARY_PREFIX + other, state.refs.get(TAG_PREFIX + other)
        if tagged is None or key in stated(state, other):
            continue
        last = state.snapshot(int(tagged["snapshot-id"]))
        known = _read((last.get("summary") or {}).get(key, ""))
        before = first is None or stated_at(last, key) < sequence(first)
        if before and known != "unknown" and replaced_by(state, other) is None:
            absent[other] = OffsetMap(source=known.source).to_json()
    if not absent:
        return append
    return replace(
        append,
        summary={**append.summary, **{SUMMARY_PREFIX + other: text for other, text in absent.items()}},
        tags=(*append.tags, *(TAG_PREFIX + other for other in absent)),
    )


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
        epochs: partition to the leader epoch of its range; see `OffsetMap`.
        files: data files of the good records.
        letters: the dead-letter file, if there are bad records; its sequence number is set per attempt.
        registered: watermark last seen in the dead-letter table; files it covers are not carried forward.
        beside: other streams in the table that have nothing of the topic, see `require_only_stream`; if any
            further one has committed such records, a new plan is required.
        event_time: rule of the stream's watermark; None for none.
        latest: partition to the latest event time in the batch, in microseconds since the epoch.
        at_ms: wall-clock time of the batch, in milliseconds since the epoch.
        announced: events that were sent about complete partitions; None if the stream announces none.
        removed: nothing; a batch only adds.
    """

    commit_id: str
    table_uuid: str
    stream: str
    source: TopicIdentity
    ranges: tuple[OffsetRange, ...]
    fresh: frozenset[int] = frozenset()
    epochs: Mapping[int, int] = field(default_factory=dict)
    files: tuple[WrittenFile, ...] = ()
    letters: tuple[WrittenFile, ...] = ()
    registered: DeadLetterWatermark | None = None
    beside: frozenset[str] = frozenset()
    event_time: EventTimeRule | None = None
    latest: Mapping[int, int] = field(default_factory=dict)
    at_ms: int = 0
    announced: Announced | None = None
    removed: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`.

        Raises:
            SourceChangedError: the table's offsets belong to another topic.
        """
        after = check_offsets(
            offsets_in(state, self.stream), self.source, self.ranges, fresh=self.fresh, epochs=self.epochs
        )
        if not isinstance(after, OffsetMap):
            return after
        # Where the stream stands before the batch.
        positions = {**after.next, **{r.partition: r.start for r in self.ranges}}
        others = sorted(streams_named(state) - {self.stream} - self.beside)
        ahead = [other for other in others if _is_ahead(_map_of(state, other), self.source, positions)]
        if ahead:
            return Rejected(reason=f"another stream of the topic has such records: {', '.join(ahead)}")
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
            return Rejected(
                reason=f"{len(carried)} dead-letter files wait to be registered, the limit is "
                f"{dead_letter.PENDING_FILES_MAX}; see why the dead-letter table takes none"
            )
        mark = self._mark(state, after)
        append = stream_append(
            self.files,
            commit_id=self.commit_id,
            stream=self.stream,
            offsets=after,
            pending=waiting,
            mark=mark,
            complete_us=None if mark is None else watermark.complete_through(state, mark),
            opened=self._opened(state),
            retired=retired_text(state, self.stream),
        )
        return with_absent(state, append, self.stream)

    def _opened(self, state: TableState) -> OpenPartitions | None:
        if self.event_time is None or self.announced is None:
            return None
        column = self.event_time.column
        return opened_by(state, self.stream, self.files, column=column, announced=self.announced)

    def _mark(self, state: TableState, after: OffsetMap) -> Watermark | None:
        if self.event_time is None:
            return None
        return next_mark(
            state,
            self.stream,
            self.event_time,
            partitions=frozenset(after.next) | self.fresh,
            latest=self.latest,
            now_ms=self.at_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Result of encoding a batch; rows and bad records together are all of its records.

    Attributes:
        files: encoded data files of the good records, not yet in the store.
        rows: number of good records.
        bad: index in the batch to the reason of rejection.
    """

    files: tuple[EncodedFile, ...]
    rows: int
    bad: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBatch:
    """A batch whose files are in the store or on the way there, in no table yet. Its records are not held.

    Attributes:
        rows: number of good records.
        bad: index in the batch to the reason of rejection.
        ranges: offset ranges that the batch covers.
        oldest_ms: time of its oldest record that has one, in milliseconds since the epoch.
        files: data files of the good records.
        letters: the dead-letter file of the bad records, if any.
        latest: partition to the latest event time of the rows, in microseconds since the epoch.
        at_ms: when they were written, in milliseconds since the epoch.
        decode_s: duration of decoding, in seconds.
        write_s: duration of encoding and writing, in seconds.
    """

    rows: int
    bad: Mapping[int, str]
    ranges: tuple[OffsetRange, ...]
    oldest_ms: int | None
    files: tuple[WrittenFile, ...]
    letters: tuple[WrittenFile, ...]
    latest: Mapping[int, int]
    at_ms: int
    decode_s: float
    write_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """A batch that the table includes, and nothing of its stream beyond it.

    Attributes:
        state: the table after the commit.
        after: partition to next offset.
    """

    state: TableState
    after: Mapping[int, int]


def decode(decoder: Decoder, batch: RawBatch) -> Decoded:
    """Decode like `Decoder.decode`, but treat a record that makes the decoder fail as a bad record.

    Raises:
        Exception: decoding fails even without records, which is a defect.
    """
    found = isolate(len(batch), lambda start, end: decoder.decode(batch.part(start, end)), doing="decode")
    whole = joined(found.parts or [(0, decoder.decode(batch.part(0, 0)))])
    return replace(whole, bad=dict(sorted((whole.bad | found.bad).items()))) if found.bad else whole


def encode(decoded: Decoded, writer: TableWriter) -> Made:
    """Encode the rows of a batch as files; a row that cannot be encoded is a bad record.

    Args:
        decoded: rows and bad records of the batch.
        writer: writer of the table.

    Raises:
        TarnError: the table cannot take rows at all.
        Exception: encoding fails even without rows, which is a defect.
    """
    bad = dict(decoded.bad)
    rows, index = decoded.rows, decoded.index

    def drop(reasons: dict[int, str]) -> None:
        nonlocal rows, index
        if reasons:
            bad.update({index[row]: reason for row, reason in reasons.items()})
            keep = [row for row in range(rows.num_rows) if row not in reasons]
            rows, index = rows.take(pa.array(keep, pa.int64())), [index[row] for row in keep]

    def attempt(start: int, end: int) -> tuple[EncodedFile, ...]:
        return writer.encode(rows.slice(start, end - start))

    drop(writer.unfit(rows))
    tried = isolate(rows.num_rows, attempt, doing="write")
    drop(tried.bad)
    if len(tried.parts) > 1:
        # One file for all remaining rows, not one per run between two bad records.
        tried = isolate(rows.num_rows, attempt, doing="write")
        drop(tried.bad)
    files = tuple(file for _, part in tried.parts for file in part)
    return Made(files=files, rows=rows.num_rows, bad=dict(sorted(bad.items())))
