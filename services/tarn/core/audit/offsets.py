"""Audit of the offset chain of ingested tables and of their dead letters (invariants I5 and I12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tarn.core.audit.model import FileEntry, Finding, Json, Kind, NamedLetters, SizeOf, Table, letters_of
from tarn.core.audit.names import FROM_BACKUP
from tarn.core.dead_letter import (
    MARKER_KEY,
    PENDING_PREFIX,
    Watermarks,
    markers_from_json,
    pending_from_json,
    rows_expected,
    watermark_of,
)
from tarn.core.errors import CorruptStateError
from tarn.core.offsets import SUMMARY_PREFIX, TAG_PREFIX, OffsetMap
from tarn.core.table_state import restated_property, sequence

KEEP = "stop the ingestor, keep the table as it is, and report it: a defect or a change by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Position of a stream in a table: its newest offset map."""

    table: str
    stream: str
    map: OffsetMap


def stands(table: Table) -> list[Stand]:
    """Newest readable offset map of every stream in the current snapshot's history."""
    newest: dict[str, OffsetMap] = {}
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in table.snapshots}
    tagged = [
        by_id[ref["snapshot-id"]]
        for name, ref in table.refs.items()
        if name.startswith(TAG_PREFIX) and ref.get("snapshot-id") in by_id
    ]
    # If history was thinned before a stream's map, the tag that moves with its commits has it. A tagged
    # snapshot may have maps of other streams too, which were newer since.
    for snapshot in [*sorted(tagged, key=sequence), *table.chain()]:
        for stream, text in _maps(snapshot):
            try:
                newest[stream] = OffsetMap.from_json(text)
            except CorruptStateError:
                continue
    return [Stand(table=table.name, stream=stream, map=found) for stream, found in sorted(newest.items())]


def judge_offsets(table: Table) -> Iterator[Finding]:
    """Check that each snapshot's rows start where the previous offset map ended and end before its own.

    A snapshot may hold commits of several streams. Its files do not say of which one they are, so each must
    fit one of them, and rows are counted together. None is of a stream whose map it only repeats.
    """
    chain = table.chain()
    added = _added(table)
    before: dict[str, OffsetMap] = {}
    holes: dict[str, int] = {}
    for snapshot in chain:
        sound = _operation(snapshot) == "append"
        moves: dict[str, _Move] = {}
        for stream, text in _maps(snapshot):
            try:
                after = OffsetMap.from_json(text)
                letters = _letters(snapshot, stream)
            except CorruptStateError as error:
                yield _finding(Kind.OFFSETS_UNREADABLE, table, stream, snapshot, error.message)
                sound = False
                continue
            found = before.get(stream)
            repeated = restated_property(SUMMARY_PREFIX + stream) in snapshot["summary"]
            wrong = None if found is None else _step(found, after)
            if wrong is None and repeated and found is not None and found != after:
                wrong = f"it repeats the map, which is {dict(after.next)} and was {dict(found.next)} before"
            if wrong is not None:
                yield _finding(Kind.OFFSETS_BROKEN, table, stream, snapshot, wrong)
                sound = False
            if not repeated:
                moves[stream] = _Move(before=found, after=after, letters=letters)
            before[stream] = after
        if not sound or not moves:
            continue
        files = added.get(snapshot["snapshot-id"], [])
        streams = ", ".join(moves)
        for problem in _outside(list(moves.values()), files):
            yield _finding(Kind.OFFSETS_DOUBLED, table, streams, snapshot, problem)
        left = _left(list(moves.values()), files)
        if left is not None and left < 0:
            problem = f"it adds {-left} rows more than the offsets that it covers"
            yield _finding(Kind.OFFSETS_DOUBLED, table, streams, snapshot, problem)
        elif left:
            holes[streams] = holes.get(streams, 0) + left
    for stream, count in holes.items():
        yield Finding(
            kind=Kind.OFFSETS_HOLE,
            where=table.name,
            what=f"stream {stream}: {count} covered offsets have neither row nor dead letter",
            fix="normal for a topic that is compacted or written in transactions; otherwise report it",
        )


