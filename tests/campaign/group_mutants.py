"""Rules of the group commit that are taken out (ADR 23); faults with several readers must notice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tarn.adapters.files import Upload
from tarn.core.table_state import PROVISIONAL_ID, TableState
from tarn.ingest import batch_commit, committer, group
from tarn.ingest.bookkeeper import Bookkeeper
from tarn.ingest.changes import NeedsReplan
from tarn.ingest.committer import Committer
from tarn.ingest.group import Draft, Member
from tarn.ingest.pace import Turn
from tests.campaign.mutant import Mutant, any_range, mutated

READERS = 3

_judged = group._judged
_joined = group._joined
_draft_on = committer.draft_on
_settle_committed = committer.settle_committed
_commit_all = Committer.commit_all


def _on_the_base(state: TableState, _append: Any) -> TableState:
    return state


def _first_only(member: Member, state: TableState) -> Any:
    if state.head_id != PROVISIONAL_ID:
        return _judged(member, state)
    with patch.object(batch_commit, "check_offsets", any_range):
        return _judged(member, state)


def _first_stays(draft: Draft, verdict: Any) -> Any:
    joined = _joined(draft, verdict)
    if draft.append is None:
        return joined
    ids = {key: value for key, value in joined.summary.items() if key.startswith("tarn.commit-id")}
    return replace(joined, summary={**joined.summary, **draft.append.summary, **ids})


def _all_or_none(members: Sequence[Member], state: TableState, **options: Any) -> Draft:
    draft = _draft_on(members, state, **options)
    refused = next((m.result for m in members if isinstance(m.result, NeedsReplan)), None)
    if refused is None:
        return draft
    for member in members:
        member.result = member.result or refused
    return Draft()


def _remembering(self: Committer, members: Any, **options: Any) -> None:
    self._mutant_members = members  # type: ignore[attr-defined]
    _commit_all(self, members, **options)


def _of_the_first(self: Committer, outcome: Any, _attempts: int) -> None:
    sent = [member for member in self._mutant_members if member.attempts]  # type: ignore[attr-defined]
    for member in sent[1:]:
        member.result = member.result or NeedsReplan(state=self.load(), reason=outcome.reason)


def _first_looked_for(members: Sequence[Member], state: TableState) -> None:
    _settle_committed(members[:1], state)


def _gather_without_end(self: Bookkeeper, gather_s: float) -> None:
    if gather_s > 0:
        with self._changed:
            self._changed.wait_for(lambda: not self.pace.awaited(self._clock()))


def _stays(_self: Any) -> None:
    return None


GROUP_MUTANTS = (
    Mutant(
        name="group: judged on the base",
        rule="each member of a group is judged on the table without the members before it",
        faults=(1, 4, 12),
        patches=mutated((group, "with_provisional", _on_the_base)),
        replicas=READERS,
    ),
    Mutant(
        name="group: the first judged for all",
        rule="the members after the first one go in whatever offsets the table has",
        faults=(11, 10),
        patches=mutated((group, "_judged", _first_only)),
        replicas=READERS,
    ),
    Mutant(
        name="group: the first map stays",
        rule="the offsets that a snapshot states are those after its first member, not after its last",
        faults=(1, 4, 12),
        patches=mutated((group, "_joined", _first_stays)),
        replicas=READERS,
    ),
    Mutant(
        name="group: one refused, all refused",
        rule="a member that does not fit fails those beside it",
        faults=(10,),
        patches=mutated((committer, "draft_on", _all_or_none)),
        seed=70,
        replicas=READERS,
    ),
    Mutant(
        name="group: unknown to the first only",
        rule="after an unknown outcome all but the first member of the group are given up",
        faults=(4, 6, 19),
        patches=mutated((Committer, "commit_all", _remembering), (Committer, "_unknown", _of_the_first)),
        replicas=READERS,
    ),
    Mutant(
        name="group: the first looked for, any range",
        rule="after an unknown outcome only the first member is looked for, and a batch goes on any base",
        faults=(4, 6),
        patches=mutated(
            (committer, "settle_committed", _first_looked_for), (batch_commit, "check_offsets", any_range)
        ),
        replicas=READERS,
    ),
    Mutant(
        name="group: files not awaited",
        rule="a snapshot is committed while the files of its members are still being written",
        faults=(1, 4),
        patches=mutated((Upload, "finish", _stays)),
        replicas=READERS,
    ),
    Mutant(
        name="pace: waits for who left",
        rule="a commit waits without limit for a neighbour's batch, also if the neighbour gave it up",
        faults=(23,),
        patches=mutated((Turn, "leave", _stays), (Bookkeeper, "_gather", _gather_without_end)),
        replicas=READERS,
    ),
)
