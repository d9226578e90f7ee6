"""What an inbox holds: writes that wait, what is known of the table, and what is on its way into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.offsets import OffsetMap
from tarn.core.pressure import DebtLimits, Pressure
from tarn.core.producers import Claim, ProducerBook, Slot
from tarn.core.quota import Quota
from tarn.core.rejected_rows import Runs, runs_of, shifted
from tarn.core.spec import FieldSpec
from tarn.core.table_files import TableFiles, TableWriter
from tarn.core.table_state import TableState
from tarn.core.write_keys import KEYS_MAX, KeyEntry
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.rows_commit import KeysCommit, RowsCommit
from tarn.gateway.writes import Receipt, Write


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxLimits:
    """Bounds of an inbox.

    Attributes:
        rows_max: rows of one commit.
        bytes_max: bytes from which on a commit takes no more writes.
        waiting_bytes_max: bytes that may wait; beyond them a write is refused, unless it is the only one.
        waiting_writes_max: writes that may wait.
        wait_s_max: how long a write waits for its turn, in seconds; then it is answered: not written.
        gap_s_max: how long a write waits for the rows before it, in seconds.
        row_bytes_max: size of a row.
        retry_s: wait after a dependency failed, in seconds; doubled per failure up to `retry_s_max`.
        retry_s_max: longest such wait.
        keys_max: idempotency keys of one window.
        debt: when the health of the table holds writers back.
        look_s: how long what is known of a table's health holds, in seconds, while nothing is committed.
    """

    rows_max: int = 100_000
    bytes_max: int = 2 << 20
    waiting_bytes_max: int = 16 << 20
    waiting_writes_max: int = 10_000
    wait_s_max: float = 20.0
    gap_s_max: float = 1.0
    row_bytes_max: int = 1 << 20
    retry_s: float = 0.1
    retry_s_max: float = 2.0
    keys_max: int = KEYS_MAX
    debt: DebtLimits = field(default_factory=DebtLimits)
    look_s: float = 5.0


@dataclass(slots=True, eq=False)
class Waiting:
    """A write that is not answered yet.

    Attributes:
        write: the write.
        answer: its future answer.
        since_s: when it arrived, on the monotonic clock.
        followers: answers to repeats that came while it was on its way; their rows are not kept.
    """

    write: Write
    answer: Future[Receipt]
    since_s: float
    followers: list[Future[Receipt]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Answer those who follow with it."""
        followers = self.followers  # not the write: its rows would live until the collector comes
        self.answer.add_done_callback(lambda done: _pass_on(done, followers))

    def follow(self, answer: Future[Receipt]) -> None:
        """Answer a repeat as this write will be, or was."""
        self.followers.append(answer)
        if self.answer.done():
            _pass_on(self.answer, self.followers)


