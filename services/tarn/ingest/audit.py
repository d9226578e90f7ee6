"""`tarn audit`: every offset of every source partition of a table is accounted for, from the rows themselves.

It reads one snapshot of the table, then the dead letters, then the log, in this order: whatever is added
meanwhile lies beyond the snapshot's offset map, and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from pyroaring import BitMap64

from tarn.core.audit.accounts import (
    Account,
    Origins,
    Place,
    accounts_of,
    between,
    judge_account,
    ranges,
    shown,
)
from tarn.core.audit.model import FileEntry, Finding, Json, Kind
from tarn.core.audit.offsets import judge_streams
from tarn.core.audit.tables import FROM_BACKUP
from tarn.core.errors import CorruptStateError, InvalidError
from tarn.core.table_state import TableState
from tarn.ingest.lake_files import (
    LakePorts,
    LiveFiles,
    Log,
    commit_of,
    deleted_on_purpose,
    letter_files,
    may_hold,
    read_files,
    require_traced,
    retired_offsets,
    streams_of,
)
from tarn.keeper.fsck import finding_data

RANGES_MAX = 100
"""Ranges of each kind in the JSON output at most, per partition."""
HOLDERS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of an audit.

    Attributes:
        table: name of the table.
        snapshot_id: snapshot that was read; None if the table has none.
        accounts: one per topic and partition.
        findings: damage and notes.
        files: number of data files read.
        dead_letter_tables: names of the tables with dead letters of the streams.
        unasked: topic to the reason why its log could not be asked about everything.
        seconds: duration.
    """

    table: str
    snapshot_id: int | None
    accounts: Sequence[Account]
    findings: Sequence[Finding]
    files: int
    dead_letter_tables: Sequence[str]
    unasked: Mapping[str, str]
    seconds: float

    @property
    def whole(self) -> bool:
        """Whether no finding is damage."""
        return not any(finding.damage for finding in self.findings)

    def data(self) -> dict[str, Any]:
        """The report as JSON; the format of `tarn audit --json`."""
        return {
            "table": self.table,
            "whole": self.whole,
            "snapshot_id": self.snapshot_id,
            "files": self.files,
            "dead_letter_tables": list(self.dead_letter_tables),
            "log_not_asked": dict(self.unasked),
            "seconds": round(self.seconds, 2),
            "partitions": [_account_data(account) for account in self.accounts],
            "findings": [finding_data(found) for found in self.findings],
        }


def audit(name: str, ports: LakePorts) -> Report:
    """Account for every offset below the table's offset maps.

    Args:
        name: qualified name of the table.
        ports: interfaces to the outside.

    Raises:
        NoSuchTableError: the table does not exist.
        InvalidError: the table has no stream or no trace column, or it cannot be read here, or has too many
            files.
        CorruptStateError: manifests or the dead letters cannot be read.
        UnavailableError: catalog or store do not respond.
    """
    began_s = ports.clock.now_s()
    state = ports.tables.state(name)
    streams, findings = streams_of(state, table=name)
    if not streams and not findings:
        raise InvalidError(
            f"table {name} has no stream: no ingestor has committed to it, so it has no offsets to "
            "account for. scripts/tarn status lists the ingestors with their tables",
            table=name,
        )
    require_traced(state, table=name)
    live = LiveFiles(name, state, ports, files_max=ports.files_max)
    accounts = accounts_of(streams)
    _except_retired(state, accounts)
    findings += judge_streams(live.table)
    findings += _count_rows(live, accounts)
    homes = _count_letters(ports, live, accounts)
    unasked = _evidence(ports, live, accounts)
    for account in accounts.values():
        account.holders = _holders(live, account)
        findings += judge_account(account, table=name)
        place = account.topic, account.partition
        ports.known.missing[place] = ports.known.missing.get(place, BitMap64()) | account.missing
    return Report(
        table=name,
        snapshot_id=state.head_id,
        accounts=list(accounts.values()),
        findings=findings,
        files=len(live.data),
        dead_letter_tables=homes,
        unasked=unasked,
        seconds=ports.clock.now_s() - began_s,
    )


