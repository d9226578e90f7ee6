"""One ingestor at work: plan, read, decode, write, commit, again. One thread; no state but the table's own.

Whatever goes wrong, the next plan starts from the table: a batch that was not committed is read again from
the log, one that was is found in the table's map.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from tarn.adapters.catalog_rest import TableCatalog, TableName
from tarn.adapters.files import Objects, WrittenFile, write_rows
from tarn.adapters.manifests import Manifests
from tarn.adapters.tables import Layout, create_request, layout_of, layout_version
from tarn.core import dead_letter
from tarn.core.batch import BatchBuilder, RawBatch
from tarn.core.decode import Decoder
from tarn.core.errors import (
    AlreadyExistsError,
    NoSuchTableError,
    TarnError,
    UnavailableError,
)
from tarn.core.offsets import SourceId, require_same_source
from tarn.core.source import NoSuchTopicError, Source, Sources
from tarn.core.spec import IngestorSpec
from tarn.core.table import Json, Retention, TableState
from tarn.ingest.changes import BatchChange, offsets_in
from tarn.ingest.committer import Committer, NotDone, Ports
from tarn.ingest.letters import Letters
from tarn.ingest.plan import start_positions
from tarn.ingest.status import Board, State

log = structlog.get_logger()


class StoppedError(Exception):
    """The process was asked to stop; whatever is open is dropped, which is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The numbers of the loop, in seconds.

    Attributes:
        poll_s_max: the longest wait for records.
        look_s: how often the topic is asked how far it reaches, and the table whether it moved.
        watermark_s: how long a position that moved without records may stay uncommitted (invariant I11).
        acknowledge_s: how often group offsets are written.
        retry_s: the first wait after a dependency failed; doubles up to retry_s_max.
        recheck_s: how often a stopped ingestor looks whether its reason is gone.
    """

    poll_s_max: float = 0.25
    look_s: float = 5.0
    watermark_s: float = 60.0
    acknowledge_s: float = 5.0
    retry_s: float = 0.5
    retry_s_max: float = 10.0
    recheck_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What an ingestor needs: ports to the outside, shared by all ingestors of a process.

    Attributes:
        sources: topics.
        catalog: tables.
        objects: files.
        ports: what the commit loop needs; its `sleep` raises StoppedError when the process stops.
        new_id: a commit id or file name that was never used before.
        clock: monotonic seconds.
        board: where to tell.
        stopping: whether the process was asked to stop.
        limits: numbers.
        retention: which snapshots stay.
    """

    sources: Sources
    catalog: TableCatalog
    objects: Objects
    ports: Ports
    new_id: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    board: Board = field(default_factory=Board)
    stopping: Callable[[], bool] = lambda: False
    limits: Limits = field(default_factory=Limits)
    retention: Retention = field(default_factory=Retention)


