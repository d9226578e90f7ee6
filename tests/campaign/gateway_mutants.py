"""Rules of the gateway that are taken out, one at a time; faults through gateways must notice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tarn.core import producers
from tarn.core.errors import OutcomeUnknownError, UnavailableError
from tarn.core.log_claims import LogBook
from tarn.core.table_log import Record
from tarn.gateway import rows_commit, tables, uploads
from tarn.gateway.inbox import Inbox
from tarn.gateway.judge import Judge
from tarn.gateway.key_memory import KeyMemory
from tarn.gateway.log_inbox import LogInbox
from tarn.gateway.rows_commit import KEYS, RowsCommit
from tarn.gateway.takes import Taken, Verdict
from tarn.gateway.writes import Receipt
from tarn.ingest.committer import Committer
from tarn.testing.memory_log import MemoryLog
from tests.campaign.mutant import Mutant, any_range, mutated

ONE, TWO = 1, 2

_load = KeyMemory.load
_discard = KeyMemory.discard
_with_keys = rows_commit._with_keys
_on = RowsCommit.on
_commit = Inbox.commit
_judge_key = Judge._judge_key
_judged_claims = Taken.judged_claims
_out_of_order = Judge._out_of_order


def _no_key(self: KeyMemory, key: str) -> None:
    return None


def _own_keys_only(self: KeyMemory, entry: Any, **_: Any) -> None:
    own = dict(self._known)
    _load(self, None)
    self.entry, self._known = entry, own


def _remembered_here(self: KeyMemory, entry: Any) -> None:
    self._known.update(self._drafts[entry.path].fresh)
    _discard(self, entry)


def _without_keys(append: Any, entry: Any) -> Any:
    made = _with_keys(append, entry)
    return replace(made, summary={name: text for name, text in made.summary.items() if name != KEYS})


def _on_any_keys(self: RowsCommit, state: Any) -> Any:
    if self.keys is None:
        return _on(self, state)
    return _on(replace(self, keys=replace(self.keys, base=rows_commit.keys_in(state))), state)


def _said_no(self: Committer, outcome: Any, attempts: int) -> None:
    raise UnavailableError(f"nothing was written: {outcome.reason}")


def _as_it_is(error: Exception) -> Exception:
    return error


def _answers_first(self: Inbox, prepared: Any) -> None:
    for waiting, bad in prepared.parts:
        waiting.answer.set_result(
            Receipt(
                accepted=len(waiting.write.values) - len(bad),
                rejected=bad,
                snapshot_id=None,
                repeated=False,
            )
        )
    parts = tuple((replace(waiting, answer=Future()), bad) for waiting, bad in prepared.parts)
    _commit(self, replace(prepared, parts=parts))


def _not_waited_for(file: Any) -> Any:
    return replace(file, finish=lambda: None)


def _forgets_what_flies(self: Judge, taken: Any, one: Any) -> Any:
    flying, self._way.flying_keys = self._way.flying_keys, {}
    try:
        return _judge_key(self, taken, one)
    finally:
        self._way.flying_keys = flying


def _not_kept(self: Taken, found: Any) -> Any:
    return tuple(replace(claim, rejected=()) for claim in _judged_claims(self, found))


def _taken_anyway(self: Judge, plan: Any, taken: Any, one: Any, now: float, **places: Any) -> Verdict:
    one.write = replace(one.write, producer=None, sequence=0)
    return self.verdict(plan, taken, one, now)


def _never(self: RowsCommit, *state: Any, **options: Any) -> bool:
    return False


_inbox = Inbox.__init__


def _of_one_id(self: Inbox, *arguments: Any, **options: Any) -> None:
    _inbox(self, *arguments, **{**options, "own": f"{producers.OWN_PREFIX}one"})


_take_log = LogInbox._open


def _no_claims(self: MemoryLog) -> Iterator[Record]:
    yield from ()


def _open_and_go_on(self: LogInbox, opened: Any) -> None:
    whole = self._whole
    _take_log(self, opened)
    self._whole = whole


def _no_mark(self: LogBook, writer: str) -> None:
    return None


_settle = LogInbox._settle


def _settle_over_all(self: LogInbox) -> None:
    sent = self._unsettled
    if sent is not None and sent.change is not None and self._book.mark(self._own) == sent.mark:
        self._book.apply(sent.change)
    _settle(self)


_append = MemoryLog.append


def _surely_not(self: MemoryLog, rows: Any, claims: Any) -> None:
    try:
        _append(self, rows, claims)
    except OutcomeUnknownError as e:
        raise UnavailableError(e.message) from e


def _nothing_required(self: MemoryLog, held: Any) -> None:
    self._epoch = held.epoch


GATEWAY_MUTANTS = (
    Mutant(
        name="keys not looked up",
        rule="a write with a key is new each time",
        faults=(4, 3, 12),
        patches=mutated((KeyMemory, "find", _no_key)),
        replicas=ONE,
        through="gateway",
    ),
    Mutant(
        name="keys beside the commit",
        rule="keys are remembered by the process once a commit is answered, not by the table",
        faults=(12, 3),
        patches=mutated((rows_commit, "_with_keys", _without_keys), (KeyMemory, "discard", _remembered_here)),
        replicas=ONE,
        through="gateway",
    ),
    Mutant(
        name="keys of the other gateway not read",
        rule="after another gateway's commit a gateway goes on with the keys that it has itself",
        faults=(10, 11, 4),
        patches=mutated((KeyMemory, "load", _own_keys_only)),
        replicas=TWO,
        through="gateway",
    ),
    Mutant(
        name="keys on any base",
        rule="keys are committed over those that another gateway committed meanwhile",
        faults=(11,),
        patches=mutated((RowsCommit, "on", _on_any_keys)),
        replicas=TWO,
        through="gateway",
    ),
    Mutant(
        name="unknown is a no",
        rule="a commit whose outcome is unknown is answered as not written",
        faults=(4, 5, 6),
        patches=mutated((Committer, "_unknown", _said_no), (tables, "_in_doubt", _as_it_is)),
        replicas=ONE,
        through="gateway",
    ),
    Mutant(
        name="a denial is a no",
        rule="a commit that was denied after one without an answer is answered as not written",
        faults=(24,),
        patches=mutated((tables, "_in_doubt", _as_it_is)),
        replicas=ONE,
        through="gateway",
    ),
    Mutant(
        name="answered before the commit",
        rule="a write is answered once its file is in the store",
        faults=(3, 12, 23),
        patches=mutated((Inbox, "commit", _answers_first)),
        replicas=ONE,
        through="gateway",
    ),
    Mutant(
        name="a file not waited for",
        rule="a commit does not wait until its data file is in the store",
        faults=(3, 4, 10),
        patches=mutated((uploads, "_ending", _not_waited_for)),
        replicas=ONE,
        through="gateway",
    ),
    Mutant(
        name="a repeat on its way is new",
        rule="a write with a key that is on its way into the table is not found there",
        faults=(11,),
        patches=mutated((Judge, "_judge_key", _forgets_what_flies)),
        replicas=TWO,
        through="gateway",
    ),
    Mutant(
        name="any sequence",
        rule="rows of a producer go on any base",
        faults=(11, 10),
        patches=mutated((producers, "check_offsets", any_range)),
        replicas=TWO,
        through="gateway",
    ),
    Mutant(
        name="out of order is new",
        rule="a write that does not begin where its producer's rows end is taken as rows without a number",
        faults=(4, 12),
        patches=mutated((Judge, "_out_of_order", _taken_anyway)),
        replicas=ONE,
        through="gateway",
    ),
    Mutant(
        name="rejected rows not kept",
        rule="the table does not keep which rows of a producer it did not take",
        faults=(16,),
        patches=mutated((Taken, "judged_claims", _not_kept)),
        replicas=ONE,
        through="gateway",
    ),
    Mutant(
        name="one id for all gateways",
        rule="two gateways number rows without a number under the same id, and neither notices",
        faults=(11, 10),
        patches=mutated((Inbox, "__init__", _of_one_id), (RowsCommit, "is_not_in", _never)),
        replicas=TWO,
        through="gateway",
    ),
    Mutant(
        name="log: keys and numbers not read",
        rule="a gateway goes on without the claims that the log has",
        faults=(3, 12, 16),
        patches=mutated((MemoryLog, "claims", _no_claims)),
        replicas=ONE,
        through="log",
    ),
    Mutant(
        name="log: the other gateway's claims not read",
        rule="a gateway that takes the log again does not read what another one wrote into it",
        faults=(10, 11),
        patches=mutated((LogInbox, "_open", _open_and_go_on)),
        replicas=TWO,
        through="log",
    ),
    Mutant(
        name="log: unknown is written again",
        rule="a transaction without an answer is written again, and its mark is not looked for",
        faults=(4, 6),
        patches=mutated((LogBook, "mark", _no_mark)),
        replicas=ONE,
        through="log",
    ),
    Mutant(
        name="log: older claims over newer ones",
        rule="a transaction that is found late is taken for the last one, whatever others wrote since",
        faults=(4,),
        patches=mutated((LogInbox, "_settle", _settle_over_all)),
        replicas=TWO,
        through="log",
    ),
    Mutant(
        name="log: unknown is a no",
        rule="a transaction whose outcome is unknown is answered as not written",
        faults=(23, 4, 6),
        patches=mutated((MemoryLog, "append", _surely_not)),
        replicas=ONE,
        through="log",
    ),
    Mutant(
        name="log: not fenced",
        rule="the broker takes a transaction of a gateway after another one has taken the log",
        faults=(11,),
        patches=mutated((MemoryLog, "_require_own", _nothing_required)),
        replicas=TWO,
        through="log",
    ),
)
