"""Watches the service of its container: reports whether it is usable, and ends it if it hangs.

    HEALTHCHECK --interval=1s --timeout=240s --start-period=120s --retries=1 \
      CMD ["python3", "-I", "-S", "/opt/tarn/probe/runner.py"]

An image copies this folder to `/opt/tarn/probe/` and its own probe into it, as `service.py`. The probe of a
second service of the same image has another name, which is the last argument (`runner.py reaper`). A probe
has three functions without arguments. Returning means usable; any exception means a fault, and its message is
the one line that people read, so it says what is wrong, with the value.
- `alive()`: the process itself responds. Nothing else is checked: a dependency that is down, a name chosen by
  a user or a revoked key must never fail it, because a failure ends the process.
- `shallow()`: a few milliseconds, every `watch_s`. It must notice a process that is frozen with its port
  open, a frozen dependency and a revoked key: a real request that needs a real response, signed with the
  service's own key, with a short timeout.
- `deep()`: a real use, such as write and read back, a commit, a query, and never of users' tables. After each
  start, after each fault, and once an hour.
`ALIVE_BUDGET_S`, `SHALLOW_BUDGET_S` and `DEEP_BUDGET_S` limit them, if a probe sets them.

A health check of the engine is not a single check of the service but a watch of `hold_s` seconds: an exec and
a Python start cost far more than a check.
- Not yet proven since this start, or unhealthy before: checks at once and then with growing pauses, shallow
  then deep; exits 0 as soon as both pass, exits 1 when `hold_s` is over.
- Healthy before: checks every `watch_s`; exits 1 on a fault that `failures_max` consecutive checks confirm,
  so that a fault shows about 25 s after it began; exits 0 when `hold_s` is over.
`--retries=1` is therefore right (faults are confirmed here), `--interval` is only the pause between two
watches, and `--timeout` is the last resort. A file under /tmp, a tmpfs, keeps the state of this start.

A hanging process is ended: each failed shallow check runs `alive` too, and once that has failed for
`silent_s`, in `silent_looks_min` checks without a success, the child of the container's init gets SIGKILL,
and the engine's restart policy restarts it. Never within `run_s_min` of the container's start, so never more
often than that; and a process that has not responded yet since this start has `start_grace_s`. Without an
init of the engine (`init: true`) nothing is ended.

The watch is one process that imports almost nothing (3.7 MiB of memory of its own; every lake has eight of
them). A check is run by a child that imports what it needs and exits afterwards; a child that does not finish
within its budget is killed.

By hand: `runner.py --once alive` (or shallow, deep) runs one check and prints the result.
"""

from __future__ import annotations

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = os.path.dirname(os.path.abspath(__file__))
STATE_PATH = "/tmp/tarn-health"  # noqa: S108 - the container's own tmpfs
LINE_BYTES_MAX = 1_600
END_BUDGET_S = 10.0
ALIVE, SHALLOW, DEEP = "alive", "shallow", "deep"
LEVELS = (ALIVE, SHALLOW, DEEP)
INITS = ("docker-init", "tini", "podman-init", "catatonit")


class Limits:
    """Limits of the watch; in seconds unless the name says otherwise.

    Attributes:
        hold_s: duration of one watch.
        watch_s: interval of the checks of a healthy service.
        retry_s: pause before a failed check is repeated.
        failures_max: number of consecutive failed checks that are a fault.
        gap_s_max: longest gap between two watches after which the engine's last verdict is still known.
        poll_s: first pause between two checks of an unhealthy service.
        poll_s_max: longest such pause.
        deep_every_s: interval of deep checks.
        silent_s: how long the process may fail to respond.
        silent_looks_min: number of checks that must have found it silent.
        silent_gap_s_max: longest gap between two such checks; after a longer one the count restarts.
        run_s_min: age below which a container is not ended.
        start_grace_s: time allowed from the start to the first response.
    """

    hold_s = 120.0
    watch_s = 15.0
    retry_s = 2.0
    failures_max = 2
    gap_s_max = 4.0
    poll_s = 0.25
    poll_s_max = 1.0
    deep_every_s = 3600.0
    silent_s = 60.0
    silent_looks_min = 5
    silent_gap_s_max = 60.0
    run_s_min = 120.0
    start_grace_s = 600.0


