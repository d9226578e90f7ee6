"""scripts/bench fresh: how old a message is when a reader sees its row."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.bench import peers, soak_look
from tarn_host.bench.history import good_of
from tarn_host.bench.ingest import FIX, Own, own_stack
from tarn_host.bench.ingest_page import spread
from tarn_host.bench.options import Adder, Verbs, asked, rates, require, shown
from tarn_host.console import StopError, line
from tarn_host.stack.project import ROOT

VERBS = "tarn_demo.bench.fresh"
AGE_S_PER_COMMIT, AGE_S_MIN = 0.54, 600.0
"""How long a table may take to age: ten times the time that its ingestor waits between commits."""
VERB_S_MAX = 24 * 3_600
SENT_SHARE_MIN = 0.95
"""Of the rate that was asked for: a producer that was slower did not show what is aimed at."""
AGE_RATE = 1_000.0
WRITERS, RECORDS, SIZE = 5, 20_000, 1_700
"""The writers' experiment: so many, with so many messages of so many bytes each in a round."""
TABLE = "bench.writers"
P95_MS_MAX, AT_RATE = 1_500.0, 10_000.0
SLOWER_MAX = 1.1
LATENCY_S = 1.0
ABOUT = """Messages of 200 bytes (2 % bad) into a table of its own per rate, from a topic of 4 partitions,
by an ingest service of its own at its default batching; {seconds:g} s each, after 5 s that are not counted.
Two readers look meanwhile: one asks the catalog 20 times a second which offsets the table holds, the other
is Trino, which reads the newest rows of the table in query after query. The age is from the time stamp that
the producer gives a message to the arrival of the first answer with its row, and counts only if the table has
every good message once. Producer, readers, broker,
store and engines share the machine's cores.

*Writers*: {writers} producers send {records:,} messages of {size:,} bytes each at once, as fast as the broker
takes them; Trino counts the table again and again. The time is from the first message to the answer with
the last row. Then the table is aged: small messages are committed every 0.05 s until it has seen
{commits:,} commits, and the rounds are sent again.
"""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        rates: messages per second, one table each.
        seconds: duration of each rate.
        rounds: rounds of the writers before and after the table is aged; 0 leaves them out.
        commits: commits that the table has seen at its second rounds.
    """

    rates: tuple[float, ...] = (1_000, 10_000, 50_000)
    seconds: float = 60
    rounds: int = 5
    commits: int = 10_000

    def small(self) -> Options:
        """The same with everything small: whether it works, not what it costs."""
        return replace(self, rates=(500,), seconds=5, rounds=min(1, self.rounds), commits=20)

    def words(self) -> str:
        """The options of the command that measures this."""
        rates = f"--rates {shown(self.rates)} --seconds {self.seconds:g}"
        return f"{rates} --rounds {self.rounds} --commits {self.commits}"


def add(verbs: Verbs) -> None:
    """Add the command to the parser of scripts/bench."""
    command = Adder(verbs, "fresh", "age of messages when Trino reads them, on a stack of its own", Options)
    command.number("rates", rates, "messages a second")
    command.number("seconds", float, "of each rate")
    command.number("rounds", int, "of the writers, before and after; 0: none")
    command.number("commits", int, "that age the writers' table")


def options_of(found: argparse.Namespace) -> Options:
    """The sizes that the command line asks for.

    Raises:
        StopError: one is out of range.
    """
    numbers = Options(
        rates=tuple(sorted(set(found.rates))),
        seconds=found.seconds,
        rounds=found.rounds,
        commits=found.commits,
    )
    require(
        all(1 <= rate <= 100_000 for rate in numbers.rates)
        and 1 <= numbers.seconds <= 600
        and 0 <= numbers.rounds <= 100
        and 1 <= numbers.commits <= 100_000,
        numbers,
        "give rates of 1 to 100,000, 1 to 600 seconds, at most 100 rounds and 1 to 100,000 commits",
    )
    return asked(numbers, found)


def measure(options: Options) -> list[dict[str, Any]]:
    """The results, as one entry.

    Raises:
        StopError: the stack does not start, or a reader did not see every row.
    """
    with own_stack(profile="full") as own, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        own.compose("stop", "spark", "jupyter", "pipeline", "ingest", timeout_s=180)
        rates = [_at_rate(own, folder, rate, options.seconds) for rate in options.rates]
        rounds = _writers(own, folder, options) if options.rounds else {}
    return [{"options": vars(options), "rates": rates, **rounds}]


def _at_rate(own: Own, folder: Path, rate: float, seconds: float) -> dict[str, Any]:
    stream = f"fresh-{rate:g}"
    table = f"fresh_{rate:g}"
    peers.verb(own, "create", topic=stream)
    with peers.ingest_of(own, folder / stream, stream, peers.events_spec(stream, stream, table)):
        found = _verb(own, "rate", stream, f"bench.{table}", rate=rate, seconds=seconds)[-1]
    ages = f"{_shares(found['trino'])} in Trino, {_shares(found['catalog'])} in the catalog"
    line(f"    {rate:,.0f} a second: {ages}")
    return found


def _writers(own: Own, folder: Path, options: Options) -> dict[str, Any]:
    stream, name = "writers", TABLE.rpartition(".")[2]
    peers.verb(own, "create", topic=stream)
    sizes = {"writers": WRITERS, "records": RECORDS, "size": SIZE, "rounds": options.rounds + 1}
    found: dict[str, Any] = {}
    for part in ("young", "aged"):
        if part == "aged":
            fast = peers.events_spec(stream, stream, name, "{maxLatencySeconds: 0.05}")
            with peers.ingest_of(own, folder / "fast", "fast", fast):
                found["history"] = _verb(
                    own,
                    "age",
                    stream,
                    TABLE,
                    commits=options.commits,
                    rate=AGE_RATE,
                    **{"seconds-max": max(AGE_S_MIN, AGE_S_PER_COMMIT * options.commits)},
                )[-1]
            line(f"    {found['history']['commits']:,} commits after {found['history']['seconds']:,} s")
        with peers.ingest_of(own, folder / part, part, peers.events_spec(stream, stream, name)):
            found[part] = _verb(own, "rounds", stream, TABLE, **sizes)[1:]  # the first warms up
        if part == "aged":
            require_same(found)
        line(f"    {part}: {spread([each['visible_s'] for each in found[part]], '.2f')} s")
    return found


def _verb(own: Own, name: str, stream: str, table: str, **numbers: float) -> list[dict[str, Any]]:
    """Run a command of VERBS inside the Compose network; its JSON lines.

    Raises:
        StopError: it failed.
    """
    words = ["--topic", stream, "--stream", stream, "--table", table]
    words += [word for key, value in numbers.items() for word in (f"--{key}", f"{value:g}")]
    run = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "cli", "-m", VERBS)
    rows: list[dict[str, Any]] = []

    def heard(text: str) -> None:
        found = soak_look.parse_answers([text])
        rows.extend(found)
        if not found:
            line(f"    {text}")

    running = shell.Running(["docker", "compose", *run, name, *words], on_line=heard, env=own.env, cwd=ROOT)
    try:
        code = running.wait(VERB_S_MAX)
    finally:
        running.stop()
    if code != 0 or not rows:
        raise StopError(f"`{name}` ended with exit code {code}: {' / '.join(list(running.tail)[-3:])}", FIX)
    return rows


def require_same(found: Mapping[str, Any]) -> None:
    """Require that the aged rounds began with the rows of the young ones and of the aging, and no others.

    Raises:
        StopError: they did not.
    """
    young, aged = found["young"][-1], found["aged"][0]
    wanted = young["rows_before"] + young["messages"] + good_of(found["history"]["sent"])
    has = aged["rows_before"] - aged["messages"]  # those of the round that warmed up
    if has != wanted:
        raise StopError(f"{has:,} rows of {wanted:,} after the table was aged", "a bug: " + FIX)


def verdict(run: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """Each aim: whether it was met, and the figures. Pure."""
    found = []
    for each in run["rates"]:
        if each["rate"] == AT_RATE:
            slow = each["sent_per_s"] < SENT_SHARE_MIN * AT_RATE
            words = f"p95 at {AT_RATE:,.0f} a second: {each['trino']['p95_ms']:,} ms"
            words += f", of {each['sent_per_s']:,.0f} that were sent" if slow else ""
            found.append((each["trino"]["p95_ms"] <= P95_MS_MAX and not slow, words))
    if "aged" in run:
        for name, words in (
            ("visible_s", "a round until its last row is counted"),
            ("planning_ms", "planning"),
        ):
            was, now = (_median(run[part], name) for part in ("young", "aged"))
            found.append((now <= SLOWER_MAX * was, f"{words}, aged beside young: {now / was:.2f} times"))
    return found


def section(runs: Sequence[Mapping[str, Any]]) -> str:
    """The section about a run. Pure."""
    run = runs[0]
    parts = [
        ABOUT.format(
            seconds=run["options"]["seconds"],
            writers=WRITERS,
            records=RECORDS,
            size=SIZE,
            commits=run["options"]["commits"],
        ),
        "\n",
    ]
    parts += [f"- {'reached' if ok else '**missed**'}: {words}.\n" for ok, words in verdict(run)]
    parts.append(
        "\n| messages per second, asked | sent | Trino: p50, ms | p95 | p99 | oldest "
        "| catalog: p50, ms | p95 | p99 | oldest |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n"
    )
    for each in run["rates"]:
        cells = [f"{each[who][share]:,}" for who in ("trino", "catalog") for share in SHARES]
        parts.append(f"| {each['rate']:,.0f} | {each['sent_per_s']:,.0f} | " + " | ".join(cells) + " |\n")
    if "aged" in run:
        parts.append(
            "\n| rounds of writers | commits before | sent and acknowledged, s | last row counted, s "
            "| planning, ms | count, ms | data files |\n|---|---|---|---|---|---|---|\n"
        )
        for part in ("young", "aged"):
            rows = run[part]
            cells = [
                spread([row[name] for row in rows], form)
                for name, form in (
                    ("sent_s", ".2f"),
                    ("visible_s", ".2f"),
                    ("planning_ms", ",.0f"),
                    ("count_ms", ",.0f"),
                    ("files", ",.0f"),
                )
            ]
            parts.append(f"| {part} | {rows[0]['commits_before']:,} | " + " | ".join(cells) + " |\n")
    return "".join(parts)


SHARES = ("p50_ms", "p95_ms", "p99_ms", "max_ms")


def _shares(found: Mapping[str, Any]) -> str:
    return f"p50 {found['p50_ms']:,} and p95 {found['p95_ms']:,} ms"


def _median(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.median(float(row[name]) for row in rows)