def judge_streams(table: Table) -> Iterator[Finding]:
    """Check for two streams of one topic: their records may be duplicated, and are if rows outnumber offsets.

    The start of a stream is unknown once its first snapshots have expired, so rows are counted: each has a
    distinct offset between the lowest one in the table and the highest map, or some are duplicates.
    """
    found = _streams(table)
    by_source: dict[tuple[str, str], list[Stand]] = {}
    for stand in found:
        if not stand.map.next:
            # It has no rows any more: the table was emptied.
            continue
        by_source.setdefault((stand.map.source.cluster, stand.map.source.topic_id), []).append(stand)
    for same in by_source.values():
        if len(same) < 2:
            continue
        stands = ", ".join(f"{stand.stream} at {dict(stand.map.next)}" for stand in same)
        what = f"streams of topic {same[0].map.source.topic}: {stands}"
        doubled = _doubled(table, same) if len(by_source) == 1 else 0
        if doubled:
            yield Finding(
                kind=Kind.STREAMS_DOUBLED,
                where=table.name,
                what=f"{what}; at least {doubled} rows are there twice",
                fix="stop its ingestor, roll the table back to before the second stream began, and give the "
                "ingestor the first stream's name: metadata.stream",
            )
        else:
            yield Finding(
                kind=Kind.STREAMS_SAME,
                where=table.name,
                what=f"{what}; their offsets may overlap",
                fix="compare count(*) with the distinct pairs of _tarn.partition and _tarn.offset; keep one "
                "stream: metadata.stream",
            )


def _streams(table: Table) -> list[Stand]:
    """Like `stands`, plus, where history is cut, streams known only from their tag."""
    found = {stand.stream: stand for stand in stands(table)}
    chain = table.chain()
    if not chain or chain[0].get("parent-snapshot-id") is None:
        return list(found.values())
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in table.snapshots}
    for name, ref in table.refs.items():
        snapshot = by_id.get(ref.get("snapshot-id"))
        stream = name.removeprefix(TAG_PREFIX)
        if not name.startswith(TAG_PREFIX) or stream in found or snapshot is None:
            continue
        if (snapshot.get("sequence-number") or 0) >= (chain[0].get("sequence-number") or 0):
            continue
        text = (snapshot.get("summary") or {}).get(SUMMARY_PREFIX + stream)
        try:
            if text is not None:
                found[stream] = Stand(table=table.name, stream=stream, map=OffsetMap.from_json(text))
        except CorruptStateError:
            continue
    return list(found.values())


def _doubled(table: Table, streams: Sequence[Stand]) -> int:
    """Number of live rows in excess of the offsets they can have; 0 if there are none or it is unknown."""
    chain = table.chain()
    files = list(table.files_of(chain[-1])) if chain else []
    rows = [file for file in files if not file.deletes]
    starts = [file.bounds.offset_min for file in rows if file.bounds is not None]
    if len(starts) < len(rows) or not starts:
        return 0
    ends: dict[int, int] = {}
    for stand in streams:
        for partition, offset in stand.map.next.items():
            ends[partition] = max(offset, ends.get(partition, 0))
    room = sum(max(0, end - min(starts)) for end in ends.values())
    live = sum(file.records for file in rows) - sum(file.records for file in files if file.deletes)
    return max(0, live - room)


def judge_letters(facts: LetterFacts, tables: Sequence[LetterFacts], size_of: SizeOf) -> Iterator[Finding]:
    """Check that every dead-letter file that a table lists is in the dead-letter table or pending.

    A registered file may have been rewritten since, by ingest or by an engine: then the dead-letter table
    must have all rows that were registered.

    Args:
        facts: the table.
        tables: all tables, among them those of dead letters.
        size_of: size of the object at a location.
    """
    lost: dict[str, list[str]] = {}
    waiting: dict[str, int] = {}
    gone: list[str] = []
    for letter, home in _homes(facts, tables):
        stands = facts.stands(letter, home)
        if stands is Letters.REWRITTEN:
            continue
        if stands is Letters.LOST:
            lost.setdefault(letter.stream, []).append(letter.path)
            continue
        if stands is Letters.WAITING:
            waiting[letter.stream] = waiting.get(letter.stream, 0) + 1
        size = size_of(letter.path)
        if size != letter.bytes:
            gone.append(letter.path if size is None else f"{letter.path} ({size} bytes)")
    if gone:
        yield Finding(
            kind=Kind.LETTERS,
            where=facts.table,
            what=f"{len(gone)} missing or of another size: {', '.join(gone[:3])}",
            fix=FROM_BACKUP,
        )
    for stream, paths in lost.items():
        yield Finding(
            kind=Kind.LETTERS_UNREGISTERED,
            where=facts.table,
            what=f"stream {stream}: {len(paths)} dead-letter files count as registered and are in "
            f"no dead-letter table, first {paths[0]}",
            fix="roll the dead-letter table back, or add the files to it; the files name the bad records",
        )
    for stream, count in waiting.items():
        yield Finding(
            kind=Kind.LETTERS_WAITING,
            where=facts.table,
            what=f"stream {stream}: {count} dead-letter files wait to be registered",
            fix="nothing: ingest registers them when it runs",
        )


