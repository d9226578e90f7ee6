"""Small files of a stream become one: the same rows and offsets, whatever fails or changes meanwhile."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tarn.adapters import files as parquet_files
from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.adapters.table_files import IcebergWriter
from tarn.core import small_files
from tarn.core.errors import UnavailableError
from tarn.core.history import Retention
from tarn.core.outcome import Unknown
from tarn.core.spec import parse_spec
from tarn.core.table_catalog import CommitDone, CommitOutcome, TableName
from tarn.core.table_state import Append, CommitRequest, TableState, WrittenFile, build_commit
from tarn.ingest.batch_commit import offsets_in
from tarn.ingest.ingestor import Ingestor, Plan
from tarn.ingest.status import State
from tarn.keeper.archive import Begin
from tarn.keeper.backup import backup
from tarn.keeper.fsck import Report, fsck
from tarn.keeper.restore import restore
from tarn.testing.executors import SteppedExecutor
from tarn.testing.memory_topic import Topic
from tests.contract.ingest.test_faults import audit, faulty_lake, feed
from tests.contract.ingest.test_parquet import sort_by
from tests.support.lake import BUCKET, SPEC, Lake, order
from tests.support.plays import seeds

TABLE = TableName(("bronze",), "orders")
MINUTE_S = small_files.EVERY_S + 1


def spec(partitioning: str = "[]", *, merge: str = "true", version: int = 2) -> Any:
    text = SPEC.replace("FORMAT", str(version)).replace("PARTITIONING", partitioning)
    return parse_spec(
        text.replace("maxLatencySeconds: 0.05", f"maxLatencySeconds: 0.05, mergeSmallFiles: {merge}"),
        file="orders.yaml",
    )


def lake_with(partitions: int = 1) -> tuple[Lake, Topic]:
    topic = Topic("orders", partitions)
    # The catalog forgets snapshots as usual; the fewer there are, the more a merge must carry forward.
    return Lake(topic, retention=Retention(newest=5, steps=(), total_min=0)), topic


def commits(lake: Lake, topic: Topic, ingestor: Ingestor, number: int, *, bad: bool = False) -> None:
    """So many commits of five records each, one after the other, in one plan; then a minute passes.

    With `bad`, the first record of each is a bad one.
    """
    turn = [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] % 12 == 0 and turn[0] <= number * 12:
            first = len(topic.logs[0])
            topic.send(0, b"junk" if bad else order(first), *(order(first + n) for n in range(1, 5)))
        if turn[0] == number * 12 + 20:
            lake.clock.now_s += MINUTE_S
        return turn[0] > number * 12 + 40

    ingestor.cycle(until)


def operations(lake: Lake) -> list[str]:
    return [s["summary"]["operation"] for s in lake.table().metadata["snapshots"]]


def is_whole(lake: Lake, topic: Topic) -> None:
    assert lake.offsets() == [(0, n) for n in range(len(topic.logs[0]))]
    lake.history_is_a_chain()
    assert checked(lake).damage == []


def quiet(_: object) -> None:
    return None


def checked(lake: Lake) -> Report:
    return fsck(PlainBulk(lake.store), manifest_audit, bucket=BUCKET, tell=quiet, sleep=quiet)


def saved(lake: Lake) -> bytes:
    """A backup, which holds everything."""
    out = io.BytesIO()
    begin = Begin(id="b-1", bucket=BUCKET, warehouse="tarn", at="2026-11-27T12:00:00+00:00", version="0")
    done = backup(PlainBulk(lake.store), manifest_audit, out, begin, tell=quiet, sleep=quiet)
    assert done.whole
    return out.getvalue()


def test_the_files_of_a_minute_become_one_with_the_same_rows() -> None:
    lake, topic = lake_with()
    commits(lake, topic, lake.ingestor(spec()), 12)
    assert len(lake.files()) == 1
    head = lake.table().head["summary"]
    assert head["operation"] == "replace"
    assert (head["added-data-files"], head["deleted-data-files"]) == ("1", "12")
    assert (head["added-records"], head["deleted-records"], head["total-records"]) == ("60", "60", "60")
    (entry,) = lake.files()
    assert int(head["total-files-size"]) == entry.data_file.file_size_in_bytes
    assert offsets_in(lake.table(), "orders").next == {0: 60}
    assert head["tarn.offsets.orders"], "the snapshots with the map may expire before the next batch"
    is_whole(lake, topic)


def test_dead_letters_that_wait_are_carried_forward() -> None:
    lake, topic = lake_with()
    topic.send(0, b"junk")
    killed = lake.ingestor(spec())
    killed._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    killed._dead_letters.due = lambda: False  # type: ignore[method-assign]
    commits(lake, topic, killed, 12)
    head = lake.table().head["summary"]
    assert head["operation"] == "replace"
    assert "tarn.dead-letters.orders" in head
    lake.work(lake.ingestor(spec()))
    assert [row["value"] for row in lake.rows("ops.dead_letters")] == [b"junk"]


def letters_of(lake: Lake) -> tuple[list[int], int, dict[str, str]]:
    """Offsets of the dead letters, number of their files, and the summary of their table's snapshot."""
    rows = lake.rows("ops.dead_letters")
    head = lake.table("ops.dead_letters").head["summary"]
    return sorted(row["offset"] for row in rows), len(lake.files("ops.dead_letters")), head