def _count_rows(live: LiveFiles, accounts: Mapping[Place, Account]) -> Iterator[Finding]:
    """Count the rows of every live data file; yield files that cannot be read, and rows of no stream."""
    strange: dict[Place, int] = {}
    untraced = 0
    topics = {topic for topic, _ in accounts}
    for entry, found in live.read(live.data, partial(_readable, live.origins), what="data files"):
        if isinstance(found, Finding):
            yield found
            continue
        untraced += found.untraced
        for place, tally in found.rows.items():
            account = accounts.get(place)
            if account is not None:
                account.rows.merge(tally)
            else:
                strange[place] = strange.get(place, 0) + tally.rows
        for place, offsets in found.deleted.items():
            if place in accounts:
                account = accounts[place]
                # Ingest writes no delete files: another engine did.
                account.taken |= offsets & between(0, account.next)
                by = ", ".join(str(number) for number in live.deleted_by(entry)) or "that is not known"
                _took(account, f"a delete file for {entry.path}, snapshot {by}")
    for (topic, partition), count in sorted(strange.items()):
        beyond = topic in topics
        yield Finding(
            kind=Kind.OFFSETS_BEYOND if beyond else Kind.ROWS_UNTRACED,
            where=live.table.name,
            what=f"{count} rows are of partition {partition} of topic {topic}, "
            + ("which no offset map has yet" if beyond else "which no stream of the table reads"),
            fix="stop the ingestor, which would add them again, and see which commit added them"
            if beyond
            else "normal if they were copied from another table; otherwise report it",
        )
    if untraced:
        yield Finding(
            kind=Kind.ROWS_UNTRACED,
            where=live.table.name,
            what=f"{untraced} rows have no topic, partition or offset in _tarn",
            fix="normal for rows that another writer added; they are not accounted for",
        )


def _except_retired(state: TableState, accounts: Mapping[Place, Account]) -> None:
    """Note the offsets whose rows retention dropped.

    Raises:
        CorruptStateError: what it dropped cannot be read.
    """
    for account in accounts.values():
        for stream in account.streams:
            found = retired_offsets(state, stream).get(account.partition, BitMap64())
            account.retired |= found & between(0, account.next)


def _readable(work: Any, entry: FileEntry) -> Origins | Finding:
    """Result of reading a data file of the table, or the finding that it cannot be read."""
    try:
        found: Origins | None = work(entry)
    except CorruptStateError as error:
        return Finding(kind=Kind.UNREADABLE, where=entry.path, what=error.message, fix=FROM_BACKUP)
    if found is not None:
        return found
    what = f"it is not in the store; {entry.records} rows are lost with it"
    return Finding(kind=Kind.FILE, where=entry.path, what=what, fix=FROM_BACKUP)


def _count_letters(ports: LakePorts, live: LiveFiles, accounts: Mapping[Place, Account]) -> list[str]:
    """Count the dead letters of the table's streams; returns the names of their tables.

    Raises:
        CorruptStateError: a dead-letter file is missing or cannot be read.
    """
    names = sorted({stream for account in accounts.values() for stream in account.streams})
    files, homes = letter_files(ports, live.state, names, audited=live.table.name)
    for entry, found in read_files(ports, files, ports.origins.letters, what="dead-letter files"):
        if found is None:
            raise CorruptStateError(
                f"dead-letter file {entry.path} of {live.table.name} is not in the store, and "
                f"{entry.records} dead letters with it; scripts/tarn fsck says more",
                path=entry.path,
            )
        for (stream, topic, partition), tally in found.items():
            account = accounts.get((topic, partition))
            if account is not None and stream in account.streams:
                for level in tally.levels:
                    account.letters.add(level & between(0, account.next))
    return homes


def _evidence(ports: LakePorts, live: LiveFiles, accounts: Mapping[Place, Account]) -> dict[str, str]:
    """Ask the log and the table's kept history about absent offsets; returns why logs were not asked."""
    unasked: dict[str, str] = {}
    with ExitStack() as closing:
        logs: dict[str, Log] = {}
        for account in accounts.values():
            if len(account.ends) > 1:
                unasked[account.topic] = f"the table has rows of {len(account.ends)} topics of this name"
                continue
            if not account.absent:
                continue
            if account.topic not in logs:
                log = Log(ports.topics, next(iter(account.ends)), ports.clock)
                closing.callback(log.close)
                logs[account.topic] = log
            log = logs[account.topic]
            place = next(iter(account.ends)), account.partition
            known = ports.without_record.get(place, BitMap64()) & account.absent
            found = log.records(account.partition, account.absent - known)
            if found is not None:
                account.log_start, account.asked, account.held = found.start, found.asked | known, found.held
                ports.without_record[place] = account.asked - account.held
            if log.reason:
                unasked[account.topic] = log.reason
    _known_removals(ports, live, accounts)
    if ports.history and any(account.absent for account in accounts.values()):
        _former_rows(ports, live, accounts)
    return unasked


def _known_removals(ports: LakePorts, live: LiveFiles, accounts: Mapping[Place, Account]) -> None:
    """What an earlier search of the history found, of offsets that are still absent."""
    for place, account in accounts.items():
        taken = ports.known.taken.get(place, {})
        for snapshot_id in [*taken]:
            if live.state.has_snapshot(snapshot_id) and not live.state.is_ancestor(snapshot_id):
                del taken[snapshot_id]  # rolled back
            elif taken[snapshot_id] & account.absent:
                account.taken |= taken[snapshot_id] & account.absent
                _took(account, _deletion(live, snapshot_id))
        account.removed |= ports.known.missing.get(place, BitMap64()) & account.absent


