"""Logs as JSON lines on stdout."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: str = "info", *, service: str | None = None) -> None:
    """Send structlog and the standard library's logging to stdout as one JSON object per line.

    Args:
        level: debug, info, warning or error; nothing below it is written.
        service: added to every line.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    structlog.contextvars.clear_contextvars()
    if service is not None:
        structlog.configure(
            processors=[_bind_service(service), *shared, structlog.processors.JSONRenderer()],
            wrapper_class=structlog.make_filtering_bound_logger(number),
            logger_factory=structlog.PrintLoggerFactory(sys.stdout),
            cache_logger_on_first_use=True,
        )


def _bind_service(service: str) -> structlog.typing.Processor:
    def bind(
        _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event.setdefault("service", service)
        return event

    return bind
