"""Health of ingest: see services/tarn/probe/runner.py for how it is run.

The service itself checks its store, its catalog and Kafka every five seconds with its own keys, and the
heartbeat of every ingestor; the shallow check reads the results, and that no ingestor lags without progress.
The deep check adds a write with the service's own key.
"""

from __future__ import annotations

import json
import os

from tarn.probe.look import OWN_NAME, http, own_host, require_well

SERVICE = "ingest"
ADDRESS = f"{own_host('TARN_INGEST_LISTEN')}:{os.environ.get('TARN_INGEST_PORT', '8091')}"
SHALLOW_BUDGET_S = 5.0
DEEP_BUDGET_S = 25.0


def alive() -> None:
    """Require that the service responds, and that no ingestor hangs while all dependencies respond.

    Raises:
        RuntimeError: no response, or the ingestors that hang.
    """
    _, _, body = http("GET", ADDRESS, "/health", headers=OWN_NAME, timeout_s=4.0)
    try:
        hanging = list(json.loads(body)["hanging"])
    except (ValueError, KeyError, TypeError):
        return
    if hanging:
        raise RuntimeError("; ".join(hanging))


def shallow() -> None:
    """Require that the service responds, can work and makes progress; raises RuntimeError otherwise."""
    require_well(ADDRESS, "/health?lag", timeout_s=4.0)


def deep() -> None:
    """Require that every running ingestor progresses, and that the service's key may write table files."""
    require_well(ADDRESS, "/health?deep", timeout_s=20.0)
