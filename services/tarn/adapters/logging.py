"""Logs as JSON lines on stdout, each beginning with timestamp, level, event, service and logger."""

from __future__ import annotations

import logging
import sys

import structlog

KEYS = ("timestamp", "level", "event", "service", "logger")


def configure(level: str = "info", *, service: str | None = None) -> None:
    """Send structlog and standard library logging to stdout, one JSON object per line.

    Args:
        level: lowest level written: debug, info, warning or error.
        service: added to every line, including those of libraries.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if service is not None:
        shared.append(_bind_service(service))
    written: list[structlog.typing.Processor] = [_in_order, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *written],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *written],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    structlog.contextvars.clear_contextvars()


def to_stderr() -> None:
    """Send warnings and errors to stderr: stdout belongs to the output of a command."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _bind_service(service: str) -> structlog.typing.Processor:
    def bind(
        _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        event.setdefault("service", service)
        return event

    return bind


def _in_order(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Order the keys: those common to all lines first, then the others as given."""
    first = {key: event[key] for key in KEYS if key in event}
    return {**first, **event}
