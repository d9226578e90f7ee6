"""A client of the gateway whose requests fail as a test plans it."""

from __future__ import annotations

import threading

from tarn.client.writing import Client, Receipt
from tarn.core.errors import OutcomeUnknownError, TarnError, UnavailableError

LOST = OutcomeUnknownError("the answer is lost")
AWAY = UnavailableError("busy", retry_after_s=7.0)


class Planned:
    """A client whose requests fail as planned: before they are sent, or after their rows are in the table.

    Attributes:
        keys: key of each request.
        bodies: body of each request.
        gate: requests wait for it.
        arrived: counts requests, once each is at the gate.
    """

    def __init__(self, inner: Client, *plan: TarnError | None) -> None:
        self.inner = inner
        self.plan = list(plan)
        self.keys: list[str] = []
        self.bodies: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)

    def post(self, table: str, body: bytes, *, kind: str, key: str) -> Receipt:
        self.keys.append(key)
        self.bodies.append(body)
        error = self.plan.pop(0) if self.plan else None
        self.arrived.release()
        assert self.gate.wait(10)
        if isinstance(error, UnavailableError):
            raise error
        found = self.inner.post(table, body, kind=kind, key=key)
        if error is not None:
            raise error
        return found

    def close(self) -> None:
        self.inner.close()
