"""scripts/bench soak: the whole lake under load for hours, sampled throughout, on a stack of its own."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tarn_host import shell
from tarn_host.bench import memory, soak_look, soak_page
from tarn_host.console import StopError, line
from tarn_host.stack.project import LOG_DIR, ROOT

LOG = LOG_DIR / "bench-soak.log"
PROGRESS = LOG_DIR / "bench-soak.json"
RECORD_EVERY_S = 600.0
LOOK_EVERY_S = 30.0
COMMIT_LOOK_S = 0.5
KERNEL_EVERY_S = 300.0
KERNEL_S_MAX = 240.0
PAUSE_S = 8.0
ENGINES = ("trino", "spark")
VERBS = "tarn_demo.bench.soak"
KERNEL = """
import nbformat, sys
from nbclient import NotebookClient
cells = '''
import os
from pathlib import Path
from pyiceberg.catalog import load_catalog
def secret(name):
    return Path("/run/tarn/secrets", name).read_text()
catalog = load_catalog("tarn", type="rest", uri=os.environ["TARN_CATALOG_URI"],
    warehouse=os.environ["TARN_WAREHOUSE"], credential=secret("catalog_credential"),
    **{"s3.endpoint": os.environ["TARN_S3_ENDPOINT"], "s3.region": os.environ["TARN_REGION"],
       "s3.access-key-id": secret("s3_access_key_id"),
       "s3.secret-access-key": secret("s3_secret_access_key")})
catalog.load_table("gold.delays_by_carrier").scan().to_pandas()
----
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(os.environ["TARN_SPARK_REMOTE"]).getOrCreate()
spark.sql("SELECT carrier, avg(arr_delay) FROM tarn.silver.flights GROUP BY carrier").toPandas()
'''.split("----")
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c.strip()) for c in cells])
book.metadata.kernelspec = {"name": "python3", "display_name": "Python", "language": "python"}
NotebookClient(book, timeout=200, startup_timeout=60, resources={"metadata": {"path": "/tmp"}}).execute()
"""


@dataclass(frozen=True)
class Options:
    """Duration and sampling of a soak run.

    Attributes:
        seconds: how long the lake is under load.
        record_every_s: interval between records; the last interval may be shorter.
    """

    seconds: float
    record_every_s: float = RECORD_EVERY_S


@dataclass
class Tally:
    """Results collected since the last `empty`. Thread-safe."""

    _found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, answer: Mapping[str, Any]) -> None:
        """Add one result."""
        with self._lock:
            self._found.setdefault(name, []).append(dict(answer))

    def empty(self) -> dict[str, list[dict[str, Any]]]:
        """Return all results and clear them."""
        with self._lock:
            found, self._found = self._found, {}
        return found


@dataclass
class Soak:
    """The stack under test, and what was observed of it.

    Attributes:
        own: the stack.
        tally: results of queries, and commits.
        ids: each service's container id as last seen.
        replaced: how often each service got another container.
        killed: number of OOM-killed processes per service.
    """

    own: memory.Own
    tally: Tally = field(default_factory=Tally)
    ids: dict[str, str] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    killed: dict[str, int] = field(default_factory=dict)

    def compose(self, *words: str, timeout_s: float = 120) -> shell.Result:
        """Run docker compose on the stack."""
        return shell.capture(["docker", "compose", *words], timeout_s=timeout_s, env=self.own.env, cwd=ROOT)

    def look(self) -> dict[str, dict[str, int]]:
        """Current resource usage of each running container; one that does not respond is omitted."""
        found = {}
        for service, identity in self.own.containers().items():
            known = self.ids.setdefault(service, identity)
            if known != identity:
                self.ids[service] = identity
                self.replaced[service] = self.replaced.get(service, 0) + 1
            said = shell.capture(["docker", "exec", identity, "sh", "-c", soak_look.INSIDE], timeout_s=30)
            with contextlib.suppress(ValueError):
                found[service] = soak_look.parse_inside(said.out)
        return found

    def restarts(self) -> dict[str, int]:
        """Number of restarts per service."""
        form = soak_look.INSPECT
        said = shell.capture(["docker", "inspect", "--format", form, *self.ids.values()], timeout_s=30).out
        states = soak_look.parse_inspect(said)
        return {
            service: states.get(identity, 0) + self.replaced.get(service, 0)
            for service, identity in self.ids.items()
        }

    def store(self) -> dict[str, Any]:
        """Bytes in the store and size of the other volumes."""
        said = self.compose("exec", "-T", "minio", "sh", "-c", soak_look.STORE)
        found = soak_look.parse_store(said.out)
        for service, folder in (("minio", "/data"), ("kafka", "/data"), ("jupyter", "/notebooks/work")):
            size = self.compose("exec", "-T", service, "du", "-sk", folder).out.split()
            found[f"{service}_volume_kib"] = int(size[0]) if size and size[0].isdigit() else 0
        return found

    def lake(self) -> dict[str, Any]:
        """Rows and live bytes of every table; empty if the catalog does not answer."""
        said = self.cli("lake")
        found = soak_look.parse_answers(said.out.splitlines())
        return dict(found[-1]["tables"]) if found else {}

    def cli(self, *words: str) -> shell.Result:
        """Run a command of VERBS inside the Compose network."""
        return self.compose(*_in_cli(*words))


def _in_cli(*words: str) -> tuple[str, ...]:
    return (
        "run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "cli", "-m", VERBS, *words
    )  # fmt: skip


def measure(options: Options) -> list[dict[str, Any]]:
    """One run: the records at the start and after each period.

    Raises:
        StopError: the stack does not start.
    """
    with memory.own_stack("soak", LOG) as own:
        line("starting the lake with everything")
        own.script("up", "--yes")
        soak = Soak(own)
        records: list[dict[str, Any]] = []
        stop = threading.Event()
        begun = time.monotonic()
        with _busy(soak, options.seconds, stop):
            records.append(_record(soak, 0.0, [soak.look()]))
            line(f"    {soak_page.summary(records[-1], options.seconds)}")
            for due_s in schedule(options.seconds, options.record_every_s):
                samples = _watched(soak, begun + due_s)
                records.append(_record(soak, time.monotonic() - begun, samples))
                PROGRESS.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
                line(f"    {soak_page.summary(records[-1], options.seconds)}")
        for ok, words in soak_page.verdict(records):
            line(f"{'reached' if ok else 'MISSED'}: {words}")
    run = {"seconds": options.seconds, "pause_s": PAUSE_S, "kernel_every_s": KERNEL_EVERY_S}
    return [{**run, "look_every_s": LOOK_EVERY_S, "records": records}]


def schedule(seconds: float, every_s: float) -> list[float]:
    """When records are due, in seconds after the start; the last one is due at the end. Pure."""
    due = [every_s * place for place in range(1, math.ceil(seconds / every_s))]
    return [*due, seconds]


def _watched(soak: Soak, until: float) -> list[dict[str, dict[str, int]]]:
    """Samples at a steady interval, at least one, until `until` on the monotonic clock."""
    samples = []
    while True:
        begun = time.monotonic()
        samples.append(soak.look())
        rest = min(until, begun + LOOK_EVERY_S) - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        if time.monotonic() >= until:
            return samples


def _record(soak: Soak, at_s: float, samples: list[dict[str, dict[str, int]]]) -> dict[str, Any]:
    found = soak_look.period(samples)
    starts = soak.restarts()
    for service, entry in found["services"].items():
        entry["restarts"], entry["oom_kills"] = starts.get(service, 0), soak.killed.get(service, 0)
    heard = soak.tally.empty()
    for name in ("commit", *ENGINES, "kernel"):
        found[name] = soak_look.answered(heard.get(name, []))
    return {"at_s": round(at_s), **found, "store": soak.store(), "lake": soak.lake()}


@contextmanager
def _busy(soak: Soak, seconds: float, stop: threading.Event) -> Iterator[None]:
    """Run queries, kernels and the recording of commits for the duration of the block."""
    works: list[Callable[[], None]] = [lambda: _commits(soak, stop), lambda: _kernels(soak, stop)]
    works.append(lambda: kills(soak, stop))
    works += [lambda name=name: _questions(soak, name, seconds, stop) for name in ENGINES]  # type: ignore[misc]
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=shell.TERMINATE_GRACE_S + 10)


def kills(soak: Soak, stop: threading.Event) -> None:
    """Count the processes OOM-killed in containers, from the engine's events."""

    def heard(row: str) -> None:
        soak.killed[row] = soak.killed.get(row, 0) + 1

    mine = f"label=com.docker.compose.project={soak.own.name}"
    form = '{{index .Actor.Attributes "com.docker.compose.service"}}'
    command = ["docker", "events", "--filter", mine, "--filter", "event=oom", "--format", form]
    telling = shell.Running(command, on_line=heard)
    stop.wait()
    telling.stop()