def test_dead_letter_files_are_merged_as_well() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor(spec())
    for minute in range(1, 5):
        commits(lake, topic, ingestor, 24, bad=True)
        offsets, files, head = letters_of(lake)
        assert offsets == list(range(0, 120 * minute, 5))
        assert files <= minute + 8, "one of each minute, and what was registered after its end"
        assert head["tarn.dead-letters-records"] == head["total-records"] == str(24 * minute)
        assert json.loads(head["tarn.dead-letters-registered"]).keys() == {"orders"}
    merges = [
        s["summary"]
        for s in lake.table("ops.dead_letters").metadata["snapshots"]
        if s["summary"]["operation"] == "replace"
    ]
    assert len(merges) >= 3
    assert all(one["added-records"] == one["deleted-records"] for one in merges)
    assert {one["added-data-files"] for one in merges} == {"1"}
    commits(lake, topic, lake.ingestor(spec()), 3, bad=True)
    assert letters_of(lake)[0] == list(range(0, 495, 5))
    lake.history_is_a_chain("ops.dead_letters")


def test_nothing_misses_dead_letter_files_that_were_merged() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    commits(lake, topic, lake.ingestor(spec()), 24, bad=True)
    named = {
        path
        for snapshot in lake.table().metadata["snapshots"]
        for path, *_ in json.loads(snapshot["summary"].get("tarn.dead-letters.orders", "[]"))
    }
    assert len(named) == 24
    # What the reaper does once no snapshot reaches them.
    live = {entry.data_file.file_path for entry in lake.files("ops.dead_letters")}
    for path in named - live:
        lake.store.delete(path.removeprefix(f"s3://{BUCKET}/"))
    keep = lake.table("ops.dead_letters").head_id
    lake.local.catalog.tables.commit(
        lake.local._slot(TableName(("ops",), "dead_letters")),
        [],
        [
            {
                "action": "remove-snapshots",
                "snapshot-ids": [
                    snapshot["snapshot-id"]
                    for snapshot in lake.table("ops.dead_letters").metadata["snapshots"]
                    if snapshot["snapshot-id"] != keep
                ],
            }
        ],
    )
    assert checked(lake).damage == []
    saved(lake)
    lake.work(lake.ingestor(spec()))
    assert letters_of(lake)[0] == list(range(0, 120, 5)), "none is registered again"


