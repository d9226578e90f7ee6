"""The transaction record: one small register value that decides the changes of several objects. Pure.

pending -> committed | aborted. The swap to committed is the commit point (invariant I2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import orjson

from tarn.core.errors import CorruptStateError
from tarn_catalog.state.pointer import FORMAT, parse


class RecordState(StrEnum):
    """The decision on a transaction."""

    PENDING = "pending"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A transaction record.

    Stored as a JSON object with `format`, `transaction`, `state`, `keys`, `at-ms` and `nonce`.

    Attributes:
        uuid: the transaction's uuid.
        state: the decision.
        keys: the keys of the participating objects, in order.
        at_ms: start of the transaction, milliseconds since the epoch.
        nonce: makes the bytes unique.
    """

    uuid: str
    state: RecordState = RecordState.PENDING
    keys: tuple[str, ...]
    at_ms: int
    nonce: str

    def decided(self, state: RecordState, *, nonce: str) -> Record:
        """Return the final value of a pending record."""
        assert self.state is RecordState.PENDING, self
        assert state is not RecordState.PENDING, state
        return replace(self, state=state, nonce=nonce)

    def dump(self) -> bytes:
        """Return the stored JSON."""
        return orjson.dumps(
            {
                "format": FORMAT,
                "transaction": self.uuid,
                "state": self.state.value,
                "keys": self.keys,
                "at-ms": self.at_ms,
                "nonce": self.nonce,
            }
        )

    @staticmethod
    def load(data: bytes, key: str) -> Record:
        """Parse the JSON stored under `key`.

        Raises:
            UnavailableError: the value's format version is unknown.
            CorruptStateError: the value is not a valid record.
        """
        value = parse(data, key)
        try:
            return Record(
                uuid=value["transaction"],
                state=RecordState(value["state"]),
                keys=tuple(value["keys"]),
                at_ms=value["at-ms"],
                nonce=value["nonce"],
            )
        except (KeyError, TypeError, ValueError) as e:
            raise CorruptStateError(f"{key} is no record: {e!r}; restore it from a backup", key=key) from e
