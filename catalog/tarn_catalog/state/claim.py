"""The claim on a table: one register value per table uuid that was renamed, registered or purged. Pure.

A table has one name (its files are never shared, invariant I7). To give an existing table another name, a
writer takes its claim first, so that two writers cannot do so at once. A table whose files are marked for
deletion is claimed permanently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tarn_catalog.state.request_history import RequestHistory
from tarn_catalog.state.value import Intent, Participant, Rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Participant):
    """The claim on a table; its uuid is that of the table.

    Stored as a JSON object with `format`, `table-uuid`, `holder`, `purge`, `version`, the fields of
    `RequestHistory`, `nonce` and `intent`.

    Attributes:
        holder: the key of the pointer that the table was last given to; None if its files are marked for
            deletion, or if it was not given to any yet.
        purge: what the reaper needs to delete the files: name, location, metadata location, time; None if
            they are not marked for deletion.
    """

    NOUN: ClassVar[str] = "claim"
    RULES: ClassVar[tuple[Rule, ...]] = (
        *Participant.RULES,
        ("its uuid never changes", lambda before, after: before.uuid == after.uuid),
        ("a table has a holder or is purged", lambda _, after: after.holder is None or after.purge is None),
        (
            "a purge is never taken back",
            lambda before, after: before.purge is None or before.purge == after.purge,
        ),
    )

    holder: str | None = None
    purge: Mapping[str, Any] | None = None

    @staticmethod
    def blank(uuid: str) -> Claim:
        """Return the blank claim that the first one on a table derives from."""
        return Claim(uuid=uuid, nonce="")

    def before_first(self) -> Claim:
        """See `RegisterValue`."""
        return Claim.blank(self.uuid)

    def applied(self, then: Mapping[str, Any]) -> Claim:
        """See `Participant`."""
        return replace(self, holder=then["holder"], purge=then["purge"])

    def to_json(self) -> dict[str, Any]:
        """See `RegisterValue`."""
        return {
            "table-uuid": self.uuid,
            "holder": self.holder,
            "purge": dict(self.purge) if self.purge is not None else None,
            "version": self.version,
            **self.memory.to_json(),
            "nonce": self.nonce,
            "intent": self.intent.to_json() if self.intent else None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Claim:
        """See `RegisterValue`."""
        return Claim(
            uuid=value["table-uuid"],
            holder=value["holder"],
            purge=value["purge"],
            version=value["version"],
            memory=RequestHistory.from_json(value),
            nonce=value["nonce"],
            intent=Intent.from_json(value["intent"]),
        )