@pytest.mark.parametrize(
    ("deletes", "then"), [({}, 5), ({"total-records": "1"}, 2), ({"total-position-deletes": "3"}, 2)]
)
def test_rows_that_others_delete_from_the_dead_letter_table_are_not_missed(
    deletes: dict[str, str], then: int
) -> None:
    lake, topic = lake_with()
    topic.send(0, b"junk", b"more", b"most", b"last")
    lake.work(lake.ingestor(spec()))
    assert letters_of(lake)[2]["tarn.dead-letters-records"] == "4"
    state = lake.table("ops.dead_letters")
    summary = {k: v for k, v in state.head["summary"].items() if k.startswith("total-")}
    snapshot = {
        **state.head,
        "snapshot-id": 7,
        "parent-snapshot-id": state.head_id,
        "sequence-number": state.last_sequence + 1,
        "timestamp-ms": int(state.metadata["last-updated-ms"]) + 1,
        "summary": {**summary, **deletes, "operation": "delete" if deletes else "replace"},
    }
    at = {"ref-name": "main", "type": "branch", "snapshot-id": 7}
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", **at}]
    lake.local.catalog.tables.commit(lake.local._slot(TableName(("ops",), "dead_letters")), [], updates)
    topic.send(0, b"another")
    lake.work(lake.ingestor(spec()))
    assert lake.table("ops.dead_letters").head["summary"]["tarn.dead-letters-records"] == str(then)


def test_dead_letter_files_stay_as_they_are_if_they_may_not_be_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec(merge="false"))
    commits(lake, topic, ingestor, 12, bad=True)
    assert letters_of(lake)[1] == 12
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec())
    monkeypatch.setattr("tarn.ingest.dead_letters.why_not", lambda _state: "the table has delete files")
    with capture_logs() as logs:
        commits(lake, topic, ingestor, 12, bad=True)
    assert letters_of(lake)[1] == 12
    assert [e["reason"] for e in logs if e["event"] == "dead-letter files are left as they are"] == [
        "the table has delete files"
    ]
    commits(lake, topic, ingestor, 3, bad=True)
    assert letters_of(lake)[0] == list(range(0, 75, 5))


def test_no_file_is_written_if_dead_letter_files_may_not_be_merged() -> None:
    """Nothing would ever delete it, as no history names it."""
    lake, topic = lake_with()
    inner, name = lake.local.load, TableName(("ops",), "dead_letters")

    def load(table: TableName) -> TableState:
        state = inner(table)
        if state.head is not None and table == name:
            state.head["summary"]["total-delete-files"] = "1"
        return state

    lake.local.load = load  # type: ignore[method-assign]
    ingestor = lake.ingestor(spec())
    with capture_logs() as logs:
        commits(lake, topic, ingestor, 12, bad=True)
    assert letters_of(lake)[1] == 12
    root = f"{lake.table('ops.dead_letters').root.removeprefix(f's3://{BUCKET}/')}/data/"
    assert len(list(lake.store.list(root))) == 12
    assert [e["reason"] for e in logs if e["event"] == "dead-letter files are left as they are"] == [
        "the table has delete files"
    ]
    assert ingestor._context.merging.acquire(blocking=False), "another reader can merge"


@pytest.mark.parametrize("when", ["before the merge", "during the merge", "the catalog does not respond"])
def test_a_merge_of_dead_letters_that_cannot_be_ends_no_batch(when: str) -> None:
    lake, topic = lake_with()
    ingestor, name = lake.ingestor(spec()), TableName(("ops",), "dead_letters")
    inner, merge, turn, loads = lake.local.load, ingestor._merge, [0], list[int]()

    def load(table: TableName) -> TableState:
        if table == name and turn[0] >= 12 * 12 and when.startswith("the catalog"):
            loads.append(1)
            raise UnavailableError("the catalog does not respond")
        return inner(table)

    def merged(*given: Any, **letters: Any) -> Any:
        if letters and when.startswith("during"):
            loads.append(1)
            lake.local.drop(name)
        return merge(*given, **letters)

    def until() -> bool:
        turn[0] += 1
        if turn[0] % 12 == 0 and turn[0] <= 12 * 12:
            topic.send(0, b"junk", *(order(turn[0] + n) for n in range(1, 5)))
        if turn[0] == 12 * 12 + 20:
            if when.startswith("before"):
                loads.append(1)
                lake.local.drop(name)
            lake.clock.now_s += MINUTE_S
        return turn[0] > 12 * 12 + 100

    lake.local.load = load  # type: ignore[method-assign]
    ingestor._merge = merged  # type: ignore[method-assign]
    with capture_logs() as logs:
        ingestor.cycle(until)
    assert loads
    assert turn[0] > 12 * 12 + 100, "the cycle did not end before"
    assert any(e["event"] == "dead-letter files are left as they are" for e in logs)
    assert ingestor._context.merging.acquire(blocking=False), "another reader can merge"


