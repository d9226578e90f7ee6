"""The answer to a repeat: what became of its rows the first time, as it was stored with them."""

from __future__ import annotations

from dataclasses import replace

from tarn.core.errors import DataError, UnavailableError
from tarn.core.producers import Slot
from tarn.core.rejected_rows import numbers_in, runs_of
from tarn.core.table_state import TableState
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.room import Room
from tarn.gateway.rows_commit import book_in
from tarn.gateway.takes import Plan, raw_batch, rejected_of
from tarn.gateway.writes import Receipt, Write
from tarn.ingest.batch_commit import decode

REASON_GONE = "not taken when it was first sent; the reason is not known any more"


def repeated(plan: Plan, write: Write, keys: KeyMemory, room: Room) -> Receipt:
    """The answer to rows that were judged before: which of them are in the table is what it was then.

    Args:
        plan: what is known of the table.
        write: the rows, which the table has.
        keys: the idempotency keys that it remembers.
        room: what may be decoded at one time.
    """
    if write.keyed is not None:
        known = keys.find(write.keyed.key)
        runs = known.rejected if known is not None else None
    else:
        runs = rejected_of(plan.book, write)
    rejected = None if runs is None else _reasons(plan, write, numbers_in(runs), room)
    return Receipt(
        accepted=None if rejected is None else len(write.values) - len(rejected),
        rejected=rejected,
        snapshot_id=plan.state.head_id,
        repeated=True,
    )


def same_rows(state: TableState, write: Write, bad: dict[int, str]) -> bool:
    """Whether whoever committed a write before judged its rows as this gateway did."""
    if write.producer is None:
        return True  # under the id of this process: no other one writes
    try:
        runs = rejected_of(book_in(state), write)
    except DataError:
        return False
    return runs == runs_of(bad)


def _reasons(plan: Plan, write: Write, rows: list[int], room: Room) -> dict[int, str]:
    """Why rows were rejected, as far as the columns of now say it."""
    if not rows:
        return {}
    part = replace(write, values=[write.values[row] for row in rows])
    try:
        with room.hold(part.bytes):
            bad = decode(plan.decoder, raw_batch([(part, Slot(number=0), 0)])).bad
    except UnavailableError:
        bad = {}
    return {row: bad.get(at, REASON_GONE) for at, row in enumerate(rows)}
