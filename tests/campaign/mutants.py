"""Rules of the product that are taken out, one at a time; faults that rest on them must notice.

Several rules back each other up: where one alone changes nothing, a mutant takes out all that would hide its
loss, and says so in its name.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from tarn.adapters import files as parquet_files
from tarn.adapters import manifests, table_files
from tarn.adapters.files import FileIO
from tarn.adapters.manifests import FilesNotLiveError
from tarn.core import dead_letter, offsets, source
from tarn.core.errors import ForbiddenError, OutcomeUnknownError, UnavailableError
from tarn.core.object_store import StoreBusyError
from tarn.core.outcome import Committed, Conflict
from tarn.core.table_state import TableState
from tarn.ingest import batch_commit, committer, dead_letters, ingestor
from tarn.ingest.committer import Committer, NeedsReplan
from tarn.ingest.dead_letters import RegisterChange
from tarn.ingest.ingestor import Ingestor, Plan
from tarn.ingest.open_batch import OpenBatch
from tarn.keeper.reaper import Reaper
from tarn_catalog.metadata import table_metadata, updates
from tarn_catalog.operations.tables import Tables
from tarn_catalog.state.context import CatalogContext
from tarn_catalog.state.register import Register
from tarn_catalog.state.transactions import Transactions, Verdict, _Seen
from tests.campaign.gateway_mutants import GATEWAY_MUTANTS
from tests.campaign.group_mutants import GROUP_MUTANTS
from tests.campaign.mutant import Mutant, any_range, mutated
from tests.campaign.through import UNITS
from tests.support.lake import BUCKET


def _from_the_end(table: Any, topic: Any, bounds: Any, *, stream: str) -> dict[int, int]:
    return {p: b.end if table is not None else b.start for p, b in bounds.items()}


def _clamped(table: Any, topic: Any, bounds: Any, *, stream: str) -> dict[int, int]:
    known = table.next if table is not None else {}
    return {p: max(b.start, min(known.get(p, b.start), b.end)) for p, b in bounds.items()}


def _newest_listed(self: Tables, held: Any) -> Any:
    folder = held.value.metadata.rpartition("/")[0]
    keys = [one.key for one in self.core.store.list(self.core.roots.key(folder + "/x")[:-1])]
    newest = max(key for key in keys if key.endswith(".metadata.json"))
    return self.core.metadata(f"s3://{BUCKET}/{newest}")


def _swap_anyway(self: Register, key: str, data: bytes, *, if_match: str, is_mine: Any) -> Any:
    return Committed(etag=self._store.put(key, data))


_write = Register._write


class _Definite:
    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, *arguments: Any, **options: Any) -> str:
        try:
            found: str = self._store.put(*arguments, **options)
        except StoreBusyError as e:
            raise UnavailableError(f"busy: nothing was changed: {e.message}") from e
        return found


def _busy_is_no(self: Register, key: str, data: bytes, **options: Any) -> Any:
    return _write(Register(_Definite(self._store), self._patience), key, data, **options)


def _deleting(self: Committer, outcome: Any, attempts: int) -> None:
    for file in getattr(self, "_mutant_files", ()):
        self._catalog._sim.store.delete(file.path.removeprefix(f"s3://{BUCKET}/"))  # type: ignore[attr-defined]


_commit_all = Committer.commit_all


def _remembering(self: Committer, members: Any, **options: Any) -> None:
    self._mutant_files = [file for member in members for file in member.change.files]  # type: ignore[attr-defined]
    _commit_all(self, members, **options)


def _gives_up(self: Committer, members: Any, **options: Any) -> None:
    def refused(outcome: Any) -> None:
        if isinstance(outcome, Conflict):
            raise _RefusedError

    for member in members:
        member.on_refusal = refused
    try:
        _commit_all(self, members, **options)
    except _RefusedError:
        for member in members:
            member.result = member.result or NeedsReplan(state=self.load(), reason="refused")


class _RefusedError(Exception):
    pass


def _not_begun(self: Ingestor, plan: Plan) -> Plan:
    return plan


_encode_rows = parquet_files.encode_rows


def _named_by_range(layout: Any, root: str, rows: Any, *, new_name: Any, **options: Any) -> Any:
    first = rows.column("_tarn")[0].as_py() if rows.num_rows and "_tarn" in rows.column_names else None

    def name() -> Any:
        return new_name() if first is None else f"{first['partition']}-{first['offset']}"

    return _encode_rows(layout, root, rows, new_name=name, **options)


def _ancestors_only(self: TableState, key: str, *, tag: str) -> str | None:
    for snapshot in self.ancestors():
        value = snapshot.get("summary", {}).get(key)
        if value is not None:
            return str(value)
    return None


def _register_on(self: RegisterChange, state: TableState) -> Any:
    markers = dead_letters.markers_in(state)
    found = dead_letter.watermark_of(markers.get(self.stream, ()), self.ingested_uuid)
    return _on(
        replace(self, after=found, sequence=max(self.sequence, found.sequence + 1 if found else 0)), state
    )


_on = RegisterChange.on
_add = OpenBatch.add


def _from_first_record(self: OpenBatch, polled: Any) -> None:
    if polled.offsets:
        polled = replace(polled, start=polled.offsets[0])
    _add(self, polled)


_without = manifests.Manifests._without


def _live_only(self: Any, removed: Any, found: Any, *rest: Any) -> Any:
    live = []
    for path in removed:
        try:
            _without(self, type(removed)([path]), found, *rest)
        except FilesNotLiveError:
            continue
        live.append(path)
    return _without(self, type(removed)(live), found, *rest)


_run_once = Reaper.run_once


def _by_age(self: Reaper) -> Any:
    done = _run_once(self)
    store = self._store
    reached: set[str] = set()
    for key in [one.key for one in store.list("catalog/v1/pointers/")]:
        stored = store.get(key)
        assert stored is not None
        reached |= _reached(store, stored.data)
    for one in list(store.list("warehouse/")):
        if one.key not in reached and one.modified_ms < self._wall_ms() - 3_000:
            store.delete(one.key)
    return done


def _reached(store: Any, data: bytes) -> set[str]:
    """All keys below the warehouse that are named by an object, and by those that it names."""
    import re

    found: set[str] = set()
    waiting = [data]
    while waiting:
        text = waiting.pop()
        for name in re.findall(
            rb"s3://tarn/(warehouse/[A-Za-z0-9_./-]+?\.(?:metadata\.json|avro|parquet))", text
        ):
            key = name.decode()
            if key not in found:
                found.add(key)
                stored = store.get(key)
                if stored is not None and not key.endswith(".parquet"):
                    waiting.append(stored.data)
    return found


_write_new = FileIO.write_new


def _thinks_it_wrote(self: FileIO, location: str, data: bytes) -> None:
    try:
        self._store.put(self._key(location), data)
    except (UnavailableError, OutcomeUnknownError):
        return


def _denial_ignored(self: FileIO, location: str, data: bytes) -> None:
    try:
        _write_new(self, location, data)
    except ForbiddenError:
        return


_build_commit = committer.build_commit


def _by_own_clock(*arguments: Any, now_ms: int, **options: Any) -> Any:
    made = _build_commit(*arguments, now_ms=now_ms, **options)
    for update in made.updates:
        if update["action"] == "add-snapshot":
            update["snapshot"]["timestamp-ms"] = now_ms
    return made


def _absent_is_aborted(self: Transactions, key: str, held: Any) -> Any:
    intent = held.value.intent
    if intent.record is not None and self._core.register.read(intent.record) is None:
        return _Seen(verdict=Verdict.ABORTED)
    return _judge(self, key, held)


_judge = Transactions._judge


_finish = updates.finish


def _unchecked(draft: Any) -> Any:
    return _finish(replace(draft, removed=False))


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _never(*_: Any, **__: Any) -> bool:
    return False


MUTANTS = (
    Mutant(
        name="named by range",
        rule="a data file's name is made of its first offset, so a second attempt overwrites the first",
        faults=(1,),
        patches=mutated((table_files, "encode_rows", _named_by_range)),
    ),
    Mutant(
        name="newest listed",
        rule="the catalog takes the newest metadata.json of the folder for the current one",
        faults=(2,),
        seed=9,  # with some others it answers every commit with a conflict, without end
        patches=mutated((Tables, "current", _newest_listed)),
    ),
    Mutant(
        name="neither range nor commit id",
        rule="a batch goes on any base, and nobody looks for the own commit after an unknown outcome",
        faults=(3, 4, 5, 6, 19),
        patches=mutated(
            (batch_commit, "check_offsets", any_range), (committer, "settle_committed", _nothing)
        ),
    ),
    Mutant(
        name="any range",
        rule="a batch goes on any base, whatever offsets it has",
        faults=(10, 11),
        patches=mutated((batch_commit, "check_offsets", any_range)),
    ),
    Mutant(
        name="keys forgotten",
        rule="the catalog does not remember idempotency keys",
        faults=(6,),
        patches=mutated((CatalogContext, "repeated", _never)),
    ),
    Mutant(
        name="files deleted",
        rule="an engine deletes the files of a commit whose outcome is unknown",
        faults=(4, 6, 19),
        patches=mutated((Committer, "commit_all", _remembering), (Committer, "_unknown", _deleting)),
    ),
    Mutant(
        name="refusal ends the batch",
        rule="a batch that met another commit is read and written again",
        faults=(7,),
        patches=mutated((Committer, "commit_all", _gives_up)),
    ),
    Mutant(
        name="a partition begins with its first records",
        rule="the start of a partition is committed before its first record is read",
        faults=(13,),
        patches=mutated((Ingestor, "_begun", _not_begun)),
    ),
    Mutant(
        name="503 is a no",
        rule="the catalog takes a 503 of the store for a proof that nothing was written",
        faults=(8,),
        seed=136,
        patches=mutated((Register, "_write", _busy_is_no)),
    ),
    Mutant(
        name="swap without precondition",
        rule="the pointer is written whatever it holds",
        faults=(7, 9, 11),
        patches=mutated((Register, "swap", _swap_anyway)),
    ),
    Mutant(
        name="begins at the end",
        rule="a restarted engine begins at the end of the log, not at the table's offsets",
        faults=(1, 12),
        patches=mutated((ingestor, "start_positions", _from_the_end)),
    ),
    Mutant(
        name="begins where the log does, any range",
        rule="an offset that the log no longer has is passed over in silence",
        faults=(13,),
        patches=mutated((ingestor, "start_positions", _clamped), (batch_commit, "check_offsets", any_range)),
    ),
    Mutant(
        name="any topic",
        rule="a topic of the same name is taken for the same topic",
        faults=(14,),
        patches=mutated(
            (ingestor, "require_same_source", _nothing),
            (offsets, "require_same_source", _nothing),
            (source, "require_same_source", _nothing),
        ),
    ),
    Mutant(
        name="ancestors only",
        rule="offsets are looked for in the kept history only, not by their tag",
        faults=(15,),
        patches=mutated((TableState, "newest", _ancestors_only)),
    ),
    Mutant(
        name="letters without marker",
        rule="dead letters are registered as often as they are seen",
        faults=(16,),
        patches=mutated(
            (RegisterChange, "on", _register_on),
            (dead_letter, "unregistered", lambda pending, _marker, *, table_uuid: pending),
        ),
    ),
    Mutant(
        name="records only",
        rule="offsets without a record are not part of a batch's range",
        faults=(17,),
        patches=mutated((OpenBatch, "add", _from_first_record)),
    ),
    Mutant(
        name="merged although gone",
        rule="a merge does not require that all files it replaces are live",
        faults=(20,),
        patches=mutated((manifests.Manifests, "_without", _live_only)),
    ),
    Mutant(
        name="refs at nothing",
        rule="the catalog does not check that refs name snapshots that are there",
        faults=(21,),
        patches=mutated((table_metadata, "finish", _unchecked)),
    ),
    Mutant(
        name="removed by age",
        rule="the reaper deletes what no pointer reaches and is older than 3 s",
        faults=(22,),
        patches=mutated((Reaper, "run_once", _by_age)),
    ),
    Mutant(
        name="written without answer",
        rule="a file whose write was not confirmed is taken for written",
        faults=(8, 23),
        patches=mutated((FileIO, "write_new", _thinks_it_wrote)),
    ),
    Mutant(
        name="denied and gone on",
        rule="a denied write of a file is passed over",
        faults=(24,),
        patches=mutated((FileIO, "write_new", _denial_ignored)),
    ),
    Mutant(
        name="the own clock",
        rule="a snapshot's time is the writer's, also if it lies before its parent's",
        faults=(24,),
        patches=mutated((committer, "build_commit", _by_own_clock)),
    ),
    Mutant(
        name="absent means aborted",
        rule="a reader takes a missing transaction record for an abort, and does not read the pointer again",
        faults=(25,),
        patches=mutated((Transactions, "_judge", _absent_is_aborted)),
        always=True,
    ),
    *GROUP_MUTANTS,
)
ALL_MUTANTS = (*MUTANTS, *GATEWAY_MUTANTS)


@contextmanager
def without(mutant: Mutant) -> Any:
    """Run a block without the mutant's rule."""
    with ExitStack() as stack:
        mutant.patches(stack)
        yield