def test_dead_letter_files_of_other_columns_are_not_merged() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    ingestor = lake.ingestor(spec())
    clock_s = lake.clock.now_s

    def widen() -> None:
        name = TableName(("ops",), "dead_letters")
        schema = dict(lake.table("ops.dead_letters").metadata["schemas"][-1])
        number = max(f["id"] for f in schema["fields"]) + 1
        note = {"id": number, "name": "note", "type": "string", "required": False}
        updates = [
            {"action": "add-schema", "schema": {**schema, "fields": [*schema["fields"], note]}},
            {"action": "set-current-schema", "schema-id": -1},
        ]
        lake.local.catalog.tables.commit(lake.local._slot(name), [], updates)

    turn = [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] % 12 == 0 and turn[0] <= 24 * 12:
            topic.send(0, b"junk", order(turn[0]))
        if turn[0] == 16 * 12:
            widen()
        if turn[0] in (24 * 12 + 20, 24 * 12 + 60):
            lake.clock.now_s += MINUTE_S
        return turn[0] > 24 * 12 + 100

    ingestor.cycle(until)
    assert lake.clock.now_s - clock_s > 2 * MINUTE_S
    offsets, files, head = letters_of(lake)
    assert offsets == list(range(0, 48, 2))
    assert 10 < files < 20, "those of before stay, those of after become one"
    assert head["tarn.dead-letters-records"] == "24"
    assert len(lake.table("ops.dead_letters").metadata["schemas"]) == 2


def test_two_processes_register_for_each_other_and_each_merges_its_own() -> None:
    topic = Topic("orders", 2)
    lake = Lake(topic)
    body = spec().model_dump(by_alias=True)
    body["spec"]["replicas"] = 2
    made = type(spec()).model_validate(body)
    readers = [Ingestor(made, lake.context(), replica=number) for number in range(2)]
    turn = [0]

    def until() -> bool:
        turn[0] += 1
        return turn[0] % 40 == 0

    for number in range(24):
        for partition in range(2):
            topic.send(partition, b"junk", order(number))
        for reader in readers:
            reader.cycle(until)
    lake.clock.now_s += MINUTE_S
    for reader in readers:
        reader.cycle(until)
    offsets, files, _ = letters_of(lake)
    assert offsets == sorted([*range(0, 48, 2)] * 2)
    assert files <= 4


def test_dead_letters_that_wait_are_in_a_backup() -> None:
    topic = Topic("orders", 1)
    lake = Lake(topic)
    topic.send(0, b"junk", order(1))
    killed = lake.ingestor(spec())
    killed._dead_letters.register = lambda _state: 0  # type: ignore[method-assign]
    killed._dead_letters.due = lambda: False  # type: ignore[method-assign]
    lake.work(killed)
    assert lake.rows("ops.dead_letters") == []
    ((path, *_),) = json.loads(lake.table().head["summary"]["tarn.dead-letters.orders"])
    restored = MemoryStore()
    restore(
        PlainBulk(restored), io.BytesIO(saved(lake)), bucket=BUCKET, warehouse="tarn", tell=quiet, sleep=quiet
    )
    assert restored.get(path.removeprefix(f"s3://{BUCKET}/")) is not None


def test_ingestion_goes_on_after_it_and_a_new_process_too() -> None:
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec())
    commits(lake, topic, ingestor, 10)
    commits(lake, topic, ingestor, 3)
    topic.send(0, *(order(n) for n in range(100, 107)))
    lake.work(lake.ingestor(spec()), turns=60)
    is_whole(lake, topic)
    tag = lake.table().refs["tarn-offsets-orders"]["snapshot-id"]
    assert tag == lake.table().head_id


