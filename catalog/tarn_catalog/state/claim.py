"""The claim on a table: one register value per table uuid that was ever renamed, registered or purged. Pure.

A table has one name (its files are never shared, invariant I7). Whoever gives an existing table another name
takes its claim first, so that two cannot do so at once. A table whose files are to go is claimed for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from tarn.core.errors import CorruptStateError
from tarn_catalog.state.pointer import FORMAT, Intent, parse
from tarn_catalog.state.request_history import CompletedRequest, RequestHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who holds a table.

    Attributes:
        uuid: of the table.
        holder: the key of the pointer that was given the table last; None if its files are to go, or if
            nobody was given it yet.
        purge: what the reaper needs once its files are to go: name, location, metadata location, time.
        version: counts the values of this key.
        memory: what was done lately.
        nonce: makes the bytes unique.
        intent: a change that is not decided yet.
    """

    uuid: str
    holder: str | None = None
    purge: Mapping[str, Any] | None = None
    version: int = 0
    memory: RequestHistory = field(default_factory=RequestHistory)
    nonce: str
    intent: Intent | None = None

    def with_memory(self, memory: RequestHistory) -> Claim:
        """See `pointer.Value`."""
        return replace(self, memory=memory)

    def touched(self, *, nonce: str, now_ms: int, intent: Intent | None = None) -> Claim:
        """See `pointer.Participant`."""
        assert self.intent is None, self
        done = CompletedRequest(nonce=nonce, version=self.version + 1, at_ms=now_ms)
        return replace(
            self, version=self.version + 1, memory=self.memory.add(done), nonce=nonce, intent=intent
        )

    def settled(self, *, committed: bool) -> Claim:
        """See `pointer.Participant`."""
        intent, clean = self.intent, replace(self, intent=None)
        if intent is None or not committed:
            return clean
        return replace(
            clean,
            holder=intent.then["holder"],
            purge=intent.then["purge"],
            memory=self.memory.add(intent.done(self.version)),
        )

    def dump(self) -> bytes:
        """As stored."""
        assert self.holder is None or self.purge is None, self
        return orjson.dumps(
            {
                "format": FORMAT,
                "table-uuid": self.uuid,
                "holder": self.holder,
                "purge": dict(self.purge) if self.purge is not None else None,
                "version": self.version,
                **self.memory.to_json(),
                "nonce": self.nonce,
                "intent": self.intent.to_json() if self.intent else None,
            }
        )

    @staticmethod
    def load(data: bytes, key: str) -> Claim:
        """From what was stored under `key`.

        Raises:
            UnavailableError: it has a format that this version does not know.
            CorruptStateError: it is no claim.
        """
        value = parse(data, key)
        try:
            return Claim(
                uuid=value["table-uuid"],
                holder=value["holder"],
                purge=value["purge"],
                version=value["version"],
                memory=RequestHistory.from_json(value),
                nonce=value["nonce"],
                intent=Intent.from_json(value["intent"]),
            )
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise CorruptStateError(f"{key} is no claim: {e!r}; restore it from a backup", key=key) from e
