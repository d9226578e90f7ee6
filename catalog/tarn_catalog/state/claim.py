"""The claim on a table: one register value per table uuid that was renamed, registered or purged. Pure.

A table has one name (its files are never shared, invariant I7). To give an existing table another name, a
writer takes its claim first, so that two writers cannot do so at once. A table whose files are marked for
deletion is claimed permanently.
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
    """The claim on a table.

    Stored as a JSON object with `format`, `table-uuid`, `holder`, `purge`, `version`, the fields of
    `RequestHistory`, `nonce` and `intent`.

    Attributes:
        uuid: the table's uuid.
        holder: the key of the pointer that the table was last given to; None if its files are marked for
            deletion, or if it was not given to any yet.
        purge: what the reaper needs to delete the files: name, location, metadata location, time; None if
            they are not marked for deletion.
        version: number of the value, increased by each write of this key.
        memory: the completed requests.
        nonce: makes the bytes unique.
        intent: an undecided change.
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
        """Return the stored JSON."""
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
        """Parse the JSON stored under `key`.

        Raises:
            UnavailableError: the value's format version is unknown.
            CorruptStateError: the value is not a valid claim.
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