def test_rows_are_written_again_once_per_level_and_files_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "NEXT_LEVEL_MIN", 4)
    lake, topic = lake_with()
    ingestor, counts, added = lake.ingestor(spec()), list[int](), [0]
    inner = lake.local.commit

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        snapshots = [u["snapshot"] for u in request.updates if u["action"] == "add-snapshot"]
        added[0] += sum(int(s["summary"]["added-records"]) for s in snapshots) if table == TABLE else 0
        return inner(table, request, key=key)

    lake.local.commit = commit  # type: ignore[method-assign]
    turn = [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] % 12 == 0:
            first = len(topic.logs[0])
            topic.send(0, *(order(n) for n in range(first, first + 5)))
        if turn[0] % 100 == 0:
            lake.clock.now_s += MINUTE_S
            counts.append(len(lake.files()))
        return turn[0] > 4_000

    ingestor.cycle(until)
    rows = len(topic.logs[0])
    assert rows > 1_500
    assert max(counts) <= 2 * small_files.FIRST_LEVEL_MIN + 4 * small_files.LEVELS < rows / 5
    assert 2 * rows < added[0] <= rows * (1 + small_files.LEVELS)
    lake.work(lake.ingestor(spec()))
    is_whole(lake, topic)


@pytest.mark.parametrize("partitioning", ["['bucket(3, id)']", "['day(at)']"])
def test_files_of_different_partitions_are_not_mixed(partitioning: str) -> None:
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec(partitioning))
    commits(lake, topic, ingestor, 12)
    partitions = [tuple(entry.data_file.partition) for entry in lake.files()]
    assert len(partitions) == len(set(partitions)), "one file each"
    is_whole(lake, topic)


@pytest.mark.parametrize(
    "made", [spec(merge="false"), spec(version=3)], ids=["switched off", "format version 3"]
)
def test_files_that_must_not_be_merged_are_left_as_they_are(made: Any) -> None:
    lake, topic = lake_with()
    commits(lake, topic, lake.ingestor(made), 12)
    assert len(lake.files()) == 12
    is_whole(lake, topic)


def foreign(
    lake: Lake, ingestor: Ingestor, *, removed: tuple[WrittenFile, ...], summary: dict[str, str]
) -> None:
    """A commit of another client that removes files."""
    state = lake.local.load(TABLE)
    writer = ingestor.files.writer(state)
    snapshot_id = 4_000_000 + state.last_sequence
    files = writer.snapshot((), snapshot_id=snapshot_id, removed=removed)
    written = files.write_manifest_list(state)
    change = Append.of((), commit_id="foreign", summary=summary, tag="theirs", since="x", removed=removed)
    request = build_commit(
        state, change, snapshot_id=snapshot_id, manifest_list=written.path, added_rows=0,
        now_ms=int(lake.clock.now_s * 1_000) + 1_700_000_000_000, retention=Retention(),
    )  # fmt: skip
    assert isinstance(lake.local.commit(TABLE, request, key=_key()), CommitDone)


def _key() -> str:
    from tarn.ingest.wiring import uuid7

    return uuid7()


def before_the_merge(lake: Lake, act: Any) -> None:
    """Run `act` just before the request of the first merge is sent."""
    inner, done = lake.local.commit, [False]

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        summaries = [u["snapshot"]["summary"] for u in request.updates if u["action"] == "add-snapshot"]
        if not done[0] and summaries and summaries[0]["operation"] == "replace":
            done[0] = True
            act()
        return inner(table, request, key=key)

    lake.local.commit = commit  # type: ignore[method-assign]


def test_rows_that_another_client_deletes_meanwhile_stay_deleted() -> None:
    lake, topic = lake_with()
    ingestor, before = lake.ingestor(spec()), list[WrittenFile]()
    remember = ingestor._small_files.add

    def add(files: tuple[WrittenFile, ...], *, level: int = 0) -> None:
        before.extend(files)
        remember(files, level=level)

    monkey = pytest.MonkeyPatch()
    monkey.setattr(small_files.SmallFiles, "add", lambda _self, files, level=0: add(files, level=level))
    try:
        before_the_merge(lake, lambda: foreign(lake, ingestor, removed=(before[3],), summary={}))
        commits(lake, topic, ingestor, 12)
    finally:
        monkey.undo()
    gone = set(range(15, 20))
    assert {offset for _, offset in lake.offsets()} == set(range(60)) - gone
    assert len(lake.files()) == 11
    assert len(lake.offsets()) == 55
    lake.history_is_a_chain()


