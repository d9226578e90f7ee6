"""Runs a service's health check: one file, stdlib only, the same in every image.

    HEALTHCHECK --interval=2s --timeout=120s --start-period=120s --retries=1 \
      CMD ["python3", "-I", "/opt/tarn/health.py"]

An image adds a check in two steps:

1. `COPY services/tarn/health.py /opt/tarn/health.py` and its own probe beside it, `/opt/tarn/probe.py`. A
   second service of the same image has both once more in a folder of its own (`/opt/tarn/pipeline/`).
2. The probe module defines two functions without arguments. Returning means usable; any exception means not,
   and its text is the one line that people read, so it says what, with the value.
   - `shallow()`: a few milliseconds, every `watch_s`. It must notice a process that is frozen with its port
     open, a frozen dependency and a revoked key: send a real request that needs a real answer, signed with
     service's own key, with a short timeout (`SHALLOW_BUDGET_S`, optional, default 5).
   - `deep()`: a real use, such as write and read back, a commit, a query. Until it has passed once after each
     start of the container, and then every 5 minutes. `DEEP_BUDGET_S` (optional, default 20) bounds it.
   Importing the probe must be cheap: libraries are imported inside `deep()`. The check exits after each deep
   look, so what that imported does not stay in memory. No JVM is started by a check.
   `from tarn.health import secret, http` works in a probe, whether or not the image has the tarn package;
   so does `from tarn.health_lake import …` where the image copies that file beside the probe.

A check is not one look but a watch of `hold_s` seconds: an exec and a Python start cost far more than a look.
- Not yet proven in this start, or unhealthy before: looks at once and then at growing pauses, shallow then
  deep; exits 0 as soon as both pass, so that a service counts as healthy moments after it is; exits 1 when
  `hold_s` is over.
- Healthy before: looks every `watch_s`; exits 1 on a fault that `failures_max` looks in a row confirm, so
  that a fault shows about 20 s after it began, whatever `hold_s` is; exits 0 when `hold_s` is over.
So `--retries=1` is right (the confirming is done here), `--interval` is only the pause between two watches,
and `--timeout` (more than hold_s and both budgets) is the last resort. A file under /tmp, a tmpfs, keeps
which start of the container is known and when the deep look passed.

Measured (two cores, 2026-11): a watch costs 0.1 s of CPU with its exec, which is 0.25 % of a core, and 8 to
11 MB of memory while it runs; seven services about 2 %. An exec for each look every 10 s would cost 7 %.

By hand: `health.py --once shallow` or `--once deep` looks once and prints the result.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

STATE_PATH = Path("/tmp/tarn-health.json")  # noqa: S108 - the container's own tmpfs
PROBE_PATH = Path(__file__).with_name("probe.py")
LINE_CHARS_MAX = 400


class Level(Enum):
    """How much a look proves."""

    SHALLOW = "shallow"
    DEEP = "deep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every number of the check; seconds unless the name says otherwise."""

    hold_s: float = 45.0
    watch_s: float = 10.0
    retry_s: float = 2.0
    failures_max: int = 2
    gap_s_max: float = 4.0
    poll_s: float = 0.25
    poll_s_max: float = 2.0
    deep_every_s: float = 300.0
    shallow_budget_s: float = 5.0
    deep_budget_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known about this start of the container.

    Attributes:
        start: names one start of the container.
        healthy: the last verdict.
        deep_passed_s: monotonic time of the last passed deep look; None if none since it was unhealthy.
        ended_s: monotonic time of the last verdict; None while a watch runs or after one cut short.
    """

    start: str
    healthy: bool = False
    deep_passed_s: float | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the check tells the engine."""

    healthy: bool
    line: str


class BudgetExceededError(BaseException):
    """A look took too long. Not an Exception, so that no library swallows it."""


def fresh(saved: State | None, start: str) -> State:
    """The saved state if it is about this start of the container, else an empty one."""
    return saved if saved is not None and saved.start == start else State(start=start)