def letters_needed(tables: Sequence[LetterFacts]) -> Iterator[str]:
    """Yield the locations of dead-letter files that a backup needs: not those that were rewritten since."""
    for facts in tables:
        for letter, home in _homes(facts, tables):
            if facts.stands(letter, home) is not Letters.REWRITTEN:
                yield letter.path


def _homes(
    facts: LetterFacts, tables: Sequence[LetterFacts]
) -> Iterator[tuple[NamedLetters, LetterFacts | None]]:
    """Yield each listed file with the dead-letter table that has it, if there is one.

    That is the one in whose folder it lies; or another one, which has its records: ingest copies them if that
    one was dropped or renamed, or the spec names the other one now.
    """
    for letter in facts.named:
        home = next((table for table in tables if letter.path.startswith(f"{table.root}/")), None)
        if home is None or not (letter.path in home.live or home.covers(letter, facts.uuid)):
            home = next((table for table in tables if table.covers(letter, facts.uuid)), home)
        yield letter, home


class Letters(Enum):
    """Where a dead-letter file is that a table lists."""

    HELD = auto()
    WAITING = auto()
    REWRITTEN = auto()
    LOST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFacts:
    """What one table says about dead letters.

    Attributes:
        table: name of the table.
        uuid: UUID of the table.
        root: location of the table.
        named: files that its snapshots list.
        markers: watermarks per stream, for a dead-letter table.
        live: locations of its live files, for a dead-letter table.
        rows: number of rows in them.
        expected: number of rows that it must have; None if that is not known.
    """

    table: str
    uuid: str
    root: str
    named: tuple[NamedLetters, ...]
    markers: Mapping[str, Watermarks]
    live: frozenset[str]
    rows: int = 0
    expected: int | None = None

    def covers(self, letter: NamedLetters, table_uuid: str) -> bool:
        """Whether this table registered a file that the table with this UUID lists, by its watermarks."""
        mark = watermark_of(self.markers.get(letter.stream, ()), table_uuid)
        return mark is not None and letter.sequence <= mark.sequence

    def stands(self, letter: NamedLetters, home: LetterFacts | None) -> Letters:
        """Where a file is that this table lists.

        Args:
            letter: the file.
            home: the dead-letter table that has it, see `_homes`; None if there is none.
        """
        if home is None:
            return Letters.LOST
        if letter.path in home.live:
            return Letters.HELD
        if not home.covers(letter, self.uuid):
            return Letters.WAITING
        whole = home.expected is not None and home.rows >= home.expected
        return Letters.REWRITTEN if whole else Letters.LOST


def letter_facts(table: Table) -> LetterFacts:
    """Facts about dead letters of one table; empty for most tables."""
    chain = table.chain()
    markers: Mapping[str, Watermarks] = {}
    live: frozenset[str] = frozenset()
    rows = 0
    for snapshot in reversed(chain):
        summary = snapshot.get("summary") or {}
        if summary.get(MARKER_KEY) is not None:
            try:
                markers = markers_from_json(summary)
            except CorruptStateError:
                continue
            files = list(table.files_of(chain[-1]))
            live = frozenset(entry.path for entry in files)
            rows = sum(-entry.records if entry.deletes else entry.records for entry in files)
            break
    return LetterFacts(
        table=table.name,
        uuid=table.uuid,
        root=table.root,
        named=tuple(letters_of(table)),
        markers=markers,
        live=live,
        rows=rows,
        expected=rows_expected(snapshot.get("summary") or {} for snapshot in reversed(chain)),
    )


