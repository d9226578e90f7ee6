"""scripts/bench peers: the same topics of JSON into tables, by ingest and by what others use, in one run."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.bench import sink
from tarn_host.bench.ingest import CPU, FIX, PEAK, Own, keep_said, own_stack, parse_commits, parse_cpu
from tarn_host.bench.ingest_page import spread
from tarn_host.bench.options import Adder, Verbs, asked, require
from tarn_host.console import StopError, line

VERBS = "tarn_demo.bench.peers"
VERB_TIMEOUT_S = 900
DRAIN_S_MAX = 600
START_S_MAX = 60
SPECS = "/etc/tarn/bench"
"""Folder of the spec of a contender: at the service's own, Compose's mount would hide it."""
LOOK_S = 0.5
WARM_UP = 20_000
WORKERS_MAX = 3
"""Workers of Kafka Connect that are started for a topic until one of them reads."""
OURS = {"ingest": "librdkafka", "ingest-kafka-python": "kafka-python"}
"""Contender -> the Kafka client that reads for it."""
CONTENDERS = (*OURS, "spark", "connect", "loop")
NAMES = {
    "ingest": "Tarn's ingest (librdkafka)",
    "ingest-kafka-python": "Tarn's ingest (kafka-python)",
    "spark": "Spark Structured Streaming, one batch",
    "connect": "Iceberg's sink of Kafka Connect",
    "loop": "a loop of librdkafka, orjson and pyiceberg",
}
ABOUT = """One topic of 4 partitions per size, filled before and read whole by each contender into a
table of its own, in turns that rotate; 2 % of the messages are bad. The table has partition and offset
of each row (ingest: `_tarn`). The stack has no other work, but broker, store and catalog share the
machine's cores with whoever reads. A time counts only if the table holds the right number of rows and
the right sum of their ids; a peer's that does not is left out, and the number of its rounds stated.

- *Ingest* waits frozen until its turn, in a container of its own; its time is from its thaw to its last
  commit. It keeps each bad message as a dead letter; Spark and the loop drop them.
- *Spark* is warm: the server runs, and has read another topic before; its time is that of the query,
  with `trigger(availableNow=True)`.
- *Iceberg's sink* (1.12) runs in a standalone worker of Kafka Connect 4.2, on the broker's version, with 2
  tasks, at most 10,000 messages a poll, and a commit begun each second as the loop's (its own default is 5
  minutes). `offset.flush.interval.ms` is a second too: at its default of a minute, tasks that have read all
  wait so long for more before they take part in a commit. The worker has a container of its own for each
  topic and is warm: it has read another topic before. Its time is from the connector's creation, which
  includes the start of its tasks, to its last commit; the largest heap is 1 GiB, as Spark's. Messages
  that are no JSON go to a dead letter topic (`errors.tolerance=all`), some twice, as the second task's start
  makes both begin again; those without the required `id` would end a task, so its routing drops them. Columns
  `partition` and `offset` are Kafka's `InsertField`.
- *The loop* appends every 100,000 rows or every second, as a person would write it. Its time begins
  behind its imports.

