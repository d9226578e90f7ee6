"""What a table's log says about repeats: claims, one record per producer or key in a compacted topic. Pure.

Rows that a gateway writes with `durability=log` go to the topic of their table, and what is known of their
repeats to a second topic, in one Kafka transaction: both are there, or neither is. A claim says how far a
producer's rows reach, or that a key was used, and at which offsets the rows are. One gateway at a time writes
a table's log: another one that begins fences it first, and then reads the claims to their end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import orjson

from tarn.core import rejected_rows, versioned_json
from tarn.core.errors import CorruptStateError
from tarn.core.quota import Used
from tarn.core.write_keys import WINDOW_S

FORMAT = 1
TOPIC_PREFIX = "tarn.log."
"""Beginning of the names of all topics of the gateway; patterns of specs do not match them."""
RECENT_MAX = 32
"""Writes of a producer whose offsets are remembered."""
PRODUCERS_MAX = 1_000
PRODUCER_MS = 7 * 86_400_000
"""How long a producer is known after its last write, in milliseconds."""
KEYS_MAX = 200_000
KEY_MS = WINDOW_S * 1_000
"""How long a key is known, in milliseconds."""
MARKS_MAX = 100
"""Processes whose last transaction is remembered, those that wrote last. No clock says so: one that is wrong
would take the mark that another process looks for."""
FORGET_MAX = 500
"""Claims that one transaction removes at most."""

_PRODUCER, _KEY, _MARK, _USED = "p/", "k/", "m/", "u"


def topic_of(table_uuid: str) -> str:
    """The topic with the rows of a table."""
    return f"{TOPIC_PREFIX}{table_uuid}"


def claims_topic_of(table_uuid: str) -> str:
    """The topic with their claims."""
    return f"{TOPIC_PREFIX}claims.{table_uuid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive offsets of a partition.

    Attributes:
        partition: the partition.
        first: the first offset.
        last: the last one.
    """

    partition: int
    first: int
    last: int