def _former_rows(ports: LakePorts, live: LiveFiles, accounts: Mapping[Place, Account]) -> None:
    """Find absent offsets among the rows of data files that only earlier snapshots have.

    The newest such file of a row decides how it went: by another engine's delete, or not.
    """
    absent = {place: account.absent - account.taken for place, account in accounts.items()}
    former = {}
    for entry, newest, after in live.former():
        if any(may_hold(entry, partition, offsets) for (_, partition), offsets in absent.items()):
            former[entry.path] = (entry, newest, after)

    def read(entry: FileEntry) -> Origins | None:
        try:
            return ports.origins.rows(entry, BitMap64())
        except CorruptStateError:
            return None

    files = [entry for entry, _, _ in former.values()]
    for entry, found in read_files(ports, files, read, what="former data files"):
        for place, tally in (found.rows if found is not None else {}).items():
            gone = tally.at_least(1) & absent.get(place, BitMap64())
            if gone:
                account = accounts[place]
                absent[place] = absent[place] - gone
                _, newest, after = former[entry.path]
                if after is not None and deleted_on_purpose(commit_of(live.state, after["snapshot-id"])):
                    by = ports.known.taken.setdefault(place, {})
                    by[after["snapshot-id"]] = by.get(after["snapshot-id"], BitMap64()) | gone
                    account.taken |= gone
                    _took(account, _deletion(live, after["snapshot-id"]))
                    continue
                account.removed |= gone
                account.removed_by = account.removed_by or (
                    f"the table had rows at {shown(gone)} in {entry.path}, last in snapshot "
                    f"{newest['snapshot-id']}; {_removal(live, after)}"
                )


def _took(account: Account, words: str) -> None:
    """Name a deletion, each once and the first few."""
    if words not in account.taken_by and len(account.taken_by) < HOLDERS_MAX:
        account.taken_by = (*account.taken_by, words)


def _deletion(live: LiveFiles, snapshot_id: int) -> str:
    commit = commit_of(live.state, snapshot_id)
    at = f" of {commit.at:%Y-%m-%d %H:%M:%S}Z" if commit.at is not None else ""
    return f"snapshot {snapshot_id} ({commit.operation or 'expired'}{at})"


def _removal(live: LiveFiles, after: Json | None) -> str:
    if after is None:
        return "no later snapshot is kept"
    commit = commit_of(live.state, after["snapshot-id"])
    at = f" of {commit.at:%Y-%m-%d %H:%M:%S}Z" if commit.at is not None else ""
    return f"snapshot {commit.snapshot_id} ({commit.operation or 'unknown'}{at}) does not have it"


def _holders(live: LiveFiles, account: Account) -> str:
    """The files with the first doubled offset, for a message."""
    doubled = account.doubled
    if not doubled:
        return ""
    offset = doubled.min()
    files: dict[str, int] = {}
    added: dict[str, int | None] = {}
    for entry in live.holding(account.topic, account.partition, offset):
        files[entry.path] = files.get(entry.path, 0) + 1
        added[entry.path] = entry.snapshot_id
    named = [
        f"{path}{f' ({times} times)' if times > 1 else ''}, added by snapshot {added[path]}"
        for path, times in files.items()
    ]
    more = f"; and {len(named) - HOLDERS_MAX} more" if len(named) > HOLDERS_MAX else ""
    return f"offset {offset} is in {'; '.join(named[:HOLDERS_MAX])}{more}"


def _account_data(account: Account) -> dict[str, Any]:
    sources = sorted(account.ends, key=lambda source: (source.cluster, source.topic_id))

    def listed(offsets: BitMap64) -> list[list[int]]:
        return [list(found) for found in islice(ranges(offsets), RANGES_MAX)]

    return {
        "streams": list(account.streams),
        "topic": account.topic,
        "topic_ids": [source.topic_id for source in sources],
        "partition": account.partition,
        "first": account.start,
        "next": account.next,
        "rows": account.rows.rows,
        "dead_letters": account.letters.rows,
        "retired": len(account.retired - account.present),
        "without_record": len(account.without_record),
        "unknown": len(account.unknown),
        "missing": len(account.missing),
        "deleted": len(account.deleted),
        "doubled": len(account.doubled),
        "beyond": len(account.beyond),
        "ranges": {
            "unknown": listed(account.unknown),
            "missing": listed(account.missing),
            "deleted": listed(account.deleted),
            "doubled": listed(account.doubled),
            "beyond": listed(account.beyond),
        },
    }