class State:
    """State of this start of the container.

    Attributes:
        start: identifies one start of the container.
        healthy: last verdict.
        answered: whether the process itself has responded.
        deep_passed_s: monotonic time of the last passed deep check; None if none since it was unhealthy.
        ended_s: monotonic time of the last verdict; None during a watch or after an interrupted one.
        silent_from_s: monotonic time of the first check that found the process silent since its last
            response; None if it responds.
        silent_last_s: monotonic time of the last such check.
        silent_looks: number of such checks.
    """

    __slots__ = (
        "answered",
        "deep_passed_s",
        "ended_s",
        "healthy",
        "silent_from_s",
        "silent_last_s",
        "silent_looks",
        "start",
    )

    def __init__(
        self,
        start: str,
        *,
        healthy: bool = False,
        answered: bool = False,
        deep_passed_s: float | None = None,
        ended_s: float | None = None,
        silent_from_s: float | None = None,
        silent_last_s: float | None = None,
        silent_looks: int = 0,
    ) -> None:
        self.start = start
        self.healthy = healthy
        self.answered = answered
        self.deep_passed_s = deep_passed_s
        self.ended_s = ended_s
        self.silent_from_s = silent_from_s
        self.silent_last_s = silent_last_s
        self.silent_looks = silent_looks

    def to_text(self) -> str:
        """Serialise, one `name=value` per line."""
        return "".join(f"{name}={getattr(self, name)}\n" for name in self.__slots__)

    @classmethod
    def from_text(cls, text: str) -> State:
        """Parse the result of `to_text`.

        Raises:
            ValueError, KeyError: the text is not of this form.
        """
        found = dict(line.split("=", 1) for line in text.splitlines())

        def seconds(name: str) -> float | None:
            return None if found[name] == "None" else float(found[name])

        return cls(
            found["start"],
            healthy=found["healthy"] == "True",
            answered=found["answered"] == "True",
            deep_passed_s=seconds("deep_passed_s"),
            ended_s=seconds("ended_s"),
            silent_from_s=seconds("silent_from_s"),
            silent_last_s=seconds("silent_last_s"),
            silent_looks=int(found["silent_looks"]),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.to_text() == other.to_text()

    def __hash__(self) -> int:
        return hash(self.to_text())

    def __repr__(self) -> str:
        return f"State({self.to_text().strip()!r})"


def fresh(saved: State | None, start: str) -> State:
    """The saved state if it belongs to this start of the container, else an empty one."""
    return saved if saved is not None and saved.start == start else State(start)


def deep_due(state: State, now_s: float, limits: Limits) -> bool:
    """Whether the next check must be a deep one.

    Args:
        state: state of this start.
        now_s: monotonic time in seconds.
        limits: limits of the watch.
    """
    return state.deep_passed_s is None or now_s - state.deep_passed_s >= limits.deep_every_s


def note_answer(state: State) -> None:
    """Record a response of the process itself."""
    state.answered = True
    state.silent_from_s = state.silent_last_s = None
    state.silent_looks = 0


def note_silence(state: State, now_s: float, limits: Limits) -> None:
    """Record a missing response of the process; after a gap without checks the count restarts.

    Args:
        state: state of this start.
        now_s: monotonic time in seconds.
        limits: limits of the watch.
    """
    if state.silent_last_s is None or now_s - state.silent_last_s > limits.silent_gap_s_max:
        state.silent_from_s, state.silent_looks = now_s, 0
    state.silent_last_s = now_s
    state.silent_looks += 1


def hangs(state: State, *, now_s: float, age_s: float, limits: Limits) -> bool:
    """Whether the process is to be ended.

    Args:
        state: state of this start.
        now_s: monotonic time in seconds.
        age_s: age of the container in seconds.
        limits: limits of the watch.
    """
    if state.silent_from_s is None or now_s - state.silent_from_s < limits.silent_s:
        return False
    if state.silent_looks < limits.silent_looks_min:
        return False
    return age_s >= (limits.run_s_min if state.answered else limits.start_grace_s)


class Check:
    """The state machine; time, checks and the end of the process are injected.

    Args:
        look: runs one check; returns None if it passed, else the fault on one line.
        rest: called before a pause: resources of the checks may be released.
        save: stores the state for the next watch.
        end: ends the process, given the silence in seconds and the fault; returns an addition to the verdict.
        age: age of the container in seconds.
        clock: monotonic time in seconds.
        sleep: waits, in seconds.
        limits: limits of the watch.
    """

    def __init__(
        self,
        *,
        look: Callable[[str], str | None],
        rest: Callable[[], None],
        save: Callable[[State], None],
        end: Callable[[float, str], str],
        age: Callable[[], float],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        limits: Limits,
    ) -> None:
        self._look = look
        self._rest = rest
        self._save = save
        self._end = end
        self._age = age
        self._clock = clock
        self._sleep = sleep
        self._limits = limits

    def run(self, state: State) -> tuple[bool, str]:
        """Run one watch: whether the service is usable, and one line about it; saves the state first."""
        return self._watch(state) if state.healthy else self._await(state)

    def _await(self, state: State) -> tuple[bool, str]:
        """Healthy as soon as both levels pass; unhealthy when the watch is over."""
        end_s = self._clock() + self._limits.hold_s
        pause_s = self._limits.poll_s
        while True:
            fault = self._usable(state, SHALLOW) or self._usable(state, DEEP)
            if fault is None:
                return self._healthy(state, deep=True)
            if hangs(state, now_s=self._clock(), age_s=self._age(), limits=self._limits):
                silent_s = self._clock() - (state.silent_from_s or 0.0)
                return self._unhealthy(state, f"{fault}; {self._end(silent_s, fault)}")
            if self._clock() + pause_s >= end_s:
                return self._unhealthy(state, fault)
            self._sleep(pause_s)
            pause_s = min(pause_s * 1.5, self._limits.poll_s_max)

    def _watch(self, state: State) -> tuple[bool, str]:
        """Unhealthy as soon as a fault is confirmed; healthy after a deep check or when the watch is over.

        After an interrupted watch, or a gap longer than the engine's (the container was paused), the engine's
        last verdict is unknown: the first passed check then ends this watch.
        """
        known = state.ended_s is not None and self._clock() - state.ended_s <= self._limits.gap_s_max
        end_s = self._clock() + (self._limits.hold_s if known else 0.0)
        state.ended_s = None
        self._save(state)
        while True:
            level = DEEP if deep_due(state, self._clock(), self._limits) else SHALLOW
            fault = self._confirmed(state, level)
            if fault is not None:
                return self._unhealthy(state, fault)
            if level == DEEP:
                return self._healthy(state, deep=True)
            if self._clock() + self._limits.watch_s >= end_s:
                return self._healthy(state, deep=False)
            self._rest()
            self._sleep(self._limits.watch_s)

    def _confirmed(self, state: State, level: str) -> str | None:
        """The last fault if `failures_max` consecutive checks failed, else None."""
        fault = self._usable(state, level)
        for _ in range(self._limits.failures_max - 1):
            if fault is None:
                return None
            self._sleep(self._limits.retry_s)
            fault = self._usable(state, level)
        return fault

    def _usable(self, state: State, level: str) -> str | None:
        """The fault of a check, if any; if a shallow one failed, the process itself is checked as well."""
        fault = self._look(level)
        if fault is not None and level == SHALLOW and self._look(ALIVE) is not None:
            note_silence(state, self._clock(), self._limits)
        elif fault is None or level == SHALLOW:
            note_answer(state)
        return fault

    def _healthy(self, state: State, *, deep: bool) -> tuple[bool, str]:
        state.healthy, state.ended_s = True, self._clock()
        if deep:
            state.deep_passed_s = state.ended_s
        self._save(state)
        return True, "usable (deep)" if deep else "usable (shallow)"

    def _unhealthy(self, state: State, line: str) -> tuple[bool, str]:
        state.healthy, state.ended_s, state.deep_passed_s = False, None, None
        self._save(state)
        return False, line


class Looker:
    """Runs checks in a child process, which keeps its imports until `rest`.

    Args:
        work: runs in the child: obeys an order, such as a check at a level; returns the fault on one line, or
            None.
        budgets: limit in seconds by level; a child that takes longer is killed.
    """

    def __init__(self, work: Callable[[str], str | None], budgets: dict[str, float]) -> None:
        self._work = work
        self._budgets = budgets
        self._child = 0
        self._to_child = self._from_child = -1

    def look(self, level: str) -> str | None:
        """Run one check; returns the fault on one line, None if it passed."""
        fault = self.ask(level, self._budgets[level])
        return None if fault is None else f"{level}: {fault}"

    def ask(self, order: str, budget_s: float) -> str | None:
        """Have the child obey an order; returns None on success, else the reason."""
        try:
            if not self._child:
                self._start()
            os.write(self._to_child, f"{order}\n".encode()[:LINE_BYTES_MAX])
            ready, _, _ = select.select([self._from_child], [], [], budget_s)
            answer = os.read(self._from_child, LINE_BYTES_MAX) if ready else b""
        except OSError as error:
            # The container may have run out of processes or memory: that is its own fault, too.
            self.rest()
            return f"no look can be made: {error.strerror}"
        if not answer:
            self.rest()
            return "the look ended without a result" if ready else f"no answer within {budget_s:g} s"
        return None if answer == b"+" else answer.decode("utf-8", "replace")

    def rest(self) -> None:
        """End the child."""
        if self._child:
            os.close(self._to_child)
            os.close(self._from_child)
            os.kill(self._child, 9)
            os.waitpid(self._child, 0)
            self._child = 0

    def _start(self) -> None:
        child_in, to_child = os.pipe()
        from_child, child_out = os.pipe()
        try:
            child = os.fork()
        except OSError:
            for end in (child_in, to_child, from_child, child_out):
                os.close(end)
            raise
        if child == 0:
            os.close(to_child)
            os.close(from_child)
            self._serve(child_in, child_out)
        os.close(child_in)
        os.close(child_out)
        self._child, self._to_child, self._from_child = child, to_child, from_child

    def _serve(self, orders: int, answers: int) -> None:
        """Main loop of the child: one check per order, until there are no more. Does not return."""
        try:
            while order := os.read(orders, LINE_BYTES_MAX):
                fault = self._work(order.decode().strip())
                os.write(answers, b"+" if fault is None else fault.encode()[:LINE_BYTES_MAX])
        finally:
            os._exit(0)


# -- the edge: files, clock, process -------------------------------------------------------------------------


def read(path: str) -> str:
    """Read a text file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def stat_of(pid: int | str) -> list[str]:
    """Fields of /proc/<pid>/stat from the third on: state, parent, …; index 19 is the start time."""
    # The command may contain spaces and brackets: count fields from its last bracket.
    return read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def container_start() -> str:
    """Identifier of this start of the container: the kernel's boot id and the start time of process 1."""
    return f"{read('/proc/sys/kernel/random/boot_id').strip()}/{stat_of(1)[19]}"


def container_age_s() -> float:
    """Age of process 1 in seconds."""
    return float(read("/proc/uptime").split()[0]) - int(stat_of(1)[19]) / os.sysconf("SC_CLK_TCK")


def main_process() -> int | None:
    """Process id of the service: the first child of the engine's init; None without such an init."""
    if read("/proc/1/comm").strip() not in INITS:
        return None
    children = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = stat_of(name)
            except OSError:
                continue
            if fields[1] == "1" and fields[0] != "Z":
                children.append((int(fields[19]), int(name)))
    return min(children)[1] if children else None


def load_state(path: str) -> State | None:
    """The saved state; None if it is missing or unreadable (then everything is proven again)."""
    try:
        return State.from_text(read(path))
    except (OSError, ValueError, KeyError):
        return None


def save_state(path: str, state: State) -> None:
    """Write the state atomically.

    Raises:
        RuntimeError: the state cannot be written.
    """
    scratch = f"{path}.{os.getpid()}"
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(state.to_text())
        os.replace(scratch, path)
    except OSError as error:
        raise RuntimeError(
            f"{path} cannot be written: {error.strerror}; mount a tmpfs at {os.path.dirname(path)}"
        ) from error


def in_child(path: str, order: str) -> str | None:
    """Obey an order in the child: run a check at a level, or end the process; returns the fault, or None."""
    # `tarn.probe` is this folder, even if a package `tarn` is installed.
    bare = type(sys)("tarn")
    bare.__path__ = [os.path.dirname(FOLDER)]
    sys.modules["tarn"] = bare
    from tarn.probe import look

    return look.obey(path, order)


def budgets_of(path: str) -> dict[str, float]:
    """Limits in seconds by level: the probe's own constants, read from its source, or the defaults."""
    found = {ALIVE: 5.0, SHALLOW: 5.0, DEEP: 20.0}
    for line in read(path).splitlines():
        name, _, value = line.partition(" = ")
        if name.endswith("_BUDGET_S") and name[:-9].lower() in found:
            found[name[:-9].lower()] = float(value)
    return found


def main(arguments: list[str]) -> int:
    """Run the health check: returns 0 if usable, 1 if not; prints one line either way."""
    once = arguments[1] if len(arguments) > 1 and arguments[0] == "--once" else ""
    names = arguments[2:] if once else arguments
    if len(names) > 1 or (once and once not in LEVELS) or not all(name.isalpha() for name in names):
        print("usage: runner.py [--once alive|shallow|deep] [PROBE]", file=sys.stderr)  # noqa: T201
        return 2
    path = f"{FOLDER}/{names[0] if names else 'service'}.py"
    try:
        looker = Looker(lambda order: in_child(path, order), budgets_of(path))
        if once:
            fault = looker.look(once)
            healthy, line = fault is None, fault or f"usable ({once})"
        else:

            def end(silent_s: float, fault: str) -> str:
                process = main_process()
                if process is None:
                    return "it is not ended: the container has no init of the engine"
                looker.rest()
                # Write to the container's log first: the end of the process is the end of this one.
                looker.ask(f"end {process} {silent_s:.0f} {fault}", END_BUDGET_S)
                return f"process {process} was ended after {silent_s:.0f} s without an answer"

            check = Check(
                look=looker.look,
                rest=looker.rest,
                save=lambda state: save_state(STATE_PATH, state),
                end=end,
                age=container_age_s,
                clock=time.monotonic,
                sleep=time.sleep,
                limits=Limits(),
            )
            healthy, line = check.run(fresh(load_state(STATE_PATH), container_start()))
        looker.rest()
    except Exception as error:  # noqa: BLE001 - a check that cannot run is a service not proven usable
        healthy, line = False, f"the check itself failed: {type(error).__name__}: {error}"
    print(line)  # noqa: T201 - the engine shows what a check prints
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
