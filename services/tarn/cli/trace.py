"""`tarn trace`: where one message is: in which file, snapshot and commit of which table, or why it is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from tarn.core.audit.accounts import LetterPlace, between
from tarn.core.audit.model import FileEntry
from tarn.core.audit.origins import Letter
from tarn.core.errors import InvalidError
from tarn.core.offsets import OffsetMap
from tarn.core.spec import TOPIC_PATTERN
from tarn.core.table_state import TableState
from tarn.ingest.batch_commit import retired_in
from tarn.ingest.lake_files import (
    CommitFacts,
    LakePorts,
    LiveFiles,
    Log,
    all_tables,
    commit_of,
    letter_files,
    may_hold,
    read_files,
    require_traced,
    streams_of,
)

OFFSET_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1
_MESSAGE = re.compile(r"(?P<topic>[^/]+)/(?P<partition>[0-9]{1,10})/(?P<offset>[0-9]{1,19})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Address of a Kafka message."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def parse_message(text: str) -> Message:
    """Parse TOPIC/PARTITION/OFFSET.

    Raises:
        InvalidError: the text is not of this form.
    """
    found = _MESSAGE.fullmatch(text)
    if found is not None and re.match(TOPIC_PATTERN, found["topic"]):
        message = Message(
            topic=found["topic"], partition=int(found["partition"]), offset=int(found["offset"])
        )
        if message.partition <= PARTITION_MAX and message.offset <= OFFSET_MAX:
            return message
    raise InvalidError(
        f"{text!r} does not name a message; write TOPIC/PARTITION/OFFSET with two whole numbers from 0, such "
        "as orders/0/1234"
    )


class Where(StrEnum):
    """Where a message is."""

    ROW = "row"
    LETTER = "dead letter"
    NOT_READ = "not read yet"
    BEFORE = "before the stream's start"
    NO_RECORD = "no record"
    REMOVED = "removed"
    MISSING = "missing"
    UNKNOWN = "unknown"


FOUND = frozenset({Where.ROW, Where.LETTER})


@dataclass(frozen=True, slots=True, kw_only=True)
class InFile:
    """A data file with the message's row, and the commit that added the file."""

    path: str
    commit: CommitFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where the message is in one table, as far as one stream is concerned.

    Attributes:
        table: name of the table.
        stream: name of the stream.
        where: where it is.
        what: the answer for people, with values.
        files: data files with its row; several, or one several times, if it is doubled.
        letters: its dead letters.
        next: the table's next offset of the partition; None if the stream has not read it.
    """

    table: str
    stream: str
    where: Where
    what: str
    files: Sequence[InFile] = ()
    letters: Sequence[Letter] = ()
    next: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Result of a trace.

    Attributes:
        message: the message.
        found: one entry per stream of the topic, by table.
    """

    message: Message
    found: Sequence[Found] = field(default_factory=tuple)

    @property
    def ok(self) -> bool:
        """Whether every stream of the topic has the message, as a row or a dead letter."""
        return all(each.where in FOUND for each in self.found)

    def data(self) -> dict[str, Any]:
        """The result as JSON; the format of `tarn trace --json`."""
        return {
            "topic": self.message.topic,
            "partition": self.message.partition,
            "offset": self.message.offset,
            "found": self.ok,
            "tables": [_found_data(each) for each in self.found],
        }


def trace(message: Message, ports: LakePorts, *, table: str | None = None) -> Trace:
    """Find a message in every table with a stream of its topic.

    Args:
        message: the message.
        ports: interfaces to the outside.
        table: the only table to search; None for all.

    Raises:
        NoSuchTableError: the table does not exist.
        InvalidError: no table has a stream of the topic, or one cannot be searched.
        CorruptStateError: manifests, files or dead letters cannot be read.
        UnavailableError: catalog or store do not respond.
    """
    topics: set[str] = set()
    found: list[Found] = []
    tables = all_tables(ports) if table is None else iter([(table, ports.tables.state(table))])
    for name, state in tables:
        streams, unreadable = streams_of(state, table=name)
        for finding in unreadable:
            ports.tell(f"{name} is not searched for it: {finding.what}")
        topics |= {offsets.source.topic for offsets in streams.values()}
        same = {stream: found for stream, found in streams.items() if found.source.topic == message.topic}
        if same:
            require_traced(state, table=name)
            found += _in_table(message, name, state, same, ports)
    if not found:
        among = "no table has" if table is None else f"table {table} does not have"
        known = ", ".join(sorted(topics)) or "none"
        raise InvalidError(
            f"{among} a stream of topic {message.topic!r}; topics that are read there: {known}",
            topic=message.topic,
        )
    return Trace(message=message, found=found)


def _in_table(
    message: Message, name: str, state: TableState, streams: dict[str, OffsetMap], ports: LakePorts
) -> list[Found]:
    live: LiveFiles | None = None
    found = []
    for stream, offsets in streams.items():
        at = offsets.next.get(message.partition)
        if at is None or message.offset >= at:
            stands = "has not read the partition" if at is None else f"the table's next offset is {at}"
            what = f"not read yet: stream {stream}: {stands}"
            found.append(Found(table=name, stream=stream, where=Where.NOT_READ, what=what, next=at))
            continue
        live = live or LiveFiles(name, state, ports)
        found.append(_below(message, live, stream, offsets, at, ports))
    return found


