"""scripts/bench ingest: flights from Kafka into bronze, on a small stack removed at the end."""

from __future__ import annotations

import argparse
import json
import math
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from tarn_host import shell
from tarn_host.bench.options import Adder, Verbs, asked, require
from tarn_host.console import StopError, line
from tarn_host.stack import checks, images, project
from tarn_host.stack.project import ROOT

LOG = project.LOG_DIR / "bench-ingest.log"
VERBS = "tarn_demo.bench.ingest"
UP_TIMEOUT_S = 1800
VERB_TIMEOUT_S = 600
CATCH_UP_S_MAX = 300
LOOK_S = 0.05
WARM_UP_EVENTS = 20_000
FIX = "see .tarn/logs/bench-ingest.log, which ends with what the stack's services said; then run it again"
CPU = "cat /sys/fs/cgroup/cpu.stat 2>/dev/null || cat /sys/fs/cgroup/cpuacct/cpuacct.usage"
PEAK = " || ".join(
    f"cat /sys/fs/cgroup/{name} 2>/dev/null"
    for name in ("memory.peak", "memory/memory.max_usage_in_bytes", "memory.current")
)


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        events: messages per measurement.
        rounds: number of rounds; each runs every measurement.
        rate: messages per second while freshness is measured.
        seconds: duration of the freshness measurement.
    """

    events: int = 500_000
    rounds: int = 3
    rate: float = 1_000.0
    seconds: float = 60.0

    def small(self) -> Options:
        """The same with everything small: whether it works, not what it costs."""
        return replace(self, events=20_000, rounds=1, seconds=5.0)

    def words(self) -> str:
        """The options of the command that measures this."""
        sizes = f"--events {self.events} --rounds {self.rounds}"
        return f"{sizes} --rate {self.rate:g} --seconds {self.seconds:g}"


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    text = "rows and freshness of ingestion, on a small stack of its own"
    command = Adder(verbs, "ingest", text, Options)
    command.number("events", int, "per measurement")
    command.number("rounds", int, "how often to measure")
    command.number("rate", float, "messages a second for freshness")
    command.number("seconds", float, "how long to send at that rate")


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(events=found.events, rounds=found.rounds, rate=found.rate, seconds=found.seconds)
    require(
        1_000 <= numbers.events <= 1_000_000 and numbers.rounds > 0 and numbers.rate * numbers.seconds >= 1,
        numbers,
        "give 1,000 to 1,000,000 events, at least one round, and a rate and time of at least one message",
    )
    return asked(numbers, found)


@dataclass(frozen=True)
class Own:
    """The benchmark's own stack."""

    env: Mapping[str, str]

    def compose(self, *words: str, timeout_s: float = 120) -> str:
        """Run docker compose on the stack and return its output."""
        command = ["docker", "compose", *words]
        return shell.must(command, timeout_s=timeout_s, fix=FIX, env=self.env, cwd=ROOT)

    def verb(self, name: str, client: str = "", **options: float) -> Any:
        """Run a command of VERBS inside the Compose network and return its JSON result."""
        words = [word for key, value in options.items() for word in (f"--{key}", f"{value:.12g}")]
        words += ["--client", client] if client else []
        run = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "cli", "-m", VERBS)
        answer = self.compose(*run, name, *words, timeout_s=VERB_TIMEOUT_S)
        return json.loads(answer.strip().splitlines()[-1])

    def committed(self) -> dict[str, int]:
        """Committed offsets of the flights from ingest's status page; empty if it does not answer."""
        port = self.env["TARN_PORT_INGEST"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as answer:
                found = json.loads(answer.read())["ingestors"].get("flights", {})
        except (OSError, ValueError, urllib.error.URLError):
            return {}
        return {str(p): int(o) for p, o in found.get("committedOffsets", {}).items()}

    def cpu_s(self) -> float:
        """CPU time used by ingest's container since it started, in seconds."""
        return parse_cpu(self.compose("exec", "-T", "ingest", "sh", "-c", CPU))

    def memory_peak_mib(self, service: str = "ingest") -> float:
        """Peak memory of a service's container since it started, in MiB."""
        return int(self.compose("exec", "-T", service, "sh", "-c", PEAK)) / (1 << 20)

    def commits(self, since_unix: float) -> list[dict[str, Any]]:
        """Ingest's log lines about commits of flights since `since_unix`."""
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_unix - 1))
        text = self.compose("logs", "--no-color", "--no-log-prefix", "--since", since, "ingest")
        return parse_commits(text, since_unix)


