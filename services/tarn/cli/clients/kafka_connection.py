"""How the command line connects to Kafka."""

from __future__ import annotations

from tarn.adapters.kafka_client import KafkaConnection
from tarn.adapters.kafka_login import Login


def connection(bootstrap: str, login: Login, *, timeout_s: float) -> KafkaConnection:
    """The connection of a command whose requests may take this many seconds each.

    Args:
        bootstrap: `host:port`, several separated by commas.
        login: Kafka credentials.
        timeout_s: limit of each request, the first connection included.
    """
    timeout_ms = max(1, int(timeout_s * 1_000))
    return KafkaConnection(
        bootstrap=bootstrap,
        login=login,
        client_id="tarn-cli",
        request_timeout_ms=timeout_ms,
        bootstrap_timeout_ms=timeout_ms,
    )
