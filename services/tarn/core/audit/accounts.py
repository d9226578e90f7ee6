"""Accounts for every offset of a source partition: in a row, a dead letter, without a record, or missing.

Offsets are in roaring bitmaps: a billion consecutive ones take some 100 kB, and any others one bit at most.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from tarn.core.audit.model import Finding, Kind
from tarn.core.audit.offsets import KEEP
from tarn.core.errors import InvalidError
from tarn.core.offsets import OffsetMap, TopicIdentity

OFFSETS_MAX = 2**35
"""Next offset of a partition up to which it is audited; a bitmap of so many offsets takes some 50 MB."""
LEVELS_MAX = 8
"""An offset that is counted more often is counted this often."""
RANGES_SHOWN_MAX = 5

Place = tuple[str, int]
"""Topic and partition, as in the trace column."""
LetterPlace = tuple[str, str, int]
"""Stream, topic and partition, as in the dead-letter table."""


def bitmap(values: bytes) -> BitMap64:
    """The offsets in an array of unsigned 64-bit integers of this machine's byte order."""
    return BitMap64(array("Q", values))


def between(start: int, end: int) -> BitMap64:
    """All offsets in [start, end)."""
    return BitMap64(range(start, max(start, end)))


def ranges(offsets: BitMap64) -> Iterator[tuple[int, int]]:
    """Yield the half-open ranges of consecutive offsets, in order."""
    start = offsets.min() if offsets else None
    while start is not None:
        end = _end_of(offsets, start)
        yield start, end
        start = offsets.next_set_bit(end) if end <= offsets.max() else None


def _end_of(offsets: BitMap64, start: int) -> int:
    """The first offset from `start` on that is not among the offsets; no bitmap of the span is made."""

    def unbroken(end: int) -> bool:
        return offsets.range_cardinality(start, end) == end - start

    width = 1
    while unbroken(start + 2 * width):
        width *= 2
    low, high = start + width, start + 2 * width
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if unbroken(middle) else (low, middle)
    return low


def shown(offsets: BitMap64) -> str:
    """The offsets for a message: their first ranges, both ends included."""
    parts: list[str] = []
    for start, end in ranges(offsets):
        if len(parts) == RANGES_SHOWN_MAX:
            parts.append(f"and more up to {offsets.max()}")
            break
        parts.append(str(start) if end == start + 1 else f"{start} to {end - 1}")
    return ", ".join(parts)


class Tally:
    """How often each offset occurs.

    Attributes:
        levels: the offsets that occur at least once, at least twice, and so on; never an empty one.
        rows: number of occurrences.
    """

    __slots__ = ("levels", "rows")

    def __init__(self) -> None:
        self.levels: list[BitMap64] = []
        self.rows = 0

    def add(self, offsets: BitMap64) -> None:
        """Count each of these offsets once."""
        self.rows += len(offsets)
        for level in self.levels:
            if not offsets:
                return
            again = level & offsets
            level |= offsets
            offsets = again
        if offsets and len(self.levels) < LEVELS_MAX:
            self.levels.append(offsets.copy())

    def merge(self, other: Tally) -> None:
        """Count everything that the other tally counted."""
        for level in other.levels:
            self.add(level)

    def at_least(self, times: int) -> BitMap64:
        """The offsets that occur this often; `times` is 1 or more."""
        return self.levels[times - 1] if times <= len(self.levels) else BitMap64()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """Where the rows of a data file come from.

    Attributes:
        rows: offsets of live rows.
        deleted: offsets of rows that a delete file removes.
        untraced: number of live rows without topic, partition or offset.
    """

    rows: Mapping[Place, Tally]
    deleted: Mapping[Place, BitMap64]
    untraced: int = 0