def measure(options: Options) -> list[dict[str, Any]]:
    """The results of all rounds.

    Raises:
        StopError: the stack does not start, or a message was lost or duplicated.
    """
    runs = []
    with own_stack() as own:
        line(f"warming up with {WARM_UP_EVENTS:,} events")
        _await(own, own.verb("produce", events=WARM_UP_EVENTS)["ends"])
        for turn in range(1, options.rounds + 1):
            line(f"round {turn} of {options.rounds}")
            run: dict[str, Any] = {"events": options.events}
            for name, work in _MEASURES.items():
                run[name] = work(own, options)
                line(f"    {name.replace('_', ' ')}: {_words(run[name])}")
            run["count"] = own.verb("count")
            require_exact(run["count"])
            runs.append(run)
    return runs


def require_exact(count: Mapping[str, int]) -> None:
    """Require that every offset is exactly one row or one dead letter.

    Raises:
        StopError: it is not.
    """
    if count["rows"] + count["dead_letters"] != count["offsets"]:
        raise StopError(
            f"{count['rows']} rows and {count['dead_letters']} dead letters of {count['offsets']} offsets: "
            "something was lost or doubled",
            "keep the logs in .tarn/logs and report it: a benchmark that finds this is a bug report",
        )


def as_they_come(own: Own, options: Options) -> dict[str, Any]:
    """Measure the producer and ingest running at the same time."""
    cpu = own.cpu_s()
    sent = own.verb("produce", events=options.events)
    _await(own, sent["ends"])
    return {
        **_caught_up(own, options.events, sent["begun_unix"], cpu),
        "produced_per_s": sent["messages"] / sent["seconds"],
        "produced_per_cpu_s": sent["messages"] / sent["cpu_s"],
    }


def catching_up(own: Own, options: Options) -> dict[str, Any]:
    """Measure ingest alone on a backlog."""
    cpu = own.cpu_s()
    with _frozen(own):
        sent = own.verb("produce", events=options.events)
        began = time.time()
    _await(own, sent["ends"])
    return _caught_up(own, options.events, began, cpu)


