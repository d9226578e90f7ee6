"""How a process logs is a matter of one test: what a test configures is undone after it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog


def never_cached() -> None:
    """Let no logger keep the configuration of the test in which it was used first."""
    module: Any = structlog
    configure = module.configure
    if getattr(configure, "never_cached", False):
        return

    def without_cache(**config: Any) -> None:
        configure(**{**config, "cache_logger_on_first_use": False})

    without_cache.never_cached = True  # type: ignore[attr-defined]
    module.configure = without_cache


@contextmanager
def as_it_was() -> Iterator[None]:
    """Undo, at the end of the block, what changed how this process logs."""
    root, config = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in handlers:
            root.removeHandler(handler)
    root.setLevel(level)
    structlog.configure(**config)
