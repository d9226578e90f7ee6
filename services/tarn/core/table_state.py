"""A committer's view of a table, and the commits that it sends: changes are data, everything is pure.

Works on the parsed metadata JSON of the REST catalog. A table has about a hundred snapshots; building models
of all of them for every commit would cost more than the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tarn.core.errors import CorruptStateError, InvalidSpecError
from tarn.core.history import Retention, retention_of, snapshots_to_expire
from tarn.core.offsets import RESTATED_PREFIX, SUMMARY_PREFIX

MAIN = "main"
COMMIT_ID_KEY = "tarn.commit-id"
COMMIT_IDS_KEY = "tarn.commit-ids"
"""Ids of all members of a group commit, separated by spaces; a snapshot of one commit lacks it."""
PROVISIONAL_ID = -2
"""Id of a snapshot that exists in memory only; Iceberg's ids are positive."""
TOTAL_DIGITS_MAX = 19
BRANCH_RETENTION = ("max-ref-age-ms", "max-snapshot-age-ms", "min-snapshots-to-keep")
"""Fields of a branch by which engines expire snapshots; a branch that is set without them has none."""
Json = dict[str, Any]


class TableState:
    """One version of a table's metadata.

    Args:
        metadata: parsed metadata JSON; kept, not copied.
        location: metadata location, for messages.
    """

    def __init__(self, metadata: Json, *, location: str | None = None) -> None:
        self.metadata = metadata
        self.location = location
        self._by_id: dict[int, Json] = {s["snapshot-id"]: s for s in metadata.get("snapshots") or []}

    @property
    def uuid(self) -> str:
        """UUID of the table."""
        return str(self.metadata["table-uuid"])

    @property
    def root(self) -> str:
        """Location of the table, without a trailing slash."""
        return str(self.metadata["location"]).rstrip("/")

    @property
    def format_version(self) -> int:
        """Iceberg format version."""
        return int(self.metadata["format-version"])

    @property
    def properties(self) -> Mapping[str, str]:
        """Table properties."""
        return self.metadata.get("properties") or {}

    @property
    def refs(self) -> Mapping[str, Json]:
        """Branches and tags, by name."""
        return self.metadata.get("refs") or {}

    @property
    def head_id(self) -> int | None:
        """Id of the current snapshot of the main branch; None before the first commit."""
        ref = self.refs.get(MAIN)
        if ref is not None:
            return int(ref["snapshot-id"])
        current = self.metadata.get("current-snapshot-id")
        return None if current is None or current == -1 else int(current)

    @property
    def head(self) -> Json | None:
        """The current snapshot of the main branch; None before the first commit."""
        found = self.head_id
        return None if found is None else self.snapshot(found)

    @property
    def last_sequence(self) -> int:
        """Highest sequence number assigned so far."""
        return int(self.metadata.get("last-sequence-number") or 0)

    @property
    def has_totals(self) -> bool:
        """Whether the current snapshot's summary has all totals; other writers may leave them out."""
        return all(
            self.total(what) is not None for what in ("records", "data-files", "files-size", "delete-files")
        )

    def total(self, what: str) -> int | None:
        """A total of the current snapshot's summary, such as `data-files`; None if it has none.

        Iceberg specification, appendix F: the totals are optional. What is no count of 64 bits is none.
        """
        text = str(((self.head or {}).get("summary") or {}).get(f"total-{what}", ""))
        return int(text) if text.isdecimal() and len(text) <= TOTAL_DIGITS_MAX else None

    def snapshot(self, snapshot_id: int) -> Json:
        """A snapshot by id.

        Raises:
            CorruptStateError: the metadata lacks it.
        """
        found = self._by_id.get(snapshot_id)
        if found is None:
            raise CorruptStateError(
                f"snapshot {snapshot_id} is referenced and missing in table {self.uuid}", table=self.uuid
            )
        return found

    def has_snapshot(self, snapshot_id: int) -> bool:
        """Whether the table's metadata hold the snapshot, in its history or outside it."""
        return snapshot_id in self._by_id

    def ancestors(self, snapshot_id: int | None = None) -> Iterator[Json]:
        """Yield the current (or the given) snapshot and its ancestors, newest first, up to an expired one.

        Each once: a damaged table may have one that is its own ancestor.
        """
        at = self.head_id if snapshot_id is None else snapshot_id
        seen: set[int] = set()
        while at is not None and at not in seen:
            found = self._by_id.get(at)
            if found is None:
                return
            seen.add(at)
            yield found
            at = found.get("parent-snapshot-id")

    def is_ancestor(self, snapshot_id: int) -> bool:
        """Whether the snapshot is the current one or an ancestor of it."""
        return any(s["snapshot-id"] == snapshot_id for s in self.ancestors())

    def newest(self, key: str, *, tag: str) -> str | None:
        """Newest value of a summary property among the current snapshot's ancestors.

        If expiry cut the ancestry before a value was found, falls back to the tagged snapshot, provided its
        value is older than all known ancestors: Tarn's commits move the tag, so it has the last value.

        Args:
            key: name of the summary property.
            tag: name of the tag that moves with it.

        Raises:
            CorruptStateError: the ancestry is cut, the tag does not help, and the property was written
                before.
        """
        found = self.newest_summary(key, tag=tag)
        if found is not None:
            return str(found[key])
        *_, oldest = (None, *self.ancestors())
        if oldest is None or oldest.get("parent-snapshot-id") is None:
            return None
        if tag in self.refs or marker_property(key) in self.properties:
            raise CorruptStateError(
                f"no snapshot of table {self.uuid} that is known to be in its history holds {key!r}: expiry "
                f"removed it, and the tag {tag!r} is gone or newer; put the tag back, or start a new stream "
                "under a new name",
                table=self.uuid,
                key=key,
                tag=tag,
            )
        return None

    def newest_summary(self, key: str, *, tag: str) -> Mapping[str, str] | None:
        """The summary with the newest value, as `newest` looks for it; None if none is known."""
        found = self.newest_stating(key, tag=tag)
        return None if found is None else found["summary"]

    def newest_stating(self, key: str, *, tag: str) -> Json | None:
        """The snapshot with the newest value, as `newest` looks for it; None if none is known.

        A tag whose value is newer than the known ancestors is of commits that were rolled back. Beside a
        history that is not cut, it may also be of a table that was replaced.
        """
        oldest: Json | None = None
        for snapshot in self.ancestors():
            if key in (snapshot.get("summary") or {}):
                return snapshot
            oldest = snapshot
        tagged = self.refs.get(tag)
        if oldest is None or oldest.get("parent-snapshot-id") is None or tagged is None:
            return None
        last = self.snapshot(int(tagged["snapshot-id"]))
        known = key in (last.get("summary") or {}) and stated_at(last, key) < sequence(oldest)
        return last if known else None

    def replaced_after(self, key: str, *, tag: str) -> int | None:
        """Id of the first snapshot, if with it another client replaced the table after the key was stated.

        CREATE OR REPLACE TABLE keeps properties and tags, and its first snapshot has no parent. So has the
        first of a table to which the stream came later, and which was rolled back to before that; it is older
        than what the stream committed. A table that was empty since has none of the former rows. The tag may
        be newer than the first snapshot: a rollback from the replacement or to it moves it.

        Args:
            key: name of a summary property that no known ancestor states.
            tag: name of the tag that moves with it.

        Raises:
            CorruptStateError: the tagged snapshot is missing.
        """
        history = list(self.ancestors())
        if not history or history[-1].get("parent-snapshot-id") is not None:
            return None
        first = history[-1]
        summaries: list[Mapping[str, str]] = [snapshot.get("summary") or {} for snapshot in history]
        if commit_ids(summaries[-1]) or any(
            key in summary or summary.get("total-records") == "0" for summary in summaries
        ):
            return None
        began = self.properties.get(marker_property(key), "")
        later = began.isdecimal() and int(began) < int(first["timestamp-ms"])
        if not later and tag in self.refs:
            later = stated_at(self.snapshot(int(self.refs[tag]["snapshot-id"])), key) < sequence(first)
        return int(first["snapshot-id"]) if later else None

    def at(self, snapshot_id: int) -> TableState:
        """The table as if this were its current snapshot."""
        refs = {**self.refs, MAIN: {"snapshot-id": snapshot_id, "type": "branch"}}
        return TableState({**self.metadata, "refs": refs, "current-snapshot-id": snapshot_id})


