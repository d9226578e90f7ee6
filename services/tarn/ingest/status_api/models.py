"""The answers of the status API. Their JSON schemas are made from these classes, so they cannot part.

Times are ISO 8601 in UTC. Unknown is null, never 0. Ids of snapshots are texts: they have 64 bits, and a
browser or jq would round such a number.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tarn.core.fsck_record import FINDINGS_MAX
from tarn.ingest.commit_ring import CommitKind, CommitOutcome
from tarn.ingest.status import State
from tarn.ingest.strikes import StrikeKind, StrikeState
from tarn.ingest.table_look import LISTED_MAX

MESSAGE_CHARS_MAX = 1_000
"""Characters of a message that are shown."""
PARTS_SHOWN_MAX = 1_000
"""Partitions and readers of one ingestor that are shown."""

Count = Annotated[int, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0, description="bytes")]
Seconds = Annotated[float, Field(ge=0, description="seconds")]
Milliseconds = Annotated[float, Field(ge=0, description="milliseconds")]
Message = Annotated[
    str, Field(max_length=MESSAGE_CHARS_MAX, description="what happened and what to do, for people")
]
SnapshotId = Annotated[str, Field(pattern=r"^-?[0-9]{1,20}$", description="id of a snapshot, as text")]
At = Annotated[datetime, Field(description="when this was answered")]


class Part(BaseModel):
    """A part of an answer: every field is there, under its name in camel case."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Endpoint(Part):
    """One path of the API."""

    path: str
    summary: str


class Index(Part):
    """What there is, and how the service is."""

    at: At
    service: str
    version: str
    started_at: Annotated[datetime, Field(description="start of the process; counters begin there")]
    healthy: bool
    faults: Annotated[list[Message], Field(description="what keeps the service from working")]
    endpoints: list[Endpoint]


class LastCommit(Part):
    """The last batch that an ingestor committed."""

    at: datetime
    milliseconds: Annotated[Milliseconds, Field(description="from decoding to the answer, in milliseconds")]
    snapshot_id: SnapshotId | None
    freshness_seconds: Annotated[
        Seconds | None, Field(description="age of its oldest record, by its time in the log, at that time")
    ]


class IngestorItem(Part):
    """An ingestor, or a spec that is not run. Counters are since the start of the process."""

    name: str
    state: State
    reason: Annotated[str | None, Field(description="why it does not run, in one word; null while it does")]
    message: Message | None
    since: Annotated[datetime | None, Field(description="when state or reason changed last")]
    table: str | None
    topic: str | None
    stream: Annotated[str | None, Field(description="name under which the table keeps its offsets")]
    replicas: Annotated[Count, Field(description="readers that it is to have")]
    ready_replicas: Annotated[Count, Field(description="readers that run")]
    lag: Annotated[Count | None, Field(description="offsets between the table and the end of the log")]
    lag_reason: Annotated[Message | None, Field(description="why the lag is unknown")]
    rows: Annotated[Count, Field(description="rows committed")]
    bad_records: Annotated[Count, Field(description="records sent to dead letters")]
    bytes: Annotated[Bytes, Field(description="bytes of the data files committed")]
    commits: Annotated[Count, Field(description="batches committed")]
    snapshots: Annotated[Count, Field(description="snapshots with these batches")]
    merges: Annotated[Count, Field(description="commits that merged small files")]
    conflicts: Annotated[Count, Field(description="commit requests that another writer's commit refused")]
    unknowns: Annotated[Count, Field(description="commit requests without a usable answer")]
    unknowns_resolved: Annotated[Count, Field(description="those of them whose outcome was found out")]
    retries: Annotated[Count, Field(description="commit requests after the first one of their commit")]
    last_commit: LastCommit | None


class Ingestors(Part):
    """Ingestors by name, a page of them."""

    at: At
    ingestors: list[IngestorItem]
    total: Annotated[Count, Field(description="number of all of them")]
    next: Annotated[str | None, Field(description="`after` of the next page; null at the end")]


class Partition(Part):
    """A partition of the topic that an ingestor reads."""

    partition: Count
    committed_offset: Annotated[Count | None, Field(description="the table has everything before it")]
    end_offset: Annotated[Count | None, Field(description="offset of the next message in the log")]
    lag: Count | None


class EventTime(Part):
    """How far a table is complete by the time in its rows."""

    column: str
    watermark: datetime | None
    complete_through: datetime | None
    held_back_by: Annotated[list[str], Field(description="streams of the table that are behind")]


