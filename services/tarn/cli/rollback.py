"""`tarn rollback`: take a table back to one of its snapshots, with or without the offsets of its streams.

`rewind` takes each stream's offset map back together with the rows: ingestion reads the log again from there.
`keep` leaves the maps where they are: a snapshot with the former rows and the newest maps follows the target,
so ingestion goes on, and what was rolled back stays away. Both are one commit (ingestion.md, section 1).
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from tarn.adapters.files import FileIO
from tarn.cli.ports import Bounds, Clock, Offsets
from tarn.core import completion, dead_letter, watermark
from tarn.core.completion import OpenPartitions
from tarn.core.errors import (
    ConflictError,
    CorruptStateError,
    InvalidError,
    OffsetGapError,
    OutcomeUnknownError,
)
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap, TopicIdentity
from tarn.core.outcome import Unknown
from tarn.core.producers import source_of
from tarn.core.retired import PREFIX as RETIRED_PREFIX
from tarn.core.table_catalog import CommitDone, CommitOutcome, TableCatalog, TableName
from tarn.core.table_state import COMMIT_ID_KEY, MAIN, CommitRequest, Json, TableState, main_at
from tarn.core.watermark import Watermark
from tarn.core.write_keys import KeyEntry, summary_key
from tarn.ingest.batch_commit import (
    former_head,
    left_off,
    offsets_in,
    open_in,
    pending_in,
    replaced_by,
    retired_text,
    stated,
    streams_named,
    watermark_in,
)
from tarn.ingest.committer import TURNS_MAX

TAG_BEFORE = "before-rollback-"
ATTEMPTS_MAX = 20
RESENDS_MAX = 5
PAUSE_S = 0.2
REFS_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPorts:
    """What a rollback works with.

    Attributes:
        catalog: catalog of the table.
        objects: the table's files.
        bounds: bounds of every topic; asked only if a stream goes back.
        identity: identity of a topic by its name; asked likewise.
        new_key: generates an idempotency key, a UUIDv7.
        new_snapshot_id: generates a positive 63-bit integer.
        now_ms: wall-clock time in milliseconds since the epoch.
        clock: waits between attempts.
    """

    catalog: TableCatalog
    objects: FileIO
    bounds: Callable[[], Mapping[str, Bounds]]
    identity: Callable[[str], TopicIdentity]
    new_key: Callable[[], str]
    new_snapshot_id: Callable[[], int]
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    clock: Clock = field(default_factory=Clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack:
    """A rollback that was committed.

    Attributes:
        table: qualified name of the table.
        before: id of the current snapshot before it.
        target: id of the snapshot that the rows are of.
        tag: tag on the snapshot before it, which a second rollback can go to; None if there was none.
        rows: number of rows before and after it; None where a summary does not say.
        streams: stream to its offset map before and after it; None where it has none.
        returns: whether a second rollback can go to the tag: not if the table was replaced, as the snapshot
            then states no offsets.
    """

    table: str
    before: int
    target: int
    tag: str | None
    rows: tuple[int | None, int | None]
    streams: Mapping[str, tuple[OffsetMap | None, OffsetMap | None]]
    returns: bool = True


def roll_back(ports: RollbackPorts, table: TableName, ref: str, offsets: Offsets | None) -> RolledBack:
    """Roll a table back in one commit; other writers go on meanwhile.

    Args:
        ports: what it works with.
        table: the table.
        ref: snapshot id, tag or branch.
        offsets: what happens to the offsets; only a table without streams needs none.

    Raises:
        InvalidError: no such snapshot, nothing to do, or `offsets` is missing.
        OffsetGapError: the log no longer holds what would be read again.
        CorruptStateError: the offsets at the target are not known.
        ConflictError: other writers committed first each time.
        OutcomeUnknownError: the catalog did not answer; the rollback may have happened.
    """
    # Asked for once: the catalog keeps a turn for half a second, and Kafka may take as long.
    ports = replace(ports, bounds=cache(ports.bounds), identity=cache(ports.identity))
    sent: list[Json] = []
    turn, turns = None, 0
    for overtaken in range(ATTEMPTS_MAX):
        state = ports.catalog.load(table)
        done = next((p for p in sent if _is_done(p, state)), None)
        if done is not None:
            return _result(table, done, state.at(done["snapshot"]))
        target = resolve(state, ref, table)
        plan = {"state": state, "target": target, "tag": _tag_before(state)}
        request = replace(_request(ports, table, state, target, offsets), overtaken=overtaken, turn=turn)
        sent.append({**plan, "snapshot": request.snapshot_id})
        outcome = _send(ports, table, request)
        if isinstance(outcome, CommitDone):
            return _result(table, plan, outcome.state)
        if isinstance(outcome, Unknown):
            tag = plan["tag"]
            undone = "it has no current snapshot" if tag is None else f"the table has no tag {tag}"
            raise OutcomeUnknownError(
                f"the catalog did not answer the rollback of {table} ({outcome.reason}): it may have "
                f"happened; if {undone}, run the same command again",
                table=str(table),
            )
        turns = turns + 1 if outcome.turn is not None else 0
        turn = outcome.turn if turns <= TURNS_MAX else None
        if turn is None:
            ports.clock.wait(PAUSE_S)
    raise ConflictError(
        f"{table} was not rolled back: others committed first {ATTEMPTS_MAX} times; stop what writes to it, "
        "and run the same command again",
        table=str(table),
    )


def _is_done(plan: Json, state: TableState) -> bool:
    """Whether a rollback that was sent is in this version of the table.

    Its tag alone does not say so: whoever goes back from the same snapshot makes the same one. So its
    snapshot must have been the current one since.
    """
    before: TableState = plan["state"]
    if plan["tag"] is not None and (plan["tag"] not in state.refs or plan["tag"] in before.refs):
        return False
    now, then = _logged(state, plan["snapshot"]), _logged(before, plan["snapshot"])
    return any(count > then[at_ms] for at_ms, count in now.items())


def _logged(state: TableState, snapshot_id: int) -> Counter[int]:
    """How often the log names a snapshot as the current one, by time: entries of one time are alike."""
    log = state.metadata.get("snapshot-log") or ()
    return Counter(int(one["timestamp-ms"]) for one in log if int(one["snapshot-id"]) == snapshot_id)


def _send(ports: RollbackPorts, table: TableName, request: CommitRequest) -> CommitOutcome:
    """Send a commit; without an answer the same one again, which the catalog applies once."""
    key = ports.new_key()
    outcome = ports.catalog.commit(table, request, key=key)
    for _ in range(RESENDS_MAX):
        if not isinstance(outcome, Unknown):
            break
        ports.clock.wait(PAUSE_S)
        outcome = ports.catalog.commit(table, request, key=key)
    return outcome


def resolve(state: TableState, ref: str, table: TableName) -> int:
    """Id of the snapshot that a reference names.

    Raises:
        InvalidError: no snapshot of the table has this id or name, or it is the current one and states the
            offsets of the table's streams.
    """
    named = state.refs.get(ref)
    known = {int(s["snapshot-id"]) for s in state.metadata.get("snapshots") or []}
    found = int(named["snapshot-id"]) if named is not None else int(ref) if ref.isdecimal() else None
    if found is None or found not in known:
        newest = [str(s["snapshot-id"]) for s in state.ancestors()][1 : REFS_SHOWN + 1]
        names = sorted(name for name in state.refs if name != MAIN)[:REFS_SHOWN]
        raise InvalidError(
            f"{table} has no snapshot, tag or branch {ref!r}; its newest older snapshots are "
            f"{', '.join(newest) or 'none'}, its tags and branches {', '.join(names) or 'none'}",
            table=str(table),
            ref=ref,
        )
    if found == state.head_id and not any(replaced_by(state, s) for s in streams_named(state)):
        raise InvalidError(f"{table} is at snapshot {found} already", table=str(table))
    return found


def _request(
    ports: RollbackPorts, table: TableName, state: TableState, target: int, offsets: Offsets | None
) -> CommitRequest:
    streams = sorted(streams_named(state))
    if streams and offsets is None:
        raise InvalidError(
            f"{table} holds offsets of {', '.join(streams)}: say --offsets rewind (what is rolled back is "
            "read again from Kafka) or --offsets keep (it stays away, reading goes on where it is)",
            table=str(table),
        )
    if offsets is Offsets.KEEP and streams:
        _require_offsets(table, state, target, streams)
        return _keeping(ports, state, target, streams)
    return _rewinding(ports, table, state, target, streams)


def _rewinding(
    ports: RollbackPorts, table: TableName, state: TableState, target: int, streams: list[str]
) -> CommitRequest:
    """The commit that makes the target current again, with the offsets that its history holds."""
    then = state.at(target)
    maps = {stream: offsets_in(then, stream) for stream in streams}
    now = {stream: _known_map(_stating(state, stream), stream) for stream in streams}
    _require_log(ports, table, maps, now=now)
    updates = _updates(state, target)
    for stream in streams:
        tag, key = TAG_PREFIX + stream, SUMMARY_PREFIX + stream
        held = next((s for s in then.ancestors() if key in (s.get("summary") or {})), None)
        if held is not None:
            updates.append(_set(tag, "tag", int(held["snapshot-id"])))
        elif maps[stream] is None and tag in state.refs:
            # The stream began after the target: it starts again from the first offset.
            updates.append({"action": "remove-snapshot-ref", "ref-name": tag})
    return CommitRequest(requirements=_requirements(state), updates=updates, snapshot_id=target)


def _require_log(
    ports: RollbackPorts,
    table: TableName,
    maps: Mapping[str, OffsetMap | None],
    *,
    now: Mapping[str, OffsetMap | None],
) -> None:
    """Require that the log holds what would be read again.

    A partition that the target's map lacks is read from its first offset, which must still be 0: nothing says
    where the stream began in it. A stream whose map stays as it is reads nothing again: its log may be gone.

    Args:
        ports: asked for the bounds and identities of the topics.
        table: the table, for the message.
        maps: stream to its offset map at the target.
        now: stream to its present map; None if it has none, or none that can be read.

    Raises:
        OffsetGapError: it does not.
    """
    topics: Mapping[str, Bounds] | None = None
    for stream, held in maps.items():
        present = now[stream]
        source = held or present
        if source is None:
            continue
        if held == present:
            continue
        if source.source == source_of(source.source.topic_id):
            raise OffsetGapError(
                f"{table} cannot go back with its offsets: rows came over HTTP since then (stream {stream}), "
                "which are in no log to be read again. Choose a newer snapshot, or --offsets keep",
                table=str(table),
                stream=stream,
            )
        topics = ports.bounds() if topics is None else topics
        topic = topics.get(source.source.topic, {})
        then = held.next if held is not None else {}
        # Without a present map every partition may have been read.
        partitions = sorted({*then, *(present.next if present is not None else topic)})
        for partition in partitions:
            offset = then.get(partition, 0)
            start, end = topic.get(partition, (0, -1))
            if not start <= offset <= end:
                holds = f"holds [{start}, {end})" if end >= 0 else "does not have that partition"
                raise OffsetGapError(
                    f"{table} cannot go back with its offsets: stream {stream} would read partition "
                    f"{partition} of topic {source.source.topic} from {offset}, and the log {holds}. Choose "
                    "a newer snapshot, or --offsets keep",
                    table=str(table),
                    partition=partition,
                    offset=offset,
                )
        if partitions and ports.identity(source.source.topic) != source.source:
            raise OffsetGapError(
                f"{table} cannot go back with its offsets: stream {stream} would read topic "
                f"{source.source.topic} again, and Kafka has another topic of that name now: it was deleted "
                "and created again, or Kafka was. Choose --offsets keep",
                table=str(table),
                stream=stream,
            )


def _known_map(state: TableState, stream: str) -> OffsetMap | None:
    """The stream's offset map; None as well where it cannot be read, which a rollback may mend."""
    try:
        return offsets_in(state, stream)
    except CorruptStateError:
        return None


