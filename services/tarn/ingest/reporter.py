"""Status of an ingestor: always in the registry, in the log on change."""

from __future__ import annotations

import structlog

from tarn.core.errors import TarnError, UnavailableError
from tarn.ingest.context import IngestContext
from tarn.ingest.status import State

log = structlog.get_logger()


class StatusReporter:
    """Reports the status of one ingestor.

    Args:
        name: name of the ingestor.
        context: provides the registry and the clocks.
    """

    def __init__(self, name: str, context: IngestContext) -> None:
        self._name = name
        self._context = context
        self._told: tuple[State, str, str] | None = None

    def tell(self, state: State, error: TarnError | None = None) -> None:
        """Record the state; log it if it changed."""
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
        """Record that the ingestor waits; the lag is unknown meanwhile."""
        self._context.registry.update(self._name, measured=False)
        self.tell(State.WAITING, UnavailableError(reason))

    def tell_defect(self, error: Exception) -> None:
        """Record and log an unexpected exception of this ingestor."""
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