def commit_ids(summary: Mapping[str, str]) -> tuple[str, ...]:
    """Ids of the logical commits that a snapshot holds, in order; empty if it is none of Tarn's."""
    one = summary.get(COMMIT_ID_KEY)
    return tuple(summary.get(COMMIT_IDS_KEY, one or "").split())


def current_schema(metadata: Json) -> Json:
    """The current schema of a table's metadata, as JSON.

    Raises:
        InvalidSpecError: the metadata does not hold it.
    """
    return current_part(metadata, "schemas", "current-schema-id", "schema-id")


def current_part(metadata: Json, many: str, pointer: str, key: str) -> Json:
    """The object of a list in a table's metadata that is current, such as its schema or partition spec.

    Args:
        metadata: the table's metadata.
        many: name of the list.
        pointer: name of the field that has the id of the current one.
        key: name of the id in the objects.

    Raises:
        InvalidSpecError: the metadata does not hold it.
    """
    wanted = metadata.get(pointer, 0)
    for value in metadata.get(many) or ():
        if value.get(key) == wanted:
            return dict(value)
    raise InvalidSpecError(f"the table's metadata names {pointer} {wanted} and does not hold it")


def marker_property(key: str) -> str:
    """Table property that records that a summary property was ever written."""
    return f"{key}.since"


