"""Steps from bronze to gold and their order; after an interruption the next run resumes at the last commit.

A cycle brings silver up to bronze's snapshot in batches, then each gold table up to silver. Every commit
carries the position that it reaches, so a step and its position are committed atomically: a crash between
two steps repeats work and loses nothing. A merge into silver may happen twice; what changed in silver is
added to gold only if gold is still as it was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from tarn_jobs import statements, transforms
from tarn_jobs.lake import Lake
from tarn_jobs.position import (
    PROPERTY,
    Position,
    Range,
    Snapshot,
    descends,
    is_changed,
    is_followed,
    newest,
    next_range,
)
from tarn_jobs.schema import (
    ADDED,
    BRONZE,
    EVENT_COLUMNS,
    GOLD,
    KEY,
    NAMESPACES,
    REFERENCE,
    SILVER,
    Gold,
    Table,
)

STREAM = "flights"
OFFSETS_MAX = 1_000_000
REMADE_SHARE = 0.5

_BRONZE_COLUMNS = {
    "event_id": "string",
    "event": "string",
    "event_time": "timestamp",
    **{c.name: c.type for c in SILVER.columns if c.name in KEY},
    **{c.name: c.type for columns in EVENT_COLUMNS.values() for c in columns},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One commit of the pipeline.

    Attributes:
        table: the table written.
        offsets: the number of stream offsets that it advanced.
        events: the number of bronze events read for it.
        ignored: the number of those without a flight or a known kind.
        seconds: its duration.
    """

    table: str
    offsets: int
    seconds: float
    events: int = 0
    ignored: int = 0


