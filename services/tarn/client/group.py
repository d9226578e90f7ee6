"""The stored position of a group of readers: one small object below the table's location.

It changes only by a conditional PUT. Whoever subscribes last owns the group; the reader before it finds that
out at its next commit, and cannot overwrite a newer position.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError, OutcomeUnknownError, ReaderPlaceError, ReaderTakenError
from tarn.core.object_store import (
    ObjectStore,
    StoreBusyError,
    Stored,
    StoreOutcomeUnknownError,
    StoreRefusedError,
)
from tarn.core.reading import FOLDER, ReaderPosition, check_group

FORMAT = 1
ATTEMPTS_MAX = 8
WAIT_S = 0.05
WAIT_S_MAX = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValue:
    """The object of a group.

    Attributes:
        reader: id of the reader that owns the group.
        nonce: unique per write, so that a writer recognises its own.
        position: the stored position.
    """

    reader: str
    nonce: str
    position: ReaderPosition

    def to_bytes(self, *, group: str) -> bytes:
        """JSON, as stored."""
        value = {
            "v": FORMAT,
            "group": group,
            "reader": self.reader,
            "nonce": self.nonce,
            "position": orjson.loads(self.position.to_json()),
        }
        return orjson.dumps(value)

    @staticmethod
    def from_bytes(data: bytes, *, key: str) -> GroupValue:
        """Parse the result of `to_bytes`.

        Raises:
            CorruptStateError: the object is not of this form.
        """
        try:
            value = versioned_json.read(data, FORMAT)
            position = ReaderPosition.from_json(orjson.dumps(value["position"]))
            return GroupValue(reader=str(value["reader"]), nonce=str(value["nonce"]), position=position)
        except (ValueError, KeyError, TypeError, CorruptStateError) as e:
            raise CorruptStateError(
                f"{key} is not the position of a group ({e}); delete the object, and subscribe with the "
                "position that the results have",
                key=key,
            ) from e


@dataclass(slots=True, kw_only=True)
class Group:
    """A group, as one reader holds it.

    Attributes:
        name: name of the group.
        store: object store of the table.
        key: key of the group's object.
        reader: id of this reader.
        new_nonce: generates a unique id.
        sleep: waits for a number of seconds.
    """

    name: str
    store: ObjectStore
    key: str
    reader: str
    new_nonce: Callable[[], str]
    sleep: Callable[[float], None] = time.sleep
    _etag: str | None = None
    _unknown: set[str] = field(default_factory=set)

    def position(self) -> ReaderPosition | None:
        """The stored position; None if the group is new.

        Raises:
            CorruptStateError: it is unreadable.
            UnavailableError: the store does not respond.
        """
        stored = self.store.get(self.key)
        return None if stored is None else GroupValue.from_bytes(stored.data, key=self.key).position

    def claim(
        self, start: Callable[[], ReaderPosition], *, restart: bool, check: Callable[[ReaderPosition], object]
    ) -> ReaderPosition:
        """Take the group over, and return its position.

        Args:
            start: the position of a group that has none.
            restart: take that position even if the group has one.
            check: called with the position before anything is written; raises if it is of no use.

        Raises:
            OutcomeUnknownError: the store did not settle the write.
            ForbiddenError: the credentials may not write it.
        """
        begin: ReaderPosition | None = None
        mine: set[str] = set()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            stored = self.store.get(self.key)
            if stored is not None:
                found = GroupValue.from_bytes(stored.data, key=self.key)
                if found.nonce in mine:
                    self._etag = stored.etag
                    return found.position
            if stored is None or restart:
                position = begin = begin or start()
            else:
                position = found.position
            check(position)
            nonce = self.new_nonce()
            mine.add(nonce)
            data = GroupValue(reader=self.reader, nonce=nonce, position=position).to_bytes(group=self.name)
            try:
                self._etag = self._put(data, stored)
                return position
            except (StoreRefusedError, StoreBusyError, StoreOutcomeUnknownError):
                self._pause(attempt)
        raise self._unsettled()

    def store_position(self, position: ReaderPosition) -> None:
        """Store a position; repeat until the outcome is certain.

        Raises:
            ReaderTakenError: another reader owns the group; nothing was stored.
            ReaderPlaceError: the group was deleted; nothing was stored.
            OutcomeUnknownError: the store did not settle the write; the next one does.
        """
        value = GroupValue(reader=self.reader, nonce=self.new_nonce(), position=position)
        data = value.to_bytes(group=self.name)
        # Before it is sent: a write that is left by Ctrl-C may land as well.
        self._unknown.add(value.nonce)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                self._etag = self.store.put(self.key, data, if_match=self._etag)
                self._unknown.clear()
                return
            except (StoreRefusedError, StoreBusyError, StoreOutcomeUnknownError):
                if self._landed(value.nonce):
                    return
            self._pause(attempt)
        raise self._unsettled()

    def _put(self, data: bytes, stored: Stored | None) -> str:
        if stored is None:
            return self.store.put(self.key, data, if_absent=True)
        return self.store.put(self.key, data, if_match=stored.etag)

    def _landed(self, nonce: str) -> bool:
        """Whether the write with this nonce is there; raises if the group is another reader's."""
        stored = self.store.get(self.key)
        if stored is None:
            raise ReaderPlaceError(
                f"the position of group {self.name} ({self.key}) was deleted while this reader read on; "
                "subscribe again",
                group=self.name,
            )
        if stored.etag == self._etag:
            return False
        found = GroupValue.from_bytes(stored.data, key=self.key)
        if found.nonce in self._unknown:
            # This write, or one before it whose answer was lost.
            self._etag = stored.etag
            if found.nonce == nonce:
                self._unknown.clear()
            return found.nonce == nonce
        raise ReaderTakenError(
            f"group {self.name} was taken over by another reader ({found.reader}, this one is "
            f"{self.reader}), which goes on from the position stored last. Give each reader its own group",
            group=self.name,
        )

    def _pause(self, attempt: int) -> None:
        self.sleep(min(WAIT_S_MAX, WAIT_S * 2 ** (attempt - 1)))

    def _unsettled(self) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"the store did not say in {ATTEMPTS_MAX} attempts whether the position of group {self.name} is "
            "stored; commit again",
            group=self.name,
        )


def group_key(prefix: str, group: str) -> str:
    """Key of a group's object.

    Args:
        prefix: key of the table's location, without a trailing slash; empty if the store is that folder.
        group: name of the group.

    Raises:
        InvalidError: the name is not allowed.
    """
    return "/".join(part for part in (prefix, FOLDER, f"{check_group(group)}.json") if part)