class Bucket(Part):
    """Batches whose oldest record had an age up to a bound, and beyond the bound before."""

    at_most_seconds: Annotated[Seconds | None, Field(description="null: no bound")]
    batches: Count


class Freshness(Part):
    """Age of each batch's oldest record, by its time in the log, when its commit was done."""

    batches: Count
    sum_seconds: Seconds
    buckets: list[Bucket]


class Reader(Part):
    """One of the readers of an ingestor."""

    name: str
    state: State
    reason: str | None
    message: Message | None
    since: datetime | None
    rows: Count
    commits: Count


class Ingestor(IngestorItem):
    """An ingestor with its partitions and readers."""

    at: At
    partitions: Annotated[list[Partition], Field(max_length=PARTS_SHOWN_MAX)]
    partitions_total: Count
    event_time: EventTime | None
    freshness: Freshness
    retired_rows: Annotated[Count, Field(description="rows dropped because of their age")]
    retired_files: Count
    events: Annotated[Count, Field(description="events about complete partitions that were sent")]
    events_failed: Annotated[Count, Field(description="tries to send such events that failed")]
    readers: Annotated[list[Reader], Field(max_length=PARTS_SHOWN_MAX)]
    readers_total: Count


class TableItem(Part):
    """A table, as its metadata had it when they were seen last."""

    name: Annotated[str, Field(description="namespace and name, separated by dots")]
    rows: Count | None
    files: Annotated[Count | None, Field(description="data files of the current snapshot")]
    delete_files: Count | None
    bytes: Annotated[Bytes | None, Field(description="bytes of the files of the current snapshot")]
    snapshots: Annotated[Count | None, Field(description="snapshots in the metadata")]
    manifests: Annotated[Count | None, Field(description="manifests of the current snapshot")]
    metadata_bytes: Annotated[
        Bytes | None,
        Field(description="bytes of the metadata as compact JSON, the manifest list and these manifests"),
    ]
    snapshot_id: SnapshotId | None
    last_commit_at: Annotated[
        datetime | None, Field(description="time of the current snapshot; null also if no calendar has it")
    ]
    freshness_seconds: Annotated[
        Seconds | None,
        Field(description="of the last batch of an ingestor: age of its oldest record when it was committed"),
    ]
    ingestors: Annotated[list[str], Field(description="names of the ingestors that write it")]
    seen_at: Annotated[
        datetime | None,
        Field(
            description="when it was seen: by the last commit of an ingestor, or the last look at the lake"
        ),
    ]


class Tables(Part):
    """Tables by name, a page of them."""

    at: At
    looked_at: Annotated[datetime | None, Field(description="end of the last complete look at the lake")]
    fault: Annotated[Message | None, Field(description="why there is no later one")]
    tables: list[TableItem]
    total: Annotated[Count, Field(description="number of all of them")]
    next: Annotated[str | None, Field(description="`after` of the next page; null at the end")]


class StorageItem(Part):
    """What a table takes in the store. The reaper measures it: now and then it lists the table's folder."""

    table: str
    data_bytes: Annotated[Bytes | None, Field(description="bytes of the files of the current snapshot")]
    metadata_bytes: Annotated[Bytes | None, Field(description="see the table")]
    objects: Annotated[Count | None, Field(description="measured: objects in the table's folder")]
    stored_bytes: Annotated[Bytes | None, Field(description="measured: bytes of all of them")]
    history_bytes: Annotated[
        Bytes | None,
        Field(description="measured: metadata, manifests and what only older snapshots reach; also orphans"),
    ]
    waiting_bytes: Annotated[
        Bytes | None, Field(description="measured: bytes that the reaper deletes after their grace period")
    ]
    measured_at: datetime | None


class Storage(Part):
    """What the tables take in the store, by name, a page of them."""

    at: At
    looked_at: Annotated[datetime | None, Field(description="when the reaper's measurements were read")]
    fault: Annotated[Message | None, Field(description="why they could not be read since")]
    measured_tables: Annotated[Count, Field(description="tables that the reaper has measured")]
    stored_bytes: Annotated[Bytes | None, Field(description="sum of the measured tables; null: none is")]
    waiting_bytes: Annotated[Bytes | None, Field(description="likewise")]
    tables: list[StorageItem]
    total: Annotated[Count, Field(description="number of all tables")]
    next: Annotated[str | None, Field(description="`after` of the next page; null at the end")]