@dataclass(slots=True, kw_only=True)
class Pipeline:
    """Brings silver and gold up to bronze.

    Attributes:
        lake: the tables.
        stream: the ingestor's name, under which bronze keeps its offset map.
        offsets_max: the maximum number of offsets per silver commit.
        remade_share: share of the stream from which on a gold table is made from all of silver: what changed
            would be about as much to read.
        on_step: called after each commit.
        reached: called with the name of each point between two steps; a test may raise there.
        monotonic: monotonic clock, seconds.
    """

    lake: Lake
    stream: str = STREAM
    offsets_max: int = OFFSETS_MAX
    remade_share: float = REMADE_SHARE
    on_step: Callable[[Step], None] = lambda step: None
    reached: Callable[[str], None] = lambda point: None
    monotonic: Callable[[], float] = time.monotonic
    _prepared: bool = field(default=False, init=False)

    def cycle(self) -> int:
        """Process everything that bronze holds now; return the number of commits (0: up to date).

        Raises:
            PositionError: bronze is not the one that silver was made from, or its offsets went back.
            TableMismatchError: a table has other columns than the pipeline needs.
        """
        if not self.lake.exists(BRONZE):
            return 0
        self._prepare()
        return self._silver() + self._all_gold()

    def head(self) -> str | None:
        """Return the id of bronze's current snapshot, or None; one request to the catalog."""
        return self.lake.current_snapshot(BRONZE)

    @property
    def _offsets_entry(self) -> str:
        return f"tarn.offsets.{self.stream}"

    def _prepare(self) -> None:
        self.lake.require_columns(BRONZE, _BRONZE_COLUMNS)
        if self._prepared:
            return
        self.lake.ensure_namespaces(NAMESPACES)
        self.lake.ensure_table(SILVER)
        for gold in GOLD:
            self._ensure_gold(gold.table)
        self._prepared = True

    def _silver(self) -> int:
        """Bring silver up to bronze; return the commits.

        Bronze is looked at again while silver grows by so much that all of gold is made from it: what was
        made in between would be thrown away. Each time the stream has grown by that share of itself, so gold
        waits a few times at most.
        """
        commits, done = 0, self._position(SILVER.name)
        while True:
            bronze = self._bronze()
            if bronze is None:
                return commits
            head, available = bronze
            grows = done is None or is_remade(done, available, share=self.remade_share)
            if commits and not grows:
                return commits
            first = True
            while (piece := next_range(done, available, offsets_max=self.offsets_max)) is not None:
                if not first:
                    # The snapshot may be gone by now: the catalog keeps few. A later one has its rows.
                    bronze = self._bronze()
                    if bronze is None or not bronze[1].continues(piece.after):
                        return commits
                    head = bronze[0]
                self.reached("before silver")
                self.on_step(self._silver_step(head, piece))
                self.reached("after silver")
                commits, done, first = commits + 1, piece.after, False
            if not (commits and grows):
                return commits

    def _bronze(self) -> tuple[int, Position] | None:
        """Return bronze's current snapshot and the position that it is complete up to; None without one."""
        snapshots = self.lake.snapshots(BRONZE, self._offsets_entry, tag=f"tarn-offsets-{self.stream}")
        head, text = newest(snapshots)
        if head is None or text is None:
            return None
        return head.id, Position.from_offsets(text, location=self.lake.location(BRONZE))

    def _silver_step(self, snapshot_id: int, piece: Range) -> Step:
        begun = self.monotonic()
        events = self.lake.at(BRONZE, snapshot_id).where(piece.condition())
        reference = {t.name.removeprefix("ref."): self.lake.table(t.name) for t in REFERENCE}
        flights = transforms.enriched(transforms.flights_of(events), reference)
        summary = {PROPERTY: piece.after.to_json()}
        # Bronze is read once: what is kept also says how many events there were, and of which hours.
        with self.lake.kept(flights) as changes:
            seen = transforms.counts(changes).collect()[0]
            if seen.readable == 0:
                self.lake.mark(SILVER.name, summary)
            else:
                keyed = changes.where(fn.col("time_hour").isNotNull()).select(*SILVER.names)
                merge = statements.merge_silver((seen.low_us, seen.high_us))
                self.lake.merge(merge, keyed, summary)
        return Step(
            table=SILVER.name,
            offsets=piece.offsets,
            events=seen.events,
            ignored=seen.events - seen.readable,
            seconds=self.monotonic() - begun,
        )

    def _all_gold(self) -> int:
        """Bring each gold table up to silver, which is read once for all of them; return the commits."""
        names = [SILVER.name, *(gold.table.name for gold in GOLD)]
        snapshots = self.lake.snapshots_of(names, PROPERTY)
        head, text = newest(snapshots[SILVER.name])
        if head is None or text is None:
            return 0
        available = replace(Position.from_json(text), made_from=head.id)
        behind: dict[int | None, list[_Behind]] = {}
        for gold in GOLD:
            at, reached = newest(snapshots[gold.table.name])
            done = Position.from_json(reached) if reached is not None else None
            changed = is_changed(snapshots[gold.table.name])
            if done is not None and _has_all_of(done, available, snapshots[SILVER.name], changed=changed):
                continue
            known = None if changed else done
            since = _changes_since(known, available, snapshots[SILVER.name], share=self.remade_share)
            behind.setdefault(since, []).append(_Behind(gold=gold, at=at, done=done))
        for since, tables in behind.items():
            self._gold_since(since, tables, available)
        return sum(len(tables) for tables in behind.values())

    def _gold_since(self, since: int | None, tables: list[_Behind], available: Position) -> None:
        """Bring gold tables that were made from one snapshot of silver up to `available`; None: from all."""
        head = available.made_from
        assert head is not None
        if since is None:
            rows = self.lake.at(SILVER.name, head).withColumn("sign", fn.lit(1))
        else:
            rows = self.lake.changes(SILVER.name, after=since, until=head)
        with self.lake.kept(transforms.in_groups(rows, [t.gold for t in tables])) as grouped:
            for table in tables:
                self._gold(table, transforms.summed(grouped, table.gold), since, available)

    def _gold(self, behind: _Behind, sums: DataFrame, since: int | None, available: Position) -> None:
        begun = self.monotonic()
        gold, table, at = behind.gold, behind.gold.table.name, behind.at
        self.reached(f"before {table}")
        if since is None or at is None:
            rows = transforms.delays(sums, gold)
        else:
            rows = transforms.with_changes(self.lake.at(table, at.id), sums, gold)
        # To add a change twice would be wrong: of two pipelines that add to one state only the first commits.
        self.lake.replace(table, rows, {PROPERTY: available.to_json()}, since=at.id if at else None)
        self.reached(f"after {table}")
        self.on_step(
            Step(table=table, offsets=available.since(behind.done), seconds=self.monotonic() - begun)
        )

    def _ensure_gold(self, table: Table) -> None:
        """Create a gold table; add the sums to one of an earlier version, which is then made from all."""
        if self.lake.exists(table.name) and not self.lake.columns(table.name) & {c.name for c in ADDED}:
            done = self._position(table.name)
            if done is not None and done.made_from is not None:
                self.lake.mark(table.name, {PROPERTY: replace(done, made_from=None).to_json()})
            self.lake.add_columns(table.name, ADDED)
        self.lake.ensure_table(table)

    def _position(self, table: str) -> Position | None:
        _, text = newest(self.lake.snapshots(table, PROPERTY))
        return Position.from_json(text) if text is not None else None


def is_remade(done: Position, available: Position, *, share: float) -> bool:
    """Return whether a gold table at `done` is made from all of silver, and not merged with what changed."""
    return done.source != available.source or available.since(done) >= share * available.since(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behind:
    """A gold table that lacks something of silver, its current snapshot, and its position."""

    gold: Gold
    at: Snapshot | None
    done: Position | None


def _has_all_of(done: Position, available: Position, silver: list[Snapshot], *, changed: bool) -> bool:
    """Return whether gold at `done` holds what silver at `available` does: its offsets, and made from it.

    A silver that was dropped and made again, or was rolled back, reaches the same offsets by other commits.
    One that has not got so far yet, or was looked at before another pipeline's commits, changes nothing.

    Args:
        done: the position of gold.
        available: that of silver.
        silver: the snapshots of silver.
        changed: whether somebody has changed rows of gold since.
    """
    if done.source != available.source or not done.covers(available):
        return False
    if not available.covers(done):
        return True
    if changed:
        return False
    if done.made_from is None:
        return True
    assert available.made_from is not None
    return descends(silver, after=done.made_from, until=available.made_from)


def _changes_since(
    done: Position | None, available: Position, silver: list[Snapshot], *, share: float
) -> int | None:
    """Return the snapshot of silver whose changes since bring gold at `done` up; None: make it from all."""
    if done is None or done.made_from is None or is_remade(done, available, share=share):
        return None
    assert available.made_from is not None
    followed = is_followed(silver, after=done.made_from, until=available.made_from)
    return done.made_from if followed else None
