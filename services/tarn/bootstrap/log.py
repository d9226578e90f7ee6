"""Log lines of the one-shots: JSON on stdout, one object per line."""

from __future__ import annotations

import logging
import sys

import structlog

from tarn.core.errors import InvalidSettingError

LEVELS = ("debug", "info", "warning", "error")


def configure(service: str, level: str) -> structlog.typing.FilteringBoundLogger:
    """Set up logging for this process and return the service's logger.

    Raises:
        InvalidSettingError: no such level.
    """
    if level not in LEVELS:
        raise InvalidSettingError(
            f"TARN_LOG_LEVEL is {level!r}; set it to one of {', '.join(LEVELS)}", level=level
        )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stdout),
        cache_logger_on_first_use=False,
    )
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger().bind(service=service)
    return log
