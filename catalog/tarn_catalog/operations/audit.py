"""The audit trail of one principal's request: a line in the log and a row for each change and refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from tarn.core.errors import OutcomeUnknownError, TarnError
from tarn.core.trail import TABLES as TRAIL_TABLES
from tarn_catalog.operations.access import Caller
from tarn_catalog.operations.rights import Operation
from tarn_catalog.operations.trail import Trail
from tarn_catalog.state.pointer import TABLE

log = structlog.get_logger()

TRAIL_WRITER = "ingest"
"""The service that makes tables of the trail."""
_TRAIL_TABLES = frozenset(f"{TABLE} {'.'.join(name)}" for name in TRAIL_TABLES)


class Audit:
    """What one caller does, for the audit trail.

    Args:
        caller: the principal.
        trail: what makes a table of it; None if nothing does.
        on: whether anything is logged at all.
    """

    def __init__(self, caller: Caller, trail: Trail | None, *, on: bool) -> None:
        self._caller = caller
        self._trail = trail
        self._on = on

    @contextmanager
    def change(self, operation: Operation, thing: str, **more: object) -> Iterator[None]:
        """Log the outcome of the change in the block: done, unknown, or failed with the type of the error."""
        try:
            yield
        except OutcomeUnknownError:
            self.log(operation, thing, outcome="unknown", **more)
            raise
        except TarnError as e:
            self.log(operation, thing, outcome="failed", error=type(e).__name__, **more)
            raise
        self.log(operation, thing, outcome="done", **more)

    def log(self, operation: Operation, thing: str, **more: object) -> None:
        """Log one event with the fields `more`, `outcome` among them."""
        if not self._on:
            return
        event = {
            "principal": self._caller.name,
            "client_id": self._caller.client_id,
            "action": operation.value,
            "object": thing,
            **more,
        }
        log.info("audit", **event)
        own = operation is Operation.COMMIT and thing in _TRAIL_TABLES and self._caller.name == TRAIL_WRITER
        # Each of ingest's own commits to them would cause the next.
        if self._trail is not None and not (own and more.get("outcome") == "done"):
            self._trail.audit(event)