def _questions(soak: Soak, engine: str, seconds: float, stop: threading.Event) -> None:
    """Query an engine continuously; the querying process is restarted if it ends too early."""
    until = time.monotonic() + seconds

    def heard(row: str) -> None:
        for answer in soak_look.parse_answers([row]):
            soak.tally.add(engine, answer)

    while not stop.is_set() and (left := until - time.monotonic()) > 0:
        words = _in_cli("queries", "--engine", engine, "--seconds", f"{left:.0f}", "--pause", f"{PAUSE_S:g}")
        asking = shell.Running(["docker", "compose", *words], on_line=heard, env=soak.own.env, cwd=ROOT)
        while asking.poll() is None and not stop.wait(1):
            pass
        if stop.is_set():
            asking.stop()
        elif asking.poll() != 0:
            soak.tally.add(engine, {"error": f"who asks ended: {' '.join(list(asking.tail)[-1:])}"})
            stop.wait(PAUSE_S)


def _kernels(soak: Soak, stop: threading.Event) -> None:
    """Start a kernel at regular intervals, as a user of a notebook does."""
    command = ["docker", "compose", "exec", "-T", "jupyter", "python", "-c", KERNEL]
    while True:
        begun = time.monotonic()
        done = shell.capture(command, timeout_s=KERNEL_S_MAX, env=soak.own.env, cwd=ROOT)
        took_s = time.monotonic() - begun
        if stop.is_set():
            return
        soak.tally.add("kernel", {"ms": round(took_s * 1_000)} if done.ok else {"error": done.words()})
        if stop.wait(max(0.0, KERNEL_EVERY_S - took_s)):
            return


def _commits(soak: Soak, stop: threading.Event) -> None:
    """Record the duration of each flights commit from ingest's status page."""
    page = f"http://127.0.0.1:{soak.own.env['TARN_PORT_INGEST']}/status"
    seen = 0
    while not stop.wait(COMMIT_LOOK_S):
        try:
            with urllib.request.urlopen(page, timeout=5) as answer:
                last = json.loads(answer.read())["ingestors"]["flights"]["lastCommit"]
        except (OSError, ValueError, KeyError, urllib.error.URLError):
            continue
        if last["atMs"] != seen:
            seen = last["atMs"]
            soak.tally.add("commit", {"ms": last["durationMs"]})


def seconds_of(hours: float | None, minutes: float | None) -> float:
    """Duration in seconds from the command line's hours or minutes; two hours by default.

    Raises:
        StopError: both are given, or the value is out of range.
    """
    if hours is not None and minutes is not None:
        raise StopError("--hours and --minutes together", "give one of them", 2)
    seconds = minutes * 60 if minutes is not None else (2.0 if hours is None else hours) * 3600
    if not 60 <= seconds <= 7 * 24 * 3600:
        raise StopError(f"{seconds:g} s is no time for a soak", "give one minute to seven days", 2)
    return seconds
