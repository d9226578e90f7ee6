"""Logging of the one-shot jobs."""

from __future__ import annotations

import structlog

from tarn.adapters.logging import configure as configure_logging
from tarn.core.errors import InvalidSettingError

LEVELS = ("debug", "info", "warning", "error")


def configure(service: str, level: str) -> structlog.typing.FilteringBoundLogger:
    """Configure logging for this process and return the service's logger.

    Raises:
        InvalidSettingError: the level is unknown.
    """
    if level not in LEVELS:
        raise InvalidSettingError(
            f"TARN_LOG_LEVEL is {level!r}; set it to one of {', '.join(LEVELS)}", level=level
        )
    configure_logging(level, service=service)
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return log
