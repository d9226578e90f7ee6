"""A subscription: reads the rows that an ingestor adds to a table, batch by batch, each with its position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Literal, TypeAlias

import pyarrow as pa

from tarn.adapters.lake_reader import FilesGoneError, LakeReader, LoadedTable
from tarn.client.group import Group
from tarn.core.errors import InvalidError, TarnError
from tarn.core.offsets import OffsetMap
from tarn.core.reading import (
    FileSpans,
    Place,
    Range,
    ReaderPosition,
    advanced,
    check_place,
    ends_in,
    newer_than,
    next_window,
)

PLAN_S_MAX = 300.0
"""A plan is recreated after so long: files that a commit removed stay for the reaper's grace, 15 minutes."""
FILES_GONE_MAX = 5
"""Plans in a row whose files were gone, after which the error is raised."""

Start: TypeAlias = Literal["earliest", "latest"] | datetime | ReaderPosition
"""Where to begin: at the first row, after the last one, at a time of the messages, or at a position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of a table, and the position behind them.

    Attributes:
        rows: the rows, at least one; those of a partition in the order of their offsets.
        position: position of a reader that has had these rows and all before them.
    """

    rows: pa.Table
    position: ReaderPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a subscription.

    Attributes:
        rows_max: maximum number of rows in a batch.
        files_max: maximum number of files that a batch is read from, unless more hold the same offsets.
        poll_s: pause between two looks at a table without new rows, in seconds.
        timeout_s: seconds without a row after which the iteration ends; None for never.
    """

    rows_max: int = 100_000
    files_max: int = 64
    poll_s: float = 1.0
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        for name, value, least in (
            ("rows_max", self.rows_max, 1),
            ("files_max", self.files_max, 1),
            ("poll_s", self.poll_s, 0.01),
            ("timeout_s", 0 if self.timeout_s is None else self.timeout_s, 0),
        ):
            if not value >= least:
                raise InvalidError(f"Invalid {name} {value!r}: give a number from {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is left to read of one version of a table.

    Attributes:
        loaded: the version.
        ends: its offset maps.
        files: files that may hold rows.
        made_s: monotonic time of the plan.
    """

    loaded: LoadedTable
    ends: Mapping[str, OffsetMap]
    files: Sequence[FileSpans]
    made_s: float


