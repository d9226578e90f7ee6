"""The commit of rows that came over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from tarn.core.errors import SourceChangedError
from tarn.core.offsets import OffsetMap
from tarn.core.outcome import AlreadyCommitted, Rejected
from tarn.core.producers import PROPERTY, STREAM, Advanced, Claim, ProducerBook, advance, source_of
from tarn.core.quota import quota_in
from tarn.core.table_state import Append, TableState, WrittenFile
from tarn.core.write_keys import KeyEntry, summary_key
from tarn.ingest.batch_commit import offsets_in, stated, stream_append, with_absent
from tarn.ingest.merge_commit import MergeCommit

KEYS = summary_key(STREAM)


def book_in(state: TableState) -> ProducerBook:
    """The producers of this version of the table.

    Raises:
        CorruptStateError: the property is unreadable.
    """
    text = state.properties.get(PROPERTY)
    return ProducerBook() if text is None else _book_of(text)


@lru_cache(maxsize=8)
def _book_of(text: str) -> ProducerBook:
    """The book that a property states; what a commit left is what the next one begins with."""
    return ProducerBook.from_json(text)


def keys_in(state: TableState) -> KeyEntry | None:
    """Where this version of the table keeps the keys of repeated writes; None if it has none.

    Raises:
        CorruptStateError: the summary is unreadable.
    """
    text = stated(state, STREAM).get(KEYS)
    return None if text is None else KeyEntry.from_json(text)


def naming_keys(state: TableState, entry: KeyEntry | None) -> str | None:
    """Location of the manifest list of the oldest snapshot that names these keys; None if none is known."""
    text = None if entry is None else entry.to_json()
    naming = [
        one
        for one in state.metadata.get("snapshots") or []
        if text is not None and (one.get("summary") or {}).get(KEYS) == text
    ]
    oldest = min(naming, key=lambda one: one.get("sequence-number") or 0, default=None)
    return None if oldest is None else oldest.get("manifest-list")


def ends_in(state: TableState, *, table: str) -> OffsetMap | None:
    """The offsets of the rows over HTTP in this version of the table; None before the first.

    Args:
        state: the version.
        table: name of the table, for messages.

    Raises:
        SourceChangedError: an ingestor has the name of their stream here.
        CorruptStateError: the offsets are unreadable.
    """
    found = offsets_in(state, STREAM)
    if found is not None and found.source != source_of(state.uuid):
        raise SourceChangedError(
            f"table {table} takes no rows over HTTP: an ingestor named {STREAM!r}, as their stream is, has "
            f"filled it from topic {found.source.topic}. Give that ingestor another name and another table, "
            "or send the rows to another one",
            table=table,
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysCommit:
    """Keys that are committed with their rows.

    Attributes:
        base: the entry that they were judged by; None for a table without any.
        after: the entry with them; its objects are in the store.
    """

    base: KeyEntry | None
    after: KeyEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCommit:
    """Rows of several producers, which are committed together or not at all: a `Change`.

    Attributes:
        commit_id: identifies the commit; the same for all attempts.
        table: name of the table, for messages.
        table_uuid: UUID of the planned table.
        gateway: the id that the gateway gave itself.
        claims: the rows, by producer.
        files: data files of those that were accepted.
        day: today, in days since the epoch.
        size: size of the rows as they were sent, in bytes.
        keys: keys of repeated writes; None if no row has one.
        removed: nothing; rows are only added.
    """

    commit_id: str
    table: str
    table_uuid: str
    gateway: str
    claims: tuple[Claim, ...]
    files: tuple[WrittenFile, ...]
    day: int
    size: int = 0
    keys: KeysCommit | None = None
    removed: tuple[WrittenFile, ...] = ()

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`.

        Raises:
            CorruptStateError: the table's producers, keys or offsets are unreadable.
            InvalidSpecError: a quota in its properties is no number.
        """
        found = advance(
            book_in(state),
            offsets_in(state, STREAM),
            self.claims,
            table_uuid=state.uuid,
            day=self.day,
            size=self.size,
            quota=quota_in(state.properties, table=self.table),
        )
        if not isinstance(found, Advanced):
            return found
        entry = keys_in(state)
        if self.keys is not None:
            if entry != self.keys.base:
                return Rejected(reason="other keys of repeated writes were committed meanwhile")
            entry = self.keys.after
        append = stream_append(
            self.files, commit_id=self.commit_id, stream=STREAM, offsets=found.offsets, pending=()
        )
        append = with_absent(state, append, STREAM)
        book = found.book.with_commit(self.gateway, self.commit_id)
        stated = {**append.properties, PROPERTY: book.to_json(found.offsets.next)}
        return replace(_with_keys(append, entry), properties=stated)

    def is_last_in(self, state: TableState) -> bool:
        """Whether this is the gateway's last commit in the table, even if its snapshot is expired.

        A gateway sends the next one only when it knows what became of this one.

        Raises:
            CorruptStateError: the table's producers are unreadable.
        """
        return self._last_in(state) == self.commit_id

    def is_not_in(self, state: TableState, *, sent: bool) -> bool:
        """Whether rows with the gateway's own numbers, which the table has, came with another commit.

        Only a gateway gives its own numbers, each once. So these rows are not in the table: what has their
        numbers are others.

        Args:
            state: a version of the table that has all numbers of the commit.
            sent: whether a request of this commit was sent.

        Raises:
            CorruptStateError: the table's producers are unreadable.
        """
        if all(claim.producer != self.gateway for claim in self.claims):
            return False
        return not sent or self._last_in(state) not in (None, self.commit_id)

    def _last_in(self, state: TableState) -> str | None:
        return book_in(state).last_commits.get(self.gateway)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsMerge:
    """Small files of the gateway that become one: a `Change`. What is known of repeats stays as it is.

    Attributes:
        merge: the merge.
    """

    merge: MergeCommit

    @property
    def commit_id(self) -> str:
        """See `Change`."""
        return self.merge.commit_id

    @property
    def table_uuid(self) -> str:
        """See `Change`."""
        return self.merge.table_uuid

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """See `Change`."""
        return self.merge.files

    @property
    def removed(self) -> tuple[WrittenFile, ...]:
        """See `Change`."""
        return self.merge.removed

    def on(self, state: TableState) -> Append | AlreadyCommitted | Rejected:
        """See `Change.on`.

        Raises:
            CorruptStateError: the table's keys or offsets are unreadable.
        """
        found = self.merge.on(state)
        return _with_keys(found, keys_in(state)) if isinstance(found, Append) else found


def _with_keys(append: Append, entry: KeyEntry | None) -> Append:
    """The append, stating where the keys of repeated writes are."""
    summary = {**append.summary, **({KEYS: entry.to_json()} if entry is not None else {})}
    return replace(append, summary=summary, restated=append.restated | {KEYS})
