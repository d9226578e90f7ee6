"""scripts/bench catalog: HTTP calls to a catalog on a real object store, on a small stack of its own."""

from __future__ import annotations

import argparse
import http.client
import json
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tarn_host import shell
from tarn_host.bench.ingest import Own, at_share, own_stack
from tarn_host.bench.ingest_page import spread
from tarn_host.bench.memory import MIB, sample
from tarn_host.bench.options import Adder, Verbs, require
from tarn_host.console import StopError, line

TIMEOUT_S = 30
WARM_UP_CALLS = 100
NAMESPACE = "bench_http"
HISTORIES = (10, 100)
WRITERS = 4
STRANGERS = 8
STRANGERS_BODY_BYTES = 8 * MIB
STRANGERS_PAUSE_S = 0.5
MEMORY_LOOKS = 10
FIX = "see .tarn/logs/bench-ingest.log, and run it again on a quiet machine"
SCHEMA = {
    "type": "struct",
    "fields": [{"id": n, "name": f"column_{n}", "type": "string", "required": False} for n in range(1, 21)],
}
ABOUT = """A client on the host, the catalog's published port, MinIO behind it; the client is Python's
`http.client`, whose own time is in the figures. *Kept*: one connection for all calls; *new*: one for each.
A commit appends a snapshot and removes the oldest, so that the history stays as long as it was; it is two
writes of the store, the metadata and the pointer, one after the other. A load is one read of it. *The store
alone*: the same reads and writes from the catalog's container, without the catalog. In each round every kind
of call takes its turn. Median of the rounds, then the smallest and the largest.
"""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        calls: number of calls of each kind per round.
        rounds: number of rounds; each measures every kind.
        commits: number of commits while memory is watched; 0 skips that.
    """

    calls: int = 300
    rounds: int = 5
    commits: int = 20_000

    def words(self) -> str:
        """The options of the command that measures this."""
        return f"--calls {self.calls} --rounds {self.rounds} --commits {self.commits}"


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    text = "calls to the catalog over HTTP, on a small stack of its own"
    command = Adder(verbs, "catalog", text, Options, quick=False)
    command.number("calls", int, "of each kind in each round")
    command.number("rounds", int, "how often to measure")
    command.number("commits", int, "while memory is watched; 0 leaves it out")


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(calls=found.calls, rounds=found.rounds, commits=found.commits)
    require(
        1 <= numbers.calls <= 10_000 and 1 <= numbers.rounds <= 100 and 0 <= numbers.commits <= 1_000_000,
        numbers,
        "give 1 to 10,000 calls, 1 to 100 rounds and at most 1,000,000 commits",
    )
    return numbers


@dataclass
class Client:
    """HTTP client of the catalog.

    Attributes:
        port: its published port on 127.0.0.1.
        token: the bearer token that it sends.
    """

    port: int
    token: str = ""
    _kept: http.client.HTTPConnection | None = field(default=None, repr=False)

    def call(self, method: str, path: str, body: bytes | None = None, *, new: bool = False) -> bytes:
        """The response body.

        Args:
            method: HTTP method.
            path: path of the request.
            body: request body, if any.
            new: open a new connection instead of reusing the last one.

        Raises:
            StopError: the status is not 200.
        """
        if new or self._kept is None:
            self.close()
            self._kept = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        self._kept.request(method, path, body, headers)
        answer = self._kept.getresponse()
        found = answer.read()
        if answer.status != 200:
            raise StopError(f"{method} {path} answered {answer.status}: {found[:300]!r}", FIX)
        return found

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The response body as JSON."""
        return json.loads(self.call(method, path, None if body is None else json.dumps(body).encode()))

    def close(self) -> None:
        """Close the connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


@dataclass
class History:
    """A table and the snapshots that it holds; commits append new ones.

    Attributes:
        name: name of the table.
        uuid: UUID of the table.
        location: location of the table.
        snapshots: the snapshot ids, oldest first.
    """

    name: str
    uuid: str = ""
    location: str = ""
    snapshots: list[int] = field(default_factory=list)
    sequence: int = 0

    @property
    def path(self) -> str:
        """The path of the table's routes."""
        return f"/v1/namespaces/{NAMESPACE}/tables/{self.name}"

    def create(self, client: Client, length: int) -> None:
        """Create the table with `length` snapshots."""
        wanted = {"name": self.name, "schema": SCHEMA}
        made = client.ask("POST", f"/v1/namespaces/{NAMESPACE}/tables", wanted)["metadata"]
        self.uuid, self.location = made["table-uuid"], made["location"]
        for _ in range(length):
            client.call("POST", self.path, self.append(drop=False))

    def append(self, *, drop: bool = True) -> bytes:
        """The body of a commit that appends a snapshot, as a writer of one file sends it."""
        self.sequence += 1
        number, parent = uuid.uuid4().int >> 65, self.snapshots[-1] if self.snapshots else None
        added: dict[str, Any] = {
            "snapshot-id": number,
            "sequence-number": self.sequence,
            "timestamp-ms": time.time_ns() // 1_000_000,
            "manifest-list": f"{self.location}/metadata/snap-{number}-{uuid.uuid4()}.avro",
            "summary": {
                "operation": "append",
                "added-data-files": "1",
                "added-records": "1000",
                "added-files-size": "31415",
                "total-data-files": str(self.sequence),
                "total-records": str(1000 * self.sequence),
                "tarn.commit-id": str(uuid.uuid4()),
            },
            "schema-id": 0,
        }
        if parent is not None:
            added["parent-snapshot-id"] = parent
        move = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
        updates = [{"action": "add-snapshot", "snapshot": added}, move]
        self.snapshots.append(number)
        if drop:
            updates.append({"action": "remove-snapshots", "snapshot-ids": [self.snapshots.pop(0)]})
        requirements = [
            {"type": "assert-table-uuid", "uuid": self.uuid},
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent},
        ]
        return json.dumps({"requirements": requirements, "updates": updates}).encode()


