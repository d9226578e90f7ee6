"""Backups written by former commits restore, can be read, take further batches and commits, and pass fsck."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import pytest

from tarn.adapters import manifest_audit
from tarn.adapters.bulk import PlainBulk
from tarn.keeper.fsck import Report, fsck
from tarn.keeper.reaper import Graces, Reaper
from tarn.keeper.restore import restore
from tarn.testing.memory_topic import Topic
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.tables import TableIdentifier
from tests.support.lake import BUCKET, Lake, order

FOLDER = Path(__file__).with_name("archives")
ARCHIVES = sorted(path.name for path in FOLDER.glob("*.tar.gz"))
BATCHES = 9
NEXT = [54, 18]
"""Per partition, the offset after the last one in the archives (archives/README.md)."""


def former_topic() -> tuple[Topic, set[tuple[int, int, int]]]:
    """The topic as it was when the backup was written, and (partition, offset, id) of its good records."""
    topic = Topic("orders", 2)
    good = set()
    for number in range(BATCHES):
        good |= {(0, number * 6 + n, number * 10 + n) for n in range(6)}
        good.add((1, number * 2, number))
        topic.send(0, *[order(number * 10 + n) for n in range(6)])
        if number % 4 == 0:
            topic.send(1, order(number), b"not json")
        else:
            topic.send(1, order(number), order(number + 1_000))
            good.add((1, number * 2 + 1, number + 1_000))
    return topic, good


def check(lake: Lake) -> Report:
    return fsck(
        PlainBulk(lake.store), manifest_audit, bucket=BUCKET, tell=lambda _: None, sleep=lambda _: None
    )


def rows(lake: Lake) -> list[tuple[int, int, int]]:
    return sorted((r["_tarn"]["partition"], r["_tarn"]["offset"], r["id"]) for r in lake.rows())


@pytest.fixture(params=ARCHIVES)
def restored(request: pytest.FixtureRequest) -> tuple[Lake, set[tuple[int, int, int]]]:
    """The lake of an archive, with its topic, and the good records in it."""
    topic, good = former_topic()
    lake = Lake(topic)
    lake.numbers = random.Random(8)  # the archives hold the ids of the usual seed
    data = gzip.decompress((FOLDER / request.param).read_bytes())
    found = restore(
        PlainBulk(lake.store),
        io.BytesIO(data),
        bucket=BUCKET,
        warehouse="tarn",
        tell=lambda _: None,
        sleep=lambda _: None,
    )
    assert found.end.missing == []
    assert found.end.streams[0]["next"] == {"0": NEXT[0], "1": NEXT[1]}
    return lake, good


def test_there_are_archives() -> None:
    assert ARCHIVES == ["31f7290.tar.gz", "dc84420.tar.gz"]


def test_a_former_backup_is_whole_and_its_rows_can_be_read(
    restored: tuple[Lake, set[tuple[int, int, int]]],
) -> None:
    lake, good = restored
    report = check(lake)
    assert report.findings == []
    assert (report.tables, report.tombstones, report.orphans) == (3, 1, 0)
    assert rows(lake) == sorted(good)
    assert len(lake.rows("ops.dead_letters")) == 3


def test_ingestion_goes_on_after_the_last_offset_of_a_former_backup(
    restored: tuple[Lake, set[tuple[int, int, int]]],
) -> None:
    lake, good = restored
    topic = lake.sources.topics["orders"]
    topic.send(0, order(5_000), b"not json", order(5_001))
    topic.send(1, order(5_002))
    snapshots = len(lake.table().metadata["snapshots"])
    lake.work(lake.ingestor(), turns=40)
    new = {(0, NEXT[0], 5_000), (0, NEXT[0] + 2, 5_001), (1, NEXT[1], 5_002)}
    assert rows(lake) == sorted(good | new)
    assert len(lake.rows("ops.dead_letters")) == 4
    assert len(lake.table().metadata["snapshots"]) > snapshots
    lake.history_is_a_chain()
    assert check(lake).findings == []


def test_a_former_backup_takes_commits_and_the_reaper_leaves_it_whole(
    restored: tuple[Lake, set[tuple[int, int, int]]],
) -> None:
    lake, good = restored
    catalog = lake.local.catalog
    slots = [TableIdentifier.of(("bronze",), "orders"), TableIdentifier.of(("gold", "eu"), "kept")]
    catalog.together.commit(
        [
            Change(
                slot=slot,
                requirements=[],
                updates=[{"action": "set-properties", "updates": {"both": "yes"}}],
            )
            for slot in slots
        ]
    )
    catalog.tables.drop(slots[1])
    lake.sources.topics["orders"].send(0, order(6_000))
    lake.work(lake.ingestor(), turns=40)
    Reaper(lake.store, manifest_audit, bucket=BUCKET, graces=Graces(metadata_ms=0, files_ms=0)).run_once()
    assert rows(lake) == sorted(good | {(0, NEXT[0], 6_000)})
    assert lake.table().metadata["properties"]["both"] == "yes"
    report = check(lake)
    assert report.damage == []
    assert (report.tables, report.tombstones) == (2, 2)