def _below(
    message: Message, live: LiveFiles, stream: str, offsets: OffsetMap, at: int, ports: LakePorts
) -> Found:
    """Where a message is that the stream has read."""
    name = live.table.name
    holding = live.holding(message.topic, message.partition, message.offset)
    files = tuple(
        InFile(path=entry.path, commit=commit_of(live.state, entry.snapshot_id)) for entry in holding
    )
    letters = _letters(message, live, stream, ports)

    def answer(where: Where, what: str) -> Found:
        return Found(table=name, stream=stream, where=where, what=what, files=files, letters=letters, next=at)

    if files:
        twice = f", {len(files)} times: scripts/tarn audit {name} says more" if len(files) > 1 else ""
        also = "; it is a dead letter too" if letters else ""
        return answer(Where.ROW, f"a row of {name}{twice}{also}")
    if letters:
        return answer(Where.LETTER, f"a dead letter: {letters[0].reason}")
    retired = retired_in(live.state, stream)
    if retired is not None and (message.partition, message.offset) in retired:
        what = f"its row was older than stream {stream} keeps rows, and was dropped"
        if retired.joined:
            what += f" (or it had none: runs were joined, over {retired.joined:,} offsets in all)"
        return answer(Where.REMOVED, what)
    removed = _removed(message, live, ports)
    if removed:
        return answer(Where.REMOVED, removed)
    return answer(*_by_log(message, live, offsets, ports))


def _letters(message: Message, live: LiveFiles, stream: str, ports: LakePorts) -> tuple[Letter, ...]:
    place: LetterPlace = stream, message.topic, message.partition
    files, _ = letter_files(ports, live.state, [stream])
    found: list[Letter] = []

    def read(entry: FileEntry) -> Sequence[Letter]:
        return ports.origins.letter(entry, place, message.offset) or ()

    for _, letters in read_files(ports, files, read, what="dead-letter files"):
        found += letters
    return tuple(found)


def _removed(message: Message, live: LiveFiles, ports: LakePorts) -> str:
    """Which file had the row in an earlier snapshot; empty if no kept one shows it."""
    wanted = between(message.offset, message.offset + 1)
    place = message.topic, message.partition
    for entry in live.data:
        if live.deleted(entry) and may_hold(entry, message.partition, wanted):
            origins = ports.origins.rows(entry, live.deleted(entry))
            if origins is not None and message.offset in origins.deleted.get(place, ()):
                return f"it was a row of {entry.path}, and was deleted"
    for entry, newest, after in live.former():
        if not may_hold(entry, message.partition, wanted):
            continue
        origins = ports.origins.rows(entry, between(0, 0))
        tally = origins.rows.get(place) if origins is not None else None
        if tally is not None and message.offset in tally.at_least(1):
            gone = f"; snapshot {after['snapshot-id']} does not have it" if after is not None else ""
            return f"it was a row of {entry.path}, last in snapshot {newest['snapshot-id']}{gone}"
    return ""


def _by_log(message: Message, live: LiveFiles, offsets: OffsetMap, ports: LakePorts) -> tuple[Where, str]:
    """What can be said of an offset that the table is past, and of which it has nothing."""
    log = Log(ports.topics, offsets.source, ports.clock)
    try:
        found = log.records(message.partition, between(message.offset, message.offset + 1))
        reason = log.reason
    finally:
        log.close()
    nothing = f"no row and no dead letter, and the table's next offset is {offsets.next[message.partition]}"
    if found is not None and found.held:
        return Where.MISSING, f"{nothing}: the log has a record there, which the table lacks"
    if found is not None and found.asked:
        return Where.NO_RECORD, f"{nothing}: the log has no record there (aborted, compacted or control)"
    first = min(
        (
            entry.bounds.offset_min
            for entry in live.data
            if entry.bounds is not None
            and entry.bounds.partition_min <= message.partition <= entry.bounds.partition_max
        ),
        default=None,
    )
    if first is not None and message.offset < first:
        return Where.BEFORE, f"before the stream's start: the first row of the table is at {first} or later"
    start = f"the log starts at {found.start}" if found is not None else "the log could not be asked"
    why = f" ({reason})" if reason else ""
    return Where.UNKNOWN, f"{nothing}: the offset holds no record, or its row was lost; {start}{why}"


def _found_data(found: Found) -> dict[str, Any]:
    def moment(at: datetime | None) -> str | None:
        return None if at is None else at.isoformat()

    return {
        "table": found.table,
        "stream": found.stream,
        "where": found.where.value,
        "what": found.what,
        "next": found.next,
        "files": [
            {
                "path": file.path,
                "snapshot_id": file.commit.snapshot_id,
                "commit_id": file.commit.commit_id,
                "committed_at": moment(file.commit.at),
                "operation": file.commit.operation,
            }
            for file in found.files
        ],
        "dead_letters": [{"reason": letter.reason, "at": moment(letter.at)} for letter in found.letters],
    }