class Audit(Part):
    """The last scheduled audit of a table; counts are null before the first one was finished."""

    whole: Annotated[bool | None, Field(description="whether nothing is missing or doubled; null: unknown")]
    at: datetime | None
    all_files_at: Annotated[datetime | None, Field(description="of the last one that read every file")]
    seconds: Seconds | None
    snapshot_id: SnapshotId | None
    files: Count | None
    files_read: Count | None
    missing: Annotated[Count | None, Field(description="offsets without row and dead letter, with evidence")]
    doubled: Annotated[Count | None, Field(description="offsets with more than one row")]
    unknown: Annotated[Count | None, Field(description="offsets about which nothing more is known")]
    foreign_streams: Count | None
    findings: Annotated[list[Message], Field(description="damage: what is wrong and what to do")]
    reason: Annotated[Message | None, Field(description="why the last audit was not finished")]
    failures: Annotated[Count, Field(description="audits that were not finished")]


class Table(TableItem):
    """A table with its format, its storage, its freshness and its last audit."""

    at: At
    uuid: str | None
    format_version: Count | None
    freshness: Annotated[Freshness, Field(description="of the batches of its ingestors")]
    storage: StorageItem
    audit: Audit | None


class TableAudit(Audit):
    """The last scheduled audit of one table."""

    table: str


class Audits(Part):
    """The last audit of each table that ingestors fill, by name, a page of them."""

    at: At
    audits: list[TableAudit]
    total: Annotated[Count, Field(description="number of tables that were audited, or could not be")]
    next: Annotated[str | None, Field(description="`after` of the next page; null at the end")]


class FsckVerdict(StrEnum):
    """What is known of the lake from fsck."""

    UNKNOWN = "unknown"
    NEVER = "never"
    CLEAN = "clean"
    DAMAGED = "damaged"


class FsckRunState(StrEnum):
    """How a run of fsck is doing."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


class FsckKind(Part):
    """A kind of findings."""

    severity: Annotated[str, Field(description="damage, or note: worth knowing, and nothing is lost")]
    kind: Message
    count: Count


class FsckFinding(Part):
    """A finding of fsck. Values of partitions in the names of folders are left out."""

    severity: Annotated[str, Field(description="damage or note")]
    kind: Message
    where: Annotated[Message, Field(description="table, name or key")]
    what: Message
    fix: Annotated[Message, Field(description="what to do")]


class FsckResult(Part):
    """What the last run of fsck that came to its end found in the whole lake."""

    clean: Annotated[bool, Field(description="whether no damage was found")]
    began_at: datetime
    ended_at: datetime
    age_seconds: Annotated[
        Seconds, Field(description="since the run began: what it saw first may have changed since")
    ]
    old: Annotated[bool, Field(description="whether it is older than a day, or its time is yet to come")]
    seconds: Annotated[Seconds, Field(description="duration of the run, in seconds")]
    version: Annotated[str, Field(description="version of Tarn that looked")]
    namespaces: Count
    tables: Annotated[Count, Field(description="tables and views")]
    snapshots: Count
    files: Annotated[Count, Field(description="files that they reach: of data, deletes and metadata")]
    bytes: Annotated[Bytes, Field(description="bytes of these files")]
    orphans: Annotated[Count, Field(description="files that nothing names")]
    orphan_bytes: Annotated[Bytes, Field(description="bytes of these")]
    damage: Annotated[Count, Field(description="findings that are damage")]
    notes: Annotated[Count, Field(description="findings that are none")]
    kinds: list[FsckKind]
    findings: Annotated[
        list[FsckFinding], Field(max_length=FINDINGS_MAX, description="the first findings, damage first")
    ]


class FsckRun(Part):
    """A run of fsck without a result, after the last one with a result."""

    state: Annotated[
        FsckRunState,
        Field(
            description="interrupted: somebody ended it, or it has said nothing for a minute. failed: it "
            "could not look, or not record its result. Neither says anything about the lake"
        ),
    ]
    began_at: datetime
    said_at: Annotated[datetime, Field(description="when it said so")]
    progress: Annotated[Message | None, Field(description="what it did last")]
    reason: Annotated[Message | None, Field(description="why it failed")]


class Fsck(Part):
    """What fsck found last. Nothing runs it by itself."""

    at: At
    looked_at: Annotated[datetime | None, Field(description="when this was read from the store")]
    fault: Annotated[Message | None, Field(description="what of it cannot be read or used, and what to do")]
    verdict: Annotated[
        FsckVerdict,
        Field(
            description="of the last result, whatever its age. never: there is none. unknown: it is not "
            "known whether there is one"
        ),
    ]
    result: FsckResult | None
    run: FsckRun | None
    next: Annotated[Message, Field(description="what to do now")]


class SnapshotItem(Part):
    """A snapshot of a table. What its summary does not say is null."""

    snapshot_id: SnapshotId
    parent_id: SnapshotId | None
    at: Annotated[datetime | None, Field(description="null: a time that no calendar has")]
    sequence: int
    operation: Annotated[str | None, Field(description="append, overwrite, replace or delete")]
    current: Annotated[bool, Field(description="whether it is the current one")]
    in_history: Annotated[bool, Field(description="whether it is the current one or an ancestor of it")]
    refs: Annotated[list[str], Field(max_length=LISTED_MAX, description="branches and tags that name it")]
    commits: Annotated[Count, Field(description="commits of Tarn's writers in it; 0: somebody else made it")]
    added_rows: Count | None
    removed_rows: Count | None
    added_files: Count | None
    removed_files: Count | None
    added_bytes: Bytes | None
    rows: Annotated[Count | None, Field(description="rows of the table in this snapshot")]
    files: Count | None
    bytes: Bytes | None


class Snapshots(Part):
    """Snapshots of a table that are kept, newest first, a page of them."""

    at: At
    table: str
    snapshots: list[SnapshotItem]
    total: Count
    next: Annotated[str | None, Field(description="`after` of the next page; null at the end")]


class FileItem(Part):
    """A file of a table's snapshot, as its manifest describes it."""

    path: Annotated[
        str, Field(description="below the table's location; values of partitions in it are left out")
    ]
    bytes: Bytes
    rows: Count
    deletes: Annotated[bool, Field(description="whether it is a delete file")]
    added_by: Annotated[SnapshotId | None, Field(description="snapshot that added it")]