def test_files_are_not_merged_over_delete_files() -> None:
    """A deletion vector names a file and positions in it, which a merged file does not have."""
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec())
    inner = lake.local.load

    def load(table: TableName) -> TableState:
        state = inner(table)
        if state.head is not None and table == TABLE:
            state.head["summary"]["total-delete-files"] = "1"
        return state

    commits(lake, topic, ingestor, 3)
    lake.local.load = load  # type: ignore[method-assign]
    commits(lake, topic, lake.ingestor(spec()), 12)
    assert len(lake.files()) >= 12
    assert "replace" not in operations(lake)


def test_after_a_merge_that_had_to_wait_the_status_is_running_again() -> None:
    lake, topic = lake_with()
    ingestor, inner, lost = lake.ingestor(spec()), lake.local.commit, [0]

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        summaries = [u["snapshot"]["summary"] for u in request.updates if u["action"] == "add-snapshot"]
        if summaries and summaries[0]["operation"] == "replace" and not lost[0]:
            lost[0] += 1
            inner(table, request, key=key)
            return Unknown(reason="504")
        return inner(table, request, key=key)

    lake.local.commit = commit  # type: ignore[method-assign]
    commits(lake, topic, ingestor, 12)
    assert lost == [1]
    assert lake.registry.get("orders").state is State.RUNNING
    assert len(lake.files()) == 1
    is_whole(lake, topic)


def test_merges_have_their_turn_even_if_a_batch_is_always_waiting() -> None:
    """A stream whose commits take as long as its batches is never idle between two of them."""
    lake, topic = lake_with()
    topic.send(0, *(order(n) for n in range(3_000)))
    clock, turn, most = lake.clock, [0], [0]
    lake.commits_now = lambda: turn[0] % 7 == 0

    def until() -> bool:
        turn[0] += 1
        clock.now_s += 2.0
        if turn[0] % 50 == 0:
            most[0] = max(most[0], len(lake.files()))
        return turn[0] > 1_200

    lake.ingestor(spec()).cycle(until)
    assert len(lake.offsets()) > 1_600, "some 200 batches, of 8 records and more"
    assert most[0] < 120
    lake.work(lake.ingestor(spec()), turns=900)
    is_whole(lake, topic)


def test_a_stream_that_is_never_up_to_date_is_merged_each_minute_too() -> None:
    """Whenever a commit ends, the next batch has waited long enough: no look finds it idle."""
    lake, topic = lake_with()
    topic.send(0, *(order(n) for n in range(2_000)))
    turn, most, made = [0], [0], [0]

    def executor() -> SteppedExecutor:
        """Of a plan, the first is that of merges, which run at once; a commit only when it is waited for."""
        made[0] += 1
        return SteppedExecutor() if made[0] % 2 else SteppedExecutor(lambda: False)

    def until() -> bool:
        turn[0] += 1
        lake.clock.now_s += 0.5
        if turn[0] % 10 == 0:
            most[0] = max(most[0], len(lake.files()))
        return turn[0] > 600

    Ingestor(spec(), replace(lake.context(), executor=executor)).cycle(until)
    assert len(lake.offsets()) > 900, "more than 90 batches of ten records"
    assert most[0] < 60
    lake.work(lake.ingestor(spec()), turns=900)
    is_whole(lake, topic)


class Beside:
    """Runs merges beside commits: those run at once, a merge only when the test lets it."""

    def __init__(self, lake: Lake) -> None:
        self.lets = False
        self.made = 0
        self.context = replace(lake.context(), executor=self.executor)

    def executor(self) -> SteppedExecutor:
        """Of a plan, the first is that of merges."""
        self.made += 1
        return SteppedExecutor(lambda: self.lets) if self.made % 2 else SteppedExecutor()