def _require_offsets(table: TableName, state: TableState, target: int, streams: list[str]) -> None:
    """Require that the present offsets fit the rows of the target, which may be of a table that was replaced.

    Raises:
        InvalidError: one of both is from before a replacement, the other one from after it.
        CorruptStateError: both are from after it, and no tag says where a stream was.
    """
    then = state.at(target)
    for stream in streams:
        first, its_first = replaced_by(state, stream), replaced_by(then, stream)
        if first is None and its_first is not None:
            raise InvalidError(
                f"{table} cannot go to snapshot {target} with its offsets: the table was replaced by "
                f"snapshot {its_first}, and nothing says which messages of stream {stream} its rows hold",
                table=str(table),
                stream=stream,
            )
        if first is not None and its_first != first:
            newest = former_head(state) or "the newest one before"
            raise InvalidError(
                f"{table} was replaced by snapshot {first}, and snapshot {target} may lack rows that its "
                "streams committed before: say --offsets rewind, which reads them again. If they are to "
                f"stay away, go to {newest} with --offsets rewind first",
                table=str(table),
                stream=stream,
            )
        if first is not None and not left_off(state, stream):
            offsets_in(state, stream)


def _keeping(ports: RollbackPorts, state: TableState, target: int, streams: list[str]) -> CommitRequest:
    """The commit that adds a snapshot after the target, with its files and the furthest offset maps.

    The target may be ahead, if the table went back before: its rows must not be read again.
    """
    base, snapshot_id = state.snapshot(target), ports.new_snapshot_id()
    if "manifest-list" not in base:
        raise CorruptStateError(
            f"snapshot {target} has no manifest list (format version 1); rewind the offsets instead"
        )
    # A file of its own: engines that expire the target delete its list without asking who else names it.
    manifest_list = f"{state.root}/metadata/snap-{snapshot_id}-0-{uuid.uuid4()}.avro"
    ports.objects.write_new(manifest_list, ports.objects.read(str(base["manifest-list"])))
    summary = {
        "operation": "replace",
        **{k: v for k, v in (base.get("summary") or {}).items() if k.startswith("total-")},
        COMMIT_ID_KEY: str(uuid.uuid4()),
    }
    for stream in streams:
        now, then = _stating(state, stream), _stating(state.at(target), stream)
        present = offsets_in(now, stream)
        found = _furthest(present, _known_map(then, stream))
        if found is not None:
            summary[SUMMARY_PREFIX + stream] = found.to_json()
            waiting = pending_in(now, stream)
            if found != present:
                waiting = tuple(dict.fromkeys((*pending_in(then, stream), *waiting)))
            if waiting:
                summary[dead_letter.PENDING_PREFIX + stream] = dead_letter.pending_to_json(waiting)
            mark = _later(_known_mark(now, stream), _known_mark(then, stream))
            if mark is not None:
                summary[watermark.PREFIX + stream] = mark.to_json()
            opened = _all_open(now, then, stream, mark)
            dropped = retired_text(then, stream)
            if dropped is not None:
                summary[RETIRED_PREFIX + stream] = dropped
            if opened is not None:
                summary[completion.PREFIX + stream] = opened.to_json()
            keys = _newer(_known_keys(now, stream), _known_keys(then, stream))
            if keys is not None:
                summary[summary_key(stream)] = keys.to_json()
    snapshot: Json = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": target,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": max(ports.now_ms(), int(state.metadata.get("last-updated-ms") or 0)),
        "manifest-list": manifest_list,
        "summary": summary,
        "schema-id": state.metadata["current-schema-id"],
    }
    if state.format_version >= 3:
        snapshot |= {"first-row-id": int(state.metadata.get("next-row-id") or 0), "added-rows": 0}
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, *_updates(state, snapshot_id)]
    updates += [
        _set(TAG_PREFIX + stream, "tag", snapshot_id)
        for stream in streams
        if SUMMARY_PREFIX + stream in summary
    ]
    return CommitRequest(requirements=_requirements(state), updates=updates, snapshot_id=snapshot_id)


