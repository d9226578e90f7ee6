"""Logging of the one-shot jobs."""

from __future__ import annotations

import structlog

from tarn.adapters.logging import configure as configure_logging


def configure(service: str, level: str) -> structlog.typing.FilteringBoundLogger:
    """Configure logging for this process and return the service's logger."""
    configure_logging(level, service=service)
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log
