"""Health of the pipeline: see services/tarn/probe/runner.py for how it is run.

The driver checks bronze through Spark every few seconds and writes a heartbeat each time: when, and what was
wrong. It also does after each commit, so a long cycle is healthy as long as it makes progress. Spark is
checked here as well: a query that waits for a frozen server would leave the last good heartbeat in place.
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
    """Require that the process is not stopped, and waits for Spark or wrote a heartbeat within ten minutes.

    Raises:
        RuntimeError: the process hangs.
    """
    check_runs()
    try:
        check_connect(spark_address(remote()), SPARK_TIMEOUT_S)
    except RuntimeError:
        return  # a driver that waits for Spark does not hang
    at_s, _ = read_beat(BEAT_PATH)
    if time.time() - at_s > HANGING_S_MIN:
        raise RuntimeError(f"no beat for {time.time() - at_s:.0f} s, while Spark answers")


def shallow() -> None:
    """Require that the last check of bronze is recent and succeeded, and that Spark responds.

    Raises:
        RuntimeError: one of these does not hold; the message says which.
    """
    check_runs()
    check_connect(spark_address(remote()), SPARK_TIMEOUT_S)
    check_beat(BEAT_PATH, now_s=time.time())


def deep() -> None:
    """Like `shallow`: what the driver does every few seconds is a real use already."""
    shallow()


def check_runs() -> None:
    """Require that no signal stopped the process, which would show in the heartbeat only much later.

    Raises:
        RuntimeError: the process is stopped.
    """
    process = main_process()
    if process is not None and stat_of(process)[0] == STOPPED:
        raise RuntimeError(f"process {process} is stopped")


def remote() -> str:
    """Address of Spark Connect, by this service's setting."""
    return os.environ.get("TARN_SPARK_REMOTE") or "sc://spark:15002"


def spark_address(address: str) -> tuple[str, int]:
    """Host and port of `sc://host:port/…`.

    Raises:
        RuntimeError: the text is not such an address.
    """
    parts = urlsplit(address)
    if parts.scheme != "sc" or not parts.hostname:
        raise RuntimeError(f"TARN_SPARK_REMOTE is '{address}'; write it like sc://host:port")
    return parts.hostname, parts.port or SPARK_PORT


def check_beat(path: Path, *, now_s: float) -> None:
    """Require a recent heartbeat without a fault.

    Raises:
        RuntimeError: no heartbeat yet, a fault, or one older than `BEAT_AGE_S_MAX` seconds.
    """
    at_s, fault = read_beat(path)
    if fault:
        raise RuntimeError(fault)
    if now_s - at_s > BEAT_AGE_S_MAX:
        raise RuntimeError(
            f"has not looked at bronze or committed for {now_s - at_s:.0f} s (limit {BEAT_AGE_S_MAX:.0f} s)"
        )


def read_beat(path: Path) -> tuple[float, str]:
    """(time of the driver's last check in seconds since the epoch, fault or "").

    Raises:
        RuntimeError: no heartbeat yet, or an unreadable one.
    """
    try:
        beat = json.loads(path.read_text(encoding="utf-8"))
        return float(beat["at"]), str(beat["fault"])
    except FileNotFoundError:
        raise RuntimeError("has not looked at bronze yet") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"{path} cannot be understood: {type(error).__name__}: {error}") from error