def _stating(state: TableState, stream: str) -> TableState:
    """The version of the table that states the stream: of a table that was replaced, the one of its tag."""
    tagged = state.refs.get(TAG_PREFIX + stream)
    if tagged is None or replaced_by(state, stream) is None:
        return state
    return state.at(int(tagged["snapshot-id"]))


def _known_mark(state: TableState, stream: str) -> Watermark | None:
    """The stream's watermark; None if it is unreadable: the stream then begins with a new one."""
    try:
        return watermark_in(state, stream)
    except CorruptStateError:
        return None


def _known_keys(state: TableState, stream: str) -> KeyEntry | None:
    """Where the keys of repeated writes over HTTP are; None if the stream has none that can be read."""
    text = stated(state, stream).get(summary_key(stream))
    try:
        return None if text is None else KeyEntry.from_json(text)
    except CorruptStateError:
        return None


def _newer(present: KeyEntry | None, then: KeyEntry | None) -> KeyEntry | None:
    """The keys that were written last, which are those before too: without them a repeat is a new write.

    But for a history that an engine set back before: then each side has keys that the other lacks.
    """
    if present is None or then is None:
        return present or then
    return max(present, then, key=lambda entry: entry.at_ms)


def _all_open(
    state: TableState, then: TableState, stream: str, mark: Watermark | None
) -> OpenPartitions | None:
    """The partitions that either version has open: what is announced once more harms nobody.

    The table may have been partitioned otherwise in between.
    """
    try:
        present, former = open_in(state, stream), open_in(then, stream)
    except CorruptStateError:
        return None
    field = None if mark is None else completion.time_field(state, mark.column)
    if present is None or former is None:
        return present or former
    if field is not None:
        present, former = (completion.followed(one, state, field) for one in (present, former))
    if present.field != former.field:
        return present
    return present.union(former)


