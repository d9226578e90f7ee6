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
FORMAT = 2
"""Format 1 does not say which rows were rejected."""
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
class Producer:
    """A producer as a table knows it.

    Attributes:
        number: its partition.
        day: last day on which it committed rows, in days since the epoch.
        judged: from which row on it is known what the table did not take.
        rejected: the rows from there on that it did not take.
    """

    number: int
    day: int
    judged: int = 0
    rejected: Runs = ()

    def to_list(self) -> list[int]:
        """The producer as the property has it."""
        if not self.judged and not self.rejected:
            return [self.number, self.day]
        return [self.number, self.day, self.judged, *to_gaps(self.rejected, self.judged)]

    @staticmethod
    def of_list(number: object, day: object, judged: Any = 0, *gaps: object) -> Producer:
        """What `to_list` gave.

        Raises:
            ValueError, TypeError: it is not of this form.
        """
        from_row = int(judged)
        return Producer(
            number=int(number),  # type: ignore[call-overload]
            day=int(day),  # type: ignore[call-overload]
            judged=from_row,
            rejected=from_gaps(gaps, from_row),
        )

    def after(self, claim: Claim, day: int) -> Producer:
        """The producer after further rows. They may be old ones, which were rolled back and come again."""
        rejected = (*clipped(self.rejected, 0, claim.start), *claim.rejected)
        found = replace(self, day=max(day, self.day), judged=min(self.judged, claim.start), rejected=rejected)
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
        number: its number, or the one that it is to get.
        start: sequence of its first row in the commit.
        end: sequence behind its last.
        rejected: the rows of it that the table does not take; of a gateway's own id they are not kept.
    """

    producer: str
    number: int
    start: int
    end: int
    rejected: Runs = ()

    def range(self) -> OffsetRange:
        """The claim as a range of offsets."""
        return OffsetRange(partition=self.number, start=self.start, end=self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerBook:
    """The producers of a table, and what they brought in today.

    Attributes:
        next_number: number of the next new producer; numbers are never used again.
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

    def to_json(self) -> str:
        """Compact JSON, as stored in the table's property."""
        known = {name: p.to_list() for name, p in self.producers.items()}
        used = [self.used.day, self.used.rows, self.used.bytes]
        value = {"v": FORMAT, "next": self.next_number, "producers": known, "used": used}
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
            value = versioned_json.read(text, FORMAT, 1)
            more = [NOTHING_KNOWN] if value["v"] == 1 else []
            day, rows, size = map(int, value["used"])
            book = ProducerBook(
                next_number=int(value["next"]),
                producers={
                    str(name): Producer.of_list(*one, *more) for name, one in value["producers"].items()
                },
                used=Used(day=day, rows=rows, bytes=size),
                last_commits={str(name): str(one) for name, one in value.get("commits", {}).items()},
            )
            numbers = [p.number for p in book.producers.values()]
            if len(set(numbers)) < len(numbers) or any(not 0 <= n < book.next_number for n in numbers):
                raise ValueError("a number is given twice, or was never given")
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
            before = producers.pop(claim.producer, Producer(number=claim.number, day=day, judged=claim.start))
            producers[claim.producer] = before.after(claim, day)  # behind those that wrote before
        return replace(self, next_number=after, producers=producers)


def is_own(producer: str) -> bool:
    """Whether an id is one that a gateway gave itself; those of clients have a principal and a slash."""
    return producer.startswith(OWN_PREFIX) and "/" not in producer


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
    kept = replace(claimed.without_idle(day).with_few_runs(), used=used)
    numbers = {p.number for p in kept.producers.values()}
    return Advanced(
        book=kept,
        offsets=OffsetMap(source=after.source, next={p: o for p, o in after.next.items() if p in numbers}),
    )