def test_batches_are_committed_while_small_files_are_merged() -> None:
    lake, topic = lake_with()
    beside = Beside(lake)
    ingestor, seen, turn = Ingestor(spec(), beside.context), list[tuple[int, bool]](), [0]

    def until() -> bool:
        turn[0] += 1
        if turn[0] % 12 == 0 and len(topic.logs[0]) < 150:
            first = len(topic.logs[0])
            topic.send(0, *(order(n) for n in range(first, first + 5)))
        if turn[0] == 160:
            lake.clock.now_s += MINUTE_S
        if turn[0] in (170, 500):
            seen.append((len(lake.offsets()), "replace" in operations(lake)))
        beside.lets = turn[0] > 500
        return turn[0] > 560

    ingestor.cycle(until)
    assert seen == [(65, False), (150, False)], "the merge is under way, and batches come in"
    assert "replace" in operations(lake)
    assert 1 < len(lake.files()) < 30
    is_whole(lake, topic)


def test_a_merge_has_as_many_rows_as_the_writer_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "MERGED_ROWS_MAX", 20)
    lake, topic = lake_with()
    commits(lake, topic, lake.ingestor(spec()), 12)
    assert len(lake.files()) == 6, "two of four files each, and four that are too few"
    assert max(entry.data_file.record_count for entry in lake.files()) == 20
    is_whole(lake, topic)


def test_a_table_that_sorts_more_rows_than_a_merge_can_hold_is_merged_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(small_files, "SORT_BYTES_MAX", 2_500, raising=False)
    monkeypatch.setattr(parquet_files, "MERGED_SORTED_BYTES_MAX", 2_600)
    lake, topic = lake_with()
    commits(lake, topic, lake.ingestor(spec()), 1)
    sort_by(lake, ("id", "identity", "desc", "nulls-last"))
    commits(lake, topic, lake.ingestor(spec()), 24)
    files = sorted((entry.data_file.record_count, entry.data_file.sort_order_id) for entry in lake.files())
    assert files == [(5, 0), *[(5, 1)] * 4, (50, 1), (50, 1)], "ten files of five rows each, twice"
    is_whole(lake, topic)


def test_files_that_cannot_be_merged_do_not_keep_those_of_other_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake, topic = lake_with()
    tries, merge = [0], IcebergWriter.merge

    def fails_once(writer: IcebergWriter, files: Any) -> Any:
        tries[0] += 1
        if tries[0] == 1:
            raise ValueError("too large")
        return merge(writer, files)

    monkeypatch.setattr(IcebergWriter, "merge", fails_once)
    commits(lake, topic, lake.ingestor(spec("['bucket(2, id)']")), 12)
    assert tries[0] == 2
    assert len(lake.files()) == 12 + 1
    is_whole(lake, topic)


def test_one_reader_of_a_process_merges_at_a_time() -> None:
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec())
    slot = ingestor._context.merging
    assert slot.acquire(blocking=False)
    commits(lake, topic, ingestor, 12)
    assert len(lake.files()) == 12, "another reader merges"
    slot.release()
    topic.send(0, order(60))
    commits(lake, topic, ingestor, 12)
    assert len(lake.files()) < 12 + 12
    assert slot.acquire(blocking=False), "it is free again"
    is_whole(lake, topic)


def test_the_slot_is_free_again_after_a_merge_that_failed() -> None:
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec())

    def fails(_writer: object, _files: object) -> None:
        raise UnavailableError("the store is away")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(IcebergWriter, "merge", fails)
        with pytest.raises(UnavailableError, match="the store is away"):
            commits(lake, topic, ingestor, 12)
    assert ingestor._context.merging.acquire(blocking=False)


