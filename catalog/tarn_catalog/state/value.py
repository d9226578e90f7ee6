"""What all register values share: the codec, the next value, intents, and the rules of a transition. Pure.

A participant may carry an intent, an undecided change: until it is decided, the other fields are current.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import orjson

from tarn.core.errors import CorruptStateError, UnavailableError
from tarn_catalog.state.request_history import CompletedRequest, RequestHistory

FORMAT = 1

# A sentence about a value and the next one of its key, and whether it holds. Before the first write of a key,
# the value is a blank one.
Rule = tuple[str, Callable[[Any, Any], bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStamp:
    """What identifies one write.

    Attributes:
        nonce: a new nonce.
        at_ms: time by the server's clock, milliseconds since the epoch.
        key: the request's idempotency key.
        what: the operation and a digest of the payload.
    """

    nonce: str
    at_ms: int
    key: str | None = None
    what: str | None = None

    def done(self, version: int) -> CompletedRequest:
        """Return the history entry of the write that made this version."""
        return CompletedRequest(
            nonce=self.nonce, version=version, at_ms=self.at_ms, key=self.key, what=self.what
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterValue(ABC):
    """A register value.

    Attributes:
        uuid: what the value is about; the prefix of its history pages.
        nonce: makes the stored bytes, and so the entity tag, unique; empty in a blank value.
    """

    NOUN: ClassVar[str]
    RULES: ClassVar[tuple[Rule, ...]]

    uuid: str
    nonce: str

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the stored JSON fields, in the order of the stored bytes."""

    @classmethod
    @abstractmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse the stored JSON fields.

        Raises:
            KeyError, TypeError, ValueError, IndexError: they are not valid.
        """

    @abstractmethod
    def before_first(self) -> Self:
        """Return the blank value that the first value of this key derives from; it is never stored."""

    @abstractmethod
    def is_in(self, found: Self) -> bool | None:
        """Return whether `found` is this value or was built on it; None if too much happened since."""

    def check_follows(self, before: Self | None, key: str) -> None:
        """Require that this value may replace `before`, or be the first one of its key.

        Raises:
            AssertionError: a rule is violated, which is an error in the catalog.
        """
        base = before or self.before_first()
        broken = [rule for rule, holds in self.RULES if not holds(base, self)]
        if broken:
            raise AssertionError(f"{key} must not change from {base} to {self}: {'; '.join(broken)}")

    def dump(self) -> bytes:
        """Return the stored JSON."""
        return orjson.dumps({"format": FORMAT, **self.to_json()})

    @classmethod
    def load(cls, data: bytes, key: str) -> Self:
        """Parse the JSON stored under `key`.

        Raises:
            UnavailableError: the value has another format version.
            CorruptStateError: the value is not valid.
        """
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as e:
            raise CorruptStateError(f"{key} is not JSON: {e}; restore it from a backup", key=key) from e
        if not isinstance(value, dict):
            raise CorruptStateError(f"{key} is not a JSON object; restore it from a backup", key=key)
        if value.get("format") != FORMAT:
            raise UnavailableError(
                f"{key} has format {value.get('format')}, this version of the catalog knows {FORMAT}; "
                "upgrade the catalog",
                key=key,
            )
        try:
            return cls.from_json(value)
        except (KeyError, TypeError, ValueError, IndexError) as e:
            raise CorruptStateError(
                f"{key} is not a valid {cls.NOUN}: {e!r}; restore it from a backup", key=key
            ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedValue(RegisterValue):
    """A register value that remembers who wrote it.

    Attributes:
        version: number of the value, increased by each write of its key.
        memory: the completed requests.
    """

    RULES: ClassVar[tuple[Rule, ...]] = (
        ("the version grows by one", lambda before, after: after.version == before.version + 1),
        (
            "the history ends with the write itself",
            lambda _, after: (
                (after.memory.inline[-1].nonce, after.memory.inline[-1].version)
                == (after.nonce, after.version)
            ),
        ),
        (
            "the history only grows",
            lambda before, after: (
                after.memory.pages == before.memory.pages
                and after.memory.inline[: len(before.memory.inline)] == before.memory.inline
            ),
        ),
    )

    version: int = 0
    memory: RequestHistory = field(default_factory=RequestHistory, repr=False)

    def next(self, stamp: WriteStamp) -> Self:
        """Return the next value of the key, with the same fields."""
        version = self.version + 1
        memory = self.memory.add(stamp.done(version))
        return replace(self, version=version, memory=memory, nonce=stamp.nonce)

    def is_in(self, found: Self) -> bool | None:
        """See `RegisterValue`."""
        return found.memory.wrote(self.nonce, self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent(WriteStamp):
    """An undecided change of one object; its stamp is that of the transaction.

    Stored as a JSON object with `record`, `nonce`, `then`, `at-ms`, `key` and `what`.

    Attributes:
        record: the key of the transaction record that decides; None: the object's own next value decides.
        then: the object's fields after a commit, JSON.
    """

    record: str | None
    then: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the stored JSON object."""
        return {
            "record": self.record,
            "nonce": self.nonce,
            "then": dict(self.then),
            "at-ms": self.at_ms,
            "key": self.key,
            "what": self.what,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any] | None) -> Intent | None:
        """Parse the stored JSON object; None for null."""
        if value is None:
            return None
        return Intent(
            record=value["record"],
            nonce=value["nonce"],
            then=dict(value["then"]),
            at_ms=value["at-ms"],
            key=value["key"],
            what=value["what"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant(VersionedValue):
    """A register value that may carry an intent.

    Attributes:
        intent: the undecided change, or None.
    """

    RULES: ClassVar[tuple[Rule, ...]] = (
        *VersionedValue.RULES,
        (
            "an intent changes nothing else",
            lambda before, after: (
                after.intent is None or after == replace(before, intent=after.intent).next(after.stamp())
            ),
        ),
        (
            "an intent is applied or discarded, with no other change",
            lambda before, after: (
                before.intent is None
                or any(after == before.settled(committed=c).next(after.stamp()) for c in (False, True))
            ),
        ),
    )

    intent: Intent | None = None

    def stamp(self) -> WriteStamp:
        """Return the stamp of the write that made this value."""
        done = self.memory.inline[-1]
        return WriteStamp(nonce=done.nonce, at_ms=done.at_ms, key=done.key, what=done.what)

    def settled(self, *, committed: bool) -> Self:
        """Return the value with its intent applied or discarded."""
        intent, clean = self.intent, replace(self, intent=None)
        if intent is None or not committed:
            return clean
        return replace(clean.applied(intent.then), memory=self.memory.add(intent.done(self.version)))

    @abstractmethod
    def applied(self, then: Mapping[str, Any]) -> Self:
        """Return the value with the fields of a committed intent."""