def killed(own: Own, options: Options) -> dict[str, Any]:
    """Measure ingest on a backlog, killed with half of it done."""
    before = own.committed()
    with _frozen(own):
        sent = own.verb("produce", events=options.events)
        began = time.time()
    _await(own, {p: (before.get(p, 0) + end) // 2 for p, end in sent["ends"].items()})
    at = time.time()
    own.compose("kill", "--signal", "SIGKILL", "ingest")
    own.compose("start", "ingest")
    _await(own, sent["ends"])
    seconds = own.commits(began)[-1]["at_unix"] - began
    return {"seconds": seconds, "rows_per_s": options.events / seconds, "killed_after_s": at - began}


def reading_only(own: Own, options: Options) -> dict[str, Any]:
    """Measure reading from Kafka alone: the client's ceiling."""
    return _read_by("librdkafka", own, options)


def reading_by_kafka_python(own: Own, options: Options) -> dict[str, Any]:
    """Measure the same with the other client (TARN_INGEST_KAFKA_CLIENT)."""
    return _read_by("kafka-python", own, options)


def _read_by(client: str, own: Own, options: Options) -> dict[str, Any]:
    found = own.verb("read", client, events=options.events)
    return {
        "seconds": found["seconds"],
        "rows_per_s": found["messages"] / found["seconds"],
        "rows_per_cpu_s": found["messages"] / found["cpu_s"],
    }


def freshness(own: Own, options: Options) -> dict[str, Any]:
    """Measure the age of a message when it becomes readable."""
    found = own.verb("fresh", rate=options.rate, seconds=options.seconds)
    assert isinstance(found, dict)
    return found


_OWN_IMAGE = re.compile(r"^ +image: tarn/([a-z]+):\$\{COMPOSE_PROJECT_NAME\}", re.MULTILINE)
_MEASURES: dict[str, Callable[[Own, Options], dict[str, Any]]] = {
    "as_they_come": as_they_come,
    "catching_up": catching_up,
    "killed": killed,
    "reading_only": reading_only,
    "reading_by_kafka_python": reading_by_kafka_python,
    "freshness": freshness,
}


@contextmanager
def own_stack(profile: str = "small", *, log_level: str = "debug") -> Iterator[Own]:
    """A stack beside all others, started by scripts/up and removed at the end.

    Args:
        profile: `small` or `full`.
        log_level: lowest level that its services write. Ingest's times of a batch are in lines of level
            debug; in a catalog that level is a line for each request, which users do not have.

    Raises:
        StopError: it does not start.
    """
    here = project.load()
    name = f"{here.name}-bench"
    names = project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8"))
    ports = checks.free_block(names)
    if not ports:
        raise StopError("no block of free ports was found", "stop another copy of Tarn first")
    env = {**ports, "COMPOSE_PROJECT_NAME": name, "TARN_LOG_LEVEL": log_level, "TARN_PROFILE": profile}
    line(f"starting the stack {name}; its log is {LOG.relative_to(ROOT)}")
    up = [str(ROOT / "scripts/up"), "--yes", "--no-canary", "--no-demo"]
    try:
        shell.logged(
            up, LOG, timeout_s=UP_TIMEOUT_S, what="scripts/up of the benchmark", fix=FIX, env=env, cwd=ROOT
        )
        own = Own(env={**here.env(), **env})
        try:
            yield own
        except BaseException:
            said = shell.capture(
                ["docker", "compose", "logs", "--no-color", "--tail", "500"],
                timeout_s=60,
                env=own.env,
                cwd=ROOT,
            )
            keep_said(said.out + said.err)
            raise
    finally:
        down = [str(ROOT / "scripts/down"), "--purge", "--yes"]
        shell.capture(down, timeout_s=300, env=env, cwd=ROOT)
        _untag(here.name, name)
        line(f"the stack {name} is removed")


def keep_said(text: str) -> None:
    """Add what containers said to the log of the benchmark, before they are removed."""
    with LOG.open("a", encoding="utf-8") as sink:
        sink.write(text)


def _untag(kept: str, gone: str) -> None:
    """Remove the image tags made for this stack, where the image has another tag."""
    text = project.COMPOSE_FILE.read_text(encoding="utf-8")
    for image in sorted(set(_OWN_IMAGE.findall(text))):
        main, ours = f"tarn/{image}:{kept}", f"tarn/{image}:{gone}"
        ids = images.image_ids([main, ours])
        if len(ids) == 2 and ids[main] == ids[ours]:
            shell.capture(["docker", "image", "rm", ours], timeout_s=60)


@contextmanager
def _frozen(own: Own) -> Iterator[None]:
    """Pause ingest's container for a block."""
    own.compose("pause", "ingest")
    try:
        yield
    finally:
        own.compose("unpause", "ingest")


def _await(own: Own, ends: Mapping[str, int]) -> None:
    """Wait until the table holds every message below these end offsets."""
    until = time.monotonic() + CATCH_UP_S_MAX
    while True:
        held = own.committed()
        if held and all(held.get(p, 0) >= end for p, end in ends.items()):
            return
        if time.monotonic() > until:
            raise StopError(f"after {CATCH_UP_S_MAX} s ingest stands at {held}, wanted are {dict(ends)}", FIX)
        time.sleep(LOOK_S)


def _caught_up(own: Own, events: int, began_unix: float, cpu_before_s: float) -> dict[str, Any]:
    """Cost of the last measurement, from CPU accounting and ingest's own log."""
    cpu = own.cpu_s() - cpu_before_s
    commits = own.commits(began_unix)
    seconds = commits[-1]["at_unix"] - began_unix
    found = {
        "seconds": seconds,
        "rows_per_s": events / seconds,
        "cpu_s": cpu,
        "rows_per_cpu_s": events / cpu,
        "commits": len(commits),
        "memory_peak_mib": own.memory_peak_mib(),
    }
    for kind in ("ms", "decode_ms", "write_ms"):
        values = sorted(float(c[kind]) for c in commits)
        found[f"batch_{kind}_p50"], found[f"batch_{kind}_p95"] = at_share(values, 0.5), at_share(values, 0.95)
    return found


def parse_cpu(text: str) -> float:
    """CPU seconds from cpu.stat (cgroup v2, microseconds) or cpuacct.usage (cgroup v1, nanoseconds). Pure.

    Raises:
        StopError: the text is neither.
    """
    for row in text.splitlines():
        words = row.split()
        if words[:1] == ["usage_usec"] and len(words) == 2:
            return int(words[1]) / 1e6
        if len(words) == 1 and words[0].isdigit():
            return int(words[0]) / 1e9
    raise StopError(f"the container's processor time cannot be read: {text[:80]!r}", "report this engine")


def parse_commits(log: str, since_unix: float, ingestor: str = "flights") -> list[dict[str, Any]]:
    """The commits of an ingestor that ingest logged since `since_unix`, each with `at_unix`. Pure."""
    found = []
    for row in log.splitlines():
        if '"batch committed"' not in row:
            continue
        entry = json.loads(row[row.index("{") :])
        if entry.get("ingestor") != ingestor:
            continue
        at = datetime.strptime(entry["timestamp"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        if at.timestamp() >= since_unix:
            found.append({**entry, "at_unix": at.timestamp()})
    return found


def at_share(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values; `share` is 0 to 1. Pure."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _words(measured: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value:,.0f}" for key, value in measured.items())