class Files(Part):
    """Files of the current snapshot, a page of them; following pages are of the same snapshot."""

    at: At
    table: str
    snapshot_id: SnapshotId | None
    files: list[FileItem]
    total: Annotated[
        Count | None,
        Field(description="data and delete files of the snapshot, by its summary; null: unknown"),
    ]
    next: Annotated[str | None, Field(description="`after` of the next page; null at the end")]


class Column(Part):
    """A column of the current schema."""

    id: int
    name: str
    type: Annotated[str, Field(description="as Iceberg writes it, cut at 200 characters")]
    required: bool


class PartitionField(Part):
    """A field of the current partition spec."""

    name: str
    transform: str
    column: Annotated[str | None, Field(description="name of the column; null if the schema has it no more")]


class Ref(Part):
    """A branch or a tag."""

    name: str
    kind: Annotated[str, Field(description="branch or tag")]
    snapshot_id: SnapshotId


class ManifestItem(Part):
    """A manifest of the current snapshot."""

    path: str
    bytes: Bytes
    added_by: SnapshotId | None


class EarlierMetadata(Part):
    """An earlier metadata file that the metadata still name."""

    path: str
    at: datetime | None


class Metadata(Part):
    """The objects that make a table: metadata, manifest list, manifests, and what the metadata say."""

    at: At
    table: str
    uuid: str
    format_version: Count
    location: Annotated[str, Field(description="the table's own folder; other paths are below it")]
    path: Annotated[str | None, Field(description="the metadata file that the catalog points to")]
    updated_at: datetime | None
    snapshot_id: SnapshotId | None
    manifest_list: str | None
    manifests: Annotated[list[ManifestItem], Field(max_length=LISTED_MAX)]
    manifests_total: Count
    earlier: Annotated[
        list[EarlierMetadata],
        Field(max_length=LISTED_MAX, description="earlier metadata files, newest first"),
    ]
    earlier_total: Count
    columns: Annotated[list[Column], Field(max_length=LISTED_MAX)]
    columns_total: Count
    partitioning: Annotated[list[PartitionField], Field(max_length=LISTED_MAX)]
    refs: Annotated[list[Ref], Field(max_length=LISTED_MAX)]
    refs_total: Count


class Page(Part):
    """What the page at / has to know."""

    at: At
    stream_url: Annotated[
        str | None, Field(description="address of the service stream; null: there is none here")
    ]
    faults: Annotated[bool, Field(description="whether faults may be made by hand")]


