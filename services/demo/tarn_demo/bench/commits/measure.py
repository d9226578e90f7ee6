"""What `scripts/bench commit` measures: single commits by depth, many writers of one table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tarn.core.errors import DataError, UnavailableError
from tarn_demo.bench.commits.places import ROWS, Appended, Contender, Writer, rows_of
from tarn_demo.bench.commits.readers import reason
from tarn_demo.bench.figures import undisturbed

WARM_UP_COMMITS = 2
WARM_UP_S_MAX = 5.0
REFUSED_PAUSE_S = 0.05
END_S_MAX = 120.0
Clock = Callable[[], float]
Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Cell:
    """One contender at one depth.

    Attributes:
        contender: the contender.
        depth: number of commits that its table has seen.
        times_ms: per round, the milliseconds of each append.
        error: why it was given up; empty if it was not.
    """

    contender: Contender
    depth: int
    times_ms: list[list[float]] = field(default_factory=list)
    error: str = ""
    _writer: Writer | None = None

    @property
    def table(self) -> str:
        """Name of the table."""
        return f"depth_{self.depth}"

    def prepare(self, say: Say, *, clock: Clock = time.perf_counter) -> None:
        """Lay the history, and warm up."""
        began = clock()
        self.contender.lay(self.table, self.depth)
        self._writer = self.contender.open(self.table, 0, 1)
        warm = clock()
        for number in range(WARM_UP_COMMITS):
            if number == 0 or clock() - warm < WARM_UP_S_MAX:
                append_until_acked(self._writer, rows_of(number))
        say(f"    {self.contender.name}: {self.depth:,} commits laid in {clock() - began:.1f} s")

    def round(self, commits: int, *, seconds_max: float, clock: Clock = time.perf_counter) -> None:
        """Time so many appends, but none after the cell has taken so many seconds, except its first."""
        assert self._writer is not None
        batches = [rows_of(number) for number in range(commits)]
        times: list[float] = []
        self.times_ms.append(times)
        with undisturbed():
            for rows in batches:
                if self.spent_s >= seconds_max and self.times_ms[0]:
                    break
                began = clock()
                append_until_acked(self._writer, rows)
                times.append((clock() - began) * 1_000)

    @property
    def spent_s(self) -> float:
        """Seconds that the timed appends took."""
        return sum(map(sum, self.times_ms)) / 1_000

    def result(self) -> dict[str, Any]:
        """The result, with what the table is like after the last append."""
        facts = self.contender.facts(self.table)
        return {
            "contender": self.contender.name,
            "depth": self.depth,
            "snapshots": facts.snapshots,
            "metadata_bytes": facts.metadata_bytes,
            "times_ms": [[round(ms, 3) for ms in one] for one in self.times_ms],
        }


def append_until_acked(writer: Writer, rows: pa.Table) -> None:
    """Append rows, however often it has to be asked; for a table with one writer.

    Raises:
        UnavailableError: it is refused again and again.
    """
    until = time.monotonic() + END_S_MAX
    while not writer.append(rows).acked:
        if time.monotonic() > until:
            raise UnavailableError(f"an append was refused for {END_S_MAX:.0f} s by a table with one writer")
        time.sleep(REFUSED_PAUSE_S)


def by_depth(
    contenders: Sequence[Contender],
    depth: int,
    *,
    commits: int,
    rounds: int,
    cell_s_max: float,
    say: Say,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Time appends of every contender at one depth, in rounds; each round begins with another contender.

    Args:
        contenders: the contenders.
        depth: number of commits that the tables have seen.
        commits: number of timed commits of each.
        rounds: number of rounds that they are divided into.
        cell_s_max: seconds of timed appends after which a contender is not timed further at this depth.
        say: prints progress.

    Returns:
        The results, and contender -> why it has none.
    """
    cells, failed = [], {}
    for contender in contenders:
        cell = Cell(contender=contender, depth=depth)
        try:
            cell.prepare(say)
        except Exception as e:  # noqa: BLE001 - a peer's own errors: the others are still measured
            failed[contender.name] = reason(e)
            say(f"    {contender.name} is left out: {failed[contender.name]}")
            continue
        cells.append(cell)
    for turn, share in enumerate(shares(commits, rounds)):
        for cell in turned(cells, turn):
            if not cell.error and (turn == 0 or cell.spent_s < cell_s_max):
                try:
                    cell.round(share, seconds_max=cell_s_max)
                except Exception as e:  # noqa: BLE001 - as above
                    cell.error = reason(e)
    results = []
    for cell in cells:
        if cell.error:
            failed[cell.contender.name] = cell.error
            continue
        results.append(cell.result())
        middle = sorted(ms for one in cell.times_ms for ms in one)
        say(f"    {cell.contender.name}: p50 {middle[(len(middle) - 1) // 2]:.1f} ms of {len(middle)}")
    return results, failed


def aging(
    contender: Contender, depth: int, *, commits: int, rounds: int, clock: Clock = time.perf_counter
) -> dict[str, Any]:
    """Time appends to a new table and to one that has seen many, each after the other, without the others.

    The cells of `by_depth` are far apart in time, with the others' large files on their way to the disk.

    Args:
        contender: the contender; its table of this depth is laid.
        depth: number of commits that the aged table has seen.
        commits: number of timed commits of each.
        rounds: number of rounds that they are divided into, each with another new table.
        clock: monotonic time in seconds.
    """
    aged = contender.open(f"depth_{depth}", 0, 1)
    append_until_acked(aged, rows_of(0))
    found: dict[str, list[list[float]]] = {"young_ms": [], "aged_ms": []}
    for turn, share in enumerate(shares(commits, rounds)):
        contender.lay(f"young_{turn}", 0)
        young = contender.open(f"young_{turn}", 0, 1)
        for number in range(WARM_UP_COMMITS):
            append_until_acked(young, rows_of(number))
        pair = (("young_ms", young), ("aged_ms", aged))
        for times in found.values():
            times.append([])
        with undisturbed():
            for number in range(share):
                rows = rows_of(number)
                for name, writer in pair if number % 2 else reversed(pair):
                    began = clock()
                    append_until_acked(writer, rows)
                    found[name][-1].append(round((clock() - began) * 1_000, 3))
    return {"depth": depth, **found}