@dataclass(slots=True, kw_only=True)
class Subscription:
    """An iterator over the rows that ingest adds to a table. Not thread-safe.

    It ends after `timeout_s` without a row; iterate again to go on. An error leaves it where it was: after an
    `UnavailableError` the next iteration tries again.

    Attributes:
        reader: reads the table.
        group: the group whose position is stored; None for none.
        limits: limits of the subscription.
        auto_commit: store the position of a batch when the next one is asked for.
        clock: monotonic time in seconds.
        sleep: waits for a number of seconds.
    """

    reader: LakeReader
    group: Group | None
    limits: Limits = field(default_factory=Limits)
    auto_commit: bool = True
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _position: ReaderPosition | None = None
    _stored: ReaderPosition | None = None
    _plan: _Plan | None = None

    def open(self, start: Start, position: Start | None) -> None:
        """Find the place to begin at, and take the group over.

        Args:
            start: where a group begins that has no position.
            position: where to begin in any case; None for where the group is.

        Raises:
            InvalidError: no ingestor writes the table, or the start is not one.
            ReaderPlaceError: the table does not have the position's place.
        """
        loaded = self.reader.load()
        ends = ends_in(loaded.state, table=self.reader.name)

        def begin() -> ReaderPosition:
            return self._begin(start if position is None else position, loaded, ends)

        def check(place: ReaderPosition) -> None:
            check_place(place, ends, uuid=loaded.state.uuid, table=self.reader.name)

        if self.group is None:
            self._position = begin()
            check(self._position)
        else:
            self._position = self.group.claim(begin, restart=position is not None, check=check)
        self._stored = self._position

    @property
    def position(self) -> ReaderPosition:
        """Position behind the last batch."""
        if self._position is None:
            raise AssertionError("no position before open")
        return self._position

    def __iter__(self) -> Iterator[Batch]:
        """The subscription itself."""
        return self

    def __next__(self) -> Batch:
        """The next batch; waits for new rows.

        Raises:
            StopIteration: no row came within `timeout_s`.
            NoSuchTableError: the table was dropped.
            ReaderPlaceError: it was recreated, or rolled back behind this reader.
            ReaderTakenError: another reader took the group over.
            UnavailableError: catalog or store do not respond; iterate again.
        """
        if self.auto_commit:
            self.commit()
        began_s = self.clock()
        while True:
            batch = self._step()
            if batch is not None:
                return batch
            if self._plan is not None:
                continue
            left_s = None if self.limits.timeout_s is None else began_s + self.limits.timeout_s - self.clock()
            if left_s is not None and left_s <= 0:
                if self.auto_commit:
                    self.commit()
                raise StopIteration
            self.sleep(self.limits.poll_s if left_s is None else min(left_s, self.limits.poll_s))

    def commit(self) -> None:
        """Store the position behind the last batch for the group; nothing without a group.

        Raises:
            ReaderTakenError: another reader took the group over.
            OutcomeUnknownError: the store did not settle the write; commit again.
        """
        if self.group is not None and _places(self._stored) != _places(self.position):
            self.group.store_position(self.position)
            self._stored = self._position

    def __enter__(self) -> Subscription:
        """The subscription itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is stored: what the last batch was used for is not known."""
        self._plan = None

    def _begin(self, at: Start, loaded: LoadedTable, ends: Mapping[str, OffsetMap]) -> ReaderPosition:
        uuid = loaded.state.uuid
        if isinstance(at, ReaderPosition):
            return at
        if at == "earliest":
            return ReaderPosition(table=uuid)
        if at == "latest":
            return ReaderPosition(table=uuid, topics=ends, seen=loaded.seen)
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise InvalidError(
                f"Invalid start {at!r}: give 'earliest', 'latest', a time with a time zone, or a position"
            )
        firsts = self.reader.first_offsets(loaded, at)
        topics = {
            name: OffsetMap(
                source=offsets.source, next={p: firsts.get((name, p), end) for p, end in offsets.next.items()}
            )
            for name, offsets in ends.items()
        }
        return ReaderPosition(table=uuid, topics=topics)

    def _step(self) -> Batch | None:
        """Read the next window; None if it has no rows. No plan afterwards: nothing is left to read."""
        for attempt in range(1, FILES_GONE_MAX + 1):
            try:
                return self._read()
            except FilesGoneError:
                self._plan = None
                if attempt == FILES_GONE_MAX:
                    raise
            except TarnError:
                # The plan's store keys may have ended while the machine slept: the next look gets others.
                self._plan = None
                raise
        raise AssertionError("unreachable")

    def _read(self) -> Batch | None:
        plan = self._plan
        if plan is None or self.clock() - plan.made_s > PLAN_S_MAX:
            plan = self._plan = None
            loaded = self.reader.load()
            ends = ends_in(loaded.state, table=self.reader.name)
            open_ = self._open(self.position, ends, loaded)
            if not open_:
                self._position = advanced(self.position, {}, ends, seen=loaded.seen)
                return None
            files = self.reader.plan(loaded, open_, seen=newer_than(self.position, loaded.state))
            plan = _Plan(loaded=loaded, ends=ends, files=files, made_s=self.clock())
        open_ = self._open(self.position, plan.ends, plan.loaded)
        window = next_window(
            open_, plan.files, rows_max=self.limits.rows_max, files_max=self.limits.files_max
        )
        rows = self.reader.read(plan.loaded, window) if window.files else None
        complete = dict(window.ranges) == dict(open_)
        position = advanced(
            self.position, window.ranges, plan.ends, seen=plan.loaded.seen if complete else None
        )
        left = None if complete else self._left(plan, position)
        batch = Batch(rows=rows, position=position) if rows is not None and rows.num_rows else None
        # Last: who is stopped by Ctrl-C before has not had the batch, and iterates again.
        self._position, self._plan = position, left
        return batch

    def _open(
        self, position: ReaderPosition, ends: Mapping[str, OffsetMap], loaded: LoadedTable
    ) -> dict[Place, Range]:
        return check_place(position, ends, uuid=loaded.state.uuid, table=self.reader.name)

    def _left(self, plan: _Plan, position: ReaderPosition) -> _Plan:
        """What is left of a plan behind this position."""
        left = self._open(position, plan.ends, plan.loaded)
        return _Plan(
            loaded=plan.loaded,
            ends=plan.ends,
            files=[file for file in plan.files if file.within(left)],
            made_s=plan.made_s,
        )


def _places(position: ReaderPosition | None) -> dict[Place, int] | None:
    return None if position is None else position.next