def _maps(snapshot: Json) -> Iterator[tuple[str, str]]:
    for key, text in (snapshot.get("summary") or {}).items():
        if key.startswith(SUMMARY_PREFIX):
            yield key.removeprefix(SUMMARY_PREFIX), text


def _letters(snapshot: Json, stream: str) -> int:
    """Number of records that went to dead letters in this snapshot's own batch."""
    text = snapshot["summary"].get(PENDING_PREFIX + stream)
    if not text:
        return 0
    sequence = snapshot.get("sequence-number")
    return sum(file.records for file in pending_from_json(text) if file.sequence == sequence)


def _operation(snapshot: Json) -> str:
    return str((snapshot.get("summary") or {}).get("operation"))


def _added(table: Table) -> dict[int, list[FileEntry]]:
    """Snapshot id to the data files that it added, each once however many manifests list it."""
    wanted = {snapshot["snapshot-id"] for snapshot in table.snapshots if any(_maps(snapshot))}
    found: dict[int, dict[str, FileEntry]] = {}
    if not wanted:
        return {}
    for entries in table.manifests.values():
        for entry in entries or ():
            if entry.snapshot_id in wanted and not entry.deletes and entry.snapshot_id is not None:
                found.setdefault(entry.snapshot_id, {})[entry.path] = entry
    return {snapshot: list(files.values()) for snapshot, files in found.items()}


def _step(before: OffsetMap, after: OffsetMap) -> str | None:
    """What is wrong between two successive offset maps; None if nothing is."""
    if before.source != after.source:
        return (
            f"the map before it is of topic {before.source.topic} ({before.source.topic_id}), this one of "
            f"{after.source.topic} ({after.source.topic_id})"
        )
    for partition, offset in before.next.items():
        found = after.next.get(partition)
        if found is None:
            return f"partition {partition} stood at {offset} before and is in the map no more"
        if found < offset:
            return f"partition {partition} stood at {offset} before and stands at {found} now"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """Move of a stream by one snapshot: the offset map before it, if known, and after; records not rows."""

    before: OffsetMap | None
    after: OffsetMap
    letters: int


def _outside(moves: Sequence[_Move], files: Sequence[FileEntry]) -> Iterator[str]:
    """Yield files whose rows lie before the preceding offset map or beyond their own, for every stream."""
    for file in files:
        problems = [list(_strange(move.before, move.after, file)) for move in moves]
        if all(problems):
            yield from problems[0]


def _strange(before: OffsetMap | None, after: OffsetMap, file: FileEntry) -> Iterator[str]:
    bounds = file.bounds
    if bounds is not None:
        partitions = [p for p in after.next if bounds.partition_min <= p <= bounds.partition_max]
        ends = [after.next[p] for p in partitions]
        if not ends or bounds.offset_max >= max(ends):
            yield (
                f"{file.path} has offset {bounds.offset_max} of partitions {bounds.partition_min} to "
                f"{bounds.partition_max}, and the map ends at {max(ends, default=0)}"
            )
        if before is None or any(p not in before.next for p in partitions):
            return
        start = min((before.next[p] for p in partitions), default=0)
        if bounds.offset_min < start:
            yield (
                f"{file.path} has offset {bounds.offset_min} of partitions {bounds.partition_min} to "
                f"{bounds.partition_max}, which the map before it had up to {start} already"
            )


def _left(moves: Sequence[_Move], files: Sequence[FileEntry]) -> int | None:
    """Covered offsets minus rows and dead letters; None if their start is unknown."""
    covered = 0
    for move in moves:
        if move.before is None or set(move.after.next) - set(move.before.next):
            return None
        covered += sum(end - move.before.next[partition] for partition, end in move.after.next.items())
        covered -= move.letters
    return covered - sum(file.records for file in files)


def _finding(kind: Kind, table: Table, stream: str, snapshot: Json, what: str) -> Finding:
    found = f"stream {stream}, snapshot {snapshot['snapshot-id']}: {what}"
    return Finding(kind=kind, where=table.name, what=found, fix=KEEP)