class StrikeAudit(Part):
    """What the audit after a fault by hand found."""

    whole: Annotated[bool, Field(description="whether nothing is damaged")]
    accounted: Annotated[Count, Field(description="offsets with a row or a dead letter")]
    missing: Annotated[Count, Field(description="offsets without either, with evidence")]
    doubled: Annotated[Count, Field(description="offsets with more than one row")]
    unknown: Annotated[Count, Field(description="offsets about which nothing more is known")]
    files: Count
    seconds: Seconds
    snapshot_id: SnapshotId | None
    findings: list[Message]


class Strike(Part):
    """A fault by hand."""

    id: Annotated[Count, Field(description="its number, from 1; begins with the process")]
    kind: Annotated[
        StrikeKind,
        Field(
            description="drop-reply: the answer to the table's next commit is dropped after the catalog "
            "applied it. kill-writer: a writer is ended as a crash does"
        ),
    ]
    ingestor: str
    table: str
    state: Annotated[
        StrikeState,
        Field(
            description="waiting: for the next commit. struck: until it is healed. auditing: the table is "
            "read. done, failed: over"
        ),
    ]
    asked_at: datetime
    struck_at: datetime | None
    what: Annotated[Message | None, Field(description="what was struck")]
    healed_at: datetime | None
    heal_seconds: Annotated[
        Seconds | None, Field(description="from the strike until the commit that shows it healed was known")
    ]
    resolution: Annotated[Message | None, Field(description="how it was resolved")]
    outcome: Annotated[CommitOutcome | None, Field(description="of that commit, see the commits")]
    commit_id: str | None
    snapshot_id: SnapshotId | None
    audit: StrikeAudit | None
    ended_at: datetime | None
    reason: Annotated[Message | None, Field(description="why it failed")]


class Faults(Part):
    """The last faults by hand, newest first."""

    at: At
    enabled: Annotated[bool, Field(description="whether they may be made (TARN_FAULTS)")]
    token: Annotated[
        str | None,
        Field(
            description="to be sent as X-Tarn-Fault-Token, which a page of another origin cannot read or send"
        ),
    ]
    running: Annotated[bool, Field(description="whether one is under way; the next one has to wait")]
    strikes: list[Strike]


class CommitItem(Part):
    """A commit of an ingestor that is in its table."""

    number: Annotated[Count, Field(description="grows from commit to commit, also over restarts")]
    at: Annotated[datetime, Field(description="when its outcome was known")]
    ingestor: str
    reader: str
    table: str
    kind: Annotated[
        CommitKind,
        Field(description="batch of rows, merge of small files, retirement of rows that are too old"),
    ]
    outcome: Annotated[
        CommitOutcome,
        Field(
            description="committed: the catalog said so. resolved: a request got no answer, and the table "
            "shows the commit. found: the table had it before any request"
        ),
    ]
    commit_id: Annotated[str, Field(description="the same for all attempts, and in the snapshot")]
    snapshot_id: SnapshotId | None
    attempts: Annotated[Count, Field(description="commit requests")]
    rows: Annotated[Count, Field(description="rows that came into the table")]
    bad_records: Annotated[Count, Field(description="records that came into the dead letters")]
    rows_removed: Annotated[Count, Field(description="rows that were dropped because of their age")]
    bytes: Annotated[Bytes, Field(description="bytes of the data files that it added")]
    milliseconds: Milliseconds
    oldest_age_seconds: Annotated[
        Seconds | None, Field(description="age of its oldest record, by its time in the log, at that time")
    ]


class Commits(Part):
    """Commits in order: the last ones, or the first ones after `since`."""

    at: At
    commits: list[CommitItem]
    next: Annotated[Count, Field(description="`since` of the next request")]
    missed: Annotated[
        bool, Field(description="whether commits after `since` are not known (any more): ask the tables")
    ]


class ServiceItem(Part):
    """Something that ingest needs, as it was looked at last; `controller` is a part of ingest itself."""

    name: str
    ok: bool
    message: Message
    looked_at: datetime


class Services(Part):
    """What ingest needs, and what keeps it from working."""

    at: At
    healthy: bool
    faults: list[Message]
    hanging: Annotated[list[Message], Field(description="what only a restart helps")]
    services: list[ServiceItem]


class Problem(Part):
    """Why a request was refused."""

    type: str
    code: int
    message: str
    field: Annotated[str | None, Field(description="what is wrong: a parameter, the path or a header")] = None
    value: Annotated[str | None, Field(description="its value")] = None
    fix: Annotated[str | None, Field(description="what to send instead")] = None


class Error(Part):
    """An error."""

    error: Problem