class Ingestor:
    """One spec at work.

    Args:
        spec: what to do.
        world: what to do it with.
    """

    def __init__(self, spec: IngestorSpec, world: World) -> None:
        self.spec = spec
        self.name = spec.name
        self._world = world
        body = spec.spec
        self._topic = body.source.kafka.topic
        self._table = TableName(body.table.levels, body.table.name)
        letters = body.dead_letters.table
        self._letters_table = TableName(letters.levels, letters.name)
        self._decoder = Decoder(
            body.columns.fields,
            source=self._topic,
            trace=body.trace,
            record_bytes_max=body.dead_letters.max_record_bytes,
        )
        self._committer = self._new_committer(self._table)
        self._letters = Letters(
            self._new_committer(self._letters_table),
            world.objects,
            stream=self.name,
            topic=self._topic,
            table=str(self._letters_table),
            new_id=world.new_id,
        )
        self._layout: tuple[tuple[object, ...], Layout] | None = None
        self._source: Source | None = None
        self._told: tuple[State, str, str] | None = None
        world.board.update(self.name, table=str(self._table), topic=self._topic)

    # -- life ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Works until the process stops. What fails is told, waited for and tried again, for ever."""
        waits = 0
        while not self._world.stopping():
            try:
                self.cycle(lambda: self._world.stopping())
                waits = 0
            except StoppedError:
                break
            except (UnavailableError, NoSuchTopicError) as e:
                waits += 1
                self._tell(State.WAITING, e)
                limits = self._world.limits
                if not self._rest(min(limits.retry_s_max, limits.retry_s * 2 ** min(waits, 8))):
                    break
            except TarnError as e:
                self._tell(State.STOPPED, e)
                if not self._rest(self._world.limits.recheck_s):
                    break
            except Exception as e:  # noqa: BLE001 - a defect in one ingestor must not take the others along
                self._tell_defect(e)
                if not self._rest(self._world.limits.recheck_s):
                    break
            finally:
                self._close()
        self._world.board.update(self.name, state=State.FINISHED, reason="", message="the process stops")

    def cycle(self, until: Callable[[], bool]) -> None:
        """Plans once and works until asked to stop, or until the plan does not hold any more.

        Raises:
            UnavailableError: a dependency is away.
            DataError: going on would lose or double rows.
            TarnError: anything else that a person must see.
        """
        source, identity, state, fresh = self._plan()
        self._tell(State.RUNNING, None)
        limits = self._world.limits
        builder = self._new_builder()
        now = self._world.clock()
        committed_s = looked_s = acknowledged_s = now
        acknowledge: dict[int, int] = {}
        while not until():
            now = self._world.clock()
            self._world.board.update(self.name, beat_s=now)
            wait_s = builder.wait_s(now)
            idle = wait_s is None and builder.ranges() and now - committed_s >= limits.watermark_s
            if wait_s == 0.0 or idle:
                result = self._commit(builder.cut(), source, identity, fresh, state.uuid)
                if result is None:
                    return
                state, after = result
                fresh -= after.keys()
                committed_s = self._world.clock()
                acknowledge.update(after)
                builder = self._new_builder()
                continue
            if acknowledge and now - acknowledged_s >= limits.acknowledge_s:
                source.acknowledge(acknowledge)
                acknowledge, acknowledged_s = {}, now
            if now - looked_s >= limits.look_s:
                looked_s = now
                if not self._measure(source) or (wait_s is None and not self._look(source, identity, state)):
                    return
            timeout_s = limits.poll_s_max if wait_s is None else min(wait_s, limits.poll_s_max)
            for polled in source.poll(records_max=max(1, builder.room), timeout_s=timeout_s):
                builder.add(polled, now_s=self._world.clock())
        if acknowledge:
            source.acknowledge(acknowledge)

    # -- steps ---------------------------------------------------------------------------------------------

    def _plan(self) -> tuple[Source, SourceId, TableState, frozenset[int]]:
        """Opens the topic, makes what is missing, and seeks to where the table stands.

        Returns:
            The topic, who it is, the table, and the partitions that the table does not know yet.
        """
        kafka = self.spec.spec.source.kafka
        source = self._source = self._world.sources.open(self._topic, stream=self.name)
        try:
            identity = source.identity()
        except NoSuchTopicError:
            if not kafka.create:
                raise
            self._world.sources.create(self._topic, partitions=kafka.partitions)
            identity = source.identity()
        self._letters.see(self._ensure(self._letters_table, self._letters_request()))
        self._ensure(self._table, self._table_request())
        state = self._committer.load()
        self._layout_for(state)
        bounds = source.bounds()
        table = offsets_in(state, self.name)
        positions = start_positions(table, identity, bounds, stream=self.name)
        source.seek(positions)
        self._letters.register(state)
        head = state.head_id
        self._world.board.update(
            self.name,
            committed=dict(positions),
            ends={p: b.end for p, b in bounds.items()},
            snapshot_id=head,
            progress_s=self._world.clock(),
        )
        log.info(
            "ingestor planned",
            ingestor=self.name,
            table=str(self._table),
            topic=self._topic,
            positions={str(p): o for p, o in positions.items()},
            snapshot_id=head,
        )
        known = table.next if table is not None else {}
        return source, identity, state, frozenset(p for p in positions if p not in known)

    def _commit(
        self, batch: RawBatch, source: Source, identity: SourceId, fresh: frozenset[int], table_uuid: str
    ) -> tuple[TableState, dict[int, int]] | None:
        """Makes a batch a fact; None if the plan does not hold any more.

        Raises:
            SourceChangedError: the topic was made anew while it was read.
        """
        world = self._world
        started = world.clock()
        decoded = self._decoder.decode(batch)
        state = self._committer.load() if self._layout is None else None
        layout = self._layout_for(state) if state is not None else self._current_layout()
        files: tuple[WrittenFile, ...] = ()
        if decoded.rows.num_rows:
            files = write_rows(world.objects, layout, self._root, decoded.rows, new_name=world.new_id)
        at = datetime.fromtimestamp(world.ports.now_ms() / 1_000, tz=UTC)
        letters = self._letters.write(batch, decoded.bad, at=at)
        # Ids are never used twice: the same one before the first read and now means that all came from it.
        require_same_source(identity, source.identity())
        change = BatchChange(
            commit_id=world.new_id(),
            table_uuid=table_uuid,
            stream=self.name,
            source=identity,
            ranges=batch.ranges,
            fresh=fresh,
            files=files,
            letters=letters,
            registered=self._letters.marker,
        )
        result = self._committer.commit(change, layout)
        if isinstance(result, NotDone):
            log.warning(
                "batch does not fit the table; planning again", ingestor=self.name, reason=result.reason
            )
            return None
        self._tell(State.RUNNING, None)
        took_ms = (world.clock() - started) * 1_000
        after = {r.partition: r.end for r in batch.ranges}
        held = offsets_in(result.state, self.name)
        if held is None or any(held.next.get(p, -1) != end for p, end in after.items()):
            # In the table, and more besides: somebody else writes this stream too.
            log.info("the table is ahead of this batch; planning again", ingestor=self.name)
            return None
        if layout_version(result.state) != self._current_version():
            self._layout_for(result.state)
        if result.by_us:
            world.board.add(self.name, rows=decoded.rows.num_rows, bad_records=len(decoded.bad), commits=1)
        status = world.board.get(self.name)
        world.board.update(
            self.name,
            committed={**status.committed, **after},
            ends={p: max(end, after.get(p, end)) for p, end in status.ends.items()},
            commit_ms=took_ms,
            commit_at_ms=world.ports.now_ms(),
            progress_s=world.clock(),
            snapshot_id=result.state.head_id,
        )
        log.debug(
            "batch committed",
            ingestor=self.name,
            rows=decoded.rows.num_rows,
            bad=len(decoded.bad),
            attempts=result.attempts,
            ms=round(took_ms, 1),
        )
        if letters:
            log.warning(
                "bad records went to dead letters",
                ingestor=self.name,
                records=len(decoded.bad),
                table=str(self._letters_table),
                first=next(iter(decoded.bad.values())),
            )
            self._letters.register(result.state)
        return result.state, after

    def _measure(self, source: Source) -> bool:
        """Asks how far the topic reaches, for the lag; False if a new plan is due."""
        ends = {p: b.end for p, b in source.bounds().items()}
        status = self._world.board.update(self.name, ends=ends)
        if status.lag == 0:
            self._world.board.update(self.name, progress_s=self._world.clock())
        if set(ends) - set(status.committed):
            log.info("the topic has new partitions; planning again", ingestor=self.name)
            return False
        return True

    def _look(self, source: Source, identity: SourceId, state: TableState) -> bool:
        """Looks at topic and table while nothing comes; False if a new plan is due."""
        require_same_source(identity, source.identity())
        now = self._committer.load()
        if now.uuid != state.uuid or offsets_in(now, self.name) != offsets_in(state, self.name):
            log.info("the table moved under this ingestor; planning again", ingestor=self.name)
            return False
        self._letters.register(now)
        return True

    # -- tables --------------------------------------------------------------------------------------------

    def _ensure(self, table: TableName, request: Json) -> TableState:
        """The table; made if it does not exist."""
        try:
            return self._world.catalog.load(table)
        except NoSuchTableError:
            pass
        self._world.catalog.create_namespace(table.namespace)
        try:
            state = self._world.catalog.create(table, request)
        except AlreadyExistsError:
            return self._world.catalog.load(table)
        log.info("table created", table=str(table), uuid=state.uuid)
        return state

    def _table_request(self) -> Json:
        body = self.spec.spec
        return create_request(
            body.columns.fields,
            trace=body.trace,
            partitioning=body.table.partitioning,
            properties=body.table.properties,
            format_version=body.table.format_version,
        )

    def _letters_request(self) -> Json:
        return create_request(dead_letter.FIELDS, trace=False)

    def _layout_for(self, state: TableState) -> Layout:
        version = layout_version(state)
        if self._layout is None or self._layout[0] != version:
            body = self.spec.spec
            layout = layout_of(state, body.columns.fields, trace=body.trace, table=str(self._table))
            self._layout = (version, layout)
        self._root = state.root
        return self._layout[1]

    def _current_layout(self) -> Layout:
        if self._layout is None:
            raise AssertionError("no layout before the first plan")
        return self._layout[1]

    def _current_version(self) -> tuple[object, ...]:
        return self._layout[0] if self._layout is not None else ()

    def _new_committer(self, table: TableName) -> Committer:
        world = self._world
        return Committer(
            world.catalog,
            table,
            Manifests(world.objects, new_name=world.new_id),
            ports=world.ports,
            retention=world.retention,
            on_wait=self._tell_wait,
        )

    def _new_builder(self) -> BatchBuilder:
        limits = self.spec.spec.batching
        return BatchBuilder(
            records_max=limits.max_records,
            bytes_max=limits.max_bytes,
            latency_s_max=limits.max_latency_seconds,
        )

    # -- telling -------------------------------------------------------------------------------------------

    def _tell(self, state: State, error: TarnError | None) -> None:
        """Puts the state on the board, and into the log when it changes."""
        reason = type(error).__name__.removesuffix("Error") if error is not None else ""
        message = error.message if error is not None else ""
        changes: dict[str, object] = {"state": state, "reason": reason, "message": message}
        changes["beat_s"] = self._world.clock()
        before, self._told = self._told, (state, reason, "" if state is State.WAITING else message)
        if before != self._told:
            changes["since_ms"] = self._world.ports.now_ms()
            if state is State.STOPPED:
                log.error("ingestor stopped", ingestor=self.name, reason=reason, message=message)
            elif state is State.WAITING:
                log.warning("ingestor waits", ingestor=self.name, reason=reason, message=message)
            else:
                log.info("ingestor runs", ingestor=self.name)
        self._world.board.update(self.name, **changes)

    def _tell_wait(self, reason: str) -> None:
        self._tell(State.WAITING, UnavailableError(reason))

    def _tell_defect(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}; a defect of Tarn, please report it"
        log.error("ingestor failed", ingestor=self.name, exc_info=error)
        self._told = (State.STOPPED, "Defect", message)
        self._world.board.update(
            self.name,
            state=State.STOPPED,
            reason="Defect",
            message=message,
            since_ms=self._world.ports.now_ms(),
        )

    def _rest(self, seconds: float) -> bool:
        """Waits; False if the process stops meanwhile."""
        try:
            self._world.ports.sleep(seconds)
        except StoppedError:
            return False
        return True

    def _close(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()