@dataclass(slots=True, kw_only=True)
class Account:
    """Everything known about the offsets of one source partition in a table.

    Attributes:
        topic: name of the topic.
        partition: partition of the topic.
        streams: streams of the table that read it; rows of several cannot be distinguished.
        ends: next offset per identity of the topic; several if it was recreated and read again.
        rows: offsets of the live rows.
        letters: offsets of the dead letters.
        log_start: first offset of the log, if it was asked and is the topic that was read; else None.
        asked: offsets below `next` whose records the log was asked for.
        held: those of them at which the log has a record.
        removed: offsets of rows that the table had and has no more, as far as its kept history shows.
        retired: offsets of rows that retention dropped.
        removed_by: where those rows were, and which snapshot removed them.
        taken: those whose row another engine deleted, as far as delete files or its kept history show.
        taken_by: which snapshots deleted them, as words.
        holders: for the first doubled offset, the files that have it.
    """

    topic: str
    partition: int
    streams: tuple[str, ...]
    ends: Mapping[TopicIdentity, int]
    rows: Tally = field(default_factory=Tally)
    letters: Tally = field(default_factory=Tally)
    log_start: int | None = None
    asked: BitMap64 = field(default_factory=BitMap64)
    held: BitMap64 = field(default_factory=BitMap64)
    removed: BitMap64 = field(default_factory=BitMap64)
    retired: BitMap64 = field(default_factory=BitMap64)
    removed_by: str = ""
    taken: BitMap64 = field(default_factory=BitMap64)
    taken_by: tuple[str, ...] = ()
    holders: str = ""

    @property
    def next(self) -> int:
        """The table's next offset."""
        return max(self.ends.values(), default=0)

    @property
    def present(self) -> BitMap64:
        """Offsets below `next` with a row or a dead letter."""
        return (self.rows.at_least(1) | self.letters.at_least(1)) & between(0, self.next)

    @property
    def absent(self) -> BitMap64:
        """Offsets below `next` with neither row nor dead letter nor a row dropped by age, from 0 on."""
        return between(0, self.next) - self.present - self.retired

    @property
    def start(self) -> int:
        """The first offset that is accounted for; `next` if none is known.

        The table does not record where a stream began. It began at the start of the log, which only grows: so
        no later than the log starts now, and no later than the first row.
        """
        known = self.present | self.removed | self.taken | self.retired
        first = known.min() if known else self.next
        return first if self.log_start is None else min(first, self.log_start)

    @property
    def gap(self) -> BitMap64:
        """Offsets in [start, next) with neither row nor dead letter nor a row dropped by age."""
        return between(self.start, self.next) - self.present - self.retired

    @property
    def missing(self) -> BitMap64:
        """Offsets of the gap with evidence of a record: the log has it, or the table had its row.

        Not those whose row another engine deleted.
        """
        return (self.gap & (self.held | self.removed)) - self.taken

    @property
    def deleted(self) -> BitMap64:
        """Offsets of the gap whose row another engine deleted."""
        return self.gap & self.taken

    @property
    def without_record(self) -> BitMap64:
        """Offsets of the gap at which the log has no record: aborted, compacted or control records."""
        return (self.gap & self.asked) - self.missing - self.taken

    @property
    def unknown(self) -> BitMap64:
        """Offsets of the gap about which nothing more is known."""
        return self.gap - self.missing - self.asked - self.taken

    @property
    def doubled(self) -> BitMap64:
        """Offsets below `next` with more rows than topics of that name can have had records there."""
        found = BitMap64()
        start = 0
        ends = sorted(self.ends.values())
        for number, end in enumerate(ends):
            found |= self.rows.at_least(len(ends) - number + 1) & between(start, end)
            start = end
        return found

    @property
    def beyond(self) -> BitMap64:
        """Offsets of rows at or after `next`: ingest will add these rows again."""
        return self.rows.at_least(1) - between(0, self.next)

    @property
    def letters_again(self) -> BitMap64:
        """Offsets with a row and a dead letter, or with two dead letters."""
        both = self.letters.at_least(1) & self.rows.at_least(1)
        return (both | self.letters.at_least(2)) & between(0, self.next)


def accounts_of(streams: Mapping[str, OffsetMap]) -> dict[Place, Account]:
    """An empty account for each partition of each topic that the streams read.

    Raises:
        InvalidError: a next offset is above `OFFSETS_MAX`.
    """
    found: dict[Place, Account] = {}
    for stream, offsets in sorted(streams.items()):
        source = offsets.source
        for partition, end in offsets.next.items():
            if end > OFFSETS_MAX:
                raise InvalidError(
                    f"stream {stream} is at offset {end} of partition {partition} of {source.topic}, the "
                    f"limit of an audit is {OFFSETS_MAX}; if the topic has less, the offset map is damaged: "
                    "run scripts/tarn fsck",
                    stream=stream,
                    offset=end,
                )
            place = source.topic, partition
            known = found.get(place)
            ends = {**known.ends} if known is not None else {}
            ends[source] = max(end, ends.get(source, 0))
            names = (*known.streams, stream) if known is not None else (stream,)
            found[place] = Account(topic=source.topic, partition=partition, streams=names, ends=ends)
    return dict(sorted(found.items()))


def judge_account(account: Account, *, table: str) -> Iterator[Finding]:
    """Yield what is wrong with the offsets of one partition."""
    where = f"{' + '.join(account.streams)}, partition {account.partition} of {account.topic}"

    def found(kind: Kind, what: str, fix: str) -> Finding:
        return Finding(kind=kind, where=table, what=f"{where}: {what}", fix=fix)

    missing, doubled, beyond = account.missing, account.doubled, account.beyond
    if missing:
        held = len(missing & account.held)
        evidence = [f"the log has records at {held} of them"] if held else []
        evidence += [account.removed_by] if missing & account.removed else []
        yield found(
            Kind.OFFSETS_MISSING,
            f"{len(missing)} offsets have neither row nor dead letter: {shown(missing)}; "
            + "; ".join(evidence),
            "if rows were deleted on purpose, nothing; otherwise stop the ingestor and roll the table back "
            "to a snapshot that has them",
        )
    deleted = account.deleted
    if deleted:
        yield found(
            Kind.ROWS_DELETED,
            f"another engine deleted rows at {len(deleted)} offsets: {shown(deleted)}; "
            + "; ".join(account.taken_by),
            "nothing, if they were deleted on purpose",
        )
    if doubled:
        yield found(
            Kind.OFFSETS_DOUBLED,
            f"{len(doubled)} offsets have more than one row: {shown(doubled)}; {account.holders}",
            "roll the table back to the snapshot before the second file, or delete one row of each",
        )
    if beyond:
        yield found(
            Kind.OFFSETS_BEYOND,
            f"{len(beyond)} offsets from the next one on, {account.next}, have rows: {shown(beyond)}",
            f"ingest will add them again; {KEEP}",
        )
    if account.unknown:
        yield found(
            Kind.OFFSETS_HOLE,
            f"{len(account.unknown)} offsets have neither row nor dead letter: {shown(account.unknown)}; the "
            "log could not be asked about them",
            "normal for a topic that is compacted or written in transactions; otherwise report it",
        )
    if account.letters_again:
        again = account.letters_again
        yield found(
            Kind.LETTERS_AGAIN,
            f"{len(again)} offsets with a dead letter have another one or a row: {shown(again)}",
            "normal after a replay of dead letters, or if the table was rolled back or recreated and read "
            "them again; otherwise report it",
        )
