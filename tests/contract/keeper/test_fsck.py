"""fsck over a lake created by ingest and catalog, then damaged in one place at a time."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.adapters.store import MemoryStore
from tarn.core.audit.model import Kind
from tarn.core.errors import UnavailableError
from tarn.core.naming import GRANTS_KEY
from tarn.core.object_store import ObjectBody, Stored, StoreTooLargeError, StoreUnavailableError
from tarn.core.spec import IngestorSpec
from tarn.ingest import ingestor
from tarn.ingest.batch_commit import streams_named
from tarn.keeper import walk
from tarn.keeper.fsck import Report, fsck
from tarn.testing.memory_topic import Topic
from tarn_catalog.operations.tables import TableIdentifier
from tarn_catalog.state.access import THE_WAREHOUSE, Privilege, Securable
from tests.contract.keeper.conftest import World, made
from tests.support.lake import BUCKET, Lake, order, spec


def test_a_whole_lake_is_clean_and_counted(world: World):
    report = world.fsck()
    assert report.findings == []
    assert (report.namespaces, report.tables, report.tombstones) == (4, 3, 1)
    assert report.snapshots > 8
    (stand,) = report.streams
    assert (stand.table, stand.stream) == ("bronze.orders", "orders")
    assert dict(stand.map.next) == {0: 54, 1: 18}
    below = [key for key in world.keys("warehouse/") if "_health" not in key]
    assert report.files + report.orphans == len(below)
    dropped = [key for key in world.keys("/gone-") if key.startswith("warehouse/")]
    assert report.orphans >= len(dropped) > 0
    assert json.loads(json.dumps(report.data()))["clean"] is True


def test_nothing_is_written(world: World):
    before = dict(world.store._objects)
    world.fsck()
    assert world.store._objects == before


def data_files(world: World) -> list[str]:
    return [key for key in world.keys("bronze/orders-") if key.endswith(".parquet")]


def renamed() -> IngestorSpec:
    body = spec().model_dump(by_alias=True)
    body["metadata"]["name"] = "renamed"
    return IngestorSpec.model_validate(body)


def judged(lake: Lake) -> list[tuple[Kind, str]]:
    report = fsck(
        PlainBulk(lake.store), manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None
    )
    return [(found.kind, found.what) for found in report.findings]


def test_a_topic_that_is_in_a_table_twice_is_named_with_the_rows(monkeypatch: pytest.MonkeyPatch):
    """As a release before the check left it: an ingestor was renamed and restarted from the beginning."""
    topic = Topic("orders", 1)
    topic.send(0, *[order(n) for n in range(15)])
    lake = Lake(topic)
    lake.work(lake.ingestor())
    assert judged(lake) == []
    monkeypatch.setattr(ingestor, "require_only_stream", lambda state, *_args, **_names: streams_named(state))
    lake.work(lake.ingestor(renamed()))
    assert (len(lake.offsets()), len(set(lake.offsets()))) == (30, 15)
    ((kind, what),) = judged(lake)
    assert kind is Kind.STREAMS_DOUBLED
    assert what == (
        "streams of topic orders: orders at {0: 15}, renamed at {0: 15}; at least 15 rows are there twice"
    )
    topic.send(0, *[order(n) for n in range(15, 20)])
    lake.work(lake.ingestor(renamed()))
    ((kind, what),) = judged(lake)
    assert (kind, "at least 15 rows" in what) == (Kind.STREAMS_DOUBLED, True)


def test_compressed_metadata_is_read_and_damage_in_it_is_found():
    body = spec().model_dump(by_alias=True)
    body["spec"]["table"]["properties"] = {"write.metadata.compression-codec": "gzip"}
    made = IngestorSpec.model_validate(body)
    topic = Topic("orders", 1)
    lake = Lake(topic)
    for sent in range(3):
        topic.send(0, *[order(15 * sent + n) for n in range(15)])
        lake.work(lake.ingestor(made))
    assert (len(lake.offsets()), judged(lake)) == (45, [])
    keys = [entry.key for entry in lake.store.list("warehouse/") if entry.key.endswith(".gz.metadata.json")]
    assert len(keys) > 2
    for key in keys:
        stored = lake.store.get(key)
        assert stored is not None
        lake.store.put(key, stored.data[:-5])
    assert Kind.METADATA_UNREADABLE in {kind for kind, _ in judged(lake)}


def test_two_streams_whose_offsets_lie_apart_are_no_damage(monkeypatch: pytest.MonkeyPatch):
    """A loss that was accepted under a new name, as the documentation used to advise."""
    topic = Topic("orders", 1)
    topic.send(0, *[order(n) for n in range(15)])
    lake = Lake(topic)
    lake.work(lake.ingestor())
    topic.send(0, *[order(n) for n in range(15, 40)])
    topic.starts[0] = 30
    monkeypatch.setattr(ingestor, "require_only_stream", lambda state, *_args, **_names: streams_named(state))
    lake.work(lake.ingestor(renamed()))
    assert len(set(lake.offsets())) == len(lake.offsets()) == 25
    ((kind, what),) = judged(lake)
    assert (kind, "their offsets may overlap" in what) == (Kind.STREAMS_SAME, True)


def test_a_missing_data_file(world: World):
    world.store.delete(data_files(world)[0])
    assert world.kinds() == {"FILE": ["bronze.orders"]}
    (finding,) = world.fsck().damage
    assert "1 missing: s3://tarn/warehouse/bronze/orders-" in finding.what
    assert "the current one too" in finding.what


def test_a_truncated_data_file(world: World):
    key = data_files(world)[0]
    stored = world.store.get(key)
    assert stored is not None
    world.store.put(key, stored.data[:-1])
    assert world.kinds() == {"SIZE": ["bronze.orders"]}
    size = len(stored.data)
    assert f"({size - 1} bytes, stated {size})" in world.fsck().damage[0].what


def test_a_missing_and_a_scrambled_manifest(world: World):
    manifests = [key for key in world.keys("bronze/orders-") if key.endswith("-m0.avro")]
    world.store.delete(manifests[0])
    assert world.kinds() == {"MANIFEST": ["bronze.orders"]}
    stored = world.store.get(manifests[1])
    assert stored is not None
    world.store.put(manifests[1], b"x" * len(stored.data))
    assert world.kinds() == {"MANIFEST": ["bronze.orders"], "UNREADABLE": ["bronze.orders"]}


def test_a_missing_manifest_list(world: World):
    world.store.delete(world.head()["manifest-list"].removeprefix("s3://tarn/"))
    assert world.kinds() == {"LIST": ["bronze.orders"]}


def test_a_missing_and_a_foreign_metadata_file(world: World):
    key, _ = world.metadata("gold.eu.kept")
    world.store.delete(key)
    assert world.kinds() == {"METADATA_MISSING": ["gold.eu.kept"]}
    world.store.put(key, b"[]")
    assert world.kinds() == {"METADATA_UNREADABLE": ["gold.eu.kept"]}
    world.store.put(key, b'{"table-uuid": "x", "snapshots": 7}')
    assert world.kinds() == {"METADATA_UNREADABLE": ["gold.eu.kept"]}
    _, metadata = world.metadata()
    world.put_json(key, metadata)
    assert "METADATA_OTHER" in world.kinds()


def test_an_earlier_metadata_file_is_missing_or_of_another_history(world: World):
    _, metadata = world.metadata()
    log = [entry["metadata-file"].removeprefix("s3://tarn/") for entry in metadata["metadata-log"]]
    changed = world.json(log[-2])
    changed["metadata-log"][-1]["metadata-file"] = f"s3://tarn/{log[0]}"
    world.put_json(log[-2], changed)
    assert world.kinds() == {"LOG_BROKEN": ["bronze.orders"]}
    world.store.delete(log[1])
    assert world.kinds() == {"LOG_BROKEN": ["bronze.orders"], "LOG_MISSING": ["bronze.orders"]}


@pytest.mark.parametrize("whole", [False, True], ids=["the location alone", "the whole older pointer"])
def test_a_pointer_that_was_put_back(world: World, whole: bool):
    key, pointer = world.pointer("bronze.orders")
    _, metadata = world.metadata()
    older = metadata["metadata-log"][-3]["metadata-file"]
    pointer["metadata-location"] = older
    if whole:
        pointer["recent"] = pointer["recent"][:-3]
    world.put_json(key, pointer)
    report = world.fsck()
    assert [(f.kind, f.where) for f in report.damage] == [(Kind.METADATA_OLD, "bronze.orders")]
    assert older in report.damage[0].what


def test_one_step_back_is_told_as_what_it_may_be(world: World):
    key, pointer = world.pointer("bronze.orders")
    _, metadata = world.metadata()
    pointer["metadata-location"] = metadata["metadata-log"][-1]["metadata-file"]
    world.put_json(key, pointer)
    assert [f.kind for f in world.fsck().findings] == [Kind.METADATA_AHEAD]


def test_a_table_registered_at_an_older_metadata_on_purpose_is_clean(world: World):
    _, metadata = world.metadata()
    older = metadata["metadata-log"][-3]["metadata-file"]
    catalog = world.catalog
    slot = TableIdentifier.of(("bronze",), "orders")
    catalog.tables.drop(slot)
    for key, (data, _) in list(world.store._objects.items()):
        world.store._objects[key] = (data, 1)
    key, pointer = world.pointer("bronze.orders")
    pointer.update({"state": "live", "metadata-location": older})
    world.put_json(key, pointer)
    assert world.fsck().damage == []


def test_a_ref_that_points_at_nothing(world: World):
    key, metadata = world.metadata()
    metadata["refs"]["tarn-offsets-orders"]["snapshot-id"] = 4711
    world.put_json(key, metadata)
    assert world.kinds() == {"REF": ["bronze.orders"]}
    assert "tag tarn-offsets-orders points at snapshot 4711" in world.fsck().damage[0].what


def moved(world: World, by: int | None, *, at: int = -4) -> tuple[int, int]:
    """Change the offset map of one snapshot in the middle.

    Returns:
        Where partition 0 stood in the snapshot before it, and in this one.
    """
    key, metadata = world.metadata()
    before, snapshot = metadata["snapshots"][at - 1 : at + 1]
    offsets = json.loads(snapshot["summary"]["tarn.offsets.orders"])
    stood = offsets["next"]["0"]
    offsets["next"]["0"] = 0 if by is None else stood + by
    snapshot["summary"]["tarn.offsets.orders"] = json.dumps(offsets)
    world.put_json(key, metadata)
    return json.loads(before["summary"]["tarn.offsets.orders"])["next"]["0"], stood


def test_a_map_that_is_behind_its_rows(world: World):
    _, stood = moved(world, -2)
    assert world.kinds() == {"OFFSETS_DOUBLED": ["bronze.orders"] * 2}
    outside, more = (finding.what for finding in world.fsck().damage)
    assert f"has offset {stood - 1} of partitions 0 to 0, and the map ends at {stood - 2}" in outside
    assert "it adds 2 rows more than the offsets that it covers" in more


def test_a_map_that_is_ahead_of_its_rows(world: World):
    _, stood = moved(world, 2)
    assert world.kinds() == {"OFFSETS_DOUBLED": ["bronze.orders"] * 2}
    outside, more = (finding.what for finding in world.fsck().damage)
    assert (
        f"has offset {stood} of partitions 0 to 0, which the map before it had up to {stood + 2} " in outside
    )
    assert "it adds 2 rows more than the offsets that it covers" in more


def test_a_map_that_goes_back(world: World):
    before, _ = moved(world, None)
    assert world.kinds() == {"OFFSETS_BROKEN": ["bronze.orders"]}
    assert before > 0
    assert f"partition 0 stood at {before} before and stands at 0 now" in world.fsck().damage[0].what


def test_a_map_of_another_topic_and_one_that_is_unreadable(world: World):
    key, metadata = world.metadata()
    summary = metadata["snapshots"][-1]["summary"]
    offsets = json.loads(summary["tarn.offsets.orders"])
    summary["tarn.offsets.orders"] = json.dumps({**offsets, "topic-id": "another"})
    world.put_json(key, metadata)
    assert world.kinds() == {"OFFSETS_BROKEN": ["bronze.orders"]}
    summary["tarn.offsets.orders"] = "{"
    world.put_json(key, metadata)
    assert world.kinds() == {"OFFSETS_UNREADABLE": ["bronze.orders"]}


def test_rows_that_are_missing_for_their_offsets_are_a_note(world: World):
    """As with a topic whose offsets are used up by aborted transactions: a person must decide."""
    key, metadata = world.metadata()
    for snapshot in metadata["snapshots"][-3:]:
        offsets = json.loads(snapshot["summary"]["tarn.offsets.orders"])
        offsets["next"]["7"] = 5 if snapshot is metadata["snapshots"][-3] else 9
        snapshot["summary"]["tarn.offsets.orders"] = json.dumps(offsets)
    world.put_json(key, metadata)
    report = world.fsck()
    assert report.damage == []
    assert [f.kind for f in report.notes] == [Kind.OFFSETS_HOLE]
    assert "4 covered offsets" in report.notes[0].what


def test_a_lost_dead_letter_file_is_missing_in_its_table_and_in_the_one_that_names_it(world: World):
    letters = [key for key in world.keys("ops/dead_letters-") if key.endswith(".parquet")]
    world.store.delete(letters[0])
    assert world.kinds() == {"FILE": ["ops.dead_letters"], "LETTERS": ["bronze.orders"]}


def test_dead_letters_that_the_marker_covers_and_no_table_has(world: World):
    key, metadata = world.metadata("ops.dead_letters")
    # The newest snapshot drops the files of all before it and keeps the watermark.
    first = metadata["snapshots"][0]
    metadata["snapshots"][-1]["manifest-list"] = first["manifest-list"]
    world.put_json(key, metadata)
    assert world.kinds() == {"LETTERS_UNREGISTERED": ["bronze.orders"]}
    assert "2 dead-letter files count as registered" in world.fsck().damage[0].what


def test_dead_letters_that_wait_are_a_note(world: World):
    key, pointer = world.pointer("ops.dead_letters")
    _, metadata = world.metadata("ops.dead_letters")
    pointer["metadata-location"] = metadata["metadata-log"][0]["metadata-file"]
    world.put_json(key, pointer)
    report = world.fsck()
    assert [f.kind for f in report.notes] == [Kind.LETTERS_WAITING]
    assert "3 dead-letter files wait to be registered" in report.notes[0].what


def test_a_table_in_a_namespace_that_is_dropped_gone_or_unreadable(world: World):
    key = "catalog/v1/namespaces/gold.eu.json"
    value = world.json(key)
    world.put_json(key, {**value, "state": "dropped"})
    assert world.kinds() == {"NAMESPACE_DROPPED": ["gold.eu.kept"]}
    world.store.put(key, b"nonsense")
    assert world.kinds() == {"NAMESPACE_UNREADABLE": [key], "NAMESPACE_MISSING": ["gold.eu.kept"]}
    world.store.delete(key)
    assert world.kinds() == {"NAMESPACE_MISSING": ["gold.eu.kept"]}


def test_a_live_namespace_below_a_dropped_one(world: World):
    key = "catalog/v1/namespaces/gold.json"
    world.put_json(key, {**world.json(key), "state": "dropped"})
    assert world.kinds() == {"NAMESPACE_DROPPED": ["gold.eu"]}


def test_pointers_that_are_odd(world: World):
    key, pointer = world.pointer("gold.eu.kept")
    world.put_json("catalog/v1/pointers/gold.eu/other.json", pointer)
    assert world.kinds() == {
        "TABLE_TWICE": ["gold.eu.kept"],
        "POINTER_MISPLACED": ["gold.eu.kept"],
    }
    world.store.delete("catalog/v1/pointers/gold.eu/other.json")
    world.put_json(key, {**pointer, "state": "dropped"})
    assert world.kinds() == {"TOMBSTONE": ["gold.eu.kept"]}
    world.put_json(key, {**pointer, "format": 99})
    assert world.kinds() == {"POINTER_UNREADABLE": [key]}
    world.put_json(key, {**pointer, "key-pages": [["catalog/v1/keys/x/y.json", 0, 1]]})
    assert world.kinds() == {"KEY_PAGE": ["gold.eu.kept"]}


def test_an_intent_that_somebody_left_is_a_note(world: World):
    key, pointer = world.pointer("gold.eu.kept")
    intent = {"record": "catalog/v1/transactions/x.json", "nonce": "n", "then": {}, "at-ms": 1}
    world.put_json(key, {**pointer, "intent": intent})
    report = world.fsck()
    assert report.damage == []
    assert [f.kind for f in report.notes] == [Kind.PENDING]


def test_a_claim_of_another_name_and_one_to_purge(world: World):
    _, pointer = world.pointer("gold.eu.kept")
    key = f"catalog/v1/claims/{pointer['table-uuid']}.json"
    claim = {"format": 1, "table-uuid": pointer["table-uuid"], "holder": None, "purge": None, "intent": None}
    world.put_json(key, claim)
    assert world.kinds() == {}
    world.put_json(key, {**claim, "holder": "catalog/v1/pointers/gold/other.json"})
    assert world.kinds() == {"CLAIM": ["gold.eu.kept"]}
    world.put_json(key, {**claim, "purge": {"location": "x"}})
    assert world.kinds() == {"CLAIM": ["gold.eu.kept"]}
    world.put_json(key, {**claim, "purge": {"location": "x"}, "intent": {}})
    assert world.kinds() == {}


def test_a_location_outside_the_bucket(world: World):
    key, metadata = world.metadata()
    metadata["statistics"] = [
        {"snapshot-id": 1, "statistics-path": "s3://elsewhere/x.puffin", "file-size-in-bytes": 1}
    ]
    world.put_json(key, metadata)
    assert world.kinds() == {"ELSEWHERE": ["bronze.orders"]}


def test_everything_damaged_at_once_is_told_and_nothing_crashes(world: World):
    for n, key in enumerate(world.keys()):
        if n % 3 == 0:
            world.store.delete(key)
        elif n % 3 == 1:
            world.store.put(key, b"\x00\xff" * n)
    report = world.fsck()
    assert len(report.damage) >= 3
    for finding in report.findings:
        assert finding.where
        assert finding.what
        assert finding.fix


class Vanishing(MemoryStore):
    """Omits the warehouse from listings, as a stale listing would; the objects exist."""

    def list(self, prefix, *, after=None):
        if not prefix.startswith("warehouse/"):
            yield from super().list(prefix, after=after)


def test_a_listing_that_is_behind_is_no_damage(world: World):
    store = Vanishing()
    store._objects = world.store._objects
    assert World(store).fsck().damage == []


class Gone(MemoryStore):
    """Does not answer reads of the warehouse."""

    def get(self, key: str) -> Stored | None:
        if key.startswith("warehouse/"):
            raise StoreUnavailableError("no answer")
        return super().get(key)


def test_a_store_that_does_not_answer_is_no_damage(world: World):
    store = Gone()
    store._objects = world.store._objects
    with pytest.raises(UnavailableError, match="no answer"):
        World(store).fsck()


def test_a_rename_in_the_middle_is_not_seen_as_damage(world: World):
    """A table is renamed between two reads of the register: it is neither lost nor listed twice."""
    catalog = world.catalog

    class Renaming(PlainBulk):
        left = 1

        def get(self, key: str) -> Stored | None:
            found = super().get(key)
            if key.endswith("/kept.json") and self.left:
                self.left -= 1
                catalog.names.rename(
                    TableIdentifier.of(("gold", "eu"), "kept"), TableIdentifier.of(("gold",), "moved")
                )
            return found

    report = fsck(
        Renaming(world.store), manifest_audit, bucket="tarn", tell=lambda _: None, sleep=lambda _: None
    )
    assert report.damage == []
    assert (report.tables, report.tombstones) == (3, 2)


def test_a_commit_in_the_middle_is_not_seen_as_damage(world: World):
    catalog = world.catalog
    slot = TableIdentifier.of(("gold", "eu"), "kept")

    class Committing(PlainBulk):
        def list(self, prefix: str):
            if prefix.startswith("warehouse/"):
                for n in range(4):
                    updates = [{"action": "set-properties", "updates": {"n": str(n)}}]
                    catalog.tables.commit(slot, [], updates)
            return super().list(prefix)

    report = fsck(
        Committing(world.store), manifest_audit, bucket="tarn", tell=lambda _: None, sleep=lambda _: None
    )
    assert report.findings == []


def test_a_lake_of_format_3_is_clean_and_its_damage_is_seen():
    store = MemoryStore()
    store._objects = made(format_version=3)
    world = World(store)
    assert world.metadata()[1]["format-version"] == 3
    assert world.fsck().findings == []
    world.store.delete(data_files(world)[0])
    assert world.kinds() == {"FILE": ["bronze.orders"]}


def granted(world: World) -> None:
    """Principals, a role and grants as a catalog stores them."""
    access = world.catalog.access
    access.create_principal("bob", by="cli")
    access.create_role("staff")
    access.set_member("staff", "bob", there=True)
    found = world.catalog.namespaces.find(("gold",))
    assert found is not None
    gold = Securable(kind="namespace", uuid=found.uuid, name=("gold",))
    access.grant(gold, "staff", frozenset({Privilege.READ}))
    access.grant(THE_WAREHOUSE, "bob", frozenset({Privilege.CREATE}))


def test_grants_belong_to_a_clean_lake(world: World):
    granted(world)
    assert world.fsck().findings == []


@pytest.mark.parametrize(
    ("field", "odd"),
    [
        ("format", 2),
        ("principals", {"bob-1": {"name": "bob"}}),
        ("roles", {"staff": ["eve"]}),
        ("grants", [{"on": {"kind": "warehouse"}, "to": "eve", "privileges": ["READ"]}]),
        ("grants", [{"on": {"kind": "warehouse"}, "to": "bob", "privileges": []}]),
        (
            "grants",
            [{"on": {"kind": "table", "uuid": "", "name": ["a", "t"]}, "to": "bob", "privileges": ["READ"]}],
        ),
        ("grants", [{"to": "bob"}]),
        ("grants", 7),
    ],
)
def test_damaged_grants_are_named(world: World, field: str, odd: object):
    granted(world)
    world.put_json(GRANTS_KEY, {**world.json(GRANTS_KEY), field: odd})
    assert world.kinds() == {"GRANTS_UNREADABLE": [GRANTS_KEY]}


class Long(MemoryStore):
    """Refuses to read what is named, as a store does with objects that are too long."""

    def __init__(self, *parts: str) -> None:
        super().__init__()
        self.parts = parts

    def get(self, key: str, *, known: Stored | None = None) -> Stored | None:
        if any(part in key for part in self.parts):
            raise StoreTooLargeError(f"{key} has 200000000 bytes")
        return super().get(key, known=known)


def test_an_object_that_is_too_long_to_be_read_is_damage_of_its_table_alone(world: World):
    """Whoever may write a table chooses what it names, and the lake has other tables."""
    head = world.head()["manifest-list"].rpartition("/")[2]
    kept = world.metadata("gold.eu.kept")[0].rpartition("/")[2]
    store = Long(head, kept)
    store._objects = world.store._objects
    report = World(store).fsck()
    assert report.tables == 3
    assert {(found.kind, found.where) for found in report.damage} == {
        (Kind.UNREADABLE, "bronze.orders"),
        (Kind.METADATA_UNREADABLE, "gold.eu.kept"),
    }
    assert all("200000000 bytes" in found.what for found in report.damage)


def test_earlier_metadata_that_are_too_long_to_be_read_are_damage_of_their_table(world: World):
    earlier = world.metadata()[1]["metadata-log"][-1]["metadata-file"].rpartition("/")[2]
    store = Long(earlier)
    store._objects = world.store._objects
    assert World(store).kinds() == {"LOG_BROKEN": ["bronze.orders"]}


def test_large_objects_are_read_one_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch):
    """Some dozens of the longest that are read, all at once, are more than the memory of `fsck`."""
    small = world.fsck()
    opened: dict[str, bool] = {}
    whole: list[tuple[str, bool]] = []

    class Ahead(PlainBulk):
        def open(self, key: str, *, bytes_max: int = 0) -> ObjectBody | None:
            found = super().open(key, bytes_max=bytes_max)
            opened[key] = found is not None and found.data is not None
            return found

        def get(self, key: str) -> Stored | None:
            whole.append((key, threading.current_thread() is threading.main_thread()))
            return super().get(key)

    def without_seconds(report: Report) -> dict[str, Any]:
        return {**report.data(), "seconds": 0}

    def report() -> Report:
        whole.clear()
        opened.clear()
        return fsck(
            Ahead(world.store), manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None
        )

    assert without_seconds(report()) == without_seconds(small)
    read = set(opened)
    assert len(read) > 20
    assert all(opened.values())
    assert read.isdisjoint(key for key, _ in whole)
    monkeypatch.setattr(walk, "PART_BYTES", 10)
    assert without_seconds(report()) == without_seconds(small)
    assert set(opened) == read
    assert not any(opened.values())
    assert read <= {key for key, alone in whole if alone}
    assert read.isdisjoint(key for key, alone in whole if not alone)
