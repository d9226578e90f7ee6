"""Producers of rows over HTTP: each is a partition of the table's stream `gateway`, its rows are the offsets.

A client with a producer id numbers its rows from 0 on, as a log numbers its records. The table keeps one
integer per producer, the next row that it does not have, in the offset map of the stream; so repeats, lost
answers and two gateways are fenced by the range chain like Kafka's offsets (invariant I5). The map knows
partitions by number. Which producer has which number is in a property of the table, which changes in the same
commit.

A property is not rolled back with the rows. So a producer whose rows were rolled back finds that the table
wants another sequence than its own: an error, never a row twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import orjson

from tarn.core.errors import CorruptStateError
from tarn.core.offsets import OffsetMap, OffsetRange, TopicIdentity, check_offsets
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.quota import Quota, Used

STREAM = "gateway"
PROPERTY = "tarn.gateway.producers"
FORMAT = 1
NUMBER_MAX = 2**31 - 1
"""Numbers are partitions in the trace column, which are 32-bit integers."""
WINDOW_DAYS = 7
PRODUCERS_MAX = 1_000


def source_of(table_uuid: str) -> TopicIdentity:
    """The identity of a table's stream of rows over HTTP; a table recreated has another."""
    return TopicIdentity(cluster="tarn", topic=STREAM, topic_id=table_uuid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A producer as a table knows it.

    Attributes:
        number: its partition.
        day: last day on which it committed rows, in days since the epoch.
    """

    number: int
    day: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Rows of one producer in a commit: [start, end).

    Attributes:
        producer: id of the producer.
        number: its number, or the one that it is to get.
        start: sequence of its first row in the commit.
        end: sequence behind its last.
    """

    producer: str
    number: int
    start: int
    end: int

    def range(self) -> OffsetRange:
        """The claim as a range of offsets."""
        return OffsetRange(partition=self.number, start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBook:
    """The producers of a table, and what they brought in today.

    Attributes:
        next_number: number of the next new producer; numbers are never used again.
        producers: by id.
        used: rows and bytes of the last day with any.
    """

    next_number: int = 0
    producers: Mapping[str, Producer] = field(default_factory=dict)
    used: Used = field(default_factory=Used)

    def __post_init__(self) -> None:
        """Freeze the mapping."""
        object.__setattr__(self, "producers", MappingProxyType(dict(self.producers)))

    def to_json(self) -> str:
        """Compact JSON, as stored in the table's property."""
        known = {name: [p.number, p.day] for name, p in sorted(self.producers.items())}
        used = [self.used.day, self.used.rows, self.used.bytes]
        return orjson.dumps(
            {"v": FORMAT, "next": self.next_number, "producers": known, "used": used}
        ).decode()

    @staticmethod
    def from_json(text: str) -> ProducerBook:
        """Parse the result of `to_json`.

        Raises:
            CorruptStateError: the text is not of this form.
        """
        try:
            value = orjson.loads(text)
            if value["v"] != FORMAT:
                raise ValueError(f"format {value['v']}, this version reads {FORMAT}")
            day, rows, size = map(int, value["used"])
            book = ProducerBook(
                next_number=int(value["next"]),
                producers={
                    str(name): Producer(number=int(number), day=int(day))
                    for name, (number, day) in value["producers"].items()
                },
                used=Used(day=day, rows=rows, bytes=size),
            )
            numbers = [p.number for p in book.producers.values()]
            if len(set(numbers)) < len(numbers) or any(not 0 <= n < book.next_number for n in numbers):
                raise ValueError("a number is given twice, or was never given")
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise CorruptStateError(
                f"the table property {PROPERTY} cannot be read ({e!r}): {text[:200]!r}; set it to "
                "what an earlier "
                "metadata file of the table has",
                value=text[:200],
            ) from e
        return book

    def without_idle(self, day: int) -> ProducerBook:
        """The book without producers that committed nothing for `WINDOW_DAYS`."""
        kept = {name: p for name, p in self.producers.items() if p.day > day - WINDOW_DAYS}
        return self if len(kept) == len(self.producers) else replace(self, producers=kept)

    def claimed(self, claims: Iterable[Claim], day: int) -> ProducerBook | Rejected:
        """The book after these claims; a new producer gets the number that it claims.

        Returns:
            The book, or why a claim does not fit: its number belongs to another producer by now.
        """
        producers = dict(self.producers)
        after = self.next_number
        for claim in claims:
            known = self.producers.get(claim.producer)
            if known is None:
                if claim.number < self.next_number:
                    return Rejected(
                        reason=f"producer {claim.producer!r}: number {claim.number} was given to another"
                    )
                after = max(after, claim.number + 1)
            elif known.number != claim.number:
                return Rejected(
                    reason=f"producer {claim.producer!r} has number {known.number}, not {claim.number}"
                )
            producers[claim.producer] = Producer(
                number=claim.number, day=max(day, known.day if known else day)
            )
        return replace(self, next_number=after, producers=producers)


def next_sequence(book: ProducerBook, offsets: OffsetMap | None, producer: str) -> int | None:
    """The next row that a table wants of a producer; None if the table does not know it."""
    known = book.producers.get(producer)
    if known is None or offsets is None:
        return None
    return offsets.next.get(known.number)


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
    claimed = book.claimed(claims, day)
    if isinstance(claimed, Rejected):
        return claimed
    # A producer without an offset has no row in the table: it is new, or all its rows were rolled back.
    known = offsets.next if offsets is not None else {}
    fresh = frozenset(c.number for c in claims if c.producer not in book.producers or c.number not in known)
    ranges = tuple(claim.range() for claim in claims)
    if any(r.partition in fresh and r.start != 0 for r in ranges):
        return Rejected(reason="a producer that the table does not know begins behind row 0")
    after = check_offsets(offsets, source_of(table_uuid), ranges, fresh=fresh)
    if not isinstance(after, OffsetMap):
        return after
    used = book.used.plus(day, sum(claim.end - claim.start for claim in claims), size)
    over = (quota or Quota()).exceeded(used)
    if over is not None:
        return Rejected(reason=f"the table has {over}")
    kept = replace(claimed.without_idle(day), used=used)
    numbers = {p.number for p in kept.producers.values()}
    return Advanced(
        book=kept,
        offsets=OffsetMap(source=after.source, next={p: o for p, o in after.next.items() if p in numbers}),
    )
