"""Which of the waiting changes make the next snapshot: each is judged for itself. Pure.

The first is judged on the version of the table that the snapshot will build on, each further one on that
version with the members before it. Whatever is not simply appended is settled on a version of the table as it
is: never on what is not committed yet, nor on an older version that somebody remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tarn.core.outcome import AlreadyCommitted, Conflict, Unknown
from tarn.core.table_files import TableWriter
from tarn.core.table_state import Append, TableState, commit_ids, with_provisional
from tarn.ingest.changes import Change, CommitResult, Done, NeedsReplan

COMMITTED_LOOK_BACK_MAX = 2_000


@dataclass(slots=True, eq=False, kw_only=True)
class Member:
    """A change on its way into the table.

    Attributes:
        change: the change.
        writer: writer of its files.
        on_wait: called with the reason before each wait for the catalog.
        on_refusal: called with each outcome that is no commit, for the first member of its snapshot only.
        on_retry: called before each request that is not the first with this change, for one member only.
        on_resolved: called with the number of unknown outcomes once the result is certain, likewise.
        require_going: called before each wait; what it raises settles this change, and no other.
        attempts: number of requests with this change.
        unknowns: number of unknown outcomes of its requests that are not resolved, for the first member only.
        doubtful: whether a request with this change has an unknown outcome.
        in_doubt: makes what is raised of an error that ends the change while that is so.
        result: what became of it; None while that is open.
    """

    change: Change
    writer: TableWriter
    on_wait: Callable[[str], None] = lambda _reason: None
    on_refusal: Callable[[Conflict | Unknown], None] = lambda _outcome: None
    on_retry: Callable[[], None] = lambda: None
    on_resolved: Callable[[int], None] = lambda _count: None
    require_going: Callable[[], None] = lambda: None
    attempts: int = 0
    unknowns: int = 0
    doubtful: bool = False
    in_doubt: Callable[[Exception], Exception] = lambda error: error
    result: CommitResult | BaseException | None = None


@dataclass(slots=True, kw_only=True)
class Draft:
    """The next snapshot.

    Attributes:
        members: the changes that it holds; none: there is nothing to send.
        append: what it appends, all members together.
        stale: whether a member can only be settled on a version of the table that is loaded now.
    """

    members: list[Member] = field(default_factory=list)
    append: Append | None = None
    stale: bool = False


def settle_committed(members: Sequence[Member], state: TableState) -> None:
    """Settle the members that an earlier request brought into the table; before anything else (I3)."""
    sent = {member.change.commit_id: member for member in members if member.attempts}
    for seen, snapshot in enumerate(state.ancestors()):
        if not sent or seen > COMMITTED_LOOK_BACK_MAX:
            return
        ids = commit_ids(snapshot.get("summary") or {})
        for found in ids:
            member = sent.pop(found, None)
            if member is not None:
                first = found == ids[0]
                member.result = Done(state=state, by_us=True, attempts=member.attempts, first=first)


def draft_on(members: Sequence[Member], state: TableState, *, fresh: bool, members_max: int) -> Draft:
    """Judge the changes, settle those that this version of the table decides, and draft the next snapshot.

    Args:
        members: open members, in order of arrival.
        state: version of the table to build on.
        fresh: whether it was loaded since all members arrived; if not, only an append counts, as the catalog
            checks it again.
        members_max: number of members from which on the others wait for the next snapshot.
    """
    draft = Draft()
    on = state
    for member in members:
        alone = bool(member.change.removed)
        if draft.append is not None and (alone or draft.append.removed_files):
            continue
        if len(draft.members) >= members_max:
            break
        verdict = _judged(member, on)
        if isinstance(verdict, Append):
            draft.members.append(member)
            draft.append = _joined(draft, verdict)
            on = with_provisional(state, draft.append)
        elif on is state and fresh:
            member.result = verdict
        else:
            # Settled later: on the table with the members before it, or on its newest version.
            draft.stale = draft.stale or on is state
    return draft


def _judged(member: Member, state: TableState) -> Append | CommitResult | Exception:
    change = member.change
    if state.uuid != change.table_uuid:
        reason = f"the table was recreated: its UUID was {change.table_uuid} and is {state.uuid}"
        return NeedsReplan(state=state, reason=reason)
    try:
        verdict = change.on(state)
        if isinstance(verdict, AlreadyCommitted):
            return Done(state=state, by_us=False, attempts=member.attempts)
        if not isinstance(verdict, Append):
            return NeedsReplan(state=state, reason=verdict.reason)
        if not member.writer.is_current(state):
            return NeedsReplan(state=state, reason="the table's columns or partitions changed meanwhile")
    except Exception as e:  # noqa: BLE001 - raised to whoever handed the change over; others go on
        return e
    return verdict


def _joined(draft: Draft, verdict: Append) -> Append:
    if draft.append is None:
        return verdict
    touched = {(file.spec_id, file.partition) for member in draft.members for file in member.change.files}
    return draft.append.followed_by(verdict, partitions=len(touched))