def deep_due(state: State, now_s: float, limits: Limits) -> bool:
    """Whether the next look must be a deep one."""
    return state.deep_passed_s is None or now_s - state.deep_passed_s >= limits.deep_every_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The state machine; time and looks are arguments.

    Attributes:
        look: runs one look; None when it passed, else one line about the fault.
        save: keeps the state for the next check.
        clock: monotonic seconds.
        sleep: waits for seconds.
        limits: the numbers.
    """

    look: Callable[[Level], str | None]
    save: Callable[[State], None]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    limits: Limits

    def run(self, state: State) -> Verdict:
        """The verdict after one watch; the state is saved before it is told."""
        return self._watch(state) if state.healthy else self._await(state)

    def _await(self, state: State) -> Verdict:
        """Healthy at the first moment at which both levels pass; unhealthy when the watch is over."""
        end_s = self.clock() + self.limits.hold_s
        pause_s = self.limits.poll_s
        while True:
            fault = self.look(Level.SHALLOW) or self.look(Level.DEEP)
            if fault is None:
                self.save(
                    State(start=state.start, healthy=True, deep_passed_s=self.clock(), ended_s=self.clock())
                )
                return Verdict(healthy=True, line="usable (deep)")
            if self.clock() + pause_s >= end_s:
                self.save(State(start=state.start))
                return Verdict(healthy=False, line=fault)
            self.sleep(pause_s)
            pause_s = min(pause_s * 1.5, self.limits.poll_s_max)

    def _watch(self, state: State) -> Verdict:
        """Unhealthy as soon as a fault is confirmed; healthy after a deep look or when the watch is over.

        After a watch that was cut short, or a gap longer than the engine's (the container was paused), the
        engine may think anything: then the first look that passes ends this one.
        """
        known = state.ended_s is not None and self.clock() - state.ended_s <= self.limits.gap_s_max
        end_s = self.clock() + (self.limits.hold_s if known else 0.0)
        self.save(replace(state, ended_s=None))
        while True:
            level = Level.DEEP if deep_due(state, self.clock(), self.limits) else Level.SHALLOW
            fault = self._confirmed(level)
            if fault is not None:
                self.save(State(start=state.start))
                return Verdict(healthy=False, line=fault)
            if level is Level.DEEP:
                self.save(replace(state, deep_passed_s=self.clock(), ended_s=self.clock()))
                return Verdict(healthy=True, line="usable (deep)")
            if self.clock() + self.limits.watch_s >= end_s:
                self.save(replace(state, ended_s=self.clock()))
                return Verdict(healthy=True, line="usable (shallow)")
            self.sleep(self.limits.watch_s)

    def _confirmed(self, level: Level) -> str | None:
        """The last fault if `failures_max` looks in a row failed, else None."""
        fault = self.look(level)
        for _ in range(self.limits.failures_max - 1):
            if fault is None:
                return None
            self.sleep(self.limits.retry_s)
            fault = self.look(level)
        return fault


def one_line(error: BaseException) -> str:
    """The error's text on one line, with its type where the text alone would not say enough."""
    text = " ".join(str(error).split())
    name = type(error).__name__
    line = (
        text if text and name in {"RuntimeError", "UnhealthyError"} else f"{name}: {text}" if text else name
    )
    return line[:LINE_CHARS_MAX]