def _pass_on(done: Future[Receipt], followers: list[Future[Receipt]]) -> None:
    """Answer repeats as the write that was on its way."""
    error = done.exception()
    for answer in list(followers):
        if answer.done():
            continue
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(replace(done.result(), repeated=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What is made for the columns of a table, as long as they stay the same.

    Attributes:
        fields: the columns.
        trace: whether the table has the trace column.
        files: its files.
        decoder: decoder of rows.
    """

    fields: Sequence[FieldSpec]
    trace: bool
    files: TableFiles
    decoder: Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is known of a version of the table.

    Attributes:
        state: that version.
        asked_s: when it was asked for, on the monotonic clock; it may lack what was committed later.
        book: its producers.
        offsets: the next row of each; None before the first.
        keys: where its idempotency keys are; None if it has none.
        quota: what its owner allows in a day.
        debt: how much its health holds writers back.
        writer: writer of its files.
        decoder: decoder of rows.
    """

    state: TableState
    asked_s: float
    book: ProducerBook
    offsets: OffsetMap | None
    keys: KeyEntry | None
    quota: Quota
    debt: Pressure
    writer: TableWriter
    decoder: Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Writes whose file is in the store or on the way there, in no table yet.

    Attributes:
        change: their commit.
        writer: writer of the file.
        parts: the writes, each with the reasons why rows of it were rejected, by index.
    """

    change: RowsCommit
    writer: TableWriter
    parts: tuple[tuple[Waiting, dict[int, str]], ...]


@dataclass(slots=True)
class Taken:
    """Writes taken for one commit.

    Attributes:
        parts: the writes, each with its producer and the sequence of its first row.
        claims: their rows, by producer.
        keys: those with an idempotency key, by key.
        firsts: the first of each range, by producer and sequence.
        repeats: writes that the table has already, to be answered as the first time.
        rows: number of rows.
        bytes: size of the rows.
        stale: whether a write has to be judged by a newer version of the table.
    """

    parts: list[tuple[Waiting, str, int]] = field(default_factory=list)
    claims: dict[str, Claim] = field(default_factory=dict)
    keys: dict[str, Waiting] = field(default_factory=dict)
    firsts: dict[tuple[str, int], Waiting] = field(default_factory=dict)
    repeats: list[Waiting] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    stale: bool = False

    def leave(self, one: Waiting) -> None:
        """Take a write out that needs no commit; the numbers of its rows are passed over."""
        self.parts = [part for part in self.parts if part[0] is not one]
        if one.write.keyed is not None:
            del self.keys[one.write.keyed.key]
        named = {name for _, name, _ in self.parts}
        self.claims = {name: claim for name, claim in self.claims.items() if name in named}

    def judged_claims(self, found: Mapping[int, dict[int, str]]) -> tuple[Claim, ...]:
        """The claims with the rows that were rejected of producers that clients named.

        Args:
            found: what `judged` found.
        """
        runs: dict[str, list[int]] = {}
        for one, name, start in self.parts:
            if one.write.producer is not None:
                runs.setdefault(name, []).extend(start + row for row in found[id(one)])
        return tuple(
            replace(claim, rejected=runs_of(runs.get(name, ()))) for name, claim in self.claims.items()
        )


@dataclass(slots=True)
class OnTheWay:
    """Writes whose file is made, until their commit has ended.

    Attributes:
        tails: producer to the row behind its last one on the way.
        slots: where the rows of each producer are to be that the table does not know yet.
        flying: the writes, by producer and sequence.
        flying_keys: those with an idempotency key, by key.
        keys_tail: where the table will have its keys; None if no key is on its way.
        landings: number of commits that have ended.
    """

    tails: dict[str, int] = field(default_factory=dict)
    slots: dict[str, Slot] = field(default_factory=dict)
    flying: dict[tuple[str, int], Waiting] = field(default_factory=dict)
    flying_keys: dict[str, Waiting] = field(default_factory=dict)
    keys_tail: KeyEntry | None = None
    landings: int = 0

    def send(self, taken: Taken, book: ProducerBook, keys: KeysCommit | None) -> None:
        """Add writes whose commit begins."""
        if keys is not None:
            self.keys_tail = keys.after
            self.flying_keys.update(taken.keys)
        for one, name, start in taken.parts:
            self.flying[(name, start)] = one
        for claim in taken.claims.values():
            self.tails[claim.producer] = claim.end
            if claim.producer not in book.producers:
                self.slots[claim.producer] = claim.slot

    def land(self, prepared: Prepared, memory: KeyMemory) -> None:
        """Remove writes whose commit has ended, whatever its result."""
        self.landings += 1
        for claim in prepared.change.claims:
            if self.tails.get(claim.producer) == claim.end:
                del self.tails[claim.producer]
                self.slots.pop(claim.producer, None)
        keys = prepared.change.keys
        if keys is not None:
            memory.discard(keys.after)
            if self.keys_tail == keys.after:
                self.keys_tail = None
        gone = {id(waiting) for waiting, _ in prepared.parts}
        self.flying = {key: one for key, one in self.flying.items() if id(one) not in gone}
        self.flying_keys = {key: one for key, one in self.flying_keys.items() if id(one) not in gone}


class Verdict(Enum):
    """What becomes of a write that waits."""

    TAKEN = auto()
    LATER = auto()
    ANSWERED = auto()


def raw_batch(parts: Sequence[tuple[Write, Slot, int]], claims: Sequence[Claim] = ()) -> RawBatch:
    """Rows as records: the producer's number is their partition, and the sequence says their offset.

    Args:
        parts: writes, each with the slot of its producer and the sequence of its first row.
        claims: their rows, by producer.
    """
    return RawBatch(
        partitions=[slot.number for write, slot, _ in parts for _ in write.values],
        offsets=[slot.first + start + i for write, slot, start in parts for i in range(len(write.values))],
        times_ms=[write.at_ms for write, _, _ in parts for _ in write.values],
        keys=[None for write, _, _ in parts for _ in write.values],
        values=[value for write, _, _ in parts for value in write.values],
        ranges=tuple(claim.range() for claim in claims),
    )


def judged(parts: Iterable[tuple[Waiting, str, int]], bad: Mapping[int, str]) -> dict[int, dict[int, str]]:
    """The reasons why rows were rejected, by their index in each write.

    Args:
        parts: the writes, whose rows were decoded one after the other.
        bad: the reasons by index of all these rows.

    Returns:
        The reasons of each write, by its `id`.
    """
    ordered = sorted(bad.items())
    found: dict[int, dict[int, str]] = {}
    first = at = 0
    for one, _, _ in parts:
        end, own = first + len(one.write.values), found.setdefault(id(one), {})
        while at < len(ordered) and ordered[at][0] < end:
            own[ordered[at][0] - first] = ordered[at][1]
            at += 1
        first = end
    return found


def rejected_of(book: ProducerBook, write: Write) -> Runs | None:
    """Which rows of a numbered write, by index, a table did not take; None if it is not known."""
    if write.producer is None:
        return None
    runs = book.rejected_of(write.producer, write.sequence, write.end)
    return None if runs is None else shifted(runs, -write.sequence)


def in_turn(queue: Iterable[Waiting]) -> list[Waiting]:
    """Writes in order of arrival, but those of one producer, in its places, in that of their rows.

    So a producer with many rows behind it waits no longer than one that begins.
    """
    arrived = list(queue)
    own: dict[str, list[Waiting]] = {}
    for one in arrived:
        if one.write.producer is not None:
            own.setdefault(one.write.producer, []).append(one)
    ordered = {name: iter(sorted(ones, key=lambda one: one.write.sequence)) for name, ones in own.items()}
    return [one if one.write.producer is None else next(ordered[one.write.producer]) for one in arrived]