def sequence(snapshot: Json) -> int:
    """The sequence number of a snapshot; 0 if it has none."""
    return int(snapshot.get("sequence-number") or 0)


def restated_property(key: str) -> str:
    """Summary property of a snapshot that repeats what an earlier one says by this key, an offset map."""
    return RESTATED_PREFIX + key.removeprefix(SUMMARY_PREFIX)


def stated_at(snapshot: Json, key: str) -> int:
    """Sequence number from which on the value of a summary property holds: the snapshot's own, or an earlier.

    It is an earlier one if the snapshot repeats the value, and the property has had no other since then.
    """
    own = sequence(snapshot)
    text = str((snapshot.get("summary") or {}).get(restated_property(key), ""))
    return min(own, int(text)) if text.isdecimal() and len(text) <= TOTAL_DIGITS_MAX else own


def _in_the_store() -> None:
    """What `WrittenFile.finish` does for a file that is in the store."""


def _nothing_is_written(_wait: bool) -> None:
    """What `WrittenFile.leave` does for such a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A data file that is in the store, or on the way there, but not yet in a table.

    Attributes:
        path: location of the file.
        partition: partition values as Iceberg stores them, in the order of the partition spec.
        spec_id: id of the partition spec.
        records: number of rows.
        bytes: file size in bytes.
        statistics: counts and bounds per field id, keyed by pyiceberg's `DataFile` argument names.
        sort_bytes: size of its rows as Arrow columns, in bytes, if the table sorts rows: a merge then holds
            all of them at once. Otherwise, and if it is not known, 0.
        finish: returns once the file is in the store; required before a table may list it.
        leave: gives up what is not written, as no table will list it; with True it returns once nothing of it
            is under way, and takes memory, any more.
        manifest: of a file that a table lists, the manifest in which it was found; it may be rewritten since.
    """

    path: str
    partition: tuple[Any, ...]
    spec_id: int
    records: int
    bytes: int
    statistics: dict[str, Any] = field(default_factory=dict)
    sort_bytes: int = field(default=0, compare=False)
    finish: Callable[[], None] = field(default=_in_the_store, compare=False, repr=False)
    leave: Callable[[bool], None] = field(default=_nothing_is_written, compare=False, repr=False)
    manifest: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """What a commit adds, and removes if it rewrites files, independent of its base.

    Attributes:
        commit_id: identifies the logical commit; the same for all attempts (invariant I4).
        summary: Tarn's own summary properties; totals are computed.
        tags: tags that move to the new snapshot.
        since: table properties that are set once, by the first commit.
        files: number of files added.
        records: number of rows added.
        bytes: size of the files added, in bytes.
        partitions: number of partitions touched.
        removed_files: number of files removed, whose rows the added files hold.
        removed_records: number of rows in them.
        removed_bytes: size of them, in bytes.
        properties: table properties to set, for people.
        restated: summary properties that hold as this append states them: one that it lacks holds no more.
    """

    commit_id: str
    summary: Mapping[str, str]
    tags: tuple[str, ...] = ()
    since: tuple[str, ...] = ()
    files: int = 0
    records: int = 0
    bytes: int = 0
    partitions: int = 0
    removed_files: int = 0
    removed_records: int = 0
    removed_bytes: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    restated: frozenset[str] = frozenset()

    @staticmethod
    def of(
        files: Sequence[WrittenFile],
        *,
        commit_id: str,
        summary: Mapping[str, str],
        tag: str | None = None,
        since: str | None = None,
        removed: Sequence[WrittenFile] = (),
        properties: Mapping[str, str] | None = None,
        restated: frozenset[str] = frozenset(),
    ) -> Append:
        """An append of these data files, with their counts.

        Args:
            files: data files to add.
            commit_id: identifies the logical commit.
            summary: Tarn's own summary properties.
            tag: tag that moves to the new snapshot; None for none.
            since: table property that is set once, by the first commit; None for none.
            removed: data files to remove.
            properties: table properties to set, for people.
            restated: see the class.
        """
        return Append(
            commit_id=commit_id,
            summary=summary,
            tags=() if tag is None else (tag,),
            since=() if since is None else (since,),
            files=len(files),
            records=sum(f.records for f in files),
            bytes=sum(f.bytes for f in files),
            partitions=len({f.partition for f in (*files, *removed)}),
            removed_files=len(removed),
            removed_records=sum(f.records for f in removed),
            removed_bytes=sum(f.bytes for f in removed),
            properties=properties or {},
            restated=restated,
        )

    def followed_by(self, other: Append, *, partitions: int) -> Append:
        """Both as one snapshot; the other was judged on top of this one, so what it states holds.

        Args:
            other: the append after this one, which removes nothing, as this one.
            partitions: number of partitions that both touch together.
        """
        if self.removed_files or other.removed_files:
            raise ValueError("a commit that replaces files is a snapshot of its own")
        ids = " ".join([self.summary.get(COMMIT_IDS_KEY, self.commit_id), other.commit_id])
        held = {key: value for key, value in self.summary.items() if key not in other.restated}
        return Append(
            commit_id=self.commit_id,
            summary={**held, **other.summary, COMMIT_IDS_KEY: ids},
            tags=tuple(dict.fromkeys(self.tags + other.tags)),
            since=tuple(dict.fromkeys(self.since + other.since)),
            files=self.files + other.files,
            records=self.records + other.records,
            bytes=self.bytes + other.bytes,
            partitions=partitions,
            properties={**self.properties, **other.properties},
            restated=self.restated | other.restated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """A REST commit: requirements (what must still hold) and updates (what changes).

    Attributes:
        requirements: requirements, as in the REST catalog's API.
        updates: updates, likewise.
        snapshot_id: the snapshot that becomes the current one; None if the snapshots stay as they are.
        overtaken: how many requests in a row with the same changes other writers have overtaken.
        turn: token of the turn that the catalog keeps for this request, from the last refusal.
    """

    requirements: Sequence[Json]
    updates: Sequence[Json]
    snapshot_id: int | None = None
    overtaken: int = 0
    turn: str | None = None

    def body(self) -> Json:
        """JSON body of the request, without the identifier."""
        return {"requirements": list(self.requirements), "updates": list(self.updates)}


def summarize(state: TableState, append: Append) -> dict[str, str]:
    """Summary of the new snapshot: Iceberg's counts and totals, the commit id, and Tarn's own properties.

    Totals are optional. One that the current snapshot lacks stays unknown: a total from 0 on would say, for
    instance, that the table has no delete files, and rows would come back when its files are merged.
    """
    totals = {
        "data-files": append.files - append.removed_files,
        "records": append.records - append.removed_records,
        "files-size": append.bytes - append.removed_bytes,
        "delete-files": 0,
        "position-deletes": 0,
        "equality-deletes": 0,
    }
    before = {what: 0 if state.head_id is None else state.total(what) for what in totals}
    summary = {
        "operation": _operation(append),
        "added-data-files": str(append.files),
        "added-records": str(append.records),
        "added-files-size": str(append.bytes),
        "changed-partition-count": str(append.partitions),
        **{f"total-{what}": str(had + totals[what]) for what, had in before.items() if had is not None},
        COMMIT_ID_KEY: append.commit_id,
    }
    if append.removed_files:
        summary |= {
            "deleted-data-files": str(append.removed_files),
            "deleted-records": str(append.removed_records),
            "removed-files-size": str(append.removed_bytes),
        }
    summary.update(append.summary)
    return summary


def _operation(append: Append) -> str:
    """Iceberg's name of the change: rows were added, written again, or dropped with their files."""
    if not append.removed_files:
        return "append"
    return "replace" if append.files else "delete"


def with_provisional(state: TableState, append: Append) -> TableState:
    """The table as if the append were committed, for judging what joins the same snapshot.

    The sequence number stays that of the base, as all members of a snapshot share the next one.
    """
    snapshot: Json = {
        "snapshot-id": PROVISIONAL_ID,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": int(state.metadata.get("last-updated-ms") or 0),
        "summary": summarize(state, append),
    }
    if state.head_id is not None:
        snapshot["parent-snapshot-id"] = state.head_id
    named = {tag: {"type": "tag", "snapshot-id": PROVISIONAL_ID} for tag in append.tags}
    begun = {key: str(snapshot["timestamp-ms"]) for key in append.since if key not in state.properties}
    return TableState(
        {
            **state.metadata,
            "snapshots": [*(state.metadata.get("snapshots") or []), snapshot],
            "refs": {**state.refs, **named, MAIN: {"type": "branch", "snapshot-id": PROVISIONAL_ID}},
            "properties": {**state.properties, **append.properties, **begun},
        },
        location=state.location,
    )


def main_at(state: TableState, snapshot_id: int) -> Json:
    """The update that moves the main branch to an older snapshot; what it says of the history stays as it is.

    An append says nothing of that: the catalog knows it better than a state that was loaded a while ago.
    """
    kept = {key: value for key, value in state.refs.get(MAIN, {}).items() if key in BRANCH_RETENTION}
    return {
        "action": "set-snapshot-ref",
        "ref-name": MAIN,
        "type": "branch",
        "snapshot-id": snapshot_id,
        **kept,
    }


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
    """Build the commit of an append on exactly this base.

    Args:
        state: base; the commit requires that its current snapshot is still current.
        append: what is added.
        snapshot_id: id of the new snapshot.
        manifest_list: location of the new snapshot's manifest list.
        added_rows: number of row ids that the manifest list assigned (format version 3).
        now_ms: wall-clock time in milliseconds; the snapshot's timestamp is never before its parent's.
        retention: default snapshot retention, where the table's properties set none.
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
    ]
    for tag in append.tags:
        tagged = {"ref-name": tag, "type": "tag", "snapshot-id": snapshot_id}
        updates.append({"action": "set-snapshot-ref", **tagged})
    moved = [state.refs[tag] for tag in append.tags if tag in state.refs]
    properties = {
        key: value for key, value in append.properties.items() if state.properties.get(key) != value
    }
    for since in append.since:
        if since not in state.properties:
            properties[since] = str(snapshot["timestamp-ms"])
    if properties:
        updates.append({"action": "set-properties", "updates": properties})
    keep = frozenset(int(ref["snapshot-id"]) for ref in moved)
    rule = retention_of(state.properties, retention)
    old = [] if rule is None else snapshots_to_expire(state.metadata, rule, now_ms=at_ms, keep=keep, coming=1)
    if old:
        updates.append({"action": "remove-snapshots", "snapshot-ids": old})
    requirements: list[Json] = [
        {"type": "assert-table-uuid", "uuid": state.uuid},
        {"type": "assert-ref-snapshot-id", "ref": MAIN, "snapshot-id": state.head_id},
        # A schema change adds no snapshot: without this, files of the old schema could be added unnoticed.
        {"type": "assert-current-schema-id", "current-schema-id": state.metadata["current-schema-id"]},
    ]
    return CommitRequest(requirements=requirements, updates=updates, snapshot_id=snapshot_id)