def bounded(work: Callable[[], None], budget_s: float) -> str | None:
    """None if the work returned within its budget, else one line about the fault. Main thread only."""

    def expire(_signum: int, _frame: types.FrameType | None) -> None:
        raise BudgetExceededError

    before = signal.signal(signal.SIGALRM, expire)
    try:
        # Repeats every second: a library that swallows the first one meets the next.
        signal.setitimer(signal.ITIMER_REAL, budget_s, 1.0)
        work()
    except BudgetExceededError:
        return f"no answer within {budget_s:g} s"
    except Exception as error:  # noqa: BLE001 - whatever a probe raises means: not usable
        return one_line(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    return None


# -- what probes may use -------------------------------------------------------------------------------------


def secret(name: str) -> str:
    """The content of a secret file, without the newline at its end.

    Raises:
        RuntimeError: the file cannot be read.
    """
    path = Path(os.environ.get("TARN_SECRETS_DIR", "/run/tarn/secrets"), name)
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise RuntimeError(f"secret {path} cannot be read: {error.strerror}") from error


def own_host(variable: str) -> str:
    """The host at which this service listens, by its setting; the loopback where it listens everywhere."""
    said = os.environ.get(variable, "")
    return "127.0.0.1" if said in ("", "0.0.0.0") else said  # noqa: S104 - compared


def http(
    method: str,
    address: str,
    path: str,
    *,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    timeout_s: float = 4.0,
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers (names in lower case) and body of one HTTP request to `host:port`.

    Raises:
        RuntimeError: no connection, or no whole answer within the timeout.
    """
    import http.client

    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request(method, path, body=body or None, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    except (OSError, http.client.HTTPException) as error:
        reason = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else one_line(error)
        raise RuntimeError(f"{method} http://{address}{path.split('?')[0]}: {reason}") from error
    finally:
        connection.close()


# -- the edge: files, clock, process -------------------------------------------------------------------------


def container_start() -> str:
    """Names this start of the container: the kernel's boot and the start time of process 1."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    # The command may hold spaces and brackets: count fields after its last bracket; starttime is the 22nd.
    ticks = Path("/proc/1/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    return f"{boot}/{ticks}"


def load_state(path: Path) -> State | None:
    """The saved state, or None if there is none or it cannot be understood (then all is proven anew)."""
    try:
        return State(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def save_state(path: Path, state: State) -> None:
    """Writes the state so that a reader sees the old or the new one.

    Raises:
        RuntimeError: it cannot be written.
    """
    try:
        scratch = path.with_name(f"{path.name}.{os.getpid()}")
        scratch.write_text(json.dumps(asdict(state)), encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        raise RuntimeError(
            f"{path} cannot be written: {error.strerror}; mount a tmpfs at {path.parent}"
        ) from error


def load_probe(path: Path) -> types.ModuleType:
    """The probe module, which finds this very module as `tarn.health`."""
    if importlib.util.find_spec("tarn") is None:
        bare = types.ModuleType("tarn")
        bare.__path__ = [str(path.parent)]
        sys.modules["tarn"] = bare
    sys.modules["tarn.health"] = sys.modules[__name__]
    spec = importlib.util.spec_from_file_location("tarn_probe", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(arguments: list[str]) -> int:
    """0 if usable, 1 if not; prints one line either way."""
    if arguments and (
        len(arguments) != 2 or arguments[0] != "--once" or arguments[1] not in {"shallow", "deep"}
    ):
        print("usage: health.py [--once shallow|deep]", file=sys.stderr)  # noqa: T201
        return 2
    try:
        probe = load_probe(PROBE_PATH)
        limits = Limits(
            shallow_budget_s=getattr(probe, "SHALLOW_BUDGET_S", Limits().shallow_budget_s),
            deep_budget_s=getattr(probe, "DEEP_BUDGET_S", Limits().deep_budget_s),
        )
        work = {
            Level.SHALLOW: (probe.shallow, limits.shallow_budget_s),
            Level.DEEP: (probe.deep, limits.deep_budget_s),
        }

        def look(level: Level) -> str | None:
            fault = bounded(*work[level])
            return None if fault is None else f"{level.value}: {fault}"

        if arguments:
            fault = look(Level(arguments[1]))
            verdict = Verdict(healthy=fault is None, line=fault or f"usable ({arguments[1]})")
        else:
            check = Check(
                look=look,
                save=lambda state: save_state(STATE_PATH, state),
                clock=time.monotonic,
                sleep=time.sleep,
                limits=limits,
            )
            verdict = check.run(fresh(load_state(STATE_PATH), container_start()))
    except Exception as error:  # noqa: BLE001 - a check that cannot run is a service not proven usable
        verdict = Verdict(healthy=False, line=f"the check itself failed: {one_line(error)}")
    print(verdict.line)  # noqa: T201 - the engine shows what a check prints
    return 0 if verdict.healthy else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