def _later(present: Watermark | None, then: Watermark | None) -> Watermark | None:
    """The watermark that is later, as rows of neither are read again; the present one if columns differ."""
    if present is None or then is None or present.column != then.column:
        return present or then
    return max(present, then, key=lambda mark: (mark.at_us is not None, mark.at_us))


def _furthest(present: OffsetMap | None, then: OffsetMap | None) -> OffsetMap | None:
    """Of each partition the offset that is further; the present map if the other is of another topic."""
    if present is None or then is None or present.source != then.source:
        return present or then
    ends = {p: max(present.next.get(p, 0), then.next.get(p, 0)) for p in (*present.next, *then.next)}
    epochs = {p: one.epochs[p] for one in (then, present) for p in one.epochs if one.next[p] == ends[p]}
    return OffsetMap(source=present.source, next=ends, epochs=epochs)


def _updates(state: TableState, snapshot_id: int) -> list[Json]:
    """Make a snapshot current, and tag the one before."""
    tag = _tag_before(state)
    # Without a greatest age, which would count from the snapshot's own time: it may be old already.
    tagged = [_set(tag, "tag", state.head_id)] if tag is not None and state.head_id is not None else []
    return [*tagged, main_at(state, snapshot_id)]


def _tag_before(state: TableState) -> str | None:
    """The tag of the current snapshot; None without one, as after a `CREATE OR REPLACE TABLE`."""
    return None if state.head_id is None else f"{TAG_BEFORE}{state.head_id}"


def _set(name: str, kind: str, snapshot_id: int) -> Json:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id}


def _requirements(state: TableState) -> list[Json]:
    return [
        {"type": "assert-table-uuid", "uuid": state.uuid},
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": state.head_id},
        {"type": "assert-current-schema-id", "current-schema-id": state.metadata["current-schema-id"]},
    ]


def _result(table: TableName, plan: Json, after: TableState) -> RolledBack:
    state: TableState = plan["state"]
    streams = sorted(streams_named(state))
    return RolledBack(
        table=str(table),
        before=state.head_id or 0,
        target=plan["target"],
        tag=plan["tag"],
        rows=(_rows(state), _rows(after)),
        streams={s: (_known_map(_stating(state, s), s), _known_map(after, s)) for s in streams},
        returns=all(replaced_by(state, s) is None for s in streams),
    )


def _rows(state: TableState) -> int | None:
    text = ((state.head or {}).get("summary") or {}).get("total-records", "")
    return int(text) if text.isdecimal() else None