def measure(options: Options) -> list[dict[str, Any]]:
    """The results of all rounds; the last one also holds the memory measurement.

    Raises:
        StopError: the stack does not start, or a response is not 200.
    """
    with own_stack(log_level="info") as own:
        own.compose("stop", "ingest", "kafka")
        client = connected(own)
        client.ask("POST", "/v1/namespaces", {"namespace": [NAMESPACE]})
        tables = {length: History(f"history_{length}") for length in HISTORIES}
        for length, table in tables.items():
            table.create(client, length)
        kinds = _kinds(client, tables)
        for call in kinds.values():
            _times_ms(call, WARM_UP_CALLS)
        runs = []
        for turn in range(1, options.rounds + 1):
            run: dict[str, Any] = {"calls": options.calls}
            for name, call in kinds.items():
                times = _times_ms(call, options.calls)
                run[name] = {"p50_ms": at_share(times, 0.5), "p99_ms": at_share(times, 0.99)}
            for length, table in tables.items():
                run[f"metadata_{length}_bytes"] = len(client.call("GET", table.path))
            run |= store_alone(own, options.calls, run[f"metadata_{HISTORIES[-1]}_bytes"])
            line(f"round {turn} of {options.rounds}: " + _words(run))
            runs.append(run)
        if options.commits:
            runs[-1]["memory"] = memory(own, client.token, options.commits)
        return runs


def store_alone(own: Own, calls: int, metadata_bytes: int) -> dict[str, Any]:
    """Latency of the same reads and writes on the store alone, measured in the catalog's container."""
    words = ("--calls", str(calls), "--metadata-bytes", str(metadata_bytes))
    said = own.compose(
        "exec", "-T", "catalog", "python", "-m", "tarn_catalog.testing.store_floor", *words, timeout_s=600
    )
    times = {name: sorted(values) for name, values in json.loads(said).items()}
    return {
        f"store_{name}": {"p50_ms": at_share(values, 0.5), "p99_ms": at_share(values, 0.99)}
        for name, values in times.items()
    }


def connected(own: Own) -> Client:
    """A client with a token of the stack's own principal."""
    said = own.compose("run", "--rm", "--no-deps", "-T", "cli", "env")
    words = [shlex.split(row)[1] for row in said.splitlines() if row.startswith("export ")]
    variables = dict(word.split("=", 1) for word in words)
    name, _, secret = variables["TARN_CATALOG_CREDENTIAL"].partition(":")
    client = Client(port=int(own.env["TARN_PORT_CATALOG"]))
    form = f"grant_type=client_credentials&client_id={name}&client_secret={secret}".encode()
    client.token = json.loads(client.call("POST", "/v1/oauth/tokens", form))["access_token"]
    return client


def _kinds(client: Client, tables: Mapping[int, History]) -> dict[str, Callable[[], Callable[[], object]]]:
    """Name -> function that prepares one call and returns the callable to time."""

    def get(path: str, new: bool) -> Callable[[], Callable[[], object]]:
        return lambda: lambda: client.call("GET", path, new=new)

    def commit(table: History, new: bool) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            body = table.append()
            return lambda: client.call("POST", table.path, body, new=new)

        return prepare

    found = {}
    for words, new in (("kept", False), ("new", True)):
        found[f"config_{words}"] = get("/v1/config", new)
        for length, table in tables.items():
            found[f"load_{length}_{words}"] = get(table.path, new)
            found[f"commit_{length}_{words}"] = commit(table, new)
    return found


def _times_ms(prepare: Callable[[], Callable[[], object]], calls: int) -> list[float]:
    """Latency of each call in milliseconds, sorted ascending."""
    times = []
    for _ in range(calls):
        call = prepare()
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times)


