"""Health of the service stream: see services/tarn/probe/runner.py for how it is run.

The service itself asks Kafka for the end of its topic every five seconds, with its own login, and notes
when a partition stops while its log goes on; the checks read the results. What it does is a real use
already.
"""

from __future__ import annotations

import os

from tarn.probe.look import http, own_host, require_works

SERVICE = "stream"
ADDRESS = f"{own_host('TARN_STREAM_LISTEN')}:{os.environ.get('TARN_STREAM_PORT', '8092')}"
HOST = {"host": "localhost"}  # the one kind of name that the service answers to
SHALLOW_BUDGET_S = 5.0


def alive() -> None:
    """Require that the service responds, whatever it says.

    Raises:
        RuntimeError: no response.
    """
    http("GET", ADDRESS, "/health", headers=HOST, timeout_s=4.0)


def shallow() -> None:
    """Require that the service responds, that Kafka answers it, and that its partitions go on.

    Raises:
        RuntimeError: one of these does not hold; the message says which.
    """
    require_works(ADDRESS, "/health", timeout_s=4.0)


def deep() -> None:
    """Like `shallow`."""
    shallow()