def test_the_slot_is_free_again_if_no_thread_can_be_started() -> None:
    lake, topic = lake_with()

    class Refuses(SteppedExecutor):
        def submit(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("can't start new thread")

    executors = iter([Refuses(), SteppedExecutor()])  # of merges, of commits
    context = replace(lake.context(), executor=lambda: next(executors))
    with pytest.raises(RuntimeError, match="can't start"):
        commits(lake, topic, Ingestor(spec(), context), 12)
    assert context.merging.acquire(blocking=False)


def merged_while(act: Any, ingestor: Ingestor) -> None:
    """`act` once, between the writing of a merged file and its commit."""
    inner, done = ingestor._merge, [False]

    def merge(group: small_files.Group, writer: Any) -> Any:
        merged = inner(group, writer)
        if not done[0]:
            done[0] = True
            act(group)
        return merged

    ingestor._merge = merge  # type: ignore[method-assign]


def test_of_files_that_were_dropped_meanwhile_the_others_are_merged_later() -> None:
    lake, topic = lake_with()
    ingestor, gone = lake.ingestor(spec()), list[str]()

    def drop(group: small_files.Group) -> None:
        gone.append(group.files[0].path)
        foreign(lake, ingestor, removed=(group.files[0],), summary={})
        ingestor._upkeep = Retires(group.files[:1])  # type: ignore[assignment]
        plan = Plan(source=None, identity=None, state=lake.table(), fresh=frozenset(), own={}, epochs={})  # type: ignore[arg-type]
        ingestor._retire(plan)
        ingestor._upkeep = upkeep

    upkeep = ingestor._upkeep
    merged_while(drop, ingestor)
    with capture_logs() as said:
        commits(lake, topic, ingestor, 12)
    assert not [line for line in said if "planning again" in line["event"]]
    held = [file.path for files in ingestor._small_files._held.values() for file in files]
    assert len(held) == 11
    assert gone[0] not in held
    assert len(lake.files()) == 11
    assert "replace" not in operations(lake)


class Retires:
    """An upkeep that drops these files."""

    def __init__(self, files: tuple[WrittenFile, ...]) -> None:
        self.files = files

    def retire(
        self, _state: object, _files: object, _writer: object, *, on_removed: Any, urgent: Any
    ) -> None:
        on_removed(self.files)


def test_what_was_merged_for_former_columns_is_left_out() -> None:
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec())

    def alter(_group: small_files.Group) -> None:
        ingestor.files._last = None  # type: ignore[attr-defined]
        ingestor._table.follow(lake.table())

    merged_while(alter, ingestor)
    commits(lake, topic, ingestor, 12)
    assert "replace" not in operations(lake)
    assert len(lake.files()) == 12
    is_whole(lake, topic)


def test_files_of_former_columns_are_not_merged() -> None:
    lake, topic = lake_with()
    ingestor = lake.ingestor(spec())
    added = ingestor._small_files
    added.add([WrittenFile(path="s3://tarn/x", partition=(), spec_id=0, records=1, bytes=1)] * 20)

    class Changed:
        def is_current(self, _state: TableState) -> bool:
            return False

    commits(lake, topic, ingestor, 1)
    added.add([WrittenFile(path="s3://tarn/x", partition=(), spec_id=0, records=1, bytes=1)] * 20)
    ingestor._follow(Changed(), lake.table())  # type: ignore[arg-type]
    assert added.due(10_000.0) is None
    assert added.due(20_000.0) is None


@pytest.mark.plays
@pytest.mark.parametrize("seed", seeds(40))
def test_merges_under_faults_lose_and_double_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "EVERY_S", 0.2)
    monkeypatch.setattr(small_files, "FIRST_LEVEL_MIN", 2)
    monkeypatch.setattr(small_files, "NEXT_LEVEL_MIN", 3)
    topic = Topic("orders", 3)
    lake, faults = faulty_lake(topic, seed, rate=0.35)
    merges, inner = [0], lake.local.commit

    def commit(table: TableName, request: CommitRequest, *, key: str) -> CommitOutcome:
        done = inner(table, request, key=key)
        merges[0] += isinstance(done, CommitDone) and '"operation": "replace"' in json.dumps(request.body())
        return done

    lake.local.commit = commit  # type: ignore[method-assign]
    chance = random.Random(seed)
    expected = feed(topic, chance, 150)
    for _ in range(10):
        lake.work(lake.ingestor(spec()), turns=60)
        faults.land_some()
    faults.land_all()
    faults.rate = 0.0
    lake.work(lake.ingestor(spec()), turns=400)
    lake.work(lake.ingestor(spec()), turns=50)
    audit(lake, expected)
    assert merges[0] > 0