def memory(own: Own, token: str, commits: int) -> dict[str, Any]:
    """The catalog's memory in MiB, sampled after equal numbers of commits.

    Several clients commit while others, without a token, send large bodies.

    Raises:
        StopError: a commit failed.
    """
    container = own.compose("ps", "-q", "catalog").strip()
    port = int(own.env["TARN_PORT_CATALOG"])
    writers = [(Client(port, token), History(f"memory_{writer}")) for writer in range(WRITERS)]
    for client, table in writers:
        table.create(client, HISTORIES[-1])
    share = max(1, commits // MEMORY_LOOKS // WRITERS)
    looks = [_memory_mib(container)]
    began = time.monotonic()
    with _strangers(port) as refused:
        for look in range(1, MEMORY_LOOKS + 1):
            failed: list[Exception] = []
            threads = [threading.Thread(target=_write, args=(*writer, share, failed)) for writer in writers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if failed:
                raise failed[0]
            looks.append(_memory_mib(container))
            line(
                f"    {look * share * WRITERS:,} commits, {refused[0]:,} bodies refused: {looks[-1]:.0f} MiB"
            )
    return {
        "commits": share * WRITERS * MEMORY_LOOKS,
        "seconds": time.monotonic() - began,
        "refused": refused[0],
        "mib": looks,
    }


def _write(client: Client, table: History, commits: int, failed: list[Exception]) -> None:
    try:
        for _ in range(commits):
            client.call("POST", table.path, table.append())
    except (OSError, http.client.HTTPException, StopError) as error:
        failed.append(error)
    finally:
        client.close()


@contextmanager
def _strangers(port: int) -> Iterator[list[int]]:
    """Run clients without a token that send large bodies during the block; counts the rejected requests."""
    stop, refused = threading.Event(), [0]
    body = b"[" + b"{}," * (STRANGERS_BODY_BYTES // 3)

    def send() -> None:
        while not stop.wait(STRANGERS_PAUSE_S):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
            try:
                connection.request("POST", "/v1/namespaces", body)
                refused[0] += connection.getresponse().status == 401
            except (OSError, http.client.HTTPException):
                pass  # rejected before the body was sent
            finally:
                connection.close()

    threads = [threading.Thread(target=send, daemon=True) for _ in range(STRANGERS)]
    for thread in threads:
        thread.start()
    try:
        yield refused
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=TIMEOUT_S)


def _memory_mib(container: str) -> float:
    """Memory of the container without reclaimable file cache, in MiB."""
    command = ["docker", "stats", "--no-stream", "--format", "{{.Name}}\t{{.MemUsage}}", container]
    ((used, _),) = sample(shell.must(command, timeout_s=60, fix=FIX)).values()
    return used / MIB


def _words(run: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value['p50_ms']:.2f}" for name, value in run.items() if isinstance(value, dict)
    )


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section of the page about a set of runs. Pure."""
    parts = [ABOUT, f"\n{runs[0]['calls']:,} calls of each kind per round, rounds: {len(runs)}.\n"]
    parts.append(
        "\n| call | p50, ms | p99, ms | new connection: p50, ms | p99, ms |\n|---|---|---|---|---|\n"
    )
    rows = [("config", "GET config")]
    for length in HISTORIES:
        size = runs[-1][f"metadata_{length}_bytes"]
        rows.append((f"load_{length}", f"load a table of {length} snapshots ({size:,} bytes)"))
        rows.append((f"commit_{length}", f"append to a table of {length} snapshots"))
    for name, words in rows:
        cells = [
            spread([run[f"{name}_{kind}"][share] for run in runs], ".2f")
            for kind in ("kept", "new")
            for share in ("p50_ms", "p99_ms")
        ]
        parts.append(f"| {words} | {' | '.join(cells)} |\n")
    size = runs[-1][f"metadata_{HISTORIES[-1]}_bytes"]
    for name, words in (
        ("read", "the store alone: a pointer read"),
        ("unchanged", "the store alone: a read of a pointer that has not changed, as a load's"),
        ("write", f"the store alone: {size:,} bytes and a pointer written"),
    ):
        if f"store_{name}" not in runs[0]:
            continue  # raw results of an earlier release
        cells = [
            spread([run[f"store_{name}"][share] for run in runs], ".2f") for share in ("p50_ms", "p99_ms")
        ]
        parts.append(f"| {words} | {' | '.join(cells)} | | |\n")
    held = runs[-1].get("memory")
    if held is not None:
        looks = ", ".join(f"{mib:.0f}" for mib in held["mib"])
        parts.append(
            f"\nMemory of the catalog's container while {WRITERS} clients made {held['commits']:,} commits, "
            f"each to a table of {HISTORIES[-1]} snapshots, in {held['seconds']:.0f} s and {STRANGERS} "
            f"clients without a token sent bodies of {STRANGERS_BODY_BYTES // MIB} MiB "
            f"({held['refused']:,} were refused), at the start and after each tenth, MiB: {looks}.\n"
        )
    return "".join(parts)
