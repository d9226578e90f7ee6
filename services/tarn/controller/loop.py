"""The controller's loop: look, plan, act, report, repeat.

It has no state that must survive it: whatever step it ends at, the next pass of the next controller sees what
is declared and which writers there are, and goes on from there. What it remembers (how often a writer died,
what was reported last) saves work only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import structlog

from tarn.controller.files import SpecFiles, belongs_to_a_file, no_specs
from tarn.controller.settle import CLASH, Settlements
from tarn.core.control.admission import require_own_name, require_workshop
from tarn.core.control.declared import Declared, revision_of
from tarn.core.control.driver import Driver
from tarn.core.control.model import (
    Action,
    Collect,
    Crashes,
    Drain,
    Finalize,
    Kill,
    Start,
    Timing,
    Wanted,
    Wish,
    WorkerSeen,
)
from tarn.core.control.plan import plan
from tarn.core.control.registry import SpecEntry, SpecRegistry
from tarn.core.control.report import CANNOT_START, CRASH_LOOP, Facts, Report, crashed, report
from tarn.core.errors import InvalidSpecError, TarnError
from tarn.core.spec import IngestorSpec, clashes

log = structlog.get_logger()

POLL_S = 2.0
"""How often the store is asked what changed, if nobody wakes the controller."""
SPECS = "declared specs"
"""Label of the registry as a whole: it cannot be read. No ingestor has such a name."""
FOLDER = "spec folder"
"""Label of the spec folder as a whole. No ingestor has such a name, and no file."""
PASS_S_MIN = 0.05
"""Pause between two passes, however often somebody wakes the controller."""
REPORT_S = 10.0
"""How often lag and rows are written to the status objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why an ingestor is not run as its spec says.

    Attributes:
        reason: in one word.
        message: the same, for people.
        waiting: whether it may be run yet, without anybody doing something.
    """

    reason: str
    message: str
    waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the controller works with.

    Attributes:
        registry: the declared ingestors.
        driver: runs the writers.
        topics: topics of an ingestor by its spec; None while they are not known yet.
        holds: whether the table of a spec has its stream already; raises if it cannot be asked.
        facts: what the readers of an ingestor say of themselves, by its name.
        on_refused: called in each pass with the label of what is not run, and once with None when it is.
        on_names: called in each pass with the names of all ingestors.
        on_pass: called after each pass with what made it fail; empty: nothing did.
        executor: asks the tables.
        clock: monotonic time in seconds, that of the driver.
        now_ms: wall-clock time in milliseconds since the epoch.
        version: version of the program; writers of another one are replaced.
    """

    registry: SpecRegistry
    driver: Driver
    topics: Callable[[IngestorSpec], tuple[str, ...] | None]
    holds: Callable[[IngestorSpec], bool]
    facts: Callable[[str], Facts]
    on_refused: Callable[[str, Refused | None], None]
    on_names: Callable[[frozenset[str]], None]
    executor: Executor
    clock: Callable[[], float]
    now_ms: Callable[[], int]
    version: str
    on_pass: Callable[[str], None] = lambda _message: None


@dataclass(slots=True)
class _Memory:
    """What the controller remembers; losing it loses no row and no ingestor."""

    entries: dict[str, SpecEntry] | None = None
    parsed: dict[str, tuple[str, IngestorSpec | InvalidSpecError]] = field(default_factory=dict)
    crashes: Crashes = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    reserved: dict[str, Refused] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)
    unstarted: dict[str, str] = field(default_factory=dict)


