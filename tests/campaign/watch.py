"""What the store held at every moment: every version of the table, and the rules that hold at each write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from tarn.adapters.store import MemoryStore
from tarn.core.naming import POINTERS_PREFIX, TRANSACTIONS_PREFIX
from tarn.core.offsets import SUMMARY_PREFIX, OffsetMap
from tarn.core.table_state import commit_ids
from tests.contract.catalog.test_transactions import effective
from tests.support.lake import BUCKET

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of the table, as a reader sees it.

    Attributes:
        location: location of its metadata file.
        metadata: the parsed metadata.
        head: id of its current snapshot; None without one.
        next: next offset of each partition of the stream.
    """

    location: str
    metadata: Json
    head: int | None
    next: dict[int, int]


@dataclass
class Watch:
    """Follows every write to the store of a simulation.

    Args:
        store: the store; its writes pass through here from now on.
        slot: the table's identifier.
        stream: name of the stream.

    Attributes:
        versions: every version of the table, oldest first.
        problems: broken rules, in the order in which they were noticed.
        lists: manifest list of every snapshot that was ever current.
        denied: manifest lists of commits that the catalog said had not happened.
        groups: number of snapshots that hold several logical commits.
        committed: ids of all logical commits that were ever in the table.
        committing: number of changes that readers have handed over, and that are not answered.
        merging: readers that write small files as one, or wrote it and have not handed it over -> its place.
        cut_off: such files of readers that planned again.
        given_up: ids of those whose readers were answered that they are not in the table, and do not fit it.
        rewritten: whether the history may be rewritten (a rollback).
        moved: called after each new version.
    """

    store: MemoryStore
    slot: Any
    stream: str
    versions: list[Version] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lists: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)
    groups: int = 0
    committed: set[str] = field(default_factory=set)
    committing: int = 0
    merging: dict[int, str] = field(default_factory=dict)
    cut_off: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    rewritten: bool = False
    moved: Callable[[Version], None] = lambda _: None

    def __post_init__(self) -> None:
        """Put this in front of the store's writes."""
        self._put, self._delete = self.store.put, self.store.delete
        self.store.put = self.put  # type: ignore[method-assign]
        self.store.delete = self.delete  # type: ignore[method-assign]

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """Write an object, and check what it changes."""
        found = self.store._objects.get(key)
        etag = self._put(key, data, if_absent=if_absent, if_match=if_match)
        if key.startswith("warehouse/") and found is not None and found[0] != data:
            self.problems.append(f"{key} was written a second time with another content")
        if key.startswith((POINTERS_PREFIX, TRANSACTIONS_PREFIX)):
            self.look()
        return etag

    def delete(self, key: str) -> None:
        """Delete an object, and look what it changes."""
        self._delete(key)
        if key.startswith(TRANSACTIONS_PREFIX):
            self.look()

    @property
    def next(self) -> dict[int, int]:
        """Next offset of each partition in the current version."""
        return self.versions[-1].next if self.versions else {}

    def look(self) -> None:
        """Record the current version, if it is a new one."""
        if self.store._objects.get(self.slot.key) is None:
            return
        location = effective(self.store, self.slot)
        if location == "None" or (self.versions and self.versions[-1].location == location):
            return
        stored = self.store._objects.get(location.removeprefix(f"s3://{BUCKET}/"))
        if stored is None:
            self.problems.append(f"the pointer names {location}, which is not in the store")
            return
        metadata = orjson.loads(stored[0])
        head = metadata.get("current-snapshot-id", -1)
        now = Version(
            location=location,
            metadata=metadata,
            head=None if head in (None, -1) else head,
            next=self._offsets(metadata, head),
        )
        if self.versions:
            self._follows(self.versions[-1], now)
        self.versions.append(now)
        self.moved(now)

    def _offsets(self, metadata: Json, head: int) -> dict[int, int]:
        by_id = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
        at = by_id.get(head)
        while at is not None:
            text = at["summary"].get(SUMMARY_PREFIX + self.stream)
            if text is not None:
                return dict(OffsetMap.from_json(text).next)
            at = by_id.get(at.get("parent-snapshot-id"))
        return {} if self.rewritten or not self.versions else self.versions[-1].next

    def _follows(self, before: Version, now: Version) -> None:
        """Check that a version was built on the one before it."""
        logged = [entry["metadata-file"] for entry in now.metadata["metadata-log"]][-1:]
        if logged != [before.location]:
            self.problems.append(f"{now.location} was built on {logged}, not on {before.location}")
        if now.head == before.head:
            return
        head = next((s for s in now.metadata["snapshots"] if s["snapshot-id"] == now.head), None)
        if head is None:
            self.problems.append(f"the current snapshot {now.head} of {now.location} is not in it")
            return
        self.lists.add(head["manifest-list"])
        parent = next((s for s in now.metadata["snapshots"] if s["snapshot-id"] == before.head), None)
        if parent is not None and not self.rewritten and head["timestamp-ms"] < parent["timestamp-ms"]:
            self.problems.append(
                f"snapshot {now.head} is older than {before.head}, which was there before it"
            )
        if head["manifest-list"] in self.denied:
            self.problems.append(f"the catalog said that snapshot {now.head} was not committed, and it was")
        ids = set(commit_ids(head["summary"]))
        if not self.rewritten:
            self._once(ids)
        self.committed |= ids
        self.groups += len(ids) > 1
        if self.rewritten:
            return
        if head.get("parent-snapshot-id") != before.head:
            self.problems.append(f"snapshot {now.head} follows {before.head}, its parent is another")
        back = [p for p, offset in before.next.items() if now.next.get(p, 0) < offset]
        if back:
            self.problems.append(f"the offsets of partitions {back} went back")

    def _once(self, ids: set[str]) -> None:
        """Check that logical commits are in the table for the first time, and still wanted."""
        if twice := sorted(ids & self.committed):
            self.problems.append(f"commits {twice} are in the table twice")
        if late := sorted(ids & self.given_up):
            self.problems.append(f"commits {late} came into the table after they were given up")