Processor time is that of the contender's own container (of the process, for the loop), not of broker,
store and catalog. Median of the rounds, then the smallest and the largest.
"""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        rounds: number of rounds; in each one every contender reads every size.
        mib: size of each topic, in MiB.
    """

    rounds: int = 3
    mib: int = 200

    def small(self) -> Options:
        """The same with everything small: whether it works, not what it costs."""
        return replace(self, rounds=1, mib=4)

    def words(self) -> str:
        """The options of the command that measures this."""
        return f"--rounds {self.rounds} --mib {self.mib}"

    def topics(self) -> dict[int, int]:
        """Bytes of a message -> number of messages."""
        return {size: (self.mib << 20) // size for size in (200, 1_700)}


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    text = "the same topics by ingest, Spark, Kafka Connect and a plain loop, on a stack of its own"
    command = Adder(verbs, "peers", text, Options)
    command.number("rounds", int, "how often to measure")
    command.number("mib", int, "of each topic")


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(rounds=found.rounds, mib=found.mib)
    require(
        1 <= numbers.rounds <= 100 and 1 <= numbers.mib <= 1_000,
        numbers,
        "give 1 to 100 rounds and 1 to 1,000 MiB",
    )
    return asked(numbers, found)


@dataclass(frozen=True)
class Frozen:
    """A paused container.

    Attributes:
        container: its name.
        cpu_s: CPU time that it had used when it was paused, in seconds.
    """

    container: str
    cpu_s: float


def measure(options: Options) -> list[dict[str, Any]]:
    """The results of all rounds.

    Raises:
        StopError: the stack does not start, or a table is not what it must be.
    """
    runs = []
    with own_stack(profile="full") as own, tempfile.TemporaryDirectory() as folder:
        own.compose("stop", "trino", "jupyter", "pipeline", "ingest", timeout_s=180)
        Path(folder).chmod(0o755)
        line("building Kafka Connect with Iceberg's sink")
        with sink.image(own):
            line("warming up")  # Spark compiles what it runs while it reads.
            verb(own, "create", topic="warm-up")
            warm = verb(own, "produce", topic="warm-up", count=WARM_UP, size=200)
            verb(own, "spark", topic="warm-up", table="bench.warm_up")
            for turn in range(options.rounds):
                line(f"round {turn + 1} of {options.rounds}")
                run = {}
                for size, count in options.topics().items():
                    sizes = {"size": size, "count": count, "turn": turn, "warm_rows": warm["rows"]}
                    run[str(size)] = one_topic(own, Path(folder), **sizes)
                runs.append(run)
    return runs


def one_topic(own: Own, folder: Path, *, size: int, count: int, turn: int, warm_rows: int) -> dict[str, Any]:
    """Fill a topic and have every contender read it.

    Args:
        own: the stack.
        folder: where specs are written.
        size: bytes of a message.
        count: number of messages.
        turn: number of the round, from 0.
        warm_rows: rows of the topic `warm-up`.

    Raises:
        StopError: ingest did not end, or its table is wrong. A peer of which that is so is left out.
    """
    topic = f"bench-{size}-{turn}"
    verb(own, "create", topic=topic)
    found: dict[str, Any] = {}
    with ExitStack() as held:
        ours = {
            name: held.enter_context(_frozen_ingest(own, folder / f"{name}-{topic}", name, topic))
            for name in OURS
        }
        connect = held.enter_context(_warm_sink(own, f"bench.warm_up_{size}_{turn}", warm_rows))
        wanted = verb(own, "produce", topic=topic, count=count, size=size)
        line(f"    {size} bytes: {count:,} messages wait")
        for name in rotated(CONTENDERS, turn):
            if name == "connect" and connect is None:
                continue
            table = f"bench.{name.replace('-', '_')}_{size}_{turn}"
            try:
                if name in ours:
                    result = _thawed(ours[name], f"{name}-{size}-{turn}", count)
                else:
                    result = _read(own, name, topic, table, wanted["rows"], connect or "")
                _require_equal(verb(own, "count", table=table), wanted, name)
            except StopError as e:
                if name in ours:
                    raise
                line(f"    {size} bytes, {name}: not counted: {e}")
                continue
            found[name] = {
                **result,
                "rows_per_s": wanted["rows"] / result["seconds"],
                "mb_per_s": wanted["bytes"] / 1e6 / result["seconds"],
                "rows_per_cpu_s": wanted["rows"] / result["cpu_s"],
            }
            line(f"    {size} bytes, {name}: {found[name]['rows_per_s']:,.0f} rows/s")
    found["messages"], found["bytes"], found["rows"] = count, wanted["bytes"], wanted["rows"]
    return found


def _read(own: Own, name: str, topic: str, table: str, rows: int, connect: str) -> dict[str, Any]:
    """What it cost a peer to read a topic.

    Args:
        own: the stack.
        name: name of the peer.
        topic: the topic.
        table: name of the table.
        rows: the rows that it should have then.
        connect: container of the worker of Kafka Connect.

    Raises:
        StopError: it did not end.
    """
    if name == "loop":
        return verb(own, "loop", topic=topic, table=table)
    if name == "spark":
        container, options = f"{own.env['COMPOSE_PROJECT_NAME']}-spark-1", {}
    else:
        container, options = connect, {"rows": rows}
    before = _cpu_s(container)
    result = verb(own, "spark" if name == "spark" else "sink", topic=topic, table=table, **options)
    result["cpu_s"] = _cpu_s(container) - before
    if name == "connect":
        result["memory_peak_mib"] = _peak_mib(container)
    return result


def _require_equal(table_has: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> None:
    """Require that a contender's table has the right rows.

    Raises:
        StopError: it has not.
    """
    if table_has != {"rows": wanted["rows"], "sum": wanted["sum"]}:
        raise StopError(f"{name} made {table_has} of {wanted}", "its time does not count; " + FIX)


@contextmanager
def _warm_sink(own: Own, table: str, rows: int) -> Iterator[str | None]:
    """A worker of Kafka Connect that has read another topic; None if none of several did."""
    for number in range(WORKERS_MAX):
        with sink.worker(own) as container:
            try:
                verb(own, "sink", topic="warm-up", table=f"{table}_{number}", rows=rows)
            except StopError as e:
                sink.keep_words(container)
                line(f"    worker {number + 1} of Kafka Connect: {e}")
            else:
                yield container
                return
    yield None


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names in the order of a round: each is first in its turn. Pure."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def verb(own: Own, name: str, **options: object) -> dict[str, Any]:
    """Run a command of VERBS inside the Compose network and return its JSON result."""
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    run = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "cli", "-m", VERBS)
    answer = own.compose(*run, name, *words, timeout_s=VERB_TIMEOUT_S)
    found = json.loads(answer.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def events_spec(stream: str, topic: str, table: str, batching: str = "{}") -> str:
    """The spec of an ingestor of the benchmarks' messages into a table of the namespace `bench`. Pure."""
    return f"""apiVersion: tarn/v1
kind: Ingestor
metadata: {{name: {stream}}}
spec:
  source: {{kafka: {{topic: {topic}}}}}
  table: {{namespace: bench, name: {table}}}
  schema:
    fields:
      - {{name: id, type: long, required: true}}
      - {{name: at, type: timestamptz}}
      - {{name: carrier, type: string}}
      - {{name: delay, type: double}}
      - {{name: text, type: string}}
  batching: {batching}
  deadLetters: {{table: {{namespace: bench, name: {table}_letters}}}}
"""


def spec(name: str, topic: str, size_turn: str) -> str:
    """The spec of one of our contenders. Pure."""
    table = f"{name.replace('-', '_')}_{size_turn}"
    return events_spec(f"{name}-{size_turn.replace('_', '-')}", topic, table)


@contextmanager
def ingest_of(own: Own, folder: Path, name: str, spec_text: str, **env: str) -> Iterator[str]:
    """An ingest service of one spec in a container of its own, once its ingestor runs; yields its name.

    Args:
        own: the stack.
        folder: a new folder for the spec.
        name: suffix of the container's name.
        spec_text: the spec.
        env: further environment of the service.

    Raises:
        StopError: the ingestor does not run within `START_S_MAX`.
    """
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "spec.yaml").write_text(spec_text)
    container = f"{own.env['COMPOSE_PROJECT_NAME']}-{name}"
    words: tuple[str, ...] = ("run", "--detach", "--no-deps", "--use-aliases", "--name", container)
    words += ("--volume", f"{folder}:{SPECS}:ro")
    for key, value in {
        "TARN_SPECS_DIR": SPECS,
        "TARN_INGEST_SPECS": "folder",
        "TARN_TRAIL": "off",
        **env,
    }.items():
        words += ("--env", f"{key}={value}")
    try:
        own.compose(*words, "ingest")
        _await(lambda: _running(container), f"{name} is running", START_S_MAX)
        yield container
    except BaseException:
        said = shell.capture(["docker", "logs", "--tail", "500", container], timeout_s=60)
        keep_said(f"{container}:\n{said.out}{said.err}")
        raise
    finally:
        shell.capture(["docker", "rm", "--force", container], timeout_s=60)


@contextmanager
def _frozen_ingest(own: Own, folder: Path, name: str, topic: str) -> Iterator[Frozen]:
    """An ingest service of one contender, frozen as soon as it waits for messages."""
    text = spec(name, topic, topic.removeprefix("bench-").replace("-", "_"))
    with ingest_of(own, folder, name, text, TARN_INGEST_KAFKA_CLIENT=OURS[name]) as container:
        cpu_s = _cpu_s(container)  # nothing can be run in a paused container
        docker("pause", container)
        yield Frozen(container=container, cpu_s=cpu_s)


def _thawed(frozen: Frozen, ingestor: str, count: int) -> dict[str, Any]:
    """Thaw a frozen ingest until it has committed every message.

    Raises:
        StopError: it has not after `DRAIN_S_MAX`.
    """
    container, began = frozen.container, time.time()
    docker("unpause", container)
    commits: list[dict[str, Any]] = []

    def done() -> bool:
        said = docker("logs", container)
        commits[:] = parse_commits(said, began, ingestor)
        return sum(int(each["rows"]) + int(each["bad"]) for each in commits) >= count

    _await(done, f"{container} has read {count:,} messages", DRAIN_S_MAX)
    cpu = _cpu_s(container) - frozen.cpu_s
    peak = _peak_mib(container)
    docker("pause", container)
    return {
        "seconds": commits[-1]["at_unix"] - began,
        "cpu_s": cpu,
        "memory_peak_mib": peak,
        "commits": len(commits),
    }


def _await(holds: Callable[[], bool], what: str, seconds_max: float) -> None:
    until = time.monotonic() + seconds_max
    while not holds():
        if time.monotonic() > until:
            raise StopError(f"not within {seconds_max:g} s: {what}", FIX)
        time.sleep(LOOK_S)


def _running(container: str) -> bool:
    return "ingestor runs" in docker("logs", container)


def _cpu_s(container: str) -> float:
    """CPU time used by a container since it started, in seconds."""
    return parse_cpu(docker("exec", container, "sh", "-c", CPU))


def _peak_mib(container: str) -> float:
    """Peak memory of a container since it started, in MiB."""
    return int(docker("exec", container, "sh", "-c", PEAK)) / (1 << 20)


def docker(*words: str) -> str:
    """Run docker and return what it printed.

    Raises:
        StopError: it failed.
    """
    found = shell.capture(["docker", *words], timeout_s=60)
    if found.code != 0:
        raise StopError(f"docker {' '.join(words)}: {found.err.strip()[-300:]}", FIX)
    return found.out + found.err


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section about a set of runs."""
    parts = [ABOUT]
    for size in runs[0]:
        first = runs[0][size]
        parts.append(
            f"\n| {first['messages']:,} messages of {int(size):,} bytes ({first['bytes'] / 1e6:,.0f} MB) "
            "| rows/s | MB/s | rows per CPU-second | beside Tarn's, per CPU-second | memory, MiB |\n"
            "|---|---|---|---|---|---|\n"
        )
        for name in CONTENDERS:
            having = [run for run in runs if name in run[size]]
            if not having:
                parts.append(f"| {NAMES[name]} | not measured | | | | |\n")
                continue
            each = [run[size][name] for run in having]
            ratios = [
                run[size][name]["rows_per_cpu_s"] / run[size]["ingest"]["rows_per_cpu_s"] for run in having
            ]
            rounds = "" if len(having) == len(runs) else f", {len(having)} of {len(runs)} rounds"
            memory = [one["memory_peak_mib"] for one in each if "memory_peak_mib" in one]
            parts.append(
                f"| {NAMES[name]}{rounds} | {spread([one['rows_per_s'] for one in each], ',.0f')} "
                f"| {spread([one['mb_per_s'] for one in each], ',.1f')} "
                f"| {spread([one['rows_per_cpu_s'] for one in each], ',.0f')} "
                f"| {spread(ratios, '.2f')} "
                f"| {spread(memory, ',.0f') if memory else 'not measured'} |\n"
            )
    return "".join(parts)
