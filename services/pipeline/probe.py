"""Health of the pipeline: see services/tarn/health.py for how it is run.

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

from tarn.health_spark import check_connect

BEAT_PATH = Path("/tmp/tarn-pipeline.json")  # noqa: S108 - the container's own tmpfs
BEAT_AGE_S_MAX = 90.0
SPARK_TIMEOUT_S = 3.0
SPARK_PORT = 15002


def shallow() -> None:
    """The last look at bronze went well and is not long ago, and Spark answers.

    Raises:
        RuntimeError: it is not so; the text says what.
    """
    check_connect(spark_address(os.environ.get("TARN_SPARK_REMOTE") or "sc://spark:15002"), SPARK_TIMEOUT_S)
    check_beat(BEAT_PATH, now_s=time.time())


def deep() -> None:
    """The same: what the driver does every few seconds is the real use already."""
    shallow()


def spark_address(remote: str) -> tuple[str, int]:
    """Host and port of `sc://host:port/…`.

    Raises:
        RuntimeError: it is no such address.
    """
    parts = urlsplit(remote)
    if parts.scheme != "sc" or not parts.hostname:
        raise RuntimeError(f"TARN_SPARK_REMOTE is '{remote}'; write it like sc://host:port")
    return parts.hostname, parts.port or SPARK_PORT


def check_beat(path: Path, *, now_s: float) -> None:
    """Reads what the driver left.

    Raises:
        RuntimeError: nothing yet, a fault, or a beat older than `BEAT_AGE_S_MAX` seconds.
    """
    try:
        beat = json.loads(path.read_text(encoding="utf-8"))
        at_s, fault = float(beat["at"]), str(beat["fault"])
    except FileNotFoundError:
        raise RuntimeError("has not looked at bronze yet") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"{path} cannot be understood: {type(error).__name__}: {error}") from error
    if fault:
        raise RuntimeError(fault)
    if now_s - at_s > BEAT_AGE_S_MAX:
        raise RuntimeError(
            f"has not looked at bronze or committed for {now_s - at_s:.0f} s (limit {BEAT_AGE_S_MAX:.0f} s)"
        )
