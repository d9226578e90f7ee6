"""What the bookkeeper answers to each of its readers, compared with the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tarn.core.small_files import Group
from tarn.core.table_files import TableWriter
from tarn.core.table_state import TableState
from tarn.ingest.batch_commit import BatchCommit, CommittedBatch, offsets_in
from tarn.ingest.bookkeeper import Seat
from tarn.ingest.changes import Change, CommitResult, Done, NeedsReplan
from tarn.ingest.ingestor import Ingestor, Merged, Plan

if TYPE_CHECKING:
    from tests.campaign.world import Sim


@contextmanager
def answers_watched(sim: Sim) -> Iterator[None]:
    """Within the block, each answer to a batch is compared with the version of the table that it names.

    What readers have under way is counted.
    """
    commit = Seat.commit

    def watched(seat: Seat, change: Change, writer: TableWriter) -> CommitResult:
        sim.watch.committing += 1
        try:
            result = commit(seat, change, writer)
        finally:
            sim.watch.committing -= 1
        if isinstance(change, BatchCommit) and not sim.watch.rewritten:
            sim.watch.problems += [
                f"a batch of {_named(change)} was answered {type(result).__name__}, and {text}"
                for text in _wrong(sim, change, result, writer)
            ]
        return result

    merge, commit_merge, plan = Ingestor._merge, Ingestor._commit_merge, Ingestor._plan

    def merging(reader: Ingestor, group: Group, writer: TableWriter, *, letters: bool = False) -> Merged:
        sim.watch.merging[id(reader)] = ""
        made = merge(reader, group, writer, letters=letters)
        sim.watch.merging[id(reader)] = "".join(file.path for file in made.files)
        return made

    def merged(reader: Ingestor, on: Plan, made: Merged) -> CommittedBatch | NeedsReplan:
        result = commit_merge(reader, on, made)
        del sim.watch.merging[id(reader)]
        return result

    def planning(reader: Ingestor) -> Plan:
        sim.watch.cut_off.add(sim.watch.merging.pop(id(reader), ""))
        return plan(reader)

    with (
        patch.object(Seat, "commit", watched),
        patch.object(Ingestor, "_merge", merging),
        patch.object(Ingestor, "_commit_merge", merged),
        patch.object(Ingestor, "_plan", planning),
    ):
        yield


def _wrong(sim: Sim, change: BatchCommit, result: CommitResult, writer: TableWriter) -> list[str]:
    known = _offsets(result.state, change)
    if isinstance(result, Done):
        behind = {
            r.partition: known.get(r.partition) for r in change.ranges if known.get(r.partition, 0) < r.end
        }
        return [f"the table's offsets are {behind}"] if behind else []
    sim.watch.given_up.add(change.commit_id)
    wrong = []
    if change.commit_id in sim.watch.committed:
        wrong.append("the table has it")
    source = (found := offsets_in(result.state, change.stream)) is None or found.source == change.source
    starts = all(
        known.get(r.partition) == r.start or (r.partition not in known and r.partition in change.fresh)
        for r in change.ranges
    )
    if source and starts and result.state.uuid == change.table_uuid and writer.is_current(result.state):
        wrong.append(f"it fits: the table's offsets are {known}")
    return wrong


def _offsets(state: TableState, change: BatchCommit) -> dict[int, int]:
    found: Any = offsets_in(state, change.stream)
    return dict(found.next) if found is not None else {}


def _named(change: BatchCommit) -> str:
    return ", ".join(f"{r.partition}: {r.start} to {r.end}" for r in change.ranges)
