"""The transaction record: one small register value that decides the changes of several objects. Pure.

pending -> pending (renewed) -> committed | aborted. The swap to committed is the commit point (invariant I2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar

from tarn_catalog.state.value import RegisterValue, Rule


class RecordState(StrEnum):
    """The decision on a transaction."""

    PENDING = "pending"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(RegisterValue):
    """A transaction record; its uuid is that of the transaction.

    Stored as a JSON object with `format`, `transaction`, `state`, `keys`, `at-ms` and `nonce`.

    Attributes:
        state: the decision.
        keys: the keys of the participating objects, in order.
        at_ms: start of the transaction, milliseconds since the epoch.
    """

    NOUN: ClassVar[str] = "record"
    RULES: ClassVar[tuple[Rule, ...]] = (
        (
            "only its state changes",
            lambda before, after: replace(before, state=after.state, nonce=after.nonce) == after,
        ),
        (
            "it begins pending",
            lambda before, after: bool(before.nonce) or after.state is RecordState.PENDING,
        ),
        ("a decision is final", lambda before, _: before.state is RecordState.PENDING),
    )

    state: RecordState = RecordState.PENDING
    keys: tuple[str, ...]
    at_ms: int

    def before_first(self) -> Record:
        """See `RegisterValue`."""
        return replace(self, state=RecordState.PENDING, nonce="")

    def is_in(self, found: Record) -> bool:
        """See `RegisterValue`."""
        return found.uuid == self.uuid and self.state in (RecordState.PENDING, found.state)

    def to_json(self) -> dict[str, Any]:
        """See `RegisterValue`."""
        return {
            "transaction": self.uuid,
            "state": self.state.value,
            "keys": self.keys,
            "at-ms": self.at_ms,
            "nonce": self.nonce,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Record:
        """See `RegisterValue`."""
        return Record(
            uuid=value["transaction"],
            state=RecordState(value["state"]),
            keys=tuple(value["keys"]),
            at_ms=value["at-ms"],
            nonce=value["nonce"],
        )