def shares(commits: int, rounds: int) -> list[int]:
    """The number of commits of each round: as equal as can be, none empty. Pure."""
    used = max(1, min(rounds, commits))
    return [commits // used + (place < commits % used) for place in range(used)]


def turned(cells: Sequence[Cell], turn: int) -> list[Cell]:
    """The cells beginning with another one each turn. Pure."""
    at = turn % len(cells) if cells else 0
    return [*cells[at:], *cells[:at]]


@dataclass(slots=True, kw_only=True)
class Tally:
    """What one of many writers did.

    Attributes:
        acked: appends that the contender says are in the table.
        conflicts: attempts overtaken by another writer.
        refused: attempts refused otherwise.
        unknown: appends of unknown outcome.
        end: monotonic time of its last end.
        error: why it stopped early; empty if it did not.
    """

    acked: int = 0
    conflicts: int = 0
    refused: int = 0
    unknown: int = 0
    end: float = 0.0
    error: str = ""

    def add(self, done: Appended) -> None:
        """Count one append."""
        self.acked += done.acked
        self.conflicts += done.conflicts
        self.refused += done.refused
        self.unknown += done.unknown


def contend(
    contender: Contender, table: str, writers: int, *, seconds: float, clock: Clock = time.monotonic
) -> dict[str, Any]:
    """Let many writers append to one table that has one commit, and count its rows afterwards.

    It is no empty table: Nessie 0.99, the last version on Maven Central, takes each of several first appends
    and keeps the last one only (projectnessie/nessie#10062), which says nothing of its other commits.

    Args:
        contender: the contender.
        table: name of the table.
        writers: number of writers, threads of this process.
        seconds: how long they begin new appends.
        clock: monotonic time in seconds.

    Raises:
        DataError: rows were lost or doubled on Tarn's catalog.
    """
    contender.create(table)
    append_until_acked(contender.open(table, 0, max(2, writers)), rows_of(writers))
    opened = [contender.open(table, number, max(2, writers)) for number in range(writers)]
    before = contender.facts(table).metadata_files
    tallies = [Tally() for _ in opened]
    start = threading.Barrier(writers + 1)
    until = [0.0]

    def work(writer: Writer, tally: Tally, number: int) -> None:
        rows = rows_of(number)
        start.wait()
        try:
            while clock() < until[0]:
                done = writer.append(rows)
                tally.add(done)
                tally.end = clock()
                if not done.acked:
                    time.sleep(REFUSED_PAUSE_S)
        except Exception as e:  # noqa: BLE001 - kept: it is part of the result
            tally.error = reason(e)
            tally.unknown += 1
            tally.end = clock()

    threads = [
        threading.Thread(target=work, args=(writer, tally, number), daemon=True)
        for number, (writer, tally) in enumerate(zip(opened, tallies, strict=True))
    ]
    for thread in threads:
        thread.start()
    began = clock()
    until[0] = began + seconds
    start.wait()
    for thread in threads:
        thread.join(timeout=seconds + END_S_MAX)
    if any(thread.is_alive() for thread in threads):
        raise UnavailableError(f"a writer of {contender.name} did not end within {END_S_MAX:.0f} s")
    took = max(tally.end for tally in tallies) - began
    found = tallied(tallies, took)
    rows = contender.rows(table) - ROWS
    found["wrong_rows"] = wrong_rows(rows, acked=found["acked"], unknown=found["unknown"])
    if found["wrong_rows"] and contender.on_tarn:
        raise DataError(
            f"{contender.name}: {rows:,} rows after {found['acked']:,} acknowledged appends of {ROWS:,} and "
            f"{found['unknown']} of unknown outcome: something was lost or doubled"
        )
    files = contender.facts(table).metadata_files - before
    return {"contender": contender.name, "writers": writers, **found, "rows": rows, "metadata_files": files}


def tallied(tallies: Sequence[Tally], seconds: float) -> dict[str, Any]:
    """The sums over all writers, and how evenly they were served. Pure.

    Args:
        tallies: what each writer did.
        seconds: from the start to the last end.
    """
    acked = [tally.acked for tally in tallies]
    return {
        "seconds": round(seconds, 3),
        "acked": sum(acked),
        "slowest": min(acked),
        "fastest": max(acked),
        "conflicts": sum(tally.conflicts for tally in tallies),
        "refused": sum(tally.refused for tally in tallies),
        "unknown": sum(tally.unknown for tally in tallies),
        "errors": sorted({tally.error for tally in tallies if tally.error}),
    }


def wrong_rows(rows: int, *, acked: int, unknown: int, each: int = ROWS) -> int:
    """How many rows the table has too few (negative) or too many; 0 if none. Pure.

    Args:
        rows: rows of the table.
        acked: appends that must be there once.
        unknown: appends that may be there once.
        each: rows of one append.
    """
    return min(0, rows - acked * each) or max(0, rows - (acked + unknown) * each)
