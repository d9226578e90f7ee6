"""Producers of rows over HTTP: each is a partition of the table's stream `gateway`, its rows are the offsets.

A client with a producer id numbers its rows from 0 on, as a log numbers its records. The table keeps one
integer per producer, the next row that it does not have, in the offset map of the stream; so repeats, lost
answers and two gateways are fenced by the range chain like Kafka's offsets (invariant I5). The map knows
partitions by number. Which producer has which number is in a property of the table, which changes in the same
commit.

A number outlives its producer: the map keeps its offset, as readers and the audit go by it. The next new
producer gets the number, and its row 0 has that offset. So the map is as long as the most producers that the
table knew at one time.

A property is not rolled back with the rows. So a producer whose rows were rolled back finds that the table
wants another sequence than its own: an error, never a row twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import orjson

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError
from tarn.core.offsets import OffsetMap, OffsetRange, TopicIdentity, check_offsets
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.quota import Quota, Used
from tarn.core.rejected_rows import RUNS_MAX, Runs, clipped, from_gaps, to_gaps

STREAM = "gateway"
PROPERTY = "tarn.gateway.producers"
FORMAT = 3
"""Format 1 does not say which rows were rejected, and 2 not which offset row 0 has: it is 0."""
FORMAT_FROM_0 = 2
"""Written until a producer is forgotten, so that the release before can write to the table too."""
NUMBER_MAX = 2**31 - 1
"""Numbers are partitions in the trace column, which are 32-bit integers."""
WINDOW_DAYS = 7
PRODUCERS_MAX = 1_000
OWN_PREFIX = "gateway:"
"""Beginning of the ids that gateways give themselves, one per process, for clients that number nothing."""
OWN_MAX = 100
"""Ids of gateways that a table keeps, the last ones that wrote: one that starts again and again has many."""
BOOK_RUNS_MAX = 1_000
"""Runs of rejected rows that a table keeps of all producers."""
LAST_COMMITS_MAX = 8
"""Gateways of which a table keeps the last commit, those that committed last."""
NOTHING_KNOWN = 2**63 - 1
"""Row from which on it is known which rows were rejected, of producers from before that was kept."""


def source_of(table_uuid: str) -> TopicIdentity:
    """The identity of a table's stream of rows over HTTP; a table recreated has another."""
    return TopicIdentity(cluster="tarn", topic=STREAM, topic_id=table_uuid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where the rows of a producer are in the stream.

    Attributes:
        number: their partition.
        first: offset of its row 0; the rows before were other producers' that the table has forgotten.
    """

    number: int
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A producer as a table knows it.

    Attributes:
        number: its partition.
        day: last day on which it committed rows, in days since the epoch.
        first: offset of its row 0 there.
        judged: from which row on it is known what the table did not take.
        rejected: the rows from there on that it did not take.
    """

    number: int
    day: int
    first: int = 0
    judged: int = 0
    rejected: Runs = ()

    def to_list(self, version: int) -> list[int]:
        """The producer as the property has it in a format, short where all but its number and day is 0."""
        first = [] if version == FORMAT_FROM_0 else [self.first]
        found = [*first, self.judged, *to_gaps(self.rejected, self.judged)]
        return [self.number, self.day, *(found if any(found) else [])]

    @staticmethod
    def of_list(number: object, day: object, first: Any = 0, judged: Any = 0, *gaps: object) -> Producer:
        """What `to_list` gave.

        Raises:
            ValueError, TypeError: it is not of this form.
        """
        from_row = int(judged)
        return Producer(
            number=int(number),  # type: ignore[call-overload]
            day=int(day),  # type: ignore[call-overload]
            first=int(first),
            judged=from_row,
            rejected=from_gaps(gaps, from_row),
        )

    def after(self, claim: Claim, day: int) -> Producer:
        """The producer after further rows. They may be old ones, which were rolled back and come again."""
        rejected = (*clipped(self.rejected, 0, claim.start), *claim.rejected)
        found = replace(
            self,
            day=max(day, self.day),
            first=claim.slot.first,
            judged=min(self.judged, claim.start),
            rejected=rejected,
        )
        return found.with_runs(RUNS_MAX)

    def with_runs(self, count_max: int) -> Producer:
        """The producer with the last of its runs alone; of rows before them nothing is known any more."""
        if len(self.rejected) <= count_max:
            return self
        left = len(self.rejected) - count_max
        return replace(self, judged=self.rejected[left - 1][1], rejected=self.rejected[left:])

    def rejected_of(self, start: int, end: int) -> Runs | None:
        """Which of the rows from `start` to before `end` were rejected, by number; None if not known."""
        return None if start < self.judged else clipped(self.rejected, start, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Rows of one producer in a commit: [start, end).

    Attributes:
        producer: id of the producer.
        slot: its number, or the one that it is to get, and the offset of its row 0.
        start: sequence of its first row in the commit.
        end: sequence behind its last.
        rejected: the rows of it that the table does not take; of a gateway's own id they are not kept.
    """

    producer: str
    slot: Slot
    start: int
    end: int
    rejected: Runs = ()

    def range(self) -> OffsetRange:
        """The claim as a range of offsets."""
        first = self.slot.first
        return OffsetRange(partition=self.slot.number, start=first + self.start, end=first + self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBook:
    """The producers of a table, and what they brought in today.

    Attributes:
        next_number: number of the next new producer that gets none of a forgotten one.
        producers: by id, those that wrote last at the end.
        used: rows and bytes of the last day with any.
        last_commits: id of the last commit of each gateway, by the id that it gave itself, those that
            committed last at the end: it finds its own commit when the snapshot is expired already.
    """

    next_number: int = 0
    producers: Mapping[str, Producer] = field(default_factory=dict)
    used: Used = field(default_factory=Used)
    last_commits: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Freeze the mappings."""
        object.__setattr__(self, "producers", MappingProxyType(dict(self.producers)))
        object.__setattr__(self, "last_commits", MappingProxyType(dict(self.last_commits)))

    def to_json(self, ends: Iterable[int] = ()) -> str:
        """Compact JSON, as stored in the table's property.

        Args:
            ends: the numbers in the offset map of the same version of the table. The release before drops
                those of producers that are forgotten: it must not write where there are any.
        """
        known_numbers = {p.number for p in self.producers.values()}
        plain = not any(p.first for p in self.producers.values()) and known_numbers.issuperset(ends)
        version = FORMAT_FROM_0 if plain else FORMAT
        known = {name: p.to_list(version) for name, p in self.producers.items()}
        used = [self.used.day, self.used.rows, self.used.bytes]
        value = {"v": version, "next": self.next_number, "producers": known, "used": used}
        if self.last_commits:
            value["commits"] = dict(self.last_commits)
        return orjson.dumps(value).decode()

    @staticmethod
    def from_json(text: str) -> ProducerBook:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = versioned_json.read(text, FORMAT, 1, 2)
            more = {1: [0, NOTHING_KNOWN], 2: [0]}.get(value["v"], [])
            day, rows, size = map(int, value["used"])
            book = ProducerBook(
                next_number=int(value["next"]),
                producers={
                    str(name): Producer.of_list(*one[:2], *more, *one[2:])
                    for name, one in value["producers"].items()
                },
                used=Used(day=day, rows=rows, bytes=size),
                last_commits={str(name): str(one) for name, one in value.get("commits", {}).items()},
            )
            numbers = [p.number for p in book.producers.values()]
            if len(set(numbers)) < len(numbers) or any(not 0 <= n < book.next_number for n in numbers):
                raise ValueError("a number is given twice, or was never given")
            if any(p.first < 0 for p in book.producers.values()):
                raise ValueError("a negative offset")
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"the table property {PROPERTY} cannot be read ({e!r}): {text[:200]!r}; set it to what an "
                "earlier metadata file of the table has",
                value=text[:200],
            ) from e
        return book

    def without_idle(self, day: int) -> ProducerBook:
        """The book without producers that committed nothing for `WINDOW_DAYS`, and with few of gateways."""
        own = [name for name in self.producers if is_own(name)]
        gone = set(own[: max(0, len(own) - OWN_MAX)])
        kept = {
            name: p for name, p in self.producers.items() if p.day > day - WINDOW_DAYS and name not in gone
        }
        return self if len(kept) == len(self.producers) else replace(self, producers=kept)

    def with_commit(self, gateway: str, commit_id: str) -> ProducerBook:
        """The book after a commit of this gateway."""
        others = [(name, one) for name, one in self.last_commits.items() if name != gateway]
        return replace(self, last_commits=dict([*others[-(LAST_COMMITS_MAX - 1) :], (gateway, commit_id)]))

    def with_few_runs(self) -> ProducerBook:
        """The book with at most `BOOK_RUNS_MAX` runs of rejected rows, fewer of those that have most."""
        counts = [len(p.rejected) for p in self.producers.values()]
        each = RUNS_MAX
        while sum(min(count, each) for count in counts) > BOOK_RUNS_MAX:
            each //= 2
        if each == RUNS_MAX:
            return self
        return replace(self, producers={name: p.with_runs(each) for name, p in self.producers.items()})

    def rejected_of(self, producer: str, start: int, end: int) -> Runs | None:
        """Which rows of a producer the table did not take; see `Producer.rejected_of`."""
        known = self.producers.get(producer)
        return None if known is None else known.rejected_of(start, end)

    @property
    def clients(self) -> int:
        """Number of the producers that clients named."""
        return sum(not is_own(name) for name in self.producers)

    def slot_of(self, producer: str, ends: Mapping[int, int]) -> Slot | None:
        """Where the rows of a producer are; None if the table does not know it.

        A gateway's own id, whose rows have no numbers to repeat them by, begins where its number ends now if
        all its rows were rolled back with some of those before it. That of a client is `rolled_back` then.

        Args:
            producer: its id.
            ends: offset map of the same version of the table.
        """
        known = self.producers.get(producer)
        if known is None:
            return None
        first = min(known.first, ends.get(known.number, 0)) if is_own(producer) else known.first
        return Slot(number=known.number, first=first)

    def rolled_back(self, producer: str, ends: Mapping[int, int]) -> bool:
        """Whether all rows of a client's producer were rolled back, with some that its number had before.

        Such a producer writes no more to this version of the table. If its row 0 got an earlier offset now,
        its numbers would be those of other rows once the rollback is undone.
        """
        known = self.producers.get(producer)
        return known is not None and not is_own(producer) and known.first > ends.get(known.number, 0)

    def new_slot(self, ends: Mapping[int, int], taken: Iterable[int]) -> Slot:
        """Where the rows of a new producer are to be: at the end of a forgotten one's, or in a new partition.

        Args:
            ends: offset map of the same version of the table.
            taken: numbers of other new producers.
        """
        held = {p.number for p in self.producers.values()}.union(taken)
        free = next((number for number in ends if number not in held), None)
        if free is not None:
            return Slot(number=free, first=ends[free])
        return Slot(number=max([self.next_number - 1, *held]) + 1)

    def claimed(self, claims: Iterable[Claim], ends: Mapping[int, int], day: int) -> ProducerBook | Rejected:
        """The book after these claims; a new producer gets the number that it claims.

        Args:
            claims: the claims.
            ends: offset map of the same version of the table.
            day: today.

        Returns:
            The book, or why a claim does not fit: its number belongs to another producer by now, or did
            meanwhile.
        """
        producers = dict(self.producers)
        held = {p.number for p in self.producers.values()}
        after = self.next_number
        for claim in claims:
            name, number = claim.producer, claim.slot.number
            known = self.slot_of(name, ends)
            if self.rolled_back(name, ends):
                return Rejected(reason=f"producer {name!r}: its rows were rolled back")
            if known is None:
                # A number without an offset was lost with it, by earlier versions: where it ends is unknown.
                if number in held or (number not in ends and number < self.next_number):
                    return Rejected(reason=f"producer {name!r}: number {number} was given to another")
                known = Slot(number=number, first=ends.get(number, 0))
                after = max(after, number + 1)
            if known.number != number:
                return Rejected(reason=f"producer {name!r} has number {known.number}, not {number}")
            if known != claim.slot:
                return Rejected(
                    reason=f"producer {name!r}: its row 0 has offset {known.first}, not {claim.slot.first}"
                )
            new = Producer(number=number, day=day, first=known.first, judged=claim.start)
            producers[name] = producers.pop(name, new).after(claim, day)  # behind those that wrote before
        return replace(self, next_number=after, producers=producers)

    def may_have_had(self, claim: Claim, ends: Mapping[int, int]) -> bool:
        """Whether the table may have had these rows, and has forgotten their producer since.

        Args:
            claim: the rows.
            ends: offset map of the same version of the table.
        """
        if claim.producer in self.producers:
            return False
        holder = next((p for p in self.producers.values() if p.number == claim.slot.number), None)
        between = holder is None or holder.first > claim.slot.first
        return between and ends.get(claim.slot.number, 0) > claim.range().start


def is_own(producer: str) -> bool:
    """Whether an id is one that a gateway gave itself; those of clients have a principal and a slash."""
    return producer.startswith(OWN_PREFIX) and "/" not in producer


def next_sequence(book: ProducerBook, offsets: OffsetMap | None, producer: str) -> int | None:
    """The next row that a table wants of a producer; None if the table does not know it."""
    slot = book.slot_of(producer, offsets.next) if offsets is not None else None
    if slot is None or offsets is None or slot.number not in offsets.next:
        return None
    return max(0, offsets.next[slot.number] - slot.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """What a table states after a commit of rows over HTTP.

    Attributes:
        book: its producers.
        offsets: the next row of each.
    """

    book: ProducerBook
    offsets: OffsetMap


def advance(
    book: ProducerBook,
    offsets: OffsetMap | None,
    claims: tuple[Claim, ...],
    *,
    table_uuid: str,
    day: int,
    size: int = 0,
    quota: Quota | None = None,
) -> Advanced | AlreadyCommitted | Rejected:
    """Whether rows may be committed on a version of the table, and what it then states.

    Args:
        book: producers of that version.
        offsets: offset map of that version; None before the first rows.
        claims: the rows; one claim per producer.
        table_uuid: UUID of the table.
        day: today, in days since the epoch.
        size: size of the rows as they were sent, in bytes.
        quota: what that version of the table allows in a day; None for anything.

    Raises:
        SourceChangedError: the offsets are another table's.
        ValueError: two claims of one producer.
    """
    known = offsets.next if offsets is not None else {}
    claimed = book.claimed(claims, known, day)
    if isinstance(claimed, Rejected):
        return claimed
    # A producer without an offset has no row in the table: it is new, or all its rows were rolled back.
    new = [c for c in claims if c.producer not in book.producers or c.slot.number not in known]
    if any(claim.start != 0 for claim in new):
        return Rejected(reason="a producer that the table does not know begins behind row 0")
    fresh = frozenset(claim.slot.number for claim in new)
    ranges = tuple(claim.range() for claim in claims)
    after = check_offsets(offsets, source_of(table_uuid), ranges, fresh=fresh)
    if not isinstance(after, OffsetMap):
        return after
    used = book.used.plus(day, sum(claim.end - claim.start for claim in claims), size)
    over = (quota or Quota()).exceeded(used)
    if over is not None:
        return Rejected(reason=f"the table has {over}")
    return Advanced(book=replace(claimed.without_idle(day).with_few_runs(), used=used), offsets=after)