def dies(mutant: Mutant, fault: int, *, seeds: int, replicas: int | None = None) -> tuple[int, str] | None:
    """The first seed of a fault that notices the mutant, and how; None if none of the first `seeds` does."""
    from tests.campaign.runs import one

    with ThreadPoolExecutor(max_workers=2) as pool, without(mutant):
        for seed in range(mutant.seed, mutant.seed + seeds):
            count = replicas or mutant.replicas
            found = one(fault, seed, pool, replicas=count, through=mutant.through)
            if found.problems:
                return seed, found.problems[0]
    return None


def run(names: list[str], *, seeds: int, replicas: int | None = None) -> int:
    """Run mutants; prints who noticed them, and returns 1 if one survived.

    Args:
        names: names of mutants; all if empty.
        seeds: seeds per mutant and fault at most.
        replicas: readers of each engine, or gateways; each mutant's own number by default.
    """
    from tests.campaign.runs import quiet

    quiet()
    alive = 0
    for mutant in ALL_MUTANTS:
        if names and mutant.name not in names:
            continue
        for fault in mutant.faults:
            found = dies(mutant, fault, seeds=seeds, replicas=replicas)
            alive += found is None
            text = "SURVIVED" if found is None else f"dies at seed {found[0]}: {found[1][:160]}"
            who = f"{replicas or mutant.replicas} {UNITS[mutant.through]}"
            sys.stdout.write(f"{mutant.name}, fault {fault}, {who}: {text}\n")
            sys.stdout.flush()
    return 1 if alive else 0
