"""What a committer sees of a table, and the commit it may send: change is data, all of it pure.

Works on the parsed metadata JSON of the REST catalog. A table has a hundred snapshots; building models of all
of them for every commit would cost more than the commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarn.core.errors import CorruptStateError
from tarn.core.history import Retention, retention_of, snapshots_to_expire

MAIN = "main"
COMMIT_ID_KEY = "tarn.commit-id"
Json = dict[str, Any]


class TableState:
    """One version of a table's metadata.

    Args:
        metadata: the parsed metadata JSON; kept, not copied.
        location: where it was read from, for people.
    """

    def __init__(self, metadata: Json, *, location: str | None = None) -> None:
        self.metadata = metadata
        self.location = location
        self._by_id: dict[int, Json] = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}

    @property
    def uuid(self) -> str:
        """The table's uuid."""
        return str(self.metadata["table-uuid"])

    @property
    def root(self) -> str:
        """The table's location, without a slash at its end."""
        return str(self.metadata["location"]).rstrip("/")

    @property
    def format_version(self) -> int:
        """Iceberg's format version."""
        return int(self.metadata["format-version"])

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("properties") or {}

    @property
    def refs(self) -> Mapping[str, Json]:
        """Branches and tags by name."""
        return self.metadata.get("refs") or {}

    @property
    def head_id(self) -> int | None:
        """The snapshot that the main branch points at; None before the first commit."""
        ref = self.refs.get(MAIN)
        if ref is not None:
            return int(ref["snapshot-id"])
        current = self.metadata.get("current-snapshot-id")
        return None if current is None or current == -1 else int(current)

    @property
    def head(self) -> Json | None:
        """The head's snapshot."""
        found = self.head_id
        return None if found is None else self.snapshot(found)

    @property
    def last_sequence(self) -> int:
        """The highest sequence number given so far."""
        return int(self.metadata.get("last-sequence-number") or 0)

    def snapshot(self, snapshot_id: int) -> Json:
        """A snapshot by id.

        Raises:
            CorruptStateError: it is not in the metadata.
        """
        found = self._by_id.get(snapshot_id)
        if found is None:
            raise CorruptStateError(
                f"snapshot {snapshot_id} is referenced and missing in table {self.uuid}", table=self.uuid
            )
        return found

    def ancestors(self, snapshot_id: int | None = None) -> Iterator[Json]:
        """The head (or the given snapshot) and its known ancestors, newest first, up to an expired one."""
        at = self.head_id if snapshot_id is None else snapshot_id
        while at is not None:
            found = self._by_id.get(at)
            if found is None:
                return
            yield found
            at = found.get("parent-snapshot-id")

    def is_ancestor(self, snapshot_id: int) -> bool:
        """Whether the head descends from the snapshot, or is it."""
        return any(s["snapshot-id"] == snapshot_id for s in self.ancestors())

    def newest(self, key: str, *, tag: str) -> str | None:
        """The newest value of a summary key among the head's ancestors.

        Where expiry cut the ancestry before a value was found, the tagged snapshot speaks, if it is older
        than all known ancestors: our commits move the tag, so it is the last of ours.

        Raises:
            CorruptStateError: the ancestry is cut, the tag does not help, and we wrote the table before.
        """
        oldest: Json | None = None
        for snapshot in self.ancestors():
            value = snapshot.get("summary", {}).get(key)
            if value is not None:
                return str(value)
            oldest = snapshot
        if oldest is None or oldest.get("parent-snapshot-id") is None:
            return None
        tagged = self.refs.get(tag)
        if tagged is not None:
            snapshot = self.snapshot(int(tagged["snapshot-id"]))
            value = snapshot.get("summary", {}).get(key)
            if value is not None and _sequence(snapshot) < _sequence(oldest):
                return str(value)
        if tagged is not None or marker_property(key) in self.properties:
            raise CorruptStateError(
                f"no snapshot of table {self.uuid} that is known to be in its history holds {key!r}: expiry "
                f"removed it, and the tag {tag!r} is gone or newer; put the tag back, or start a new stream "
                "under a new name",
                table=self.uuid,
                key=key,
                tag=tag,
            )
        return None


def marker_property(key: str) -> str:
    """The table property that remembers that a summary key was ever written."""
    return f"{key}.since"