def runs_of(places: Iterable[tuple[int, int]]) -> tuple[Run, ...]:
    """Runs of (partition, offset) pairs, in their order."""
    found: list[Run] = []
    for partition, offset in places:
        if found and found[-1].partition == partition and found[-1].last + 1 == offset:
            found[-1] = replace(found[-1], last=offset)
        else:
            found.append(Run(partition=partition, first=offset, last=offset))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a write.

    Attributes:
        runs: where its accepted rows are.
        rejected: which rows were not, by index; None if they are too many to be remembered.
    """

    runs: tuple[Run, ...] = ()
    rejected: rejected_rows.Runs | None = ()

    @property
    def accepted(self) -> int:
        """Number of accepted rows."""
        return sum(one.last - one.first + 1 for one in self.runs)

    @staticmethod
    def of(places: Iterable[tuple[int, int]], rejected: Iterable[int]) -> Fate:
        """The fate of rows at these partitions and offsets, and without those of these indices."""
        found = rejected_rows.runs_of(rejected)
        return Fate(runs=runs_of(places), rejected=found if len(found) <= rejected_rows.RUNS_MAX else None)

    def plain(self) -> list[object]:
        """As JSON types."""
        gaps = None if self.rejected is None else rejected_rows.to_gaps(self.rejected)
        return [[[one.partition, one.first, one.last] for one in self.runs], gaps]

    @staticmethod
    def from_plain(value: Sequence[Any]) -> Fate:
        """The fate that `plain` was asked for.

        Raises:
            ValueError, TypeError: it is none.
        """
        runs, gaps = value
        return Fate(
            runs=tuple(Run(partition=int(p), first=int(first), last=int(last)) for p, first, last in runs),
            rejected=None if gaps is None else rejected_rows.from_gaps(gaps),
        )


@dataclass(frozen=True, kw_only=True)
class Appended:
    """A numbered write that is in the log.

    Attributes:
        start: sequence of its first row.
        end: sequence behind its last one.
        fate: what became of it.
    """

    start: int
    end: int
    fate: Fate

    @cached_property
    def json(self) -> orjson.Fragment:
        """As JSON, made once: each of a producer's next claims says it again."""
        return orjson.Fragment(orjson.dumps([self.start, self.end, self.fate.plain()]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerClaim:
    """How far a producer's rows reach.

    Attributes:
        end: the next row that is wanted of it.
        at_ms: when it wrote last, in milliseconds since the epoch.
        recent: its last writes, the oldest first.
    """

    end: int
    at_ms: int
    recent: tuple[Appended, ...] = ()

    def find(self, start: int, end: int) -> Fate | None:
        """What became of an earlier write; None if that is not remembered."""
        return next((one.fate for one in self.recent if (one.start, one.end) == (start, end)), None)

    def plus(self, written: Appended, at_ms: int) -> ProducerClaim:
        """The claim after a further write."""
        return ProducerClaim(
            end=written.end, at_ms=max(at_ms, self.at_ms), recent=(*self.recent, written)[-RECENT_MAX:]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyClaim:
    """A key that was used.

    Attributes:
        digest: fingerprint of what was sent under it.
        at_ms: when, in milliseconds since the epoch.
        fate: what became of the rows.
    """

    digest: str
    at_ms: int
    fate: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a transaction claims.

    Attributes:
        mark: identifies the transaction.
        writer: id of the process that writes it.
        at_ms: when, in milliseconds since the epoch.
        producers: the claims of producers that wrote.
        keys: the keys that were used.
        used: what the table took today.
        forgotten: keys of records that are removed.
    """

    mark: str
    writer: str
    at_ms: int
    producers: Mapping[str, ProducerClaim] = field(default_factory=dict)
    keys: Mapping[str, KeyClaim] = field(default_factory=dict)
    used: Used | None = None
    forgotten: Sequence[str] = ()

    def names(self) -> set[str]:
        """Keys of the records with a value."""
        found = {_MARK + self.writer, *(_PRODUCER + name for name in self.producers)}
        found.update(_KEY + key for key in self.keys)
        return found if self.used is None else {*found, _USED}

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """The records, by key; without a value a record removes another."""
        found: list[tuple[str, object]] = [
            (_PRODUCER + name, [one.end, one.at_ms, [written.json for written in one.recent]])
            for name, one in self.producers.items()
        ]
        found += [(_KEY + key, [one.digest, one.at_ms, one.fate.plain()]) for key, one in self.keys.items()]
        if self.used is not None:
            found.append((_USED, [self.used.day, self.used.rows, self.used.bytes]))
        found.append((_MARK + self.writer, [self.mark, self.at_ms]))
        removed: list[tuple[bytes, bytes | None]] = [(key.encode(), None) for key in self.forgotten]
        return [
            *removed,
            *((key.encode(), orjson.dumps({"v": FORMAT, "is": value})) for key, value in found),
        ]


class LogBook:
    """All claims of a log, in memory. Not thread-safe.

    Args:
        topic: the topic of the claims, for messages.

    Attributes:
        producers: claims by producer.
        keys: claims by key.
        used: what the table took on the last day with any rows.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self.producers: dict[str, ProducerClaim] = {}
        self.keys: dict[str, KeyClaim] = {}
        self.used = Used()
        self._marks: dict[str, str] = {}

    def mark(self, writer: str) -> str | None:
        """The last transaction of a process; None if none is known."""
        return self._marks.get(writer)

    def read(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Take further records of the topic, in their order.

        Raises:
            CorruptStateError: a record is none of a gateway's.
        """
        for key, value in records:
            try:
                self._read(key.decode(), value)
            except (ValueError, KeyError, TypeError) as e:
                raise CorruptStateError(
                    f"topic {self._topic}: the record with the key {key[:60]!r} is none of a gateway's "
                    f"({e!r}); whoever wrote it there has to remove it (a record with this key and no value)",
                    topic=self._topic,
                ) from e

    def apply(self, change: Change) -> None:
        """Take what a transaction of this process has claimed."""
        self.producers.update(change.producers)
        for key, claim in change.keys.items():
            self._keep(key, claim)
        self.used = change.used or self.used
        self._keep_mark(change.writer, change.mark)
        for key in change.forgotten:
            self._read(key, None)

    def outdated(self, now_ms: int) -> list[str]:
        """Keys of records that are not needed any more, a part of them if they are many.

        A key from a clock that was ahead counts from now on, as the newest: where it was, it would keep all
        keys that came after it.
        """
        old: list[str] = []
        ahead: list[tuple[str, KeyClaim]] = []
        # The oldest first; there may be many more, which are not looked at.
        for key, claim in self.keys.items():
            if claim.at_ms > now_ms + KEY_MS:
                ahead.append((key, claim))
            elif claim.at_ms < now_ms - KEY_MS and len(old) < FORGET_MAX:
                old.append(_KEY + key)
            else:
                break
        for key, claim in ahead:
            self._keep(key, KeyClaim(digest=claim.digest, at_ms=now_ms, fate=claim.fate))
        found = chain(
            old,
            (_PRODUCER + name for name, one in self.producers.items() if one.at_ms < now_ms - PRODUCER_MS),
            (_MARK + writer for writer in list(self._marks)[: max(0, len(self._marks) - MARKS_MAX)]),
        )
        return [key for key, _ in zip(found, range(FORGET_MAX), strict=False)]

    def freed(self, now_ms: int) -> tuple[frozenset[str], frozenset[str]]:
        """Keys and producers that the next transaction removes; see `outdated`."""
        found = self.outdated(now_ms)
        return (
            frozenset(one.removeprefix(_KEY) for one in found if one.startswith(_KEY)),
            frozenset(one.removeprefix(_PRODUCER) for one in found if one.startswith(_PRODUCER)),
        )

    def _keep(self, key: str, claim: KeyClaim) -> None:
        """Remember a key as the newest."""
        self.keys.pop(key, None)
        self.keys[key] = claim

    def _keep_mark(self, writer: str, mark: str) -> None:
        """Remember the last transaction of a process as the newest of all."""
        self._marks.pop(writer, None)
        self._marks[writer] = mark

    def _read(self, key: str, value: bytes | None) -> None:
        is_ = None if value is None else versioned_json.read(value, FORMAT)["is"]
        if key.startswith(_PRODUCER):
            name = key.removeprefix(_PRODUCER)
            if is_ is None:
                self.producers.pop(name, None)
                return
            end, at_ms, recent = is_
            self.producers[name] = ProducerClaim(
                end=int(end),
                at_ms=int(at_ms),
                recent=tuple(
                    Appended(start=int(s), end=int(e), fate=Fate.from_plain(found)) for s, e, found in recent
                ),
            )
        elif key.startswith(_KEY):
            name = key.removeprefix(_KEY)
            if is_ is None:
                self.keys.pop(name, None)
                return
            digest, at_ms, fate = is_
            self._keep(name, KeyClaim(digest=str(digest), at_ms=int(at_ms), fate=Fate.from_plain(fate)))
        elif key.startswith(_MARK):
            if is_ is None:
                self._marks.pop(key.removeprefix(_MARK), None)
                return
            self._keep_mark(key.removeprefix(_MARK), str(is_[0]))
        elif key == _USED and is_ is not None:
            day, rows, size = map(int, is_)
            self.used = Used(day=day, rows=rows, bytes=size)
        else:
            raise ValueError("unknown key")
