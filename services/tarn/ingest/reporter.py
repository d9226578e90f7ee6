"""An ingestor's status: in the registry always, in the log when it changes."""

from __future__ import annotations

import structlog

from tarn.core.errors import TarnError, UnavailableError
from tarn.ingest.context import IngestContext
from tarn.ingest.status import State

log = structlog.get_logger()


class StatusReporter:
    """Tells how one ingestor is.

    Args:
        name: of the ingestor.
        context: its registry and clocks.
    """

    def __init__(self, name: str, context: IngestContext) -> None:
        self._name = name
        self._context = context
        self._told: tuple[State, str, str] | None = None

    def tell(self, state: State, error: TarnError | None = None) -> None:
        """Record the state, and log it when it changes."""
        reason = type(error).__name__.removesuffix("Error") if error is not None else ""
        message = error.message if error is not None else ""
        changes: dict[str, object] = {"state": state, "reason": reason, "message": message}
        changes["beat_s"] = self._context.clock()
        before, self._told = self._told, (state, reason, "" if state is State.WAITING else message)
        if before != self._told:
            changes["since_ms"] = self._context.ports.now_ms()
            if state is State.STOPPED:
                log.error("ingestor stopped", ingestor=self._name, reason=reason, message=message)
            elif state is State.WAITING:
                log.warning("ingestor waits", ingestor=self._name, reason=reason, message=message)
            else:
                log.info("ingestor runs", ingestor=self._name)
        self._context.registry.update(self._name, **changes)

    def tell_wait(self, reason: str) -> None:
        """Tells that something is waited for; how far the topic reaches meanwhile is not asked."""
        self._context.registry.update(self._name, measured=False)
        self.tell(State.WAITING, UnavailableError(reason))

    def tell_defect(self, error: Exception) -> None:
        """Tells that this ingestor failed in a way nobody foresaw."""
        message = f"{type(error).__name__}: {error}; a defect of Tarn, please report it"
        log.error("ingestor failed", ingestor=self._name, exc_info=error)
        self._told = (State.STOPPED, "Defect", message)
        self._context.registry.update(
            self._name,
            state=State.STOPPED,
            reason="Defect",
            message=message,
            since_ms=self._context.ports.now_ms(),
        )