def _sequence(snapshot: Json) -> int:
    return int(snapshot.get("sequence-number") or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What a commit adds, before it is known on which base.

    Attributes:
        commit_id: one for all attempts of one logical commit (invariant I4).
        summary: entries of ours; totals are computed.
        tag: the tag that moves to the new snapshot.
        since: a property that is set once with the first commit.
        files, records, bytes: what the manifest adds.
    """

    commit_id: str
    summary: Mapping[str, str]
    tag: str
    since: str
    files: int = 0
    records: int = 0
    bytes: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """A REST commit: requirements (what must still hold) and updates (what changes)."""

    requirements: Sequence[Json]
    updates: Sequence[Json]
    snapshot_id: int

    def body(self) -> Json:
        """The request's JSON."""
        return {"requirements": list(self.requirements), "updates": list(self.updates)}


def summarize(state: TableState, append: Append) -> dict[str, str]:
    """The summary of the new snapshot: Iceberg's own counts and totals, the commit id, and our entries."""
    before: Mapping[str, str] = (state.head or {}).get("summary") or {}

    def total(key: str, added: int) -> str:
        try:
            return str(int(before.get(key, "0")) + added)
        except ValueError:
            return str(added)

    summary = {
        "operation": "append",
        "added-data-files": str(append.files),
        "added-records": str(append.records),
        "added-files-size": str(append.bytes),
        "changed-partition-count": str(append.partitions),
        "total-data-files": total("total-data-files", append.files),
        "total-records": total("total-records", append.records),
        "total-files-size": total("total-files-size", append.bytes),
        "total-delete-files": total("total-delete-files", 0),
        "total-position-deletes": total("total-position-deletes", 0),
        "total-equality-deletes": total("total-equality-deletes", 0),
        COMMIT_ID_KEY: append.commit_id,
    }
    summary.update(append.summary)
    return summary


def build_commit(
    state: TableState,
    append: Append,
    *,
    snapshot_id: int,
    manifest_list: str,
    added_rows: int,
    now_ms: int,
    retention: Retention,
) -> CommitRequest:
    """The commit of an append on exactly this base.

    Args:
        state: the base; the request holds only if its head is still the head.
        append: what is added.
        snapshot_id: the new snapshot's id.
        manifest_list: where the manifest list of the new snapshot was written.
        added_rows: how many row ids the manifest list gave out (format 3).
        now_ms: wall time; the snapshot never gets an earlier one than its parent.
        retention: what to remove, where the table's own properties do not say.
    """
    head = state.head
    parent_ms = max(int(head["timestamp-ms"]) if head else 0, int(state.metadata.get("last-updated-ms") or 0))
    at_ms = max(now_ms, parent_ms)
    snapshot: Json = {
        "snapshot-id": snapshot_id,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": at_ms,
        "manifest-list": manifest_list,
        "summary": summarize(state, append),
        "schema-id": state.metadata["current-schema-id"],
    }
    if head is not None:
        snapshot["parent-snapshot-id"] = head["snapshot-id"]
    if state.format_version >= 3:
        snapshot["first-row-id"] = int(state.metadata.get("next-row-id") or 0)
        snapshot["added-rows"] = added_rows
    updates: list[Json] = [
        {"action": "add-snapshot", "snapshot": snapshot},
        {"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": snapshot_id},
        {"action": "set-snapshot-ref", "ref-name": append.tag, "type": "tag", "snapshot-id": snapshot_id},
    ]
    if append.since not in state.properties:
        updates.append({"action": "set-properties", "updates": {append.since: str(snapshot["timestamp-ms"])}})
    moved = state.refs.get(append.tag)
    keep = frozenset({int(moved["snapshot-id"])}) if moved is not None else frozenset()
    rule = retention_of(state.properties, retention)
    old = [] if rule is None else snapshots_to_expire(state.metadata, rule, now_ms=at_ms, keep=keep, coming=1)
    if old:
        updates.append({"action": "remove-snapshots", "snapshot-ids": old})
    requirements: list[Json] = [
        {"type": "assert-table-uuid", "uuid": state.uuid},
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": state.head_id},
        # A change of columns moves no snapshot: without this, files of the old columns would go in unseen.
        {"type": "assert-current-schema-id", "current-schema-id": state.metadata["current-schema-id"]},
    ]
    return CommitRequest(requirements=requirements, updates=updates, snapshot_id=snapshot_id)