class Controller:
    """Brings the writers to what is declared.

    Args:
        around: what it works with.
        files: files of the spec folder, applied before anything else.
        built_in: specs that are part of Tarn, by label.
        timing: times of the planner.
        poll_s: how often the store is asked what changed.
    """

    def __init__(
        self,
        around: Surroundings,
        *,
        files: SpecFiles,
        built_in: Mapping[str, IngestorSpec] | None = None,
        timing: Timing | None = None,
        poll_s: float = POLL_S,
    ) -> None:
        self._around = around
        self._files = files
        self._built_in = dict(built_in or {})
        self._timing = timing or Timing()
        self._poll_s = poll_s
        self._memory = _Memory()
        self._awake = threading.Event()
        self._ended = threading.Event()
        self._settlements = Settlements(
            around.holds, around.executor, clock=around.clock, on_change=self.wake
        )
        around.driver.on_change(self.wake)

    def wake(self) -> None:
        """Have the next pass begin now; from any thread."""
        self._awake.set()

    def end(self) -> None:
        """Have `run` look at once whether it is to stop; from any thread."""
        self._ended.set()
        self._awake.set()

    def run(self, stopping: Callable[[], bool]) -> None:
        """Run passes until asked to stop; writers are left as they are."""
        while not stopping():
            self._awake.clear()
            wait_s, failed = self._poll_s, ""
            try:
                wait_s = self.step()
            except TarnError as e:
                failed = e.message
                self._trouble("controller", e)
            except Exception as e:
                failed = f"{type(e).__name__}: {e}; a defect of Tarn, please report it"
                log.error("controller failed", exc_info=e)
            self._around.on_pass(failed)
            if not stopping():
                self._awake.wait(min(self._poll_s, max(0.0, wait_s)))
                self._ended.wait(PASS_S_MIN)

    def step(self) -> float:
        """Make one pass; returns the seconds until the next one is due.

        Raises:
            TarnError: the driver cannot say what runs. What else goes wrong concerns one ingestor, and is
                logged.
        """
        entries = self._entries()
        if entries is None:
            # Nothing was ever read: what runs goes on, and nothing is started or stopped.
            return self._poll_s
        wanted = self._wanted(self._own_names(entries))
        workers = self._around.driver.list()
        now_s = self._around.clock()
        made = plan(list(wanted.values()), workers, self._memory.crashes, now_s=now_s, timing=self._timing)
        self._memory.crashes = made.crashes
        self._memory.unstarted = {}
        for action in made.actions:
            self._act(action, wanted)
        self._refuse(wanted, workers)
        self._report(wanted, self._around.driver.list() if made.actions else workers)
        due = [one for one in (made.due_s, self._settlements.due_s) if one is not None]
        return min([self._poll_s, *(one - now_s for one in due)])

    def _entries(self) -> Mapping[str, SpecEntry] | None:
        """The registry's content with the files applied; what was read last if the store does not answer."""
        memory, registry = self._memory, self._around.registry
        try:
            memory.entries = registry.list(memory.entries)
            if not self._files.done and self._files.apply(registry, memory.entries):
                memory.entries = registry.list(memory.entries)
            if memory.troubles.pop("registry", None) is not None:
                self._around.on_refused(SPECS, None)
        except TarnError as e:
            self._trouble("registry", e)
            why = Refused(reason=memory.troubles["registry"], message=e.message, waiting=True)
            self._around.on_refused(SPECS, why)
        # Before the files were looked at, what is deleted with them must not begin once more.
        return memory.entries if self._files.done or memory.troubles.get("registry") is None else None

    def _own_names(self, entries: Mapping[str, SpecEntry]) -> Mapping[str, SpecEntry]:
        """The ingestors without those that have the name of a built-in one, which have no writers."""
        built_in = {spec.name for spec in self._built_in.values()}
        reserved = {}
        for name in sorted(entries.keys() & built_in):
            there = entries[name].declared
            if there is None or there.gone:
                continue
            if there.deleting:
                self._act(Finalize(name=name, uid=there.uid), {})
                continue
            try:
                require_own_name(name, self._built_in, file=there.label)
            except InvalidSpecError as e:
                reserved[there.label] = Refused(reason=CLASH, message=e.message)
        self._memory.reserved = reserved
        return {name: entry for name, entry in entries.items() if name not in built_in}

    def _wanted(self, entries: Mapping[str, SpecEntry]) -> dict[str, Wanted]:
        """What is wanted of each ingestor, by name."""
        specs: dict[str, IngestorSpec] = dict(self._built_in)
        found: dict[str, Wanted] = {}
        labels = {spec.name: label for label, spec in self._built_in.items()}
        for name, entry in entries.items():
            there = entry.declared
            if there is None:
                message = entry.error.message if entry.error is not None else ""
                found[name] = Wanted(name=name, wish=Wish.HOLD, reason="Unreadable", message=message)
                labels[name] = f"ingestor {name}"
            elif there.gone:
                continue
            else:
                labels.setdefault(name, there.label)
                base = Wanted(name=name, wish=Wish.RUN, generation=there.generation, uid=there.uid)
                parsed = self._parsed(entry.etag, there)
                if there.deleting:
                    found[name] = replace(base, wish=Wish.DELETE, reason="Deleting")
                elif isinstance(parsed, InvalidSpecError):
                    found[name] = replace(base, wish=Wish.HOLD, reason="InvalidSpec", message=parsed.message)
                else:
                    found[name] = self._run(base, parsed)
                    specs[there.label] = parsed
        for spec in self._built_in.values():
            found[spec.name] = self._run(Wanted(name=spec.name, wish=Wish.RUN, built_in=True), spec)
        versions = {label: found[spec.name].revision for label, spec in specs.items()}
        verdicts = self._settlements.of(clashes(specs), specs, versions)
        for label, verdict in verdicts.items():
            name = specs[label].name
            found[name] = replace(
                found[name], wish=verdict.wish, reason=verdict.reason, message=verdict.message
            )
        self._memory.labels = labels
        self._around.on_names(frozenset(found))
        return found

    def _parsed(self, etag: str, there: Declared) -> IngestorSpec | InvalidSpecError:
        """The spec of an object, or why it is invalid; parsed once per version."""
        known = self._memory.parsed.get(there.name)
        if known is None or known[0] != etag:
            try:
                spec = there.spec
                require_workshop(spec, file=there.label)
                known = (etag, spec)
            except InvalidSpecError as e:
                known = (etag, e)
            self._memory.parsed[there.name] = known
        return known[1]

    def _run(self, base: Wanted, spec: IngestorSpec) -> Wanted:
        revision = revision_of(base.uid, spec, self._around.version)
        return replace(base, spec=spec, revision=revision, topics=self._around.topics(spec))

    def _refuse(self, wanted: Mapping[str, Wanted], workers: Sequence[WorkerSeen]) -> None:
        """Say what is not run and why: what is refused, and what dies again and again."""
        refused = {}
        for name, one in wanted.items():
            label = self._memory.labels[name]
            dead = crashed(one, workers, self._memory.crashes, timing=self._timing)
            if one.wish in (Wish.HOLD, Wish.STOP):
                waiting = one.wish is Wish.HOLD and one.reason == CLASH
                refused[label] = Refused(reason=one.reason, message=one.message, waiting=waiting)
            elif name in self._memory.unstarted:
                message = self._memory.unstarted[name]
                refused[label] = Refused(reason=CANNOT_START, message=message, waiting=True)
            elif dead is not None and dead[0] == CRASH_LOOP:
                refused[label] = Refused(reason=dead[0], message=dead[1], waiting=True)
        refused |= {
            file: Refused(reason="InvalidSpec", message=error.message)
            for file, error in self._files.refused.items()
        }
        refused |= self._memory.reserved
        kept = [name for name in sorted(self._files.kept) if self._is_of_a_file(name)]
        if kept:
            refused[FOLDER] = Refused(reason="NoSpecs", message=no_specs(kept))
        for label, why in refused.items():
            self._around.on_refused(label, why)
        for label in self._memory.refused - refused.keys():
            self._around.on_refused(label, None)
        self._memory.refused = frozenset(refused)

    def _is_of_a_file(self, name: str) -> bool:
        entry = (self._memory.entries or {}).get(name)
        return entry is not None and entry.declared is not None and belongs_to_a_file(entry.declared)

    def _act(self, action: Action, wanted: Mapping[str, Wanted]) -> None:
        """Do one thing; if it fails, only its ingestor waits for the next pass."""
        driver = self._around.driver
        name = action.name if isinstance(action, Finalize) else action.id.ingestor
        try:
            match action:
                case Start(id=id_):
                    spec = wanted[name].spec
                    assert spec is not None, "only what has a spec is started"
                    driver.start(id_, spec)
                    log.info("writer started", writer=str(id_))
                case Drain(id=id_, why=why):
                    driver.drain(id_)
                    log.info("writer ends", writer=str(id_), reason=why)
                case Kill(id=id_):
                    driver.kill(id_)
                    log.warning("writer did not end and was ended", writer=str(id_))
                case Collect(id=id_):
                    driver.collect(id_)
                case Finalize(name=_, uid=uid):
                    self._around.registry.finalize(name, uid)
                    log.info("ingestor deleted", ingestor=name)
                    self.wake()
            if name not in self._memory.unstarted:
                self._memory.troubles.pop(name, None)
        except TarnError as e:
            if isinstance(action, Start):
                self._memory.unstarted.setdefault(name, e.message)
            self._trouble(name, e)
        except Exception as e:
            if isinstance(action, Start):
                why = f"{type(e).__name__}: {e}; a defect of Tarn, please report it"
                self._memory.unstarted.setdefault(name, why)
            # A defect about one ingestor must not keep the others waiting.
            if self._memory.troubles.get(name) != type(e).__name__:
                log.error("controller failed", ingestor=name, exc_info=e)
            self._memory.troubles[name] = type(e).__name__

    def _report(self, wanted: Mapping[str, Wanted], workers: Sequence[WorkerSeen]) -> None:
        """Write the status of each declared ingestor whose status changed."""
        around, memory = self._around, self._memory
        if "registry" in memory.troubles:
            # A store that does not answer takes seconds for each object, and writers may have died meanwhile.
            return
        now_ms = around.now_ms()
        memory.reports = {name: one for name, one in memory.reports.items() if name in wanted}
        for name, one in wanted.items():
            if one.built_in:
                continue
            before = memory.reports.get(name)
            made = report(
                one,
                [worker for worker in workers if worker.id.ingestor == name],
                memory.crashes,
                around.facts(name),
                unstarted=memory.unstarted.get(name, ""),
                former=before,
                now_ms=now_ms,
                timing=self._timing,
            )
            if before is not None and not _worth_a_write(before, made):
                continue
            try:
                around.registry.put_status(name, made.to_bytes())
                memory.reports[name] = made
                memory.troubles.pop(f"status of {name}", None)
            except TarnError as e:
                self._trouble(f"status of {name}", e)
            except Exception as e:
                # A defect about one ingestor must not keep the others waiting.
                about = f"status of {name}"
                if memory.troubles.get(about) != type(e).__name__:
                    log.error("a status cannot be written", ingestor=name, exc_info=e)
                memory.troubles[about] = type(e).__name__

    def _trouble(self, about: str, error: TarnError) -> None:
        """Log what could not be done, once per reason."""
        reason = type(error).__name__.removesuffix("Error")
        if self._memory.troubles.get(about) != reason:
            log.warning("controller waits", about=about, reason=reason, message=error.message)
        self._memory.troubles[about] = reason


def _worth_a_write(before: Report, made: Report) -> bool:
    """Whether a status is written: at once if it stands otherwise, later if only figures changed."""
    if made.standing != before.standing:
        return True
    # Either way: a clock that was set back must not hold figures up until it is where it was.
    return made.facts != before.facts and abs(made.at_ms - before.at_ms) >= REPORT_S * 1_000
