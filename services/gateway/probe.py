"""Health of the gateway: see services/tarn/probe/runner.py for how it is run.

The service itself asks its store and its catalog every five seconds, with its own keys; the shallow check
reads the results. The deep check adds a write with the service's own key. No table of users is written to.
"""

from __future__ import annotations

import os

from tarn.probe.look import OWN_NAME, http, own_host, require_well

SERVICE = "gateway"
ADDRESS = f"{own_host('TARN_GATEWAY_LISTEN')}:{os.environ.get('TARN_GATEWAY_PORT', '8090')}"
SHALLOW_BUDGET_S = 5.0
DEEP_BUDGET_S = 25.0


def alive() -> None:
    """Require that the service responds, whatever it says.

    Raises:
        RuntimeError: no response.
    """
    http("GET", ADDRESS, "/health", headers=OWN_NAME, timeout_s=4.0)


def shallow() -> None:
    """Require that the service responds and can use its store and catalog; raises RuntimeError otherwise."""
    require_well(ADDRESS, "/health?ready", timeout_s=4.0)


def deep() -> None:
    """Require in addition that the service's key may write table files."""
    require_well(ADDRESS, "/health?deep", timeout_s=20.0)
