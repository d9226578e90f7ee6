"""Health of ingest: see services/tarn/probe/runner.py for how it is run.

The service itself looks at its store, its catalog and Kafka every five seconds with its own keys, and at the
pulse of every ingestor; the shallow look reads what it found, and that no ingestor lags without getting on.
The deep look adds a write with the service's own key.
"""

from __future__ import annotations

import json
import os

from tarn.probe.look import http, own_host

SERVICE = "ingest"
ADDRESS = f"{own_host('TARN_INGEST_LISTEN')}:{os.environ.get('TARN_INGEST_PORT', '8091')}"
HOST = {"host": "localhost"}  # the one kind of name that the service answers to
SHALLOW_BUDGET_S = 5.0
DEEP_BUDGET_S = 25.0


def alive() -> None:
    """The service answers, and none of its ingestors hangs while all that it needs answers.

    Raises:
        RuntimeError: no answer, or the ingestors that hang.
    """
    _, _, body = http("GET", ADDRESS, "/health", headers=HOST, timeout_s=4.0)
    try:
        hanging = list(json.loads(body)["hanging"])
    except (ValueError, KeyError, TypeError):
        return
    if hanging:
        raise RuntimeError("; ".join(hanging))


def shallow() -> None:
    """Raises if the service answers that it cannot do its work or does not get on, or does not answer."""
    _require("/health?lag", timeout_s=4.0)


def deep() -> None:
    """Raises unless every running ingestor gets on, and this service's key may write where tables are."""
    _require("/health?deep", timeout_s=20.0)


def _require(path: str, *, timeout_s: float) -> None:
    status, _, body = http("GET", ADDRESS, path, headers=HOST, timeout_s=timeout_s)
    if status == 200:
        return
    try:
        faults = "; ".join(json.loads(body)["faults"])
    except (ValueError, KeyError, TypeError):
        faults = body[:200].decode("utf-8", "replace")
    raise RuntimeError(f"status {status}: {faults}")
