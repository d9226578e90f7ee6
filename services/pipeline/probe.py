"""Health of the pipeline: see services/tarn/probe/runner.py for how it is run.

The driver looks at bronze by Spark every few seconds and leaves a beat each time: when, and what was wrong.
A beat is left after each commit too, so a long cycle counts as long as it gets on. Spark is greeted here as
well: a query that waits for a frozen server would leave the last good beat standing.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from urllib.parse import urlsplit

from tarn.probe.runner import main_process, stat_of
from tarn.probe.spark import check_connect

SERVICE = "pipeline"
BEAT_PATH = Path("/tmp/tarn-pipeline.json")  # noqa: S108 - the container's own tmpfs
BEAT_AGE_S_MAX = 90.0
HANGING_S_MIN = 600.0
STOPPED = "T"
SPARK_TIMEOUT_S = 3.0
SPARK_PORT = 15002


def alive() -> None:
    """The process is not stopped, and left a beat in the last ten minutes, unless it waits for Spark.

    Raises:
        RuntimeError: it hangs.
    """
    check_runs()
    try:
        check_connect(spark_address(remote()), SPARK_TIMEOUT_S)
    except RuntimeError:
        return  # whoever waits for Spark does not hang
    at_s, _ = read_beat(BEAT_PATH)
    if time.time() - at_s > HANGING_S_MIN:
        raise RuntimeError(f"no beat for {time.time() - at_s:.0f} s, while Spark answers")


def shallow() -> None:
    """The last look at bronze went well and is not long ago, and Spark answers.

    Raises:
        RuntimeError: it is not so; the text says what.
    """
    check_runs()
    check_connect(spark_address(remote()), SPARK_TIMEOUT_S)
    check_beat(BEAT_PATH, now_s=time.time())


def deep() -> None:
    """The same: what the driver does every few seconds is the real use already."""
    shallow()


def check_runs() -> None:
    """Raises RuntimeError if the process was stopped by a signal: it would leave no beat, but much later."""
    process = main_process()
    if process is not None and stat_of(process)[0] == STOPPED:
        raise RuntimeError(f"process {process} is stopped")


def remote() -> str:
    """Where Spark Connect is, as this service is set."""
    return os.environ.get("TARN_SPARK_REMOTE") or "sc://spark:15002"


def spark_address(address: str) -> tuple[str, int]:
    """Host and port of `sc://host:port/…`.

    Raises:
        RuntimeError: it is no such address.
    """
    parts = urlsplit(address)
    if parts.scheme != "sc" or not parts.hostname:
        raise RuntimeError(f"TARN_SPARK_REMOTE is '{address}'; write it like sc://host:port")
    return parts.hostname, parts.port or SPARK_PORT


def check_beat(path: Path, *, now_s: float) -> None:
    """Reads what the driver left.

    Raises:
        RuntimeError: nothing yet, a fault, or a beat older than `BEAT_AGE_S_MAX` seconds.
    """
    at_s, fault = read_beat(path)
    if fault:
        raise RuntimeError(fault)
    if now_s - at_s > BEAT_AGE_S_MAX:
        raise RuntimeError(
            f"has not looked at bronze or committed for {now_s - at_s:.0f} s (limit {BEAT_AGE_S_MAX:.0f} s)"
        )


def read_beat(path: Path) -> tuple[float, str]:
    """When the driver last looked (seconds since 1970), and what was wrong.

    Raises:
        RuntimeError: nothing yet, or nothing that can be understood.
    """
    try:
        beat = json.loads(path.read_text(encoding="utf-8"))
        return float(beat["at"]), str(beat["fault"])
    except FileNotFoundError:
        raise RuntimeError("has not looked at bronze yet") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"{path} cannot be understood: {type(error).__name__}: {error}") from error
